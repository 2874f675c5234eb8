"""Run every benchmark, then write RESULTS.md from the rows.

python benchmarks/run.py [--only NAME ...] [--report]
python benchmarks/run.py --ages     lists rows that are older than the code they measure
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent


def scripts() -> dict[str, Path]:
    """Returns the benchmarks by name."""
    return {path.stem.removeprefix("bench_"): path for path in sorted(HERE.rglob("bench_*.py"))}


EVERYTHING = ("csrc", "python")
# The code that results measure, by prefixes of their names; others measure everything.
MEASURED = {
    "cpu_": ("csrc/exec/cpu", "csrc/fuse", "csrc/lower", "csrc/micro"),
    "examples": ("csrc", "python/cutback/frontend", "python/cutback/nn"),
    "gpu_bridge": ("csrc/plan", "python/cutback/torch"),
    "gpu_": ("csrc/exec/cuda", "csrc/fuse", "csrc/lower", "csrc/micro", "cuda"),
    "host": ("python/cutback/frontend", "python/cutback/run", "python/native", "csrc/api_step.c"),
    "import": ("python/cutback/__init__.py", "python/native", "CMakeLists.txt"),
    "models": ("csrc", "python/cutback/frontend", "python/cutback/run"),
    "optim": (
        "csrc/optim",
        "csrc/exec/cpu",
        "python/cutback/optim",
        "python/cutback/torch/optim.py",
    ),
    "planner_": ("csrc/plan", "csrc/flow"),
    "pytorch_": ("csrc/plan", "python/cutback/torch"),
    "step_memory": ("csrc/plan", "python/cutback/torch"),
    "torch_native": (
        "csrc/exec/cpu",
        "csrc/fuse",
        "csrc/lower",
        "csrc/micro",
        "python/cutback/torch",
    ),
    "torch_": ("csrc/plan", "python/cutback/torch"),
}


def ages() -> None:
    """Prints, for each file of results, how many commits have changed the measured code since."""
    for path in sorted((HERE / "results").glob("*.json")):
        document = json.loads(path.read_text())
        name, command = path.stem, document["command"]
        code = next((c for begin, c in MEASURED.items() if name.startswith(begin)), EVERYTHING)
        at = document["commit"].split(",")[0].split(" ")[0]
        counted = subprocess.run(
            ["git", "rev-list", "--count", f"{at.rstrip('+')}..HEAD", "--", *code],
            cwd=HERE.parent, capture_output=True, text=True, check=False,
        )  # fmt: skip
        since = counted.stdout.strip() or "?"
        notes = ["dirty"] if at.endswith("+") else []
        notes += [] if "isa" in document["machine"] or name.startswith("gpu_") else ["no isa"]
        print(f"{name:26} {since:>4} commits since {at:12} {', '.join(notes):14} {command}")


def cell(value: Any) -> str:
    """Formats a number, or the two numbers of an interval, for readers."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.3g}" if abs(value) < 10 else f"{value:.1f}"
    if isinstance(value, (list, tuple)):
        return " .. ".join(cell(end) for end in value)
    return "" if value is None else str(value)


def table(rows: list[dict[str, Any]]) -> list[str]:
    """Returns a Markdown table with one column for every key that occurs."""
    keys = list(dict.fromkeys(key for row in rows for key in row))
    # a list of more than two numbers is a curve, shown in a picture
    keys = [k for k in keys if not any(isinstance(r.get(k), list) and len(r[k]) > 2 for r in rows)]
    lines = ["| " + " | ".join(keys) + " |", "|" + "---|" * len(keys)]
    return lines + ["| " + " | ".join(cell(row.get(key)) for key in keys) + " |" for row in rows]


def report() -> None:
    """Writes RESULTS.md from results/*.json: nothing in it is written by hand."""
    lines = [
        "# Results",
        "",
        "Written by `python benchmarks/run.py` from `benchmarks/results/*.json`.",
        "",
    ]
    for path in sorted((HERE / "results").glob("*.json")):
        document = json.loads(path.read_text())
        machine, versions = document["machine"], document["versions"]
        lines += [
            f"## {document['benchmark']}",
            "",
            f"`{document['command']}`, {document['date']}, commit {document['commit']}",
        ]
        isa = [machine["isa"]] if "isa" in machine else []
        place = [machine["cpu"], *isa, f"{machine['cores']} cores", machine["system"]]
        lines += [f"on {', '.join(place)};"]
        lines += [", ".join(f"{name} {version}" for name, version in versions.items()) + ".", ""]
        if path.with_suffix(".svg").exists():
            lines += [f"![{path.stem}](results/{path.stem}.svg)", ""]
        lines += [*table(document["rows"]), ""]
    (HERE / "RESULTS.md").write_text("\n".join(lines))
    print(f"wrote {HERE / 'RESULTS.md'}")


def main() -> int:
    """Runs the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--only", nargs="*", choices=sorted(scripts()), help="benchmarks to run (default: all)"
    )
    parser.add_argument("--report", action="store_true", help="only write RESULTS.md")
    parser.add_argument("--ages", action="store_true", help="only list rows older than the code")
    args = parser.parse_args()
    if args.ages:
        ages()
        return 0
    failed = []
    if not args.report:
        for name, path in scripts().items():
            if args.only is None or name in args.only:
                failed += (
                    [name]
                    if subprocess.run([sys.executable, str(path)], check=False).returncode
                    else []
                )
    report()
    if failed:
        print(f"failed: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
