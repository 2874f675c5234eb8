"""What a profile says of an op and of a value."""

from __future__ import annotations

from typing import NamedTuple

CATEGORIES = ("parameter", "optimizer state", "activation", "gradient", "other")
"""What a value is. parameter: given, and gets a gradient. activation: made in the forward and read
in the backward. gradient: what the backward returns. other: inputs, buffers, outputs, and what
comes and goes within one phase."""

PHASES = ("forward", "backward", "optimizer")

MOVES = {"out": "swap_out", "wait": "swap_wait", "in": "swap_in"}
"""Action of a plan's move -> kind of its row."""


class Row(NamedTuple):
    """One op of the step, in the order of the run."""

    name: str  # "addmm_3", as in the problem and in plans
    kind: str  # "aten.addmm.default"; one of MOVES' values where nothing runs but a copy
    phase: str  # one of PHASES
    location: str  # "model.py:12 (layers.0)", "" when not known
    seconds: float  # median over the runs
    bytes: int  # of new storages
    live_bytes: int  # that the step itself holds while the op runs
    recomputed: bool  # the op had run before
    view: bool  # it returns memory that was there


class Uses(NamedTuple):
    """First and last row of a phase that reads a value; views are looked through."""

    first: int
    last: int


class Value(NamedTuple):
    """One storage while it is there; a value that is made again counts again."""

    name: str  # of the op that makes it, or of the input
    type: str  # "f32[8,32]"
    bytes: int
    category: str  # one of CATEGORIES
    made: int  # row; -1: it was there before the step
    last: int  # row after which it goes; the number of rows: it stays
    forward: Uses | None
    backward: Uses | None
    inactive_seconds: float  # between the last use in the forward and the first in the backward
    swap_out_seconds: float  # bytes / bandwidth of the link
    swap_in_seconds: float


class Peak(NamedTuple):
    """The moment at which the step holds most."""

    row: int
    name: str  # of its op
    bytes: int  # held by the step itself: what the measure "live" counts
    total_bytes: int  # with parameters, buffers, inputs and optimizer states
    by_category: dict[str, int]  # adds up to total_bytes
