"""Recomputes the result of a dropout from its mask: ``x * mask * scale``.

The scale that gives the bits of PyTorch's kernel depends on the dtype and the device: in single and
double precision it is 1 / (1 - p), in half precision that number rounded to the dtype. To be sure,
the kernel runs once on a sample, which for half precision contains all numbers of the dtype. A
scale is used only if it gives the same bits for each number. If no scale does, the result is kept.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import TYPE_CHECKING

import torch
from torch.utils._python_dispatch import _disable_current_modes

if TYPE_CHECKING:
    from torch.fx.node import Argument

REMAKE = torch.ops.aten.native_dropout_backward.default
"""Computes ``x * mask * scale`` in one op."""

_DROP = torch.ops.aten.native_dropout.default
_BITS = {
    torch.float64: torch.int64, torch.float32: torch.int32,
    torch.bfloat16: torch.int16, torch.float16: torch.int16,
}  # fmt: skip
_FEWEST = 256  # elements that the kernel must keep so that the sample can distinguish scales


def _sample(dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Returns all numbers of a 16-bit dtype or, for a larger dtype, as many numbers, with all signs
    and exponents, and varied digits. [65536]"""
    bits = _BITS[dtype]
    number = torch.arange(1 << 16, dtype=torch.int64)
    if bits is torch.int16:
        number = number - (1 << 15)
    else:  # the high half counts up; the low half is its product with an odd number
        low = torch.iinfo(bits).bits - 16
        digits = number * (0x9E3779B1 if low == 16 else 0x9E3779B97F4A7) & ((1 << low) - 1)
        number = (number - (1 << 15) << low) + digits
    return number.to(bits).view(dtype).to(device)


def _same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    """True if two tensors have equal bits; all NaNs count as equal."""
    bits = _BITS[a.dtype]
    return bool(((a.view(bits) == b.view(bits)) | (a.isnan() & b.isnan())).all())


def _scales(p: float, dtype: torch.dtype) -> Iterator[float]:
    """Yields the factors that a kernel may multiply by."""
    yield 1.0 / (1.0 - p)
    yield float(torch.tensor(1.0 / (1.0 - p), dtype=torch.float64).to(dtype))
    kept = float(torch.tensor(1.0 - p, dtype=torch.float64).float())
    if kept:
        yield 1.0 / kept


@lru_cache(maxsize=4096)
def scale_of(p: float, dtype: torch.dtype, device: torch.device) -> float | None:
    """Returns the factor by which PyTorch's kernel multiplies the kept elements, or None if it is
    unknown."""
    devices = [device] if device.type == "cuda" else []
    # outside all modes, because tracing modes would record this and counting modes would count it
    with _disable_current_modes(), torch.no_grad(), torch.random.fork_rng(devices):
        x = _sample(dtype, device)
        result, mask = _DROP(x, p, True)
        if int((mask & x.isfinite() & (x != 0)).sum()) < _FEWEST:
            return None
        for scale in _scales(p, dtype):
            if _same_bits(REMAKE(x, mask, scale), result):
                return scale
    return None


def remaking_scale(p: Argument, x: torch.Tensor) -> float | None:
    """Returns the ``scale`` with which ``x * mask * scale`` (:data:`REMAKE`) has the bits of
    ``native_dropout(x, p, True)``, or None if no scale is known and the result must be kept.

    Args:
        p: probability of dropping an element.
        x: the input; only its dtype and device matter, so it may be fake.
    """
    if type(p) not in (int, float) or not 0 <= p < 1:
        return None
    if x.dtype not in _BITS or x.device.type not in ("cpu", "cuda"):
        return None
    return scale_of(float(p), x.dtype, x.device)
