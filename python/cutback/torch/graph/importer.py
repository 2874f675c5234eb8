"""Converts a joint graph of PyTorch to the planner's problem (``docs/problem.md``).

A joint graph is what AOTAutograd passes to a partitioner: forward and backward of one step in one
FX graph, functional except for trailing copies into mutated inputs. Every node becomes one op, in
the given order, with these exceptions:

- nodes that must run before the forward returns (outputs, effects, copies into inputs, sizes) come
  before the backward;
- a tangent is an op of the backward without inputs: unlike a primal, its memory belongs to the
  step;
- an input that the caller overwrites after the forward with a value that the graph returns gets a
  separate op for that (``copy_back``). So the planner knows that earlier readers of the input
  cannot run again, and that the new value lives until then;
- a leaf that takes a copy of its gradient (:mod:`graph.leaves`) has a separate op for that
  (``accumulate_grad``), after all others;
- a batch norm in training reads its input, weight and bias, but not the running statistics, so that
  it may run again after they are overwritten (:data:`Imported.again`);
- ``native_dropout`` becomes an op for its mask and an op for its result, which reads input and mask
  and may run again (:data:`Imported.masked`).

Sizes and other numbers are not values of the problem. They are computed once, in the forward.
"""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import fx

from ...planner.packed import MADE
from ...problem import ONCE, Constraint, Flag, Op, Problem, Storage, StorageFlag, Value, Work
from . import decisions, gathers, leaves, ops, packing, rerunnable, taking_over, updated
from .graphs import Masked, OneMemory, Reader, Tensor, is_tangent, location, nodes_in
from .packed_ops import PACKS, UNPACKS, drawn, unpacking
from .sizes import hint

if TYPE_CHECKING:
    from torch._functorch._aot_autograd.descriptors import AOTOutput
    from torch.fx.node import Argument

Policy = Callable[[fx.Node], Constraint | None]
"""Called for each forward node. Returns a constraint of ``docs/problem.md``, or None."""

_TYPES = {
    torch.float32: "f32", torch.float64: "f64", torch.float16: "f16", torch.bfloat16: "bf16",
    torch.int64: "i64", torch.int32: "i32", torch.int16: "i16", torch.int8: "i8",
    torch.uint8: "u8", torch.bool: "bool", torch.complex64: "c64", torch.complex128: "c128",
}  # fmt: skip
_CLASSES: dict[torch.dtype, Work] = {
    torch.float64: "f64", torch.float16: "f16", torch.bfloat16: "bf16",
}  # fmt: skip

_PLACEHOLDER: frozenset[Flag] = frozenset({"placeholder"})
_PARAMETER: frozenset[Flag] = frozenset({"placeholder", "parameter"})
_TANGENT: frozenset[Flag] = frozenset({"backward", "effect"})


class Imported(NamedTuple):
    """A problem, and the graph nodes of its op ids."""

    problem: Problem
    order: list[fx.Node | None]  # the node of each op id; None for a copy that is not in the graph
    outputs: list[fx.Node | None]  # outputs of the joint graph, forward outputs first
    descs: list[AOTOutput | None]
    num_fwd_outputs: int
    masked: dict[fx.Node, Masked]
    # arguments of a run in the backward, where they differ
    again: dict[fx.Node, tuple[Argument, ...]]
    positions: list[list[int | None]]  # for each op id, its tensors' indices in the tuple (Tensor)
    # tensors in memory of inputs that the backward writes
    rewritten: frozenset[fx.Node] = frozenset()
    copies: Mapping[int, leaves.Copied] = MappingProxyType(
        {}
    )  # gradients that leaves copy, by op id
    witnesses: Mapping[fx.Node, list[fx.Node]] = MappingProxyType(
        {}
    )  # inputs and results of the forward that a node shares memory with, by node
    returned_views: Mapping[fx.Node, int] = MappingProxyType(
        {}
    )  # positions of results that are views of memory made by the graph
    groups: tuple[str, ...] = ()  # names of the process groups of its collectives
    # True if some may run again, provided that all processes have the same plan
    may_gather_again: bool = False
    over: Mapping[fx.Node, Sequence[int]] = MappingProxyType(
        {}
    )  # positions of the arguments that a node may write its result over, by node
    updates: updated.Updates | None = None  # parameters that are stepped inside the backward

    @property
    def storages(self) -> dict[fx.Node, list[int]]:
        """The storages of each node's tensors."""
        pairs = zip(self.order, self.problem.ops, strict=True)
        return {n: [value.storage for value in op.outputs] for n, op in pairs if n is not None}


