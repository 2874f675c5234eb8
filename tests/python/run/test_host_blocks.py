"""Counts, with the compiler's help, the basic blocks that C code executes around a run: their
number is linear in the number of arrays, not quadratic. Builds the extension again, under
build/counted."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
BUILD = ROOT / "build" / "counted"

STEPS = """
import ctypes, json
import numpy as np
import cutback as cb
from cutback import _native

cb.set_num_threads(1)
blocks = ctypes.CDLL(_native.__file__).counted_blocks
blocks.restype = ctypes.c_uint64
loss = lambda p: (p[0] * p[1]).sum()
kinds = {
    "forward": lambda: cb.compile(loss, argnums=None),
    "value_and_grad": lambda: cb.value_and_grad(loss),
    "SGD": lambda: cb.compile(loss, optimizer=cb.optim.SGD(lr=1e-3, momentum=0.9)),
    "AdamW": lambda: cb.compile(loss, optimizer=cb.optim.AdamW(lr=1e-3)),
}
counts = {}
for kind, make in kinds.items():
    counts[kind] = []
    for n in (512, 1024, 2048):
        params, step = [np.ones(3, np.float32) for _ in range(n)], make()
        for _ in range(2):
            results = step(params)
        before = blocks()
        step(params)
        counts[kind].append(blocks() - before)
print(json.dumps(counts))
"""


def build() -> Path:
    """Returns a folder with the package and the counting extension."""
    options = ["-DCB_PYTHON=ON", "-DCB_COUNTED=ON", "-DCB_TESTS=OFF"]
    options.append(f"-DPython_EXECUTABLE={sys.executable}")
    commands = [
        ["cmake", "-S", str(ROOT), "-B", str(BUILD), *options],
        ["cmake", "--build", str(BUILD), "--target", "_native_counted", "--parallel", "2"],
    ]
    for command in commands:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
    stage = BUILD / "python"
    shutil.rmtree(stage, ignore_errors=True)
    shutil.copytree(ROOT / "python" / "cutback", stage / "cutback")
    (extension,) = (BUILD / "counted").glob("_native*.so")
    shutil.copy(extension, stage / "cutback")
    return stage


@pytest.mark.very_slow
def test_blocks_grow_with_leaves() -> None:
    environment = os.environ | {"PYTHONPATH": str(build())}
    command = [sys.executable, "-c", STEPS]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    for kind, (few, more, most) in json.loads(done.stdout).items():
        assert few > 512, kind  # each array is visited, so the counter works
        counts = kind, few, more, most
        # Memory ranges are sorted if an address changed, so it is n log n, not n.
        assert more < 2.6 * few and most < 2.6 * more, counts
        assert most < 2048 * 500, counts
