"""Finds where code can be mutated, and how: operators and constants, conditions, statements and
returns of C, by libclang. In CUDA text, in headers and in the strings of generators, it finds the
same by patterns.

A point is identified by its content and not by a line number: its name is a hash of the file, the
operator, the code of its line, the change, and the number of equal points before it. The sample
consists of the smallest hashes, so a change of the code replaces few of them."""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

SWAPS = {
    "<": "<=", "<=": "<", ">": ">=", ">=": ">", "==": "!=", "!=": "==", "&&": "||", "||": "&&",
    "+": "-", "-": "+", "*": "+", "/": "*", "%": "/", "&": "|", "|": "&", "<<": ">>", ">>": "<<",
}  # fmt: skip


class Edit(NamedTuple):
    """``text[start:end]`` becomes ``to`` in the mutant; ``wrap`` says how one source holds both
    versions."""

    kind: str
    start: int
    end: int
    to: str
    wrap: str  # "expression", "statement", "body", "text" (of a header) or "template"


class Point(NamedTuple):
    name: str
    file: str
    line: int
    edit: Edit
    shown: str  # the change on its line

    def row(self) -> str:
        return f"{self.name} {self.file} {self.edit.kind}: {self.shown}"


# ---- text ---------------------------------------------------------------------------------------

OPERATOR = re.compile(r"(?<= )(<=?|>=?|==|!=|&&|\|\||[+*/&|-]|%%?|<<|>>)(?= )")
ASSIGNED = re.compile(r"(?<= )(\+=|-=)(?= )")
NUMBER = re.compile(r"(?<![\w.%$\\])(\d+)(?![\w.xX])")
BARRIER = re.compile(r"__sync(?:threads|warp)\(\);")
CONDITION = re.compile(r"\bif \(")


def closing(text: str, start: int, end: int) -> int:
    """Returns the position where the parenthesis opened at ``start`` closes, or -1 if that is not
    before ``end``."""
    depth = 0
    for at in range(start, end):
        depth += {"(": 1, ")": -1}.get(text[at], 0)
        if depth == 0:
            return at
    return -1


def edits_of_text(text: str, start: int, end: int) -> Iterator[Edit]:
    """Yields the edits of CUDA code in a part of a file, without comments and directives."""
    part = text[start:end]
    for found in OPERATOR.finditer(part):
        old = found[1]
        new = SWAPS.get(old.replace("%%", "%"), "")
        yield Edit("operator", start + found.start(1), start + found.end(1), new, "text")
    for found in ASSIGNED.finditer(part):
        new = "-=" if found[1] == "+=" else "+="
        yield Edit("assignment", start + found.start(1), start + found.end(1), new, "text")
    for found in NUMBER.finditer(part):
        for step in (1, -1):
            if int(found[1]) + step >= 0:
                new = str(int(found[1]) + step)
                yield Edit("constant", start + found.start(1), start + found.end(1), new, "text")
    for found in BARRIER.finditer(part):
        yield Edit("barrier deleted", start + found.start(), start + found.end(), "", "text")
    for found in CONDITION.finditer(part):
        opens = start + found.end() - 1
        closes = closing(text, opens, end)
        if closes > 0:
            new = f"(!{text[opens : closes + 1]})"
            yield Edit("condition negated", opens, closes + 1, new, "text")


def spans_of_header(text: str) -> Iterator[tuple[int, int]]:
    """Yields lines of a .cuh without comments; of the directives only macros can be mutated."""
    masked = re.sub(r"/\*.*?\*/|//[^\n]*", lambda m: re.sub(r"[^\n]", "\0", m[0]), text, flags=re.S)
    at = 0
    for line in masked.splitlines(keepends=True):
        if not re.match(r"\s*#|\s*template <(?!.*\{)", line) and "asm" not in line:
            begin = 0
            for piece in re.finditer(r"[^\0]+", line):
                begin = at + piece.start()
                yield begin, at + piece.end()
        at += len(line)


# ---- C ------------------------------------------------------------------------------------------


STRING = re.compile(r'"((?:[^"\\\n]|\\.)*)"')
RETURNS = {
    "cb_status": "return 0;", "void": "return;", "bool": "return true;", "_Bool": "return true;",
}  # fmt: skip
NUMBERS = {
    "BOOL", "INT", "UINT", "LONG", "ULONG", "SHORT", "USHORT", "UCHAR", "SCHAR", "CHAR_S",
    "LONGLONG", "ULONGLONG", "FLOAT", "DOUBLE", "ENUM",
}  # fmt: skip


