"""A character-level GPT in functional ops: parameters are a plain dict of NumPy arrays."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

import cutback as cb
from cutback.nn import functional as F

Params = dict[str, Any]


@dataclass(frozen=True)
class GPTConfig:
    """Sizes of the model; the defaults give about 1.2 million parameters."""

    vocab: int
    context: int = 64
    layers: int = 6
    heads: int = 4
    width: int = 128
    dropout: float = 0.1


def init(config: GPTConfig, rng: np.random.Generator) -> Params:
    """Returns parameters as in GPT-2: normal(0, 0.02), residual projections scaled by 1/sqrt(2
    layers)."""

    def normal(*shape: int, scale: float = 0.02) -> np.ndarray:
        return (rng.standard_normal(shape) * scale).astype(np.float32)

    def norm() -> Params:
        return {
            "weight": np.ones(config.width, np.float32),
            "bias": np.zeros(config.width, np.float32),
        }

    width, residual = config.width, 0.02 / np.sqrt(2 * config.layers)

    def block() -> Params:
        return {
            "norm1": norm(),
            "qkv": {"weight": normal(width, 3 * width), "bias": np.zeros(3 * width, np.float32)},
            "proj": {
                "weight": normal(width, width, scale=residual),
                "bias": np.zeros(width, np.float32),
            },
            "norm2": norm(),
            "up": {"weight": normal(width, 4 * width), "bias": np.zeros(4 * width, np.float32)},
            "down": {
                "weight": normal(4 * width, width, scale=residual),
                "bias": np.zeros(width, np.float32),
            },
        }

    return {
        "token": normal(config.vocab, width),
        "position": normal(config.context, width),
        "blocks": [block() for _ in range(config.layers)],
        "norm": norm(),
        "head": normal(width, config.vocab),
    }


def _dense(p: Params, x: cb.Array) -> cb.Array:
    return x @ p["weight"] + p["bias"]


def _attention(p: Params, x: cb.Array, config: GPTConfig) -> cb.Array:
    batch, time, width = x.shape
    qkv = _dense(p["qkv"], x).reshape(batch, time, 3, config.heads, width // config.heads)
    q, k, v = (qkv[:, :, i].transpose(0, 2, 1, 3) for i in range(3))
    y = F.scaled_dot_product_attention(q, k, v, is_causal=True, dropout_p=config.dropout)
    return _dense(p["proj"], y.transpose(0, 2, 1, 3).reshape(batch, time, width))


def _mlp(p: Params, x: cb.Array) -> cb.Array:
    return _dense(p["down"], F.gelu(_dense(p["up"], x)))


def _norm(p: Params, x: cb.Array) -> cb.Array:
    return F.layer_norm(x, p["weight"], p["bias"])


def loss(params: Params, tokens: cb.Array, labels: cb.Array, config: GPTConfig) -> cb.Array:
    """Returns the mean cross-entropy in nats of `labels` given `tokens`, both integers [batch,
    time]."""
    x = F.embedding(tokens, params["token"]) + params["position"]
    x = F.dropout(x, config.dropout)
    for block in params["blocks"]:
        x = x + F.dropout(_attention(block, _norm(block["norm1"], x), config), config.dropout)
        x = x + F.dropout(_mlp(block, _norm(block["norm2"], x)), config.dropout)
    logits = _norm(params["norm"], x) @ params["head"]
    return F.cross_entropy(logits, labels)
