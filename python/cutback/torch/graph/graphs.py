"""Analyses PyTorch's joint graphs: storages of tensors, nodes of the backward, reads of memory
after writes, and nodes that must run before the forward returns."""

from __future__ import annotations

import operator
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import fx
from torch._functorch._aot_autograd.descriptors import (
    InputMutationAOTOutput,
    PlainAOTOutput,
    SubclassGetAttrAOTInput,
    SubclassGetAttrAOTOutput,
)
from torch._guards import TracingContext
from torch._inductor import config

from ...problem import ONCE
from . import ops, storages
from .dropout import remaking_scale
from .packed_ops import unpacked
from .sizes import hint

if TYPE_CHECKING:
    from torch._functorch._aot_autograd.descriptors import AOTInput, AOTOutput
    from torch.fx.node import Argument, Target

_aten = torch.ops.aten
_BATCH_NORM = _aten._native_batch_norm_legit_functional.default
_BATCH_NORM_BACKWARD = _aten.native_batch_norm_backward.default
_RESIZE = "inductor.resize_storage_bytes_.default"
_WAITS = frozenset({"_c10d_functional.wait_tensor.default", "c10d_functional.wait_tensor.default"})
"""Ops that return their argument, although their shape functions make a new tensor."""
_NUMBERS = (torch.SymInt, torch.SymFloat, torch.SymBool, int, float, bool)


class Masked(NamedTuple):
    """The float result of a ``native_dropout`` for which ``x * mask * scale`` has the same bits
    (:mod:`graph.dropout`)."""

    x: fx.Node
    mask: fx.Node
    scale: float


class Tensor(NamedTuple):
    """One tensor of a node."""

    position: int | None  # index in the tuple that the node returns; None if the node is the tensor
    storage: int
    val: torch.Tensor
    bytes: int


class OneMemory(NamedTuple):
    """The storages of a removed node and of the node that replaces it. Views of the former remain
    in the graph, and their ``meta["val"]`` still refers to its storage."""

    gone: torch.UntypedStorage
    kept: torch.UntypedStorage


class UnsupportedGraphError(NotImplementedError):
    """Raised for a graph that this version cannot plan; the text names the node and the way out.

    >>> try:
    ...     step = cutback.torch.compile(model, budget=0.5, fullgraph=True)
    ...     loss = step(x).sum()
    ... except cutback.torch.UnsupportedGraphError as error:
    ...     print(error)
    """


class OverwrittenReadError(UnsupportedGraphError):
    """Raised if the backward reads memory that the forward overwrites later in the graph."""

    def __init__(self, node: fx.Node, sources: Sequence[fx.Node]) -> None:
        super().__init__(
            f"{node.name} ({location(node)}): the backward reads an input that the forward "
            "overwrites; clone the input first"
        )
        self.node = node
        self.sources = sources
        """The node's inputs that are in that memory."""


def is_tangent(node: fx.Node) -> bool:
    """True if a placeholder is an input of the backward."""
    return "tangents" in node.name


def is_number(node: fx.Node) -> bool:
    """True if the node's value is a size or another number."""
    return isinstance(node.meta.get("val"), _NUMBERS)


def _leaves(value: Argument) -> Iterator[Argument]:
    if isinstance(value, (list, tuple)):
        for item in value:
            yield from _leaves(item)
    else:
        yield value


def nodes_in(arguments: Argument) -> list[fx.Node]:
    """Returns the nodes among arguments, each once."""
    return list(dict.fromkeys(n for n in _leaves(arguments) if isinstance(n, fx.Node)))


def ends(gm: fx.GraphModule) -> tuple[list[Argument], list[AOTOutput | None]]:
    """Returns the flat outputs of a graph and their descriptors (None if PyTorch gave none)."""
    node = next(iter(gm.graph.find_nodes(op="output")))
    outputs = list(_leaves(node.args[0]))
    descs = list(_leaves(node.meta.get("desc", ())))
    return outputs, descs if len(descs) == len(outputs) else [None] * len(outputs)


def attribute(gm: fx.GraphModule, path: str) -> Any:
    """Returns the object that a ``get_attr`` node refers to."""
    value: Any = gm
    for part in path.split("."):
        value = getattr(value, part)
    return value


