"""Records of a model's graphs and steps, with one class for each lifetime."""

from __future__ import annotations

import hashlib
import weakref
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from ... import BudgetError
from ...planner.plan import Plan
from ...problem import Problem
from ..graph.moving import Schedule
from .counted_scratch import Rows
from .crossing import Ends, Run, Trail, common_of
from .joining import Common
from .partition import InForce
from .pipelines import LossMeter
from .reference import PositionEnds
from .replaceable import JointGraph
from .saved_plans import Part, SavedPlans
from .together import MOST_CALLS, Pending, Together, covers

Traces = Mapping[str, Mapping[str, Sequence[int]]]
"""Bytes that ops allocate (positive) and free (negative), in order, by graph and op."""


def key_of(problem: Problem) -> str:
    """Returns the key of a graph: a digest of its problem."""
    return hashlib.blake2b(problem.to_json().encode()).hexdigest()


class CompiledGraph(NamedTuple):
    """A compiled graph and its part of the plan."""

    problem: Problem
    schedule: Schedule
    frame: int | None
    ends: Ends
    own: Problem | None
    """The problem that a share is relative to, if it is a different one."""


@dataclass
class Unmet:
    """The error of a model's only graph, which cannot meet its share alone."""

    error: BudgetError
    later: bool
    """True if a step was planned before."""

    @classmethod
    def of(cls, error: BudgetError, later: bool) -> Unmet:
        """Keeps an error without the frames that it references, because their locals keep tensors
        alive."""
        error.__traceback__ = error.__context__ = error.__cause__ = None
        return cls(error, later)


class Shown(NamedTuple):
    """The graphs of a step, as keys in the order of their forwards, and what they share."""

    keys: list[str]
    common: Common | None
    """What the graphs share, or None if it is not known yet."""


class PlannedPath(NamedTuple):
    """The plan for a step that runs each of its graphs once."""

    plan: Plan
    shown: Shown
    parts: list[Part]
    """The part of each graph."""


@dataclass
class ModelPlans(InForce):
    """The plans in force for a model. The whole object is replaced when plans are made again."""

    parts: list[Part] = field(default_factory=list)
    """Each graph's part of the plans for several graphs or calls."""
    paths: list[PlannedPath] = field(default_factory=list)
    """If ``plans`` cover whole steps: one path for each that shares a graph with another one."""
    by_graph: dict[str, Plan] = field(default_factory=dict)
    """Before plans cover whole steps: the plans of graphs that have the whole budget, by key."""

    def alone(self) -> dict[str, Plan]:
        """Returns the plans of steps that run one graph, by the key of the graph. For example,
        there is one for each shape for which PyTorch compiles the model. Empty if a plan covers
        several graphs."""
        if any(len(path.shown.keys) > 1 for path in self.paths):
            return {}
        return {path.shown.keys[0]: path.plan for path in self.paths} or dict(self.by_graph)

    def plan_for(self, shown: Shown) -> Plan | None:
        """Returns the only plan for steps that run these graphs, or None."""
        if len(shown.keys) == 1 and (plan := self.alone().get(shown.keys[0])) is not None:
            return plan
        then = [path.shown for path in self.paths]
        if len(self.plans) != 1 or then not in ([], [shown]) or (not then and shown.keys[1:]):
            return None
        return self.plans[0]

    @property
    def shared_by_calls(self) -> bool:
        """True if the plans share the budget between calls that are pending together."""
        return bool(self.parts) and not self.paths

    def part(self, problem: Problem) -> Schedule | None:
        """Returns a graph's part of the plans, or None if they do not cover it."""
        for part in self.parts:
            if part.problem == problem:
                return Schedule(part.steps, part.backward_starts)
        return None


