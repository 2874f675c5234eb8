#!/usr/bin/env python3
"""Counts code, and finds functions and files that are too long.

    tools/loc.py            lines per folder, and everything that is too long
    tools/loc.py PATH ...   lines of each of these files, or of the files in these folders

Two counts: all lines, and those that have code, which leaves out blank lines, comments and, in
Python, docstrings.

Aims and limits: functions 60 and 120 lines, files 600 and 1000. Anything over its aim needs a
reason here, which is printed with it; a missing reason, an unnecessary one, and anything over its
limit are errors. Blank lines and comments count here, because they are read too. A function's
docstring does not, like the comment above a C function. C lines over 100 columns are errors;
clang-format mends them.
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

# Allowed to exceed the aim: a file, or "file function".
REASONS = {
    "csrc/include/cutback.h": "the whole interface, which is read in one place",
    "csrc/pipeline.c": "all stages of a step, in order",
    "python/cutback/frontend/step.py": "a step, with the overloads that type its calls",
    "csrc/exec/ref/ref_op.c family_of": "one switch over all ops",
    "python/cutback/torch/compiler/partition.py": "one class, which documents all of its options",
    "tests/c/base/test_json.c errors_are_precise": "a table of texts and their errors",
    "tests/c/ir/test_text.c text_errors": "a table of texts and their errors",
    "tests/python/planner/test_constraints.py slow_mu_two": "an oracle that keeps to its paper",
    "tests/python/run/test_run_memory.py": "memory that steps share, with the helpers of its tests",
    "tests/reference/costs.py fused_work": "a referee that shares no code, read in one piece",
    "tests/reference/evaluate_traced.py evaluate": "a referee that shares no code",
    "tools/check_layers.py self_test": "a table of files and what is wrong in them",
}


@dataclass(frozen=True)
class Item:
    """A function or a file, and its length."""

    where: str
    size: int
    aim: int
    limit: int
    reason: str | None  # for exceeding the aim


def c_functions(text: str) -> Iterator[tuple[str, int, int]]:
    """Yields name, first line and length of each function. The house style makes this easy: a
    function begins and ends at column 0."""
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


def statements_in(node: ast.AST) -> list[ast.AST]:
    """Returns the statements directly inside a module or a statement. Expressions are left out:
    they are most of the nodes, and contain no functions, docstrings or imports."""
    found: list[ast.AST] = []
    for field in ("body", "orelse", "handlers", "finalbody", "cases"):
        inside = getattr(node, field, ())
        found += inside if isinstance(inside, list) else ()
    return found


def statements(tree: ast.Module) -> Iterator[ast.AST]:
    """Yields the module and every statement in it, in the order of the text."""
    stack: list[ast.AST] = [tree]
    while stack:
        node = stack.pop()
        yield node
        stack += reversed(statements_in(node))


def docstring(node: ast.AST) -> range:
    """Returns the lines of the docstring of a module, class or function."""
    owners = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
    if not isinstance(node, owners) or ast.get_docstring(node, clean=False) is None:
        return range(0)
    return range(node.body[0].lineno, (node.body[0].end_lineno or 0) + 1)


def python_functions(tree: ast.Module) -> Iterator[tuple[str, int, int]]:
    for node in statements(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            length = (node.end_lineno or node.lineno) - node.lineno + 1
            yield node.name, node.lineno, length - len(docstring(node))


@dataclass(frozen=True)
class Source:
    """A file, with its lines in full, those that have code, and the functions in it."""

    path: Path
    lines: list[str]
    code: int
    functions: list[tuple[str, int, int]]  # name, first line, length


def read(path: Path) -> Source:
    text = path.read_text(encoding="utf-8")
    if path.suffix in C_SUFFIXES:
        return Source(path, text.splitlines(), c_code_lines(text), list(c_functions(text)))
    tree = ast.parse(text)
    code = python_code_lines(text, tree)
    return Source(path, text.splitlines(), code, list(python_functions(tree)))


def measure(root: Path, source: Source) -> Iterator[Item]:
    name = source.path.relative_to(root).as_posix()
    yield Item(name, len(source.lines), FILE_AIM, FILE_LIMIT, REASONS.get(name))
    for function, start, length in source.functions:
        where, reason = f"{name}:{start} {function}", REASONS.get(f"{name} {function}")
        yield Item(where, length, FUNCTION_AIM, FUNCTION_LIMIT, reason)


STRING = r'"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\''
C_NOISE = re.compile(rf"/\*.*?\*/|//[^\n]*|({STRING})", re.DOTALL)
PYTHON_NOISE = re.compile(
    rf'#[^\n]*|("""(?:\\.|[^\\])*?"""|\'\'\'(?:\\.|[^\\])*?\'\'\'|{STRING})', re.DOTALL
)
EMPTY_LINE = re.compile(r"^[ \t]*$", re.MULTILINE)


def c_code_lines(text: str) -> int:
    """Returns lines that are not only comments. Strings stay, because they may look like
    comments."""

    def without(found: re.Match[str]) -> str:
        return found[1] or "\n" * found[0].count("\n")

    return sum(bool(line.strip()) for line in C_NOISE.sub(without, text).splitlines())


def python_code_lines(text: str, tree: ast.Module) -> int:
    """Returns lines that are not only comments and docstrings. All lines of other strings count,
    even empty ones."""

    def without(found: re.Match[str]) -> str:
        return EMPTY_LINE.sub(".", found[1]) if found[1] else ""

    lines = PYTHON_NOISE.sub(without, text).split("\n")
    code = {number for number, line in enumerate(lines, 1) if line.strip()}
    for node in statements(tree):
        code.difference_update(docstring(node))
    return len(code)


def print_files(root: Path, names: list[str]) -> None:
    """Prints both counts of each file, and their sums."""
    whole = [0, 0]
    for path in files_of(root):
        name = path.relative_to(root).as_posix()
        if any(name == given or name.startswith(f"{given.rstrip('/')}/") for given in names):
            source = read(path)
            counts = len(source.lines), source.code
            print(f"{counts[0]:7,} {counts[1]:7,}  {name}")
            whole = [a + b for a, b in zip(whole, counts, strict=True)]
    print(f"{whole[0]:7,} {whole[1]:7,}  all of these")


def wide_lines(source: Source) -> int:
    if source.path.suffix not in {".c", ".h"}:
        return 0
    return sum(len(line) > COLUMNS for line in source.lines)


def folder_of(path: Path) -> str:
    """Returns the folder of a file: each folder of csrc, subfolders of python and tests, or the top
    folder."""
    if path.parts[0] == "csrc":
        return path.parent.as_posix()
    depth = 2 if path.parts[0] in ("python", "tests") and len(path.parts) > 2 else 1
    return "/".join(path.parts[:depth])


def print_folders(lines: Counter[str], code: Counter[str]) -> None:
    print("    all    code")
    for folder, count in sorted(lines.items()):
        print(f"{count:7,} {code[folder]:7,}  {folder}")
    for top in ("csrc", "python", "tests"):
        inside = [folder for folder in lines if folder.split("/")[0] == top]
        sums = (sum(counts[folder] for folder in inside) for counts in (lines, code))
        print("{:7,} {:7,}  {} in all".format(*sums, top))
    print(f"{sum(lines.values()):7,} {sum(code.values()):7,}  all")


def files_of(root: Path) -> list[Path]:
    return sorted(p for f in FOLDERS for p in (root / f).rglob("*") if p.suffix in SUFFIXES)


def main() -> int:
    root = Path(__file__).resolve().parent.parent
    if sys.argv[1:]:
        print_files(root, sys.argv[1:])
        return 0
    lines: Counter[str] = Counter()
    code: Counter[str] = Counter()
    items: list[Item] = []
    wide: list[str] = []
    for path in files_of(root):
        source, name = read(path), path.relative_to(root)
        lines[folder_of(name)] += len(source.lines)
        code[folder_of(name)] += source.code
        items += measure(root, source)
        if n := wide_lines(source):
            wide.append(f"{name}: {n} lines of more than {COLUMNS} columns")
    print_folders(lines, code)
    wrong = []
    for item in items:
        if item.size > item.aim and item.reason:
            print(f"long: {item.where}: {item.size} (aim {item.aim}): {item.reason}")
        if item.size > (item.limit if item.reason else item.aim):
            wrong.append(f"{item.where}: {item.size} (aim {item.aim}, limit {item.limit})")
        if item.size <= item.aim and item.reason:
            wrong.append(f"{item.where}: {item.size}, needs no reason")
    for line in wrong + wide:
        print(f"error: {line}")
    return bool(wrong + wide)


if __name__ == "__main__":
    sys.exit(main())
