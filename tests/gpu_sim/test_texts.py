"""The generated code of small programs, compared with files: CUDA C with tests/golden/kernels,
records of the CPU's executor with tests/golden/records. Neither needs a GPU, a driver or NVRTC.
After an intended change of a generator:

    CUTBACK_UPDATE_GOLDEN=1 python -m pytest tests/gpu_sim/test_texts.py
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import cutback as cb
from client import Driver
from cutback.nn import functional as F

ml_dtypes = pytest.importorskip("ml_dtypes")

GOLDEN = Path(__file__).parents[1] / "golden"
Program = tuple[Callable[..., Any], list[Any], dict[str, Any]]
"""A function, its arguments, and options of ``cutback.compile``."""


def f32(*shape: int) -> np.ndarray:
    return np.zeros(shape, np.float32)


def f64(*shape: int) -> np.ndarray:
    return np.zeros(shape, np.float64)


def f16(*shape: int) -> np.ndarray:
    return np.zeros(shape, np.float16)


def bf16(*shape: int) -> np.ndarray:
    return np.zeros(shape, ml_dtypes.bfloat16)


def i64(*shape: int) -> np.ndarray:
    return np.zeros(shape, np.int64)


def adamw(p: Any, g: Any, m: Any, v: Any) -> Any:
    m = 0.9 * m + 0.1 * g
    v = 0.999 * v + 0.001 * g * g
    return p * 0.999 - 1e-3 * m / (cb.sqrt(v) + 1e-8), m, v


def normed_with_sums_of_columns(x, weight, bias):
    y = F.layer_norm(x, (384,), weight, bias)
    return y, y.sum(0)


def running_mean(x: Any, weight: Any, state: Any) -> Any:
    mean, var = state
    y = F.batch_norm(x, mean, var, weight, None, training=True)
    return (y * y).mean()


FORWARD = {"argnums": None}  # no gradients

PROGRAMS: dict[str, Program] = {
    "pointwise_broadcast": (
        lambda x, row, column: cb.tanh(x * row + column),
        [f32(48, 100), f32(100), f32(48, 1)],
        FORWARD,
    ),
    "casts": (
        lambda x, y, flags: cb.where(flags, x.astype("f32") * 2, y).astype("bf16"),
        [f16(1000), f32(1000), np.zeros(1000, np.bool_)],
        FORWARD,
    ),
    "odd_size": (lambda x, y: F.silu(x) * y, [f32(3, 337), f32(3, 337)], FORWARD),
    "two_transposed": (lambda x, y: cb.exp(x.T + y.T), [f32(96, 160), f32(96, 160)], FORWARD),
    "transposed_rows": (lambda x: F.softmax(x.T, -1), [f32(128, 40)], FORWARD),
    "long_rows": (lambda x: F.softmax(x, -1), [f32(5, 3000)], FORWARD),
    "long_rows_of_leaves": (lambda x: F.softmax(x, -1), [f32(5, 3072)], FORWARD),
    "transposed": (lambda x, y: cb.exp(x + y.T), [f32(96, 160), f32(160, 96)], FORWARD),
    "row_reduction": (lambda x: (x * x).sum(axis=-1), [f32(64, 1000)], FORWARD),
    "total": (lambda x: cb.cos(x).mean(), [f32(300, 1000)], FORWARD),
    "column_sums": (lambda x, y: (x * y).sum(axis=0), [f32(512, 100), f32(512, 100)], FORWARD),
    "softmax": (lambda x, mask: F.softmax(x / 8.0 + mask, -1), [f32(64, 256), f32(256)], FORWARD),
    "layer_norm": (
        lambda x, weight, bias: F.layer_norm(x, (384,), weight, bias),
        [f32(128, 384), f32(384), f32(384)],
        FORWARD,
    ),
    "layer_norm_backward": (
        lambda p, x: (F.layer_norm(x + p[2], (384,), p[0], p[1]) ** 2).mean(),
        [[f32(384), f32(384), f32(384)], f32(2048, 384)],
        {},
    ),
    "rows_and_columns": (
        normed_with_sums_of_columns,
        [f32(8192, 384), f32(384), f32(384)],
        FORWARD,
    ),
    "rms_norm_bf16": (
        lambda p, x: (F.rms_norm(x, (256,), p) ** 2).sum(),
        [bf16(256), bf16(96, 256)],
        {},
    ),
    "cross_entropy": (lambda p, labels: F.cross_entropy(p, labels), [f32(64, 500), i64(64)], {}),
    "dropout": (lambda p, x: (F.dropout(p * x, 0.1) ** 2).mean(), [f32(64, 128), f32(64, 128)], {}),
    "gelu_in_groups": (
        lambda p, x: (F.gelu(x + p) ** 2).mean(),
        [f32(256), f32(128, 256)],
        {"groups": True, "budget": "min"},
    ),
    "batch_norm_states": (
        running_mean,
        [f32(8, 16, 6, 6), f32(16), [f32(16), f32(16)]],
        {},
    ),
    "product_epilogue": (
        lambda x, w, bias: F.relu(x @ w + bias),
        [f32(64, 128), f32(128, 96), f32(96)],
        FORWARD,
    ),
    "product_f16": (lambda x, w: x @ w, [f16(128, 64), f16(64, 128)], FORWARD),
    "batched_product_f64": (lambda x, y: x @ y, [f64(3, 10, 20), f64(3, 20, 7)], FORWARD),
    "argmax": (lambda x: cb.argmax(x, axis=-1), [f32(32, 777)], FORWARD),
    "embedding": (
        lambda table, at: (F.embedding(at, table) ** 2).mean(),
        [f32(100, 64), i64(4, 16)],
        {},
    ),
    "take_along_axis": (
        lambda x, at: cb.take_along_axis(x, at, axis=1),
        [f32(16, 50), i64(16, 3)],
        FORWARD,
    ),
    "concatenate_and_pad": (
        lambda x, y: cb.pad(cb.concatenate([x, y], axis=1), ((0, 0), (1, 2))),
        [f32(8, 20), f32(8, 30)],
        FORWARD,
    ),
    "attention": (
        lambda p: (F.scaled_dot_product_attention(*p, is_causal=True) ** 2).mean(),
        [[f32(2, 2, 64, 32), f32(2, 2, 64, 32), f32(2, 2, 64, 32)]],
        {},
    ),
    "adamw": (adamw, [f32(999), f32(999), f32(999), f32(999)], FORWARD),
    "f64_norm": (
        lambda p, x: (F.layer_norm(x, (50,), p, None) ** 2).mean(),
        [f64(50), f64(20, 50)],
        {},
    ),
}


RECORDS = (
    "casts",
    "softmax",
    "layer_norm_backward",
    "cross_entropy",
    "dropout",
    "adamw",
    "f64_norm",
)
"""Programs whose records are compared, too."""


def text_of(name: str, backend: str) -> str:
    function, arguments, options = PROGRAMS[name]
    step = cb.compile(function, **options)
    return step.prepare(*arguments).code(backend)


def compare(file: Path, text: str) -> None:
    if os.environ.get("CUTBACK_UPDATE_GOLDEN"):
        file.write_text(text, encoding="utf-8")
    assert text == file.read_text(encoding="utf-8"), f"{file.name} is not what is written now"


@pytest.mark.parametrize("name", PROGRAMS)
def test_kernels_are_as_before(name: str) -> None:
    compare(GOLDEN / "kernels" / f"{name}.cu", text_of(name, "cuda"))


@pytest.mark.parametrize("name", RECORDS)
def test_records_are_as_before(name: str) -> None:
    compare(GOLDEN / "records" / f"{name}.txt", text_of(name, "cpu"))


@pytest.mark.parametrize("name", PROGRAMS)
def test_each_record_has_a_name(name: str) -> None:
    assert "unknown" not in text_of(name, "cpu")


def test_each_file_has_a_program() -> None:
    assert {file.stem for file in (GOLDEN / "kernels").glob("*.cu")} == set(PROGRAMS)
    assert {file.stem for file in (GOLDEN / "records").glob("*.txt")} == set(RECORDS)


def test_it_is_what_was_compiled(
    gpu: Driver, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("CUTBACK_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("CUTBACK_CUDA_KEEP_SOURCES", "1")
    function, arguments, options = PROGRAMS["column_sums"]
    text = cb.compile(function, **options, backend="cuda").prepare(*arguments).code()
    kernels = text.split("extern ")[1:]
    sources = "".join(file.read_text() for file in (tmp_path / "sources").iterdir())
    assert len(kernels) == sources.count("__global__") == 2
    assert all(kernel.strip() in sources for kernel in kernels)
    assert text.startswith("// compute capability 9.0")


def test_records_of_a_compiled_step_are_those() -> None:
    step = cb.compile(lambda x: F.softmax(x @ x / 2, -1), argnums=None).prepare(f32(20, 20))
    assert step.code() == step.code("cpu")
    given = cb.compile(lambda x: F.softmax(x @ x / 2, -1), argnums=None, plan=step.plan)
    given.prepare(f32(20, 20))
    assert given.code() == given.code("cpu") == step.code()
    with pytest.raises(NotImplementedError, match="plan= is for 'cpu'; compile without"):
        given.code("cuda")
    assert "group 0 by kernels of single ops\n  matmul\ngroup 1 [20x20] f32" in step.code()


def test_what_has_no_code_is_named() -> None:
    step = cb.compile(lambda x: x * 2, argnums=None).prepare(f32(10))
    with pytest.raises(NotImplementedError, match='"null" has no code to show'):
        step.code("null")
    convolution = cb.compile(lambda x, w: F.conv2d(x, w), argnums=None)
    convolution.prepare(f32(1, 2, 8, 8), f32(3, 2, 3, 3))
    with pytest.raises(NotImplementedError, match="conv2d"):
        convolution.code("cuda")
    with pytest.raises(ValueError, match="no-such"):
        step.code("no-such")
