"""Fixtures for tests of eager regions."""

from __future__ import annotations

from typing import Any

import pytest


@pytest.fixture(scope="module")
def imports_of_a_first_use() -> None:
    """Imports modules first, so that tests which count remaining objects do not see them."""
    from eager_tools import first_use

    first_use()


@pytest.fixture
def x() -> Any:
    import torch

    torch.manual_seed(0)
    return torch.randn(6, 6)
