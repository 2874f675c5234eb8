"""Recomputes a value by running only the ops that lead to it.

The ops run below autograd and without autocast, because the log contains the ops that autograd and
autocast dispatched.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Sequence
from types import TracebackType

import torch
from torch import Tensor

from .arguments import Argument
from .log import active
from .values import Logged, Memory, Node, Seen, Value

_ENGINE = torch.autograd.graph._engine_run_backward.__code__
_OURS = "cutback.torch.eager"
_NEAR = 8  # in chains of at most this many ops, all results that slots need are held


def held(value: Value, tensor: Tensor) -> Tensor:
    """Returns the tensor of a held value.

    Raises:
        RuntimeError: if it was overwritten.
    """
    version = value.version
    if version < 0:
        return value.restore(tensor)
    if tensor._version != version:
        raise _modified(tensor, tensor._version, version)
    return tensor


def _modified(tensor: Tensor, version: int, expected: int) -> RuntimeError:
    kind = str(tensor.dtype).removeprefix("torch.")
    return RuntimeError(
        "one of the variables needed for gradient computation has been modified by an inplace "
        f"operation: [{kind} {list(tensor.shape)}] is at version {version}; expected "
        f"version {expected} instead. cutback.torch.checkpoint needs it to run an op "
        "again; clone it before it is modified, or save the results of its readers (policy_fn)"
    )


def _found(seen: Seen) -> Tensor | None:
    """Returns the contents that autograd would read from a slot whose memory was written. Returns
    None if autograd would raise an error, but the region has not ended and can still recompute the
    value.

    Raises:
        RuntimeError: if autograd would raise one.
    """
    if seen.unseen():
        return seen.tensor
    if seen.settled:
        raise _modified(seen.tensor, seen.counter._version, seen.version)
    return None


class _Restored:
    """Restores the grad mode."""

    __slots__ = ("grad",)

    def __init__(self, grad: bool) -> None:
        self.grad = grad

    def __enter__(self) -> None: ...

    def __exit__(self, *error: BaseException | type[BaseException] | TracebackType | None) -> None:
        torch._C._set_grad_enabled(self.grad)


def _fill(a: Logged, made: dict[Value, Tensor]) -> Argument:
    if type(a) is Value:
        t = made.get(a)
        if t is not None:
            return t
        t = a.tensor
        return held(a, t)
    if type(a) is list:
        return [_fill(x, made) for x in a]
    return a


def _run(node: Node, made: dict[Value, Tensor]) -> Tensor | Sequence[Tensor]:
    args = []
    for a in node.args:
        if type(a) is Value:
            t = made.get(a)
            args.append(held(a, a.tensor) if t is None else t)
        else:
            args.append(_fill(a, made) if type(a) is list else a)
    kwargs = node.kwargs
    if not kwargs:
        return node.info.call(*args)
    if node.nested:
        kwargs = {k: _fill(a, made) for k, a in kwargs.items()}
    return node.info.call(*args, **kwargs)


def chain(target: Value) -> tuple[list[Node], dict[Node, list[Value]]]:
    """Returns the ops that lead from held values to `target`, in the order in which they ran, and
    the results needed from each of them."""
    wanted: dict[Node, list[Value]] = {}
    stack = [target]
    seen = {target}
    while stack:
        value = stack.pop()
        node = value.node
        if node is None:
            continue  # another thread has recomputed and held it
        known = wanted.get(node)
        if known is not None:
            known.append(value)
            continue
        wanted[node] = [value]
        for other in node.inputs:
            if other.tensor is None and other not in seen:
                seen.add(other)
                stack.append(other)
    return sorted(wanted, key=lambda n: n.number), wanted


class _Spacing:
    """Chooses which results of a long chain to hold for later slots: those that slots need among
    the last `stride` ops, and one in every `stride` ops before. If n values are needed one after
    another, from the last to the first, about 2 * sqrt(n) are held at a time, and each is computed
    about twice. Views are neither counted nor chosen."""

    __slots__ = ("due", "near", "node", "stride", "target")

    def __init__(self, nodes: list[Node], target: Value) -> None:
        n = sum(not node.info.view for node in nodes)
        self.stride = max(_NEAR, math.isqrt(n))
        self.near = n - self.stride  # ops to run until only `stride` are left
        self.due = 0  # ops since the last choice
        self.node: Node | None = None
        self.target = target

    def __call__(self, node: Node, value: Value, tensor: Tensor) -> None:
        view = node.info.view
        if node is not self.node and not view:
            self.node = node
            self.due += 1
            self.near -= 1
        if value is self.target:
            chosen = value.packs > 1
        else:
            chosen = (self.due >= self.stride and not view) or (value.packs > 0 > self.near)
        if chosen:
            self.due = 0
            _keep(value, tensor)


def rerun(
    value: Value,
    nodes: list[Node],
    wanted: dict[Node, list[Value]],
    keep: Callable[[Node, Value, Tensor], None],
    made: dict[Value, Tensor] | None = None,
) -> Tensor:
    """Runs a chain and returns the tensor of `value`. `keep` is called with each needed result and
    may hold it. `made` holds inputs of the chain that are not held elsewhere; each is dropped after
    its last read."""
    reads: dict[Value, int] = {value: 1}
    for node in nodes:
        for other in node.inputs:
            reads[other] = reads.get(other, 0) + 1
    made = {} if made is None else made
    grad = torch.is_grad_enabled()
    result: Value | None
    with torch._C._AutoDispatchBelowAutograd(), torch._C._DisableAutocast(), _Restored(grad):
        for node in nodes:
            if node.grad is not grad:
                grad = node.grad
                torch._C._set_grad_enabled(grad)
            out = _run(node, made)
            for result in wanted[node]:
                t = made[result] = out if result.index < 0 else out[result.index]
                keep(node, result, t)
            for weak in node.results:  # results not needed now may be needed next
                result = weak()
                if result is not None and result not in wanted[node] and result.tensor is None:
                    keep(node, result, out[result.index])
            for other in node.inputs:
                left = reads[other] - 1
                reads[other] = left
                if not left:
                    made.pop(other, None)
            del out
    made_value = made.get(value)
    return held(value, value.tensor) if made_value is None else made_value


def _reads_a_function() -> bool:
    """True if an ``autograd.Function`` reads a saved tensor. Autograd's formulas, which never write
    into saved tensors, are called directly by the engine."""
    frame = sys._getframe(1)
    while frame is not None and frame.f_globals.get("__name__", "").startswith(_OURS):
        frame = frame.f_back  # type: ignore[assignment]
    return frame is not None and frame.f_code is not _ENGINE


def _outside(value: Value) -> Value | None:
    """Returns the value that ops read, if a saved tensor is in memory from outside. Returns None if
    it is not from outside, if no op reads it, or if it requires a gradient, so that no backward
    writes into it."""
    source = value.outside or value
    while source.node is not None and source.node.info.view:
        source = source.node.inputs[0]
    tensor = source.tensor
    if not source.source or not source.read or tensor is None or source.version < 0:
        return None
    return None if tensor.requires_grad else source


def _copy_for_reruns(source: Value) -> None:
    """Makes reruns read a copy of a tensor from outside, because an ``autograd.Function`` is about
    to get the memory itself and may write into it. (PyTorch's checkpoint reruns everything before
    the Function can write.)"""
    tensor: Tensor = source.tensor
    if source.memory is None and source.seen is None and tensor._version == source.version:
        source.memory = Memory(lambda: tensor, None, source.version)
        source.memory.itself = True
        source.tensor = tensor.clone()
        source.version = source.tensor._version


def own_memory(value: Value) -> Tensor | None:
    """Returns the saved tensor in its original memory, if an ``autograd.Function`` reads it and the
    memory is still alive, so that writes in its backward are visible. Returns None if the value
    must be recomputed.

    Raises:
        RuntimeError: if an earlier backward has written into the memory.
    """
    source = _outside(value)
    if (value.memory is None and source is None) or not _reads_a_function():
        return None
    region = active()
    before = region is not None and region.paused
    if region is not None:
        region.paused = True
    try:
        with torch.no_grad():
            if source is not None:
                _copy_for_reruns(source)
            memory = value.memory
            if memory is None:
                return None
            tensor = memory.tensor()
    finally:
        if region is not None:
            region.paused = before
    base = memory.base()
    if tensor is None and memory.read and base is not None:
        raise _modified(base, base._version, memory.version)
    return tensor


def unpack(value: Value) -> Tensor:
    """The unpack hook: returns the tensor of a slot."""
    own = own_memory(value)
    if own is not None:
        return own
    if value.seen is not None:
        found = _found(value.seen)
        if found is not None:
            return found
    tensor = value.tensor
    if tensor is not None:
        return held(value, tensor)
    nodes, wanted = chain(value)
    return rerun(value, nodes, wanted, _Spacing(nodes, value))


def _keep(value: Value, tensor: Tensor) -> None:
    """Holds a value until the slots and ops that reference it are gone."""
    value.version = tensor._version
    value.tensor = tensor
    value.node = None
