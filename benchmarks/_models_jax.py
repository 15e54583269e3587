"""The models of `_models` by hand in JAX, as functions of a dict of parameters by PyTorch's names.

Images and convolution weights have PyTorch's layout, or channels last as JAX's own libraries have
them ("CNN NHWC"): XLA's CPU compiler computes in the latter and copies the former into it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks._models import Size

Params = dict[str, Any]


def arrays(name: str, tensors: dict[str, Any]) -> Params:
    """A state_dict as JAX's arrays; convolution weights from OIHW to HWIO."""
    found = {}
    for key, t in tensors.items():
        a = np.asarray(t.detach().numpy())
        found[key] = jnp.asarray(a.transpose(2, 3, 1, 0) if "NHWC" in name and a.ndim == 4 else a)
    return found


def linear(p: Params, name: str, x: Any) -> Any:
    y = x @ p[f"{name}.weight"].T
    return y + p[f"{name}.bias"] if f"{name}.bias" in p else y


@jax.custom_vjp
def embedding(table: Any, ids: Any) -> Any:
    """table[ids]; the gradients of a row are summed in f32, as ours are, and not in bf16."""
    return table[ids]


def _embedding_backward(kept: tuple[Any, Any], g: Any) -> tuple[Any, Any]:
    table, ids = kept
    grad = jnp.zeros(table.shape, jnp.float32).at[ids].add(g.astype(jnp.float32))
    return grad.astype(table.dtype), np.zeros(ids.shape, jax.dtypes.float0)


embedding.defvjp(lambda table, ids: (table[ids], (table, ids)), _embedding_backward)


def layer_norm(p: Params, name: str, x: Any) -> Any:
    y = x.astype(jnp.float32)
    mean = y.mean(-1, keepdims=True)
    variance = jnp.square(y - mean).mean(-1, keepdims=True)
    y = (y - mean) * jax.lax.rsqrt(variance + 1e-5) * p[f"{name}.weight"] + p[f"{name}.bias"]
    return y.astype(x.dtype)


def rms_norm(p: Params, name: str, x: Any) -> Any:
    y = x.astype(jnp.float32)
    y = y * jax.lax.rsqrt(jnp.square(y).mean(-1, keepdims=True) + 1e-5) * p[f"{name}.weight"]
    return y.astype(x.dtype)


def attention(q: Any, k: Any, v: Any, mask: Any) -> Any:
    """Of heads [.., L, E]; scores and softmax in f32."""
    s = jnp.matmul(q, k.swapaxes(-1, -2), preferred_element_type=jnp.float32)
    s = jnp.where(mask, s / np.sqrt(q.shape[-1]).astype(np.float32), -jnp.inf)
    return jax.nn.softmax(s).astype(v.dtype) @ v


