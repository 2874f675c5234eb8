"""Saves and loads the state of a training run as a flat dict of arrays, for ``np.savez`` and
safetensors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from .. import dtypes, tree
from ..device_arrays import DeviceArray, copied

_COUNTERS = ("rng_step", "seed")


def _named(params: Any) -> dict[str, Any]:
    """Returns the arrays of a tree by their names."""
    leaves, structure = tree.flatten(params)
    rows = zip(tree.names(structure, "params"), leaves, strict=True)
    return {name: x for name, x in rows if isinstance(x, (np.ndarray, DeviceArray))}


def state_of(step: Any, params: Any) -> dict[str, np.ndarray[Any, Any]]:
    """Returns copies of all arrays that the next call of a step depends on."""
    state: dict[str, Any] = {name: copied(x) for name, x in _named(params).items()}
    if step.optimizer is not None:
        state |= {f"optimizer.{name}": x for name, x in step.optimizer.state_dict().items()}
    state["rng_step"] = np.int64(step.rng_step)
    state["seed"] = np.uint64(step.seed)
    return {name: np.asarray(x) for name, x in state.items()}


def load(step: Any, params: Any, state: Mapping[str, Any]) -> None:
    """Copies a state into a step and into arrays.

    Raises:
        TypeError, ValueError: if the entries do not belong to this step and these arrays.
    """
    if not isinstance(state, Mapping):
        raise TypeError(f"the state of a step must be a mapping, not {type(state).__name__}")
    arrays, given, optimizer = _named(params), {}, {}
    for name in state:
        if name.startswith("optimizer."):
            optimizer[name.partition(".")[2]] = state[name]
        elif name not in _COUNTERS:
            given[name] = np.asarray(state[name])
    _check_names(set(arrays), set(given) | {n for n in _COUNTERS if n not in state})
    for name, array in arrays.items():
        _check_array(name, array, given[name])
    if bool(optimizer) != (step.optimizer is not None):
        raise ValueError(
            "the state comes from a step with an optimizer, but this one has none"
            if optimizer
            else "the state comes from a step without an optimizer, but this one has one"
        )
    number, seed = int(state["rng_step"]), int(state["seed"])
    if step.optimizer is not None:
        step.optimizer.load_state_dict(optimizer)  # after an error, nothing has changed
    step.rng_step = number
    step.seed = seed
    for name, array in arrays.items():
        if isinstance(array, DeviceArray):
            array.write(np.ascontiguousarray(given[name]))
        else:
            array[...] = given[name]


def _check_names(wanted: set[str], given: set[str]) -> None:
    missing, unknown = sorted(wanted - given), sorted(given - wanted)
    if missing:
        raise ValueError(f"the state lacks {missing[0]}, which the parameters have")
    if unknown and unknown[0] in _COUNTERS:
        raise ValueError(f"the state lacks {unknown[0]!r}")
    if unknown:
        raise ValueError(f"the state has {unknown[0]}, which the parameters lack")


def _check_array(name: str, array: Any, given: np.ndarray[Any, Any]) -> None:
    is_there = isinstance(array, DeviceArray)
    dtype = dtypes.to_numpy(array.core_dtype) if is_there else array.dtype
    if array.shape != given.shape or dtype != given.dtype:
        raise ValueError(
            f"{name} is {array.dtype}{list(array.shape)}, but in the state it is "
            f"{given.dtype}{list(given.shape)}"
        )
    if not (array.writable if is_there else array.flags.writeable):
        raise ValueError(f"{name}: the array is read-only, but the state must be copied into it")
