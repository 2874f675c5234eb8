"""Slices: chains of row-wise operations run in pieces of some rows each.

Each row of a language model's logits is needed only for one number of the loss and for one row of
gradients. :func:`with_slices` rewrites a problem so that only a piece of such a matrix exists at a
time:

    logits = mm(h, w)            logits_piece0 = mm(h, w)        a kth of the rows
    loss = row_loss(logits)  ->  loss_piece0 = row_loss(logits_piece0)
                                 ..
                                 loss = cat(loss_piece0, ..)
    dw = mm(h, dlogits)          dw_piece0 = mm(h, dlogits_piece0)
                                 dw = mm(h, dlogits_piece1) + dw_piece0, in the same memory

A strip is a set of operations that run in pieces. It begins with a product whose rows are at least
twice as wide as those that it reads. It contains the operations of the forward and the backward
that make or read values of that width. A problem gives sizes but not the axes along which
operations work. So this module assumes that an operation works row by row if its results have the
same number of rows, and that it sums over rows if they are smaller. ``slices=True`` of a compiled
step knows the axes and is exact.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from math import prod

from ..problem import Flag, Op, Problem, Storage, Value
from .problems import AnyProblem, read_problem

PIECE_ROWS = 256  # CB_PIECE_ROWS and CB_MAX_PIECES of csrc/ad/strips/find.h
"""Pieces begin at multiples of this number of rows."""
MOST_PIECES = 8
"""The largest number of pieces."""
LEAST_ROWS = 2 * PIECE_ROWS
"""Chains of fewer rows are not cut."""

_PRODUCTS = ("aten.mm", "aten.addmm", "matmul")
_WHOLE: frozenset[Flag] = frozenset({"effect", "collective", "mutates", "unknown", "placeholder"})
_CAT = "cutback.cat"


def begins(rows: int) -> list[int]:
    """Returns the first row of each piece, and the number of rows.

    >>> from cutback.planner.sliced import begins
    >>> begins(600), begins(1024)
    ([0, 256, 600], [0, 256, 512, 768, 1024])
    """
    blocks = rows // PIECE_ROWS
    pieces = max(1, min(MOST_PIECES, blocks))
    return [*(blocks * k // pieces * PIECE_ROWS for k in range(pieces)), rows]


def _shape(type: str) -> tuple[int, ...] | None:
    """Returns the sizes in a type such as ``"f32[8,16]"``, or None if the type lacks some."""
    inner = type.partition("[")[2]
    if not inner.endswith("]"):
        return None
    sizes = [n for n in inner[:-1].split(",") if n]
    return tuple(map(int, sizes)) if all(n.isdecimal() for n in sizes) else None


def _leading(shape: Sequence[int] | None, rows: int) -> int | None:
    """Returns the number of leading axes whose sizes multiply to ``rows``, or None."""
    count = 1
    for k, size in enumerate(shape or ()):
        count *= size
        if count == rows:
            return k + 1
    return None


class _Graph:
    """A problem, with lookup tables for finding strips."""

    def __init__(self, problem: Problem) -> None:
        self.ops, self.problem = problem.ops, problem
        self.maker = [i for i, op in enumerate(problem.ops) for _ in op.outputs]
        self.values = problem.values
        self.shapes = [_shape(value.type) for value in self.values]
        self.first = [0] * len(self.ops)
        for i in range(1, len(self.ops)):
            self.first[i] = self.first[i - 1] + len(self.ops[i - 1].outputs)
        self.reads = [{self.maker[v] for v in op.inputs} for op in self.ops]
        self.readers: dict[int, list[int]] = defaultdict(list)
        for i, makers in enumerate(self.reads):
            for j in sorted(makers):
                self.readers[j].append(i)
        ends = [*problem.forward_outputs, *problem.backward_outputs]
        self.returned = {self.maker[v] for v in ends}
        self.inlined = {self.maker[i.value] for i in problem.inlinings}
        self.inlined |= {i.op for i in problem.inlinings}

    def outputs(self, i: int) -> range:
        """Returns the ids of an operation's results."""
        return range(self.first[i], self.first[i] + len(self.ops[i].outputs))

    def is_late(self, i: int) -> bool:
        """Returns True if operation ``i`` belongs to the backward."""
        return i >= self.problem.backward_starts

    def has_rows(self, i: int, rows: int) -> bool:
        """Returns True if all results of operation ``i`` have this number of rows."""
        found = [_leading(self.shapes[v], rows) for v in self.outputs(i)]
        return bool(found) and None not in found

    def is_turned(self, i: int) -> bool:
        """Returns True for a transposed view of a matrix, which a product that sums over rows
        reads."""
        op = self.ops[i]
        if "view" not in op.flags or len(op.inputs) != 1 or len(op.outputs) != 1:
            return False
        given, made = self.shapes[op.inputs[0]], self.shapes[self.first[i]]
        return bool(given and made and len(made) == 2 and made == given[::-1] != given)

    def elements(self, v: int) -> int:
        """Returns the number of elements of a value, or 0 if it is not known."""
        shape = self.shapes[v]
        return 0 if shape is None else prod(shape)

    def size(self, v: int) -> int:
        """Returns the size of a value in bytes."""
        value = self.values[v]
        whole = self.problem.storages[value.storage].bytes
        return whole if value.bytes is None else value.bytes