class ResNet:
    """ResNet-18 in a layout: "NCHW" with weights OIHW, or "NHWC" with weights HWIO."""

    def __init__(self, layout: str):
        self.dims = (layout, {"NCHW": "OIHW", "NHWC": "HWIO"}[layout], layout)
        self.space = tuple(layout.index(d) for d in "HW")
        self.others = (0, *self.space)
        self.shape = tuple(-1 if d == "C" else 1 for d in layout)

    def spread(self, *sizes: int) -> tuple[int, ...]:
        """Sizes along H and W as sizes along all dimensions."""
        return tuple(sizes[self.space.index(i)] if i in self.space else 1 for i in range(4))

    def conv(self, p: Params, name: str, x: Any, stride: int, pad: int) -> Any:
        w = p[f"{name}.weight"]
        return jax.lax.conv_general_dilated(
            x, w, (stride, stride), [(pad, pad)] * 2, dimension_numbers=self.dims
        )

    def norm(self, p: Params, name: str, x: Any, state: Params, train: bool) -> Any:
        """Batch norm in f32. Writes the new running statistics to `state` when training."""
        narrow, x = x.dtype, x.astype(jnp.float32)
        if train:
            mean = x.mean(self.others)
            variance = jnp.square(x - mean.reshape(self.shape)).mean(self.others)
            n = x.size // mean.size
            for key, new in (("running_mean", mean), ("running_var", variance * (n / (n - 1)))):
                state[f"{name}.{key}"] = 0.9 * p[f"{name}.{key}"] + 0.1 * new
            state[f"{name}.num_batches_tracked"] = p[f"{name}.num_batches_tracked"] + 1
        else:
            mean, variance = p[f"{name}.running_mean"], p[f"{name}.running_var"]
        scale = jax.lax.rsqrt(variance + 1e-5) * p[f"{name}.weight"]
        x = (x - mean.reshape(self.shape)) * scale.reshape(self.shape)
        return (x + p[f"{name}.bias"].reshape(self.shape)).astype(narrow)

    def __call__(self, size: Size, p: Params, x: Any, train: bool) -> tuple[Any, Params]:
        state: Params = {}

        def norm(name: str, x: Any) -> Any:
            return self.norm(p, name, x, state, train)

        x = jax.nn.relu(norm("bn", self.conv(p, "conv", x, 2, 3)))
        pads = [(1, 1) if i in self.space else (0, 0) for i in range(4)]
        window, strides = self.spread(3, 3), self.spread(2, 2)
        x = jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, window, strides, pads)
        for i in range(2 * len(size.cnn_widths)):
            name, stride = f"blocks.{i}", 2 if i % 2 == 0 and i > 0 else 1
            y = jax.nn.relu(norm(f"{name}.bn1", self.conv(p, f"{name}.conv1", x, stride, 1)))
            y = norm(f"{name}.bn2", self.conv(p, f"{name}.conv2", y, 1, 1))
            if f"{name}.down.weight" in p:
                x = norm(f"{name}.bn3", self.conv(p, f"{name}.down", x, stride, 0))
            x = jax.nn.relu(y + x)
        return linear(p, "head", x.mean(self.space)), state


def mlp(size: Size, p: Params, x: Any, train: bool) -> tuple[Any, Params]:
    last = 2 * (len(size.mlp) - 2)
    for i in range(0, last, 2):
        x = jax.nn.gelu(linear(p, str(i), x), approximate=False)
    return linear(p, str(last), x), {}


def gpt(size: Size, p: Params, ids: Any, train: bool) -> tuple[Any, Params]:
    b, t = ids.shape
    x = embedding(p["tokens.weight"], ids) + p["positions.weight"][:t]
    mask = jnp.tril(jnp.ones((t, t), bool))
    for i in range(size.gpt_layers):
        name = f"blocks.{i}"
        qkv = linear(p, f"{name}.qkv", layer_norm(p, f"{name}.norm1", x))
        q, k, v = (
            y.reshape(b, t, size.gpt_heads, -1).transpose(0, 2, 1, 3)
            for y in jnp.split(qkv, 3, axis=-1)
        )
        y = attention(q, k, v, mask)
        x = x + linear(p, f"{name}.out", y.transpose(0, 2, 1, 3).reshape(x.shape))
        h = linear(p, f"{name}.up", layer_norm(p, f"{name}.norm2", x))
        x = x + linear(p, f"{name}.down", jax.nn.gelu(h, approximate=True))
    return (layer_norm(p, "norm", x) @ p["tokens.weight"].T).reshape(b * t, -1), {}


def _rotate(x: Any, cos: Any, sin: Any) -> Any:
    a, b = jnp.split(x, 2, axis=-1)
    return x * cos + jnp.concatenate((-b, a), axis=-1) * sin


