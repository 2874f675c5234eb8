"""Optimizers whose second moments take less memory than the parameters."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import KW_ONLY
from typing import Any

from ..scalars import flag, number
from .base import Optimizer, optimizer
from .numbers import Row, Scalar, least_zero


def adafactor_row(owner: str, options: Mapping[str, Any]) -> Row:
    """Converts the options of Adafactor to a row in the core's order.

    Raises:
        TypeError, ValueError: if a value is not a number or is outside its range.
    """
    decay, d = (number(owner, name, options[name]) for name in ("beta2_decay", "d"))
    if not -1e30 <= decay <= 0:
        raise ValueError(f"{owner}: beta2_decay={decay} must be finite and at most 0")
    if not 1 <= d <= 1e30:
        raise ValueError(f"{owner}: d={d} must be finite and at least 1")
    try:
        first, second = options["eps"]
    except (TypeError, ValueError):
        raise ValueError(f"{owner}: eps={options['eps']!r} must be two numbers") from None
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
    """Adafactor (Shazeer, Stern 2018), as PyTorch defines it: stores only the row and column means
    of a matrix's second moment.

        b = t ** beta2_decay
        alpha = max(eps[1], rms(p)) * min(lr, 1 / sqrt(t))
        p <- p * (1 - lr * weight_decay)
        row_var <- row_var + b * (mean(g**2, axis=-1) - row_var)
        col_var <- col_var + b * (mean(g**2, axis=-2) - col_var)
        v = outer(row_var, col_var) / max(mean(row_var), eps[0])
        u = g / sqrt(max(v, eps[0]**2))
        p <- p - alpha * u / max(1, rms(u) / d)

    Parameters with fewer than two axes store v in full: ``variance <- variance + b *
    (g**2 - variance)``. Parameters with more than two axes are stacks of matrices over the last
    two.

    Args:
        lr: the largest step, relative to the rms of the parameter.
        beta2_decay: exponent of the decay of the second moment, at most 0.
        eps: two lower bounds: eps[0] for the second moment (its mean is at least eps[0], each
            element at least eps[0]**2; None: machine epsilon of the type), and eps[1] for the rms
            of a parameter.
        d: limit on the rms of updates; larger ones are scaled down to it.
        weight_decay: decoupled weight decay: each step multiplies the parameters by
            ``1 - lr * weight_decay``.
        groups, maximize, half, seed: as for :class:`Adam`.

    Raises:
        ValueError, TypeError: if a hyper-parameter is outside its range.

    >>> optimizer = cutback.optim.Adafactor(lr=1e-2)
    >>> optimizer.step(params, grads)
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
