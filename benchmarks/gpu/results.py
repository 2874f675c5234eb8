"""Writes benchmarks/results/gpu_*.json, RESULTS.md and the tables of docs/cuda.md from the results
of `make gpu`.

python benchmarks/gpu/results.py ARCHIVE_OR_FOLDER [--any] [--results DIR] [--docs FILE]

ARCHIVE_OR_FOLDER: gpu.tgz, or build/gpu, or the state.json in it. Each card and kind of row has its
own file, and no table mixes cards. Results of the stand-in, of the null driver and of a CPU are
refused unless `--any` is given, which is for tests.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
import sys
import tarfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path[:0] = [str(HERE), str(ROOT / "benchmarks")]

from prediction import Rates

import run

NOT_CARDS = ("stand-in", "null driver", "CPU")
BEGIN, END = "<!-- results of GPUs: begin -->", "<!-- results of GPUs: end -->"
NONE = "No figure of a GPU is known yet: none of this has run on one."
Table = list[dict[str, Any]]
Record = dict[str, Any]


# ---- reading -------------------------------------------------------------------------------------


def read_state(path: Path) -> dict[str, Any]:
    """Returns the state.json of an archive or a folder.

    Raises:
        OSError, KeyError: if there is none. ValueError: if it is damaged.
    """
    if path.is_dir():
        path = path / "state.json"
    if path.suffix == ".json":
        text = path.read_text(encoding="utf-8")
    else:
        with tarfile.open(path) as archive:
            file = archive.extractfile("state.json")
            assert file is not None
            text = file.read().decode()
    state: dict[str, Any] = json.loads(text)
    return state


def is_card(name: str | None) -> bool:
    """True if it is the name of a GPU."""
    return bool(name) and not str(name).startswith(NOT_CARDS)


def newest(state: dict[str, Any], stage: str, card: str) -> Iterator[tuple[str, Record]]:
    """Yields (item, record) with the newest value that was measured on the card."""
    for item, records in state["results"].get(stage, {}).items():
        for record in reversed(records):
            value = record.get("value")
            if isinstance(value, dict) and card_of(record) == card and "left out" not in value:
                yield item, record
                break


def card_of(record: Record) -> str | None:
    """Returns the card that a value names, otherwise that of the run."""
    value = record.get("value")
    named = value.get("gpu") if isinstance(value, dict) else None
    return named or record.get("card")


def cards(state: dict[str, Any]) -> list[str]:
    """Returns all cards with results, in the order in which they appeared."""
    found: dict[str, None] = {}
    for stage in ("card", "rows", "compile", "kernels", "bridge", "models"):
        for records in state["results"].get(stage, {}).values():
            found |= {c: None for record in records if (c := card_of(record))}
    return list(found)


# ---- rows ----------------------------------------------------------------------------------------


class Results:
    """Tables of one card."""

    def __init__(self, state: dict[str, Any], card: str) -> None:
        self.state, self.card = state, card
        self.used: list[Record] = []
        self.rates: Rates | None = None
        for _, record in newest(state, "card", card):
            try:
                self.rates = Rates(record["value"])
            except KeyError:
                continue

    def _values(self, stage: str) -> Iterator[tuple[str, dict[str, Any]]]:
        for item, record in newest(self.state, stage, self.card):
            self.used.append(record)
            yield item, record["value"] | {"commit": str(record.get("commit")).split(" ")[0]}

    def card_rows(self) -> Table:
        """Returns the card's limits."""
        keys = (
            "copy GB/s", "two reads, one write GB/s", "torch copy GB/s", "launch gap us",
            "host us a launch", "pinned to device GB/s", "pinned to host GB/s",
            "pageable to device GB/s", "pageable to host GB/s", "f32 products TFLOP/s",
            "torch f32 products TFLOP/s", "torch TF32 products TFLOP/s", "bf16 products TFLOP/s",
            "torch bf16 products TFLOP/s",
        )  # fmt: skip
        return [
            {"what": key, "measured": value[key], "card": self.card}
            for _, value in self._values("card")
            for key in keys
            if key in value
        ]

    def kernel_rows(self) -> Table:
        """Returns steps compared with PyTorch. If a row was measured with and without
        torch.compile, the one with it is used."""
        found: dict[tuple[str, str], dict[str, Any]] = {}
        for stage in ("rows", "compile"):
            for _, value in self._values(stage):
                for row in value.get("rows", []):
                    key = value["what"], row["dtype"]
                    if key not in found or "compiled ms" in row:
                        found[key] = row | {"commit": value["commit"]}
        return [self._kernel_row(what, row) for (what, _), row in found.items()]

    def _kernel_row(self, what: str, row: dict[str, Any]) -> dict[str, Any]:
        others = ("eager", "compiled", "fused", "foreach")
        if "ours ms" not in row:
            return {
                "row": what,
                "dtype": row["dtype"],
                "note": row.get("failed"),
                "commit": row["commit"],
                "card": self.card,
            }
        table = {"row": what, "dtype": row["dtype"], "MB": row["bytes"] / 1e6}
        table |= {"ours ms": row["ours ms"], "host ms": row["ours host ms"]}
        table["GB/s"] = row["ours GB/s"]
        if predicted := self._predicted_ms(row):
            table |= {"predicted ms": predicted, "time / predicted": row["ours ms"] / predicted}
        table |= {f"{o} ms": row.get(f"{o} ms") for o in others}
        table |= {f"{o} / ours": row.get(f"{o} / ours") for o in others}
        about = {"note": row.get("failed"), "commit": row["commit"], "card": self.card}
        return table | about

    def _predicted_ms(self, row: dict[str, Any]) -> float | None:
        if self.rates is None:
            return None
        if "groups" in row:
            return sum(self.rates.group_us(group) for group in row["groups"]) / 1e3
        return self.rates.us(row["bytes"], {}, len(row.get("update", []))) / 1e3

    def group_rows(self) -> Table:
        """Returns single kernels: those of stage kernels, and the groups of the other rows with
        times from events."""
        found: Table = []
        seen = set()
        for _, value in self._values("kernels"):
            if "groups" in value:  # otherwise it was killed before
                seen.add((value["what"], value["dtype"]))
            about = {"commit": value["commit"], "card": self.card}
            for group in alike(value.get("groups", [])):
                found += self._launch_rows(value["what"], value["dtype"], value["by"], group, about)
        for item, value in self._values("rows"):
            about = {"commit": value["commit"], "card": self.card}
            for row in value.get("rows", []):
                if (item, row["dtype"]) not in seen:
                    timed = [
                        group | ({"us": 1e3 * group["ms"]} if "ms" in group else {})
                        for group in row.get("groups", [])
                    ]
                    for group in alike(timed):
                        found += self._launch_rows(item, row["dtype"], "events", group, about)
        return found

    def _launch_rows(
        self, what: str, dtype: str, by: str, group: dict[str, Any], about: dict[str, str]
    ) -> Iterator[Any]:
        """Yields a row for each launch; the first has the figures of the whole group."""
        whole = {"ops": group["ops"], "groups": group["alike"], "launches": len(group["launches"])}
        whole |= {"MB": group["bytes"] / 1e6, "us": group.get("us")}
        if self.rates is not None and group["bytes"]:
            whole["predicted us"] = self.rates.group_us(group)
            if "us" in group:
                whole["time / predicted"] = group["us"] / whole["predicted us"]
        for launch in group["launches"]:
            row = {"row": what, "dtype": dtype, "by": by, **dict.fromkeys(WHOLE), **whole}
            row["kernel"] = launch.get("kernel", launch.get("call"))
            row["grid"] = "x".join(map(str, launch["grid"])) if "grid" in launch else None
            row |= {name: launch.get(key) for key, name in LAUNCH.items()}
            if "instructions" in launch:
                row["M instructions"] = launch["instructions"] / 1e6
            yield row | about
            whole = {}

    def bridge_rows(self) -> Table:
        """Returns PyTorch models under budgets."""
        found: Table = []
        for stage in ("bridge", "models"):
            for _, value in self._values(stage):
                eager = next((row for row in value.get("rows", []) if row["row"] == "eager"), {})
                rows = [
                    self._bridge_row(value["what"], row, eager) for row in value.get("rows", [])
                ]
                # eager mode is measured again
                known = {(row["model"], row["row"]) for row in found}
                found += [row for row in rows if (row["model"], row["row"]) not in known]
        return found

    def _bridge_row(self, item: str, row: dict[str, Any], eager: dict[str, Any]) -> dict[str, Any]:
        mib = lambda key: row[key] / 2**20 if row.get(key) else None  # noqa: E731
        over = lambda key: row[key] / eager[key] if row.get(key) and eager.get(key) else None  # noqa: E731
        return {
            "model": item, "row": row["row"], "ms": row.get("ms"), "host ms": row.get("host ms"),
            "peak MiB": mib("peak"), "reserved MiB": mib("reserved"), "plan MiB": mib("plan"),
            "peak / plan": row.get("peak / plan"), "time / eager": over("ms"),
            "peak / eager": over("peak"), "first s": row.get("first s"),
            "gradients": _bits(row.get("apart")), "note": row.get("failed") or row.get("left out"),
            "card": self.card,
        }  # fmt: skip


