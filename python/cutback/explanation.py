"""Types of the JSON documents that explain a plan and the kernels of a compiled step. Their keys
are described in ``docs/problem.md``, "Explanation" and "Kernels"."""

from __future__ import annotations

from typing import Literal, NamedTuple, TypedDict

from .schedule import Numbers


class Named(TypedDict):
    """An operation, as shown to the user."""

    op: int
    name: str
    kind: str
    at: str


class Sized(Named):
    """An operation and the bytes that it needs."""

    bytes: int


class AtPeak(Sized):
    """The operation at the peak."""

    step: int


class Otherwise(TypedDict):
    """The numbers of the plan that differs only in this decision."""

    decision: Literal["save", "recompute", "offload"]
    peak_bytes: int
    saved_bytes: int
    time_ps: int


class ExplainedValue(Sized):
    """One storage that the backward needs."""

    value: int
    storage: int
    type: str
    run_ps: int
    forward_readers: list[str]
    backward_readers: list[str]
    decision: Literal["save", "recompute", "offload"]
    reason: str
    runs_once: str | None
    at_peak: bool
    otherwise: Otherwise | None


class Explanation(TypedDict):
    """The reasons for the decisions of a plan."""

    fingerprint: str
    preset: str
    measure: str
    budget_bytes: int | None
    numbers: Numbers
    peak: AtPeak | None
    floor: Sized | None
    working_sets: list[Sized]
    held_bytes: int
    tried: int
    values: list[ExplainedValue]


class KernelOp(TypedDict):
    """One operation of a group."""

    name: str
    kind: str
    at: str
    part: str
    recomputed: bool


class Local(TypedDict):
    """A value that never exists in memory."""

    name: str
    type: str
    bytes: int


class End(TypedDict):
    """Why a group ends."""

    reason: str
    before: str | None
    waits_for: str | None


class Group(TypedDict):
    """The operations that run as one kernel."""

    elements: int
    columns: int
    steps: list[int]
    ops: list[KernelOp]
    read_bytes: int
    written_bytes: int
    apart_bytes: int
    scratch_bytes: int
    modelled_ps: int
    locals: list[Local]
    end: End


class Kernels(TypedDict):
    """The kernels of a compiled step."""

    arena_bytes: int
    live_bytes: int
    backward_starts: int
    groups: list[Group]


class Holding(NamedTuple):
    """Memory that is alive at the peak of a plan."""

    what: str
    """``"gradients"``, ``"logits"``, ``"masks"``, ``"saved"`` (other values saved for the
    backward), ``"scratch"`` or ``"other"``."""
    bytes: int
    number: int
    """The number of allocations."""


class Saving(NamedTuple):
    """The smallest plan that some options allow, for comparison with a plan, or that plan
    itself."""

    options: str
    """``'updates="inside"'``, ``"slices=True"``, both, or ``""`` for the plan itself."""
    bytes: int
    """Live bytes."""
    extra: float
    """Extra time, as a share of the time of running every operation once."""
