// PyTorch's threads for backward passes, one a device.
#pragma once

namespace torchtpu {

// Waits until the thread of each device is done with the passes that have ended; at the end of the
// process. Called without the GIL.
void settle_backward() noexcept;

}  // namespace torchtpu
