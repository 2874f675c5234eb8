"""The log of a region: which op made which value out of which values.

Values and ops form a graph of Python objects that point backwards: a value at the op that makes it,
an op at the values it reads. Whoever may still need a value points at it: the storage it lies in
(through an entry of the storage object's ``__dict__``, which dies with the storage, so no address
is ever mistaken), the saved-tensor slots of autograd, the ops that read it. What nobody needs is
freed by Python's reference counts, held results included.

A value is a place in a storage at one time: (storage, offset, shape, strides, dtype, and the lazy
conjugate and negative bits). An op that writes into a storage ends all values in it.

Held tensors are aliases made below autograd. The tensor that an op returned would point at its
``grad_fn``, which points at the slots, which point here: a cycle.
"""

from __future__ import annotations

import sys
import threading
import weakref
from collections.abc import Callable
from itertools import count
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from .eager_ops import OpInfo, info_of
from .eager_policy import ask, offloads, saves

_ADINPLACE = torch._C.DispatchKeySet(torch._C.DispatchKey.ADInplaceOrView)
_PLAIN = {int, float, bool, type(None), str, torch.dtype, torch.device, complex}
_MASK_BYTES = 1024  # noise of fewer bytes is not worth two more ops
_numbers = count()
_active = threading.local()


def active() -> Region | None:
    """The region that is recording on this thread."""
    return getattr(_active, "region", None)


class Value:
    """A tensor that an op made, or one that came from outside."""

    __slots__ = ("__weakref__", "index", "node", "packs", "read", "restore", "tensor", "version")

    def __init__(self, node: Node | None, index: int, tensor: Any = None, version: int = 0) -> None:
        self.node = node  # what makes it; None: held, or it can never be made again
        self.index = index  # which of the node's results; -1: the only one
        self.tensor = tensor  # held, or None
        self.version = version  # of `tensor` when it was taken
        self.restore: Callable[[Any], Any] | None = None  # from the form in which it is held
        self.read = False  # by a logged op
        self.packs = 0  # saved-tensor slots that hold it


