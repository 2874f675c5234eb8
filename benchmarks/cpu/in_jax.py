"""The computations of the rows in JAX, for a separate interpreter that has it (`--jax`). The demo's
models are not included."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

EPS = 1e-5


def _squares(y: Any) -> Any:
    return (y * y).mean()


def _dropout(x: Any, place: int) -> Any:
    """Applies dropout with p = 0.1; every step uses the same mask, at the same cost."""
    kept = jax.random.bernoulli(jax.random.key(place), 0.9, x.shape)
    return jnp.where(kept, x / 0.9, 0.0)


def evonorm(p: Any) -> Any:
    x, v, gamma, beta = p
    n, c, h, w = x.shape
    grouped = x.reshape(n, 32, c // 32, h, w)
    scale = jax.lax.rsqrt(grouped.var((2, 3, 4), keepdims=True) + EPS)
    v, gamma, beta = (t.reshape(1, -1, 1, 1) for t in (v, gamma, beta))
    return _squares((grouped * scale).reshape(x.shape) * jax.nn.sigmoid(x * v) * gamma + beta)


def cosines(p: Any) -> Any:
    a, b, c, d = p
    return jnp.cos(jnp.cos(a + b + c + d)).sum()


def _layer_norm(x: Any, weight: Any, bias: Any) -> Any:
    scale = jax.lax.rsqrt(x.var(-1, keepdims=True) + EPS)
    return (x - x.mean(-1, keepdims=True)) * scale * weight + bias


def residual_norm(p: Any) -> Any:
    x, residual, bias, weight, shift = p
    h = jax.nn.gelu(x + bias, approximate=False) + residual
    return _squares(_layer_norm(h, weight, shift))


def attention_weights(p: Any, mask: Any) -> Any:
    return _squares(_dropout(jax.nn.softmax(p[0] / 8.0 + mask), 0))


def cross_entropy(p: Any, labels: Any) -> Any:
    rows = jax.nn.log_softmax(p[0])
    return -jnp.take_along_axis(rows, labels[:, None], 1).mean()


def gelu_tanh(p: Any) -> Any:
    return jax.nn.gelu(p[0], approximate=True).mean()


def batch_norm_relu(p: Any) -> Any:
    x, weight, bias = p
    axes = (0, 2, 3)
    scale = jax.lax.rsqrt(x.var(axes, keepdims=True) + EPS) * weight.reshape(1, -1, 1, 1)
    y = (x - x.mean(axes, keepdims=True)) * scale + bias.reshape(1, -1, 1, 1)
    return _squares(jax.nn.relu(y))


def swiglu_norm(p: Any) -> Any:
    x, y, weight = p
    h = jax.nn.silu(x) * y
    return _squares(h * jax.lax.rsqrt((h * h).mean(-1, keepdims=True) + EPS) * weight)


def _dense(p: Any, x: Any) -> Any:
    return x @ p["weight"] + p["bias"]


def _norm(p: Any, x: Any) -> Any:
    return _layer_norm(x, p["weight"], p["bias"])


def _attention(p: Any, x: Any, heads: int, causal: bool, dropout: bool) -> Any:
    batch, time, width = x.shape
    qkv = _dense(p["qkv"], x).reshape(batch, time, 3, heads, width // heads)
    q, k, v = qkv.transpose(2, 0, 3, 1, 4)
    scores = q @ k.swapaxes(-1, -2) / (width // heads) ** 0.5
    if causal:
        scores = jnp.where(jnp.tril(jnp.ones((time, time), bool)), scores, -jnp.inf)
    weights = jax.nn.softmax(scores)
    y = (_dropout(weights, 1) if dropout else weights) @ v
    return _dense(p["proj"], y.transpose(0, 2, 1, 3).reshape(batch, time, width))


def encoder_layer(p: Any, heads: int) -> Any:
    x = p["x"]
    x = _norm(p["norm1"], x + _dropout(_attention(p, x, heads, False, True), 2))
    y = _dense(p["down"], _dropout(jax.nn.gelu(_dense(p["up"], x), approximate=False), 3))
    return _squares(_norm(p["norm2"], x + _dropout(y, 4)))


def gpt2_block(p: Any, heads: int) -> Any:
    x = p["x"]
    x = x + _attention(p, _norm(p["norm1"], x), heads, True, False)
    y = jax.nn.gelu(_dense(p["up"], _norm(p["norm2"], x)), approximate=True)
    return _squares(x + _dense(p["down"], y))


LOSSES: dict[int, Callable[..., Any]] = {
    1: evonorm, 2: evonorm, 3: cosines, 4: residual_norm, 5: attention_weights, 6: cross_entropy,
    7: gelu_tanh, 8: batch_norm_relu, 9: swiglu_norm, 10: encoder_layer, 11: gpt2_block,
}  # fmt: skip
