"""The planner's input as types: operations, what they make, and the memory that lies in.

``docs/problem.md`` says what each field means; the names here are its names, written out. The core
reads and writes the JSON of a problem, and checks it: :meth:`Problem.read`, :meth:`Problem.to_json`
and :meth:`Problem.check` are the only ways in and out.

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
"""Operations with one of these flags run once."""

HELD: frozenset[StorageFlag] = frozenset({"hold_end"})
"""The flags of a storage that is alive at the end of the step."""

_NO_FLAGS: frozenset[Flag] = frozenset()
_NO_STORAGE_FLAGS: frozenset[StorageFlag] = frozenset()


@dataclass(slots=True)
class Storage:
    """One allocation."""

    bytes: int
    flags: frozenset[StorageFlag] = _NO_STORAGE_FLAGS


@dataclass(slots=True)
class Value:
    """One output of an operation: a view of a storage."""

    storage: int
    type: str = ""
    """``"f32[8,32]"``, for people."""
    bytes: int | None = None
    """Of its elements. None: as many as its storage."""
    constraint: Constraint = "free"
    member: int | None = None
    """Which member of its operation makes it, where that has an inside."""


@dataclass(slots=True)
class Member:
    """A part of an operation with an inside; makes one value of it."""

    reads: tuple[int, ...]
    """Inputs of the operation, by their places in its list."""
    uses: tuple[int, ...]
    """Members before it."""
    size: int = 0
    flops: float = 0.0
    bytes: int = 0
    work: Work = "f32"
    time_ps: int | None = None
    workspace: int = 0
    flags: frozenset[Flag] = _NO_FLAGS


@dataclass(slots=True)
class Op:
    """One operation of a joint graph. Its id is its place in :attr:`Problem.ops`."""

    name: str = ""
    kind: str = ""
    inputs: list[int] = field(default_factory=list)
    """Ids of the values that it reads."""
    outputs: list[Value] = field(default_factory=list)
    flags: frozenset[Flag] = _NO_FLAGS
    location: str = ""
    flops: float = 0.0
    bytes: int = 0
    """Moved by one run."""
    work: Work = "f32"
    time_ps: int | None = None
    """Measured picoseconds of one run. None: the cost model says."""
    workspace: int = 0
    group: int | None = None
    region: int | None = None
    inside: Sequence[Member] = ()
    over: Sequence[int] = ()
    """Inputs whose memory the output may take over, by their places in :attr:`inputs`, the first
    choice first."""


@dataclass(slots=True)
class Region:
    """A part of the graph that may have a limit of its own."""

    name: str = ""
    parent: int | None = None
    saved_limit: int | None = None


@dataclass(slots=True)
class Inlining:
    """Runs of an operation may make a value that it reads: what that adds to a run."""

    value: int
    op: int
    flops: float = 0.0
    bytes: int = 0
    work: Work = "f32"
    time_ps: int | None = None
    workspace: int = 0


def document_of(problem: _native.Problem) -> dict[str, Any]:
    """A problem as a document of ``docs/problem.md``, in which every operation has its flags and
    every value its bytes."""
    document: dict[str, Any] = json.loads(problem.to_json())
    sizes = [storage["bytes"] for storage in document["storages"]]
    for op in document["ops"]:
        op.setdefault("flags", [])
        for value in op["out"]:
            value.setdefault("bytes", sizes[value["storage"]])
    return document


@dataclass(slots=True)
class Problem:
    """The joint graph of one step, as the planner sees it. Value ids count the outputs of all
    operations in order."""

    ops: list[Op]
    storages: list[Storage]
    forward_outputs: list[int]
    """Values that must exist when the backward starts."""
    backward_outputs: list[int]
    """Values that must exist at the end."""
    backward_starts: int
    """Id of the first operation of the backward."""
    align: int = 64
    static_bytes: int = 0
    link_bytes_per_s: float = 0.0
    regions: list[Region] = field(default_factory=list)
    inlinings: list[Inlining] = field(default_factory=list)
    reruns: Reruns = "forward"
    """Operations of which part may run again, or first run later than their place in the order."""
    collective_again: bool = False
    """Operations of the forward with the flag ``"collective"`` may run again. All processes must
    then follow the same plan."""
    network_bytes_per_s: float = 0.0
    """What the bytes of a collective move at, if that is slower than memory. 0: not known, they
    count as any other operation's."""

    @classmethod
    def read(cls, text: str) -> Problem:
        """The problem of a JSON text, also of a traced graph.

        Raises:
            ValueError: the text is no problem; the message names the line or the operation.
        """
        return _native.Problem.read(text).parts()

    def check(self) -> _native.Problem:
        """The problem in the core, checked: what plans are asked of. Later changes to this object
        do not reach it.

        Raises:
            ValueError, TypeError: a broken rule of ``docs/problem.md``; the message names the
                operation.
        """
        return _native.Problem.of(self)

    def to_json(self) -> str:
        """The problem as JSON.

        Raises:
            ValueError, TypeError: as for :meth:`check`.
        """
        return self.check().to_json()

    def document(self) -> dict[str, Any]:
        """The problem as a document of ``docs/problem.md``, to be changed and planned at will."""
        document = document_of(self.check())
        del document["fingerprint"]  # which a change would make wrong
        return document

    @property
    def values(self) -> list[Value]:
        """All values, by id."""
        return [value for op in self.ops for value in op.outputs]

    @property
    def makers(self) -> list[int]:
        """By value id, the operation that makes it."""
        return [i for i, op in enumerate(self.ops) for _ in op.outputs]

    @property
    def wants_moves(self) -> bool:
        """Do its constraints ask that values move to the host?"""
        return any(value.constraint.endswith("offload") for value in self.values)

    def made(self) -> Iterator[tuple[Op, Value]]:
        """Each value with the operation that makes it."""
        return ((op, value) for op in self.ops for value in op.outputs)
