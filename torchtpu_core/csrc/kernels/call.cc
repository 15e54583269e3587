#include "call.h"

#include <ATen/Parallel.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <atomic>
#include <condition_variable>
#include <deque>
#include <future>
#include <mutex>
#include <thread>

namespace torchtpu::kernels {

std::atomic<bool> worker_goes_on{false};

namespace {

namespace ffi = pjrt::ffi;

c10::ScalarType scalar_type(ffi::Type type) {
  switch (type) {
    case ffi::Type::kF32:
      return c10::kFloat;
    case ffi::Type::kF64:
      return c10::kDouble;
    case ffi::Type::kS64:
      return c10::kLong;
  }
  TORCH_CHECK(false, "custom call with a buffer of XLA's element type ", static_cast<int>(type));
}

// A thread's dispatch state: plain CPU kernels, no autograd.
class PlainKernels {
 public:
  PlainKernels()
      : guard_(c10::DispatchKeySet(c10::DispatchKey::BackendSelect),
               c10::default_excluded_set | c10::autocast_dispatch_keyset |
                   c10::autograd_dispatch_keyset_with_ADInplaceOrView) {}

 private:
  c10::impl::ForceDispatchKeyGuard guard_;
};

ffi::Error* error(const ffi::CallFrame& frame, const char* message) {
  constexpr int32_t kInternal = 13;
  ffi::ErrorCreateArgs args{sizeof args, nullptr, message, kInternal};
  return frame.api->error_create(&args);
}

ffi::Error* execute(const ffi::CallFrame& frame, void (*body)(const Call&)) {
  try {
    body(Call(frame));
  } catch (const c10::Error& e) {
    return error(frame, e.what_without_backtrace());
  } catch (const std::exception& e) {
    return error(frame, e.what());
  }
  return nullptr;
}

// The thread that all kernels run on, one after the other: each has all cores, by one team of
// OpenMP's threads. On XLA's threads each would have a team of its own, whose threads get in each
// other's way. Leaked, as it may run at the end of the process.
class Worker {
 public:
  Worker() {
    std::thread([this] { serve(); }).detach();
  }

  // Whether this is the thread.
  static bool current() { return current_; }

  // Runs a kernel there, and then, as its future is set, what XLA has waiting for it: most of the
  // rest of the program, whose kernels need no other thread to wake up for them.
  void post(const ffi::CallFrame& frame, void (*body)(const Call&)) { add({frame, body, nullptr}); }

  // Runs a kernel there and waits for its end.
  ffi::Error* run(const ffi::CallFrame& frame, void (*body)(const Call&)) {
    std::promise<ffi::Error*> end;
    auto failure = end.get_future();
    add({frame, body, &end});
    return failure.get();
  }

 private:
  struct Job {
    ffi::CallFrame frame;
    void (*body)(const Call&);
    std::promise<ffi::Error*>* end;  // of who waits; otherwise the frame's future is set
  };

  void add(const Job& job) {
    {
      std::lock_guard lock(mutex_);
      jobs_.push_back(job);
    }
    added_.notify_one();
  }

  [[noreturn]] void serve() {
    const PlainKernels plain;
    at::get_num_threads();  // gives the thread PyTorch's setting
    current_ = true;
    std::unique_lock lock(mutex_);
    for (;;) {
      added_.wait(lock, [&] { return !jobs_.empty(); });
      const Job job = jobs_.front();
      jobs_.pop_front();
      lock.unlock();
      finish(job);
      lock.lock();
    }
  }

  static void finish(const Job& job) {
    ffi::Error* failure = execute(job.frame, job.body);
    if (job.end != nullptr) {
      job.end->set_value(failure);
    } else if (failure != nullptr) {
      ffi::FutureSetErrorArgs args{sizeof args, nullptr, job.frame.future, failure};
      job.frame.api->future_set_error(&args);
    } else {
      ffi::FutureSetAvailableArgs args{sizeof args, nullptr, job.frame.future};
      job.frame.api->future_set_available(&args);
    }
  }

  static thread_local bool current_;
  std::mutex mutex_;  // guards jobs_
  std::condition_variable added_;
  std::deque<Job> jobs_;
};

thread_local bool Worker::current_ = false;

}  // namespace

const ffi::Array& Call::array(std::string_view name, ffi::Type type) const {
  const ffi::Attributes& attributes = frame_.attributes;
  for (int64_t i = 0; i < attributes.size; ++i) {
    if (std::string_view(attributes.names[i]->data, attributes.names[i]->size) != name) continue;
    TORCH_CHECK(attributes.kinds[i] == ffi::AttributeKind::kArray);
    const auto& array = *static_cast<const ffi::Array*>(attributes.items[i]);
    TORCH_CHECK(array.type == type || array.size == 0);
    return array;
  }
  TORCH_CHECK(false, "custom call without the attribute ", name);
}

at::IntArrayRef Call::ints(std::string_view name) const {
  const ffi::Array& found = array(name, ffi::Type::kS64);
  return {static_cast<const int64_t*>(found.data), found.size};
}

c10::ArrayRef<double> Call::doubles(std::string_view name) const {
  const ffi::Array& found = array(name, ffi::Type::kF64);
  return {static_cast<const double*>(found.data), found.size};
}

at::Tensor Call::tensor(const ffi::Buffers& buffers, int64_t i, bool channels_last) {
  TORCH_CHECK(i < buffers.size, "custom call with ", buffers.size, " buffers");
  const ffi::Buffer& buffer = *buffers.items[i];
  const at::IntArrayRef sizes(buffer.dims, static_cast<size_t>(buffer.rank));
  const at::TensorOptions options(scalar_type(buffer.type));
  if (!channels_last) return at::from_blob(buffer.data, sizes, options);
  c10::SmallVector<int64_t, 5> strides(sizes.size());
  int64_t step = sizes[1];
  strides[1] = 1;
  for (size_t d = sizes.size() - 1; d > 1; --d) {
    strides[d] = step;
    step *= sizes[d];
  }
  strides[0] = step;
  return at::from_blob(buffer.data, sizes, strides, options);
}

ffi::Error* run(ffi::CallFrame* frame, void (*body)(const Call&), Then then) {
  for (const ffi::Extension* e = frame->extension_start; e != nullptr; e = e->next) {
    if (e->type == ffi::kMetadataExtension) {
      if (frame->api->struct_size < sizeof(ffi::Api)) return error(*frame, "no futures");
      const auto* asked = reinterpret_cast<const ffi::MetadataExtension*>(e);
      asked->metadata->version = frame->api->version;
      return nullptr;
    }
  }
  if (Worker::current()) return execute(*frame, body);
  static Worker& worker = *new Worker;
  if (then == Then::kWaiting || !worker_goes_on.load(std::memory_order_relaxed)) {
    return worker.run(*frame, body);
  }
  ffi::FutureCreateArgs args{sizeof args, nullptr, nullptr};
  if (ffi::Error* failure = frame->api->future_create(&args)) return failure;
  frame->future = args.future;
  worker.post(*frame, body);
  return nullptr;
}

}  // namespace torchtpu::kernels
