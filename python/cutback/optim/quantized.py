"""Optimizers with states of few bits."""

from __future__ import annotations

from dataclasses import KW_ONLY

from .algorithms import Adaptive
from .base import optimizer


@optimizer
class AdamW8bit(Adaptive):
    """AdamW whose moments take a byte each (after Dettmers et al. 2022): 0.254 of the bytes of f32.

    Blocks of 256 elements have scales of their own, and codes have eight steps an octave:
    ``abs(m)`` is ``m_scale * 2**((abs(s) - 127) / 8)`` with s in -127 .. 127 (a byte in two's
    complement), ``v`` is ``v_scale * 2**((c - 255) / 8)`` with c in 0 .. 255, on straight lines
    between whole powers; 0 is 0. They are rounded up or down by noise, the same in each run, and
    right in the mean. It steps arrays, and no compiled step.

    Args:
        lr, betas, eps, weight_decay, groups, maximize, half: as for :class:`AdamW`.

    Raises:
        ValueError, TypeError: a hyper-parameter outside its range.
    """

    native = "adamw_8bit"
    _squares = ("m_scale", "v_scale")

    weight_decay: float = 1e-2
    _: KW_ONLY
    maximize: bool = False
