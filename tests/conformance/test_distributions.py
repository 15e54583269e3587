"""torch.distributions: densities, moments, quantiles, divergences and gradients equal the CPU's for
the same parameters; samples have the right moments."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributions as D
from torch.distributions.kl import _KL_REGISTRY, kl_divergence

from tests.common.compare import Tolerance, difference


def _draw(*shape: int, low: float = 0.1, high: float = 0.9) -> torch.Tensor:
    return torch.rand(*shape, generator=_GENERATOR) * (high - low) + low


def _normal(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=_GENERATOR)


_GENERATOR = torch.Generator().manual_seed(0)
_ROOT = _normal(3, 3)
_COVARIANCE = _ROOT @ _ROOT.mT + 3 * torch.eye(3)

_PLACE = {"loc": _normal(3), "scale": _draw(3, low=0.3, high=1.2)}
_TABLE: list[tuple[type[D.Distribution], dict[str, Any]]] = [
    (D.Bernoulli, {"probs": _draw(3)}),
    (D.Bernoulli, {"logits": _normal(2, 3)}),
    (D.Beta, {"concentration1": _draw(3, high=5), "concentration0": _draw(3, high=3)}),
    (D.Binomial, {"total_count": torch.tensor([3.0, 10.0, 40.0]), "probs": _draw(3)}),
    (D.Binomial, {"total_count": 10, "logits": _normal(3)}),
    (D.Categorical, {"probs": _draw(3, 4)}),
    (D.Categorical, {"logits": _normal(4)}),
    (D.Cauchy, _PLACE),
    (D.Chi2, {"df": _draw(3, high=4)}),
    (D.ContinuousBernoulli, {"probs": _draw(4)}),
    (D.Dirichlet, {"concentration": _draw(2, 3, high=4)}),
    (D.Exponential, {"rate": _draw(3, high=4)}),
    (D.FisherSnedecor, {"df1": _draw(3, low=5, high=9), "df2": _draw(3, low=9, high=12)}),
    (D.Gamma, {"concentration": _draw(3, high=3), "rate": _draw(3)}),
    (D.Geometric, {"probs": _draw(3)}),
    (D.Gumbel, _PLACE),
    (D.HalfCauchy, {"scale": _PLACE["scale"]}),
    (D.HalfNormal, {"scale": _PLACE["scale"]}),
    (D.InverseGamma, {"concentration": _draw(3, low=5, high=8), "rate": _draw(3)}),
    (D.Kumaraswamy, {"concentration1": _draw(3, high=3), "concentration0": _draw(3, high=2)}),
    (D.LKJCholesky, {"dim": 3, "concentration": torch.tensor([1.0, 2.5])}),
    (D.Laplace, _PLACE),
    (D.LogNormal, {"loc": _PLACE["loc"], "scale": _draw(3, high=0.4)}),
    (D.LogisticNormal, _PLACE),
    (
        D.LowRankMultivariateNormal,
        {"loc": _normal(4), "cov_factor": _normal(4, 2), "cov_diag": _draw(4, low=0.3)},
    ),
    (D.Multinomial, {"total_count": 10, "probs": _draw(3, 4)}),
    (D.MultivariateNormal, {"loc": _normal(3), "covariance_matrix": _COVARIANCE}),
    (D.MultivariateNormal, {"loc": _normal(2, 3), "precision_matrix": _COVARIANCE}),
    (D.NegativeBinomial, {"total_count": torch.tensor([3.0, 5.0, 7.0]), "probs": _draw(3)}),
    (D.Normal, _PLACE),
    (D.OneHotCategorical, {"probs": _draw(2, 4)}),
    (D.OneHotCategoricalStraightThrough, {"probs": _draw(2, 4)}),
    (D.Pareto, {"scale": _PLACE["scale"], "alpha": _draw(3, low=5, high=7)}),
    (D.Poisson, {"rate": _draw(3, high=20)}),
    (D.RelaxedBernoulli, {"temperature": torch.tensor(0.7), "probs": _draw(3)}),
    (D.RelaxedOneHotCategorical, {"temperature": torch.tensor(0.7), "probs": _draw(3, 4)}),
    (D.StudentT, {"df": _draw(3, low=9, high=12), **_PLACE}),
    (D.Uniform, {"low": _normal(3) - 3, "high": _normal(3) + 3}),
    (D.VonMises, {"loc": _normal(3), "concentration": _draw(3, high=4)}),
    (D.Weibull, {"scale": _PLACE["scale"], "concentration": _draw(3, low=1, high=3)}),
    (D.Wishart, {"df": torch.tensor(5.0), "covariance_matrix": _COVARIANCE}),
]
_IDS = [f"{cls.__name__}-{'-'.join(kwargs)}" for cls, kwargs in _TABLE]
_EACH = pytest.mark.parametrize("cls, kwargs", _TABLE, ids=_IDS)

#: variance is that of the angle on a circle
_CIRCULAR = (D.VonMises,)
#: rsample writes in place to a mask that autograd has saved, on every device
_NO_GRADIENT = (D.Wishart,)


def _move(kwargs: dict[str, Any], device: str, gradient: bool = False) -> dict[str, Any]:
    def one(v: Any) -> Any:
        if not isinstance(v, torch.Tensor):
            return v
        return v.clone().to(device).requires_grad_(gradient)

    return {name: one(v) for name, v in kwargs.items()}


def _same(actual: Any, expected: Any, what: str) -> None:
    found = difference(expected, actual, lambda _: Tolerance(2e-4, 2e-5))
    assert found is None, f"{what}: {found}"


def _ask(d: D.Distribution, what: str, *args: torch.Tensor) -> Any:
    """A property or the result of a method; None where the distribution has none."""
    try:
        found = getattr(d, what)
        return found(*args) if callable(found) else found
    except NotImplementedError:
        return None


@_EACH
def test_equals_cpu(cls: Any, kwargs: dict[str, Any], device: str) -> None:
    want, got = cls(**kwargs), cls(**_move(kwargs, device))
    x = want.sample((5,))
    levels = torch.rand(5, *want.batch_shape) * 0.9 + 0.05
    asked = [("log_prob", x), ("cdf", x), ("icdf", levels), ("entropy",)]
    asked += [(name,) for name in ("mean", "variance", "stddev", "mode")]
    asked += [("enumerate_support",)] if want.has_enumerate_support else []
    for what, *args in asked:
        try:
            expected = _ask(want, what, *args)
        except ValueError:  # total counts that differ cannot be enumerated
            continue
        if expected is not None:
            _same(_ask(got, what, *(a.to(device) for a in args)), expected, what)


@_EACH
def test_gradients_of_log_prob(cls: Any, kwargs: dict[str, Any], device: str) -> None:
    x = cls(**kwargs).sample((4,))
    gradients = []
    for where in ("cpu", device):
        parameters = _move(kwargs, where, gradient=True)
        cls(**parameters).log_prob(x.to(where)).sum().backward()
        gradients.append([getattr(v, "grad", None) for v in parameters.values()])
    _same(gradients[1], gradients[0], "gradients")


@_EACH
def test_samples(cls: Any, kwargs: dict[str, Any], device: str) -> None:
    d, on_cpu = cls(**_move(kwargs, device)), cls(**kwargs)
    small, like = d.sample((4, 2)), on_cpu.sample((4, 2))
    assert (small.device.type, small.shape, small.dtype) == (device, like.shape, like.dtype)
    n = 2000
    x = d.sample((n,)).cpu()
    assert on_cpu.support.check(x).all()
    mean, variance = _ask(on_cpu, "mean"), _ask(on_cpu, "variance")
    if cls in _CIRCULAR:
        unit = torch.polar(torch.ones_like(x), x).mean(0)
        assert (torch.polar(torch.ones_like(mean), mean) * unit.conj()).angle().abs().max() < 0.3
        torch.testing.assert_close(1 - unit.abs(), variance, rtol=0.1, atol=0.05)
        return
    if mean is None or not torch.isfinite(mean).all() or not torch.isfinite(variance).all():
        return
    error = (x.mean(0) - mean).abs() / (variance / n).sqrt().clamp_min(1e-6)
    assert error.max() < 5.5, f"{error.max()} standard errors off the mean"
    torch.testing.assert_close(x.var(0), variance, rtol=0.5, atol=1e-6)


@pytest.mark.parametrize(
    "cls, kwargs",
    [pair for pair in _TABLE if pair[0].has_rsample and pair[0] not in _NO_GRADIENT],
    ids=lambda v: v.__name__ if isinstance(v, type) else "-".join(v),
)
def test_rsample_has_gradients(cls: Any, kwargs: dict[str, Any], device: str) -> None:
    parameters = _move(kwargs, device, gradient=True)
    cls(**parameters).rsample((3,)).sin().sum().backward()
    for name, v in parameters.items():
        assert torch.isfinite(v.grad).all().item(), name


def _pairs() -> list[tuple[Any, Any]]:
    cases = dict(zip((cls for cls, _ in _TABLE), (kwargs for _, kwargs in _TABLE)))
    return [pair for pair in _KL_REGISTRY if all(cls in cases for cls in pair)]


def test_divergences(device: str) -> None:
    cases = dict(zip((cls for cls, _ in _TABLE), (kwargs for _, kwargs in _TABLE)))
    compared = 0
    for p, q in _pairs():
        try:
            expected = kl_divergence(p(**cases[p]), q(**cases[q]))
        except (NotImplementedError, RuntimeError, ValueError):  # shapes or supports do not fit
            continue
        actual = kl_divergence(p(**_move(cases[p], device)), q(**_move(cases[q], device)))
        _same(actual, expected, f"{p.__name__}, {q.__name__}")
        compared += 1
    assert compared > 60


def test_mixtures_and_transforms(device: str) -> None:
    x = _normal(5)
    results = []
    for where in ("cpu", device):
        loc, scale = _PLACE["loc"].to(where), _PLACE["scale"].to(where)
        mixture = D.MixtureSameFamily(
            D.Categorical(logits=loc), D.Normal(loc, scale), validate_args=True
        )
        squashed = D.TransformedDistribution(
            D.Independent(D.Normal(loc, scale), 1),
            [D.transforms.TanhTransform(cache_size=1), D.transforms.AffineTransform(1.0, 2.0)],
        )
        y = (x[:3].to(where) * 0.1).tanh() * 2 + 1
        results.append(
            [mixture.log_prob(x.to(where)), mixture.cdf(x.to(where)), squashed.log_prob(y)]
        )
        assert mixture.sample((4,)).device.type == where
    _same(results[1], results[0], "log_prob")


def test_gradients_of_gamma_and_dirichlet_samples(device: str) -> None:
    """PyTorch approximates that of Dirichlet samples to a part in a thousand."""
    alpha = _draw(500, low=0.05, high=5)
    x = torch._standard_gamma(alpha)
    got = torch._standard_gamma_grad(alpha.to(device), x.to(device))
    expected = torch._standard_gamma_grad(alpha, x)
    torch.testing.assert_close(got.cpu(), expected, rtol=1e-3, atol=1e-4)
    for most in (0.3, 5.0, 100.0):
        alpha = _draw(300, 3, low=0.02, high=most)
        total = alpha.sum(-1, keepdim=True).expand_as(alpha).contiguous()
        x = torch._sample_dirichlet(alpha)
        got = torch._dirichlet_grad(x.to(device), alpha.to(device), total.to(device))
        expected = torch._dirichlet_grad(x, alpha, total)
        torch.testing.assert_close(got.cpu(), expected, rtol=5e-3, atol=1e-4)


def test_gradient_of_beta_samples_is_that_of_a_quantile(device: str) -> None:
    """Beta(a, 1) has the quantile u ** (1 / a), whose derivative by a is -x log(x) / a."""
    a = torch.linspace(0.1, 20, 50, dtype=torch.float64)
    x = torch.rand(50, dtype=torch.float64, generator=_GENERATOR) * 0.98 + 0.01
    got = torch._dirichlet_grad(x.to(device), a.to(device), (a + 1).to(device)).cpu()
    torch.testing.assert_close(got * (1 - x), -x * x.log() / a, rtol=1e-9, atol=1e-12)
