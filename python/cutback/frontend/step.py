"""Compiled steps and the types of what they return.

A :class:`Step` traces its function at the first call, plans and compiles it for the shapes and
dtypes it was called with, and from then on runs the compiled program. A call with other shapes,
dtypes, structure or Python constants compiles once more. Programs are kept until they hold more
than ``program_cache`` bytes; then those used least recently are dropped.
"""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import (
    TYPE_CHECKING,
    Any,
    Generic,
    NamedTuple,
    Self,
    TypedDict,
    TypeVar,
    overload,
)

import numpy as np

from .. import budgets, tree
from ..device_arrays import handle
from ..integers import index
from ..policies import Policy, PolicyFunction, resolve
from ..run.compiling import (
    UPDATES,
    CompileOptions,
    Groups,
    code_text,
    decide,
)
from ..run.executable import (
    Draws,
    Executable,
    Update,
    check_random_step,
    check_seed,
)
from ..run.measures import Planned, Stats
from ..run.memory import Memory, place_in
from ..source import located, place
from .gradients import lifted, value_and_gradients
from .graph import current, is_tracing
from .program_cache import DEFAULT as DEFAULT_CACHE
from .program_cache import ProgramCache
from .sizes import Decided, Family, Resized, Shapes, family_key, shapes_of
from .state import load, state_of
from .tracing import Call, Signature, Traced, leaves_of, with_first
from .within import compiled_within
from .words import refuse_module, refuse_optimizer

if TYPE_CHECKING:
    from ..devices import Device
    from ..optim import Optimizer, Outcome
    from ..planner.plan import Plan
    from ..planner.search import Progress
    from ..run.profiling import StepProfile
    from .captured import CapturedStep

ArgNums = int | Sequence[int] | None
Loss = np.ndarray[Any, np.dtype[Any]]
"""What a call returns for the loss: an array without axes. On a GPU it is a DeviceArray."""

Value = TypeVar("Value")
Result = TypeVar("Result")
Params = TypeVar("Params")


class WithGradients(Generic[Value]):
    """For type checkers: calls of ``Step[WithGradients[Value]]`` return (value, gradients), and
    gradients have the type of the first argument."""


class OnlyGradients:
    """For type checkers: calls of ``Step[OnlyGradients]`` return gradients, which have the type of
    the first argument."""


class Unknown:
    """For type checkers: what calls of ``Step[Unknown]`` return depends on the function."""


class Options(TypedDict, total=False):
    """Options of :func:`compile` that do not change what a call returns."""

    budget: budgets.Budget
    measure: str
    policy: Policy | None
    preset: str | None
    backend: str
    device: Device | None
    plan: Plan | str | None
    groups: Groups
    seed: int
    on_infeasible: str
    time_limit: float
    progress: Progress | None
    program_cache: int | str
    memory: Memory | None
    updates: str
    slices: bool


_MANY = 64  # compiled specialisations of a step that look like a mistake
_BYTES_OF_TRACE, _BYTES_OF_LEAF = 16384, 1024  # of Python objects, as measured by tracemalloc
_PART_OF_PLANS = 8  # of the cache, at most one part is for plans at canonical sizes


def argnums_of(argnums: ArgNums) -> tuple[int, ...]:
    """The positions of one or several arguments, as a tuple.

    Raises:
        TypeError: it is neither an integer nor several of them.
    """
    if argnums is None:
        return ()
    several = argnums if isinstance(argnums, (tuple, list, range)) else (argnums,)
    try:
        return tuple(index(n) for n in several)
    except (TypeError, ValueError):
        raise TypeError(
            f"argnums={budgets.short(argnums)} is neither an integer nor a sequence of them"
        ) from None


class StepOptions(NamedTuple):
    """What a step computes; see :func:`cutback.compile`."""

    argnums: ArgNums
    has_aux: bool
    returns: str
    """``"value"``, ``"gradients"`` or ``"both"``."""
    policy: Policy | None
    optimizer: Optimizer | None
    seed: int
    program_cache: int | str = DEFAULT_CACHE


