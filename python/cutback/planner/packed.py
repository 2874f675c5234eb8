"""Packed saves: masks are saved as bits, and indices in as few bytes as possible.

In memory, a bool takes one byte and an index of a pooling takes eight. If the backward reads such a
value, the step may save a packed copy and unpack it in the backward. The results are bitwise equal.
:func:`with_packed` adds this choice to a problem. The operation that makes such a value is followed
by one that packs it and one that unpacks the packed copy, and all readers read the unpacked value:

    mask = gt(x, 0.1)
    mask_packed = pack(mask)
    mask_unpacked = unpack(mask_packed)

A plan then saves the unpacked value (the program packs nothing and uses the mask itself), the
packed value (``unpack`` runs again), or neither (all three run again).

Packing and unpacking cost time only in plans that save the packed value. The costs of the
operations express this. ``unpack`` has the cost of both, and ``pack`` only that of a launch. The
first run of ``unpack`` must be free, so its cost is subtracted from the operation that makes the
value, if that operation never runs without ``unpack``: if it has only one result, or runs only
once. ``pack`` must run only once if that operation must. A further operation without bytes,
``made``, reads the unpacked value, and the forward returns its result. It keeps the first run of
``unpack`` in the forward; without it, that run could move to the backward and be free there.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod

from ..problem import ONCE, Inlining, Op, Problem, Storage, Value
from .problems import AnyProblem, read_problem

PACK = "cutback.pack"
UNPACK = "cutback.unpack"
MADE = "cutback.made"
"""Kinds of the operations that :func:`with_packed` adds."""

FEWEST = 4096
"""Size in bytes from which on values are packed. For smaller values, the launch of an operation
takes longer than its memory traffic."""

_POOLS = ("aten.max_pool2d_with_indices", "aten.max_pool3d_with_indices")


def traffic(bytes: int, packed: int) -> int:
    """Returns the bytes that packing and unpacking read and write."""
    return 2 * (bytes + packed)


def index_bytes(count: int) -> int:
    """Returns the size of the smallest integer type for the indices ``0 .. count - 1``: 1, 2, 4 or
    8 bytes."""
    return next((size for size in (1, 2, 4) if count <= 1 << 8 * size - (size == 4)), 8)


def _count(type: str, axes: int) -> int | None:
    """Returns the product of the last ``axes`` sizes of a type, or None if the type does not give
    them."""
    shape = type.partition("[")[2].removesuffix("]").split(",")[-axes:]
    if len(shape) < axes or not all(n.isascii() and n.isdecimal() for n in shape):
        return None
    return prod(map(int, shape))


def _packed_bytes(problem: Problem, op: Op, value: Value, types: Sequence[str]) -> int | None:
    """Returns the size of a packed value in bytes, or None if it cannot be packed."""
    size = value.bytes if value.bytes is not None else problem.storages[value.storage].bytes
    if size < FEWEST or size != problem.storages[value.storage].bytes:
        return None
    if op.kind.startswith(UNPACK):  # a packed copy exists already
        return None
    if value.type.startswith("bool["):
        return (size + 7) // 8
    if value.type.startswith("i64[") and op.kind.startswith(_POOLS) and op.inputs:
        axes = 3 if "3d" in op.kind else 2
        count = _count(types[op.inputs[0]], axes)
        each = 8 if count is None else index_bytes(count)
        return size // 8 * each if each < 8 else None
    return None


def masks_of(problem: Problem) -> set[int]:
    """Returns the storages of masks and of indices of poolings, both unpacked and packed."""
    found: set[int] = set()
    for op in problem.ops:
        if "placeholder" in op.flags:
            continue
        is_pool = op.kind.startswith(("max_pool", "aten.max_pool", "aten.adaptive_max_pool"))
        for value in op.outputs:
            is_index = is_pool and value.type.startswith(("i64[", "i32["))
            if is_index or value.type.startswith("bool[") or op.kind.startswith((PACK, UNPACK)):
                found.add(value.storage)
    return found


@dataclass(frozen=True)
class _Reads:
    """Facts about a problem's storages."""

    late: frozenset[int]
    """Storages that operations of the backward read."""
    fixed: frozenset[int]
    """Storages whose values must stay as they are: results of the step, and memory that operations
    write into."""

    @classmethod
    def of(cls, problem: Problem) -> _Reads:
        values = problem.values
        late = {
            values[v].storage
            for i, op in enumerate(problem.ops)
            if i >= problem.backward_starts or "backward" in op.flags
            for v in op.inputs
        }
        ends = [*problem.forward_outputs, *problem.backward_outputs]
        ends += [inlining.value for inlining in problem.inlinings]
        makers = Counter(value.storage for op, value in problem.made() if "view" not in op.flags)
        fixed = {values[v].storage for v in ends} | {s for s, n in makers.items() if n > 1}
        return cls(frozenset(late), frozenset(fixed))

    def may_pack(self, problem: Problem, value: Value) -> bool:
        """Returns True if packing a value is allowed and may save memory."""
        s = value.storage
        is_free = value.constraint == "free" and not problem.storages[s].flags
        return is_free and s in self.late and s not in self.fixed


