"""The null driver from Python: builds it, counts calls, reads and clears its log.

driver = NullDriver()
driver.clear()
...  # what is measured, with CUTBACK_CUDA_DRIVER=str(build())
driver.calls("cuLaunchKernel"), driver.counts(), driver.events()
"""

from __future__ import annotations

import csv
import ctypes
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import client

LIBRARY = client.BUILD / "null" / "libcuda.so.1"


def build() -> Path:
    """Builds the driver if it is out of date; returns its path, for CUTBACK_CUDA_DRIVER."""
    client.build()
    return LIBRARY


class Event(NamedTuple):
    """One recorded call. Times in nanoseconds of CLOCK_MONOTONIC; ``kernel`` is empty unless the
    call is a launch."""

    begin_ns: int
    took_ns: int
    entry: str
    kernel: str
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    shared: int
    stream: int
    address: int
    bytes: int
    result: int


class NullDriver:
    """The library, opened in this process. It shares its counts with whatever else has opened it,
    such as cutback."""

    def __init__(self) -> None:
        self.library = ctypes.CDLL(str(build()))
        self.library.null_entry.restype = ctypes.c_char_p
        self.library.null_calls.restype = ctypes.c_int64
        for name in ("null_nanoseconds", "null_live_bytes", "null_peak_bytes"):
            getattr(self.library, name).restype = ctypes.c_uint64

    def entries(self) -> list[str]:
        """Returns the exported names of all entries of the API."""
        names: list[str] = []
        while name := self.library.null_entry(len(names)):
            names.append(name.decode())
        return names

    def set(self, **settings: int) -> None:
        """Sets ``log``, ``memory``, ``capability``, ``version`` or ``registers`` (see
        null/hooks.h)."""
        for name, value in settings.items():
            if self.library.null_set(name.encode(), ctypes.c_int64(value)):
                raise ValueError(f"the null driver has no setting {name!r}")

    def calls(self, entry: str) -> int:
        """Counts the calls of an entry since :meth:`clear`; the name may have its version."""
        for name in (f"{entry}_v2", entry):
            if (n := int(self.library.null_calls(name.encode()))) >= 0:
                return n
        raise ValueError(f"the null driver has no entry {entry!r}")

    def counts(self) -> dict[str, int]:
        """Returns how often each entry was called since :meth:`clear`."""
        found = {name: self.calls(name) for name in self.entries()}
        return {name: n for name, n in found.items() if n}

    @property
    def seconds(self) -> float:
        """Returns the time that calls spent in the driver since :meth:`clear`."""
        return 1e-9 * float(self.library.null_nanoseconds())

    @property
    def live_bytes(self) -> int:
        """Number of bytes that are allocated now."""
        return int(self.library.null_live_bytes())

    @property
    def peak_bytes(self) -> int:
        """Largest number of bytes that were allocated at once since :meth:`clear`."""
        return int(self.library.null_peak_bytes())

    def clear(self) -> None:
        """Empties the log and sets the counts to zero."""
        self.library.null_clear()

    def dump(self, path: Path) -> None:
        """Writes the log as tab-separated text."""
        if self.library.null_dump(str(path).encode()):
            raise OSError(f"the log of the null driver could not be written to {path}")

    def events(self) -> list[Event]:
        """Returns the log since :meth:`clear`."""
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "log.tsv"
            self.dump(path)
            return list(read(path))

    def launches(self) -> list[Event]:
        """Returns the launches since :meth:`clear`."""
        return [event for event in self.events() if event.kernel]


def read(path: Path) -> Iterator[Event]:
    """Yields the calls in a file written by :meth:`NullDriver.dump`."""
    with path.open(newline="") as file:
        for row in csv.DictReader(file, delimiter="\t"):
            grid = int(row["grid_x"]), int(row["grid_y"]), int(row["grid_z"])
            block = int(row["block_x"]), int(row["block_y"]), int(row["block_z"])
            names = ("shared", "stream", "address", "bytes", "result")
            numbers = (int(row[name]) for name in names)
            times = int(row["begin_ns"]), int(row["took_ns"])
            yield Event(*times, row["entry"], row["kernel"], grid, block, *numbers)
