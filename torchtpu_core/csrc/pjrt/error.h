// Errors of the PJRT C API as C++ exceptions.
#pragma once

#include <pjrt_c_api.h>

#include <cstddef>
#include <stdexcept>
#include <string>

namespace torchtpu::pjrt {

enum class Code : int {
  kOk = PJRT_Error_Code_OK,
  kCancelled = PJRT_Error_Code_CANCELLED,
  kUnknown = PJRT_Error_Code_UNKNOWN,
  kInvalidArgument = PJRT_Error_Code_INVALID_ARGUMENT,
  kDeadlineExceeded = PJRT_Error_Code_DEADLINE_EXCEEDED,
  kNotFound = PJRT_Error_Code_NOT_FOUND,
  kAlreadyExists = PJRT_Error_Code_ALREADY_EXISTS,
  kPermissionDenied = PJRT_Error_Code_PERMISSION_DENIED,
  kResourceExhausted = PJRT_Error_Code_RESOURCE_EXHAUSTED,
  kFailedPrecondition = PJRT_Error_Code_FAILED_PRECONDITION,
  kAborted = PJRT_Error_Code_ABORTED,
  kOutOfRange = PJRT_Error_Code_OUT_OF_RANGE,
  kUnimplemented = PJRT_Error_Code_UNIMPLEMENTED,
  kInternal = PJRT_Error_Code_INTERNAL,
  kUnavailable = PJRT_Error_Code_UNAVAILABLE,
  kDataLoss = PJRT_Error_Code_DATA_LOSS,
  kUnauthenticated = PJRT_Error_Code_UNAUTHENTICATED,
};

// "InvalidArgument", "ResourceExhausted", ...
const char* name(Code code);

// what() is "<code name>: <the plugin's message>".
class Error : public std::runtime_error {
 public:
  Error(Code code, const std::string& message)
      : std::runtime_error(std::string(name(code)) + ": " + message), code_(code) {}
  Code code() const noexcept { return code_; }

 private:
  Code code_;
};

// Takes ownership of `error` and turns it into an Error; `error` must not be null.
Error take_error(const PJRT_Api* api, PJRT_Error* error);

// Frees `error`, which may be null: for destructors, which have nobody to tell.
void discard(const PJRT_Api* api, PJRT_Error* error) noexcept;

[[noreturn]] void throw_error(const PJRT_Api* api, PJRT_Error* error);
[[noreturn]] void throw_missing(const char* function);

// Throws (and frees) `error` if there is one.
inline void check(const PJRT_Api* api, PJRT_Error* error) {
  if (error != nullptr) [[unlikely]] {
    throw_error(api, error);
  }
}

// Throws Unimplemented when the plugin is too old (or too small) to have this function.
template <class F>
F* require(F* function, const char* function_name) {
  if (function == nullptr) [[unlikely]] {
    throw_missing(function_name);
  }
  return function;
}

// Arguments of a PJRT call, zeroed, with struct_size filled in. Plugins refuse a struct smaller
// than the one they were built with and ignore what lies beyond it, so the zeroed reserve (zero
// means "not given" throughout the API) makes newer plugins, with more fields, accept ours.
template <class T>
struct Args : T {
  Args() : T{} { this->struct_size = sizeof(*this); }

 private:
  std::byte reserve_[64]{};
};

}  // namespace torchtpu::pjrt
