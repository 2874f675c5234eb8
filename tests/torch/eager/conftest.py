"""What tests of eager regions share."""

from __future__ import annotations

from typing import Any

import pytest


@pytest.fixture(scope="module")
def imports_of_a_first_use() -> None:
    """What counts the objects that are left comes after them."""
    from eager_tools import first_use

    first_use()


@pytest.fixture
def x() -> Any:
    import torch

    torch.manual_seed(0)
    return torch.randn(6, 6)
