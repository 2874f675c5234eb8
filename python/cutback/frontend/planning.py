"""Plans and frontiers of functions: traced and differentiated here, planned by ``planner``. Both
take problems too, so that users have one name for either."""

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
    """The problem of a function on arguments like these, or of what :func:`read_problem`
    takes, with times and policy laid over it: all that follows is the same for both.

    Raises:
        ValueError, TypeError: a mistake in it, or an argument that this kind does not take.
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
    """Plans the step of a function on arguments like these, or a problem from elsewhere, without
    running anything.

    Args:
        what, args: a loss function and its arguments; or a problem alone: a document (dict), its
            JSON, or the path of a file with it (``docs/problem.md``).
        budget, policy, device: as for :func:`cutback.compile`. A problem takes a policy as text
            (:mod:`cutback.constraints`); both take :func:`policies.mu_two`.
        preset: without a budget, the minimum cut that decides: least memory traffic, given what may
            be recomputed. ``"conservative"`` recomputes what fuses; ``"aggressive"`` anything but
            random operations and products of more than 64 operations per byte of their result (16
            with weights: attention scores run again, layers do not); ``"shape-aware"`` compares the
            arithmetic of an operation with its memory traffic. ``"recompute_all"`` and
            ``"autograd"`` (what the backward reads) need no cut.
        argnums: for a function, as for :func:`cutback.compile`.
        measure: ``"arena"`` for a function, ``"live"`` for a problem, unless given.
        profile: for a problem, measured times that go before the cost model: what ``step.profile``
            returned, seconds by operation, or the path of a file with them; see
            :func:`cutback.files.with_times`.
        exact: search again at just this budget. The plan may be faster, but a larger
            budget without it, or with it, may then give a slower one.
        max_extra: for the budget ``"min"``, the share of time that it may cost; 0.4 unless given
            (if constraints alone cost more than that, the smallest plan at any price).
        offload: with a budget; may values move to the host and back, over the link of
            the device? ``"only"``: and nothing runs again. :func:`cutback.torch.compile`
            runs such plans, and so does ``cutback.compile(f, plan=...)`` on a CPU, as copies.
        pinned: with ``offload`` or a policy that offloads: most bytes that the host may hold for
            it at one time; ``"8GiB"``.
        time_limit, progress: seconds after which the search ends with the best plan
            found (0: it ends when it is done), and a function that is told the seconds so far and,
            if it takes two arguments, the best plan so far (:class:`Best` or None), and may answer
            True to end it. Without one, a search that takes over a second is shown on a terminal
            or in a notebook, where Ctrl-C takes the best plan so far. Plans of a search ended early
            need not repeat. The range of a position is always searched in full, so that it stands
            for the same bytes.

    Returns:
        The plan: ``plan.numbers`` has its bytes and modelled picoseconds, ``plan.explain()`` the
        decision about each value.

    Raises:
        BudgetError: no plan meets the budget; its attributes say what would do.
        ValueError, TypeError: a mistake in the problem or the function.

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
    """Every trade-off between the bytes saved for the backward and the time of a step. Computing it
    takes milliseconds.

    Args:
        what, args, policy, argnums, device: as for :func:`cutback.plan`.
        preset: what may run again: ``"recompute_all"`` (whatever may run twice), ``"aggressive"``
            (no long product), ``"conservative"`` (what fuses) or ``"torch-compat"``.

    Returns:
        Points with saved bytes and modelled picoseconds, each of which has a plan.

    Raises:
        ValueError, TypeError: a mistake in the problem or the function.
        NotImplementedError: limits of regions leave no point of it.

    >>> frontier = cutback.frontier(loss, params, x, y)
    >>> smallest = frontier.plan(0)
    """
    graph = ""
    if not (callable(what) or isinstance(what, (Problem, _native.Problem))):
        graph = read_graph(what)
    problem = problem_of(graph or what, args, policy=policy, argnums=argnums, device=device)
    return Frontier.of(problem, preset, device, graph)
