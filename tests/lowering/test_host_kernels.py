"""Products that programs on XLA's CPU plugin leave to PyTorch's kernels: the same numbers as
StableHLO's own ops give, for every arrangement of dimensions."""

from __future__ import annotations

import copy
import itertools

import pytest
import torch
from torch.nn import functional as F

from tests.common.programs import built_texts
from tests.lowering.harness import run
from torchtpu_core import _C, flags, precision
from torchtpu_core.stablehlo import Module, TensorType, host_kernels

pytestmark = pytest.mark.skipif(
    not _C.has_kernels(), reason="the plugin cannot call functions of this process"
)


@pytest.fixture
def texts(monkeypatch):
    """The texts of the programs that are built in the test."""
    return built_texts(monkeypatch)


def calls(texts):
    """The custom calls of the programs."""
    return [line.split('"')[3] for t in texts for line in t.splitlines() if "custom_call" in line]


EQUATIONS = [
    ("mk,kn->mn", {}),
    ("km,nk->mn", {}),
    ("bmk,bkn->bmn", {"b": 3}),
    ("mbk,nkb->bmn", {"b": 3}),
    ("bqhd,bkhd->bhqk", {"b": 2, "h": 3, "q": 40, "k": 50, "d": 70}),
    ("bhqk,bkhd->bqhd", {"b": 2, "h": 3, "q": 40, "k": 50, "d": 70}),
    ("abkl,lkc->abc", {"a": 5, "b": 20, "k": 6, "l": 15, "c": 90}),
    ("gbk,gkn->bgn", {"g": 4, "b": 50}),
]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("equation", "sizes"), EQUATIONS)
def test_einsum(equation, sizes, dtype, texts):
    """Batches, sums and free dimensions in any order, against float64 on the CPU."""
    left, right = equation.split("->")[0].split(",")
    x, y = (torch.randn(*(sizes.get(c, 97) for c in s), dtype=dtype) for s in (left, right))
    got = torch.einsum(equation, x.to("tpu"), y.to("tpu"))
    want = torch.einsum(equation, x.double(), y.double())
    rtol = 2e-6 if dtype == torch.float32 else 1e-13
    torch.testing.assert_close(got.cpu().double(), want, rtol=0, atol=rtol * want.abs().max())
    assert "torchtpu.dot_general" in calls(texts)


@pytest.mark.parametrize("size", [90, 200])
def test_views_and_special_values(size, texts):
    """Transposed, strided and broadcast operands; infinities and NaN stay where they are. The
    sizes are on both sides of the one from which oneDNN multiplies."""
    x, y = torch.randn(size, 2 * size), torch.randn(size, size)
    x[3, 4], x[5, 8] = torch.inf, torch.nan
    for a, c in ((x[:, ::2], y.t()), (x.t()[::2], y), (x[:, :size], y[:1].expand(size, size))):
        got = (a.to("tpu") @ c.to("tpu")).cpu()
        torch.testing.assert_close(got, a @ c, rtol=1e-4, atol=1e-4, equal_nan=True)
    assert len(calls(texts)) >= 3


def test_small_and_other_products_are_xla_s(texts):
    """Small products, products with a vector, and other types."""
    x, y = torch.randn(32, 32, device="tpu"), torch.randn(512, 1024, device="tpu")
    x @ x
    y @ torch.randn(1024, device="tpu")
    torch.randn(1, 1024, device="tpu") @ y.t()
    y.bfloat16() @ y.bfloat16().t()
    (y > 0).long() @ (y > 0).long().t()
    assert not calls(texts)
    assert sum("dot_general" in t for t in texts) == 5


CONVOLUTIONS = [
    (n, *rest)
    for n in (1, 2, 3)
    for rest in itertools.product((False, True), (1, 2), (0, 1), (1, 2), (1, 4))
]


def convolve(x, w, n, transposed, arguments):
    """(output, gradients of x and w)."""
    x, w = x.requires_grad_(), w.requires_grad_()
    y = getattr(F, f"conv{'_transpose' if transposed else ''}{n}d")(x, w, None, **arguments)
    weights = torch.linspace(-1, 1, y.numel(), dtype=torch.float64).to(y.dtype)
    return [y, *torch.autograd.grad(y, (x, w), weights.to(y.device).reshape(y.shape))]


