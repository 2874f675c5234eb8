"""The stand-in, opened once for the tests of a process, and left as it was after each."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from client import Driver


@pytest.fixture
def driver() -> Iterator[Driver]:
    opened = Driver()
    yield opened
    opened.recover()
    opened.seed(0)
    opened.set(races=0, unwritten=1, approximate=0, fuel=1 << 36)
    opened.set(capability=90, driver=13000, memory=8 << 30, addresses=15 << 30)
