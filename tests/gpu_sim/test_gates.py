"""The machine code of kernels for sm_80, 90, 100 and 120 matches the reviewed code (gates.json). A
changed number must be inspected, and recorded by `python tests/gpu_sim/gates.py`. The code must
have no stack and no spills, and 16-byte accesses where arrays allow them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import gates
import nvrtc
from client import Driver, build


@pytest.fixture
def folder(driver: Driver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    compiler = nvrtc.library()
    if compiler is None or gates.disassembler() is None:
        pytest.skip("no NVRTC or no nvdisasm (pip install nvidia-cuda-nvrtc nvidia-cuda-nvdisasm)")
    monkeypatch.setenv("CUTBACK_CUDA_DRIVER", str(build()))
    monkeypatch.setenv("CUTBACK_NVRTC", str(compiler))
    monkeypatch.setenv("CUTBACK_CUBLASLT", "none")
    monkeypatch.setenv("CUTBACK_CUDA_CODE", "ptx")
    monkeypatch.setenv("CUTBACK_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("CUTBACK_CUDA_KEEP_SOURCES", "1")
    return tmp_path


@pytest.mark.parametrize(
    "architecture",
    [pytest.param(n, marks=[] if n == 90 else pytest.mark.very_slow) for n in gates.ARCHITECTURES],
)
def test_machine_code_is_what_was_reviewed(folder: Path, architecture: int) -> None:
    sm = f"sm_{architecture}"
    rows = gates.every(folder, [architecture])
    for name, by_architecture in rows.items():
        kernel = by_architecture[sm]
        assert kernel["stack"] == 0 and kernel["spills"] == 0, name
        assert kernel["registers"] <= (255 if "optim" in name else 128), name
    for name in (
        "gelu_bias cb_k0",
        "transposed cb_k0",
        "transposed_halves cb_k0",
        "softmax_of_columns cb_k0",
        "norm_gradients cb_k6",
        "optimizers cb_optim_adam",
    ):
        assert rows[name][sm]["wide"] >= 2, name
    for name in ("softmax cb_k0", "layer_norm cb_k0", "cross_entropy cb_k5"):
        assert rows[name][sm]["middle"] >= 2, name  # a warp shares a row, with two lanes per thread
    # Two iterations of four elements; x, the residual and the result have the size of x. Includes
    # the path for unaligned arrays.
    if architecture == 90:
        assert rows["gelu_bias cb_k0"][sm]["instructions"] <= 7 * 2 * 4 * 12
        # A thread transposes sixteen elements of four bytes, or 64 of two, read and written once.
        assert rows["transposed cb_k0"][sm]["instructions"] <= 7 * 16 * 8
        assert rows["transposed_halves cb_k0"][sm]["instructions"] <= 7 * 64 * 4
    # Rows and columns of gradients are one kernel, plus one that combines blocks: k6 and k7.
    assert sum(name.startswith("norm_gradients") for name in rows) == 8
    kept = json.loads(gates.GATES.read_text())
    reviewed = {name: {sm: row[sm]} for name, row in kept.items() if not name.startswith("steps")}
    assert not gates.changes(reviewed, rows), "\n".join(gates.changes(reviewed, rows))


@pytest.mark.very_slow
def test_machine_code_of_other_steps(folder: Path) -> None:
    """The kernels of 8-bit moments, matrices and means have no stack and no spills, and four blocks
    fit on a multiprocessor."""
    rows = gates.numbers(gates.steps())
    for name, row in rows.items():
        for kernel in row.values():
            assert kernel["stack"] == 0 and kernel["spills"] == 0, name
            assert kernel["registers"] <= 64 and kernel["shared"] <= 16 << 10, name
    kept = json.loads(gates.GATES.read_text())
    reviewed = {name: row for name, row in kept.items() if name.startswith("steps")}
    assert not gates.changes(reviewed, rows), "\n".join(gates.changes(reviewed, rows))