def decode(size: Size, p: Params, cache: Params, id_: Any, at: Any) -> tuple[Any, Params]:
    """One token of SmolLM2; returns the logits and the cache with it."""
    angle = at * p["frequencies"]
    cos, sin = jnp.cos(angle), jnp.sin(angle)
    seen = (jnp.arange(size.smol_cache) <= at).reshape(1, 1, 1, -1)
    x, new = p["tokens.weight"][id_], {}
    group = size.smol_heads // size.smol_kv_heads
    for i in range(size.smol_layers):
        name = f"layers.{i}"
        h = rms_norm(p, f"{name}.norm1", x)
        q, k, v = (
            linear(p, f"{name}.{f}", h).reshape(1, 1, n, -1).transpose(0, 2, 1, 3)
            for f, n in (
                ("q", size.smol_heads),
                ("k", size.smol_kv_heads),
                ("v", size.smol_kv_heads),
            )
        )
        k, v = (
            jax.lax.dynamic_update_slice_in_dim(cache[f"{c}{i}"], t, at[0], axis=2)
            for c, t in (("keys", _rotate(k, cos, sin)), ("values", v))
        )
        new[f"keys{i}"], new[f"values{i}"] = k, v
        q = _rotate(q, cos, sin).reshape(1, size.smol_kv_heads, group, -1)
        y = attention(q, k, v, seen)
        y = y.reshape(1, size.smol_heads, 1, -1).transpose(0, 2, 1, 3)
        x = x + linear(p, f"{name}.o", y.reshape(x.shape))
        h = rms_norm(p, f"{name}.norm2", x)
        gated = jax.nn.silu(linear(p, f"{name}.gate", h)) * linear(p, f"{name}.up", h)
        x = x + linear(p, f"{name}.down", gated)
    return rms_norm(p, "norm", x) @ p["tokens.weight"].T, new


def cross_entropy(logits: Any, targets: Any) -> Any:
    logs = jax.nn.log_softmax(logits.astype(jnp.float32))
    return -jnp.take_along_axis(logs, targets[:, None], axis=1).mean()


def adamw(p: Any, g: Any, m: Any, v: Any, step: Any, beta2: float = 0.999) -> tuple[Any, Any, Any]:
    """PyTorch's AdamW of one parameter: lr 1e-4 and the defaults; returns (p, m, v)."""
    p = p * (1 - 1e-4 * 1e-2)
    m, v = m + (g - m) * 0.1, v * beta2 + g * g * (1 - beta2)
    denominator = jnp.sqrt(v) / jnp.sqrt(1 - beta2**step) + 1e-8
    return p - 1e-4 / (1 - 0.9**step) * m / denominator, m, v


MODELS = {"MLP": mlp, "CNN": ResNet("NCHW"), "CNN NHWC": ResNet("NHWC"), "GPT": gpt}


def phase(name: str, which: str, size: Size, tensors: Params, x: Any, y: Any) -> Callable[[], Any]:
    """A call that runs one step and returns its result (logits or loss), not waited for."""
    p = arrays(name, tensors)
    x, y = (jnp.asarray(t.numpy()) for t in (x, y))
    if name == "SmolLM2":
        kept = {k: v for k, v in p.items() if not k.startswith(("keys", "values"))}
        step = jax.jit(lambda p, c, x, y: decode(size, p, c, x, y), donate_argnums=1)
        held = [{k: v for k, v in p.items() if k not in kept}]

        def run() -> Any:
            out, held[0] = step(kept, held[0], x, y)
            return out

        return run
    if name == "CNN NHWC":
        x = x.transpose(0, 2, 3, 1)
    model = MODELS[name]
    if which == "forward":
        forward = jax.jit(lambda p, x: model(size, p, x, False)[0])
        return lambda: forward(p, x)

    buffers = {k: v for k, v in p.items() if "running" in k or "num_batches" in k}
    params = {k: v for k, v in p.items() if k not in buffers}

    def train(params: Params, buffers: Params, m: Params, v: Params, n: Any, x: Any, y: Any) -> Any:
        def loss(params: Params) -> tuple[Any, Params]:
            logits, state = model(size, params | buffers, x, True)
            return cross_entropy(logits, y), state

        (value, state), grads = jax.value_and_grad(loss, has_aux=True)(params)
        n = n + 1
        new = {k: adamw(params[k], grads[k], m[k], v[k], n) for k in params}
        split = ({k: t[i] for k, t in new.items()} for i in range(3))
        params, m, v = split
        return value, params, state, m, v, n

    step = jax.jit(train, donate_argnums=(0, 1, 2, 3, 4))
    zeros = [{k: jnp.zeros_like(t) for k, t in params.items()} for _ in range(2)]
    state = [params, buffers, *zeros, jnp.zeros((), jnp.float32)]

    def run() -> Any:
        value, *state[:] = step(*state, x, y)
        return value

    return run
