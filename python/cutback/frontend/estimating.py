"""``cutback.estimate``: which batches of a function of arrays fit into memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from .. import budgets
from ..devices import Device
from ..optim import Optimizer
from ..planner.estimating import MOST, Estimate, Way, check_make_step, estimate_with
from ..problem import Problem
from ..run.executable import Executable
from .tracing import Call, Traced

_EXPECTED = (
    "make_step(batch) returns (loss, arguments), where arguments is a tuple, or "
    "(loss, arguments, optimizer)"
)


def _problem_of(made: Any, slices: bool) -> Problem:
    if not isinstance(made, tuple) or len(made) not in (2, 3) or not callable(made[0]):
        raise TypeError(f"{_EXPECTED}; it returned {type(made).__name__}")
    loss, args, *rest = made
    optimizer = rest[0] if rest else None
    if not isinstance(args, tuple):
        raise TypeError(f"{_EXPECTED}; its arguments are {type(args).__name__}")
    if optimizer is not None and not isinstance(optimizer, Optimizer):
        raise TypeError(f"{_EXPECTED}; its optimizer is {type(optimizer).__name__}")
    if any(type(leaf).__module__.partition(".")[0] == "torch" for leaf in (loss, *args)):
        raise TypeError("make_step returned a PyTorch step: use cutback.torch.estimate")
    call = Call(loss, args, {})
    traced = Traced(call, (0,), None, watches=False)
    traced.finish(with_loss=True)
    params = [array for i in traced.wrt if (array := call.arrays[i]) is not None]
    static = sum(array.nbytes for array in params)
    if optimizer is not None:
        names = [traced.graph.inputs[i][0] for i in traced.wrt_positions]
        static += optimizer.state_bytes(names, params)
    run = Executable(
        traced.graph, traced.wrt_positions, keep_gradients=True, static_bytes=static, slices=slices
    )
    return run.native.plan().problem.parts()


def estimate(
    make_step: Callable[[int], Any],
    budget: int | str | None = None,
    *,
    device: Device | None = None,
    measure: str = "total",
    batches: Sequence[int] | None = None,
    most: int = MOST,
    slices: bool = False,
) -> Estimate:
    """Estimates the memory and time of a training step at each batch size, and the largest batch
    within a budget, without running anything.

    The step is traced at batches of 16 and 24. Its sizes are assumed to be linear functions of the
    batch, and a trace at the answer checks this; if they are not linear, every batch is traced.
    Plans are searched for at 16 and at the answer, and only evaluated at other batches. So a plan
    that is searched for at another batch may be smaller or faster than the table says.

    Args:
        make_step: ``make_step(batch)`` returns ``(loss, arguments)`` or ``(loss, arguments,
            optimizer)``. Gradients are taken with respect to the first argument. Only the shapes
            and types of arrays matter: ``np.broadcast_to(np.float32(0), shape)`` takes no memory.
        budget: bytes, or ``"80GiB"``. None returns only the table.
        device: row of the cost model, see :func:`cutback.compile`.
        measure: ``"total"`` (parameters, optimizer states, gradients and the step), ``"live"`` or
            ``"arena"`` (only the step, with gradients).
        batches: batch sizes of the table; by default powers of two from 2.
        most: the largest batch to try.
        slices: run chains of row-wise operations in pieces, see :func:`cutback.compile`.

    Returns:
        An object with ``batch``, the largest batch (None without a budget, or if no batch fits),
        and ``points``, the rows of the table, with bytes and modelled seconds. Printing it shows
        the table.

    Raises:
        ValueError, TypeError: if an argument or the result of ``make_step`` is invalid.

    >>> def make_step(batch):
    ...     data = np.broadcast_to(np.float32(0), (batch, 4))
    ...     return lambda w, x: cutback.tanh(x @ w).sum(), (np.ones((4, 4), np.float32), data)
    >>> print(cutback.estimate(make_step, "1MiB", device="a100", most=64))
    """
    budgets.truth("slices", slices)
    check_make_step(make_step)
    way = Way(lambda batch: _problem_of(make_step(batch), slices), device, measure, (None,))
    return estimate_with(way, budget, batches, most)
