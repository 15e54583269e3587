"""JAX's side of `aot_vs_jax`: the models of `aot_vs_jax_torch` by hand in JAX, as programs."""

from __future__ import annotations

import os
from typing import Any

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax
import torch
from jax import numpy as jnp

from benchmarks import _models, _models_jax
from benchmarks import aot_vs_jax_torch as ours
from torchtpu_core.aot.lower import Program

Params = dict[str, Any]
_DTYPES = {torch.float32: jnp.float32, torch.bfloat16: jnp.bfloat16, torch.int64: jnp.int32}


def lowered(fn: Any, *args: Any, donate: tuple[int, ...] = ()) -> Program:
    """A function's program for a TPU; the arguments `donate` are written in place."""
    traced = jax.jit(fn, donate_argnums=donate).trace(*args)
    return Program("jax", traced.lower(lowering_platforms=("tpu",)).as_text(), (), {})


def _like(t: torch.Tensor, nhwc: bool = False) -> Any:
    shape = tuple(t.shape)
    if nhwc and len(shape) == 4:
        shape = (*shape[2:], shape[1], shape[0])  # weights: OIHW -> HWIO
    return jax.ShapeDtypeStruct(shape, _DTYPES[t.dtype])


def _shapes(module: torch.nn.Module, nhwc: bool = False) -> tuple[Params, Params]:
    """(parameters, buffers) of a module, as shapes."""
    return (
        {n: _like(p, nhwc) for n, p in module.named_parameters()},
        {n: _like(b) for n, b in module.named_buffers()},
    )


# ---- a decoder block -----------------------------------------------------------------------------


def block(name: str, train: bool) -> Program:
    """As `aot_vs_jax_torch.block`."""
    s = ours.BLOCKS[name]

    def norm(x: Any, weight: Any) -> Any:
        y = x.astype(jnp.float32)
        y = y * jax.lax.rsqrt(jnp.square(y).mean(-1, keepdims=True) + ours.EPS)
        return weight * y.astype(x.dtype)

    def forward(w: Any, x: Any) -> Any:
        def heads(y: Any) -> Any:
            return y.reshape(s.batch, s.seq, -1, s.head)

        angles = jnp.arange(s.seq, dtype=jnp.float32)[:, None] / ours.THETA ** (
            jnp.arange(0, s.head, 2, dtype=jnp.float32) / s.head
        )
        cos, sin = (f(angles).astype(x.dtype)[:, None] for f in (jnp.cos, jnp.sin))

        def rotate(y: Any) -> Any:
            a, b = jnp.split(y, 2, -1)
            return jnp.concatenate((a * cos - b * sin, b * cos + a * sin), -1)

        h = norm(x, w["norm1"])
        q, k, v = rotate(heads(h @ w["q"])), rotate(heads(h @ w["k"])), heads(h @ w["v"])
        a = jax.nn.dot_product_attention(q, k, v, is_causal=True)
        x = x + a.reshape(x.shape) @ w["o"]
        h = norm(x, w["norm2"])
        return x + (jax.nn.silu(h @ w["gate"]) * (h @ w["up"])) @ w["down"]

    def step(w: Any, x: Any) -> Any:
        if not train:
            return forward(w, x)
        return jax.value_and_grad(lambda w: forward(w, x).astype(jnp.float32).mean())(w)

    w = {k: jax.ShapeDtypeStruct(shape, jnp.bfloat16) for k, shape in ours.weights(s).items()}
    return lowered(step, w, jax.ShapeDtypeStruct((s.batch, s.seq, s.hidden), jnp.bfloat16))


# ---- train steps ---------------------------------------------------------------------------------


def _step(model: Any, wide: str, params: Params, buffers: Params, x: Any, y: Any) -> Program:
    """As `aot_vs_jax_torch._step`; model(params, x) -> (logits, new buffers)."""

    def train(p: Params, buffers: Params, m: Params, v: Params, n: Any, x: Any, y: Any) -> Any:
        def loss(p: Params) -> tuple[Any, Params]:
            narrow = {k: t if wide and wide in k else t.astype(jnp.bfloat16) for k, t in p.items()}
            logits, state = model(narrow | buffers, x)
            return _models_jax.cross_entropy(logits, y), state

        (value, state), grads = jax.value_and_grad(loss, has_aux=True)(p)
        n = n + 1
        new = {k: _models_jax.adamw(p[k], grads[k], m[k], v[k], n, 0.95) for k in p}
        return value, *({k: t[i] for k, t in new.items()} for i in range(3)), state, n

    n = jax.ShapeDtypeStruct((), jnp.float32)
    return lowered(train, params, buffers, params, params, n, x, y, donate=(0, 1, 2, 3, 4))


