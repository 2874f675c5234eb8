"""Learning-rate schedules with the names of optax and of PyTorch.

Each function returns a schedule: a function of the number of steps taken, for ``lr=`` or another
hyper-parameter of an optimizer. Functions with PyTorch's names take the rate, or the schedules,
instead of the optimizer. Schedules can be pickled.

>>> from cutback.optim import schedules
>>> rate = schedules.warmup_cosine_decay_schedule(0.0, 1e-3, warmup_steps=100, decay_steps=1000)
>>> rate(0), rate(100), rate(1000)
(0.0, 0.001, 0.0)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import pairwise
from typing import Any

from .numbers import Schedule

__all__ = [
    "ChainedScheduler", "ConstantLR", "CosineAnnealingLR", "CosineAnnealingWarmRestarts",
    "ExponentialLR", "LambdaLR", "LinearLR", "MultiStepLR", "OneCycleLR", "PolynomialLR",
    "SequentialLR", "StepLR", "constant_schedule", "cosine_decay_schedule",
    "cosine_onecycle_schedule", "exponential_decay", "join_schedules", "linear_onecycle_schedule",
    "linear_schedule", "piecewise_constant_schedule", "polynomial_schedule",
    "warmup_cosine_decay_schedule",
]  # fmt: skip


def _steps(name: str, steps: Any, least: int = 1) -> int:
    if isinstance(steps, bool) or not isinstance(steps, int) or steps < least:
        raise ValueError(f"{name}={steps!r} must be a number of steps of at least {least}")
    return steps


def _rising(name: str, steps: Sequence[int]) -> tuple[int, ...]:
    steps = tuple(_steps(name, n, 0) for n in steps)
    if list(steps) != sorted(steps):
        raise ValueError(f"{name}={list(steps)} must be in order")
    return steps


def _between(start: float, end: float, share: float, kind: str) -> float:
    """Interpolates between ``start`` (for a share of 0) and ``end`` (for a share of 1)."""
    if kind == "linear":
        return start + (end - start) * share
    return end + (start - end) / 2 * (1 + math.cos(math.pi * share))


# ---- optax's names -------------------------------------------------------------------------------


def _constant(value: float, t: int) -> float:
    return value


def constant_schedule(value: float) -> Schedule:
    """Returns a schedule that is ``value`` at every step. Source: ``optax.constant_schedule``."""
    return partial(_constant, value)


def _polynomial(init: float, end: float, power: float, steps: int, begin: int, t: int) -> float:
    rest = 1 - min(max(t - begin, 0), steps) / steps
    return float((init - end) * rest**power + end)


def polynomial_schedule(
    init_value: float, end_value: float, power: float, transition_steps: int,
    transition_begin: int = 0,
) -> Schedule:  # fmt: skip
    """Returns a schedule from ``init_value`` to ``end_value`` in ``transition_steps`` steps. The
    distance to ``end_value`` is proportional to the share of steps left, to the power ``power``.
    Source: ``optax.polynomial_schedule``."""
    steps = _steps("transition_steps", transition_steps)
    return partial(_polynomial, init_value, end_value, power, steps, transition_begin)


def linear_schedule(
    init_value: float, end_value: float, transition_steps: int, transition_begin: int = 0
) -> Schedule:
    """Returns a linear schedule from ``init_value`` to ``end_value``. Source:
    ``optax.linear_schedule``."""
    return polynomial_schedule(init_value, end_value, 1.0, transition_steps, transition_begin)


def _cosine(init: float, steps: int, alpha: float, exponent: float, t: int) -> float:
    share = 0.5 * (1 + math.cos(math.pi * min(t, steps) / steps))
    return float(init * ((1 - alpha) * share**exponent + alpha))


def cosine_decay_schedule(
    init_value: float, decay_steps: int, alpha: float = 0.0, exponent: float = 1.0
) -> Schedule:
    """Returns a schedule from ``init_value`` to ``alpha * init_value`` along half a cosine. Source:
    ``optax.cosine_decay_schedule``."""
    return partial(_cosine, init_value, _steps("decay_steps", decay_steps), alpha, exponent)


def _exponential(
    init: float, rate: float, begin: int, steps: int, end: float | None, t: int
) -> float:
    value = float(init * rate ** (max(t - begin, 0) / steps))
    return value if end is None else max(value, end) if rate < 1 else min(value, end)


def _stepwise(schedule: Schedule, begin: int, steps: int, t: int) -> float:
    """Evaluates the schedule at the last multiple of ``steps``."""
    return schedule(begin + max(t - begin, 0) // steps * steps)


def exponential_decay(
    init_value: float, transition_steps: int, decay_rate: float, transition_begin: int = 0,
    staircase: bool = False, end_value: float | None = None,
) -> Schedule:  # fmt: skip
    """Returns the schedule ``init_value * decay_rate ** (t / transition_steps)``. With
    ``staircase``, exponents are rounded down. The schedule stops at ``end_value``. Source:
    ``optax.exponential_decay``."""
    steps = _steps("transition_steps", transition_steps)
    smooth = partial(_exponential, init_value, decay_rate, transition_begin, steps, end_value)
    return partial(_stepwise, smooth, transition_begin, steps) if staircase else smooth


def _stairs(init: float, stairs: tuple[tuple[int, float], ...], t: int) -> float:
    return math.prod((factor for at, factor in stairs if t >= at), start=init)


def piecewise_constant_schedule(
    init_value: float, boundaries_and_scales: Mapping[int, float] | None = None
) -> Schedule:
    """Returns a schedule that starts at ``init_value`` and is multiplied by each factor from its
    step on. Source: ``optax.piecewise_constant_schedule``."""
    return partial(_stairs, init_value, tuple(sorted((boundaries_and_scales or {}).items())))


def _joined(schedules: tuple[Schedule, ...], boundaries: tuple[int, ...], t: int) -> float:
    k = sum(t >= at for at in boundaries)
    return schedules[k](t - (boundaries[k - 1] if k else 0))


def join_schedules(schedules: Sequence[Schedule], boundaries: Sequence[int]) -> Schedule:
    """Returns a schedule that runs others one after another; each counts steps from the boundary
    where it begins. Source: ``optax.join_schedules``.

    Raises:
        ValueError: if boundaries are out of order, or not exactly one fewer than schedules.
    """
    if len(boundaries) != len(schedules) - 1:
        raise ValueError(
            f"{len(schedules)} schedules need {len(schedules) - 1} boundaries, "
            f"got {len(boundaries)}"
        )
    return partial(_joined, tuple(schedules), _rising("boundaries", boundaries))


def warmup_cosine_decay_schedule(
    init_value: float, peak_value: float, warmup_steps: int, decay_steps: int,
    end_value: float = 0.0, exponent: float = 1.0,
) -> Schedule:  # fmt: skip
    """Returns a schedule that rises linearly from ``init_value`` to ``peak_value`` in
    ``warmup_steps`` steps, then falls along half a cosine to ``end_value`` at step ``decay_steps``.
    Source: ``optax.warmup_cosine_decay_schedule``.

    Raises:
        ValueError: if ``decay_steps`` is not above ``warmup_steps``.
    """
    rest = decay_steps - warmup_steps
    if rest < 1:
        raise ValueError(f"decay_steps={decay_steps} must be above warmup_steps={warmup_steps}")
    alpha = end_value / peak_value if peak_value else 0.0
    decay = cosine_decay_schedule(peak_value, rest, alpha, exponent)
    if warmup_steps == 0:
        return decay
    warmup = linear_schedule(init_value, peak_value, warmup_steps)
    return join_schedules([warmup, decay], [warmup_steps])


def _pieces(kind: str, points: tuple[tuple[float, float], ...], t: int) -> float:
    for (begin, start), (end, stop) in pairwise(points):
        if t < end:
            return _between(start, stop, (t - begin) / (end - begin), kind)
    return points[-1][1]


def linear_onecycle_schedule(
    transition_steps: int, peak_value: float, pct_start: float = 0.3, pct_final: float = 0.85,
    div_factor: float = 25.0, final_div_factor: float = 1e4,
) -> Schedule:  # fmt: skip
    """Returns a schedule that rises linearly to ``peak_value``, falls back, and ends at a small
    value. Source: ``optax.linear_onecycle_schedule``."""
    n = _steps("transition_steps", transition_steps)
    low = peak_value / div_factor
    ends = (int(pct_start * n), peak_value), (int(pct_final * n), low), (n, low / final_div_factor)
    return partial(_pieces, "linear", ((0, low), *ends))


def cosine_onecycle_schedule(
    transition_steps: int, peak_value: float, pct_start: float = 0.3, div_factor: float = 25.0,
    final_div_factor: float = 1e4,
) -> Schedule:  # fmt: skip
    """Returns a schedule that rises to ``peak_value`` along half a cosine, and falls along another.
    Source: ``optax.cosine_onecycle_schedule``."""
    n = _steps("transition_steps", transition_steps)
    low = peak_value / div_factor
    points = (0, low), (int(pct_start * n), peak_value), (n, low / final_div_factor)
    return partial(_pieces, "cosine", points)


# ---- PyTorch's names -----------------------------------------------------------------------------


def CosineAnnealingLR(lr: float, T_max: int, eta_min: float = 0.0) -> Schedule:  # noqa: N802, N803
    """Returns a cosine schedule between ``lr`` and ``eta_min``, with a period of ``2 * T_max``.
    Source: ``torch.optim.lr_scheduler.CosineAnnealingLR``."""
    return partial(_wave, lr, _steps("T_max", T_max), eta_min)


def _wave(lr: float, half: int, least: float, t: int) -> float:
    return _between(lr, least, t / half, "cosine")


def _restarts(lr: float, first: int, growth: int, least: float, t: int) -> float:
    length = first
    while t >= length:
        t -= length
        length *= growth
    return _between(lr, least, t / length, "cosine")


def CosineAnnealingWarmRestarts(  # noqa: N802
    lr: float, T_0: int, T_mult: int = 1, eta_min: float = 0.0  # noqa: N803
) -> Schedule:  # fmt: skip
    """Returns a schedule of half cosines from ``lr`` to ``eta_min``, each ``T_mult`` times as long
    as the one before.
    Source: ``torch.optim.lr_scheduler.CosineAnnealingWarmRestarts``."""
    return partial(_restarts, lr, _steps("T_0", T_0), _steps("T_mult", T_mult), eta_min)


def LinearLR(  # noqa: N802
    lr: float, start_factor: float = 1.0 / 3, end_factor: float = 1.0, total_iters: int = 5
) -> Schedule:
    """Returns the schedule of ``lr`` times a factor that changes linearly. Source:
    ``torch.optim.lr_scheduler.LinearLR``."""
    return linear_schedule(lr * start_factor, lr * end_factor, total_iters)


def ConstantLR(lr: float, factor: float = 1.0 / 3, total_iters: int = 5) -> Schedule:  # noqa: N802
    """Returns a schedule that is ``lr * factor`` in the first ``total_iters`` steps, then ``lr``.
    Source: ``torch.optim.lr_scheduler.ConstantLR``."""
    return join_schedules(
        [constant_schedule(lr * factor), constant_schedule(lr)],
        [_steps("total_iters", total_iters, 0)],
    )


def PolynomialLR(lr: float, total_iters: int = 5, power: float = 1.0) -> Schedule:  # noqa: N802
    """Returns a schedule from ``lr`` to 0. Source: ``torch.optim.lr_scheduler.PolynomialLR``."""
    return polynomial_schedule(lr, 0.0, power, total_iters)


def StepLR(lr: float, step_size: int, gamma: float = 0.1) -> Schedule:  # noqa: N802
    """Returns the schedule of ``lr`` multiplied by ``gamma`` after every ``step_size`` steps.
    Source: ``torch.optim.lr_scheduler.StepLR``."""
    return exponential_decay(lr, step_size, gamma, staircase=True)


def MultiStepLR(lr: float, milestones: Sequence[int], gamma: float = 0.1) -> Schedule:  # noqa: N802
    """Returns the schedule of ``lr`` multiplied by ``gamma`` at each milestone. Source:
    ``torch.optim.lr_scheduler.MultiStepLR``."""
    return partial(_stairs, lr, tuple((n, gamma) for n in _rising("milestones", milestones)))


def ExponentialLR(lr: float, gamma: float) -> Schedule:  # noqa: N802
    """Returns the schedule ``lr * gamma ** t``. Source:
    ``torch.optim.lr_scheduler.ExponentialLR``."""
    return exponential_decay(lr, 1, gamma)


def OneCycleLR(  # noqa: N802
    max_lr: float, total_steps: int, pct_start: float = 0.3, anneal_strategy: str = "cos",
    div_factor: float = 25.0, final_div_factor: float = 1e4,
) -> Schedule:  # fmt: skip
    """Returns a schedule that rises to ``max_lr`` and falls to a small rate at the last step.
    Source: ``torch.optim.lr_scheduler.OneCycleLR``, without ``three_phase``.

    Raises:
        ValueError: if ``anneal_strategy`` is neither ``"cos"`` nor ``"linear"``.
    """
    if anneal_strategy not in ("cos", "linear"):
        raise ValueError(f"anneal_strategy={anneal_strategy!r} must be 'cos' or 'linear'")
    last, low = _steps("total_steps", total_steps) - 1, max_lr / div_factor
    top = pct_start * total_steps - 1
    points = ((0, low), (top, max_lr), (last, low / final_div_factor))
    return partial(_pieces, "cosine" if anneal_strategy == "cos" else "linear", points)


def _scaled(lr: float, factor: Callable[[int], float], t: int) -> float:
    return lr * factor(t)


def LambdaLR(lr: float, lr_lambda: Callable[[int], float]) -> Schedule:  # noqa: N802
    """Returns the schedule ``lr * lr_lambda(t)``. Source: ``torch.optim.lr_scheduler.LambdaLR``."""
    return partial(_scaled, lr, lr_lambda)


def SequentialLR(schedulers: Sequence[Schedule], milestones: Sequence[int]) -> Schedule:  # noqa: N802
    """Returns a schedule that runs others one after another, like :func:`join_schedules`. Source:
    ``torch.optim.lr_scheduler.SequentialLR``."""
    return join_schedules(schedulers, milestones)


def _chained(lr: float, schedules: tuple[Schedule, ...], t: int) -> float:
    return math.prod((schedule(t) / lr for schedule in schedules), start=lr)


def ChainedScheduler(lr: float, schedulers: Sequence[Schedule]) -> Schedule:  # noqa: N802
    """Returns the product of several schedules: ``lr`` times the product of their factors. All of
    them must be made with this ``lr``. Source: ``torch.optim.lr_scheduler.ChainedScheduler``.

    Raises:
        ValueError: if ``lr`` is 0, because factors are relative to it.
    """
    if not lr:
        raise ValueError(
            "ChainedScheduler: lr must not be 0, because the factors are relative to it"
        )
    return partial(_chained, lr, tuple(schedulers))
