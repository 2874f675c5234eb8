"""Compiles graphs in the core, and checks and converts the options of compilation."""

from __future__ import annotations

import json
import operator
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

from .. import budgets, terminal
from .._native import backends
from ..integers import integer
from ..source import warn

if TYPE_CHECKING:
    from typing import Protocol

    import numpy as np

    from .. import _native
    from ..devices import Device
    from ..planner.plan import Plan
    from ..planner.search import Progress
    from .memory import Memory, Place

    class Graph(Protocol):
        """The part of :class:`cutback.Graph` that this module uses."""

        _native: _native.Graph
        inputs: list[tuple[str, np.ndarray[Any, Any] | None]]  # name, value of a constant


def _row(device: Device | None) -> str | None:
    if device is None:
        return None
    from ..devices import resolve  # imported late, to save start-up time

    return resolve(device)


def on_gpu(backend: str, device: Device | None) -> tuple[str, Device | None]:
    """Returns the backend and the row of the cost model. If either argument names a GPU, both are
    those of the GPU."""
    if backend != "cuda" and not (isinstance(device, str) and device.startswith("cuda")):
        return backend, device
    from ..cuda import resolve  # imported late: it searches for libraries

    return resolve(backend, device)


def _backend_and_device(options: CompileOptions) -> dict[str, Any]:
    backend, device = on_gpu(options.backend, options.device)
    return {"backend": backend, "device": device}


UPDATES = ("after", "inside")  # when an optimizer steps a parameter
Groups = bool | Mapping[str, Sequence[Sequence[int]]] | None
# The core's words for groups=None, True and False.
_GROUPS = {None: "auto", True: "found", False: None}


def _groups_text(groups: Any) -> str | None:
    """Checks ``groups`` and converts it for the core. The core checks the contents of lists.

    Raises:
        TypeError: if ``groups`` is neither a bool, None nor a dict.
        ValueError: if it is a dict without the key "groups", or with an unknown key.
    """
    if groups is None or isinstance(groups, bool):
        return _GROUPS[groups]
    if not isinstance(groups, Mapping):
        raise TypeError(
            f"groups={budgets.short(groups)} is neither True, False nor None, nor a dict of groups"
        )
    wrong = set(groups) ^ {"groups"}
    if wrong - {"inlinings"}:
        raise ValueError(
            f"groups={budgets.short(groups)}: expected the key 'groups', and optionally 'inlinings'"
        )
    try:
        return json.dumps({"inlinings": [], **groups}, default=operator.index)
    except TypeError as error:
        raise TypeError(f"groups={budgets.short(groups)}: {error}") from None


def _check_plan(plan: Any) -> None:
    if plan is None or (isinstance(plan, str) and plan.lstrip().startswith("{")):
        return
    from ..planner.plan import Plan  # imported late, to save start-up time

    if isinstance(plan, str):
        raise ValueError(f"plan={budgets.short(plan)} is not the JSON of a plan")
    if not isinstance(plan, Plan):
        raise TypeError(f"plan={budgets.short(plan)} is neither a cutback.Plan nor its JSON")


