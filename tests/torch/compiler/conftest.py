"""Fixtures for tests of compiled models."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest


@pytest.fixture
def agrees(ran: Counter[str], same_bits: Callable[..., bool]) -> Callable[..., list[Any]]:
    """Provides agrees(model, *inputs): the model compiled under all budgets gives eager mode's
    bits. Returns the compiled modules."""
    from agreement import agreement

    return agreement(ran, same_bits)
