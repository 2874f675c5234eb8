"""States of optimizers as they come from elsewhere: numbers, types and layouts."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import Any

import torch
from torch import Tensor

from ..budgets import short
from ..scalars import number


def names_of(groups: Sequence[dict[str, Any]]) -> tuple[str, ...]:
    """The names of the parameters of all groups, or where they are."""
    return tuple(
        name
        for g, group in enumerate(groups)
        for name in group.get("param_names")
        or [f"parameter {i} of group {g}" for i in range(len(group["params"]))]
    )


def kind(dtype: torch.dtype) -> torch.dtype:
    """The type itself, or one for all that may be cast to each other."""
    if dtype.is_complex:
        return torch.complex64
    return torch.float32 if dtype.is_floating_point else dtype


def lacks_memory(x: Any) -> bool:
    """Whether a tensor has fewer bytes than its elements take: its storage was shrunk or freed."""
    if not isinstance(x, Tensor) or x.layout is not torch.strided or x.numel() == 0:
        return False
    if x.device.type != "cpu":
        return False
    last = sum((n - 1) * stride for n, stride in zip(x.shape, x.stride(), strict=True))
    needed = (x.storage_offset() + last + 1) * x.element_size()
    return bool(x.untyped_storage().nbytes() < needed)


def number_of(x: Any) -> float | None:
    """The finite number that this is, of Python, NumPy or a tensor; None: it is none."""
    if isinstance(x, Tensor):
        plain = x.layout is torch.strided and not x.is_quantized and x.device.type != "meta"
        if not plain or x.numel() != 1 or x.is_complex() or x.dtype is torch.bool:
            return None
        x = x.item()
    try:
        found = number("", "", x)
    except (TypeError, ValueError):
        return None
    return found if math.isfinite(found) else None


def laid_out_like(p: Tensor, x: Any, dtype: torch.dtype) -> Tensor | None:
    """A copy of ``x``, which has this type or that of ``p``, whose elements lie as those of ``p``
    do; None: it has others."""
    if not isinstance(x, Tensor) or x.layout is not torch.strided or x.device != p.device:
        return None
    if x.shape != p.shape or x.dtype not in (dtype, p.dtype):
        return None
    new = torch.empty_like(p, dtype=dtype, memory_format=torch.preserve_format)
    return new.copy_(x.detach())


def check_numbers(owner: str, given: Mapping[str, Any], keys: Iterable[str]) -> None:
    """Whether these are counts of steps and other numbers wherever a ``state_dict`` has them beside
    a parameter.

    Raises:
        ValueError: they are not, or there are no states at all.
        KeyError: it is no ``state_dict``.
    """
    states, place = given["state"], "of the state to load"
    if not isinstance(states, Mapping):
        raise ValueError(f"{owner}: 'state' {place} is {short(states)}, not a dict")
    for n in chain.from_iterable(group["params"] for group in given["param_groups"]):
        held = states.get(n, {})
        if not isinstance(held, Mapping):
            raise ValueError(f"{owner}: parameter {n} {place} has {short(held)}, not a dict")
        for key in set(keys) & set(held):
            x = number_of(held[key])
            if x is None or (key == "step" and not (x >= 0 and x.is_integer())):
                wanted = "a count" if key == "step" else "a finite number"
                found = " ".join(short(held[key]).split())
                raise ValueError(
                    f"{owner}: {key} of parameter {n} {place} is {found}, and has to be {wanted}"
                )


def by_name(owner: str, given: dict[str, Any], groups: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """A ``state_dict`` whose parameters stand in the order of ``groups``, where the names of both
    are known (``named_parameters()``) and are the same. With other names the order counts, as in
    PyTorch, but a name that both know has to stand in the same place.

    Raises:
        ValueError: it does not.
    """
    saved = given["param_groups"]
    if not all("param_names" in group for group in (*saved, *groups)):
        return given
    own = [name for group in groups for name in group["param_names"]]
    names = [name for group in saved for name in group["param_names"]]
    ids = [n for group in saved for n in group["params"]]
    if names == own or len(names) != len(ids) or len(set(names)) != len(names):
        return given
    if set(names) != set(own):
        for i, (name, other) in enumerate(zip(own, names, strict=False)):
            if name != other and (name in names or other in own):
                raise ValueError(
                    f"{owner}: parameter {i} is {name}, and in the state to load {other}; the "
                    "names differ elsewhere, too, so it cannot be matched by name"
                )
        return given
    if [len(group["params"]) for group in saved] != [len(group["params"]) for group in groups]:
        return given  # which PyTorch refuses
    at = dict(zip(names, ids, strict=True))
    return {**given, "param_groups": [
        {**group, "params": [at[name] for name in mine["param_names"]],
         "param_names": list(mine["param_names"])}
        for group, mine in zip(saved, groups, strict=True)
    ]}  # fmt: skip
