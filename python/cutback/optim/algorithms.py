"""The optimizers that there are."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from .base import Optimizer
from .numbers import Row, betas, flag, least_zero, number
from .state import Array

_ASSIGNED = "{}.{} is not assigned: write into its arrays, or use load_state_dict"


class Adam(Optimizer):
    """Adam (Kingma, Ba 2015), as PyTorch defines it.

        g <- -g                             with maximize
        g <- g + weight_decay * p
        m <- beta1 * m + (1 - beta1) * g
        v <- beta2 * v + (1 - beta2) * g**2
        p <- p - lr * (m / (1 - beta1**t)) / (sqrt(v / (1 - beta2**t)) + eps)

    With ``amsgrad`` (Reddi, Kale, Kumar 2018) the largest v so far, ``v_max``, takes the place of v
    in the last line.

    Args:
        lr: step size.
        betas: decay of the first and second moment, in [0, 1).
        eps: added to the root of the second moment.
        weight_decay: added to the gradient, times the parameter.
        amsgrad: keep the largest second moment.
        maximize: go up instead of down.
        groups: parameters treated differently, as dicts with ``"names"`` (shell patterns such as
            ``"*bias*"``, matched against leaf names such as ``params['layers'][0]['bias']``) and
            the options that differ: ``{"names": ["*norm*", "*bias*"], "weight_decay": 0.0}``. The
            first match counts.

    One optimizer belongs to one set of parameters, f32 or f64, from its first step on. Options and
    ``groups`` may be changed between steps; an option may be a function of the number of steps
    taken (``lr=lambda t: ...``).

    Raises:
        ValueError, TypeError: a hyper-parameter outside its range.
    """

    native = "adam"
    _options = ("lr", "betas", "eps", "weight_decay", "amsgrad", "maximize")
    _squares = ("v", "v_max")

    def __init__(
        self,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        groups: Sequence[dict[str, Any]] = (),
        *,
        amsgrad: bool = False,
        maximize: bool = False,
    ) -> None:
        self.lr = lr
        self.betas = betas
        self.eps = eps
        self.weight_decay = weight_decay
        self.amsgrad = amsgrad
        self.maximize = maximize
        super().__init__(groups)

    def _row(self, options: Mapping[str, Any]) -> Row:
        owner = type(self).__name__
        decays = betas(owner, options["betas"])
        lr, eps, decay = (
            least_zero(owner, name, options[name]) for name in ("lr", "eps", "weight_decay")
        )
        amsgrad = flag(owner, "amsgrad", options["amsgrad"])
        return lr, *decays, eps, decay, amsgrad, flag(owner, "maximize", options["maximize"])

    @property
    def m(self) -> tuple[Array | None, ...]:
        """First moments, beside ``names``."""
        return self.states["m"]

    @m.setter
    def m(self, arrays: Any) -> None:
        raise TypeError(_ASSIGNED.format(type(self).__name__, "m"))

    @property
    def v(self) -> tuple[Array | None, ...]:
        """Second moments, likewise."""
        return self.states["v"]

    @v.setter
    def v(self, arrays: Any) -> None:
        raise TypeError(_ASSIGNED.format(type(self).__name__, "v"))


class AdamW(Adam):
    """AdamW (Loshchilov, Hutter 2019): Adam with weight decay that does not pass through the
    moments.

        p <- p * (1 - lr * weight_decay)
        m <- beta1 * m + (1 - beta1) * g
        v <- beta2 * v + (1 - beta2) * g**2
        p <- p - lr * (m / (1 - beta1**t)) / (sqrt(v / (1 - beta2**t)) + eps)

    Args:
        weight_decay: decay of the parameters, for each step times lr.
        lr, betas, eps, groups, amsgrad, maximize: as for :class:`Adam`.

    Raises:
        ValueError, TypeError: a hyper-parameter outside its range.
    """

    native = "adamw"

    def __init__(
        self,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 1e-2,
        groups: Sequence[dict[str, Any]] = (),
        *,
        amsgrad: bool = False,
        maximize: bool = False,
    ) -> None:
        super().__init__(lr, betas, eps, weight_decay, groups, amsgrad=amsgrad, maximize=maximize)


class SGD(Optimizer):
    """Stochastic gradient descent, as PyTorch defines it.

        g <- -g                            with maximize
        g <- g + weight_decay * p
        b <- g at the first step, momentum * b + (1 - dampening) * g from then on
        g <- g + momentum * b              with nesterov, else b
        p <- p - lr * g

    Without momentum there is no b and no state. A group that gets a momentum later begins with
    b = 0, not with b = g.

    Args:
        lr: step size.
        momentum: decay of the sum of gradients, at least 0.
        dampening: how much less than whole gradients are added to it.
        weight_decay: added to the gradient, times the parameter.
        nesterov: look ahead by the momentum, which must not be 0 then, and dampening must.
        maximize: go up instead of down.
        groups: as for :class:`Adam`.

    Raises:
        ValueError, TypeError: a hyper-parameter outside its range.
    """

    native = "sgd"
    _options = ("lr", "momentum", "dampening", "weight_decay", "nesterov", "maximize")

    def __init__(
        self,
        lr: float = 1e-3,
        momentum: float = 0.0,
        dampening: float = 0.0,
        weight_decay: float = 0.0,
        nesterov: bool = False,
        maximize: bool = False,
        groups: Sequence[dict[str, Any]] = (),
    ) -> None:
        self.lr = lr
        self.momentum = momentum
        self.dampening = dampening
        self.weight_decay = weight_decay
        self.nesterov = nesterov
        self.maximize = maximize
        super().__init__(groups)

    def _row(self, options: Mapping[str, Any]) -> Row:
        lr, momentum, decay = (
            least_zero("SGD", name, options[name]) for name in ("lr", "momentum", "weight_decay")
        )
        dampening = number("SGD", "dampening", options["dampening"])
        if not math.isfinite(dampening):
            raise ValueError(f"SGD: dampening={dampening} is not finite")
        nesterov = flag("SGD", "nesterov", options["nesterov"])
        maximize = flag("SGD", "maximize", options["maximize"])
        if nesterov and (momentum == 0 or dampening != 0):
            raise ValueError(
                f"SGD: nesterov needs a momentum and no dampening, not momentum={momentum} and "
                f"dampening={dampening}"
            )
        return lr, momentum, dampening, decay, nesterov, maximize
