"""Installs nothing: front ends are used as users install them. ``make test-frontends`` runs these
tests; without the packages nothing here is collected."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

HERE = Path(__file__).parent
NEEDED = ("torch", "transformers", "accelerate", "lightning", "timm", "peft")


def _has(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:
        return False


if not all(map(_has, NEEDED)):
    collect_ignore_glob = ["test_*.py"]
else:
    import torch

    sys.path[:0] = [str(HERE), str(HERE.parent / "torch"), str(HERE.parent / "reference")]
    import vision_operators

    vision_operators.define()

os.environ.setdefault("HF_HUB_OFFLINE", "1")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks these tests as slow and lets front ends warn about themselves. Our warnings stay
    errors, except the one in a first step that runs before all graphs of a model are known, and the
    one about scratch that plans do not count."""
    filters = (
        "default",
        "error:.*budget",
        "ignore:the model was split into",
        "ignore:kernels take scratch",
    )
    for item in items:
        if HERE in Path(item.path).parents:
            item.add_marker(pytest.mark.very_slow)
            item.add_marker(pytest.mark.filterwarnings(*filters))


@pytest.fixture(autouse=True)
def fresh_compiler() -> Iterator[None]:
    torch._dynamo.reset()
    torch.manual_seed(0)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
