"""The base class of optimizers: hyper-parameters by group, states by name, and the step."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, fields
from typing import Any, ClassVar, Literal, NamedTuple, TypeVar, dataclass_transform

import numpy as np

from .. import _native, tree
from ..device_arrays import beside, copied
from ..integers import integer
from .extras import Extras, Outcome, check_arrays, outcome
from .groups import Pattern, check_matches, checked_groups, find_group, patterns_of
from .numbers import LastRows, Row, numbers_of
from .state import (
    HALVES,
    Array,
    Kind,
    State,
    bytes_of,
    count,
    fitting,
    has_form,
    kind_of,
    loaded,
    zeros,
)

_STATES = {name: states for name, states, _, _, _ in _native.optimizer_table()}
_NUMBERS = {name: numbers for name, _, _, numbers, _ in _native.optimizer_table()}
_FORMS = {name: dict(zip(row[0], row[3], strict=True)) for name, *row in _native.optimizer_table()}
MISSED = "missed"  # key in a state_dict for the number of steps without a gradient
Half = Literal["master", "remainder", "stochastic"]
_RESTS = {"master": "master", "remainder": "remainder", "stochastic": None, None: None}
Kept = TypeVar("Kept", bound="Optimizer")


class _Table(NamedTuple):
    """The structure of the parameters at the last step, with its native table."""

    structure: tree.Tree
    names: list[str]
    native: _native.OptimizerTable


def _nothing(counter: Array, held: dict[str, dict[str, Array]] | None = None) -> State:
    """Returns a state without parameters. ``held`` is a loaded state to apply at the first step."""
    return State([], [], [], {}, counter, np.zeros(0, np.int64), np.zeros((0, 0)), held)


class _InTheCore:
    native: str | _native.Expression
    """The optimizer's name in the core, or its recorded formula."""


