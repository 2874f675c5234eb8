"""Lists in documents match the code."""

from __future__ import annotations

import inspect
import json
import re
from pathlib import Path

import pytest

from cutback import _native, optim
from cutback.run.executable import Executable

ROOT = Path(__file__).parents[3]


def listed(path: str, pattern: str) -> list[str]:
    """Returns the quoted names in the pattern's only match in a file."""
    (found,) = re.findall(pattern, (ROOT / path).read_text(encoding="utf-8"))
    return re.findall(r'["`](\w+)["`]', found)


@pytest.mark.parametrize(
    ("path", "pattern"),
    [
        ("csrc/include/cutback.h", r"Names of the backends: (.*?)\. NULL"),
        ("ARCHITECTURE.md", r"five backends behind .*?: (`cpu`.*?`cuda`)\."),
    ],
)
def test_backends(path: str, pattern: str) -> None:
    assert sorted(listed(path, pattern)) == sorted(_native.backends())


def test_backends_of_executables() -> None:
    (text,) = re.findall(r"backend: (.*?)\n *device:", inspect.getdoc(Executable) or "", re.DOTALL)
    assert set(re.findall(r'``"(\w+)"``', text)) == set(_native.backends())


def test_optimizers() -> None:
    text = (ROOT / "docs/optim.md").read_text(encoding="utf-8")
    table = text.partition("## The optimizers")[2].partition("\n## ")[0]
    named = set(re.findall(r"`(\w+)`", "".join(re.findall(r"^\| (`.*?) \|", table, re.MULTILINE))))
    others = {"Optimizer", "Outcome", "RecordingError", "Schedule", "foreach", "schedules"}
    assert named == set(optim.__all__) - others


@pytest.mark.parametrize("path", sorted(ROOT.glob("notebooks/*.ipynb")), ids=lambda path: path.stem)
def test_notebooks_show_their_outputs(path: Path) -> None:
    """The site shows the stored outputs. They come from one run from the first cell to the last,
    without what a terminal shows meanwhile."""
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    code = [cell for cell in cells if cell["cell_type"] == "code"]
    assert [cell["execution_count"] for cell in code] == list(range(1, len(code) + 1))
    outputs = [output for cell in code for output in cell["outputs"]]
    assert {output["output_type"] for output in outputs} >= {"stream", "display_data"}
    assert all(output.get("name", "stdout") == "stdout" for output in outputs)
    assert not any(output["output_type"] == "error" for output in outputs)
