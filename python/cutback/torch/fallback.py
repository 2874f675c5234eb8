"""Steps that PyTorch's own code takes though the core refuses them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from .states import names_of

_MOST = 1e30  # a learning rate in the core (CB_HYPER_MOST)


def _sharing_memory(groups: Sequence[dict[str, Any]]) -> tuple[str, str] | None:
    """The names of two different parameters that are stepped and whose memory overlaps; None: there
    are no two, or a parameter is listed twice."""
    params = [p for group in groups for p in group["params"]]
    stepped = [
        (p.data_ptr(), name, p)
        for p, name in zip(params, names_of(groups), strict=True)
        if p.grad is not None and p.layout is torch.strided and p.numel() > 0
    ]
    if len({id(p) for _, _, p in stepped}) < len(stepped):
        return None
    reached, before = 0, ""
    for begin, name, p in sorted(stepped, key=lambda x: x[0]):
        if begin < reached:
            return before, name
        last = sum((n - 1) * stride for n, stride in zip(p.shape, p.stride(), strict=True))
        reached, before = begin + (last + 1) * p.element_size(), name
    return None


def accepted_by_torch(groups: Sequence[dict[str, Any]]) -> str | None:
    """What the core refuses and PyTorch steps all the same: a learning rate that a scheduler has
    moved out of range, or different parameters whose memory overlaps. None: neither; a rate that is
    NaN is a mistake."""
    for g, group in enumerate(groups):
        lr = float(group["lr"])
        if lr < 0 or lr > _MOST:
            return f"group {g} has lr={lr:g}, which is out of range"
    tied = _sharing_memory(groups)
    return tied and f"{tied[0]} and {tied[1]} share memory"


def whole_or_not(
    step: Callable[[], Any], groups: Sequence[dict[str, Any]], states: dict[Tensor, dict[str, Any]]
) -> None:
    """Takes a step of PyTorch's. Where a learning rate is so large that PyTorch may find out in the
    middle that it does not fit its type, parameters and states are restored after an error."""
    if not any(_MOST < abs(float(group["lr"])) < math.inf for group in groups):
        step()
        return
    params = [p for group in groups for p in group["params"] if p.grad is not None]
    held = {p: dict(states[p]) for p in params if p in states}
    tensors = [*params, *(x for state in held.values() for x in state.values()
                          if isinstance(x, Tensor))]  # fmt: skip
    copies = [x.detach().clone() for x in tensors]
    try:
        step()
    except BaseException:
        with torch.no_grad():
            for x, copy in zip(tensors, copies, strict=True):
                x.copy_(copy)
        for p in params:
            if p in held:
                states[p].clear()
                states[p].update(held[p])
            else:
                states.pop(p, None)
        raise
