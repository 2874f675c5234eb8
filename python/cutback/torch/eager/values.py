"""What the log of a region is made of: values, the ops that make them, and what lies in a storage.

What autograd itself would find in a slot is what lies in the saved tensor's memory when the
backward reads it. A write that moves the tensor's version counter makes it refuse; one that does
not (`.data` is the same memory with a counter of its own) it does not see, and the backward reads
what was written. So a slot has two faces: the value, from which ops run again as they ran first,
and, once memory was written through another counter, the memory as autograd would read it
(`Seen`). Whether two tensors share a counter cannot be asked; it shows when one has moved and the
other has not. A storage with one counter, as nearly all have, costs nothing: a second one shows as
a dispatched `detach` that does not come from autograd, or as `set_`.
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
    """A tensor that an op made, or one that came from outside."""

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
    ]  # from the form in which it is held; set where version is -1
    label: int  # in the problem of a region that is watched (watch.py)
    version: int  # of `tensor` when it was taken; set where there is one

    def __init__(self, node: Node | None, index: int) -> None:
        self.node = node  # what makes it; None: held, or it can never be made again
        self.index = index  # which of the node's results; -1: the only one
        self.tensor: Tensor | None = None  # held, or None
        self.read = False  # by a logged op
        self.packs = 0  # saved-tensor slots that have held it or a view of it
        self.source = ""  # "alias" or "object": no op made it, and such a one is held
        self.seen: Seen | None = None  # what its slots have, if the memory was written unseen
        self.outside: Value | None = None  # what ops read of a tensor that this slot has for itself
        self.memory: Memory | None = None  # that a slot was filled from, as far as it is known


class Seen:
    """The memory of a saved tensor that was written to in the region after it was saved."""

    __slots__ = ("counter", "settled", "tensor", "version")

    def __init__(self, tensor: Tensor, counter: Tensor, version: int) -> None:
        self.tensor = tensor  # in the memory, where the saved one lay
        self.counter = counter  # a tensor that has the version counter of the saved one
        self.version = version  # of it when it was saved
        self.settled = False  # the region has ended, and autograd has not seen the write

    def unseen(self) -> bool:
        """Has autograd not seen a write?"""
        return bool(self.counter._version == self.version)


class Memory:
    """Where a saved tensor lies, for as long as somebody holds the tensor. An ``autograd.Function``
    may write there in its backward."""

    __slots__ = ("base", "itself", "place", "read", "version")

    def __init__(
        self, base: Callable[[], Tensor | None], place: Place | None, version: int
    ) -> None:
        self.base = base  # weak reference to the tensor that has the memory
        self.place = place  # None: all of that tensor
        self.version = version  # of it when it was saved
        self.itself = False  # the slot was filled with that very tensor
        self.read = False  # a backward has had it, and may have written

    def tensor(self) -> Tensor | None:
        """The saved tensor in its own memory; None if that is gone, or was written since."""
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
    """A value that is there: what a tensor holds while its version counter stands at `version`."""
    value = Value(None, index)
    value.tensor = tensor
    value.version = version
    return value


Logged: TypeAlias = (
    "Plain | Value | Sequence[Logged] | Mapping[str, Argument] | Callable[..., Result]"
)
"""An argument of an op, with values in place of tensors."""


class Node:
    """One run of an op."""

    __slots__ = ("args", "grad", "info", "inputs", "kwargs", "nested", "number", "results")

    nested: bool  # kwargs hold values
    number: int  # in the order of the region

    def __init__(self, info: OpInfo, number: int) -> None:
        self.info = info
        self.number = number
        self.grad = torch.is_grad_enabled()  # some kernels ask for it
        self.args: list[Logged] = []  # with values where tensors were
        self.kwargs: dict[str, Logged] | None = None
        self.nested = False
        self.inputs: list[Value] = []
        self.results: list[
            weakref.ref[Value]
        ] = []  # of an op with several, weak: a rerun makes all of them


def for_record(value: Value) -> Value | weakref.ref[Value]:
    """A reference for a storage's record. A held value points at the storage itself: what nobody
    else holds must not keep it alive."""
    return weakref.ref(value) if value.tensor is not None and value.version >= 0 else value


class Record:
    """What lies in one storage."""

    __slots__ = ("__weakref__", "counter", "first", "held", "outside", "slots", "tensor", "values")

    def __init__(self, first: Value | None, tensor: Callable[[], Tensor | None]) -> None:
        self.first = first
        self.held: Callable[[], Value | None] = nothing  # instead of `first`
        if first is not None and first.tensor is not None and first.version >= 0:
            self.first, self.held = None, weakref.ref(first)  # as `for_record` says
        self.tensor = tensor  # weak reference to the tensor that those stand for
        self.values: dict[Place, Value | weakref.ref[Value]] | None = (
            None  # by place; none while there is only `first`
        )
        self.outside = False  # the region did not make the storage
        self.counter: Tensor | None = None  # of the values that were there when a second one showed
        self.slots: list[
            tuple[weakref.ref[Value], Place, Tensor, int]
        ] = []  # since then: each slot's own value, weak; place; counter

    def named(self) -> dict[Place, Value | weakref.ref[Value]]:
        """All values by their places, or weak references to them."""
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
        """Forget views that nobody else points at, the latest first: they point at each other."""
        values = self.values or {}
        for place in reversed(list(values)):
            value = values[place]
            alone = sys.getrefcount(value) == 3  # the dictionary, `value`, the argument
            if type(value) is Value and value.tensor is None and alone:
                del values[place]

    def clear(self) -> None:
        """Forget all values: the storage was written to, or the region has ended."""
        self.first = None
        self.held = nothing
        self.tensor = nothing
        self.values = {}
        self.slots = []

    def all(self) -> list[Value]:
        """Every value in the storage."""
        found: list[Value] = []
        for value in (*(self.values or {}).values(), self.first, self.held()):
            if value is not None and type(value) is not Value:
                value = value()
            if value is not None and value not in found:
                found.append(value)
        return found


def nothing() -> None:
    """What a weak reference says whose object is gone."""


def place_of(t: Tensor) -> Place:
    """Where in its storage a tensor lies."""
    return t.storage_offset(), t.shape, t.stride(), t.dtype, t.is_conj(), t.is_neg()


def alias_of(t: Tensor) -> Tensor:
    """The same data and version counter without autograd's history, from inside a dispatch."""
    include = torch._C._dispatch_tls_local_include_set()
    exclude = torch._C._dispatch_tls_local_exclude_set()
    with torch._C._ForceDispatchKeyGuard(include, exclude - _ADINPLACE):
        return t.detach()


def counter_of(t: Tensor) -> Tensor:
    """A tensor without memory that has the version counter of `t`, from inside a dispatch."""
    counter = alias_of(t)
    counter.data = torch.empty(0, dtype=t.dtype, device=t.device)
    return counter


def tensor_at(storage: torch.UntypedStorage, place: Place, device: torch.device) -> Tensor:
    """What lies at a place of a storage, with a version counter of its own; from inside a dispatch
    or outside of all regions."""
    offset, shape, strides, dtype, conj, neg = place
    t = torch.empty(0, dtype=dtype, device=device).set_(storage, offset, shape, strides)
    if conj:
        t = torch._conj(t)
    return torch._neg_view(t) if neg else t
