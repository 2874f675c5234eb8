"""PyTorch operators that pack what a step saves: bools and signs to bits, indices to fewer bytes.

Unpacking restores the exact bits. On the CPU the core packs bits; on other devices PyTorch's
integer arithmetic does so, eight bools at a time as one int64 (``csrc/exec/packed_bits.c`` explains
the arithmetic).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import fx

from ... import _native

_LOW_BITS = 0x0101010101010101
_GATHER = 0x0102040810204080
_DIAGONAL = 0x8040201008040201 - (1 << 64)


def _flat(x: torch.Tensor, stride: Sequence[int]) -> torch.Tensor:
    """Returns the elements in the order in which a tensor of this layout has them in memory."""
    # a kernel's layout may differ from its trace, or a user's gradient may be in a buffer of bytes
    if x.numel() and (x.stride() != tuple(stride) or x.data_ptr() % x.element_size()):
        x = torch.empty_strided(x.shape, stride, dtype=x.dtype, device=x.device).copy_(x)
    return x.as_strided((x.numel(),), (1,))


def pack_by_arithmetic(bools: torch.Tensor) -> torch.Tensor:
    """Packs bools [n] with PyTorch's integer arithmetic. Takes n bytes of temporary memory."""
    whole = -(-bools.numel() // 8) * 8
    padded = torch.zeros(whole, dtype=torch.bool, device=bools.device)
    padded[: bools.numel()] = bools
    words = padded.view(torch.int64)
    words *= _GATHER
    words >>= 56
    words &= 255
    return words.to(torch.uint8)


def unpack_by_arithmetic(packed: torch.Tensor, bools: torch.Tensor) -> None:
    """Reverses :func:`pack_by_arithmetic`; the result goes into ``bools`` [n]."""
    words = packed.to(torch.int64)
    words *= _LOW_BITS
    words &= _DIAGONAL
    torch.ne(words.view(torch.uint8)[: bools.numel()], 0, out=bools)


def keep_by_arithmetic(floats: torch.Tensor, packed: torch.Tensor, kept: torch.Tensor) -> None:
    """Copies those of the floats [n] whose bit is set to ``kept`` [n], and writes 0 for the
    others."""
    mask = torch.empty_like(floats, dtype=torch.bool)
    unpack_by_arithmetic(packed, mask)
    torch.where(mask, floats, floats.new_zeros(()), out=kept)


def _pack_bits(x: torch.Tensor, stride: Sequence[int]) -> torch.Tensor:
    flat = _flat(x, stride)
    if x.device.type != "cpu":
        return pack_by_arithmetic(flat)
    packed = torch.empty((x.numel() + 7) // 8, dtype=torch.uint8)
    _native.pack_bits(flat.numpy(), packed.numpy())
    return packed


def _unpack_bits(packed: torch.Tensor, size: Sequence[int], stride: Sequence[int]) -> torch.Tensor:
    out = torch.empty_strided(size, stride, dtype=torch.bool, device=packed.device)
    flat = out.as_strided((out.numel(),), (1,))
    if packed.device.type == "cpu":
        _native.unpack_bits(packed.numpy(), flat.numpy())
    else:
        unpack_by_arithmetic(packed, flat)
    return out


def _fake_bits(x: torch.Tensor, stride: Sequence[int]) -> torch.Tensor:
    return torch.empty(((x.numel() + 7) // 8,), dtype=torch.uint8, device=x.device)


def _fake_bools(packed: torch.Tensor, size: Sequence[int], stride: Sequence[int]) -> torch.Tensor:
    return torch.empty_strided(size, stride, dtype=torch.bool, device=packed.device)


def _infinity(x: torch.Tensor) -> int:
    """Returns the bits of infinity in the type of a tensor of floats."""
    bits = {2: torch.int16, 4: torch.int32, 8: torch.int64}[x.element_size()]
    return int(torch.tensor(math.inf, dtype=x.dtype).view(bits))


def _pack_signs(x: torch.Tensor, stride: Sequence[int]) -> torch.Tensor:
    flat = _flat(x, stride)
    if x.device.type != "cpu":
        return pack_by_arithmetic(flat.le(0).logical_not_())
    packed = torch.empty((x.numel() + 7) // 8, dtype=torch.uint8)
    floats = flat.view(torch.uint8).numpy()
    _native.pack_signs(floats, x.element_size(), _infinity(x), packed.numpy())
    return packed


def _keep_by_bits(x: torch.Tensor, packed: torch.Tensor, stride: Sequence[int]) -> torch.Tensor:
    flat = _flat(x, stride)
    out = _fake_kept(x, packed, stride)
    kept = out.as_strided((out.numel(),), (1,))
    if x.device.type != "cpu":
        keep_by_arithmetic(flat, packed, kept)
    else:
        floats, result = (t.view(torch.uint8).numpy() for t in (flat, kept))
        _native.keep_by_bits(floats, packed.numpy(), x.element_size(), result)
    return out


def _fake_kept(x: torch.Tensor, packed: torch.Tensor, stride: Sequence[int]) -> torch.Tensor:
    return torch.empty_strided(x.shape, stride, dtype=x.dtype, device=x.device)


def _pack_indices(x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    return x.to(dtype)


def _unpack_indices(packed: torch.Tensor) -> torch.Tensor:
    return packed.to(torch.int64)


# ---- indices of max poolings as positions in their windows ---------------------------------------

_PIECE = 1 << 20
"""Elements of an index that :func:`windows_by_arithmetic` converts at a time."""


def windows_by_arithmetic(x: torch.Tensor, sizes: Sequence[int], out: torch.Tensor) -> None:
    """Converts the indices ``x`` to positions in their windows ``out``, or, if ``out`` has the type
    of an index, positions to indices. Both are contiguous."""
    axes = len(sizes) // 5
    plane, kernel, stride, pad, dilation = (sizes[k : k + axes] for k in range(0, 5 * axes, axes))
    shape = x.shape[-axes:]
    starts = [
        (torch.arange(n, device=x.device) * s - p).view(-1, *[1] * (axes - 1 - k))
        for k, (n, s, p) in enumerate(zip(shape, stride, pad, strict=True))
    ]
    unpacks = out.dtype == torch.int64
    each = max(1, _PIECE // max(1, math.prod(shape)))
    pieces = (t.reshape(-1, *shape).split(each) for t in (x, out))
    for given, result in zip(*pieces, strict=True):
        rest, step = given.to(torch.int64, copy=True), 1
        total = torch.zeros_like(rest)
        for k in reversed(range(axes)):
            if unpacks:
                total += (rest % kernel[k] * dilation[k] + starts[k]) * step
            else:
                total += (rest % plane[k] - starts[k]).div_(
                    dilation[k], rounding_mode="floor"
                ) * step
            rest //= kernel[k] if unpacks else plane[k]
            step *= plane[k] if unpacks else kernel[k]
        result.copy_(total)


def _convert_windows(x: torch.Tensor, sizes: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    x, out = x.contiguous(), _fake_windows(x, sizes, dtype)
    if x.numel() == 0:
        return out
    if x.device.type != "cpu":
        windows_by_arithmetic(x, sizes, out)
        return out
    axes, packs = len(sizes) // 5, dtype != torch.int64
    one = [1] * (3 - axes)
    lists = [x.shape[-axes:], *(sizes[k : k + axes] for k in range(0, 5 * axes, axes))]
    triples = [([0] * len(one) if k == 4 else one) + list(part) for k, part in enumerate(lists)]
    convert = _native.pack_windows if packs else _native.unpack_windows
    wide, narrow = (x, out) if packs else (out, x)
    arrays = wide.numpy().reshape(-1), narrow.numpy().reshape(-1).view("u1")
    convert(*(arrays if packs else arrays[::-1]), *map(tuple, triples))
    return out


def _unpack_windows(packed: torch.Tensor, sizes: Sequence[int]) -> torch.Tensor:
    return _convert_windows(packed, sizes, torch.int64)


def _fake_windows(x: torch.Tensor, sizes: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    return torch.empty(x.shape, dtype=dtype, device=x.device)


def _fake_unpacked(packed: torch.Tensor, sizes: Sequence[int]) -> torch.Tensor:
    return _fake_windows(packed, sizes, torch.int64)


_library = torch.library.Library("cutback", "FRAGMENT")


def _define(
    name: str, schema: str, kernel: Callable[..., torch.Tensor], fake: Callable[..., torch.Tensor]
) -> None:
    _library.define(f"{name}{schema}")
    _library.impl(name, kernel, "CompositeExplicitAutograd")
    torch.library.register_fake(f"cutback::{name}", fake, lib=_library)


_define("pack_bits", "(Tensor x, SymInt[] stride) -> Tensor", _pack_bits, _fake_bits)
_define(
    "unpack_bits", "(Tensor packed, SymInt[] size, SymInt[] stride) -> Tensor",
    _unpack_bits, _fake_bools,
)  # fmt: skip
_define("pack_indices", "(Tensor x, ScalarType dtype) -> Tensor", _pack_indices, _pack_indices)
_define("unpack_indices", "(Tensor packed) -> Tensor", _unpack_indices, _unpack_indices)

_define(
    "pack_windows", "(Tensor x, int[] sizes, ScalarType dtype) -> Tensor",
    _convert_windows, _fake_windows,
)  # fmt: skip
_define("unpack_windows", "(Tensor packed, int[] sizes) -> Tensor", _unpack_windows, _fake_unpacked)

_define("pack_signs", "(Tensor x, SymInt[] stride) -> Tensor", _pack_signs, _fake_bits)
_define(
    "keep_by_bits", "(Tensor x, Tensor packed, SymInt[] stride) -> Tensor",
    _keep_by_bits, _fake_kept,
)  # fmt: skip

PACK_BITS = torch.ops.cutback.pack_bits.default
UNPACK_BITS = torch.ops.cutback.unpack_bits.default
PACK_INDICES = torch.ops.cutback.pack_indices.default
UNPACK_INDICES = torch.ops.cutback.unpack_indices.default
PACK_WINDOWS = torch.ops.cutback.pack_windows.default
UNPACK_WINDOWS = torch.ops.cutback.unpack_windows.default
PACK_SIGNS = torch.ops.cutback.pack_signs.default
KEEP_BY_BITS = torch.ops.cutback.keep_by_bits.default

PACKS = frozenset({PACK_BITS, PACK_INDICES, PACK_WINDOWS})
UNPACKS = frozenset({UNPACK_BITS, UNPACK_INDICES, UNPACK_WINDOWS})


def drawn(mask: fx.Node) -> fx.Node:
    """Returns the node that makes a mask, which may be an unpacked one."""
    return mask.args[0].args[0] if mask.target in UNPACKS else mask


def unpacked(mask: fx.Node) -> fx.Node:
    """Returns the node whose value the readers of a mask read."""
    packs = [user for user in mask.users if user.target in PACKS]
    return next(iter(packs[0].users), mask) if packs else mask


def unpacking(mask: fx.Node) -> list[fx.Node]:
    """Returns the nodes that pack and unpack a mask, in order, or an empty list if it is not
    unpacked."""
    found: list[fx.Node] = []
    node, first = mask, drawn(mask)
    while node is not first:
        found.insert(0, node)
        node = node.prev
    return found
