"""Correct kernels of kernels/*.cu, with their inputs and expected outputs.

A case takes the PTX as an argument, so that tests can run it with something deleted."""

from __future__ import annotations

import ctypes
import math
import struct
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from client import Driver, Memory

Arrays = dict[str, np.ndarray[Any, Any]]
INT, UINT, LONG, FLOAT = ctypes.c_int, ctypes.c_uint, ctypes.c_uint64, ctypes.c_float


@cache
def ptx(name: str) -> str:
    """Returns the committed PTX of kernels/NAME.cu."""
    return (Path(__file__).parent / "kernels" / f"{name}.ptx").read_text()


@dataclass(frozen=True)
class Case:
    """A kernel's test case. `run` returns the outputs, and `expected` the right ones, within
    `tolerance` (relative above 1)."""

    file: str
    kernels: tuple[str, ...]
    run: Callable[[Driver, str], Arrays]
    expected: Callable[[], Arrays]
    tolerance: float = 0.0


def rng() -> np.random.Generator:
    return np.random.default_rng(0)


def normal(*shape: int, seed: int = 0) -> np.ndarray[Any, Any]:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def to_bf16(x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    bits = np.ascontiguousarray(x, np.float32).view(np.uint32)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16)


def from_bf16(bits: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    return (bits.astype(np.uint32) << 16).view(np.float32)


class Scope:
    """Device memory that is freed after a case."""

    def __init__(self, driver: Driver) -> None:
        self.driver, self.held = driver, list[Memory]()

    def __enter__(self) -> Scope:
        return self

    def __exit__(self, kind: object, *rest: object) -> None:
        if kind is None:
            self.driver.wait()
            self.driver.free(*self.held)

    def put(self, array: np.ndarray[Any, Any]) -> Memory:
        self.held.append(self.driver.put(array))
        return self.held[-1]

    def room(self, size: int) -> Memory:
        self.held.append(self.driver.allocate(size))
        return self.held[-1]


# Pointwise

N = 1000


def run_axpy(driver: Driver, text: str) -> Arrays:
    with Scope(driver) as m:
        x, y = m.put(normal(N)), m.room(4 * N)
        driver.launch(text, "scale", 4, 256, x, y, FLOAT(2.5), INT(N))
        driver.launch(text, "axpy", 4, 256, x, y, FLOAT(0.5), INT(N))
        return {"y": driver.get(y, np.float32, N)}


def expected_axpy() -> Arrays:
    x = normal(N)
    scaled = x * np.float32(2.5)
    fused = (x.astype(np.float64) * 0.5 + scaled).astype(np.float32)
    return {"y": fused}


GELU_N, GELU_COLUMNS, GELU_SEED, GELU_LIMIT = 1 << 13, 512, 1234567890123, 6554


def run_gelu(driver: Driver, text: str) -> Arrays:
    with Scope(driver) as m:
        x, bias = m.put(to_bf16(normal(GELU_N))), m.put(normal(GELU_COLUMNS, seed=1))
        y = m.room(2 * GELU_N)
        sizes = LONG(GELU_SEED), UINT(GELU_LIMIT), FLOAT(1 / 0.9), UINT(GELU_N // 8)
        driver.launch(
            text, "gelu_dropout", GELU_N // 2048, 256, x, bias, y, *sizes, UINT(GELU_COLUMNS)
        )
        return {"y": from_bf16(driver.get(y, np.uint16, GELU_N))}


def philox(n: int, seed: int) -> np.ndarray[Any, Any]:
    """Returns four random words for each of n blocks."""
    c = np.zeros((n, 4), np.uint64)
    c[:, 0] = np.arange(n)
    mask = np.uint64(0xFFFFFFFF)
    k0, k1 = seed & 0xFFFFFFFF, seed >> 32
    for _ in range(7):
        p0, p1 = c[:, 0] * np.uint64(0xD2511F53), c[:, 2] * np.uint64(0xCD9E8D57)
        high = (p1 >> np.uint64(32)) ^ c[:, 1] ^ np.uint64(k0)
        low = (p0 >> np.uint64(32)) ^ c[:, 3] ^ np.uint64(k1)
        c = np.stack([high, p1 & mask, low, p0 & mask], 1)
        k0, k1 = (k0 + 0x9E3779B9) & 0xFFFFFFFF, (k1 + 0xBB67AE85) & 0xFFFFFFFF
    return c


def expected_gelu() -> Arrays:
    x = from_bf16(to_bf16(normal(GELU_N))).astype(np.float64)
    a = x + np.tile(normal(GELU_COLUMNS, seed=1), GELU_N // GELU_COLUMNS)
    gelu = 0.5 * a * (1 + np.tanh(0.79788456 * (a + 0.044715 * a**3))) / 0.9
    words = philox(GELU_N // 8, GELU_SEED)
    drawn = np.stack([words & np.uint64(0xFFFF), words >> np.uint64(16)], 2).reshape(GELU_N)
    return {"y": gelu * (drawn >= GELU_LIMIT)}


PART = 128
HYPER = [1e-3, 0.9, 0.999, 1e-8, 0.01, 1 / (1 - 0.9**3), 1 / np.sqrt(1 - 0.999**3), 0]


def tensors() -> list[list[np.ndarray[Any, Any]]]:
    """Returns parameter, gradient and two moments of 40 tensors."""
    r = rng()
    made = []
    for n in r.integers(1, 400, 40):
        three = [r.standard_normal(n).astype(np.float32) for _ in range(3)]
        made.append([*three, r.random(n).astype(np.float32)])
    return made


def run_adamw(driver: Driver, text: str) -> Arrays:
    with Scope(driver) as m:
        held = [[m.put(array) for array in four] for four in tensors()]
        sizes = [len(four[0]) for four in tensors()]
        table = b"".join(
            struct.pack("<5Q", *(memory.address for memory in four), n)
            for four, n in zip(held, sizes, strict=True)
        )
        where = [(t, part) for t, n in enumerate(sizes) for part in range(-(-n // PART))]
        rows, start = m.put(np.frombuffer(table, np.uint8)), m.put(np.array(where, np.uint32))
        hyper = m.put(np.array(HYPER, np.float32))
        driver.launch(text, "adamw", len(where), 64, rows, start, hyper, UINT(PART))
        got = [driver.get(four[0], np.float32, n) for four, n in zip(held, sizes, strict=True)]
        return {"p": np.concatenate(got)}


def expected_adamw() -> Arrays:
    lr, b1, b2, eps, decay, c1, c2, _ = HYPER
    out = []
    for p, g, m, v in tensors():
        m = b1 * m.astype(np.float64) + (1 - b1) * g
        v = b2 * v.astype(np.float64) + (1 - b2) * g.astype(np.float64) ** 2
        out.append(p * (1 - lr * decay) - lr * c1 * m / (np.sqrt(v) * c2 + eps))
    return {"p": np.concatenate(out)}


# Rows

ROWS, COLUMNS, BLOCKS = 12, 512, 3


def run_layer_norm(driver: Driver, text: str) -> Arrays:
    with Scope(driver) as m:
        x, dy = m.put(normal(ROWS, COLUMNS)), m.put(normal(ROWS, COLUMNS, seed=1))
        gain, bias = m.put(normal(COLUMNS, seed=2)), m.put(normal(COLUMNS, seed=3))
        size = 4 * ROWS * COLUMNS
        y, mean, rstd, dx = m.room(size), m.room(4 * ROWS), m.room(4 * ROWS), m.room(size)
        parts, bias_parts = m.room(4 * BLOCKS * COLUMNS), m.room(4 * BLOCKS * COLUMNS)
        dgain = m.room(4 * COLUMNS)
        driver.launch(text, "layer_norm", ROWS, COLUMNS // 4, x, gain, bias, y, mean, rstd)
        driver.launch(
            text, "layer_norm_backward", BLOCKS, 128,
            x, dy, gain, mean, rstd, dx, parts, bias_parts, INT(ROWS), INT(COLUMNS),
        )  # fmt: skip
        driver.launch(text, "column_sums", 2, 256, parts, dgain, INT(BLOCKS), INT(COLUMNS))
        return {
            "y": driver.get(y, np.float32, (ROWS, COLUMNS)),
            "dx": driver.get(dx, np.float32, (ROWS, COLUMNS)),
            "dgain": driver.get(dgain, np.float32, COLUMNS),
        }


def expected_layer_norm() -> Arrays:
    x, dy = normal(ROWS, COLUMNS).astype(np.float64), normal(ROWS, COLUMNS, seed=1)
    gain, bias = normal(COLUMNS, seed=2), normal(COLUMNS, seed=3)
    deviation = np.sqrt(x.var(1, keepdims=True) + 1e-5)
    h = (x - x.mean(1, keepdims=True)) / deviation
    dh = dy * gain
    inner = dh - dh.mean(1, keepdims=True) - h * (dh * h).mean(1, keepdims=True)
    return {"y": h * gain + bias, "dx": inner / deviation, "dgain": (dy * h).sum(0)}


CLASSES = 1000


def run_cross_entropy(driver: Driver, text: str) -> Arrays:
    with Scope(driver) as m:
        x, labels = m.put(3 * normal(4, CLASSES)), m.put(np.arange(4, dtype=np.int32) * 7)
        loss, dx = m.room(16), m.room(4 * 4 * CLASSES)
        driver.launch(text, "cross_entropy", 4, 256, x, labels, loss, dx, INT(CLASSES), shared=128)
        return {
            "loss": driver.get(loss, np.float32, 4),
            "dx": driver.get(dx, np.float32, (4, CLASSES)),
        }


def expected_cross_entropy() -> Arrays:
    x, labels = 3 * normal(4, CLASSES).astype(np.float64), np.arange(4) * 7
    e = np.exp(x - x.max(1, keepdims=True))
    p = e / e.sum(1, keepdims=True)
    loss = -np.log(p[np.arange(4), labels])
    p[np.arange(4), labels] -= 1
    return {"loss": loss, "dx": p}


def run_total(driver: Driver, text: str) -> Arrays:
    with Scope(driver) as m:
        x, parts, out = m.put(normal(16 * 64)), m.room(4 * 16), m.room(4)
        count = m.put(np.zeros(1, np.uint32))
        driver.launch(text, "total", 16, 64, x, parts, count, out)
        return {"out": driver.get(out, np.float32, 1)}


def expected_total() -> Arrays:
    return {"out": np.array([normal(16 * 64).astype(np.float64).sum()])}


# Tiles


def run_transpose(driver: Driver, text: str) -> Arrays:
    with Scope(driver) as m:
        x, y = m.put(normal(50, 70)), m.room(4 * 50 * 70)
        driver.launch(text, "transpose", (3, 2), (32, 8), x, y, INT(50), INT(70))
        return {"y": driver.get(y, np.float32, (70, 50))}


def expected_transpose() -> Arrays:
    return {"y": normal(50, 70).T}


def run_sgemm(driver: Driver, text: str) -> Arrays:
    with Scope(driver) as m:
        a, b, c = m.put(normal(64, 48)), m.put(normal(48, 128, seed=1)), m.room(4 * 64 * 128)
        driver.launch(text, "sgemm", (2, 1), 256, a, b, c, INT(64), INT(128), INT(48))
        return {"c": driver.get(c, np.float32, (64, 128))}


def expected_sgemm() -> Arrays:
    return {"c": normal(64, 48).astype(np.float64) @ normal(48, 128, seed=1)}


def run_bf16_gemm(driver: Driver, text: str) -> Arrays:
    with Scope(driver) as m:
        a, b = m.put(to_bf16(normal(64, 112))), m.put(to_bf16(normal(112, 32, seed=1)))
        c = m.room(4 * 64 * 32)
        driver.launch(text, "bf16_gemm", (2, 2), 128, a, b, c, INT(64), INT(32), INT(112))
        return {"c": driver.get(c, np.float32, (64, 32))}


def expected_bf16_gemm() -> Arrays:
    a, b = from_bf16(to_bf16(normal(64, 112))), from_bf16(to_bf16(normal(112, 32, seed=1)))
    return {"c": a.astype(np.float64) @ b}


# Language

MATHEMATICS: list[Callable[[np.ndarray[Any, Any]], np.ndarray[Any, Any]]] = [
    np.sin,
    np.cos,
    np.tanh,
    lambda x: np.log1p(np.abs(x)),
    lambda x: np.abs(x) ** 1.5,
    np.vectorize(math.erf, otypes=[np.float64]),
    np.exp,
    lambda x: (((x + 2) * x + 3) * x + 4) * x + 5,
    lambda x: 1 / x,
]


def run_mathematics(driver: Driver, text: str) -> Arrays:
    with Scope(driver) as m:
        x, y = m.put(normal(128)), m.room(512)
        out = {}
        for which in range(len(MATHEMATICS)):
            driver.launch(text, "mathematics", 2, 64, x, y, INT(which))
            out[str(which)] = driver.get(y, np.float32, 128)
        return out


def expected_mathematics() -> Arrays:
    x = normal(128).astype(np.float64)
    return {str(which): f(x) for which, f in enumerate(MATHEMATICS)}


def run_doubles(driver: Driver, text: str) -> Arrays:
    with Scope(driver) as m:
        x, y = m.put(normal(64).astype(np.float64)), m.room(512)
        driver.launch(text, "doubles", 1, 64, x, y)
        return {"y": driver.get(y, np.float64, 64)}


def expected_doubles() -> Arrays:
    x = normal(64).astype(np.float64)
    return {"y": np.exp(x) / 3 + np.sqrt(np.abs(x))}


def warp_values() -> np.ndarray[Any, Any]:
    return np.random.default_rng(0).integers(-5, 5, 32).astype(np.int32)


def run_warp(driver: Driver, text: str) -> Arrays:
    with Scope(driver) as m:
        x, out = m.put(warp_values()), m.put(np.zeros(14 * 32, np.uint32))
        driver.launch(text, "warp_operations", 1, 32, x, out)
        return {"out": driver.get(out, np.uint32, (14, 32))}


def expected_warp() -> Arrays:
    v = warp_values().astype(np.int64)
    lane = np.arange(32)
    u = v & 0xFFFFFFFF
    shifted = np.array([v[i // 8 * 8 + (i + 5) % 8] for i in lane])
    up = np.where(lane >= 3, v[np.maximum(lane - 3, 0)], v)
    down = np.where(lane % 16 + 2 < 16, v[np.minimum(lane + 2, 31)], v)
    halves = np.where(lane < 16, v[lane ^ 1], 0)
    same = [sum(1 << j for j in lane if v[j] == v[i]) for i in lane]
    rows = [
        sum(1 << i for i in lane if v[i] > 0), 1, v.sum(), v.min(), u.max(),
        np.bitwise_or.reduce(u), same, shifted, up, down, halves, (v > 0).sum(), 0xFFFFFFFF,
        np.bitwise_xor.reduce(u) + np.bitwise_and.reduce(u),
    ]  # fmt: skip
    wide = [np.broadcast_to(np.asarray(row, np.int64), 32) & 0xFFFFFFFF for row in rows]
    return {"out": np.stack(wide).astype(np.uint32)}


def run_atomics(driver: Driver, text: str) -> Arrays:
    with Scope(driver) as m:
        start = np.zeros(14, np.uint32)
        start[[2, 5]] = 0xFFFFFFFF
        a, f = m.put(start), m.put(np.zeros(1, np.float32))
        x = m.put(np.arange(1, 129, dtype=np.uint32))
        driver.launch(text, "atomics", 2, 64, a, f, x)
        return {"a": driver.get(a, np.uint32, 13), "f": driver.get(f, np.float32, 1)}


def expected_atomics() -> Arrays:
    x = np.arange(1, 129, dtype=np.uint64)
    wide = int(x.sum()) << 20
    a = [x.sum(), 128, 1, np.bitwise_or.reduce(x), np.bitwise_xor.reduce(x), 0, 128 % 10, 5, 3]
    return {
        "a": np.array([*a, 78, wide & 0xFFFFFFFF, wide >> 32, 7], np.uint32),
        "f": np.array([64], np.float32),
    }


def run_local(driver: Driver, text: str) -> Arrays:
    with Scope(driver) as m:
        x, y = m.put(normal(64)), m.room(256)
        driver.launch(text, "local_arrays", 1, 64, x, y, INT(3))
        return {"y": driver.get(y, np.float32, 64)}


def expected_local() -> Arrays:
    k_at = {(k * 3 + 3) & 7: k for k in range(8)}
    factors = np.array([k_at[(i + 3) & 7] for i in range(64)], np.float32)
    return {"y": normal(64) * factors}


CASES = {
    "axpy": Case("pointwise", ("scale", "axpy"), run_axpy, expected_axpy),
    "gelu": Case("pointwise", ("gelu_dropout",), run_gelu, expected_gelu, 8e-3),
    "adamw": Case("pointwise", ("adamw",), run_adamw, expected_adamw, 1e-6),
    "layer_norm": Case(
        "rows",
        ("layer_norm", "layer_norm_backward", "column_sums"),
        run_layer_norm,
        expected_layer_norm,
        1e-5,
    ),
    "cross_entropy": Case(
        "rows", ("cross_entropy",), run_cross_entropy, expected_cross_entropy, 2e-6
    ),
    "total": Case("rows", ("total",), run_total, expected_total, 1e-5),
    "transpose": Case("tiles", ("transpose",), run_transpose, expected_transpose),
    "sgemm": Case("tiles", ("sgemm",), run_sgemm, expected_sgemm, 1e-5),
    "bf16_gemm": Case("tiles", ("bf16_gemm",), run_bf16_gemm, expected_bf16_gemm, 1e-5),
    "mathematics": Case("language", ("mathematics",), run_mathematics, expected_mathematics, 1e-6),
    "doubles": Case("language", ("doubles",), run_doubles, expected_doubles, 1e-15),
    "warp": Case("language", ("warp_operations",), run_warp, expected_warp),
    "atomics": Case("language", ("atomics",), run_atomics, expected_atomics),
    "local_arrays": Case("language", ("local_arrays",), run_local, expected_local),
}