@dataclass
class Graphs:
    """The graphs of a model since its plans were last started from scratch."""

    by_key: dict[str, CompiledGraph] = field(default_factory=dict)
    problems: dict[int | None, Problem] = field(default_factory=dict)
    """The graphs compiled since the plans in force were made, by frame."""
    compilations: dict[int, int] = field(default_factory=dict)
    """How often PyTorch has compiled each frame."""
    kept: list[weakref.ref[JointGraph]] = field(default_factory=list)
    """Joint graphs whose code can follow other plans, kept as long as the code is in use."""
    rounds: int = 0
    """How often plans were made again over several graphs or calls."""
    path_rounds: int = 0
    """How many of these rounds were for a new path through known graphs."""
    waited: int = 0
    """Calls since a plan became due in which a running step kept it from being made."""
    unmet: Unmet | None = None
    """Set in the state ``UNMET``, and after it if everything is therefore saved."""
    scratch: dict[str, Rows] = field(default_factory=dict)
    """Measured scratch that plans count, by the key of a graph."""
    traces: Traces = field(default_factory=dict)
    """Bytes that ops were seen to allocate and free, by the key of a graph and the name of an
    op."""
    scratch_rounds: Counter[str] = field(default_factory=Counter)
    """How often plans were made again to count the scratch of a graph, by its key."""
    apart: dict[str, bool] = field(default_factory=dict)
    """If plans that count scratch are due for several graphs, each of which is a whole step: the
    keys, and whether the graph's plan must be made again."""

    def next_round(self) -> None:
        """Begins another round after plans were made again."""
        self.waited, self.unmet = 0, None
        self.rounds += 1

    def forget_code(self) -> None:
        """Forgets the code of all graphs, which will be recompiled."""
        self.problems, self.compilations = {}, {}
        self.kept = []

    def keep(self, graph: JointGraph) -> None:
        """Remembers a compiled graph. Only its code keeps it alive."""
        self.kept = [ref for ref in self.kept if ref() is not None]
        self.kept.append(weakref.ref(graph))

    def in_use(self) -> list[JointGraph]:
        """Returns the joint graphs whose code is in use."""
        return [graph for ref in self.kept if (graph := ref()) is not None]

    def only(self, frame: int | None) -> bool:
        """True if no other frame has a graph."""
        return all(other == frame for other in self.problems)

    def may_wait(self) -> bool:
        """Counts a call within a step. Returns True while the step may still show more calls. The
        count is limited because results of old calls may be held forever."""
        self.waited += 1
        return self.waited <= MOST_CALLS


@dataclass
class Left:
    """Memory that earlier calls of a step leave behind while others are pending."""

    ended: deque[Run] = field(default_factory=lambda: deque(maxlen=2 * MOST_CALLS))
    """Runs whose backward has begun."""
    waiting: deque[Run] = field(default_factory=lambda: deque(maxlen=2 * MOST_CALLS))
    """Runs in a pipeline whose backward has not begun."""
    bytes: dict[frozenset[tuple[str, int]], int] = field(default_factory=dict)
    """Bytes of gradients and kept results, keyed by the pattern of the pending calls."""
    meter: LossMeter | None = None
    """Measures the losses of a pipeline's last stage."""
    loss: int = 0
    """Bytes that a loss of that stage takes only while it runs."""

    def has_grown(self) -> bool:
        """Updates ``loss``, and returns True if it has grown."""
        now = 0 if self.meter is None else self.meter.bytes
        grows, self.loss = now > self.loss, max(now, self.loss)
        return grows