@dataclass
class _Strip:
    """Operations that run in pieces."""

    rows: int
    by_rows: set[int]
    sums: set[int]
    """Operations whose results are sums over rows."""

    @property
    def members(self) -> set[int]:
        return self.by_rows | self.sums


def _seed(graph: _Graph, i: int) -> tuple[int, int] | None:
    """Returns (number of rows, width) of a product whose rows are at least twice as wide as those
    that it reads; None for other operations."""
    op = graph.ops[i]
    if not op.kind.startswith(_PRODUCTS) or graph.is_late(i):
        return None
    if len(op.outputs) != 1 or len(op.inputs) < 2:  # a problem may leave out weights
        return None
    made, given = graph.shapes[graph.first[i]], graph.shapes[op.inputs[-2]]
    if not made or not given or len(made) < 2 or len(given) < 2:
        return None
    rows, width = prod(made[:-1]), made[-1]
    if rows < LEAST_ROWS or prod(given[:-1]) != rows or width < 2 * given[-1]:
        return None
    return rows, width


def _wide(graph: _Graph, seed: int, count: int) -> set[int]:
    """Returns the operations that are connected with the seed and have a result of ``count``
    elements."""

    def is_wide(i: int) -> bool:
        op = graph.ops[i]
        if "placeholder" in op.flags or graph.is_turned(i):
            return False
        return any(graph.elements(v) == count for v in graph.outputs(i))

    found, todo = {seed}, [seed]
    while todo:
        i = todo.pop()
        near = [j for j in (*graph.readers[i], *sorted(graph.reads[i])) if j not in found]
        for j in near:
            if is_wide(j):
                found.add(j)
                todo.append(j)
    return found


def _grow(graph: _Graph, seed: int, rows: int, width: int) -> _Strip:
    """Builds the strip of a product, without checking that it may run in pieces."""
    wide = _wide(graph, seed, rows * width)
    strip = _Strip(rows, set(wide), set())
    pending = sorted(wide)
    while pending:  # readers of wide values, and statistics of rows that wide operations read
        i = pending.pop()
        for j in graph.readers[i]:
            if j in strip.members or graph.is_turned(j):
                continue
            if "view" in graph.ops[j].flags and i not in wide:
                continue
            if not graph.has_rows(j, rows):
                strip.sums.add(j)
                continue
            strip.by_rows.add(j)
            if any(k in wide for k in graph.readers[j]):
                pending.append(j)
    _add_between(graph, strip)
    turned = {j for i in sorted(wide) for j in graph.readers[i] if graph.is_turned(j)}
    strip.sums |= {k for j in turned for k in graph.readers[j]} - strip.by_rows
    strip.by_rows |= turned
    return strip


def _add_between(graph: _Graph, strip: _Strip) -> None:
    """Adds operations between members whose results are narrow, such as the logarithm of the sum
    of each row."""
    while True:
        near = {j for i in strip.by_rows for j in graph.readers[i]} - strip.members
        found = {
            j
            for j in near
            if strip.by_rows & set(graph.readers[j]) and graph.has_rows(j, strip.rows)
        }
        if not found:
            return
        strip.by_rows |= found


