"""Plans as types: the steps of a schedule, the lifetimes of its memory, and the decision for each
value. ``docs/problem.md`` describes each field."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple, NotRequired, TypedDict

Action = Literal["run", "out", "wait", "in"]


class Step(NamedTuple):
    """One step of a schedule: an operation runs, or its result is moved."""

    op: int
    """Id of the operation."""
    action: Action = "run"
    outputs: tuple[int, ...] | None = None
    """The outputs that a run makes, by their indices in the operation's list. None: all."""
    taken: tuple[int, ...] = ()
    """Ids of values that this run recomputes inline (:class:`cutback.problem.Inlining`)."""


class Schedule(NamedTuple):
    """The steps in order, and the index of the first step of the backward."""

    steps: Sequence[Step | int]
    """An int means that the operation with that id runs and makes all of its outputs."""
    backward_starts: int
    """Index of the first step of the backward."""


class Life(NamedTuple):
    """One lifetime of a storage: it is allocated from step ``made`` to step ``last``."""

    storage: int | None
    """None for the scratch memory of a step."""
    made: int
    """Index of the step that allocates it."""
    last: int
    """Index of the last step in which it is alive; the number of steps if it lives to the end."""
    bytes: int
    """Size of the storage."""
    offset: int
    """Offset in the arena."""


class Decision(NamedTuple):
    """What a plan does with a value that the backward needs."""

    value: int
    """Id of the value."""
    decision: Literal["save", "recompute", "offload"]
    reason: str
    """``"cut"``, ``"forbidden"``, ``"policy"``, ``"held"``, ``"cheap"``, ``"peak"``, or
    ``"preset"``."""


class Numbers(TypedDict):
    """Bytes and modelled picoseconds of a plan. ``save_all_*``: the bytes if everything is
    saved."""

    arena_bytes: int
    """Size of the block that holds all storages, with offsets and alignment."""
    live_bytes: int
    """Peak of the bytes of live storages."""
    saved_bytes: int
    """Bytes alive between forward and backward."""
    total_bytes: int
    """Live bytes, with parameters, gradients and optimizer states."""
    save_all_arena_bytes: int
    save_all_live_bytes: int
    save_all_saved_bytes: int
    time_ps: int
    """Modelled picoseconds of the step."""
    once_ps: int
    """Picoseconds if every operation runs once."""
    lower_bound_ps: int
    """Lower bound in picoseconds on the time of plans for the same budget."""
    bound_class: Literal["any", "ordered", "trivial"]
    """The plans that the bound holds for, see :attr:`cutback.Plan.bound_ps`."""
    gap: float | None
    """Time above the bound, as a share of the bound. None: the bound is 0."""
    recomputed: int
    """Number of repeated runs of operations."""
    stall_ps: NotRequired[int]
    """Picoseconds of ``time_ps`` that wait for copies; only with offload."""
    out_bytes: NotRequired[int]
    """Bytes copied to the host; only with offload."""
    in_bytes: NotRequired[int]
    """Bytes copied back; only with offload."""
    host_bytes: NotRequired[int]
    """The most bytes held on the host at one time; only with offload."""


class Evaluated(TypedDict):
    """Bytes and modelled picoseconds of a schedule from any source."""

    peak_bytes: int
    """Peak of the bytes of live storages."""
    arena_bytes: int
    """Size of the block that holds all storages, with offsets and alignment."""
    saved_bytes: int
    """Bytes alive between forward and backward."""
    time_ps: int
    """Modelled picoseconds of the step."""
    once_ps: int
    """Picoseconds if every operation runs once."""
    runs: int
    """Number of runs of operations."""
    recomputed: int
    """Number of repeated runs of operations."""
    stall_ps: NotRequired[int]
    """Picoseconds of ``time_ps`` that wait for copies; only with offload."""
    out_bytes: NotRequired[int]
    """Bytes copied to the host; only with offload."""
    in_bytes: NotRequired[int]
    """Bytes copied back; only with offload."""
    host_bytes: NotRequired[int]
    """The most bytes held on the host at one time; only with offload."""


def save_all_bytes(numbers: Numbers, measure: str) -> int:
    """Returns the bytes of saving everything, by a measure: ``"arena"``, ``"live"`` or
    ``"saved"``."""
    sizes = {
        "arena": numbers["save_all_arena_bytes"], "live": numbers["save_all_live_bytes"],
        "saved": numbers["save_all_saved_bytes"],
    }  # fmt: skip
    return sizes[measure]


def bytes_of(numbers: Numbers, measure: str) -> int:
    """Returns the bytes of a plan by a measure: ``"arena"``, ``"live"``, ``"saved"`` or
    ``"total"``."""
    sizes = {
        "arena": numbers["arena_bytes"], "live": numbers["live_bytes"],
        "saved": numbers["saved_bytes"], "total": numbers["total_bytes"],
    }  # fmt: skip
    return sizes[measure]
