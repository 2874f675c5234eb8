"""What is known of a model's graphs and steps, in one place for each lifetime."""

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
from .reference import PositionEnds
from .replaceable import JointGraph
from .saved_plans import Part, SavedPlans
from .together import MOST_CALLS, Pending, Together, covers

Traces = Mapping[str, Mapping[str, Sequence[int]]]
"""What ops allocate (bytes) and free (negative), in order."""


def key_of(problem: Problem) -> str:
    """The key of a graph: a digest of its problem."""
    return hashlib.blake2b(problem.to_json().encode()).hexdigest()


class CompiledGraph(NamedTuple):
    """A graph that was compiled, and what its plan says of it."""

    problem: Problem
    schedule: Schedule
    frame: int | None
    ends: Ends
    own: Problem | None
    """The problem that a share counts from, if it is another one."""


@dataclass
class Unmet:
    """The only graph alone cannot meet its share."""

    error: BudgetError
    later: bool
    """A step had been planned before."""


class Shown(NamedTuple):
    """The graphs of a step, by key in the order of their forwards, and what they share."""

    keys: list[str]
    common: Common | None
    """None: no step has shown it."""


class PlannedPath(NamedTuple):
    """The plan of the graphs that a step runs, each once."""

    plan: Plan
    shown: Shown
    parts: list[Part]
    """What it says of each graph."""


@dataclass
class ModelPlans(InForce):
    """The plans in force for a model: replaced as one when plans are made again."""

    parts: list[Part] = field(default_factory=list)
    """What plans made for several graphs or calls say of each graph."""
    paths: list[PlannedPath] = field(default_factory=list)
    """Where ``plans`` are those of whole steps: one for each path that has a graph in common with
    another one."""

    @property
    def shared_by_calls(self) -> bool:
        """True if the plans have parts of the budget, for calls that are pending together."""
        return bool(self.parts) and not self.paths

    def part(self, problem: Problem) -> Schedule | None:
        """A graph's part of the plans; None: they do not cover it."""
        for part in self.parts:
            if part.problem == problem:
                return Schedule(part.steps, part.backward_starts)
        return None


@dataclass
class Graphs:
    """The graphs of a model, since its plans were last started from nothing."""

    by_key: dict[str, CompiledGraph] = field(default_factory=dict)
    problems: dict[int | None, Problem] = field(default_factory=dict)
    """By frame, those that were compiled since the plans in force were made."""
    compilations: dict[int, int] = field(default_factory=dict)
    """By frame, how often PyTorch had compiled it."""
    kept: list[weakref.ref[JointGraph]] = field(default_factory=list)
    """Joint graphs whose code may follow other plans, as long as it is in use."""
    rounds: int = 0
    """How often plans were made again over several graphs or calls."""
    path_rounds: int = 0
    """How often of these steps took a path that no plan knew, through known graphs."""
    waited: int = 0
    """Calls since a plan was due that could not make it, as a step was under way."""
    unmet: Unmet | None = None
    """In the state ``UNMET``; and once everything is to be saved for that."""
    scratch: dict[str, Rows] = field(default_factory=dict)
    """By the key of a graph, measured scratch that plans count."""
    traces: Traces = field(default_factory=dict)
    """By the key of a graph and the name of an op, what it was seen to allocate and free."""
    scratch_rounds: int = 0
    """How often plans were made again to count it."""

    def next_round(self) -> None:
        """Plans were made again."""
        self.waited, self.unmet = 0, None
        self.rounds += 1

    def forget_code(self) -> None:
        """All code is compiled again."""
        self.problems, self.compilations = {}, {}
        self.kept = []

    def keep(self, graph: JointGraph) -> None:
        """A graph was compiled. What holds it is its code."""
        self.kept = [ref for ref in self.kept if ref() is not None]
        self.kept.append(weakref.ref(graph))

    def in_use(self) -> list[JointGraph]:
        """The joint graphs whose code is in use."""
        return [graph for ref in self.kept if (graph := ref()) is not None]

    def only(self, frame: int | None) -> bool:
        """True if no other frame than this one has a graph."""
        return all(other == frame for other in self.problems)

    def may_wait(self) -> bool:
        """Counts a call within a step. True while that may still show more calls: results of old
        ones may be held forever."""
        self.waited += 1
        return self.waited <= MOST_CALLS


@dataclass
class Left:
    """What earlier calls of a step leave while others are pending."""

    ended: deque[Run] = field(default_factory=lambda: deque(maxlen=2 * MOST_CALLS))
    """Runs whose backward has begun."""
    bytes: dict[frozenset[tuple[str, int]], int] = field(default_factory=dict)
    """By the pattern of what is pending, bytes of gradients and of results that are kept."""


