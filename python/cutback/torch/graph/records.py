"""Records of a profile: ops and values."""

from __future__ import annotations

from typing import NamedTuple

CATEGORIES = ("parameter", "optimizer state", "activation", "gradient", "other")
"""The categories of values. A parameter is an argument that gets a gradient; an activation is made
in the forward and read in the backward; a gradient is returned by the backward. Other values are
inputs, buffers, outputs, and temporaries of one phase."""

PHASES = ("forward", "backward", "optimizer")

MOVES = {"out": "swap_out", "wait": "swap_wait", "in": "swap_in"}
"""Kind of a row, by the action of a plan's move."""


class Row(NamedTuple):
    """One op of the step, in the order of the run."""

    name: str  # "addmm_3", as in the problem and in plans
    kind: str  # "aten.addmm.default"; a value of MOVES if the row is a copy
    phase: str  # one of PHASES
    location: str  # "model.py:12 (layers.0)"; "" if not known
    seconds: float  # median over the runs
    bytes: int  # bytes of new storages
    live_bytes: int  # held by the step itself while the op runs
    recomputed: bool  # the op had run before
    view: bool  # it returns existing memory


class Uses(NamedTuple):
    """The first and last row of a phase that reads a value; reads through views count."""

    first: int
    last: int


class Value(NamedTuple):
    """One storage during its life. A value that is recomputed counts again, and so does one that
    takes memory over."""

    name: str  # name of the op that makes it, or of the input
    type: str  # "f32[8,32]"
    bytes: int
    category: str  # one of CATEGORIES
    made: int  # row that makes it; -1 if it existed before the step
    last: int  # last row at which it exists; the number of rows if it stays
    forward: Uses | None
    backward: Uses | None
    # seconds between the last use in the forward and the first in the backward
    inactive_seconds: float
    swap_out_seconds: float  # its bytes divided by the bandwidth of the link
    swap_in_seconds: float


class Peak(NamedTuple):
    """The moment at which the step holds the most memory."""

    row: int
    name: str  # name of its op
    bytes: int  # bytes held by the step itself, as the measure "live" counts
    total_bytes: int  # including parameters, buffers, inputs and optimizer states
    by_category: dict[str, int]  # adds up to total_bytes
