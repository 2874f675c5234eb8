"""A small convolutional net with batch norm and dropout for 8x8 digits, in functional ops."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

import cutback as cb
from cutback.nn import functional as F

Params = dict[str, Any]


@dataclass(frozen=True)
class ConvConfig:
    """Channels of the convolutions (3x3, padding 1); the image is halved once, in the middle."""

    channels: tuple[int, ...] = (24, 24, 24, 24, 48, 48, 48, 48)
    classes: int = 10
    dropout: float = 0.2


def init(config: ConvConfig, rng: np.random.Generator) -> tuple[Params, list[Params]]:
    """Returns parameters (He et al. 2015) and the running statistics of the batch norms."""
    layers: list[Params] = []
    states: list[Params] = []
    before = 1
    for channels in config.channels:
        scale = np.sqrt(2.0 / (before * 9))
        layers.append(
            {
                "weight": (rng.standard_normal((channels, before, 3, 3)) * scale).astype(
                    np.float32
                ),
                "gamma": np.ones(channels, np.float32),
                "beta": np.zeros(channels, np.float32),
            }
        )
        states.append(
            {"mean": np.zeros(channels, np.float32), "var": np.ones(channels, np.float32)}
        )
        before = channels
    head = {
        "weight": (rng.standard_normal((before, config.classes)) / np.sqrt(before)).astype(
            np.float32
        ),
        "bias": np.zeros(config.classes, np.float32),
    }
    return {"layers": layers, "head": head}, states


def logits(
    params: Params, states: list[Params], images: cb.Array, config: ConvConfig, training: bool
) -> cb.Array:
    """Returns class scores [batch, classes] of `images` [batch, 1, 8, 8]."""
    x = images
    for i, (layer, state) in enumerate(zip(params["layers"], states, strict=True)):
        x = F.conv2d(x, layer["weight"], padding=1)
        x = F.batch_norm(
            x, state["mean"], state["var"], layer["gamma"], layer["beta"], training=training
        )
        x = F.relu(x)
        if i + 1 == len(config.channels) // 2:
            x = F.max_pool2d(x, 2)
        if training and i % 2 == 1:
            x = F.dropout(x, config.dropout)
    x = x.mean(axis=(2, 3))
    return x @ params["head"]["weight"] + params["head"]["bias"]


def loss(
    params: Params, states: list[Params], images: cb.Array, labels: cb.Array, config: ConvConfig
) -> cb.Array:
    """Returns the mean cross-entropy in nats; updates the running statistics in `states`."""
    return F.cross_entropy(logits(params, states, images, config, training=True), labels)
