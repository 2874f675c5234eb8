"""What a profile says: per op time and bytes, per value its uses, idle time and swap times."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Sequence
from itertools import accumulate
from typing import Any, NamedTuple

from ...budgets import text as human
from ...files import read_text, write_text
from ...problem import Problem
from .records import CATEGORIES, MOVES, PHASES, Peak, Row, Uses, Value

_NO_OPS = ("tangent", "copy_back", "accumulate_grad", *MOVES.values())

FORMAT, VERSION = "cutback.times", 1
MOST_ROWS = 12  # of each table that print() shows


class Measured(NamedTuple):
    """How the figures of a profile were measured."""

    link_bytes_per_s: float
    runs: int
    device: str
    """Row of the device table that fits the step's tensors."""


class Statistics:
    """The figures of a profile, from :func:`cutback.torch.profile` or a file."""

    def __init__(
        self,
        rows: list[Row],
        values: list[Value],
        measured: Measured,
        signature: str,
        graphs: Sequence[str] = (),
    ) -> None:
        self.rows = rows
        self.values = values
        self.link_bytes_per_s, self.runs, self.device = measured
        self.signature = signature
        """Tells graphs apart: a digest of ops and storages."""
        self.graphs = list(graphs) or [signature]
        """The same of each graph; a step with graph breaks has several. Then names of ops end in
        ``@`` and the number of their graph."""

    # ---- answers ----------------------------------------------------------------------------

    @property
    def seconds(self) -> float:
        """Time of all ops together."""
        return sum(row.seconds for row in self.rows)

    def phase_seconds(self, phase: str) -> float:
        """Time of the ops of one of ``PHASES``."""
        return sum(row.seconds for row in self.rows if row.phase == phase)

    @property
    def peak(self) -> Peak:
        """The largest total; the first of equals."""
        at = max(range(len(self.rows)), key=lambda k: self.rows[k].live_bytes)
        alive = {category: 0 for category in CATEGORIES}
        for value in self.values:
            if value.made <= at <= value.last:
                alive[value.category] += value.bytes
        row = self.rows[at]
        return Peak(at, row.name, row.live_bytes, sum(alive.values()), alive)

    @property
    def peak_bytes(self) -> int:
        """Most bytes that the step itself holds; parameters and inputs are its caller's."""
        return self.peak.bytes

    def timeline(self) -> list[int]:
        """Bytes that the step itself holds while each row runs."""
        return [row.live_bytes for row in self.rows]

    def by_category(self) -> dict[str, list[int]]:
        """Bytes while each row runs, of each category."""
        n = len(self.rows)
        change = {category: [0] * (n + 1) for category in CATEGORIES}
        for value in self.values:
            change[value.category][max(0, value.made)] += value.bytes
            change[value.category][min(n, value.last + 1)] -= value.bytes
        return {category: list(accumulate(row[:n])) for category, row in change.items()}

    def activations(self) -> list[Value]:
        """What the forward leaves for the backward, in the order of the program."""
        return [v for v in self.values if v.category == "activation"]

    def times(self) -> dict[str, float]:
        """Seconds by op of forward and backward, the mean of its runs: what ``profile=`` takes."""
        found: dict[str, list[float]] = {}
        for row in self.rows:
            if row.phase != "optimizer" and row.kind not in _NO_OPS:
                found.setdefault(row.name, []).append(row.seconds)
        return {name: sum(seconds) / len(seconds) for name, seconds in found.items()}

    def times_of(self, signature: str) -> dict[str, float] | None:
        """:meth:`times` of the graph with a signature, by the names that ops have there; of several
        such graphs, the means. None: no graph has it."""
        if len(self.graphs) == 1:
            return self.times() if signature == self.graphs[0] else None
        mine = {str(g) for g, other in enumerate(self.graphs) if other == signature}
        found: dict[str, list[float]] = {}
        for name, seconds in self.times().items():
            op, _, graph = name.rpartition("@")
            if graph in mine:
                found.setdefault(op, []).append(seconds)
        means = {op: sum(seconds) / len(seconds) for op, seconds in found.items()}
        return means if mine else None

    # ---- files ------------------------------------------------------------------------------

    def to_dict(self) -> dict[str, Any]:
        """The whole profile as a document of plain numbers and strings."""
        peak = self.peak
        return {
            "format": FORMAT,
            "version": VERSION,
            "seconds": self.times(),
            "signature": self.signature,
            "graphs": self.graphs,
            "device": self.device,
            "runs": self.runs,
            "link_bytes_per_s": self.link_bytes_per_s,
            "peak": peak._asdict(),
            "rows": [row._asdict() for row in self.rows],
            "values": [
                {
                    **value._asdict(),
                    "forward": value.forward and list(value.forward),
                    "backward": value.backward and list(value.backward),
                }
                for value in self.values
            ],
        }

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes it as JSON; ``cutback plan --profile`` and ``profile=`` take the file's path."""
        write_text(path, json.dumps(self.to_dict(), indent=1))

    # ---- pictures and text --------------------------------------------------------------------

    def table(self, most: int | None = None) -> str:
        """One line an op: time, bytes, and of the largest value that it makes category, uses (row
        numbers), inactive time and swap times in ms. ``most``: no more lines than that, the dearest
        ops."""
        largest: dict[int, Value] = {}
        for value in self.values:
            if value.made >= 0 and value.bytes > getattr(largest.get(value.made), "bytes", -1):
                largest[value.made] = value
        shown: Iterable[int] = range(len(self.rows))
        if most is not None:
            shown = sorted(sorted(shown, key=lambda k: -self.rows[k].seconds)[:most])
        lines = [
            f"{'row':>5} {'phase':9} {'op':28} {'ms':>9} {'made':>11} {'live':>11} "
            f"{'category':11} {'forward':>11} {'backward':>11} {'idle ms':>9} {'out ms':>8} "
            f"{'in ms':>8}"
        ]
        for k in shown:
            row, made = self.rows[k], largest.get(k)
            start = (
                f"{k:5} {row.phase:9} {row.name[:28]:28} {1e3 * row.seconds:9.3f} "
                f"{human(row.bytes):>11} {human(row.live_bytes):>11}"
            )
            lines.append(start if made is None else f"{start} {_value_cells(made)}")
        return "\n".join(lines)

    def by_kind(self) -> list[tuple[str, int, float, int]]:
        """(kind, ops, seconds, bytes made), the dearest first."""
        found: dict[str, tuple[int, float, int]] = {}
        for row in self.rows:
            n, seconds, size = found.get(row.kind, (0, 0.0, 0))
            found[row.kind] = n + 1, seconds + row.seconds, size + row.bytes
        rows = [(kind, *figures) for kind, figures in found.items()]
        return sorted(rows, key=lambda row: -row[2])

    def __str__(self) -> str:
        peak = self.peak
        parts = ", ".join(
            f"{phase} {1e3 * self.phase_seconds(phase):.2f} ms"
            for phase in PHASES
            if any(row.phase == phase for row in self.rows)
        )
        graphs = f" in {len(self.graphs)} graphs" if len(self.graphs) > 1 else ""
        lines = [
            f"{len(self.rows)} ops{graphs}, {1e3 * self.seconds:.2f} ms ({parts}), medians of "
            f"{self.runs}",
            f"peak {human(peak.total_bytes)} at {peak.name}, of which the step itself holds "
            f"{human(peak.bytes)}",
        ]
        for category, size in peak.by_category.items():
            if size:
                lines.append(
                    f"  {category:16} {human(size):>12} {size / max(1, peak.total_bytes):7.1%}"
                )
        lines += ["", f"{'kind':44} {'ops':>5} {'ms':>9} {'share':>7} {'made':>12}"]
        total = self.seconds or 1.0
        for kind, n, seconds, size in self.by_kind()[:MOST_ROWS]:
            lines.append(
                f"{kind[:44]:44} {n:5} {1e3 * seconds:9.3f} {seconds / total:7.1%} "
                f"{human(size):>12}"
            )
        values = sorted(self.activations(), key=lambda v: -v.bytes)
        kept = sum(v.bytes for v in values)
        lines += ["", f"{len(values)} activations, {human(kept)}; the largest:"]
        lines.append(
            f"{'made by':28} {'type':20} {'bytes':>11} {'category':11} {'forward':>11} "
            f"{'backward':>11} {'idle ms':>9} {'out ms':>8} {'in ms':>8}"
        )
        for value in values[:MOST_ROWS]:
            lines.append(
                f"{value.name[:28]:28} {value.type[:20]:20} {human(value.bytes):>11} "
                f"{_value_cells(value)}"
            )
        return "\n".join(lines)

    def svg(self) -> str:
        """Memory by category over the time of the step, as a picture."""
        from .usage import usage_svg

        phases = [(phase, sum(r.phase == phase for r in self.rows)) for phase in PHASES]
        return usage_svg(
            [(row.name, row.seconds) for row in self.rows],
            {name: row for name, row in self.by_category().items() if any(row)},
            [(phase, n) for phase, n in phases if n],
        )

    def report(self, path: str | os.PathLike[str], title: str = "Cutback profile") -> None:
        """Writes a self-contained HTML page: the picture and the tables."""
        from .usage import usage_page

        picture = self.svg()
        write_text(path, usage_page(title, picture, self.peak, self.rows, self.values, self.runs))

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        return {"text/plain": str(self), "text/html": self.svg()}


