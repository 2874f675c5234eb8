"""Captures a run of a compiled graph, with the optimizer's step after it, as one CUDA graph.

The CUDA graph reads and writes at the addresses that it was captured with. Arrays that the run only
reads are copied there before a replay, and results are copied from there, on the GPU and in stream
order. So a replay accepts any arrays, except for arguments that the run writes to.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from ..device_arrays import DeviceArray
from .executable import Draws, Executable, draws_of
from .measures import Stats

if TYPE_CHECKING:
    from ..optim import Optimizer
    from ..optim.numbers import Row
    from ..optim.state import State


class OnDevice(NamedTuple):
    """Addresses in the GPU's memory at which a captured step reads the numbers of an optimizer's
    group. A kernel of a scheduler or a loss scaler may write there; later replays use the new
    numbers.

    >>> captured.on_device().found_inf  # doctest: +SKIP
    140188323217472
    """

    hyper: int
    """Address of the hyper-parameters (f64), in the order of their names."""
    t: int
    """Address of the number of steps (i64)."""
    grad_factor: int
    """Address of the factor (f64) by which the gradients of all groups are multiplied."""
    found_inf: int
    """Address of a flag (u32). If it is not 0, no group is stepped or counted."""


class CapturedRun:
    """One captured graph.

    Args:
        run: the program to capture; it runs on a GPU.
        bound: the first arguments, arrays on the GPU that the graph uses in place. The other
            arguments are copied to arrays that it allocates.
        draws: the seed and the step of random numbers. The seed is part of the graph.
        optimizer: the optimizer that steps the parameters after the run.
    """

    def __init__(
        self,
        run: Executable,
        bound: Sequence[DeviceArray],
        draws: Draws,
        optimizer: Optimizer | None,
    ) -> None:
        device = bound[0].device
        kinds = run.native.inputs
        own = run.argument_positions[len(bound) :]
        places = [DeviceArray.empty(kinds[i][2], kinds[i][1], device, None) for i in own]
        self._inputs = list[DeviceArray]()
        for array, kind in zip(run.inputs([*bound, *places]), kinds, strict=True):
            if not isinstance(array, DeviceArray):  # a constant, which is copied once
                made = DeviceArray.empty(kind[2], kind[1], device, None)
                made.write(array)
                array = made
            self._inputs.append(array)
        self.run, self.seed = run, draws.seed
        self._arena_bytes = run.planned.arena_bytes
        self._optimizer = optimizer
        self._state: State | None = None
        self._made = run.made
        outputs = run.outputs(None, device, None)
        seed, random_step = draws_of(draws.seed, draws.rng_step)
        update: dict[str, Any] = {}
        if optimizer is not None:
            state, rows = run.prepare(optimizer, self._inputs)
            self._state = state
            update = {
                "optimizer": optimizer.native, "states": list(state.arrays.values()),
                "group_of": state.group_of, "groups": rows, "t": state.counter,
                "numbers": state.numbers,
            }  # fmt: skip
        self.native = run.native.capture(
            inputs=self._inputs, outputs=outputs, seed=seed, random_step=random_step, copied=own,
            made=self._made, **update,
        )  # fmt: skip

    def rows(self) -> list[Row] | None:
        """Returns the hyper-parameters of the next replay, or None if the optimizer's state has
        been replaced, so that the graph would update the wrong arrays."""
        if self._optimizer is None:
            return []
        assert self._state is not None
        found = self._optimizer.prepared(self._state.names)
        return found[1] if found is not None and found[0] is self._state else None

    def first_rows(self) -> list[Row]:
        """Returns the hyper-parameters right after the capture."""
        return [] if self._optimizer is None else self._optimizer.rows()

    def replay(
        self,
        given: Sequence[Any],
        draws: Draws,
        rows: list[Row],
        stream: int | None,
    ) -> tuple[list[Any], list[Any]]:
        """Queues one replay on the stream and returns (results, gradients). Without a stream, waits
        for them."""
        if self._optimizer is None:
            return self._replay(given, draws, rows, stream)
        hold = self._optimizer.stepping().hold
        return hold(self._replay, given, draws, rows, stream)

    def _replay(
        self,
        given: Sequence[Any],
        draws: Draws,
        rows: list[Row],
        stream: int | None,
    ) -> tuple[list[Any], list[Any]]:
        outputs = self.run.made_outputs(self._made, self._inputs[0].device, stream)
        update: dict[str, Any] = {}
        if self._state is not None:
            state = self._state
            update = {"groups": rows, "t": state.counter, "numbers": state.numbers}
        seconds = self.native.replay(
            inputs=given,
            outputs=outputs,
            random_step=draws_of(0, draws.rng_step)[1],
            count=draws.counter,
            next=draws.rng_step + 1,
            stream=stream,
            **update,
        )
        self.run.stats = Stats(self._arena_bytes, 0, seconds)
        return self.run.split_made(outputs, self._made)

    def wait(self) -> None:
        """Waits for the latest replay, and copies the GPU's step counts to the optimizer's state.

        Raises:
            ValueError: if the replay failed, for example at an index out of range. It has changed
                nothing then.
        """
        try:
            self.run.wait()
        finally:
            if self._state is not None:
                self.native.counts(self._state.counter, self._state.numbers)
