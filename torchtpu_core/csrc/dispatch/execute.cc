#include "execute.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <sstream>

#include "../device/errors.h"
#include "../device/generator.h"
#include "../device/memory.h"
#include "../device/queue.h"
#include "../device/runtime.h"
#include "padded.h"
#include "stats.h"
#include "transfer.h"

namespace torchtpu {
namespace {

std::atomic<Mode> current_mode{Mode::kStrict};
std::atomic<bool> mode_was_set{false};

// "add.Tensor(f32[8,8], f32[8])", for errors.
std::string shown(const char* name, const Call& call) {
  std::ostringstream out;
  out << name << '(';
  for (size_t i = 0; i < call.tensors.size(); ++i) {
    const at::Tensor& t = *call.tensors[i].tensor;
    out << (i ? ", " : "") << t.scalar_type() << t.sizes();
  }
  out << ')';
  return out.str();
}

c10::Scalar number_of(const at::Tensor& cpu) { return cpu.item(); }

BufferPtr input(const InputPlan& plan, Call& call, const Program& program) {
  switch (plan.kind) {
    case InputPlan::kSlot:
      return call.tensors[plan.index].buffer;
    case InputPlan::kHost:
      return number_buffer(number_of(*call.tensors[plan.index].tensor), plan.dtype, call.device);
    case InputPlan::kScalar:
      return number_buffer(call.scalars[plan.index]->toScalar(), plan.dtype, call.device);
    case InputPlan::kRandom: {
      auto [seed, offset] = generator_for(call.generator, call.device)
                                .reserve(call.random_blocks.value_or(program.random_blocks));
      return random_state_buffer(seed, offset, call.device);
    }
  }
  TORCH_INTERNAL_ASSERT(false);
}

// Waits for n numbers that a program returns beside its outputs.
std::vector<int64_t> numbers(const char* name, const Call& call, const pjrt::Buffer& results,
                             size_t n) {
  std::vector<int64_t> found(n);
  try {
    results.to_host(found.data(), n * sizeof(int64_t)).await();
  } catch (const pjrt::Error&) {
    throw_translated(("running " + shown(name, call)).c_str());
  }
  return found;
}

// From this size on a buffer that is less than half full is cut down to a power of two.
constexpr size_t kTrimmed = size_t{1} << 20;

// The tensor of a counted output: `all` is its whole buffer, `count` the places that are meant.
at::Tensor counted_tensor(const Counted& plan, at::Tensor all, int64_t count) {
  Dims sizes(all.sizes().begin(), all.sizes().end());
  const int64_t bound = sizes[plan.dim];
  if (count == bound) return all;
  sizes[plan.dim] = count;
  if (c10::multiply_integers(sizes) == 0) {
    at::Tensor none = at::empty({0}, all.options());
    none.unsafeGetTensorImpl()->set_sizes_contiguous(sizes);
    return none;
  }
  // The program that cuts is one for each power of two. Its result is laid out like `all`.
  const auto room = static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(count)));
  if (all.nbytes() >= kTrimmed && 2 * room <= bound) {
    const at::Tensor line = all.permute(c10::IntArrayRef(plan.order));
    const auto at = std::find(plan.order.begin(), plan.order.end(), plan.dim) - plan.order.begin();
    at::Tensor cut = line.narrow(at, 0, room).clone(at::MemoryFormat::Contiguous);
    Dims back(plan.order.size());
    for (size_t i = 0; i < back.size(); ++i) back[plan.order[i]] = static_cast<int64_t>(i);
    all = cut.permute(c10::IntArrayRef(back));
    if (count == room) return all;
  }
  return corner(all, permuted(sizes, plan.order), sizes, plan.order);
}

// Waits for the results of a program's checks and raises the first that failed.
void raise_failed_check(const char* name, const Program& program, const Call& call,
                        const pjrt::Buffer& results) {
  const auto found = numbers(name, call, results, 2 * program.checks.size());
  for (size_t i = 0; i < program.checks.size(); ++i) {
    if (found[2 * i] == 0) continue;
    const Check& check = program.checks[i];
    std::string text = check.text;
    if (const size_t at = text.find("{}"); at != std::string::npos) {
      text.replace(at, 2, std::to_string(found[2 * i + 1]));
    }
    text += " (in " + shown(name, call) + ")";
    TORCH_CHECK_INDEX(!check.index_error, text);
    TORCH_CHECK(false, text);
  }
}

void release(TensorArg& arg) {
  arg.buffer.reset();
  BufferPtr old;
  std::lock_guard<SpinLock> guard(arg.slot->lock);
  old = std::move(arg.slot->buffer);
}

}  // namespace

Mode mode() { return current_mode.load(std::memory_order_relaxed); }
void set_mode(Mode m) {
  mode_was_set.store(true, std::memory_order_relaxed);
  current_mode.store(m, std::memory_order_relaxed);
}
void set_default_mode(Mode m) {
  if (!mode_was_set.load(std::memory_order_relaxed))
    current_mode.store(m, std::memory_order_relaxed);
}

