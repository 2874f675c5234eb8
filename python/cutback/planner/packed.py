"""Packed saves: masks kept as bits, indices in the fewest bytes.

A bool takes one byte in memory, an index of a pooling eight. If the backward reads such a value,
the step may keep a packed copy and unpack that in the backward: all results have the same bits.
:func:`with_packed` adds this choice to a problem. The operation that makes such a value is followed
by one that packs it and one that unpacks the packed copy, and all readers read the unpacked value:

    mask = gt(x, 0.1)
    mask_packed = pack(mask)
    mask_unpacked = unpack(mask_packed)

A plan then keeps the unpacked value (nothing is packed: a program uses the mask itself), the packed
one (``unpack`` runs again), or neither (all three run again). Packing and unpacking cost time only
in plans that keep the packed value. So the time of both is that of ``unpack`` (``pack`` is a
launch), whose first run is not paid: the operation that makes the value takes that much less if it
never runs without ``unpack``, because it has one result or runs once. ``pack`` runs once if that
operation does. An operation without bytes, ``made``, whose value the forward returns, keeps the
first run of ``unpack`` in the forward; otherwise it could be left to the backward and cost nothing.
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
"""Bytes of the smallest values that are packed. The launch of an operation takes longer than the
memory traffic of a smaller one."""

_POOLS = ("aten.max_pool2d_with_indices", "aten.max_pool3d_with_indices")


def traffic(bytes: int, packed: int) -> int:
    """Bytes that packing and unpacking read and write."""
    return 2 * (bytes + packed)


def index_bytes(count: int) -> int:
    """Bytes of the smallest integer type for the indices ``0 .. count - 1``: 1, 2, 4 or 8."""
    return next((size for size in (1, 2, 4) if count <= 1 << 8 * size - (size == 4)), 8)


def _count(type: str, axes: int) -> int | None:
    """The elements of a value in its last axes taken as one, or None if its type does not say."""
    shape = type.partition("[")[2].removesuffix("]").split(",")[-axes:]
    if len(shape) < axes or not all(n.isascii() and n.isdecimal() for n in shape):
        return None
    return prod(map(int, shape))


def _packed_bytes(problem: Problem, op: Op, value: Value, types: Sequence[str]) -> int | None:
    """The bytes of a value once it is packed, or None if it cannot be."""
    size = value.bytes if value.bytes is not None else problem.storages[value.storage].bytes
    if size < FEWEST or size != problem.storages[value.storage].bytes:
        return None
    if op.kind.startswith(UNPACK):  # has its packed copy already
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
    """Storages of masks and of indices of poolings, whole and packed."""
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
        """True if packing a value may pay and is allowed."""
        s = value.storage
        is_free = value.constraint == "free" and not problem.storages[s].flags
        return is_free and s in self.late and s not in self.fixed


def with_packed(problem: AnyProblem) -> Problem:
    """Returns a problem in which masks and indices may be kept packed.

    Values of type ``"bool[...]"`` are packed eight to a byte, the indices of max poolings
    (``"i64[...]"``) in 1, 2 or 4 bytes each, if an operation of the backward reads them, no result
    of the step shares their memory, they have no constraint, and they have at least 4,096 bytes.
    Indices are packed only if the type of the pooling's argument says how many elements it has.
    Values that may be packed already stay as they are.

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
        self.value: list[int] = []  # by old id: the value that takes its place
        self.op: list[int] = []  # by old id: its new id
        self.memory: dict[int, int] = {}  # by old storage: that of the unpacked value
        self.marks: list[int] = []
        self.n_values = 0

    def add(self, i: int, op: Op, packed: Sequence[tuple[int, int]]) -> None:
        """Adds an operation of the old problem. ``packed``: positions of the outputs to pack, and
        their packed bytes."""
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
