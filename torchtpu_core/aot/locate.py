"""Where the ops of a traced function come from: the user's line and the module that was running,
also for those of the backward pass, which belong to the forward op whose gradient they compute.

Python is asked at each torch function (a TorchFunctionMode); modules say when they run (hooks);
each autograd node remembers both and restores them when it runs.
"""

from __future__ import annotations

import contextlib
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from traceback import extract_tb
from typing import Any

import torch
from torch.fx import traceback
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

#: files whose frames are no user's
_INTERNAL = (
    str(Path(torch.__file__).parent),
    str(Path(__file__).parents[1]),
    sysconfig.get_path("stdlib") + "/contextlib.py",
)

_MODULE = "nn_module_stack"


def preserving() -> Any:
    """While this is entered, traced nodes take the metadata that `recording` sets."""
    return traceback.preserve_node_meta()


@contextlib.contextmanager
def recording(modules: dict[str, torch.nn.Module]) -> Iterator[None]:
    """Sets the place of all that runs meanwhile. `modules`: by the prefix of their names."""
    stack: list[str] = []
    handles = []
    for prefix, root in modules.items():
        for name, module in root.named_modules():
            handles += _follow(module, prefix + name, stack)
    try:
        with _Recorder(stack):
            yield
    finally:
        for handle in handles:
            handle.remove()
        _put(None, "")


def _follow(module: torch.nn.Module, name: str, stack: list[str]) -> list[Any]:
    def enter(*_: Any) -> None:
        stack.append(name)

    def leave(*_: Any) -> None:
        stack.pop()

    return [
        module.register_forward_pre_hook(enter, prepend=True),
        module.register_forward_hook(leave, always_call=True),
    ]


class _Recorder(TorchFunctionMode):
    def __init__(self, stack: list[str]):
        super().__init__()
        self.stack = stack
        self.nodes: dict[int, Any] = {}  # by id; kept alive, so that ids stay theirs

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if getattr(func, "__name__", "") in ("__get__", "__set__"):
            return func(*args, **(kwargs or {}))
        where, name = _user_line(), self.stack[-1] if self.stack else ""
        before = traceback.current_meta.get("stack_trace"), _module_of(traceback.current_meta)
        _put(where, name)
        try:
            out = func(*args, **(kwargs or {}))
        finally:
            _put(*before)
        for t in pytree.tree_leaves(out):
            if isinstance(t, torch.Tensor) and t.grad_fn is not None:
                self._mark(t.grad_fn, where, name)
        return out

    def _mark(self, node: Any, where: str | None, name: str) -> None:
        """Makes the gradients of all that this function recorded name its place."""
        todo = [node]
        while todo:
            node = todo.pop()
            if node is None or id(node) in self.nodes:
                continue
            self.nodes[id(node)] = node
            node.register_prehook(lambda _: _put(where, name, backward=True))
            todo += [n for n, _ in node.next_functions]


def _put(where: str | None, name: str, backward: bool = False) -> None:
    meta = traceback.current_meta
    if where is None:
        meta.pop("stack_trace", None)
    else:
        meta["stack_trace"] = where
    shown = f"{name}/backward".lstrip("/") if backward else name
    if shown:
        meta[_MODULE] = {shown: (shown, "")}
    else:
        meta.pop(_MODULE, None)


def _module_of(meta: dict[str, Any]) -> str:
    stack = meta.get(_MODULE)
    return next(reversed(stack)) if stack else ""


def _user_line() -> str | None:
    """The innermost frame outside of PyTorch, as a traceback shows it."""
    frame = sys._getframe(2)
    while frame is not None:
        file = frame.f_code.co_filename
        if not file.startswith((*_INTERNAL, "<")):  # "<string>": generated code
            return f'  File "{file}", line {frame.f_lineno}, in {frame.f_code.co_name}'
        frame = frame.f_back  # type: ignore[assignment]
    return None


def user_line(error: BaseException) -> str:
    """The innermost frame outside of PyTorch in an exception's traceback, "" if there is none."""
    found = [
        f for f in extract_tb(error.__traceback__) if not f.filename.startswith((*_INTERNAL, "<"))
    ]
    return f'  File "{found[-1].filename}", line {found[-1].lineno}' if found else ""


def location(node: torch.fx.Node) -> str:
    """A node's place as an MLIR location: "module/op" at the user's file and line."""
    op = getattr(node.target, "_opname", None) or str(node.name)
    stack = node.meta.get(_MODULE)
    module = ""
    if stack:
        last = next(reversed(stack.values()))
        module = (last[0] if isinstance(last, tuple) else str(last)).removeprefix("L['self'].")
    name = _quoted(f"{module}/{op}" if module else op)
    file, line = _file_line(node.meta.get("stack_trace"))
    return f'"{name}"("{_quoted(file)}":{line}:0)' if file else f'"{name}"'


def _file_line(trace: str | None) -> tuple[str, int]:
    lines = [x for x in (trace or "").splitlines() if x.lstrip().startswith('File "')]
    if not lines:
        return "", 0
    file, _, rest = lines[-1].lstrip()[len('File "') :].partition('", line ')
    return file, int(rest.split(",")[0])


def _quoted(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"')
