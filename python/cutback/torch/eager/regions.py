"""Checkpointing for eager PyTorch, value by value.

PyTorch's checkpoint reruns the whole region when the first of its values is needed. Here the
region's ops are logged while it runs, and autograd saves references into that log instead of
tensors. When the backward reads such a reference, only the ops that lead to it run again. No
compiler is involved, and the code of the region runs once.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch._compile import _disable_dynamo

from ...planner.plan import Plan
from ..flags import check_flags
from .arguments import Budget
from .drop_in import Contexts, context_of, decorator, refuse_hooks, refuse_offload, refuse_unusual
from .log import Region, active
from .plan import GivenPlan, Out, check_wish, is_unplanned, plan_region, run_planned
from .policy import Function, Policy, SaveList, resolve
from .rerun import unpack
from .transforms import disables_hooks, refuse_plan, transform_around, warn_of_hooks


@_disable_dynamo
def _outside_of_graphs(given: dict[str, Any]) -> Any:
    """Runs a region inside compiled code. Dynamo breaks the graph here instead of tracing this
    module, and the region runs in eager mode."""
    options = {k: v for k, v in given.items() if k not in ("fn", "args", "kwargs")}
    return checkpoint(given["fn"], *given["args"], **options, **given["kwargs"])


def checkpoint(
    fn: Callable[..., Any] | None = None,
    *args: Any,
    policy_fn: Policy | None = None,
    budget: Budget = None,
    plan: GivenPlan = None,
    offload: bool = False,
    use_reentrant: bool | None = None,
    preserve_rng_state: bool = True,
    context_fn: Callable[[], Contexts] | None = None,
    determinism_check: str = "default",
    debug: bool = False,
    early_stop: bool = True,
    respect_saved_tensors_hooks: bool | None = None,
    **kwargs: Any,
) -> Any:
    """Runs ``fn(*args, **kwargs)`` so that its backward needs less memory. A drop-in replacement
    for ``torch.utils.checkpoint.checkpoint``, with the same arguments.

    Args:
        fn: a function of tensors, or a module. Without it the result is a decorator.
        policy_fn: the values to save, in PyTorch's form: a function ``(ctx, op, *args, **kwargs)
            -> torch.utils.checkpoint.CheckpointPolicy``, or a list of ops to save. Ops may be named
            by overload (``torch.ops.aten.mm.default``) or packet (``torch.ops.aten.mm``). Without
            a policy, all values that can be recomputed are.
        budget: instead of a policy, the most bytes that the forward and backward of the region may
            hold, as for :func:`cutback.plan`: ``3_000_000``, ``"6GiB"``; a position, ``0.5``;
            ``"min"``, the smallest at no more than 40 % extra time; ``"smallest"``. Gradients
            count; the region's inputs and parameters do not. The first run of a region with new
            shapes recomputes everything it can, and is recorded and planned; later runs follow the
            plan.
        plan: instead of a policy, a plan from :func:`checkpoint_plan`, or its JSON.
        offload: with ``policy_fn``, keep the saved values in host memory (pinned for CUDA) until
            the backward reads them.
        use_reentrant: accepted and ignored. Features that PyTorch's reentrant form does not support
            (keywords, detached values, ``autograd.grad``) work.
        preserve_rng_state: accepted and ignored: random ops never run again.
        context_fn: contexts of PyTorch's selective checkpointing
            (``create_selective_checkpoint_contexts``, or :func:`checkpoint_contexts`) are used as
            ``policy_fn``. For other pairs, ``fn`` runs in the first context, and the second must do
            nothing, because ``fn`` does not run again.
        determinism_check: ``"default"`` or ``"none"``; there is no second run to compare.
        debug, early_stop: only their defaults are allowed.
        respect_saved_tensors_hooks: True is an error inside saved-tensor hooks.

    Returns:
        The result of ``fn``. Gradients are bitwise equal to those without checkpointing.

    Random ops never run again. Their results are held, a dropout mask as one byte per element. Ops
    of other libraries run again if they are registered as functions of their arguments, with a fake
    kernel, or if a policy says ``MUST_RECOMPUTE``. Tensors written in place are held. A region
    inside another region is part of it, under its own policy. Under ``torch.func`` transforms and
    forward-mode AD, budgets and plans are ignored with a warning; inside ``torch.func.grad``,
    ``vjp``, ``jacrev`` and ``hessian`` nothing is recomputed.

    Raises:
        ValueError: if a policy saves the result of a mutating op; if ``offload`` is used without a
            policy, with a budget or plan, or in an inner region; if ``plan`` belongs to another
            region; for ``debug=True`` or ``early_stop=False``; for
            ``respect_saved_tensors_hooks=True`` inside such hooks; if the second context of
            ``context_fn`` does something, or it is used with another policy.
        TypeError: if a policy, budget or plan has the wrong type.
        cutback.BudgetError: if the budget cannot be met; the message gives the smallest peak found.
        RuntimeError: in the backward, if a needed tensor was modified after the region.

    >>> y = cutback.torch.checkpoint(model, x, use_reentrant=False)
    >>> y.sum().backward()  # the model's ops run again, one by one
    """
    given = dict(locals())
    if torch.compiler.is_dynamo_compiling():
        return _outside_of_graphs(given)
    check_flags(offload=offload)
    refuse_unusual(use_reentrant, preserve_rng_state, determinism_check, debug, early_stop)
    refuse_hooks(respect_saved_tensors_hooks)
    if fn is None:
        return decorator(checkpoint, given)
    if context_fn is not None:
        around_fn, said = context_of(context_fn)
        if said is not None:
            if policy_fn is not None or budget is not None or plan is not None:
                raise ValueError(
                    "context_fn already has a policy: give only one of context_fn, policy_fn, "
                    "budget and plan"
                )
            policy_fn = said
        fn = around_fn(fn)
    if sum(x is not None for x in (policy_fn, budget, plan)) > 1:
        raise TypeError("give only one of policy_fn, budget and plan")
    policy = None if policy_fn is None else resolve(policy_fn)
    refuse_offload(offload, policy_fn)
    if not torch.is_grad_enabled():
        return fn(*args, **kwargs)
    around = active()
    if around is not None:
        if budget is not None or plan is not None:
            raise ValueError(
                "budget and plan are only for the outermost region; give the inner one policy_fn"
            )
        if offload:
            raise ValueError(
                "offload is only for the outermost region; in an inner region, use a policy_fn "
                "that answers MUST_CPU_OFFLOAD for the ops to offload"
            )
        around.policies.append(policy)
        try:
            return fn(*args, **kwargs)
        finally:
            around.policies.pop()
    if budget is not None or plan is not None:
        return _outermost_planned(fn, args, kwargs, budget, plan)
    return _outermost(fn, args, kwargs, policy, offload)


def _outermost_planned(
    fn: Callable[..., Out],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    budget: Budget,
    plan: GivenPlan,
) -> Out:
    """Runs an outermost region under a budget or plan. The caller has checked the arguments."""
    if disables_hooks():
        check_wish(budget, plan)
        warn_of_hooks(stacklevel=3)
        return fn(*args, **kwargs)
    if not is_unplanned(fn, args, kwargs, budget, plan):
        return run_planned(fn, args, kwargs, budget, plan)
    return _outermost(fn, args, kwargs, None, False)


def _outermost(
    fn: Callable[..., Out], args: tuple[Any, ...], kwargs: dict[str, Any],
    policy: SaveList | Function | None, offload: bool,
) -> Out:  # fmt: skip
    """Runs an outermost region without a budget. The caller has checked the arguments."""
    if disables_hooks():
        warn_of_hooks(stacklevel=3)
        return fn(*args, **kwargs)
    region = Region(policy, offload)
    with torch.autograd.graph.saved_tensors_hooks(region.pack, unpack), region:
        return fn(*args, **kwargs)


def checkpoint_sequential(
    functions: torch.nn.Sequential | Iterable[Callable[[Any], Any]],
    segments: int,
    input: Any,
    use_reentrant: bool | None = None,
    *,
    preserve_rng_state: bool = True,
    policy_fn: Policy | None = None,
    offload: bool = False,
) -> Any:
    """Runs functions in sequence, with a :func:`checkpoint` around each segment but the last, whose
    backward comes first anyway. A drop-in replacement for PyTorch's ``checkpoint_sequential``.

    For a budget use ``checkpoint(sequential, input, budget=...)``, which does not need segments.

    Args:
        functions: a ``torch.nn.Sequential``, or functions of one argument.
        segments: number of segments, from 1 to the number of functions.
        input: the argument of the first function.
        use_reentrant, preserve_rng_state, policy_fn, offload: as for :func:`checkpoint`.

    Returns:
        The result of the last function.

    Raises:
        TypeError, ValueError: if ``segments`` is not an int from 1 to the number of functions.

    >>> y = cutback.torch.checkpoint_sequential(model, 2, x)
    >>> y.sum().backward()
    """
    row = list(functions)
    try:
        segments = operator.index(segments)
    except TypeError:
        raise TypeError(f"segments={segments!r} must be an int, the number of segments") from None
    if not 1 <= segments <= max(1, len(row)):
        raise ValueError(
            f"segments={segments}: for {len(row)} functions, give 1 to {max(1, len(row))}"
        )

    def run(part: list[Callable[[Any], Any]], value: Any) -> Any:
        for function in part:
            value = function(value)
        return value

    size = len(row) // segments
    cut = size * (segments - 1)
    for start in range(0, cut, size or 1):
        input = checkpoint(
            run, row[start : start + size], input, policy_fn=policy_fn, offload=offload,
            use_reentrant=use_reentrant, preserve_rng_state=preserve_rng_state,
        )  # fmt: skip
    return run(row[cut:], input)


def checkpoint_plan(
    fn: Callable[..., Any], *args: Any, budget: int | float | str | None = None, **kwargs: Any
) -> Plan:
    """Returns the plan that ``checkpoint(fn, *args, budget=budget, **kwargs)`` follows. Runs ``fn``
    once, or twice if the first run created persistent state (a cache, lazy parameters).

    ``checkpoint(fn, ..., plan=...)`` accepts the plan, also as JSON and in another process, for
    arguments of the same shapes.

    Raises:
        cutback.BudgetError: if the budget cannot be met.
        NotImplementedError: inside a ``torch.func`` transform or forward-mode AD.

    >>> plan = cutback.torch.checkpoint_plan(model, x, budget=0.5)
    >>> y = cutback.torch.checkpoint(model, x, plan=plan)
    """
    around = transform_around()
    if around is not None:
        refuse_plan(around)
    with torch.enable_grad():
        return plan_region(fn, args, kwargs, budget)
