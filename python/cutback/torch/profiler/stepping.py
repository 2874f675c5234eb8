"""Runs a planned step op by op with real tensors, to measure the time and memory of each op.

Runs the planner's schedule one entry at a time, like the generated code of :mod:`graph.codegen`:
the parts of a tuple are freed one by one, and every value after its last use. A value that moves to
the host is copied when the plan says so, and its memory is freed when the plan says that the copy
has ended. Here, however, the program waits for each copy at once, so that the copy's row shows its
time. Inputs that the step writes into are copied first and random states are restored, so the
caller's data does not change.
"""

from __future__ import annotations

import operator
import time
import weakref
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import torch
from torch import fx
from torch.utils._pytree import tree_iter

from .. import transfers
from ..graph import leaves, taking_over
from ..graph.dropout import REMAKE
from ..graph.graphs import attribute, is_tangent
from ..graph.importer import Imported, type_of
from ..graph.moving import Move, Schedule, Step
from ..graph.records import MOVES
from .capture import Captured

if TYPE_CHECKING:
    from torch import UntypedStorage
    from torch.fx.node import Argument, Target


class Life:
    """The life of one storage."""

    __slots__ = ("bytes", "last", "made", "op", "type", "uses")

    def __init__(self, op: int, type: str, bytes: int, made: int) -> None:
        self.op = op  # id of the op or placeholder that made it
        self.type = type
        self.bytes = bytes
        self.made = made  # step that made it; -1 for an input
        self.last = -1  # last step during which it is alive; number of steps if alive at the end
        self.uses: list[int] = []  # steps whose op reads it, without views


class Kept(NamedTuple):
    """A key for tensors of an op that have no node: a ``"part"`` of its tuple that moves to the
    host, its copy on the ``"host"``, the device memory that it ``"left"`` when it moved, or the
    ``"copy"`` of a gradient that a leaf takes."""

    what: str
    op: int
    at: int = 0  # for a "part", the index in the tuple; for "left", the number of the move


Key: TypeAlias = fx.Node | Kept
Environment: TypeAlias = "dict[Key, Argument]"
"""The values of nodes and other keys while a program runs."""


class Instruction(NamedTuple):
    """One step of a schedule. The actions are:

    - "run": runs the node;
    - "part": a part of a tuple that ran before;
    - "tangent": makes the incoming gradient;
    - "copy": copies a gradient for a leaf;
    - "first": the masked result of a dropout, which the dropout itself has made;
    - "masked": the same result, recomputed from the mask;
    - "out", "wait", "in": moves to the host and back;
    - "none": runs nothing.
    """

    op: int  # op id
    node: fx.Node | None  # None if no node runs (a copy by the caller)
    action: str
    reads: list[Key]
    parts: list[Key]  # parts taken from the result: getitems, and parts that move to the host
    drops: list[Key]  # values freed after this step
    number: int = 0  # number of the move
    over: fx.Node | None = None  # argument that the result is written over


