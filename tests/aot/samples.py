"""Arguments for lowerings that no OpInfo sample reaches: made from the operator's schema, by type
and by name, where PyTorch accepts such a call on the CPU; else from a table.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch._ops import OpOverload
from torch.utils import _pytree as pytree

from torchtpu_core.lowering import program

Call = tuple[tuple[Any, ...], dict[str, Any]]

#: shapes of tensors tried in turn: operators differ in the number of dimensions they take
_SHAPES = ((4, 4), (2, 4, 4), (2, 2, 4, 4), (2, 2, 4, 4, 4), (4,), ())

#: what numbers and lists mean, by the argument's name
_NAMED: dict[str, Any] = {
    "high": 5,
    "to": 5,
    "eps": 1e-5,
    "momentum": 0.1,
    "lr": 0.1,
    "p": 0.5,
    "keepdim": False,
    "shape": [4, 4],
    "groups": 1,
    "step": 1,
    "end": 3,
    "window_length": 5,
    "dims": [0],
}


def operator(name: str) -> OpOverload:
    """The operator of a lowering's name ("aten::add.Tensor")."""
    return program.resolve(*name.rsplit(".", 1))


def is_view(op: OpOverload) -> bool:
    """Whether results share an argument's storage: metadata alone, no program in eager mode."""
    if op.namespace == "prims" and op._opname in ("as_strided", "collapse_view"):
        return True
    return any(r.alias_info is not None and not r.alias_info.is_write for r in op._schema.returns)


def allocates(op: OpOverload) -> bool:
    """Whether an operator only makes memory, which launches nothing."""
    return "empty" in op._opname


#: why no call of a lowering can be made
REASONS: dict[str, str] = {
    "aten::baddbmm.dtype": "PyTorch 2.13 has no CPU kernel of it, and its meta kernel raises "
    "TypeError (it takes the dtype for beta)",
    "aten::_weight_int4pack_mm.default": "PyTorch 2.13 has no CPU kernel of it, and its meta "
    "kernel takes fake tensors only",
}


def calls(op: OpOverload, dtype: torch.dtype) -> Iterator[Call]:
    """Calls that PyTorch accepts, of tensors of that dtype, best first."""
    if op in _TABLE:
        candidates = [_TABLE[op](dtype)]
    elif _INTERNAL.match(op._opname) and not dtype.is_floating_point:
        return
    else:
        candidates = [_generic(op, dtype, shape) for shape in _SHAPES]
    for call in candidates:
        if call is not None and accepts(op, *call):
            yield call


