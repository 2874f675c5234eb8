"""Making a value again: run what leads to it, and no more.

Inside a backward every op runs below autograd and with autocast off, as it did when it was logged:
the log holds the ops that autograd and autocast chose.
"""

from __future__ import annotations

from typing import Any

import torch

from .eager_log import Node, Value

_SHORT = 8  # chains up to this many ops are cheap to run again


def held(value: Value, tensor: Any) -> Any:
    """A held tensor, unless it was overwritten.

    Raises:
        RuntimeError: it was.
    """
    if value.restore is not None:
        return value.restore(tensor)
    if tensor._version != value.version:
        kind = str(tensor.dtype).removeprefix("torch.")
        raise RuntimeError(
            "one of the variables needed for gradient computation has been modified by an inplace "
            f"operation: [{kind} {list(tensor.shape)}] is at version {tensor._version}; expected "
            f"version {value.version} instead. cutback.torch.checkpoint needs it to run an op "
            "again; clone it before it is modified, or have what is made of it saved (policy_fn)"
        )
    return tensor


def _fill(a: Any, made: dict[Value, Any]) -> Any:
    if type(a) is Value:
        t = made.get(a)
        if t is not None:
            return t
        t = a.tensor
        return held(a, t)
    if type(a) is list:
        return [_fill(x, made) for x in a]
    return a


def _run(node: Node, made: dict[Value, Any]) -> Any:
    args = [_fill(a, made) if type(a) is Value or type(a) is list else a for a in node.args]
    kwargs = node.kwargs
    if node.nested and kwargs:
        kwargs = {k: _fill(a, made) for k, a in kwargs.items()}
    return node.func(*args, **kwargs)


def chain(target: Value) -> tuple[list[Node], dict[Node, list[Value]]]:
    """The ops that lead from held values to `target`, in the order they ran, and which of their
    results are wanted."""
    wanted: dict[Node, list[Value]] = {}
    stack = [target]
    seen = {target}
    while stack:
        value = stack.pop()
        node = value.node
        if node is None:
            continue  # another thread has made it and holds it
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


def _halves(n: int) -> set[int]:
    """Places of a chain of n ops to keep, so that what follows needs short chains: the middle, the
    middle of the rest, and so on. A chain that is asked for op by op, backwards, then costs
    n log n runs rather than n^2, and holds log n results rather than n."""
    places = set()
    left = n
    while left > _SHORT:
        left -= (left + 1) // 2
        places.add(n - left)
    return places


def unpack(value: Value) -> Any:
    """The tensor behind a slot of autograd."""
    tensor = value.tensor
    if tensor is not None:
        return held(value, tensor)
    nodes, wanted = chain(value)
    reads: dict[Value, int] = {value: 1}
    for node in nodes:
        for other in node.inputs:
            reads[other] = reads.get(other, 0) + 1
    keep = _halves(len(nodes)) if len(nodes) > _SHORT else ()
    made: dict[Value, Any] = {}
    due = False
    with torch._C._AutoDispatchBelowAutograd(), torch._C._DisableAutocast():
        for place, node in enumerate(nodes):
            out = _run(node, made)
            due = due or place in keep
            hold = due and not getattr(node.func, "is_view", False)
            for result in wanted[node]:
                t = made[result] = out if result.index < 0 else out[result.index]
                if hold and result is not value:
                    _keep(result, t)
                    due = False
            for other in node.inputs:
                left = reads[other] - 1
                reads[other] = left
                if not left:
                    made.pop(other, None)
            del out
    result = made.pop(value, None)
    if result is None:
        return held(value, value.tensor)
    if value.packs > 1:
        _keep(value, result)
    return result


def _keep(value: Value, tensor: Any) -> None:
    """From now on it is held; its reads end with the slots and ops that point at it."""
    value.version = tensor._version
    value.tensor = tensor
    value.node = None
