"""The command line of a script with items: ``--list STAGE`` prints their names by importance, with
the seconds for each; ``--item NAME`` runs one and prints its results as JSON lines, each of which
replaces the previous one."""

from __future__ import annotations

import ctypes
import json
import signal
import sys
from collections.abc import Callable, Mapping
from typing import Any

Item = tuple[float, Callable[[], Any]]  # seconds, function that returns the result


def show(result: Mapping[str, Any]) -> None:
    """Prints what is known so far. It is kept if the process is killed later."""
    print(json.dumps(result), flush=True)


def no_torch(error: Exception) -> str:
    """Returns the reason why PyTorch is skipped, from its import error. A broken install may raise
    anything."""
    if isinstance(error, ModuleNotFoundError) and error.name == "torch":
        return f"no PyTorch: {error}"
    return f"torch cannot be imported: {type(error).__name__}: {error}"


def _end_with_the_runner() -> None:
    """On Linux, ends this process if the runner is killed, so that it does not stay on the card."""
    set_parent_death_signal = 1
    library = ctypes.CDLL(None)
    if hasattr(library, "prctl"):
        library.prctl(set_parent_death_signal, signal.SIGKILL)


def main(stages: Mapping[str, Callable[[], Mapping[str, Item]]]) -> int:
    """Runs the command line. ``stages`` returns the items of each stage."""
    how, name = (*sys.argv[1:], "", "")[:2]
    if how == "--list" and name in stages:
        for item, (seconds, _) in stages[name]().items():
            print(f"{item}\t{seconds:g}")
        return 0
    if how == "--item":
        _end_with_the_runner()
        for items in stages.values():
            if name in (found := items()):
                show(found[name][1]())
                return 0
        print(f"there is no item {name!r}", file=sys.stderr)
        return 2
    print(f"usage: {sys.argv[0]} --list {'|'.join(stages)} | --item NAME", file=sys.stderr)
    return 2
