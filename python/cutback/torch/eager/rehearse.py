"""Finds the memory that a node of autograd's graph allocates, by running it on fake tensors.

A formula of autograd may allocate temporaries, pass its gradient on, or return several parts of one
storage, which then lives as long as the last of them. This cannot be seen from outside. So the node
is called with fake gradients and fake saved values, and the lifetime of each new storage is
tracked. User-defined functions are not called, because they may have side effects.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import NamedTuple

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from ..graph.layouts import is_dense
from .arguments import Arguments, GraphNode, Keywords, Op, Result


class Layout(NamedTuple):
    """Shape, strides, dtype and device of a tensor."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device


def layout_of(t: Tensor) -> Layout | None:
    """Returns the layout of a tensor; None if it is not strided."""
    if t.layout is not torch.strided:
        return None
    return Layout(tuple(t.shape), tuple(t.stride()), t.dtype, t.device)


class Made(NamedTuple):
    """The outputs and memory use of a node."""

    outputs: Sequence[Tensor | None]  # fake tensors; None for missing outputs
    peak: int  # peak bytes of the storages that the node allocates


def contiguous(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Layout:
    """Returns the layout of a new contiguous tensor."""
    strides: list[int] = []
    step = 1
    for n in reversed(shape):
        strides.append(step)
        step *= max(1, n)
    return Layout(shape, tuple(reversed(strides)), dtype, device)


def nbytes(t: Tensor) -> int:
    """Returns the bytes of a tensor's storage."""
    return int(t.untyped_storage().nbytes())


def storage_of(t: Tensor) -> int:
    """Returns an id of a tensor's storage, unique while the storage is alive."""
    address: int = t.untyped_storage()._cdata
    return address


def _apart(func: Op, out: Result) -> Result:
    """Gives each result of an op without aliases separate memory. A shape function may return one
    tensor for two results of equal shape (mkldnn's recurrent ops), but kernels do not."""
    if not isinstance(out, tuple) or any(r.alias_info is not None for r in func._schema.returns):
        return out
    found: set[int] = set()
    rows = []
    t: Tensor
    for t in out:
        strided = isinstance(t, Tensor) and t.layout is torch.strided
        if strided and storage_of(t) in found:
            t = torch.empty_strided(t.shape, t.stride(), dtype=t.dtype, device=t.device)
        if strided:
            found.add(storage_of(t))
        rows.append(t)
    return tuple(rows)


class _Followed(TorchDispatchMode):
    """Tracks the bytes of new storages that are not ``known``."""

    def __init__(self, known: set[int]) -> None:
        super().__init__()
        self.known = known
        self.alive: dict[int, int] = {}
        self.peak = 0

    def __torch_dispatch__(
        self, func: Op, types: Sequence[type], args: Arguments = (), kwargs: Keywords | None = None
    ) -> Result:
        out = _apart(func, func(*args, **(kwargs or {})))
        for t in out if isinstance(out, (tuple, list)) else (out,):
            if not isinstance(t, Tensor) or t.layout is not torch.strided:
                continue
            key = storage_of(t)
            if key not in self.known and key not in self.alive:
                self.alive[key] = t.untyped_storage().nbytes()
                weakref.finalize(t.untyped_storage(), self.alive.pop, key, None).atexit = False
                self.peak = max(self.peak, sum(self.alive.values()))
        return out


def _fitted(t: Tensor | None, layout: Layout) -> Tensor | None:
    """Converts a result as autograd's engine does: sums broadcast axes and converts the dtype."""
    if t is None or (tuple(t.shape) == layout.shape and t.dtype == layout.dtype):
        return t
    if tuple(t.shape) != layout.shape:
        t = t.sum_to_size(layout.shape)
    return t.to(layout.dtype)


class Rehearsal:
    """Runs nodes on fake tensors."""

    def __init__(self) -> None:
        self.mode = FakeTensorMode(allow_non_fake_inputs=True)
        # cached results would lose the information that two outputs share memory
        self.mode.cache_enabled = False

    def like(self, layout: Layout) -> Tensor:
        """Returns a new fake tensor with this layout."""
        with _disable_current_modes(), self.mode:
            return torch.empty_strided(
                layout.shape, layout.stride, dtype=layout.dtype, device=layout.device
            )

    def copy_of(self, fake: Tensor) -> Tensor:
        """Returns a new fake tensor like ``fake``, in separate memory."""
        with _disable_current_modes(), self.mode:
            return torch.empty_like(fake)

    def copied_for(self, a: Tensor, leaf: Tensor | None) -> Made:
        """Copies a gradient into the layout of a leaf, as autograd does. A lazily conjugated
        gradient is first resolved into another copy. ``leaf`` is None if it is unknown."""
        if leaf is None or leaf.layout is not torch.strided:
            return Made([self.copy_of(a)], 0)
        followed = _Followed({storage_of(a)})
        with _disable_current_modes(), torch.no_grad(), self.mode, followed:
            if is_dense(leaf):
                out = a.new_empty_strided(leaf.shape, leaf.stride()).copy_(a)
            else:
                out = a.clone(memory_format=torch.contiguous_format)
        return Made([out], followed.peak)

    def sum_of(self, a: Tensor, b: Tensor) -> Made:
        """Adds two gradients. A lazily conjugated gradient is first resolved into a copy."""
        followed = _Followed({storage_of(a), storage_of(b)})
        with _disable_current_modes(), torch.no_grad(), self.mode, followed:
            out = a + b
        return Made([out], followed.peak)

    def run(
        self,
        node: GraphNode,
        gradients: Sequence[Tensor | None],
        saved: Sequence[Tensor],
        wanted: Sequence[Layout | None],
        during: Callable[[], AbstractContextManager[None]],
    ) -> Made | None:
        """Runs a node on fake tensors. Returns None if it is not one of PyTorch's own nodes, or
        cannot run on fake tensors.

        Args:
            node: the node of autograd's graph.
            gradients: its fake gradients, None where no gradient arrives.
            saved: fake tensors for its saved values.
            wanted: the layout that the receiver of each result expects; None for unused results.
            during: a context for the call, in which saved values are unpacked to ``saved``.
        """
        if hasattr(type(node), "saved_tensors") or "CppNode" in node.name():
            return None
        known = {storage_of(t) for t in (*gradients, *saved) if t is not None}
        followed = _Followed(known)
        try:
            with _disable_current_modes(), torch.no_grad(), self.mode, followed, during():
                out = node(*gradients)
                outputs = list(out) if isinstance(out, tuple) else [out]
                del out
                for i, (t, layout) in enumerate(zip(outputs, wanted, strict=True)):
                    outputs[i] = None if layout is None else _fitted(t, layout)
                    del t
        except Exception:  # fake tensors may fail in any way
            return None
        if any(t is not None and layout_of(t) is None for t in outputs):
            return None
        return Made(outputs, followed.peak)