def _may_run(graph: _Graph, strip: _Strip, width: int) -> bool:
    """Returns True if a strip may run in pieces and its final results are smaller than the values
    between."""
    left = 0
    for i in sorted(strip.members):
        op = graph.ops[i]
        if op.inside or i in graph.inlined or not _WHOLE.isdisjoint(op.flags):
            return False
        if strip.sums & graph.reads[i]:  # rows that read a sum over all rows
            return False
        made = sum(map(graph.elements, graph.outputs(i)))
        if i in strip.sums:
            is_product = op.kind.startswith(_PRODUCTS)
            if not made or not (is_product or "reduction" in op.flags or made <= width):
                return False
        elif i in graph.returned or any(j not in strip.members for j in graph.readers[i]):
            left += made if not graph.is_late(i) and "view" not in op.flags else 0
    return 2 * left <= strip.rows * width


class _OrderError(Exception):
    """Raised if an operation must run between the operations of a strip."""


Block = tuple[int, bool]
"""The number of a strip, and True for its part in the backward."""


def _order(graph: _Graph, strips: Sequence[_Strip]) -> list[int | Block]:
    """Returns the operations and the parts of strips, in an order in which each comes after those
    whose results it reads.

    Raises:
        _OrderError: if there is no such order.
    """
    block = {i: (n, graph.is_late(i)) for n, strip in enumerate(strips) for i in strip.members}
    members: dict[Block, list[int]] = defaultdict(list)
    for i, key in sorted(block.items()):
        members[key].append(i)
    order: list[int | Block] = []
    done: set[int] = set()
    waiting: set[int] = set()
    for start in range(len(graph.ops)):
        stack = [(start, False)]
        while stack:
            i, is_ready = stack.pop()
            if i in done:
                continue
            group = members[block[i]] if i in block else [i]
            if is_ready:
                done.update(group)
                order.append(block.get(i, i))
                continue
            needs = {j for m in group for j in graph.reads[m]} - set(group) - done
            if needs & waiting:
                raise _OrderError
            waiting.update(group)
            stack.append((i, True))
            stack += [(j, False) for j in sorted(needs, reverse=True)]
    return order


def _strips(graph: _Graph) -> tuple[list[_Strip], list[int | Block]]:
    """Returns all strips, and the order in which strips and other operations run."""
    strips: list[_Strip] = []
    order: list[int | Block] = list(range(len(graph.ops)))
    taken: set[int] = set()
    for i in range(len(graph.ops)):
        found = None if i in taken else _seed(graph, i)
        if found is None:
            continue
        strip = _grow(graph, i, *found)
        if taken & strip.members or not _may_run(graph, strip, found[1]):
            continue
        try:
            order = _order(graph, [*strips, strip])
        except _OrderError:
            continue
        strips.append(strip)
        taken |= strip.members
    return strips, order