class _Specialisation(Signature):
    """The function compiled for one set of shapes, dtypes and constants."""

    def __init__(self, step: Step[Any], call: Call, family: Family) -> None:
        argnums = argnums_of(step.argnums)
        updates = step.optimizer is not None
        self.traced = Traced(call, argnums, step._policy)
        self.traced.finish(bool(argnums), step.has_aux)
        self.argnums = argnums
        self.arg_trees = [call.tree[3][0][3][argnum] for argnum in argnums]
        self.constant = [array is None for array in call.arrays]
        self.ranges = leaves_of(call.positional(), argnums)
        self.n_arrays = [sum(not self.constant[i] for i in leaves) for leaves in self.ranges]
        self.written = self.traced.written(updates)
        numbers = (i for i in self.written if isinstance(call.leaves[i], (float, complex)))
        self.number = min(numbers, default=None)  # a constant where a step writes
        self._out_tree: tree.Tree | None = None
        self.static_bytes = 0
        if step.optimizer is not None:
            self.static_bytes = self._bytes_of_parameters(step.optimizer, call)
        options = step._options._replace(
            keep_gradients=updates, static_bytes=self.static_bytes, memory=step._place
        )
        self.family = family
        self._n_varying = len(family.varying)
        self._shapes = shapes_of(call)
        self._planned_at = family.canonical_ways(self._shapes) if options.searches else None
        if options.searches and family.varying:
            options = options._replace(decisions=step._decisions(call, family, options))
        self.run = compiled_within(self.traced, options)
        super().__init__(call, self.traced.names)
        self.key = call.key
        self._python_bytes = (
            _BYTES_OF_TRACE + _BYTES_OF_LEAF * len(call.leaves) + self.traced.graph.constant_bytes()
        )

    @property
    def nbytes(self) -> int:
        """Bytes that the program holds: exact for the core, an estimate for objects of Python. The
        arena, which is memory of runs, is not included."""
        native = self.traced.graph._native.nbytes() + self.run.native.nbytes
        return native + self._python_bytes

    def is_outdated(self) -> bool:
        """Whether its plan was made for other sizes than the family's canonical ones, since axes
        are known to vary now that were not when it was planned."""
        if self._planned_at is None or self._n_varying == len(self.family.varying):
            return False
        before, now = self._planned_at, self.family.canonical_ways(self._shapes)
        if before != now and not before[0] == now[0] == self._shapes:
            return True
        self._n_varying = len(self.family.varying)
        return False

    def check_written(self, call: Call) -> None:
        """Whether what the step writes are arrays.

        Raises:
            TypeError: there is a number in the place of one.
        """
        number = next((i for i in call.scalars if i in self.written), self.number)
        if number is not None:
            raise self.traced.not_writable(number, call.leaves[number])

    def explain_tied(self, error: Exception, call: Call) -> None:
        """Says in an error what to do if one array is in two places that the step writes."""
        known: dict[int, str] = {}
        for i in sorted(self.written):
            name, array = self.traced.names[i], call.leaves[i]
            first = known.setdefault(id(array), name)
            if first != name:
                error.args = (
                    f"{first} and {name} overlap in memory: they are one array, which a step "
                    "cannot update twice; pass it once and use it in both places of the function",
                )
                return

    def _bytes_of_parameters(self, optimizer: Optimizer, call: Call) -> int:
        """Bytes of the parameters and of what the optimizer keeps for them."""
        names = [self.traced.graph.inputs[i][0] for i in self.traced.wrt_positions]
        params = [array for i in self.traced.wrt if (array := call.arrays[i]) is not None]
        size: int = sum(a.nbytes for a in params)
        return size + optimizer.state_bytes(names, params)

    def gradient_tree(self, gradients: list[Any], single: bool) -> Any:
        """Gradients nested like their arguments; None where an argument holds a Python constant."""
        trees, begin = [], 0
        for below, leaves, n in zip(self.arg_trees, self.ranges, self.n_arrays, strict=True):
            values = gradients[begin : begin + n]
            begin += n
            if n < len(leaves):
                source = iter(values)
                values = [None if self.constant[i] else next(source) for i in leaves]
            trees.append(tree.unflatten(below, values))
        return trees[0] if single else tuple(trees)

    def beside(self, single: bool) -> Callable[[Any, str], list[Any]]:
        """Finds the entry that belongs to each parameter in trees that are nested like them; None
        where there is none."""

        def leaves(x: Any, name: str) -> list[Any]:
            given = (x,) if single else x
            if not isinstance(given, (tuple, list)) or len(given) != len(self.argnums):
                raise ValueError(
                    f"{name} must be a tuple of {len(self.argnums)}, one for each of argnums"
                )
            found = []
            for structure, row, y in zip(self.arg_trees, self.ranges, given, strict=True):
                below = tree.beside(structure, y, name)
                found += [z for i, z in zip(row, below, strict=True) if not self.constant[i]]
            return found

        return leaves

    def gradient_leaves(self, out: Any, single: bool) -> list[Any]:
        """The arrays of ``out``, which is nested like the gradients.

        Raises:
            ValueError: it is nested differently, or gradients stay inside for an optimizer.
        """
        if self.run.keeps_gradients:
            raise ValueError(
                "out= cannot be used here: the gradients stay inside the step, for its optimizer"
            )
        if not self.argnums:
            raise ValueError("out= takes gradients, but argnums=None requests none")
        if self._out_tree is None:
            zeros = [0] * sum(self.n_arrays)
            self._out_tree = tree.flatten(self.gradient_tree(zeros, single))[1]
        leaves, structure = tree.flatten(out)
        if structure != self._out_tree:
            raise ValueError("out must be nested like the gradients")
        return leaves


