"""Chooses by measurement which operations of a graph run in our kernels.

The joint graph of a model is grouped as if memory did not matter, and each group is timed against
PyTorch's kernels for its nodes. If the group is slower, the operation in it that loses the most is
left to PyTorch, and the graph is grouped again. Times are for one thread. Operations that have the
same bits in both kernels need no decision: a group of only such operations runs in our kernels if
it was measured to be faster.
"""

from __future__ import annotations

import contextlib
import math
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import fx
from torch._dispatch.python import no_python_dispatcher
from torch.utils._python_dispatch import _disable_current_modes

from ... import get_num_threads, set_num_threads
from .calls import (
    CannotRunError,
    Group,
    by_nodes,
    bytes_of,
    call_of,
    compile_group,
    keep_freed_memory,
)
from .decisions import Decisions, key_of
from .grouping import Grouping, Item, Kinds
from .layouts import Held, Meta, memory_of
from .masks import split_dropouts
from .table import FASTER, ROWS, is_exact

enabled = True
"""False measures nothing and lets :data:`table.SLOWER` decide."""

_ROUNDS = 6  # rounds of giving up operations
_LARGEST = 1 << 30  # largest group that is measured, in bytes
_SECONDS = 4e-3  # seconds per measurement
_LEAST, _MOST = 4, 100  # runs per measurement
_CLEAR = 2  # runs of calls that take longer than a measurement, if the times clearly differ
_CLOSE = 1.4  # times with a ratio below this do not differ clearly
_ALIKE = 1.02  # ratios of times below this count as equal
_WAITS, _WAIT = 2000, 5e-3  # how often and how long (seconds) to wait for other threads
_FUSED = 1.3  # loss allowed for a single pointwise operation, because it gains in a group


class Times(NamedTuple):
    """Seconds of a group in our kernels and in PyTorch's."""

    ours: float
    torch: float

    @property
    def is_slower(self) -> bool:
        """True if ours are slower."""
        return self.ours > self.torch * _ALIKE

    @property
    def is_close(self) -> bool:
        """True if the times do not differ clearly."""
        return max(self) < min(self) * _CLOSE


_SAME = Times(0.0, 0.0)  # for groups that cannot be measured

_measured: dict[str, Times] = {}


# ---- measurements -------------------------------------------------------------------------------


def _sample(meta: Meta, held: Held | None) -> torch.Tensor:
    """Returns a tensor whose values change gradually from 0.5 to 1.5, or a tensor of zeros."""
    size, offset = (memory_of(meta), 0) if held is None else (held.elements, held.offset)
    flat = torch.zeros(size, dtype=meta.dtype)
    if meta.dtype.is_floating_point:
        flat.copy_(torch.linspace(0.5, 1.5, size))
    return flat.as_strided(meta.shape, meta.stride, offset)


def _set_threads(number: int) -> None:
    """Sets our number of threads between the runs of other threads."""
    for _ in range(_WAITS):
        try:
            return set_num_threads(number)
        except RuntimeError:  # another thread is running
            time.sleep(_WAIT)
    warnings.warn(
        f"Cutback still runs on 1 thread, as it measured kernels while other threads ran steps; "
        f"call cutback.set_num_threads({number})",
        stacklevel=2,
    )


@contextlib.contextmanager
def _one_thread() -> Iterator[None]:
    """Sets up a context with one thread, no modes, and no autograd.

    PyTorch compiles with its dispatcher in Python, which adds microseconds to each of its
    operations and would make our kernels look faster than they are.
    """
    ours, theirs = get_num_threads(), torch.get_num_threads()
    with contextlib.ExitStack() as stack:
        stack.enter_context(_disable_current_modes())
        stack.enter_context(no_python_dispatcher())
        stack.enter_context(torch.no_grad())
        stack.enter_context(torch.autocast("cpu", enabled=False))
        keep_freed_memory()
        with contextlib.suppress(RuntimeError):  # something of ours is running in another thread
            set_num_threads(1)
        torch.set_num_threads(1)
        try:
            yield
        finally:
            torch.set_num_threads(theirs)
            _set_threads(ours)


