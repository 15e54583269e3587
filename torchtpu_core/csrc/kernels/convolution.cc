#include "call.h"
#include "kernels.h"
#include "product.h"

namespace torchtpu::kernels {
namespace {

// How a convolution slides, and where its data has the channels.
struct Window {
  explicit Window(const Call& call)
      : stride(call.ints("stride")),
        padding(call.ints("padding")),
        dilation(call.ints("dilation")),
        groups(call.ints("groups")[0]),
        channels_last(call.ints("channels_last")[0] != 0) {}

  at::IntArrayRef stride, padding, dilation;
  int64_t groups;
  bool channels_last;
};

// The gradients of a convolution, of which `mask` says which are wanted: of x and of w, of which
// only the one that is not wanted is read.
auto gradients(const Window& window, const at::Tensor& grad, const at::Tensor& x,
               const at::Tensor& w, std::array<bool, 3> mask) {
  return at::convolution_backward(grad, x, w, c10::nullopt, window.stride, window.padding,
                                  window.dilation, /*transposed=*/false,
                                  /*output_padding=*/at::IntArrayRef{0}, window.groups, mask);
}

// The gradient of w for few positions of the output: a product of `grad` and the windows of `x`,
// where oneDNN's convolution takes twice the time.
void weight_gradient_as_product(const Window& window, const at::Tensor& grad, const at::Tensor& x,
                                const at::Tensor& out) {
  const int64_t rows = out.size(0);
  const at::Tensor windows = at::im2col(x, out.sizes().slice(2), window.dilation, window.padding,
                                        window.stride);  // [N, I * K, S]
  product(grad.transpose(0, 1).reshape({rows, -1}),
          windows.transpose(1, 2).reshape({-1, windows.size(1)}), out.view({rows, -1}));
}

}  // namespace

void convolution(const Call& call) {
  const Window window(call);
  const at::Tensor x = call.argument(0, window.channels_last);
  const at::Tensor w = call.argument(1);
  const at::Tensor out = at::convolution(x, w, {}, window.stride, window.padding, window.dilation,
                                         /*transposed=*/false,
                                         /*output_padding=*/at::IntArrayRef{0}, window.groups);
  call.result(0, window.channels_last).copy_(out);
}

void convolution_input_gradient(const Call& call) {
  const Window window(call);
  const at::Tensor grad = call.argument(0, window.channels_last);
  const at::Tensor out = call.result(0, window.channels_last);
  out.copy_(std::get<0>(gradients(window, grad, out, call.argument(1), {true, false, false})));
}

void convolution_weight_gradient(const Call& call) {
  const Window window(call);
  const at::Tensor grad = call.argument(0, window.channels_last);
  const at::Tensor x = call.argument(1, window.channels_last);
  const at::Tensor out = call.result(0);
  constexpr int64_t kFew = 128;
  if (grad.dim() == 4 && window.groups == 1 && grad.numel() / grad.size(1) <= kFew) {
    weight_gradient_as_product(window, grad, x, out);
    return;
  }
  out.copy_(std::get<1>(gradients(window, grad, x, out, {false, true, false})));
}

}  // namespace torchtpu::kernels