def _value_cells(value: Value) -> str:
    def span(uses: Uses | None) -> str:
        return "" if uses is None else f"{uses.first}-{uses.last}"

    return (
        f"{value.category[:11]:11} {span(value.forward):>11} {span(value.backward):>11} "
        f"{1e3 * value.inactive_seconds:9.3f} {1e3 * value.swap_out_seconds:8.3f} "
        f"{1e3 * value.swap_in_seconds:8.3f}"
    )


def load(path: str | os.PathLike[str]) -> Statistics:
    """A profile from a file that ``profile.save`` wrote; it has the figures, and no graph.

    Raises:
        OSError: the file cannot be read. ValueError: it holds something else.

    >>> cutback.torch.profile(model, x).save("profile.json")
    >>> measured = cutback.torch.load_profile("profile.json")
    """
    document = json.loads(read_text(path))
    where = os.fspath(path)
    if not isinstance(document, dict) or document.get("format") != FORMAT or "rows" not in document:
        raise ValueError(f"{where}: not a profile of cutback.torch")
    if document.get("version") != VERSION:
        raise ValueError(f"{where}: version {document.get('version')!r}, not {VERSION}")
    try:
        rows = [Row(**row) for row in document["rows"]]
        values = [
            Value(**{
                **value,
                "forward": value["forward"] and Uses(*value["forward"]),
                "backward": value["backward"] and Uses(*value["backward"]),
            })
            for value in document["values"]
        ]  # fmt: skip
        measured = Measured(document["link_bytes_per_s"], document["runs"], document["device"])
        graphs = document.get("graphs", ())
        return Statistics(rows, values, measured, document["signature"], graphs)
    except (KeyError, TypeError) as error:
        raise ValueError(f"{where}: a damaged profile ({error})") from None


