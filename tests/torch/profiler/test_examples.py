"""Programs from PyTorch's own texts, with our names, do what those texts say."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

EXAMPLES = Path(__file__).parents[3] / "examples"


def run(name: str, *arguments: str) -> str:
    """Returns the output of an example."""
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / name), *arguments], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.very_slow
def test_policies_and_budget_of_the_article() -> None:
    said = run("torch_seed_checkpoint.py")
    for policy in ("policy 1", "policy 2"):
        (counts,) = re.findall(rf"{policy} +(\d+) +(\d+) +(\d+)", said)
        theirs, contexts, ours = map(int, counts)
        assert contexts == ours == 0  # every product is saved
        assert theirs > 0  # as written, PyTorch saves none
    rows = re.findall(r"^ *(\S+) +([\d.]+) +([\d.]+) +([\d.]+) % +equal$", said, re.MULTILINE)
    assert [row[0] for row in rows] == ["1.0", "0.8", "0.6", "0.5", "min"]
    peaks = [float(row[1]) for row in rows]
    assert peaks == sorted(peaks, reverse=True)
    for row, peak in zip(rows[1:-1], peaks[1:-1], strict=True):
        assert peak <= float(row[0]) * peaks[0]
    assert float(rows[0][3]) == 0 < float(rows[-1][3])


@pytest.mark.very_slow
def test_evonorm() -> None:
    said = run("torch_seed_evonorm.py", "--batch", "1")
    rows = re.findall(r"^(\D.*?\S) +([\d.]+) +([\d.]+) +([\d.]+) +[\d.]+ +equal$", said, re.M)
    assert len(rows) == 8 and said.count("gradients equal\n") == 2
    for size in (rows[:4], rows[4:]):
        saved = [float(row[3]) for row in size]
        assert all(row[1] == row[2] for row in size)  # measured equals planned
        assert saved[2] <= 0.51 * saved[0] and saved[3] < 0.1 * saved[0]
        assert float(size[1][1]) <= 0.86 * float(size[0][1])


def blocks(path: str) -> list[str]:
    text = (EXAMPLES.parent / path).read_text()
    return re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)


def made(seed: int = 0) -> dict[str, object]:
    """Returns the names that the texts assume: a model whose last layer is its loss, with its
    inputs."""
    torch.manual_seed(seed)

    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = torch.nn.ModuleList(torch.nn.Linear(32, 32) for _ in range(6))

        def forward(self, x: torch.Tensor, y: torch.Tensor | None = None) -> torch.Tensor:
            for layer in self.layers:
                x = torch.nn.functional.gelu(layer(x)).sin()
            return ((x - (0 if y is None else y)) ** 2).mean()

    return {"model": Model(), "x": torch.randn(64, 32), "y": torch.randn(64, 32), "torch": torch}


@pytest.mark.parametrize(("path", "number"), [("README.md", 0), ("docs/torch.md", 0)])
def test_the_blocks_of_the_texts(
    path: str,
    number: int,
    capsys: pytest.CaptureFixture,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import cutback.torch

    monkeypatch.chdir(tmp_path)  # the README writes a report
    found, plain = made(), made()
    found["cutback"] = cutback
    exec(blocks(path)[number], found)
    plain["model"](plain["x"], plain["y"]).backward()
    for p, q in zip(found["model"].parameters(), plain["model"].parameters(), strict=True):
        assert torch.equal(p.grad, q.grad)


def test_the_block_about_regions() -> None:
    import cutback.torch

    found, plain = made(), made()
    found |= {"cutback": cutback, "block": found["model"].layers[0]}
    found["policy"] = lambda ctx, op, *a, **k: torch.utils.checkpoint.CheckpointPolicy.MUST_SAVE
    exec(blocks("docs/torch-eager.md")[0], found)
    found["loss"].backward()
    plain["model"](plain["x"]).backward()
    for p, q in zip(found["model"].parameters(), plain["model"].parameters(), strict=True):
        assert torch.equal(p.grad, q.grad)