c10::SmallVector<at::Tensor, 4> launch(const char* name, const Program& program, Call& call) {
  Runtime& rt = runtime();
  const PJRT_Api* api = rt.client().api();
  const size_t n_in = program.inputs.size();
  const size_t n_out = program.outputs.size();
  const size_t n_results = program.num_results();
  c10::SmallVector<BufferPtr, 8> held(n_in);
  c10::SmallVector<PJRT_Buffer*, 8> args(n_in);
  c10::SmallVector<PJRT_Buffer*, 4> outs(n_results);
  c10::SmallVector<int64_t, 4> keep;
  PJRT_Event* complete = nullptr;
  try {
    for (size_t i = 0; i < n_in; ++i) {
      held[i] = input(program.inputs[i], call, program);
      args[i] = held[i]->raw();
    }
    // A donated buffer must belong to its slot alone: the slot's reference, the call's and ours.
    for (int64_t i : program.donate) {
      if (held[i].use_count() > 3) keep.push_back(i);
    }
    if (n_results == 0) {
      // nothing to compute: an op on no elements that returns nothing
    } else {
      program.executable->execute_raw(args.data(), n_in, outs.data(), rt.pjrt_device(call.device),
                                      keep.data(), keep.size(), &complete);
    }
  } catch (const pjrt::Error& e) {
    if (e.code() == pjrt::Code::kResourceExhausted) record_oom(call.device, false);
    throw_translated(("running " + shown(name, call)).c_str());
  }
  stats().executions.fetch_add(1, std::memory_order_relaxed);
  uint64_t sequence = 0;
  if (complete != nullptr) sequence = queue::push(call.device, pjrt::Event(api, complete));
  held.clear();
  // What was donated is gone: its slots let go before the results are counted.
  for (int64_t i : program.donate) {
    if (std::find(keep.begin(), keep.end(), i) == keep.end())
      release(call.tensors[program.inputs[i].index]);
  }
  c10::SmallVector<at::Tensor, 4> fresh(n_out);
  for (size_t i = 0; i < n_out; ++i) {
    const OutputPlan& plan = program.outputs[i];
    auto ref = c10::make_intrusive<BufferRef>(pjrt::Buffer(api, outs[i]), call.device, plan.nbytes);
    if (plan.tensor >= 0) {
      call.tensors[plan.tensor].buffer.reset();
      assign(*call.tensors[plan.tensor].slot, std::move(ref), plan.dtype, plan.base);
    } else {
      fresh[i] = wrap_buffer(std::move(ref), plan.dtype, plan.base, plan.sizes, plan.strides);
    }
  }
  if (!program.counted.empty()) {
    const pjrt::Buffer sizes(api, outs[n_out]);
    const auto counts = numbers(name, call, sizes, program.counted.size());
    stats().to_host.fetch_add(1, std::memory_order_relaxed);
    stats().bytes_to_host.fetch_add(counts.size() * sizeof(int64_t), std::memory_order_relaxed);
    for (size_t i = 0; i < counts.size(); ++i) {
      at::Tensor& t = fresh[program.counted[i].output];
      t = counted_tensor(program.counted[i], std::move(t), counts[i]);
    }
  }
  if (!program.checks.empty()) {
    raise_failed_check(name, program, call, pjrt::Buffer(api, outs[n_results - 1]));
  }
  if (mode() == Mode::kDebug && sequence != 0) {
    try {
      queue::wait(call.device, sequence);
    } catch (const pjrt::Error&) {
      throw_translated(("running " + shown(name, call)).c_str());
    }
  }
  return fresh;
}

void execute(const char* name, const Program& program, Call& call, size_t num_args,
             torch::jit::Stack& stack) {
  auto fresh = launch(name, program, call);
  // Results may be arguments, so they are collected before the arguments are dropped.
  c10::SmallVector<c10::IValue, 4> results;
  const size_t first = stack.size() - num_args;
  for (const ReturnPlan& r : program.returns) {
    switch (r.kind) {
      case ReturnPlan::kNone:
        results.emplace_back(at::Tensor());
        break;
      case ReturnPlan::kOutput:
        results.emplace_back(std::move(fresh[r.index]));
        break;
      case ReturnPlan::kOutputs: {
        std::vector<at::Tensor> list;
        for (uint32_t i : r.list) list.push_back(std::move(fresh[i]));
        results.emplace_back(std::move(list));
        break;
      }
      case ReturnPlan::kArgument:
        results.push_back(stack[first + r.index]);
        break;
      case ReturnPlan::kValue:
        results.push_back(r.value);
        break;
    }
  }
  torch::jit::drop(stack, num_args);
  for (auto& r : results) stack.push_back(std::move(r));
}

}  // namespace torchtpu
