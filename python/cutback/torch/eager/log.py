"""The log of a region: which op made which value from which inputs.

Values and ops form a graph of Python objects with backward references: a value references the op
that makes it, an op the values it reads. A value is referenced by everything that may need it: its
storage (through an entry of the storage object's ``__dict__``, which dies with the storage, so
addresses are never confused), the saved-tensor slots of autograd, and the ops that read it.
Reference counting frees all other values, including held results.

A value is a place in a storage at one time: (storage, offset, shape, strides, dtype, and the lazy
conjugate and negative bits). An op that writes into a storage ends all values in it.

Held tensors are aliases made below autograd. The tensor that an op returned would reference its
``grad_fn``, which references the slots, which reference the log: a cycle.
"""

from __future__ import annotations

import sys
import threading
import weakref
from collections.abc import Callable, Collection, Sequence
from itertools import count
from types import TracebackType
from typing import Any

import torch
from torch import Tensor
from torch.nn.parameter import is_lazy
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter

from .. import transfers
from ..graph.rerunnable import held_because
from .arguments import Argument, Arguments, Keywords, Op, Place, Result
from .ops import OpInfo, info_of, infos
from .policy import AGAIN, Function, SaveList, offloads, saves
from .values import (
    Logged,
    Memory,
    Node,
    Record,
    Seen,
    Value,
    alias_of,
    counter_of,
    for_record,
    held_value,
    nothing,
    place_of,
    tensor_at,
)

_PLAIN = {int, float, bool, type(None), str, torch.dtype, torch.device, complex}
_MASK_BYTES = 1024  # smaller noise is held as it is, without a mask, which saves two ops
_BERNOULLI = torch.ops.aten.bernoulli_.float
_DETACH = torch.ops.aten.detach.default
_SET = torch.ops.aten.set_
_DIV = torch.ops.aten.div_.Scalar
_numbers = count()
_active = threading.local()


def active() -> Region | None:
    """Returns the region that is recording on this thread, or None."""
    return getattr(_active, "region", None)


_NO_NOISE: tuple[Callable[[], Record | None], torch.dtype | None, float] = (nothing, None, 0.0)


def _to_noise(dtype: torch.dtype, divisor: float) -> Callable[[Tensor], Tensor]:
    return lambda mask: mask.to(dtype).div_(divisor)


def _record_of(t: Tensor, key: str) -> Record | None:
    """Returns the record of a tensor's storage, or None."""
    try:
        return t.untyped_storage().__dict__.get(key)  # type: ignore[no-any-return]
    except (NotImplementedError, RuntimeError):
        return None


def _leaf(t: Tensor) -> bool:
    """True if the tensor is a leaf. Does not query views: if the base was written, the query would
    change the view's position in the backward, and so the order in which gradients are added."""
    return not t._is_view() and bool(t.is_leaf)


