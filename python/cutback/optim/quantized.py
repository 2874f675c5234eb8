"""Optimizers with states of few bits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .base import Optimizer


class AdamW8bit(Optimizer):
    """AdamW whose moments take a byte each (after Dettmers et al. 2022): 0.254 of the bytes of f32.

    Blocks of 256 elements have scales of their own: Codes have eight steps an octave:
    ``abs(m)`` is ``m_scale * 2**((abs(s) - 127) / 8)`` with s in -127 .. 127 (a byte in two's
    complement), ``v`` is ``v_scale * 2**((c - 255) / 8)`` with c in 0 .. 255, on straight lines
    between whole powers; 0 is 0. They are rounded up or down by noise, the same in each run, and
    right in the mean. It steps arrays, and no compiled step.

    Args:
        lr, betas, eps, weight_decay, groups, maximize: as for :class:`AdamW`.

    Raises:
        ValueError, TypeError: a hyper-parameter outside its range.
    """

    native = "adamw_8bit"
    _options = ("lr", "betas", "eps", "weight_decay", "maximize")
    _squares = ("m_scale", "v_scale")

    def __init__(
        self,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 1e-2,
        groups: Sequence[dict[str, Any]] = (),
        *,
        maximize: bool = False,
    ) -> None:
        self.lr, self.betas, self.eps, self.weight_decay = lr, betas, eps, weight_decay
        self.maximize = maximize
        super().__init__(groups)
