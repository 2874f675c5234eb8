"""The demo models in PyTorch eager, op for op, to compare step time and peak."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F


def to_torch(tree: Any, requires_grad: bool = True) -> Any:
    """Copy a pytree of NumPy arrays into tensors."""
    if isinstance(tree, dict):
        return {key: to_torch(value, requires_grad) for key, value in tree.items()}
    if isinstance(tree, (list, tuple)):
        return [to_torch(value, requires_grad) for value in tree]
    return torch.tensor(tree, requires_grad=requires_grad)


def leaves(tree: Any) -> list[torch.Tensor]:
    """Returns the tensors of a pytree, in order."""
    if isinstance(tree, dict):
        return [leaf for value in tree.values() for leaf in leaves(value)]
    if isinstance(tree, list):
        return [leaf for value in tree for leaf in leaves(value)]
    return [tree]


def gpt_loss(params: Any, tokens: torch.Tensor, labels: torch.Tensor, config: Any) -> torch.Tensor:
    """Returns the loss of the twin of examples/demo/gpt.py."""

    def dense(p: Any, x: torch.Tensor) -> torch.Tensor:
        return torch.addmm(p["bias"], x.reshape(-1, x.shape[-1]), p["weight"]).reshape(
            *x.shape[:-1], -1
        )

    def norm(p: Any, x: torch.Tensor) -> torch.Tensor:
        return F.layer_norm(x, (config.width,), p["weight"], p["bias"])

    batch, time = tokens.shape
    x = F.dropout(F.embedding(tokens, params["token"]) + params["position"], config.dropout)
    for block in params["blocks"]:
        qkv = dense(block["qkv"], norm(block["norm1"], x))
        q, k, v = qkv.reshape(batch, time, 3, config.heads, -1).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, dropout_p=config.dropout)
        y = dense(block["proj"], y.transpose(1, 2).reshape(batch, time, config.width))
        x = x + F.dropout(y, config.dropout)
        y = dense(block["down"], F.gelu(dense(block["up"], norm(block["norm2"], x))))
        x = x + F.dropout(y, config.dropout)
    logits = norm(params["norm"], x) @ params["head"]
    return F.cross_entropy(logits.reshape(-1, logits.shape[-1]), labels.reshape(-1))


def conv_loss(
    params: Any, states: Any, images: torch.Tensor, labels: torch.Tensor, config: Any
) -> torch.Tensor:
    """Returns the loss of the twin of examples/demo/convnet.py."""
    x = images
    for i, (layer, state) in enumerate(zip(params["layers"], states, strict=True)):
        x = F.conv2d(x, layer["weight"], padding=1)
        x = F.batch_norm(
            x, state["mean"], state["var"], layer["gamma"], layer["beta"], training=True
        )
        x = F.relu(x)
        if i + 1 == len(config.channels) // 2:
            x = F.max_pool2d(x, 2)
        if i % 2 == 1:
            x = F.dropout(x, config.dropout)
    x = x.mean(dim=(2, 3))
    return F.cross_entropy(x @ params["head"]["weight"] + params["head"]["bias"], labels)
