"""Compiled graphs on disk: what AOTAutograd made of a graph from Dynamo is kept beside the programs
(cache.py), so that a process that meets a graph which an earlier one met neither traces it again
nor splits it, nor walks what comes out.

PyTorch has such a cache for Inductor (torch._functorch._aot_autograd.autograd_cache): its entries
and how callables are made of them are used as they are. The keys and the storage are ours:
PyTorch's key imports Inductor's code generator, and its store has a folder of its own and no bound.

An entry holds, for each half of a graph, what a call needs (`Half`) and the graph itself, which
is read only if some program of it is not on disk (plans.py).

What is kept is found by everything that shapes it: Dynamo's graph, its nodes' marks, the inputs,
PyTorch's version and settings, and a digest of the sources of the lowerings and of this package. A
graph whose meaning is not all in that is traced in each process: one with open sizes, with custom
operators (their Python code is not in the graph), with tensors as constants, or with what PyTorch's
own rules refuse (`check_cacheable`). So is one whose entry is damaged.

Replaced, for graphs that are compiled by the backend `tpu` only:
torch._functorch._aot_autograd.autograd_cache.AOTAutogradCache.try_load, .save (2.13): where
    AOTAutograd asks for an entry (we do before it starts, so that its inputs are not made fake for
    nothing), and where it gives one.
"""

from __future__ import annotations

import dataclasses
import itertools
import logging
import pickle
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch._functorch import config as functorch_config
from torch._functorch._aot_autograd import autograd_cache
from torch._functorch._aot_autograd.runtime_wrappers import SerializableCompiledFunction
from torch._functorch._aot_autograd.schemas import AOTAutogradCacheInfo
from torch._functorch.aot_autograd import SerializableAOTDispatchCompiler, prepare_aot_config
from torch._inductor.output_code import OutputCode
from torch._subclasses import FakeTensor
from torch.nn import Parameter
from torch.utils._python_dispatch import _disable_current_modes

from torchtpu_core import cache as program_cache
from torchtpu_core import plans
from torchtpu_core.compile import recompiles

_log = logging.getLogger(__name__)

#: whose operators are PyTorch's, which its version stands for
_NAMESPACES = frozenset(("aten", "prims", "prim", "higher_order", "inductor", "quantized"))

#: of a node's description: what nothing reads after tracing, and may not pickle
_DROPPED = frozenset(
    ("nn_module_stack", "source_fn_stack", "fwd_source_fn_stack", "example_value", "from_node")
)

Runner = Callable[[list[Any]], Any]


class Unkept(Exception):
    """A graph, or a half of one, that is not kept on disk; says why."""


@dataclass
class _Compilation:
    """One graph from Dynamo on its way through AOTAutograd. backend_id: by which Dynamo finds it
    again, None where it keeps no captures; key: None until it is asked for, and for a graph that is
    not kept."""

    number: int
    whole: bool
    backend_id: str | None
    key: str | None = None


_current: ContextVar[_Compilation | None] = ContextVar("torchtpu_compilation", default=None)
_numbers = itertools.count()


@contextmanager
def compiling(whole: bool, gm: torch.fx.GraphModule) -> Iterator[None]:
    """While a graph from Dynamo is compiled; `whole`: the user wants no graph breaks."""
    _install()
    backend_id = getattr(gm, "_backend_id", None)
    kept = backend_id if torch._dynamo.config.caching_precompile else None
    token = _current.set(_Compilation(next(_numbers), whole, kept))
    gm._backend_id = kept  # type: ignore[assignment]
    # An entry holds its halves, and both of them, once the graph is compiled.
    settings = {"bundled_autograd_cache": True, "force_non_lazy_backward_lowering": True}
    try:
        with functorch_config.patch(settings):
            yield
    finally:
        gm._backend_id = backend_id  # type: ignore[assignment]
        _current.reset(token)


class Half(OutputCode):
    """What runs one of the graphs that AOTAutograd makes: takes the list of arguments, which it
    empties, and returns the list of results.

    kind: "forward", "backward" or "graph"; gm: the graph, None while it is on disk only.
    """

    def __init__(self, kind: str, gm: torch.fx.GraphModule):
        from torchtpu_core.compile import aot

        current = _current.get()
        assert current is not None
        self._boxed_call = True  # of the object: what PyTorch wraps around it copies that
        self.kind, self.gm, self.packed = kind, gm, b""
        self.key = None if current.key is None else f"{current.key} {kind}"
        recompiles.count("graphs_traced")
        self.run, self.outside = aot.runner(
            f"compiled {kind} {current.number}", gm, current.whole, self.key
        )

    def __call__(self, args: Sequence[Any]) -> Any:
        return self.run(args)  # type: ignore[arg-type]

    def prepare_for_serialization(self) -> None:
        """Makes a copy of this fit for disk: the graph as bytes, nothing that runs."""
        if self.outside is None:
            raise Unkept("an operator without a lowering runs between its programs")
        self.packed = _pack(self.gm)
        self.gm = self.run = None  # type: ignore[assignment]

    def post_compile(self, *args: Any) -> None:
        """Makes what came from disk run."""
        from torchtpu_core.compile import aot

        assert self.outside is not None  # what has none is not kept
        current = _current.get()
        number = next(_numbers) if current is None else current.number
        recompiles.count("graphs_from_disk")
        if self.key is not None:
            plans.load_ahead(self.key)
        self.run = aot.stored_runner(
            f"compiled {self.kind} {number}", self.outside, self.graph, self.key
        )

    def graph(self) -> torch.fx.GraphModule:
        """The graph, read from its bytes."""
        return _unpack(self.packed)

    def set_triton_bundle(self, triton_bundle: Any) -> None:
        """There is none."""


