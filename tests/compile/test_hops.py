"""Higher-order operators: equal to CPU's eager results, forward and backward, and kept as structure
in the program.
"""

from __future__ import annotations

import copy
import functools

import pytest
import torch
import torch.utils.checkpoint
from torch import nn
from torch._higher_order_ops.associative_scan import associative_scan
from torch._higher_order_ops.map import map as hop_map
from torch._higher_order_ops.scan import scan
from torch._higher_order_ops.while_loop import while_loop
from torch.nn import functional as F
from torch.nn.attention.flex_attention import (
    AuxRequest,
    create_block_mask,
    flex_attention,
)
from torch.utils import _pytree as pytree

from tests.common.programs import graph_texts
from tests.compile.common import executions


@pytest.fixture(autouse=True)
def _fresh_dynamo():
    torch._dynamo.reset()


def tpu(fn, **options):
    return torch.compile(fn, backend="tpu", fullgraph=True, **options)


def on(device, tree, grad=False):
    def move(t):
        t = t.to(device).detach()
        return t.requires_grad_() if grad and t.is_floating_point() else t

    return pytree.tree_map_only(torch.Tensor, move, tree)


def assert_as_on_cpu(fn, *args, grad=False, reference=None, rtol=1e-5, atol=1e-5):
    """The compiled function on the device gives what `reference` (the function itself) gives on the
    CPU, eagerly: results and, with `grad`, gradients of the arguments.
    """
    results = []
    for f, device in ((reference or fn, "cpu"), (tpu(fn), "tpu")):
        given = on(device, args, grad)
        out = f(*given)
        grads = []
        if grad:
            leaves = [t for t in pytree.tree_leaves(out) if t.requires_grad]
            sum((t.double() * (i + 1)).square().sum() for i, t in enumerate(leaves)).backward()
            grads = [t.grad for t in pytree.tree_leaves(given) if isinstance(t, torch.Tensor)]
        results.append(on("cpu", (out, grads)))
    torch.testing.assert_close(results[1], results[0], rtol=rtol, atol=atol)


# ---- scan ----------------------------------------------------------------------------------------


def _recurrence(c, x):
    h = torch.tanh(c["h"] * 0.5 + x[0])
    return {"h": h, "n": c["n"] + 1}, (h * x[1], h.sum(-1))


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("dim", [0, 1])
def test_scan(dim, reverse):
    def fn(h, n, x, y):
        return scan(_recurrence, {"h": h, "n": n}, (x, y), dim=dim, reverse=reverse)

    shape = (6, 3, 4) if dim == 0 else (3, 6, 4)
    assert_as_on_cpu(fn, torch.randn(3, 4), torch.tensor(0), torch.randn(shape), torch.randn(shape))


@pytest.mark.parametrize("reverse", [False, True])
def test_gradient_of_scan(reverse):
    def fn(x, w):
        step = lambda c, y: (torch.tanh(c @ w) + y, (c * y).sum())  # noqa: E731
        return scan(step, x[0] * 2, x, reverse=reverse)

    def unrolled(x, w):
        c, outs = x[0] * 2, []
        for y in reversed(x) if reverse else x:
            outs.append((c * y).sum())
            c = torch.tanh(c @ w) + y
        return c, torch.stack(outs[::-1] if reverse else outs)

    x, w = torch.randn(7, 3, dtype=torch.float64), torch.randn(3, 3, dtype=torch.float64)
    assert_as_on_cpu(fn, x, w, grad=True, reference=unrolled, rtol=1e-9, atol=1e-9)


def test_scan_is_a_loop_of_one_body():
    sizes = []
    for length in (4, 400):
        x = torch.randn(length, 3, device="tpu")
        with graph_texts() as texts:
            fn = lambda x: scan(lambda c, y: (c * 0.5 + y, c.sin()), x[0] * 2, x)  # noqa: E731
            tpu(fn, dynamic=False)(x)
        (text,) = texts
        assert text.count("stablehlo.while") == 1
        assert text.count("stablehlo.sine") == 1
        sizes.append(text.count(" = "))
    assert sizes[0] == sizes[1]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.int32, torch.bool])
