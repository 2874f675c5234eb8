"""The differences between two plans of one problem."""

from __future__ import annotations

import json
import os
from collections import Counter
from typing import TYPE_CHECKING, Any, NamedTuple

from .. import budgets, files

if TYPE_CHECKING:
    from ..explanation import ExplainedValue
    from ..report.model import Picture, Plan


class Changed(NamedTuple):
    """A value that the two plans treat differently."""

    value: int  # id in the problem
    name: str  # name of the operation that makes it
    kind: str
    type: str  # "f32[8,32]"
    location: str  # "model.py:12", "" if unknown
    bytes: int  # size of its storage
    before: str  # "save", "recompute", "offload", or "none" if the backward does not need it
    after: str
    saved_bytes: int  # change of the saved bytes
    time_ps: int  # change of the total time of its operation
    runs: tuple[int, int]  # number of runs that make the value, before and after


def _rows(plan: Plan) -> dict[int, ExplainedValue]:
    """Returns the explained values of a plan by storage."""
    return {row["storage"]: row for row in plan.explanation["values"]}


def _runs(plan: Plan) -> Counter[tuple[int, int]]:
    """Counts the runs that compute each (operation, storage). A run of an operation with members
    may make only some of its outputs. Copies to and from the host do not count."""
    ops = plan.parts.ops
    counts: Counter[tuple[int, int]] = Counter()
    for step in plan.core.steps:
        if step.action != "run":
            continue
        values = ops[step.op].outputs
        made = values if step.outputs is None else [values[k] for k in step.outputs]
        counts.update({(step.op, value.storage) for value in made})
    return counts


class Difference:
    """The difference between two plans: ``changes``, one per value, and ``totals``.

    ``print(difference)`` prints a summary; :meth:`report` writes a page with both memory timelines
    in one chart."""

    def __init__(self, before: Plan, after: Plan) -> None:
        for plan in (before, after):
            if not hasattr(plan, "explanation"):
                raise TypeError(f"a plan can only be compared with a cutback.Plan, not {plan!r}")
        ours, theirs = (plan.core.fingerprint for plan in (before, after))
        if ours != theirs:
            raise ValueError(
                f"the plans are for different problems (fingerprints {ours} and {theirs}); compare "
                "two plans of the same graph"
            )
        self.before, self.after = before, after
        self.changes = self._compare()

    def _compare(self) -> list[Changed]:
        rows = [_rows(plan) for plan in (self.before, self.after)]
        counts = [_runs(plan) for plan in (self.before, self.after)]
        changes: list[Changed] = []
        timed: set[int] = set()  # operations whose time is counted; they may have several outputs
        for storage in sorted(rows[0].keys() | rows[1].keys()):
            row = rows[0].get(storage) or rows[1][storage]
            before, after = (
                side[storage]["decision"] if storage in side else "none" for side in rows
            )
            runs = counts[0][row["op"], storage], counts[1][row["op"], storage]
            if before == after and runs[0] == runs[1]:
                continue
            kept = (after == "save") - (before == "save")
            again = 0 if row["op"] in timed else runs[1] - runs[0]
            timed.add(row["op"])
            changes.append(
                Changed(
                    value=row["value"],
                    name=row["name"],
                    kind=row["kind"],
                    type=row["type"],
                    location=row["at"],
                    bytes=row["bytes"],
                    before=before,
                    after=after,
                    saved_bytes=kept * row["bytes"],
                    time_ps=again * row["run_ps"],
                    runs=runs,
                )
            )
        return sorted(changes, key=lambda change: (-change.bytes, change.value))

    @property
    def totals(self) -> dict[str, tuple[int, int]]:
        """Bytes and picoseconds of both plans: ``arena_bytes``, ``live_bytes``, ``saved_bytes``,
        ``time_ps``."""
        before, after = self.before.core.numbers, self.after.core.numbers
        return {
            "arena_bytes": (before["arena_bytes"], after["arena_bytes"]),
            "live_bytes": (before["live_bytes"], after["live_bytes"]),
            "saved_bytes": (before["saved_bytes"], after["saved_bytes"]),
            "time_ps": (before["time_ps"], after["time_ps"]),
        }

    def to_json(self) -> str:
        """Returns the totals and changes as JSON."""
        return json.dumps(
            {
                "format": "cutback.difference",
                "version": 1,
                "fingerprint": self.before.core.fingerprint,
                "totals": self.totals,
                "changes": [change._asdict() for change in self.changes],
            }
        )

    def report(self, path: str | os.PathLike[str], title: str = "Cutback plans compared") -> None:
        """Writes a self-contained HTML page: totals, both timelines, and the changes."""
        from ..report.comparison import render_difference  # imported on demand, as below

        files.write_text(path, render_difference(*self._shown(), title))

    def _shown(self) -> tuple[dict[str, Any], Picture, Picture]:
        """Returns the arguments of the functions that render pages."""
        from ..report import read

        return json.loads(self.to_json()), read(self.before), read(self.after)

    def __str__(self) -> str:
        rows = []
        for key, (before, after) in self.totals.items():
            share = 100 * (after - before) / max(1, before)
            if key == "time_ps":
                shown = f"{before / 1e9:.3f} ms -> {after / 1e9:.3f} ms"
            else:
                shown = f"{budgets.text(before)} -> {budgets.text(after)}"
            rows.append(f"{key.split('_')[0]:6} {shown} ({share:+.2f} %)")
        kinds = Counter((change.before, change.after) for change in self.changes)
        sizes: Counter[tuple[str, str]] = Counter()
        for change in self.changes:
            sizes[change.before, change.after] += change.bytes
        for (old, new), n in kinds.most_common():
            what = f"{old} -> {new}" if old != new else f"{old}, a different number of times"
            rows.append(f"{n} values, {budgets.text(sizes[old, new])}: {what}")
        for change in self.changes[:20]:
            place = f" {change.location}" if change.location else ""
            name, kind = files.one_line(f"{change.name}{place}"), files.one_line(change.type)
            rows.append(
                f"  {kind:20} {budgets.text(change.bytes):>11}  {name}: "
                f"{change.before} -> {change.after}, runs {change.runs[0]} -> {change.runs[1]}"
            )
        if len(self.changes) > 20:
            rows.append(f"  and {len(self.changes) - 20} more")
        return "\n".join(rows)

    def __repr__(self) -> str:
        return f"<cutback.Difference {len(self.changes)} changes>"

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        from ..report.comparison import difference_fragment

        return {"text/plain": str(self), "text/html": difference_fragment(*self._shown())}
