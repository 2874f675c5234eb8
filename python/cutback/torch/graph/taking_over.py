"""Lets results take over memory (``over`` in ``docs/problem.md``) in the code that runs op by op.

An elementwise op may write its result over an input that nothing reads later, and ``addmm`` may
write over the matrix that it adds a product to. PyTorch has a variant of most of these ops that
takes the result as an argument (``aten.mul.out``). It computes the same bits, and neither allocates
nor resizes if the argument has the shape, strides and type of the result. :data:`VARIANTS` lists
these ops. The importer says which inputs an op may write over (:func:`offers`), the emitter marks
the memory of each run (:class:`Memory`), and the code generator picks the variants (:func:`taken`).
The profiler runs the steps of a plan without emitted graphs, and picks variants by the same rule
(:func:`taken_by`).

Memory that crosses from forward to backward is never taken over, because autograd checks versions
and the backward may run again. The same holds for arguments, constants and results of the graph,
for memory with a view that is read later, and for memory that another library's op or a collective
makes or reads, because it may hold the memory longer.
"""

from __future__ import annotations

import operator
from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import count
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import fx

from ...problem import Problem
from .graphs import nodes_in
from .row_loss_ops import ROW_LOSS_BACKWARD, ROW_LOSS_BACKWARD_OUT

if TYPE_CHECKING:
    from torch.fx.node import Argument, Target

    from .graphs import Reader, Tensor

OFFERS = "cutback_offers"
"""Key in a node's ``meta``: positions of the arguments that it may write over."""

MEMORY = "cutback_memory"
"""Key in a node's ``meta``: the numbers of the allocations that hold its tensors. The tensors of
nodes without this key are in the memory of their inputs."""

KEPT = -1
"""The number that all allocations share which are never taken over."""
_OWN = frozenset({"aten", "prims", "cutback"})

_OUT = """
    abs acos acosh addcdiv addcmul asin asinh atan atan2 atanh bitwise_not ceil clamp clamp_max
    clamp_min cos cosh elu erf erfc exp exp2 expm1 floor frac gelu hardsigmoid hardswish hardtanh
    leaky_relu lgamma log log10 log1p log2 logical_and logical_not logical_or logical_xor maximum
    minimum mish neg reciprocal round rsqrt sigmoid sign silu sin sinh softplus sqrt square tan tanh
    threshold trunc
    add.Tensor:out copysign.Tensor:out div.Tensor:out div.Tensor_mode:out_mode mul.Tensor:out
    sub.Tensor:out bitwise_and.Tensor:Tensor_out bitwise_or.Tensor:Tensor_out
    bitwise_xor.Tensor:Tensor_out clamp.Tensor:Tensor_out clamp_max.Tensor:Tensor_out
    clamp_min.Tensor:Tensor_out fmod.Tensor:Tensor_out remainder.Tensor:Tensor_out
    eq.Tensor:Tensor_out ge.Tensor:Tensor_out gt.Tensor:Tensor_out le.Tensor:Tensor_out
    lt.Tensor:Tensor_out ne.Tensor:Tensor_out lerp.Scalar:Scalar_out lerp.Tensor:Tensor_out
    pow.Tensor_Scalar:Tensor_Scalar_out pow.Tensor_Tensor:Tensor_Tensor_out pow.Scalar:Scalar_out
    where.self:self_out xlogy.Tensor:OutTensor
"""
_GRAD_INPUT = """
    elu_backward gelu_backward hardsigmoid_backward hardtanh_backward leaky_relu_backward
    sigmoid_backward silu_backward softplus_backward tanh_backward threshold_backward
"""
_IN_PLACE = "addmm relu masked_fill.Scalar add.Scalar div.Scalar mul.Scalar sub.Scalar"


class Variant(NamedTuple):
    """The variant of an op that writes into an argument."""

    target: torch._ops.OpOverload
    keyword: str | None
    """The name of that argument, or None if it is the first one."""


def _overload(packet: str, overload: str) -> torch._ops.OpOverload | None:
    found: torch._ops.OpOverload | None = getattr(
        getattr(torch.ops.aten, packet, None), overload, None
    )
    return found


