"""The frontier: all trade-offs between saved bytes and time of one step."""

from __future__ import annotations

import json
import os
from bisect import bisect_right
from collections import Counter
from typing import Any, NamedTuple

from .. import _native, budgets, devices, files
from ..errors import BudgetError
from ..integers import index
from .plan import Plan


class Baseline(NamedTuple):
    """Bytes and time of a preset; ``"regions"`` is plain checkpointing of each region."""

    saved_bytes: int
    """Bytes alive between forward and backward."""
    peak_bytes: int
    """Peak of live bytes."""
    time_ps: int
    """Modelled picoseconds of the step."""


class Point(NamedTuple):
    """A point of a frontier."""

    saved_bytes: int
    """Bytes alive between forward and backward."""
    time_ps: int
    """Modelled picoseconds of the step."""
    extra: float
    """Extra time, as a share of the time of running everything once."""
    bound_ps: int
    """Lower bound in picoseconds on the time of plans that save at most as many bytes."""
    kind: str
    """``"hull"``, ``"step"`` or ``"fill"``, see :class:`cutback.Frontier`."""


class Reference(NamedTuple):
    """A point of PyTorch's partitioner, stored in a traced graph."""

    budget: float
    """PyTorch's ``activation_memory_budget``, from 0 to 1."""
    saved_bytes: int
    """Bytes alive between forward and backward."""
    peak_bytes: int
    """Peak of live bytes."""
    time_ps: int
    """Modelled picoseconds of the step."""
    redraws: int
    """Number of random ops that run again. Their masks differ, so gradients would be wrong."""


class Peak(NamedTuple):
    """A plan for a peak budget."""

    budget: str
    """The budget, such as ``"0.4x"`` or ``"min"``."""
    peak_bytes: int
    """Peak of live bytes."""
    time_ps: int
    """Modelled picoseconds of the step."""


SHARES = ("0.9x", "0.8x", "0.7x", "0.6x", "0.5x", "0.4x", "0.3x", "min")
"""The peak budgets of :attr:`Frontier.peaks`."""


def references_of(graph: str, problem: _native.Problem, device: str | None) -> list[Reference]:
    """Returns PyTorch's points in a traced graph (``reference.sweep``), evaluated with the same
    cost model. Returns [] if the graph has none."""
    if not files.is_traced(graph):
        return []
    sweep = json.loads(graph).get("reference", {}).get("sweep", [])
    parts = problem.parts()
    random = {i for i, op in enumerate(parts.ops) if "random_stateful" in op.flags}
    for i in random:
        parts.ops[i].flags -= {"random_stateful"}  # otherwise a rerun would be an error
    parts.reruns = "all"  # PyTorch may order the ops of the backward differently
    lenient = parts.check()
    rows = []
    for point in sweep:
        if "error" in point:
            continue
        steps = [*point["forward"], *point["backward"]]
        found = lenient.evaluate((steps, len(point["forward"])), device)
        redrawn = {i for i, n in Counter(steps).items() if n > 1} & random
        rows.append(
            Reference(
                budget=point["budget"],
                saved_bytes=found["saved_bytes"],
                peak_bytes=found["peak_bytes"],
                time_ps=found["time_ps"],
                redraws=len(redrawn),
            )
        )
    return rows


