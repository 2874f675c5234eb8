"""Run every benchmark, then write RESULTS.md from the rows.

python benchmarks/run.py [--only NAME ...] [--report]
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
    """Benchmarks by name."""
    return {path.stem.removeprefix("bench_"): path for path in sorted(HERE.rglob("bench_*.py"))}


def cell(value: Any) -> str:
    """A number as people read it, or the two of an interval."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.3g}" if abs(value) < 10 else f"{value:.1f}"
    if isinstance(value, (list, tuple)):
        return " .. ".join(cell(end) for end in value)
    return "" if value is None else str(value)


def table(rows: list[dict[str, Any]]) -> list[str]:
    """Markdown, one column for every key that occurs."""
    keys = list(dict.fromkeys(key for row in rows for key in row))
    # a list of more than two is a curve, which its picture shows
    keys = [k for k in keys if not any(isinstance(r.get(k), list) and len(r[k]) > 2 for r in rows)]
    lines = ["| " + " | ".join(keys) + " |", "|" + "---|" * len(keys)]
    return lines + ["| " + " | ".join(cell(row.get(key)) for key in keys) + " |" for row in rows]


def report() -> None:
    """RESULTS.md from results/*.json: nothing in it is written by hand."""
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
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--only", nargs="*", choices=sorted(scripts()), help="benchmarks to run (default: all)"
    )
    parser.add_argument("--report", action="store_true", help="only write RESULTS.md")
    args = parser.parse_args()
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
