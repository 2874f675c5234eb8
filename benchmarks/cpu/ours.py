"""The computations of the rows in Cutback. Like `in_torch.py`, name by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import rows

import cutback as cb
from cutback.nn import functional as F

EPS = 1e-5


def _squares(y: Any) -> Any:
    return (y * y).mean()


def evonorm(p: Any) -> Any:
    x, v, gamma, beta = p
    return _squares(F.evonorm_s0(x, v, gamma, beta, groups=32, eps=EPS))


def cosines(p: Any) -> Any:
    a, b, c, d = p
    return cb.cos(cb.cos(a + b + c + d)).sum()


def residual_norm(p: Any) -> Any:
    x, residual, bias, weight, shift = p
    h = F.gelu(x + bias) + residual
    return _squares(F.layer_norm(h, h.shape[-1:], weight, shift, EPS))


def attention_weights(p: Any, mask: Any) -> Any:
    return _squares(F.dropout(F.softmax(p[0] / 8.0 + mask, -1), 0.1))


def cross_entropy(p: Any, labels: Any) -> Any:
    return F.cross_entropy(p[0], labels)


def gelu_tanh(p: Any) -> Any:
    return F.gelu(p[0], approximate="tanh").mean()


def batch_norm_relu(p: Any) -> Any:
    x, weight, bias = p
    return _squares(F.relu(F.batch_norm(x, None, None, weight, bias, training=True, eps=EPS)))


def swiglu_norm(p: Any) -> Any:
    x, y, weight = p
    return _squares(F.rms_norm(F.silu(x) * y, x.shape[-1:], weight, EPS))


def softmax_across(p: Any) -> Any:
    return _squares(F.softmax(p[0], 1))


def norm_across(p: Any) -> Any:
    x, weight = p
    scale = cb.rsqrt((x * x).mean(1, keepdims=True) + EPS)
    return _squares(x * scale * weight.reshape(1, -1, 1))


def mean_across(p: Any) -> Any:
    return _squares(F.gelu(p[0]).mean(1))


def depthwise(p: Any) -> Any:
    x, weight = p
    return _squares(F.conv2d(x, weight, padding=1, groups=x.shape[1]))


def _conv_norm(p: Any, x: Any) -> Any:
    y = F.conv2d(x, p["conv"], padding=1)
    return F.batch_norm(y, None, None, p["weight"], p["bias"], training=True, eps=EPS)


def basic_block(p: Any) -> Any:
    x, (first, second) = p["x"], p["layers"]
    y = _conv_norm(second, F.relu(_conv_norm(first, x)))
    return _squares(F.relu(y + x))


def _dense(p: Any, x: Any) -> Any:
    return x @ p["weight"] + p["bias"]


def _norm(p: Any, x: Any) -> Any:
    return F.layer_norm(x, x.shape[-1:], p["weight"], p["bias"], EPS)


def _attention(p: Any, x: Any, heads: int, causal: bool, dropout: float) -> Any:
    batch, time, width = x.shape
    qkv = _dense(p["qkv"], x).reshape(batch, time, 3, heads, width // heads)
    q, k, v = (qkv[:, :, i].transpose(0, 2, 1, 3) for i in range(3))
    y = F.scaled_dot_product_attention(q, k, v, is_causal=causal, dropout_p=dropout)
    return _dense(p["proj"], y.transpose(0, 2, 1, 3).reshape(batch, time, width))


def encoder_layer(p: Any, heads: int) -> Any:
    """Like nn.TransformerEncoderLayer(norm_first=False, activation="gelu", dropout=0.1)."""
    x = p["x"]
    x = _norm(p["norm1"], x + F.dropout(_attention(p, x, heads, False, 0.1), 0.1))
    y = _dense(p["down"], F.dropout(F.gelu(_dense(p["up"], x)), 0.1))
    return _squares(_norm(p["norm2"], x + F.dropout(y, 0.1)))


def gpt2_block(p: Any, heads: int) -> Any:
    x = p["x"]
    x = x + _attention(p, _norm(p["norm1"], x), heads, True, 0.0)
    y = F.gelu(_dense(p["up"], _norm(p["norm2"], x)), approximate="tanh")
    return _squares(x + _dense(p["down"], y))


def demo_gpt(p: Any, tokens: Any, labels: Any) -> Any:
    config = rows.gpt_config(len(p["blocks"]))
    import gpt

    return gpt.loss(p, tokens, labels, config)


def demo_convnet(p: Any, states: Any, images: Any, labels: Any) -> Any:
    config = rows.conv_config()
    import convnet

    return convnet.loss(p, states, images, labels, config)


def causal_attention(p: Any) -> Any:
    return _squares(F.scaled_dot_product_attention(*p, is_causal=True))


def norm_of_rows(p: Any) -> Any:
    x, weight, bias = p
    return _squares(F.layer_norm(x, x.shape[-1:], weight, bias, EPS))


def scaled_rows(p: Any) -> Any:
    x, weight = p
    return _squares(F.rms_norm(x, x.shape[-1:], weight, EPS))


def softmax_of_rows(p: Any) -> Any:
    return _squares(F.softmax(p[0], -1))


def log_softmax_of_rows(p: Any) -> Any:
    return _squares(F.log_softmax(p[0], -1))


def sum_of_rows(p: Any) -> Any:
    return _squares(p[0].sum(-1))


def group_norm(p: Any) -> Any:
    x, weight, bias = p
    return _squares(F.silu(F.group_norm(x, 8, weight, bias, EPS)))


def instance_norm(p: Any) -> Any:
    x, weight, bias = p
    return _squares(F.relu(F.instance_norm(x, weight=weight, bias=bias, eps=EPS)))


def embedding(p: Any, tokens: Any) -> Any:
    return _squares(F.embedding(tokens, p[0]))


def mlp(p: Any) -> Any:
    h = p["x"]
    for weight, bias in zip(p["weights"], p["biases"], strict=True):
        h = F.relu(h @ weight + bias)
    return _squares(h)


def lstm(p: Any) -> Any:
    """Like nn.LSTM of one layer, as steps of a cell; returns the loss of the last state."""
    x, bias = p["x"], p["b_in"] + p["b_hidden"]
    _, batch, width = x.shape
    h = c = np.zeros((batch, width), np.float32)
    for t in range(x.shape[0]):
        gates = x[t] @ p["w_in"].T + h @ p["w_hidden"].T + bias
        i, f, g, o = (gates[:, k * width : (k + 1) * width] for k in range(4))
        c = F.sigmoid(f) * c + F.sigmoid(i) * F.tanh(g)
        h = F.sigmoid(o) * F.tanh(c)
    return _squares(h)


LOSSES: dict[int, Callable[..., Any]] = {
    1: evonorm, 2: evonorm, 3: cosines, 4: residual_norm, 5: attention_weights, 6: cross_entropy,
    7: gelu_tanh, 8: batch_norm_relu, 9: swiglu_norm, 10: encoder_layer, 11: gpt2_block,
    12: demo_gpt, 13: demo_convnet, 14: softmax_across, 15: norm_across, 16: mean_across,
    17: depthwise, 18: basic_block, 19: basic_block, 20: basic_block,
    21: causal_attention, 22: causal_attention, 23: causal_attention, 24: causal_attention,
    25: norm_of_rows, 26: scaled_rows, 27: softmax_of_rows, 28: sum_of_rows, 29: group_norm,
    30: instance_norm, 31: embedding, 32: norm_of_rows, 33: group_norm, 34: embedding,
    35: log_softmax_of_rows, 36: mlp, 37: lstm, 38: lstm,
}  # fmt: skip


def products(triples: Any) -> Any:
    """Returns, for each (x, w, gradient of x @ w), the product and both products of its
    backward."""
    return [(x @ w, g @ w.swapaxes(-1, -2), x.swapaxes(-1, -2) @ g) for x, w, g in triples]


def products_step(number: int, quick: bool) -> Callable[[], Any] | None:
    """Returns a step that contains only the matrix products of a row."""
    row = rows.ROWS[number]
    if row.products is None:
        return None
    rng = np.random.default_rng(number)
    triples = []
    for left, right in row.products(row.quick if quick else row.sizes):
        shapes = (left, right, (*left[:-1], right[-1]))
        triples.append([rng.standard_normal(shape, np.float32) for shape in shapes])
    step = cb.compile(products, argnums=None)
    return lambda: step(triples)
