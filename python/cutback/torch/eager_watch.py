"""Watches a region run once and writes down what the planner needs: a problem (docs/problem.md).

The forward ops are those of the log. Where the program holds a tensor beyond its last read, an op
"release" reads it once more: that memory is not the planner's to free. The backward has one op for
each node of autograd's graph, in the order of autograd's engine (ready nodes by falling sequence
number), reading the gradients that reach the node and the values it saved. Which values those are
is asked of the node itself: its `_saved_*` attributes call the unpack hook, which here writes down
the slot instead of making the tensor.
"""

from __future__ import annotations

import hashlib
import heapq
import json
import math
import sys
import threading
import weakref
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor
from torch.utils.flop_counter import flop_registry

from .eager_log import Node, Record, Region, Value
from .eager_ops import OpInfo

# Nodes whose gradient is the one that reaches them, in another shape or not even that.
_PASS_ON = {
    "AddBackward0", "AliasBackward0", "ViewBackward0", "UnsafeViewBackward0", "TBackward0",
    "TransposeBackward0", "PermuteBackward0", "UnsqueezeBackward0", "SqueezeBackward0",
    "SqueezeBackward1", "ReshapeAliasBackward0", "CloneBackward0", "SubBackward0",
}  # fmt: skip

probing = threading.local()  # .slots: numbers of the slots that a node asked for
_dummy = torch.empty(0)


class Slot:
    """What autograd keeps instead of a tensor, in a region that has, or gets, a plan."""

    __slots__ = ("number", "run", "value")

    def __init__(self, value: Value, number: int, run: Any) -> None:
        self.value = value
        self.number = number  # in the order in which the region saved
        self.run = run  # eager_plan.Run: what this run of the region holds from rerun to rerun


def probed(slot: Slot) -> Any:
    """The answer to a node that is asked what it saved; None if none is asked."""
    slots = getattr(probing, "slots", None)
    if slots is None:
        return None
    slots.append(slot.number)
    return _dummy


