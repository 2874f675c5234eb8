"""PyTorch's operator database: each operator must be recomputed, between operations that are
recomputed too, with the bits of ``torch.compile(backend="aot_eager")``. Exceptions are listed with
the reason (``operator_lists.py``)."""

from __future__ import annotations

import random
from functools import cache
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("expecttest", reason="PyTorch's own tests need it (requirements/torch.txt)")

import operators
from operator_lists import PINNED, REFUSED, UNFILLED

PARTS = 64
"""The whole database takes half an hour: any part runs by itself, ``-k 'part and 17'``."""


@cache
def database() -> list[Any]:
    """Returns PyTorch's list of operators, by name."""
    from torch.testing._internal.common_methods_invocations import op_db

    return sorted(op_db, key=lambda op: op.formatted_name)


def complaint(op: Any, dtype: str, most: int) -> str:
    """Returns what is wrong with one operator, or ""."""
    name = op.formatted_name
    chosen = operators.samples(op, operators.DTYPES[dtype], most)
    if not chosen:
        return ""
    result = operators.check(op.op, chosen, name not in UNFILLED)
    if bool(result.refused) != (name in REFUSED):
        return f"refused: {result.refused or 'no longer'}"
    if result.wrong or result.refused:
        return result.wrong
    why, listed = operators.reason(result), PINNED.get(name, {})
    expected = listed if isinstance(listed, str) else listed.get(dtype, "")
    # with fewer samples, the one that draws (dropout of 0 draws nothing) or fails to compile may be
    # missing
    if why == expected or (most < 3 and (not why or (expected and why == "view"))):
        return ""
    return f"did not run again for {why!r}, listed is {expected!r}; {result}"


def complaints(ops: list[Any], dtypes: list[str], most: int) -> list[str]:
    """Returns what is wrong with some operators."""
    found = []
    for op in ops:
        for dtype in operators.dtypes_of(op, dtypes):
            try:
                said = complaint(op, dtype, most)
            except Exception as error:
                said = f"{type(error).__name__}: {error}"
            if said:
                found.append(f"{op.formatted_name} {dtype}: {said}")
    return found


@pytest.mark.slow
def test_some_operators() -> None:
    """The operators are drawn once with a fixed seed, with one sample of each."""
    some = random.Random(2013).sample(database(), 6)
    assert complaints(some, ["f32"], 1) == []


@pytest.mark.very_slow
@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support is in beta")
@pytest.mark.parametrize("part", range(PARTS))
def test_part_of_all_operators(part: int) -> None:
    """Each operator has three samples, in single, half and complex types."""
    assert complaints(database()[part::PARTS], ["f32", "bf16", "c64"], 3) == []


@pytest.mark.very_slow
def test_lists_name_operators() -> None:
    names = {op.formatted_name for op in database()}
    assert {*PINNED, *REFUSED, *UNFILLED} <= names