def _variants() -> Iterator[tuple[torch._ops.OpOverload, Variant]]:
    rows = []
    for word in _OUT.split():
        name, _, out = word.partition(":")
        rows.append((name, name.partition(".")[0], out or "out", "out"))
    rows += [(name, name, "grad_input", "grad_input") for name in _GRAD_INPUT.split()]
    for name in _IN_PLACE.split():
        packet, _, overload = name.partition(".")
        rows.append((name, packet + "_", overload or "default", ""))
    for name, packet, overload, keyword in rows:
        own, _, which = name.partition(".")
        op, variant = _overload(own, which or "default"), _overload(packet, overload)
        if op is not None and variant is not None:
            yield op, Variant(variant, keyword or None)
    yield ROW_LOSS_BACKWARD, Variant(ROW_LOSS_BACKWARD_OUT, "out")


def separate(problem: Problem) -> Problem:
    """Returns the problem with separate memory for each result, so that nothing is taken over.
    Shares and positions are relative to the bytes of that problem."""
    if not problem.keep_saved and not any(op.over for op in problem.ops):
        return problem
    ops = [replace(op, over=()) if op.over else op for op in problem.ops]
    return replace(problem, ops=ops, keep_saved=False)


VARIANTS: Mapping[Target, Variant] = dict(_variants())
"""The variant of each op. A variant reads an element of what it writes over before it writes that
element, and allocates nothing."""


# ---- the problem ---------------------------------------------------------------------------------


def _is_known(sizes: Iterable[Any], others: Iterable[Any]) -> bool:
    """True if sizes are equal for all values of the graph's symbols."""
    from torch.fx.experimental.symbolic_shapes import statically_known_true

    pairs = zip(sizes, others, strict=True)
    return all(a is b or statically_known_true(a == b) for a, b in pairs)


def _is_like(made: torch.Tensor, given: torch.Tensor) -> bool:
    """True if two real tensors have the same layout. False for complex tensors, because steps that
    write over them may round differently."""
    return (
        made.dtype is given.dtype
        and made.device == given.device
        and made.dim() == given.dim()
        and not (made.is_complex() or given.is_conj() or given.is_neg())
        and _is_known(made.shape, given.shape)
        and _is_known(made.stride(), given.stride())
    )


def held_elsewhere(reader: Reader) -> set[int]:
    """Returns the storages that something outside of the graph may hold: those that collectives or
    ops of other libraries make or read."""
    found: set[int] = set()
    for node in reader.nodes:
        if node.op != "call_function" or node.target is operator.getitem:
            continue
        is_own = isinstance(node.target, torch._ops.OpOverload) and node.target.namespace in _OWN
        if not is_own:
            found.update(reader.reads[node], (t.storage for t in reader.tensors[node]))
    return found


def offers(reader: Reader, node: fx.Node, kept: set[int]) -> list[int]:
    """Returns the positions of the arguments that a call may write its result over.

    Args:
        kept: storages that must not be taken over.
    """
    variant = VARIANTS.get(node.target)
    made = _tensor_of(reader, node)
    if variant is None or made is None or made.storage in reader.reads[node]:
        return []
    arguments = list(node.args) if variant.keyword else list(node.args[:1])
    return [at for at, x in enumerate(arguments) if _may_go(reader, node, x, made, kept)]


def _tensor_of(reader: Reader, node: fx.Node) -> Tensor | None:
    """Returns the tensor that a node returns, or None if it returns another kind of value."""
    tensors = reader.tensors[node]
    return tensors[0] if isinstance(node.meta.get("val"), torch.Tensor) and tensors else None


def _may_go(reader: Reader, node: fx.Node, given: Argument, made: Tensor, kept: set[int]) -> bool:
    if not isinstance(given, fx.Node):
        return False
    read, size = _tensor_of(reader, given), reader.storage_bytes
    if read is None or read.storage in kept or reader.static[read.storage]:
        return False
    if read.bytes != size[read.storage] or made.bytes != size[made.storage]:
        return False
    if read.bytes != made.bytes or reader.static[made.storage]:
        return False
    if made.storage in kept and read.storage in reader.reads[given]:
        return False  # a result of the graph must not be a view
    arguments = [*node.args, *node.kwargs.values()]
    reads = [t.storage for a in arguments for n in nodes_in(a) for t in reader.tensors[n]]
    return reads.count(read.storage) == 1 and _is_like(made.val, read.val)


# ---- runs ----------------------------------------------------------------------------------------