def _seconds(ours: Callable[[], Any], theirs: Callable[[], Any]) -> Times:
    """Returns the shortest times of calls that alternate. Ours count as slower only if a second,
    longer measurement agrees, or if they are much slower."""
    # other load on the machine does not add to the time of this thread
    clock = time.thread_time if get_num_threads() == 1 else time.perf_counter
    best = [math.inf, math.inf]
    for budget in (_SECONDS, 3 * _SECONDS):
        begin = clock()
        for turn in range(1, _MOST + 1):
            for i, call in enumerate((ours, theirs)):
                start = clock()
                call()
                best[i] = min(best[i], clock() - start)
            least = _LEAST if Times(*best).is_close else _CLEAR
            if turn >= least and clock() - begin > budget:
                break
        times = Times(*best)
        if not times.is_slower or not times.is_close:
            break
    return times


def _key_of_group(nodes: Sequence[fx.Node]) -> str:
    return ";".join(map(key_of, nodes))


def _time(nodes: Sequence[fx.Node], kinds: Kinds, group: Group) -> Times:
    """Measures a group unless it was measured before. Call it inside :func:`_one_thread`."""
    key = _key_of_group(nodes)
    known = _measured.get(key)
    if known is None:
        known = _SAME
        if bytes_of(group) <= _LARGEST:
            try:
                known = _compared(nodes, kinds, group)
            except MemoryError:
                raise
            except Exception:  # such as an operation that refuses these values
                known = _SAME
        _measured[key] = known
    return known


def _compared(nodes: Sequence[fx.Node], kinds: Kinds, group: Group) -> Times:
    ours = call_of(group, [False] * len(group.inputs))
    inputs = [_sample(m, group.held.get(n)) for n, m in group.inputs]
    inputs += [] if group.seed is None else [torch.tensor([1])]
    theirs = by_nodes(nodes, kinds, group)
    for call in (ours, theirs):
        call(*inputs)
    return _seconds(lambda: ours(*inputs), lambda: theirs(*inputs))


def _time_alone(node: fx.Node, kinds: Kinds) -> Times:
    group, _ = compile_group([node], kinds, None)
    return _time([node], kinds, group)


# ---- the whole graph ----------------------------------------------------------------------------


class _Trial(Decisions):
    """Decisions under which undecided operations run in our kernels."""

    def __init__(self, known: Decisions) -> None:
        super().__init__()
        self.known = known
        self.open: set[str] = set()

    def get(self, node: fx.Node) -> bool | None:
        """True if a node runs in our kernels; None if it is undecided."""
        made = self.known.get(node)
        if made is None:
            self.open.add(key_of(node))
        return made is not False


def _copied(graph: fx.Graph) -> fx.Graph:
    copied = fx.Graph()
    copied.output(copied.graph_copy(graph, {}))
    return copied


def _grouped(kinds: Kinds) -> list[tuple[list[fx.Node], Group]]:
    """Returns the groups that a graph has if memory does not matter."""
    compiled: dict[tuple[fx.Node, ...], Group] = {}

    def can_run(nodes: Sequence[fx.Node], room: int) -> bool:
        compiled[tuple(nodes)], _ = compile_group(nodes, kinds, None)
        return True

    items = arranged(kinds, can_run, most=math.inf)
    return [(i, compiled[tuple(i)]) for i in items if not isinstance(i, fx.Node)]


def arranged(
    kinds: Kinds, can_run: Callable[[Sequence[fx.Node], int], bool], most: float | None = None
) -> list[Item]:
    """Returns the order in which a graph runs. Nodes that our kernels fail to run are left to
    PyTorch.

    Args:
        can_run: see :class:`Grouping`. If it raises an error, a group of several nodes is cut.
    """

    def tried(nodes: Sequence[fx.Node], room: int) -> bool:
        try:
            return can_run(nodes, room)
        except (MemoryError, KeyboardInterrupt):
            raise
        except Exception as error:
            if len(nodes) > 1:
                return False  # the group is cut until the node is found
            raise CannotRunError(nodes[0], error) from error

    while True:
        try:
            return Grouping(kinds, tried, most).arrange()
        except CannotRunError as error:
            kinds.make_foreign(error.node, f"our kernels refuse it: {error.__cause__}")


