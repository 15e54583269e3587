// Random generators: a seed and an offset into its counter-based stream. A random program takes
// both as inputs, so drawing numbers never compiles anything and needs no state on the device.
#pragma once

#include <ATen/core/Generator.h>
#include <c10/core/GeneratorImpl.h>

#include <cstdint>
#include <optional>
#include <utility>

namespace torchtpu {

class GeneratorImpl final : public c10::GeneratorImpl {
 public:
  GeneratorImpl(c10::DeviceIndex device, uint64_t seed);
  ~GeneratorImpl() override = default;

  // The seed and the first of `blocks` counter values, which no later call gets again. Locks.
  std::pair<uint64_t, uint64_t> reserve(uint64_t blocks);

  // The interface of PyTorch: callers hold `mutex_`, as Generator's Python methods do.
  void set_current_seed(uint64_t seed) override;
  void set_offset(uint64_t offset) override { offset_ = offset; }
  uint64_t get_offset() const override { return offset_; }
  uint64_t current_seed() const override { return seed_; }
  uint64_t seed() override;
  void set_state(const c10::TensorImpl& state) override;
  c10::intrusive_ptr<c10::TensorImpl> get_state() const override;

 private:
  GeneratorImpl* clone_impl() const override;

  uint64_t seed_;
  uint64_t offset_ = 0;
};

// The generator of a device (-1: the current one), made on first use; needs no client.
const at::Generator& default_generator(c10::DeviceIndex device);
// `given` if it is one of ours and on `device`, else the default generator of `device`.
GeneratorImpl& generator_for(const std::optional<at::Generator>& given, c10::DeviceIndex device);
at::Generator new_generator(c10::DeviceIndex device);
// Seeds every default generator, including those that do not exist yet.
void seed_default_generators(uint64_t seed);

}  // namespace torchtpu