def test_scan_of_other_dtypes(dtype):
    def step(c, x):
        return (c | x, c ^ x) if dtype is torch.bool else (c + x, c * x)

    xs = torch.randint(0, 2, (5, 3)).to(dtype)
    assert_as_on_cpu(lambda c, x: scan(step, c, x), xs[0].clone(), xs)


def test_nested_scan():
    def outer(c, x):
        c, ys = scan(lambda c, y: (c * 0.5 + y, c + y), c, x)
        return c * 1.0, ys.sum(0)

    x = torch.randn(3, 4, 2)
    assert_as_on_cpu(lambda c, x: scan(outer, c, x), torch.randn(2), x)


def test_random_numbers_in_scan_are_those_of_the_unrolled_rounds():
    def fn(x):
        total, ys = scan(lambda c, y: (c + torch.rand_like(c), F.dropout(y + 1, 0.5)), x[0] * 2, x)
        return total, ys, torch.rand_like(x)

    x = torch.zeros(4, 3, device="tpu")
    compiled = tpu(fn)
    torch.manual_seed(3)
    total, ys, after = compiled(x)
    torch.manual_seed(3)
    for i, y in enumerate(x):
        total = total - torch.rand_like(y)
        torch.testing.assert_close(ys[i], F.dropout(y + 1, 0.5))
    torch.testing.assert_close(total, torch.zeros_like(total))
    torch.testing.assert_close(after, torch.rand_like(x))


def test_eager_scan():
    x = torch.randn(5, 3)
    step = lambda c, y: (c + y, c * y)  # noqa: E731
    torch.testing.assert_close(
        on("cpu", scan(step, x[0].clone().to("tpu"), x.to("tpu"))), scan(step, x[0].clone(), x)
    )


def test_map():
    assert_as_on_cpu(
        lambda x, w: hop_map(lambda a, w: torch.tanh(a @ w), x, w),
        torch.randn(4, 2, 3),
        torch.randn(3, 3),
        grad=True,
    )


# ---- associative scan ----------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["pointwise", "generic"])
@pytest.mark.parametrize("n", [1, 2, 3, 8, 13])
def test_associative_scan(n, mode):
    def combine(a, b):
        return a[0] * b[0], a[1] * b[0] + b[1]

    def fn(x, y, mode=mode):
        return associative_scan(combine, (x, y), 1, reverse=True, combine_mode=mode)

    x, y = torch.rand(3, n, 2), torch.randn(3, n, 2)
    assert_as_on_cpu(fn, x, y, reference=lambda x, y: fn(x, y, "generic"))


def test_associative_scan_has_logarithmic_depth():
    x = torch.randn(1000, device="tpu")
    with graph_texts() as texts:
        out = tpu(lambda x: associative_scan(torch.add, x, 0, combine_mode="pointwise"))(x)
    torch.testing.assert_close(out, x.cumsum(0), rtol=1e-4, atol=1e-4)
    (text,) = texts
    assert "stablehlo.while" not in text and text.count("stablehlo.add") <= 20


def test_gradient_of_associative_scan():
    def fn(x):
        return associative_scan(torch.mul, x, 0, combine_mode="pointwise")

    x = torch.rand(6, 3, dtype=torch.float64) + 0.5
    assert_as_on_cpu(fn, x, grad=True, reference=lambda x: x.cumprod(0), rtol=1e-9, atol=1e-9)


def test_eager_associative_scan():
    x = torch.randn(5, 3, device="tpu")
    for mode in ("pointwise", "generic"):
        out = associative_scan(torch.add, x, 0, combine_mode=mode)
        torch.testing.assert_close(out, x.cumsum(0))


