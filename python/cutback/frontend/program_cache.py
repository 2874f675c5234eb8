"""A cache for the compiled programs of a step, with a limit on their bytes."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from typing import Generic, Protocol, TypeVar

DEFAULT = "256MiB"


class Sized(Protocol):
    """An object that knows how many bytes it holds."""

    @property
    def nbytes(self) -> int:
        """Bytes of memory that it holds now."""


Held = TypeVar("Held", bound=Sized)


class ProgramCache(Generic[Held]):
    """A dict of programs. If they hold more than ``limit`` bytes together, the least recently used
    ones are dropped. The one added last is always kept.

    Args:
        limit: limit in bytes.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._programs: OrderedDict[Hashable, Held] = OrderedDict()  # the latest last

    def __len__(self) -> int:
        return len(self._programs)

    def get(self, key: Hashable) -> Held | None:
        """Returns the program of ``key`` and marks it as used last, or returns None."""
        program = self._programs.get(key)
        if program is not None:
            self._programs.move_to_end(key)
        return program

    def add(self, key: Hashable, program: Held) -> list[Held]:
        """Adds a program, or replaces that of ``key``. Returns the programs that were dropped or
        replaced."""
        replaced = self._programs.pop(key, None)
        gone = [] if replaced is None else [replaced]
        self._programs[key] = program
        held = self.nbytes  # counted again, because the first run of a program adds to its bytes
        while held > self.limit and len(self._programs) > 1:
            _, oldest = self._programs.popitem(last=False)
            held -= oldest.nbytes
            gone.append(oldest)
        return gone

    def clear(self) -> None:
        """Drops all programs."""
        self._programs.clear()

    @property
    def nbytes(self) -> int:
        """Bytes that all programs hold."""
        return sum(program.nbytes for program in self._programs.values())
