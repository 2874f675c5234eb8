"""Checkpointing for eager PyTorch, value by value.

PyTorch's checkpoint runs a region again as a whole when the first of its values is needed. Here the
region's ops are logged while it runs, and what autograd wants to save is replaced by a place in
that log; when the backward reads it, just the ops that lead to it run again. No compiler is
involved, and the code of the region runs once.
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
    """A region in what is compiled: Dynamo, which would trace our own code, ends its graph here,
    and the region runs as in eager mode."""
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
    """Runs ``fn(*args, **kwargs)`` so that its backward holds less memory. It stands where
    ``torch.utils.checkpoint.checkpoint`` does, and takes its arguments.

    Args:
        fn: a function of tensors, or a module. Without it the result is a decorator.
        policy_fn: what to save, in PyTorch's words: a function ``(ctx, op, *args, **kwargs) ->
            torch.utils.checkpoint.CheckpointPolicy``, or a list of ops to save. Ops may be named
            by overload (``torch.ops.aten.mm.default``) or packet (``torch.ops.aten.mm``). Without
            it everything runs again that can.
        budget: instead, the bytes that the region's forward and backward may have alive, as for
            :func:`cutback.plan`: ``3_000_000``, ``"6GiB"``; a position, ``0.5``; ``"min"``, the
            smallest at no more than 40 % more time; ``"smallest"``. The region's inputs and the
            parameters do not count, the gradients do. The first run of a region with new shapes
            is watched and planned, with everything running again that can; later ones follow the
            plan.
        plan: instead, a plan from :func:`checkpoint_plan`, or its JSON.
        offload: with ``policy_fn``, what it says to save waits in the host's memory (pinned, on
            CUDA) and comes back when the backward reads it.
        use_reentrant: either way is the same here: nothing runs the engine inside itself, and what
            the reentrant form cannot do (keywords, detached values, ``autograd.grad``) works.
        preserve_rng_state: either way random ops run once, so there is no state to put back.
        context_fn: PyTorch's selective checkpointing (``create_selective_checkpoint_contexts``, or
            :func:`checkpoint_contexts`) is taken as its ``policy_fn``. Of other pairs the first
            context is around ``fn``, the second must do nothing: ``fn`` does not run again.
        determinism_check: ``"default"`` or ``"none"``; there is no second run to be compared.
        debug, early_stop: as they are by default.
        respect_saved_tensors_hooks: True is an error inside hooks for saved tensors.

    Returns:
        what ``fn`` returns. Gradients have the bits that they have without checkpointing.

    Random ops never run again; their results are held, a dropout mask as one byte an element.
    Ops of other libraries run again where they are registered as functions of their arguments, with
    a fake kernel, or a policy says ``MUST_RECOMPUTE``. What was written in place is held. A region
    inside a region joins it, under its own policy. Under ``torch.func`` transforms and forward-mode
    AD a budget or plan is not followed (the region runs as without one) and a warning says so;
    inside ``torch.func.grad``, ``vjp``, ``jacrev`` and ``hessian`` nothing runs again.

    Raises:
        ValueError: a policy wants the result of a mutating op saved. ``offload`` without a
            policy, with a budget or plan, or in a region inside a region.
            The ``plan`` is one of another region. ``debug=True``, ``early_stop=False``,
            ``respect_saved_tensors_hooks=True`` inside such hooks, a ``context_fn`` whose second
            context does something, or beside another policy.
        TypeError: a policy, budget or plan that is none.
        cutback.BudgetError: the budget cannot be reached; the text states the smallest peak found.
        RuntimeError: in the backward, if a tensor that is needed was modified after the region.
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
                    "context_fn brings a policy of its own: give it, or policy_fn, budget or plan"
                )
            policy_fn = said
        fn = around_fn(fn)
    if sum(x is not None for x in (policy_fn, budget, plan)) > 1:
        raise TypeError("give one of policy_fn, budget and plan")
    policy = None if policy_fn is None else resolve(policy_fn)
    refuse_offload(offload, policy_fn)
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
        return _outermost_planned(fn, args, kwargs, budget, plan)
    return _outermost(fn, args, kwargs, policy, offload)


def _outermost_planned(
    fn: Callable[..., Out],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    budget: Budget,
    plan: GivenPlan,
) -> Out:
    """A region that is in no other, under a budget or plan; its arguments are checked."""
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
    """A region that is in no other, without a budget; its arguments are checked."""
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
    """Runs functions one after another, in segments that are each a :func:`checkpoint`; the last
    is not, as its backward comes first. It stands where PyTorch's ``checkpoint_sequential`` does.

    A budget goes with ``checkpoint(sequential, input, budget=...)``, which needs no segments.

    Raises:
        TypeError, ValueError: ``segments`` is not between 1 and the number of functions.
    """
    row = list(functions)
    try:
        segments = operator.index(segments)
    except TypeError:
        raise TypeError(f"segments={segments!r} is no number of segments: an int") from None
    if not 1 <= segments <= max(1, len(row)):
        raise ValueError(
            f"segments={segments}: there are {len(row)} functions, so from 1 to {max(1, len(row))}"
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
    """The plan that ``checkpoint(fn, *args, budget=budget, **kwargs)`` makes; runs ``fn`` once,
    or twice where the first run left something behind that it made (a cache, lazy parameters).

    ``checkpoint(fn, ..., plan=...)`` takes it back, also as JSON and in another process, for
    arguments of the same shapes.

    Raises:
        cutback.BudgetError: the budget cannot be reached.
        NotImplementedError: inside a ``torch.func`` transform or forward-mode AD.
    """
    around = transform_around()
    if around is not None:
        refuse_plan(around)
    with torch.enable_grad():
        return plan_region(fn, args, kwargs, budget)
