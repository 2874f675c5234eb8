"""The computations of the rows in PyTorch. Like `ours.py`, name by name."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import rows
import torch
import torch.nn.functional as F

sys.path.insert(0, str(Path(__file__).parents[1]))

import torch_models

EPS = 1e-5


def _squares(y: Any) -> Any:
    return (y * y).mean()


def evonorm(p: Any) -> Any:
    x, v, gamma, beta = p
    n, c, h, w = x.shape
    grouped = x.reshape(n, 32, c // 32, h, w)
    var = grouped.var(dim=(2, 3, 4), unbiased=False, keepdim=True)
    scaled = (grouped * (var + EPS).rsqrt()).reshape(x.shape)
    v, gamma, beta = (t.reshape(1, -1, 1, 1) for t in (v, gamma, beta))
    return _squares(scaled * torch.sigmoid(x * v) * gamma + beta)


def cosines(p: Any) -> Any:
    a, b, c, d = p
    return torch.cos(torch.cos(a + b + c + d)).sum()


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
    scale = ((x * x).mean(1, keepdim=True) + EPS).rsqrt()
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
    y = torch.addmm(p["bias"], x.reshape(-1, x.shape[-1]), p["weight"])
    return y.reshape(*x.shape[:-1], -1)


def _norm(p: Any, x: Any) -> Any:
    return F.layer_norm(x, x.shape[-1:], p["weight"], p["bias"], EPS)


def _attention(p: Any, x: Any, heads: int, causal: bool, dropout: float) -> Any:
    batch, time, width = x.shape
    qkv = _dense(p["qkv"], x).reshape(batch, time, 3, heads, width // heads)
    q, k, v = qkv.permute(2, 0, 3, 1, 4)
    y = F.scaled_dot_product_attention(q, k, v, is_causal=causal, dropout_p=dropout)
    return _dense(p["proj"], y.transpose(1, 2).reshape(batch, time, width))


def encoder_layer(p: Any, heads: int) -> Any:
    x = p["x"]
    x = _norm(p["norm1"], x + F.dropout(_attention(p, x, heads, False, 0.1), 0.1))
    y = _dense(p["down"], F.dropout(F.gelu(_dense(p["up"], x)), 0.1))
    return _squares(_norm(p["norm2"], x + F.dropout(y, 0.1)))


def gpt2_block(p: Any, heads: int) -> Any:
    x = p["x"]
    x = x + _attention(p, _norm(p["norm1"], x), heads, True, 0.0)
    y = F.gelu(_dense(p["up"], _norm(p["norm2"], x)), approximate="tanh")
    return _squares(x + _dense(p["down"], y))


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
        h = F.relu(torch.addmm(bias, h, weight))
    return _squares(h)


def lstm(p: Any) -> Any:
    """Runs the steps of PyTorch's cell one by one."""
    x = p["x"]
    h = c = x.new_zeros(x.shape[1:])
    weights = [p[name] for name in ("w_in", "w_hidden", "b_in", "b_hidden")]
    for t in range(x.shape[0]):
        h, c = torch.lstm_cell(x[t], (h, c), *weights)
    return _squares(h)


def lstm_layer(p: Any) -> Any:
    """Runs the function behind nn.LSTM."""
    x = p["x"]
    zeros = x.new_zeros((1, *x.shape[1:]))
    weights = [p[name] for name in ("w_in", "w_hidden", "b_in", "b_hidden")]
    _, h, _ = torch.lstm(x, (zeros, zeros), weights, True, 1, 0.0, True, False, False)
    return _squares(h[0])


LOSSES: dict[int, Callable[..., Any]] = {
    1: evonorm, 2: evonorm, 3: cosines, 4: residual_norm, 5: attention_weights, 6: cross_entropy,
    7: gelu_tanh, 8: batch_norm_relu, 9: swiglu_norm, 10: encoder_layer, 11: gpt2_block,
    14: softmax_across, 15: norm_across, 16: mean_across,
    17: depthwise, 18: basic_block, 19: basic_block, 20: basic_block,
    21: causal_attention, 22: causal_attention, 23: causal_attention, 24: causal_attention,
    25: norm_of_rows, 26: scaled_rows, 27: softmax_of_rows, 28: sum_of_rows, 29: group_norm,
    30: instance_norm, 31: embedding, 32: norm_of_rows, 33: group_norm, 34: embedding,
    35: log_softmax_of_rows, 36: mlp, 37: lstm, 38: lstm_layer,
}  # fmt: skip


def loss_of(number: int, params: Any) -> Callable[..., Any]:
    """Returns the loss of a row. The twins of the demo's models are in `torch_models.py`."""
    if number == 12:
        gpt = rows.gpt_config(len(params["blocks"]))
        return lambda p, tokens, labels: torch_models.gpt_loss(p, tokens, labels, gpt)
    if number == 13:
        net = rows.conv_config()
        return lambda p, states, x, y: torch_models.conv_loss(p, states, x, y, net)
    return LOSSES[number]