class _Writer:
    """Writes ops, values and storages in the order of the steps."""

    def __init__(
        self,
        reader: Reader,
        policy: Policy | None,
        parameters: set[fx.Node],
        pinned: set[fx.Node],
        gathered: frozenset[fx.Node] = frozenset(),
    ) -> None:
        self.r = reader
        self.gathered = gathered  # collectives that may run again, and their waits
        self.pinned = pinned  # nodes that must not run again, whatever a policy says
        self.policy = policy
        self.parameters = parameters
        self.ops: list[Op] = []
        self.order: list[fx.Node | None] = []
        self.positions: list[list[int | None]] = []
        # maps a node and an index in its tuple to a value
        self.value: dict[fx.Node, dict[int | None, int]] = {}
        self.storage_flags: list[set[StorageFlag]] = [
            {"static"} if s else set() for s in reader.static
        ]
        self.wrote: dict[fx.Node, dict[int, int]] = {}  # maps a writer and a storage to a value
        self.n_values = 0
        self.flags: dict[fx.Node, frozenset[Flag]] = {}  # flags of calls
        self.marks: list[int] = []  # values without bytes that the forward returns
        self._work: dict[str, float] = {}

    def values_of(self, node: fx.Node) -> list[int]:
        return list(self.value[node].values())

    def inputs_of(self, node: fx.Node) -> list[int]:
        """Returns the values that the op reads, then those that represent writes which must come
        before the op."""
        found = dict.fromkeys(self._arguments_of(node))
        for writer in self.r.after.get(node, ()):
            made = self.wrote.get(writer, {})
            found.update(dict.fromkeys(made[s] for s in self.r.reads[node] if s in made))
        return list(found)

    def _arguments_of(self, node: fx.Node) -> list[int]:
        masked = self.r.masked.get(node)
        if masked is not None:
            return [*self.values_of(masked.x), *self.values_of(masked.mask)]
        if node.target is operator.getitem:
            source = self.value[node.args[0]]
            if node.args[1] in source:
                return [source[node.args[1]]]
        found: dict[int, None] = {}
        again = self.r.again.get(node)
        reads = node.all_input_nodes if again is None else nodes_in(again)
        for i in reads:
            found.update(dict.fromkeys(self.value[i].values()))
        return list(found)

    def add(self, node: fx.Node) -> None:
        op = Op(node.name, "placeholder")
        tensors = self.r.tensors[node]
        if node.op == "call_function":
            tensors = self._call(node, op)
        elif is_tangent(node):
            op.kind, op.flags, op.time_ps = "tangent", _TANGENT, 0
        else:
            op.flags = _PARAMETER if node in self.parameters else _PLACEHOLDER
        self.value[node] = {}
        for t in tensors:
            self._out(op, node, t)
        written = self.r.written_by(node)
        made = {t.storage: self.value[node][t.position] for t in tensors if t.storage in written}
        for s in sorted(written - made.keys()):
            op.outputs.append(Value(s))  # written, though not returned
            made[s] = self.n_values
            self.n_values += 1
        if made:
            self.wrote[node] = made
        if self.policy is not None and node.op == "call_function" and op.outputs:
            self._constrain(node, op)
        self._push(node, op)
        if node.target in UNPACKS:
            self._made(node)

    def _push(self, node: fx.Node | None, op: Op) -> None:
        self.ops.append(op)
        self.order.append(node)
        self.positions.append([] if node is None else list(self.value[node]))

    def _out(self, op: Op, node: fx.Node, t: Tensor) -> None:
        self.value[node][t.position] = self.n_values
        self.n_values += 1
        op.outputs.append(Value(t.storage, type_of(t.val), t.bytes))

    def _call(self, node: fx.Node, op: Op) -> list[Tensor]:
        kind = self.r.kinds[node]
        tensors = self.r.tensors[node]
        op.kind, op.location = kind.name, location(node)
        op.inputs = self.inputs_of(node)
        flags: frozenset[Flag]
        if node in self.r.masked:
            op.kind, flags = ops.DROPOUT_RESULT, frozenset({"fusible"})
        else:
            if any(user in self.r.masked for user in node.users):
                tensors = [t for t in tensors if t.position == 1]  # the result is a separate op
            flags = self._flags(node, kind, tensors)
        if node in self.r.late:
            flags |= {"backward"}
        if node.target in PACKS:
            flags |= packing.runs_once(node, self.flags)
        op.flags = self.flags[node] = flags
        if "view" not in flags and tensors:
            passes = ops.passes(op.kind, tensors[0].val)
            op.bytes = passes * self._moved(node, tensors)
            if "collective" in flags:
                made = sum([t.bytes for t in tensors])
                op.bytes = gathers.sent_bytes(op.kind, op.bytes - made, made)
            op.flops = self._flops(node, kind)
            op.work = _CLASSES.get(tensors[0].val.dtype, "f32")
            packing.charge(node, op)
        elif not tensors:
            op.time_ps = 0
        return tensors

    def _flags(self, node: fx.Node, kind: ops.Kind, tensors: list[Tensor]) -> frozenset[Flag]:
        """Returns the flags of this call."""
        flags: set[Flag] = set(kind.flags)
        if kind.mutable:
            return frozenset({"mutates"})
        if kind.rate is not None and ops.rate_of(node.args, node.kwargs, kind.rate) == 0:
            flags.discard("random_stateful")  # disabled dropout draws nothing
        if "unknown" in flags and not rerunnable.held_because(node.target, node.args, node.kwargs):
            flags.discard("unknown")
            if "fusible" not in flags:
                # its arithmetic may be unknown, so it is assumed to be expensive
                flags.add("compute")
        if node in self.pinned:
            flags.add("unknown")
        if not tensors or (
            node.target is not operator.getitem and self.r.is_impure(node)
        ):  # a node without a tensor is a number or an effect
            flags.add("effect")
        if "collective" in flags:
            flags.add("effect")  # runs once, whatever the problem says about collectives
            if node in self.gathered:
                flags.discard("effect")
        read = self.r.reads[node]
        aliases = sum(t.storage in read for t in tensors)
        if aliases and aliases == len(tensors):
            return frozenset(flags - {"fusible", "reduction", "compute"} | {"view"})
        if aliases:  # a view and a new tensor: assume that the call writes, which is always safe
            flags.add("mutates")
        return frozenset(flags)

    def _moved(self, node: fx.Node, tensors: list[Tensor]) -> int:
        """Returns the bytes of all outputs and of each storage read, counted once."""
        size = self.r.storage_bytes
        read = sum([min(n, size[s]) for s, n in self.r.reads[node].items()])
        return read + sum([t.bytes for t in tensors])

    def _flops(self, node: fx.Node, kind: ops.Kind) -> float:
        if kind.flops is None:
            return 0.0
        shapes = [tuple(t.val.shape) for n in node.args if isinstance(n, fx.Node)
                  for t in self.r.tensors[n]]  # fmt: skip
        rest = [repr(a) for a in node.args if not isinstance(a, fx.Node)]
        key = f"{kind.name} {shapes} {rest} {node.kwargs}"  # equal layers repeat
        known = self._work.get(key)
        if known is None:
            known = self._work[key] = _flops(node, kind.flops)
        return known

    def _constrain(self, node: fx.Node, op: Op) -> None:
        flags = op.flags
        if self.policy is None or flags & {"backward", "view"}:
            return
        word = self.policy(node)
        if word is None or word == "free":
            return
        if word.endswith("recompute"):
            if flags & (ONCE - {"unknown"}) or node in self.pinned:
                return  # it cannot run again, whatever the constraints are
            op.flags = flags - {"unknown"}  # the user has declared that it can
        for value in op.outputs:
            value.constraint = word

    def copy_back(self, k: int, target: fx.Node, value: fx.Node) -> None:
        """Adds the caller's copy of forward output ``k`` into the input ``target``."""
        new, old = self.values_of(value), self.values_of(target)
        op = Op(
            f"copy_back_{k}", "copy_back", list(dict.fromkeys([*old, *new])),
            [Value(t.storage, bytes=t.bytes) for t in self.r.tensors[target]],
            frozenset({"mutates"}), time_ps=0,
        )  # fmt: skip
        self.n_values += len(op.outputs)
        self._push(None, op)

    def _made(self, node: fx.Node) -> None:
        """Adds an operation that needs an unpacked value in the forward (:mod:`planner.packed`)."""
        op = Op(
            f"{node.name}_made", MADE, self.values_of(node), [Value(len(self.r.storage_bytes))],
            time_ps=0,
        )  # fmt: skip
        self._add_memory(0)
        self.marks.append(self.n_values)
        self.n_values += 1
        self._push(None, op)

    def _add_memory(self, bytes: int, *flags: StorageFlag) -> None:
        self.r.storage_bytes.append(bytes)
        self.r.static.append(False)
        self.storage_flags.append(set(flags))

    def accumulate(self, copy: leaves.Copied) -> int:
        """Adds the copy that a leaf makes of its gradient. Returns the value."""
        value = self.n_values
        self.n_values += 1
        op = Op(
            f"accumulate_grad_{copy.output}", leaves.KIND, self.values_of(copy.gradient),
            [Value(len(self.r.storage_bytes), bytes=copy.bytes)], _TANGENT, time_ps=0,
        )  # fmt: skip
        self._add_memory(copy.bytes, "hold_end")
        self._push(None, op)
        return value