@lru_cache(maxsize=4096)
def _path(source: str) -> str:
    """Converts Dynamo's ``L['self']._modules['layers']._modules['0']`` to ``"layers.0"``."""
    path = source.replace("._modules['", ".").replace("']", "").replace("L['", "")
    return path.removeprefix("self").removeprefix("fn").lstrip(".")


@lru_cache(maxsize=1024)
def _line(trace: str) -> str:
    """Returns the last line of a stack trace as ``"model.py:12"``."""
    start = trace.rfind('File "')
    if start < 0:
        return ""
    end = trace.find('"', start + 6)
    stop = trace.find(",", end + 8)
    name = trace[start + 6 : end]
    return f"{name[name.rfind('/') + 1 :]}:{trace[end + 8 : stop]}"


def module_path(node: fx.Node) -> str:
    """Returns the innermost module of a node, if known: ``"layers.0.mlp"``."""
    stack = node.meta.get("nn_module_stack") or node.meta.get("fwd_nn_module_stack")
    return _path(str(next(reversed(stack.values()))[0])) if stack else ""


def location(node: fx.Node) -> str:
    """Returns the innermost source line and module: ``"model.py:12 (layers.0.mlp)"``."""
    at, path = _line(node.meta.get("stack_trace") or ""), module_path(node)
    return f"{at} ({path})" if at and path else at or path


def eliminate_dead_code(graph: fx.Graph) -> None:
    """Eliminates dead code like PyTorch, but checks only nodes without users for effects."""
    random = TracingContext.try_get() is None or config.fallback_random
    graph.eliminate_dead_code(lambda node: bool(node.users) or node.is_impure(random))