@pytest.mark.parametrize(
    ("n", "transposed", "stride", "padding", "dilation", "groups"), CONVOLUTIONS
)
def test_convolution(n, transposed, stride, padding, dilation, groups, texts):
    """Convolutions and both gradients, in all arrangements, against float64 on the CPU."""
    x = torch.randn(2, 16, *{1: (900,), 2: (30, 29), 3: (12, 11, 10)}[n])
    w = torch.randn(*((16, 32 // groups) if transposed else (32, 16 // groups)), *[3] * n)
    arguments = {"stride": stride, "padding": padding, "dilation": dilation, "groups": groups}
    if transposed and stride == 2:
        arguments["output_padding"] = 1
    want = convolve(x.double(), w.double(), n, transposed, arguments)
    got = convolve(x.to("tpu"), w.to("tpu"), n, transposed, arguments)
    for a, c in zip(got, want):
        scale = c.abs().max().item()
        torch.testing.assert_close(a.cpu().double(), c, rtol=0, atol=1e-5 * scale)
    kinds = {c.removeprefix("torchtpu.") for c in calls(texts)}
    wanted = {"convolution", "convolution_input_gradient", "convolution_weight_gradient"}
    assert kinds <= wanted
    assert groups == 4 or kinds == wanted


@pytest.mark.parametrize("n", [2, 3])
def test_channels_last(n, texts):
    """Channels that are last in memory stay there, in and out."""
    order = {2: torch.channels_last, 3: torch.channels_last_3d}[n]
    x = torch.randn(2, 16, *[14] * n).to(memory_format=order)
    w = torch.randn(32, 16, *[3] * n)
    want = convolve(x.double(), w.double(), n, False, {"padding": 1})
    got = convolve(x.to("tpu"), w.to("tpu"), n, False, {"padding": 1})
    for a, c in zip(got, want):
        torch.testing.assert_close(a.cpu().double(), c, rtol=0, atol=1e-5 * c.abs().max().item())
    assert got[0].is_contiguous(memory_format=order)
    assert sum("channels_last = array<i64: 1>" in t for t in texts) >= 2


def test_crops_are_xla_s(texts):
    """What is no whole convolution: an output padding as large as the dilation allows."""
    x, w = torch.randn(2, 16, 30, 29), torch.randn(16, 32, 3, 3)
    arguments = {"stride": 1, "dilation": 2, "output_padding": 1}
    want = convolve(x.double(), w.double(), 2, True, arguments)
    got = convolve(x.to("tpu"), w.to("tpu"), 2, True, arguments)
    for a, c in zip(got, want):
        torch.testing.assert_close(a.cpu().double(), c, rtol=0, atol=1e-5 * c.abs().max().item())


def test_in_compiled_graphs_and_under_modes():
    """A compiled train step; Python's dispatch modes and autocast for the CPU, which are on where
    the program is launched, do not reach the kernels."""
    from torch.utils._python_dispatch import TorchDispatchMode

    class Mode(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            assert all(a.device.type != "cpu" for a in args if isinstance(a, torch.Tensor))
            return func(*args, **(kwargs or {}))

    x, w = torch.randn(64, 128), torch.randn(256, 128, requires_grad=True)

    def step(x, w):
        return F.relu(x @ w.t()).square().mean()

    want = torch.autograd.grad(step(x, w), w)[0]
    on = w.detach().to("tpu").requires_grad_()
    got = torch.autograd.grad(torch.compile(step, backend="tpu")(x.to("tpu"), on), on)[0]
    torch.testing.assert_close(got.cpu(), want, rtol=1e-5, atol=1e-6)
    a, c = x.to("tpu"), w.detach().to("tpu")
    with Mode(), torch.autocast("cpu", dtype=torch.bfloat16), torch.inference_mode():
        y = a @ c.t()
    torch.testing.assert_close(y.cpu(), (x @ w.t()).detach(), rtol=1e-5, atol=1e-4)


def test_stays_float32_whatever_pytorch_s_setting():
    """PyTorch's kernels multiply in bf16 where its setting lets them; the CPU plugin does not."""
    x = torch.randn(256, 512)
    want, a = x.double() @ x.double().t(), x.to("tpu")
    try:
        torch.set_float32_matmul_precision("medium")
        for mode in ("default", "highest"):
            with torch.tpu.precision(mode):
                got = (a @ a.t()).cpu().double()
            torch.testing.assert_close(got, want, rtol=0, atol=1e-5 * want.abs().max().item())
    finally:
        torch.set_float32_matmul_precision("highest")
    assert flags.get(flags.XLA_ALONE) == 0


def test_programs_for_a_tpu_have_none():
    """Neither a program for a TPU nor one whose products are emulated in bf16 convolves by call."""
    before = flags.put(flags.FOR_TPU, flags.FOR_TPU)
    try:
        assert not precision.of_products()["host_kernels"]
    finally:
        flags.put(flags.FOR_TPU, before)
    module = Module(target="cpu", emulate=True, host_kernels=True)
    b = module.function(
        "main", [TensorType("f32", (2, 8, 32, 32)), TensorType("f32", (8, 8, 3, 3))]
    )
    assert not host_kernels.takes_convolution(b, *b.args, 1 << 30)


def test_a_failing_kernel_fails_the_program():
    """What a kernel throws reaches the user, who can go on."""
    module = Module(target="cpu", host_kernels=True)
    b = module.function("main", [TensorType("f32", (4, 8, 9)), TensorType("f32", (8, 5, 3))], True)
    numbers = {"stride": [1], "padding": [0], "dilation": [1], "groups": [1]}
    b.finish([host_kernels.convolution(b, "convolution", *b.args, (4, 8, 7), numbers)])
    with pytest.raises(Exception, match="channels"):
        run(str(module), [torch.randn(4, 8, 9), torch.randn(8, 5, 3)], [torch.empty(4, 8, 7)])
    assert (torch.ones(2, device="tpu") + 1).sum().item() == 4


def test_what_follows_a_convolution_beside_products():
    """It runs on the kernels' thread, where nothing of XLA's may wait for a thread that itself
    waits for a kernel.
    """

    def fn(x, w, h, squares):
        y = F.conv2d(x, w, padding=1)
        z = F.conv2d((y * 0.01).half(), h, padding=1).float()  # XLA's own
        z = torch.fft.rfft(torch.fft.fft2(z).real * 1e-3).real
        z = torch.sort(z, dim=-1).values.cumsum(-1)
        return [z.mean(), F.conv2d(y, w).mean(), *((m @ m).mean() for m in squares)]

    shapes = (8, 16, 64, 64), (16, 16, 3, 3), (16, 16, 3, 3)
    x, w, h = (torch.randn(s) for s in shapes)
    h, squares = h.half() * 0.1, [torch.randn(300, 300) for _ in range(12)]
    want = fn(x, w, h, squares)
    compiled = torch.compile(fn, backend="tpu")
    args = [x.to("tpu"), w.to("tpu"), h.to("tpu"), [m.to("tpu") for m in squares]]
    for _ in range(10):
        got = compiled(*args)
        for a, c in zip(got, want):
            torch.testing.assert_close(a.cpu(), c, rtol=2e-2, atol=2e-2)


def test_programs_of_several_devices(run_python):
    """In one process, at the same time."""
    run_python(
        """
        import torch

        def work(x):
            for _ in range(20):
                x = torch.tanh(x @ x / 200)
            return x

        x = torch.randn(200, 200)
        outs = [work(x.to(f"tpu:{i}")) for i in (0, 1) for _ in range(3)]
        for out in outs:
            torch.testing.assert_close(out.cpu(), work(x), rtol=1e-3, atol=1e-3)
        """,
        TORCHTPU_CPU_DEVICES="2",
    )


@pytest.mark.parametrize("cls", [torch.optim.Adam, torch.optim.AdamW])
@pytest.mark.parametrize("amsgrad", [False, True])
@pytest.mark.parametrize("maximize", [False, True])
def test_adam(cls, amsgrad, maximize, texts):
    """Three steps of PyTorch's kernel, in place, with a parameter whose memory is not row-major;
    the learning rate changes with no new program."""
    shapes = [(64, 32, 3, 3), (100, 70), (7,), (1,)]
    start = [torch.randn(s) for s in shapes]
    start[1] = start[1].t().contiguous().t()
    grads = [[torch.randn(s) for s in shapes] for _ in range(3)]
    options = {"lr": 1e-2, "weight_decay": 0.1, "amsgrad": amsgrad, "maximize": maximize}
    results = []
    for device in ("cpu", "tpu"):
        params = [t.clone().to(device).requires_grad_() for t in start]
        views = [p.detach().reshape(-1) for p in params]
        optimizer = cls(params, fused=True, **options)
        for i, step in enumerate(grads):
            for p, g in zip(params, step):
                p.grad = torch.empty_like(p).copy_(g)  # PyTorch's CPU kernel wants one layout
            optimizer.param_groups[0]["lr"] = 1e-2 / (i + 1)
            optimizer.step()
        assert torch.equal(views[0], params[0].detach().reshape(-1))
        states = [optimizer.state[p] for p in params]
        results.append([t.detach().cpu() for t in params])
        results[-1] += [s[k].cpu() for s in states for k in sorted(s)]
    for got, want in zip(results[1], results[0], strict=True):
        torch.testing.assert_close(got, want, rtol=1e-6, atol=1e-7)
    assert calls(texts) == ["torchtpu.fused_adam"]


def test_adam_holds_one_copy_of_its_state():
    """What is updated is donated; an older value that somebody holds stays as it was."""
    p = torch.randn(1 << 20, device="tpu", requires_grad=True)
    p.grad = torch.randn(1 << 20, device="tpu")
    optimizer = torch.optim.AdamW([p], fused=True, lr=1e-2)
    optimizer.step()
    torch.tpu.synchronize()
    before = torch.tpu.memory_allocated()
    torch.tpu.reset_peak_memory_stats()
    optimizer.step()
    torch.tpu.synchronize()
    assert torch.tpu.max_memory_allocated() - before < 1 << 20
    kept = p.detach().clone()
    value = kept.cpu()
    optimizer.step()
    assert torch.equal(kept.cpu(), value)
    assert not torch.equal(p.detach().cpu(), value)


def test_a_compiled_step_with_adam():
    """Forward, backward and optimizer as one program, against the CPU."""
    torch.manual_seed(3)
    model = torch.nn.Sequential(
        torch.nn.Linear(128, 256), torch.nn.ReLU(), torch.nn.Linear(256, 64)
    )
    twin = torch.nn.Sequential(torch.nn.Linear(128, 256), torch.nn.ReLU(), torch.nn.Linear(256, 64))
    twin.load_state_dict(model.state_dict())
    x = torch.randn(64, 128)

    def trained(model, x, compiler):
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)

        @compiler
        def step(x):
            optimizer.zero_grad()
            loss = model(x).square().mean()
            loss.backward()
            optimizer.step()
            return loss.detach()

        return [step(x).cpu() for _ in range(4)]

    want = trained(model, x, lambda f: f)
    got = trained(twin.to("tpu"), x.to("tpu"), torch.compile(backend="tpu"))
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("shape", [(4, 32, 300), (4, 32, 14, 15), (2, 32, 7, 8, 9)])
@pytest.mark.parametrize(("momentum", "eps"), [(0.1, 1e-5), (None, 1e-2)])
def test_batch_norm(shape, momentum, eps, texts):
    """Of a train step, with its statistics, against float64; small variances are not lost beside
    eps. Without parameters, and in evaluation, it is XLA's.
    """
    x = torch.randn(shape) * torch.logspace(-4, 2, shape[1]).reshape(-1, *[1] * (len(shape) - 2))
    module = torch.nn.BatchNorm2d(shape[1], eps, momentum)
    module._check_input_dim = lambda x: None  # of any number of dimensions
    torch.nn.init.normal_(module.weight)
    torch.nn.init.normal_(module.bias)
    reference = copy.deepcopy(module).double()
    module.to("tpu")
    for _ in range(2):
        got, want = module(x.to("tpu")), reference(x.double())
        torch.testing.assert_close(got.cpu().double(), want, rtol=1e-5, atol=1e-5)
        for a, c in zip(module.buffers(), reference.buffers()):
            torch.testing.assert_close(a.cpu().double(), c.double(), rtol=1e-5, atol=1e-7)
    assert "torchtpu.batch_norm" in calls(texts)
    texts.clear()
    module.eval()(x.to("tpu"))
    F.batch_norm(x.to("tpu"), None, None, training=True)
    assert not calls(texts)


@pytest.mark.parametrize("shape", [(4, 32, 300), (4, 32, 14, 15), (2, 32, 7, 8, 9)])
def test_gradient_of_batch_norm(shape, texts):
    """Of a train step, against float64; with a gradient missing, and in evaluation, it is XLA's."""
    g = torch.Generator().manual_seed(2)
    x, w, c, weights = (torch.randn(s, generator=g) for s in (shape, shape[1:2], shape[1:2], shape))

    def gradients(device, dtype, training=True, fixed=()):
        args = [t.to(device, dtype).requires_grad_(i not in fixed) for i, t in enumerate((x, w, c))]
        mean = torch.zeros(shape[1], dtype=dtype, device=device)
        out = F.batch_norm(args[0], mean, mean + 1, *args[1:], training)
        wanted = [a for a in args if a.requires_grad]
        return torch.autograd.grad(out, wanted, weights.to(device, dtype))

    for how, called in (({}, True), ({"training": False}, False), ({"fixed": (1,)}, False)):
        texts.clear()
        for got, want in zip(
            gradients("tpu", torch.float32, **how), gradients("cpu", torch.float64, **how)
        ):
            scale = want.abs().max().item()
            torch.testing.assert_close(got.cpu().double(), want, rtol=0, atol=1e-5 * scale)
        assert ("torchtpu.batch_norm_backward" in calls(texts)) is called


@pytest.mark.parametrize(
    ("kernel", "stride", "padding", "dilation", "ceil"),
    [(3, 2, 1, 1, False), (2, 2, 0, 1, True), ((3, 2), (1, 2), (1, 0), (2, 1), True)],
)
def test_gradient_of_max_pool(kernel, stride, padding, dilation, ceil, texts):
    """With equals and NaN in windows."""
    x = torch.randn(4, 16, 24, 25).relu()
    x[1, 2, 5, 6:8] = torch.nan

    def gradient(device):
        leaf = x.to(device).requires_grad_()
        out = F.max_pool2d(leaf, kernel, stride, padding, dilation, ceil)
        weights = torch.arange(out.numel(), dtype=torch.float32).reshape(out.shape)
        return torch.autograd.grad(out, leaf, weights.to(device))[0].cpu()

    torch.testing.assert_close(gradient("tpu"), gradient("cpu"), rtol=0, atol=0)
    assert calls(texts) == ["torchtpu.max_pool2d_backward"]


@pytest.mark.parametrize(("stride", "padding", "dilation"), [(1, 1, 1), (2, 1, 1), (1, (2, 0), 2)])
def test_weight_gradient_of_few_positions(stride, padding, dilation, texts):
    """Where it is a product of windows."""
    x, w = torch.randn(3, 64, 6, 7), torch.randn(96, 64, 3, 2)
    arguments = {"stride": stride, "padding": padding, "dilation": dilation}
    want = convolve(x.double(), w.double(), 2, False, arguments)
    for order in (torch.contiguous_format, torch.channels_last):
        got = convolve(x.to("tpu", memory_format=order), w.to("tpu"), 2, False, arguments)
        for a, c in zip(got, want):
            scale = c.abs().max().item()
            torch.testing.assert_close(a.cpu().double(), c, rtol=0, atol=1e-5 * scale)
    assert "torchtpu.convolution_weight_gradient" in calls(texts)


# ---- attention -----------------------------------------------------------------------------------


def attention(device, dtype, q, k, v, mask, weights, *, inside=False, biased=False, **how):
    """The output and the gradients of q, k and v (and of the mask, if `biased`), in float64. With
    `inside`, heads lie behind positions in memory, as projections make them.
    """
    leaves = [t.to(device, dtype) for t in (q, k, v)]
    if inside:
        leaves = [t.transpose(1, 2).contiguous().transpose(1, 2) for t in leaves]
    if mask is not None:
        mask = mask.to(device) if mask.dtype == torch.bool else mask.to(device, dtype)
    leaves = [t.requires_grad_() for t in ([*leaves, mask] if biased else leaves)]
    out = F.scaled_dot_product_attention(*leaves[:3], leaves[3] if biased else mask, **how)
    grads = torch.autograd.grad(out, leaves, weights.to(device, dtype))
    return [t.detach().cpu().double() for t in (out, *grads)]


def inputs(heads=(4, 4), rows=90, keys=90, width=32):
    """q, k, v and weights of the output's elements."""
    g = torch.Generator().manual_seed(5)
    shapes = [(2, heads[0], rows, width), *2 * [(2, heads[1], keys, width)]]
    return [torch.randn(s, generator=g) for s in (*shapes, shapes[0])]


def near(got, want, rtol=2e-6):
    for a, c in zip(got, want, strict=True):
        torch.testing.assert_close(a, c, rtol=0, atol=rtol * c.abs().max().item())


MASKS = {
    "none": None,
    "bool": lambda n, s: (torch.arange(n)[:, None] * 7 + torch.arange(s)) % 5 > 1,
    "a key": lambda n, s: torch.randn(2, 1, 1, s),
    "a row": lambda n, s: torch.randn(n, s),
    "a head": lambda n, s: torch.randn(1, 4, n, s),
    "all": lambda n, s: torch.where(torch.rand(2, 4, n, s) < 0.3, -torch.inf, torch.rand(n, s)),
    "rows without a key": lambda n, s: (torch.arange(n)[:, None] % 3 > 0).expand(n, s),
    "rows without a key, floats": lambda n, s: torch.zeros(n, s).masked_fill(
        torch.arange(n)[:, None] % 3 == 0, -torch.inf
    ),
}


@pytest.mark.parametrize("inside", [False, True])
@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("keys", [90, 140])
def test_attention(mask, keys, inside, texts):
    """With masks of all shapes, and heads in either order in memory, against float64."""
    q, k, v, weights = inputs(keys=keys)
    mask = MASKS[mask] and MASKS[mask](90, keys)
    got = attention("tpu", torch.float32, q, k, v, mask, weights, inside=inside)
    near(got, attention("cpu", torch.float64, q, k, v, mask, weights))
    assert calls(texts) == ["torchtpu.attention", "torchtpu.attention_backward"]


@pytest.mark.parametrize("keys", [60, 90, 140])
@pytest.mark.parametrize("heads", [(4, 4), (4, 2), (4, 1)])
def test_causal_attention_of_grouped_heads(heads, keys, texts):
    q, k, v, weights = inputs(heads, keys=keys)
    how = {"is_causal": True, "scale": 0.3, "enable_gqa": True}
    got = attention("tpu", torch.float32, q, k, v, None, weights, **how)
    near(got, attention("cpu", torch.float64, q, k, v, None, weights, **how))
    assert calls(texts) == ["torchtpu.attention", "torchtpu.attention_backward"]


def test_gradient_of_an_attention_bias(texts):
    """Needs the scores: XLA's, from what the kernel keeps, rows without a key among it."""
    q, k, v, weights = inputs()
    mask = MASKS["rows without a key, floats"](90, 90)[None]
    got = attention("tpu", torch.float32, q, k, v, mask, weights, biased=True)
    near(got, attention("cpu", torch.float64, q, k, v, mask, weights, biased=True))
    assert calls(texts).count("torchtpu.attention_backward") == 0
    assert "torchtpu.attention" in calls(texts)


def test_other_attention_is_xla_s(texts):
    """Small, of one query, of other types and of values of another width."""

    def of(batch, rows, keys, width, v_width=None, dtype=torch.float32):
        shapes = [(batch, 4, n, w) for n, w in ((rows, width), (keys, width))]
        q, k = (torch.randn(s, dtype=dtype) for s in shapes)
        v = torch.randn(batch, 4, keys, v_width or width, dtype=dtype)
        got = F.scaled_dot_product_attention(*(t.to("tpu") for t in (q, k, v))).cpu()
        want = F.scaled_dot_product_attention(q.double(), k.double(), v.double())
        tolerance = 2e-2 if dtype == torch.bfloat16 else 1e-5
        torch.testing.assert_close(got.double(), want, rtol=tolerance, atol=tolerance)

    of(1, 12, 12, 16)
    of(64, 1, 128, 64)
    of(2, 90, 90, 32, dtype=torch.bfloat16)
    of(2, 90, 90, 32, v_width=48)
    assert not [c for c in calls(texts) if "attention" in c]


def test_attention_in_a_compiled_block(texts):
    """Between projections, whose order of heads goes into the calls and comes out of them, and with
    a scale that is a number of the running program.
    """
    torch.manual_seed(0)
    embed, heads, length = 96, 3, 80
    w, x = torch.randn(3 * embed, embed) / 10, torch.randn(2, length, embed)

    def block(x, w, scale):
        q, k, v = (x @ w.t()).view(2, length, 3, heads, embed // heads).unbind(2)
        q, k, v = (t.transpose(1, 2) for t in (q, k, v))
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=scale)
        return out.transpose(1, 2).reshape(2, length, embed)

    def run_on(device, dtype, fn, scale):
        leaves = [t.to(device, dtype).requires_grad_() for t in (x, w)]
        out = fn(*leaves, scale)
        return [t.detach().cpu().double() for t in (out, *torch.autograd.grad(out.sum(), leaves))]

    fn = torch.compile(block, fullgraph=True)
    for scale in (0.1, 0.2, 0.3):
        near(run_on("tpu", torch.float32, fn, scale), run_on("cpu", torch.float64, block, scale))
    assert {"torchtpu.attention", "torchtpu.attention_backward"} <= set(calls(texts))