class _Writer:
    """Writes the new problem."""

    def __init__(self, graph: _Graph) -> None:
        self.graph = graph
        self.ops: list[Op] = []
        self.n_values = 0
        self.storages: list[Storage] = []
        self.value: dict[int, int] = {}  # old id -> id of the whole value that replaces it
        self.storage: dict[int, int] = {}  # old id -> id of the storage that replaces it
        self.op: dict[int, int] = {}  # old id -> id of the operation that replaces it
        self.part: dict[tuple[int, int], int] = {}  # old value, piece -> value
        self.memory: dict[tuple[int, int], int] = {}  # old storage, piece -> storage

    def _whole(self, old: int) -> int:
        if old not in self.storage:
            self.storage[old] = len(self.storages)
            self.storages.append(replace(self.graph.problem.storages[old]))
        return self.storage[old]

    def _push(self, op: Op) -> int:
        first = self.n_values
        self.ops.append(op)
        self.n_values += len(op.outputs)
        return first

    def copy(self, i: int) -> None:
        """Adds an operation that does not run in pieces."""
        op = self.graph.ops[i]
        outputs = [replace(v, storage=self._whole(v.storage)) for v in op.outputs]
        inputs = [self.value[v] for v in op.inputs]
        self.op[i] = len(self.ops)
        first = self._push(replace(op, inputs=inputs, outputs=outputs))
        self.value.update({v: first + k for k, v in enumerate(self.graph.outputs(i))})

    def _work(self, i: int, strip: _Strip, rows: int, again: int) -> int:
        """Returns the bytes that a piece of operation ``i`` reads and writes: its share of values
        with rows, and the whole of other values. ``again`` is the size of a sum, which each piece
        writes and each piece but the first also reads."""
        graph, op = self.graph, self.graph.ops[i]
        if not op.bytes:
            return 0
        whole = again
        for v in op.inputs:
            by_rows = graph.maker[v] in strip.members
            if not by_rows and _leading(graph.shapes[v], strip.rows) is None:
                whole += graph.size(v)
        whole = min(whole, op.bytes)
        return (op.bytes - whole) * rows // strip.rows + whole

    def piece(self, i: int, strip: _Strip, number: int, rows: int) -> None:
        """Adds a piece of an operation."""
        graph, op = self.graph, self.graph.ops[i]
        is_sum = i in strip.sums
        outputs = []
        for v in graph.outputs(i):
            outputs.append(self._output(v, strip, number, rows, is_sum))
        inputs = [self.part.get((v, number), self.value.get(v, -1)) for v in op.inputs]
        over = [k for k in op.over if (op.inputs[k], number) in self.part and not is_sum]
        before = [self.part[graph.first[i], number - 1]] if is_sum and number else []
        if before and len(outputs) == 1 and not self.storages[outputs[0].storage].flags:
            over = [len(inputs)]
        again = sum(map(graph.size, graph.outputs(i))) if is_sum else 0
        first = self._push(
            replace(
                op,
                name=f"{op.name}_piece{number}",
                inputs=[*inputs, *before],
                outputs=outputs,
                flops=op.flops * rows / strip.rows,
                bytes=self._work(i, strip, rows, again) + (again if before and op.bytes else 0),
                time_ps=None if op.time_ps is None else op.time_ps * rows // strip.rows,
                workspace=op.workspace * rows // strip.rows,
                over=over,
            )
        )
        for k, v in enumerate(graph.outputs(i)):
            self.part[v, number] = first + k

    def _output(self, v: int, strip: _Strip, number: int, rows: int, is_sum: bool) -> Value:
        """Makes a result of a piece, and its storage."""
        graph, value = self.graph, self.graph.values[v]
        key = value.storage, number
        is_view = "view" in graph.ops[graph.maker[v]].flags
        if key not in self.memory and is_view:  # a view of memory that is not cut
            storage = self._whole(value.storage)
        elif key not in self.memory:
            whole = graph.problem.storages[value.storage]
            size = whole.bytes if is_sum else whole.bytes * rows // strip.rows
            storage = self.memory[key] = len(self.storages)
            self.storages.append(Storage(size, whole.flags & {"static"} if is_sum else frozenset()))
        else:
            storage = self.memory[key]
        if is_sum:
            return replace(value, storage=storage)
        own = value.bytes if value.bytes is None else value.bytes * rows // strip.rows
        if own is None and key not in self.memory:
            own = graph.size(v) * rows // strip.rows
        return replace(value, storage=storage, bytes=own, type=self._type(v, strip.rows, rows))

    def _type(self, v: int, count: int, rows: int) -> str:
        shape, name = self.graph.shapes[v], self.graph.values[v].type.partition("[")[0]
        at = _leading(shape, count)
        if shape is None:
            return ""
        sizes = (*shape[:-1], rows) if at is None else (rows, *shape[at:])
        return f"{name}[{','.join(map(str, sizes))}]"

    def strip(self, strip: _Strip, late: bool) -> None:
        """Adds the pieces of the strip's part in the forward or the backward (``late``), and joins
        the pieces of values that other operations read."""
        inside = sorted(i for i in strip.members if self.graph.is_late(i) == late)
        pieces = list(pairwise(begins(strip.rows)))
        for number, (begin, end) in enumerate(pieces):
            for i in inside:
                self.piece(i, strip, number, end - begin)
        self._finish(strip, inside, len(pieces))

    def _finish(self, strip: _Strip, inside: Iterable[int], count: int) -> None:
        graph = self.graph
        needed: set[int] = set()
        for i in sorted(inside, reverse=True):
            outside = any(j not in strip.members for j in graph.readers[i])
            if outside or i in graph.returned:
                needed.add(i)
            if i in needed and "view" in graph.ops[i].flags:
                needed |= graph.reads[i]
        for i in sorted(needed & set(inside)):
            if i in strip.sums:
                self._end_sum(i, count)
            elif "view" in graph.ops[i].flags:
                self.copy(i)
            else:
                self._join(i, count)

    def _end_sum(self, i: int, count: int) -> None:
        """Replaces a sum over rows by the partial sum of the last piece, which is complete."""
        for v in self.graph.outputs(i):
            old = self.graph.values[v].storage
            self.value[v] = self.part[v, count - 1]
            self.storage[old] = self.memory[old, count - 1]
            self.storages[self.storage[old]] = replace(self.graph.problem.storages[old])

    def _join(self, i: int, count: int) -> None:
        """Adds an operation that joins the pieces of an operation's results."""
        op = self.graph.ops[i]
        flags: frozenset[Flag] = frozenset({"fusible"})
        if "backward" in op.flags:
            flags |= {"backward"}
        for k, v in enumerate(self.graph.outputs(i)):
            value = self.graph.values[v]
            joined = Op(
                op.name if k == 0 else f"{op.name}.{k}", _CAT,
                [self.part[v, number] for number in range(count)],
                [replace(value, storage=self._whole(value.storage))],
                flags, op.location, bytes=2 * self.graph.size(v), region=op.region,
            )  # fmt: skip
            self.value[v] = self._push(joined)

    def finish(self, starts: int) -> Problem:
        """Returns the new problem. ``starts`` is the first operation of the backward."""
        old, value = self.graph.problem, self.value
        for storage in self.storages:
            if storage.updates is not None:
                storage.updates = self.storage[storage.updates]
        return replace(
            old,
            ops=self.ops,
            storages=self.storages,
            forward_outputs=[value[v] for v in old.forward_outputs],
            backward_outputs=[value[v] for v in old.backward_outputs],
            backward_starts=starts,
            inlinings=[replace(i, value=value[i.value], op=self.op[i.op]) for i in old.inlinings],
        )


