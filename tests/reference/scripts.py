"""Losses of research scripts as their authors would write them, each with its twin in PyTorch: a
Gaussian process, meta-learning through a step of gradient descent, a graph network with attention,
and a critic with a gradient penalty."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from nets import Makes

import cutback as cb
from cutback.nn import functional as F

Tree = Any


class Script(NamedTuple):
    params: Tree
    data: tuple[Any, ...]
    loss: Callable[..., Any]
    twin: Callable[..., Any]
    """The loss with tensors; its first argument is the module ``torch``."""


def gaussian_process(m: Makes) -> Script:
    x = m.rng.uniform(0, 5, (12, 1)).astype(m.dtype)
    params = {"length": m.zeros(1)[0], "scale": m.zeros(1)[0], "noise": m.zeros(1)[0] - 2}
    params = {name: np.array(value) for name, value in params.items()}

    def loss(p: Tree, x: Any, y: Any) -> Any:
        n = len(x)
        d = ((x[:, None, :] - x[None, :, :]) ** 2).sum(-1)
        k = cb.exp(p["scale"]) * cb.exp(-0.5 * d / cb.exp(p["length"]) ** 2)
        chol = cb.linalg.cholesky(k + cb.exp(p["noise"]) * cb.eye(n, dtype=x.dtype))
        alpha = cb.linalg.cho_solve((chol, True), y)
        return 0.5 * y @ alpha + cb.log(cb.diag(chol)).sum() + 0.5 * n * cb.log(2 * cb.pi)

    def twin(torch: Any, p: Tree, x: Any, y: Any) -> Any:
        n = len(x)
        d = ((x[:, None, :] - x[None, :, :]) ** 2).sum(-1)
        k = torch.exp(p["scale"]) * torch.exp(-0.5 * d / torch.exp(p["length"]) ** 2)
        chol = torch.linalg.cholesky(k + torch.exp(p["noise"]) * torch.eye(n, dtype=x.dtype))
        alpha = torch.cholesky_solve(y[:, None], chol)[:, 0]
        return 0.5 * y @ alpha + torch.log(torch.diagonal(chol)).sum() + 0.5 * n * np.log(2 * np.pi)

    return Script(params, (x, np.sin(x[:, 0])), loss, twin)


def maml(m: Makes) -> Script:
    params = {"w1": m.he(1, 16), "b1": m.zeros(16), "w2": m.he(16, 1)}
    x = m.rng.uniform(-3, 3, (4, 10, 1)).astype(m.dtype)

    def task_loss(p: Tree, x: Any, y: Any) -> Any:
        return F.mse_loss(cb.tanh(x @ p["w1"] + p["b1"]) @ p["w2"], y)

    def loss(p: Tree, x: Any, y: Any) -> Any:
        def task(x: Any, y: Any) -> Any:
            gradients = cb.grad(task_loss)(p, x[:5], y[:5])
            adapted = cb.tree.map(lambda w, g: w - 0.1 * g, p, gradients)
            return task_loss(adapted, x[5:], y[5:])

        return cb.vmap(task)(x, y).mean()

    def twin(torch: Any, p: Tree, x: Any, y: Any) -> Any:
        def task_loss(p: Tree, x: Any, y: Any) -> Any:
            return ((torch.tanh(x @ p["w1"] + p["b1"]) @ p["w2"] - y) ** 2).mean()

        total = 0
        for a, b in zip(x, y, strict=True):
            inner = task_loss(p, a[:5], b[:5])
            gradients = torch.autograd.grad(inner, list(p.values()), create_graph=True)
            adapted = {k: w - 0.1 * g for (k, w), g in zip(p.items(), gradients, strict=True)}
            total += task_loss(adapted, a[5:], b[5:])
        return total / len(x)

    return Script(params, (x, np.sin(x)), loss, twin)


def graph_attention(m: Makes) -> Script:
    nodes, edges, classes = 20, 60, 4
    params = {"w1": m.he(8, 16), "a": m.he(32, 1), "w2": m.he(16, classes)}
    source, target = m.rng.integers(0, nodes, (2, edges))
    labels, train = m.rng.integers(0, classes, nodes), m.rng.random(nodes) < 0.5
    data = (m.normal(nodes, 8), source, target, labels, train)

    def loss(p: Tree, x: Any, source: Any, target: Any, labels: Any, train: Any) -> Any:
        n = x.shape[0]
        h = F.relu(x @ p["w1"])
        pairs = cb.concatenate([h[source], h[target]], -1)
        score = F.leaky_relu((pairs @ p["a"]).squeeze(-1), 0.2)
        weight = cb.exp(score - score.max())
        weight = weight / (cb.segment_sum(weight, target, n)[target] + 1e-9)
        h = h + cb.segment_sum(weight[:, None] * h[source], target, n)
        log_p = F.log_softmax(h @ p["w2"], dim=-1)
        return -cb.sum(log_p[cb.arange(n), labels] * train) / cb.sum(train)

    def twin(torch: Any, p: Tree, x: Any, source: Any, target: Any, labels: Any, train: Any) -> Any:
        n = x.shape[0]

        def summed(v: Any) -> Any:
            return torch.zeros((n, *v.shape[1:]), dtype=x.dtype).index_add(0, target, v)

        h = torch.relu(x @ p["w1"])
        pairs = torch.cat([h[source], h[target]], -1)
        score = torch.nn.functional.leaky_relu((pairs @ p["a"]).squeeze(-1), 0.2)
        weight = torch.exp(score - score.max())
        weight = weight / (summed(weight)[target] + 1e-9)
        h = h + summed(weight[:, None] * h[source])
        log_p = torch.log_softmax(h @ p["w2"], -1)
        return -(log_p[torch.arange(n), labels] * train).sum() / train.sum()

    return Script(params, data, loss, twin)


def gradient_penalty(m: Makes) -> Script:
    params = {"w1": m.he(2, 16), "b1": m.zeros(16), "w2": m.he(16, 1)}
    real, fake = m.normal(16, 2), m.normal(16, 2)
    share = m.rng.random((16, 1)).astype(m.dtype)

    def loss(p: Tree, real: Any, fake: Any, share: Any) -> Any:
        def critic(x: Any) -> Any:
            return cb.tanh(x @ p["w1"] + p["b1"]) @ p["w2"]

        slope = cb.grad(lambda x: critic(x).sum())(share * real + (1 - share) * fake)
        penalty = ((cb.linalg.norm(slope, axis=1) - 1) ** 2).mean()
        return critic(fake).mean() - critic(real).mean() + 10.0 * penalty

    def twin(torch: Any, p: Tree, real: Any, fake: Any, share: Any) -> Any:
        def critic(x: Any) -> Any:
            return torch.tanh(x @ p["w1"] + p["b1"]) @ p["w2"]

        x = (share * real + (1 - share) * fake).requires_grad_()
        (slope,) = torch.autograd.grad(critic(x).sum(), x, create_graph=True)
        penalty = ((slope.norm(dim=1) - 1) ** 2).mean()
        return critic(fake).mean() - critic(real).mean() + 10.0 * penalty

    return Script(params, (real, fake, share), loss, twin)
