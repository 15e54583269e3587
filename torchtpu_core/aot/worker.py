"""The process in which libtpu runs: `python -m torchtpu_core.aot.worker`.

Reads one JSON request a line from standard input and answers with one JSON line on the descriptor
that TORCHTPU_AOT_REPLY names; programs and results travel as files. libtpu may end this process;
who started it notices (pool.py).
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

#: the environment variable with the number of the descriptor for answers
REPLY = "TORCHTPU_AOT_REPLY"


def main() -> None:
    """Answers requests until standard input ends."""
    with os.fdopen(int(os.environ.pop(REPLY)), "w") as reply:
        server = _Server()
        print(json.dumps({"ok": True}), file=reply, flush=True)
        for line in sys.stdin:
            print(json.dumps(server.answer(json.loads(line))), file=reply, flush=True)


class _Server:
    def __init__(self) -> None:
        from torchtpu_core import _C, plugin

        path = plugin.libtpu_path()
        assert path is not None, "pool.py looks for libtpu before it starts a worker"
        self.pjrt = _C.pjrt
        self.error = _C.PjrtError
        self.libtpu = _C.pjrt.load_plugin(str(path))
        self.topologies: dict[str, Any] = {}

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        """The reply to one request; errors of libtpu are replies too."""
        import torch

        try:
            return {"ok": True, **getattr(self, "_" + request["do"])(request)}
        except torch.OutOfMemoryError as e:
            return {"ok": False, "error": "memory", "message": str(e)}
        except self.error as e:
            return {"ok": False, "error": getattr(e, "code", "error"), "message": str(e)}

    def _find(self, name: str) -> Any:
        if name not in self.topologies:
            self.topologies[name] = self.libtpu.topology(name)
        return self.topologies[name]

    def _topology(self, request: dict[str, Any]) -> dict[str, Any]:
        topology = self._find(request["topology"])
        devices = topology.devices
        return {
            "devices": len(devices),
            "kind": devices[0].kind,
            "memory": devices[0].attributes["device_memory_bytes_limit"],
            "version": topology.platform_version,
        }

    def _compile(self, request: dict[str, Any]) -> dict[str, Any]:
        """request: topology, program (a file), options (of CompileOptions), and `out`, a folder for
        the executable, or None where only the verdict is of interest.
        """
        topology = self._find(request["topology"])
        program = Path(request["program"]).read_bytes()
        start = time.perf_counter()
        compiled = topology.compile(program, self.pjrt.CompileOptions(**request["options"]))
        seconds = time.perf_counter() - start
        if request["out"] is not None:
            Path(request["out"], "executable").write_bytes(compiled.serialize())
        return {
            "seconds": seconds,
            "memory": compiled.memory_stats(),
            "cost": compiled.cost_analysis(),
            "outputs": compiled.outputs,
            "fingerprint": compiled.fingerprint.hex(),
            "version": topology.platform_version,
            "target": topology.fingerprint,
        }


if __name__ == "__main__":
    main()
