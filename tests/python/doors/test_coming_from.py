"""The right-hand cells of docs/coming-from.md run, and give the results of the NumPy cells next to
them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

import cutback as cb
from cutback.nn import functional as F

PAGE = Path(__file__).parents[3] / "docs" / "coming-from.md"
RNG = np.random.default_rng(0)


def layer(x: Any) -> Any:
    return cb.tanh(x) * 2


def loss(params: Any, x: Any) -> Any:
    return (layer(x) @ params["w"]).mean()


ARRAYS = {
    "x": RNG.standard_normal((3, 4)).astype(np.float32),
    "w": RNG.standard_normal((4, 4)).astype(np.float32),
    "mask": RNG.standard_normal((3, 4)) > 0,
    "labels": np.array([0, 3, 1]),
    "index": np.array([[0, 1], [3, 3], [2, 0]]),
}


class Cell(NamedTuple):
    library: str
    inside: bool
    left: str
    right: str


def cells() -> list[Cell]:
    found, library, inside = [], "", False
    for line in PAGE.read_text(encoding="utf-8").splitlines():
        if line.startswith("## "):
            library = line[3:]
        elif line.startswith("Inside a traced"):
            inside = True
        elif line.startswith(("Around a traced", "Dicts, ")):
            inside = False
        elif row := re.fullmatch(r"\| (`.*`) \| `(.*)` \|", line):
            found.append(Cell(library, inside, row[1].strip("`"), row[2]))
    return found


def names() -> dict[str, Any]:
    return {"cb": cb, "F": F, "np": np, "loss": loss, "layer": layer, "f": lambda x: (x**3).sum()}


def inside(arrays: Any, code: str) -> Any:
    return eval(code, {**names(), **arrays})


@pytest.mark.parametrize("cell", cells(), ids=lambda cell: f"{cell.library}: {cell.right}")
def test_right_hand_cells_run(cell: Cell) -> None:
    if not cell.inside:
        params = {"w": ARRAYS["w"].copy()}
        exec(cell.right, {**names(), **ARRAYS, "params": params})
        return
    result = cb.compile(inside, argnums=None)(ARRAYS, cell.right)
    if cell.library == "NumPy":
        want = eval(cell.left, {**names(), **ARRAYS})
        np.testing.assert_allclose(result, want, rtol=1e-5, atol=1e-6)


def test_all_rows_are_read() -> None:
    lines = PAGE.read_text(encoding="utf-8").splitlines()
    rows = [line for line in lines if line.startswith("| `")]
    assert len(cells()) == len(rows) > 60
    assert {cell.library for cell in cells()} == {"NumPy", "PyTorch", "JAX"}
