"""More training scripts as their authors would write them; see :mod:`ports`."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import torch.nn.functional as TF
from nets import Makes, Tree
from ports import Port

import cutback as cb
from cutback.nn import functional as F


def segmentation(m: Makes) -> Port:
    """Returns a U-Net whose loss is cross entropy plus the Dice loss."""
    c, classes = 4, 3
    params = {
        "down": [m.conv(c, 1, 3), m.conv(2 * c, c, 3)], "mid": m.conv(2 * c, 2 * c, 3),
        "up": m.normal(2 * c, c, 2, 2), "join": m.conv(c, 2 * c, 3), "out": m.conv(classes, c, 1),
    }  # fmt: skip

    def net(f: Any, join: Any, p: Tree, x: Any) -> Any:
        skip = f.relu(f.conv2d(x, p["down"][0], padding=1))
        h = f.relu(f.conv2d(f.max_pool2d(skip, 2), p["down"][1], padding=1))
        h = f.relu(f.conv2d(h, p["mid"], padding=1))
        h = join([skip, f.conv_transpose2d(h, p["up"], stride=2)], 1)
        return f.conv2d(f.relu(f.conv2d(h, p["join"], padding=1)), p["out"])

    def dice(probabilities: Any, wanted: Any) -> Any:
        both = (probabilities * wanted).sum((0, 2, 3))
        return 1 - (2 * both / (probabilities.sum((0, 2, 3)) + wanted.sum((0, 2, 3)))).mean()

    def loss(xp: Any, p: Tree, x: Any, y: Any) -> Any:
        logits = net(F, xp.concatenate, p, x)
        wanted = F.one_hot(y, classes).transpose(0, 3, 1, 2).astype(x.dtype)
        return F.cross_entropy(logits, y) + dice(F.softmax(logits, dim=1), wanted)

    def twin(p: Tree, x: Any, y: Any) -> Any:
        logits = net(TF, torch.cat, p, x)
        wanted = TF.one_hot(y, classes).permute(0, 3, 1, 2).to(x.dtype)
        return TF.cross_entropy(logits, y) + dice(TF.softmax(logits, 1), wanted)

    return Port(params, (m.normal(2, 1, 8, 8), m.rng.integers(0, classes, (2, 8, 8))), loss, twin)


def policy(m: Makes) -> Port:
    """Proximal policy optimization, with normalized advantages and an entropy bonus."""
    n, seen, actions = 32, 6, 4
    params = {"w": m.he(seen, 16), "b": m.zeros(16), "pi": m.he(16, actions), "v": m.he(16, 1)}

    def loss(xp: Any, p: Tree, x: Any, a: Any, old: Any, returns: Any) -> Any:
        h = xp.tanh(x @ p["w"] + p["b"])
        log_p, value = F.log_softmax(h @ p["pi"], dim=-1), (h @ p["v"])[:, 0]
        advantage = returns - cb.stop_gradient(value)
        advantage = (advantage - xp.mean(advantage)) / (xp.std(advantage) + 1e-8)
        taken = xp.take_along_axis(log_p, a[:, None], axis=1)[:, 0]
        ratio = xp.exp(taken - old)
        clipped = xp.clip(ratio, 0.8, 1.2)
        actor = -xp.mean(xp.minimum(ratio * advantage, clipped * advantage))
        entropy = -xp.mean(xp.sum(xp.exp(log_p) * log_p, axis=-1))
        return actor + 0.5 * xp.mean((value - returns) ** 2) - 0.01 * entropy

    def twin(p: Tree, x: Any, a: Any, old: Any, returns: Any) -> Any:
        h = torch.tanh(x @ p["w"] + p["b"])
        log_p, value = TF.log_softmax(h @ p["pi"], -1), (h @ p["v"])[:, 0]
        advantage = returns - value.detach()
        advantage = (advantage - advantage.mean()) / (advantage.std(correction=0) + 1e-8)
        ratio = (log_p.gather(1, a[:, None])[:, 0] - old).exp()
        clipped = ratio.clip(0.8, 1.2)
        actor = -torch.minimum(ratio * advantage, clipped * advantage).mean()
        entropy = -(log_p.exp() * log_p).sum(-1).mean()
        return actor + 0.5 * ((value - returns) ** 2).mean() - 0.01 * entropy

    old = np.log(np.full(n, 1 / actions, m.dtype))
    data = (m.normal(n, seen), m.rng.integers(0, actions, n), old, m.normal(n))
    return Port(params, data, loss, twin)


def process(m: Makes) -> Port:
    """Returns a Gaussian process: the negative log marginal likelihood by a Cholesky factor."""
    n, d = 12, 2
    params = {"length": m.zeros(d), "scale": m.zeros(1), "noise": m.zeros(1) - 2}

    def loss(xp: Any, p: Tree, x: Any, y: Any) -> Any:
        z = x / xp.exp(p["length"])
        far = xp.sum((z[:, None] - z[None]) ** 2, axis=-1)
        k = xp.exp(2 * p["scale"] - 0.5 * far) + xp.exp(2 * p["noise"]) * xp.eye(n, dtype=x.dtype)
        low = xp.linalg.cholesky(k)
        a = xp.linalg.solve(k, y[:, None])[:, 0]
        return 0.5 * y @ a + xp.sum(xp.log(xp.diagonal(low))) + 0.5 * n * xp.log(2 * xp.pi)

    def twin(p: Tree, x: Any, y: Any) -> Any:
        z = x / p["length"].exp()
        far = ((z[:, None] - z[None]) ** 2).sum(-1)
        k = (2 * p["scale"] - 0.5 * far).exp()
        k = k + (2 * p["noise"]).exp() * torch.eye(n, dtype=x.dtype)
        low, a = torch.linalg.cholesky(k), torch.linalg.solve(k, y[:, None])[:, 0]
        return 0.5 * y @ a + low.diagonal().log().sum() + 0.5 * n * np.log(2 * np.pi)

    x = m.normal(n, d)
    return Port(params, (x, np.sin(x.sum(1))), loss, twin)


def equation(m: Makes) -> Port:
    """Returns a neural differential equation: four steps of Runge and Kutta's method."""
    params = [(m.he(2, 16), m.zeros(16)), (m.he(16, 2), m.zeros(2))]

    def solved(tanh: Any, params: Tree, x: Any, dt: float = 0.25) -> list[Any]:
        def slope(x: Any) -> Any:
            (w1, b1), (w2, b2) = params
            return tanh(x**3 @ w1 + b1) @ w2 + b2

        path = []
        for _ in range(4):
            k1 = slope(x)
            k2 = slope(x + dt / 2 * k1)
            k3 = slope(x + dt / 2 * k2)
            k4 = slope(x + dt * k3)
            x = x + dt / 6 * (k1 + 2 * k2 + 2 * k3 + k4)
            path.append(x)
        return path

    def loss(xp: Any, params: Tree, x: Any, y: Any) -> Any:
        return xp.mean(xp.abs(xp.stack(solved(xp.tanh, params, x)) - y))

    def twin(params: Tree, x: Any, y: Any) -> Any:
        return (torch.stack(solved(torch.tanh, params, x)) - y).abs().mean()

    return Port(params, (m.normal(8, 2), m.normal(4, 8, 2)), loss, twin)


