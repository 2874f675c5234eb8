"""Checkpointing for eager PyTorch, value by value.

PyTorch's checkpoint runs a region again as a whole when the first of its values is needed. Here the
region's ops are logged while it runs, and what autograd wants to save is replaced by a place in
that log; when the backward reads it, just the ops that lead to it run again. No compiler is
involved, and the code of the region runs once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from ..planning import Plan
from .eager_log import Region, active
from .eager_plan import plan_region, run_planned
from .eager_policy import Policy, resolve
from .eager_rerun import unpack


def checkpoint(
    fn: Callable[..., Any],
    *args: Any,
    policy_fn: Policy | None = None,
    budget: int | float | str | None = None,
    plan: Plan | Mapping[str, Any] | str | None = None,
    offload: bool = False,
    **kwargs: Any,
) -> Any:
    """Runs ``fn(*args, **kwargs)`` so that its backward holds less memory.

    Args:
        fn: a function of tensors, or a module.
        policy_fn: what to save, in PyTorch's words: a function ``(ctx, op, *args, **kwargs) ->
            torch.utils.checkpoint.CheckpointPolicy``, or a list of ops to save. Ops may be named
            by overload (``torch.ops.aten.mm.default``) or packet (``torch.ops.aten.mm``). Without
            it everything runs again that can.
        budget: instead, the bytes that the region's forward and backward may have alive, as for
            :func:`cutback.plan` (``3_000_000``, ``"6GiB"``, ``0.5``, ``"min"``); the region's
            inputs and the parameters do not count, the gradients do. The first run of a region
            with new shapes is watched and planned, with everything running again that can;
            later ones follow the plan.
        plan: instead, a plan from :func:`checkpoint_plan`, or its JSON.
        offload: with ``policy_fn``, what it says to save waits in the host's memory (pinned, on
            CUDA) and comes back when the backward reads it.

    Returns:
        what ``fn`` returns. Gradients have the bits that they have without checkpointing.

    Random ops never run again; their results are held, a dropout mask as one byte an element.
    Ops of other libraries run again only where a policy says ``MUST_RECOMPUTE``. What was written
    in place is held. A region inside a region joins it, under its own policy.

    Raises:
        ValueError: a policy wants the result of a mutating op saved. ``offload`` without a
            policy, with a budget or plan, or in a region inside a region.
            The ``plan`` is one of another region.
        TypeError: a policy, budget or plan that is none.
        cutback.BudgetError: the budget cannot be reached; the text states the smallest peak found.
        RuntimeError: in the backward, if a tensor that is needed was modified after the region.
    """
    if sum(x is not None for x in (policy_fn, budget, plan)) > 1:
        raise TypeError("give one of policy_fn, budget and plan")
    policy = None if policy_fn is None else resolve(policy_fn)
    if offload and policy_fn is None:
        raise ValueError(
            "offload goes with policy_fn, and holds what that saves on the host; budgets and plans "
            "of eager regions move nothing (cutback.torch.compile(..., offload=True) does)"
        )
    if not torch.is_grad_enabled():
        return fn(*args, **kwargs)
    around = active()
    if around is not None:
        if budget is not None or plan is not None:
            raise ValueError(
                "budget and plan belong to the outermost region; a region inside it takes policy_fn"
            )
        if offload:
            raise ValueError(
                "offload belongs to the outermost region; inside it, a policy_fn that answers "
                "MUST_CPU_OFFLOAD moves what it is asked about"
            )
        around.policies.append(policy)
        try:
            return fn(*args, **kwargs)
        finally:
            around.policies.pop()
    if budget is not None or plan is not None:
        return run_planned(fn, args, kwargs, budget, plan)
    region = Region(policy, offload)
    with torch.autograd.graph.saved_tensors_hooks(region.pack, unpack), region:
        return fn(*args, **kwargs)


def checkpoint_plan(
    fn: Callable[..., Any], *args: Any, budget: int | float | str | None = None, **kwargs: Any
) -> Plan:
    """The plan that ``checkpoint(fn, *args, budget=budget, **kwargs)`` makes; runs ``fn`` once.

    ``checkpoint(fn, ..., plan=...)`` takes it back, also as JSON and in another process, for
    arguments of the same shapes.

    Raises:
        cutback.BudgetError: the budget cannot be reached.
    """
    with torch.enable_grad():
        return plan_region(fn, args, kwargs, budget)