class Program:
    """A schedule of a captured step, ready to run any number of times."""

    def __init__(self, captured: Captured, schedule: Schedule) -> None:
        self.captured = captured
        self.steps: list[Step] = []
        """One step per row of the profile. The end of a move only frees memory and has no row."""
        self._ends: dict[int, list[Kept]] = {}  # maps a row to the memory freed after it
        self.backward_starts = 0
        for t, step in enumerate(schedule.steps):
            if t == schedule.backward_starts:
                self.backward_starts = len(self.steps)
            if isinstance(step, Move) and step.action == "end":
                left = Kept("left", step.op, step.number)
                self._ends.setdefault(len(self.steps) - 1, []).append(left)
            else:
                self.steps.append(step)
        if schedule.backward_starts >= len(schedule.steps):
            self.backward_starts = len(self.steps)
        self._release = min(self.backward_starts, len(self.steps) - 1)
        self._ops = captured.graph.problem.ops
        self._node_of_value = _nodes_of_values(captured.graph)
        self.instructions = self._instructions()
        self._written = _written_storages(captured.graph)

    # ---- instructions -------------------------------------------------------------------------

    def _instructions(self) -> list[Instruction]:
        graph = self.captured.graph
        rows: list[Instruction] = []
        ran: set[fx.Node] = set()
        # maps a tuple's node to the latest row that made its parts
        tuples: dict[fx.Node | None, int] = {}
        runs: dict[fx.Node | None, int] = {}  # maps a tuple's node to the row of its latest run
        for step in self.steps:
            if isinstance(step, Move):
                rows.append(self._moved(step, rows, tuples))
                continue
            node = graph.order[step]
            if node is None:
                reads: list[Key] = [self._node_of_value[v] for v in self._ops[step].inputs]
                made: list[Key] = [Kept("copy", step)] if step in graph.copies else []
                rows.append(Instruction(step, None, "copy" if made else "none", reads, made, []))
                continue
            action, reads = "run", list(node.all_input_nodes)
            masked = graph.masked.get(node)
            if is_tangent(node):
                action = "tangent"
            elif masked is not None:
                action, reads = "masked", [masked.x, masked.mask]
                if node not in ran:
                    action, reads = "first", [masked.x, masked.mask, node]
                    rows[runs[node.args[0]]].parts.append(node)
            elif node.target is operator.getitem and node.args[0] in tuples:
                action, reads = "part", [node]
                rows[tuples[node.args[0]]].parts.append(node)
            if action == "run" and _is_taken_apart(node):
                tuples[node] = runs[node] = len(rows)
            ran.add(node)
            rows.append(Instruction(step, node, action, reads, [], []))
        self._find_last_uses(rows)
        for k, given in self._taken(rows).items():
            rows[k] = rows[k]._replace(over=given)
        return rows

    def _taken(self, rows: list[Instruction]) -> dict[int, fx.Node]:
        """Returns the arguments that results are written over, by row: the same as in the generated
        code of forward and backward."""
        graph = self.captured.graph
        if not graph.over or any(isinstance(step, Move) for step in self.steps):
            return {}
        memory = taking_over.Memory(graph.storages, graph.over)
        for node in graph.order:
            if node is not None and node.op in ("placeholder", "get_attr"):
                memory.given(node, node)
        runs, early, crosses = [], set[int](), set[int]()
        for k, row in enumerate(rows):
            node, reads = row.node, list(row.reads)
            at = graph.over.get(node, ()) if node is not None and row.action == "run" else ()
            offered = [memory.of([node.args[i]]) for i in at] if node is not None else []
            read = memory.of(reads)
            if row.action == "part" and node is not None:
                reads, read = [node.args[0]], set()
            made = set[int]()
            if node is not None and row.action != "tangent":
                made.update(memory.run(node, node, reads))
            runs.append(taking_over.Run(made, read, offered))
            if k < self.backward_starts:
                early |= made
            else:
                crosses |= early & (made | read)
        found = taking_over.taken_by(runs, crosses)
        return {
            k: row.node.args[graph.over[row.node][found[k]]]
            for k, row in enumerate(rows)
            if k in found and row.node is not None
        }

    def _moved(
        self, move: Move, rows: list[Instruction], tuples: dict[fx.Node | None, int]
    ) -> Instruction:
        """Returns the instruction for a move of an op's result, or of all parts of a tuple."""
        node = self.captured.graph.order[move.op]
        host = Kept("host", move.op)
        places = self.captured.graph.positions[move.op]
        parts: list[Key] = [Kept("part", move.op, at) for at in places if at is not None]
        row = Instruction(move.op, node, move.action, [host], [], [], move.number)
        if move.action == "in":
            row.parts.extend(parts)
            if parts:
                tuples[node] = len(rows)
        elif move.action == "out":
            if parts:
                rows[tuples[node]].parts.extend(parts)
            row.reads[:] = parts or [node] if node is not None else []
        return row

    @staticmethod
    def _makes(row: Instruction) -> list[Key]:
        if row.action == "out":
            return [Kept("host", row.op), Kept("left", row.op, row.number)]
        alone = row.node is not None and row.action in ("run", "masked", "tangent", "in")
        return list(row.parts) or ([row.node] if alone and row.node is not None else [])

    def _find_last_uses(self, rows: list[Instruction]) -> None:
        """Fills in ``drops``. Scans backwards: a value that is recomputed later is freed after the
        last use of each of its lives."""
        held = self._held()
        needed: set[Key] = {node for node, until in held.items() if until is None}
        until_backward = [node for node, until in held.items() if until is not None]
        for k in reversed(range(len(rows))):
            row = rows[k]
            made = self._makes(row)
            late = until_backward if k == self._release else ()
            for key in (*row.reads, *self._ends.get(k, ()), *late, *made):
                given = isinstance(key, fx.Node) and key.op in ("placeholder", "get_attr")
                if given and not is_tangent(key):
                    continue
                if key not in needed:
                    row.drops.append(key)
                    needed.add(key)
            needed.difference_update(made)

    def _held(self) -> dict[Key, int | None]:
        """Maps outputs to the step until which they are held, or None for the end. The new value of
        an input that the caller overwrites is held until the backward starts (``docs/problem.md``).
        If a leaf copies its gradient, the copy is held instead of the gradient."""
        found: dict[Key, int | None] = {}
        for piece in self.captured.pieces:
            copied = {copy.output for copy in piece.graph.copies.values() if not copy.stays}
            overwritten = set()
            for op in piece.graph.problem.ops:
                if op.kind == "copy_back":
                    overwritten.add(int(op.name.rpartition("_")[2]))
            for k, node in enumerate(piece.graph.outputs):
                if not isinstance(node, fx.Node) or node.op in ("placeholder", "get_attr"):
                    continue
                if k in copied:
                    continue
                if k in overwritten and found.get(node, 0) is not None:
                    found[node] = self._release
                else:
                    found[node] = None
        for id in self.captured.graph.copies:
            found[Kept("copy", id)] = None
        for node in self.captured.graph.order:  # backward() keeps the tangent of a scalar
            if node is not None and is_tangent(node) and _is_scalar(node.meta["val"]):
                found[node] = None
        return found

    # ---- execution ----------------------------------------------------------------------------

    @contextmanager
    def quiet(self) -> Iterator[None]:
        """Disables gradients and autocast, and restores the random states at the end."""
        primals = [piece.primals for piece in self.captured.pieces]
        devices = {t.device for t in tree_iter(primals) if torch.is_tensor(t)}
        cuda = [d for d in devices if d.type == "cuda"]
        with ExitStack() as stack:
            stack.enter_context(on(self.captured.device))
            stack.enter_context(torch.random.fork_rng(devices=cuda))
            stack.enter_context(torch.no_grad())
            for kind in {d.type for d in devices} & {"cpu", "cuda"}:
                stack.enter_context(torch.autocast(kind, enabled=False))
            yield

    def arguments(self) -> Environment:
        """Returns the arguments by node. Inputs that the step writes into are replaced by
        copies."""
        copies: dict[int, UntypedStorage] = {}
        env: Environment = {}
        for piece in self.captured.pieces:
            for node, value in piece.given().items():
                storage = self._written.get(node)
                if storage is not None:
                    old: torch.Tensor = value
                    if storage not in copies:
                        copies[storage] = old.untyped_storage().clone()
                    new = torch.empty(0, dtype=old.dtype, device=old.device)
                    new.set_(copies[storage], old.storage_offset(), old.size(), old.stride())
                    value = new
                env[node] = value.detach() if isinstance(value, torch.Tensor) else value
            for node in piece.gm.graph.find_nodes(op="get_attr"):
                value = attribute(piece.gm, str(node.target))
                env[node] = value.detach() if isinstance(value, torch.Tensor) else value
        return env

    def run(self, clock: Clock | None = None, watch: Watch | None = None) -> list[Argument]:
        """Runs all steps; measures time with ``clock`` or memory with ``watch``. Returns the
        outputs of the joint graph, with None for outputs that the caller copies into its inputs."""
        env = self.arguments()
        if watch is not None:
            watch.begin(self, env)
        for k, row in enumerate(self.instructions):
            parts = self._do(env, row, clock)
            if watch is not None:
                watch.step(k, row, env, "view" in self._ops[row.op].flags, parts)
            del parts
            for key in row.drops:
                env.pop(key, None)
        if watch is not None:
            watch.end(len(self.steps))
        outputs: list[fx.Node | Kept | None] = list(self.captured.graph.outputs)
        for op, copy in self.captured.graph.copies.items():
            outputs[copy.output] = Kept("copy", op)
        return [env.get(n) if isinstance(n, (fx.Node, Kept)) else n for n in outputs]

    def _do(self, env: Environment, row: Instruction, clock: Clock | None) -> list[Argument]:
        """Runs one step. Returns the parts of a tuple that are not used."""
        node = row.node
        if row.action == "tangent" and node is not None:
            env[node] = _ones_like(node.meta["val"])
        if row.action in ("out", "in"):
            self._move(env, row, clock)
            return []
        if row.action == "copy":
            copy = self.captured.graph.copies[row.op]
            gradient, leaf = env[copy.gradient], env[copy.leaf]
            env[row.parts[0]] = _timed(clock, leaves.take, (gradient, leaf), {})
            return []
        if node is None or row.action in ("tangent", "part", "none", "wait"):
            if clock is not None:
                clock.skip()
            return []
        if row.action in ("first", "masked"):
            if row.action == "masked" or clock is not None:
                x, mask, scale = self.captured.graph.masked[node]
                result = _timed(clock, REMAKE, (env[x], env[mask], scale), {})
                if row.action == "masked":
                    env[node] = result
            return []
        args = fx.map_arg(node.args, env.__getitem__)
        kwargs = fx.map_arg(node.kwargs, env.__getitem__)
        target = node.target
        if row.over is not None:
            target, keyword = taking_over.VARIANTS[target]
            if keyword:
                kwargs = {**kwargs, keyword: env[row.over]}
        result = _timed(clock, target, args, kwargs)
        if not row.parts:
            env[node] = result
            return []
        taken = {_place(part) for part in row.parts}
        for part in row.parts:
            env[part] = result[_place(part)]
        return [item for i, item in enumerate(result) if i not in taken]

    def _move(self, env: Environment, row: Instruction, clock: Clock | None) -> None:
        """Copies to the host or back, and waits for the copy."""
        host = Kept("host", row.op)
        if clock is not None:
            clock.start()
        if row.action == "out":
            left = [env[key] for key in row.reads]
            env[Kept("left", row.op, row.number)] = left
            env[host] = [(transfers.leave(t), t.device) for t in left]
            for copy, device in env[host]:
                transfers.wait(copy, device)
        else:
            back = [transfers.ready(transfers.arrive(*copied)) for copied in env[host]]
            places = self.captured.graph.positions[row.op]
            by_place = dict(zip(places, back, strict=True))
            for key in self._makes(row):
                env[key] = by_place[_place(key) if row.parts else None]
        if clock is not None:
            clock.stop()


