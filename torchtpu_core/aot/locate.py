"""Where the ops of a traced function come from: the user's line, the module that was running and
the region of torch.tpu.precision that was open, also for those of the backward pass, which belong
to the forward op whose gradient they compute.

Python is asked at each torch function (a TorchFunctionMode); modules say when they run (hooks);
each autograd node remembers all three and restores them when it runs.
"""

from __future__ import annotations

import contextlib
import sys
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from traceback import extract_tb
from typing import Any

import torch
from torch.fx import traceback
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

from torchtpu_core import precision

#: files whose frames are no user's
_INTERNAL = (
    str(Path(torch.__file__).parent),
    str(Path(__file__).parents[1]),
    sysconfig.get_path("stdlib") + "/contextlib.py",
)

#: losses and optimizers that stand where a user's would
_MODELS = str(Path(__file__).with_name("models.py"))


def _internal(file: str) -> bool:
    """Whether a file is no user's; "<string>" is generated code."""
    return file.startswith((*_INTERNAL, "<")) and file != _MODELS


_MODULE = "nn_module_stack"
#: torch functions that run autograd nodes, whose Python code may call further torch functions
_BACKWARD = (torch.Tensor.backward, torch.autograd.backward, torch.autograd.grad)


def preserving() -> Any:
    """While this is entered, traced nodes take the metadata that `recording` sets."""
    return traceback.preserve_node_meta()


@contextlib.contextmanager
def recording(modules: dict[str, torch.nn.Module]) -> Iterator[None]:
    """Sets the place of all that runs meanwhile. `modules`: by the prefix of their names."""
    names = {
        module: prefix + name
        for prefix, root in modules.items()
        for name, module in root.named_modules()
    }
    recorder = _Recorder(names)
    handles = [h for m, name in names.items() for h in _follow(m, name, recorder.stack)]
    _recorders.append(recorder)
    try:
        with recorder:
            yield
    finally:
        _recorders.remove(recorder)
        for handle in handles:
            handle.remove()
        _put(_Place())


def _follow(module: torch.nn.Module, name: str, stack: list[str]) -> list[Any]:
    def enter(*_: Any) -> None:
        stack.append(name)

    def leave(*_: Any) -> None:
        stack.pop()

    return [
        module.register_forward_pre_hook(enter, prepend=True),
        module.register_forward_hook(leave, always_call=True),
    ]


_recorders: list[_Recorder] = []


def belongs(tensor: torch.Tensor, module: torch.nn.Module) -> None:
    """What computes the gradient of `tensor` is the module's, while places are recorded: for a
    module that is one autograd function, of which no torch function is called.
    """
    for recorder in _recorders:
        if module in recorder.names and tensor.grad_fn is not None:
            recorder._mark(tensor.grad_fn, _Place(_user_line(), recorder.names[module]))


@dataclass(frozen=True)
class _Place:
    """line: as a traceback shows it; module: "" outside of any; role: what the module was doing, if
    not its forward pass; region: of torch.tpu.precision, a mode.
    """

    line: str | None = None
    module: str = ""
    role: str = ""
    region: str | None = None


