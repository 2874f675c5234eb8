"""First-order optimizers with elementwise updates."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import KW_ONLY
from typing import Any, ClassVar

from ..scalars import flag, number
from .base import Optimizer, optimizer
from .numbers import Row, Scalar, least_zero, pair
from .state import Array

_ASSIGNED = "{}.{} cannot be assigned: write into its arrays, or use load_state_dict"


@optimizer
class Adaptive(Optimizer):
    """Options shared by Adam and its variants."""

    lr: Scalar = 1e-3
    betas: tuple[float, float] = (0.9, 0.999)
    eps: Scalar = 1e-8
    weight_decay: Scalar = 0.0


class Moments:
    """Optimizers with the states m and v."""

    states: dict[str, tuple[Array | None, ...]]

    @property
    def m(self) -> tuple[Array | None, ...]:
        """First moments, in the order of ``names``."""
        return self.states["m"]

    @m.setter
    def m(self, arrays: Any) -> None:
        raise TypeError(_ASSIGNED.format(type(self).__name__, "m"))

    @property
    def v(self) -> tuple[Array | None, ...]:
        """Second moments, in the order of ``names``."""
        return self.states["v"]

    @v.setter
    def v(self, arrays: Any) -> None:
        raise TypeError(_ASSIGNED.format(type(self).__name__, "v"))


@optimizer
class Adam(Moments, Adaptive):
    """Adam (Kingma, Ba 2015), as PyTorch defines it.

        g <- -g                             with maximize
        g <- g + weight_decay * p
        m <- beta1 * m + (1 - beta1) * g
        v <- beta2 * v + (1 - beta2) * g**2
        p <- p - lr * (m / (1 - beta1**t)) / (sqrt(v / (1 - beta2**t)) + eps)

    With ``amsgrad`` (Reddi, Kale, Kumar 2018) the last line uses the elementwise maximum of v so
    far, ``v_max``, instead of v.

    Args:
        lr: step size.
        betas: decay of the first and second moment, in [0, 1).
        eps: added to the root of the second moment.
        weight_decay: adds ``weight_decay * p`` to the gradient.
        amsgrad: divide by the largest second moment so far.
        maximize: maximize the objective instead of minimizing it.
        groups, half, seed: as for :class:`Optimizer`.

    From its first step on, an optimizer is bound to one set of parameters. Options and ``groups``
    may be changed between steps; an option may be a function of the number of steps taken
    (``lr=lambda t: ...``).

    Raises:
        ValueError, TypeError: if a hyper-parameter is outside its range.

    >>> optimizer = cutback.optim.Adam(lr=1e-3)
    >>> optimizer.step(params, grads)
    """

    native = "adam"
    _squares: ClassVar[tuple[str, ...]] = ("v", "v_max")

    _: KW_ONLY
    amsgrad: bool = False
    maximize: bool = False


@optimizer
class AdamW(Adam):
    """AdamW (Loshchilov, Hutter 2019): Adam with decoupled weight decay.

        p <- p * (1 - lr * weight_decay)
        m <- beta1 * m + (1 - beta1) * g
        v <- beta2 * v + (1 - beta2) * g**2
        p <- p - lr * (m / (1 - beta1**t)) / (sqrt(v / (1 - beta2**t)) + eps)

    Args:
        weight_decay: each step multiplies the parameters by ``1 - lr * weight_decay``.
        lr, betas, eps, groups, amsgrad, maximize: as for :class:`Adam`.

    Raises:
        ValueError, TypeError: if a hyper-parameter is outside its range.

    >>> optimizer = cutback.optim.AdamW(lr=1e-3, weight_decay=0.1)
    >>> optimizer.step(params, grads)
    """

    native = "adamw"

    weight_decay: Scalar = 1e-2


@optimizer
class SGD(Optimizer):
    """Stochastic gradient descent, as PyTorch defines it.

        g <- -g                            with maximize
        g <- g + weight_decay * p
        b <- g at the first step, momentum * b + (1 - dampening) * g from then on
        g <- g + momentum * b              with nesterov, else b
        p <- p - lr * g

    Without momentum there is no b and no state. If a group's momentum is enabled after the first
    step, b starts at 0 instead of g.

    Args:
        lr: step size.
        momentum: decay of the sum of gradients, at least 0.
        dampening: gradients are multiplied by ``1 - dampening`` before they are added to b.
        weight_decay: adds ``weight_decay * p`` to the gradient.
        nesterov: use Nesterov momentum; needs momentum != 0 and dampening == 0.
        maximize: maximize the objective instead of minimizing it.
        groups: as for :class:`Adam`.

    Raises:
        ValueError, TypeError: if a hyper-parameter is outside its range.

    >>> optimizer = cutback.optim.SGD(lr=0.1, momentum=0.9)
    >>> optimizer.step(params, grads)
    """

    native = "sgd"

    lr: Scalar = 1e-3
    momentum: Scalar = 0.0
    dampening: Scalar = 0.0
    weight_decay: Scalar = 0.0
    nesterov: bool = False
    _: KW_ONLY
    maximize: bool = False

    def _row(self, options: Mapping[str, Any]) -> Row:
        momentum, dampening = options["momentum"], options["dampening"]
        row = super()._row({**options, "dampening": 0.0})
        dampening = number("SGD", "dampening", dampening)
        if not math.isfinite(dampening):
            raise ValueError(f"SGD: dampening={dampening} is not finite")
        if options["nesterov"] and (momentum == 0 or dampening != 0):
            raise ValueError(
                f"SGD: nesterov needs a momentum and no dampening, got momentum={momentum} and "
                f"dampening={dampening}"
            )
        return *row[:2], dampening, *row[3:]


@optimizer
class RAdam(Moments, Adaptive):
    """RAdam (Liu et al. 2020), as PyTorch defines it: Adam with a rectified step size. While the
    estimate of v has too few samples, it takes momentum steps that are not divided by the root of
    v.

    Args:
        decoupled_weight_decay: decay the parameters as AdamW does, not through the gradient.
        lr, betas, eps, weight_decay, groups, maximize: as for :class:`Adam`.

    Raises:
        ValueError, TypeError: if a hyper-parameter is outside its range.

    >>> optimizer = cutback.optim.RAdam(lr=1e-3)
    >>> optimizer.step(params, grads)
    """

    native = "radam"
    _squares = ("v",)

    _: KW_ONLY
    decoupled_weight_decay: bool = False
    maximize: bool = False


@optimizer
class NAdam(Moments, Adaptive):
    """NAdam (Dozat 2016), as PyTorch defines it: Adam with Nesterov momentum that grows over time.

        mu(t) = beta1 * (1 - 0.96 ** (t * momentum_decay) / 2)
        mu_product <- mu_product * mu(t)   beginning with 1
        m <- beta1 * m + (1 - beta1) * g
        v <- beta2 * v + (1 - beta2) * g**2
        d = (1 - mu(t)) / (1 - mu_product) * g
            + mu(t + 1) / (1 - mu_product * mu(t + 1)) * m
        p <- p - lr * d / (sqrt(v / (1 - beta2**t)) + eps)

    Args:
        momentum_decay: rate at which mu(t) grows towards beta1.
        decoupled_weight_decay: decay the parameters as AdamW does, not through the gradient.
        lr, betas, eps, weight_decay, groups, maximize: as for :class:`Adam`.

    Raises:
        ValueError, TypeError: if a hyper-parameter is outside its range.

    >>> optimizer = cutback.optim.NAdam(lr=2e-3)
    >>> optimizer.step(params, grads)
    """

    native = "nadam"
    _squares = ("v",)

    lr: Scalar = 2e-3
    momentum_decay: Scalar = 4e-3
    _: KW_ONLY
    decoupled_weight_decay: bool = False
    maximize: bool = False


@optimizer
class AdEMAMix(Moments, Optimizer):
    """AdEMAMix (Pagliardini, Ablin, Grangier 2024): Adam with a second, slower average of the
    gradients.

        m <- beta1 * m + (1 - beta1) * g
        l <- beta3 * l + (1 - beta3) * g
        v <- beta2 * v + (1 - beta2) * g**2
        p <- p * (1 - lr * weight_decay)
        p <- p - lr * (m / (1 - beta1**t) + alpha * l) / (sqrt(v / (1 - beta2**t)) + eps)

    Args:
        betas: decays of the fast average, of the second moment and of the slow average, in [0, 1).
        alpha: weight of the slow average.
        alpha_warmup: number of steps in which alpha grows linearly from 0.
        beta3_warmup: number of steps in which beta3 grows from beta1; its half-life grows linearly.
        lr, eps, weight_decay, groups, maximize: as for :class:`AdamW`.

    Raises:
        ValueError, TypeError: if a hyper-parameter is outside its range.

    >>> optimizer = cutback.optim.AdEMAMix(lr=1e-3)
    >>> optimizer.step(params, grads)
    """

    native = "ademamix"
    _n_betas = 3
    _squares = ("v",)

    lr: Scalar = 1e-3
    betas: tuple[float, float, float] = (0.9, 0.999, 0.9999)
    alpha: Scalar = 5.0
    eps: Scalar = 1e-8
    weight_decay: Scalar = 0.0
    alpha_warmup: Scalar = 0
    beta3_warmup: Scalar = 0
    _: KW_ONLY
    maximize: bool = False


@optimizer
class ADOPT(Moments, Adaptive):
    """ADOPT (Taniguchi et al. 2024): Adam that normalizes each gradient by the previous v, before
    the gradient enters m. The first step only sets v to ``g**2``.

        u = g / max(sqrt(v), eps)          clipped to [-c, c] with clip, c = (t - 1) ** 0.25
        m <- beta1 * m + (1 - beta1) * u
        p <- p - lr * m
        v <- beta2 * v + (1 - beta2) * g**2

    Args:
        decoupled_weight_decay: decay the parameters as AdamW does, not through the gradient.
        clip: clip u, as the second version of the paper does.
        lr, betas, eps, weight_decay, groups, maximize: as for :class:`Adam`.

    Raises:
        ValueError, TypeError: if a hyper-parameter is outside its range.

    >>> optimizer = cutback.optim.ADOPT(lr=1e-3)
    >>> optimizer.step(params, grads)
    """

    native = "adopt"
    _squares = ("v",)

    betas: tuple[float, float] = (0.9, 0.9999)
    eps: Scalar = 1e-6
    _: KW_ONLY
    decoupled_weight_decay: bool = False
    clip: bool = True
    maximize: bool = False


@optimizer
class Adamax(Adaptive):
    """Adamax (Kingma, Ba 2015): Adam that divides by a decaying maximum of ``abs(g)``.

        g <- g + weight_decay * p
        m <- beta1 * m + (1 - beta1) * g
        u <- max(beta2 * u, abs(g) + eps)
        p <- p - lr / (1 - beta1**t) * m / u

    Args:
        lr, betas, eps, weight_decay, groups, maximize: as for :class:`Adam`.

    Raises:
        ValueError, TypeError: if a hyper-parameter is outside its range.

    >>> optimizer = cutback.optim.Adamax(lr=2e-3)
    >>> optimizer.step(params, grads)
    """

    native = "adamax"
    _squares = ("u",)

    lr: Scalar = 2e-3
    _: KW_ONLY
    maximize: bool = False


@optimizer
class Adagrad(Optimizer):
    """Adagrad (Duchi, Hazan, Singer 2011).

        g <- g + weight_decay * p
        sum <- sum + g**2                  beginning with initial_accumulator_value
        p <- p - lr / (1 + (t - 1) * lr_decay) * g / (sqrt(sum) + eps)

    Args:
        lr, eps, weight_decay, groups, maximize: as for :class:`Adam`.
        lr_decay: the step size is ``lr / (1 + (t - 1) * lr_decay)``.
        initial_accumulator_value: initial value of the sum of squares.

    Raises:
        ValueError, TypeError: if a hyper-parameter is outside its range.

    >>> optimizer = cutback.optim.Adagrad(lr=0.01)
    >>> optimizer.step(params, grads)
    """

    native = "adagrad"
    _squares = ("sum",)

    lr: Scalar = 1e-2
    lr_decay: Scalar = 0.0
    weight_decay: Scalar = 0.0
    initial_accumulator_value: Scalar = 0.0
    eps: Scalar = 1e-10
    _: KW_ONLY
    maximize: bool = False


@optimizer
class Adadelta(Optimizer):
    """Adadelta (Zeiler 2012).

        g <- g + weight_decay * p
        square_avg <- rho * square_avg + (1 - rho) * g**2
        d = sqrt(acc_delta + eps) / sqrt(square_avg + eps) * g
        acc_delta <- rho * acc_delta + (1 - rho) * d**2
        p <- p - lr * d

    Args:
        lr, eps, weight_decay, groups, maximize: as for :class:`Adam`.
        rho: decay of both averages of squares, in [0, 1].

    Raises:
        ValueError, TypeError: if a hyper-parameter is outside its range.

    >>> optimizer = cutback.optim.Adadelta(lr=1.0)
    >>> optimizer.step(params, grads)
    """

    native = "adadelta"
    _squares = ("square_avg", "acc_delta")

    lr: Scalar = 1.0
    rho: Scalar = 0.9
    eps: Scalar = 1e-6
    weight_decay: Scalar = 0.0
    _: KW_ONLY
    maximize: bool = False

    def _row(self, options: Mapping[str, Any]) -> Row:
        if number("Adadelta", "rho", options["rho"]) > 1:
            raise ValueError(f"Adadelta: rho={options['rho']} is not in [0, 1]")
        return super()._row(options)


@optimizer
class RMSprop(Optimizer):
    """RMSprop (Hinton 2012), as PyTorch defines it.

        g <- g + weight_decay * p
        square_avg <- alpha * square_avg + (1 - alpha) * g**2
        q = g / (sqrt(square_avg) + eps)
        momentum_buffer <- momentum * momentum_buffer + q
        p <- p - lr * momentum_buffer      without momentum p - lr * q

    With ``centered``, ``grad_avg**2`` is subtracted under the root, where ``grad_avg`` is a moving
    average of g.

    Args:
        lr, eps, weight_decay, groups, maximize: as for :class:`Adam`.
        alpha: decay of the averages.
        momentum: decay of the sum of steps.
        centered: divide by the standard deviation of the gradients; the same for all groups.

    Raises:
        ValueError, TypeError: if a hyper-parameter is outside its range.

    >>> optimizer = cutback.optim.RMSprop(lr=0.01)
    >>> optimizer.step(params, grads)
    """

    native = "rmsprop"
    _for_all = ("centered",)
    _squares = ("square_avg",)

    lr: Scalar = 1e-2
    alpha: Scalar = 0.99
    eps: Scalar = 1e-8
    weight_decay: Scalar = 0.0
    momentum: Scalar = 0.0
    centered: bool = False
    _: KW_ONLY
    maximize: bool = False

    def __post_init__(self) -> None:
        if flag("RMSprop", "centered", self.centered):
            self.native = "rmsprop_centered"
        super().__post_init__()


@optimizer
class Lion(Optimizer):
    """Lion (Chen et al. 2023): every element moves by lr, in the direction of a momentum's sign.

        p <- p * (1 - lr * weight_decay)
        p <- p - lr * sign(beta1 * m + (1 - beta1) * g)
        m <- beta2 * m + (1 - beta2) * g

    Args:
        lr: step size; typically a third to a tenth of AdamW's.
        betas: share of m in the direction, and decay of m, in [0, 1).
        weight_decay: each step multiplies the parameters by ``1 - lr * weight_decay``.
        groups, maximize: as for :class:`Adam`.

    Raises:
        ValueError, TypeError: if a hyper-parameter is outside its range.

    >>> optimizer = cutback.optim.Lion(lr=1e-4)
    >>> optimizer.step(params, grads)
    """

    native = "lion"

    lr: Scalar = 1e-4
    betas: tuple[float, float] = (0.9, 0.99)
    weight_decay: Scalar = 0.0
    _: KW_ONLY
    maximize: bool = False


@optimizer
class Rprop(Optimizer):
    """Rprop (Riedmiller, Braun 1993), as PyTorch defines it: each element has its own step size,
    which grows while the gradient keeps its sign and shrinks when the sign changes.

        step_size <- step_size * etas[1] where g * prev > 0, * etas[0] where g * prev < 0
        step_size <- clip(step_size, *step_sizes)         beginning with lr
        g <- 0 where g * prev < 0
        p <- p - sign(g) * step_size
        prev <- g

    Args:
        lr: initial step size.
        etas: the factors of the step size after a sign change, in [0, 1), and otherwise, at least
            1.
        step_sizes: the smallest and the largest step size.
        groups, maximize: as for :class:`Adam`.

    Raises:
        ValueError, TypeError: if a hyper-parameter is outside its range.

    >>> optimizer = cutback.optim.Rprop(lr=0.01)
    >>> optimizer.step(params, grads)
    """

    native = "rprop"
    _squares = ("step_size",)

    lr: Scalar = 1e-2
    etas: tuple[float, float] = (0.5, 1.2)
    step_sizes: tuple[float, float] = (1e-6, 50.0)
    _: KW_ONLY
    maximize: bool = False

    def _row(self, options: Mapping[str, Any]) -> Row:
        lr = least_zero("Rprop", "lr", options["lr"])
        down, up = pair("Rprop", "etas", options["etas"])
        least, most = pair("Rprop", "step_sizes", options["step_sizes"])
        if not down < 1 <= up:
            raise ValueError(
                f"Rprop: etas={options['etas']} must be (eta_minus, eta_plus) with "
                "0 <= eta_minus < 1 <= eta_plus"
            )
        if least > most:
            raise ValueError(
                f"Rprop: step_sizes={options['step_sizes']} must be (smallest, largest)"
            )
        return lr, down, up, least, most, float(flag("Rprop", "maximize", options["maximize"]))
