"""Regions that run under a function transform (``torch.func``) or forward-mode AD.

Under these, a region's function sees wrapped tensors without storage, or tensors with tangents. The
region can still run with recomputation, but cannot be recorded and planned. Inside
``torch.func.grad`` and functions built on it, PyTorch also disables saved-tensor hooks, so nothing
can be recomputed.
"""

from __future__ import annotations

import warnings
from typing import NoReturn

import torch
from torch.autograd import forward_ad

_NAMES = {"Vmap": "torch.func.vmap", "Grad": "torch.func.grad", "Jvp": "torch.func.jvp"}


def _active() -> list[str]:
    """Returns names of the active ``torch.func`` transforms, outermost first."""
    try:
        stack = torch._C._functorch.get_interpreter_stack()
    except AttributeError:  # a PyTorch without this private function
        return []
    return [one.key().name for one in stack or ()]


def transform_around() -> str | None:
    """Returns the innermost transform, or forward AD, that prevents planning here, or None."""
    active = _active()
    if active:
        return _NAMES.get(active[-1], "a torch.func transform")
    if getattr(forward_ad, "_current_level", -1) >= 0:
        return "torch.autograd.forward_ad.dual_level"
    return None


def disables_hooks() -> bool:
    """True inside ``torch.func.grad``, ``vjp``, ``jacrev`` and ``hessian``, where PyTorch does not
    allow saved-tensor hooks."""
    return "Grad" in _active() and not torch._C._autograd._saved_tensors_hooks_is_enabled()


def warn_of_hooks(stacklevel: int) -> None:
    """Warns that the region runs without recomputation."""
    warnings.warn(
        "checkpoint: PyTorch does not allow saved-tensor hooks inside torch.func.grad, vjp, jacrev "
        "and hessian, so this region runs without recomputation and saves what autograd saves",
        stacklevel=stacklevel + 1,
    )


def warn_of_no_plan(around: str, stacklevel: int) -> None:
    """Warns that the region runs without a budget."""
    warnings.warn(
        f"checkpoint: a region cannot be planned inside {around}: it runs as without a budget, "
        "which it may exceed",
        stacklevel=stacklevel + 1,
    )


def refuse_plan(around: str) -> NoReturn:
    """Raises NotImplementedError because `checkpoint_plan` was called under a transform."""
    raise NotImplementedError(
        f"checkpoint_plan: a region cannot be planned inside {around}. Call it outside, with plain "
        "tensors; checkpoint(..., budget=...) works here, but ignores the budget"
    )