def _is_scalar(val: Argument) -> bool:
    return isinstance(val, torch.Tensor) and val.dim() == 0


def _ones_like(val: Argument) -> Argument:
    """Returns a gradient of ones for a tangent with this fake value. For parts of a tensor subclass
    that are not tensors, returns the object seen during tracing."""
    if not isinstance(val, torch.Tensor):
        return getattr(val, "real_obj", val)
    ones = torch.empty_strided(val.size(), val.stride(), dtype=val.dtype, device=val.device)
    return ones.fill_(1)


def _place(part: Key) -> int:
    """Returns the index of a part in its tuple."""
    return part.at if isinstance(part, Kept) else part.args[1]


def _timed(
    clock: Clock | None, target: Target, args: tuple[Argument, ...], kwargs: dict[str, Argument]
) -> Argument:
    if clock is None:
        return target(*args, **kwargs)
    clock.start()
    result = target(*args, **kwargs)
    clock.stop()
    return result


def _is_taken_apart(node: fx.Node) -> bool:
    """True if the node returns a tuple that is only read through getitem."""
    if not isinstance(node.meta.get("val"), (tuple, list)):
        return False
    return all(u.target is operator.getitem and type(u.args[1]) is int for u in node.users)


def _nodes_of_values(graph: Imported) -> list[fx.Node | None]:
    """Returns the node of the op that makes each value, by value id."""
    found: list[fx.Node | None] = []
    for op, node in zip(graph.problem.ops, graph.order, strict=True):
        found += [node] * len(op.outputs)
    return found


