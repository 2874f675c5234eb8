"""Runs the drop-ins under DistributedDataParallel: both ranks have the same bits, close to
PyTorch's. They are also stepped in the backward, clipped, with a group added midway and a loaded
state."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

LIMIT_S = 300  # for a process whose partner is gone


@pytest.mark.very_slow
@pytest.mark.slow
@pytest.mark.skipif(not torch.distributed.is_available(), reason="no torch.distributed")
def test_two_processes_train_one_model(tmp_path: Path) -> None:
    script = Path(__file__).with_name("two_ranks.py")
    ranks = [
        subprocess.Popen([sys.executable, str(script), str(rank), str(tmp_path)])
        for rank in range(2)
    ]
    try:
        codes = [rank.wait(timeout=LIMIT_S) for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()
    assert codes == [0, 0]
    first, second = (torch.load(tmp_path / f"rank{k}.pt") for k in range(2))
    ways = {key[:2] for key in first}
    assert len(ways) == 20
    for way in ways:
        rows = first[*way, "ours"], second[*way, "ours"], first[*way, "torch"]
        for x, y, z in zip(*rows, strict=True):
            assert torch.equal(x, y), way
            torch.testing.assert_close(x, z, msg=lambda text, way=way: f"{way}: {text}")
