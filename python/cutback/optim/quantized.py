"""Optimizers with states of few bits."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import KW_ONLY
from typing import Any

import numpy as np

from .algorithms import Adaptive
from .base import optimizer
from .codes import STATES, VERSION, check_scales, check_version, converted, is_version_1
from .numbers import Scalar
from .state import Array, State


@optimizer
class AdamW8bit(Adaptive):
    """AdamW whose moments take a byte each (after Dettmers et al. 2022): 0.258 of the bytes of f32.

    Blocks of 256 elements have scales of their own. ``v`` is ``w ** 2``, where the codes of ``w``,
    1 to 255, are nearly evenly spaced in its logarithm from the block's least ``w`` that is not 0,
    ``v_scale[:, 0]``, to its largest, ``v_scale[:, 1]``; code 0 is 0. ``m`` is
    ``s * (m_scale[:, 0] * w + m_scale[:, 1])`` with s in -127 .. 127 (a byte in two's complement).
    Codes are rounded up or down by noise, the same in each run, and right in the mean. It steps
    arrays, and no compiled step.

    A state has ``"codes"``, the version of its codes. States of version 1, which had one scale for
    each block and no ``"codes"``, are converted when they are loaded.

    Args:
        lr, betas, eps, weight_decay, groups, maximize, half: as for :class:`AdamW`.

    Raises:
        ValueError, TypeError: a hyper-parameter outside its range.
    """

    native = "adamw_8bit"
    _squares = ("m_scale", "v_scale")

    weight_decay: Scalar = 1e-2
    _: KW_ONLY
    maximize: bool = False

    def state_dict(self) -> dict[str, Any]:
        """As :meth:`Optimizer.state_dict`, with ``codes``, the version of the codes of 8 bits."""
        state = super().state_dict()
        return {"t": state.pop("t"), "codes": VERSION, **state}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """As :meth:`Optimizer.load_state_dict`; codes of version 1 are converted.

        Raises:
            TypeError, ValueError: as there, the codes have a version that is not known here, or a
                scale is negative, not finite or above the one that bounds it.
        """
        super().load_state_dict(_in_todays(state) if isinstance(state, Mapping) else state)

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Takes up a pickle; codes of version 1 are converted.

        Raises:
            ValueError: a scale is negative, not finite or above the one that bounds it.
        """
        held: State = state["_state"]
        for name, key, scales in _scales_of(held):
            check_scales(f"{name}.{key} of the pickled state of AdamW8bit", key, scales)
        super().__setstate__(state)
        self._state = _converted_state(held)


def _scales_of(held: State) -> Iterator[tuple[str, str, Array]]:
    """Names of parameters, names of states and scales, before and after a first step."""
    for key in STATES[2:]:
        pairs = list(zip(held.names, held.arrays.get(key, ()), strict=False))
        pairs += ((held.loaded or {}).get(key) or {}).items()
        for name, scales in pairs:
            if isinstance(scales, np.ndarray) and scales.dtype.kind == "f":
                yield name, key, scales


def _in_todays(state: Mapping[str, Any]) -> dict[str, Any]:
    """A ``state_dict`` in today's codes, and without their version."""
    found = {key: state[key] for key in state if key != "codes"}
    for key in found:
        kind = str(key).rpartition(".")[2]
        if kind in STATES[2:] and np.asarray(found[key]).dtype.kind == "f":
            check_scales(f"{key} of the state of AdamW8bit", kind, np.asarray(found[key]))
    if "codes" in state and check_version("the state of AdamW8bit", state["codes"]) == VERSION:
        return found
    for name in [str(key)[:-2] for key in found if str(key).endswith(".m")]:
        entries = {key: np.asarray(found.get(f"{name}.{key}")) for key in STATES}
        if is_version_1(entries):
            found |= {f"{name}.{key}": array for key, array in converted(entries).items()}
    return found


def _converted_state(held: State) -> State:
    """The state of an optimizer from a pickle, whose codes may be those of version 1."""
    loaded = held.loaded
    if loaded is not None:
        by_name = {name: {key: loaded[key].get(name) for key in STATES} for name in loaded["m"]}
        changed = {name: converted(row) for name, row in by_name.items() if is_version_1(row)}
        if changed:
            loaded = {key: dict(row) for key, row in loaded.items()}
            for name, row in changed.items():
                for key in STATES:
                    loaded[key][name] = row[key]
            held = held._replace(loaded=loaded)
    if not all(key in held.arrays for key in STATES):
        return held
    rows = [dict(zip(STATES, row, strict=True))
            for row in zip(*(held.arrays[key] for key in STATES), strict=True)]  # fmt: skip
    if not any(map(is_version_1, rows)):
        return held
    rows = [converted(row) if is_version_1(row) else row for row in rows]
    arrays = {key: tuple(row[key] for row in rows) for key in STATES}
    return held._replace(arrays={**held.arrays, **arrays})
