"""Finds steps that the core refuses, and lets PyTorch's own code take them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

import numpy as np
import torch
from torch import Tensor

from .states import names_of, spanned
from .types import Group, ParamState, Setting

_MOST = 1e30  # the core's limit for numbers of a group (CB_HYPER_MOST)
_SIGNED = ("beta2_decay", "dampening", "initial_accumulator_value")  # may be below 0


def _sharing_memory(groups: Sequence[Group]) -> tuple[str, str] | None:
    """Returns the names of two different parameters that are stepped and share memory. Returns None
    if there are no such parameters, or if a parameter is listed twice."""
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
        reached, before = begin + spanned(p), name
    return None


def _numbers_of(value: Setting | Sequence[Setting | None] | str | None) -> list[float]:
    """Returns the numbers of an option, or an empty list if it is something else."""
    numbers: list[float] = []
    for x in value if isinstance(value, tuple | list) else (value,):
        if isinstance(x, Tensor) and x.numel() == 1 and not x.is_complex():
            x = x.item()
        if isinstance(x, int | float | np.floating | np.integer) and not isinstance(x, bool):
            numbers.append(float(x))
    return numbers


def _out_of_range(key: str, x: float) -> bool:
    if key == "betas" and x >= 1:
        return True
    return not abs(x) <= _MOST or (x < 0 and key not in _SIGNED)


def _first_out_of_range(
    groups: Sequence[Group], options: Collection[str]
) -> tuple[int, str, float] | None:
    """Returns the group, option and value of the first number that the core refuses, or None."""
    for g, group in enumerate(groups):
        for key in options:
            for x in _numbers_of(group.get(key)):
                if _out_of_range(key, x):
                    return g, key, x
    return None


def accepted_by_torch(groups: Sequence[Group], options: Collection[str]) -> str | None:
    """Returns why the core refuses a step that PyTorch takes, or None if it does not refuse it.
    Either a scheduler or the user has moved a group's number out of range (PyTorch checks numbers
    only when an optimizer is made), or different parameters share memory. ``options`` has the names
    of the groups' options."""
    found = _first_out_of_range(groups, options)
    if found is not None:
        g, key, x = found
        return f"group {g} has {key}={x:g}, which is out of range"
    tied = _sharing_memory(groups)
    return tied and f"{tied[0]} and {tied[1]} share memory"


def whole_or_not(
    step: Callable[[], None],
    groups: Sequence[Group],
    states: dict[Tensor, ParamState],
    options: Collection[str],
) -> None:
    """Takes a step with PyTorch's code. If a number is out of range, PyTorch may fail in the middle
    of the step; parameters and states are restored after an error."""
    if _first_out_of_range(groups, options) is None:
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