# ---- cond and while_loop -------------------------------------------------------------------------


@pytest.mark.parametrize("sign", [1, -1])
def test_cond_with_gradients(sign):
    def fn(x, y):
        return torch.cond(
            x.sum() > 0, lambda a, b: (a * b, a.sin()), lambda a, b: (b.exp(), a * 2), (x, y)
        )

    assert_as_on_cpu(fn, sign * torch.rand(4), torch.randn(4), grad=True)


@pytest.mark.parametrize("sign", [1, -1])
def test_random_numbers_in_cond_are_those_of_the_branch(sign):
    def fn(x):
        first = torch.rand_like(x)
        return first, torch.cond(
            x.sum() > 0,
            lambda x: x + torch.rand_like(x),
            lambda x: x + torch.randn_like(x) + torch.rand_like(x),
            (x,),
        )

    def branch(x):
        return x + torch.rand_like(x) if sign > 0 else x + torch.randn_like(x) + torch.rand_like(x)

    x = torch.full((5,), float(sign), device="tpu")
    torch.manual_seed(1)
    first, y = tpu(fn)(x)
    torch.manual_seed(1)
    torch.testing.assert_close(first, torch.rand_like(x))
    torch.testing.assert_close(y, branch(x))


def test_while_loop_with_random_numbers():
    def fn(n, x):
        def body(i, x, stack):
            return i - 1, torch.rand_like(x), stack + torch.rand_like(x).unsqueeze(0) * 0 + x

        return while_loop(lambda i, x, s: i > 0, body, (n, x, torch.zeros_like(x).unsqueeze(0)))

    def rows(n):
        return compiled(torch.tensor(n, device="tpu"), torch.zeros(8, device="tpu"))[1]

    compiled = tpu(fn)
    runs = []
    for n in (1, 2, 3, 3):
        torch.manual_seed(4)
        runs.append(rows(n))
    assert not torch.equal(runs[0], runs[1]) and not torch.equal(runs[1], runs[2])
    assert torch.equal(runs[2], runs[3])
    assert not torch.equal(rows(3), rows(3))


def test_eager_control_flow():
    x = torch.ones(3, device="tpu")
    y = torch.cond(x.sum() > 0, lambda x: x + 1, lambda x: x - 1, (x,))
    torch.testing.assert_close(y, x + 1)
    n, z = while_loop(
        lambda i, x: i > 0, lambda i, x: (i - 1, x * 2), (torch.tensor(3, device="tpu"), x)
    )
    assert n.item() == 0
    torch.testing.assert_close(z, x * 8)


def test_vmap_of_cond():
    def fn(p, x):
        return torch.vmap(lambda p, x: torch.cond(p, lambda x: x.sin(), lambda x: x * 2, (x,)))(
            p, x
        )

    assert_as_on_cpu(fn, torch.tensor([True, False, True]), torch.randn(3, 2))


# ---- flex_attention ------------------------------------------------------------------------------


def _causal(b, h, i, j):
    return i >= j


def _qkv(*, heads=2, kv_heads=2, length=32, dtype=torch.float32):
    return (
        torch.randn(2, heads, length, 8, dtype=dtype),
        torch.randn(2, kv_heads, length, 8, dtype=dtype),
        torch.randn(2, kv_heads, length, 8, dtype=dtype),
    )


def _block_mask(mask, device, length=32):
    return create_block_mask(mask, None, None, length, length, device=device, BLOCK_SIZE=16)


def _dense(q, k, v, bias, mask):
    """softmax(q k^T / sqrt(E) + bias) v, with -inf where `mask` is false."""
    groups = q.shape[1] // k.shape[1]
    k, v = (x.repeat_interleave(groups, 1) for x in (k, v))
    scores = q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5 + bias
    return torch.softmax(scores.masked_fill(~mask, float("-inf")), -1) @ v


