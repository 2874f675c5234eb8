"""Optimizers with quantized states."""

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
    """AdamW with 8-bit moments (after Dettmers et al. 2022), which take 25.8 % of the bytes of f32
    moments.

    Each block of 256 elements has its own scales. ``v`` is ``w ** 2``, where code 0 of ``w`` is 0
    and codes 1 to 255 are nearly evenly spaced in the logarithm of ``w``, from the block's least
    nonzero ``w``, ``v_scale[:, 0]``, to its largest, ``v_scale[:, 1]``. ``m`` is
    ``s * (m_scale[:, 0] * w + m_scale[:, 1])`` with s in -127 .. 127 (a byte in two's complement).
    Codes are rounded stochastically, without bias, with the same noise in each run.

    ``state_dict`` has an entry ``"codes"``, the version of the codes. States of version 1, which
    had one scale per block and no ``"codes"``, are converted when they are loaded.

    Args:
        lr, betas, eps, weight_decay, groups, maximize, half: as for :class:`AdamW`.

    Raises:
        ValueError, TypeError: if a hyper-parameter is outside its range.

    >>> optimizer = cutback.optim.AdamW8bit(lr=1e-3)
    >>> optimizer.step(params, grads)
    """

    native = "adamw_8bit"
    _squares = ("m_scale", "v_scale")

    weight_decay: Scalar = 1e-2
    _: KW_ONLY
    maximize: bool = False

    def state_dict(self) -> dict[str, Any]:
        """Returns the dict of :meth:`Optimizer.state_dict` with an entry ``codes``, the version of
        the 8-bit codes."""
        state = super().state_dict()
        return {"t": state.pop("t"), "codes": VERSION, **state}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Copies a state like :meth:`Optimizer.load_state_dict`, and converts codes of version 1.

        Raises:
            TypeError, ValueError: as for :meth:`Optimizer.load_state_dict`, or if the version of
                the codes is unknown, a scale is negative or not finite, or a block's least scale is
                above its largest.
        """
        super().load_state_dict(_in_todays(state) if isinstance(state, Mapping) else state)

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Restores a pickle, and converts codes of version 1.

        Raises:
            ValueError: if a scale is negative or not finite, or a block's least scale is above its
                largest.
        """
        held: State = state["_state"]
        for name, key, scales in _scales_of(held):
            check_scales(f"{name}.{key} of the pickled state of AdamW8bit", key, scales)
        super().__setstate__(state)
        self._state = _converted_state(held)


def _scales_of(held: State) -> Iterator[tuple[str, str, Array]]:
    """Yields parameter name, state name and scales of a state, including those that are loaded but
    not yet used."""
    for key in STATES[2:]:
        pairs = list(zip(held.names, held.arrays.get(key, ()), strict=False))
        pairs += ((held.loaded or {}).get(key) or {}).items()
        for name, scales in pairs:
            if isinstance(scales, np.ndarray) and scales.dtype.kind == "f":
                yield name, key, scales


def _in_todays(state: Mapping[str, Any]) -> dict[str, Any]:
    """Converts a ``state_dict`` to the current codes and drops the entry with their version."""
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
    """Converts the state of a pickled optimizer if its codes are of version 1."""
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