def flow(m: Makes) -> Port:
    """Returns a normalizing flow of affine couplings, with masks that take turns."""
    d = 6
    params = [{"w": m.he(d, 16), "s": m.he(16, d), "t": m.he(16, d)} for _ in range(3)]
    masks = [np.arange(d) % 2 == k % 2 for k in range(3)]

    def loss(xp: Any, params: Tree, x: Any) -> Any:
        logdet = xp.zeros_like(x[:, 0])
        for p, mask in zip(params, masks, strict=True):
            h = F.relu(xp.where(mask, x, 0) @ p["w"])
            s = xp.where(mask, 0, xp.tanh(h @ p["s"]))
            x = xp.where(mask, x, x * xp.exp(s) + h @ p["t"])
            logdet = logdet + s.sum(-1)
        return -xp.mean(-0.5 * xp.sum(x**2 + xp.log(2 * xp.pi), axis=-1) + logdet)

    def twin(params: Tree, x: Any) -> Any:
        logdet = torch.zeros_like(x[:, 0])
        for p, kept in zip(params, masks, strict=True):
            mask = torch.from_numpy(kept)
            h = TF.relu(torch.where(mask, x, 0) @ p["w"])
            s = torch.where(mask, 0, torch.tanh(h @ p["s"]))
            x = torch.where(mask, x, x * s.exp() + h @ p["t"])
            logdet = logdet + s.sum(-1)
        return -(-0.5 * (x**2 + np.log(2 * np.pi)).sum(-1) + logdet).mean()

    return Port(params, (m.normal(16, d),), loss, twin)


def contrast(m: Makes) -> Port:
    """Momentum contrast: keys of a slow encoder, and a queue of negative ones."""
    params = {"w": m.he(12, 24), "out": m.he(24, 8)}
    slow = {"w": m.he(12, 24), "out": m.he(24, 8)}

    def encoded(f: Any, p: Tree, x: Any) -> Any:
        return f.normalize(f.relu(x @ p["w"]) @ p["out"], dim=-1)

    def loss(xp: Any, p: Tree, slow: Tree, queue: Any, a: Any, b: Any) -> Any:
        q, k = encoded(F, p, a), cb.stop_gradient(encoded(F, slow, b))
        positive = xp.einsum("nc,nc->n", q, k)[:, None]
        logits = xp.concatenate([positive, q @ queue.T], axis=1) / 0.07
        return F.cross_entropy(logits, xp.zeros(len(a), dtype=int))

    def twin(p: Tree, slow: Tree, queue: Any, a: Any, b: Any) -> Any:
        q, k = encoded(TF, p, a), encoded(TF, slow, b)
        positive = torch.einsum("nc,nc->n", q, k)[:, None]
        logits = torch.cat([positive, q @ queue.T], 1) / 0.07
        return TF.cross_entropy(logits, torch.zeros(len(a), dtype=torch.long))

    queue = m.normal(20, 8)
    queue /= np.linalg.norm(queue, axis=1, keepdims=True)
    a = m.normal(8, 12)
    return Port(params, (slow, queue, a, a + (0.1 * m.normal(8, 12)).astype(m.dtype)), loss, twin)


