"""What the commands print: text and JSON, errors on one line, and how far a search is."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Protocol

from . import files
from .budgets import text


class Best(Protocol):
    """The best plan of a search so far (``planner.search.Best``)."""

    @property
    def bytes(self) -> int:
        """Bytes in the budget's measure."""

    @property
    def extra(self) -> float:
        """Extra time, relative to running everything once."""

    @property
    def gap(self) -> float:
        """Time above the lower bound, relative to the bound."""

    @property
    def budget(self) -> int:
        """Index of the budget that it is for."""


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
    text = str(error)
    if isinstance(error, OSError) and error.filename is not None and error.strerror:
        text = f"{error.filename}: {error.strerror}"  # as other commands say it, without a number
    what = files.one_line(" ".join(text.split()) or type(error).__name__)
    coloured = sys.stderr.isatty() and not os.environ.get("NO_COLOR")
    name = "\x1b[1;31mcutback:\x1b[0m" if coloured else "cutback:"
    sys.stderr.write(f"{name} {what}\n")


def _told(best: Best | None, budgets: int) -> str:
    if best is None:
        return ""
    which = f", budget {best.budget + 1} of {budgets}" if budgets > 1 else ""
    found = f"best {text(best.bytes)}, {100 * best.extra:+.1f} %, gap {100 * best.gap:.1f} %"
    return f"{which}: {found}"


def is_watched() -> bool:
    """True if somebody sees standard error as it is written: on a terminal, or in a notebook."""
    stream = sys.stderr
    if type(stream).__module__.startswith("ipykernel"):
        return True
    try:  # programs put objects in its place that only write
        return stream.isatty()
    except (AttributeError, ValueError):  # ValueError: it is closed
        return False


class _Search:
    """A search that shows how far it is, and that Ctrl-C ends with its best plan.

    Args:
        budgets: number of budgets that it is for.
        after: seconds until it is shown.
        only_shown: Ctrl-C does what it does elsewhere, unless a plan to take is shown.
    """

    def __init__(self, budgets: int, after: float, only_shown: bool) -> None:
        self.budgets, self.after, self.only_shown = budgets, after, only_shown
        self.watched, self.stop = is_watched(), False
        self.offers = False  # a plan is shown, which Ctrl-C takes
        self.wide = 0  # letters of the line that is shown
        self.before = signal.getsignal(signal.SIGINT)

    def interrupt(self, number: int, frame: FrameType | None) -> None:
        """Handles Ctrl-C."""
        if not self.stop and (self.offers or not self.only_shown):
            self.stop = True
        elif callable(self.before):  # Python's own raises KeyboardInterrupt
            self.before(number, frame)
        elif self.before != signal.SIG_IGN:
            raise KeyboardInterrupt

    def progress(self, seconds: float, best: Best | None) -> bool:
        """Shows a line; true if the search is to end."""
        if self.watched and seconds >= self.after:
            self.offers = best is not None
            ends = "take it" if self.offers else "end"
            self._write(f"searching, {seconds:.1f} s{_told(best, self.budgets)} (Ctrl-C: {ends}) ")
        return self.stop

    def _write(self, line: str) -> None:
        sys.stderr.write("\r" + line.ljust(self.wide))  # notebooks know no other way to erase
        sys.stderr.flush()
        self.wide = len(line)

    def end(self) -> None:
        """Erases the line. After Ctrl-C, says what was taken."""
        if self.wide:
            self._write("")
            sys.stderr.write("\r")
        if self.stop and self.offers:
            sys.stderr.write("Ctrl-C ended the search: this is the best plan that it found\n")


@contextmanager
def interruptible(
    budgets: int = 1, *, after: float = 0.5, only_shown: bool = False
) -> Iterator[Callable[[float, Best | None], bool]]:
    """Yields a progress callback for a search over this number of budgets. It shows the seconds and
    the best plan on a terminal and in a notebook. The first Ctrl-C ends the search, the second one
    the program. ``after`` and ``only_shown`` are those of :class:`_Search`."""
    search = _Search(budgets, after, only_shown)
    # Other threads get no signals. A handler that is not Python's, None, could not be put back.
    handles = threading.current_thread() is threading.main_thread() and search.before is not None
    if handles:
        signal.signal(signal.SIGINT, search.interrupt)
    try:
        yield search.progress
    finally:
        if handles:
            signal.signal(signal.SIGINT, search.before)
        search.end()