@pytest.mark.parametrize("heads", [2, 4])
def test_flex_attention(heads):
    at = torch.arange(32)
    causal = at[:, None] >= at[None, :]

    def fn(q, k, v, slope):
        def score(s, b, h, i, j):
            return s + slope[h] * (j - i)

        mask = _block_mask(_causal, q.device.type)
        return flex_attention(q, k, v, score, mask, enable_gqa=heads == 4)

    def reference(q, k, v, slope):
        bias = slope[:, None, None] * (at[None, :] - at[:, None])
        return _dense(q, k, v, bias, causal)

    args = *_qkv(heads=heads, dtype=torch.float64), torch.rand(heads, dtype=torch.float64)
    assert_as_on_cpu(fn, *args, grad=True, reference=reference, rtol=1e-9, atol=1e-9)


def test_flex_attention_with_documents_and_rows_without_a_key():
    documents = torch.tensor([0] * 10 + [1] * 22)

    def fn(q, k, v, documents):
        def mask(b, h, i, j):
            return (documents[i] == documents[j]) & (j < i)

        return flex_attention(q, k, v, block_mask=_block_mask(mask, q.device.type))

    q, k, v = _qkv()
    assert_as_on_cpu(fn, q, k, v, documents)
    out = tpu(fn)(*on("tpu", (q, k, v, documents)))
    assert out[:, :, 0].abs().max().item() == 0