def type_of(tensor: torch.Tensor) -> str:
    """Returns ``"f32[8,16]"``; symbolic sizes appear as their hints."""
    shape = ",".join([str(hint(n)) for n in tensor.shape])
    kind = _TYPES.get(tensor.dtype) or str(tensor.dtype).removeprefix("torch.")
    return f"{kind}[{shape}]"


def _flops(node: fx.Node, formula: ops.Formula) -> float:
    """Returns the arithmetic of one call."""

    def value(n: fx.Node) -> Argument:
        return n.meta.get("val")

    args, kwargs = fx.map_arg(node.args, value), fx.map_arg(node.kwargs, value)
    try:
        return float(hint(formula(*args, **kwargs, out_val=node.meta["val"])))
    except (TypeError, ValueError, AssertionError, IndexError, AttributeError):
        return 0.0  # a formula for other arguments: count only the op's traffic


@dataclass(frozen=True)
class Import:
    """What is known about a joint graph in addition to its nodes."""

    static_inputs: Sequence[int] = ()
    """Positions of parameters and buffers among the primals."""
    policy: Policy | None = None
    """Constraints on forward nodes."""
    merged: Sequence[OneMemory] = ()
    """Storages that were merged (:func:`graph.duplicates.merge_duplicates`)."""
    emitted: bool = True
    """True if :mod:`graph.emitter` writes the plan's graphs. Reruns may then get other arguments
    than the first run."""
    same_kernels: bool = True
    """True if reruns give the same bits (:func:`graph.decisions.to_pin`)."""
    is_leaf: leaves.IsLeaf | None = None
    """Tells which inputs keep their gradients. None means all that have a gradient."""
    takes_over: bool = False
    """True if results may take over the memory of inputs (:mod:`graph.taking_over`), provided that
    kernels are the same."""
    updating: updated.Updating | None = None
    """Parameters that an optimizer steps inside the backward."""


