"""Compiled graphs: planned, lowered, and ready to run on arrays in the order of the graph's
arguments."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from .. import budgets, dtypes
from .._native import backends, on_device
from ..device_arrays import DeviceArray, handle
from ..integers import integer
from ..source import place
from .arrays import as_array, wrap
from .compiling import UPDATES, CompileOptions, compile_graph, on_gpu
from .measures import Planned, Stats
from .memory import Memory, Place, place_in

if TYPE_CHECKING:
    from .. import _native
    from ..devices import Device
    from ..optim import Optimizer
    from ..optim.extras import Asked, Beside
    from ..optim.numbers import Row
    from ..optim.state import State
    from ..planner.plan import Plan
    from ..planner.search import Progress
    from .compiling import Graph, Groups

    Prepared = tuple[State, list[Row]]


_ONLY_PLAN = ("debug", "ref", "null")  # backends that plan updates inside but cannot run them
_RESULT, _STATE, _GRADIENT = range(3)  # kinds of outputs


def check_seed(seed: Any) -> int:
    """Checks and returns the seed of random operations. A negative seed means seed + 2**64, as in
    PyTorch.

    Raises:
        ValueError, TypeError: if ``seed`` is not an integer that fits in 64 bits.
    """
    return integer("seed", seed, -(2**63), 2**64 - 1)


def check_random_step(number: Any) -> int:
    """Checks and returns the step number for random operations.

    Raises:
        ValueError, TypeError: if ``number`` is not an integer, or ``number + 1`` does not fit in 64
            bits.
    """
    return integer("rng_step", number, -(2**63), 2**63 - 2)


def draws_of(seed: int, rng_step: int) -> tuple[int, int]:
    """Returns the seed and the step, checked and converted for the core, which takes 64 bits of the
    seed and the lower 32 bits of the step."""
    return check_seed(seed) & (2**64 - 1), check_random_step(rng_step) & (2**32 - 1)


class Draws(NamedTuple):
    """The seed and the step number that determine the random numbers of a run."""

    seed: int
    rng_step: int
    counter: np.ndarray[Any, Any] | None = None
    """An array of one i64, which the run sets to ``rng_step + 1``, or None."""


class Update(NamedTuple):
    """The optimizer that updates a step's parameters, and the extras of the call."""

    optimizer: Optimizer
    beside: Beside | None = None