def test_flex_attention_in_eager_mode_and_statistics():
    q, k, v = _qkv()

    def fn(q, k, v):
        mask = _block_mask(_causal, q.device.type)
        return flex_attention(q, k, v, block_mask=mask, return_aux=AuxRequest(lse=True))

    out, aux = fn(*on("tpu", (q, k, v)))
    expected, expected_aux = fn(q, k, v)
    torch.testing.assert_close(out.cpu(), expected, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(aux.lse.cpu(), expected_aux.lse, rtol=1e-5, atol=1e-5)


def test_gradient_of_eager_flex_attention():
    q, k, v = on("tpu", _qkv(), grad=True)
    mask = _block_mask(_causal, "tpu")
    flex_attention(q, k, v, block_mask=mask).square().sum().backward()
    x, y, z = (t.detach().clone().requires_grad_() for t in (q, k, v))
    F.scaled_dot_product_attention(x, y, z, is_causal=True).square().sum().backward()
    for a, b in zip((q, k, v), (x, y, z)):
        torch.testing.assert_close(a.grad, b.grad, rtol=1e-4, atol=1e-4)


def test_flex_attention_under_autocast():
    q, k, v = on("tpu", _qkv())
    with torch.autocast("tpu", dtype=torch.bfloat16):
        out = tpu(flex_attention)(q, k, v)
    assert out.dtype == torch.bfloat16
    torch.testing.assert_close(
        out.float(), F.scaled_dot_product_attention(q, k, v), rtol=2e-2, atol=2e-2
    )


# ---- regions -------------------------------------------------------------------------------------


@torch.compiler.nested_compile_region
def _region(x, w):
    return F.dropout(torch.sin(x @ w), 0.25) + x


def test_a_nested_region_is_one_function():
    def fn(x, w):
        for _ in range(4):
            x = _region(x, w)
        return x

    x, w = torch.randn(3, 3, device="tpu"), torch.randn(3, 3, device="tpu")
    grads = []
    for f in (tpu(fn), fn):
        torch.manual_seed(2)
        a, b = on("tpu", (x, w), grad=True)
        with graph_texts() as texts:
            out = f(a, b)
            out.sum().backward()
        grads.append((out.detach(), a.grad, b.grad))
        if f is not fn:
            assert [t.count("func.call") for t in texts] == [4, 4]
            assert [t.count("func.func private") for t in texts] == [1, 1]
    torch.testing.assert_close(grads[0], grads[1], rtol=1e-4, atol=1e-5)


class _Wide(nn.Module):
    """Residual blocks whose inside is 16 times as wide as what goes from one to the next."""

    def __init__(self, blocks=4, width=32, checkpoint=True, dropout=0.0):
        super().__init__()
        self.up = nn.ModuleList(nn.Linear(width, 16 * width) for _ in range(blocks))
        self.down = nn.ModuleList(nn.Linear(16 * width, width) for _ in range(blocks))
        self.checkpoint, self.dropout = checkpoint, dropout

    def block(self, i, x):
        h = F.dropout(torch.sigmoid(self.up[i](x).sin()), self.dropout, training=self.dropout > 0)
        return x + self.down[i](h * h)

    def forward(self, x):
        for i in range(len(self.up)):
            if self.checkpoint:
                x = torch.utils.checkpoint.checkpoint(self.block, i, x, use_reentrant=False)
            else:
                x = self.block(i, x)
        return x


def test_checkpointed_regions_are_recomputed_one_at_a_time():
    compiled, texts, held = {}, {}, {}
    x = torch.randn(64, 32, device="tpu")
    for checkpoint in (False, True):
        torch.manual_seed(0)
        model = _Wide(checkpoint=checkpoint).to("tpu")
        step = tpu(model)
        step(x).sum().backward()  # the programs exist
        torch._dynamo.reset()
        step = tpu(model)
        with graph_texts() as texts[checkpoint]:
            before = torch.tpu.memory_allocated()
            out = step(x)
            held[checkpoint] = torch.tpu.memory_allocated() - before
            model.zero_grad()
            out.square().sum().backward()
        compiled[checkpoint] = [p.grad for p in model.parameters()]
    torch.testing.assert_close(compiled[True], compiled[False], rtol=1e-4, atol=1e-5)
    # Four blocks' insides of 64 x 512 floats are what checkpointing does not hold.
    assert held[False] - held[True] >= 4 * 64 * 512 * 4
    for checkpoint in (False, True):
        backward = texts[checkpoint][1]
        assert ("stablehlo.sine" in backward) == checkpoint
        assert ("stablehlo.optimization_barrier" in backward) == checkpoint


def test_dropout_in_a_checkpointed_region_repeats_its_mask():
    torch.manual_seed(0)
    eager = _Wide(blocks=2, width=8, dropout=0.5).to("tpu")
    other = copy.deepcopy(eager)
    results = []
    for model, fn in ((eager, eager), (other, tpu(other))):
        torch.manual_seed(7)
        x = torch.randn(4, 8, generator=torch.Generator().manual_seed(1)).to("tpu").requires_grad_()
        out = fn(x)
        out.square().sum().backward()
        results.append((out.detach(), x.grad, [p.grad for p in model.parameters()]))
    torch.testing.assert_close(results[1], results[0], rtol=1e-4, atol=1e-5)


def test_random_states_of_checkpointed_regions_stay_on_the_device():
    model = _Wide(blocks=2, width=8, dropout=0.5).to("tpu")
    compiled = tpu(model)
    x = torch.randn(4, 8, device="tpu")
    compiled(x).sum().backward()
    out = None

    def forward():
        nonlocal out
        out = compiled(x)

    assert executions(forward) == 1


def _saves_products(ctx, op, *args, **kwargs):
    saved = op in (torch.ops.aten.mm.default, torch.ops.aten.addmm.default)
    policy = torch.utils.checkpoint.CheckpointPolicy
    return policy.MUST_SAVE if saved else policy.PREFER_RECOMPUTE


def test_selective_checkpoint():
    contexts = functools.partial(
        torch.utils.checkpoint.create_selective_checkpoint_contexts, _saves_products
    )

    def plain(x, w):
        return torch.tanh(torch.sin(x @ w) @ w)

    def fn(x, w):
        return torch.utils.checkpoint.checkpoint(
            plain, x, w, use_reentrant=False, context_fn=contexts
        )

    assert_as_on_cpu(fn, torch.randn(4, 4), torch.randn(4, 4), grad=True, reference=plain)