def import_joint(gm: fx.GraphModule, num_fwd_outputs: int, known: Import) -> Imported:
    """Returns the planner's problem of a joint graph.

    Args:
        gm: the graph, as ``aot_autograd`` passes it to a ``partition_fn``.
        num_fwd_outputs: number of its outputs that belong to the forward.

    Raises:
        UnsupportedGraphError: the graph has sparse tensors, or cannot be split.
    """
    reader = Reader(gm, num_fwd_outputs, known.merged)
    reader.read()
    if known.emitted:
        reader.find_batch_norms()
    overwritten = reader.overwritten()
    forward, backward = reader.split(overwritten)
    primals = [n for n in reader.nodes if n.op == "placeholder" and not is_tangent(n)]
    parameters = {primals[i] for i in known.static_inputs if i < len(primals)}
    pinned = decisions.to_pin(reader, known.same_kernels)
    gathered = gathers.find(reader)
    writer = _Writer(reader, known.policy, parameters, pinned, gathered.nodes)
    for node in _dropouts_together(forward, reader.masked):
        writer.add(node)
    outputs = reader.outputs
    for k, target in overwritten.items():
        writer.copy_back(k, target, outputs[k])
    start = len(writer.ops)
    for node in _tangents_first(backward):
        writer.add(node)
    _drop_impossible_wishes(writer.ops)
    copies = leaves.copied(outputs, reader.descs, primals, _shared(reader), known.is_leaf)
    updates = None
    if known.updating is not None and known.emitted:
        updates = updated.find(reader, copies, known.updating)
    forward_outputs = [*_hold_forward(writer, set(overwritten)), *writer.marks]
    backward_outputs, copied = _hold_backward(writer, copies, updates)
    problem = _problem(writer, start, parameters, forward_outputs, backward_outputs)
    for k, leaf in () if updates is None else updates.leaves.items():
        gradient, parameter = (reader.tensors[n][0].storage for n in (outputs[k], leaf))
        problem.storages[gradient].updates = parameter
    if known.emitted and known.same_kernels and decisions.same_bits(writer.order):
        problem.reruns = "all"
    takes_over = known.emitted and known.same_kernels and known.takes_over
    over = _take_over(writer, problem) if takes_over else {}
    return Imported(
        problem, writer.order, outputs, reader.descs, num_fwd_outputs, reader.masked,
        reader.again, writer.positions, reader.rewritten(), copied, reader.witnesses(),
        reader.returned_views(), gathered.groups, bool(gathered.nodes), over, updates,
    )  # fmt: skip


