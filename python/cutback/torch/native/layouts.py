"""Layouts of tensors: the order of their axes in memory, from the slowest to the fastest. Our
kernels take contiguous arrays. A tensor whose elements fill a piece of memory is such an array,
whatever the order of its strides: the array's axes are the tensor's in the order of their strides.
Axes of size 1, and axes along which elements repeat (stride 0), are not axes of that array.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch

Sizes = Callable[[Any], int]
"""Converts a size of a fake tensor, perhaps symbolic, to an int."""


class Meta(NamedTuple):
    """Shape, strides and dtype of a tensor."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype

    @property
    def numel(self) -> int:
        """The number of elements."""
        return math.prod(self.shape)

    @property
    def is_contiguous(self) -> bool:
        """True if it is row-major."""
        expected = 1
        for n, stride in zip(reversed(self.shape), reversed(self.stride), strict=True):
            if n != 1 and stride != expected:
                return self.numel == 0
            expected *= n
        return True


def meta_of(val: torch.Tensor, sizes: Sizes) -> Meta:
    """Returns the metadata of a fake tensor."""
    return Meta(tuple(map(sizes, val.shape)), tuple(map(sizes, val.stride())), val.dtype)


def axes_of(meta: Meta) -> tuple[int, ...] | None:
    """Returns the axes of the array in memory, or None if the tensor's elements have gaps between
    them or overlap."""
    sized = [a for a, n in enumerate(meta.shape) if n != 1]
    if meta.numel == 0:
        return tuple(sized)
    axes = [a for a in sized if meta.stride[a] != 0]
    axes.sort(key=lambda a: -meta.stride[a])
    expected = 1
    for a in reversed(axes):
        if meta.stride[a] != expected:
            return None
        expected *= meta.shape[a]
    return tuple(axes)


def elements_of(meta: Meta) -> int | None:
    """Returns the number of elements in a tensor's memory, or None if it has gaps."""
    axes = axes_of(meta)
    return None if axes is None else math.prod(meta.shape[a] for a in axes)


def memory_of(meta: Meta) -> int:
    """Returns the number of elements in memory from the first to the last element of a tensor."""
    if meta.numel == 0:
        return 0
    return 1 + sum((n - 1) * s for n, s in zip(meta.shape, meta.stride, strict=True))


class Held(NamedTuple):
    """The position of a tensor with gaps in the memory that it holds."""

    offset: int
    """Elements before its first one."""
    elements: int
    """Elements of the memory."""


def held_by(val: torch.Tensor, sizes: Sizes) -> Held:
    """Returns the position of a fake tensor in its memory."""
    size = sizes(val.untyped_storage().nbytes())
    return Held(sizes(val.storage_offset()), size // val.dtype.itemsize)


class Window(NamedTuple):
    """The position of a tensor in larger memory."""

    frame: tuple[int, ...]
    """Shape of the memory. Its axes are those of the tensor, then one with the smallest stride."""
    starts: tuple[int, ...]
    """First element along each axis of the frame."""
    axes: tuple[int, ...]
    """The tensor's axes, from the slowest to the fastest."""


def window_of(meta: Meta, offset: int, elements: int) -> Window | None:
    """Describes a tensor with gaps between its elements as a block of an array.

    Args:
        offset: the position of its first element in the memory.
        elements: the number of elements of the memory.

    Returns:
        The block, or None if the tensor is not a block.
    """
    axes = [a for a, n in enumerate(meta.shape) if n != 1 and meta.stride[a] != 0]
    axes.sort(key=lambda a: -meta.stride[a])
    strides = [meta.stride[a] for a in axes] + [1]
    frame, starts, outer = [], [], elements
    for stride in strides:
        if stride <= 0 or outer % stride:
            return None
        frame.append(outer // stride)
        starts.append(offset // stride)
        offset, outer = offset % stride, stride
    counts = [*(meta.shape[a] for a in axes), 1]
    fits = all(s + n <= f for s, n, f in zip(starts, counts, frame, strict=True))
    return Window(tuple(frame), tuple(starts), tuple(axes)) if fits else None


def repeats(meta: Meta) -> bool:
    """True if an element of memory appears more than once in the tensor."""
    return elements_of(meta) not in (None, meta.numel)
