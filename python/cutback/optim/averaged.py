"""Optimizers that keep a mean of parameters beside them."""

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
    """Averaged stochastic gradient descent (Polyak, Juditsky 1992), as PyTorch defines it. The mean
    is the state ``ax``.

        g <- g + weight_decay * p
        p <- p * (1 - lambd * eta) - eta * g
        ax <- ax + (p - ax) * mu           p itself where mu is 1
        eta <- lr / (1 + lambd * lr * t) ** alpha         beginning with lr
        mu <- 1 / max(1, t - t0)                          beginning with 1

    Args:
        lr, weight_decay, groups, maximize: as for :class:`SGD`.
        lambd: decay of the parameters, for each step times eta.
        alpha: how fast eta falls.
        t0: the step after which the mean is taken.

    Raises:
        ValueError, TypeError: a hyper-parameter outside its range.
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
    """Schedule-free AdamW (Defazio et al. 2024): no schedule of the learning rate, but a mean x of
    the points z that plain steps reach.

        c = weight / (sum of weights so far), weight = t**r * (largest rate so far)**weight_lr_power
        v <- beta2 * v + (1 - beta2) * g**2
        u = g / (sqrt(v / (1 - beta2**t)) + eps) + weight_decay * p
        p <- (1 - c) * p + c * z + rate * (beta1 * (1 - c) - 1) * u
        z <- z - rate * u                  beginning with p

    While it is trained a parameter is ``y = (1 - beta1) * z + beta1 * x``, where gradients are
    taken.
    :meth:`eval` makes it x, to be validated or kept; :meth:`train` makes it y again.

    Args:
        lr: step size; it stays as it is.
        betas: share of x in y, and decay of the second moment, in [0, 1); not beta1 = 0 with
            :meth:`eval`.
        warmup_steps: number of steps in which the rate grows from 0 to lr.
        r, weight_lr_power: weights of the points in the mean.
        eps, weight_decay, groups, maximize: as for :class:`AdamW`.

    Raises:
        ValueError, TypeError: a hyper-parameter outside its range.
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
        """Makes parameters the mean, in place."""
        self.stepping().hold(self._move, params, lambda beta1: 1 - 1 / beta1)

    def train(self, params: Any) -> None:
        """Makes the mean parameters again, in place."""
        self.stepping().hold(self._move, params, lambda beta1: 1 - beta1)

    def _move(self, params: Any, share: Callable[[float], float]) -> None:
        leaves, structure = tree.flatten(params)
        if self.names != tree.names(structure, "params"):
            raise ValueError("these are not the parameters that the optimizer has stepped")
        rows, held = self.rows(), self._state
        for p, z, group in zip(leaves, self.states["z"], held.group_of, strict=True):
            if z is not None:
                p += (z - p) * p.dtype.type(share(rows[group][1]))
