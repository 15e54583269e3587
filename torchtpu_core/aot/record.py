"""The programs of a script: each that it builds while it runs here is kept, to be compiled for a
TPU afterwards.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from torchtpu_core.aot.lower import Program, for_tpu
from torchtpu_core.compile.graph_program import GraphProgram
from torchtpu_core.lowering import program


@contextlib.contextmanager
def programs() -> Iterator[list[Program]]:
    """The list of what eager ops and compiled graphs build meanwhile, equal programs once. To be
    entered before the process's first op on the device: what was built before is not built again.
    """
    found: dict[str, Program] = {}
    kept: list[Program] = []

    def keep(name: str, plan: Any) -> Any:
        if plan.text and plan.text not in found:
            found[plan.text] = Program(name, plan.text, (), {})
            kept.append(found[plan.text])
        return plan

    op, graph = program.build, GraphProgram.build

    def build(name: str, overload: str, args: Any) -> Any:
        return keep(f"{name}.{overload}".rstrip("."), op(name, overload, args))

    def build_graph(self: GraphProgram, *args: Any) -> Any:
        return keep("compiled graph", graph(self, *args))

    program.build, GraphProgram.build = build, build_graph  # type: ignore[method-assign,assignment]
    try:
        with for_tpu():  # a form that XLA's CPU plugin runs as well
            yield kept
    finally:
        program.build, GraphProgram.build = op, graph  # type: ignore[method-assign]