@dataclass
class Steps:
    """What running the graphs has shown."""

    pending: Pending = field(default_factory=Pending)
    trail: Trail = field(default_factory=Trail)
    wholes: dict[frozenset[tuple[str, int]], int] = field(default_factory=dict)
    """By pattern, what its share or position counts from."""
    ends: dict[frozenset[tuple[str, int]], PositionEnds] = field(default_factory=dict)
    """By pattern, the ends of its positions."""
    last: Shown | None = None
    """The last step that was looked at."""
    by_pattern: dict[frozenset[tuple[str, int]], Shown] = field(default_factory=dict)
    paths: list[Shown] = field(default_factory=list)
    """Of steps that ran several graphs, each once: the graphs, those seen last at the end."""
    seen: Together | None = None
    """Graphs that were pending together in this step, until they are looked at."""
    as_min: dict[str, Schedule] = field(default_factory=dict)
    """By key, what further runs of a graph follow in a step that no plan knows."""
    patterns: list[Together] = field(default_factory=list)
    """What has to share the budget."""
    covered: list[Together] = field(default_factory=list)
    """What does, or was said not to."""

    left: Left = field(default_factory=Left)

    def forget(self) -> None:
        """Other graphs will run."""
        self.left = Left()
        self.last, self.by_pattern, self.paths, self.seen = None, {}, [], None
        self.patterns, self.covered, self.as_min = [], [], {}

    def share(self, seen: Together) -> None:
        """From now on these calls have to share the budget."""
        self.patterns = [
            p for p in self.patterns
            if not all(seen[key] >= n for key, n in p.items())
            or self.beside_of(p) > self.beside_of(seen)
        ]  # fmt: skip
        self.patterns.append(seen)

    def beside_of(self, pattern: Together) -> int:
        """What earlier calls of the step have left while these were pending."""
        return self.left.bytes.get(frozenset(pattern.items()), 0)

    def is_in_pipeline(self) -> bool:
        """True if more microbatches of a step may follow: there are gradients of earlier ones."""
        leaves = [
            ref() for run in self.left.ended if run.in_pipeline for ref in run.leaves.values()
        ]
        return any(leaf is not None and leaf.grad is not None for leaf in leaves)

    def backward_of(self, run: Run) -> tuple[Together, int]:
        """The backward of a run begins: what is pending, and bytes that earlier calls left."""
        pending, left = Counter(self.pending.counts), dict[int, int]()
        for earlier in self.left.ended:
            left.update(earlier.lasting())
        if sum(pending.values()) > 1 or self.left.ended or run.in_pipeline:
            self.left.ended.append(run)
        return pending, sum(left.values())

    def look(self, graphs: dict[str, CompiledGraph], wanted: bool) -> Shown | None:
        """Ends a step, and notes what its graphs have in common where that is wanted."""
        runs: list[Run] = self.trail.take()
        unknown = any(run.key not in graphs for run in runs)
        if len(runs) < 2 or unknown or not wanted:
            return None
        of_runs = [graphs[run.key] for run in runs]
        common = common_of(runs, [g.problem for g in of_runs], [g.ends for g in of_runs])
        self.last = Shown([run.key for run in runs], common)
        return self.last

    def note(self, shown: Shown) -> None:
        """Keeps what a step has shown for when its pattern is planned."""
        self.by_pattern[frozenset(Counter(shown.keys).items())] = shown

    def add_path(self, shown: Shown) -> None:
        """Keeps a path, in the place of what was known of it."""
        self.note(shown)
        keys = set(shown.keys)
        self.paths = [*(path for path in self.paths if set(path.keys) != keys), shown]

    def knows(self, shown: Shown) -> bool:
        """True if the path was taken before."""
        return any(set(path.keys) == set(shown.keys) for path in self.paths)

    def cover(self, planned: list[Shown]) -> None:
        """Plans for these paths are in force; those of others that have no graph of them stay."""
        keys = {key for path in planned for key in path.keys}
        others = [path for path in self.paths if keys.isdisjoint(path.keys)]
        self.covered = [Counter(path.keys) for path in (*planned, *others)]

    @property
    def together(self) -> list[Together]:
        """The calls that have to share the budget, and paths that those do not cover."""
        paths = [Counter(path.keys) for path in self.paths]
        return [*self.patterns, *(path for path in paths if not covers(self.patterns, path))]

    def covers_path(self, step: Together, is_relative: bool) -> bool:
        """True if plans keep the step of a path to its budget, or it was said that they do not.

        Args:
            is_relative: the budget is one of what a step takes, so that a path has its own, also if
                it is a part of another one.
        """
        parts = [known for known in self.covered if not is_relative or max(known.values()) > 1]
        return step in self.covered or covers(parts, step)

    def is_new_path(self, graphs: dict[str, CompiledGraph], is_relative: bool) -> bool:
        """True if the step ran graphs that no plan has together; see :meth:`covers_path`."""
        keys = Counter(run.key for run in self.trail.runs if run.node() is not None)
        known = all(key in graphs for key in keys)
        return len(keys) > 1 and known and not self.covers_path(keys, is_relative)

    def shown_for(self, pattern: Together) -> Shown:
        """What is known of a pattern."""
        known = self.by_pattern.get(frozenset(pattern.items()))
        return known or Shown(list(pattern.elements()), None)


@dataclass
class Ever:
    """What holds for as long as the model is compiled."""

    ran: bool = False
    """A planned graph has run."""
    most_bytes: int = 0
    """The largest budget in bytes that was planned for."""
    told_of_scratch: bool = False
    told_of_kept: bool = False
    told_of_rounds: bool = False
    told_of_step: tuple[int, int] = (-1, 0)
    """The round, and growth of sizes, in which it was said what a step takes."""


@dataclass
class GivenPlans:
    """Plans from a file, and the graphs of it that were compiled."""

    saved: SavedPlans
    met: dict[int, Problem] = field(default_factory=dict)
