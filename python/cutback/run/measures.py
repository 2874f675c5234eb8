"""The numbers that a plan predicts for a step, and those that a run measures."""

from __future__ import annotations

from typing import NamedTuple


class Planned(NamedTuple):
    """The numbers that a plan predicts, in bytes and in picoseconds of the cost model."""

    arena_bytes: int  # size of the step's block, with offsets and alignment
    live_bytes: int  # liveness peak
    saved_bytes: int  # bytes alive between forward and backward
    total_bytes: int  # live bytes, parameters, gradients and optimizer states
    save_all_arena_bytes: int  # arena_bytes of the plan that saves everything
    save_all_live_bytes: int
    save_all_saved_bytes: int
    budget_bytes: int | None  # None: no budget
    time_ps: int  # time of the step
    once_ps: int  # time of the step without recomputation
    lower_bound_ps: int  # lower bound on the time of all plans within the budget
    n_groups: int  # number of kernels of a step
    n_recomputed: int  # number of values that are recomputed

    @property
    def recompute_share(self) -> float:
        """Modelled time of recomputation, as a share of the step's time without it."""
        return (self.time_ps - self.once_ps) / self.once_ps if self.once_ps else 0.0


class Stats(NamedTuple):
    """The measurements of a run.

    >>> value = step(params, x, y)
    >>> print(step.stats.peak_bytes)
    """

    peak_bytes: int
    """The largest number of bytes in use in the arena."""
    n_alloc: int
    """Number of heap allocations of the core during the run."""
    seconds: float
    """Time of forward, backward and optimizer in the core."""
    call_seconds: float = 0.0
    """Time of the whole call on the host, including the conversion of arguments and results. With
    ``stream=``, it ends when the work is queued."""

    def _repr_html_(self) -> str:
        from ..report.page import facts  # imported on demand: importing cutback stays fast
        from ..report.svg import human_bytes

        return facts(
            [
                ("peak of the arena", human_bytes(self.peak_bytes)),
                ("time in the core", f"{1e3 * self.seconds:.3f} ms"),
                ("time of the call", f"{1e3 * self.call_seconds:.3f} ms"),
                ("heap allocations", str(self.n_alloc)),
            ]
        )
