#include "quiet.h"

#include <cstdlib>

namespace torchtpu::pjrt {

namespace {
constexpr char kVariable[] = "TF_CPP_MIN_LOG_LEVEL";
}

QuietStart::QuietStart() : ours_(std::getenv(kVariable) == nullptr) {
  if (ours_) ::setenv(kVariable, "1", 0);
}

// Not left behind: child processes and other libraries in this one read it too.
QuietStart::~QuietStart() {
  if (ours_) ::unsetenv(kVariable);
}

}  // namespace torchtpu::pjrt
