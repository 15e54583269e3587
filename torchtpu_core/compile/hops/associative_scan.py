"""associative_scan by combining neighbours: log2(n) levels, each one batched call of the combine
function, so that the depth is logarithmic and no round waits for the one before.

The recursion is that of a work-efficient parallel prefix (Blelloch, "Prefix Sums and Their
Applications", 1990), and of PyTorch's eager implementation, so results round alike.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from torchtpu_core.compile.hops import handles
from torchtpu_core.lowering import decompose
from torchtpu_core.stablehlo import Value

if TYPE_CHECKING:
    from torchtpu_core.compile.control_flow import Interpreter


@handles("associative_scan")
def _associative_scan(
    walk: Interpreter, node: torch.fx.Node, combine: Any, xs: Any, extra: Any = ()
) -> Any:
    """The scans along dimension 0 of `xs`; `combine` takes one slice of each, twice."""
    b = walk.b
    shared: list[Any] = list(extra)

    def batched(left: list[Value], right: list[Value]) -> list[Value]:
        dims = (*(0 for _ in (*left, *right)), *(None for _ in shared))
        call = torch.vmap(combine, in_dims=dims)
        out = decompose.trace(b, call, [*left, *right, *shared], {}, walk.device)
        out = list(out) if isinstance(out, (list, tuple)) else [out]
        return [b.convert(v, x.dtype) for v, x in zip(out, left)]

    def scan(xs: list[Value]) -> list[Value]:
        n = xs[0].shape[0]
        if n < 2:
            return xs
        pairs = batched(
            [b.slice_dim(x, 0, 0, n - 1, 2) for x in xs], [b.slice_dim(x, 0, 1, n, 2) for x in xs]
        )
        odd = scan(pairs)
        heads = [b.slice_dim(x, 0, 0, 1) for x in xs]
        if n == 2:
            return [b.concatenate([h, o], 0) for h, o in zip(heads, odd)]
        count = (n - 1) // 2
        rest = batched(
            [b.slice_dim(x, 0, 0, count) for x in odd], [b.slice_dim(x, 0, 2, n, 2) for x in xs]
        )
        even = [b.concatenate([h, r], 0) for h, r in zip(heads, rest)]
        return [_interleave(b, e, o) for e, o in zip(even, odd)]

    return scan(list(xs))


def _interleave(b: Any, even: Value, odd: Value) -> Value:
    """even[0], odd[0], even[1], ..: `even` has as many rows as `odd`, or one more."""
    more = even.shape[0] - odd.shape[0]
    if more:
        odd = b.concatenate([odd, b.constant(0, odd.dtype, (1, *odd.shape[1:]))], 0)
    both = b.concatenate([b.unsqueeze(even, 1), b.unsqueeze(odd, 1)], 1)
    flat = b.reshape(both, (2 * even.shape[0], *even.shape[1:]))
    return b.slice_dim(flat, 0, 0, flat.shape[0] - more)