class Source:
    """A C file. Code written by a macro has no position in the file and is skipped: each piece is
    compared with the text before it counts."""

    def __init__(self, path: Path, arguments: list[str]) -> None:
        import clang.cindex as clang

        self.path, self.text = str(path), path.read_text()
        self.kinds = clang.CursorKind
        self.static = clang.StorageClass.STATIC
        self.unit = clang.Index.create().parse(self.path, args=arguments)

    def is_number(self, node: Any) -> bool:
        return node.type.get_canonical().kind.name in NUMBERS

    def wants_constants(self, node: Any) -> bool:
        is_far = node.kind == self.kinds.VAR_DECL and (
            node.storage_class == self.static
            or node.semantic_parent.kind == self.kinds.TRANSLATION_UNIT
        )
        return is_far or node.kind in (self.kinds.ENUM_DECL, self.kinds.STRUCT_DECL)

    def operators(self, node: Any, children: list[Any]) -> Iterator[Edit]:
        if not all(map(self.is_number, children)):
            return
        start, end = node.extent.start.offset, node.extent.end.offset
        left, right = children[0].extent.end.offset, children[1].extent.start.offset
        found = re.fullmatch(r"\s*([-+*/%&|<>=!]{1,2})\s*", self.text[left:right])
        if found and found[1] in SWAPS:
            new = self.text[start:left] + f" {SWAPS[found[1]]} " + self.text[right:end]
            yield Edit("operator", start, end, new, "expression")

    def constants(self, node: Any, parent: Any) -> Iterator[Edit]:
        start, end = node.extent.start.offset, node.extent.end.offset
        is_size = parent.kind == self.kinds.VAR_DECL and not self.is_number(parent)
        if not self.text[start:end].isdigit() or is_size or parent.kind == self.kinds.CASE_STMT:
            return
        for step in (1, -1):
            new = int(self.text[start:end]) + step
            if new >= 0:
                yield Edit("constant", start, end, str(new), "expression")

    def conditions(self, node: Any, children: list[Any]) -> Iterator[Edit]:
        at, to = children[0].extent.start.offset, children[0].extent.end.offset
        is_if = self.text.startswith("if (", node.extent.start.offset)
        if (is_if or self.text[to : to + 4].strip()[:1] == "?") and "\n" not in self.text[at:to]:
            yield Edit("condition negated", at, to, f"!({self.text[at:to]})", "expression")

    def statements(self, node: Any, parent: Any) -> Iterator[Edit]:
        start, end = node.extent.start.offset, node.extent.end.offset
        is_set = node.kind == self.kinds.COMPOUND_ASSIGNMENT_OPERATOR or (
            node.kind == self.kinds.BINARY_OPERATOR
            and re.search(r"[^=!<>]=[^=]", self.text[start:end])
        )
        is_head = parent.kind != self.kinds.COMPOUND_STMT and node == next(parent.get_children())
        is_whole = self.text[end : end + 1] == ";" and not is_head
        if is_whole and (is_set or node.kind == self.kinds.CALL_EXPR):
            yield Edit("statement deleted", start, end + 1, ";", "statement")

    def strings(self, node: Any) -> Iterator[Edit]:
        start, end = node.extent.start.offset, node.extent.end.offset
        if not re.search(r"[;{}=]|\bif\b", self.text[start:end]):
            return  # a name or a message
        for piece in STRING.finditer(self.text[start:end]):
            for e in edits_of_text(self.text, start + piece.start(1), start + piece.end(1)):
                new = self.text[start : e.start] + e.to + self.text[e.end : end]
                yield Edit(f"{e.kind} in text", start, end, new, "expression")

    def templates(self, node: Any) -> Iterator[Edit]:
        """Yields edits of templates. A constant array cannot contain a switch, so its text is
        changed where it is used."""
        if node.kind == self.kinds.VAR_DECL and node.type.spelling.startswith("const char["):
            for child in node.get_children():
                if child.kind == self.kinds.STRING_LITERAL:
                    yield from (e._replace(wrap="template") for e in self.strings(child))

    def bodies(self, node: Any, children: list[Any]) -> Iterator[Edit]:
        new = RETURNS.get(node.result_type.spelling)
        if node.is_definition() and new:
            body = children[-1].extent.start.offset
            yield Edit("return at once", body, body + 1, new, "body")

    def edits_of(self, node: Any, parent: Any, callee: str) -> Iterator[Edit]:
        kinds, children = self.kinds, list(node.get_children())
        if node.kind == kinds.BINARY_OPERATOR:
            yield from self.operators(node, children)
        if node.kind == kinds.INTEGER_LITERAL:
            yield from self.constants(node, parent)
        if node.kind in (kinds.IF_STMT, kinds.CONDITIONAL_OPERATOR) and children:
            yield from self.conditions(node, children)
        if parent.kind in (kinds.COMPOUND_STMT, kinds.IF_STMT, kinds.FOR_STMT):
            yield from self.statements(node, parent)
        if node.kind == kinds.STRING_LITERAL and callee != "cb_fail":
            yield from self.strings(node)
        if node.kind == kinds.FUNCTION_DECL:
            yield from self.bodies(node, children)

    def visit(self, node: Any, parent: Any, callee: str) -> Iterator[Edit]:
        if node.location.file and node.location.file.name != self.path:
            return
        if self.wants_constants(node):
            yield from self.templates(node)
            return
        if node.extent.start.file and node.extent.start.file.name == self.path:
            yield from self.edits_of(node, parent, callee)
        if node.kind == self.kinds.CALL_EXPR:
            callee = node.spelling
        for k, child in enumerate(node.get_children()):
            if node.kind != self.kinds.CASE_STMT or k > 0:
                yield from self.visit(child, node, callee)

    def checked(self) -> Iterator[Edit]:
        """Yields edits of CB_TRY and CB_CU, which are macros."""
        for found in re.finditer(r"^[ \t]*(CB_TRY|CB_CU)\(", self.text, re.M):
            closes = closing(self.text, found.end() - 1, len(self.text))
            if closes > 0 and self.text[closes + 1] == ";":
                at = found.start(1)
                yield Edit("statement deleted", at, closes + 2, ";", "statement")

    def edits(self) -> Iterator[Edit]:
        yield from self.visit(self.unit.cursor, self.unit.cursor, "")
        yield from self.checked()


