"""Reads the object code of products: their loops must keep sums and transposed blocks in registers.

    python tools/check_registers.py OBJDUMP FILE.o ...

gcc 12 once kept all sums of a product in memory. The results were right, but products took three
times as long.
"""

from __future__ import annotations

import re
import subprocess
import sys
from typing import NamedTuple

LEAST_SUMS = 12  # multiply-adds in the loop of the largest block of sums, on 16 registers
ADD = re.compile(r"^vfmadd\w+p[sd]$")
SHUFFLE = re.compile(r"^v(unpck[lh]p[sd]|shufp[sd]|perm2f128|permpd)$")
STACK = re.compile(r"\(%r[sb]p")


class Line(NamedTuple):
    """An instruction."""

    at: int
    name: str
    operands: str


def functions(objdump: str, path: str) -> dict[str, list[Line]]:
    """Returns the instructions of each function."""
    command = [objdump, "-d", "--no-show-raw-insn", path]
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    found: dict[str, list[Line]] = {}
    lines: list[Line] = []
    for line in text.splitlines():
        if head := re.match(r"^[0-9a-f]+ <(.+)>:$", line):
            lines = found.setdefault(head[1], [])
        elif part := re.match(r"^\s*([0-9a-f]+):\s+(\S+)\s*(.*)$", line):
            lines.append(Line(int(part[1], 16), part[2], part[3]))
    return found


def inner_loops(code: list[Line]) -> list[list[Line]]:
    """Returns the loops that contain no other loop: from the target of a jump back to the jump."""
    ends = []
    for line in code:
        target = re.match(r"([0-9a-f]+) <", line.operands)
        if line.name.startswith("j") and target and code[0].at <= int(target[1], 16) <= line.at:
            ends.append((int(target[1], 16), line.at))
    inner = [
        (first, last)
        for first, last in ends
        if not any(first <= a and b <= last and (a, b) != (first, last) for a, b in ends)
    ]
    return [[line for line in code if first <= line.at <= last] for first, last in inner]


def faults(objdump: str, path: str) -> list[str]:
    """Returns one sentence for each loop of a product that uses the stack."""
    wrong, most = [], 0
    for name, code in functions(objdump, path).items():
        if not name.startswith("gemm_") or "_f64" in name:  # a BLAS computes those in f64
            continue
        for loop in inner_loops(code):
            adds = sum(bool(ADD.match(line.name)) for line in loop)
            most = max(most, adds)
            work = adds + sum(bool(SHUFFLE.match(line.name)) for line in loop)
            vectors = [line for line in loop if re.match("v(?!broadcast)", line.name)]
            kept = sum(bool(STACK.search(line.operands)) for line in vectors)
            if work >= 4 and kept > work // 4:
                wrong.append(f"{path}: {name}: {kept} vectors of a loop are on the stack")
    if most < LEAST_SUMS:
        wrong.append(f"{path}: no loop of a product has {LEAST_SUMS} multiply-adds, only {most}")
    return wrong


def main() -> int:
    objdump, *paths = sys.argv[1:]
    wrong = [fault for path in paths for fault in faults(objdump, path)]
    print("\n".join(wrong) if wrong else f"{len(paths)} files: sums stay in registers")
    return bool(wrong) or not paths


if __name__ == "__main__":
    sys.exit(main())
