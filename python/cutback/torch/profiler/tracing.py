"""Traces a PyTorch step to a planner problem, without running it."""

from __future__ import annotations

import contextlib
import gc
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NoReturn

import torch
from torch._dynamo.exc import BackendCompilerFailed

from ... import budgets, files
from ...frontend.planning import plan
from ...planner.plan import Plan
from ...planner.problems import ready_problem
from ...planner.search import Request
from ...problem import Problem
from .. import hooks
from ..compiler import reference
from ..compiler.compiling import uncompiled
from ..compiler.one_piece import without_messages
from ..compiler.preparing import Preparation, device_row, prepare
from ..compiler.totals import Total, account, with_total
from ..compiler.wishes import Policy, of_tags
from ..flags import check_flags, check_flags_or_none
from ..graph.counter import check_random
from ..graph.graphs import UnsupportedGraphError
from ..graph.importer import with_wishes
from ..graph.leaves import IsLeaf, aot_backend
from ..graph.moving import with_link
from ..graph.slices import Sliced
from ..graph.statistics import Statistics, check_same
from ..graph.taking_over import separate

if TYPE_CHECKING:
    from ..types import GraphInput


class TracedStep:
    """A training step as the planner sees it (``docs/problem.md``).

    >>> traced = cutback.torch.trace(model, x)
    >>> plan = traced.plan(budget=0.5)
    """

    def __init__(self, problem: Problem, device: str, own: Problem | None = None) -> None:
        self.problem = problem
        self.device = device
        """The row of the device table for the devices of the step's tensors."""
        self.slices: list[Sliced] = []
        """The chains that run in pieces of rows, and those that stay whole, with the reason
        (``slices=True``)."""
        self._own = own  # the problem without the policy, if it was traced with one

    @property
    def document(self) -> dict[str, Any]:
        """The problem as a document (``docs/problem.md``)."""
        return self.problem.document()

    def plan(self, budget: int | float | str | None = None, **options: Any) -> Plan:
        """Plans the step for a budget, which has the same meaning as for :func:`compile`. The
        options are those of :func:`cutback.plan`. Returns the plan.

        Raises:
            BudgetError: if no plan meets the budget.
            ValueError: if ``profile`` belongs to another step.
        """
        profile = options.pop("profile", None)
        if isinstance(profile, Statistics):
            check_same(profile.signature, self.problem, "the traced step")
        options = {"device": self.device, **options}
        problem = self.problem
        moves = options.get("offload") or problem.wants_moves
        if moves:
            problem = with_link(problem, options["device"])
        is_fastest = isinstance(budget, str) and budget == reference.FASTEST
        if moves or budget is None or is_fastest:  # nothing is taken over then
            problem = separate(problem)
        device, measure = options["device"], options.get("measure") or "live"
        policy = options.pop("policy", None)
        checked = own = ready_problem(problem, profile=profile)
        plain = separate(self._own or problem)
        if plain is not problem:
            own = ready_problem(plain, profile=profile)
        checked = ready_problem(checked, policy=policy, device=device)
        apart, in_both = None, reference.has_few_ops(problem)
        if any(op.over for op in problem.ops):
            apart = ready_problem(separate(problem), profile=profile)
            apart = ready_problem(apart, policy=policy, device=device)
        if budget is None:
            wishes = [policy, *(options.get(name) for name in ("preset", "max_extra"))]
            if self._own is None and wishes == [None, None, None]:
                options["preset"] = reference.preset_of(checked, device)
        elif is_fastest:
            budget = None
        spec = budgets.parse(budget, measure, options.get("max_extra"))
        spec = budgets.with_options(
            spec, options.get("offload", False), options.get("pinned"), options.get("exact", False)
        )
        if spec is None or not budgets.is_bound(spec):
            found = plan(checked, budget=budget, **options)
            if apart is None or not in_both or spec is None:
                return found
            other = plan(apart, budget=budget, **options)
            return reference.smaller(checked, found, other, measure)

        request = Request(**{**options, "measure": measure}, budget=budget)
        searched = reference.Searched(checked, apart, in_both)
        question = reference.Question(
            checked, own, device, measure, options.get("preset"), searched
        )
        return question.plan(spec, request.plan)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the problem to a file that ``cutback plan`` reads. The file is compressed if its
        name ends in ``.gz``."""
        files.write_text(path, self.problem.to_json())

    def __repr__(self) -> str:
        return f"<cutback.torch.TracedStep of {len(self.problem.ops)} ops>"


class _SeenError(Exception):
    """Carries the problem out of PyTorch's compiler and ends the compilation. The problem is None
    if only the forward was wanted."""

    def __init__(self, step: TracedStep | None) -> None:
        super().__init__("traced")
        self.step = step


@contextlib.contextmanager
def _without_collection() -> Iterator[None]:
    """Stops garbage collection, which would take a fifth of the time of a trace."""
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()


def trace(
    step: torch.nn.Module | Callable[..., Any],
    *inputs: Any,
    policy: Policy = None,
    dynamic: bool | None = None,
    optimizer: torch.optim.Optimizer | None = None,
    random: str = "torch",
    cse: bool = True,
    slices: bool = False,
    **kwargs: Any,
) -> TracedStep:
    """Traces one training step (the forward of ``step`` on such inputs, and its backward) to a
    planner problem.

    Nothing is computed: PyTorch traces with fake tensors and allocates no memory. ``step`` and the
    inputs may be fake, too (``torch._subclasses.FakeTensorMode``).

    Args:
        step: a module, or a function that returns a loss or outputs; it must trace as one graph.
        inputs, kwargs: its arguments.
        policy, random, cse, slices: see :class:`Partitioner`.
        dynamic: as for ``torch.compile``.
        optimizer: an optimizer whose states and step become part of the problem, for
            ``plan(measure="total")``.

    Returns:
        The step as the planner sees it. Its method ``plan(budget=...)`` plans it, ``document`` is
        the problem, and ``save(path)`` writes it for ``cutback plan``.

    Raises:
        UnsupportedGraphError: if nothing needs a gradient, or the graph cannot be planned.

    >>> traced = cutback.torch.trace(model, x)  # nothing runs
    >>> print(traced.plan(budget=0.5))
    """
    check_random(random)
    check_flags(cse=cse, slices=slices)
    check_flags_or_none(dynamic=dynamic)
    step = uncompiled(step)
    total = None if optimizer is None else account(step, optimizer)
    sliced: list[Sliced] = []
    how = Preparation(policy, random, cse, sliced=sliced.extend if slices else None)
    traced = trace_with(step, inputs, kwargs, how, total, dynamic)
    traced.slices = sliced
    return traced


def trace_with(
    step: torch.nn.Module | Callable[..., Any],
    inputs: tuple[Any, ...],
    kwargs: dict[str, Any],
    how: Preparation,
    total: Total | None,
    dynamic: bool | None,
) -> TracedStep:
    """Traces a step as :func:`trace` does, and counts what its model and its optimizer hold.

    Raises:
        UnsupportedGraphError: if nothing needs a gradient, or the graph cannot be planned.
    """

    def partition(
        gm: torch.fx.GraphModule,
        joint_inputs: Sequence[GraphInput],
        *,
        num_fwd_outputs: int,
        is_leaf: IsLeaf,
        static_lifetime_input_indices: list[int] | None = None,
        **options: Any,
    ) -> NoReturn:
        prepared = replace(how, is_leaf=is_leaf, takes_over=True)
        graph = prepare(gm, num_fwd_outputs, static_lifetime_input_indices or (), prepared)
        problem = graph.problem if total is None else with_total(graph.problem, total)
        own = None if how.policy is None else with_wishes(graph, of_tags)
        if own is not None and total is not None:
            own = with_total(own, total)
        raise _SeenError(TracedStep(problem, device_row(gm), own))

    def compiler(gm: torch.fx.GraphModule, example_inputs: Sequence[GraphInput]) -> NoReturn:
        raise UnsupportedGraphError(
            "trace: no input or parameter needs a gradient, so there is no backward"
        )

    joint = aot_backend(partition, fw_compiler=compiler)

    def backend(gm: torch.fx.GraphModule, example_inputs: Sequence[GraphInput]) -> Any:
        if how.seen is not None:
            how.seen(gm)
        return joint(gm, example_inputs)

    try:
        with _without_collection(), without_messages():
            torch.compile(
                step, backend=backend, fullgraph=True, dynamic=dynamic, **hooks.own_entries()
            )(*inputs, **kwargs)
    except BackendCompilerFailed as failed:
        if isinstance(failed.inner_exception, _SeenError) and failed.inner_exception.step:
            return failed.inner_exception.step
        if isinstance(failed.inner_exception, UnsupportedGraphError):
            raise failed.inner_exception from None
        raise
    raise UnsupportedGraphError("trace: the step has no operations on tensors")


def trace_forward(
    step: Callable[..., Any],
    inputs: tuple[Any, ...],
    kwargs: dict[str, Any],
    seen: Callable[[torch.fx.GraphModule], object],
) -> None:
    """Calls ``seen`` with the forward that :func:`trace_with` would trace with fixed sizes. Tracing
    no backward saves two thirds of the time."""

    def backend(gm: torch.fx.GraphModule, example_inputs: Sequence[GraphInput]) -> NoReturn:
        seen(gm)
        raise _SeenError(None)

    try:
        with _without_collection(), without_messages():
            torch.compile(
                step, backend=backend, fullgraph=True, dynamic=False, **hooks.own_entries()
            )(*inputs, **kwargs)
    except BackendCompilerFailed as failed:
        if not isinstance(failed.inner_exception, _SeenError):
            raise
