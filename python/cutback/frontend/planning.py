"""``cutback.plan`` and ``cutback.frontier``. Functions are traced and differentiated here, and
planned by ``planner``; problems are accepted too, so that one name serves both."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from .. import _native, budgets, devices
from ..planner.plan import Plan
from ..planner.problems import AnyProblem, Timed, Times, read_graph, ready_problem, under_policy
from ..planner.search import Progress, Request
from ..planner.tradeoffs import Frontier
from ..policies import Policy, WholeGraph, resolve
from ..problem import Problem
from ..run.executable import Executable
from .step import ArgNums, argnums_of
from .tracing import Call, Traced


def problem_of(
    what: Callable[..., Any] | AnyProblem,
    args: tuple[Any, ...],
    *,
    policy: Policy | WholeGraph | str | None = None,
    argnums: ArgNums = 0,
    device: devices.Device | None = None,
    profile: Timed | Times | str | os.PathLike[str] | None = None,
) -> _native.Problem:
    """Returns the problem of a function called with arguments like ``args``, or the problem in any
    form that :func:`read_problem` takes, with measured times and the policy's constraints added.

    Raises:
        ValueError, TypeError: if the problem or function is invalid, or an argument only applies to
            the other kind.
    """
    if not callable(what):
        if args or argnums_of(argnums) != (0,):
            raise TypeError("arguments and argnums need a function; a problem takes neither")
        return ready_problem(what, policy=policy, device=device, profile=profile)
    if profile is not None:
        raise TypeError(
            "a profile needs a problem: cutback.plan(step.plan.problem, profile=step.profile(...))"
        )
    whole = policy if isinstance(policy, WholeGraph) else None
    asked = None if policy is None or whole is not None else resolve(policy)
    numbers = argnums_of(argnums)
    traced = Traced(Call(what, args, {}), numbers, asked)
    traced.finish(with_loss=bool(numbers))
    step = Executable(traced.graph, traced.wrt_positions, backend="null", device=device)
    return under_policy(step.native.plan().problem, whole, device)


def plan(
    what: Callable[..., Any] | AnyProblem,
    *args: Any,
    budget: budgets.Budget = None,
    measure: str | None = None,
    preset: str | None = None,
    policy: Policy | WholeGraph | str | None = None,
    argnums: ArgNums = 0,
    device: devices.Device | None = None,
    profile: Timed | Times | str | os.PathLike[str] | None = None,
    max_extra: float | None = None,
    offload: bool | str = False,
    pinned: int | str | None = None,
    exact: bool = False,
    time_limit: float = 0.0,
    progress: Progress | None = None,
) -> Plan:
    """Plans the step of a function called with arguments like ``args``, or a given problem, without
    running anything.

    Args:
        what, args: a loss function and its arguments; or only a problem: a document (dict), its
            JSON, or the path of a file with it (``docs/problem.md``).
        budget, policy, device: as for :func:`cutback.compile`. For a problem, the policy is a
            string (:mod:`cutback.constraints`) or the result of :func:`policies.mu_two`.
        preset: which values a minimum cut saves if there is no budget. The cut minimizes memory
            traffic; the preset says what may be recomputed: ``"conservative"`` allows operations
            that fuse; ``"aggressive"`` allows all but random operations and products of more than
            64 operations per byte of their result (16 for products with weights, so attention
            scores are recomputed, but layers are not); ``"shape-aware"`` compares the arithmetic of
            each operation with its memory traffic. ``"recompute_all"`` (recompute everything) and
            ``"autograd"`` (save everything that the backward reads) need no cut.
        argnums: for a function, as for :func:`cutback.compile`.
        measure: the quantity that the budget bounds, as for :func:`cutback.compile`; by default
            ``"arena"`` for a function and ``"live"`` for a problem.
        profile: for a problem, measured times that replace modelled ones: the result of
            ``step.profile``, a dict of operations to seconds, or the path of a file with one; see
            :func:`cutback.files.with_times`.
        exact: search again for exactly this budget. The plan may be faster, but plans for different
            budgets are then no longer comparable: a larger budget may give a slower plan.
        max_extra: for the budget ``"min"``, the extra time allowed, as a share (default 0.4). If
            constraints alone cost more than that, the smallest plan is used, however slow.
        offload: whether values may move to the host and back over the device's link; needs a
            budget. ``"only"`` allows this but no recomputation. :func:`cutback.torch.compile` runs
            such plans; ``cutback.compile(f, plan=...)`` runs them on a CPU, with copies in memory.
        pinned: limit on the bytes held on the host at one time, such as ``"8GiB"``; needs
            ``offload`` or a policy that offloads.
        time_limit, progress: limits on the search. After ``time_limit`` seconds the search ends
            with the best plan found; 0 means no limit. ``progress`` is called with the seconds so
            far and, if it takes two arguments, the best plan so far (:class:`Best` or None);
            returning True ends the search. Without ``progress``, a terminal or notebook shows
            searches that take over a second, and Ctrl-C accepts the best plan so far. A search that
            ended early may give another plan the next time. The range of a position is always
            searched in full, so that a position always means the same bytes.

    Returns:
        The plan. ``plan.numbers`` has its bytes and modelled picoseconds; ``plan.explain()``
        explains the decision for each value.

    Raises:
        BudgetError: if no plan meets the budget; its attributes say which budget can be met.
        ValueError, TypeError: if the problem, the function or an option is invalid.

    >>> plan = cutback.plan(loss, params, x, y, budget=0.5)
    >>> print(plan)
    """
    if measure is None:
        measure = "arena" if callable(what) else "live"
    request = Request(
        measure, budget=budget, max_extra=max_extra, preset=preset, offload=offload, pinned=pinned,
        exact=exact, device=device, time_limit=time_limit, progress=progress,
    )  # fmt: skip
    problem = problem_of(what, args, policy=policy, argnums=argnums, device=device, profile=profile)
    return request.plan(problem)


def frontier(
    what: Callable[..., Any] | AnyProblem,
    *args: Any,
    preset: str = "recompute_all",
    policy: Policy | WholeGraph | str | None = None,
    argnums: ArgNums = 0,
    device: devices.Device | None = None,
) -> Frontier:
    """Computes all trade-offs between the bytes saved for the backward and the time of a step. This
    takes milliseconds.

    Args:
        what, args, policy, argnums, device: as for :func:`cutback.plan`.
        preset: which operations may be recomputed: ``"recompute_all"`` (all that may run twice),
            ``"aggressive"`` (all but long products), ``"conservative"`` (those that fuse) or
            ``"torch-compat"``.

    Returns:
        The points, each with its saved bytes, modelled picoseconds and a plan.

    Raises:
        ValueError, TypeError: if the problem, the function or an option is invalid.
        NotImplementedError: if the limits of regions exclude all points.

    >>> frontier = cutback.frontier(loss, params, x, y)
    >>> smallest = frontier.plan(0)
    """
    graph = ""
    if not (callable(what) or isinstance(what, (Problem, _native.Problem))):
        graph = read_graph(what)
    problem = problem_of(graph or what, args, policy=policy, argnums=argnums, device=device)
    return Frontier.of(problem, preset, device, graph)