class _Found(NamedTuple):
    """The cost of one way to group a graph."""

    seconds: float
    worst: set[str]
    """For each group slower than PyTorch's kernels, the operation that loses the most."""


def _judge(whole: Kinds, undecided: set[str], given_up: set[str]) -> _Found:
    """Measures a graph while some operations are left to PyTorch."""
    kinds = whole.copy()
    left = [n for n in kinds.order if n in kinds.own and key_of(n) in given_up]
    for node in left:
        kinds.make_foreign(node, FASTER)
    total = sum(_time_alone(n, whole).torch for n in left)
    gain, worst = dict.fromkeys(undecided, 0.0), set()
    for nodes, group in _grouped(kinds):
        times = _time(nodes, kinds, group)
        total += min(times) if all(map(is_exact, nodes)) else times.ours
        free = {key_of(n): n for n in nodes if not is_exact(n)}
        free = {k: n for k, n in free.items() if k in undecided}
        for key in free:
            gain[key] += times.torch - times.ours
        if times.is_slower and free:
            losses = {k: _loss(n, whole) for k, n in free.items()}
            worst.add(max(losses, key=losses.__getitem__))
    return _Found(total, {k for k in worst if gain[k] < 0})


def _loss(node: fx.Node, kinds: Kinds) -> float:
    times = _time_alone(node, kinds)
    return times.ours - times.torch


def decide(graph: fx.Graph, decisions: Decisions) -> None:
    """Decides all undecided operations of a graph.

    Args:
        graph: the joint graph of a model, or one without a backward. It is not changed.
        decisions: receives the new decisions.
    """
    if not enabled:
        return
    graph = _copied(graph)
    split_dropouts(graph)
    trial = _Trial(decisions)
    whole = Kinds(graph, decisions=trial)
    if not trial.open:
        return
    leave_wasteful(whole)
    given_up: set[str] = set()
    with _one_thread():
        best = _judge(whole, trial.open, given_up)
        for _ in range(_ROUNDS):
            if not best.worst:
                break
            now = _judge(whole, trial.open, given_up | best.worst)
            if now.seconds > best.seconds:
                break
            given_up, best = given_up | best.worst, now
    decisions.keep({key: key not in given_up for key in trial.open})


_SCRATCH = 1 << 14
"""Bytes of scratch that each operation may need."""


def leave_wasteful(kinds: Kinds) -> None:
    """Leaves nodes to PyTorch's kernels if ours need much scratch: over 16 KiB and over the share
    of what they read and return that their row allows. This depends only on the node, so the bits
    do, too."""
    for node in [n for n in kinds.order if n in kinds.own]:
        if ROWS[node.target].by_element:
            continue
        try:
            group, _ = compile_group([node], kinds, None)
            room = max(_SCRATCH, int(bytes_of(group) * ROWS[node.target].scratch))
            if group.step.run_bytes > room and not compile_group([node], kinds, room)[1]:
                kinds.make_foreign(node, f"it needs {group.step.run_bytes} bytes of scratch")
        except MemoryError:
            raise
        except Exception as error:
            kinds.make_foreign(node, f"our kernels refuse it: {error}")


def decide_alone(kinds: Kinds, decisions: Decisions) -> None:
    """Decides nodes whose operations are not in the joint graph, each one separately."""
    new: dict[str, fx.Node] = {}
    for node in kinds.order:
        if node in kinds.own and not is_exact(node) and decisions.get(node) is None:
            new.setdefault(key_of(node), node)
    if not (enabled and new):
        return
    made = {}
    with _one_thread():
        for key, node in new.items():
            times = _time_alone(node, kinds)
            allowed = _FUSED if ROWS[node.target].by_element else _ALIKE
            made[key] = times.ours <= times.torch * allowed
    decisions.keep(made)


def is_worth_it(nodes: Sequence[fx.Node], kinds: Kinds, group: Group) -> bool:
    """False if PyTorch's kernels have the same bits as a group and are faster."""
    if not enabled or not all(map(is_exact, nodes)):
        return True
    is_known = _key_of_group(nodes) in _measured
    with contextlib.nullcontext() if is_known else _one_thread():
        return not _time(nodes, kinds, group).is_slower