def with_packed(problem: AnyProblem) -> Problem:
    """Returns a problem in which masks and indices may be saved packed.

    Values of type ``"bool[...]"`` are packed eight to a byte. Indices of max poolings
    (``"i64[...]"``) are packed in 1, 2 or 4 bytes each. A value may be packed if an operation of
    the backward reads it, no result of the step shares its memory, it has no constraint, and it has
    at least 4,096 bytes. Indices also need a pooling whose argument has a type with sizes. Values
    that already may be packed are unchanged.

    Args:
        problem: a problem in any form that :func:`cutback.plan` takes. It is not changed.

    Returns:
        A new problem, with three more operations for each such value: ``cutback.pack``,
        ``cutback.unpack`` and ``cutback.made``, which takes no memory.

    Raises:
        ValueError, TypeError, OSError: if the problem is invalid or cannot be read.

    >>> packed = cutback.with_packed("problem.json")
    >>> cutback.plan(packed, budget="min").numbers["live_bytes"]
    """
    if not isinstance(problem, Problem):
        problem = read_problem(problem).parts()
    reads, types = _Reads.of(problem), [value.type for value in problem.values]
    maker = _Maker(problem)
    for i, op in enumerate(problem.ops):
        once = "view" not in op.flags and "placeholder" not in op.flags and not op.inside
        early = i < problem.backward_starts and "backward" not in op.flags
        packed: list[tuple[int, int]] = []
        for k, value in enumerate(op.outputs if once and early else ()):
            size = _packed_bytes(problem, op, value, types)
            if size is not None and reads.may_pack(problem, value):
                packed.append((k, size))
        maker.add(i, op, packed)
    return maker.finish()


class _Maker:
    """Writes the new problem, in the order of the old one."""

    def __init__(self, problem: Problem) -> None:
        self.old = problem
        self.ops: list[Op] = []
        self.storages = [replace(storage) for storage in problem.storages]
        self.value: list[int] = []  # old id of a value -> id of the value that replaces it
        self.op: list[int] = []  # old id of an operation -> new id
        self.memory: dict[int, int] = {}  # old storage -> storage of the unpacked value
        self.marks: list[int] = []
        self.n_values = 0

    def add(self, i: int, op: Op, packed: Sequence[tuple[int, int]]) -> None:
        """Adds an operation of the old problem. ``packed`` lists the positions of the outputs to
        pack and their packed sizes in bytes."""
        outputs = [
            replace(value, storage=self.memory.get(value.storage, value.storage))
            for value in op.outputs
        ]
        self.op.append(len(self.ops))
        new = replace(op, inputs=[self.value[v] for v in op.inputs], outputs=outputs)
        first = self._push(new)
        self.value += range(first, first + len(outputs))
        for k, size in packed:
            self.value[len(self.value) - len(outputs) + k] = self._pack(new, k, first + k, size)

    def _push(self, op: Op) -> int:
        first = self.n_values
        self.ops.append(op)
        self.n_values += len(op.outputs)
        return first

    def _pack(self, op: Op, k: int, value: int, size: int) -> int:
        old = op.outputs[k]
        whole = self.storages[old.storage].bytes
        name = op.name if len(op.outputs) == 1 else f"{op.name}.{k}"
        work = traffic(whole, size)
        runs_once = not ONCE.isdisjoint(op.flags)
        if (len(op.outputs) == 1 or runs_once) and op.time_ps is None:
            op.bytes = max(0, op.bytes - work)
        packed = self._add(op, f"{name}_packed", PACK, value, Storage(size))
        self.ops[-1].flags, self.ops[-1].time_ps = op.flags & ONCE, None
        self.ops[-1].outputs[0].type = f"u8[{size}]"
        made = self._add(op, f"{name}_unpacked", UNPACK, packed, Storage(whole))
        self.ops[-1].outputs[0].type = old.type
        self.ops[-1].bytes, self.ops[-1].time_ps = work, None
        self.memory[old.storage] = len(self.storages) - 1
        self.marks.append(self._add(op, f"{name}_made", MADE, made, Storage(0)))
        return made

    def _add(self, like: Op, name: str, kind: str, value: int, storage: Storage) -> int:
        self.storages.append(storage)
        out = [Value(len(self.storages) - 1)]
        return self._push(
            Op(name, kind, [value], out, location=like.location, region=like.region, time_ps=0)
        )

    def finish(self) -> Problem:
        """Returns the new problem."""
        old, value = self.old, self.value
        starts = old.backward_starts
        return replace(
            old,
            ops=self.ops,
            storages=self.storages,
            forward_outputs=[*(value[v] for v in old.forward_outputs), *self.marks],
            backward_outputs=[value[v] for v in old.backward_outputs],
            backward_starts=self.op[starts] if starts < len(self.op) else len(self.ops),
            inlinings=[self._inlining(inlining) for inlining in old.inlinings],
        )

    def _inlining(self, inlining: Inlining) -> Inlining:
        return replace(inlining, value=self.value[inlining.value], op=self.op[inlining.op])
