"""Plans as types: the steps of a schedule, the lives of its memory, and what was decided for each
value. ``docs/problem.md`` says what each field means."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple, NotRequired, TypedDict

Action = Literal["run", "out", "wait", "in"]


class Step(NamedTuple):
    """One step of a schedule: an operation runs, or what it made moves."""

    op: int
    action: Action = "run"
    outputs: tuple[int, ...] | None = None
    """Those that a run makes, by their places among the operation's. None: all."""
    taken: tuple[int, ...] = ()
    """Values that the run makes for itself (:class:`cutback.problem.Inlining`)."""


class Schedule(NamedTuple):
    """Steps in order, and the first of the backward."""

    steps: Sequence[Step | int]
    """An int: the operation of that id runs, with all of its outputs."""
    backward_starts: int


class Life(NamedTuple):
    """One life of a storage: alive while steps ``made`` to ``last`` run."""

    storage: int | None
    """None: scratch of one step."""
    made: int
    last: int
    """The number of steps: to the end."""
    bytes: int
    offset: int
    """In the arena."""


class Decision(NamedTuple):
    """What a plan does with a value that the backward needs."""

    value: int
    decision: Literal["save", "recompute", "offload"]
    reason: str
    """``"cut"``, ``"forbidden"``, ``"policy"``, ``"held"``, ``"cheap"``, ``"peak"``, or
    ``"preset"``."""


class Numbers(TypedDict):
    """Bytes and modelled picoseconds of a plan; ``save_all_*`` are those of saving everything."""

    arena_bytes: int
    live_bytes: int
    saved_bytes: int
    total_bytes: int
    save_all_arena_bytes: int
    save_all_live_bytes: int
    save_all_saved_bytes: int
    time_ps: int
    once_ps: int
    lower_bound_ps: int
    bound_class: Literal["any", "ordered", "trivial"]
    gap: float | None
    recomputed: int
    stall_ps: NotRequired[int]
    out_bytes: NotRequired[int]
    in_bytes: NotRequired[int]
    host_bytes: NotRequired[int]


class Evaluated(TypedDict):
    """Bytes and modelled picoseconds of a schedule from anywhere."""

    peak_bytes: int
    arena_bytes: int
    saved_bytes: int
    time_ps: int
    once_ps: int
    runs: int
    recomputed: int
    stall_ps: NotRequired[int]
    out_bytes: NotRequired[int]
    in_bytes: NotRequired[int]
    host_bytes: NotRequired[int]


def save_all_bytes(numbers: Numbers, measure: str) -> int:
    """What saving everything takes by a measure: ``"arena"``, ``"live"`` or ``"saved"``."""
    sizes = {
        "arena": numbers["save_all_arena_bytes"], "live": numbers["save_all_live_bytes"],
        "saved": numbers["save_all_saved_bytes"],
    }  # fmt: skip
    return sizes[measure]


def bytes_of(numbers: Numbers, measure: str) -> int:
    """What a measure counts: ``"arena"``, ``"live"``, ``"saved"`` or ``"total"``."""
    sizes = {
        "arena": numbers["arena_bytes"], "live": numbers["live_bytes"],
        "saved": numbers["saved_bytes"], "total": numbers["total_bytes"],
    }  # fmt: skip
    return sizes[measure]