def known(profile: Any) -> Any:
    """What ``profile=`` was given; the path of a whole profile as that profile."""
    if not isinstance(profile, (str, os.PathLike)):
        return profile
    try:
        return load(profile)
    except ValueError:
        return profile  # seconds by op, or nothing of the kind: who reads it says so


# ---- is it the same graph? --------------------------------------------------------------------


def signature(problem: Problem) -> str:
    """A digest of a problem's ops and storages; times, policies and lines do not count."""
    ops = [
        (op.name, op.kind, op.inputs, [value.storage for value in op.outputs]) for op in problem.ops
    ]
    text = json.dumps([ops, [storage.bytes for storage in problem.storages]])
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def check_same(expected: str, problem: Problem, what: str) -> None:
    """Is the graph that ``what`` is of the one that was profiled?

    Raises:
        ValueError: it is not.
    """
    found = signature(problem)
    if found != expected:
        raise ValueError(
            f"{what} is of another graph (signature {found}, {len(problem.ops)} ops) than the "
            f"profile ({expected}): the model, a shape, a dtype, the training mode or the "
            "decompositions (Inductor's) differ. Profile this one"
        )


def check_covered(problem: Problem) -> None:
    """Has every op a measured time?

    Raises:
        ValueError: one has none; modelled and measured times would be of two scales.
    """
    for op in problem.ops:
        if op.time_ps is None and not op.flags & {"view", "placeholder"}:
            raise ValueError(
                f"profile: there is no time for {op.name!r} ({op.kind}); it is of another "
                "graph. Profile this one"
            )
