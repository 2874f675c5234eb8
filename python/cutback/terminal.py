"""Terminal output of the commands: text, JSON, one-line errors, and the progress of a search."""

from __future__ import annotations

import argparse
import io
import json
import os
import re
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, Protocol

from . import files
from .budgets import text
from .errors import BudgetError


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
        """Index of the budget that the plan is for."""


class CommandParser(argparse.ArgumentParser):
    """Parses the arguments of one command. For an unknown option it shows the usage of this
    command; argparse would show that of all commands."""

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parses the arguments; exits if one is unknown, unless a shell asks for completions."""
        options, unknown = super().parse_known_args(args, namespace)
        if unknown and "_ARGCOMPLETE" not in os.environ:
            self.error(f"unrecognized arguments: {' '.join(unknown)}")
        return options, unknown


def print_text(what: str) -> None:
    """Prints text. Control characters, which may come from a file, are escaped."""
    sys.stdout.write(files.shown(what.rstrip("\n")) + "\n")


def print_json(what: str) -> None:
    """Prints JSON with control characters escaped, so that it cannot affect the terminal."""
    what = files.SHOWN.sub(lambda found: json.dumps(found[0])[1:-1], what.rstrip("\n"))
    sys.stdout.write(what + "\n")


def tell(error: Exception) -> None:
    """Prints an error on one line of standard error. On a terminal it begins in red, unless the
    environment variable ``NO_COLOR`` is set."""
    text = error.in_options if isinstance(error, BudgetError) else str(error)
    text = re.sub("^budget=", "--budget ", text)  # as it is written here
    if isinstance(error, OSError) and error.strerror:  # without the errno, like other commands
        text = error.strerror if error.filename is None else f"{error.filename}: {error.strerror}"
    what = files.one_line(" ".join(text.split()) or type(error).__name__)
    coloured = sys.stderr.isatty() and not os.environ.get("NO_COLOR")
    name = "\x1b[1;31mcutback:\x1b[0m" if coloured else "cutback:"
    sys.stderr.write(f"{name} {what}\n")


def exit_status(command: Callable[[], int]) -> int:
    """Runs a command and returns its exit status. After an error, prints it and returns 2."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # the program was started with it closed
            setattr(sys, name, io.StringIO())
    try:
        status = command()
        sys.stdout.flush()
        return status
    except BrokenPipeError:  # the reader, such as head, has closed the pipe
        return 0
    except (OSError, ValueError, TypeError, NotImplementedError, MemoryError) as error:
        tell(error)
        return 2
    except KeyboardInterrupt:
        sys.stderr.write("cutback: interrupted\n")
        return 130
    finally:
        try:
            sys.stdout.flush()
        except OSError:  # has been dealt with; Python would print it when the program ends
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _told(best: Best | None, budgets: int) -> str:
    if best is None:
        return ""
    which = f", budget {best.budget + 1} of {budgets}" if budgets > 1 else ""
    found = f"best {text(best.bytes)}, {100 * best.extra:+.1f} %, gap {100 * best.gap:.1f} %"
    return f"{which}: {found}"


def _columns() -> int:
    """Returns the width of the terminal, or 0 where it is unknown, as in a notebook."""
    try:
        return os.get_terminal_size(sys.stderr.fileno()).columns
    except (AttributeError, OSError, ValueError):  # io.UnsupportedOperation is both of the latter
        return 0


def is_watched() -> bool:
    """Returns True if a user sees standard error as it is written: on a terminal, or in a
    notebook."""
    stream = sys.stderr
    if type(stream).__module__.startswith("ipykernel"):
        return True
    try:  # programs replace sys.stderr by objects that may lack isatty
        return stream.isatty()
    except (AttributeError, ValueError):  # ValueError: the stream is closed
        return False


class _Search:
    """The progress of a search: shows the best plan so far, and lets Ctrl-C end the search with it.

    Args:
        budgets: number of budgets to search for.
        after: seconds until the progress line appears.
        only_shown: Ctrl-C ends the search only while the line shows a plan; otherwise it interrupts
            the program as usual.
    """

    def __init__(self, budgets: int, after: float, only_shown: bool) -> None:
        self.budgets, self.after, self.only_shown = budgets, after, only_shown
        self.watched, self.stop = is_watched(), False
        self.offers = False  # the line shows a plan, which Ctrl-C would accept
        self.wide = 0  # length of the line that is shown
        self.before = signal.getsignal(signal.SIGINT)

    def interrupt(self, number: int, frame: FrameType | None) -> None:
        """Handles Ctrl-C."""
        if not self.stop and (self.offers or not self.only_shown):
            self.stop = True
        elif callable(self.before):  # Python's default handler raises KeyboardInterrupt
            self.before(number, frame)
        elif self.before != signal.SIG_IGN:
            raise KeyboardInterrupt

    def progress(self, seconds: float, best: Best | None) -> bool:
        """Updates the progress line. Returns True if the search should end."""
        if self.watched and seconds >= self.after:
            self.offers = best is not None
            self._write(self._line(seconds, best))
        return self.stop

    def _line(self, seconds: float, best: Best | None) -> str:
        """Returns the longest form of the line that the terminal does not fold: a line that is
        folded cannot be replaced."""
        ends = "(Ctrl-C: take it) " if self.offers else "(Ctrl-C: end) "
        short = f"{seconds:.1f} s{_told(best, self.budgets)} {ends}"
        shorter = "" if best is None else f": best {text(best.bytes)}"
        forms = f"searching, {short}", short, f"{seconds:.0f} s{shorter} {ends}"
        columns = _columns() or len(forms[0]) + 1
        return next((form for form in forms if len(form) < columns), forms[-1][: columns - 1])

    def _write(self, line: str) -> None:
        sys.stderr.write("\r" + line.ljust(self.wide))  # notebooks support no escape to erase
        sys.stderr.flush()
        self.wide = len(line)

    def end(self) -> None:
        """Erases the line. After Ctrl-C, says that the best plan is used."""
        if self.wide:
            self._write("")
            sys.stderr.write("\r")
        if self.stop and self.offers:
            sys.stderr.write("Ctrl-C ended the search; using the best plan found so far\n")


@contextmanager
def interruptible(
    budgets: int = 1, *, after: float = 0.5, only_shown: bool = False
) -> Iterator[Callable[[float, Best | None], bool]]:
    """Yields a progress callback for a search over this number of budgets. On a terminal and in a
    notebook it shows the seconds and the best plan. The first Ctrl-C ends the search, the second
    one ends the program. :class:`_Search` describes ``after`` and ``only_shown``."""
    search = _Search(budgets, after, only_shown)
    # Only the main thread may set signal handlers. None means that the current handler was not set
    # from Python, so it could not be restored.
    handles = threading.current_thread() is threading.main_thread() and search.before is not None
    if handles:
        signal.signal(signal.SIGINT, search.interrupt)
    try:
        yield search.progress
    finally:
        if handles:
            signal.signal(signal.SIGINT, search.before)
        search.end()
