#include "error.h"

namespace torchtpu::pjrt {

const char* name(Code code) {
  switch (code) {
    case Code::kOk:
      return "Ok";
    case Code::kCancelled:
      return "Cancelled";
    case Code::kUnknown:
      return "Unknown";
    case Code::kInvalidArgument:
      return "InvalidArgument";
    case Code::kDeadlineExceeded:
      return "DeadlineExceeded";
    case Code::kNotFound:
      return "NotFound";
    case Code::kAlreadyExists:
      return "AlreadyExists";
    case Code::kPermissionDenied:
      return "PermissionDenied";
    case Code::kResourceExhausted:
      return "ResourceExhausted";
    case Code::kFailedPrecondition:
      return "FailedPrecondition";
    case Code::kAborted:
      return "Aborted";
    case Code::kOutOfRange:
      return "OutOfRange";
    case Code::kUnimplemented:
      return "Unimplemented";
    case Code::kInternal:
      return "Internal";
    case Code::kUnavailable:
      return "Unavailable";
    case Code::kDataLoss:
      return "DataLoss";
    case Code::kUnauthenticated:
      return "Unauthenticated";
  }
  return "Unknown";
}

void discard(const PJRT_Api* api, PJRT_Error* error) noexcept {
  if (error == nullptr) return;
  Args<PJRT_Error_Destroy_Args> args;
  args.error = error;
  api->PJRT_Error_Destroy(&args);
}

Error take_error(const PJRT_Api* api, PJRT_Error* error) {
  Args<PJRT_Error_Message_Args> message;
  message.error = error;
  api->PJRT_Error_Message(&message);
  std::string text(message.message, message.message_size);

  Args<PJRT_Error_GetCode_Args> get_code;
  get_code.error = error;
  PJRT_Error* nested = api->PJRT_Error_GetCode(&get_code);
  const Code code = nested == nullptr ? static_cast<Code>(get_code.code) : Code::kUnknown;
  discard(api, nested);
  discard(api, error);
  return Error(code, text);
}

void throw_error(const PJRT_Api* api, PJRT_Error* error) { throw take_error(api, error); }

void throw_missing(const char* function) {
  throw Error(Code::kUnimplemented,
              std::string("the loaded PJRT plugin does not provide ") + function);
}

}  // namespace torchtpu::pjrt
