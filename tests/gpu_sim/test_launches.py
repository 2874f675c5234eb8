"""Compares the launches of a step (``text("launches")``) with the launches that the null driver
received, and times the optimizer's step separately."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import cutback as cb
import null_driver
import nvrtc
from client import BUILD, Driver
from cutback.nn import functional as F

pytestmark = pytest.mark.skipif(nvrtc.library() is None, reason="NVRTC is not installed")

HERE = Path(__file__).parent
CHILD = """
import json, sys
sys.path[:0] = [sys.argv[1]]
import numpy as np
import cutback as cb
import null_driver
import test_launches
step, arguments = test_launches.training_step()
step(*arguments)
null = null_driver.NullDriver()
null.clear()
step(*arguments)
seen = [(e.kernel, e.grid, e.block[0]) for e in null.launches()]
print(json.dumps({"seen": seen, "told": json.loads(step.executable.text("launches"))}))
"""


def training_step(backend: str = "cuda") -> tuple[cb.Step, tuple[Any, ...]]:
    def loss(w: Any, scale: Any, x: Any) -> Any:
        return (F.layer_norm(F.gelu(x @ w), (96,), scale) ** 2).mean()

    rng = np.random.default_rng(2)
    w, scale, x = (rng.standard_normal(n, np.float32) for n in ((128, 96), (96,), (200, 128)))
    optimizer = cb.optim.AdamW(lr=1e-3)
    return cb.compile(loss, optimizer=optimizer, argnums=(0, 1), backend=backend), (w, scale, x)


def launches_of_groups(step: cb.Step) -> list[int]:
    """Returns the number of launches of each group of a step."""
    groups = [x["group"] for x in json.loads(step.executable.text("launches"))["launches"]]
    return [groups.count(group) for group in sorted(set(groups))]


def test_launches_are_those_that_the_driver_was_asked_for() -> None:
    variables = os.environ | {
        "CUTBACK_CUDA_DRIVER": str(null_driver.build()),
        "CUTBACK_NVRTC": str(nvrtc.library()),
        "CUTBACK_CUBLASLT": "none",
        "CUTBACK_CACHE_DIR": str(BUILD / "cutback_kernels"),
    }
    command = [sys.executable, "-c", CHILD, str(HERE)]
    done = subprocess.run(command, env=variables, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    told = [(x["kernel"], x["grid"], x["threads"]) for x in found["told"]["launches"]]
    update = [(x["kernel"], x["threads"]) for x in found["told"]["update"]]
    seen = [tuple(x) for x in found["seen"]]
    assert len(told) > 3 and seen[: len(told)] == told
    assert [(name, threads) for name, _, threads in seen[len(told) :]] == update
    chunks = 3 + 1  # of 4,096 elements: 128 x 96 and 96
    assert seen[-1] == ("cb_optim_step", [chunks, 1, 1], 256)
    groups = [x["group"] for x in found["told"]["launches"]]
    assert groups == sorted(groups) and groups[0] == 0
    for kernel in [*found["told"]["launches"], *found["told"]["update"]]:
        assert kernel["registers"] == 32 and kernel["local_bytes"] == 0
        assert 0 < kernel["blocks_per_multiprocessor"] <= 65536 // (32 * kernel["threads"])


def test_the_gradient_of_a_norm_uses_the_whole_device(gpu: Driver) -> None:
    """The gradient has a kernel over rows; one over columns, with a block for every 64 columns of
    each of 64 blocks of rows; and one that adds up its blocks. Nothing runs here."""

    def loss(x: Any, w: Any, b: Any, y: Any, z: Any) -> Any:
        return (((F.layer_norm(x, (3072,), w, b) * y) @ z) ** 2).sum()

    shapes = ((8192, 3072), (3072,), (3072,), (8192, 3072), (3072, 4))
    step = cb.value_and_grad(loss, argnums=(0, 1, 2), backend="cuda")
    step.prepare(*(np.broadcast_to(np.float32(1), shape) for shape in shapes))
    launches = json.loads(step.executable.text("launches"))["launches"]
    last = [x for x in launches if x["group"] == launches[-1]["group"]]
    assert [x["grid"] for x in last[-2:]] == [[48, 64, 1], [48, 2, 1]]
    assert len(last) == 3


@pytest.mark.parametrize(("columns", "kernels"), [(1024, 2), (512, 3)])
def test_rows_add_up_the_leaves_of_totals_where_they_cut_none(
    gpu: Driver, columns: int, kernels: int
) -> None:
    step = cb.compile(lambda x: (F.softmax(x) ** 2).sum(), argnums=None, backend="cuda")
    step.prepare(np.ones((8, columns), np.float32))
    assert launches_of_groups(step) == [kernels]


def test_a_sum_of_everything_is_part_of_the_group_of_its_rows(gpu: Driver) -> None:
    """The softmax takes one kernel and the sum two; the sum's leaves are cut at rows of 128
    elements."""
    step = cb.compile(lambda x: (F.softmax(x) ** 2).sum(), argnums=None, backend="cuda")
    step.prepare(np.ones((5, 128), np.float32))
    assert launches_of_groups(step) == [3]


@pytest.mark.parametrize(
    "entry", ["cuFuncGetAttribute", "cuOccupancyMaxActiveBlocksPerMultiprocessor"]
)
def test_a_call_that_fails_is_named(gpu: Driver, entry: str) -> None:
    step, arguments = training_step()
    step(*arguments)
    gpu.fail(entry, 3, 719)
    with pytest.raises(RuntimeError, match=entry):
        step.executable.text("launches")
    launches = json.loads(step.executable.text("launches"))["launches"]
    assert max(x["shared_bytes"] for x in launches) > 0


def test_other_backends_launch_nothing() -> None:
    step, arguments = training_step("cpu")
    step.prepare(*arguments)
    with pytest.raises(NotImplementedError, match="cpu"):
        step.executable.text("launches")


@pytest.mark.parametrize("backend", ["cpu", "cuda"])
def test_the_update_has_a_part_of_the_time(gpu: Driver, backend: str) -> None:
    step, arguments = training_step(backend)
    step(*arguments)
    assert step.stats is not None
    assert 0 < step.executable.update_seconds < step.stats.seconds
    alone = cb.value_and_grad(lambda x: (x * x).sum(), backend=backend)
    alone(np.ones(5, np.float32))
    run = alone.executable
    assert run.update_seconds == 0
