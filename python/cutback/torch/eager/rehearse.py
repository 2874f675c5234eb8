"""What a node of autograd's graph allocates, found by running it on fake tensors.

A formula of autograd may make several tensors on its way, hand on what reached it, or hand on parts
of one storage, which then lives as long as the last of them. None of that shows from outside, so
the node is called with gradients and saved values that have shapes and no memory, and every storage
that appears is followed to its end. A function of the user's own is not called: it may act.
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
    """What a tensor looks like."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device


def layout_of(t: Tensor) -> Layout | None:
    """None: not a tensor with strides."""
    if t.layout is not torch.strided:
        return None
    return Layout(tuple(t.shape), tuple(t.stride()), t.dtype, t.device)


class Made(NamedTuple):
    """What a node does with memory."""

    outputs: Sequence[Tensor | None]  # fake tensors, None where there is none
    peak: int  # bytes of the storages that it makes, when they are most


def contiguous(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Layout:
    """The layout of a new tensor."""
    strides: list[int] = []
    step = 1
    for n in reversed(shape):
        strides.append(step)
        step *= max(1, n)
    return Layout(shape, tuple(reversed(strides)), dtype, device)


def nbytes(t: Tensor) -> int:
    """Of all memory that a tensor lies in."""
    return int(t.untyped_storage().nbytes())


def storage_of(t: Tensor) -> int:
    """What tells storages apart while they live."""
    address: int = t.untyped_storage()._cdata
    return address


def _apart(func: Op, out: Result) -> Result:
    """Results of an op that makes all of them, each in memory of its own: a shape function may
    return one tensor for two results of one shape (mkldnn's recurrences), which kernels do not."""
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
    """Counts the bytes of storages that appear, and are not ``known``."""

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
    """As autograd's engine makes results fit: summed over what was broadcast, of the dtype."""
    if t is None or (tuple(t.shape) == layout.shape and t.dtype == layout.dtype):
        return t
    if tuple(t.shape) != layout.shape:
        t = t.sum_to_size(layout.shape)
    return t.to(layout.dtype)


class Rehearsal:
    """Runs nodes on fake tensors."""

    def __init__(self) -> None:
        self.mode = FakeTensorMode(allow_non_fake_inputs=True)
        # from the cache of shapes two results in one memory come back as two of their own
        self.mode.cache_enabled = False

    def like(self, layout: Layout) -> Tensor:
        """A fake tensor."""
        with _disable_current_modes(), self.mode:
            return torch.empty_strided(
                layout.shape, layout.stride, dtype=layout.dtype, device=layout.device
            )

    def copy_of(self, fake: Tensor) -> Tensor:
        """Another one like it, in memory of its own."""
        with _disable_current_modes(), self.mode:
            return torch.empty_like(fake)

    def copied_for(self, a: Tensor, leaf: Tensor | None) -> Made:
        """Of a gradient, the copy that autograd makes for a leaf, as that lies; a lazily conjugated
        one is resolved into another copy first. ``leaf`` None: not known."""
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
        """Of two gradients. One that is conjugated lazily is resolved into a copy for it."""
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
        """None: it is no node of PyTorch's own, or does not run on fake tensors.

        Args:
            gradients: fake tensors that reach it, None where none does.
            saved: fake tensors that stand for what it saved.
            wanted: what its results go to takes, None where a result goes nowhere.
            during: entered while it runs; unpacks what it saved.
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
        except Exception:  # whatever it is that such tensors do not do
            return None
        if any(t is not None and layout_of(t) is None for t in outputs):
            return None
        return Made(outputs, followed.peak)
