// What c10::DeviceGuard, torch.Stream and torch.Event ask of the device.
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include "queue.h"
#include "runtime.h"
#include "stream.h"

namespace torchtpu {
namespace {

constexpr auto kTpu = c10::DeviceType::PrivateUse1;

Event& as_event(void* event) { return *static_cast<Event*>(event); }

struct GuardImpl final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override { return kTpu; }

  c10::Device exchangeDevice(c10::Device device) const override {
    check(device);
    return {kTpu, exchange_device(device.index())};
  }
  c10::Device getDevice() const override { return {kTpu, current_device()}; }
  void setDevice(c10::Device device) const override {
    check(device);
    exchange_device(device.index());
  }
  void uncheckedSetDevice(c10::Device device) const noexcept override {
    exchange_device(device.index());
  }

  // Autograd asks every registered device for its count at the first backward, to start one thread
  // a device: that must not create the client of a program that only uses the CPU.
  c10::DeviceIndex deviceCount() const noexcept override { return device_count_bound(); }

  c10::DeviceCapability getDeviceCapability(c10::Device) const override {
    c10::DeviceCapability capability;
    capability.capability_data.capability_bits = 0;
    auto& has = capability.capability_data.supported_scalar_types;
    has.has_Bool = has.has_Byte = has.has_Char = has.has_Short = has.has_Int = has.has_Long = 1;
    has.has_UInt16 = has.has_UInt32 = has.has_UInt64 = 1;
    has.has_Half = has.has_BFloat16 = has.has_Float = has.has_Double = 1;
    has.has_ComplexFloat = has.has_ComplexDouble = 1;
    has.has_Float8_e5m2 = has.has_Float8_e4m3fn = 1;
    has.has_Float8_e5m2fnuz = has.has_Float8_e4m3fnuz = 1;
    return capability;
  }

  c10::Stream getStream(c10::Device device) const override {
    return current_stream(device.index());
  }
  c10::Stream getDefaultStream(c10::Device device) const override {
    return default_stream(device.index());
  }
  c10::Stream getStreamFromGlobalPool(c10::Device device, bool) const override {
    return new_stream(device.index());
  }
  c10::Stream getNewStream(c10::Device device, int) const override {
    return new_stream(device.index());
  }
  c10::Stream exchangeStream(c10::Stream stream) const override { return exchange_stream(stream); }
  bool queryStream(const c10::Stream& stream) const override {
    const auto device = stream.device_index();
    return queue::query(device, queue::last(device));
  }
  void synchronizeStream(const c10::Stream& stream) const override {
    queue::synchronize(stream.device_index());
  }
  void synchronizeDevice(c10::DeviceIndex device) const override {
    queue::synchronize(device < 0 ? current_device() : device);
  }

  void record(void** event, const c10::Stream& stream, c10::DeviceIndex device,
              c10::EventFlag flag) const override {
    TORCH_CHECK(device < 0 || device == stream.device_index(), "Event device index ",
                static_cast<int>(device), " does not match recording stream's device index ",
                static_cast<int>(stream.device_index()), ".");
    if (!*event) *event = new Event(flag == c10::EventFlag::BACKEND_DEFAULT);
    as_event(*event).record(stream.device_index());
  }
  void block(void*, const c10::Stream&) const override {}  // work is ordered by its data
  bool queryEvent(void* event) const override { return !event || as_event(event).query(); }
  void synchronizeEvent(void* event) const override {
    if (event) as_event(event).synchronize();
  }
  void destroyEvent(void* event, c10::DeviceIndex) const noexcept override {
    delete static_cast<Event*>(event);
  }
  double elapsedTime(void* start, void* end, c10::DeviceIndex) const override {
    TORCH_CHECK_VALUE(start && end,
                      "Both events must be recorded before calculating elapsed time.");
    return as_event(end).since(as_event(start));
  }

 private:
  // Without a client any index will do: what uses the device checks again.
  static void check(c10::Device device) {
    TORCH_CHECK(device.type() == kTpu, "Expected a tpu device, but got ", device);
    if (initialized() && device.has_index()) runtime().device(device.index());
  }
};

C10_REGISTER_GUARD_IMPL(PrivateUse1, GuardImpl)

}  // namespace
}  // namespace torchtpu
