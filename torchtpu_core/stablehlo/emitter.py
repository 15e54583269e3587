"""Printing a function: its signature, ops, regions, calls and constants."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from torchtpu_core.stablehlo.types import TensorType
from torchtpu_core.stablehlo.value import Value

if TYPE_CHECKING:
    from torchtpu_core.stablehlo.builder import Module


class Emitter:
    """Prints one function, op by op; the families of ops are its subclasses."""

    #: the program's random state, once a lowering has drawn from it (lowering/random_bits.py)
    random: Any = None

    #: printed location of the ops that follow ('"name"("file":1:0)'), or "": programs that are only
    #: run have none, so that their text does not depend on where they were written
    location: str = ""

    def __init__(self, module: Module, name: str, arg_types: Sequence[TensorType], public: bool):
        self.module, self.name, self.public = module, name, public
        self.precision, self.emulate = module.precision, module.emulate
        self._lines: list[str] = []
        self._scopes: list[dict[Any, Value]] = [{}]  # constants by block, innermost last
        self._n = 0
        self.arg_attrs: list[str] = ["" for _ in arg_types]
        self.arg_locations: dict[int, str] = {}
        self.result_attrs: dict[int, str] = {}
        self.args = [Value(self, f"%arg{i}", t.dtype, t.shape) for i, t in enumerate(arg_types)]

    def add_arg(self, t: TensorType, attrs: str = "") -> Value:
        """One more argument: the signature is printed by `finish`, so arguments may come at any
        time.
        """
        arg = Value(self, f"%arg{len(self.args)}", t.dtype, tuple(t.shape))
        self.args.append(arg)
        self.arg_attrs.append(attrs)
        return arg

    def finish(self, results: Sequence[Value]) -> None:
        """Returns `results` and adds the function to its module."""
        self._return("func.return", results)
        args = ", ".join(
            f"{a.name}: {a.type}"
            + (f" {{{t}}}" if t else "")
            + (f" loc({self.arg_locations[i]})" if i in self.arg_locations else "")
            for i, (a, t) in enumerate(zip(self.args, self.arg_attrs))
        )
        head = f"  func.func {'public' if self.public else 'private'} @{self.name}({args})"
        outs = ", ".join(
            f"{r.type} {{{self.result_attrs[i]}}}" if i in self.result_attrs else str(r.type)
            for i, r in enumerate(results)
        )
        body = "\n".join("    " + line for line in self._lines)
        self.module._set(self.name, f"{head} -> ({outs}) {{\n{body}\n  }}")

    def _return(self, op: str, results: Sequence[Value]) -> None:
        names = ", ".join(r.name for r in results)
        self._lines.append(f'"{op}"({names}) : ({", ".join(str(r.type) for r in results)}) -> ()')

    def op(
        self,
        name: str,
        operands: Sequence[Value],
        results: Sequence[TensorType],
        attrs: str = "",
        regions: Sequence[str] = (),
    ) -> list[Value]:
        """Any op by its full name ("stablehlo.add") with already printed attributes and regions."""
        outs = []
        for t in results:
            outs.append(Value(self, f"%{self._n}", t.dtype, tuple(t.shape)))
            self._n += 1
        for o in operands:
            if not isinstance(o, Value):
                raise TypeError(f"{name}: operand {o!r} is not a Value")
        lhs = ", ".join(o.name for o in outs)
        text = f"{lhs} = " if outs else ""
        text += f'"{name}"({", ".join(o.name for o in operands)})'
        if attrs:
            text += f" <{{{attrs}}}>"
        if regions:
            text += " (" + ", ".join(regions) + ")"
        text += f" : ({', '.join(str(o.type) for o in operands)}) -> "
        text += (
            str(outs[0].type)
            if len(outs) == 1
            else "(" + ", ".join(str(o.type) for o in outs) + ")"
        )
        if self.location:
            text += f" loc({self.location})"
        self._lines.append(text)
        return outs

    def _one(
        self,
        name: str,
        operands: Sequence[Value],
        dtype: str,
        shape: Sequence[int],
        attrs: str = "",
        regions: Sequence[str] = (),
    ) -> Value:
        return self.op(name, operands, [TensorType(dtype, tuple(shape))], attrs, regions)[0]

    @contextmanager
    def _block(self):
        outer, self._lines = self._lines, []
        self._scopes.append({})
        try:
            yield self._lines
        finally:
            self._lines = outer
            self._scopes.pop()

    def region(self, arg_types: Sequence[TensorType], body: Callable[..., Any]) -> str:
        """A one-block region: `body` gets the block's arguments and returns its result(s)."""
        with self._block() as lines:
            args = []
            for t in arg_types:
                args.append(Value(self, f"%{self._n}", t.dtype, tuple(t.shape)))
                self._n += 1
            out = body(*args)
            self._return("stablehlo.return", [out] if isinstance(out, Value) else list(out))
        head = ", ".join(f"{a.name}: {a.type}" for a in args)
        block = f"^bb0({head}):\n      " if args else ""
        return "{ " + block + "\n      ".join(lines) + " }"

    def call(
        self, function: str, operands: Sequence[Value], results: Sequence[TensorType]
    ) -> list[Value]:
        return self.op("func.call", operands, results, f"callee = @{function}")