class Executable:
    """A graph compiled for a budget; made by :meth:`cutback.Graph.compile`.

    Args:
        graph: the graph to run; later changes to it have no effect.
        wrt: positions of the arguments to differentiate. If there are any, the first result must
            be a scalar.
        budget, measure: how much memory a step may take, see :func:`cutback.compile`.
        preset: what to save if there is no budget: ``"autograd"`` (what the backward reads),
            ``"conservative"``, ``"aggressive"``, ``"shape-aware"`` or ``"recompute_all"``.
        backend: ``"cpu"``, ``"debug"`` (allocates each storage separately), ``"ref"`` (slow, f64),
            ``"null"`` (runs nothing) or ``"cuda"`` (docs/cuda.md).
        device: row of the cost model, default ``"cpu"``; see :func:`cutback.devices.resolve`.
            ``"cuda"`` and ``"cuda:1"`` select the backend and the row nearest to that GPU.
        plan: a plan for this graph, or its JSON, to use instead of making one.
        groups: True plans each group of ops that fuse as one op. Values that stay inside a kernel
            then take no memory in the plan, and may be recomputed inside the kernel that reads
            them. A budget given as a share refers to the bytes of saving everything in groups.
            Planning takes longer. If only single ops meet the budget, single ops are planned.
            False plans single ops. None plans single ops, or groups if single ops cannot meet the
            budget. A dict gives the groups, ``{"groups": [[7, 8], [12, 14]], "inlinings": [[8,
            12]]}``: lists of ops, by the numbers in their names (``gelu_8``), and pairs of a value
            (as in ``text("joint")``) and an op that may compute it inside its own kernel.
        keep_gradients: gradients stay in the arena, for an optimizer.
        updates: when an optimizer steps a parameter: ``"after"`` the run, or ``"inside"`` it, see
            :func:`cutback.compile`.
        slices: run chains of operations by rows in pieces, see :func:`cutback.compile`.
        packed: save masks as bits where that is better, see :func:`cutback.compile`.
        brief: a BudgetError may leave out the smallest plan if it is certain that none meets the
            budget; then its ``smallest_bytes`` is None, and it comes earlier.
        on_infeasible, time_limit, progress: see :func:`cutback.compile`.
        memory: a :class:`cutback.Memory` shared with other steps. None: a block of its own.
        static_bytes: bytes of parameters and optimizer states, counted by the measure ``total``.
        decisions: the decisions of a plan for a graph that differs only in sizes, see ``decide``.
            They are used if they meet the budget; otherwise a plan is searched for.

    Raises:
        BudgetError: if no plan meets the budget.
        cutback.cuda_libraries.LibraryError: if no driver or NVRTC was found; it lists the places
            that were searched.
        ValueError, TypeError, NotImplementedError: if the core rejects an argument.
    """

    def __init__(
        self,
        graph: Graph,
        wrt: Sequence[int] = (),
        *,
        budget: budgets.Budget = None,
        measure: str = "arena",
        preset: str | None = None,
        backend: str = "cpu",
        device: Device | None = None,
        plan: Plan | str | None = None,
        groups: Groups = None,
        keep_gradients: bool = False,
        static_bytes: int = 0,
        on_infeasible: str = "error",
        time_limit: float = 0.0,
        progress: Progress | None = None,
        memory: Memory | Place | None = None,
        decisions: _native._Decisions | None = None,
        updates: str = "after",
        slices: bool = False,
        packed: bool = False,
        brief: bool = False,
    ) -> None:
        budgets.choice("backend", backend, backends())
        budgets.choice("on_infeasible", on_infeasible, budgets.INFEASIBLE)
        budgets.choice("updates", updates, UPDATES)
        budgets.truths(slices=slices, packed=packed)
        backend, device = on_gpu(backend, device)
        options = CompileOptions(
            budget, measure, preset, backend, device, plan, groups, keep_gradients, static_bytes,
            on_infeasible, time_limit, progress, memory, decisions, updates, slices, packed, brief,
        )  # fmt: skip
        self.place = place_in(memory, "an Executable")
        self.native = compile_graph(graph, wrt, options, self.place.native)
        self.backend, self.keeps_gradients = backend, keep_gradients
        self.updates, self.slices, self.packed = updates, slices, packed
        self.groups = groups if isinstance(groups, Mapping) else None  # only if listed by hand
        self.names = [name for name, _ in graph.inputs]
        # arrays of constants, None for arguments
        self._template = [value for _, value in graph.inputs]
        self._arguments = [i for i, value in enumerate(self._template) if value is None]
        self._outputs = self.native.outputs
        self._results = [i for i, row in enumerate(self._outputs) if row[4] == _RESULT]
        self._gradients = [
            i for i, row in enumerate(self._outputs) if row[4] == _GRADIENT and not row[6]
        ]
        bits = dtypes.to_numpy("bf16") == np.uint16
        self._halves = {i for i, row in enumerate(self._outputs) if bits and row[1] == "bf16"}
        self._wrt, self._wrt_names = list(wrt), [self.names[i] for i in wrt]
        # The optimizer of the latest call, its state, and which inputs were on a device.
        self._prepared: tuple[Optimizer, State, bytes] | None = None
        self.stats: Stats | None = None
        self.found = -1.0, False  # the norm of all gradients, and whether the update was skipped
        self.timeline: list[int] | None = None  # bytes during each step, measured by a profile
        self._plan: Plan | None = None
        self.updates_inside, self.updates_reason = self.native.updates
        self._only_plans = updates == "inside" and backend in _ONLY_PLAN
        self._after: Executable | None = None  # compiled with updates="after", for _run_after
        self._request = graph, tuple(wrt), options

    @property
    def planned(self) -> Planned:
        """Bytes and times of the plan."""
        return Planned(**self.native.numbers)

    @property
    def plan(self) -> Plan:
        """The plan, which says what is saved, what is recomputed, and why."""
        if self._plan is None:
            from ..planner.plan import Plan  # imported late, as above

            self._plan = Plan.of(self.native.plan(), self)
        return self._plan

    def text(self, what: str) -> str:
        """Returns a stage of compilation as text. ``what`` is ``"joint"``, ``"forward"``,
        ``"backward"``, ``"program"``, ``"explain"``, ``"problem"``, ``"plan"``, ``"kernels"``,
        ``"slices"`` (the chains that run in pieces, and those that cannot), ``"code"`` (the code of
        each kernel: records of the executor or, on a GPU, CUDA C) or, on a GPU, ``"launches"``."""
        return self.native.text(what)

    def inputs(self, arrays: Sequence[Any]) -> list[Any]:
        """Returns all inputs of the core: the arguments and the constants, in the graph's order.

        Raises:
            ValueError: if ``arrays`` has too few or too many arrays for the arguments.
        """
        if len(arrays) != len(self._arguments):
            raise ValueError(f"expected {len(self._arguments)} arrays, got {len(arrays)}")
        if len(arrays) == len(self._template):
            return list(arrays)
        given = iter(arrays)
        return [next(given) if value is None else value for value in self._template]

    @property
    def runs_inside(self) -> bool:
        """True if runs update parameters inside the backward."""
        return self.updates_inside and not self._only_plans

    def outputs(
        self,
        out: Sequence[Any] | None = None,
        device: int | None = None,
        stream: int | None = None,
    ) -> list[Any]:
        """Returns new arrays for the results and gradients, with None for outputs that stay inside
        the step. They are on the host, or on ``device`` for use on ``stream``. ``out`` gives arrays
        for the gradients."""
        given = self._given(out, stream) if out is not None else None
        if device is None:
            arrays = self.native.empty_outputs(given is None)
        else:
            arrays = [None] * len(self._outputs)
            places = self._results if given is not None else self.made
            for i, array in zip(places, self.made_outputs(places, device, stream), strict=True):
                arrays[i] = array
        for i, array in zip(self._gradients, given or (), strict=False):
            arrays[i] = array
        return arrays

    def _given(self, out: Sequence[Any], stream: int | None) -> list[Any]:
        wanted = len(self._gradients)
        if not isinstance(out, (tuple, list)) or len(out) != wanted:
            raise TypeError(
                f"out: expected a list of {wanted} arrays, one per gradient, got {out!r}"
            )
        for array in out:
            if isinstance(array, np.generic):
                raise TypeError(f"out: {array!r} is a NumPy scalar, which cannot be written to")
        return [as_array(array, "out", stream)[0] for array in out]

    @property
    def made(self) -> list[int]:
        """The outputs that are arrays of the caller: results, then gradients."""
        return [*self._results, *self._gradients]

    def made_outputs(
        self, places: Sequence[int], device: int, stream: int | None
    ) -> list[DeviceArray]:
        """Returns new arrays on a GPU for these outputs."""
        self.place.admit_results(self._outputs[i][3] for i in places)
        rows = [self._outputs[i] for i in places]
        return [DeviceArray.empty(row[2], row[1], device, stream) for row in rows]

    def split_made(
        self, arrays: Sequence[Any], places: Sequence[int]
    ) -> tuple[list[Any], list[Any]]:
        """Returns the arrays of ``made`` outputs as (results, gradients), like :meth:`split`."""
        if self._halves:
            arrays = [
                wrap(x, "bf16") if i in self._halves else x
                for i, x in zip(places, arrays, strict=True)
            ]
        n = len(self._results)
        return list(arrays[:n]), list(arrays[n:])

    def split(self, arrays: Sequence[Any]) -> tuple[list[Any], list[Any]]:
        """Returns the outputs as (results, gradients), in the form that users get."""
        return self._handed_out(arrays, self._results), self._handed_out(arrays, self._gradients)

    def _handed_out(self, arrays: Sequence[Any], outputs: Sequence[int]) -> list[Any]:
        if not self._halves:
            return [arrays[i] for i in outputs]
        return [wrap(arrays[i], "bf16") if i in self._halves else arrays[i] for i in outputs]

    def run(
        self,
        arrays: Sequence[Any],
        draws: Draws,
        out: Sequence[Any] | None = None,
        stream: int | None = None,
        update: Update | None = None,
    ) -> tuple[list[Any], list[Any]]:
        """Runs one step on checked arguments and returns (results, gradients).

        With ``update``, the arguments at ``wrt`` are updated in place, and no gradients are
        returned. The step sets ``draws.counter`` to ``draws.rng_step + 1`` together with everything
        else that it updates: however the call ends, it has changed all of them or none. If an
        argument is on a GPU, the results are, too; with ``stream`` the call does not wait for
        them."""
        if update is not None and self._goes_after(update):
            return self._run_after(arrays, draws, out, stream, update)
        inputs = self.inputs(arrays)
        there = on_device(inputs)
        first = there.find(1)
        device = None if first < 0 else inputs[first].device
        outputs = self.outputs(out, device, stream)
        if update is None:
            seed, random_step = draws_of(draws.seed, draws.rng_step)
            measured = self.native.run(
                inputs=inputs, outputs=outputs, seed=seed, random_step=random_step,
                count=draws.counter, next=draws.rng_step + 1, stream=stream,
            )  # fmt: skip
        else:
            hold = update.optimizer.stepping().hold
            measured, self.found = hold(self._train, update, inputs, outputs, there, draws, stream)
        self.stats = Stats(*measured)
        return self.split(outputs)

    def _goes_after(self, update: Update) -> bool:
        """Returns True if another program must make this update after its run, because the update
        needs all gradients, or because the backend cannot run updates inside."""
        return update.beside is not None if self.updates_inside else self._only_plans

    def _run_after(self, *arguments: Any) -> tuple[list[Any], list[Any]]:
        """Runs a program that updates after the run; see :meth:`run`. It is compiled once."""
        if self._after is None:
            graph, wrt, options = self._request
            options = options._replace(updates="after", plan=None, decisions=None)
            self._after = Executable(graph, wrt, **options._asdict())
        found = self._after.run(*arguments)
        self.stats, self.found = self._after.stats, self._after.found
        return found

    def _train(
        self,
        update: Update,
        inputs: Sequence[Any],
        outputs: Sequence[Any],
        there: bytes,
        draws: Draws,
        stream: int | None,
    ) -> tuple[tuple[int, int, float], tuple[float, bool]]:
        """Runs a step and its update while the optimizer is locked. Returns (measurements,
        outcome)."""
        optimizer, beside = update
        seed, random_step = draws_of(draws.seed, draws.rng_step)
        state, rows = self._prepare(optimizer, inputs, there)
        return self.native.train(
            inputs=inputs,
            outputs=outputs,
            seed=seed,
            random_step=random_step,
            count=draws.counter,
            next=draws.rng_step + 1,
            stream=stream,
            optimizer=optimizer.native,
            states=list(state.arrays.values()),
            group_of=state.group_of,
            groups=rows,
            t=state.counter,
            numbers=state.numbers,
            extras=None if beside is None else self._arguments_beside(beside, inputs),
        )

    @property
    def argument_positions(self) -> list[int]:
        """Positions of the arguments among the core's inputs; the other inputs are constants."""
        return self._arguments

    @property
    def parameter_names(self) -> list[str]:
        """Names of the arguments at ``wrt``."""
        return self._wrt_names

    def prepare(self, optimizer: Optimizer, inputs: Sequence[Any]) -> Prepared:
        """Returns the optimizer's state for the parameters among the core's inputs, and its
        hyper-parameters."""
        return self._prepare(optimizer, inputs, on_device(list(inputs)))

    def _prepare(self, optimizer: Optimizer, inputs: Sequence[Any], there: bytes) -> Prepared:
        """Returns the optimizer's state for the parameters, and its hyper-parameters. If the state
        is that of the latest call and the same inputs are on a device, the check against each
        parameter is skipped, because the parameters of a compiled graph never change dtype or
        shape."""
        if self._prepared is not None:
            of, state, where = self._prepared
            again = optimizer.prepared(self._wrt_names) if of is optimizer else None
            if again is not None and again[0] is state and where == there:
                return again
        self._prepared = None
        params = [inputs[i] for i in self._wrt]
        arena = self.planned.arena_bytes
        with self.place.making_states(optimizer, self._wrt_names, params, arena):
            found = optimizer.prepare(self._wrt_names, params)
        self._prepared = optimizer, found[0], there
        return found

    def _arguments_beside(self, beside: Beside, inputs: Sequence[Any]) -> Asked:
        return beside.arguments(self._wrt_names, [inputs[i] for i in self._wrt])

    def count_call(self, seconds: float) -> None:
        """Records how long the latest call took."""
        if self.stats is not None:
            self.stats = self.stats._replace(call_seconds=seconds)

    def wait(self) -> None:
        """Waits for the latest run that was queued on a stream.

        Raises:
            ValueError: if the run failed, for example at an index out of range. It has changed
                nothing then.
        """
        self.native.wait()

    @property
    def update_seconds(self) -> float:
        """Seconds that the optimizer's step took in the latest run, by the device's clock; 0 if the
        run made no update. Reading it waits for the run. Copies between host and device are
        excluded.

        >>> step(params, x, y)
        >>> step.executable.update_seconds
        """
        return self.native.update_seconds()

    def __call__(
        self,
        *arrays: Any,
        seed: int = 0,
        rng_step: int = 0,
        out: Sequence[Any] | None = None,
        stream: Any = None,
    ) -> tuple[list[Any], list[Any]]:
        """Runs on arrays in the order of the graph's arguments and returns (results, gradients).
        ``stream`` works as for a :class:`cutback.Step`.

        Raises:
            ValueError, TypeError: if an array has the wrong shape or dtype, is not contiguous, or
                overlaps an array that is written to.
        """
        begin = time.perf_counter()
        named = zip(arrays, (self.names[i] for i in self._arguments), strict=False)
        try:
            place_on = handle(stream)
            checked = [as_array(value, name, place_on)[0] for value, name in named]
            found = self.run(checked, Draws(seed, rng_step), out, place_on)
            self.count_call(time.perf_counter() - begin)
            return found
        except (ValueError, TypeError) as error:
            place(error)
            raise

    def __repr__(self) -> str:
        size = budgets.text(self.planned.arena_bytes)
        return f"<cutback.Executable of {len(self.names)} inputs in {size}>"
