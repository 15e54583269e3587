"""Ahead-of-time compilation by libtpu for TPUs that are not attached."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from torchtpu_core import plugin

pytestmark = pytest.mark.skipif(plugin.libtpu_path() is None, reason="libtpu is not installed")

_CODE = """
    from tests.pjrt import programs
    from torchtpu_core import _C, plugin
    libtpu = _C.pjrt.load_plugin(str(plugin.libtpu_path()))
    topology = libtpu.topology({name!r})
    assert topology.platform_name == "tpu"
    kinds = {{d.kind for d in topology.devices}}
    assert len(topology.devices) == 4 and len(kinds) == 1
    program = topology.compile(programs.TRANSPOSE_AND_SUM)
    assert program.outputs == [("f32", (3, 2)), ("f32", ())]
    assert len(program.serialize()) > 1000
    stats = program.memory_stats()
    assert stats["generated_code"] > 0 and stats["outputs"] > 0
    assert topology.serialize()
    try:
        topology.compile("module {{ nonsense }}")
    except _C.PjrtError as error:
        assert "nonsense" in str(error)
        print(kinds.pop())
"""


@pytest.mark.parametrize(("name", "kind"), [("v5e:2x2", "TPU v5 lite"), ("v6e:2x2", "TPU v6 lite")])
def test_compile_for_a_topology(run_python: Callable[..., Any], name: str, kind: str) -> None:
    done = run_python(_CODE.format(name=name), **plugin.AOT_ENVIRONMENT, PYTHONPATH=".")
    assert done.stdout.strip() == kind


def test_unknown_topology_is_an_error(run_python: Callable[..., Any]) -> None:
    done = run_python(
        """
        from torchtpu_core import _C, plugin
        try:
            _C.pjrt.load_plugin(str(plugin.libtpu_path())).topology("v99:2x2")
        except _C.PjrtError as error:
            print(error)
        """,
        **plugin.AOT_ENVIRONMENT,
    )
    assert "cannot describe the topology 'v99:2x2'" in done.stdout
