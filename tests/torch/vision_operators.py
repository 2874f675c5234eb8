"""Allows importing ``torchvision`` if its build does not match PyTorch's."""

from __future__ import annotations

import contextlib

import torch

_LIBRARY = torch.library.Library("torchvision", "FRAGMENT")


def define() -> None:
    """Defines the operators that the import requires. No test runs them; they live as long as this
    module."""
    for name in ("nms", "qnms"):
        with contextlib.suppress(RuntimeError):
            _LIBRARY.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
