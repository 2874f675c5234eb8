"""The command line of a script with items: ``--list STAGE`` prints their names in order of worth,
each with the seconds it is given; ``--item NAME`` runs one and prints its results as JSON, a line
each, where a later line replaces the earlier ones."""

from __future__ import annotations

import ctypes
import json
import signal
import sys
from collections.abc import Callable, Mapping
from typing import Any

Item = tuple[float, Callable[[], Any]]  # seconds, what returns the result


def show(result: Mapping[str, Any]) -> None:
    """Prints what is known so far: it is kept if the process is killed later."""
    print(json.dumps(result), flush=True)


def no_torch(error: Exception) -> str:
    """Why PyTorch is left out, from what its import raised: a broken one may raise anything."""
    if isinstance(error, ModuleNotFoundError) and error.name == "torch":
        return f"no PyTorch: {error}"
    return f"torch cannot be imported: {type(error).__name__}: {error}"


def _end_with_the_runner() -> None:
    """On Linux: a runner that is killed does not leave this process on the card."""
    set_parent_death_signal = 1
    library = ctypes.CDLL(None)
    if hasattr(library, "prctl"):
        library.prctl(set_parent_death_signal, signal.SIGKILL)


def main(stages: Mapping[str, Callable[[], Mapping[str, Item]]]) -> int:
    """``stages`` gives the items of each stage."""
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
