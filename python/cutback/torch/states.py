"""Checks and converts optimizer states from other sources: numbers, types and layouts."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..budgets import short
from ..scalars import number
from .types import Group, StateDict, StateValue


def names_of(groups: Sequence[Group]) -> tuple[str, ...]:
    """Returns the names of the parameters of all groups, or their positions if they have no
    names."""
    return tuple(
        name
        for g, group in enumerate(groups)
        for name in group.get("param_names")
        or [f"parameter {i} of group {g}" for i in range(len(group["params"]))]
    )


def check_names(owner: str, groups: list[Group]) -> None:
    """Removes the last group again if it repeats a name.

    Raises:
        ValueError: a name is repeated.
    """
    seen = set[str]()
    for name in chain.from_iterable(group.get("param_names", ()) for group in groups):
        if name in seen:
            groups.pop()
            raise ValueError(f"cutback.torch.optim.{owner}: two parameters are named {name!r}")
        seen.add(name)


def rows_of(
    owner: str,
    groups: Sequence[Group],
    options: Mapping[str, Any],
    row: Callable[[Group], tuple[float, ...]],
) -> list[tuple[float, ...]]:
    """Returns the numbers of all groups. ``options`` has the defaults of the optimizer.

    Raises:
        TypeError: an option of a group is not a number.
    """
    for g, group in enumerate(groups):
        if not {str, bytes}.isdisjoint(map(type, group.values())):
            _refuse_other_types(owner, g, group, options)
    try:
        return [row(group) for group in groups]
    except TypeError as error:
        for g, group in enumerate(groups):
            _refuse_other_types(owner, g, group, options)
        raise error


def _refuse_other_types(owner: str, g: int, group: Group, options: Mapping[str, Any]) -> None:
    """Raises TypeError if an option whose default is a number has another type."""
    values: Mapping[str, Any] = group
    for key, default in options.items():
        if isinstance(default, bool) or not isinstance(default, int | float | Tensor):
            continue
        x = values[key]
        try:
            if isinstance(x, str | bytes):
                raise TypeError
            float(x)
        except TypeError:
            raise TypeError(
                f"cutback.torch.optim.{owner}: group {g} has {key}={x!r:.60}, which is not a number"
            ) from None
        except (ValueError, RuntimeError):
            continue  # PyTorch reports these itself


def kind(dtype: torch.dtype) -> torch.dtype:
    """Returns the type itself, or one type that stands for all that may be cast to each other."""
    if dtype.is_complex:
        return torch.complex64
    return torch.float32 if dtype.is_floating_point else dtype


def check_kinds(
    owner: str, place: str, held: Mapping[str, StateValue], types: Mapping[str, torch.dtype]
) -> None:
    """Checks that states have the kinds of types in which they were saved. Floating types convert
    to each other; codes do not convert.

    Raises:
        ValueError: a state has another kind.
    """
    for key, wanted in types.items():
        x = held.get(key)
        if isinstance(x, Tensor) and kind(x.dtype) != kind(wanted):
            raise ValueError(
                f"{owner}: {key} of {place} in the state to load is {x.dtype}, "
                f"but must be {wanted}; another optimizer saved it"
            )


def spanned(x: Tensor) -> int:
    """Returns the bytes from a strided tensor's first element to the end of its last; the tensor
    must not be empty."""
    last = sum((n - 1) * stride for n, stride in zip(x.shape, x.stride(), strict=True))
    return int((last + 1) * x.element_size())


def lacks_memory(x: StateValue) -> bool:
    """True if a tensor has fewer bytes than its elements need: its storage was shrunk or freed."""
    if not isinstance(x, Tensor) or x.layout is not torch.strided or x.numel() == 0:
        return False
    if x._is_zerotensor():
        return False  # zeros that autograd represents without memory, which PyTorch's code can read
    if x.device.type != "cpu":
        return False
    needed = x.storage_offset() * x.element_size() + spanned(x)
    return bool(x.untyped_storage().nbytes() < needed)


def number_of(x: StateValue) -> float | None:
    """Returns the finite number that a Python, NumPy or tensor value holds, or None."""
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


def laid_out_like(p: Tensor, x: Tensor | None, dtype: torch.dtype) -> Tensor | None:
    """Returns a copy of ``x`` with this type or that of ``p``, and with the layout of ``p``; None
    if the shapes differ."""
    if not isinstance(x, Tensor) or x.layout is not torch.strided or x.device != p.device:
        return None
    if x.shape != p.shape or x.dtype not in (dtype, p.dtype):
        return None
    new = torch.empty_like(p, dtype=dtype, memory_format=torch.preserve_format)
    return new.copy_(x.detach())


def check_numbers(owner: str, given: StateDict, keys: Iterable[str]) -> None:
    """Checks the step counts and other numbers of each parameter in a ``state_dict``.

    Raises:
        ValueError: a number is invalid, or there are no states at all.
        KeyError: it is not a ``state_dict``.
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
                    f"{owner}: {key} of parameter {n} {place} is {found}, but must be {wanted}"
                )


def with_tensors(owner: str, given: StateDict) -> StateDict:
    """Returns a ``state_dict`` whose NumPy arrays are tensors, which PyTorch's code expects.

    Raises:
        TypeError: an array has a type that tensors do not have.
    """
    states = dict(given["state"])
    for n, held in states.items():
        if not isinstance(held, Mapping):
            continue  # not the state of a parameter
        arrays = {key: x for key, x in held.items() if isinstance(x, np.ndarray)}
        for key, x in arrays.items():
            try:
                arrays[key] = torch.from_numpy(x.copy())
            except TypeError:
                raise TypeError(
                    f"{owner}: {key} of parameter {n} of the state to load is an array of "
                    f"{x.dtype}, which no tensor has; pass a tensor"
                ) from None
        if arrays:
            states[n] = {**held, **arrays}
    return {**given, "state": states}


def by_name(owner: str, given: StateDict, groups: Sequence[Group]) -> StateDict:
    """Returns a ``state_dict`` whose parameters are in the order of ``groups``, if both have names
    (``named_parameters()``) and they are the same. With other names the order counts, as in
    PyTorch, but a name known to both must be at the same position.

    Raises:
        ValueError: a name known to both is at another position.
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
        return given  # PyTorch refuses this
    at = dict(zip(names, ids, strict=True))
    return {**given, "param_groups": [
        {**group, "params": [at[name] for name in mine["param_names"]],
         "param_names": list(mine["param_names"])}
        for group, mine in zip(saved, groups, strict=True)
    ]}  # fmt: skip
