"""Operators that do not run on the device, by kind, with the reason and the way out.

What an operator of this table raises ends in its reason; `docs/ops.md` shows it. An operator that
neither runs nor stands here is a fault, which a test finds.
"""

from __future__ import annotations

import functools
import re

_OTHER = (
    "it is the private entry of another backend's library; the public function reaches the "
    "device's own program"
)
_QUANTIZED = (
    "PyTorch's quantized tensors (qint8, quint8, qint32) exist on the CPU alone; use int8 or "
    "float8 tensors with torch._int_mm, torch._scaled_mm or torch.fake_quantize_per_tensor_affine"
)
_PACKED = "its packed weights have a layout that is private to the CPU and cuda kernels"
_SPARSE = "this sparse operator has no program for the device; use to_dense() or the CPU"
_STRIDED_NESTED = "nested tensors of strided layout are not supported; use layout=torch.jagged"
_FUSED = (
    "it is a cuda kernel's private entry; torch.nn.functional.scaled_dot_product_attention runs"
)
_CONV = "it is the CPU's or cuda's private way to convolve; torch.nn.functional.conv* runs"
_TESTS = "it exists for PyTorch's own tests"
_INTERNAL = "it is internal to another backend or to autograd and never reaches a device"
_LEGACY = "it is a legacy entry that no public function calls"
_CUDA = "PyTorch has it for cuda alone"
_FILE = "it maps a file into host memory; load on the CPU and move the tensor with .to('tpu')"

#: (pattern of the name without namespace, overload included; reason); the first that matches counts
_KINDS: tuple[tuple[str, str], ...] = (
    (r"(mkldnn|miopen|cudnn|mps|xnnpack)_|_(cudnn|mkldnn|mps|lstm_mps|miopen|use_(cudnn|miopen))"
     r"|lstm_mps|to_mkldnn|_scaled_dot_product_attention_math_for_mps|max_pool2d_backward$",
     _OTHER),
    (r"_test_|_foobar", _TESTS),
    (r"quantize|dequantize|q_|qscheme|int_repr|empty_quantized|_empty_affine|_empty_per_channel"
     r"|_make_per_.*quantized|_fused_moving_avg|.*\.quantized|_add_relu", _QUANTIZED),
    (r"_weight_int|_convert_weight|_dyn_quant|_mixed_dtypes|_cslt|_sparse_semi_structured"
     r"|_to_sparse_semi", _PACKED),
    (r"_scaled_dot_product_|_flash_attention|_efficient_attention|_fused_sdp_choice|_triton"
     r"|_fill_mem_eff", _FUSED),
    (r"_?slow_conv|_?conv_depthwise", _CONV),
    (r"_nested_(view_from_jagged|get_)|_(jagged|padded_dense)_to", _SPARSE),
    (r"_nested|to_padded_tensor", _STRIDED_NESTED),
    (r"_?to_sparse|_sparse|sparse_|.*sparse|hspmm|_spdiags|_spsolve|_coalesce|_?(indices|values)"
     r"|c?(crow|col|row)_indices|ccol_indices|_(dimI|dimV|nnz)|_convert_indices|_to_dense"
     r"|_validate_compressed", _SPARSE),
    (r"native_norm|_compute_linear_combination|adaptive_avg_pool3d_backward\.grad_input", _LEGACY),
    (r"(linear|matmul)_backward|glu_backward_jvp|_copy_from|_make_dual|_fw_primal|_make_dep_token"
     r"|_(conj|neg_view|.*)_copy$|_resize_output_|is_set_to|_local_scalar_dense|record_stream"
     r"|set_|equal", _INTERNAL),
    (r"from_file", _FILE),
    (r"_scaled_grouped_mm", _CUDA + "; use torch._grouped_mm, or torch._scaled_mm for each group"),
    (r"_philox", _CUDA + "; use a torch.Generator of the device"),
)  # fmt: skip


@functools.cache
def reason(name: str) -> str:
    """Why an ATen operator ("aten::q_scale", overload after a dot) does not run; "" if unknown."""
    short = name.removeprefix("aten::")
    return next((why for pattern, why in _KINDS if re.match(pattern, short)), "")
