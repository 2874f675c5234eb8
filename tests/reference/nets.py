"""Nets of NumPy arrays as their authors would write them: an LSTM, a ResNet and a transformer with
rotary embeddings. Their losses call ``xp``: Cutback's names, or NumPy's where they exist."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

import cutback as cb
from cutback.nn import functional as F

Tree = Any


class Net(NamedTuple):
    params: Tree
    data: tuple[Any, ...]
    loss: Callable[..., Any]  # (xp, params, *data)


class Makes:
    """Makes random arrays of one dtype."""

    def __init__(self, dtype: Any) -> None:
        self.rng, self.dtype = np.random.default_rng(0), dtype

    def he(self, *shape: int, fan: int = 0) -> Any:
        scale = np.sqrt(2 / (fan or shape[0]))
        return (self.rng.standard_normal(shape) * scale).astype(self.dtype)

    def conv(self, o: int, i: int, k: int) -> Any:
        return self.he(o, i, k, k, fan=i * k * k)

    def normal(self, *shape: int) -> Any:
        return self.rng.standard_normal(shape).astype(self.dtype)

    def zeros(self, n: int) -> Any:
        return np.zeros(n, self.dtype)

    def ones(self, n: int) -> Any:
        return np.ones(n, self.dtype)


def lstm(m: Makes, *, width: int, hidden: int, time: int, batch: int, words: int = 64) -> Net:
    params = {
        "emb": m.he(words, width), "wx": m.he(width, 4 * hidden), "wh": m.he(hidden, 4 * hidden),
        "b": m.zeros(4 * hidden), "out": m.he(hidden, words),
    }  # fmt: skip
    tokens = m.rng.integers(0, words, (batch, time))

    def loss(xp: Any, p: Tree, tokens: Any, labels: Any) -> Any:
        x = F.embedding(tokens, p["emb"]) @ p["wx"] + p["b"]
        h = c = xp.zeros((tokens.shape[0], hidden), m.dtype)
        states = []
        for t in range(tokens.shape[1]):
            i, f, g, o = xp.split(x[:, t] + h @ p["wh"], 4, axis=-1)
            c = cb.sigmoid(f) * c + cb.sigmoid(i) * xp.tanh(g)
            h = cb.sigmoid(o) * xp.tanh(c)
            states.append(h)
        return F.cross_entropy(xp.stack(states, 1) @ p["out"], labels)

    return Net(params, (tokens, np.roll(tokens, -1, 1)), loss)


def resnet_logits(f: Any, p: Tree, states: Tree, x: Any) -> Any:
    """Returns the logits of :func:`resnet`. ``f`` is the functional module, PyTorch's or
    Cutback's."""
    kept = iter(states)

    def normed(x: Any, p: Tree) -> Any:
        s = next(kept)
        return f.batch_norm(x, s["m"], s["v"], p["g"], p["b"], training=True)

    x = f.relu(normed(f.conv2d(x, p["stem"], padding=1), p["n"]))
    for b in p["blocks"]:
        stride = 2 if "skip" in b else 1
        h = f.relu(normed(f.conv2d(x, b["c1"], stride=stride, padding=1), b["n1"]))
        h = normed(f.conv2d(h, b["c2"], padding=1), b["n2"])
        x = f.relu(h + (f.conv2d(x, b["skip"], stride=stride) if "skip" in b else x))
    return f.adaptive_avg_pool2d(x, 1).reshape(x.shape[0], -1) @ p["fc"] + p["fcb"]


def resnet(m: Makes, *, side: int, batch: int) -> Net:
    def norm(c: int) -> Tree:
        return {"g": m.ones(c), "b": m.zeros(c)}

    def block(i: int, o: int) -> Tree:
        made = {"c1": m.conv(o, i, 3), "n1": norm(o), "c2": m.conv(o, o, 3), "n2": norm(o)}
        return made | ({"skip": m.conv(o, i, 1)} if i != o else {})

    widths = [(8, 8), (8, 16), (16, 32)]
    params = {
        "stem": m.conv(8, 3, 3), "n": norm(8), "blocks": [block(i, o) for i, o in widths],
        "fc": m.he(32, 10), "fcb": m.zeros(10),
    }  # fmt: skip
    sizes = [8, *(o for _, o in widths for _ in range(2))]
    states = [{"m": m.zeros(c), "v": m.ones(c)} for c in sizes]

    def loss(xp: Any, p: Tree, states: Tree, x: Any, y: Any) -> Any:
        return F.cross_entropy(resnet_logits(F, p, states, x), y)

    data = (states, m.normal(batch, 3, side, side), m.rng.integers(0, 10, batch))
    return Net(params, data, loss)


class Rope(NamedTuple):
    """The sizes of :func:`rope`."""

    words: int
    width: int
    time: int
    heads: int = 4
    layers: int = 2
    batch: int = 4

    def angles(self, dtype: Any) -> tuple[Any, Any]:
        """Returns the cosines and sines by which pairs of elements are rotated."""
        half = self.width // self.heads // 2
        angles = np.outer(np.arange(self.time), 1e4 ** (-np.arange(half) / half))
        return np.cos(angles).astype(dtype), np.sin(angles).astype(dtype)


def rope(m: Makes, sizes: Rope) -> Net:
    words, width, time, heads, layers, batch = sizes
    names = {"qkv": (width, 3 * width), "o": (width, width), "g": (width, 2 * width),
             "u": (width, 2 * width), "d": (2 * width, width)}  # fmt: skip
    blocks = [
        {"n1": m.ones(width), "n2": m.ones(width), **{k: m.he(*s) for k, s in names.items()}}
        for _ in range(layers)
    ]
    params = {"tok": m.he(words, width, fan=50 * width), "blocks": blocks, "nf": m.ones(width)}
    cos, sin = sizes.angles(m.dtype)

    def loss(xp: Any, p: Tree, tok: Any, lab: Any) -> Any:
        def rot(x: Any) -> Any:
            a, b = xp.split(x, 2, axis=-1)
            return xp.concatenate([a * cos - b * sin, a * sin + b * cos], axis=-1)

        x = F.embedding(tok, p["tok"])
        for b in p["blocks"]:
            h = F.rms_norm(x, (width,), b["n1"])
            q, k, v = (
                a.reshape(batch, time, heads, width // heads).transpose(0, 2, 1, 3)
                for a in xp.split(h @ b["qkv"], 3, axis=-1)
            )
            y = F.scaled_dot_product_attention(rot(q), rot(k), v, is_causal=True, dropout_p=0.1)
            x = x + y.transpose(0, 2, 1, 3).reshape(batch, time, width) @ b["o"]
            h = F.rms_norm(x, (width,), b["n2"])
            x = x + (F.silu(h @ b["g"]) * (h @ b["u"])) @ b["d"]
        return F.cross_entropy(F.rms_norm(x, (width,), p["nf"]) @ p["tok"].T, lab)

    tokens = m.rng.integers(0, words, (batch, time))
    return Net(params, (tokens, np.roll(tokens, -1, 1)), loss)