class Reader:
    """Reads a graph: one pass over the nodes, then their order."""

    def __init__(
        self, gm: fx.GraphModule, num_fwd_outputs: int, merged: Sequence[OneMemory] = ()
    ) -> None:
        self.gm = gm
        self.nodes = [n for n in gm.graph.nodes if n.op != "output"]
        self.outputs, self.descs = ends(gm)
        self.num_fwd_outputs = num_fwd_outputs
        self.storage_bytes: list[int] = []
        self.static: list[bool] = []
        self.tensors: dict[fx.Node, list[Tensor]] = {}
        self.reads: dict[fx.Node, dict[int, int]] = {}  # storages a node reads -> most bytes read
        self.late: set[fx.Node] = set()  # nodes that can run only in the backward
        self.after: dict[fx.Node, list[fx.Node]] = {}  # last writers into memory that a node reads
        self.masked: dict[fx.Node, Masked] = {}
        self.again: dict[fx.Node, tuple[Argument, ...]] = {}  # arguments of a run in the backward
        calls = {n: n.target for n in self.nodes if n.op == "call_function"}
        kinds = ops.learn(calls.values())
        self.kinds = {n: kinds[target] for n, target in calls.items()}
        self._writes = {n for n, kind in self.kinds.items() if kind.mutable}
        self._impure: dict[Target, bool] = {}
        self._ids: dict[int, int] = {}  # maps the address of a fake tensor's storage to an id
        self._memory: list[int] = []  # address of each id
        # storages are kept alive, so that addresses stay unique
        self._kept: list[torch.UntypedStorage | OneMemory] = [*merged]
        self._same: dict[int, int] = {}  # address -> address of the storage that replaces it
        for gone, kept in merged:
            a, b = self._address(gone), self._address(kept)
            if a != b:
                self._same[a] = b

    # ---- storages and phases ------------------------------------------------------------------

    def read(self) -> None:
        """Fills in the tables.

        Raises:
            UnsupportedGraphError: a tensor cannot be planned.
        """
        for node in self.nodes:
            reads: dict[int, int] = {}
            self.reads[node] = reads
            if node.op == "placeholder":
                self._check_placeholder(node)
            for source in node.all_input_nodes:
                if source in self.late:
                    self.late.add(node)
                for t in self.tensors[source]:
                    reads[t.storage] = max(t.bytes, reads.get(t.storage, 0))
            self._read_tensors(node)
        self._order_memory()
        self._find_dropouts()

    def _check_placeholder(self, node: fx.Node) -> None:
        if "fwd_seed" in node.name or "fwd_base_offset" in node.name or "bwd_seed" in node.name:
            raise UnsupportedGraphError(
                f"{node.name}: graphs with functionalised random numbers are not supported; set "
                "torch._functorch.config.functionalize_rng_ops = False"
            )
        if is_tangent(node):
            self.late.add(node)

    def _read_tensors(self, node: fx.Node) -> None:
        val = node.meta.get("val")
        if node.op == "get_attr" and val is None:
            val = attribute(self.gm, str(node.target))
        if node.op == "call_function" and self.kinds[node].name in _WAITS:
            self._share_memory(val, node.args[0].meta["val"])
        if isinstance(val, torch.Tensor):
            # a sparse gradient is made in the backward and returned: its bytes do not count
            sparse = val.layout is not torch.strided and node in self.late
            handed_out = sparse and node.op == "call_function"
            self.tensors[node] = [] if handed_out else [self._tensor(node, None, val, set())]
        elif isinstance(val, (list, tuple)):
            made: set[int] = set()
            self.tensors[node] = [
                self._tensor(node, i, v, made)
                for i, v in enumerate(val)
                if isinstance(v, torch.Tensor)
            ]
        else:
            self.tensors[node] = []
            if val is None and node.op == "call_function" and node.users:
                raise UnsupportedGraphError(
                    f"{node.name} ({node.target}): the graph does not say what it returns "
                    '(no meta["val"]); trace it with fake tensors'
                )

    def _address(self, memory: torch.UntypedStorage) -> int:
        address: int = memory._cdata
        while address in self._same:
            address = self._same[address]
        return address

    def _share_memory(self, result: torch.Tensor, given: torch.Tensor) -> None:
        """Treats the memory of a result as the memory of an argument."""
        memory = result.untyped_storage()
        new, old = self._address(memory), self._address(given.untyped_storage())
        if new != old:
            self._kept.append(memory)
            self._same[new] = old

    def _tensor(
        self, node: fx.Node, index: int | None, val: torch.Tensor, made: set[int]
    ) -> Tensor:
        if val.layout is not torch.strided:
            raise UnsupportedGraphError(
                f"{node.name} ({location(node)}): a tensor of layout {val.layout}; only dense "
                "(strided) tensors can be planned. Keep it out of the compiled part"
            )
        memory = val.untyped_storage()
        address = self._address(memory)
        id = self._ids.get(address)
        known = id is not None and (self.static[id] or id in made or id in self.reads[node])
        if id is not None and (is_tangent(node) or not known):
            # An op that reads no such memory allocates its own. So does a tangent: the tangent of
            # an overwritten input is traced with the input itself in its place.
            same = [s for s in self.reads[node] if self._memory[s] == address]
            id = same[0] if same else None
        if id is None:
            id = self._ids[address] = len(self.storage_bytes)
            self._memory.append(address)
            self._kept.append(memory)
            self.storage_bytes.append(storages.bytes_of(node, index, val, self._memory_of))
            self.static.append(
                node.op == "get_attr" or (node.op == "placeholder" and not is_tangent(node))
            )
            made.add(id)
        return Tensor(index, id, val, hint(val.numel()) * val.element_size())

    def _memory_of(self, node: fx.Node) -> int:
        return self.storage_bytes[self.tensors[node][0].storage]

    def written_by(self, node: fx.Node) -> set[int]:
        """Returns the storages that the node writes into."""
        if node not in self._writes:
            return set()
        args, kwargs = node.args, node.kwargs
        given = [
            kwargs.get(k) if isinstance(k, str) else args[k] if k < len(args) else None
            for k in self.kinds[node].writes
        ]
        return {t.storage for n in nodes_in(given) for t in self.tensors[n]}

    def acts(self, node: fx.Node) -> bool:
        """True if the call does more than return a function of its arguments."""
        if node.op != "call_function" or node.target is operator.getitem:
            return False
        kind = self.kinds[node]
        flags = ONCE.intersection(kind.flags)
        if kind.rate is not None and ops.rate_of(node.args, node.kwargs, kind.rate) == 0:
            flags -= {"random_stateful"}
        nothing = not self.tensors[node] and not is_number(node)
        return bool(kind.mutable or flags or nothing or self.is_impure(node))

    def is_impure(self, node: fx.Node) -> bool:
        """True if PyTorch says that the call has effects."""
        if not isinstance(node.target, torch._ops.OpOverload):
            return bool(node.is_impure(impure_random=False))
        known = self._impure.get(node.target)
        if known is None:
            known = self._impure[node.target] = bool(node.is_impure(impure_random=False))
        return known

    def _order_memory(self) -> None:
        """Finds which nodes read memory after which writes, and the nodes that belong to the
        backward although no tangent reaches them: those that act there (writes, effects, draws),
        and those that read memory there which the backward writes, or which the forward has written
        earlier. In the forward they would read other values."""
        early = self._needed_early()
        recorded = set(self.nodes[forward_ends(self.nodes) :]) - early
        theirs = [n for n in self.nodes if n in self._writes and (n in recorded or n in self.late)]
        written = {s for n in theirs for s in self.written_by(n)}
        writers: dict[int, fx.Node] = {}
        freed: dict[int, fx.Node] = {}
        for node in self.nodes:
            if node.op != "call_function":
                continue
            reads = self.reads[node]
            last = dict.fromkeys(writers[s] for s in reads if s in writers)
            if node in early:
                last = {w: None for w in last if w not in self.late}
            else:
                inputs = {*node.all_input_nodes, *last}
                if not self.late.isdisjoint(inputs) or (
                    node in recorded and (last or not written.isdisjoint(reads) or self.acts(node))
                ):
                    self.late.add(node)
            if last:
                self.after[node] = list(last)
            for s in self.written_by(node):
                writers[s] = node
            if writers:
                self._check_freed(node, freed)

    def rewritten(self) -> frozenset[fx.Node]:
        """Returns the tensors in memory of inputs that the backward writes into. A node that reads
        them cannot run again."""
        written = {s for n in self._writes & self.late for s in self.written_by(n)}
        inputs = [n for n in self.nodes if n.op == "placeholder"]
        found = {t.storage for n in inputs for t in self.tensors[n]} & written
        return frozenset(n for n in self.nodes if any(t.storage in found for t in self.tensors[n]))

    def witnesses(self) -> dict[fx.Node, list[fx.Node]]:
        """Returns, for each node that shares memory with inputs or with results of the forward,
        these inputs and results (including itself). The caller may write into that memory, which
        their version counters show."""
        seen: dict[int, list[fx.Node]] = {}
        inputs = [n for n in self.nodes if n.op == "placeholder" and not is_tangent(n)]
        results = [n for n in self.outputs[: self.num_fwd_outputs] if isinstance(n, fx.Node)]
        for node in dict.fromkeys((*inputs, *results)):
            for t in self.tensors[node]:
                seen.setdefault(t.storage, []).append(node)
        found = {}
        for node in self.nodes:
            others = {n: None for t in self.tensors[node] for n in seen.get(t.storage, ())}
            if others:
                found[node] = list(others)
        return found

    def returned_views(self) -> dict[fx.Node, int]:
        """Returns the results of the function that are views of memory made by the graph, with
        their positions. The new value of an overwritten input is copied into that input, so nothing
        outside refers to its memory."""
        ends = list(zip(self.outputs, self.descs, strict=True))[: self.num_fwd_outputs]
        results = [(n, d) for n, d in ends if isinstance(n, fx.Node)]
        copied = {t.storage for n, d in results if _overwritten_by(d) for t in self.tensors[n]}
        found = {}
        for node, desc in results:
            mine = {t.storage for t in self.tensors[node]}
            views = mine and mine <= self.reads[node].keys() and mine.isdisjoint(copied)
            if isinstance(desc, PlainAOTOutput) and views and not any(self.static[s] for s in mine):
                found[node] = desc.idx
        return found

    def _is_view(self, node: fx.Node) -> bool:
        """True if the node only returns views of its arguments."""
        mine = self.tensors[node]
        return bool(mine) and all(t.storage in self.reads[node] for t in mine)

    def _stored_in(self, storages: set[int], node: fx.Node) -> list[fx.Node]:
        """Returns those inputs of a node that are in one of these storages."""
        return [
            source
            for source in node.all_input_nodes
            if not storages.isdisjoint(t.storage for t in self.tensors[source])
        ]

    def _check_freed(self, node: fx.Node, freed: dict[int, fx.Node]) -> None:
        """Raises an error if a node reads memory that the graph made and then freed: nothing
        outside the graph could fill it again."""
        if self.kinds[node].name == _RESIZE:
            for s in self.written_by(node):
                freed.pop(s, None)
                if node.args[1] == 0 and not self.static[s] and s not in self._returned():
                    freed[s] = node
            return
        if not freed or self._is_view(node):
            return
        for s in freed.keys() & self.reads[node].keys():
            raise UnsupportedGraphError(
                f"{node.name} ({location(node)}) reads memory that {freed[s].name} "
                f"({location(freed[s])}) has freed by resizing its storage to 0 bytes; keep the "
                "tensor, or free it after its last use, which may be in the backward"
            )

    def _returned(self) -> set[int]:
        """Returns the storages of the forward's results."""
        outputs = self.outputs[: self.num_fwd_outputs]
        return {t.storage for n in outputs if isinstance(n, fx.Node) for t in self.tensors[n]}

    def _needed_early(self) -> set[fx.Node]:
        """Returns the nodes that forward outputs need, and those that PyTorch assigns to the
        forward."""
        outputs = self.outputs[: self.num_fwd_outputs]
        needed = {n for n in outputs if isinstance(n, fx.Node)}
        for node in reversed(self.nodes):
            if node.meta.get("partitioner_tag") == "must_be_in_forward":
                needed.add(node)
            if node in needed:
                needed.update(node.all_input_nodes)
        return needed

    def _find_dropouts(self) -> None:
        dropouts = self.gm.graph.find_nodes(op="call_function", target=_aten.native_dropout.default)
        for node in dropouts:
            if len(node.args) < 3 or node.args[2] is not True:
                continue
            parts: dict[Argument, list[fx.Node]] = {0: [], 1: []}
            for user in node.users:
                if user.target is operator.getitem:
                    parts[user.args[1]].append(user)
            if not (len(parts[0]) == 1 == len(parts[1]) and len(node.users) == 2):
                continue
            (result,), (mask,) = parts.values()
            if (scale := remaking_scale(node.args[1], node.args[0].meta["val"])) is not None:
                self.masked[result] = Masked(node.args[0], unpacked(mask), scale)

    def find_batch_norms(self) -> None:
        """Finds batch norms in training. They may run again because they normalise with statistics
        of their input only. They also read running statistics, which are overwritten when the
        forward ends, and return new ones. A run in the backward gets the weight in place of the
        running statistics, and nothing reads the statistics that it computes."""
        for node in self.gm.graph.find_nodes(op="call_function", target=_BATCH_NORM):
            x, weight, bias, mean, variance, training, *rest = node.args
            if training is not True or not isinstance(weight, fx.Node) or node in self.late:
                continue
            if any(n.op != "placeholder" or is_tangent(n) for n in (mean, variance)):
                continue
            if _layout(weight) == _layout(mean) == _layout(variance) and self._statistics_end(node):
                self.again[node] = (x, weight, bias, weight, weight, training, *rest)

    def _statistics_end(self, node: fx.Node) -> bool:
        """True if only the caller and the derivative, which ignores them, read the new
        statistics."""
        for part in node.users:
            if part.target is not operator.getitem or part.args[1] in (0, 1, 2):
                continue
            for user in part.users:
                derivative = user.target is _BATCH_NORM_BACKWARD and user.args[7] is True
                if user.op != "output" and not derivative:
                    return False
        return all(user.target is operator.getitem for user in node.users)

    # ---- order --------------------------------------------------------------------------------

    def overwritten(self) -> dict[int, fx.Node]:
        """Returns the inputs that the caller overwrites after the forward, as a map from the
        position of the forward output with the new value to the placeholder."""
        by_desc = {n.meta["desc"]: n for n in self.nodes if n.meta.get("desc") is not None}
        found = {}
        for k, desc in enumerate(self.descs[: self.num_fwd_outputs]):
            if desc is None:
                raise UnsupportedGraphError(
                    f"forward output {k}: PyTorch does not say what it is (no descriptors), so "
                    "overwritten inputs cannot be identified. It does in graphs of aot_autograd "
                    "and torch.compile, but not inside torch.compiler.nested_compile_region, and "
                    "not for some results that are tensor subclasses or sparse: take these out"
                )
            source = _overwritten_by(desc)
            if source is None:
                continue
            target = by_desc.get(source)
            if target is None:
                raise UnsupportedGraphError(
                    f"forward output {k} overwrites {source.expr()}, which is not an input "
                    "of the graph; write only into tensors that are passed to the model directly"
                )
            found[k] = target
        return found

    def split(self, overwritten: dict[int, fx.Node]) -> tuple[list[fx.Node], list[fx.Node]]:
        """Returns the nodes before and after the start of the backward, in the graph's order."""
        acting = (i for i, n in enumerate(self.nodes) if n in self.late and n.op != "placeholder")
        end = min(forward_ends(self.nodes), next(acting, len(self.nodes)))
        early = set(self.nodes[:end])
        wanted = self._wanted_early(overwritten)
        for node in reversed(self.nodes):
            if node in wanted:
                wanted.update(node.all_input_nodes)
        for node in wanted:
            if node in self.late:
                raise UnsupportedGraphError(
                    f"{node.name} ({location(node)}) depends on a gradient, but the forward "
                    "returns it or a value computed from it"
                )
        early |= wanted
        forward = [n for n in self.nodes if n in early and n not in self.late]
        # draws of the backward are not replaced
        kept = {v: m for v, m in self.masked.items() if {v, m.mask}.isdisjoint(self.late)}
        self.masked = {v: m for v, m in kept.items() if v in early and m.mask in early}
        return forward, [n for n in self.nodes if n not in early or n in self.late]

    def _wanted_early(self, overwritten: dict[int, fx.Node]) -> set[fx.Node]:
        """Returns the nodes that must run in the forward, without their inputs."""
        wanted = {n for n in self.outputs[: self.num_fwd_outputs] if isinstance(n, fx.Node)}
        end = len(self.nodes)
        changed = {t.storage: end for n in overwritten.values() for t in self.tensors[n]}
        for i, node in enumerate(self.nodes):
            written = self.written_by(node)
            if written and node not in self.late:
                wanted.add(node)
                for s in written:
                    changed[s] = max(i, changed.get(s, i))
        for i, node in enumerate(self.nodes):
            if node.op != "call_function":
                if node not in self.late:
                    wanted.add(node)
            elif is_number(node) and node not in self.late:
                wanted.add(node)
            elif not changed.keys().isdisjoint(self.reads[node]):
                if node not in self.late:
                    wanted.add(node)
                elif not self.written_by(node) and not self._is_view(node):
                    gone = {s for s in self.reads[node] if changed.get(s, -1) > i}
                    if gone:
                        raise OverwrittenReadError(node, self._stored_in(gone, node))
        return wanted


