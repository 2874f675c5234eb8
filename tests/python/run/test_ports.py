"""Typical nets at position 0.5, half way between the smallest plan and saving everything:
perceptrons like the README's, and ports from PyTorch of an LSTM, a ResNet and a transformer with
rotary embeddings. They train, and the measured peak is within the bytes of the position."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest

import cutback as cb
from cutback.nn import functional as F


class Port(NamedTuple):
    loss: Callable[..., Any]
    params: Any
    data: tuple[Any, ...]


def he(rng: Any, *shape: int, fan: int = 0) -> Any:
    scale = np.sqrt(2 / (fan or shape[0]))
    return (rng.standard_normal(shape) * scale).astype(np.float32)


def lstm(rng: Any, time: int) -> Port:
    words, width, hidden, batch = 64, 32, 32, 16
    params = {
        "words": he(rng, words, width), "wx": he(rng, width, 4 * hidden),
        "wh": he(rng, hidden, 4 * hidden), "b": np.zeros(4 * hidden, np.float32),
        "out": he(rng, hidden, words),
    }  # fmt: skip
    tokens = rng.integers(0, words, (batch, time))

    def loss(p: Any, tokens: Any, labels: Any) -> Any:
        x = F.embedding(tokens, p["words"]) @ p["wx"] + p["b"]
        h = c = cb.zeros((tokens.shape[0], hidden), np.float32)
        states = []
        for t in range(tokens.shape[1]):
            i, f, g, o = cb.split(x[:, t] + h @ p["wh"], 4, axis=-1)
            c = cb.sigmoid(f) * c + cb.sigmoid(i) * cb.tanh(g)
            h = cb.sigmoid(o) * cb.tanh(c)
            states.append(h)
        return F.cross_entropy(cb.stack(states, 1) @ p["out"], labels)

    return Port(loss, params, (tokens, np.roll(tokens, -1, 1)))


def resnet(rng: Any, side: int) -> Port:
    def conv(o: int, i: int, k: int) -> Any:
        return he(rng, o, i, k, k, fan=i * k * k)

    def norm(c: int) -> Any:
        return {"g": np.ones(c, np.float32), "b": np.zeros(c, np.float32)}

    def block(i: int, o: int) -> Any:
        made = {"c1": conv(o, i, 3), "n1": norm(o), "c2": conv(o, o, 3), "n2": norm(o)}
        return made | ({"skip": conv(o, i, 1)} if i != o else {})

    widths = [(8, 8), (8, 16), (16, 32)]
    params = {
        "stem": conv(8, 3, 3), "n": norm(8), "blocks": [block(i, o) for i, o in widths],
        "fc": he(rng, 32, 10), "fcb": np.zeros(10, np.float32),
    }  # fmt: skip
    states = [
        {"m": np.zeros(c, np.float32), "v": np.ones(c, np.float32)}
        for c in (8, *(o for _, o in widths for _ in range(2)))
    ]
    x = rng.standard_normal((16, 3, side, side), np.float32)

    def loss(p: Any, states: Any, x: Any, y: Any) -> Any:
        kept = iter(states)

        def normed(x: Any, p: Any) -> Any:
            s = next(kept)
            return F.batch_norm(x, s["m"], s["v"], p["g"], p["b"], training=True)

        x = F.relu(normed(F.conv2d(x, p["stem"], padding=1), p["n"]))
        for b in p["blocks"]:
            stride = 2 if "skip" in b else 1
            h = F.relu(normed(F.conv2d(x, b["c1"], stride=stride, padding=1), b["n1"]))
            h = normed(F.conv2d(h, b["c2"], padding=1), b["n2"])
            x = F.relu(h + (F.conv2d(x, b["skip"], stride=stride) if "skip" in b else x))
        return F.cross_entropy(x.mean((2, 3)) @ p["fc"] + p["fcb"], y)

    return Port(loss, params, (states, x, rng.integers(0, 10, 16)))


def rope(rng: Any, time: int) -> Port:
    words, width, heads, batch = 96, 64, 4, 4
    size = width // heads
    names = {"qkv": (width, 3 * width), "o": (width, width), "g": (width, 2 * width),
             "u": (width, 2 * width), "d": (2 * width, width)}  # fmt: skip

    def scale() -> Any:
        return np.ones(width, np.float32)

    def block() -> Any:
        return {"n1": scale(), "n2": scale(), **{k: he(rng, *s) for k, s in names.items()}}

    params = {
        "words": he(rng, words, width, fan=50 * width), "n": scale(),
        "blocks": [block() for _ in range(2)],
    }  # fmt: skip
    angles = np.outer(np.arange(time), 1e4 ** (-np.arange(size // 2) / (size // 2)))
    cos, sin = np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)
    tokens = rng.integers(0, words, (batch, time))

    def rotated(x: Any) -> Any:
        a, b = cb.split(x, 2, axis=-1)
        return cb.concatenate([a * cos - b * sin, a * sin + b * cos], axis=-1)

    def loss(p: Any, tokens: Any, labels: Any) -> Any:
        x = F.embedding(tokens, p["words"])
        for b in p["blocks"]:
            h = F.rms_norm(x, (width,), b["n1"])
            q, k, v = (
                a.reshape(batch, time, heads, size).transpose(0, 2, 1, 3)
                for a in cb.split(h @ b["qkv"], 3, axis=-1)
            )
            y = F.scaled_dot_product_attention(
                rotated(q), rotated(k), v, is_causal=True, dropout_p=0.1
            )
            x = x + y.transpose(0, 2, 1, 3).reshape(batch, time, width) @ b["o"]
            h = F.rms_norm(x, (width,), b["n2"])
            x = x + (F.silu(h @ b["g"]) * (h @ b["u"])) @ b["d"]
        return F.cross_entropy(F.rms_norm(x, (width,), p["n"]) @ p["words"].T, labels)

    return Port(loss, params, (tokens, np.roll(tokens, -1, 1)))


@pytest.mark.parametrize(
    ("make", "size"),
    [
        (lstm, 4),
        (resnet, 8),
        (rope, 16),
        pytest.param(lstm, 64, marks=pytest.mark.very_slow),
        pytest.param(resnet, 32, marks=pytest.mark.very_slow),
        pytest.param(rope, 64, marks=pytest.mark.very_slow),
    ],
)
def test_in_the_middle(make: Callable[[Any, int], Port], size: int) -> None:
    check(make(np.random.default_rng(0), size), steps=8)


PERCEPTRONS = [
    (2, 128, 128), (3, 128, 128), (4, 256, 128), (6, 256, 128), (8, 256, 128), (12, 1024, 128),
    (6, 2048, 64),
]  # fmt: skip


@pytest.mark.parametrize(("layers", "batch", "width"), PERCEPTRONS)
def test_perceptrons_in_the_middle(layers: int, batch: int, width: int) -> None:
    rng = np.random.default_rng(0)
    params = [(he(rng, width, width), np.zeros(width, np.float32)) for _ in range(layers)]

    def loss(params: Any, x: Any) -> Any:
        for w, b in params:
            x = F.relu(x @ w + b)
        return (x * x).mean()

    port = Port(loss, params, (rng.standard_normal((batch, width), np.float32),))
    check(port, steps=2, saves=layers > 3)


def check(port: Port, steps: int, saves: bool = True) -> None:
    """Trains at position 0.5. If not ``saves``, the gradients make up the peak, whatever is
    saved."""
    step = cb.compile(port.loss, budget=0.5, optimizer=cb.optim.AdamW(lr=1e-2))
    losses = [float(step(port.params, *port.data)) for _ in range(steps)]
    assert losses[-1] < losses[0]
    position = step.plan.position
    assert position.position == 0.5 and position.smallest <= position.everything
    assert position.smallest < position.everything or not saves
    assert step.stats.peak_bytes == step.planned.arena_bytes <= position.limit
    assert step.plan.numbers["budget_bytes"] == position.limit


@pytest.mark.skipif(
    "CUTBACK_TEST_BACKEND" in os.environ, reason="about a CPU, which updates inside"
)
def test_a_budget_below_the_gradients_is_met_by_updates_inside() -> None:
    """The gradients of two large matrices are never needed at the same time."""
    rng = np.random.default_rng(0)
    made = [he(rng, 128, 128), he(rng, 128, 128)]
    x = rng.standard_normal((16, 128), np.float32)

    def loss(params: Any, x: Any) -> Any:
        first, second = params
        return ((F.relu(x @ first) @ second - x) ** 2).mean()

    found = []
    for budget in (None, "0.6x"):
        params = [w.copy() for w in made]
        step = cb.compile(loss, optimizer=cb.optim.AdamW(lr=1e-2), budget=budget)
        losses = [float(step(params, x)) for _ in range(4)]
        found.append((losses, [w.tobytes() for w in params]))
    assert found[0] == found[1]
    assert step.updates_inside
    assert step.stats.peak_bytes <= step.planned.budget_bytes < sum(w.nbytes for w in made)
    with pytest.raises(cb.BudgetError, match="results and gradients alone take"):
        cb.compile(loss, optimizer=cb.optim.AdamW(lr=1e-2), budget="0.1x")(made, x)
