"""Records one run of a region as a problem for the planner (docs/problem.md).

The forward ops are those of the log. If the program holds a tensor beyond its last read, an op
"release" reads it once more, because the planner cannot free that memory. The backward has one op
for each node of autograd's graph, in the order of autograd's engine (ready nodes by decreasing
sequence number). It reads the gradients that reach the node and the values that the node saved. To
find those, the recorder reads the node's `_saved_*` attributes. They call the unpack hook, which
here records the slot instead of making the tensor. Then the node is run on fake tensors
(rehearse.py), to find the memory that it allocates and passes on.
"""

from __future__ import annotations

import contextlib
import functools
import heapq
import math
import sys
import threading
import weakref
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor
from torch.utils.flop_counter import flop_registry

from ... import problem as problems
from ...problem import HELD, Flag, Op, Problem, Storage, StorageFlag
from ..graph.layouts import is_like
from ..graph.rerunnable import held_because
from .arguments import Arguments, Edge, GraphNode, Keywords, Result, Shapes
from .arguments import Op as TorchOp
from .described import Described
from .log import Region
from .ops import OpInfo
from .rehearse import (  # fmt: skip
    Layout,
    Made,
    Rehearsal,
    contiguous,
    layout_of,
    nbytes,
    storage_of,
)
from .values import Node, Record, Value

if TYPE_CHECKING:
    from torch._C._autograd import SavedTensor

_OURS = "cutback.torch"

# Nodes that pass on the gradient that reaches them, possibly reshaped.
_PASS_ON = {
    "AddBackward0", "AliasBackward0", "ViewBackward0", "UnsafeViewBackward0", "TBackward0",
    "TransposeBackward0", "PermuteBackward0", "UnsqueezeBackward0", "SqueezeBackward0",
    "SqueezeBackward1", "ReshapeAliasBackward0", "CloneBackward0", "SubBackward0",
}  # fmt: skip

probing = threading.local()
"""``slots`` has the numbers of the slots that a node has read; ``make`` makes the tensor to
return."""
_dummy = torch.empty(0)
_LEAF = "torch::autograd::AccumulateGrad"
_INTO_A_VIEW = "torch::autograd::CopySlices"


class Slot:
    """Stands in for a tensor that autograd saves, in a region with a budget or plan."""

    __slots__ = ("number", "run", "value")

    def __init__(self, value: Value, number: int, run: Any) -> None:
        self.value = value
        self.number = number  # in the order in which the region saves
        self.run = run  # plan.Run: state of this run of the region


def probed(slot: Slot) -> Tensor | None:
    """Returns the answer to a node whose saved tensors are probed, or None outside of a probe."""
    slots = getattr(probing, "slots", None)
    if slots is None:
        return None
    slots.append(slot.number)
    make = getattr(probing, "make", None)
    return _dummy if make is None else make(slot.number)


@contextlib.contextmanager
def _answering(make: Callable[[int], Tensor]) -> Iterator[None]:
    """Answers reads of slots with ``make(slot)``."""
    probing.slots, probing.make = [], make
    try:
        yield
    finally:
        probing.slots = probing.make = None


class Gradient(NamedTuple):
    """A gradient that waits at a node: its value id and a fake tensor."""

    value: int
    fake: Tensor


