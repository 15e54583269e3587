#include "call.h"
#include "kernels.h"

namespace torchtpu::kernels {

void max_pool2d_backward(const Call& call) {
  at::Tensor out = call.result(0);
  const at::Tensor x = at::empty(out.sizes(), out.options());  // of which only the shape is read
  at::max_pool2d_with_indices_backward_out(
      out, call.argument(0), x, call.ints("kernel"), call.ints("stride"), call.ints("padding"),
      call.ints("dilation"), call.ints("ceil_mode")[0] != 0, call.argument(1));
}

}  // namespace torchtpu::kernels
