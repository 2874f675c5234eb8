"""Optimizers whose means of squares take less memory than the parameters."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import KW_ONLY
from typing import Any

from ..scalars import flag, number
from .base import Optimizer, optimizer
from .numbers import Row, Scalar, least_zero


def adafactor_row(owner: str, options: Mapping[str, Any]) -> Row:
    """The options of Adafactor in the core's order.

    Raises:
        TypeError, ValueError: a value is not a number or outside its range.
    """
    decay, d = (number(owner, name, options[name]) for name in ("beta2_decay", "d"))
    if not -1e30 <= decay <= 0:
        raise ValueError(f"{owner}: beta2_decay={decay} is not finite and at most 0")
    if not 1 <= d <= 1e30:
        raise ValueError(f"{owner}: d={d} is not finite and at least 1")
    try:
        first, second = options["eps"]
    except (TypeError, ValueError):
        raise ValueError(f"{owner}: eps={options['eps']!r} are not two numbers") from None
    return (
        least_zero(owner, "lr", options["lr"]),
        decay,
        -1.0 if first is None else least_zero(owner, "eps[0]", first),
        least_zero(owner, "eps[1]", second),
        d,
        least_zero(owner, "weight_decay", options["weight_decay"]),
        float(flag(owner, "maximize", options["maximize"])),
    )


@optimizer
class Adafactor(Optimizer):
    """Adafactor (Shazeer, Stern 2018), as PyTorch defines it: of the mean of squares of a matrix
    only the means of its rows and columns are kept.

        b = t ** beta2_decay
        alpha = max(eps[1], rms(p)) * min(lr, 1 / sqrt(t))
        p <- p * (1 - lr * weight_decay)
        row_var <- row_var + b * (mean(g**2, axis=-1) - row_var)
        col_var <- col_var + b * (mean(g**2, axis=-2) - col_var)
        v = outer(row_var, col_var) / max(mean(row_var), eps[0])
        u = g / sqrt(max(v, eps[0]**2))
        p <- p - alpha * u / max(1, rms(u) / d)

    Where a parameter has fewer than two axes, v is kept itself: ``variance <- variance + b *
    (g**2 - variance)``. With more than two, the last two are matrices and the others count them. It
    steps arrays, and no compiled step.

    Args:
        lr: the largest share of a parameter's size that a step is long.
        beta2_decay: how fast means forget less, at most 0.
        eps: the least mean of a row's, whose square is the least mean of squares (None: the spacing
            of the type's numbers at 1), and the least size of a parameter.
        d: steps whose root mean square exceeds this are shortened to it.
        weight_decay: decay of the parameters, for each step times lr.
        groups, maximize, half, seed: as for :class:`Adam`.

    Raises:
        ValueError, TypeError: a hyper-parameter outside its range.
    """

    native = "adafactor"
    _squares = ("row_var", "col_var", "variance")

    lr: Scalar = 1e-2
    beta2_decay: Scalar = -0.8
    eps: tuple[float | None, float] = (None, 1e-3)
    d: Scalar = 1.0
    weight_decay: Scalar = 0.0
    _: KW_ONLY
    maximize: bool = False

    def _row(self, options: Mapping[str, Any]) -> Row:
        return adafactor_row("Adafactor", options)
