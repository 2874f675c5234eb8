"""Random tensors as functions of a seed: PyTorch operators for the core's generator.

``cutback::keep_mask``, ``cutback::uniform`` and ``cutback::normal`` take a seed (an int64 tensor of
one element on the CPU), the number of the stream, and sizes. They have no state: running them again
gives the same bits. The generator is Philox4x32 with 7 rounds (Salmon et al., "Parallel random
numbers: as easy as 1, 2, 3", SC 2011); streams and seeds that differ are independent.

On the CPU the core draws. On other devices the same words are computed with PyTorch's integer
arithmetic, in pieces. There, masks and uniform numbers have the same bits as on the CPU, and normal
numbers differ in the last bits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from ... import _native

LAWS = {
    torch.bool: ("keep",),
    torch.float32: ("uniform", "normal"),
    torch.float64: ("uniform", "normal"),
}
"""The dtypes that can be drawn."""

FLOPS_PER_ELEMENT = 32
"""Integer operations per element, for the planner's cost model."""

_PER_BLOCK = {
    ("keep", torch.bool): 8, ("uniform", torch.float32): 4, ("uniform", torch.float64): 2,
    ("normal", torch.float32): 4, ("normal", torch.float64): 2,
}  # fmt: skip
"""Elements that a block of four words gives."""

_PIECE = 1 << 18  # number of four-word blocks that are computed at once with PyTorch's arithmetic
_ROUNDS = 7
_LOW = 0xFFFFFFFF
_TWO_PI = 6.283185307179586


def _words(seed: int, stream: int, first: int, n: int, device: torch.device) -> torch.Tensor:
    """Returns the words of blocks ``first .. first + n``: int64[4, n], each below 2^32. The
    products are unsigned 64-bit numbers; int64 holds their bits."""
    block = torch.arange(first, first + n, dtype=torch.int64, device=device)
    c0, c1 = block & _LOW, block >> 32
    c2, c3 = torch.full_like(block, stream), torch.zeros_like(block)
    k0, k1 = seed & _LOW, seed >> 32 & _LOW
    for _ in range(_ROUNDS):
        p0, p1 = c0 * 0xD2511F53, c2 * 0xCD9E8D57
        c0, c2 = (p1 >> 32 & _LOW) ^ c1 ^ k0, (p0 >> 32 & _LOW) ^ c3 ^ k1
        c1, c3 = p1 & _LOW, p0 & _LOW
        k0, k1 = (k0 + 0x9E3779B9) & _LOW, (k1 + 0xBB67AE85) & _LOW
    return torch.stack((c0, c1, c2, c3))


def _normal(u: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """Returns Box-Muller pairs in the last axis: [..., 2]."""
    radius, angle = torch.sqrt(-2.0 * torch.log(u)), _TWO_PI * v
    return torch.stack((radius * torch.cos(angle), radius * torch.sin(angle)), -1)


def _from_words(law: str, words: torch.Tensor, dtype: torch.dtype, p: float) -> torch.Tensor:
    """Returns the elements that the words of blocks give, in order."""
    if law == "keep":
        halves = torch.stack((words & 0xFFFF, words >> 16), -1).transpose(0, 1)
        return (halves >= int(p * 2.0**16 + 0.5)).flatten()
    if dtype == torch.float32:
        if law == "uniform":
            return ((words >> 8).float() * 2.0**-24).t().flatten()
        pairs = words.double() * 2.0**-32
        return _normal(pairs[0::2].t() + 2.0**-33, pairs[1::2].t()).flatten().float()
    high, low = words[0::2].t(), words[1::2].t()
    bits = (high << 21 | low >> 11).double()  # 53 of the 64
    if law == "uniform":
        return (bits * 2.0**-53).flatten()
    return _normal((bits[:, 0] + 0.5) * 2.0**-53, bits[:, 1] * 2.0**-53).flatten()


def by_arithmetic(law: str, out: torch.Tensor, seed: int, stream: int, p: float = 0.0) -> None:
    """Fills a contiguous tensor with PyTorch's integer arithmetic, on its device. Takes 28 to 44
    MiB of temporary memory."""
    flat = out.view(-1)
    step = _PIECE * _PER_BLOCK[law, out.dtype]
    for at in range(0, flat.numel(), step):
        n = min(step, flat.numel() - at)
        words = _words(seed, stream, at * _PIECE // step, -(-n * _PIECE // step), out.device)
        flat[at : at + n] = _from_words(law, words, out.dtype, p)[:n]


def _fill(
    out: torch.Tensor, law: str, seed: torch.Tensor, stream: int, p: float = 0.0
) -> torch.Tensor:
    if out.device.type == "cpu":
        _native.draw(out.view(-1).numpy(), law, int(seed), stream, p)
    else:
        by_arithmetic(law, out, int(seed), stream, p)
    return out


def _keep_mask(
    seed: torch.Tensor, stream: int, size: Sequence[int], p: float, device: torch.device
) -> torch.Tensor:
    out = torch.empty(size, dtype=torch.bool, device=device)
    return _fill(out, "keep", seed, stream, p)


def _of_law(law: str) -> Callable[..., torch.Tensor]:
    def draw(
        seed: torch.Tensor, stream: int, size: Sequence[int], dtype: torch.dtype,
        device: torch.device,
    ) -> torch.Tensor:  # fmt: skip
        return _fill(torch.empty(size, dtype=dtype, device=device), law, seed, stream)

    return draw


def _fake_mask(
    seed: torch.Tensor, stream: int, size: Sequence[int], p: float, device: torch.device
) -> torch.Tensor:
    return torch.empty(size, dtype=torch.bool, device=device)


def _fake(
    seed: torch.Tensor, stream: int, size: Sequence[int], dtype: torch.dtype, device: torch.device
) -> torch.Tensor:
    return torch.empty(size, dtype=dtype, device=device)


_library = torch.library.Library("cutback", "DEF")


def _define(
    name: str, schema: str, kernel: Callable[..., torch.Tensor], fake: Callable[..., torch.Tensor]
) -> None:
    _library.define(f"{name}{schema}", tags=(torch.Tag.pointwise,))
    _library.impl(name, kernel, "CompositeExplicitAutograd")
    torch.library.register_fake(f"cutback::{name}", fake, lib=_library)


_define(
    "keep_mask", "(Tensor seed, int stream, SymInt[] size, float p, Device device) -> Tensor",
    _keep_mask, _fake_mask,
)  # fmt: skip
for _law in ("uniform", "normal"):
    _define(
        _law,
        "(Tensor seed, int stream, SymInt[] size, ScalarType dtype, Device device) -> Tensor",
        _of_law(_law), _fake,
    )  # fmt: skip

KEEP_MASK = torch.ops.cutback.keep_mask.default
UNIFORM = torch.ops.cutback.uniform.default
NORMAL = torch.ops.cutback.normal.default
