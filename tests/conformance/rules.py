"""Every exception to "the result equals the CPU's", as tables: tolerances, randomness, and freedom
of choice.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.testing._internal.common_device_type import precisionOverride, toleranceOverride
from torch.testing._internal.opinfo.core import DecorateInfo, OpInfo

from tests.common.compare import Tolerance, tolerance_for
from tests.conformance.samples import Sample

# Results are uninitialised memory in whole or in part: only dtypes and shapes can be compared.
UNINITIALISED = frozenset(
    (
        "empty",
        "empty_like",
        "empty_permuted",
        "empty_strided",
        "new_empty",
        "new_empty_strided",
        "resize_",
        "resize_as_",
    )
)

# Results are random by meaning. Others (attention with dropout, ...) are found out: see check.py.
RANDOM = frozenset(
    (
        "bernoulli",
        "cauchy",
        "exponential",
        "geometric",
        "log_normal",
        "multinomial",
        "normal",
        "normal.in_place",
        "normal.number_mean",
        "rand_like",
        "randint",
        "randint_like",
        "randn",
        "randn_like",
        "uniform",
        "nn.functional.alpha_dropout",
        "nn.functional.dropout",
        "nn.functional.dropout2d",
        "nn.functional.dropout3d",
        "nn.functional.feature_alpha_dropout.with_train",
        "nn.functional.fractional_max_pool2d",
        "nn.functional.fractional_max_pool3d",
    )
)

# Write averages of copies of a statistic, which may round even where nothing is new.
AVERAGES = frozenset(("nn.functional.instance_norm",))

# Positional arguments that stay on the CPU, as on cuda.
ON_CPU = {"tensor_split": 1}

# Results come in any order: before a gradient depends on the order, `in_order` makes one.
UNORDERED = frozenset(("linalg.eigvals",))

# Suites of PyTorch's own device-generic tests whose tolerances hold for eager execution on any
# device.
_SUITES = (
    None,
    "TestCommon",
    "TestUnaryUfuncs",
    "TestBinaryUfuncs",
    "TestReductions",
    "TestMasked",
)
_DEVICES = (None, "cpu", "cuda")


def tolerance_of(op: OpInfo) -> Callable[[torch.dtype], Tolerance]:
    """Tolerance by dtype for an operator: the default, loosened by what the database says of it."""
    overrides: dict[torch.dtype, Tolerance] = {}
    for decorator in op.decorators:
        wrapped: Sequence[Any] = (decorator,)
        if isinstance(decorator, DecorateInfo):
            if decorator.cls_name not in _SUITES or decorator.device_type not in _DEVICES:
                continue
            wrapped = decorator.decorators
        for w in wrapped:
            if not isinstance(w, (toleranceOverride, precisionOverride)):
                continue
            for dtype, value in w.d.items():
                if isinstance(w, toleranceOverride):
                    given = Tolerance(value.rtol, value.atol)
                else:
                    given = Tolerance(0.0, value)
                overrides[dtype] = overrides.get(dtype, tolerance_for(dtype)).loosened(given)
    return lambda dtype: overrides.get(dtype, tolerance_for(dtype))


def same_distribution(expected: torch.Tensor, actual: torch.Tensor) -> bool:
    """A coarse two-sample Kolmogorov-Smirnov test: one false alarm in a million; always true below
    16 numbers.
    """
    x, y = (_flat(t).sort().values for t in (expected, actual))
    count = x.numel()
    if count < 16 or y.numel() != count:
        return True
    points = torch.cat([x, y]).sort().values
    gap = torch.searchsorted(x, points, right=True) - torch.searchsorted(y, points, right=True)
    return gap.abs().max().item() / count < math.sqrt(-math.log(1e-6 / 2) / 2) * math.sqrt(
        2 / count
    )


def _flat(tensor: torch.Tensor) -> torch.Tensor:
    tensor = tensor.detach().cpu().resolve_conj()
    tensor = torch.view_as_real(tensor) if tensor.is_complex() else tensor
    return tensor.flatten().to(torch.float64)


# Where an operator may choose among several right answers, the answer is brought to a form that all
# of them share. Called with CPU copies of (results, sample) for both sides, only after a plain
# comparison has failed.
Canonical = Callable[[Any, Sample], Any]


def _wide(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.to(torch.complex128 if tensor.is_complex() else torch.float64)


def _product(*factors: torch.Tensor) -> torch.Tensor:
    product = _wide(factors[0])
    for factor in factors[1:]:
        product = product @ _wide(factor).to(
            torch.promote_types(product.dtype, _wide(factor).dtype)
        )
    return product


def _svd(result: Any, sample: Sample) -> Any:
    u, s, vh = result
    if u.numel() == 0 or vh.numel() == 0:
        return s, u.shape, vh.shape
    k = s.shape[-1]
    return s, _product(u[..., :k] * s.unsqueeze(-2), vh[..., :k, :]), _gram(u), _gram(vh.mH)


def _svd_not_transposed(result: Any, sample: Sample) -> Any:
    u, s, v = result
    return _svd((u, s, v.mH), sample)


def _gram(q: torch.Tensor) -> torch.Tensor:
    return _product(q.mH, q)


def _eigh(result: Any, sample: Sample) -> Any:
    values, vectors = result
    return values, _product(vectors * values.unsqueeze(-2), vectors.mH), _gram(vectors)


def in_order(values: torch.Tensor) -> torch.Tensor:
    """Eigenvalues in an order that rounding does not change, unless they are very close."""
    order = (values.real.double().round(decimals=3) * 1e6 + values.imag.double()).argsort(dim=-1)
    return values.gather(-1, order)


def _eig(result: Any, sample: Sample) -> Any:
    values, vectors = result
    matrix = _wide(sample.args[0]).to(torch.complex128)
    residual = matrix @ _wide(vectors) - _wide(vectors) * _wide(values).unsqueeze(-2)
    return in_order(values), residual.abs().amax(-2), vectors.norm(dim=-2)


def _eigvals(result: Any, sample: Sample) -> Any:
    return in_order(result)


def _phase(diagonal: torch.Tensor) -> torch.Tensor:
    return torch.where(diagonal == 0, torch.ones_like(diagonal), diagonal.sgn())


def _qr(result: Any, sample: Sample) -> Any:
    q, r = result
    fixed = _phase(r.diagonal(dim1=-2, dim2=-1)).conj().unsqueeze(-1)
    k = fixed.shape[-2]
    upper = torch.cat([r[..., :k, :] * fixed, r[..., k:, :]], dim=-2)
    return (upper,) if q.numel() == 0 else (upper, _product(q, r), _gram(q))


def _geqrf(result: Any, sample: Sample) -> Any:
    r = result[0].triu()
    k = min(r.shape[-2:])
    return r[..., :k, :] * _phase(r.diagonal(dim1=-2, dim2=-1)).conj().unsqueeze(-1)


def _argument(sample: Sample, name: str, position: int, default: Any) -> Any:
    if name in sample.kwargs:
        return sample.kwargs[name]
    return sample.args[position] if len(sample.args) > position else default


def _picked(
    values: torch.Tensor, indices: torch.Tensor, sample: Sample, dim: int, keep: bool
) -> Any:
    """The values, and the values found where the indices point: which of several equal ones is
    free.
    """
    source = sample.args[0]
    if source.dim() == 0:
        return values, (indices == 0).all()
    if not keep:
        indices = indices.unsqueeze(dim)
    if indices.numel() and (indices.min() < 0 or indices.max() >= source.shape[dim]):
        return values, "index out of range"
    return values, source.gather(dim, indices)


def _sort(result: Any, sample: Sample) -> Any:
    values, indices = result
    dim = _argument(sample, "dim", 1, -1)
    return _picked(values, indices, sample, dim if isinstance(dim, int) else -1, True)


def _argsort(result: Any, sample: Sample) -> Any:
    dim = _argument(sample, "dim", 1, -1)
    return _picked(result, result, sample, dim, True)[1]


def _topk(result: Any, sample: Sample) -> Any:
    values, indices = result
    dim = _argument(sample, "dim", 2, -1)
    if not _argument(sample, "sorted", 4, True):
        values = values.sort(dim).values
        return values, _picked(values, indices, sample, dim, True)[1].sort(dim).values
    return _picked(values, indices, sample, dim, True)


def _one_of(position: int) -> Canonical:
    """For a value and its index along a dim (median, mode, kthvalue); without a dim there is only
    the value.
    """

    def canonical(result: Any, sample: Sample) -> Any:
        if isinstance(result, torch.Tensor):
            return result
        dim = _argument(sample, "dim", position, -1)
        keep = _argument(sample, "keepdim", position + 1, False)
        return _picked(*result, sample, dim, keep)

    return canonical


CANONICAL: dict[str, Canonical] = {
    "argsort": _argsort,
    "geqrf": _geqrf,
    "kthvalue": _one_of(2),
    "linalg.eig": _eig,
    "linalg.eigh": _eigh,
    "linalg.eigvals": _eigvals,
    "linalg.qr": _qr,
    "linalg.svd": _svd,
    "median": _one_of(1),
    "mode": _one_of(1),
    "nanmedian": _one_of(1),
    "pca_lowrank": _svd_not_transposed,
    "qr": _qr,
    "sort": _sort,
    "svd": _svd_not_transposed,
    "svd_lowrank": _svd_not_transposed,
    "topk": _topk,
}
