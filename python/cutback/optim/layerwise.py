"""Optimizers whose steps depend on the norms of whole tensors, written as formulas."""

from __future__ import annotations

from typing import Any

import numpy as np

from .recorded import foreach


@foreach
def LAMB(  # noqa: N802
    p: Any,
    g: Any,
    m: Any,
    v: Any,
    t: Any,
    *,
    lr: float = 1e-3,
    beta1: float = 0.9,
    beta2: float = 0.999,
    eps: float = 1e-6,
    weight_decay: float = 0.0,
) -> Any:
    """LAMB (You et al. 2020): AdamW with steps whose norm is lr times the norm of the tensor.

        m <- beta1 * m + (1 - beta1) * g
        v <- beta2 * v + (1 - beta2) * g**2
        u = m / (1 - beta1**t) / (sqrt(v / (1 - beta2**t)) + eps) + weight_decay * p
        p <- p - lr * norm(p) / norm(u) * u            u itself where a norm is 0

    It only steps f32 parameters.

    Args:
        lr: norm of a step, relative to the norm of the parameter.
        beta1, beta2: decay of the first and second moment.
        eps: added to the root of the second moment.
        weight_decay: adds ``weight_decay * p`` to the step.
        groups: as for :class:`Adam`.

    Raises:
        ValueError, TypeError: if an option is not a finite number, a beta is not in [0, 1), or
            another option is negative.

    >>> optimizer = cutback.optim.LAMB(lr=1e-3)
    >>> optimizer.step(params, grads)
    """
    beta1_correction, beta2_correction = 1 - beta1**t, 1 - beta2**t
    m = beta1 * m + (1 - beta1) * g
    v = beta2 * v + (1 - beta2) * g * g
    update = m * (1 / beta1_correction) / (np.sqrt(v) * (1 / beta2_correction**0.5) + eps)
    update = update + weight_decay * p
    param_norm, update_norm = np.linalg.norm(p), np.linalg.norm(update)
    both = (param_norm > 0) & (update_norm > 0)
    trust_ratio = np.where(both, param_norm / update_norm, 1.0)
    return p - lr * trust_ratio * update, m, v


LAMB._below_one = ("beta1", "beta2")
LAMB._not_negative = ("lr", "eps", "weight_decay")