class Watching(Region):
    """Records a region and describes it."""

    def __init__(self, run: Any) -> None:
        super().__init__()
        self.run = run
        self.ops: list[dict[str, Any]] = []
        self.storages: list[dict[str, Any]] = []
        self.values: list[int] = []  # storage of each value
        self.keys: dict[tuple[int, int], int] = {}  # (number of the node, result) -> value
        self.funcs: list[Any] = []  # of each node
        self.slots: list[int] = []  # value of each slot
        self.latest: list[int] = []  # newest value in each storage
        self._storage_ids: Any = weakref.WeakKeyDictionary()
        self._last_read: dict[int, int] = {}
        self._restored: dict[int, int] = {}  # mask -> bytes of what it stands for
        self._ends: list[Any] = []
        self._dead: list[int] = []  # storages
        self._op: dict[str, Any] = {}
        self._insists = False
        self._first_node = torch.autograd._get_sequence_nr()
        self._heads: list[tuple[Any, int, int]] = []  # graph node, its output, value

    # the forward

    def _new_op(self, kind: str, flags: Iterable[str], reads: Iterable[int]) -> dict[str, Any]:
        if self._dead:
            self._release()
        op: dict[str, Any] = {
            "name": f"{kind}_{len(self.ops)}",
            "kind": kind,
            "flags": list(flags),
            "out": [],
        }
        values = list(dict.fromkeys(reads))
        op["in"] = values
        for value in values:
            self._last_read[self.values[value]] = len(self.ops)
        self.ops.append(op)
        return op

    def _new_storage(self, nbytes: int, flags: Iterable[str] = ()) -> int:
        self.storages.append({"bytes": nbytes, "flags": list(flags)})
        self.latest.append(-1)
        return len(self.storages) - 1

    def _new_value(self, op: dict[str, Any], storage: int, t: Any = None) -> int:
        # values are numbered in the order of the ops, so only the last op may get one
        assert op is self.ops[-1]
        kind = "" if t is None else f"{str(t.dtype).removeprefix('torch.')}{list(t.shape)}"
        op["out"].append({"storage": storage, "type": kind})
        self.values.append(storage)
        self.latest[storage] = len(self.values) - 1
        self._last_read[storage] = len(self.ops) - 1
        return len(self.values) - 1

    def _id_of(self, t: Any) -> int | None:
        try:
            storage: int | None = self._storage_ids.get(t.untyped_storage())
            return storage
        except (NotImplementedError, RuntimeError):
            return None

    def _source(self, t: Any, record: Record | None) -> Value:
        value = super()._source(t, record)
        storage = self._id_of(t)
        if storage is None:
            op = self._new_op("input", ["placeholder"], ())
            storage = self._new_storage(t.nbytes if t.layout is torch.strided else 0, ["static"])
            self._new_value(op, storage, t)
            if t.layout is torch.strided:
                self._storage_ids[t.untyped_storage()] = storage
        value.label = self.latest[storage]
        if value.version < 0:  # noise, held as a mask and made again for each reader
            op = self._new_op("mask", ["unknown"], [value.label])
            self._last_read[storage] = sys.maxsize  # its readers have it as workspace
            value.label = self._new_value(op, self._new_storage(value.tensor.nbytes), value.tensor)
            self._restored[value.label] = t.nbytes
        return value

    def _work(
        self, op: dict[str, Any], info: OpInfo, args: Any, kwargs: dict[str, Any], out: Any
    ) -> None:
        packet = getattr(info.func, "overloadpacket", None)
        if packet in flop_registry:
            op["flops"] = int(flop_registry[packet](*args, **kwargs, out_val=out))
            op["flags"].append("compute")
        elif "_scaled_dot_product" in op["kind"]:  # those that the registry lacks
            (*batch, m, k), n = args[0].shape, args[1].shape[-2]
            op["flops"] = 4 * math.prod(batch) * m * n * k
            op["flags"].append("compute")
        elif not info.foreign and torch.Tag.pointwise in info.func.tags:
            op["flags"].append("fusible")
        tensors = [a for a in (*args, out) if isinstance(a, Tensor)]
        for a in (*args, out):
            if isinstance(a, (tuple, list)):
                tensors += [t for t in a if isinstance(t, Tensor)]
        op["bytes"] = sum(t.nbytes for t in tensors if t.layout is torch.strided)

    def _log(
        self, info: OpInfo, node: Node, out: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        reads = [v.label for v in node.inputs]
        self._op = op = self._new_op(str(info.func), (), reads)
        restored = sum(self._restored.get(value, 0) for value in reads)
        if restored:
            op["workspace"] = restored
        self.funcs.append((info.func, shapes_of(out)))
        if info.pinned and info.runs_once(args, kwargs):
            op["flags"].append("random_stateful")
        elif info.foreign:
            op["flags"].append("unknown")
        super()._log(info, node, out, args, kwargs)
        if self._insists:  # the policy of a region inside
            for made in op["out"]:
                made["constraint"] = "must_save"
        if not op["out"]:
            op["flags"].append("effect")
        elif "view" not in op["flags"]:
            self._work(op, info, args, kwargs, out)

    def _decide(
        self, info: OpInfo, node: Node, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any
    ) -> Any:
        held = super()._decide(info, node, args, kwargs, out)
        self._insists = held in ("here", "host") and not info.foreign and not info.view
        return held

    def _register(self, t: Any, node: Node, index: int, held: str) -> None:
        storage = self._id_of(t)
        if storage is None and t.layout is torch.strided:
            storage = self._new_storage(t.untyped_storage().nbytes())
            self._storage_ids[t.untyped_storage()] = storage
            self._ends.append(weakref.finalize(t.untyped_storage(), self._died, storage))
        elif storage is not None and not self._op["out"] and "mutates" not in self._op["flags"]:
            self._op["flags"].append("view")
        if storage is None:
            return
        if "mutates" in self._op["flags"] and storage in [o["storage"] for o in self._op["out"]]:
            return  # it returned what it wrote to
        label = self._new_value(self._op, storage, t)
        self.keys[node.number, index] = label
        super()._register(t, node, index, held)
        value = self.value_of(t)
        if not hasattr(value, "label"):
            value.label = label

    def _mutate(
        self, info: OpInfo, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        flat = []
        for a in (*args, *kwargs.values()):
            flat += [t for t in (a if isinstance(a, (list, tuple)) else (a,))]
        tensors = [t for t in flat if isinstance(t, Tensor)]
        reads = [self.value_of(t).label for t in tensors]
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
        self._dead.append(storage)  # it may be any time, also in the middle of an op

    def _release(self) -> None:
        """Write down what died after the last op, if an op has run since it was last read."""
        dead, self._dead = self._dead, []
        last = len(self.ops) - 1
        late = [s for s in dead if self._last_read.get(s, last) < last]
        if late:
            self._new_op("release", ["effect"], [self.latest[s] for s in late])

    def pack(self, t: Any) -> Any:
        """A numbered slot."""
        value = super().pack(t)
        self.slots.append(value.label)
        return Slot(value, len(self.slots) - 1, self.run)

    def outputs(self, tensors: list[Any]) -> None:
        """To be called with what the region returns, before it ends."""
        self._results = [self.value_of(t).label for t in tensors]
        for end in self._ends:
            end.detach()
        self._release()
        for t, value in zip(tensors, self._results, strict=True):
            if t.requires_grad and t.grad_fn is not None:
                self._heads.append((t.grad_fn, t.output_nr, value))

    # the backward

    def problem(self) -> Described:
        """The whole region as a problem."""
        self._slots_of: dict[int, list[int]] = {}
        starts = len(self.ops)
        try:
            ends = self._backward()
        finally:
            # a saved tensor holds the hook that packed it, so this region: with the ends of
            # autograd's graph in it, a graph whose backward never runs would hold itself
            self._heads = []
        document = {
            "format": "cutback.problem",
            "version": 1,
            "source": "cutback.torch.checkpoint",
            "backward_starts": starts,
            "forward_outputs": sorted(set(self._results)),
            "backward_outputs": ends,
            "storages": self.storages,
            "ops": self.ops,
        }
        return Described(json.dumps(document), self)

    def _saved(self, node: Any) -> list[int]:
        """Numbers of the slots that a node of autograd's graph reads."""
        if node.name() == "CheckpointFunctionBackward":  # use_reentrant=True
            raise _torchs_checkpoint(node)
        probing.slots = []
        try:
            names = [n for n in dir(node) if n.startswith("_saved_")]
            if hasattr(type(node), "saved_tensors"):
                names.append("saved_tensors")
            for name in names:
                raw = getattr(node, f"_raw{name}" if name[0] == "_" else f"_raw_{name}", None)
                if not _others(raw, node):
                    getattr(node, name)
            return list(dict.fromkeys(probing.slots))
        finally:
            probing.slots = None

    def _order(self) -> list[Any]:
        """Nodes of the region, as autograd's engine will run them."""
        waiting: dict[Any, int] = {}
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

    def _inside(self, node: Any) -> bool:
        if node.name() == "torch::autograd::AccumulateGrad":
            return False
        return bool(node._sequence_nr() >= self._first_node)

    def _backward(self) -> list[int]:
        gradients: dict[tuple[Any, int], list[int]] = {}
        ends: list[int] = []
        for node, at, _ in self._heads:
            if self._inside(node):
                op = self._new_op("tangent", ["backward"], ())
                value = self._new_value(op, self._new_storage(_bytes_at(node, at)))
                gradients.setdefault((node, at), []).append(value)
        for node in self._order():
            slots = self._saved(node)
            reach = []
            for at in range(len(node._input_metadata)):
                reach += gradients.pop((node, at), [])
            reads = [*reach, *(self.slots[k] for k in slots)]
            if not reach:
                continue
            self._one_backward(node, slots, reach, reads, gradients, ends)
        return ends

    def _one_backward(
        self,
        node: Any,
        slots: list[int],
        reach: list[int],
        reads: list[int],
        gradients: dict[tuple[Any, int], list[int]],
        ends: list[int],
    ) -> None:
        storage = self.values[reach[0]]
        through: list[tuple[Any, int, int]] = []
        fresh: list[tuple[Any, int, int]] = []
        for other, at in node.next_functions:
            if other is not None:
                nbytes = _bytes_at(other, at)
                same = node.name() in _PASS_ON and nbytes == self.storages[storage]["bytes"]
                (through if same else fresh).append((other, at, nbytes))
        made = []
        if fresh or slots or not through:
            op = self._new_op(node.name(), ["backward"], reads)
            self._slots_of[len(self.ops) - 1] = slots
            restored = sum(self._restored.get(self.slots[k], 0) for k in slots)
            if restored:
                op["workspace"] = restored
            made += [self._new_value(op, self._new_storage(nbytes)) for _, _, nbytes in fresh]
            moved = {self.values[v] for v in op["in"]} | {o["storage"] for o in op["out"]}
            op["bytes"] = sum(self.storages[s]["bytes"] for s in moved)
        if through:
            op = self._new_op(node.name(), ["backward", "view"], reach)
            made += [self._new_value(op, storage) for _ in through]
        for (other, at, _), value in zip([*fresh, *through], made, strict=True):
            if self._inside(other):
                gradients.setdefault((other, at), []).append(value)
            else:
                ends.append(value)


def _others(raw: Any, node: Any) -> bool:
    """Is it hooks inside the region that hold what a node saved? They are not ours to call.

    Raises:
        NotImplementedError: they are those of PyTorch's checkpoint.
    """
    for saved in raw if isinstance(raw, tuple) else (raw,):
        hook = getattr(saved, "unpack_hook", None)  # torch 2.11 does not show it
        module = getattr(hook, "__module__", __package__)
        if module == "torch.utils.checkpoint":
            raise _torchs_checkpoint(node)
        if hook is not None and not module.startswith(__package__):
            return True
    return False


def _torchs_checkpoint(node: Any) -> NotImplementedError:
    return NotImplementedError(
        f"budget: torch.utils.checkpoint inside the region ({node.name()}) runs its part again as "
        "a whole, whatever a plan says. Take it out: under a budget values run again without it; "
        "or leave the budget out, then it works as always"
    )


class Described:
    """A problem, and how it maps to the region."""

    def __init__(self, text: str, seen: Watching) -> None:
        self.text = text
        self.ops = seen.ops
        self.values = seen.values
        self.keys = seen.keys
        self.funcs = seen.funcs
        self.slots_of = seen._slots_of  # backward op -> slots it reads
        self.slots = seen.slots

    def identity(self) -> Any:
        """What has to be equal for two regions to have one plan: their problem, op for op."""
        return hashlib.blake2b(self.text.encode()).digest()


def shapes_of(out: Any) -> Any:
    """Shapes and dtypes of an op's results: what must repeat for a plan to hold."""
    if isinstance(out, Tensor):
        return tuple(out.shape), out.dtype
    if isinstance(out, (tuple, list)):
        return tuple(shapes_of(t) for t in out)
    return None


def _bytes_at(node: Any, at: int) -> int:
    """Bytes of the gradient that a node takes."""
    try:
        taken = node._input_metadata[at]
        count = 1
        for n in taken.shape:
            count *= int(n)
        return count * int(taken.dtype.itemsize)
    except (AttributeError, IndexError, RuntimeError, TypeError):
        return 0
