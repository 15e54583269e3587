"""Operators that run by a round trip over the host, with the reason.

The dispatcher copies the arguments to the CPU, runs the CPU kernel and copies the results back; the transfers are counted. A
lowering of the same operator takes precedence over this table.
"""

_SHAPE = "the shape of the result depends on the data"

#: canonical operator name -> why it is not a program
REASONS: dict[str, str] = {
    "aten::nonzero.default": _SHAPE,
    "aten::masked_select.default": _SHAPE,
    "aten::_unique.default": _SHAPE,
    "aten::_unique2.default": _SHAPE,
    "aten::unique_dim.default": _SHAPE,
    "aten::unique_consecutive.default": _SHAPE,
    "aten::unique_dim_consecutive.default": _SHAPE,
    "aten::bincount.default": _SHAPE,
    "aten::repeat_interleave.Tensor": _SHAPE,
}