class Region(TorchDispatchMode):
    """Records the ops of a region while it runs."""

    supports_higher_order_operators = True

    def __init__(self, policy: SaveList | Function | None = None, offload: bool = False) -> None:
        super().__init__()
        self.offload = offload  # hold saved values on the host
        self.policies = [policy]  # stack: the region's policy, then those of inner regions
        self.key = f"_cutback_{next(_numbers)}"
        self.paused = False
        self.records: list[weakref.ref[Record]] = []
        self.outside: list[weakref.ref[torch.UntypedStorage]] = []  # outside storages with records
        self.number = 0
        # the last storage filled by bernoulli_: its record, dtype, and divisor (0.0 if none yet)
        self.noise = _NO_NOISE
        self.factory: weakref.ref[Tensor] | None = None  # result of the last op, if a factory op
        self.recent: list[Value] = []  # latest held results; keeps them alive until they are read
        self.seen: list[Value] = []  # values whose memory was overwritten
        self.shares = False  # True if any storage has several version counters
        # leaves from outside that are held as objects: value, leaf, storage, place
        self.leaves: list[
            tuple[weakref.ref[Value], weakref.ref[Tensor], torch.UntypedStorage, Place]
        ] = []

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """Returns True: the mode sees calls of compiled code, but not the ops inside."""
        return True

    def __enter__(self) -> Region:
        _active.region = self
        super().__enter__()
        return self

    def __exit__(self, *error: BaseException | type[BaseException] | TracebackType | None) -> None:
        _active.region = None
        super().__exit__(*error)
        self._settle()
        for weak in self.outside:
            storage = weak()
            if storage is not None:
                storage.__dict__.pop(self.key, None)
        for weak in self.records:
            record = weak()
            if record is not None:
                record.clear()
        self.outside.clear()
        self.records.clear()
        self.recent.clear()
        self.policies = [None]
        self.noise = _NO_NOISE

    # ---- values

    def alias(self, t: Tensor) -> Tensor:
        """Like `alias_of`, but may also be called outside a dispatch."""
        before, self.paused = self.paused, True
        try:
            return alias_of(t)
        finally:
            self.paused = before

    def _source(self, t: Tensor, record: Record | None) -> Value:
        """Makes a new value for a tensor that no logged op can make, and holds it: as a mask if it
        is dropout noise, as the object if it is a leaf from outside, and otherwise as an alias."""
        weak, dtype, divisor = self.noise
        known = record is not None and divisor != 0.0 and weak() is record and t.dtype is dtype
        if known and t.nbytes >= _MASK_BYTES:
            before, self.paused = self.paused, True
            try:
                with torch.no_grad():
                    value = held_value(t.detach() != 0, -1)
            finally:
                self.paused = before
            value.restore = _to_noise(t.dtype, divisor)
            return value
        if not _leaf(t) or (record is not None and not record.outside):
            value = held_value(self.alias(t), t._version)
            value.source = "alias"
            return value
        value = held_value(t, t._version)  # autograd keeps the object itself, too
        value.source = "object"
        if t.layout is torch.strided:
            place = place_of(t)
            self.leaves.append((weakref.ref(value), weakref.ref(t), t.untyped_storage(), place))
        return value

    def value_of(self, t: Tensor) -> Value:
        """Returns the value of a tensor; makes a new one if the tensor is unknown."""
        try:
            storage = t.untyped_storage()
        except (NotImplementedError, RuntimeError):  # sparse and other tensors without storage
            return self._source(t, None)
        entries = storage.__dict__
        record: Record | None = entries.get(self.key)
        if record is None:
            value = self._source(t, None)
            record = entries[self.key] = Record(value, weakref.ref(t))
            record.outside = True
            self.outside.append(weakref.ref(storage))
            return value
        if record.tensor() is t:
            first = record.first or record.held()
            if first is not None:
                return first
        values = record.named()
        place = place_of(t)
        known = values.get(place)
        if known is not None and type(known) is not Value:
            known = known()
        if known is None:
            known = self._source(t, record)
            values[place] = for_record(known)
        return known

    def _register(self, t: Tensor, node: Node, index: int, held: str) -> None:
        """Registers a result of an op; `held` is as returned by `_decide`."""
        try:
            entries = t.untyped_storage().__dict__
        except (NotImplementedError, RuntimeError):
            return
        record = entries.get(self.key)
        if record is not None:  # a view
            if record.tensor() is not t and held != "once":
                values = record.named()
                place = place_of(t)
                if place not in values:
                    values[place] = Value(node, index)
            return
        if not held:
            value = Value(node, index)
            if index >= 0:
                node.results.append(weakref.ref(value))
        else:
            value = held_value(alias_of(t), t._version, index)
            if held == "host":
                device = t.device
                value.tensor = transfers.leave(value.tensor)
                value.version = -1
                value.restore = lambda kept: transfers.ready(transfers.arrive(kept, device))
            if index <= 0:
                self.recent = []
            self.recent.append(value)
        record = entries[self.key] = Record(value, weakref.ref(t))
        self.records.append(weakref.ref(record))

    # ops

    def __torch_dispatch__(
        self, func: Op, types: Sequence[type], args: Arguments = (), kwargs: Keywords | None = None
    ) -> Result:
        kwargs = kwargs or {}
        if self.paused:
            return func(*args, **kwargs)
        if self.factory is not None:
            made, self.factory = self.factory(), None
            if func is _DETACH and args[0] is made:
                return self._renewed(made)
        info = infos.get(func) or info_of(func)
        if info.special:
            if info.mutates:
                return self._mutate(info, func, args, kwargs)
            if info.norm >= 0:
                return self._norm(info, func, args, kwargs)
            if info.detach:
                if is_lazy(args[0]):  # a parameter without a shape, about to get one
                    return func(*args, **kwargs)
                self._detached(args[0])
            if info.higher_order:
                return self._higher_order(info, args, kwargs)
        node = self._node(info, args, kwargs)
        out = info.call(*args, **kwargs)
        if info.factory:
            self._pin_options(node, out)
        self._log(info, node, out, args, kwargs)
        if info.factory and isinstance(out, Tensor):
            self.factory = weakref.ref(out)
        return out

    def _higher_order(self, info: OpInfo, args: Arguments, kwargs: Keywords) -> Result:
        """Logs a higher-order operator, such as torch.cond, as one op. It has no schema.

        Raises:
            NotImplementedError: if it wrote into an argument.
        """
        given = [t for t in tree_iter((args, kwargs)) if isinstance(t, Tensor)]
        given = [t for t in given if not t.is_inference()]
        before = [t._version for t in given]
        node = self._node(info, args, kwargs)
        out = info.call(*args, **kwargs)
        if [t._version for t in given] != before:
            raise NotImplementedError(
                f"{info.func.name()} writes into one of its arguments, which a region does not "
                "support: clone the argument in the function passed to it, or call it outside "
                "of cutback.torch.checkpoint"
            )
        self._log(info, node, out, args, kwargs)
        return out

    def _renewed(self, made: Tensor) -> Tensor:
        """Replaces the result of a factory function by a detached copy if the result is held. This
        is not an op of the region; the record now refers to the new object."""
        out = made.detach()
        record = made.untyped_storage().__dict__.get(self.key)
        if record is not None:
            record.tensor = weakref.ref(out)
        return out

    def _node(self, info: OpInfo, args: Arguments, kwargs: Keywords) -> Node:
        self.number = number = self.number + 1
        node = Node(info, number)
        inputs = node.inputs
        logged = node.args
        key = self.key
        for a in args:
            kind = type(a)
            if kind is Tensor:  # fast path for most values
                try:
                    record = a.untyped_storage().__dict__.get(key)  # type: ignore[union-attr]
                except (NotImplementedError, RuntimeError):
                    record = None
                if record is not None and record.tensor() is a:
                    value = record.first or record.held() or self.value_of(a)
                else:
                    value = self.value_of(a)
                value.read = True
                inputs.append(value)
                logged.append(value)
            elif kind in _PLAIN:
                logged.append(a)
            elif isinstance(a, Tensor):
                value = self.value_of(a)
                value.read = True
                inputs.append(value)
                logged.append(value)
            else:
                logged.append(self._convert(a, node))
        if kwargs:
            node.kwargs = {k: self._convert(a, node) for k, a in kwargs.items()}
        return node

    def _convert(self, a: Argument, node: Node) -> Logged:
        if isinstance(a, Tensor):
            value = self.value_of(a)
            value.read = True
            node.inputs.append(value)
            node.nested = True
            return value
        if isinstance(a, (list, tuple)) and not (a and type(a[0]) is int):
            return [self._convert(x, node) for x in a]
        return a

    @staticmethod
    def _pin_options(node: Node, out: Result) -> None:
        # the default dtype and device may have changed when the op runs again
        if isinstance(out, Tensor):
            options = {"dtype": out.dtype, "device": out.device}
            given = node.kwargs or {}
            node.kwargs = {**options, **{k: v for k, v in given.items() if v is not None}}

    def _decide(
        self, info: OpInfo, node: Node, args: Arguments, kwargs: Keywords, out: Result
    ) -> str | Collection[int]:
        """Returns which results to hold: "" (none), "once" (all, because the op must not run
        again), "here" (all), "host" (all, in host memory), or a collection of indices."""
        if info.pinned and info.runs_once(args, kwargs):
            return "once"
        policy = self.policies[-1]
        if policy is not None:
            decision = policy.ask(info, args, kwargs, out)
            if decision is not AGAIN:
                if saves(decision):
                    return "host" if self.offload else "here"
                return "host" if offloads(decision) else ""
        return "here" if info.foreign and held_because(info.func, args, kwargs) else ""

    def _log(
        self, info: OpInfo, node: Node, out: Result, args: Arguments, kwargs: Keywords
    ) -> None:
        held = self._decide(info, node, args, kwargs, out)
        if type(out) is Tensor and not held:
            self._register(out, node, -1, "")
        elif isinstance(out, Tensor):
            how = held if isinstance(held, str) else "here" if held else ""
            self._register(out, node, -1, how)
        elif isinstance(out, (tuple, list)):
            for index, t in enumerate(out):
                if isinstance(t, Tensor):
                    how = held if isinstance(held, str) else "here" if index in held else ""
                    self._register(t, node, index, how)

    # ---- writes

    def _keep_readable(self, record: Record, t: Tensor) -> None:
        """Prepares for a write to a storage through `t`: copies the held values in it that a logged
        op reads, and keeps the memory for slots as autograd would read it."""
        record.drop_views()
        for value in record.all():
            if value.tensor is None or value.version < 0 or not value.read:
                continue
            if value.tensor.untyped_storage() is not t.untyped_storage():
                self._follow_leaves()
            tensor = value.tensor
            # do not count the loop's list, `value`, the argument of getrefcount, and the record
            others = sys.getrefcount(value) - 3 - (record.first is value)
            if record.values:
                others -= sum(v is value for v in record.values.values())
            if others > 0:
                if value.packs > 0 and value.seen is None:
                    self._keep_seen(value, tensor, tensor, value.version)
                value.tensor = tensor.detach().clone()
                value.version = value.tensor._version
        if record.counter is None:
            return
        for place, entry in record.named().items():
            if type(entry) is Value and entry.packs > 0:
                counter = record.counter
                tensor = tensor_at(t.untyped_storage(), place, t.device)
                self._keep_seen(entry, tensor, counter, counter._version)
        for weak, place, counter, version in record.slots:
            slot = weak()
            if slot is not None:
                tensor = tensor_at(t.untyped_storage(), place, t.device)
                self._keep_seen(slot, tensor, counter, version)

    def _keep_seen(self, value: Value, tensor: Tensor, counter: Tensor, version: int) -> None:
        value.seen = Seen(tensor, counter, version)
        self.seen.append(value)

    def _detached(self, t: Tensor) -> None:
        """Handles a detach of `t`. Unless autograd does it, the result gets a separate version
        counter."""
        exclude = torch._C._dispatch_tls_local_exclude_set()
        if not exclude.has(torch._C.DispatchKey.ADInplaceOrView):
            self._share(t)

    def _share(self, t: Tensor) -> None:
        """Records that the memory of `t` gets a second version counter."""
        record = _record_of(t, self.key)
        if record is not None and record.counter is None:
            record.named()  # needs `t` to find the places
            record.counter = counter_of(t)
            self.shares = True

    def _share_source(self, source: Argument) -> None:
        """Handles a tensor that is set to the memory of `source`, a tensor or a storage."""
        if isinstance(source, torch.UntypedStorage):
            record = source.__dict__.get(self.key)
            source = None if record is None else record.tensor()
        if isinstance(source, Tensor):
            self._share(source)

    def _slot(self, value: Value, t: Tensor) -> Value:
        """Returns the value that a slot for `t` references: `value`, or a separate one if autograd
        may read something else from this slot than from others. That happens if `t` has another
        version counter, or if `t` or the held tensor is a leaf that may get other memory (``.data
        =``)."""
        held = value.tensor
        if held is t:
            return value
        if value.source and (value.source == "object" or _leaf(t)):
            slot = held_value(t if _leaf(t) else self.alias(t), t._version)
            slot.outside = value
        elif not self.shares:
            return value
        else:
            record = _record_of(t, self.key)
            if record is None or record.counter is None:
                return value
            if held is not None and value.version >= 0:
                slot = held_value(self.alias(t), t._version)
            else:
                slot = Value(value.node, value.index)
                slot.tensor = held
                if held is not None:
                    slot.version, slot.restore = value.version, value.restore
                before, self.paused = self.paused, True
                try:
                    counter = counter_of(t)
                finally:
                    self.paused = before
                record.slots.append((weakref.ref(slot), place_of(t), counter, t._version))
        slot.packs = 1
        if hasattr(value, "label"):
            slot.label = value.label
        return slot

    def _follow_leaves(self) -> None:
        """Handles leaves that got other memory (``x.data = y``, which is not dispatched): ops are
        rerun from the old memory, and slots read the new one, as in autograd. A leaf that changed
        its shape is skipped: sharded training frees parameters this way until the backward."""
        for weak, weak_leaf, storage, place in self.leaves:
            value, leaf = weak(), weak_leaf()
            if value is None or leaf is None:
                continue
            tensor: Tensor = value.tensor
            if tensor is not leaf:
                continue
            if leaf.untyped_storage() is storage or leaf.shape != place[1]:
                continue
            before, self.paused = self.paused, True
            try:
                old = tensor_at(storage, place, leaf.device)
            finally:
                self.paused = before
            self._keep_seen(value, leaf, leaf, value.version)
            value.tensor, value.version = old, old._version

    def _settle(self) -> None:
        """Decides at the end of the region which writes autograd has seen."""
        self._follow_leaves()
        self.leaves.clear()
        for value in self.seen:
            seen = value.seen
            if seen is not None and seen.unseen():
                seen.settled = True
            else:
                value.seen = None  # autograd would raise, but here the old value is available
        self.seen.clear()

    def _written(self, t: Tensor) -> Record | None:
        try:
            storage = t.untyped_storage()
        except (NotImplementedError, RuntimeError):
            return None
        record = storage.__dict__.get(self.key)
        if record is None:
            record = storage.__dict__[self.key] = Record(None, nothing)
            record.outside = True
            self.outside.append(weakref.ref(storage))
        else:
            self._keep_readable(record, t)
        return record  # type: ignore[no-any-return]

    def _mutate(self, info: OpInfo, func: Op, args: Arguments, kwargs: Keywords) -> Result:
        policy = self.policies[-1]
        if policy is not None:
            policy.ask(info, args, kwargs, None)
        if info.packet is _SET:
            self._share_source(args[1] if len(args) > 1 else None)
        records = []
        for at in info.written:
            a = kwargs.get(at) if isinstance(at, str) else args[at] if at < len(args) else None
            for t in a if isinstance(a, (list, tuple)) else (a,):
                if isinstance(t, Tensor):
                    record = self._written(t)
                    if record is not None:
                        records.append(record)
        out = func(*args, **kwargs)
        for record in records:
            record.clear()
        if records:
            self.recent = []  # a write does not need them
        if func is _BERNOULLI or self.noise is not _NO_NOISE:
            self._note_noise(func, args, records)
        if info.packet is _SET:  # the memory was replaced, not written
            return out
        node = Node(info, 0)
        for index, t in enumerate(out if isinstance(out, (tuple, list)) else (out,)):
            if isinstance(t, Tensor):
                self._register(t, node, index, "once")
        return out

    def _note_noise(self, func: Op, args: Arguments, records: list[Record]) -> None:
        """Detects dropout noise: bernoulli_ fills a storage, div_ divides it by the keep rate."""
        weak, dtype, divisor = self.noise
        if func is not _BERNOULLI and not any(weak() is record for record in records):
            return
        self.noise = _NO_NOISE
        t: Tensor = args[0]
        if len(records) != 1 or t.nbytes != t.untyped_storage().nbytes():
            return  # only a part of the storage was written
        if func is _BERNOULLI:
            self.noise = weakref.ref(records[0]), t.dtype, 0.0
        elif func is _DIV and divisor == 0.0 and t.dtype is dtype and type(args[1]) is float:
            self.noise = weak, dtype, args[1]

    def _norm(self, info: OpInfo, func: Op, args: Arguments, kwargs: Keywords) -> Result:
        """Logs a batch norm, which also updates its running statistics, if it has any."""
        at = info.norm
        if len(args) < at + 3 or args[at] is None or not args[at + 2]:
            node = self._node(info, args, kwargs)
            out = func(*args, **kwargs)
        else:
            records = [self._written(t) for t in args[at : at + 2]]
            node = self._node(info, (*args[:at], None, None, *args[at + 2 :]), kwargs)
            out = func(*args, **kwargs)
            for record in records:
                if record is not None:
                    record.clear()
        self._log(info, node, out, args, kwargs)
        return out

    # ---- autograd's slots

    def pack(self, t: Tensor) -> Any:
        """The pack hook: returns what autograd keeps instead of the tensor."""
        value = self.value_of(t)
        value.packs += 1
        origin = value
        while origin.node is not None and origin.node.info.view:
            origin = origin.node.inputs[0]
            origin.packs += 1
        if value.node is not None and value.memory is None and not t.is_nested:
            record = _record_of(t, self.key)
            if record is not None and record.tensor() is not None:
                place = None if record.first is value else place_of(t)
                value.memory = Memory(record.tensor, place, t._version)
        return self._slot(value, t) if self.shares or value.source else value