def _written_storages(graph: Imported) -> dict[fx.Node, int]:
    """Maps the placeholders whose memory the graph itself writes into to their storages."""
    written, ops = set(), graph.problem.ops
    for op, node in zip(ops, graph.order, strict=True):
        if node is not None and "mutates" in op.flags:
            written |= {value.storage for value in op.outputs}
    found = {}
    for op, node in zip(ops, graph.order, strict=True):
        if node is not None and node.op == "placeholder" and not is_tangent(node):
            for value in op.outputs:
                if value.storage in written:
                    found[node] = value.storage
    return found


# ---- time -----------------------------------------------------------------------------------


class Clock:
    """Measures the seconds of each step of one run, with the CPU's clock."""

    def __init__(self) -> None:
        self._seconds: list[float] = []
        self._started = 0.0

    def start(self) -> None:
        """Starts timing an op."""
        self._started = time.perf_counter()

    def stop(self) -> None:
        """Ends timing an op."""
        self._seconds.append(time.perf_counter() - self._started)

    def skip(self) -> None:
        """Records a step that runs nothing."""
        self._seconds.append(0.0)

    def seconds(self) -> list[float]:
        """Returns the seconds of each step."""
        return self._seconds


class CudaClock(Clock):
    """A clock that records events on the current stream, and waits for them only at the end."""

    def __init__(self) -> None:
        super().__init__()
        self._open: torch.cuda.Event | None = None
        self._events: list[tuple[torch.cuda.Event, torch.cuda.Event] | None] = []

    def _mark(self) -> torch.cuda.Event:
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def start(self) -> None:
        """Starts timing an op."""
        self._open = self._mark()

    def stop(self) -> None:
        """Ends timing an op."""
        self._events.append((self._open, self._mark()))

    def skip(self) -> None:
        """Records a step that runs nothing."""
        self._events.append(None)

    def seconds(self) -> list[float]:
        """Waits for the device, and returns the seconds of each step."""
        torch.cuda.synchronize()
        return [0.0 if e is None else e[0].elapsed_time(e[1]) * 1e-3 for e in self._events]


