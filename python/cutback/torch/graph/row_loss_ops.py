"""PyTorch operators for the cross entropy of rows of logits, which keep one number per row.

``cutback::row_loss`` returns, for each row, the log-probability of its label and the logarithm of
the sum of exponentials. ``cutback::row_loss_backward`` computes the gradient of the logits from the
latter. Both process a few rows at a time, so they allocate little besides their results, and 16-bit
logits are computed in f32.
"""

from __future__ import annotations

from typing import Any

import torch

_CHUNK = 1 << 17
"""Elements that are computed at once on a CPU, so that they stay in its cache."""

_CHUNK_ON_DEVICES = 1 << 24


def accumulated(dtype: torch.dtype) -> torch.dtype:
    """Returns the type in which rows of this type are summed."""
    return torch.float32 if dtype in (torch.float16, torch.bfloat16) else dtype


def _chunks(logits: torch.Tensor) -> list[tuple[int, int]]:
    rows, width = logits.shape
    most = _CHUNK if logits.device.type == "cpu" else _CHUNK_ON_DEVICES
    step = max(1, most // max(1, width))
    return [(a, min(rows, a + step)) for a in range(0, rows, step)]


def _known(target: torch.Tensor, ignore_index: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns which labels are ignored (bool[n]), and labels that can be looked up (i64[n, 1])."""
    ignored = target == ignore_index
    return ignored, target.masked_fill(ignored, 0).unsqueeze(1)


def _row_loss(
    logits: torch.Tensor, target: torch.Tensor, ignore_index: int
) -> tuple[torch.Tensor, torch.Tensor]:
    lse = torch.empty(logits.shape[0], dtype=accumulated(logits.dtype), device=logits.device)
    for a, b in _chunks(logits):
        torch.logsumexp(logits[a:b].to(lse.dtype), 1, out=lse[a:b])
    ignored, label = _known(target, ignore_index)
    picked = logits.gather(1, label).squeeze(1).to(lse.dtype)
    return picked.sub_(lse).masked_fill_(ignored, 0.0), lse


def _write_gradient(out: torch.Tensor, *given: Any) -> torch.Tensor:
    """Writes the gradient of logits, which may be in the memory of the logits themselves.

    Args:
        given: the arguments of the operator.
    """
    weight, uniform, logits, lse, target, ignore_index = given
    _, label = _known(target, ignore_index)
    total = weight if uniform is None else weight - logits.shape[1] * uniform
    in_place = out.dtype == lse.dtype
    for a, b in _chunks(logits):
        made = out[a:b] if in_place else torch.empty_like(out[a:b], dtype=lse.dtype)
        torch.sub(logits[a:b], lse[a:b, None], out=made)
        made.exp_().mul_(total[a:b, None])
        if uniform is not None:
            made.add_(uniform[a:b, None])
        made.scatter_add_(1, label[a:b], -weight[a:b, None])
        if not in_place:
            out[a:b] = made
    return out


def _row_loss_backward(
    weight: torch.Tensor, uniform: torch.Tensor | None, logits: torch.Tensor, lse: torch.Tensor,
    target: torch.Tensor, ignore_index: int,
) -> torch.Tensor:  # fmt: skip
    made = torch.empty_like(logits)
    return _write_gradient(made, weight, uniform, logits, lse, target, ignore_index)


def _row_loss_backward_out(*given: Any, out: torch.Tensor) -> torch.Tensor:
    return _write_gradient(out, *given)


def _fake_row_loss(
    logits: torch.Tensor, target: torch.Tensor, ignore_index: int
) -> tuple[torch.Tensor, torch.Tensor]:
    made = logits.new_empty(logits.shape[:1], dtype=accumulated(logits.dtype))
    return made, torch.empty_like(made)


def _fake_backward(
    weight: torch.Tensor, uniform: torch.Tensor | None, logits: torch.Tensor, lse: torch.Tensor,
    target: torch.Tensor, ignore_index: int,
) -> torch.Tensor:  # fmt: skip
    return torch.empty_like(logits)


_library = torch.library.Library("cutback", "FRAGMENT")
_GIVEN = (
    "Tensor weight, Tensor? uniform, Tensor logits, Tensor lse, Tensor target, int ignore_index"
)

_library.define(
    "row_loss(Tensor logits, Tensor target, int ignore_index) -> (Tensor, Tensor)",
    tags=(torch.Tag.reduction,),
)
_library.define(f"row_loss_backward({_GIVEN}) -> Tensor", tags=(torch.Tag.pointwise,))
_library.define(f"row_loss_backward.out({_GIVEN}, *, Tensor(a!) out) -> Tensor(a!)")
_library.impl("row_loss", _row_loss, "CompositeExplicitAutograd")
_library.impl("row_loss_backward", _row_loss_backward, "CompositeExplicitAutograd")
_library.impl("row_loss_backward.out", _row_loss_backward_out, "CompositeExplicitAutograd")
torch.library.register_fake("cutback::row_loss", _fake_row_loss, lib=_library)
torch.library.register_fake("cutback::row_loss_backward", _fake_backward, lib=_library)

ROW_LOSS = torch.ops.cutback.row_loss.default
ROW_LOSS_BACKWARD = torch.ops.cutback.row_loss_backward.default
ROW_LOSS_BACKWARD_OUT = torch.ops.cutback.row_loss_backward.out