_LOSSES = ("cross_entropy", "aten._log_softmax", "aten.nll_loss", "aten.cross_entropy_loss")
_CHOICE = "aten.gather"
"""Kinds of operations whose largest argument may be logits. ``aten.gather`` is one of them because
a decomposed loss picks one number of each row."""


def logits_of(problem: Problem) -> set[int]:
    """Returns the storages of the logits of losses, of their gradients, and of the values computed
    between the two."""
    graph = _Graph(problem)
    found: set[int] = set()
    for i, op in enumerate(problem.ops):
        if not op.kind.startswith((*_LOSSES, _CHOICE)) or not (op.inputs and op.outputs):
            continue
        count, largest = max((graph.elements(v), v) for v in op.inputs)
        shape = graph.shapes[largest]
        is_choice = shape and graph.elements(graph.first[i]) * shape[-1] == count
        if op.kind.startswith(_CHOICE) and not is_choice:
            continue
        if count > 1 and graph.maker[largest] not in found:
            found |= _wide(graph, graph.maker[largest], count)
    made = {graph.values[v].storage for i in found for v in graph.outputs(i)}
    return {s for s in made if "static" not in problem.storages[s].flags}


def with_slices(problem: AnyProblem) -> Problem:
    """Returns a problem in which wide rows, such as a language model's logits, exist in pieces.

    Chains of at least 512 rows are cut into up to eight pieces, which begin at multiples of 256
    rows. A chain begins with a product that makes rows at least twice as wide as those that it
    reads. It is only cut if its final results are at most half as wide. Values need types with
    sizes, such as ``"f32[2048,50257]"``; values of traced steps have them. A problem does not say
    along which axis an operation reduces, so a result with the same number of rows is assumed to be
    computed row by row. The answer is therefore an estimate, for models that do not mix rows
    between such products. ``slices=True`` of :func:`cutback.compile`, ``cutback.torch.compile`` and
    ``cutback.torch.trace`` is exact.

    Args:
        problem: a problem in any form that :func:`cutback.plan` takes. It is not changed.

    Returns:
        A new problem. If no chain can be cut, it has the same operations.

    Raises:
        ValueError, TypeError, OSError: if the problem is invalid or cannot be read.

    >>> sliced = cutback.with_slices("problem.json")
    >>> cutback.plan(sliced, budget="min").numbers["live_bytes"]
    """
    if not isinstance(problem, Problem):
        problem = read_problem(problem).parts()
    graph = _Graph(problem)
    strips, order = _strips(graph)
    writer = _Writer(graph)
    starts: int | None = None
    for item in order:
        late = graph.is_late(item) if isinstance(item, int) else item[1]
        if late and starts is None:
            starts = len(writer.ops)
        if isinstance(item, int):
            writer.copy(item)
        else:
            writer.strip(strips[item[0]], item[1])
    return writer.finish(len(writer.ops) if starts is None else starts)
