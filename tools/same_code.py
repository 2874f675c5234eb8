#!/usr/bin/env python3
"""Checks that a change edits nothing but comments, strings and docs.

    tools/same_code.py [BASE]       compare the working tree with a commit (default: HEAD)
    tools/same_code.py BASE END     compare two commits
    tools/same_code.py --self-test  check the checker

C and CUDA sources must have the same tokens once comments are dropped and string literals are
blanked. Python files must have the same syntax trees once docstrings are dropped and string
constants are blanked. Markdown may change freely; no file may be added, deleted or renamed.
Exits with 1 and one line per file that differs.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
C_SUFFIXES = {".c", ".h", ".cu", ".cuh", ".cpp", ".def"}
PYTHON_SUFFIXES = {".py", ".pyi"}
TEXT_SUFFIXES = {".md"}

_C_TOKEN = re.compile(
    r"""(?P<comment>/\*.*?\*/|//(?:[^\\\n]|\\.)*)
    |(?P<string>(?:u8|[LuU])?"(?:[^"\\]|\\.)*")
    |(?P<char>'(?:[^'\\]|\\.)+')
    |(?P<newline>\n)
    |(?P<space>(?:[^\S\n]|\\\n)+)
    |(?P<word>[A-Za-z_0-9.]+)
    |(?P<other>.)""",
    re.VERBOSE | re.DOTALL,
)


def c_tokens(text: str) -> list[str]:
    """Returns the tokens of a C source without comments; adjacent string literals count as one.

    Line ends count only where a preprocessor directive ends."""
    tokens: list[str] = []
    in_directive = False
    for match in _C_TOKEN.finditer(text):
        kind, token = match.lastgroup, match.group()
        if kind == "newline":
            if in_directive:
                tokens.append("\n")
            in_directive = False
        elif kind == "string":
            is_path = in_directive and "include" in tokens[-2:]
            if is_path or not tokens or tokens[-1] != '""':
                tokens.append(token if is_path else '""')
        elif kind not in ("comment", "space"):
            in_directive |= token == "#"
            tokens.append(token)
    return tokens


class _Blank(ast.NodeTransformer):
    """Drops docstrings and blanks string constants."""

    def visit_Constant(self, node: ast.Constant) -> ast.Constant:
        return ast.Constant("") if isinstance(node.value, str) else node

    def visit_JoinedStr(self, node: ast.JoinedStr) -> ast.JoinedStr:
        values = [self.visit(v) for v in node.values if isinstance(v, ast.FormattedValue)]
        return ast.JoinedStr(values)

    def visit_Expr(self, node: ast.Expr) -> ast.Expr | None:
        is_text = isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
        return None if is_text else ast.Expr(self.visit(node.value))


def python_tree(text: str) -> str:
    """Returns the syntax tree of a Python source as text, without docstrings and string
    constants."""
    return ast.dump(_Blank().visit(ast.parse(text)))


def is_same(suffix: str, before: str, after: str) -> bool:
    """True if two versions of a file differ only in comments, strings or docs."""
    if suffix in C_SUFFIXES:
        return c_tokens(before) == c_tokens(after)
    if suffix in PYTHON_SUFFIXES:
        return python_tree(before) == python_tree(after)
    return suffix in TEXT_SUFFIXES or before == after


def _git(*arguments: str) -> str:
    return subprocess.run(
        ["git", *arguments], cwd=ROOT, check=True, capture_output=True, text=True
    ).stdout


def differences(base: str, end: str | None) -> list[str]:
    """Returns one line for each changed file whose code differs."""
    found: list[str] = []
    changed = _git("diff", "--name-status", "--no-renames", base, *([end] if end else []))
    for line in changed.splitlines():
        status, path = line.split("\t", 1)
        if status != "M":
            found.append(f"{path}: added or deleted ({status})")
            continue
        before = _git("show", f"{base}:{path}")
        after = _git("show", f"{end}:{path}") if end else (ROOT / path).read_text()
        if not is_same(Path(path).suffix, before, after):
            found.append(f"{path}: more than comments, strings or docs differ")
    return found


def self_test() -> None:
    """Checks the checker on pairs of sources."""
    c = '#include "a.h"\nint f(void) { return g("one", 2); /* two */ }\n'
    assert is_same(".c", c, '#include "a.h"\n// new\nint f(void)\n{ return g("o" "ne.", 2); }\n')
    for other in (
        c.replace("a.h", "b.h"),
        c.replace("2)", "3)"),
        c.replace('"one", 2', '2, "one"'),
        c.replace("/* two */", "; /* two */"),
        c.replace("int f", "#define X\nint f"),
    ):
        assert not is_same(".c", c, other), other
    assert not is_same(".c", "#define A 1\nint b;\n", "#define A 1 int b;\n")
    assert is_same(".c", "char c = '\"'; /* a */\n", "char c = '\"'; // b\n")
    py = 'def f(x):\n    """Old."""\n    return f"a {x} b" if x else "none"  # why\n'
    assert is_same(".py", py, 'def f(x):\n    """New."""\n    return f"{x} c" if x else "no"\n')
    assert is_same(".py", py, 'def f(x):\n    return f"{x}" if x else "no"\n')
    for other in (py.replace("if x", "if not x"), py.replace("{x} b", "{x!r} b")):
        assert not is_same(".py", py, other), other


def main(arguments: list[str]) -> int:
    if arguments == ["--self-test"]:
        self_test()
        return 0
    if len(arguments) > 2 or any(a.startswith("-") for a in arguments):
        print(__doc__)
        return 2
    base = arguments[0] if arguments else "HEAD"
    end = arguments[1] if len(arguments) > 1 else None
    found = differences(base, end)
    print("\n".join(found) or "the code is the same")
    return bool(found)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
