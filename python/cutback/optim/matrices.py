"""Optimizers for matrices, whose steps use matrix products."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import KW_ONLY
from typing import Any

from ..integers import integer
from ..scalars import number
from .base import Optimizer, optimizer
from .numbers import Row, Scalar

COEFFICIENTS = (3.4445, -4.7750, 2.0315)
_ADJUST = {None: 0.0, "original": 0.0, "match_rms_adamw": 1.0}


def match_rms(owner: str, adjust_lr_fn: Any) -> float:
    """Returns 1.0 if ``adjust_lr_fn`` is ``"match_rms_adamw"``, and 0.0 if it is ``"original"`` or
    None.

    Raises:
        ValueError: if the name is unknown.
    """
    if adjust_lr_fn is not None and adjust_lr_fn not in ("original", "match_rms_adamw"):
        raise ValueError(
            f"{owner}: adjust_lr_fn={adjust_lr_fn!r} is not one of None, 'original' and "
            "'match_rms_adamw'"
        )
    return _ADJUST[adjust_lr_fn]


class _Orthogonal(Optimizer):
    """The base class of Muon and NorMuon, which converts their options to the core's order."""

    def _row(self, options: Mapping[str, Any]) -> Row:
        owner = type(self).__name__
        coefficients = tuple(options["ns_coefficients"])
        if len(coefficients) != 3:
            raise ValueError(f"{owner}: ns_coefficients={coefficients!r} must be three numbers")
        numbers = tuple([number(owner, "ns_coefficients", x) for x in coefficients])
        if not all(map(math.isfinite, numbers)):
            raise ValueError(f"{owner}: ns_coefficients={coefficients!r} must be finite")
        turns = integer("ns_steps", options["ns_steps"], 0, 99)
        given = self._plain_row(options)
        return *given[:4], *numbers, given[4], float(turns), *given[5:]

    def _plain_row(self, options: Mapping[str, Any]) -> Row:
        """Returns the row without the Newton-Schulz options: lr, weight_decay, momentum, nesterov,
        eps and the options after them."""
        names = [name for name in self._options if name not in _OTHERS]
        return self._numbers_of(names, options)


_OTHERS = ("ns_coefficients", "ns_steps", "adjust_lr_fn")


@optimizer
class Muon(_Orthogonal):
    """Muon (Jordan et al. 2024), as PyTorch defines it: steps matrices along their momentum,
    orthogonalized by Newton-Schulz iterations. Matrices of equal shape share batched products.

        m <- momentum * m + (1 - momentum) * g
        u = momentum * m + (1 - momentum) * g             with nesterov, else m
        x = u / max(norm(u), eps)
        x <- a * x + (b * x @ x.T + c * (x @ x.T) @ (x @ x.T)) @ x         ns_steps times
        p <- p * (1 - lr * weight_decay) - lr * s * x
        s = sqrt(max(1, height / width)), or 0.2 * sqrt(max(height, width)) to match AdamW's steps

    PyTorch computes x in bf16; here it has the type of the parameters. Parameters must have two
    axes; use another optimizer for biases, embeddings and similar parameters.

    Args:
        lr: step size.
        weight_decay: each step multiplies the parameters by ``1 - lr * weight_decay``.
        momentum: decay of the average of gradients, at least 0.
        nesterov: use Nesterov momentum.
        ns_coefficients: a, b and c.
        eps: lower bound of the norm that u is divided by.
        ns_steps: number of Newton-Schulz iterations, at most 99.
        adjust_lr_fn: the scale s: ``"original"`` (None) or ``"match_rms_adamw"``.
        groups: as for :class:`Optimizer`; parameters are f32 or f64.

    Raises:
        ValueError, TypeError: if a hyper-parameter is outside its range.

    >>> optimizer = cutback.optim.Muon(lr=0.02)
    >>> optimizer.step(params, grads)
    """

    native = "muon"

    lr: Scalar = 1e-3
    weight_decay: Scalar = 0.1
    momentum: Scalar = 0.95
    nesterov: bool = True
    ns_coefficients: tuple[float, float, float] = COEFFICIENTS
    eps: Scalar = 1e-7
    ns_steps: int = 5
    adjust_lr_fn: str | None = None

    def _row(self, options: Mapping[str, Any]) -> Row:
        return *super()._row(options), match_rms("Muon", options["adjust_lr_fn"])


@optimizer
class NorMuon(_Orthogonal):
    """NorMuon (Li et al. 2025): Muon that normalizes each row of x (a neuron of the layer) by the
    root of a moving average of its mean square.

        m, u and x as for Muon
        v <- beta2 * v + (1 - beta2) * mean(x**2, axis=1)
        y = x / (sqrt(v) + row_eps)
        p <- p * (1 - lr * weight_decay) - 0.2 * lr * sqrt(p.size) / norm(y) * y

    Args:
        beta2: decay of v, in [0, 1).
        row_eps: added to the root of v.
        lr, weight_decay, momentum, nesterov, ns_coefficients, eps, ns_steps, groups: as for
            :class:`Muon`.

    Raises:
        ValueError, TypeError: if a hyper-parameter is outside its range.

    >>> optimizer = cutback.optim.NorMuon(lr=0.02)
    >>> optimizer.step(params, grads)
    """

    native = "normuon"
    _squares = ("v",)

    lr: Scalar = 1e-3
    weight_decay: Scalar = 0.1
    momentum: Scalar = 0.95
    nesterov: bool = False
    ns_coefficients: tuple[float, float, float] = COEFFICIENTS
    eps: Scalar = 1e-7
    ns_steps: int = 5
    _: KW_ONLY
    beta2: Scalar = 0.95
    row_eps: Scalar = 1e-8
