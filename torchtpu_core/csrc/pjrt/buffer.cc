#include "buffer.h"

#include <array>
#include <string>
#include <vector>

#include "types.h"

namespace torchtpu::pjrt {

void Buffer::reset() noexcept {
  if (buffer_ == nullptr) return;
  Args<PJRT_Buffer_Destroy_Args> args;
  args.buffer = std::exchange(buffer_, nullptr);
  discard(api_, api_->PJRT_Buffer_Destroy(&args));
}

PJRT_Buffer_Type Buffer::type() const {
  Args<PJRT_Buffer_ElementType_Args> args;
  args.buffer = buffer_;
  check(api_, api_->PJRT_Buffer_ElementType(&args));
  return args.type;
}

std::span<const int64_t> Buffer::dims() const {
  Args<PJRT_Buffer_Dimensions_Args> args;
  args.buffer = buffer_;
  check(api_, api_->PJRT_Buffer_Dimensions(&args));
  return {args.dims, args.num_dims};
}

PJRT_Device* Buffer::device() const {
  Args<PJRT_Buffer_Device_Args> args;
  args.buffer = buffer_;
  check(api_, api_->PJRT_Buffer_Device(&args));
  return args.device;
}

size_t Buffer::on_device_size() const {
  Args<PJRT_Buffer_OnDeviceSizeInBytes_Args> args;
  args.buffer = buffer_;
  check(api_, api_->PJRT_Buffer_OnDeviceSizeInBytes(&args));
  return args.on_device_size_in_bytes;
}

size_t Buffer::host_size() const {
  size_t elements = 1;
  for (int64_t d : dims()) elements *= static_cast<size_t>(d);
  return elements * host_byte_size(type());
}

Event Buffer::ready_event() const {
  Args<PJRT_Buffer_ReadyEvent_Args> args;
  args.buffer = buffer_;
  check(api_, api_->PJRT_Buffer_ReadyEvent(&args));
  return Event(api_, args.event);
}

bool Buffer::is_ready() const { return ready_event().is_ready(); }

Event Buffer::to_host(void* dst, size_t size) const {
  const size_t need = host_size();
  if (size < need) {
    throw Error(Code::kInvalidArgument, "a copy to the host needs " + std::to_string(need) +
                                            " bytes, the destination has " + std::to_string(size));
  }
  const size_t rank = dims().size();
  std::array<int64_t, 16> few;
  std::vector<int64_t> many;
  int64_t* minor_to_major = few.data();
  if (rank > few.size()) {
    many.resize(rank);
    minor_to_major = many.data();
  }
  for (size_t i = 0; i < rank; ++i) minor_to_major[i] = static_cast<int64_t>(rank - 1 - i);

  Args<PJRT_Buffer_MemoryLayout> layout;
  layout.type = PJRT_Buffer_MemoryLayout_Type_Tiled;
  layout.tiled.struct_size = PJRT_Buffer_MemoryLayout_Tiled_STRUCT_SIZE;
  layout.tiled.minor_to_major = minor_to_major;
  layout.tiled.minor_to_major_size = rank;

  Args<PJRT_Buffer_ToHostBuffer_Args> args;
  args.src = buffer_;
  args.host_layout = &layout;
  args.dst = dst;
  args.dst_size = size;
  check(api_, api_->PJRT_Buffer_ToHostBuffer(&args));
  return Event(api_, args.event);
}

Buffer Buffer::copy_to(PJRT_Device* device) const {
  Args<PJRT_Buffer_CopyToDevice_Args> args;
  args.buffer = buffer_;
  args.dst_device = device;
  check(api_, api_->PJRT_Buffer_CopyToDevice(&args));
  return Buffer(api_, args.dst_buffer);
}

void Buffer::delete_() const {
  Args<PJRT_Buffer_Delete_Args> args;
  args.buffer = buffer_;
  check(api_, api_->PJRT_Buffer_Delete(&args));
}

bool Buffer::is_deleted() const {
  Args<PJRT_Buffer_IsDeleted_Args> args;
  args.buffer = buffer_;
  check(api_, api_->PJRT_Buffer_IsDeleted(&args));
  return args.is_deleted;
}

uintptr_t Buffer::unsafe_pointer() const {
  Args<PJRT_Buffer_UnsafePointer_Args> args;
  args.buffer = buffer_;
  check(api_, require(api_->PJRT_Buffer_UnsafePointer, "PJRT_Buffer_UnsafePointer")(&args));
  return args.buffer_pointer;
}

}  // namespace torchtpu::pjrt