class Frontier:
    """Points with increasing saved bytes and decreasing time, each with its plan.

    These lists have one entry per point:

    - ``saved_bytes``: bytes alive between forward and backward;
    - ``time_ps``: modelled picoseconds of the step;
    - ``bound_ps``: lower bound on the time of plans that save at most as many bytes;
    - ``kind``: ``"hull"`` (a corner of the lower hull: exact, no plan is better), ``"step"``
      (between two corners that differ by several equal parts, which are dropped one by one) or
      ``"fill"`` (between the others, found greedily).

    A notebook displays a frontier as a picture.

    >>> frontier = cutback.frontier(loss, params, x, y)
    >>> for saved, time in zip(frontier.saved_bytes, frontier.time_ps, strict=True):
    ...     print(f"{saved} bytes, {1e-6 * time:.1f} us")
    >>> plan = frontier.plan(0)
    """

    def __init__(self, problem: _native.Problem, answer: str, graph: str = "") -> None:
        document = json.loads(answer)
        self._graph = graph
        self._peaks: list[Peak] | None = None
        self._references: list[Reference] | None = None
        self._problem = problem
        self._text = answer
        self._plans: dict[int, Plan] = {}
        self.saved_bytes: list[int] = document["saved_bytes"]
        self.time_ps: list[int] = document["time_ps"]
        self.bound_ps: list[int] = document["bound_ps"]
        self.kind: list[str] = document["kind"]
        self.once_ps: int = document["once_ps"]
        self.device: devices.Device = document["device"]
        self.preset: str = document["preset"]
        self.baselines: dict[str, Baseline] = {
            name: Baseline(**row) for name, row in document["baselines"].items()
        }

    @property
    def problem(self) -> str:
        """The problem that was planned, as JSON."""
        return self._problem.to_json()

    @classmethod
    def of(
        cls, problem: _native.Problem, preset: str, device: devices.Device | None, graph: str = ""
    ) -> Frontier:
        """Returns the frontier of a problem.

        Args:
            problem, device: as for :func:`cutback.frontier`.
            preset: the preset that says which operations may be recomputed.
            graph: the text that the problem was read from, which may contain points of PyTorch.

        Raises:
            ValueError: if the preset does not exist.
            NotImplementedError: if the limits of regions exclude all points.

        >>> from cutback.planner.tradeoffs import Frontier
        >>> checked = cutback.plan(problem).core.problem
        >>> frontier = Frontier.of(checked, "recompute_all", "a100")
        """
        number = budgets.parse_preset(preset)
        return cls(problem, problem.frontier_json(number, devices.resolve(device)), graph)

    def __len__(self) -> int:
        return len(self.saved_bytes)

    @property
    def extra(self) -> list[float]:
        """Extra time of each point, relative to running everything once."""
        once = max(1, self.once_ps)
        return [(time - self.once_ps) / once for time in self.time_ps]

    def at(self, saved_bytes: int | str) -> int:
        """Returns the index of the fastest point that saves at most ``saved_bytes`` (bytes or
        ``"3GiB"``).

        Raises:
            BudgetError: if even the first point saves more.
        """
        limit = budgets.parse_bytes(saved_bytes)
        i = bisect_right(self.saved_bytes, limit) - 1
        if i < 0:
            raise BudgetError(
                reason="budget",
                measure="saved",
                budget_bytes=limit,
                smallest_bytes=self.saved_bytes[0],
            )
        return i

    def plan(self, point: int) -> Plan:
        """Returns the plan of a point, which is computed on first use.

        Raises:
            IndexError: if there is no such point.
        """
        n, at = len(self), index(point)
        if not -n <= at < n:
            raise IndexError(f"point={at}: the frontier has points 0 .. {n - 1}")
        i = at % n
        if i not in self._plans:
            answer = self._problem.plan(
                preset=budgets.parse_preset(self.preset),
                budget=budgets.of_bytes(self.saved_bytes[i], "saved"),
                device=devices.resolve(self.device),
            )
            self._plans[i] = Plan.of(answer)
        return self._plans[i]

    def to_json(self) -> str:
        """Returns the frontier as JSON (``docs/planner.md``)."""
        return self._text

    def to_rows(self) -> list[Point]:
        """Returns the points as rows for a table: ``pandas.DataFrame(frontier.to_rows())`` has a
        column for each field."""
        columns = self.saved_bytes, self.time_ps, self.extra, self.bound_ps, self.kind
        return [Point(*row) for row in zip(*columns, strict=True)]

    @property
    def references(self) -> list[Reference]:
        """The points of PyTorch's partitioner, if the traced graph contains them."""
        if self._references is None:
            self._references = references_of(
                self._graph, self._problem, devices.resolve(self.device)
            )
        return self._references

    @property
    def peaks(self) -> list[Peak]:
        """Plans for the peak budgets of ``SHARES``, largest first. They are searched for on first
        use, which takes seconds for large graphs. Budgets that cannot be met are left out."""
        if self._peaks is None:
            answers = self._problem.plans(
                [budgets.parse(budget, "live") for budget in SHARES],
                device=devices.resolve(self.device),
            )
            found = [
                (share, answer.numbers)
                for share, answer in zip(SHARES, answers, strict=True)
                if isinstance(answer, _native.Plan)
            ]
            self._peaks = [Peak(share, n["live_bytes"], n["time_ps"]) for share, n in found]
        return self._peaks

    def svg(self) -> str:
        """Returns the picture as SVG: points, hull, baselines and PyTorch's points, each with a
        tooltip."""
        from ..report.frontier import frontier_svg  # imported on demand, as below

        return frontier_svg(json.loads(self._text), [r._asdict() for r in self.references])

    def plot(self, axes: Any = None) -> Any:
        """Draws the picture with matplotlib: ``frontier.plot().figure.savefig("frontier.pdf")``.

        Args:
            axes: matplotlib axes to draw on; None draws on a new figure.

        Returns:
            The axes: saved bytes on the x axis, extra time in percent on the y axis.

        Raises:
            ImportError: if matplotlib is not installed (``pip install 'cutback[plots]'``).
        """
        from ..report.figures import plot_frontier

        references = [reference._asdict() for reference in self.references]
        return plot_frontier(json.loads(self._text), references, axes)

    def report(
        self,
        path: str | os.PathLike[str],
        title: str = "Cutback frontier",
        peaks: bool = False,
    ) -> None:
        """Writes a self-contained HTML page with the picture and a table of the points. With
        ``peaks``, it also shows peak against time (see :attr:`peaks`)."""
        from ..report.frontier import render_frontier

        page = render_frontier(
            json.loads(self._text),
            title,
            [reference._asdict() for reference in self.references],
            [peak._asdict() for peak in self.peaks] if peaks else None,
        )
        files.write_text(path, page)

    def __str__(self) -> str:
        device = devices.name(self.device)
        rows = [f"{len(self)} points, {self.kind.count('hull')} of them exact; {device}"]
        marks = [(f"point {i}", self.saved_bytes[i], self.time_ps[i]) for i in self._shown()]
        marks += [(name, b.saved_bytes, b.time_ps) for name, b in self.baselines.items()]
        for name, saved, time in marks:
            extra = 100 * (time - self.once_ps) / max(1, self.once_ps)
            rows.append(f"{name:>14}: saves {budgets.text(saved):>10}, {extra:6.2f} % more time")
        return "\n".join(rows)

    def _shown(self, about: int = 9) -> list[int]:
        last = len(self) - 1
        return sorted({round(last * i / (about - 1)) for i in range(about)})

    def __repr__(self) -> str:
        low, high = budgets.text(self.saved_bytes[0]), budgets.text(self.saved_bytes[-1])
        return f"<cutback.Frontier {len(self)} points, {low} to {high}>"

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        from ..report.frontier import frontier_fragment

        references = [reference._asdict() for reference in self.references]
        html = frontier_fragment(json.loads(self._text), references)
        return {"text/plain": str(self), "text/html": html}
