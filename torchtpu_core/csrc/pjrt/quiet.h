// Keeps a plugin's start-up chatter off the user's stderr.
#pragma once

namespace torchtpu::pjrt {

// While alive, TF_CPP_MIN_LOG_LEVEL is 1 unless the user has set it: a plugin reads it once, when
// it first logs (that is while it is loaded or makes its first client), and then drops
// informational lines such as "cpu_device_count set via create_options". Warnings and errors stay.
class QuietStart {
 public:
  QuietStart();
  ~QuietStart();
  QuietStart(const QuietStart&) = delete;
  QuietStart& operator=(const QuietStart&) = delete;

 private:
  bool ours_;
};

}  // namespace torchtpu::pjrt
