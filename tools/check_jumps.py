"""Reads the object code of the executor: each operation must end in a jump to the next record.

    python tools/check_jumps.py OBJDUMP FILE.o ...

An operation that returns, or calls something before its end, has lost its tail call, which a
compiler omits because of an escaping local, a call, or a flag. It would still be correct, but
several times slower.
"""

from __future__ import annotations

import re
import subprocess
import sys

# Functions of the file that are not operations, by name; parts that a compiler has split off; and
# operations that may call because they are rare (scalar ones, the end of a leaf).
OTHERS = re.compile(
    r"^(fold|fold_leaf|add|to_lanes|largest|set_lanes|put_sum|put_mean|put_piece|row_sums|row_largest|sums_of_blocks|add_rows|spread|numbers_of_rows|run|keep|end|.*_each|each_\w+|cb_\w+)(\.\w+)*$|\.cold"
)
MAY_CALL = re.compile(r"^(.*_far_[01]|loop_sums|totals|piece_sum|piece_mean)(\.\w+)*$")
# The elementary functions of f64 are those of the math library, called per number (kern_wide.c).
MAY_CALL_WIDE = re.compile(
    r"^(EXP|LOG|LOG1P|TANH|SIGMOID|ERF|GELU_TANH_PART|SIN|COS|NORMAL|SIN_COS)_[01]$"
)
JUMP = re.compile(r"\bjmp\b|\bbr?\s")  # also to a function of the same code


def functions(objdump: str, path: str) -> dict[str, list[str]]:
    """Returns the instructions of each function."""
    text = subprocess.run([objdump, "-d", path], capture_output=True, text=True, check=True).stdout
    found: dict[str, list[str]] = {}
    lines: list[str] = []
    for line in text.splitlines():
        head = re.match(r"^[0-9a-f]+ <(.+)>:$", line)
        if head:
            lines = found.setdefault(head[1], [])
        elif "\t" in line:
            lines.append(line.split("\t")[-1])
    return found


def faults(objdump: str, path: str) -> list[str]:
    """Returns one sentence for each operation that does not end in a jump."""
    found = functions(objdump, path)
    operations = [name for name in found if not OTHERS.match(name)]
    wrong = []
    if len(operations) < 250:
        wrong.append(f"{path}: {len(operations)} operations, where some 300 are expected")
    for name in operations:
        code = found[name]
        leaves = any(re.match(r"\s*ret", line) for line in code)
        may_call = MAY_CALL.match(name) or ("kern_wide" in path and MAY_CALL_WIDE.match(name))
        calls = any(re.match(r"\s*call", line) for line in code) and not may_call
        if leaves or calls or not any(JUMP.search(line) for line in code):
            wrong.append(f"{path}: {name} {'returns' if leaves else 'calls' if calls else 'ends'}")
    return wrong


def main() -> int:
    objdump, *paths = sys.argv[1:]
    wrong = [fault for path in paths for fault in faults(objdump, path)]
    print("\n".join(wrong) if wrong else f"{len(paths)} files: every operation ends in a jump")
    return bool(wrong) or not paths


if __name__ == "__main__":
    sys.exit(main())
