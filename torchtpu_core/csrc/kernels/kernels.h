// PyTorch's own CPU kernels for the products in programs on XLA's CPU plugin, as custom calls
// (stablehlo/host_kernels.py emits them): XLA's take up to twice the time.
#pragma once

#include "../pjrt/plugin.h"

namespace torchtpu::kernels {

class Call;

// Registers the handlers with XLA's CPU plugin. False if it cannot call functions of ours.
bool install(const pjrt::Plugin& plugin);

// "torchtpu.dot_general"(x, y): as StableHLO's op, with its attributes lhs_batching_dimensions,
// rhs_batching_dimensions, lhs_contracting_dimensions and rhs_contracting_dimensions.
void dot_general(const Call& call);

// Convolutions of x [N, I, *S] with w [O, I / groups, *K], with the attributes stride, padding,
// dilation and groups of PyTorch's operator, and channels_last (0 or 1): how x and the output lie
// in memory. All attributes are lists of numbers. "torchtpu.convolution"(x, w)
void convolution(const Call& call);
// "torchtpu.convolution_input_gradient"(grad [N, O, *], w): of x, whose shape is the result's.
void convolution_input_gradient(const Call& call);
// "torchtpu.convolution_weight_gradient"(grad [N, O, *], x): of w, whose shape is the result's.
void convolution_weight_gradient(const Call& call);

}  // namespace torchtpu::kernels