_steps: weakref.WeakSet[Step[Any]] = weakref.WeakSet()


def _after_fork_in_child() -> None:
    """A lock that a thread of the parent holds would never be released here."""
    for step in list(_steps):
        step._lock = threading.RLock()
        step._left = step._running


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)


class Step(Generic[Result]):
    """A compiled function; made by :func:`compile`, :func:`value_and_grad` and :func:`grad`.

    Calling it runs one step. Besides the arguments of the function it takes

    - ``out=``: arrays that receive the gradients, nested like them;
    - ``rng_step=``: number of the step for random operations, of which the lower 32 bits count;
      otherwise calls are counted from 0;
    - ``extras=``: what is done besides the optimizer's update, in its pass: a dict of arguments of
      :meth:`cutback.optim.Optimizer.step`, ``grad_scale``, ``max_norm``, ``averages``,
      ``average_decay`` and ``copies``; :attr:`outcome` is what it has found;
    - ``stream=``: a stream of CUDA, its handle or the object of PyTorch or CuPy. The call puts its
      work there and does not wait; :meth:`wait` does, and raises what went wrong. Arrays of NumPy
      among the arguments are copied, and then the call waits all the same.

    To type checkers the value is a NumPy array, and gradients have the type of the first argument;
    arguments on a GPU give :class:`cutback.DeviceArray` instead.

    Raises on a call:
        ValueError, TypeError: arguments that do not fit each other or the function; arrays that are
            not contiguous, that overlap one that is written, or are read-only where the step
            writes.
        BudgetError: no plan meets the budget.
        MemoryError, KeyboardInterrupt: parameters, states of the optimizer, running statistics and
            counts are those before the step or those after it, never a mixture.
        RuntimeError: the process was forked while another thread ran the step.

    >>> step = cutback.value_and_grad(loss)
    >>> value, grads = step(params, x, y)
    >>> step.stats.peak_bytes == step.planned.arena_bytes
    True
    """

    def __init__(
        self, function: Callable[..., Any], wanted: StepOptions, options: CompileOptions
    ) -> None:
        argnums, has_aux, returns, policy, optimizer, seed, program_cache = wanted
        if not callable(function):
            raise TypeError(f"expected a function, got {function!r}")
        refuse_module(function)
        # Mistakes show here, not at the first call.
        searched = budgets.parse(options.budget, options.measure) is not None
        budgets.parse_preset(options.preset, options.measure if searched else None)
        budgets.choice("on_infeasible", options.on_infeasible, budgets.INFEASIBLE)
        budgets.choice("updates", options.updates, UPDATES)
        budgets.truth("slices", options.slices)
        options.search()
        budgets.truth("has_aux", has_aux)
        if argnums is not None and not isinstance(argnums, (tuple, list, range)):
            (argnums,) = argnums_of(argnums)
        argnums_of(argnums)
        if options.updates == "inside" and optimizer is None:
            raise ValueError("updates='inside' needs an optimizer: give the step one")
        if isinstance(optimizer, type):
            raise TypeError(f"optimizer={optimizer.__name__} is a class; pass one of its instances")
        if optimizer is not None and not hasattr(optimizer, "prepare"):
            refuse_optimizer(optimizer)
        if optimizer is not None:
            optimizer.check_steps()
        self.function = function
        self.argnums = argnums
        self.has_aux = has_aux
        self.optimizer = optimizer
        self.seed = check_seed(seed)
        self._draws = np.zeros((), np.int64)  # a step counts itself
        self.returns = returns  # "value", "gradients" or "both"
        self._place = place_in(options.memory, f"step `{getattr(function, '__name__', function)}`")
        self._policy: PolicyFunction | None = None if policy is None else resolve(policy)
        self._options = options
        self._alone: Update | None = None  # the update of a call without extras
        self._limit = budgets.named_bytes("program_cache", program_cache)
        self._known: ProgramCache[_Specialisation] = ProgramCache(self._limit)
        self._plans: ProgramCache[Decided] = ProgramCache(self._limit // _PART_OF_PLANS)
        self._families: weakref.WeakValueDictionary[Any, Family] = weakref.WeakValueDictionary()
        self._n_compiled = self._n_planned = self._n_alone = 0
        self._recent: list[_Specialisation] = []  # the latest first
        self._lock = threading.RLock()
        self._running: Executable | None = None
        self._left: Executable | None = None  # in a forked child, what ran when it was forked
        _steps.add(self)
        self.__doc__ = function.__doc__
        self.__wrapped__ = function

    @property
    def rng_step(self) -> int:
        """Number of the next step for random operations."""
        return int(self._draws)

    @rng_step.setter
    def rng_step(self, number: int) -> None:
        self._draws[...] = check_random_step(number)

    @overload  # first, since it also matches Step[Any]
    def __call__(
        self: Step[Unknown],
        /,
        *args: Any,
        out: Any = None,
        rng_step: int | None = None,
        extras: Mapping[str, Any] | None = None,
        stream: Any = None,
        **kwargs: Any,
    ) -> Any: ...
    @overload
    def __call__(
        self: Step[WithGradients[Value]],
        first: Params,
        /,
        *args: Any,
        out: Any = None,
        rng_step: int | None = None,
        extras: Mapping[str, Any] | None = None,
        stream: Any = None,
        **kwargs: Any,
    ) -> tuple[Value, Params]: ...
    @overload
    def __call__(
        self: Step[OnlyGradients],
        first: Params,
        /,
        *args: Any,
        out: Any = None,
        rng_step: int | None = None,
        extras: Mapping[str, Any] | None = None,
        stream: Any = None,
        **kwargs: Any,
    ) -> Params: ...
    @overload
    def __call__(
        self,
        /,
        *args: Any,
        out: Any = None,
        rng_step: int | None = None,
        extras: Mapping[str, Any] | None = None,
        stream: Any = None,
        **kwargs: Any,
    ) -> Result: ...
    def __call__(
        self,
        /,
        *args: Any,
        out: Any = None,
        rng_step: int | None = None,
        extras: Mapping[str, Any] | None = None,
        stream: Any = None,
        **kwargs: Any,
    ) -> Any:
        """Runs one step and returns its results: :func:`compile`, :func:`value_and_grad` and
        :func:`grad` say which. The class describes the arguments and errors."""
        if is_tracing() and self.optimizer is None:
            given = {"out": out, "rng_step": rng_step, "extras": extras, "stream": stream}
            return self._inline(args, kwargs, given)
        begin = time.perf_counter()
        with self._lock:
            self._refuse_left()
            call = self._read(args, kwargs, handle(stream))
            spec = self._specialise(call)
            number = self.rng_step if rng_step is None else check_random_step(rng_step)
            single = isinstance(self.argnums, int)
            before, self._running = self._running, spec.run
            try:
                results, gradients = spec.run.run(
                    call.given,
                    Draws(self.seed, number, self._draws),
                    None if out is None else spec.gradient_leaves(out, single),
                    call.stream,
                    None
                    if self.optimizer is None and extras is None
                    else self._update(extras, spec, single),
                )
            except (ValueError, TypeError) as error:
                spec.explain_tied(error, call)
                place(error)
                raise
            finally:
                self._running = before
            result = self._result(spec, results, gradients, single)
            spec.run.count_call(time.perf_counter() - begin)
        return result

    def _inline(self, args: tuple[Any, ...], kwargs: dict[str, Any], given: dict[str, Any]) -> Any:
        """What a call inside a traced function returns: the function, or its gradients, become part
        of that one.

        Raises:
            ValueError: an option that only a program of its own could follow.
        """
        wanted = given | {k: getattr(self._options, k) for k in ("budget", "plan", "preset")}
        for name, value in wanted.items():
            if value is not None:
                raise ValueError(
                    located(
                        f"{name}= has no use inside a traced function: this function becomes part "
                        "of the step around it, which plans and runs both; give it there"
                    )
                )
        with current().policy(self._policy):
            if self.argnums is None:
                return self.function(*lifted(args), **lifted(kwargs))
            value, gradients = value_and_gradients(
                self.function, args, kwargs, self.argnums, self.has_aux
            )
        if self.returns == "gradients":
            return (gradients, value[1]) if self.has_aux else gradients
        return value, gradients

    def _refuse_left(self) -> None:
        """What a program was updating when this process was forked is updated by the others of this
        step as well, so none of them may run."""
        if self._left is None:
            return
        if self._left.native.is_left:
            raise RuntimeError(
                "this process was forked while another thread ran this step; the update of that "
                "run may be incomplete here: load a checkpoint and compile the step again, or fork "
                "between steps"
            )
        self._left = None

    def _result(
        self, spec: _Specialisation, results: list[Any], gradients: list[Any], single: bool
    ) -> Any:
        """What a call returns."""
        value = tree.unflatten(spec.traced.out_tree, results)
        if self.returns == "value":
            return value
        nested = spec.gradient_tree(gradients, single)
        if self.returns == "gradients":
            return (nested, value[1]) if self.has_aux else nested
        return value, nested

    def _update(self, extras: Any, spec: _Specialisation, single: bool) -> Update | None:
        if self.optimizer is None:
            if extras is not None:
                raise ValueError("extras= needs an optimizer: give the step one")
            return None
        if extras is None:
            if self._alone is None or self._alone.optimizer is not self.optimizer:
                self._alone = Update(self.optimizer)
            return self._alone
        from ..optim.extras import Beside  # few steps do something beside their update

        beside = Beside.of(type(self.optimizer).__name__, extras, spec.beside(single))
        return Update(self.optimizer, beside)

    @property
    def outcome(self) -> Outcome:
        """What the ``extras`` of the latest call have found."""
        from ..optim.extras import outcome

        return outcome(self._compiled.run.found)

    def wait(self) -> None:
        """Waits for the latest call, which was given a ``stream``.

        Raises:
            ValueError: the call failed (an index was out of range, for example) and has changed
                nothing but the counts.
        """
        with self._lock:
            self._compiled.run.wait()

    def _read(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], stream: int | None = None
    ) -> Call:
        try:
            return Call(self.function, args, kwargs, stream, self._recent)
        except (ValueError, TypeError) as error:
            place(error)
            raise

    def _specialise(self, call: Call) -> _Specialisation:
        spec = call.fitting
        if not isinstance(spec, _Specialisation):
            spec = self._known.get(call.key)
        if spec is None or spec.is_outdated():
            call.read()
            spec = self._compile(call)
        else:
            spec.traced.surroundings.look()
        spec.check_written(call)
        if not self._recent or self._recent[0] is not spec:
            self._known.get(spec.key)  # now the one used last
            self._recent = with_first(self._recent, spec)
        return spec

    def _compile(self, call: Call) -> _Specialisation:
        family, is_new = self._family(call)
        spec = _Specialisation(self, call, family)
        gone = self._known.add(call.key, spec)
        self._recent = [other for other in self._recent if other not in gone]
        self._n_compiled += 1
        searched = self._options.searches and not spec.run.native.follows
        self._n_planned += searched
        if is_new or (searched and family.varying):
            self._n_alone += 1
            if self._n_alone == _MANY:
                self._warn_of_many()
        return spec

    def _family(self, call: Call) -> tuple[Family, bool]:
        """The family of a call, which notes its shapes, and whether it is a new one."""
        fixed = leaves_of(call.positional(), argnums_of(self.argnums))
        key = family_key(call, frozenset(i for leaves in fixed for i in leaves))
        shapes, family = shapes_of(call), self._families.get(key)
        if family is not None:
            family.add(shapes)
            return family, False
        family = self._families[key] = Family(key, shapes)
        return family, True

    def _decisions(self, call: Call, family: Family, options: CompileOptions) -> Any:
        """Decisions made at the canonical sizes of a call; None: there are none."""
        for shapes in family.canonical_ways(shapes_of(call)):
            key = family.key, shapes
            decided = self._plans.get(key)
            if decided is None:
                decided = self._decide(call, family, shapes, options)
                self._plans.add(key, decided)
                self._known.limit = self._limit - self._plans.nbytes
            if decided.takes_sizes:
                return decided.native
        return None

    def _decide(
        self, call: Call, family: Family, shapes: Shapes, options: CompileOptions
    ) -> Decided:
        argnums = argnums_of(self.argnums)
        try:
            traced = Traced(Resized(call, shapes), argnums, self._policy, watches=False)
            traced.finish(bool(argnums), self.has_aux)
        except Exception:  # the function may not take these sizes, and says so as it likes
            return Decided(family, False, None)
        self._n_planned += 1
        try:
            return Decided(family, True, decide(traced.graph, traced.wrt_positions, options))
        except (ValueError, NotImplementedError):  # each shape is planned for itself
            return Decided(family, True, None)

    def _warn_of_many(self) -> None:
        import warnings

        text = (
            f"{self!r}: every new dtype or Python constant compiles once more, and so does a "
            "shape that cannot share a plan; "
            "pass a number that changes as np.float32(x), and pad to few shapes"
        )
        warnings.warn(located(text), RuntimeWarning, stacklevel=5)

    def prepare(self, *args: Any, **kwargs: Any) -> Self:
        """Traces, plans and compiles for these arguments without running; returns the step
        itself."""
        with self._lock:
            self._specialise(self._read(args, kwargs))
        return self

    def capture(self, *bound: Any) -> CapturedStep:
        """A step that runs as one graph of the GPU: forward, backward and update.

        Args:
            bound: the first arguments of the function, whose arrays are on the GPU. The graph uses
                them where they are, and updates those that the step updates. Later arguments are
                given to each call, which copies them to the graph's own arrays.

        Raises:
            ValueError: the step does not run on a GPU, or an array of ``bound`` is not there.

        >>> captured = step.capture(params)  # doctest: +SKIP
        >>> for x, y in batches:  # doctest: +SKIP
        ...     value = captured(x, y)
        """
        from .captured import CapturedStep  # few steps are captured

        with self._lock:
            return CapturedStep(self, bound)

    def state_dict(self, params: Any) -> dict[str, Any]:
        """A copy of all that the next call depends on, as a flat dict of arrays: those of the tree
        ``params`` by their names (``"params['w1']"``), states of the optimizer (``"optimizer.t"``,
        ``"optimizer.params['w1'].m"``), ``"rng_step"`` and ``"seed"``. With running statistics,
        ``params`` is a tree with both.

        ``np.savez`` and ``safetensors.numpy.save_file`` save it; a run that continues from it has
        the bits of one that was not interrupted.

        Example:
            >>> np.savez("run.npz", **step.state_dict(params))
            >>> step.load_state_dict(np.load("run.npz"), params)
        """
        with self._lock:
            return state_of(self, params)

    def load_state_dict(self, state: Mapping[str, Any], params: Any) -> None:
        """Copies a state that :meth:`state_dict` returned: into the arrays of ``params``, the
        optimizer and the counter of random numbers. After an error nothing has changed.

        Raises:
            TypeError, ValueError: names, shapes or types differ from those of ``params``, or the
                state was saved by another optimizer.
        """
        with self._lock:
            load(self, params, state)

    def __reduce__(self) -> Any:
        raise TypeError(
            f"{self!r} holds compiled programs and cannot be pickled: save what its state_dict "
            "returns, compile the function again, and call load_state_dict"
        )

    def clear(self) -> None:
        """Drops what was compiled, and its memory; optimizer state and counts of steps stay."""
        with self._lock:
            self._known.clear()
            self._plans.clear()
            self._known.limit = self._limit
            self._recent = []
        self._place.native.release()

    def profile(self, *args: Any, rng_step: int = 0, **kwargs: Any) -> StepProfile:
        """Runs the step on copies of the arguments and measures each kernel: its seconds, and the
        bytes that are allocated while it runs when each storage is allocated separately. Nothing
        is updated. ``rng_step`` is the number of the step for random operations.

        Returns:
            The measurements, kernel by kernel; ``print(step.profile(params, x, y))`` sums them up
            by kind. From then on ``step.plan.report`` also shows the measured bytes.
        """
        from ..run.profiling import profile  # writes JSON; import stays fast

        with self._lock:
            call = self._read(args, kwargs)
            spec = self._specialise(call)
            wrt = spec.traced.wrt_positions
            result = profile(spec.traced.graph, spec.run, wrt, call.given, self.seed, rng_step)
            spec.run.timeline = result.timeline()
            return result

    @property
    def _compiled(self) -> _Specialisation:
        if not self._recent:
            raise ValueError(
                "the step is not compiled yet: call it, or prepare(...) it, with its arguments"
            )
        return self._recent[0]

    @property
    def executable(self) -> Executable:
        """The program of the latest call."""
        return self._compiled.run

    @property
    def traced(self) -> Traced:
        """The traced function of the latest call."""
        return self._compiled.traced

    @property
    def plan(self) -> Plan:
        """The plan of the latest call: what is saved, what is recomputed, and why."""
        return self._compiled.run.plan

    @property
    def planned(self) -> Planned:
        """Bytes and times that the plan of the latest call predicts."""
        return self._compiled.run.planned

    def code(self, backend: str | None = None) -> str:
        """What each kernel of the latest call became: the executor's records on the CPU, CUDA C on
        a GPU. With a ``backend``, what it would become there, without a GPU for ``"cuda"``.

        Example:
            >>> print(step.prepare(params, x, y).code("cuda"))

        Raises:
            NotImplementedError: the backend has no code to show, or cannot run the step; or the
                step runs a plan that it was given, which is a plan for its own backend.
            BudgetError: on that backend, where products need more room, the budget cannot be met.
        """
        spec = self._compiled
        if backend is None or backend == spec.run.backend:
            return spec.run.text("code")
        if self._options.plan is not None:
            raise NotImplementedError(
                f"code: the given plan= is for {spec.run.backend!r}; compile without it to see "
                f"what {backend!r} would run"
            )
        options = self._options._replace(
            backend=backend,
            keep_gradients=spec.run.keeps_gradients,
            static_bytes=spec.static_bytes,
        )
        return code_text(spec.traced.graph, spec.traced.wrt_positions, options)

    @property
    def updates_inside(self) -> bool:
        """Whether the latest call's program updates parameters inside its backward."""
        return self._compiled.run.updates_inside

    @property
    def updates_reason(self) -> str:
        """Why it does not, although ``updates="inside"`` asked for it; "" otherwise."""
        return self._compiled.run.updates_reason

    @property
    def slices(self) -> tuple[str, ...]:
        """What the latest call's program runs in pieces, and each operation that could not end
        such pieces, with the reason; empty without ``slices=True``.

        Example:
            >>> _ = step(params, x, y)
            >>> step.slices
            ()
        """
        return tuple(self._compiled.run.text("slices").splitlines())

    @property
    def stats(self) -> Stats | None:
        """What the latest run measured; None before it."""
        return self._compiled.run.stats

    @property
    def n_compiled(self) -> int:
        """How often it has compiled: once for each combination of shapes, dtypes and constants,
        and again where a program was dropped from the cache."""
        return self._n_compiled

    @property
    def n_planned(self) -> int:
        """How often it has searched for a plan. Programs for shapes that differ in sizes only
        follow the decisions of one plan (docs/compile.md), so there are fewer plans."""
        return self._n_planned

    @property
    def program_bytes(self) -> int:
        """Bytes that its compiled programs and plans hold, at most ``program_cache`` unless one
        program alone takes more. Arenas, which are memory of runs, are not included."""
        with self._lock:
            return self._known.nbytes + self._plans.nbytes

    def __repr__(self) -> str:
        name = getattr(self.function, "__name__", self.function)
        return f"<cutback.Step of {name}, {self.n_compiled} compiled>"

    def _repr_html_(self) -> str:
        from ..report.page import facts, render_fragment  # imported on demand, as below
        from ..report.svg import human_bytes

        rows = [("compiled", str(self.n_compiled)), ("plans searched", str(self.n_planned))]
        if not self._recent:
            return facts([("step", repr(self)), *rows, ("plan", "none before the first call")])
        rows.append(("programs and plans", human_bytes(self.program_bytes)))
        stats = self.stats
        if stats is not None:
            rows += [
                ("peak of the latest run", human_bytes(stats.peak_bytes)),
                ("time of the latest run", f"{1e3 * stats.seconds:.3f} ms"),
            ]
        return facts([("step", repr(self)), *rows]) + render_fragment(self.plan)