def compiler(kind: str) -> Any:
    """What AOTAutograd calls with a graph of a kind (of `Half`)."""

    def compile_(gm: torch.fx.GraphModule, example_inputs: Sequence[Any]) -> Half:
        return Half(kind, gm)

    current = _current.get()
    kept = current is not None and current.key is not None
    return SerializableAOTDispatchCompiler(Half, compile_) if kept else compile_


def _pack(gm: torch.fx.GraphModule) -> bytes:
    from torch.fx._graph_pickler import GraphPickler, Options

    options = Options(ops_filter=None, node_metadata_key_filter=lambda k: k not in _DROPPED)
    return GraphPickler.dumps(gm, options)


def _unpack(data: bytes) -> torch.fx.GraphModule:
    from torch._subclasses import FakeTensorMode
    from torch.fx._graph_pickler import GraphPickler
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

    with _disable_current_modes():
        gm = GraphPickler.loads(data, FakeTensorMode(shape_env=ShapeEnv()))
    assert isinstance(gm, torch.fx.GraphModule)
    return gm


# ---- keys ----------------------------------------------------------------------------------------


def _refusal(gm: torch.fx.GraphModule, example_inputs: Sequence[Any]) -> str | None:
    """Why a graph from Dynamo is not kept on disk; None if it may be."""
    if not isinstance(gm, torch.fx.GraphModule):
        return "its inputs are nested"
    if any(isinstance(n, torch.SymInt) for x in example_inputs for n in _numbers_of(x)):
        return "it has open sizes"
    for module in gm.modules():
        if any(isinstance(v, torch.Tensor) for v in vars(module).values()):
            return "it has a tensor as a constant"
        for node in module.graph.nodes if isinstance(module, torch.fx.GraphModule) else ():
            space = _namespace(node.target)
            if space is not None and space not in _NAMESPACES:
                return f"it has the custom operator {node.target}"
    return None


def _numbers_of(x: Any) -> Sequence[Any]:
    return x.shape if isinstance(x, torch.Tensor) else (x,)


def _namespace(target: Any) -> str | None:
    if isinstance(target, torch._ops.OpOverload):
        return target.namespace
    if isinstance(target, torch._ops.OpOverloadPacket):
        return target._qualified_op_name.split("::")[0]
    return None


def _settings(gm: torch.fx.GraphModule) -> Any:
    """What of PyTorch's state shapes a traced graph."""
    autocast = [
        (device, torch.get_autocast_dtype(device))
        for device in torch._C._autocast_supported_devices()
        if torch.is_autocast_enabled(device)
    ]
    return (
        torch.is_grad_enabled(),
        torch.is_inference_mode_enabled(),
        autocast,
        torch.are_deterministic_algorithms_enabled(),
        torch.utils.deterministic.fill_uninitialized_memory,  # type: ignore[attr-defined]
        torch.get_default_dtype(),
        torch.get_default_device(),
        functorch_config.save_config(),
        autograd_cache._collect_saved_tensors_hooks_fx_wrap_cache_hashes(gm),
        autograd_cache._collect_context_fn_hashes(gm),
        autograd_cache._get_custom_estimator_solver_uuids(functorch_config),
    )


def _described(x: Any) -> Any:
    """What of an input is part of a key."""
    if type(x) in (bool, int, float, str, type(None)):
        return type(x).__name__, x
    if type(x) not in (torch.Tensor, Parameter, FakeTensor) or x.layout is not torch.strided:
        raise Unkept(f"it has an input of the type {type(x)}")
    storage = x.untyped_storage().nbytes(), x.storage_offset(), tuple(x.shape), x.stride()
    flags = (x.requires_grad, x.is_leaf, x.is_conj(), x.is_neg(), x.is_inference())
    return str(x.dtype), str(x.device), storage, flags, isinstance(x, Parameter)


def _sharing(gm: torch.fx.GraphModule, inputs: Sequence[Any]) -> list[int]:
    """For each tensor among the inputs, the first one that has the same storage."""
    nodes = gm.graph.find_nodes(op="placeholder")
    given = inputs[len(inputs) - len(nodes) :]
    real = [*inputs[: len(inputs) - len(nodes)]]
    for node, x in zip(nodes, given):
        if isinstance(x, FakeTensor):  # what it stands for tells whether it shares
            x = node.meta["grapharg"].example
        real.append(x)
    first: dict[Any, int] = {}
    tensors = ((i, x) for i, x in enumerate(real) if isinstance(x, torch.Tensor))
    return [first.setdefault(x.untyped_storage()._cdata, i) for i, x in tensors]