class Node:
    """One run of an op."""

    __slots__ = ("args", "func", "inputs", "kwargs", "nested", "number")

    def __init__(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.func = func
        self.args = args  # with values where tensors were
        self.kwargs = kwargs
        self.nested = False  # values inside lists or kwargs
        self.inputs: list[Value] = []
        self.number = 0


class Record:
    """What lies in one storage. ``values`` is empty while there is only the first one."""

    __slots__ = ("__weakref__", "first", "key", "noise", "tensor", "values")

    def __init__(self, first: Value | None, tensor: Callable[[], Any]) -> None:
        self.first = first
        self.tensor = tensor  # weak reference to the tensor that `first` stands for
        self.values: dict[Any, Value] = {}
        self.key: Any = None  # of `first`, once another value needs to be told apart
        self.noise: float | bool | None = None  # True: 0 and 1 at random; a number: divided by it

    def clear(self) -> None:
        """Forget all values: the storage was written to, or the region has ended."""
        self.first = None
        self.tensor = _nothing
        self.values = {}
        self.noise = None

    def all(self) -> list[Value]:
        """Every value in the storage."""
        found = list(self.values.values())
        if self.first is not None and self.first not in found:
            found.append(self.first)
        return found


def _nothing() -> None:
    return None


def place_of(t: Any) -> tuple[Any, ...]:
    """Where in its storage a tensor lies."""
    return t.storage_offset(), t.shape, t.stride(), t.dtype, t.is_conj(), t.is_neg()


def alias_of(t: Any) -> Any:
    """The same data and version counter without autograd's history, from inside a dispatch."""
    include = torch._C._dispatch_tls_local_include_set()
    exclude = torch._C._dispatch_tls_local_exclude_set()
    with torch._C._ForceDispatchKeyGuard(include, exclude - _ADINPLACE):
        return t.detach()


def _to_noise(dtype: Any, divisor: float) -> Callable[[Any], Any]:
    return lambda mask: mask.to(dtype).div_(divisor)


class Region(TorchDispatchMode):  # type: ignore[misc]
    """Records the ops of a region while it runs."""

    def __init__(self, policy: Callable[..., Any] | None, script: Any = None) -> None:
        super().__init__()
        self.policies = [policy]  # of the region and of the regions inside it
        self.script = script  # decides instead of the policy, or watches (eager_plan.py)
        self.key = f"_cutback_{next(_numbers)}"
        self.paused = False
        self.records: list[Any] = []  # weak
        self.outside: list[Any] = []  # storages from outside that carry an entry; weak
        self.number = 0

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """The mode looks at what compiled code calls, not into it."""
        return True

    def __enter__(self) -> Region:
        _active.region = self
        super().__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        _active.region = None
        super().__exit__(*error)
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
        self.policies = [None]
        self.script = None

    # values

    def alias(self, t: Any) -> Any:
        """`alias_of`, also from outside a dispatch."""
        before, self.paused = self.paused, True
        try:
            return alias_of(t)
        finally:
            self.paused = before

    def _source(self, t: Any, record: Record | None) -> Value:
        """A value that no logged op can make."""
        noise = None if record is None else record.noise
        if type(noise) is float and t.nbytes >= _MASK_BYTES:
            before, self.paused = self.paused, True
            try:
                with torch.no_grad():
                    value = Value(None, -1, t.detach() != 0)
            finally:
                self.paused = before
            value.restore = _to_noise(t.dtype, noise)
            return value
        held = t if t.requires_grad and t.is_leaf else self.alias(t)
        return Value(None, -1, held, t._version)

    def value_of(self, t: Any) -> Value:
        """The value that a tensor stands for."""
        try:
            storage = t.untyped_storage()
        except (NotImplementedError, RuntimeError):  # sparse and other tensors without storage
            return self._source(t, None)
        entries = storage.__dict__
        record = entries.get(self.key)
        if record is None:
            value = self._source(t, None)
            entries[self.key] = Record(value, weakref.ref(t))
            self.outside.append(weakref.ref(storage))
            return value
        if record.tensor() is t:
            return record.first
        self._name_first(record)
        place = place_of(t)
        value = record.values.get(place)
        if value is None:
            value = record.values[place] = self._source(t, record)
        return value

    @staticmethod
    def _name_first(record: Record) -> None:
        if record.key is None and record.first is not None:
            t = record.tensor()
            if t is not None:
                record.key = place_of(t)
                record.values[record.key] = record.first

    def _register(self, t: Any, node: Node, index: int, held: str) -> None:
        """A result of an op; `held` is "", "here" or "host"."""
        try:
            entries = t.untyped_storage().__dict__
        except (NotImplementedError, RuntimeError):
            return
        record = entries.get(self.key)
        if record is not None:  # a view
            if record.tensor() is not t and held != "once":
                self._name_first(record)
                place = place_of(t)
                if place not in record.values:
                    record.values[place] = Value(node, index)
            return
        if not held:
            value = Value(node, index)
        else:
            value = Value(None, index, alias_of(t), t._version)
            if held == "host" and t.device.type != "cpu":
                device = t.device
                value.tensor = value.tensor.cpu()
                value.restore = lambda kept: kept.to(device)
        record = entries[self.key] = Record(value, weakref.ref(t))
        self.records.append(weakref.ref(record))

    # ops

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if self.paused:
            return func(*args, **kwargs)
        info = info_of(func)
        if info.special:
            if info.mutates:
                return self._mutate(info, func, args, kwargs)
            if info.norm >= 0:
                return self._norm(info, func, args, kwargs)
        node = self._node(func, args, kwargs)
        out = func(*args, **kwargs)
        if info.factory:
            self._pin_options(node, out)
        self._log(info, node, out, args, kwargs)
        return out

    def _node(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Node:
        node = Node(func, args, kwargs)
        self.number = node.number = self.number + 1
        inputs = node.inputs
        logged = []
        for a in args:
            kind = type(a)
            if kind not in _PLAIN:
                if kind is Tensor or isinstance(a, Tensor):
                    a = self.value_of(a)
                    a.read = True
                    inputs.append(a)
                else:
                    a = self._convert(a, node)
            logged.append(a)
        node.args = tuple(logged)
        if kwargs:
            node.kwargs = {k: self._convert(a, node) for k, a in kwargs.items()}
        return node

    def _convert(self, a: Any, node: Node) -> Any:
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
    def _pin_options(node: Node, out: Any) -> None:
        # the defaults may be others by the time it runs again
        if isinstance(out, Tensor):
            options = {"dtype": out.dtype, "device": out.device}
            node.kwargs = {**options, **{k: v for k, v in node.kwargs.items() if v is not None}}

    def _log(
        self, info: OpInfo, node: Node, out: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        if info.pinned and info.runs_once(args, kwargs):
            held = "once"
        elif self.script is not None:
            held = "here" if info.foreign else ""
        else:
            policy = self.policies[-1]
            held = "here" if info.foreign else ""
            if policy is not None:
                decision = ask(policy, node.func, args, kwargs, out)
                if saves(decision):
                    held = "here"
                elif offloads(decision):
                    held = "host"
                elif info.foreign and decision.name == "MUST_RECOMPUTE":
                    held = ""
        if isinstance(out, Tensor):
            self._register(out, node, -1, held)
        elif isinstance(out, (tuple, list)):
            for index, t in enumerate(out):
                if isinstance(t, Tensor):
                    self._register(t, node, index, held)

    # writes

    def _keep_readable(self, record: Record) -> None:
        """Before a storage is overwritten, copy those held values in it that a logged op reads."""
        for value in record.all():
            if value.tensor is None or value.restore is not None or not value.read:
                continue
            # `record`, the list of the loop, `value` and the argument of the count itself
            others = sys.getrefcount(value) - 3 - (record.first is value)
            others -= sum(v is value for v in record.values.values())
            if others > 0:
                value.tensor = value.tensor.detach().clone()
                value.version = value.tensor._version

    def _written(self, t: Any) -> Record | None:
        try:
            storage = t.untyped_storage()
        except (NotImplementedError, RuntimeError):
            return None
        record = storage.__dict__.get(self.key)
        if record is None:
            record = storage.__dict__[self.key] = Record(None, _nothing)
            self.outside.append(weakref.ref(storage))
        else:
            self._keep_readable(record)
        return record  # type: ignore[no-any-return]

    def _mutate(
        self, info: OpInfo, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        policy = self.policies[-1]
        if policy is not None:
            ask(policy, func, args, kwargs, None)
        records = []
        for at in info.written:
            if isinstance(at, str):
                a = kwargs.get(at)
            else:
                a = args[at] if at < len(args) else None
            for t in a if isinstance(a, (list, tuple)) else (a,):
                if isinstance(t, Tensor):
                    record = self._written(t)
                    if record is not None:
                        records.append((record, record.noise))
        out = func(*args, **kwargs)
        for record, _ in records:
            record.clear()
        if len(records) == 1:
            record, noise = records[0]
            if func is torch.ops.aten.bernoulli_.float:
                record.noise = True
            elif func is torch.ops.aten.div_.Scalar and noise is True and args[1] != 0:
                record.noise = float(args[1])
        node = Node(func, (), {})
        for index, t in enumerate(out if isinstance(out, (tuple, list)) else (out,)):
            if isinstance(t, Tensor):
                self._register(t, node, index, "once")
        return out

    def _norm(self, info: OpInfo, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Batch norm: it also advances its running statistics, when it has any."""
        at = info.norm
        if args[at] is None or not args[at + 2]:
            node = self._node(func, args, kwargs)
            out = func(*args, **kwargs)
        else:
            records = [self._written(t) for t in args[at : at + 2]]
            node = self._node(func, (*args[:at], None, None, *args[at + 2 :]), kwargs)
            out = func(*args, **kwargs)
            for record in records:
                if record is not None:
                    record.clear()
        self._log(info, node, out, args, kwargs)
        return out

    # autograd's slots

    def pack(self, t: Any) -> Any:
        """What autograd keeps instead of a tensor."""
        value = self.value_of(t)
        value.packs += 1
        return value
