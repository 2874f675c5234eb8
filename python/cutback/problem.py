"""The planner's input as types: operations, their values, and the memory of the values.

``docs/problem.md`` describes each field; the names here are the long forms of its names. The core
reads, writes and checks the JSON of a problem, in :meth:`Problem.read`, :meth:`Problem.to_json` and
:meth:`Problem.check`.

>>> from cutback.problem import Op, Problem, Storage, Value
>>> x = Op("x", "input", outputs=[Value(0)], flags=frozenset({"placeholder"}))
>>> h = Op("h", "tanh", inputs=[0], outputs=[Value(1)], flags=frozenset({"fusible"}), bytes=2048)
>>> storages = [Storage(1024, frozenset({"static"})), Storage(1024, frozenset({"hold_forward"}))]
>>> problem = Problem([x, h], storages, forward_outputs=[1], backward_outputs=[], backward_starts=2)
>>> problem.check().plan().numbers["saved_bytes"]
1024
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from . import _native

Flag = Literal[
    "placeholder", "backward", "view", "fusible", "compute", "random_counter", "random_stateful",
    "effect", "collective", "mutates", "unknown", "reduction", "parameter",
]  # fmt: skip
StorageFlag = Literal["static", "hold_forward", "hold_end"]
Constraint = Literal[
    "free", "must_save", "prefer_save", "must_recompute", "prefer_recompute", "must_offload",
    "prefer_offload",
]  # fmt: skip
Reruns = Literal["forward", "all"]
Work = Literal["f32", "f64", "f16", "bf16", "int"]

ONCE: frozenset[Flag] = frozenset({"random_stateful", "effect", "collective", "mutates", "unknown"})
"""Operations with one of these flags must not run more than once."""

HELD: frozenset[StorageFlag] = frozenset({"hold_end"})
"""The flags of a storage that is still alive at the end of the step."""

_NO_FLAGS: frozenset[Flag] = frozenset()
_NO_STORAGE_FLAGS: frozenset[StorageFlag] = frozenset()


@dataclass(slots=True)
class Storage:
    """One allocation."""

    bytes: int
    """Its size."""
    flags: frozenset[StorageFlag] = _NO_STORAGE_FLAGS
    updates: int | None = None
    """For a gradient that an optimizer consumes inside the step, the storage of its parameter."""


@dataclass(slots=True)
class Value:
    """One output of an operation: a view of a storage."""

    storage: int
    type: str = ""
    """A text such as ``"f32[8,32]"``, which is only displayed."""
    bytes: int | None = None
    """Bytes of its elements. None: as many as its storage has."""
    constraint: Constraint = "free"
    member: int | None = None
    """The index of the member that makes it, if its operation has members."""


@dataclass(slots=True)
class Member:
    """A part of an operation that consists of several. It makes one value."""

    reads: tuple[int, ...]
    """Inputs of the operation, by their indices in its list."""
    uses: tuple[int, ...]
    """Indices of earlier members whose values it uses."""
    size: int = 0
    """Bytes of the value that it makes."""
    flops: float = 0.0
    """Number of arithmetic operations."""
    bytes: int = 0
    """Bytes that it reads from memory."""
    work: Work = "f32"
    """Type of the arithmetic."""
    time_ps: int | None = None
    """Measured picoseconds. None: use the cost model."""
    workspace: int = 0
    """Bytes of scratch while it runs."""
    flags: frozenset[Flag] = _NO_FLAGS


@dataclass(slots=True)
class Op:
    """One operation of a joint graph. Its id is its index in ``Problem.ops``."""

    name: str = ""
    kind: str = ""
    inputs: list[int] = field(default_factory=list)
    """Ids of the values that it reads."""
    outputs: list[Value] = field(default_factory=list)
    flags: frozenset[Flag] = _NO_FLAGS
    location: str = ""
    """Source line, ``"model.py:12"``."""
    flops: float = 0.0
    """Number of arithmetic operations of one run."""
    bytes: int = 0
    """Bytes that one run reads and writes."""
    work: Work = "f32"
    """Type of the arithmetic."""
    time_ps: int | None = None
    """Measured picoseconds of one run. None: use the cost model."""
    workspace: int = 0
    """Bytes of scratch while it runs."""
    group: int | None = None
    region: int | None = None
    inside: Sequence[Member] = ()
    over: Sequence[int] = ()
    """Inputs whose memory the output may reuse, by their indices in :attr:`inputs`, the preferred
    one first."""


@dataclass(slots=True)
class Region:
    """A part of the graph, which may have its own limit on saved bytes."""

    name: str = ""
    parent: int | None = None
    """Id of the region around it, which comes earlier in the list."""
    saved_limit: int | None = None
    """The most bytes that may be saved inside. None: any number."""


@dataclass(slots=True)
class Inlining:
    """Allows an operation to compute a value that it reads as part of its run, and gives the cost
    that this adds to the run."""

    value: int
    """Id of the value."""
    op: int
    """Id of the operation."""
    flops: float = 0.0
    """Number of arithmetic operations that it adds."""
    bytes: int = 0
    """Bytes that it reads and writes in addition."""
    work: Work = "f32"
    """Type of the arithmetic."""
    time_ps: int | None = None
    """Measured picoseconds that it adds. None: use the cost model."""
    workspace: int = 0
    """Bytes of scratch that it adds."""


def document_of(problem: _native.Problem) -> dict[str, Any]:
    """Converts a problem to a document (``docs/problem.md``) in which every operation has flags and
    every value has bytes."""
    document: dict[str, Any] = json.loads(problem.to_json())
    sizes = [storage["bytes"] for storage in document["storages"]]
    for op in document["ops"]:
        op.setdefault("flags", [])
        for value in op["out"]:
            value.setdefault("bytes", sizes[value["storage"]])
    return document


@dataclass(slots=True)
class Problem:
    """The joint graph of one step, as the planner sees it. Values are numbered in the order in
    which the operations produce them."""

    ops: list[Op]
    storages: list[Storage]
    forward_outputs: list[int]
    """Values that must exist when the backward starts."""
    backward_outputs: list[int]
    """Values that must exist at the end."""
    backward_starts: int
    """Id of the first operation of the backward."""
    align: int = 64
    """Alignment of offsets in the arena, in bytes; a power of two."""
    static_bytes: int = 0
    """Bytes of parameters, optimizer states and the like, which count in the measure ``total``."""
    link_bytes_per_s: float = 0.0
    """Bandwidth of the link to the host in one direction. 0: that of the device's row."""
    regions: list[Region] = field(default_factory=list)
    inlinings: list[Inlining] = field(default_factory=list)
    reruns: Reruns = "forward"
    """The part of the step whose operations may be recomputed, or run later than in this order."""
    collective_again: bool = False
    """If true, operations of the forward with the flag ``"collective"`` may run again. All
    processes must then follow the same plan."""
    keep_saved: bool = False
    """If true, no operation may overwrite memory (:attr:`Op.over`) that is alive between forward
    and backward."""
    network_bytes_per_s: float = 0.0
    """The rate of collectives, if it is lower than that of memory. 0: unknown; collectives then
    cost the same as other operations."""

    @classmethod
    def read(cls, text: str) -> Problem:
        """Reads a problem from JSON, or converts a traced graph to one.

        Raises:
            ValueError: if the text is not a problem; the message names the line or the operation.
        """
        return _native.Problem.read(text).parts()

    def check(self) -> _native.Problem:
        """Checks the problem and returns it as an object of the core, which makes plans. Later
        changes of this object do not change that one.

        Raises:
            ValueError, TypeError: if the problem breaks a rule of ``docs/problem.md``; the message
                names the operation.
        """
        return _native.Problem.of(self)

    def to_json(self) -> str:
        """Returns the problem as JSON.

        Raises:
            ValueError, TypeError: as for :meth:`check`.
        """
        return self.check().to_json()

    def document(self) -> dict[str, Any]:
        """Returns the problem as a document (``docs/problem.md``), which may be edited and then
        planned."""
        document = document_of(self.check())
        del document["fingerprint"]  # a change would make it wrong
        return document

    @property
    def values(self) -> list[Value]:
        """All values, by id."""
        return [value for op in self.ops for value in op.outputs]

    @property
    def makers(self) -> list[int]:
        """For each value id, the id of the operation that makes it."""
        return [i for i, op in enumerate(self.ops) for _ in op.outputs]

    @property
    def wants_moves(self) -> bool:
        """True if a constraint asks to move a value to the host."""
        return any(value.constraint.endswith("offload") for value in self.values)

    def made(self) -> Iterator[tuple[Op, Value]]:
        """Returns each value with the operation that makes it."""
        return ((op, value) for op in self.ops for value in op.outputs)
