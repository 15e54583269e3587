"""Contractions, gathers and scatters."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from torchtpu_core.stablehlo import bf16, host_kernels, wide
from torchtpu_core.stablehlo import literals as lit
from torchtpu_core.stablehlo.reduction import Reductions
from torchtpu_core.stablehlo.types import TensorType
from torchtpu_core.stablehlo.value import Value


class Contractions(Reductions):
    """Products, gathers and scatters."""

    @contextmanager
    def products(self, precision: str) -> Iterator[None]:
        """Within, dots and convolutions have this precision."""
        outer, self.precision = self.precision, precision
        try:
            yield
        finally:
            self.precision = outer

    def _product(
        self, x: Value, y: Value, multiply: Callable[[Value, Value, str, str], Value], dtype: str
    ) -> Value:
        """A dot or convolution, `multiply(x, y, element type, printed attribute)`, with its
        precision: that of the builder for f32 and c64; other types have no less than their own,
        which for bf16 is the default: at any other, a TPU's compiler does not fuse the product with
        what follows.
        """
        single = x.dtype in ("f32", "complex<f32>")
        level = self.precision if single else "DEFAULT" if x.dtype == "bf16" else "HIGHEST"
        p = f"#stablehlo<precision {level}>"
        config = f"precision_config = [{p}, {p}]"

        def one(x: Value, y: Value) -> Value:
            return multiply(x, y, x.dtype if single else dtype, config)

        if single and self.emulate:
            return bf16.product(self, x, y, one, self.precision)
        return one(x, y)

    def _is_wide(self, x: Value) -> bool:
        """Whether a product with `x` has to be put in other words for the compiler."""
        return x.dtype in wide.INTEGERS and self.module.target != "cpu"

    def dot_general(
        self,
        x: Value,
        y: Value,
        contract: tuple[Sequence[int], Sequence[int]],
        batch: tuple[Sequence[int], Sequence[int]] = ((), ()),
        out_dtype: str | None = None,
    ) -> Value:
        """Result dims: batch, x's free, y's free. `out_dtype` may be wider than the operands'
        (accumulation type).
        """
        if self._is_wide(x):
            return wide.dot_general(self, x, y, contract, batch)
        cx, cy = (list(c) for c in contract)
        bx, by = (list(c) for c in batch)
        shape = [x.shape[i] for i in bx]
        shape += [s for i, s in enumerate(x.shape) if i not in cx and i not in bx]
        shape += [s for i, s in enumerate(y.shape) if i not in cy and i not in by]
        attrs = (
            f"dot_dimension_numbers = #stablehlo.dot<lhs_batching_dimensions = {lit.int_list(bx)}, "
            f"rhs_batching_dimensions = {lit.int_list(by)}, "
            f"lhs_contracting_dimensions = {lit.int_list(cx)}, "
            f"rhs_contracting_dimensions = {lit.int_list(cy)}>"
        )

        def multiply(x: Value, y: Value, dtype: str, config: str) -> Value:
            if dtype == x.dtype and host_kernels.takes_dot(self, x, y, contract, batch):
                return host_kernels.dot_general(self, x, y, shape, contract, batch)
            return self._one("stablehlo.dot_general", [x, y], dtype, shape, f"{attrs}, {config}")

        return self._product(x, y, multiply, out_dtype or x.dtype)

    def convolution(
        self,
        x: Value,
        w: Value,
        dims: tuple[str, str, str],
        out_shape: Sequence[int],
        strides: Sequence[int],
        padding: Sequence[tuple[int, int]],
        lhs_dilation: Sequence[int],
        rhs_dilation: Sequence[int],
        feature_groups: int = 1,
        batch_groups: int = 1,
        out_dtype: str | None = None,
    ) -> Value:
        """dims: e.g. ("bf01", "oi01", "bf01") - a letter or a spatial number for each dimension."""
        if self._is_wide(x):
            return wide.convolution(
                self, x, w, dims, out_shape, strides, padding, lhs_dilation, rhs_dilation,
                feature_groups, batch_groups,
            )  # fmt: skip
        lhs, rhs, out = (", ".join(d) for d in dims)
        attrs = (
            f"dimension_numbers = #stablehlo.conv<[{lhs}]x[{rhs}]->[{out}]>, "
            f"window_strides = {lit.ints(strides)}, padding = {lit.pairs(padding)}, "
            f"lhs_dilation = {lit.ints(lhs_dilation)}, rhs_dilation = {lit.ints(rhs_dilation)}, "
            f"window_reversal = {lit.bools([False] * len(strides))}, "
            f"feature_group_count = {feature_groups} : i64, "
            f"batch_group_count = {batch_groups} : i64"
        )

        def multiply(x: Value, w: Value, dtype: str, config: str) -> Value:
            return self._one(
                "stablehlo.convolution", [x, w], dtype, out_shape, f"{attrs}, {config}"
            )

        return self._product(x, w, multiply, out_dtype or x.dtype)

    # ---- gather and scatter ---------------------------------------------------------------------

    def gather(
        self,
        x: Value,
        indices: Value,
        out_shape: Sequence[int],
        offset_dims: Sequence[int],
        collapsed: Sequence[int],
        start_index_map: Sequence[int],
        slice_sizes: Sequence[int],
        index_vector_dim: int,
        operand_batching: Sequence[int] = (),
        indices_batching: Sequence[int] = (),
        sorted_: bool = False,
    ) -> Value:
        attrs = (
            f"dimension_numbers = #stablehlo.gather<offset_dims = {lit.int_list(offset_dims)}, "
            f"collapsed_slice_dims = {lit.int_list(collapsed)}, "
            f"operand_batching_dims = {lit.int_list(operand_batching)}, "
            f"start_indices_batching_dims = {lit.int_list(indices_batching)}, "
            f"start_index_map = {lit.int_list(start_index_map)}, "
            f"index_vector_dim = {index_vector_dim}>, slice_sizes = {lit.ints(slice_sizes)}, "
            f"indices_are_sorted = {'true' if sorted_ else 'false'}"
        )
        return self._one("stablehlo.gather", [x, indices], x.dtype, out_shape, attrs)

    def scatter(
        self,
        xs: Sequence[Value],
        indices: Value,
        updates: Sequence[Value],
        body: Callable[..., Any],
        update_window_dims: Sequence[int],
        inserted_window_dims: Sequence[int],
        scatter_dims_to_operand_dims: Sequence[int],
        index_vector_dim: int,
        input_batching: Sequence[int] = (),
        indices_batching: Sequence[int] = (),
        unique: bool = False,
        sorted_: bool = False,
    ) -> list[Value]:
        """body(current.., update..) -> new, on scalars. Out-of-range updates are dropped."""
        attrs = (
            "scatter_dimension_numbers = #stablehlo.scatter<"
            f"update_window_dims = {lit.int_list(update_window_dims)}, "
            f"inserted_window_dims = {lit.int_list(inserted_window_dims)}, "
            f"input_batching_dims = {lit.int_list(input_batching)}, "
            f"scatter_indices_batching_dims = {lit.int_list(indices_batching)}, "
            f"scatter_dims_to_operand_dims = {lit.int_list(scatter_dims_to_operand_dims)}, "
            f"index_vector_dim = {index_vector_dim}>, "
            f"indices_are_sorted = {'true' if sorted_ else 'false'}, "
            f"unique_indices = {'true' if unique else 'false'}"
        )
        scalars = [TensorType(x.dtype, ()) for x in xs]
        region = self.region(scalars + scalars, body)
        return self.op(
            "stablehlo.scatter", [*xs, indices, *updates], [x.type for x in xs], attrs, [region]
        )
