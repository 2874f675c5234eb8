"""The figures of a profile: time and bytes of each op; uses, idle time and swap times of each
value."""

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
MOST_ROWS = 12  # rows of each table that print() shows


class Measured(NamedTuple):
    """The conditions under which a profile was measured."""

    link_bytes_per_s: float
    """Bandwidth of the link to the host, in one direction."""
    runs: int
    """Number of runs; times are their medians."""
    device: str
    """Row of the device table for the device of the step's tensors."""


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
        """Identifies the graph: a digest of ops and storages."""
        self.graphs = list(graphs) or [signature]
        """The signature of each graph; a step with graph breaks has several. Names of ops then end
        in ``@`` and the number of their graph."""

    # ---- answers ----------------------------------------------------------------------------

    @property
    def seconds(self) -> float:
        """Total time of all ops."""
        return sum(row.seconds for row in self.rows)

    def phase_seconds(self, phase: str) -> float:
        """Returns the time of the ops of one of ``PHASES``, in seconds."""
        return sum(row.seconds for row in self.rows if row.phase == phase)

    @property
    def peak(self) -> Peak:
        """The moment with the largest total; the first if several are equal."""
        at = max(range(len(self.rows)), key=lambda k: self.rows[k].live_bytes)
        alive = {category: 0 for category in CATEGORIES}
        for value in self.values:
            if value.made <= at <= value.last:
                alive[value.category] += value.bytes
        row = self.rows[at]
        return Peak(at, row.name, row.live_bytes, sum(alive.values()), alive)

    @property
    def peak_bytes(self) -> int:
        """Peak bytes that the step itself holds, without parameters and inputs, which belong to the
        caller."""
        return self.peak.bytes

    def timeline(self) -> list[int]:
        """Returns the bytes that the step itself holds while each row runs."""
        return [row.live_bytes for row in self.rows]

    def by_category(self) -> dict[str, list[int]]:
        """Returns the bytes of each category while each row runs."""
        n = len(self.rows)
        change = {category: [0] * (n + 1) for category in CATEGORIES}
        for value in self.values:
            change[value.category][max(0, value.made)] += value.bytes
            change[value.category][min(n, value.last + 1)] -= value.bytes
        return {category: list(accumulate(row[:n])) for category, row in change.items()}

    def activations(self) -> list[Value]:
        """Returns the values that the forward leaves for the backward, in program order."""
        return [v for v in self.values if v.category == "activation"]

    def times(self) -> dict[str, float]:
        """Returns seconds by op of forward and backward, the mean of its runs, in the form that
        ``profile=`` accepts."""
        found: dict[str, list[float]] = {}
        for row in self.rows:
            if row.phase != "optimizer" and row.kind not in _NO_OPS:
                found.setdefault(row.name, []).append(row.seconds)
        return {name: sum(seconds) / len(seconds) for name, seconds in found.items()}

    def times_of(self, signature: str) -> dict[str, float] | None:
        """Returns :meth:`times` of the graph with a signature, by the op names in that graph. If
        several graphs have the signature, returns means; if no graph has it, returns None."""
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
        """Returns the whole profile as a document of plain numbers and strings."""
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
        """Writes the profile as JSON; ``cutback plan --profile`` and ``profile=`` take the file's
        path."""
        write_text(path, json.dumps(self.to_dict(), indent=1))

    # ---- pictures and text --------------------------------------------------------------------

    def table(self, most: int | None = None) -> str:
        """Returns one line per op: time, bytes and, for the largest value that it makes, the
        category, uses (row numbers), inactive time and swap times in ms. ``most`` limits the lines
        to the most expensive ops."""
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
        """Returns (kind, ops, seconds, bytes made), the most expensive first."""
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
        """Returns a picture of memory by category over the time of the step."""
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
        from ...report.svg import fragment  # imported on demand, as above

        return {"text/plain": str(self), "text/html": fragment(self.svg())}


def _value_cells(value: Value) -> str:
    def span(uses: Uses | None) -> str:
        return "" if uses is None else f"{uses.first}-{uses.last}"

    return (
        f"{value.category[:11]:11} {span(value.forward):>11} {span(value.backward):>11} "
        f"{1e3 * value.inactive_seconds:9.3f} {1e3 * value.swap_out_seconds:8.3f} "
        f"{1e3 * value.swap_in_seconds:8.3f}"
    )


def load(path: str | os.PathLike[str]) -> Statistics:
    """Loads a profile from the file ``path``, written by ``profile.save``. The result has the
    figures, but no graph.

    Raises:
        OSError: the file cannot be read.
        ValueError: the file holds something else.

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
    """Returns the argument ``profile=``. If it is the path of a whole profile, loads that."""
    if not isinstance(profile, (str, os.PathLike)):
        return profile
    try:
        return load(profile)
    except ValueError:
        return profile  # seconds by op, or something else, which the reader refuses


# ---- comparing graphs ---------------------------------------------------------------------


def signature(problem: Problem) -> str:
    """Returns a digest of a problem's ops and storages, without times, policies and source
    lines."""
    ops = [
        (op.name, op.kind, op.inputs, [value.storage for value in op.outputs]) for op in problem.ops
    ]
    text = json.dumps([ops, [storage.bytes for storage in problem.storages]])
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def check_same(expected: str, problem: Problem, what: str) -> None:
    """Checks that the graph of ``what`` is the profiled one. Raises ValueError if it is not."""
    found = signature(problem)
    if found != expected:
        raise ValueError(
            f"{what} belongs to another graph (signature {found}, {len(problem.ops)} ops) than the "
            f"profile ({expected}): the model, a shape, a dtype, the training mode or the "
            "decompositions (Inductor's) differ. Profile this one"
        )


def check_covered(problem: Problem) -> None:
    """Checks that every op has a measured time. Raises ValueError if an op has no time, because
    modelled and measured times have different scales.
    """
    for op in problem.ops:
        if op.time_ps is None and not op.flags & {"view", "placeholder"}:
            raise ValueError(
                f"profile: there is no time for {op.name!r} ({op.kind}); it belongs to "
                "another graph. Profile this one"
            )
