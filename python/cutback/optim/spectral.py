"""Optimizers that step in the eigenbases of matrices."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import KW_ONLY
from typing import Any

from ..integers import integer
from ..scalars import number
from .algorithms import Moments
from .base import Optimizer, optimizer
from .numbers import Row, Scalar


def soap_row(owner: str, given: Row, options: Mapping[str, Any], most_side: int) -> Row:
    """Converts the options of SOAP to a row in the core's order; ``given`` holds lr, betas, eps and
    weight_decay.

    Raises:
        TypeError, ValueError: if a value is not a number or is outside its range.
    """
    beta = number(owner, "shampoo_beta", options["shampoo_beta"])
    if not (beta == -1 or 0 <= beta < 1):
        raise ValueError(f"{owner}: shampoo_beta={beta} must be in [0, 1), or -1 for betas[1]")
    often = integer("precondition_frequency", options["precondition_frequency"], 1, 10**9)
    lr, beta1, beta2, eps, decay = given
    beta = beta2 if beta == -1 else beta
    return lr, beta1, beta2, beta, eps, decay, float(often), float(most_side)


@optimizer
class SOAP(Moments, Optimizer):
    """SOAP (Vyas et al. 2024): Adam in the eigenbases of moving averages of ``g @ g.T`` and
    ``g.T @ g``.

        gl, ml = ql @ g @ qr.T, ql @ m @ qr.T                  rows of ql, qr: eigenvectors
        m <- betas[0] * m + (1 - betas[0]) * g
        v <- betas[1] * v + (1 - betas[1]) * gl**2
        p <- p - lr * sqrt(1 - betas[1]**k) / (1 - betas[0]**k) * ql.T @ (ml / (sqrt(v) + eps)) @ qr
        p <- p * (1 - lr * weight_decay)                       k = t - 1
        l <- shampoo_beta * l + (1 - shampoo_beta) * g @ g.T   r likewise, of g.T @ g
        ql.T, _ <- qr_decomposition(l @ ql.T)                  every precondition_frequency steps

    The first step only initializes l, r and their eigenvectors. Arrays with more than two axes are
    treated as matrices of the first axis by all others. Sides longer than ``max_precond_dim`` and
    parameters with fewer than two axes have no basis; without any basis, this is Adam. In the first
    step, the eigenvectors of a side of length n take about ``9 n**3`` operations on one thread.

    Args:
        lr: step size.
        betas: decay of the first and second moment, in [0, 1).
        shampoo_beta: decay of l and r; -1: the decay of the second moment.
        eps: added to the root of the second moment.
        weight_decay: each step multiplies the parameters by ``1 - lr * weight_decay``.
        precondition_frequency: number of steps between updates of the bases.
        max_precond_dim: the longest side that has a basis, at most a million; the same for all
            groups, and fixed when the optimizer is made.
        groups: as for :class:`Optimizer`.

    The state ``left`` holds l and ql in one array, the state ``right`` holds r and qr.

    Raises:
        ValueError, TypeError: if a hyper-parameter is outside its range.

    >>> optimizer = cutback.optim.SOAP(lr=3e-3)
    >>> optimizer.step(params, grads)
    """

    native = "soap"
    _squares = ("v",)
    _for_all = ("max_precond_dim",)

    lr: Scalar = 3e-3
    betas: tuple[float, float] = (0.95, 0.95)
    shampoo_beta: Scalar = -1
    eps: Scalar = 1e-8
    weight_decay: Scalar = 1e-2
    precondition_frequency: int = 10
    _: KW_ONLY
    max_precond_dim: int = 10_000

    def __post_init__(self) -> None:
        self._most_side = integer("max_precond_dim", self.max_precond_dim, 0, 10**6)
        super().__post_init__()

    def _row(self, options: Mapping[str, Any]) -> Row:
        given = self._numbers_of(("lr", "betas", "eps", "weight_decay"), options)
        return soap_row("SOAP", given, options, self._most_side)
