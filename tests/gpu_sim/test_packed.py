"""Values that are packed as bits on a GPU, and unpacked in the kernels that read them."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

import cutback as cb
from cutback import tree
from cutback.nn import functional as F


def added(p: Any, x: Any) -> Any:
    """Adds ReLUs, of which the backward reads only the signs."""
    for _ in range(4):
        x = x + F.dropout(F.relu(x + p["bias"]), 0.2)
    return x.sum()


def results(loss: Any, args: Any, **options: Any) -> tuple[Any, list[bytes]]:
    step = cb.value_and_grad(loss, **options)
    value, grads = step(*args)
    return step, [np.asarray(leaf).tobytes() for leaf in (value, *tree.flatten(grads)[0])]


@pytest.mark.parametrize("shape", [(96, 48), pytest.param((419, 11), marks=pytest.mark.very_slow)])
@pytest.mark.usefixtures("gpu")
def test_bits_are_unpacked_in_groups(shape: tuple[int, int]) -> None:
    x = np.random.default_rng(1).standard_normal(shape).astype(np.float32)
    x[3, 5] = np.nan
    args = ({"bias": x[0] * np.float32(0.1)}, x)
    step, packed = results(added, args, backend="cuda", packed=True, budget="min")
    assert packed == results(added, args, backend="cuda")[1]
    groups = step.executable.text("program").split("\ngroup ")
    assert any("unpack_bits(" in group and group.count(" = ") > 1 for group in groups)
    kernels = re.split(r"(?=__global__)", step.code("cuda"))
    assert any("/ 8] >> " in kernel for kernel in kernels)
