"""Front ends as users install them. Run by ``make test-frontends``; without the packages nothing
here is collected."""

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
    """These tests are slow, and front ends may warn about themselves. Our warnings stay errors,
    except that of a first step, which runs before all graphs of a model are known, and that of
    scratch, which plans do not count."""
    filters = (
        "default",
        "error:.*budget",
        "ignore:the model falls into",
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