@dataclass(eq=False, repr=False)
class Optimizer(_InTheCore):
    """Base class of all optimizers in this module.

    From its first step on, an optimizer is bound to one set of parameters. Its hyper-parameters and
    ``groups`` may be changed between steps. A hyper-parameter may be a function of the number of
    steps taken: ``lr=lambda t: 1e-3 / (1 + t)``.

    Args:
        groups: parameter groups, as dicts with ``"names"`` and the options that differ:
            ``{"names": ["*norm*", "*bias*"], "weight_decay": 0.0}``. Names are shell patterns,
            matched against leaf names such as ``params['layers'][0]['bias']``, or functions of
            such a name. A parameter belongs to the first group that matches it.
        half: how to update parameters in half precision, where most updates would be rounded away.
            ``"master"`` updates an f32 copy. ``"remainder"`` (bfloat16 only) stores the low 16
            bits of that copy. ``"stochastic"`` (bfloat16 only) stores nothing and rounds
            stochastically, without bias. The other states are f32.
        seed: seed of the stochastic rounding, in 0 .. 2**64 - 1. The noise depends on the seed, the
            parameter's position, its step and the element.

    >>> cutback.optim.AdamW(lr=1e-3).step(params, grads)
    """

    _options: ClassVar[tuple[str, ...]]  # options that a group may set
    _for_all: ClassVar[tuple[str, ...]] = ()  # fields that are the same for all groups
    _squares: ClassVar[tuple[str, ...]] = ()  # states that are never negative
    _n_betas: ClassVar[int] = 2
    _most_side = 0  # longest matrix side that has a "left" or "right" state

    _: KW_ONLY
    groups: Sequence[dict[str, Any]] = ()
    half: Half | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        self._begin(self.half, self.seed)

    def _begin(self, half: Half | None, seed: int) -> None:
        """Checks the constructor's arguments and makes an empty state."""
        if half is not None and (not isinstance(half, str) or half not in _RESTS):
            raise ValueError(
                f"{type(self).__name__}: half={half!r} is not one of 'master', 'remainder' and "
                "'stochastic' (or None)"
            )
        self._halves = half, integer("seed", seed, 0, 2**64 - 1)
        self._rest = _RESTS[half]  # extra state of parameters in half precision
        self.groups = checked_groups(type(self).__name__, self.groups)
        for group in self.groups:
            unknown = set(group) - {"names", *self._options}
            if unknown or "names" not in group:
                raise ValueError(
                    f"a group needs 'names' and may set {', '.join(self._options)}; "
                    f"got {sorted(group)}"
                )
        self._state = _nothing(np.zeros((), np.int64))
        self._table: _Table | None = None
        self._busy = _native.BusyWord()  # shared by shallow copies, which share the state too
        self._asked = False  # whether the native table is set to compute extras
        self._whole: Any = None  # last preparation: state, states in use, patterns, fitting rows
        self._last = LastRows()
        self._current()
        patterns_of(type(self).__name__, self.groups)

    def __getstate__(self) -> dict[str, Any]:
        """Drops everything that a copy can rebuild, such as the native table."""
        kept = {key: x for key, x in self.__dict__.items() if key != "_last"}
        return {**kept, "_table": None, "_asked": False, "_whole": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update({"_busy": _native.BusyWord(), **state, "_last": LastRows()})

    def stepping(self) -> _native.BusyWord:
        """Returns the lock that a step holds while it uses the state."""
        return self._busy

    def _state_names(self) -> tuple[str, ...]:
        assert isinstance(self.native, str)
        return _STATES[self.native]

    def _number_names(self) -> tuple[str, ...]:
        return _NUMBERS[self.native] if isinstance(self.native, str) else ()

    def _form(self, state: str) -> str:
        if state == self._rest:
            return state
        return _FORMS[self.native][state] if isinstance(self.native, str) else "alike"

    def _kept_names(self) -> tuple[str, ...]:
        """Returns the names of the states, with the extra state of half-precision parameters."""
        return (*self._state_names(), *((self._rest,) if self._rest else ()))

    def _wanted(self, kind: Kind, states: Sequence[str]) -> Sequence[str]:
        """Returns the states of a parameter of this kind in a group that uses ``states``."""
        wanted = [state for state in states if has_form(kind, self._form(state), self._most_side)]
        return [*wanted, self._rest] if self._rest and kind[1].name in HALVES else wanted

    def _row(self, options: Mapping[str, Any]) -> Row:
        """Converts the options of a group to a row in the core's order; ``betas`` is expanded.

        Raises:
            TypeError, ValueError: if a value is not a number or is outside its range.
        """
        return self._numbers_of(self._options, options)

    def _numbers_of(self, names: Sequence[str], options: Mapping[str, Any]) -> Row:
        return numbers_of(type(self).__name__, names, options, self._n_betas)

    @property
    def t(self) -> int:
        """Number of steps taken."""
        return int(self._state.counter)

    @property
    def names(self) -> list[str]:
        """Leaf names of the parameters; empty before the first step."""
        return self._state.names if self._state.bound else []

    @property
    def counter(self) -> Array:
        """``t`` as an i64 array of shape (), which each step updates in place."""
        return self._state.counter

    @property
    def states(self) -> dict[str, tuple[Array | None, ...]]:
        """The arrays of each state, in the order of ``names``; None where a parameter does not have
        the state. Write into the arrays to change them, or replace them all with
        :meth:`load_state_dict`."""
        held = self._state.arrays if self._state.bound else {}
        return {state: tuple(held.get(state, ())) for state in self._kept_names()}

    def _given(self) -> dict[str, Any]:
        """Returns the options of the optimizer, without those of its groups."""
        return {name: getattr(self, name) for name in self._options}

    def rows(self) -> list[Row]:
        """Returns the current hyper-parameters: the optimizer's row, then one row per group.

        Raises:
            TypeError, ValueError: if a value is not a number or is outside its range.
        """
        return [*self._current()]

    def _current(self) -> list[Row]:
        """Returns :meth:`rows` without a copy: a cached list, which must not be changed."""
        base = self._given()
        values = list(base.values())
        if not self.groups and (known := self._last.of(values)) is not None:
            return known
        t, rows = self.t, []
        for group in ({}, *self.groups):
            options = {**base, **{name: x for name, x in group.items() if name != "names"}}
            for name, value in options.items():
                if callable(value):
                    options[name] = value(t)
            rows.append(self._row(options))
        return rows if self.groups else self._last.keep(values, rows)

    def state_bytes(self, names: Sequence[str], params: Sequence[Array]) -> int:
        """Returns the total bytes of the states of these parameters, allocated or not."""
        used = [_native.optimizer_states(self.native, row) for row in self._current()]
        patterns = patterns_of(type(self).__name__, self.groups)
        kinds = [(p.shape, p.dtype) for p in params]
        return sum(
            bytes_of(kind_of(kind, self._form(state)))
            for name, kind in zip(names, kinds, strict=True)
            for state in self._wanted(kind, used[find_group(name, patterns)])
        )

    def step(
        self,
        params: Any,
        grads: Any,
        *,
        grad_scale: float | None = None,
        max_norm: float | None = None,
        averages: Any = None,
        average_decay: float = 0.999,
        copies: Any = None,
        zero_grads: bool = False,
    ) -> Outcome:
        """Updates arrays **in place**, in one parallel region, and returns the :class:`Outcome`.

        Nothing is compiled, whatever the sizes and the number of arrays. After an error or Ctrl-C,
        either the whole step was done or none of it.

        Args:
            params: the parameters, nested in any way.
            grads: their gradients, nested like ``params``. A parameter whose gradient is None is
                not updated.
            grad_scale: the factor that the loss was multiplied by. Gradients are divided by it. If
                a gradient is not finite, the step is skipped and not counted. Needs an extra pass
                over the gradients.
            max_norm: clips the gradients to this global norm. If a gradient is not finite, the step
                is skipped and not counted. Needs an extra pass over the gradients.
            averages: moving averages of the parameters, nested like ``params``, with None for
                parameters without one: after the step, ``a <- average_decay * a + (1 -
                average_decay) * p`` where the parameter has a gradient.
            average_decay: decay of the averages, in [0, 1].
            copies: arrays that receive the new parameters, nested like ``params``, rounded to
                float16 or bfloat16 (``ml_dtypes``, or uint16 for its bits).
            zero_grads: set the gradients to zero after the step, even if it was skipped.

        Raises:
            ValueError, TypeError: if the trees differ, an array cannot be updated, two written
                arrays share memory, or the optimizer holds the state of other parameters.
            RuntimeError: if this optimizer, or another one that shares a parameter or state with
                it, is stepping in another thread or further up the stack. Nothing is written.
        """
        extras = Extras.checked(
            type(self).__name__, grad_scale, max_norm, average_decay, zero_grads,
            averages is not None or copies is not None,
        )  # fmt: skip
        return self._busy.hold(self._step, params, grads, extras, averages, copies)

    def _step(
        self,
        params: Any,
        grads: Any,
        extras: Extras,
        averages: Any,
        copies: Any,
    ) -> Outcome:
        """Implements :meth:`step`; the caller holds the lock."""
        leaves, structure = tree.flatten(params)
        given, other = tree.flatten(grads)
        if other != structure:
            given = tree.beside(structure, grads, "grads")
        table = self._table
        if table is None or table.structure != structure:
            names = tree.names(structure, "params")
            native = _native.OptimizerTable(self.native, tuple(names), *self._halves)
            table = _Table(structure, names, native)
        state, rows = self._take_up(table, leaves)
        if extras.any:
            beside = [
                None if x is None else tree.beside(structure, x, name)
                for x, name in ((averages, "averages"), (copies, "copies"))
            ]
            zeroed = given if extras.zero_grads else None
            check_arrays(table.names, leaves, beside[0], beside[1], zeroed)
            table.native.ask(extras.arguments(beside[0], beside[1], len(leaves)))
        elif self._asked:
            table.native.ask(None)
        self._table, self._asked = table, extras.any
        table.native.step(
            params=tuple(leaves),
            grads=tuple(given),
            states=tuple([state.arrays[name] for name in self._state_names()]),
            group_of=state.group_of,
            groups=rows,
            t=state.counter,
            missed=state.missed,
            numbers=state.numbers,
            rest=state.arrays[self._rest] if self._rest else None,
        )
        return outcome(table.native.outcome()) if extras.any else Outcome(None, False)

    def _take_up(self, table: _Table, leaves: Sequence[Any]) -> tuple[State, list[Row]]:
        """Does the same as :meth:`prepare`, but without the checks that the core repeats."""
        again = self._unchanged(table.names)
        if again is not None and self._fits_codes(again[0], leaves):
            return again
        for name, leaf in zip(table.names, leaves, strict=True):
            if not isinstance(leaf, np.ndarray):
                raise TypeError(f"{name} is {type(leaf).__name__}, not a NumPy array")
        return self._prepare(table.names, leaves)

    def _fits_codes(self, state: State, leaves: Sequence[Any]) -> bool:
        """Returns True if the parameters have the shapes and types that the state was made for.
        Only states of codes need this check: the core compares the others with the parameters."""
        if all(self._form(name) != "codes" for name in self._state_names()):
            return True
        return all(
            isinstance(leaf, np.ndarray) and (leaf.shape, leaf.dtype) == kind
            for leaf, kind in zip(leaves, state.kinds, strict=True)
        )

    def _unchanged(self, names: list[str]) -> tuple[State, list[Row]] | None:
        """Returns the state and the hyper-parameters if the last preparation is still valid: with
        the same parameters, state, groups and states in use. Otherwise returns None."""
        known = self._state.names  # comparing an equal list takes longer than finding the same
        if self._whole is None or not self._state.bound or (known is not names and known != names):
            return None
        rows = self._current()
        state, *whole, fitting = self._whole
        if rows is fitting and state is self._state:
            return state, rows
        used = [_native.optimizer_states(self.native, row) for row in rows]
        found = [used, patterns_of(type(self).__name__, self.groups)]
        if state is not self._state or whole != found:
            return None
        self._whole = state, *whole, rows
        return state, rows

    def prepared(self, names: list[str]) -> tuple[State, list[Row]] | None:
        """Returns the result of the last :meth:`prepare`, or None if it has to run again."""
        again = self._unchanged(names)
        if again is None or np.count_nonzero(again[0].missed):
            return None
        self.check_steps()
        return again

    def check_steps(self) -> None:
        """Checks that compiled steps support this optimizer.

        Raises:
            TypeError: if the optimizer has ``half=``, which only steps arrays.
        """
        if self._halves[0] is not None:
            raise TypeError(
                f"{type(self).__name__}: half={self._halves[0]!r} needs arrays, "
                "optimizer.step(params, grads); compiled steps update only f32 and f64"
            )

    def prepare(self, names: list[str], params: Sequence[Array]) -> tuple[State, list[Row]]:
        """Returns the state for these parameters, and the hyper-parameters. A new state is made on
        each call until a step was taken with it.

        Raises:
            TypeError, ValueError: if a hyper-parameter is invalid, the optimizer holds the state of
                other parameters, or a parameter had no gradient in some steps.
            NotImplementedError: if a parameter is in half precision.
        """
        self.check_steps()
        for name, p in zip(names, params, strict=True):
            if p.dtype.name in HALVES:
                raise NotImplementedError(
                    f"{name} is {p.dtype}; a compiled step updates only f32 and f64, so keep it "
                    "in f32 and cast it in the model"
                )
        state, rows = self._prepare(names, params)
        if state.missed.any():
            late = [name for name, n in zip(state.names, state.missed, strict=True) if n]
            raise ValueError(
                f"{late[0]} has taken fewer steps than the optimizer, but a compiled step has one "
                "step count for all parameters; use optimizer.step(params, grads)"
            )
        return state, rows

    def _prepare(self, names: list[str], params: Sequence[Array]) -> tuple[State, list[Row]]:
        rows, patterns = self._current(), patterns_of(type(self).__name__, self.groups)
        used = [_native.optimizer_states(self.native, row) for row in rows]
        if self._state.patterns != patterns or not self._state.bound:
            check_matches(type(self).__name__, self.groups, names, patterns)
        if not self._state.bound:
            self._state = self._first(names, params, patterns, used)
        elif self._state.patterns != patterns or self._state.loaded is not None:
            groups = [find_group(name, patterns) for name in self._state.names]
            self._state = self._state._replace(group_of=groups, patterns=patterns, loaded=None)
        if names != self._state.names:
            raise ValueError(
                "this optimizer holds the state of other parameters; make one optimizer per model"
            )
        for name, p, (shape, dtype) in zip(names, params, self._state.kinds, strict=True):
            if p.shape != shape or p.dtype != dtype:
                raise ValueError(
                    f"{name} is {p.dtype}{list(p.shape)}, but "
                    f"the optimizer's state is for {dtype}{list(shape)}"
                )
        self._make_missing(used)
        self._put_beside(params)
        self._whole = self._state, used, patterns, None
        return self._state, rows

    def _first(
        self,
        names: list[str],
        params: Sequence[Array],
        patterns: tuple[tuple[Pattern, ...], ...],
        used: Sequence[Sequence[str]],
    ) -> State:
        held = self._state
        kinds = [(p.shape, p.dtype) for p in params]
        groups = [find_group(name, patterns) for name in names]
        arrays: dict[str, tuple[Array | None, ...]] = {
            state: (None,) * len(names) for state in self._kept_names()
        }
        missed = np.zeros(len(names), np.int64)
        numbers = np.zeros((len(names), len(self._number_names())))
        if held.loaded is not None:
            wanted = [self._wanted(kind, used[group])
                      for kind, group in zip(kinds, groups, strict=True)]  # fmt: skip
            arrays, missed, numbers = self._fit(held.loaded, names, kinds, wanted)
        return State(
            list(names), kinds, groups, arrays, held.counter, missed, numbers, held.loaded,
            patterns, int(held.counter),
        )  # fmt: skip

    def _put_beside(self, params: Sequence[Array]) -> None:
        """Moves each state to the device of its parameter."""
        held = self._state
        moved = {
            state: tuple(
                None if a is None else beside(a, p) for a, p in zip(row, params, strict=True)
            )
            for state, row in held.arrays.items()
        }
        if any(a is not b for s, row in moved.items() for a, b in zip(row, held.arrays[s])):  # noqa: B905
            self._state = held._replace(arrays=moved)

    def _make_missing(self, used: Sequence[Sequence[str]]) -> None:
        """Allocates (as zeros) states that a group needs now and did not need before."""
        held = self._state
        missing = [
            (state, i)
            for i, group in enumerate(held.group_of)
            for state in self._wanted(held.kinds[i], used[group])
            if held.arrays[state][i] is None
        ]
        if not missing:
            return
        arrays = {state: list(row) for state, row in held.arrays.items()}
        for state, i in missing:
            arrays[state][i] = zeros(kind_of(held.kinds[i], self._form(state)))
        self._state = held._replace(arrays={state: tuple(row) for state, row in arrays.items()})

    def _fit(
        self,
        loaded: Mapping[str, Mapping[str, Array]],
        names: Sequence[str],
        kinds: Sequence[Kind],
        wanted: Iterable[Sequence[str]],
    ) -> tuple[dict[str, tuple[Array | None, ...]], Array, Array]:
        """Returns the loaded arrays in the order of ``names``, the number of steps that each
        parameter missed, and its numbers.

        Raises:
            ValueError: if they belong to other parameters, or some are missing.
        """
        places = {name: i for i, name in enumerate(names)}
        arrays: dict[str, list[Array | None]] = {}
        kinds, kept = [*kinds], self._number_names()
        for state, by_name in loaded.items():
            others = sorted(set(by_name) - set(names))
            if others:
                raise ValueError(f"the state has {state} of unknown parameters: {others}")
            arrays[state] = [None] * len(names)
            for name, array in by_name.items():
                place = places[name]
                if state == MISSED or state in kept:
                    kind: Kind = (), np.dtype(np.int64 if state == MISSED else np.float64)
                    array = array.astype(kind[1])
                else:
                    kind = kind_of(kinds[place], self._form(state))
                arrays[state][place] = fitting(array, f"{state} of {name}", kind)
        for i, (name, states) in enumerate(zip(names, wanted, strict=True)):
            for state in (*states, *kept):
                if arrays[state][i] is None:
                    raise ValueError(
                        f"the state belongs to other parameters: it has no {state} of {name}"
                    )
        missed = [0 if array is None else int(array) for array in arrays.pop(MISSED)]
        numbers = np.zeros((len(names), len(kept)))
        for j, number in enumerate(kept):
            numbers[:, j] = [0 if array is None else float(array) for array in arrays.pop(number)]
        rows = {state: tuple(row) for state, row in arrays.items()}
        return rows, np.array(missed, np.int64), numbers

    def state_dict(self) -> dict[str, Any]:
        """Returns a copy of the state as a flat dict: ``t``, the number of steps, and an array
        ``"<leaf name>.<state>"`` for each parameter and state. ``"<leaf name>.missed"`` counts the
        steps in which a parameter had no gradient, if there were any. Save the dict with
        ``np.savez(file, **state)`` and restore it with ``load_state_dict(np.load(file))``."""
        state = self._state
        if state.bound or state.loaded is None:
            rows = [(name, key, a) for key in self.states for name, a in
                    zip(self.names, self.states[key], strict=True) if a is not None]  # fmt: skip
            rows += [(name, MISSED, n) for name, n in zip(self.names, state.missed, strict=False)
                     if n]  # fmt: skip
            rows += [(name, key, n) for key, numbers in
                     zip(self._number_names(), state.numbers.T, strict=False) for name, n in
                     zip(self.names, numbers, strict=False)]  # fmt: skip
        else:
            rows = [(name, key, a) for key in state.loaded for name, a in state.loaded[key].items()]
        return {"t": int(state.counter), **{f"{n}.{key}": copied(a) for n, key, a in rows}}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Copies a state from :meth:`state_dict`. After an error, nothing has changed.

        Raises:
            TypeError: if ``state`` is not a mapping, ``t`` is not an integer, or an array does not
                hold real numbers.
            ValueError: if an entry is missing, unknown or out of range, or names or shapes belong
                to other parameters.
        """
        owner, known = type(self).__name__, self._entries()
        if not isinstance(state, Mapping):
            raise TypeError(f"the state of {owner} must be a mapping, not {type(state).__name__}")
        if "t" not in state:
            raise ValueError(f"the state of {owner} lacks 't', the number of steps")
        counter = count(state["t"])
        arrays = {key: dict[str, Array]() for key in known}
        for entry in state:
            name, dot, key = str(entry).rpartition(".")
            if entry == "t":
                continue
            if not dot or key not in known:
                raise ValueError(
                    f"the state of {owner} cannot have {entry!r}; besides 't' it has "
                    f"{' and '.join(f'<parameter>.{key}' for key in known[:-1])}"
                )
            arrays[key][name] = loaded(entry, state[entry])
            if key in self._squares and (arrays[key][name] < 0).any():
                least = arrays[key][name].min()
                raise ValueError(
                    f"{key} of {name} must not be negative; its least element is {least}"
                )
            if key == MISSED:
                integer(entry, state[entry], 0, int(counter))
        held = self._state
        if not held.bound:
            is_new = int(counter) == 0 and not any(arrays.values())
            self._state = _nothing(counter, None if is_new else arrays)
            return
        used = [_native.optimizer_states(self.native, row) for row in self._current()]
        wanted = [self._wanted(kind, used[group])
                  for kind, group in zip(held.kinds, held.group_of, strict=True)]  # fmt: skip
        fitting, missed, numbers = self._fit(arrays, held.names, held.kinds, wanted)
        self._state = held._replace(
            arrays=fitting, counter=counter, missed=missed, numbers=numbers, loaded=None, first=-1
        )

    def _entries(self) -> tuple[str, ...]:
        """Returns the names of the entries that a state may have for each parameter."""
        return (*self._kept_names(), *self._number_names(), MISSED)

    def __repr__(self) -> str:
        options = ", ".join(f"{name}={x}" for name, x in self._given().items())
        return f"{type(self).__name__}({options}, t={self.t})"


@dataclass_transform(field_specifiers=())
def optimizer(kind: type[Kept]) -> type[Kept]:
    """Class decorator that turns fields into options, in the core's order. The constructor also
    takes the arguments of :class:`Optimizer`."""
    made = dataclass(eq=False, repr=False)(kind)
    common = {field.name for field in fields(Optimizer)} | set(kind._for_all)
    made._options = tuple(field.name for field in fields(made) if field.name not in common)
    return made