# ---- all of them --------------------------------------------------------------------------------


def shown(text: str, edit: Edit) -> tuple[int, str]:
    """Returns the first line that changes, and the change."""
    if edit.wrap == "statement":
        return text.count("\n", 0, edit.start) + 1, " ".join(text[edit.start : edit.end].split())
    old, new = text[edit.start : edit.end], edit.to
    if edit.wrap == "body":
        head = text.rfind("\n", 0, max(text.rfind(")", 0, edit.start), 0)) + 1
        return text.count("\n", 0, edit.start) + 1, " ".join(
            f"{text[head : edit.start]} {{ {new}".split()
        )
    same = 0
    while same < min(len(old), len(new)) and old[same] == new[same]:
        same += 1
    at = edit.start + same
    begin, end = text.rfind("\n", 0, at) + 1, text.find("\n", at)
    tail = 0
    while tail < min(len(old), len(new)) - same and old[-1 - tail] == new[-1 - tail]:
        tail += 1
    gone, come = old[same : len(old) - tail], new[same : len(new) - tail]
    line = text[begin:at] + f"[{gone} -> {come}]" + text[at + len(gone) : max(end, at + len(gone))]
    return text.count("\n", 0, at) + 1, " ".join(line.split())


def points_of(path: Path, root: Path, arguments: list[str]) -> list[Point]:
    """Returns the points of a file. `arguments` are the compiler's, for C."""
    text, file = path.read_text(), str(path.relative_to(root))
    if path.suffix == ".cuh":
        edits = [e for a, b in spans_of_header(text) for e in edits_of_text(text, a, b)]
    else:
        edits = list(Source(path, arguments).edits())
    met: Counter[str] = Counter()
    found = []
    for edit in sorted(set(edits), key=lambda e: (e.start, -e.end, e.kind, e.to)):
        line, change = shown(text, edit)
        key = f"{file} {edit.kind} {change}"
        met[key] += 1
        name = hashlib.sha256(f"{key} {met[key]}".encode()).hexdigest()[:10]
        found.append(Point(name, file, line, edit, change))
    return found


def sample(points: list[Point], share: dict[str, int], seed: str) -> list[Point]:
    """Chooses this many points per file that do not overlap: those with the smallest hashes under
    the seed."""
    chosen: list[Point] = []
    for file, wanted in share.items():
        taken: list[Point] = []
        order = (p for p in points if p.file == file)
        for p in sorted(order, key=lambda p: hashlib.sha256((seed + p.name).encode()).hexdigest()):
            apart = all(p.edit.end <= q.edit.start or q.edit.end <= p.edit.start for q in taken)
            if len(taken) < wanted and apart and all(p.line != q.line for q in taken):
                taken.append(p)
        chosen += sorted(taken, key=lambda p: p.edit.start)
    return chosen


def apply(text: str, points: list[tuple[int, Point]]) -> str:
    """Returns a C source with all its mutants, each selected by its number."""
    for number, p in sorted(points, key=lambda row: -row[1].edit.start):
        old, e = text[p.edit.start : p.edit.end], p.edit
        made = {
            "expression": f"(cb_mutant({number}) ? ({e.to}) : ({old}))",
            "statement": f"{{ if (!cb_mutant({number})) {{ {old} }} }}",
            "body": f"{{ if (cb_mutant({number})) {e.to}",
        }[e.wrap]
        text = text[: e.start] + made + text[e.end :]
    return text
