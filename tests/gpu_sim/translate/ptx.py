"""Splits PTX text into statements: declarations, labels, blocks and instructions, with lines.

Only the shape of the language is known here. What an instruction means is in `forms` and `emit`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field


class UnsupportedError(Exception):
    """Raised for text that the translator does not know; the message names it."""


BITS = {
    "pred": 8,
    **{f"{kind}{bits}": bits for kind in "bus" for bits in (8, 16, 32, 64)},
    **{"f16": 16, "bf16": 16, "f16x2": 32, "bf16x2": 32, "f32": 32, "f64": 64},
}

_NOISE = re.compile(r'(?P<comment>//[^\n]*|/\*.*?\*/)|"[^"]*"', re.DOTALL)
_LINE_DIRECTIVE = re.compile(r"\.(version|target|address_size|file|loc)\b[^\n]*|\.section\s+[\w.]+")
_LABEL = re.compile(r"[%$\w]+:(?!:)")


@dataclass(frozen=True)
class Statement:
    """One statement: `text` that ended with a semicolon, a label (`text` ends with a colon), "{" or
    "}", or a directive of one line."""

    text: str
    line: int  # line in the PTX
    source: int  # line in the CUDA C, if .loc gives it; otherwise 0

    @property
    def site(self) -> int:
        """Packs both lines into one integer, as the runtime expects."""
        return self.line | self.source << 16 if self.line < 1 << 16 else 0


@dataclass
class Variable:
    """A declaration of memory: `.shared .align 16 .b8 tile[4096]`."""

    name: str
    space: str
    type: str
    align: int
    bytes: int  # 0 if the size is given at launch
    is_extern: bool = False
    values: str | None = None


@dataclass
class Function:
    """A kernel (`is_entry`) or a function that kernels call."""

    name: str
    is_entry: bool
    params: list[Variable]
    result: Variable | None
    max_threads: int  # limit of a block; 0 if it is not given
    body: list[Statement]


@dataclass
class Module:
    """A whole PTX text."""

    target: int = 0  # 90 for sm_90
    variables: dict[str, Variable] = field(default_factory=dict)
    functions: list[Function] = field(default_factory=list)


def split(text: str) -> list[str]:
    """Splits at the commas that are outside of brackets."""
    parts, depth, part = [], 0, ""
    for char in text:
        depth += (char in "{[(") - (char in "}])")
        if char == "," and depth == 0:
            parts.append(part.strip())
            part = ""
        else:
            part += char
    return [*parts, part.strip()] if part.strip() else parts


def _without_comments(text: str) -> str:
    def blank(match: re.Match[str]) -> str:
        return "\n" * match[0].count("\n") if match["comment"] else match[0]

    return _NOISE.sub(blank, text)


def statements(text: str) -> Iterator[Statement]:
    """Cuts the text at semicolons, braces that open bodies, labels and directives of one line."""
    text = _without_comments(text)
    at, line, source = 0, 1, 0
    part, begin, depth = "", 1, 0
    while at < len(text):
        char = text[at]
        if not part.strip():
            part, begin = "", line
            directive = _LINE_DIRECTIVE.match(text, at)
            if directive:
                words = directive[0].split()
                source = int(words[2]) if words[0] == ".loc" else source
                if words[0] != ".loc":
                    yield Statement(directive[0].strip(), line, source)
                at = directive.end()
                continue
            label = _LABEL.match(text, at)
            if label:
                yield Statement(label[0], line, source)
                at = label.end()
                continue
        is_body = char == "{" and depth == 0 and re.search(r"^\s*$|\.(entry|func)\b", part)
        if is_body or (char == "}" and depth == 0) or (char == ";" and depth == 0):
            if part.strip():
                yield Statement(" ".join(part.split()), begin, source)
            if char != ";":
                yield Statement(char, line, source)
            part = ""
        else:
            depth += (char in "{[(") - (char in "}])")
            part += char
        line += char == "\n"
        at += 1


_VARIABLE = re.compile(
    r"(?P<linkage>(?:\.(?:visible|extern|weak|common)\s+)*)"
    r"\.(?P<space>global|const|shared|local|param)\s+"
    r"(?:\.align\s+(?P<align>\d+)\s+)?(?:\.attribute\([^)]*\)\s*)?(?:\.v\d\s+)?\.(?P<type>\w+)\s+"
    r"(?:\.ptr\s+(?:\.(?:global|shared|const|local)\s+)?(?:\.align\s+\d+\s+)?)?"
    r"(?P<name>[\w$]+)(?P<extents>(?:\[\d*\])*)\s*(?:=\s*(?P<values>.*))?$"
)


def variable(text: str) -> Variable:
    """Reads one declaration of memory or of a parameter."""
    found = _VARIABLE.match(text)
    if not found or found["type"] not in BITS:
        raise UnsupportedError(f"declaration: {text}")
    size = BITS[found["type"]] // 8
    count = 1
    for extent in re.findall(r"\[(\d*)\]", found["extents"]):
        count *= int(extent or 0)
    return Variable(
        name=found["name"],
        space=found["space"],
        type=found["type"],
        align=int(found["align"] or size),
        bytes=size * count,
        is_extern=".extern" in found["linkage"],
        values=found["values"],
    )


_HEAD = re.compile(
    r"(?:\.(?:visible|weak|extern)\s+)*\.(?P<kind>entry|func)\s*"
    r"(?:\((?P<result>[^)]*)\)\s*)?(?P<name>[\w$]+)\s*(?:\((?P<params>.*?)\))?(?P<rest>[^()]*)$"
)


def _function(head: str, body: list[Statement]) -> Function:
    found = _HEAD.match(head)
    if not found:
        raise UnsupportedError(f"function: {head}")
    threads = 1
    limit = re.search(r"\.(?:maxntid|reqntid)\s+([\d\s,]+)", found["rest"])
    for extent in re.findall(r"\d+", limit[1]) if limit else "0":
        threads *= int(extent)
    return Function(
        name=found["name"],
        is_entry=found["kind"] == "entry",
        params=[variable(param) for param in split(found["params"] or "")],
        result=variable(found["result"]) if found["result"] else None,
        max_threads=threads,
        body=body,
    )


def _body(parts: list[Statement], at: int) -> tuple[list[Statement], int]:
    """Returns the statements of the block that opens at `at`, and where it has ended."""
    begin, depth = at + 1, 0
    while True:
        depth += (parts[at].text == "{") - (parts[at].text == "}")
        at += 1
        if depth == 0:
            return parts[begin : at - 1], at
        if at == len(parts):
            raise UnsupportedError("a block that does not end")


def parse(text: str) -> Module:
    """Parses a module. Unknown text is an error that quotes it."""
    module, parts, at = Module(), list(statements(text)), 0
    while at < len(parts):
        words = parts[at].text
        at += 1
        if words.startswith(".target"):
            found = re.search(r"sm_(\d+)", words)
            if not found:
                raise UnsupportedError(words)
            module.target = int(found[1])
        elif words.startswith(".section"):
            if at < len(parts) and parts[at].text == "{":
                _, at = _body(parts, at)
        elif re.search(r"\.(entry|func)\b", words):
            if at < len(parts) and parts[at].text == "{":
                body, at = _body(parts, at)
                module.functions.append(_function(words, body))
        elif re.match(r"(\.\w+\s+)*\.(global|const|shared)\b", words):
            made = variable(words)
            module.variables[made.name] = made
        elif not re.match(r"\.(version|address_size|file|pragma)\b", words):
            raise UnsupportedError(f"line {parts[at - 1].line}: {words}")
    return module
