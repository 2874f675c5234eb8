"""Optimizers that maintain an average of the parameters."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import KW_ONLY
from typing import Any

from .. import tree
from .algorithms import Adaptive
from .base import Optimizer, optimizer
from .numbers import Scalar


@optimizer
class ASGD(Optimizer):
    """Averaged stochastic gradient descent (Polyak, Juditsky 1992), as PyTorch defines it. The
    average is the state ``ax``.

        g <- g + weight_decay * p
        p <- p * (1 - lambd * eta) - eta * g
        ax <- ax + (p - ax) * mu           p itself where mu is 1
        eta <- lr / (1 + lambd * lr * t) ** alpha         beginning with lr
        mu <- 1 / max(1, t - t0)                          beginning with 1

    Args:
        lr, weight_decay, groups, maximize: as for :class:`SGD`.
        lambd: decay of the parameters; each step multiplies them by ``1 - lambd * eta``.
        alpha: exponent of the decay of eta.
        t0: the step at which averaging starts.

    Raises:
        ValueError, TypeError: if a hyper-parameter is outside its range.

    >>> optimizer = cutback.optim.ASGD(lr=0.01)
    >>> optimizer.step(params, grads)
    """

    native = "asgd"

    lr: Scalar = 1e-2
    lambd: Scalar = 1e-4
    alpha: Scalar = 0.75
    t0: Scalar = 1e6
    weight_decay: Scalar = 0.0
    _: KW_ONLY
    maximize: bool = False


@optimizer
class ScheduleFreeAdamW(Adaptive):
    """Schedule-free AdamW (Defazio et al. 2024): averages the iterates z into x instead of
    decaying the learning rate.

        c = weight / (sum of weights so far), weight = t**r * (largest rate so far)**weight_lr_power
        v <- beta2 * v + (1 - beta2) * g**2
        u = g / (sqrt(v / (1 - beta2**t)) + eps) + weight_decay * p
        p <- (1 - c) * p + c * z + rate * (beta1 * (1 - c) - 1) * u
        z <- z - rate * u                  beginning with p

    During training a parameter holds ``y = (1 - beta1) * z + beta1 * x``, where the gradients are
    evaluated. :meth:`eval` changes it to x, for validation or saving; :meth:`train` changes it back
    to y.

    Args:
        lr: step size; it needs no decay schedule.
        betas: share of x in y, and decay of the second moment, in [0, 1). :meth:`eval` needs
            beta1 > 0.
        warmup_steps: number of steps in which the rate grows linearly from 0 to lr.
        r, weight_lr_power: exponents of the weight of an iterate in the average.
        eps, weight_decay, groups, maximize: as for :class:`AdamW`.

    Raises:
        ValueError, TypeError: if a hyper-parameter is outside its range.

    >>> optimizer = cutback.optim.ScheduleFreeAdamW(lr=2.5e-3)
    >>> optimizer.step(params, grads)
    """

    native = "schedule_free"
    _squares = ("v",)

    lr: Scalar = 2.5e-3
    warmup_steps: Scalar = 0
    r: Scalar = 0.0
    weight_lr_power: Scalar = 2.0
    _: KW_ONLY
    maximize: bool = False

    def eval(self, params: Any) -> None:
        """Changes the parameters from y to the average x, in place."""
        self.stepping().hold(self._move, params, lambda beta1: 1 - 1 / beta1)

    def train(self, params: Any) -> None:
        """Changes the parameters from the average x back to y, in place."""
        self.stepping().hold(self._move, params, lambda beta1: 1 - beta1)

    def _move(self, params: Any, share: Callable[[float], float]) -> None:
        leaves, structure = tree.flatten(params)
        if self.names != tree.names(structure, "params"):
            raise ValueError("these are not the parameters that this optimizer has stepped")
        rows, held = self.rows(), self._state
        for p, z, group in zip(leaves, self.states["z"], held.group_of, strict=True):
            if z is not None:
                p += (z - p) * p.dtype.type(share(rows[group][1]))
