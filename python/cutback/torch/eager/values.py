"""The data structures of a region's log: values, the ops that make them, and records of storages.

Without checkpointing, a slot (a saved tensor) has the contents of its memory at the time of the
backward. If a write increments the tensor's version counter, autograd raises an error. A write
through `.data` (the same memory with a separate counter) is invisible to autograd, and the backward
reads the new contents. So a slot has two sides. One is the value, from which ops are rerun as they
first ran. The other, once memory was written through another counter, is the memory as autograd
would read it (`Seen`). PyTorch cannot tell whether two tensors share a counter; only a write shows
the difference. Nearly all storages have one counter, and cost nothing extra here. A second counter
appears through a dispatched `detach` that does not come from autograd, or through `set_`.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias, final

import torch
from torch import Tensor

from .arguments import Argument, Place, Plain, Result
from .ops import OpInfo

_ADINPLACE = torch._C.DispatchKeySet(torch._C.DispatchKey.ADInplaceOrView)


@final
class Value:
    """A tensor made by an op of the region, or one from outside."""

    __slots__ = (
        "__weakref__",
        "index",
        "label",
        "memory",
        "node",
        "outside",
        "packs",
        "read",
        "restore",
        "seen",
        "source",
        "tensor",
        "version",
    )

    restore: Callable[
        [Tensor], Tensor
    ]  # converts the held form back to the value; only set if version is -1
    label: int  # value id in the problem, if the region is recorded for planning (watch.py)
    version: int  # version counter of `tensor` when it was held; only set if there is a tensor

    def __init__(self, node: Node | None, index: int) -> None:
        self.node = node  # the op that makes it; None if it is held or cannot be recomputed
        self.index = index  # index among the node's results; -1 if it is the only one
        self.tensor: Tensor | None = None  # the held tensor
        self.read = False  # True if a logged op reads it
        self.packs = 0  # number of slots that were filled with it or a view of it
        self.source = ""  # if no op made it, what is held: an "alias" or the "object"
        self.seen: Seen | None = None  # contents of its slots after a write unseen by autograd
        self.outside: Value | None = None  # for a separate slot value: the value that ops read
        self.memory: Memory | None = None  # the memory of the tensor that filled a slot, if known


class Seen:
    """The memory of a saved tensor that the region wrote to after it was saved."""

    __slots__ = ("counter", "settled", "tensor", "version")

    def __init__(self, tensor: Tensor, counter: Tensor, version: int) -> None:
        self.tensor = tensor  # a tensor at the place of the saved one
        self.counter = counter  # a tensor that shares the saved tensor's version counter
        self.version = version  # the counter when the tensor was saved
        self.settled = False  # True if the region has ended and autograd has not seen the write

    def unseen(self) -> bool:
        """True if autograd has not seen the write."""
        return bool(self.counter._version == self.version)


class Memory:
    """The memory of a saved tensor, while something else keeps the tensor alive. An
    ``autograd.Function`` may write into it in its backward."""

    __slots__ = ("base", "itself", "place", "read", "version")

    def __init__(
        self, base: Callable[[], Tensor | None], place: Place | None, version: int
    ) -> None:
        self.base = base  # weak reference to the tensor that owns the memory
        self.place = place  # place of the saved tensor in it; None if that is all of the base
        self.version = version  # version counter of the base when it was saved
        self.itself = False  # True if the slot was filled with the base object itself
        self.read = False  # True if a backward has read it and may have written into it

    def tensor(self) -> Tensor | None:
        """Returns the saved tensor in its memory, or None if the memory is gone or was written
        since."""
        base = self.base()
        if base is None or base.layout is not torch.strided:
            return None
        if base._version != self.version:
            return None
        if self.place is None:
            self.read = True
            return base if self.itself else base.detach()
        offset, shape, strides, *kind = self.place
        if kind != [base.dtype, base.is_conj(), base.is_neg()]:
            return None
        self.read = True
        return base.detach().as_strided(shape, strides, offset)


def held_value(tensor: Tensor, version: int, index: int = -1) -> Value:
    """Makes a value that is held as a tensor and is valid while its version counter equals
    `version`."""
    value = Value(None, index)
    value.tensor = tensor
    value.version = version
    return value


Logged: TypeAlias = (
    "Plain | Value | Sequence[Logged] | Mapping[str, Argument] | Callable[..., Result]"
)
"""An argument of an op, with values in place of tensors."""


class Node:
    """A logged run of an op."""

    __slots__ = ("args", "grad", "info", "inputs", "kwargs", "nested", "number", "results")

    nested: bool  # True if kwargs contain values
    number: int  # position in the region

    def __init__(self, info: OpInfo, number: int) -> None:
        self.info = info
        self.number = number
        self.grad = torch.is_grad_enabled()  # some kernels depend on it
        self.args: list[Logged] = []  # tensors are replaced by values
        self.kwargs: dict[str, Logged] | None = None
        self.nested = False
        self.inputs: list[Value] = []
        self.results: list[
            weakref.ref[Value]
        ] = []  # for an op with several results, all of which a rerun makes


def for_record(value: Value) -> Value | weakref.ref[Value]:
    """Returns the reference that a storage's record keeps. It is weak for a held value, because
    that value references the storage and must not be kept alive by the record."""
    return weakref.ref(value) if value.tensor is not None and value.version >= 0 else value


class Record:
    """The values in one storage."""

    __slots__ = ("__weakref__", "counter", "first", "held", "outside", "slots", "tensor", "values")

    def __init__(self, first: Value | None, tensor: Callable[[], Tensor | None]) -> None:
        self.first = first
        self.held: Callable[[], Value | None] = nothing  # replaces `first` if that must be weak
        if first is not None and first.tensor is not None and first.version >= 0:
            self.first, self.held = None, weakref.ref(first)  # see `for_record`
        self.tensor = tensor  # weak reference to the tensor of `first` or `held`
        self.values: dict[Place, Value | weakref.ref[Value]] | None = (
            None  # by place; None while there is only `first` or `held`
        )
        self.outside = False  # True if the storage is from outside of the region
        self.counter: Tensor | None = None  # the first version counter, once there is a second one
        self.slots: list[
            tuple[weakref.ref[Value], Place, Tensor, int]
        ] = []  # slots filled since then: separate value, place, counter, version

    def named(self) -> dict[Place, Value | weakref.ref[Value]]:
        """Returns all values by place, or weak references to them."""
        values = self.values
        if values is None:
            values = self.values = {}
            t = self.tensor()
            if t is not None:
                first = self.first or self.held()
                if first is not None:
                    values[place_of(t)] = for_record(first)
        return values

    def drop_views(self) -> None:
        """Forgets views without other references, latest first, as later views reference earlier
        ones."""
        values = self.values or {}
        for place in reversed(list(values)):
            value = values[place]
            alone = sys.getrefcount(value) == 3  # the dict, `value`, and the argument
            if type(value) is Value and value.tensor is None and alone:
                del values[place]

    def clear(self) -> None:
        """Forgets all values, because the storage was overwritten or the region has ended."""
        self.first = None
        self.held = nothing
        self.tensor = nothing
        self.values = {}
        self.slots = []

    def all(self) -> list[Value]:
        """Returns every value in the storage."""
        found: list[Value] = []
        for value in (*(self.values or {}).values(), self.first, self.held()):
            if value is not None and type(value) is not Value:
                value = value()
            if value is not None and value not in found:
                found.append(value)
        return found


def nothing() -> None:
    """Returns None, like a dead weak reference."""


def place_of(t: Tensor) -> Place:
    """Returns the place of a tensor in its storage."""
    return t.storage_offset(), t.shape, t.stride(), t.dtype, t.is_conj(), t.is_neg()


def alias_of(t: Tensor) -> Tensor:
    """Returns an alias with the same data and version counter but without autograd history. Call it
    only inside a dispatch."""
    include = torch._C._dispatch_tls_local_include_set()
    exclude = torch._C._dispatch_tls_local_exclude_set()
    with torch._C._ForceDispatchKeyGuard(include, exclude - _ADINPLACE):
        return t.detach()


def counter_of(t: Tensor) -> Tensor:
    """Returns an empty tensor that shares the version counter of `t`. Call it only inside a
    dispatch."""
    counter = alias_of(t)
    counter.data = torch.empty(0, dtype=t.dtype, device=t.device)
    return counter


def tensor_at(storage: torch.UntypedStorage, place: Place, device: torch.device) -> Tensor:
    """Returns a tensor at a place of a storage, with a new version counter. Call it only inside a
    dispatch or outside of all regions."""
    offset, shape, strides, dtype, conj, neg = place
    t = torch.empty(0, dtype=dtype, device=device).set_(storage, offset, shape, strides)
    if conj:
        t = torch._conj(t)
    return torch._neg_view(t) if neg else t
