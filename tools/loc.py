#!/usr/bin/env python3
"""How much code there is, and what has grown too long.

    tools/loc.py            lines per folder, long functions and files; exit 1 past a hard limit
    tools/loc.py --long     list also what is over the aims but within the limits

Aims and limits: functions 60 and 120 lines, files 600 and 1000. Blank lines and comments count:
they are read too. C lines over 100 columns are counted; clang-format mends them.
"""

from __future__ import annotations

import ast
import re
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

FUNCTION_AIM, FUNCTION_LIMIT = 60, 120
FILE_AIM, FILE_LIMIT = 600, 1000
COLUMNS = 100

FOLDERS = ("csrc", "cuda", "python", "tests", "tools", "benchmarks", "examples")
C_SUFFIXES = {".c", ".h", ".def", ".cu", ".cuh"}
SUFFIXES = C_SUFFIXES | {".py", ".pyi"}

# Flat switches and tables may pass the function limit: (file, function).
FLAT: set[tuple[str, str]] = set()


@dataclass(frozen=True)
class Item:
    """A function or a file, and how long it is."""

    where: str
    size: int
    aim: int
    limit: int


def c_functions(text: str) -> Iterator[tuple[str, int, int]]:
    """Name, first line and length. The house style makes this easy: a function starts and ends at
    the margin."""
    start, name, head = 0, "", ""
    for number, line in enumerate(text.splitlines(), 1):
        if start:
            if line.startswith("}"):
                yield name, start, number - start + 1
                start = 0
            continue
        if not line or line[0] in "#/ }*":
            head = head + line if line.startswith(" ") else ""
        else:
            head = line
            begin = number
        if line.endswith("{") and "(" in head and "=" not in head.split("(")[0]:
            found = re.search(r"(?:TEST\()?(\w+)\s*[(),]", head)
            name, start = found.group(1) if found else "?", begin


def python_functions(text: str) -> Iterator[tuple[str, int, int]]:
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield (
                node.name,
                node.lineno,
                (node.end_lineno or node.lineno) - node.lineno + 1,
            )


def measure(root: Path, path: Path) -> Iterator[Item]:
    name = path.relative_to(root).as_posix()
    text = path.read_text(encoding="utf-8")
    yield Item(name, len(text.splitlines()), FILE_AIM, FILE_LIMIT)
    functions = c_functions(text) if path.suffix in C_SUFFIXES else python_functions(text)
    for function, start, length in functions:
        if (name, function) not in FLAT:
            yield Item(f"{name}:{start} {function}", length, FUNCTION_AIM, FUNCTION_LIMIT)


def wide_lines(path: Path) -> int:
    if path.suffix not in {".c", ".h"}:
        return 0
    return sum(len(line) > COLUMNS for line in path.read_text(encoding="utf-8").splitlines())


def folder_of(path: Path) -> str:
    """csrc and python by subfolder, the rest by top folder."""
    depth = 2 if path.parts[0] in ("csrc", "python", "tests") and len(path.parts) > 2 else 1
    return "/".join(path.parts[:depth])


def files_of(root: Path) -> list[Path]:
    return sorted(p for f in FOLDERS for p in (root / f).rglob("*") if p.suffix in SUFFIXES)


def main() -> int:
    root = Path(__file__).resolve().parent.parent
    lines: Counter[str] = Counter()
    items: list[Item] = []
    for path in files_of(root):
        measured = list(measure(root, path))
        lines[folder_of(path.relative_to(root))] += measured[0].size
        items += measured
    for folder, count in sorted(lines.items()):
        print(f"{count:7,}  {folder}")
    print(f"{sum(lines.values()):7,}  all")
    print(f"{sum(map(wide_lines, files_of(root)))} C lines have more than {COLUMNS} columns")
    over = [item for item in items if item.size > item.limit]
    long = [item for item in items if item.aim < item.size <= item.limit]
    if "--long" in sys.argv[1:]:
        for item in long:
            print(f"long: {item.where}: {item.size} (aim {item.aim})")
    else:
        print(f"{len(long)} functions and files are over the aims; --long lists them")
    for item in over:
        print(f"over: {item.where}: {item.size} (limit {item.limit})")
    return bool(over)


if __name__ == "__main__":
    sys.exit(main())