def accepts(op: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether the CPU computes this call. Operators without a CPU kernel, and internal ones, which
    check nothing and may crash, are only asked for the shapes of their results, where they can
    tell.
    """
    with torch.no_grad():
        try:
            if not _INTERNAL.match(op._opname):
                op(*pytree.tree_map_only(torch.Tensor, torch.clone, args), **kwargs)
                return True
        except NotImplementedError as e:
            if not re.search("Could not run|overrideable|only implemented with", str(e)):
                return False  # for this dtype
        except Exception:
            return False
        try:
            op(*_on_meta(args), **_on_meta(kwargs))
        except NotImplementedError:
            return True
        except Exception:
            return False
    return True


_INTERNAL = re.compile(r"_(?!foreach|_)|batch_norm")


def _on_meta(x: Any) -> Any:
    def move(leaf: Any) -> Any:
        if isinstance(leaf, torch.device):
            return torch.device("meta")
        return leaf.to("meta") if isinstance(leaf, torch.Tensor) else leaf

    return pytree.tree_map(move, x)


def tensor(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """Numbers from 1/2 to 1; ones for integers."""
    generator = torch.Generator().manual_seed(sum(shape))
    if dtype.is_floating_point or dtype.is_complex:
        return (torch.rand(shape, generator=generator) / 2 + 0.5).to(dtype)
    return torch.ones(shape, dtype=dtype)


def _generic(op: OpOverload, dtype: torch.dtype, shape: tuple[int, ...]) -> Call | None:
    args, kwargs = [], {}
    for a in op._schema.arguments:
        value = _value(a, dtype, shape)
        if value is _UNKNOWN:
            return None
        if a.kwarg_only:
            kwargs[a.name] = value
        else:
            args.append(value)
    return tuple(args), kwargs


_UNKNOWN = object()


def _value(a: Any, dtype: torch.dtype, shape: tuple[int, ...]) -> Any:
    kind = str(a.type)
    if "Tensor" not in kind and a.has_default_value():
        return a.default_value
    if kind == "Tensor":
        whole = ("index", "indices")
        return tensor(shape, torch.int64 if a.name in whole else dtype)
    if kind in ("List[Tensor]", "List[Optional[Tensor]]"):
        return [tensor(shape, dtype), tensor(shape, dtype)]
    if kind == "int" and a.name in ("dtype", "out_dtype"):
        return dtype
    if a.name in _NAMED:
        return _NAMED[a.name]
    if kind.startswith("Optional"):
        return None
    if kind in ("number", "float"):
        return 1.5 if dtype.is_floating_point or dtype.is_complex else 1
    if kind == "List[number]":
        return [1.5 if dtype.is_floating_point or dtype.is_complex else 1] * 2
    return {
        "int": 0 if a.name.startswith("dim") else 1,
        "bool": False,
        "List[int]": [0] if a.name.startswith("dim") else [2] * max(len(shape) - 2, 1),
        "List[bool]": [True] * 3,
        "Device": torch.device("cpu"),
    }.get(kind, _UNKNOWN)


def _floats(make: Callable[[Callable[..., torch.Tensor]], list[Any]]) -> Callable[..., Any]:
    """A row of the table for floating dtypes; `make` gets a function of sizes."""
    return lambda dtype: (
        (tuple(make(lambda *shape: tensor(shape, dtype))), {}) if dtype.is_floating_point else None
    )


def _any(make: Callable[[Callable[..., torch.Tensor]], list[Any]]) -> Callable[..., Any]:
    return lambda dtype: (tuple(make(lambda *shape: tensor(shape, dtype))), {})


def _only(
    kind: torch.dtype, make: Callable[[Callable[..., torch.Tensor]], list[Any]]
) -> Callable[..., Any]:
    return lambda dtype: _any(make)(dtype) if dtype is kind else None


def _resampled(rank: int, mode: list[Any]) -> Callable[..., Any]:
    """A row for the gradient of resampling 2 pixels to 4 along each of `rank` dimensions."""
    sizes = [4] * rank, [2, 3, *[2] * rank]
    return _floats(lambda t: [t(2, 3, *[4] * rank), *sizes, *mode])


def _padded(rank: int, backward: bool) -> Callable[..., Any]:
    """A row for padding by one on each side."""
    grad = [[2, 3, *[6] * rank]] if backward else []
    return _any(lambda t: [*(t(*g) for g in grad), t(2, 3, *[4] * rank), [1] * 2 * rank])


def _wider(make: Callable[[Callable[..., torch.Tensor]], list[Any]]) -> Callable[..., Any]:
    """A row for products of bfloat16 with results of float32."""
    return lambda dtype: (
        ((*make(lambda *shape: tensor(shape, dtype)), torch.float32), {})
        if dtype is torch.bfloat16
        else None
    )


def _fill(*args: Any, **kwargs: Any) -> Callable[[torch.dtype], Call]:
    """A row for a factory of prims."""
    common = {"device": torch.device("cpu"), "requires_grad": False}
    return lambda dtype: (args, {"dtype": dtype, **common, **kwargs})


def _drawn(kwargs: dict[str, Any]) -> Callable[[torch.dtype], Call | None]:
    def make(dtype: torch.dtype) -> Call | None:
        given = {"dtype": dtype, "device": torch.device("cpu"), **kwargs}
        return (([4],), given) if dtype.is_floating_point else None

    return make


def _of_int8(dtype: torch.dtype) -> Call | None:
    if dtype is not torch.int64:
        return None
    return (tensor((32, 16), torch.int8), tensor((16, 8), torch.int8)), {}


def _step(lists: int, steps: bool, **options: Any) -> dict[str, Callable[..., Any]]:
    """Rows for a fused optimizer's step: with a number and with a tensor as learning rate."""

    def make(lr: Any) -> Callable[[torch.dtype], Call | None]:
        def row(dtype: torch.dtype) -> Call | None:
            if not dtype.is_floating_point:
                return None
            given = [[tensor((4,), dtype), tensor((2, 3), dtype)] for _ in range(lists)]
            if steps:
                given += [[torch.tensor(1.0), torch.tensor(1.0)]]
            return tuple(given), {"lr": lr, "maximize": False, "weight_decay": 0.1, **options}

        return row

    return {"default": make(0.1), "tensor_lr": make(torch.tensor(0.1))}


def _attention(t: Callable[..., torch.Tensor]) -> list[Any]:
    """Arguments of attention and of a transformer's layer, of width 8 with two heads."""
    return [8, 2, t(24, 8), t(24), t(8, 8), t(8)]


_index = torch.tensor([[0, 1, 1, 0]])
_class = torch.zeros(2, 4, 4, dtype=torch.int64)
_long = torch.tensor
_aten, _prims = torch.ops.aten, torch.ops.prims
_ADAM = {"beta1": 0.9, "beta2": 0.99, "eps": 1e-8, "amsgrad": True}
_SGD = {"momentum": 0.9, "dampening": 0.0, "nesterov": True, "is_first_step": False}
_CONV = [[1, 1], [0, 0], [1, 1], False, [0, 0], 1]
_QUANTIZED = [-8, 7]
_ROWS = [_long([0, 2, 5])]  # where rows of two and of three elements begin and end
_CTC = [_long([[1, 2], [2, 1]]), _long([5, 5]), _long([2, 2])]


def _scaled(v2: bool) -> Callable[[torch.dtype], Call | None]:
    """A row for a product of 8-bit floats."""

    def row(dtype: torch.dtype) -> Call | None:
        if dtype is not torch.bfloat16:
            return None
        left, right = (tensor((16, 16), dtype).to(torch.float8_e4m3fn) for _ in range(2))
        one = torch.tensor(1.0)
        given: list[Any] = [[one], [0], [0]] * 2 if v2 else [one, one]
        return (left, right.t(), *given, *([None] if v2 else [None, None]), dtype), {}

    return row


def _packed(op: OpOverload, rows: int, groups: bool) -> Callable[[torch.dtype], Call | None]:
    """A row for 4-bit weights, 32 x 64, that `op` packs; with `groups`, for a product with them."""

    def row(dtype: torch.dtype) -> Call | None:
        if dtype is not torch.bfloat16:
            return None
        weights = torch.ones(32, 64, dtype=torch.int32)
        if op is _aten._convert_weight_to_int4pack.default:
            weights = torch.full((32, 32), 0x11, dtype=torch.uint8)
        if not groups:
            return (weights, rows), {}
        packed = op(weights.to("meta"), rows)
        packed = torch.zeros(packed.shape, dtype=packed.dtype)
        return (tensor((4, 64), dtype), packed, 32, tensor((2, 32, 2), dtype)), {}

    return row


_TABLE: dict[OpOverload, Callable[[torch.dtype], Call | None]] = {
    _aten._convert_weight_to_int4pack.default: _packed(
        _aten._convert_weight_to_int4pack.default, 2, False
    ),
    _aten._convert_weight_to_int4pack_for_cpu.default: _packed(
        _aten._convert_weight_to_int4pack_for_cpu.default, 1, False
    ),
    _aten._weight_int4pack_mm_for_cpu.default: _packed(
        _aten._convert_weight_to_int4pack_for_cpu.default, 1, True
    ),
    _aten._weight_int8pack_mm.default: _floats(
        lambda t: [t(4, 8), tensor((6, 8), torch.int8), t(6)]
    ),
    _aten._scaled_mm.default: _scaled(False),
    _aten._scaled_mm_v2.default: _scaled(True),
    _aten._fake_quantize_learnable_per_channel_affine.default: _floats(
        lambda t: [t(3, 4), t(3), t(3), 0, *_QUANTIZED]
    ),
    _aten._fake_quantize_learnable_per_channel_affine_backward.default: _floats(
        lambda t: [t(3, 4), t(3, 4), t(3), t(3), 0, *_QUANTIZED]
    ),
    _aten._fake_quantize_learnable_per_tensor_affine.default: _floats(
        lambda t: [t(3, 4), t(1), t(1), *_QUANTIZED]
    ),
    _aten._fake_quantize_learnable_per_tensor_affine_backward.default: _floats(
        lambda t: [t(3, 4), t(3, 4), t(1), t(1), *_QUANTIZED]
    ),
    _aten._fake_quantize_per_tensor_affine_cachemask_tensor_qparams.default: _floats(
        lambda t: [
            t(3, 4),
            torch.ones(1),
            torch.zeros(1, dtype=torch.int32),
            _long([1]),
            *_QUANTIZED,
        ]
    ),
    _aten.fake_quantize_per_channel_affine_cachemask.default: _floats(
        lambda t: [t(3, 4), torch.ones(3), torch.zeros(3, dtype=torch.int32), 0, *_QUANTIZED]
    ),
    _aten._jagged_to_padded_dense_forward.default: _floats(lambda t: [t(5, 4), _ROWS, [3]]),
    _aten._padded_dense_to_jagged_forward.default: _floats(lambda t: [t(2, 3, 4), _ROWS, 5]),
    _aten._scaled_dot_product_flash_attention_for_cpu.default: _floats(
        lambda t: [t(2, 2, 4, 8)] * 3
    ),
    _aten.convolution_backward_overrideable.default: _floats(
        lambda t: [t(2, 5, 4, 4), t(2, 3, 6, 6), t(5, 3, 3, 3), *_CONV, [True] * 3]
    ),
    _aten.repeat_interleave.Tensor: lambda d: (
        ((_long([1, 2, 0]),), {"output_size": 3}) if d is torch.int64 else None
    ),
    _aten._batch_norm_no_update.default: _floats(
        lambda t: [t(2, 3, 4), t(3), t(3), t(3), t(3), 0.1, 1e-5]
    ),
    _aten._native_batch_norm_legit.no_stats: _floats(
        lambda t: [t(2, 3, 4), t(3), t(3), True, 0.1, 1e-5]
    ),
    _aten._embedding_bag_forward_only.default: _floats(
        lambda t: [t(5, 3), torch.tensor([0, 1, 4, 2]), torch.tensor([0, 2])]
    ),
    _aten._int_mm.default: _of_int8,
    **{getattr(_aten._fused_sgd, k): f for k, f in _step(3, False, **_SGD).items()},
    **{getattr(_aten._fused_adam, k): f for k, f in _step(5, True, **_ADAM).items()},
    **{getattr(_aten._fused_adamw, k): f for k, f in _step(5, True, **_ADAM).items()},
    **{
        getattr(_aten._fused_adagrad, k): f
        for k, f in _step(3, True, lr_decay=0.1, eps=1e-8).items()
    },
    _aten._ctc_loss.Tensor: _floats(lambda t: [t(5, 2, 4), *_CTC]),
    _aten._ctc_loss_backward.Tensor: _floats(
        lambda t: [t(2), t(5, 2, 4), *_CTC, t(2), t(2, 5, 5), 0]
    ),
    _aten._cummax_helper.default: _floats(lambda t: [t(4), t(4), _long([0] * 4), 0]),
    _aten._cummin_helper.default: _floats(lambda t: [t(4), t(4), _long([0] * 4), 0]),
    _aten._embedding_bag_dense_backward.default: _floats(
        lambda t: [
            t(2, 3),
            _long([0, 1, 4, 2]),
            _long([0, 0, 1, 1]),
            _long([2, 2]),
            _long([0, 0]),
            5,
            False,
            0,
            None,
        ]
    ),
    _aten._index_put_impl.default: _any(lambda t: [t(4), [_long([0, 2])], t(2)]),
    _aten._unsafe_index_put.default: _any(lambda t: [t(4), [_long([0, 2])], t(2)]),
    _aten._masked_softmax.default: _floats(lambda t: [t(2, 4), torch.eye(2, 4).bool(), 1]),
    _aten._masked_softmax_backward.default: _floats(
        lambda t: [t(2, 4), t(2, 4), torch.eye(2, 4).bool(), 1]
    ),
    _aten._native_batch_norm_legit_no_training.default: _floats(
        lambda t: [t(2, 3, 4), t(3), t(3), t(3), t(3), 0.1, 1e-5]
    ),
    _aten.batch_norm_stats.default: _floats(lambda t: [t(2, 3, 4), 1e-5]),
    _aten.batch_norm_elemt.default: _floats(lambda t: [t(2, 3, 4), t(3), t(3), t(3), t(3), 1e-5]),
    _aten.batch_norm_gather_stats.default: _floats(
        lambda t: [t(2, 3, 4), t(2, 3), t(2, 3), t(3), t(3), 0.1, 1e-5, 8]
    ),
    _aten.batch_norm_gather_stats_with_counts.default: _floats(
        lambda t: [t(2, 3, 4), t(2, 3), t(2, 3), t(3), t(3), 0.1, 1e-5, t(2)]
    ),
    _aten.batch_norm_backward_reduce.default: _floats(
        lambda t: [t(2, 3, 4), t(2, 3, 4), t(3), t(3), t(3), True, True, True]
    ),
    _aten.batch_norm_backward_elemt.default: _floats(
        lambda t: [
            t(2, 3, 4),
            t(2, 3, 4),
            t(3),
            t(3),
            t(3),
            t(3),
            t(3),
            torch.ones(2, dtype=torch.int32),
        ]
    ),
    _aten.convolution_overrideable.default: _floats(
        lambda t: [t(2, 3, 5, 5), t(4, 3, 3, 3), t(4), *_CONV]
    ),
    _aten.convolution_backward_overrideable.default: _floats(
        lambda t: [t(2, 4, 3, 3), t(2, 3, 5, 5), t(4, 3, 3, 3), *_CONV, [True] * 3]
    ),
    _aten._scaled_dot_product_flash_attention_for_cpu_backward.default: _floats(
        lambda t: [*(t(2, 2, 4, 8) for _ in range(5)), t(2, 2, 4).float(), 0.0, False]
    ),
    _aten._scaled_dot_product_fused_attention_overrideable_backward.default: _floats(
        lambda t: [
            *(t(2, 2, 4, 8) for _ in range(4)),
            t(2, 2, 4, 4),
            [True] * 4,
            t(2, 2, 4, 8),
            t(2, 2, 4).float(),
            _long([0]),
            _long([0]),
            4,
            4,
            0.0,
            False,
            _long(0),
            _long(0),
        ]
    ),
    _aten._native_multi_head_attention.default: _floats(
        lambda t: [*[t(2, 4, 8)] * 3, *_attention(t)]
    ),
    _aten._transformer_encoder_layer_fwd.default: _floats(
        lambda t: [
            t(2, 4, 8),
            *_attention(t),
            False,
            False,
            1e-5,
            *(t(8) for _ in range(4)),
            t(16, 8),
            t(16),
            t(8, 16),
            t(8),
        ]
    ),
    _aten._transform_bias_rescale_qkv.default: _floats(lambda t: [t(2, 4, 24), t(24), 2]),
    _aten._thnn_fused_gru_cell.default: _floats(lambda t: [t(2, 9), t(2, 9), t(2, 3), t(9), t(9)]),
    _aten._thnn_fused_gru_cell_backward.default: _floats(lambda t: [t(2, 3), t(2, 15), True]),
    _aten._is_all_true.default: _only(torch.bool, lambda t: [t(4)]),
    _aten._is_any_true.default: _only(torch.bool, lambda t: [t(4)]),
    _prims.xor_sum.default: _only(torch.int64, lambda t: [t(4, 4), [0]]),
    _aten._unsafe_index.Tensor: _any(lambda t: [t(4, 4), [_long([0, 2])]]),
    _aten._reshape_alias_copy.default: _any(lambda t: [t(4, 4), [16], [1]]),
    _aten._thnn_fused_lstm_cell.default: _floats(
        lambda t: [t(2, 12), t(2, 12), t(2, 3), t(12), t(12)]
    ),
    _aten._upsample_bicubic2d_aa_backward.default: _resampled(2, [False]),
    _aten._upsample_lanczos2d_aa_backward.default: _resampled(2, [False]),
    _aten._upsample_nearest_exact2d_backward.default: _resampled(2, []),
    _aten._upsample_nearest_exact3d_backward.default: _resampled(3, []),
    _aten.upsample_nearest2d_backward.default: _resampled(2, []),
    _aten.upsample_nearest3d_backward.default: _resampled(3, []),
    _aten.reflection_pad2d.default: _padded(2, False),
    _aten.reflection_pad2d_backward.default: _padded(2, True),
    _aten.reflection_pad3d.default: _padded(3, False),
    _aten.reflection_pad3d_backward.default: _padded(3, True),
    _aten.replication_pad3d.default: _padded(3, False),
    _aten.replication_pad3d_backward.default: _padded(3, True),
    _aten.mm.dtype: _wider(lambda t: [t(4, 4), t(4, 4)]),
    _aten.addmm.dtype: _wider(lambda t: [t(4, 4), t(4, 4), t(4, 4)]),
    _aten.bmm.dtype: _wider(lambda t: [t(2, 4, 4), t(2, 4, 4)]),
    _aten.as_strided_scatter.default: _any(lambda t: [t(4, 4), t(2, 2), [2, 2], [4, 1]]),
    _prims.as_strided_scatter.default: _any(lambda t: [t(4, 4), t(2, 2), [2, 2], [4, 1], 0]),
    _aten.clip.default: _any(lambda t: [t(4), 0, 1]),
    _aten.clip.Tensor: _any(lambda t: [t(4), t(4), t(4)]),
    _aten.conv_tbc.default: _floats(lambda t: [t(5, 2, 3), t(2, 3, 4), t(4)]),
    _aten.glu_jvp.default: _floats(lambda t: [t(4, 2), t(4, 4), t(4, 4), 1]),
    _aten.nll_loss2d_forward.default: _floats(lambda t: [t(2, 3, 4, 4), _class, None, 1, -100]),
    _aten.nll_loss2d_backward.default: _floats(
        lambda t: [t(), t(2, 3, 4, 4), _class, None, 1, -100, t()]
    ),
    _aten.scatter.reduce: lambda d: (
        (tensor((2, 4), d), 0, _index, tensor((1, 4), d)),
        {"reduce": "multiply"},
    ),
    _aten.scatter.value_reduce: lambda d: ((tensor((2, 4), d), 0, _index, 2), {"reduce": "add"}),
    _aten.randint_like.Tensor_generator: lambda d: (
        (tensor((4,), d), torch.tensor(5)),
        {"generator": None},
    ),
    _aten.view_as_complex_copy.default: _floats(lambda t: [t(4, 2)]),
    _aten.view_copy.dtype: _floats(lambda t: [t(4, 4), torch.int32]),
    _prims.full.default: _fill([4], 1),
    _prims.full_like.default: lambda d: _fill(tensor((4,), d), 1)(d),
    _prims.iota.default: lambda d: _fill(4, start=0, step=1)(d) if d is torch.int64 else None,
    _prims.normal.default: _drawn({"mean": 0.0, "std": 1.0, "requires_grad": False}),
    _prims.uniform.default: _drawn({"low": 0.0, "high": 1.0, "stride": [1]}),
    _prims.scalar_tensor.default: lambda d: ((1,), {"dtype": d, "device": torch.device("cpu")}),
}
