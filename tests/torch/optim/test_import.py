"""The optimizers are imported with the bridge, as ``torch.optim`` is with ``torch``."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytest.importorskip("torch")


@pytest.mark.very_slow
def test_optimizers_come_with_the_bridge() -> None:
    asked = (
        "import cutback.torch as ct, torch; print(issubclass(ct.optim.AdamW, torch.optim.AdamW))"
    )
    done = subprocess.run([sys.executable, "-c", asked], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "True"
