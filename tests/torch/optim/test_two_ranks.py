"""The drop-in under DistributedDataParallel: both ranks have the same bits, near PyTorch's."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

LIMIT_S = 120  # for a process that waits for one that is gone


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
    for apart in (False, True):
        first, second = (torch.load(tmp_path / f"rank{k}-{apart}.pt") for k in range(2))
        for x, y, z in zip(first["ours"], second["ours"], first["torch"], strict=True):
            assert torch.equal(x, y)
            torch.testing.assert_close(x, z)