def _take_over(w: _Writer, problem: Problem) -> dict[fx.Node, list[int]]:
    """Lists in the problem which inputs ops may write over. Returns the positions of these
    arguments, by node."""
    r = w.r
    kept = taking_over.held_elsewhere(r)
    kept.update(s for s, flags in enumerate(w.storage_flags) if flags)
    kept.update(t.storage for n in r.nodes if is_tangent(n) for t in r.tensors[n])
    kept.update(t.storage for n in r.outputs if isinstance(n, fx.Node) for t in r.tensors[n])
    found = {}
    for node, op in zip(w.order, w.ops, strict=True):
        if node is None or len(op.outputs) != 1 or op.flags & {"view", "mutates", "placeholder"}:
            continue
        at = taking_over.offers(r, node, kept) if node not in r.again else []
        if at:
            found[node] = at
            op.over = tuple(op.inputs.index(w.value[node.args[k]][None]) for k in at)
    problem.keep_saved = bool(found)
    return found


def _shared(r: Reader) -> Callable[[fx.Node], bool]:
    """Returns a function that is true if something besides its leaf holds a gradient: the caller
    has its memory, or a result is a view of it. A view holds its base tensor."""
    results = {n for n in r.outputs if isinstance(n, fx.Node) and r.tensors[n]}
    nodes = Counter(r.tensors[n][0].storage for n in results)

    def shared(node: fx.Node) -> bool:
        storage = r.tensors[node][0].storage
        is_view = storage in r.reads[node]
        return r.static[storage] or (nodes[storage] > 1 and not is_view)

    return shared


def with_wishes(graph: Imported, policy: Policy) -> Problem:
    """Returns the problem of a graph with other constraints than those it was imported with."""
    rows = []
    for node, op in zip(graph.order, graph.problem.ops, strict=True):
        outputs = [replace(value, constraint="free") for value in op.outputs]
        rows.append(replace(op, outputs=outputs))
        if node is None or node.op != "call_function" or op.flags & {"backward", "view"}:
            continue
        word = policy(node)
        if word is None or word == "free" or (word.endswith("recompute") and op.flags & ONCE):
            continue
        for value in outputs:
            value.constraint = word
    _drop_impossible_wishes(rows)
    return replace(graph.problem, ops=rows)


def _drop_impossible_wishes(ops: list[Op]) -> None:
    """Saves values that cannot be recomputed, whatever a policy says, because one of their inputs
    is overwritten later, or because something writes into their own memory. For ops that draw or
    act, :meth:`_Writer._constrain` has already done so."""
    storage: list[int] = []  # storage of each value
    maker: dict[int, int] = {}  # maps a storage to the op that allocates it
    writer: dict[int, int] = {}  # maps a storage to the last op that writes into it
    for i, op in enumerate(ops):
        for value in op.outputs:
            s = value.storage
            storage.append(s)
            if maker.setdefault(s, i) != i and "mutates" in op.flags:
                writer[s] = i
    if not writer:
        return

    def stays(i: int) -> bool:
        made = any(maker[v.storage] == i and v.storage in writer for v in ops[i].outputs)
        return made or any(writer.get(storage[v], -1) > i for v in ops[i].inputs)

    for op in ops:
        for value in op.outputs:
            if value.constraint == "must_recompute" and stays(maker[value.storage]):
                value.constraint = "free"


