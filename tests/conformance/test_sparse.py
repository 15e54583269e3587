"""Sparse tensors: COO and compressed layouts made, converted, computed with and differentiated as
on the CPU."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch

import torchtpu_core

INDICES = torch.tensor([[0, 2, 0, 1, 2, 0], [1, 0, 1, 3, 0, 2]])  # two entries come twice
VALUES = torch.tensor([1.0, 2.0, 3.0, -4.0, 5.0, 0.5])
DENSE = torch.randn(3, 4, generator=torch.Generator().manual_seed(0))
TALL = torch.randn(4, 3, generator=torch.Generator().manual_seed(1))


def coo(like: torch.Tensor, values: torch.Tensor = VALUES, **kwargs: Any) -> torch.Tensor:
    """A 3 x 4 matrix with duplicates, where `like` is."""
    return torch.sparse_coo_tensor(
        INDICES.to(like.device), values.to(like.device), (3, 4, *values.shape[1:]), **kwargs
    )


def csr(like: torch.Tensor) -> torch.Tensor:
    """A 3 x 4 matrix whose second row is empty."""
    parts = ([0, 2, 2, 4], [0, 3, 1, 2])
    rows, columns = (torch.tensor(p, device=like.device) for p in parts)
    return torch.sparse_csr_tensor(
        rows, columns, torch.arange(1.0, 5.0, device=like.device), (3, 4), check_invariants=True
    )


def parts(t: torch.Tensor) -> list[Any]:
    """What a tensor is made of, in one order."""
    if t.layout is torch.sparse_coo:
        t = t.coalesce()
        return [t.indices(), t.values(), list(t.shape), t.sparse_dim(), t._nnz()]
    return [t.crow_indices(), t.col_indices(), t.values(), list(t.shape)]


MAKE: dict[str, Callable[[torch.Tensor], Any]] = {
    "parts": lambda x: [coo(x)._indices(), coo(x)._values(), coo(x).is_coalesced()],
    "lists": lambda x: torch.sparse_coo_tensor([[0, 1], [1, 0]], [1.0, 2.0], device=x.device),
    "checked": lambda x: coo(x, check_invariants=True),
    "coalesce": lambda x: parts(coo(x)),
    "coalesced int": lambda x: parts(coo(x, VALUES.long())),
    "coalesced bool": lambda x: parts(coo(x, VALUES > 0)),
    "coalesced bfloat16": lambda x: parts(coo(x, VALUES.bfloat16())),
    "hybrid": lambda x: parts(coo(x, torch.arange(18.0).view(6, 3))),
    "one sparse dim": lambda x: parts(x.relu().to_sparse(1)),
    "empty": lambda x: parts(torch.sparse_coo_tensor(size=(3, 4), device=x.device)),
    "zeros": lambda x: torch.zeros(2, 3, layout=torch.sparse_coo, device=x.device),
    "zeros_like": lambda x: torch.zeros_like(coo(x)),
    "to_sparse": lambda x: parts(x.relu().to_sparse()),
    "to_dense": lambda x: coo(x).to_dense(),
    "hybrid to_dense": lambda x: coo(x, torch.arange(18.0).view(6, 3)).to_dense(),
    "from host": lambda x: parts(coo(VALUES).to(x.device)),
    "to host": lambda x: parts(coo(x).cpu()),
    "dtype": lambda x: parts(coo(x).to(torch.bfloat16)),
    "clone": lambda x: parts(coo(x).clone()),
    "copy_": lambda x: torch.zeros_like(coo(x)).copy_(coo(x)),
    "csr": lambda x: parts(csr(x)),
    "csr to_dense": lambda x: csr(x).to_dense(),
    "to_sparse_csr": lambda x: parts(x.relu().to_sparse_csr()),
    "batched csr": lambda x: torch.stack([x, x]).relu().to_sparse_csr().to_dense(),
    "coo to csr": lambda x: parts(coo(x).coalesce().to_sparse_csr()),
    "csr to coo": lambda x: parts(csr(x).to_sparse()),
    "csc": lambda x: [csr(x).to_sparse_csc().ccol_indices(), csr(x).to_sparse_csc().values()],
    "csc to csr": lambda x: parts(csr(x).to_sparse_csc().to_sparse_csr()),
    "bsr": lambda x: x.new_ones(4, 4).to_sparse_bsr((2, 2)),
    "csr to bsr": lambda x: x.new_ones(4, 4).to_sparse_csr().to_sparse_bsr((2, 2)),
    "csr from host": lambda x: parts(csr(VALUES).to(x.device)),
}

COMPUTE: dict[str, Callable[[torch.Tensor], Any]] = {
    "times number": lambda x: coo(x) * 3,
    "over number": lambda x: coo(x) / 4,
    "mul_": lambda x: coo(x).mul_(2),
    "sum of two": lambda x: parts(coo(x) + coo(x).coalesce()),
    "sum of coalesced": lambda x: parts(coo(x).coalesce() + x.relu().to_sparse()),
    "difference": lambda x: (coo(x) - x.relu().to_sparse()).to_dense(),
    "add_": lambda x: coo(x).add_(coo(x), alpha=2),
    "dense + sparse": lambda x: x + coo(x),
    "dense.add_(sparse)": lambda x: x.clone().add_(coo(x), alpha=0.5),
    "dense + hybrid": lambda x: x.new_ones(3, 4, 3) + coo(x, torch.arange(18.0).view(6, 3)),
    "sparse * dense": lambda x: coo(x) * x,
    "sparse * row": lambda x: coo(x).coalesce() * x[0],
    "sparse * sparse": lambda x: coo(x) * x.relu().to_sparse(),
    "int + float": lambda x: coo(x, VALUES.long()) + coo(x),
    "transpose": lambda x: parts(coo(x).t()),
    "sum": lambda x: coo(x).sum(),
    "sum dim": lambda x: torch.sparse.sum(coo(x), 1),
    "softmax": lambda x: torch.sparse.softmax(coo(x), 1),
    "norm": lambda x: coo(x).norm(),
    "select": lambda x: coo(x)[2],
    "index_select": lambda x: coo(x).index_select(0, torch.tensor([2, 0], device=x.device)),
    "cat": lambda x: torch.cat([coo(x), coo(x)], 1),
    "sparse_mask": lambda x: parts(x.sparse_mask(coo(x).coalesce())),
    "mask of sparse": lambda x: coo(x).sparse_mask(x.relu().to_sparse()),
    "zero_": lambda x: coo(x).zero_(),
    "csr * number": lambda x: csr(x) * 2,
    "csr sin": lambda x: csr(x).sin(),
    "csr + csr": lambda x: csr(x) + csr(x),
    "dense + csr": lambda x: x + csr(x),
    "csr sum": lambda x: csr(x).sum(),
    "csr sum dim": lambda x: csr(x).sum(1, keepdim=True),
    **{
        name: lambda x, name=name: getattr(torch, name)(coo(x))
        for name in ["abs", "sin", "sqrt", "neg", "sign", "relu", "tanh", "floor", "isnan", "expm1"]
    },
}

PRODUCTS: dict[str, Callable[[torch.Tensor], Any]] = {
    "sparse @ dense": lambda y: coo(y) @ y,
    "torch.sparse.mm": lambda y: torch.sparse.mm(coo(y), y),
    "sparse @ vector": lambda y: coo(y) @ y[:, 0],
    "dense @ sparse": lambda y: y @ coo(y),
    "sparse @ sparse": lambda y: coo(y) @ coo(y).t(),
    "addmm": lambda y: torch.sparse.addmm(y[:3], coo(y), y, beta=2, alpha=0.5),
    "addmm of nan": lambda y: torch.addmm(y[:3] * float("nan"), coo(y), y, beta=0),
    "addmm_": lambda y: y[:3].clone().addmm_(coo(y), y),
    "bmm": lambda y: torch.bmm(torch.stack([coo(y), coo(y) * 2]), torch.stack([y, y + 1])),
    "bfloat16": lambda y: coo(y, VALUES.bfloat16()) @ y.bfloat16(),
    "int": lambda y: coo(y, VALUES.long()) @ (y * 9).long(),
    "no entries": lambda y: torch.sparse_coo_tensor(size=(3, 4), device=y.device) @ y,
    "csr @ dense": lambda y: csr(y) @ y,
    "csr @ vector": lambda y: csr(y).mv(y[:, 0]),
    "dense @ csr": lambda y: y @ csr(y),
    "csr @ csr": lambda y: csr(y) @ csr(y).t().to_sparse_csr(),
    "csr addmm": lambda y: torch.addmm(y[:3], csr(y), y, beta=0.5, alpha=2),
    "csr addmv": lambda y: torch.addmv(y[:3, 0], csr(y), y[:, 0], beta=0.5),
    "csc @ dense": lambda y: csr(y).to_sparse_csc() @ y,
    "bsr @ dense": lambda y: y.new_ones(4, 4).to_sparse_bsr((2, 2)) @ y,
    "sampled_addmm": lambda y: torch.sparse.sampled_addmm(csr(y), y[:3], y[:3] @ y.mT),
    "mm reduce": lambda y: [torch.sparse.mm(csr(y), y, r) for r in ("sum", "mean", "amax", "amin")],
}


@pytest.mark.parametrize("name", MAKE)
def test_make(name: str, assert_same: Any) -> None:
    assert_same(MAKE[name], DENSE)


@pytest.mark.parametrize("name", COMPUTE)
def test_compute(name: str, assert_same: Any) -> None:
    assert_same(COMPUTE[name], DENSE)


@pytest.mark.parametrize("name", PRODUCTS)
def test_product(name: str, assert_same: Any) -> None:
    assert_same(PRODUCTS[name], TALL)


@pytest.mark.parametrize("make", [lambda x: coo(x).coalesce(), csr])
def test_gradients_of_a_product(make: Callable[..., torch.Tensor], assert_same: Any) -> None:
    def gradients(y: torch.Tensor) -> list[torch.Tensor]:
        matrix, y = make(y).requires_grad_(), y.requires_grad_()
        (matrix @ y).sin().sum().backward()
        return [matrix.grad, y.grad]

    assert_same(gradients, TALL)


@pytest.mark.parametrize("reduce", ["sum", "mean", "amax", "amin"])
def test_gradients_of_a_reduced_product(reduce: str, assert_same: Any) -> None:
    def gradients(y: torch.Tensor) -> list[torch.Tensor]:
        matrix, y = csr(y).requires_grad_(), y.requires_grad_()
        torch.sparse.mm(matrix, y, reduce).sin().sum().backward()
        return [matrix.grad, y.grad]

    assert_same(gradients, TALL)


def test_gradient_through_to_sparse(assert_same: Any) -> None:
    def gradient(x: torch.Tensor) -> torch.Tensor:
        x = x.requires_grad_()
        (x.to_sparse() * 2).to_dense().sin().sum().backward()
        return x.grad

    assert_same(gradient, DENSE)


@pytest.mark.parametrize(
    "optimizer",
    [
        lambda p: torch.optim.SparseAdam(p, lr=0.1),
        lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
        lambda p: torch.optim.Adagrad(p, lr=0.1),
    ],
)
def test_embedding_with_sparse_gradients(optimizer: Any, assert_same: Any) -> None:
    def train(tokens: torch.Tensor) -> torch.Tensor:
        torch.manual_seed(0)
        table = torch.nn.Embedding(10, 3, sparse=True, padding_idx=2).to(tokens.device)
        steps = optimizer(list(table.parameters()))
        for _ in range(3):
            steps.zero_grad()
            table(tokens).sin().sum().backward()
            assert table.weight.grad.layout is torch.sparse_coo
            steps.step()
        return table.weight

    assert_same(train, torch.tensor([[1, 2, 1], [4, 1, 9]]))


def test_embedding_bag_with_sparse_gradients(assert_same: Any) -> None:
    def gradient(tokens: torch.Tensor) -> torch.Tensor:
        torch.manual_seed(0)
        table = torch.nn.EmbeddingBag(10, 3, sparse=True, mode="sum").to(tokens.device)
        table(tokens).sin().sum().backward()
        return table.weight.grad.coalesce()

    assert_same(gradient, torch.tensor([[1, 2, 1], [4, 1, 9]]))


def test_products_stay_on_the_device() -> None:
    x = TALL.to("tpu")
    matrix, rows = coo(x).coalesce(), csr(x)
    before = torchtpu_core.stats()
    out = [matrix @ x, torch.sparse.mm(matrix, x), x[:3] + matrix @ x, rows @ x]
    after = torchtpu_core.stats()
    assert all(t.device.type == "tpu" for t in out)
    for way in ("device_to_host", "host_to_device"):
        assert after[way] == before[way]


@pytest.mark.parametrize("make", [coo, csr])
def test_printed(make: Callable[..., torch.Tensor]) -> None:
    text = repr(make(DENSE.to("tpu")))
    assert re.sub(r",?\s+device='tpu:0'", "", text).split() == repr(make(DENSE)).split()


def test_errors_name_what_is_wrong() -> None:
    x = DENSE.to("tpu")
    with pytest.raises(RuntimeError, match=r"cannot be multiplied.*3x4 and 3x4"):
        coo(x) @ x
    with pytest.raises(RuntimeError, match="Use add\\(dense, sparse\\)"):
        coo(x) + x
    with pytest.raises(RuntimeError, match="same size"):
        x.mT.contiguous() + coo(x)
    with pytest.raises(NotImplementedError, match=r"aten::sort.*sparse COO.*to_dense"):
        coo(x).sort()
    with pytest.raises(RuntimeError, match="size is inconsistent with indices"):
        torch.sparse_coo_tensor(INDICES.to("tpu"), VALUES.to("tpu"), (2, 2), check_invariants=True)


def test_the_cpu_fallback_takes_sparse_tensors() -> None:
    x = DENSE.to("tpu")
    torch.tpu.set_cpu_fallback(True)
    try:
        with pytest.raises(NotImplementedError):  # nor has the CPU
            coo(x).sort()
        nested = torch.nested.nested_tensor([x, x[:2]])
        before = torchtpu_core.stats()["fallbacks"]
        [sums, _] = nested.sum(-1, keepdim=True).unbind()
        assert torchtpu_core.stats()["fallbacks"] == before + 1
        torch.testing.assert_close(sums.cpu(), DENSE.sum(-1, keepdim=True))
    finally:
        torch.tpu.set_cpu_fallback(False)