def _overwritten_by(desc: AOTOutput | None) -> AOTInput | None:
    """Returns the descriptor of the input (or the part of a tensor subclass) whose new value a
    forward output is, or None."""
    if isinstance(desc, InputMutationAOTOutput):
        return desc.mutated_input
    if isinstance(desc, SubclassGetAttrAOTOutput):
        base = _overwritten_by(desc.base)
        return None if base is None else SubclassGetAttrAOTInput(base, desc.attr)
    return None


def forward_ends(nodes: Sequence[fx.Node]) -> int:
    """Returns the position at which PyTorch began to record the backward. Nodes from there on
    belong to the backward, except those that the forward needs (parts of regenerated views, copies
    into inputs at the end). PyTorch marks every node of the forward, but not every node of the
    backward: operations of an ``autograd.Function`` have no mark."""
    marked = [i for i, n in enumerate(nodes) if n.meta.get("partitioner_tag") == "is_forward"]
    if marked:
        return marked[-1] + 1
    return next((i for i, n in enumerate(nodes) if _in_backward(n)), len(nodes))


def _layout(node: fx.Node) -> tuple[torch.Size, torch.dtype, torch.device]:
    val = node.meta["val"]
    return val.shape, val.dtype, val.device


def _in_backward(node: fx.Node) -> bool:
    return node.op != "placeholder" and node.meta.get("partitioner_tag") in (
        "is_backward",
        "must_be_in_backward",
    )