def _dropouts_together(forward: list[fx.Node], masked: dict[fx.Node, Masked]) -> Iterator[fx.Node]:
    """Orders each dropout before its mask, and the mask before the dropout's result. If the mask
    may be packed, its unpacked form comes before the result."""
    parts = {drawn(m.mask): (value, unpacking(m.mask)) for value, m in masked.items()}
    later = {*masked, *parts, *(n for _, added in parts.values() for n in added)}
    for node in forward:
        if node in later:
            continue
        yield node
        for user in node.users:
            if user in parts and user.args[0] is node:
                value, added = parts[user]
                yield from (user, *added, value)


def _tangents_first(backward: list[fx.Node]) -> list[fx.Node]:
    return sorted(backward, key=lambda n: n.op != "placeholder")


def _hold_forward(w: _Writer, overwritten: set[int]) -> list[int]:
    """Holds the results of the forward to the end of the step. Returns their values."""
    r = w.r
    values: dict[int, None] = {}
    for k, node in enumerate(r.outputs[: r.num_fwd_outputs]):
        if isinstance(node, fx.Node):
            values.update(dict.fromkeys(w.values_of(node)))
            if k not in overwritten:
                _hold(w, node)
    return list(values)


def _hold_backward(
    w: _Writer, copies: list[leaves.Copied], updates: updated.Updates | None
) -> tuple[list[int], dict[int, leaves.Copied]]:
    """Holds the results of the backward, or the copies that leaves make of them. Returns the
    values, and the copies by op id. A copied gradient is freed after its copy, unless the forward
    made it: then the graph holds the result of its first run. The order of the leaves is unknown,
    so the copies are in the order with the highest peak: first those that are larger than the freed
    gradient, and the largest last. A gradient that ends at an update inside the backward is neither
    held nor a result."""
    r = w.r
    ends = {} if updates is None else updates.leaves
    replaced = {c.output: c for c in copies}
    for k, node in enumerate(r.outputs[r.num_fwd_outputs :], r.num_fwd_outputs):
        if k not in ends and isinstance(node, fx.Node) and not (k in replaced and node in r.late):
            _hold(w, node)
    for node in r.nodes:  # backward() makes the gradient of a scalar and holds it to its end
        if is_tangent(node) and any(t.val.dim() == 0 for t in r.tensors[node]):
            _hold(w, node)

    def memory(copy: leaves.Copied) -> int:
        return r.tensors[copy.gradient][0].storage

    def stays(copy: leaves.Copied) -> bool:
        return r.static[memory(copy)] or "hold_end" in w.storage_flags[memory(copy)]

    def place(copy: leaves.Copied) -> tuple[bool, int]:
        return not copy.stays and copy.bytes <= r.storage_bytes[memory(copy)], copy.bytes

    made, by_op = {}, {}
    for copy in sorted([c._replace(stays=stays(c)) for c in copies], key=place):
        by_op[len(w.ops)] = copy
        made[copy.output] = w.accumulate(copy)
    values: dict[int, None] = {}
    for k, node in enumerate(r.outputs[r.num_fwd_outputs :], r.num_fwd_outputs):
        if isinstance(node, fx.Node) and k not in ends:
            values.update(dict.fromkeys([made[k]] if k in made else w.values_of(node)))
    return list(values), by_op


def _problem(
    w: _Writer,
    start: int,
    parameters: set[fx.Node],
    forward_outputs: list[int],
    backward_outputs: list[int],
) -> Problem:
    r = w.r
    static = {t.storage for n in parameters for t in r.tensors[n]}
    return Problem(
        w.ops,
        [
            Storage(size, frozenset(flags))
            for size, flags in zip(r.storage_bytes, w.storage_flags, strict=True)
        ],
        forward_outputs,
        backward_outputs,
        start,
        static_bytes=sum(r.storage_bytes[s] for s in static),
    )


def _hold(w: _Writer, node: fx.Node) -> None:
    for t in w.r.tensors[node]:
        if not w.r.static[t.storage]:
            w.storage_flags[t.storage].add("hold_end")
