"""Compiled steps and the types of their results.

A :class:`Step` traces its function at the first call, plans and compiles it for the shapes and
dtypes of the arguments, and then runs the compiled program. A call with other shapes, dtypes,
structure or Python constants compiles another program. If programs hold more than
``program_cache`` bytes, the least recently used ones are dropped.
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
"""The type of the loss that a call returns: an array without axes. On a GPU it is a DeviceArray."""

Value = TypeVar("Value")
Result = TypeVar("Result")
Params = TypeVar("Params")


class WithGradients(Generic[Value]):
    """A type for type checkers: calls of ``Step[WithGradients[Value]]`` return (value, gradients),
    and gradients have the type of the first argument."""


class OnlyGradients:
    """A type for type checkers: calls of ``Step[OnlyGradients]`` return gradients, which have the
    type of the first argument."""


class Unknown:
    """A type for type checkers: the results of ``Step[Unknown]`` depend on the function."""


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
    packed: bool


_MANY = 64  # so many compiled specialisations of one step are probably a mistake
_BYTES_OF_TRACE, _BYTES_OF_LEAF = 16384, 1024  # sizes of Python objects, measured by tracemalloc
_PART_OF_PLANS = 8  # plans at canonical sizes get at most 1/8 of the cache


def argnums_of(argnums: ArgNums) -> tuple[int, ...]:
    """Returns ``argnums`` as a tuple of positions; None gives an empty tuple.

    Raises:
        TypeError: if ``argnums`` is neither an integer nor a sequence of integers.
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
    """The options that say what a step computes; see :func:`cutback.compile`."""

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
        # a Python number that the step would have to write
        self.number = min(numbers, default=None)
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
        """Bytes that the program holds: exact for the core, estimated for Python objects. The
        arena is not included."""
        native = self.traced.graph._native.nbytes() + self.run.native.nbytes
        return native + self._python_bytes

    def is_outdated(self) -> bool:
        """Returns True if the plan was made for sizes that are no longer the family's canonical
        ones, because more axes have varied since."""
        if self._planned_at is None or self._n_varying == len(self.family.varying):
            return False
        before, now = self._planned_at, self.family.canonical_ways(self._shapes)
        if before != now and not before[0] == now[0] == self._shapes:
            return True
        self._n_varying = len(self.family.varying)
        return False

    def check_written(self, call: Call) -> None:
        """Checks that the arguments that the step writes are arrays.

        Raises:
            TypeError: if one of them is a number.
        """
        number = next((i for i in call.scalars if i in self.written), self.number)
        if number is not None:
            raise self.traced.not_writable(number, call.leaves[number])

    def explain_tied(self, error: Exception, call: Call) -> None:
        """Rewords an error if one array is passed in two places that the step writes."""
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
        """Returns the bytes of the parameters and of the optimizer's states for them."""
        names = [self.traced.graph.inputs[i][0] for i in self.traced.wrt_positions]
        params = [array for i in self.traced.wrt if (array := call.arrays[i]) is not None]
        size: int = sum(a.nbytes for a in params)
        return size + optimizer.state_bytes(names, params)

    def gradient_tree(self, gradients: list[Any], single: bool) -> Any:
        """Nests gradients like their arguments, with None where an argument holds a Python
        constant."""
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
        """Returns a function that takes a tree nested like the parameters, and returns the entry
        for each parameter, or None."""

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
        """Returns the arrays of ``out``, which is nested like the gradients.

        Raises:
            ValueError: if ``out`` is nested differently, or the gradients stay inside the step for
                an optimizer.
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
    """Replaces the locks of steps in a forked child: a lock that another thread of the parent held
    would never be released here."""
    for step in list(_steps):
        step._lock = threading.RLock()
        step._left = step._running


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)


class Step(Generic[Result]):
    """A compiled function; made by :func:`compile`, :func:`value_and_grad` and :func:`grad`.

    Calling it runs one step. In addition to the arguments of the function, a call accepts

    - ``out=``: arrays for the gradients, nested like them;
    - ``rng_step=``: the step number for random operations, of which the lower 32 bits are used; by
      default calls are counted from 0;
    - ``extras=``: further work for the pass that updates the parameters: a dict of arguments of
      :meth:`cutback.optim.Optimizer.step`: ``grad_scale``, ``max_norm``, ``averages``,
      ``average_decay`` and ``copies``; :attr:`outcome` has the results;
    - ``stream=``: a CUDA stream: its handle, or a stream object of PyTorch or CuPy. The call queues
      its work there and does not wait; :meth:`wait` waits, and raises errors of the run. If
      arguments contain NumPy arrays, these are copied, and the call does wait.

    For type checkers, the value is a NumPy array, and gradients have the type of the first
    argument. If arguments are on a GPU, the results are :class:`cutback.DeviceArray`.

    Raises on a call:
        ValueError, TypeError: if arguments do not fit each other or the function, or an array is
            not contiguous, overlaps an array that is written to, or is read-only although the step
            writes to it.
        BudgetError: if no plan meets the budget.
        MemoryError, KeyboardInterrupt: if memory runs out, or on Ctrl-C. Parameters, optimizer
            states, running statistics and counts are then all as before the step or all as after
            it.
        RuntimeError: if the process was forked while another thread ran the step.

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
        # Check options here, so that errors do not wait for the first call.
        searched = budgets.parse(options.budget, options.measure) is not None
        budgets.parse_preset(options.preset, options.measure if searched else None)
        budgets.choice("on_infeasible", options.on_infeasible, budgets.INFEASIBLE)
        budgets.choice("updates", options.updates, UPDATES)
        budgets.truths(slices=options.slices, packed=options.packed)
        options.search()
        budgets.truth("has_aux", has_aux)
        if argnums is not None and not isinstance(argnums, (tuple, list, range)):
            (argnums,) = argnums_of(argnums)
        argnums_of(argnums)
        if options.updates == "inside" and optimizer is None:
            raise ValueError("updates='inside' needs an optimizer: pass optimizer= as well")
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
        self._draws = np.zeros((), np.int64)  # the next rng_step, which runs increment
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
        self._left: Executable | None = None  # in a forked child: the program that ran at the fork
        _steps.add(self)
        self.__doc__ = function.__doc__
        self.__wrapped__ = function

    @property
    def rng_step(self) -> int:
        """The step number of the next call, for random operations."""
        return int(self._draws)

    @rng_step.setter
    def rng_step(self, number: int) -> None:
        self._draws[...] = check_random_step(number)

    @overload  # this one comes first, because it also matches Step[Any]
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
        """Runs one step and returns its results, as described in :func:`compile`,
        :func:`value_and_grad` and :func:`grad`. The class describes the arguments and errors."""
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
        """Runs a call inside a traced function: the function, or its gradients, become part of that
        function. Returns the results.

        Raises:
            ValueError: if an option only applies to a separate program.
        """
        wanted = given | {k: getattr(self._options, k) for k in ("budget", "plan", "preset")}
        for name, value in wanted.items():
            if value is not None:
                raise ValueError(
                    located(
                        f"{name}= has no effect inside a traced function: this function becomes "
                        "part of the enclosing step, which plans and runs both; pass it there"
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
        """Raises RuntimeError if this process was forked while the step ran an update. All programs
        of the step update the same arrays, which may be incomplete here, so none may run."""
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
        """Nests the results as a call returns them."""
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
                raise ValueError("extras= needs an optimizer: compile the step with one")
            return None
        if extras is None:
            if self._alone is None or self._alone.optimizer is not self.optimizer:
                self._alone = Update(self.optimizer)
            return self._alone
        from ..optim.extras import Beside  # here, because few steps have extras

        beside = Beside.of(type(self.optimizer).__name__, extras, spec.beside(single))
        return Update(self.optimizer, beside)

    @property
    def outcome(self) -> Outcome:
        """The results of the ``extras`` of the latest call, such as the norm of gradients."""
        from ..optim.extras import outcome

        return outcome(self._compiled.run.found)

    def wait(self) -> None:
        """Waits for the latest call with a ``stream``.

        Raises:
            ValueError: if the call failed, for example at an index out of range. It has changed
                nothing but the counts then.
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
            self._known.get(spec.key)  # marks it as used last
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
        """Returns the family of a call, to which the call's shapes are added, and True if it is
        new."""
        fixed = leaves_of(call.positional(), argnums_of(self.argnums))
        key = family_key(call, frozenset(i for leaves in fixed for i in leaves))
        shapes, family = shapes_of(call), self._families.get(key)
        if family is not None:
            family.add(shapes)
            return family, False
        family = self._families[key] = Family(key, shapes)
        return family, True

    def _decisions(self, call: Call, family: Family, options: CompileOptions) -> Any:
        """Returns the decisions made at the canonical sizes of a call, or None."""
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
        except Exception:  # the function may refuse these sizes with any exception
            return Decided(family, False, None)
        self._n_planned += 1
        try:
            return Decided(family, True, decide(traced.graph, traced.wrt_positions, options))
        except (ValueError, NotImplementedError):  # then each shape is planned separately
            return Decided(family, True, None)

    def _warn_of_many(self) -> None:
        import warnings

        text = (
            f"{self!r}: every new dtype, Python constant or shape that cannot share a plan "
            "compiles another program; "
            "pass numbers that change as np.float32(x), and pad arrays to a few shapes"
        )
        warnings.warn(located(text), RuntimeWarning, stacklevel=5)

    def prepare(self, *args: Any, **kwargs: Any) -> Self:
        """Traces, plans and compiles for these arguments without running the step; returns the step
        itself."""
        with self._lock:
            self._specialise(self._read(args, kwargs))
        return self

    def capture(self, *bound: Any) -> CapturedStep:
        """Returns a step that runs forward, backward and update as one CUDA graph.

        Args:
            bound: the first arguments of the function, with arrays on the GPU. The graph uses these
                arrays in place, and updates those that the step updates. Later arguments are passed
                to each call, which copies them to the graph's own arrays.

        Raises:
            ValueError: if the step does not run on a GPU, or an array in ``bound`` is not on it.

        >>> captured = step.capture(params)  # doctest: +SKIP
        >>> for x, y in batches:  # doctest: +SKIP
        ...     value = captured(x, y)
        """
        from .captured import CapturedStep  # here, because few steps are captured

        with self._lock:
            return CapturedStep(self, bound)

    def state_dict(self, params: Any) -> dict[str, Any]:
        """Returns copies of everything that the next call depends on, as a flat dict of arrays: the
        arrays of the tree ``params`` by their names (``"params['w1']"``), the optimizer's states
        (``"optimizer.t"``, ``"optimizer.params['w1'].m"``), ``"rng_step"`` and ``"seed"``. If the
        function has running statistics, include them in ``params``.

        ``np.savez`` and ``safetensors.numpy.save_file`` save the dict. A run that continues from it
        is bitwise equal to an uninterrupted run.

        Example:
            >>> np.savez("run.npz", **step.state_dict(params))
            >>> step.load_state_dict(np.load("run.npz"), params)
        """
        with self._lock:
            return state_of(self, params)

    def load_state_dict(self, state: Mapping[str, Any], params: Any) -> None:
        """Copies a state from :meth:`state_dict` into the arrays of ``params``, the optimizer and
        the counter of random numbers. After an error, nothing has changed.

        Raises:
            TypeError, ValueError: if names, shapes or types differ from those of ``params``, or the
                state was saved with another optimizer.
        """
        with self._lock:
            load(self, params, state)

    def __reduce__(self) -> Any:
        raise TypeError(
            f"{self!r} holds compiled programs and cannot be pickled: save what its state_dict "
            "returns, compile the function again, and call load_state_dict"
        )

    def clear(self) -> None:
        """Drops all compiled programs and frees their memory. Optimizer states and step counts are
        kept."""
        with self._lock:
            self._known.clear()
            self._plans.clear()
            self._known.limit = self._limit
            self._recent = []
        self._place.native.release()

    def profile(self, *args: Any, rng_step: int = 0, **kwargs: Any) -> StepProfile:
        """Runs the step on copies of the arguments and measures each kernel: its seconds, and, with
        each storage allocated separately, the bytes that are allocated while it runs. Nothing is
        updated. ``rng_step`` is the step number for random operations.

        Returns:
            The measurements of each kernel; ``print(step.profile(params, x, y))`` prints totals by
            kind. Afterwards, ``step.plan.report`` also shows the measured bytes.
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
                "the step is not compiled yet: call it, or its prepare(), with arguments"
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
        """The plan of the latest call, which says what is saved, what is recomputed, and why."""
        return self._compiled.run.plan

    @property
    def planned(self) -> Planned:
        """The bytes and times that the plan of the latest call predicts."""
        return self._compiled.run.planned

    def code(self, backend: str | None = None) -> str:
        """Returns the code of each kernel of the latest call: the executor's records on a CPU, CUDA
        C on a GPU. With ``backend``, returns the code for that backend; ``"cuda"`` needs no GPU.

        Example:
            >>> print(step.prepare(params, x, y).code("cuda"))

        Raises:
            NotImplementedError: if the backend has no code to show or cannot run the step, or the
                step was compiled with ``plan=``, which only applies to the step's own backend.
            BudgetError: if the budget cannot be met on that backend, where products may need more
                memory.
        """
        spec = self._compiled
        if backend is None or backend == spec.run.backend:
            return spec.run.text("code")
        if self._options.plan is not None:
            raise NotImplementedError(
                f"code: plan= is for {spec.run.backend!r}; compile without it to see the code for "
                f"{backend!r}"
            )
        options = self._options._replace(
            backend=backend,
            keep_gradients=spec.run.keeps_gradients,
            static_bytes=spec.static_bytes,
        )
        return code_text(spec.traced.graph, spec.traced.wrt_positions, options)

    @property
    def updates_inside(self) -> bool:
        """True if the latest call's program updates parameters inside its backward."""
        return self._compiled.run.updates_inside

    @property
    def updates_reason(self) -> str:
        """The reason that the program does not update inside although ``updates="inside"`` was
        requested; "" otherwise."""
        return self._compiled.run.updates_reason

    @property
    def slices(self) -> tuple[str, ...]:
        """The chains that the latest call's program runs in pieces, and each operation that
        prevented one, with the reason; empty without ``slices=True``.

        Example:
            >>> _ = step(params, x, y)
            >>> step.slices
            ()
        """
        return tuple(self._compiled.run.text("slices").splitlines())

    @property
    def stats(self) -> Stats | None:
        """The measurements of the latest run, or None before the first."""
        return self._compiled.run.stats

    @property
    def n_compiled(self) -> int:
        """Number of compilations: one for each combination of shapes, dtypes and constants, and
        more for programs that were dropped from the cache."""
        return self._n_compiled

    @property
    def n_planned(self) -> int:
        """Number of searches for a plan. It can be smaller than :attr:`n_compiled`, because
        programs for shapes that differ only in sizes share the decisions of one plan
        (docs/compile.md)."""
        return self._n_planned

    @property
    def program_bytes(self) -> int:
        """Bytes that the compiled programs and plans hold: at most ``program_cache``, unless a
        single program takes more. Arenas are not included."""
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
