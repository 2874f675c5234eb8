"""Compares programs whose losses contain gradients with the same programs in PyTorch: a GAN with
two steps, a network for a differential equation, and a critic with a gradient penalty."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch.nn import functional as TF

import cutback as cb
from cutback.nn import functional as F

STEPS = 10


def he(rng: Any, *shape: int) -> Any:
    return (rng.standard_normal(shape) * np.sqrt(2 / shape[0])).astype(np.float32)


def twin(params: Any) -> tuple[list[torch.Tensor], Any]:
    """Returns the arrays of a tree as PyTorch parameters, in a tree of the same structure."""
    leaves, structure = cb.tree.flatten(params)
    tensors = [torch.from_numpy(x.copy()).requires_grad_() for x in leaves]
    return tensors, cb.tree.unflatten(structure, tensors)


def updated(optimizer: Any, loss: torch.Tensor, tensors: list[torch.Tensor]) -> float:
    for x, gradient in zip(tensors, torch.autograd.grad(loss, tensors), strict=True):
        x.grad = gradient
    optimizer.step()
    return loss.item()


def test_gan() -> None:
    rng = np.random.default_rng(0)
    g: Any = {"w1": he(rng, 16, 64), "w2": he(rng, 64, 2)}
    d: Any = {"w1": he(rng, 2, 64), "w2": he(rng, 64, 1)}
    x = rng.standard_normal((128, 2)).astype(np.float32)

    def net(f: Any, p: Any, x: Any) -> Any:
        return f.leaky_relu(x @ p["w1"], 0.2) @ p["w2"]

    def loss_of(f: Any, full_like: Any, logits: Any, y: float) -> Any:
        return f.binary_cross_entropy_with_logits(logits, full_like(logits, y))

    def d_loss(d: Any, g: Any, x: Any, z: Any) -> Any:
        fake = cb.stop_gradient(net(F, g, z))
        return loss_of(F, cb.full_like, net(F, d, x), 1.0) + loss_of(
            F, cb.full_like, net(F, d, fake), 0.0
        )

    def g_loss(g: Any, d: Any, z: Any) -> Any:
        return loss_of(F, cb.full_like, net(F, d, net(F, g, z)), 1.0)

    (tg, tgs), (td, tds) = twin(g), twin(d)
    steps = [cb.compile(f, optimizer=cb.optim.Adam(lr=1e-3), budget=0.6) for f in (d_loss, g_loss)]
    optimizers = [torch.optim.Adam(t, lr=1e-3) for t in (td, tg)]
    for _ in range(STEPS):
        z = rng.standard_normal((128, 16)).astype(np.float32)
        ours = float(steps[0](d, g, x, z)), float(steps[1](g, d, z))
        tx, tz = torch.from_numpy(x), torch.from_numpy(z)
        fake = net(TF, tgs, tz).detach()
        loss = loss_of(TF, torch.full_like, net(TF, tds, tx), 1.0) + loss_of(
            TF, torch.full_like, net(TF, tds, fake), 0.0
        )
        theirs = [updated(optimizers[0], loss, td)]
        loss = loss_of(TF, torch.full_like, net(TF, tds, net(TF, tgs, tz)), 1.0)
        theirs.append(updated(optimizers[1], loss, tg))
        np.testing.assert_allclose(ours, theirs, rtol=1e-5)
    for step in steps:
        assert step.stats.peak_bytes == step.planned.arena_bytes


def layers(rng: Any) -> Any:
    return [(he(rng, n, m), np.zeros(m, np.float32)) for n, m in ((1, 32), (32, 32), (32, 1))]


def net(m: Any, params: Any, x: Any) -> Any:
    for i, (w, b) in enumerate(params):
        x = x @ w + b
        x = m.tanh(x) if i < 2 else x
    return x


def equation(params: Any, x: Any, ends: Any) -> Any:
    first = cb.grad(lambda x: net(cb, params, x).sum())
    second = cb.grad(lambda x: first(x).sum())(x)
    return ((second + cb.sin(x)) ** 2).mean() + (net(cb, params, ends) ** 2).mean()


def equation_twin(params: Any, x: Any, ends: Any) -> Any:
    x = torch.from_numpy(x).requires_grad_()
    (first,) = torch.autograd.grad(net(torch, params, x).sum(), x, create_graph=True)
    (second,) = torch.autograd.grad(first.sum(), x, create_graph=True)
    end = net(torch, params, torch.from_numpy(ends))
    return ((second + torch.sin(x)) ** 2).mean() + (end**2).mean()


def penalty(params: Any, x: Any, y: Any) -> Any:
    mixed = 0.3 * x + 0.7 * y
    slopes = cb.grad(lambda x: net(cb, params, x).sum())(mixed)
    return (
        net(cb, params, y).mean()
        - net(cb, params, x).mean()
        + 10 * ((cb.sqrt((slopes**2).sum(1) + 1e-9) - 1) ** 2).mean()
    )


def penalty_twin(params: Any, x: Any, y: Any) -> Any:
    x, y = torch.from_numpy(x), torch.from_numpy(y)
    mixed = (0.3 * x + 0.7 * y).requires_grad_()
    (slopes,) = torch.autograd.grad(net(torch, params, mixed).sum(), mixed, create_graph=True)
    return (
        net(torch, params, y).mean()
        - net(torch, params, x).mean()
        + 10 * ((torch.sqrt((slopes**2).sum(1) + 1e-9) - 1) ** 2).mean()
    )


def check(loss: Any, loss_twin: Any, params: Any, *data: Any) -> None:
    tensors, tree = twin(params)
    step = cb.compile(loss, optimizer=cb.optim.AdamW(lr=1e-3), budget=0.6)
    optimizer = torch.optim.AdamW(tensors, lr=1e-3, weight_decay=step.optimizer.weight_decay)
    for _ in range(STEPS):
        ours = float(step(params, *data))
        np.testing.assert_allclose(
            ours, updated(optimizer, loss_twin(tree, *data), tensors), rtol=1e-5
        )
    assert step.stats.peak_bytes == step.planned.arena_bytes


def check_gradients(loss: Any, loss_twin: Any, params: Any, *data: Any) -> None:
    wide = [[x.astype(np.float64) for x in pair] for pair in params]
    data = tuple(x.astype(np.float64) for x in data)
    tensors, tree = twin(wide)
    theirs = torch.autograd.grad(loss_twin(tree, *data), tensors)
    ours = cb.tree.flatten(cb.grad(loss)(wide, *data))[0]
    for x, y in zip(ours, theirs, strict=True):
        assert abs(x - y.numpy()).max() <= 1e-12 * max(abs(y).max().item(), 1)


def test_differential_equation() -> None:
    params = layers(np.random.default_rng(0))
    x = np.linspace(0, np.pi, 64, dtype=np.float32)[:, None]
    ends = np.array([[0.0], [np.pi]], np.float32)
    check_gradients(equation, equation_twin, params, x, ends)
    check(equation, equation_twin, params, x, ends)


def test_gradient_penalty() -> None:
    rng = np.random.default_rng(1)
    x, y = (rng.standard_normal((64, 1)).astype(np.float32) for _ in range(2))
    check_gradients(penalty, penalty_twin, layers(rng), x, y)
    check(penalty, penalty_twin, layers(rng), x, y)


def adapted(grad: Any, f: Any, p: Any, x: Any, y: Any) -> Any:
    slopes = grad(f)(p, x, y)
    return {name: p[name] - 0.1 * slopes[name] for name in p}


def test_learning_to_learn() -> None:
    """The loss contains a step of gradient descent for each task (Finn, Abbeel, Levine 2017)."""
    rng = np.random.default_rng(2)
    params: Any = {
        name: he(rng, *s).astype(np.float64) for name, s in (("a", (1, 8)), ("b", (8, 1)))
    }
    x = rng.uniform(-3, 3, (4, 5, 1))

    def error(m: Any) -> Any:
        return lambda p, x, y: ((m.tanh(x @ p["a"]) @ p["b"] - y) ** 2).mean()

    def meta(m: Any, grad: Any, vmap: Any) -> Any:
        def task(p: Any) -> Any:
            return lambda x, y: error(m)(adapted(grad, error(m), p, x, y), x * 2, y)

        return lambda p, x, y: vmap(task(p))(x, y).mean()

    ours = cb.grad(meta(cb, cb.grad, cb.vmap))(params, x, np.sin(x))
    tensors = {name: torch.from_numpy(array) for name, array in params.items()}
    tx = torch.from_numpy(x)
    theirs = torch.func.grad(meta(torch, torch.func.grad, torch.func.vmap))(
        tensors, tx, torch.sin(tx)
    )
    for name, gradient in ours.items():
        assert abs(gradient - theirs[name].numpy()).max() <= 1e-12 * abs(gradient).max()