class Watching(Region):
    """Records a region and describes it as a problem."""

    def __init__(self, run: Any) -> None:
        super().__init__()
        self.run = run
        self.ops: list[Op] = []
        self.storages: list[Storage] = []
        self.values: list[int] = []  # storage of each value
        self.keys: dict[tuple[int, int], int] = {}  # maps (node number, result index) to the value
        self.funcs: list[tuple[TorchOp, Shapes]] = []  # op and result shapes of each node
        self.slots: list[int] = []  # value of each slot
        self.layouts: list[Layout | None] = []  # layout of each slot
        self.latest: list[int] = []  # newest value in each storage
        self._packed: list[weakref.ref[Value]] = []  # log value of each slot
        self._packed_at: list[int] = []  # next sequence number when a slot was filled
        self._storage_ids: weakref.WeakKeyDictionary[torch.UntypedStorage, int] = (
            weakref.WeakKeyDictionary()
        )
        self._last_read: dict[int, int] = {}  # maps a storage to the last op that reads it
        self._restored: dict[int, int] = {}  # maps a mask to the bytes of the noise that it encodes
        self._ends: list[weakref.finalize[[int], Tensor | torch.UntypedStorage]] = []
        # (storage id, storage, tensor) of storages made in the region
        self.made: list[tuple[int, weakref.ref[torch.UntypedStorage], weakref.ref[Tensor]]] = []
        self._logged: set[int] = set()  # storages that the log holds
        self._dead: list[int] = []  # storages that died since the last op
        self._op = Op()
        self._insists = False
        self._first_node = torch.autograd._get_sequence_nr()
        self._heads: list[tuple[GraphNode, int, int]] = []  # (graph node, output number, value)
        self._waiting: dict[Edge, Gradient] = {}  # gradients that wait at the inputs of nodes
        # number of gradients that each leaf of autograd's graph still has to receive
        self._leaves: Counter[Edge] = Counter()

    # ---- the forward

    def _new_op(self, kind: str, flags: Iterable[Flag], reads: Iterable[int]) -> Op:
        if self._dead:
            self._release()
        values = list(dict.fromkeys(reads))
        op = Op(f"{kind}_{len(self.ops)}", kind, values, flags=frozenset(flags))
        for value in values:
            self._last_read[self.values[value]] = len(self.ops)
        self.ops.append(op)
        return op

    def _new_storage(self, nbytes: int, flags: Iterable[StorageFlag] = ()) -> int:
        self.storages.append(Storage(nbytes, frozenset(flags)))
        self.latest.append(-1)
        return len(self.storages) - 1

    def _new_value(self, op: Op, storage: int, t: Tensor | None = None) -> int:
        # values are numbered in the order of ops, so only the last op may get a value
        if op is not self.ops[-1]:
            raise _no_plain_tensor(op.kind, t)
        kind = "" if t is None else f"{str(t.dtype).removeprefix('torch.')}{list(t.shape)}"
        op.outputs.append(problems.Value(storage, kind))
        self.values.append(storage)
        self.latest[storage] = len(self.values) - 1
        self._last_read[storage] = len(self.ops) - 1
        return len(self.values) - 1

    def _id_of(self, t: Tensor) -> int | None:
        try:
            storage: int | None = self._storage_ids.get(t.untyped_storage())
            return storage
        except (NotImplementedError, RuntimeError):
            return None

    def _source(self, t: Tensor, record: Record | None) -> Value:
        value = super()._source(t, record)
        storage = self._id_of(t)
        if storage is None:
            op = self._new_op("input", ["placeholder"], ())
            storage = self._new_storage(t.nbytes if t.layout is torch.strided else 0, ["static"])
            self._new_value(op, storage, t)
            if t.layout is torch.strided:
                self._storage_ids[t.untyped_storage()] = storage
        else:
            self._logged.add(storage)
        value.label = self.latest[storage]
        if value.version < 0:  # noise, which is held as a mask and restored for each reader
            op = self._new_op("mask", ["unknown"], [value.label])
            self._last_read[storage] = sys.maxsize  # restored noise is workspace of its readers
            mask: Tensor = value.tensor
            value.label = self._new_value(op, self._new_storage(mask.nbytes), mask)
            self._restored[value.label] = t.nbytes
        return value

    def _work(self, op: Op, info: OpInfo, args: Arguments, kwargs: Keywords, out: Result) -> None:
        packet = getattr(info.func, "overloadpacket", None)
        if packet in flop_registry:
            op.flops = int(flop_registry[packet](*args, **kwargs, out_val=out))
            op.flags |= {"compute"}
        elif "_scaled_dot_product" in op.kind:  # variants missing in the registry
            query: Tensor = args[0]
            key: Tensor = args[1]
            (*batch, m, k), n = query.shape, key.shape[-2]
            op.flops = 4 * math.prod(batch) * m * n * k
            op.flags |= {"compute"}
        elif not info.foreign and torch.Tag.pointwise in info.func.tags:
            op.flags |= {"fusible"}
        tensors = [a for a in (*args, out) if isinstance(a, Tensor)]
        for a in (*args, out):
            if isinstance(a, (tuple, list)):
                tensors += [t for t in a if isinstance(t, Tensor)]
        op.bytes = sum(t.nbytes for t in tensors if t.layout is torch.strided)

    def _log(
        self, info: OpInfo, node: Node, out: Result, args: Arguments, kwargs: Keywords
    ) -> None:
        reads = [v.label for v in node.inputs]
        for t in (t for t in (*args, out) if isinstance(t, Tensor) and t.is_nested):
            raise _no_plain_tensor(str(info.func), t)
        self._op = op = self._new_op(str(info.func), (), reads)
        restored = sum(self._restored.get(value, 0) for value in reads)
        if restored:
            op.workspace = restored
        self.funcs.append((info.func, shapes_of(out)))
        if info.pinned and info.runs_once(args, kwargs):
            op.flags |= {"random_stateful"}
        elif info.foreign and held_because(info.func, args, kwargs):
            op.flags |= {"unknown"}
        super()._log(info, node, out, args, kwargs)
        if self._insists:  # an inner region's policy saves the results
            for made in op.outputs:
                made.constraint = "must_save"
        if not op.outputs:
            op.flags |= {"effect"}
        elif "view" not in op.flags:
            self._work(op, info, args, kwargs, out)

    def _decide(
        self, info: OpInfo, node: Node, args: Arguments, kwargs: Keywords, out: Result
    ) -> str | Collection[int]:
        held = super()._decide(info, node, args, kwargs, out)
        free = not info.foreign or not held_because(info.func, args, kwargs)
        self._insists = held in ("here", "host") and free and not info.view
        return held

    def _register(self, t: Tensor, node: Node, index: int, held: str) -> None:
        storage = self._id_of(t)
        if storage is None and t.layout is torch.strided:
            storage = self._new_storage(t.untyped_storage().nbytes())
            self._storage_ids[t.untyped_storage()] = storage
            for end in (t.untyped_storage(), t):  # the log may outlive the program's reference
                self._ends.append(weakref.finalize(end, self._died, storage))
            self.made.append((storage, weakref.ref(t.untyped_storage()), weakref.ref(t)))
        elif storage is not None and not self._op.outputs and "mutates" not in self._op.flags:
            self._op.flags |= {"view"}
        if storage is None:
            return
        if "mutates" in self._op.flags and storage in [v.storage for v in self._op.outputs]:
            return  # the op returned its mutated argument
        if held:
            self._logged.add(storage)
        label = self._new_value(self._op, storage, t)
        self.keys[node.number, index] = label
        super()._register(t, node, index, held)
        value = self.value_of(t)
        if not hasattr(value, "label"):
            value.label = label

    def _mutate(self, info: OpInfo, func: TorchOp, args: Arguments, kwargs: Keywords) -> Result:
        flat = []
        for a in (*args, *kwargs.values()):
            flat += [t for t in (a if isinstance(a, (list, tuple)) else (a,))]
        tensors = [t for t in flat if isinstance(t, Tensor)]
        reads = [self.value_of(t).label for t in tensors]
        for a in flat:  # set_
            storage = self._storage_ids.get(a) if isinstance(a, torch.UntypedStorage) else None
            if storage is not None:
                reads.append(self.latest[storage])
        written = []
        for at in info.written:
            a = kwargs.get(at) if isinstance(at, str) else args[at] if at < len(args) else None
            for t in a if isinstance(a, (list, tuple)) else (a,):
                storage = self._id_of(t) if isinstance(t, Tensor) else None
                if storage is not None and storage not in written:
                    written.append(storage)
        self._op = op = self._new_op(str(func), ["mutates"], reads)
        for storage in written:
            self._new_value(op, storage)
        return super()._mutate(info, func, args, kwargs)

    def _died(self, storage: int) -> None:
        self._dead.append(storage)  # may be called at any time, even during an op

    def _release(self) -> None:
        """Adds a "release" op for storages that died after other ops than their last reader."""
        dead, self._dead = self._dead, []
        last = len(self.ops) - 1
        late = [s for s in dead if self._last_read.get(s, last) < last]
        if late:
            self._new_op("release", ["effect"], [self.latest[s] for s in late])

    def pack(self, t: Tensor) -> Slot:
        """The pack hook: returns a numbered slot."""
        value: Value = super().pack(t)
        self.slots.append(value.label)
        self.layouts.append(layout_of(t))
        self._packed.append(weakref.ref(value))
        self._packed_at.append(torch.autograd._get_sequence_nr())
        return Slot(value, len(self.slots) - 1, self.run)

    def outputs(self, tensors: list[Tensor]) -> None:
        """Records the tensors that the region returns; call it before the region ends."""
        self._results = [self.value_of(t).label for t in tensors]
        self.recent.clear()  # results that were not read die here
        for storage, weak, t in self.made:
            # still held by the program, or by PyTorch (autocast caches casts of weights)
            if weak() is not None and (storage not in self._logged or t() is not None):
                self.storages[storage].flags = HELD
        for end in self._ends:
            end.detach()
        self._release()
        for t, value in zip(tensors, self._results, strict=True):
            if t.requires_grad and t.grad_fn is not None:
                self._heads.append((t.grad_fn, t.output_nr, value))

    # ---- the backward

    def problem(self) -> Described:
        """Returns the whole region as a problem."""
        for number, weak in enumerate(self._packed):
            value = weak()
            if value is not None and value.seen is not None:  # the slot reads overwritten memory
                self.slots[number] = self.latest[self.values[value.label]]
        self._packed = []
        self._slots_of: dict[int, list[int]] = {}
        starts = len(self.ops)
        for storage in {self.values[value] for value in self._results}:
            if not self.storages[storage].flags:  # the caller may hold results to the end
                self.storages[storage].flags = HELD
        try:
            ends = self._backward()
        finally:
            # Saved tensors reference their pack hook and so this region. It must not reference
            # autograd's graph, or a graph whose backward never runs would keep itself alive.
            self._heads = []
            self._waiting, self._leaves = {}, Counter()
        problem = Problem(self.ops, self.storages, sorted(set(self._results)), ends, starts)
        return Described(
            problem, self.values, self.keys, self.funcs, self._slots_of, self.slots, self.made
        )

    def _saved(self, node: GraphNode) -> tuple[list[int], bool]:
        """Returns the numbers of the slots that a node of autograd's graph reads, and whether they
        are all that it saved. They are not if hooks inside the region hold some of the tensors."""
        if node.name() == "CheckpointFunctionBackward":  # use_reentrant=True
            raise _torchs_checkpoint(node)
        probing.slots = []
        try:
            names = [n for n in dir(node) if n.startswith("_saved_")]
            if hasattr(type(node), "saved_tensors"):
                names.append("saved_tensors")
            ours = True
            for name in names:
                raw = getattr(node, f"_raw{name}" if name[0] == "_" else f"_raw_{name}", None)
                if _others(raw, node):
                    ours = False
                else:
                    getattr(node, name)
            slots = [*probing.slots]
            if node.name() == _INTO_A_VIEW:  # wraps a hidden node with the same sequence number
                number = node._sequence_nr()
                slots += [k for k, at in enumerate(self._packed_at) if at == number]
            return list(dict.fromkeys(slots)), ours
        finally:
            probing.slots = None

    def _order(self) -> list[GraphNode]:
        """Returns the nodes of the region in the order in which autograd's engine will run them."""
        waiting: dict[GraphNode, int] = {}
        stack = [node for node, _, _ in self._heads]
        seen = set(stack)
        while stack:
            for other, _ in stack.pop().next_functions:
                if other is None or not self._inside(other):
                    continue
                waiting[other] = waiting.get(other, 0) + 1
                if other not in seen:
                    seen.add(other)
                    stack.append(other)
        heads = {node for node, _, _ in self._heads}
        ready = [(-n._sequence_nr(), i, n) for i, n in enumerate(heads) if not waiting.get(n)]
        heapq.heapify(ready)
        order = []
        while ready:
            node = heapq.heappop(ready)[2]
            order.append(node)
            for other, _ in node.next_functions:
                if other in waiting:
                    waiting[other] -= 1
                    if not waiting[other]:
                        heapq.heappush(
                            ready, (-other._sequence_nr(), len(seen) + len(order), other)
                        )
        return order

    def _inside(self, node: GraphNode) -> bool:
        if node.name() == _LEAF:
            return False
        return bool(node._sequence_nr() >= self._first_node)

    def _backward(self) -> list[int]:
        self._rehearsal = Rehearsal()
        self._fakes: dict[int, Tensor] = {}  # maps a slot to its fake tensor
        for node, at, _ in self._heads:
            if self._inside(node):
                op = self._new_op("tangent", ["backward"], ())
                # backward() makes the gradient of a scalar and holds it to the end
                scalar = not len(node._input_metadata[at].shape)
                flags = HELD if scalar else ()
                fake = self._rehearsal.like(_taken_by(node, at))
                storage = self._new_storage(nbytes(fake), flags)
                self._arrive((node, at), Gradient(self._new_value(op, storage), fake))
        order = self._order()
        self._leaves = Counter(
            place
            for node in order
            for place in node.next_functions
            if place[0] is not None and place[0].name() == _LEAF
        )
        for node in order:
            slots, ours = self._saved(node)
            reach = [self._waiting.pop((node, at), None) for at in range(len(node._input_metadata))]
            if any(reach):
                self._one_backward(node, slots, ours, reach)
        return [gradient.value for gradient in self._waiting.values()]  # gradients of the inputs

    def _fake_of(self, slot: int) -> Tensor:
        """Returns the fake tensor for a slot's value."""
        fake = self._fakes.get(slot)
        if fake is None:
            layout = self.layouts[slot]
            fake = self._fakes[slot] = _dummy if layout is None else self._rehearsal.like(layout)
        return fake

    def _one_backward(
        self, node: GraphNode, slots: list[int], ours: bool, reach: list[Gradient | None]
    ) -> None:
        """Adds the ops of one node of autograd's graph and passes its results on."""
        given = [gradient for gradient in reach if gradient is not None]
        reads = [*(g.value for g in given), *(self.slots[k] for k in slots)]
        made = None
        places = node.next_functions
        takes = [None if other is None else _taken_by(other, at) for other, at in places]
        if ours and all(self.layouts[k] is not None for k in slots):
            saved = [self._fake_of(k) for k in slots]
            fakes = [None if g is None else g.fake for g in reach]
            during = functools.partial(_answering, self._fake_of)
            made = self._rehearsal.run(node, fakes, saved, takes, during)
        if made is None:
            made = self._assume(node, given, takes)
        # maps the storage of a fake tensor to a value in that storage
        values = {storage_of(g.fake): g.value for g in given}
        values |= {storage_of(self._fakes[k]): self.slots[k] for k in slots if k in self._fakes}
        results = [(p, t) for p, t in zip(places, made.outputs, strict=True) if p[0] is not None]
        fresh = {storage_of(t): t for _, t in results if t is not None}
        fresh = {key: t for key, t in fresh.items() if key not in values}
        restored = sum(self._restored.get(self.slots[k], 0) for k in slots)
        workspace = restored + max(0, made.peak - sum(nbytes(t) for t in fresh.values()))
        if fresh or slots or workspace:
            op = self._new_op(node.name(), ["backward"], reads)
            self._slots_of[len(self.ops) - 1] = slots
            if workspace:
                op.workspace = workspace
            for key, t in fresh.items():
                values[key] = self._new_value(op, self._new_storage(nbytes(t)))
            moved = {self.values[v] for v in op.inputs} | {v.storage for v in op.outputs}
            op.bytes = sum(self.storages[s].bytes for s in moved)
        for place, t in results:
            if t is None:
                continue
            key = storage_of(t)
            value = values[key]
            if fresh.pop(key, None) is None:  # passed on, or another part of a fresh storage
                op = self._new_op(node.name(), ["backward", "view"], [value])
                value = self._new_value(op, self.values[value])
            self._arrive(place, Gradient(value, t))
        for place, _ in results:
            self._take(place)

    def _assume(
        self, node: GraphNode, given: list[Gradient], takes: Sequence[Layout | None]
    ) -> Made:
        """Returns assumptions about a node that cannot run on fake tensors: each result is fresh,
        unless the node is known to pass on its gradient."""
        outputs: list[Tensor | None] = []
        size = 0
        for layout in takes:
            if layout is None:
                outputs.append(None)
                continue
            fake = self._rehearsal.like(layout)
            if node.name() in _PASS_ON and nbytes(fake) == nbytes(given[0].fake):
                fake = given[0].fake
            else:
                size += nbytes(fake)
            outputs.append(fake)
        return Made(outputs, size)

    def _arrive(self, place: Edge, new: Gradient) -> None:
        """Delivers a gradient to a node. A second one is added to the first in fresh memory:
        autograd reuses the first one's memory only if nothing else references it and no dispatch
        mode (such as a memory tracker's) is active."""
        old = self._waiting.get(place)
        if old is None:
            self._waiting[place] = new
            return
        made = self._rehearsal.sum_of(old.fake, new.fake)
        self._waiting[place] = self._copy("accumulate", made, [old.value, new.value])

    def _take(self, place: Edge) -> None:
        """Delivers a gradient to a leaf. When the sum is complete, the leaf takes the tensor if
        nothing else references it and its layout matches the leaf's; otherwise it takes a copy."""
        if place not in self._leaves:
            return
        self._leaves[place] -= 1
        got = self._waiting.get(place)
        if got is None or self._leaves[place]:
            return
        others = sum(g.fake is got.fake for g in self._waiting.values()) - 1
        leaf = getattr(place[0], "variable", None)
        lies = leaf is None or leaf.layout is not torch.strided or is_like(got.fake, leaf)
        if not others and lies:
            return
        made = self._rehearsal.copied_for(got.fake, leaf)
        self._waiting[place] = self._copy("clone", made, [got.value])

    def _copy(self, kind: str, made: Made, reads: list[int]) -> Gradient:
        """Adds the op for a copy or a sum of gradients."""
        (fake,) = made.outputs
        op = self._new_op(kind, ["backward"], reads)
        op.bytes = (1 + len(reads)) * nbytes(fake)
        if made.peak > nbytes(fake):
            op.workspace = made.peak - nbytes(fake)
        return Gradient(self._new_value(op, self._new_storage(nbytes(fake))), fake)