class Run(NamedTuple):
    """One run of an op, with numbers of allocations."""

    made: Collection[int]
    """Allocations that hold its results."""
    read: Collection[int]
    """Allocations that it reads."""
    offered: Sequence[Collection[int]]
    """For each argument that it may write over, the allocations that hold the argument."""


def taken_by(runs: Sequence[Run], kept: Collection[int] = ()) -> dict[int, int]:
    """Returns which offer each run takes, by the number of the run. A run takes the first offer
    that neither it nor a later run needs.

    Args:
        kept: allocations that are never taken over.
    """
    last: dict[int, int] = {}
    for k, run in enumerate(runs):
        last.update(dict.fromkeys((*run.read, *run.made), k))
    kept = {KEPT, *kept}
    found: dict[int, int] = {}
    for k, run in enumerate(runs):
        for i, memory in enumerate(run.offered):
            if memory and all(a not in kept and last[a] == k for a in memory):
                found[k] = i
                break
    return found


# ---- graphs --------------------------------------------------------------------------------------


class Memory:
    """Numbers the allocations of runs. The values of a run have a key, which in emitted graphs is
    the node.

    Args:
        storages: the storages of each node of the joint graph.
        over: for each node of the joint graph, the positions of the arguments it may write over.
    """

    def __init__(
        self, storages: Mapping[fx.Node, Sequence[int]], over: Mapping[fx.Node, Sequence[int]]
    ) -> None:
        self.storages = storages
        self.over = over
        self._number = count()
        # for each key, maps a storage to its allocation
        self._of: dict[Hashable, dict[int, int]] = {}

    def of(self, keys: Iterable[Hashable]) -> set[int]:
        """Returns the allocations that hold the values."""
        return {a for key in keys for a in self._of.get(key, {}).values()}

    def given(self, node: fx.Node, key: Hashable) -> None:
        """Records an argument of the graph."""
        if self.over:
            self._of[key] = dict.fromkeys(self.storages.get(node, ()), KEPT)

    def run(self, node: fx.Node, key: Hashable, reads: Iterable[Hashable]) -> tuple[int, ...]:
        """Records a run of a node, and returns the allocations that hold its values. Each storage
        belongs to a value that the run reads, or is allocated by this run."""
        there: dict[int, int] = {}
        for source in reads:
            there.update(self._of.get(source, {}))
        own = {
            s: there[s] if s in there else next(self._number) for s in self.storages.get(node, ())
        }
        self._of[key] = own
        return tuple(own.values())

    def same(self, node: fx.Node, source: fx.Node, key: Hashable) -> None:
        """Records that the value of a node is that of another node, whose run has the key."""
        known = self._of.get(key)
        if known:
            memory = known[self.storages[source][0]]
            known.update(dict.fromkeys(self.storages[node], memory))

    def ran(self, node: fx.Node, emitted: fx.Node) -> None:
        """Marks a run of a node in an emitted graph."""
        if not self.over:
            return
        emitted.meta[MEMORY] = self.run(node, emitted, emitted.all_input_nodes)
        if node in self.over and emitted.target is node.target:
            emitted.meta[OFFERS] = self.over[node]


def parts(node: fx.Node) -> list[fx.Node] | None:
    """Returns the getitems of a tuple if nothing else reads it. The code generator then splits it
    at once."""
    if not isinstance(node.meta.get("val"), (tuple, list)):
        return None
    users = list(node.users)
    for user in users:
        if user.target is not operator.getitem or type(user.args[1]) is not int:
            return None
    return users


def taken(order: Sequence[fx.Node]) -> dict[fx.Node, fx.Node]:
    """Returns the input that each call writes over.

    Args:
        order: the nodes of a graph, in the order in which they run.
    """
    if not any(OFFERS in node.meta for node in order):
        return {}
    memory: dict[fx.Node, set[int]] = {}
    runs: list[Run] = []
    for node in order:
        sources = node.all_input_nodes
        if node.op != "call_function":
            own = {KEPT}
        elif MEMORY in node.meta:
            own = set(node.meta[MEMORY])
        else:
            own = {a for source in sources for a in memory[source]}
        memory[node] = own
        if node.target is operator.getitem and parts(sources[0]) is not None:
            sources = []
        offered = [memory[node.args[at]] for at in node.meta.get(OFFERS, ())]
        runs.append(Run(own, {a for source in sources for a in memory[source]}, offered))
    found = taken_by(runs)
    return {order[k]: order[k].args[order[k].meta[OFFERS][i]] for k, i in found.items()}
