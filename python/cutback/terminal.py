"""What the commands print: text and JSON, errors on one line, and how far a search is."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from . import files
from .budgets import text

if TYPE_CHECKING:
    from .planner.search import Best


def print_text(what: str) -> None:
    """Prints with control characters escaped, which may come from a file."""
    sys.stdout.write(files.shown(what.rstrip("\n")) + "\n")


def print_json(what: str) -> None:
    """Prints JSON with control characters escaped, so that it cannot affect the terminal."""
    what = files.SHOWN.sub(lambda found: json.dumps(found[0])[1:-1], what.rstrip("\n"))
    sys.stdout.write(what + "\n")


def tell(error: Exception) -> None:
    """Prints an error on one line of standard error. On a terminal it begins in red, unless the
    environment variable ``NO_COLOR`` is set."""
    what = files.one_line(" ".join(str(error).split()) or type(error).__name__)
    coloured = sys.stderr.isatty() and not os.environ.get("NO_COLOR")
    name = "\x1b[1;31mcutback:\x1b[0m" if coloured else "cutback:"
    sys.stderr.write(f"{name} {what}\n")


def _told(best: Best | None, budgets: int) -> str:
    if best is None:
        return ""
    which = f", budget {best.budget + 1} of {budgets}" if budgets > 1 else ""
    found = f"best {text(best.bytes)}, {100 * best.extra:+.1f} %, gap {100 * best.gap:.1f} %"
    return f"{which}: {found}"


@contextmanager
def interruptible(budgets: int = 1) -> Iterator[Callable[[float, Best | None], bool]]:
    """Yields a progress function for a search over this number of budgets. It shows seconds and the
    best plan on a terminal. The first Ctrl-C ends the search, a second one the program."""
    stop = False
    shown = sys.stderr.isatty()

    def interrupt(number: int, frame: object) -> None:
        nonlocal stop
        if stop:
            raise KeyboardInterrupt
        stop = True

    def progress(seconds: float, best: Best | None) -> bool:
        if shown and seconds >= 0.5:
            line = f"searching, {seconds:.1f} s{_told(best, budgets)} (Ctrl-C: take it) "
            sys.stderr.write(f"\r\x1b[K{line}")
            sys.stderr.flush()
        return stop

    before = signal.signal(signal.SIGINT, interrupt)
    try:
        yield progress
    finally:
        signal.signal(signal.SIGINT, before)
        if shown:
            sys.stderr.write("\r\x1b[K")
