"""Checks versions of the 8-bit codes of moments, and converts older states."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from .state import BLOCK, Array

VERSION = 2
"""Version of the codes that the core reads and writes (``csrc/optim/algorithms/adamw_8bit.c``)."""
STATES = ("m", "v", "m_scale", "v_scale")
_CHUNK = 1 << 12  # blocks converted at a time, which bounds the memory of a conversion


def check_version(what: str, version: Any) -> int:
    """Checks the version of a state's codes.

    Raises:
        ValueError: if this release cannot read the version.
    """
    try:
        is_flag = isinstance(version, bool | np.bool_)
        known = not is_flag and int(version) == version and 1 <= version <= VERSION
    except (TypeError, ValueError, OverflowError):
        known = False
    if not known:
        raise ValueError(
            f"{what} has 8-bit codes of version {version}, but this release of cutback reads "
            f"versions 1 to {VERSION}; load it with the release that wrote it, or a newer one"
        )
    return int(version)


def check_scales(what: str, key: str, scales: Array) -> None:
    """Checks the scales of 8-bit codes. A NaN would make all parameters of its block NaN.

    Raises:
        ValueError: if a scale is negative or not finite, or a block's least scale is above its
            largest.
    """
    wrong = ~((scales >= 0) & (scales < np.inf))
    if wrong.any():
        raise ValueError(
            f"{what} has a scale of {scales[wrong].flat[0]}; scales of 8-bit codes must be finite "
            "and at least 0, so the state is damaged"
        )
    if key != "v_scale" or scales.shape[1:] != (2,):
        return  # version 1, or a wrong shape, which is checked elsewhere
    wrong = scales[:, 0] > scales[:, 1]
    if wrong.any():
        least, largest = scales[wrong][0]
        raise ValueError(
            f"{what} has a block whose least scale, {least:.4g}, is above its largest, "
            f"{largest:.4g}, so the state is damaged"
        )


def is_version_1(arrays: Mapping[str, Any]) -> bool:
    """Returns True if these arrays are a complete state of version 1, which had one scale per
    block."""
    if any(getattr(arrays.get(key), "dtype", None) is None for key in STATES):
        return False
    m, v, m_scale, v_scale = (arrays[key] for key in STATES)
    blocks = (-(-m.size // BLOCK),)
    return bool(
        m.dtype == v.dtype == np.uint8
        and m_scale.dtype.kind == v_scale.dtype.kind == "f"
        and m.shape == v.shape
        and m_scale.shape == v_scale.shape == blocks
    )


def converted(arrays: Mapping[str, Any]) -> dict[str, Array]:
    """Converts a state of version 1 to the current codes, with rounding to nearest."""
    m, v = (np.ascontiguousarray(arrays[key]).reshape(-1) for key in STATES[:2])
    old_scales = [arrays[key].astype(np.float64) for key in STATES[2:]]
    codes = {key: np.zeros(m.size, np.uint8) for key in STATES[:2]}
    scales = {key: np.zeros((old_scales[0].size, 2), np.float32) for key in STATES[2:]}
    for first in range(0, old_scales[0].size, _CHUNK):
        blocks = slice(first, first + _CHUNK)
        some = slice(first * BLOCK, (first + _CHUNK) * BLOCK)
        m_now, v_now = _version_1(m[some], v[some], *(scale[blocks] for scale in old_scales))
        found = _encoded(m_now, v_now)
        for key, array in zip(STATES, found, strict=True):
            if key in codes:
                codes[key][some] = array.reshape(-1)[: m[some].size]
            else:
                scales[key][blocks] = array
    return {key: codes[key].reshape(arrays[key].shape) for key in codes} | scales


def _blocks(codes: Array) -> Array:
    """Reshapes codes to [blocks, BLOCK], padded with zeros."""
    flat = np.ascontiguousarray(codes).reshape(-1)
    rows = np.zeros((-(-flat.size // BLOCK), BLOCK), np.uint8)
    rows.reshape(-1)[: flat.size] = flat
    return rows


def _version_1(m: Array, v: Array, m_scale: Array, v_scale: Array) -> tuple[Array, Array]:
    """Decodes the moments of version 1: logarithmic codes, eight per octave, below the scale of
    their block."""
    signed = _blocks(m).view(np.int8).astype(np.int64)

    def share(code: Array, most: int) -> Array:
        octave, step = np.divmod(code - most, 8)
        return np.where(code == 0, 0.0, np.exp2(octave) * (1 + step / 8))

    with np.errstate(invalid="ignore"):
        return (
            np.sign(signed) * share(np.abs(signed), 127) * m_scale[:, None],
            share(_blocks(v).astype(np.int64), 255) * v_scale[:, None],
        )


def _steps(v_scale: Array) -> tuple[Array, Array]:
    """Returns the f32 bits of code 1 in each block, and their increment from code to code."""
    bits = np.ascontiguousarray(v_scale, np.float32).view(np.uint32).astype(np.int64)
    return bits[:, :1], (bits[:, 1:] - bits[:, :1]) // 253 + 1


def _roots(codes: Array, v_scale: Array) -> Array:
    first, step = _steps(v_scale)
    bits = np.where(codes == 0, 0, first + (codes.astype(np.int64) - 1) * step)
    return (bits % 2**32).astype(np.uint32).view(np.float32).astype(np.float64)


def _encoded(m: Array, v: Array) -> tuple[Array, Array, Array, Array]:
    """Encodes moments [blocks, BLOCK] as codes and scales, with rounding to nearest."""
    with np.errstate(all="ignore"):
        root = np.sqrt(v).astype(np.float32)
    whole: Array = np.all(np.isfinite(root) & np.isfinite(m), axis=1)
    root, m = (np.where(whole[:, None], x, 0) for x in (root, m))
    bits = root.view(np.uint32).astype(np.int64)
    most = bits.max(1, keepdims=True, initial=0)
    least = np.where(bits == 0, most, bits).min(1, keepdims=True, initial=2**31)
    least = np.maximum(np.minimum(least, most), most - (253 << 19))
    v_scale = np.concatenate([least, most], 1).astype(np.uint32).view(np.float32)
    first, step = _steps(v_scale)
    above = np.rint((np.maximum(bits, first) - first) / step).astype(np.int64) + 1
    v_codes = np.where(bits == 0, 0, above).astype(np.uint8)
    root = _roots(v_codes, v_scale)
    update = np.divide(m, root, out=np.zeros_like(m), where=root > 0)
    unit = np.abs(update).max(1, keepdims=True, initial=0) / 127
    signed = np.rint(np.divide(update, unit, out=np.zeros_like(m), where=unit > 0))
    m_scale = np.concatenate([unit, np.zeros_like(unit)], 1).astype(np.float32)
    for scale in (m_scale, v_scale):
        scale[~whole] = np.nan
    return signed.astype(np.int8).view(np.uint8), v_codes, m_scale, v_scale
