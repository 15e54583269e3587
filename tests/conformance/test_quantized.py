"""Numbers of few bits: scaled and packed matrix products, casts to float8 bit for bit, fake
quantization, and the error for quantized dtypes."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch

E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2
FLOAT8 = (E4M3, E5M2, torch.float8_e4m3fnuz, torch.float8_e5m2fnuz, torch.float8_e8m0fnu)


def _randn(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def test_int_mm_is_exact(assert_same: Any) -> None:
    x = torch.arange(32 * 64).view(32, 64).to(torch.int8)
    y = torch.arange(64 * 16).view(64, 16).mul(7).to(torch.int8)
    assert_same(torch._int_mm, x, y)
    want = x.double() @ y.double()
    torch.testing.assert_close(torch._int_mm(x.to("tpu"), y.to("tpu")).cpu().double(), want)


@pytest.mark.parametrize("pair", list(itertools.product((E4M3, E5M2), repeat=2)), ids=str)
@pytest.mark.parametrize("out", [torch.bfloat16, torch.float16, torch.float32])
def test_scaled_mm(pair: tuple, out: torch.dtype, assert_same: Any) -> None:
    x, y = _randn(32, 64).to(pair[0]), _randn(16, 64, seed=1).to(pair[1])
    scales = torch.tensor(0.5), torch.tensor(3.0)
    assert_same(lambda x, y, a, b: torch._scaled_mm(x, y.t(), a, b, out_dtype=out), x, y, *scales)


@pytest.mark.parametrize("out", [torch.bfloat16, torch.float32])
def test_scaled_mm_with_scales_of_rows_and_bias(out: torch.dtype, assert_same: Any) -> None:
    x, y = _randn(32, 64).to(E4M3), _randn(16, 64, seed=1).to(E4M3)
    scales = _randn(32, 1).abs(), _randn(1, 16).abs()
    bias = _randn(16, seed=2).to(out)
    assert_same(
        lambda x, y, a, b, c: torch._scaled_mm(x, y.t(), a, b, bias=c, out_dtype=out),
        *(x, y, *scales, bias),
    )


def test_scaled_mm_with_a_float8_result(assert_same: Any) -> None:
    x, y = _randn(32, 64).to(E4M3), _randn(16, 64, seed=1).to(E4M3)
    one = torch.tensor(1.0)
    assert_same(
        lambda x, y, a, s: torch._scaled_mm(x, y.t(), a, a, scale_result=s, out_dtype=E4M3).float(),
        *(x, y, one, torch.tensor(0.5)),
    )


@pytest.mark.parametrize("blocks", [(2, 256), (2, 2)], ids=["1x128", "128x128"])
def test_scaled_mm_with_scales_of_blocks(blocks: tuple[int, int]) -> None:
    """Which the CPU lacks: against the product of scaled matrices."""
    x, y = _randn(128, 256).to(E4M3), _randn(256, 256, seed=1).to(E4M3)
    a, b = _randn(128, 2).abs(), _randn(*blocks, seed=3).abs()
    left = x.float() * a.repeat_interleave(128, 1)
    right = y.float() * b.repeat_interleave(128, 0).repeat_interleave(256 // blocks[1], 1)
    x, y, a, b = (t.to("tpu") for t in (x, y.t().contiguous(), a, b))
    # PyTorch checks these kinds of scales for column-major matrices only
    got = torch._scaled_mm(x, y.t(), a, b, out_dtype=torch.float32)
    torch.testing.assert_close(got.cpu(), left @ right, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("kind", ["TensorWise", "RowWise"])
def test_functional_scaled_mm(kind: str, assert_same: Any) -> None:
    recipe = getattr(torch.nn.functional.ScalingType, kind)
    scales = (
        (_randn(32, 1).abs(), _randn(1, 16).abs())
        if kind == "RowWise"
        else (torch.tensor(2.0), torch.tensor(0.5))
    )

    def product(x: torch.Tensor, y: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> Any:
        return torch.nn.functional.scaled_mm(x, y.t(), a, recipe, b, recipe)

    assert_same(product, _randn(32, 64).to(E4M3), _randn(16, 64, seed=1).to(E4M3), *scales)


def test_scaled_mm_names_scales_it_lacks() -> None:
    x, y = (torch.zeros(*s).to(E4M3).to("tpu") for s in ((128, 256), (256, 256)))
    a, b = (torch.ones(n).to(torch.float8_e8m0fnu).to("tpu") for n in (1024, 2048))
    with pytest.raises(NotImplementedError, match=r"a scale of shape \(1024,\).*not swizzled"):
        torch._scaled_mm(x, y.t(), a, b, out_dtype=torch.bfloat16)
    kinds = torch.nn.functional.ScalingType
    swizzle = torch.nn.functional.SwizzleType.SWIZZLE_32_4_4
    with pytest.raises(NotImplementedError, match=r"scales of blocks.*TensorWise"):
        torch.nn.functional.scaled_mm(
            *(x, y.t(), a, kinds.BlockWise1x32, b, kinds.BlockWise1x32, swizzle, swizzle)
        )


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_weight_int8pack_mm(dtype: torch.dtype, assert_same: Any) -> None:
    w = torch.arange(512).view(16, 32).to(torch.int8)
    assert_same(torch._weight_int8pack_mm, _randn(4, 32).to(dtype), w, _randn(16).abs().to(dtype))


@pytest.mark.parametrize("packing", ["", "_for_cpu"])
def test_weight_int4pack_mm(packing: str) -> None:
    q = torch.randint(0, 16, (64, 128), dtype=torch.int32)
    pairs, x = _randn(4, 64, 2).bfloat16(), _randn(8, 128).bfloat16()
    scale, zero = (pairs[..., i].repeat_interleave(32, 0).t().float() for i in (0, 1))
    want = x.float() @ ((q - 8) * scale + zero).t()
    given = q if packing else (q[:, ::2] * 16 + q[:, 1::2]).to(torch.uint8)
    aten = torch.ops.aten
    packed = getattr(aten, f"_convert_weight_to_int4pack{packing}")(given.to("tpu"), 2)
    product = getattr(aten, f"_weight_int4pack_mm{packing}")
    got = product(x.to("tpu"), packed, 32, pairs.to("tpu"))
    assert got.dtype == torch.bfloat16
    torch.testing.assert_close(got.cpu().float(), want, rtol=1e-2, atol=0.1)


# ---- float8 --------------------------------------------------------------------------------------

_BITS16 = torch.arange(1 << 16, dtype=torch.int32).to(torch.int16)
_EDGES = torch.tensor([448.0, 449, 464, 464.1, 480, 57344, 61439, 61440, 61441, 240, 248, 1e30])
_EDGES = torch.cat([_EDGES, -_EDGES, torch.tensor([float("inf"), float("-inf"), 0.0, -0.0])])
_NAN = torch.tensor([0x7FC00000, 0x7F800001, 0x7FFFFFFF]).to(torch.int32).view(torch.float32)
_FLOATS = torch.cat([_EDGES, _NAN, _BITS16.view(torch.float16).float() * (1 + 2**-12)])


@pytest.mark.parametrize("dtype", FLOAT8, ids=str)
@pytest.mark.parametrize(
    "source",
    [
        _FLOATS,
        _BITS16.view(torch.bfloat16),
        _BITS16.view(torch.float16),
        _EDGES.double(),
        torch.arange(-600, 600),
    ],
    ids=lambda t: str(t.dtype),
)
def test_cast_to_float8_is_bit_exact(dtype: torch.dtype, source: torch.Tensor) -> None:
    want = source.to(dtype).view(torch.uint8)
    got = source.to("tpu").to(dtype).view(torch.uint8).cpu()
    wrong = want != got
    assert not wrong.any(), (source[wrong][:5], want[wrong][:5], got[wrong][:5])


@pytest.mark.parametrize("dtype", FLOAT8, ids=str)
@pytest.mark.parametrize("target", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_cast_from_float8_is_exact(dtype: torch.dtype, target: torch.dtype) -> None:
    source = torch.arange(256, dtype=torch.int32).to(torch.uint8).view(dtype)
    want, got = source.to(target), source.to("tpu").to(target).cpu()
    normal = ~(want.abs() < torch.finfo(torch.float32).tiny)  # XLA's floats have no subnormals
    torch.testing.assert_close(
        got[normal | (want == 0)], want[normal | (want == 0)], rtol=0, atol=0, equal_nan=True
    )


@pytest.mark.parametrize("target", FLOAT8[:4], ids=str)
def test_cast_between_float8(target: torch.dtype) -> None:
    for source in FLOAT8[:4]:
        x = torch.arange(256, dtype=torch.int32).to(torch.uint8).view(source)
        got = x.to("tpu").to(target).view(torch.uint8).cpu()
        assert torch.equal(got, x.to(target).view(torch.uint8)), source


# ---- fake quantization ---------------------------------------------------------------------------

X = _randn(4, 6) * 20
SCALES, ZEROS = torch.tensor([0.1, 0.37, 1.0, 2.5]), torch.arange(4, dtype=torch.int32)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
def test_fake_quantize_is_exact(dtype: torch.dtype, assert_same: Any) -> None:
    x = torch.cat([X.flatten(), torch.tensor([float("nan"), -1e5, 1e5])]).to(dtype)
    options = {"rtol": 0, "atol": 0}
    assert_same(lambda x: torch.fake_quantize_per_tensor_affine(x, 0.1, 3, -128, 127), x, **options)


@pytest.mark.parametrize("zeros", [ZEROS, ZEROS.float()], ids=["int zeros", "float zeros"])
def test_fake_quantize_with_tensors(zeros: torch.Tensor, assert_same: Any) -> None:
    def channels(x: torch.Tensor, s: torch.Tensor, z: torch.Tensor) -> torch.Tensor:
        return torch.fake_quantize_per_channel_affine(x, s, z, 0, -128, 127)

    def whole(x: torch.Tensor, s: torch.Tensor, z: torch.Tensor) -> torch.Tensor:
        return torch.fake_quantize_per_tensor_affine(x, s[1], z[2].int(), 0, 255)

    for fn in (channels, whole):
        assert_same(fn, X, SCALES, zeros, rtol=0, atol=0)


def test_gradients_of_fake_quantize(assert_same: Any) -> None:
    def gradients(x: torch.Tensor, s: torch.Tensor, z: torch.Tensor) -> list[torch.Tensor]:
        x = x.requires_grad_()
        y = torch.fake_quantize_per_tensor_affine(x, 0.1, 0, -28, 27)
        y = y + torch.fake_quantize_per_channel_affine(x, s, z, 0, -28, 27)
        y.sin().sum().backward()
        return [y, x.grad]

    assert_same(gradients, X, SCALES, ZEROS)


@pytest.mark.parametrize("channels", [False, True])
def test_gradients_of_learnable_fake_quantize(channels: bool, assert_same: Any) -> None:
    def gradients(*args: torch.Tensor) -> list[torch.Tensor]:
        x, s, z = (t.requires_grad_() for t in args)
        if channels:
            y = torch._fake_quantize_learnable_per_channel_affine(x, s, z, 0, -28, 27, 0.7)
        else:
            y = torch._fake_quantize_learnable_per_tensor_affine(x, s, z, -28, 27, 0.7)
        y.sin().sum().backward()
        return [y, x.grad, s.grad, z.grad]

    n = 4 if channels else 1
    assert_same(gradients, X, SCALES[:n], torch.tensor([1.3, 0.2, 0.0, -4.0])[:n])


def test_quantized_dtypes_name_the_way_out() -> None:
    x = X.to("tpu")
    way = r"(?s)torch.qint8.*not supported.*torch._int_mm"
    with pytest.raises(NotImplementedError, match=way):
        torch.quantize_per_tensor(x, 0.1, 0, torch.qint8)
    with pytest.raises(NotImplementedError, match=way):
        torch.quantize_per_channel(x, SCALES.to("tpu"), ZEROS.to("tpu"), 0, torch.qint8)
    with pytest.raises(NotImplementedError, match="quantized tensors"):
        torch.quantize_per_tensor(X, 0.1, 0, torch.qint8).to("tpu")
