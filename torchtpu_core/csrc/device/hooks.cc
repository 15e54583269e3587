// What PyTorch's device-independent code asks of the device.
#include <ATen/detail/PrivateUse1HooksInterface.h>

#include "generator.h"
#include "pinned.h"
#include "runtime.h"
#include "storage.h"
#include "stream.h"

namespace torchtpu {

// In dispatch/: resizing keeps contents, which takes a program.
void resize_storage(const c10::Storage& storage, size_t nbytes);

namespace {

struct Hooks final : at::PrivateUse1HooksInterface {
  void init() const override { runtime(); }
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return is_available(); }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return initialized(); }

  c10::DeviceIndex deviceCount() const override {
    return static_cast<c10::DeviceIndex>(device_count());
  }
  void setCurrentDevice(c10::DeviceIndex device) const override { exchange_device(device); }
  c10::DeviceIndex getCurrentDevice() const override { return current_device(); }
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex device) const override {
    return exchange_device(device);
  }
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex device) const override {
    return exchange_device(device);
  }

  // Asked only about memory that was made outside of PyTorch, and none of that is on a tpu.
  c10::Device getDeviceFromPtr(void* data) const override {
    TORCH_CHECK(false, "tpu memory has no address: cannot tell the device of pointer ", data);
  }
  bool isPinnedPtr(const void* data) const override { return is_pinned(data); }
  c10::Allocator* getPinnedMemoryAllocator() const override { return pinned_allocator(); }

  const at::Generator& getDefaultGenerator(c10::DeviceIndex device) const override {
    return default_generator(device);
  }
  at::Generator getNewGenerator(c10::DeviceIndex device) const override {
    return new_generator(device);
  }

  void resizePrivateUse1Bytes(const c10::Storage& storage, size_t nbytes) const override {
    resize_storage(storage, nbytes);
  }
};

[[maybe_unused]] const bool registered = [] {
  at::RegisterPrivateUse1HooksInterface(new Hooks);
  return true;
}();

}  // namespace
}  // namespace torchtpu