def gpt(layers: int) -> Program:
    """As `aot_vs_jax_torch.gpt`."""
    size = ours.gpt_size(layers)
    with torch.device("meta"):
        params, _ = _shapes(_models.GPT(size))
    ids = jax.ShapeDtypeStruct((size.gpt_batch, size.gpt_tokens), jnp.int32)
    targets = jax.ShapeDtypeStruct((size.gpt_batch * size.gpt_tokens,), jnp.int32)

    def model(p: Params, ids: Any) -> tuple[Any, Params]:
        return _models_jax.gpt(size, p, ids, True)

    return _step(model, "", params, {}, ids, targets)


class ResNet50(_models_jax.ResNet):
    """As `aot_vs_jax_torch.ResNet50`, for images [N, H, W, 3] and weights HWIO."""

    def forward(self, p: Params, x: Any, train: bool) -> tuple[Any, Params]:
        state: Params = {}

        def norm(name: str, x: Any) -> Any:
            return self.norm(p, name, x, state, train)

        x = jax.nn.relu(norm("bn", self.conv(p, "conv", x, 2, 3)))
        pads = [(0, 0), (1, 1), (1, 1), (0, 0)]
        x = jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, (1, 3, 3, 1), (1, 2, 2, 1), pads)
        i = 0
        for stage, (n, _) in enumerate(ours.STAGES):
            for at in range(n):
                name, stride = f"blocks.{i}", 2 if at == 0 and stage else 1
                y = jax.nn.relu(norm(f"{name}.bn1", self.conv(p, f"{name}.conv1", x, 1, 0)))
                y = self.conv(p, f"{name}.conv2", y, stride, 1)
                y = jax.nn.relu(norm(f"{name}.bn2", y))
                y = norm(f"{name}.bn3", self.conv(p, f"{name}.conv3", y, 1, 0))
                if at == 0:
                    x = norm(f"{name}.bn4", self.conv(p, f"{name}.down", x, stride, 0))
                x = jax.nn.relu(y + x)
                i += 1
        return _models_jax.linear(p, "head", x.mean((1, 2))), state


def resnet(train: bool) -> Program:
    """As `aot_vs_jax_torch.resnet`."""
    with torch.device("meta"):
        params, buffers = _shapes(ours.ResNet50(), nhwc=True)
    model = ResNet50("NHWC")
    x = jax.ShapeDtypeStruct((ours.IMAGES, ours.SIDE, ours.SIDE, 3), jnp.bfloat16)
    if train:
        y = jax.ShapeDtypeStruct((ours.IMAGES,), jnp.int32)
        return _step(lambda p, x: model.forward(p, x, True), "bn", params, buffers, x, y)
    narrow = {
        k: p if "bn" in k else jax.ShapeDtypeStruct(p.shape, jnp.bfloat16)
        for k, p in params.items()
    }
    return lowered(lambda p, x: model.forward(p, x, False)[0], narrow | buffers, x)


# ---- SmolLM2 decoding ----------------------------------------------------------------------------


def decode() -> Program:
    """As `aot_vs_jax_torch.decode`."""
    with torch.device("meta"):
        model = _models.SmolLM2(_models.FULL).to(torch.bfloat16)
    params, buffers = _shapes(model)
    cache = {k: b for k, b in buffers.items() if k != "frequencies"}
    params["frequencies"] = buffers["frequencies"]
    at = jax.ShapeDtypeStruct((1,), jnp.int32)

    def step(p: Params, cache: Params, id_: Any, at: Any) -> Any:
        return _models_jax.decode(_models.FULL, p, cache, id_, at)

    id_ = jax.ShapeDtypeStruct((1, 1), jnp.int32)
    return lowered(step, params, cache, id_, at, donate=(1,))