def _others(raw: SavedTensor | tuple[SavedTensor, ...] | None, node: GraphNode) -> bool:
    """True if foreign hooks inside the region hold saved tensors of a node; such hooks must not be
    called.

    Raises:
        NotImplementedError: if the hooks are those  of PyTorch's checkpoint.
    """
    for saved in raw if isinstance(raw, tuple) else (raw,):
        hook = getattr(saved, "unpack_hook", None)  # not available in torch 2.11
        module = getattr(hook, "__module__", _OURS)
        if module == "torch.utils.checkpoint":
            raise _torchs_checkpoint(node)
        if hook is not None and not module.startswith(_OURS):
            return True
    return False


def _no_plain_tensor(op: str, t: Tensor | None) -> NotImplementedError:
    kind = "a tensor" if t is None else f"a {type(t).__name__} of layout {t.layout}"
    return NotImplementedError(
        f"budget: {op} reads or makes {kind}, whose memory a plan cannot count. Leave the budget "
        "out, or keep such tensors out of the region"
    )


def _torchs_checkpoint(node: GraphNode) -> NotImplementedError:
    return NotImplementedError(
        f"budget: torch.utils.checkpoint inside the region ({node.name()}) reruns its part as a "
        "whole, which a plan cannot control. Take it out, because a budget recomputes values "
        "without it; or leave the budget out"
    )


def shapes_of(out: Result) -> Shapes:
    """Shapes and dtypes of an op's results. A plan is valid only if they repeat."""
    if isinstance(out, Tensor):
        return tuple(out.shape), out.dtype
    if isinstance(out, (tuple, list)):
        return tuple(shapes_of(t) for t in out)
    return None


def _taken_by(node: GraphNode, at: int) -> Layout:
    """Returns the layout of the gradient that a node expects at an input."""
    try:
        taken = node._input_metadata[at]
        shape = tuple(int(n) for n in taken.shape)
        return contiguous(shape, taken.dtype, taken.device)
    except (AttributeError, IndexError, RuntimeError, TypeError):
        return contiguous((0,), torch.float32, torch.device("cpu"))
