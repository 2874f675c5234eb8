"""Lets ``torchvision`` be imported where its build does not go with PyTorch's."""

from __future__ import annotations

import contextlib

import torch

_LIBRARY = torch.library.Library("torchvision", "FRAGMENT")


def define() -> None:
    """Defines the operators that its import asks for. None of the tests runs one; they last as long
    as this module."""
    for name in ("nms", "qnms"):
        with contextlib.suppress(RuntimeError):
            _LIBRARY.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
