#include "call.h"

#include <ATen/ATen.h>
#include <c10/core/DefaultDtype.h>

#include <bit>
#include <mutex>

#include "flags.h"

namespace torchtpu {
namespace {

enum Tag : uint64_t {
  kNone = 1,
  kTensor,
  kHost,
  kInt,
  kDouble,
  kBool,
  kComplex,
  kString,
  kList,
  kRuntime,
  kDevice,
  kOther
};

constexpr uint64_t word(Tag tag, uint64_t payload = 0) {
  return static_cast<uint64_t>(tag) | payload << 8;
}

[[noreturn]] void mixed_devices(const char* name, c10::Device a, c10::Device b) {
  TORCH_CHECK(false,
              "Expected all tensors to be on the same device, but found at least two devices, ", a,
              " and ", b, "! (when calling ", name, ")");
}

// Finds the first tensor of a call with a given slot: by looking through the few that an operator
// has, by an open-addressed table for the hundreds of a graph.
class Slots {
 public:
  // The index under which `slot` was first seen, which is `index` when that is now.
  uint32_t first(const Slot* slot, uint32_t index, const decltype(Call::tensors)& tensors) {
    if (index < kFew) {
      for (uint32_t i = 0; i < index; ++i) {
        if (tensors[i].slot == slot) return i;
      }
      return index;
    }
    if (2 * (used_ + kFew) >= table_.size()) rebuild(index, tensors);
    uint32_t& entry = find(slot, tensors);
    if (entry != kEmpty) return entry;
    ++used_;
    return entry = index;
  }

 private:
  static constexpr uint32_t kFew = 16, kEmpty = UINT32_MAX;

  uint32_t& find(const Slot* slot, const decltype(Call::tensors)& tensors) {
    const size_t mask = table_.size() - 1;
    size_t at = (reinterpret_cast<uintptr_t>(slot) * 0x9E3779B97F4A7C15ull) >> 32 & mask;
    while (table_[at] != kEmpty && tensors[table_[at]].slot != slot) at = (at + 1) & mask;
    return table_[at];
  }

  void rebuild(uint32_t n, const decltype(Call::tensors)& tensors) {
    table_.assign(std::bit_ceil(size_t{8} * (n + kFew)), kEmpty);
    used_ = 0;
    for (uint32_t i = 0; i < n; ++i) {
      if (tensors[i].slot == nullptr) continue;
      uint32_t& entry = find(tensors[i].slot, tensors);
      if (entry != kEmpty) continue;
      entry = i;
      ++used_;
    }
  }

  std::vector<uint32_t> table_;
  size_t used_ = 0;
};

class KeyWriter {
 public:
  KeyWriter(const char* name, Call& call) : name_(name), call_(call) {}

  void argument(const c10::IValue& v, const ArgumentTraits& traits) {
    const bool runtime = traits.runtime && !(traits.fixed && same_number(v, *traits.fixed));
    value(v, runtime);
  }

 private:
  static bool same_number(const c10::IValue& a, const c10::IValue& b) {
    if (a.isInt() && b.isInt()) return a.toInt() == b.toInt();
    if (a.isDouble() && b.isDouble()) return a.toDouble() == b.toDouble();
    return false;
  }

  void value(const c10::IValue& v, bool runtime) {
    Key& key = call_.key;
    if (v.isTensor()) {
      tensor(v.toTensor());
    } else if (v.isNone()) {
      key.push_back(kNone);
    } else if (v.isInt()) {
      number(v, runtime, kInt, static_cast<uint64_t>(v.toInt()));
    } else if (v.isDouble()) {
      number(v, runtime, kDouble, std::bit_cast<uint64_t>(v.toDouble()));
    } else if (v.isBool()) {
      number(v, runtime, kBool, v.toBool());
    } else if (v.isComplexDouble()) {
      const auto z = v.toComplexDouble();
      number(v, runtime, kComplex, std::bit_cast<uint64_t>(z.real()));
      if (!runtime) key.push_back(std::bit_cast<uint64_t>(z.imag()));
    } else if (v.isList()) {
      const auto items = v.toListRef();
      key.push_back(word(kList, items.size()));
      for (const auto& item : items) value(item, runtime);
    } else if (v.isString()) {
      string(v.toStringRef());
    } else if (v.isDevice()) {
      device(v.toDevice());
    } else if (v.isGenerator()) {
      call_.generator = v.toGenerator();
      key.push_back(kNone);
    } else {
      TORCH_CHECK_NOT_IMPLEMENTED(false, name_, ": an argument of type ", v.tagKind(),
                                  " cannot be passed to the tpu device");
    }
  }

  void number(const c10::IValue& v, bool runtime, Tag tag, uint64_t bits) {
    if (runtime) {
      call_.scalars.push_back(&v);
      call_.key.push_back(word(kRuntime, tag));
    } else {
      call_.key.push_back(word(tag));
      call_.key.push_back(bits);
    }
  }

  void string(const std::string& s) {
    Key& key = call_.key;
    key.push_back(word(kString, s.size()));
    for (size_t i = 0; i < s.size(); i += 8) {
      uint64_t w = 0;
      memcpy(&w, s.data() + i, std::min<size_t>(8, s.size() - i));
      key.push_back(w);
    }
  }

