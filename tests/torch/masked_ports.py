"""Training scripts with masks, as their authors would write them; see :mod:`ports`."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import torch.nn.functional as TF
from nets import Makes, Tree
from ports import Port

import cutback as cb
from cutback.nn import functional as F


def tagger(m: Makes) -> Port:
    """Returns a GRU over padded sentences, with a tag for each word."""
    words, width, hidden, time, n, tags = 30, 6, 8, 5, 4, 3
    params = {
        "emb": m.he(words, width), "wx": m.he(width, 3 * hidden), "wh": m.he(hidden, 3 * hidden),
        "b": m.zeros(3 * hidden), "out": m.he(hidden, tags),
    }  # fmt: skip
    mask = np.arange(time)[None] < np.array([5, 3, 4, 1])[:, None]

    def loss(xp: Any, p: Tree, x: Any, y: Any, mask: Any) -> Any:
        gates = p["emb"][x] @ p["wx"] + p["b"]
        h, states = cb.zeros((n, hidden), gates.dtype), []
        for t in range(time):
            xr, xz, xn = xp.split(gates[:, t], 3, axis=-1)
            hr, hz, hn = xp.split(h @ p["wh"], 3, axis=-1)
            z = F.sigmoid(xz + hz)
            new = (1 - z) * xp.tanh(xn + F.sigmoid(xr + hr) * hn) + z * h
            h = xp.where(mask[:, t, None], new, h)
            states.append(h)
        scores = F.log_softmax(xp.stack(states, axis=1) @ p["out"], dim=-1)
        nll = -xp.take_along_axis(scores, y[..., None], axis=-1)[..., 0]
        return xp.sum(nll * mask) / xp.sum(mask)

    def twin(p: Tree, x: Any, y: Any, mask: Any) -> Any:
        weights = (p["wx"].T, p["wh"].T, p["b"], torch.zeros_like(p["b"]))
        h, states = p["wx"].new_zeros(n, hidden), []
        for t in range(time):
            h = torch.where(mask[:, t, None], torch.gru_cell(p["emb"][x[:, t]], h, *weights), h)
            states.append(h)
        scores = torch.stack(states, 1) @ p["out"]
        return TF.cross_entropy(scores.flatten(0, 1), torch.where(mask, y, -100).flatten())

    data = (m.rng.integers(0, words, (n, time)), m.rng.integers(0, tags, (n, time)), mask)
    return Port(params, data, loss, twin)


def alignment(m: Makes) -> Port:
    """Connectionist temporal classification: the likelihood of all alignments."""
    time, n, width, symbols, length = 7, 3, 5, 4, 2
    params = {"w1": m.he(width, 8), "b1": m.zeros(8), "w2": m.he(8, symbols)}
    labels = m.rng.integers(1, symbols, (n, length))
    states = np.zeros((n, 2 * length + 1), np.int64)  # 0 is the blank
    states[:, 1::2] = labels
    skips = np.zeros(states.shape, bool)
    skips[:, 2:] = (states[:, 2:] != 0) & (states[:, 2:] != states[:, :-2])

    def loss(xp: Any, p: Tree, x: Any, labels: Any, states: Any, skips: Any) -> Any:
        scores = F.log_softmax(xp.tanh(x @ p["w1"] + p["b1"]) @ p["w2"], dim=-1)
        said = xp.take_along_axis(scores, xp.broadcast_to(states, (time, *states.shape)), axis=-1)
        never = -1e30
        alpha = xp.where(np.arange(states.shape[1]) < 2, said[0], never)
        for t in range(1, time):
            one = xp.pad(alpha[:, :-1], ((0, 0), (1, 0)), constant_values=never)
            two = xp.pad(alpha[:, :-2], ((0, 0), (2, 0)), constant_values=never)
            two = xp.where(skips, two, never)
            alpha = xp.logaddexp(xp.logaddexp(alpha, one), two) + said[t]
        return -xp.mean(xp.logaddexp(alpha[:, -1], alpha[:, -2]))

    def twin(p: Tree, x: Any, labels: Any, states: Any, skips: Any) -> Any:
        scores = TF.log_softmax(torch.tanh(x @ p["w1"] + p["b1"]) @ p["w2"], -1)
        sizes = torch.full((n,), time), torch.full((n,), length)
        return TF.ctc_loss(scores, labels, *sizes, reduction="none").mean()

    return Port(params, (m.normal(time, n, width), labels, states, skips), loss, twin)


def decoder(m: Makes) -> Port:
    """Returns a decoder's layer: causal attention, then attention to a padded source."""
    words, width, heads, time, source, n = 20, 8, 2, 5, 6, 3
    names = ("sq", "sk", "sv", "so", "cq", "ck", "cv", "co")
    params = {
        "emb": m.he(words, width), "out": m.he(width, words), "f1": m.he(width, 16),
        "f2": m.he(16, width), **{name: m.he(width, width) for name in names},
    }  # fmt: skip
    is_open = np.arange(source)[None] < np.array([6, 2, 4])[:, None]

    def split(x: Any) -> Any:
        return x.reshape(n, x.shape[1], heads, width // heads)

    def loss(xp: Any, p: Tree, x: Any, memory: Any, is_open: Any, y: Any) -> Any:
        def attend(q: Any, k: Any, v: Any, mask: Any) -> Any:
            s = xp.einsum("bqhd,bkhd->bhqk", split(q), split(k)) / xp.sqrt(width // heads)
            weights = F.softmax(xp.where(mask, s, -np.inf), dim=-1)
            return xp.einsum("bhqk,bkhd->bqhd", weights, split(v)).reshape(n, -1, width)

        def norm(x: Any) -> Any:
            mean = xp.mean(x, axis=-1, keepdims=True)
            return (x - mean) / xp.sqrt(xp.var(x, axis=-1, keepdims=True) + 1e-5)

        x = p["emb"][x]
        causal = np.tril(np.ones((time, time), bool))
        h = norm(x)
        x = x + attend(h @ p["sq"], h @ p["sk"], h @ p["sv"], causal) @ p["so"]
        keys, values = memory @ p["ck"], memory @ p["cv"]
        x = x + attend(norm(x) @ p["cq"], keys, values, is_open[:, None, None]) @ p["co"]
        x = x + F.gelu(norm(x) @ p["f1"]) @ p["f2"]
        return F.cross_entropy((x @ p["out"]).reshape(-1, words), y.reshape(-1))

    def twin(p: Tree, x: Any, memory: Any, is_open: Any, y: Any) -> Any:
        def attend(q: Any, k: Any, v: Any, **options: Any) -> Any:
            rows = (split(z).transpose(1, 2) for z in (q, k, v))
            made = TF.scaled_dot_product_attention(*rows, **options)
            return made.transpose(1, 2).reshape(n, -1, width)

        def norm(x: Any) -> Any:
            return TF.layer_norm(x, (width,))

        x = TF.embedding(x, p["emb"])
        h = norm(x)
        x = x + attend(h @ p["sq"], h @ p["sk"], h @ p["sv"], is_causal=True) @ p["so"]
        keys, values = memory @ p["ck"], memory @ p["cv"]
        mask = is_open[:, None, None]
        x = x + attend(norm(x) @ p["cq"], keys, values, attn_mask=mask) @ p["co"]
        x = x + TF.gelu(norm(x) @ p["f1"]) @ p["f2"]
        return TF.cross_entropy((x @ p["out"]).flatten(0, 1), y.flatten())

    y = m.rng.integers(0, words, (n, time))
    y[:, -1] = -100
    data = (m.rng.integers(0, words, (n, time)), m.normal(n, source, width), is_open, y)
    return Port(params, data, loss, twin)


SCRIPTS = [tagger, alignment, decoder]