def make_clock(device: torch.device) -> Clock:
    """Returns the clock for ops on a device."""
    return CudaClock() if device.type == "cuda" else Clock()


def on(device: torch.device) -> AbstractContextManager[None]:
    """Makes a GPU the current device, so that events are recorded on its stream."""
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()


# ---- memory ---------------------------------------------------------------------------------


class Watch:
    """Tracks each storage of one run: when it is allocated, read and freed."""

    def __init__(self) -> None:
        self.lives: list[Life] = []
        self.live: list[int] = []  # live bytes during each step, without inputs
        self._now = 0
        self._k = -1
        self._ended = False
        self._results: set[fx.Node] = set()  # masked results of dropouts, which have their own step
        self._known: dict[int, Life] = {}  # maps the id of a live storage to its life
        self._handed: dict[
            Key, list[UntypedStorage]
        ] = {}  # output of a graph -> storages of later graphs' inputs
        # maps the id of such an input's storage to the id of the output's
        self._same: dict[int, int] = {}

    def begin(self, program: Program, env: Environment) -> None:
        """Registers the inputs."""
        graph = program.captured.graph
        self._results = set(graph.masked)
        handed = program.captured.handed
        for node, source in handed.items():
            self._handed.setdefault(source, []).append(env[node].untyped_storage())
        for op, node in enumerate(graph.order):
            if node not in handed and isinstance(env.get(node), torch.Tensor):
                self._appear(op, env[node])

    def step(
        self, k: int, row: Instruction, env: Environment, view: bool, rest: Sequence[Argument]
    ) -> None:
        """Records a step that has run, before its values are freed."""
        self._k = k
        if not view and row.action not in MOVES:
            self._use(row, env)
        if row.over is not None:
            self._close(id(env[row.over].untyped_storage()), k - 1)  # another life begins
        made = [env.get(key) for key in row.parts if key not in self._results]
        if row.node is not None:
            made.append(env.get(row.node))
        for value in tree_iter([*made, *rest]):
            if isinstance(value, torch.Tensor):
                self._appear(row.op, value)
        for key in (row.node, *row.parts):
            for storage in self._handed.get(key, ()):  # later graphs read it from another storage
                self._same[id(storage)] = id(env[key].untyped_storage())
        self.live.append(self._now)

    def _use(self, row: Instruction, env: Environment) -> None:
        for node in row.reads:
            for value in tree_iter(env.get(node)):
                if isinstance(value, torch.Tensor):
                    key = id(value.untyped_storage())
                    life = self._known.get(self._same.get(key, key))
                    if life is not None and life.made != self._k:
                        life.uses.append(self._k)

    def _appear(self, op: int, value: torch.Tensor) -> None:
        storage = value.untyped_storage()
        if id(storage) in self._known or id(storage) in self._same:
            return
        life = Life(op, type_of(value), storage.nbytes(), self._k)
        self.lives.append(life)
        self._known[id(storage)] = life
        if self._k >= 0:
            self._now += life.bytes
        weakref.finalize(storage, self._vanish, id(storage))

    def _vanish(self, key: int) -> None:
        if not self._ended:
            self._close(key, self._k)

    def _close(self, key: int, last: int) -> None:
        """Ends the life that a storage has now, if it has one."""
        life = self._known.pop(key, None)
        if life is not None:
            life.last = last
            self._now -= life.bytes if life.made >= 0 else 0

    def end(self, n_step: int) -> None:
        """Ends the run: storages that are alive now live to the end."""
        self._ended = True
        for life in self._known.values():
            life.last = n_step