def operator(m: Makes) -> Port:
    """Returns a DeepONet: a net of sensors times a net of positions."""
    params = {
        "branch": [m.he(10, 16), m.he(16, 8)], "trunk": [m.he(1, 16), m.he(16, 8)],
        "bias": m.zeros(1).reshape(()),
    }  # fmt: skip

    def made(tanh: Any, einsum: Any, p: Tree, u: Any, y: Any) -> Any:
        branch = tanh(u @ p["branch"][0]) @ p["branch"][1]
        trunk = tanh(tanh(y[:, None] @ p["trunk"][0]) @ p["trunk"][1])
        return einsum("bk,yk->by", branch, trunk) + p["bias"]

    def loss(xp: Any, p: Tree, u: Any, y: Any, wanted: Any) -> Any:
        error = xp.linalg.norm(made(xp.tanh, xp.einsum, p, u, y) - wanted, axis=1)
        return xp.mean(error / xp.linalg.norm(wanted, axis=1))

    def twin(p: Tree, u: Any, y: Any, wanted: Any) -> Any:
        error = torch.linalg.norm(made(torch.tanh, torch.einsum, p, u, y) - wanted, dim=1)
        return (error / torch.linalg.norm(wanted, dim=1)).mean()

    grid = np.linspace(0, 1, 7, dtype=m.dtype)
    return Port(params, (m.normal(6, 10), grid, m.normal(6, 7)), loss, twin)


def hidden(m: Makes) -> Port:
    """Returns a hidden Markov model: the log likelihood by the forward algorithm."""
    states, symbols, time, n = 4, 5, 6, 3
    params = {
        "start": m.normal(states), "move": m.normal(states, states),
        "emit": m.normal(states, symbols),
    }  # fmt: skip

    def loss(xp: Any, p: Tree, x: Any) -> Any:
        move, emit = F.log_softmax(p["move"], dim=1), F.log_softmax(p["emit"], dim=1)
        alpha = F.log_softmax(p["start"], dim=0) + emit.T[x[:, 0]]
        for t in range(1, time):
            alpha = cb.logsumexp(alpha[:, :, None] + move, axis=1) + emit.T[x[:, t]]
        return -xp.mean(cb.logsumexp(alpha, axis=1))

    def twin(p: Tree, x: Any) -> Any:
        move, emit = TF.log_softmax(p["move"], 1), TF.log_softmax(p["emit"], 1)
        alpha = TF.log_softmax(p["start"], 0) + emit.T[x[:, 0]]
        for t in range(1, time):
            alpha = torch.logsumexp(alpha[:, :, None] + move, 1) + emit.T[x[:, t]]
        return -torch.logsumexp(alpha, 1).mean()

    return Port(params, (m.rng.integers(0, symbols, (n, time)),), loss, twin)


def policy_gradient(m: Makes) -> Port:
    """Returns REINFORCE: discounted returns, and the chosen actions as rows of an identity."""
    n, time, width, actions = 6, 7, 5, 3
    params = {"w": m.he(width, actions), "b": m.zeros(actions)}
    discount = (0.9 ** np.arange(time)).astype(m.dtype)

    def loss(xp: Any, p: Tree, seen: Any, action: Any, reward: Any) -> Any:
        gain = xp.flip(xp.cumsum(xp.flip(reward * discount, axis=1), axis=1), axis=1) / discount
        gain = (gain - xp.mean(gain)) / (xp.std(gain) + 1e-6)
        scores = F.log_softmax(xp.einsum("bto,oa->bta", seen, p["w"]) + p["b"], dim=-1)
        chosen = xp.sum(scores * F.one_hot(action, actions), axis=-1)
        return -xp.mean(xp.sum(chosen * cb.stop_gradient(gain), axis=1))

    def twin(p: Tree, seen: Any, action: Any, reward: Any) -> Any:
        d = torch.tensor(discount)
        gain = (reward * d).flip(1).cumsum(1).flip(1) / d
        gain = (gain - gain.mean()) / (gain.std(correction=0) + 1e-6)
        scores = TF.log_softmax(seen @ p["w"] + p["b"], -1)
        chosen = scores.gather(-1, action[..., None])[..., 0]
        return -(chosen * gain).sum(1).mean()

    data = (m.normal(n, time, width), m.rng.integers(0, actions, (n, time)), m.normal(n, time))
    return Port(params, data, loss, twin)


SCRIPTS = [
    segmentation, policy, policy_gradient, process, equation, flow, contrast, operator, hidden
]  # fmt: skip