class CompileOptions(NamedTuple):
    """The options of compilation; see :class:`Executable`."""

    budget: budgets.Budget = None
    measure: str = "arena"
    preset: str | None = None
    backend: str = "cpu"
    device: Device | None = None
    plan: Plan | str | None = None
    groups: Groups = None
    keep_gradients: bool = False
    static_bytes: int = 0
    on_infeasible: str = "error"
    time_limit: float = 0.0
    progress: Progress | None = None
    memory: Memory | Place | None = None
    decisions: _native._Decisions | None = None
    updates: str = "after"
    slices: bool = False
    packed: bool = False
    brief: bool = False

    @property
    def searches(self) -> bool:
        """True if compilation searches for a plan, because there is a budget and no plan is
        given."""
        return self.budget is not None and self.plan is None

    def search(self) -> dict[str, Any]:
        """Returns the options that can end a search early, converted for the core.

        Raises:
            ValueError, TypeError: if ``time_limit`` is not a time, or ``progress`` not a function.
        """
        if self.time_limit == 0 and self.progress is None:
            return {}
        from ..planner.search import seconds_of, teller_of  # imported late, as above

        return {
            "time_limit": seconds_of(self.time_limit),
            "progress": teller_of(self.progress),
        }

    @contextmanager
    def searching(self) -> Iterator[dict[str, Any]]:
        """Yields the options of :meth:`search` for one search. If the user gave no ``progress``, a
        terminal or notebook shows the progress."""
        found = self.search()
        if self.progress is not None or not terminal.is_watched():
            yield found
            return
        from ..planner.search import told  # imported late, as above

        with told(None) as progress:
            yield {**found, "progress": progress}

    def native(self) -> dict[str, Any]:
        """Returns all options but those of :meth:`search`, converted for the core."""
        _check_plan(self.plan)
        bound = budgets.parse(self.budget, self.measure)
        plan = self.plan
        return {
            "preset": budgets.parse_preset(self.preset, self.measure if bound else None),
            "budget": bound,
            "backend": self.backend,
            "device": _row(self.device),
            "plan_json": plan if plan is None or isinstance(plan, str) else plan.to_json(),
            "groups": _groups_text(self.groups),
            "keep_gradients": self.keep_gradients,
            "updates_inside": self.keep_gradients and self.updates == "inside",
            "slices": self.slices,
            "packed": self.packed,
            "brief": self.brief,
            "static_bytes": integer("static_bytes", self.static_bytes, 0, 2**63 - 1),
        }


class Decisions(NamedTuple):
    """The decisions of a plan without sizes, which also apply to graphs that differ only in sizes
    from the planned one."""

    native: _native._Decisions
    nbytes: int


def decide(graph: Graph, wrt: Sequence[int], options: CompileOptions) -> Decisions:
    """Plans a graph without compiling it, and returns the decisions of the plan.

    Raises:
        BudgetError: if no plan meets the budget.
    """
    options = options._replace(**_backend_and_device(options))
    with options.searching() as search:
        return Decisions(*graph._native.decide(wrt, **options.native(), **search))


def code_text(graph: Graph, wrt: Sequence[int], options: CompileOptions) -> str:
    """Returns the code of each kernel for a backend: CUDA C for ``"cuda"``, the executor's records
    for ``"cpu"``. The backend need not be available on this machine."""
    budgets.choice("backend", options.backend, backends())
    if isinstance(options.device, str) and options.device.startswith("cuda"):
        options = options._replace(device=None)  # the GPU's row needs the GPU
    return graph._native.compile_text("code", wrt, **options.native())


def compile_graph(
    graph: Graph, wrt: Sequence[int], options: CompileOptions, block: _native.RunMemory
) -> _native.Step:
    """Compiles the graph in the core. If no plan meets the budget, ``on_infeasible`` decides;
    ``"error"`` raises the BudgetError."""
    with options.searching() as search:
        return _compile_telling(graph, wrt, options, block, search)


def _compile_telling(
    graph: Graph,
    wrt: Sequence[int],
    options: CompileOptions,
    block: _native.RunMemory,
    search: dict[str, Any],
) -> _native.Step:
    other_than_plan = {**search, "dump": _dump_function(), "memory": block}
    try:
        decisions = options.decisions
        return graph._native.compile(
            wrt, **options.native(), **other_than_plan, decisions=decisions
        )
    except ValueError as error:
        from ..errors import BudgetError  # imported late, as above

        if not isinstance(error, BudgetError) or options.on_infeasible == "error":
            raise
        saves = options.on_infeasible == "warn"
        other = options._replace(budget=None if saves else options.on_infeasible)
        if saves:
            other = other._replace(measure="arena")
        step = graph._native.compile(wrt, **other.native(), **other_than_plan)
        warn(budgets.fallen_back(error, options.on_infeasible), UserWarning)
        return step


def _dump_function() -> Any:
    """Returns a function that prints stages of compilation to stderr, or None. The environment
    variable ``CB_DUMP`` lists the stages, such as ``joint,plan`` or ``all``."""
    wanted = {stage for stage in os.environ.get("CB_DUMP", "").split(",") if stage}
    if not wanted:
        return None

    def dump(stage: str, text: str) -> None:
        if stage in wanted or "all" in wanted:
            sys.stderr.write(f"--- {stage}\n{text.rstrip()}\n")

    return dump