#: of a module from Dynamo: what differs from process to process, or is described otherwise
_ASIDE = ("_graph", "_code", "meta", "compile_subgraph_reason", "_param_name_to_source",
          "_backend_id")  # fmt: skip


def _module(module: torch.nn.Module, pickler: Any) -> Any:
    """What of a module, without those inside it, is part of a key."""
    if not isinstance(module, torch.fx.GraphModule):
        return pickler.get_hash(module)
    held = {k: v for k, v in vars(module).items() if k not in _ASIDE}
    tensors = [
        (name, x if x is None else _described(x))
        for kind in ("_parameters", "_buffers")
        for name, x in held.pop(kind).items()
    ]
    held["_modules"] = list(held["_modules"])
    code = module.graph.python_code("self")
    names = sorted(pickler._format_global_for_cache_key(k, v) for k, v in code.globals.items())
    # What a region wrote on its nodes (precision.py) is not in the code.
    marks = [
        (i, repr(n.meta["custom"]))
        for i, n in enumerate(module.graph.nodes)
        if n.meta.get("custom")
    ]
    return tensors, code.src, names, marks, pickler.get_hash(held)


def _key(gm: torch.fx.GraphModule, inputs: Sequence[Any], config: Any, whole: bool) -> str:
    """The key of a graph from Dynamo; raises for one that is not kept."""
    autograd_cache.check_cacheable(gm)
    pickler = autograd_cache.AOTAutogradCachePickler(gm)
    modules = [(name, _module(m, pickler)) for name, m in gm.named_modules()]
    sources = [s and s.name for s in config.aot_autograd_arg_pos_to_source or ()]
    numbers = config.static_input_indices, config.num_params_buffers, config.dynamic_shapes
    described = [_described(x) for x in inputs], _sharing(gm, inputs)
    parts = whole, modules, sources, numbers, described, _settings(gm)
    return program_cache.ProgramCache.key("traced graph", plans.makers().encode(), repr(parts))


# ---- entries -------------------------------------------------------------------------------------


def find(gm: torch.fx.GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any] | None:
    """The callable of a graph from Dynamo that is being compiled, if it is kept on disk."""
    current = _current.get()
    assert current is not None
    why = _refusal(gm, example_inputs)
    if why is not None or torch.compiler.config.force_disable_caches:
        _log.info("not kept on disk: %s", why)
        return None
    try:
        params, _, _, inputs, _, config = prepare_aot_config(
            gm, example_inputs, None, keep_inference_input_mutations=True, ignore_shape_env=False
        )
        current.key = _key(gm, inputs, config, current.whole)
    except Exception as error:  # as in PyTorch: whatever is wrong with a key, the graph is traced
        _log.info("not kept on disk: %s", error)
        return None
    payload = program_cache.default_cache().get(current.key)
    if payload is None:
        return None
    try:
        entry = pickle.loads(payload)
        _give_dynamo(entry)
        entry = entry.wrap_post_compile(inputs, config, autograd_cache.create_fx_config())
    except Exception as error:
        _log.info("a kept graph cannot be used: %s", error)
        return None
    run = SerializableCompiledFunction(entry, lambda: pickle.loads(payload))

    def forward(*args: Any) -> Any:
        return run([*params, *args])

    forward.serialize = run.serialize_fn  # type: ignore[attr-defined]
    return torch._dynamo.disable(forward, reason="a compiled graph")


def _give_dynamo(entry: Any) -> None:
    """Lets Dynamo keep its capture of the graph that is being compiled, if it is told to."""
    current = _current.get()
    if current is not None and current.backend_id is not None:
        from torchtpu_core.compile import captures

        captures.give(current.backend_id, entry)


def _save(key: str, entry: Any) -> None:
    try:
        with _disable_current_modes():
            entry.pre_save()
            _give_dynamo(entry)
            payload = pickle.dumps(entry, protocol=pickle.HIGHEST_PROTOCOL)
        program_cache.default_cache().put(key, payload)
    except Exception as error:  # a cache never fails a program
        _log.info("not kept on disk: %s", error)


@cache
def _install() -> None:
    """Puts the replacements in place, once."""
    target = autograd_cache.AOTAutogradCache
    try_load, save = target.try_load, target.save

    def our_try_load(mod: Any, args: Any, config: Any, *rest: Any, **options: Any) -> Any:
        current = _current.get()
        if current is None:
            return try_load(mod, args, config, *rest, **options)
        if current.key is None:
            return None, config
        info = AOTAutogradCacheInfo(current.key, time.time_ns(), forward_symints=[])
        return None, dataclasses.replace(config, cache_info=info)

    def our_save(key: str, entry: Any, remote: bool) -> None:
        if _current.get() is None:
            save(key, entry, remote)
        else:
            _save(key, entry)

    target.try_load = staticmethod(our_try_load)  # type: ignore[method-assign, assignment]
    target.save = staticmethod(our_save)  # type: ignore[method-assign]
