"""Compare two result files row by row: python benchmarks/compare.py OLD.json NEW.json

Rows match if all their strings are equal; the ratio is new median / old median.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any


def key(row: dict[str, Any]) -> tuple[tuple[str, str], ...]:
    """Returns the key of a row: its strings."""
    return tuple(sorted((name, value) for name, value in row.items() if isinstance(value, str)))


def main() -> None:
    """Runs the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("old", type=Path)
    parser.add_argument("new", type=Path)
    args = parser.parse_args()
    old = {key(row): row for row in json.loads(args.old.read_text())["rows"]}
    for row in json.loads(args.new.read_text())["rows"]:
        before = old.get(key(row))
        name = ", ".join(value for _, value in key(row))
        if before is None:
            print(f"{name}: {row.get('median'):.4g} (new row)")
        elif before.get("median"):
            print(
                f"{name}: {before['median']:.4g} -> {row['median']:.4g}, "
                f"x{row['median'] / before['median']:.3f}"
            )


if __name__ == "__main__":
    main()