@dataclass
class Steps:
    """Observations from running the graphs."""

    pending: Pending = field(default_factory=Pending)
    trail: Trail = field(default_factory=Trail)
    wholes: dict[frozenset[tuple[str, int]], int] = field(default_factory=dict)
    """Bytes that shares and positions are relative to, by pattern."""
    ends: dict[frozenset[tuple[str, int]], PositionEnds] = field(default_factory=dict)
    """Ends of the positions, by pattern."""
    last: Shown | None = None
    """The last step that was examined."""
    by_pattern: dict[frozenset[tuple[str, int]], Shown] = field(default_factory=dict)
    paths: list[Shown] = field(default_factory=list)
    """The graphs of steps that ran several graphs once each, latest last."""
    seen: Together | None = None
    """Graphs that were pending together in this step and have not been examined yet."""
    as_min: dict[str, Schedule] = field(default_factory=dict)
    """The schedule of further runs of a graph in a step that no plan covers, by key."""
    patterns: list[Together] = field(default_factory=list)
    """Patterns of calls that must share the budget."""
    covered: list[Together] = field(default_factory=list)
    """Patterns that share it, or for which a warning was given."""

    left: Left = field(default_factory=Left)

    def forget(self) -> None:
        """Forgets the observations, because other graphs will run."""
        self.left = Left()
        self.last, self.by_pattern, self.paths, self.seen = None, {}, [], None
        self.patterns, self.covered, self.as_min = [], [], {}

    def share(self, seen: Together) -> None:
        """Makes these calls share the budget from now on."""
        self.patterns = [
            p for p in self.patterns
            if not all(seen[key] >= n for key, n in p.items())
            or self.beside_of(p) > self.beside_of(seen)
        ]  # fmt: skip
        self.patterns.append(seen)

    def beside_of(self, pattern: Together) -> int:
        """Returns the bytes that earlier calls of the step left while these were pending."""
        return self.left.bytes.get(frozenset(pattern.items()), 0)

    def is_in_pipeline(self) -> bool:
        """True if more microbatches of a step may follow, because there are gradients of earlier
        ones."""
        runs = [run for run in self.left.ended if run.pipeline is not None]
        leaves = [ref() for run in runs for ref in run.leaves.values()]
        return any(leaf is not None and leaf.grad is not None for leaf in leaves)

    def backward_of(self, run: Run) -> tuple[Together, int]:
        """Handles the begin of a run's backward. Returns the pending calls, and the bytes left by
        earlier calls or held by the schedule of a pipeline."""
        pending, left = Counter(self.pending.counts), dict[int, int]()
        if run.pipeline is not None:
            left.update(run.pipeline.held())
            for other in self.left.waiting:  # plans count the results of these runs
                for key in other.alive():
                    left.pop(key, None)
            if run in self.left.waiting:
                self.left.waiting.remove(run)
        for earlier in self.left.ended:
            left.update(earlier.lasting())
        if sum(pending.values()) > 1 or self.left.ended or run.pipeline is not None:
            self.left.ended.append(run)
        return pending, sum(left.values())

    def look(self, graphs: dict[str, CompiledGraph], wanted: bool) -> Shown | None:
        """Ends a step, and records what its graphs share, if that is needed."""
        runs: list[Run] = self.trail.take()
        unknown = any(run.key not in graphs for run in runs)
        if len(runs) < 2 or unknown or not wanted:
            return None
        of_runs = [graphs[run.key] for run in runs]
        common = common_of(runs, [g.problem for g in of_runs], [g.ends for g in of_runs])
        self.last = Shown([run.key for run in runs], common)
        return self.last

    def note(self, shown: Shown) -> None:
        """Keeps the observations of a step until its pattern is planned."""
        self.by_pattern[frozenset(Counter(shown.keys).items())] = shown

    def add_path(self, shown: Shown) -> None:
        """Stores a path, replacing earlier data about it."""
        self.note(shown)
        keys = set(shown.keys)
        self.paths = [*(path for path in self.paths if set(path.keys) != keys), shown]

    def knows(self, shown: Shown) -> bool:
        """True if the path was taken before."""
        return any(set(path.keys) == set(shown.keys) for path in self.paths)

    def cover(self, planned: list[Shown]) -> None:
        """Records that plans for these paths are in force. Plans of paths that share no graph with
        them stay."""
        keys = {key for path in planned for key in path.keys}
        others = [path for path in self.paths if keys.isdisjoint(path.keys)]
        self.covered = [Counter(path.keys) for path in (*planned, *others)]

    @property
    def together(self) -> list[Together]:
        """Returns the calls that must share the budget, and the paths that these calls do not
        cover."""
        paths = [Counter(path.keys) for path in self.paths]
        return [*self.patterns, *(path for path in paths if not covers(self.patterns, path))]

    def covers_path(self, step: Together, is_relative: bool) -> bool:
        """True if plans keep a path's step to its budget, or if the warning that they do not was
        given.

        Args:
            is_relative: True if the budget depends on what a step takes, so that a path has a
                budget of its own even if it is a part of another path.
        """
        parts = [known for known in self.covered if not is_relative or max(known.values()) > 1]
        return step in self.covered or covers(parts, step)

    def is_new_path(self, graphs: dict[str, CompiledGraph], is_relative: bool) -> bool:
        """True if the step ran graphs that no plan covers together; see :meth:`covers_path`."""
        keys = Counter(run.key for run in self.trail.runs if run.node() is not None)
        known = all(key in graphs for key in keys)
        return len(keys) > 1 and known and not self.covers_path(keys, is_relative)

    def shown_for(self, pattern: Together) -> Shown:
        """Returns what is known about a pattern."""
        known = self.by_pattern.get(frozenset(pattern.items()))
        return known or Shown(list(pattern.elements()), None)


@dataclass
class Ever:
    """Facts that stay valid as long as the compiled model exists."""

    ran: bool = False
    """True if a planned graph has run."""
    most_bytes: int = 0
    """The largest budget in bytes that was planned for."""
    told_of_scratch: bool = False
    told_of_kept: bool = False
    told_of_loss: bool = False
    told_of_rounds: bool = False
    told_of_step: tuple[int, int] = (-1, 0)
    """The round, and the growth count of sizes, for which a step's bytes were reported."""


@dataclass
class GivenPlans:
    """Plans from a file, and which of its graphs were compiled."""

    saved: SavedPlans
    met: dict[int, Problem] = field(default_factory=dict)
