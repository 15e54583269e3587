// PyTorch's own CPU kernels for programs on XLA's CPU plugin, as custom
// calls (stablehlo/host_kernels.py emits them), where XLA's code is slow.
#pragma once

#include "../pjrt/plugin.h"

namespace torchtpu::kernels {

class Call;

// Registers the handlers with XLA's CPU plugin, which is to have so many devices. False if it
// cannot call functions of ours.
bool install(const pjrt::Plugin& plugin, int devices);

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

// "torchtpu.batch_norm"(x [N, C, *], weight [C], bias, eps (f64)) of a train step: the output, the
// mean, the inverse of the standard deviation, and the variance without bias.
void batch_norm(const Call& call);
// "torchtpu.batch_norm_backward"(grad [N, C, *], x, weight [C], save_mean, save_invstd) of a train
// step: the gradients of x, weight and bias.
void batch_norm_backward(const Call& call);

// "torchtpu.max_pool2d_backward"(grad [N, C, H, W], places (i64)): of x, whose shape is the
// result's; with the attributes kernel, stride, padding, dilation (two numbers each) and ceil_mode
// of PyTorch's operator.
void max_pool2d_backward(const Call& call);

// "torchtpu.attention"(q [B, H, L, E], k [B, K, S, E], v [B, K, S, E], mask, scale (f64)), H a
// multiple of K: the output, as [B, L, H, E], and the log of the sums of exponentials, as
// [B, L, H], of rows without a key 0. The mask, there if `masked`, has four dimensions, broadcasts
// to [B, H, L, S] and is added to the scores. Attributes: masked, causal (0 or 1), and
// heads_inside, of each tensor of heads whether it lies, and is given, as [B, L, H, E].
void attention(const Call& call);
// "torchtpu.attention_backward"(grad [B, H, L, E], q, k, v, output, log of sums [B, L, H], mask,
// scale): the gradients of q, k and v, as [B, L, H, E], with the same attributes.
void attention_backward(const Call& call);

// "torchtpu.fused_adam": a step of Adam, or AdamW (decoupled), for `count` parameters. Operands:
// the numbers lr, weight_decay and eps (f64), and lists of steps, gradients, parameters, exp_avgs,
// exp_avg_sqs and, with amsgrad, max_exp_avg_sqs; the results, which alias their operands, are the
// last three or four of these. Attributes: count, amsgrad, maximize, decoupled, and betas (f64).
void fused_adam(const Call& call);

}  // namespace torchtpu::kernels
