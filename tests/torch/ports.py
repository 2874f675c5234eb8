"""Training scripts as their authors would write them, each with its twin in PyTorch.

A script is a loss in terms of ``xp`` (Cutback's names, or NumPy's where they exist) and a twin that
PyTorch differentiates. Random numbers drawn by a loss are passed to its twin as data."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import nets
import numpy as np
import torch
import torch.nn.functional as TF
from nets import Makes, Tree

import cutback as cb
from cutback.nn import functional as F


class Port(NamedTuple):
    params: Tree
    data: tuple[Any, ...]
    loss: Callable[..., Any]  # (xp, params, *data)
    twin: Callable[..., Any]  # called with (params, *data, *drawn)
    drawn: Callable[..., Any] | None = None  # the loss's random numbers, as functions of its data


class NumPyFirst:
    """Returns NumPy's function if it has the name, and otherwise Cutback's."""

    def __getattr__(self, name: str) -> Any:
        return getattr(np, name, None) or getattr(cb, name)


def pinn(m: Makes) -> Port:
    params = [
        (m.he(1, 32), m.zeros(32)), (m.he(32, 32), m.zeros(32)), (m.he(32, 1), m.zeros(1)),
    ]  # fmt: skip
    ends = np.array([[0.0], [3.14159]], m.dtype)

    def net(xp: Any, params: Tree, x: Any) -> Any:
        for i, (w, b) in enumerate(params):
            x = x @ w + b
            if i < 2:
                x = xp.tanh(x)
        return x

    def loss(xp: Any, params: Tree, x: Any) -> Any:
        du = cb.grad(lambda x: net(xp, params, x).sum())
        d2u = cb.grad(lambda x: du(x).sum())(x)
        return ((d2u + xp.sin(x)) ** 2).mean() + (net(xp, params, ends) ** 2).mean()

    def twin(params: Tree, x: Any) -> Any:
        x = x.clone().requires_grad_()
        (du,) = torch.autograd.grad(net(torch, params, x).sum(), x, create_graph=True)
        (d2u,) = torch.autograd.grad(du.sum(), x, create_graph=True)
        bounds = net(torch, params, torch.from_numpy(ends))
        return ((d2u + torch.sin(x)) ** 2).mean() + (bounds**2).mean()

    return Port(params, (np.linspace(0, 3.14159, 64, dtype=m.dtype)[:, None],), loss, twin)


def vae(m: Makes) -> Port:
    d, h, z = 96, 32, 8
    params = {
        "e1": m.he(d, h), "e1b": m.zeros(h), "mu": m.he(h, z), "lv": m.he(h, z),
        "d1": m.he(z, h), "d1b": m.zeros(h), "d2": m.he(h, d), "d2b": m.zeros(d),
    }  # fmt: skip

    def loss(xp: Any, p: Tree, x: Any) -> Any:
        h = F.relu(x @ p["e1"] + p["e1b"])
        mu, lv = h @ p["mu"], h @ p["lv"]
        noise = cb.random.normal(mu.shape, dtype=mu.dtype)
        z = mu + xp.exp(0.5 * lv) * noise
        logits = F.relu(z @ p["d1"] + p["d1b"]) @ p["d2"] + p["d2b"]
        rec = F.binary_cross_entropy_with_logits(logits, x, reduction="sum") / x.shape[0]
        return rec - 0.5 * xp.sum(1 + lv - mu**2 - xp.exp(lv)) / x.shape[0]

    def twin(p: Tree, x: Any, noise: Any) -> Any:
        h = TF.relu(x @ p["e1"] + p["e1b"])
        mu, lv = h @ p["mu"], h @ p["lv"]
        z = mu + torch.exp(0.5 * lv) * noise
        logits = TF.relu(z @ p["d1"] + p["d1b"]) @ p["d2"] + p["d2b"]
        rec = TF.binary_cross_entropy_with_logits(logits, x, reduction="sum") / x.shape[0]
        return rec - 0.5 * torch.sum(1 + lv - mu**2 - torch.exp(lv)) / x.shape[0]

    def drawn(x: Any) -> Any:
        return (cb.random.normal((x.shape[0], z), dtype=x.dtype),)

    x = (m.rng.random((16, d)) > 0.5).astype(m.dtype)
    return Port(params, (x,), loss, twin, drawn)


def lstm(m: Makes) -> Port:
    net = nets.lstm(m, width=16, hidden=32, time=6, batch=8)

    def twin(p: Tree, tokens: Any, labels: Any) -> Any:
        x = TF.embedding(tokens, p["emb"]) @ p["wx"] + p["b"]
        h = c = x.new_zeros(tokens.shape[0], p["wh"].shape[0])
        states = []
        for t in range(tokens.shape[1]):
            i, f, g, o = torch.chunk(x[:, t] + h @ p["wh"], 4, dim=-1)
            c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
            h = torch.sigmoid(o) * torch.tanh(c)
            states.append(h)
        logits = torch.stack(states, 1) @ p["out"]
        return TF.cross_entropy(logits.flatten(0, 1), labels.flatten())

    return Port(*net, twin)


def resnet(m: Makes) -> Port:
    def twin(p: Tree, states: Tree, x: Any, y: Any) -> Any:
        return TF.cross_entropy(nets.resnet_logits(TF, p, states, x), y)

    return Port(*nets.resnet(m, side=8, batch=8), twin)


def causal_attention(q: Any, k: Any, v: Any, dropped: Any) -> Any:
    scores = q @ k.mT / q.shape[-1] ** 0.5
    above = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
    return (scores.masked_fill(above, -torch.inf).softmax(-1) * dropped) @ v


def rope(m: Makes) -> Port:
    sizes = nets.Rope(words=48, width=32, time=8)
    _, width, time, heads, layers, batch = sizes

    def twin(p: Tree, tok: Any, lab: Any, *masks: Any) -> Any:
        c, s = map(torch.from_numpy, sizes.angles(m.dtype))

        def rot(x: Any) -> Any:
            a, b = x.chunk(2, -1)
            return torch.cat([a * c - b * s, a * s + b * c], -1)

        x = TF.embedding(tok, p["tok"])
        for b, mask in zip(p["blocks"], masks, strict=True):
            h = TF.rms_norm(x, (width,), b["n1"])
            q, k, v = (
                a.view(batch, time, heads, width // heads).transpose(1, 2)
                for a in (h @ b["qkv"]).chunk(3, -1)
            )
            y = causal_attention(rot(q), rot(k), v, mask)
            x = x + y.transpose(1, 2).reshape(batch, time, width) @ b["o"]
            h = TF.rms_norm(x, (width,), b["n2"])
            x = x + (TF.silu(h @ b["g"]) * (h @ b["u"])) @ b["d"]
        logits = TF.rms_norm(x, (width,), p["nf"]) @ p["tok"].T
        return TF.cross_entropy(logits.flatten(0, 1), lab.flatten())

    def drawn(*data: Any) -> Any:  # attention drops the same elements as dropout
        ones = np.ones((batch, heads, time, time), m.dtype)
        return tuple(F.dropout(ones, 0.1) for _ in range(layers))

    return Port(*nets.rope(m, sizes), twin, drawn)


def simclr(m: Makes) -> Port:
    params = {"w1": m.he(32, 64), "w2": m.he(64, 16)}
    a = m.normal(16, 32)

    def loss(xp: Any, p: Tree, a: Any, b: Any) -> Any:
        z = xp.concatenate([a, b])
        z = F.normalize(F.relu(z @ p["w1"]) @ p["w2"], dim=-1)
        s = z @ z.T / 0.1
        n = z.shape[0]
        s = xp.where(xp.eye(n, dtype=bool), -1e9, s)
        labels = xp.concatenate([xp.arange(n // 2) + n // 2, xp.arange(n // 2)])
        return F.cross_entropy(s, labels)

    def twin(p: Tree, a: Any, b: Any) -> Any:
        z = TF.normalize(TF.relu(torch.cat([a, b]) @ p["w1"]) @ p["w2"], dim=-1)
        n = z.shape[0]
        s = (z @ z.T / 0.1).masked_fill(torch.eye(n, dtype=torch.bool), -1e9)
        return TF.cross_entropy(s, torch.arange(n).roll(n // 2))

    return Port(params, (a, a + (0.1 * m.normal(16, 32)).astype(m.dtype)), loss, twin)


def gan(m: Makes) -> Port:
    """Returns the discriminator's loss plus the generator's; one step trains both."""
    params = {"g": [m.he(16, 64), m.he(64, 2)], "d": [m.he(2, 64), m.he(64, 1)]}

    def both(f: Any, stop: Any, like: Any, p: Tree, x: Any, z: Any) -> Any:
        def net(w: Tree, x: Any) -> Any:
            return f.leaky_relu(x @ w[0], 0.2) @ w[1]

        def bce(logits: Any, y: float) -> Any:
            return f.binary_cross_entropy_with_logits(logits, like(logits, y))

        made, fixed = net(p["g"], z), [stop(w) for w in p["d"]]
        d_loss = bce(net(p["d"], x), 1.0) + bce(net(p["d"], stop(made)), 0.0)
        return d_loss + bce(net(fixed, made), 1.0)

    def loss(xp: Any, p: Tree, x: Any, z: Any) -> Any:
        return both(F, cb.stop_gradient, xp.full_like, p, x, z)

    def twin(p: Tree, x: Any, z: Any) -> Any:
        return both(TF, torch.Tensor.detach, torch.full_like, p, x, z)

    return Port(params, (m.normal(32, 2), m.normal(32, 16)), loss, twin)


def experts(m: Makes) -> Port:
    d, e, h, n = 32, 4, 64, 32
    params = {"r": m.he(d, e), "w1": m.he(e, d, h, fan=d), "w2": m.he(e, h, d, fan=h)}

    def mixed(f: Any, einsum: Any, p: Tree, x: Any) -> Any:
        gate = f.softmax(x @ p["r"], dim=-1)
        h = f.gelu(einsum("nd,edh->enh", x, p["w1"]))
        o = einsum("enh,ehd->end", h, p["w2"])
        return einsum("ne,end->nd", gate, o)

    def loss(xp: Any, p: Tree, x: Any, y: Any) -> Any:
        return xp.mean((mixed(F, xp.einsum, p, x) - y) ** 2)

    def twin(p: Tree, x: Any, y: Any) -> Any:
        return ((mixed(TF, torch.einsum, p, x) - y) ** 2).mean()

    return Port(params, (m.normal(n, d), m.normal(n, d)), loss, twin)


def diffusion(m: Makes) -> Port:
    c = 16
    params = {
        "inp": m.conv(c, 3, 3), "t1": m.he(64, c), "c1": m.conv(c, c, 3), "c2": m.conv(c, c, 3),
        "up": m.conv(c, c, 3), "out": m.conv(3, c, 3), "g": [m.ones(c), m.ones(c)],
        "b": [m.zeros(c), m.zeros(c)],
    }  # fmt: skip
    abar = np.cumprod(1 - np.linspace(1e-4, 0.02, 1000)).astype(m.dtype)
    rates = np.exp(-np.log(10000) * np.arange(32) / 32).astype(m.dtype)

    def body(f: Any, p: Tree, x: Any, embedded: Any) -> Any:
        h = r = f.conv2d(x, p["inp"], padding=1)
        h = f.conv2d(f.silu(f.group_norm(h, 8, p["g"][0], p["b"][0])), p["c1"], padding=1)
        h = h + (f.silu(embedded) @ p["t1"])[:, :, None, None]
        h = f.conv2d(f.silu(f.group_norm(h, 8, p["g"][1], p["b"][1])), p["c2"], padding=1) + r
        u = f.interpolate(f.avg_pool2d(h, 2), scale_factor=2)
        h = h + f.conv2d(u, p["up"], padding=1)
        return f.conv2d(f.silu(h), p["out"], padding=1)

    def loss(xp: Any, p: Tree, x0: Any, t: Any, eps: Any) -> Any:
        angles = t[:, None].astype(m.dtype) * rates
        embedded = xp.concatenate([xp.sin(angles), xp.cos(angles)], axis=-1)
        ab = cb.take(abar, t)[:, None, None, None]  # np.take dispatches only on its first argument
        x = xp.sqrt(ab) * x0 + xp.sqrt(1 - ab) * eps
        return F.mse_loss(body(F, p, x, embedded), eps)

    def twin(p: Tree, x0: Any, t: Any, eps: Any) -> Any:
        angles = t[:, None].to(x0.dtype) * torch.from_numpy(rates)
        ab = torch.from_numpy(abar)[t][:, None, None, None]
        x = ab.sqrt() * x0 + (1 - ab).sqrt() * eps
        return TF.mse_loss(body(TF, p, x, torch.cat([angles.sin(), angles.cos()], -1)), eps)

    x0 = m.normal(4, 3, 8, 8)
    data = (x0, m.rng.integers(0, 1000, 4), m.normal(*x0.shape))
    return Port(params, data, loss, twin)


def graph(m: Makes) -> Port:
    """Returns attention over the edges of a graph, normalized per node."""
    nodes, edges, width, classes, graphs = 24, 80, 8, 4, 3
    source, target = (m.rng.integers(0, nodes, edges) for _ in range(2))
    of_graph = np.sort(m.rng.integers(0, graphs, nodes))
    params = {
        "w": [m.he(width, width) for _ in range(2)], "a": [m.he(2 * width, 1) for _ in range(2)],
        "out": m.he(width, classes),
    }  # fmt: skip

    def forward(f: Any, xp: Any, join: Any, total: Any, p: Tree, data: tuple[Any, ...]) -> Any:
        x, source, target, of_graph = data
        for w, a in zip(p["w"], p["a"], strict=True):
            h = x @ w
            scores = f.leaky_relu(join([h[source], h[target]], -1) @ a, 0.2)
            weights = xp.exp(scores - scores.max())
            weights = weights / (total(weights, target, nodes)[target] + 1e-9)
            x = f.elu(total(h[source] * weights, target, nodes))
        return total(x, of_graph, graphs) @ p["out"]

    def summed(x: Any, ids: Any, n: int) -> Any:
        return x.new_zeros(n, *x.shape[1:]).index_add(0, ids, x)

    def loss(xp: Any, p: Tree, *data: Any) -> Any:
        *data, y = data
        return F.cross_entropy(forward(F, xp, xp.concatenate, cb.segment_sum, p, data), y)

    def twin(p: Tree, *data: Any) -> Any:
        *data, y = data
        return TF.cross_entropy(forward(TF, torch, torch.cat, summed, p, data), y)

    labels = m.rng.integers(0, classes, graphs)
    return Port(params, (m.normal(nodes, width), source, target, of_graph, labels), loss, twin)


SCRIPTS = [pinn, vae, lstm, resnet, rope, simclr, gan, experts, diffusion, graph]