class _Recorder(TorchFunctionMode):
    def __init__(self, names: dict[torch.nn.Module, str]):
        super().__init__()
        self.names = names
        self.stack: list[str] = []  # of the modules that run
        self.nodes: dict[int, Any] = {}  # by id; kept alive, so that ids stay theirs
        self.place = _Place()
        #: how many modules and regions were open where what runs now began
        self.outer = 0, len(precision.open_regions())
        #: in a backward pass: the place of the torch function that runs it
        self.caller: _Place | None = None

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if getattr(func, "__name__", "") in ("__get__", "__set__"):
            return func(*args, **(kwargs or {}))
        before = self.place
        here = self._here()
        self._go(here)
        try:
            with self._backward(here) if func in _BACKWARD else contextlib.nullcontext():
                out = func(*args, **(kwargs or {}))
        finally:
            self._go(before)
        for t in pytree.tree_leaves(out):
            if isinstance(t, torch.Tensor) and t.grad_fn is not None:
                self._mark(t.grad_fn, here)
        return out

    def _here(self) -> _Place:
        """The place of the torch function that is called."""
        now, (modules, regions) = self.place, self.outer
        module, role = now.module, now.role
        if len(self.stack) > modules:
            module, role = self.stack[-1], "recomputed" if self.caller else ""
        opened = precision.open_regions()[regions:]
        line = _user_line()
        if self.caller is not None and line == self.caller.line:  # nothing between it and the node
            line = now.line
        return _Place(line, module, role, opened[-1] if opened else now.region)

    def _go(self, place: _Place) -> None:
        self.place = place
        _put(place)

    @contextlib.contextmanager
    def _backward(self, caller: _Place) -> Iterator[None]:
        """While a torch function runs autograd nodes."""
        before = self.outer, self.caller
        self.outer = len(self.stack), len(precision.open_regions())
        self.caller = caller
        try:
            yield
        finally:
            self.outer, self.caller = before

    def _mark(self, node: Any, place: _Place) -> None:
        """Makes the gradients of all that this function recorded name its place."""

        def arrive(_: Any) -> None:
            region = place.region or (self.caller.region if self.caller else None)
            self._go(_Place(place.line, place.module, "backward", region))
            # Python code in the node (a checkpointed block, the backward of a Function) is followed
            # as well. The engine gives each node the modes that it was itself started with, without
            # this one, which the torch function suspends: so it is entered, and left, once a node.
            self.__enter__()

        todo = [node]
        while todo:
            node = todo.pop()
            if node is None or id(node) in self.nodes:
                continue
            self.nodes[id(node)] = node
            node.register_prehook(arrive)
            todo += [n for n, _ in node.next_functions]


def _put(place: _Place) -> None:
    """Makes `place` that of the nodes that are traced from now on."""
    meta = traceback.current_meta
    shown = f"{place.module}/{place.role}".strip("/")
    region = dict(meta.get("custom") or {})
    region.pop(precision.MARK, None)
    if place.region is not None:
        region[precision.MARK] = place.region
    for key, value in (
        ("stack_trace", place.line),
        (_MODULE, {shown: (shown, "")} if shown else None),
        ("custom", region or None),
    ):
        if value is None:
            meta.pop(key, None)
        else:
            meta[key] = value


def _user_line() -> str | None:
    """The innermost frame outside of PyTorch, as a traceback shows it."""
    frame = sys._getframe(2)
    while frame is not None:
        file = frame.f_code.co_filename
        if not _internal(file):
            return f'  File "{file}", line {frame.f_lineno}, in {frame.f_code.co_name}'
        frame = frame.f_back  # type: ignore[assignment]
    return None


def user_line(error: BaseException) -> str:
    """The innermost frame outside of PyTorch in an exception's traceback, "" if there is none."""
    found = [f for f in extract_tb(error.__traceback__) if not _internal(f.filename)]
    return f'  File "{found[-1].filename}", line {found[-1].lineno}' if found else ""


def in_backward(node: torch.fx.Node) -> bool:
    """Whether a node that was recorded is part of a backward pass."""
    return _shown(node).rsplit("/", 1)[-1] in ("backward", "recomputed")


def _shown(node: torch.fx.Node) -> str:
    """The module, and what it was doing, of a node that was recorded or exported."""
    stack = node.meta.get(_MODULE)
    if not stack:
        return ""
    last = next(reversed(stack.values()))
    return (last[0] if isinstance(last, tuple) else str(last)).removeprefix("L['self'].")


def named(name: str) -> str:
    """A name as an MLIR location."""
    return f'"{_quoted(name)}"'


def location(node: torch.fx.Node) -> str:
    """A node's place as an MLIR location: "module/op" at the user's file and line."""
    op = getattr(node.target, "_opname", None) or str(node.name)
    module = _shown(node)
    name = named(f"{module}/{op}" if module else op)
    file, line = _file_line(node.meta.get("stack_trace"))
    return f"{name}({named(file)}:{line}:0)" if file else name


def _file_line(trace: str | None) -> tuple[str, int]:
    """The innermost line of a user's, or without one of PyTorch's, in a traceback."""
    found = ("", 0)
    for line in (trace or "").splitlines():
        if not line.lstrip().startswith('File "'):
            continue
        file, _, rest = line.lstrip()[len('File "') :].partition('", line ')
        if not found[0] or not _internal(file):
            found = file, int(rest.split(",")[0])
    return found


def _quoted(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"')
