"""The compiled programs that a step keeps, bounded by their bytes."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from typing import Generic, Protocol, TypeVar

DEFAULT = "256MiB"


class Sized(Protocol):
    """Something that knows how many bytes it holds."""

    @property
    def nbytes(self) -> int:
        """Bytes of memory that it holds now."""


Held = TypeVar("Held", bound=Sized)


class ProgramCache(Generic[Held]):
    """A dict of programs. When they hold more than ``limit`` bytes together, those that were used
    least recently are dropped. The one that was added last always stays.

    Args:
        limit: bytes.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._programs: OrderedDict[Hashable, Held] = OrderedDict()  # the latest last

    def __len__(self) -> int:
        return len(self._programs)

    def get(self, key: Hashable) -> Held | None:
        """The program under ``key``, which becomes the one used last; None: it is not there."""
        program = self._programs.get(key)
        if program is not None:
            self._programs.move_to_end(key)
        return program

    def add(self, key: Hashable, program: Held) -> list[Held]:
        """Adds a program, or replaces the one under ``key``. Returns those that were dropped or
        replaced."""
        replaced = self._programs.pop(key, None)
        gone = [] if replaced is None else [replaced]
        self._programs[key] = program
        held = self.nbytes  # counted again: the first run of a program adds to its bytes
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