  void device(c10::Device d) {
    call_.key.push_back(word(kDevice, static_cast<uint64_t>(d.type())));
    if (d.is_privateuseone() && call_.device < 0 && d.has_index()) call_.device = d.index();
  }

  void tensor(const at::Tensor& t) {
    if (!t.defined()) {
      call_.key.push_back(kNone);
      return;
    }
    if (t.is_privateuseone()) {
      device_tensor(t);
    } else {
      host_tensor(t);
    }
  }

  void host_tensor(const at::Tensor& t) {
    if (!t.is_cpu() || t.dim() != 0) {
      if (first_ != nullptr) mixed_devices(name_, first_->device(), t.device());
      foreign_ = &t;
    }
    const bool weak = t.unsafeGetTensorImpl()->is_wrapped_number();
    call_.key.push_back(word(kHost, static_cast<uint64_t>(t.scalar_type()) << 1 | weak));
    call_.tensors.push_back({&t, nullptr, static_cast<uint32_t>(call_.tensors.size()), false, {}});
  }

  void device_tensor(const at::Tensor& t) {
    if (foreign_ != nullptr) mixed_devices(name_, t.device(), foreign_->device());
    if (first_ == nullptr) {
      first_ = &t;
      call_.device = t.device().index();
    } else if (t.device().index() != call_.device) {
      mixed_devices(name_, first_->device(), t.device());
    }
    Slot* slot = slot_of(*t.storage().unsafeGetStorageImpl());
    const auto index = static_cast<uint32_t>(call_.tensors.size());
    const uint32_t shared = slots_.first(slot, index, call_.tensors);
    call_.tensors.push_back({&t, slot, shared, false, {}});
    layout(t, *slot, shared == index ? &call_.tensors.back().buffer : nullptr, shared);
  }

  // The tensor's view over its base. Copies the buffer out under the slot's lock, so that the key
  // and the buffer agree.
  void layout(const at::Tensor& t, Slot& slot, BufferPtr* buffer, uint32_t shared) {
    Key& key = call_.key;
    const auto sizes = t.sizes();
    const size_t at = key.size();
    key.push_back(0);
    bool canonical = t.is_contiguous() && t.storage_offset() == 0;
    bool initialised = false;
    bool padded = false;
    c10::ScalarType base_dtype = t.scalar_type();
    {
      std::lock_guard<SpinLock> guard(slot.lock);
      initialised = static_cast<bool>(slot.buffer);
      if (initialised) {
        if (buffer != nullptr) *buffer = slot.buffer;
        base_dtype = slot.dtype;
        padded = slot.padded;
        canonical =
            canonical && !padded && base_dtype == t.scalar_type() && sizes.equals(slot.dims);
        if (!canonical) {
          key.push_back(slot.dims.size());
          key.append(slot.dims.begin(), slot.dims.end());
        }
        if (padded) {
          const auto room = slot.buffer->buffer.dims();
          key.append(room.begin(), room.end());
        }
      } else {
        canonical = canonical && t.storage().nbytes() == t.nbytes();
        if (!canonical) key.push_back(t.storage().nbytes());
      }
    }
    call_.tensors.back().padded = padded;
    key.append(sizes.begin(), sizes.end());
    if (!canonical) {
      const auto strides = t.strides();
      key.append(strides.begin(), strides.end());
      key.push_back(static_cast<uint64_t>(t.storage_offset()));
    }
    key[at] = word(
        kTensor,
        static_cast<uint64_t>(t.scalar_type()) | static_cast<uint64_t>(base_dtype) << 8 |
            static_cast<uint64_t>(sizes.size()) << 16 | static_cast<uint64_t>(canonical) << 24 |
            static_cast<uint64_t>(initialised) << 25 | static_cast<uint64_t>(t.is_conj()) << 26 |
            static_cast<uint64_t>(t.is_neg()) << 27 | static_cast<uint64_t>(padded) << 28 |
            static_cast<uint64_t>(shared) << 32);
  }

  const char* name_;
  Call& call_;
  Slots slots_;
  const at::Tensor* first_ = nullptr;
  const at::Tensor* foreign_ = nullptr;
};

uint64_t hash_of(const Key& key) {
  uint64_t h = 0x9E3779B97F4A7C15ull ^ key.size();
  for (uint64_t w : key) {
    h = (h ^ w) * 0xFF51AFD7ED558CCDull;
    h ^= h >> 32;
  }
  return h;
}

}  // namespace

void describe(const char* name, const std::vector<ArgumentTraits>& traits,
              c10::ArrayRef<c10::IValue> args, Call& call) {
  call.key.push_back(static_cast<uint64_t>(c10::get_default_dtype_as_scalartype()) | program_flags()
                                                                                         << 8);
  KeyWriter d(name, call);
  for (size_t i = 0; i < args.size(); ++i) d.argument(args[i], traits[i]);
  call.hash = hash_of(call.key);
}

Dims uninitialised_base(const at::Tensor& tensor, size_t nbytes) {
  const auto sizes = tensor.sizes();
  if (tensor.is_contiguous() && tensor.storage_offset() == 0 && tensor.nbytes() == nbytes) {
    return Dims(sizes.begin(), sizes.end());
  }
  return Dims{static_cast<int64_t>(nbytes / tensor.itemsize())};
}

}  // namespace torchtpu