WHOLE = ("ops", "groups", "launches", "MB", "us", "predicted us", "time / predicted")
LAUNCH = {
    "threads": "threads", "registers": "registers", "local_bytes": "local",
    "shared_bytes": "shared",
    "blocks_per_multiprocessor": "blocks / SM", "us": "launch us", "dram bytes": "dram bytes",
    "warps %": "warps %",
}  # fmt: skip
KINDS: dict[str, tuple[str, Callable[[Results], Table]]] = {
    "gpu_card": ("Rates of the card", Results.card_rows),
    "gpu_rows": ("Steps compared with PyTorch", Results.kernel_rows),
    "gpu_kernels": ("Kernels", Results.group_rows),
    "gpu_bridge": ("PyTorch models under budgets", Results.bridge_rows),
}


def alike(groups: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Returns one group for all that launch the same kernels on the same grids: ``alike`` of them,
    with the means of their figures."""
    found: dict[str, list[dict[str, Any]]] = {}
    for group in groups:
        launches = [[launch.get(key) for key in SHAPE] for launch in group["launches"]]
        found.setdefault(json.dumps([group["ops"], launches]), []).append(group)
    return [_mean(same) for same in found.values()]


SHAPE = ("kernel", "call", "grid", "threads")
FIGURES = ("us", "bytes", "dram bytes", "instructions", "warps %")


def _mean(same: list[dict[str, Any]]) -> dict[str, Any]:
    launches = zip(*(group["launches"] for group in same), strict=True)
    group = same[0] | _means(same)
    return group | {"alike": len(same), "launches": [each[0] | _means(each) for each in launches]}


def _means(same: Sequence[dict[str, Any]]) -> dict[str, float]:
    return {
        key: statistics.fmean(one[key] for one in same)
        for key in FIGURES
        if all(key in one for one in same)
    }


def _bits(apart: float | None) -> str | None:
    if apart is None:
        return None
    return "equal" if apart == 0 else f"{apart:.1e}"


# ---- writing -------------------------------------------------------------------------------------


def document(name: str, rows: Table, results: Results) -> dict[str, Any]:
    """Returns a file of benchmarks/results: the machine, the versions and the rows."""
    number = max(record.get("run", 0) for record in results.used)
    ran = results.state["runs"][number]
    machine = (ran.get("facts") or {}).get("machine") or {}
    commits = sorted({str(record.get("commit")) for record in results.used})
    value = results.used[-1]["value"]
    versions = {"python": str(machine.get("python", "?")).split(" ")[0]}
    versions |= {key: str(value[key]) for key in ("cutback", "torch") if key in value}
    return {
        "benchmark": name,
        "command": "make gpu",
        "date": str(ran.get("start", "?"))[:10],
        "commit": ", ".join(commits),
        "machine": {
            "cpu": results.card,
            "cores": machine.get("cores", "?"),
            "system": machine.get("system", "?"),
        },
        "versions": versions,
        "rows": rows,
    }


def slug(card: str) -> str:
    """Returns a card's name as part of a file name."""
    return re.sub(r"[^a-z0-9]+", "_", card.lower()).strip("_")


def columns(rows: Table) -> Table:
    """Returns rows without empty columns, without the card, which is in the heading, and without a
    commit shared by all."""
    without = {"card"} | ({"commit"} if len({row.get("commit") for row in rows}) == 1 else set())
    keys = [key for key in dict.fromkeys(k for row in rows for k in row) if key not in without]
    kept = [key for key in keys if any(row.get(key) is not None for row in rows)]
    return [{key: row.get(key) for key in kept} for row in rows]


def tables(found: dict[str, dict[str, Table]]) -> str:
    """Returns the text between the markers of docs/cuda.md: card by card."""
    lines: list[str] = []
    for card, kinds in found.items():
        lines += [f"### {card}", ""]
        for name, rows in kinds.items():
            if name == "gpu_kernels":  # one line for each group; the file has all launches
                rows = [row for row in rows if row["ops"]]
            lines += [f"{KINDS[name][0]}:", "", *run.table(columns(rows)), ""]
    return "\n".join(lines).strip() or NONE


def kept(folder: Path) -> dict[str, dict[str, Table]]:
    """Returns the rows in a folder of results by card, in the form for ``tables``."""
    found: dict[str, dict[str, Table]] = {}
    for kind in KINDS:
        for path in sorted(folder.glob(f"{kind}_*.json")):
            rows: Table = json.loads(path.read_text(encoding="utf-8"))["rows"]
            found.setdefault(rows[0]["card"], {})[kind] = rows
    return found


def write_docs(path: Path, text: str) -> None:
    """Replaces the text between the markers.

    Raises:
        ValueError: if the file does not have both.
    """
    before, begin, rest = path.read_text(encoding="utf-8").partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (begin and end):
        raise ValueError(f"{path} does not have the lines {BEGIN} and {END}")
    path.write_text(f"{before}{BEGIN}\n\n{text}\n\n{END}{after}", encoding="utf-8")


def write(state: dict[str, Any], names: list[str], folder: Path, docs: Path) -> list[Path]:
    """Writes the results of these cards, and the tables of everything in the folder; returns the
    files."""
    written = []
    folder.mkdir(parents=True, exist_ok=True)
    for card in names:
        for name, (_, rows_of) in KINDS.items():
            results = Results(state, card)
            rows = rows_of(results)
            if not rows:
                continue
            path = folder / f"{name}_{slug(card)}.json"
            made = document(path.stem, rows, results)
            if name == "gpu_card":  # for device= of cutback.compile, plan and the like
                made["device"] = results.used[-1]["value"].get("device")
            path.write_text(json.dumps(made, indent=1) + "\n", encoding="utf-8")
            written.append(path)
    if written:
        write_docs(docs, tables(kept(folder)))
    return written


def main() -> int:
    """Runs the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("source", type=Path, metavar="ARCHIVE_OR_FOLDER")
    parser.add_argument("--any", action="store_true", help="also what is no GPU, for tests")
    parser.add_argument("--results", type=Path, default=ROOT / "benchmarks" / "results")
    parser.add_argument("--docs", type=Path, default=ROOT / "docs" / "cuda.md")
    args = parser.parse_args()
    try:
        state = read_state(args.source)
    except (OSError, KeyError, ValueError, tarfile.TarError) as error:
        print(f"{args.source}: no results of `make gpu`: {error}", file=sys.stderr)
        return 1
    there = cards(state)
    names = [card for card in there if args.any or is_card(card)]
    if not names:
        said = ", ".join(there) or "none"
        print(f"{args.source}: no results of a GPU; what ran it: {said}", file=sys.stderr)
        return 1
    written = write(state, names, args.results, args.docs)
    for path in written:
        print(f"wrote {path}")
    if args.results == ROOT / "benchmarks" / "results":
        run.report()
    return 0 if written else 1


if __name__ == "__main__":
    sys.exit(main())
