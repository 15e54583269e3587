"""torch.func on the device: vmap over a spread of operators, gradients and Jacobians, forward-mode
differentiation, randomness, and ensembles of modules."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch.func import (
    functional_call,
    functionalize,
    grad,
    hessian,
    jacfwd,
    jacrev,
    jvp,
    linearize,
    stack_module_state,
    vjp,
    vmap,
)

Tensors = Callable[..., Any]


def _randn(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


X, Y = _randn(3, 4, 5), _randn(3, 5, 4, seed=1)
IMAGE, KERNEL = _randn(3, 2, 4, 6, 6), _randn(3, 5, 4, 3, 3)
WHERE = torch.tensor([[0, 1], [2, 3], [1, 0]])
SQUARE = torch.stack([_randn(4, 4, seed=i) + 5 * torch.eye(4) for i in range(3)])
POSITIVE = SQUARE @ SQUARE.mT


def _in_place(x: torch.Tensor) -> torch.Tensor:
    y = x.clone()
    y.add_(1)
    y[0] = 2
    y[:, 1] += 3
    return y.mul_(x)


def _fill(x: torch.Tensor) -> torch.Tensor:
    x = x.clone()
    x.index_fill_(0, torch.tensor([1], device=x.device), 4.0)
    return x.masked_fill_(x > 0, 1.0)


MAPPED: dict[str, tuple] = {
    "mm": (torch.mm, X, Y),
    "dot": (vmap(torch.dot), X, X),
    "linear": (F.linear, X, _randn(3, 6, 5)),
    "einsum": (lambda x, y: torch.einsum("ij,jk->ki", x, y), X, Y),
    "sin": (torch.sin, X),
    "gelu": (F.gelu, X),
    "softmax": (lambda x: x.softmax(-1), X),
    "logsumexp": (lambda x: x.logsumexp(-1), X),
    "cumsum": (lambda x: x.cumsum(-1), X),
    "std": (lambda x: x.std(0), X),
    "argmax": (lambda x: x.argmax(-1), X),
    "sort": (lambda x: list(x.sort(-1)), X),
    "topk": (lambda x: x.topk(2)[0], X),
    "any": (lambda x: (x > 1).any(0), X),
    "where": (lambda x: torch.where(x > 0, x, -x), X),
    "conv": (F.conv2d, IMAGE, KERNEL),
    "max_pool": (lambda x: F.max_pool2d(x, 2), IMAGE),
    "interpolate": (lambda x: F.interpolate(x, scale_factor=2, mode="bilinear"), IMAGE),
    "batch_norm": (lambda x: F.batch_norm(x, None, None, training=True), IMAGE),
    "layer_norm": (lambda x: F.layer_norm(x, (5,)), X),
    "attention": (lambda q: F.scaled_dot_product_attention(q, q, q), _randn(3, 2, 4, 8)),
    "cross_entropy": (F.cross_entropy, X, torch.tensor([[0, 1, 2, 3]] * 3)),
    "index": (lambda x, i: x[i], X, WHERE),
    "index column": (lambda x, i: x[:, i], X, WHERE),
    "gather": (lambda x, i: x.gather(1, i.expand(4, 2)), X, WHERE.unsqueeze(1)),
    "scatter": (lambda x, i: x.scatter(1, i.expand(4, 2), 1.5), X, WHERE.unsqueeze(1)),
    "index_add": (lambda x, i: x.index_add(0, i, x[:2]), X, WHERE),
    "index_put": (lambda x, i: x.index_put((i,), x[0], accumulate=True), X, WHERE),
    "index_select": (lambda x, i: x.index_select(0, i), X, WHERE),
    "embedding": (F.embedding, WHERE, X),
    "in place": (_in_place, X),
    "fill in place": (_fill, X),
    "cat": (lambda x: torch.cat([x, x], 1), X),
    "pad": (lambda x: F.pad(x, (1, 2)), X),
    "flip and roll": (lambda x: x.flip(0).roll(1, 1), X),
    "unfold": (lambda x: x.unfold(0, 2, 1), X),
    "fft": (lambda x: torch.fft.rfft(x).abs(), X),
    "inv": (torch.linalg.inv, SQUARE),
    "det": (torch.linalg.det, SQUARE),
    "solve": (torch.linalg.solve, SQUARE, _randn(3, 4, 2)),
    "cholesky": (torch.linalg.cholesky, POSITIVE),
    "eigvalsh": (torch.linalg.eigvalsh, POSITIVE),
    "svdvals": (torch.linalg.svdvals, X),
    "norm": (torch.linalg.norm, X),
}


@pytest.mark.parametrize("name", MAPPED)
def test_vmap(name: str, assert_same: Any) -> None:
    fn, *inputs = MAPPED[name]
    assert_same(vmap(fn), *inputs)


def test_vmap_dimensions_and_chunks(assert_same: Any) -> None:
    assert_same(vmap(torch.mv, in_dims=(0, None)), X, X[0, 0])
    assert_same(vmap(lambda x: x.sum(0), in_dims=1, out_dims=1), X)
    assert_same(vmap(lambda x: x.sin(), chunk_size=2), X)


RANDOM: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "randn": lambda x: torch.randn(64, device=x.device),
    "rand_like": torch.rand_like,
    "dropout": lambda x: F.dropout(torch.ones(64, device=x.device)),
    "bernoulli": lambda x: torch.bernoulli(torch.full((64,), 0.5, device=x.device)),
    "randint": lambda x: torch.randint(0, 100, (8,), device=x.device),
    "randperm": lambda x: torch.randperm(16, device=x.device),
    "multinomial": lambda x: torch.multinomial(torch.ones(64, device=x.device), 8),
    "normal": lambda x: torch.normal(torch.zeros(8, device=x.device), 1.0),
}


@pytest.mark.parametrize("name", RANDOM)
def test_vmap_randomness(name: str, device: str) -> None:
    x = torch.zeros(3, 64, device=device)
    different = vmap(RANDOM[name], randomness="different")(x)
    assert different.shape[0] == 3 and different.device.type == device
    assert not torch.equal(different[0], different[1])
    if name != "rand_like":  # PyTorch has no "same" for a random function of a batched tensor
        same = vmap(RANDOM[name], randomness="same")(x)
        assert torch.equal(same[0], same[1])
    with pytest.raises(RuntimeError, match="randomness"):
        vmap(RANDOM[name])(x)


def _f(x: torch.Tensor) -> torch.Tensor:
    return (x.sin() * x.exp() * x[0]).sum()


def _g(x: torch.Tensor) -> torch.Tensor:
    return x.sin() * x[0]


TRANSFORMS: dict[str, Callable[[torch.Tensor], Any]] = {
    "grad": grad(_f),
    "grad of grad": grad(lambda x: grad(_f)(x).sum()),
    "hessian": hessian(_f),
    "jacrev": jacrev(_g),
    "jacrev in chunks": jacrev(_g, chunk_size=2),
    "jacfwd": jacfwd(_g),
    "jvp": lambda x: list(jvp(_g, (x,), (x + 1,))),
    "vjp": lambda x: vjp(_g, x)[1](x)[0],
    "linearize": lambda x: linearize(_g, x)[1](x),
    "functionalize": functionalize(lambda x: x.clone().add_(1).mul_(x)),
    "vmap of grad": lambda x: vmap(grad(_f))(torch.stack([x, x * 2])),
    "vmap of jvp": lambda x: vmap(lambda v: jvp(_g, (x,), (v,))[1])(torch.stack([x, x * 2])),
}


@pytest.mark.parametrize("name", TRANSFORMS)
def test_transforms(name: str, assert_same: Any) -> None:
    assert_same(TRANSFORMS[name], _randn(4))


FORWARD: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "gelu": F.gelu,
    "pow": lambda x: x.abs() ** 1.5,
    "where": lambda x: torch.where(x > 0, x, x * x),
    "softmax": lambda x: x.softmax(-1),
    "logsumexp": lambda x: x.logsumexp(-1),
    "cumsum": lambda x: x.cumsum(-1),
    "prod": lambda x: x.prod(-1),
    "std": lambda x: x.std(-1),
    "max": lambda x: x.max(-1)[0],
    "sort": lambda x: x.sort(-1)[0],
    "matmul": lambda x: x @ x.mT,
    "conv": lambda x: F.conv1d(x, x.detach()[:, :, :3]),
    "max_pool": lambda x: F.max_pool1d(x, 2),
    "layer_norm": lambda x: F.layer_norm(x, (5,)),
    "batch_norm": lambda x: F.batch_norm(x, None, None, training=True),
    "attention": lambda x: F.scaled_dot_product_attention(x, x, x),
    "index": lambda x: x[:, [0, 2]],
    "embedding": lambda x: F.embedding(torch.tensor([0, 2], device=x.device), x[0]),
    "norm": lambda x: torch.linalg.vector_norm(x, dim=-1),
    "inv": lambda x: torch.linalg.inv(x[:, :4, :4] + 6 * torch.eye(4, device=x.device)),
    "cholesky": lambda x: torch.linalg.cholesky(x @ x.mT + torch.eye(4, device=x.device)),
    "eigvalsh": lambda x: torch.linalg.eigvalsh(x @ x.mT),
    "fft": lambda x: torch.fft.rfft(x).abs(),
}


@pytest.mark.parametrize("name", FORWARD)
def test_forward_mode(name: str, assert_same: Any) -> None:
    fn = FORWARD[name]
    assert_same(lambda x, v: list(jvp(fn, (x,), (v,))), X, X * 0.3 + 1, rtol=1e-3, atol=1e-4)


def _modules(device: torch.device) -> list[torch.nn.Module]:
    torch.manual_seed(0)
    layers = torch.nn.Linear, torch.nn.Linear
    return [
        torch.nn.Sequential(layers[0](5, 8), torch.nn.ReLU(), layers[1](8, 2)).to(device)
        for _ in range(3)
    ]


def test_an_ensemble_of_modules(assert_same: Any) -> None:
    def run(x: torch.Tensor) -> torch.Tensor:
        modules = _modules(x.device)
        parameters, buffers = stack_module_state(modules)

        def one(p: Any, b: Any, x: torch.Tensor) -> torch.Tensor:
            return functional_call(modules[0], (p, b), (x,))

        return vmap(one, in_dims=(0, 0, None))(parameters, buffers, x)

    assert_same(run, X[0])


def test_gradients_of_each_sample(assert_same: Any) -> None:
    def run(x: torch.Tensor) -> dict[str, torch.Tensor]:
        module = _modules(x.device)[0]

        def loss(p: Any, x: torch.Tensor) -> torch.Tensor:
            return functional_call(module, p, (x[None],)).pow(2).sum()

        parameters = {k: v.detach() for k, v in module.named_parameters()}
        return vmap(grad(loss), in_dims=(None, 0))(parameters, x)

    assert_same(run, X[0])
