#include "generator.h"

#include <ATen/EmptyTensor.h>
#include <ATen/Functions.h>
#include <ATen/Utils.h>

#include <array>
#include <cstring>
#include <mutex>

#include "stream.h"

namespace torchtpu {
namespace {

// torch.cuda's layout: seed, then offset. States written by it before offsets existed are shorter.
constexpr int64_t kSeedBytes = sizeof(uint64_t);
constexpr int64_t kStateBytes = kSeedBytes + sizeof(uint64_t);

struct Defaults {
  std::mutex mutex;
  uint64_t seed = c10::default_rng_seed_val;
  std::array<at::Generator, kMaxDevices> generators;
};

// Leaked: ops may run while static objects are destroyed.
Defaults& defaults() {
  static auto* instance = new Defaults;
  return *instance;
}

}  // namespace

GeneratorImpl::GeneratorImpl(c10::DeviceIndex device, uint64_t seed)
    : c10::GeneratorImpl(c10::Device(c10::DeviceType::PrivateUse1, device),
                         c10::DispatchKeySet(c10::DispatchKey::PrivateUse1)),
      seed_(seed) {}

std::pair<uint64_t, uint64_t> GeneratorImpl::reserve(uint64_t blocks) {
  std::lock_guard lock(mutex_);
  const uint64_t first = offset_;
  offset_ += blocks;
  return {seed_, first};
}

void GeneratorImpl::set_current_seed(uint64_t seed) {
  seed_ = seed;
  offset_ = 0;
}

uint64_t GeneratorImpl::seed() {
  set_current_seed(c10::detail::getNonDeterministicRandom());
  return seed_;
}

void GeneratorImpl::set_state(const c10::TensorImpl& state) {
  at::detail::check_rng_state(state);
  TORCH_CHECK(state.numel() == kStateBytes || state.numel() == kSeedBytes,
              "RNG state is wrong size: expected ", kStateBytes, " bytes, got ", state.numel());
  const auto* bytes = static_cast<const char*>(state.data());
  std::memcpy(&seed_, bytes, kSeedBytes);
  offset_ = 0;
  if (state.numel() == kStateBytes) {
    std::memcpy(&offset_, bytes + kSeedBytes, sizeof(offset_));
  }
}

c10::intrusive_ptr<c10::TensorImpl> GeneratorImpl::get_state() const {
  // Not dispatched: while a function is traced the state is a tensor like any other time.
  at::Tensor state = at::detail::empty_cpu({kStateBytes}, at::kByte, std::nullopt, std::nullopt,
                                           std::nullopt, std::nullopt);
  auto* bytes = state.mutable_data_ptr<uint8_t>();
  std::memcpy(bytes, &seed_, kSeedBytes);
  std::memcpy(bytes + kSeedBytes, &offset_, sizeof(offset_));
  return state.getIntrusivePtr();
}

GeneratorImpl* GeneratorImpl::clone_impl() const {
  auto* copy = new GeneratorImpl(device().index(), seed_);
  copy->offset_ = offset_;
  return copy;
}

const at::Generator& default_generator(c10::DeviceIndex device) {
  device = resolve_device(device);
  Defaults& all = defaults();
  std::lock_guard lock(all.mutex);
  at::Generator& generator = all.generators[device];
  if (!generator.defined()) generator = at::make_generator<GeneratorImpl>(device, all.seed);
  return generator;
}

GeneratorImpl& generator_for(const std::optional<at::Generator>& given, c10::DeviceIndex device) {
  device = resolve_device(device);
  if (!given.has_value() || !given->defined()) {
    return *static_cast<GeneratorImpl*>(default_generator(device).unsafeGetGeneratorImpl());
  }
  TORCH_CHECK(given->device().type() == c10::DeviceType::PrivateUse1,
              "Expected a 'tpu' device type for generator but found '", given->device().type(),
              "'");
  TORCH_CHECK(given->device().index() == device,
              "Expected a generator on tpu:", static_cast<int>(device), " but found one on ",
              given->device());
  return *static_cast<GeneratorImpl*>(given->unsafeGetGeneratorImpl());
}

at::Generator new_generator(c10::DeviceIndex device) {
  return at::make_generator<GeneratorImpl>(resolve_device(device), c10::default_rng_seed_val);
}

void seed_default_generators(uint64_t seed) {
  Defaults& all = defaults();
  std::lock_guard lock(all.mutex);
  all.seed = seed;
  for (at::Generator& generator : all.generators) {
    if (!generator.defined()) continue;
    std::lock_guard generator_lock(generator.mutex());
    generator.set_current_seed(seed);
  }
}

}  // namespace torchtpu
