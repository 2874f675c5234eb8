"""What optimizers have in common: hyper-parameters by group, states by name, and a step."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, fields
from typing import Any, ClassVar, Literal, NamedTuple, TypeVar, dataclass_transform

import numpy as np

from .. import _native, tree
from ..device_arrays import beside, copied
from ..integers import integer
from ..scalars import flag
from .extras import Extras, Outcome, check_arrays, outcome
from .groups import check_matches, checked_groups, find_group, patterns_of
from .numbers import Row, betas, least_zero
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
_FLAGS = {"amsgrad", "clip", "decoupled_weight_decay", "maximize", "nesterov"}
MISSED = "missed"  # stands beside the states in a state_dict
Half = Literal["master", "remainder", "stochastic"]
_RESTS = {"master": "master", "remainder": "remainder", "stochastic": None, None: None}
Kept = TypeVar("Kept", bound="Optimizer")


class _Table(NamedTuple):
    """Parameters as they were nested at the last step."""

    structure: tree.Tree
    names: list[str]
    native: _native.OptimizerTable


def _nothing(counter: Array, held: dict[str, dict[str, Array]] | None = None) -> State:
    """The state of no parameters, or one that was loaded and waits for them."""
    return State([], [], [], {}, counter, np.zeros(0, np.int64), np.zeros((0, 0)), held)


class _InTheCore:
    native: str | _native.Expression
    """What the core calls it, or what it was given."""


@dataclass(eq=False, repr=False)
class Optimizer(_InTheCore):
    """What the optimizers here have in common.

    One optimizer belongs to one set of parameters from its first step on. Its hyper-parameters and
    ``groups`` may be changed between steps. A hyper-parameter may be a function of the number of
    steps taken: ``lr=lambda t: 1e-3 / (1 + t)``.

    Args:
        groups: parameters treated differently, as dicts with ``"names"`` (shell patterns such as
            ``"*bias*"``, matched against leaf names such as ``params['layers'][0]['bias']``) and
            the options that differ: ``{"names": ["*norm*", "*bias*"], "weight_decay": 0.0}``. The
            first match counts.
        half: how parameters in half precision are kept, whose steps would be too small for them.
            ``"master"``: with a copy in f32 beside them, which is stepped. ``"remainder"``, of
            bfloat16: with the 16 bits that this copy has more. ``"stochastic"``, of bfloat16: they
            alone, rounded up or down by noise, right in the mean. Their states are f32.
        seed: of the noise, which is a function of it, the parameter's place, its step and the
            element.
    """

    _options: ClassVar[tuple[str, ...]]  # what a group may have besides names
    _for_all: ClassVar[tuple[str, ...]] = ()  # fields that are the same for all groups
    _squares: ClassVar[tuple[str, ...]] = ()  # states that are never negative
    _n_betas: ClassVar[int] = 2
    _most_side = 0  # of a matrix, which has a state of its own up to this

    _: KW_ONLY
    groups: Sequence[dict[str, Any]] = ()
    half: Half | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        self._begin(self.half, self.seed)

    def _begin(self, half: Half | None, seed: int) -> None:
        """Checks what the constructor was given, and makes an empty state."""
        if half is not None and (not isinstance(half, str) or half not in _RESTS):
            raise ValueError(
                f"{type(self).__name__}: half={half!r} is not one of 'master', 'remainder' and "
                "'stochastic'"
            )
        self._halves = half, integer("seed", seed, 0, 2**64 - 1)
        self._rest = _RESTS[half]  # what parameters in half precision keep
        self.groups = checked_groups(type(self).__name__, self.groups)
        for group in self.groups:
            unknown = set(group) - {"names", *self._options}
            if unknown or "names" not in group:
                raise ValueError(
                    f"a group has 'names' and any of {', '.join(self._options)}; "
                    f"got {sorted(group)}"
                )
        self._state = _nothing(np.zeros((), np.int64))
        self._table: _Table | None = None
        self._busy = _native.BusyWord()  # shallow copies share it, as they do the state
        self._asked = False  # whether the table was asked for extras
        self._whole: Any = None  # state, states in use and patterns that were last brought together
        self.rows()
        patterns_of(type(self).__name__, self.groups)

    def __getstate__(self) -> dict[str, Any]:
        """For copies and pickles, which have other parameters: the table is made again."""
        return {**self.__dict__, "_table": None, "_asked": False, "_whole": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update({"_busy": _native.BusyWord(), **state})

    def stepping(self) -> _native.BusyWord:
        """Held from before the state is looked at until the step is done, so that threads do not
        step it at once."""
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
        """The states, and what parameters in half precision keep."""
        return (*self._state_names(), *((self._rest,) if self._rest else ()))

    def _wanted(self, kind: Kind, states: Sequence[str]) -> Sequence[str]:
        """What a parameter has in a group with these states."""
        wanted = [state for state in states if has_form(kind, self._form(state), self._most_side)]
        return [*wanted, self._rest] if self._rest and kind[1].name in HALVES else wanted

    def _row(self, options: Mapping[str, Any]) -> Row:
        """The options of a group as the core's row: in the same order, ``betas`` as two.

        Raises:
            TypeError, ValueError: a value is not a number or outside its range.
        """
        return self._numbers_of(self._options, options)

    def _numbers_of(self, names: Sequence[str], options: Mapping[str, Any]) -> Row:
        owner, row = type(self).__name__, list[float]()
        for name in names:
            if name == "betas":
                row.extend(betas(owner, options[name], self._n_betas))
            elif name in _FLAGS:
                row.append(float(flag(owner, name, options[name])))
            else:
                row.append(least_zero(owner, name, options[name]))
        return tuple(row)

    @property
    def t(self) -> int:
        """Number of steps taken."""
        return int(self._state.counter)

    @property
    def names(self) -> list[str]:
        """Leaf names of the parameters; none before the first step."""
        return self._state.names if self._state.bound else []

    @property
    def counter(self) -> Array:
        """``t`` as an array of one i64, which a step updates."""
        return self._state.counter

    @property
    def states(self) -> dict[str, tuple[Array | None, ...]]:
        """The arrays of each state, beside ``names``; None where a parameter's group does not have
        it. What is in them may be changed; they are exchanged by :meth:`load_state_dict`."""
        held = self._state.arrays if self._state.bound else {}
        return {state: tuple(held.get(state, ())) for state in self._kept_names()}

    def _given(self) -> dict[str, Any]:
        """The options of the optimizer itself."""
        return {name: getattr(self, name) for name in self._options}

    def rows(self) -> list[Row]:
        """The hyper-parameters now: those of the optimizer, then those of each group.

        Raises:
            TypeError, ValueError: a value is not a number or outside its range.
        """
        base, t, rows = self._given(), self.t, []
        for group in ({}, *self.groups):
            options = {**base, **{name: x for name, x in group.items() if name != "names"}}
            for name, value in options.items():
                if callable(value):
                    options[name] = value(t)
            rows.append(self._row(options))
        return rows

    def state_bytes(self, names: Sequence[str], params: Sequence[Array]) -> int:
        """Bytes of the states that these parameters have or will have."""
        used = [_native.optimizer_states(self.native, row) for row in self.rows()]
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
        """One step on arrays, **in place** and in one parallel region: ``grads`` is nested like
        ``params``, with None where a parameter has no gradient and stays as it is.

        Nothing compiles, whatever the sizes and however many arrays. The step is whole or, after an
        error or Ctrl-C, not begun.

        Args:
            params: parameters.
            grads: their gradients.
            grad_scale: what the loss was multiplied by: gradients are divided by it, and where one
                is not finite nothing is stepped or counted. All gradients are read once before.
            max_norm: gradients are shortened to this norm of all of them together; where one is not
                finite, which has no norm, nothing is stepped or counted. All are read once before.
            averages: nested like ``params``, None for those without: moving averages, ``a <-
                average_decay * a + (1 - average_decay) * p`` after the step, of parameters that
                have a gradient.
            average_decay: in [0, 1].
            copies: nested like ``params``: the new parameters, rounded to float16 or bfloat16
                (``ml_dtypes``, or uint16 for its bits).
            zero_grads: gradients are zeros after the step, also where it was skipped.

        Raises:
            ValueError, TypeError: the trees differ, an array is not one that can be stepped, two
                that are written share memory, or the optimizer holds the state of other parameters.
            RuntimeError: it is stepping already, in another thread or further up the stack, or so
                is another optimizer with a parameter or state of this one. Nothing is written.
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
        """As :meth:`step`, by the one who may."""
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
        """As :meth:`prepare`, without looking at what the core looks at anyway."""
        again = self._unchanged(table.names)
        if again is not None and self._fits_codes(again[0], leaves):
            return again
        for name, leaf in zip(table.names, leaves, strict=True):
            if not isinstance(leaf, np.ndarray):
                raise TypeError(f"{name} is {type(leaf).__name__}, not a NumPy array")
        return self._prepare(table.names, leaves)

    def _fits_codes(self, state: State, leaves: Sequence[Any]) -> bool:
        """Whether the parameters have the shapes and types that the state was made for, where
        codes do not show it. Arrays of the parameter's own type do, and the core compares them."""
        if all(self._form(name) != "codes" for name in self._state_names()):
            return True
        return all(
            isinstance(leaf, np.ndarray) and (leaf.shape, leaf.dtype) == kind
            for leaf, kind in zip(leaves, state.kinds, strict=True)
        )

    def _unchanged(self, names: list[str]) -> tuple[State, list[Row]] | None:
        """The state and the hyper-parameters, if the state is that which was made for these
        parameters last, and groups and states in use are still the same."""
        if self._whole is None or not self._state.bound or self._state.names != names:
            return None
        state, *whole = self._whole
        rows = self.rows()
        used = [_native.optimizer_states(self.native, row) for row in rows]
        same = state is self._state and whole == [
            used,
            patterns_of(type(self).__name__, self.groups),
        ]
        return (self._state, rows) if same else None

    def prepared(self, names: list[str]) -> tuple[State, list[Row]] | None:
        """What :meth:`prepare` would give for parameters of these names that it was called with
        before; None if it has to look at them again."""
        again = self._unchanged(names)
        if again is None or again[0].missed.any():
            return None
        self.check_steps()
        return again

    def check_steps(self) -> None:
        """Whether it is one for compiled steps.

        Raises:
            TypeError: it steps arrays alone.
        """
        if self._halves[0] is not None:
            raise TypeError(
                f"{type(self).__name__}: half={self._halves[0]!r} is for arrays, "
                "optimizer.step(params, grads); compiled steps update f32 and f64 alone"
            )
        if any(self._form(state) != "alike" for state in self._state_names()):
            raise TypeError(
                f"{type(self).__name__} keeps states in a form of its own: it steps arrays, "
                "optimizer.step(params, grads), and no compiled step"
            )

    def prepare(self, names: list[str], params: Sequence[Array]) -> tuple[State, list[Row]]:
        """The state for these parameters, made again until a step was taken with it, and the
        hyper-parameters.

        Raises:
            TypeError, ValueError: a hyper-parameter is wrong, or the optimizer holds the state of
                other parameters, or one that had no gradient in some steps.
            NotImplementedError: a parameter is in half precision.
        """
        self.check_steps()
        for name, p in zip(names, params, strict=True):
            if p.dtype.name in HALVES:
                raise NotImplementedError(
                    f"{name} is {p.dtype}; a compiled step updates f32 and f64 alone, so keep it "
                    "in f32 and cast it in the model"
                )
        state, rows = self._prepare(names, params)
        if state.missed.any():
            late = [name for name, n in zip(state.names, state.missed, strict=True) if n]
            raise ValueError(
                f"{late[0]} has taken fewer steps than the optimizer; a compiled step counts them "
                "for all parameters together"
            )
        return state, rows

    def _prepare(self, names: list[str], params: Sequence[Array]) -> tuple[State, list[Row]]:
        rows, patterns = self.rows(), patterns_of(type(self).__name__, self.groups)
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
                "this optimizer holds the state of other parameters; make one for each model"
            )
        for name, p, (shape, dtype) in zip(names, params, self._state.kinds, strict=True):
            if p.shape != shape or p.dtype != dtype:
                raise ValueError(
                    f"{name} is {p.dtype}{list(p.shape)}, "
                    f"the optimizer's state {dtype}{list(shape)}"
                )
        self._make_missing(used)
        self._put_beside(params)
        self._whole = self._state, used, patterns
        return self._state, rows

    def _first(
        self,
        names: list[str],
        params: Sequence[Array],
        patterns: tuple[tuple[str, ...], ...],
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
        """States lie where their parameters do."""
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
        """Zeros for what the groups have by now and did not have before."""
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
        """Loaded arrays beside the names, how many steps each parameter has missed, and the numbers
        that it keeps.

        Raises:
            ValueError: they are those of other parameters, or some are missing.
        """
        places = {name: i for i, name in enumerate(names)}
        arrays: dict[str, list[Array | None]] = {}
        kinds, kept = [*kinds], self._number_names()
        for state, by_name in loaded.items():
            others = sorted(set(by_name) - set(names))
            if others:
                raise ValueError(f"the state holds {state} of other parameters: {others}")
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
                        f"the state is that of other parameters: it has no {state} of {name}"
                    )
        missed = [0 if array is None else int(array) for array in arrays.pop(MISSED)]
        numbers = np.zeros((len(names), len(kept)))
        for j, number in enumerate(kept):
            numbers[:, j] = [0 if array is None else float(array) for array in arrays.pop(number)]
        rows = {state: tuple(row) for state, row in arrays.items()}
        return rows, np.array(missed, np.int64), numbers

    def state_dict(self) -> dict[str, Any]:
        """Copies of the state: ``t``, the number of steps, and for each parameter and state an
        array under ``"<leaf name>.<state>"``; ``"<leaf name>.missed"`` where one had no gradient in
        some steps. It is flat, so that ``np.savez(file, **state)`` keeps
        it and ``load_state_dict(np.load(file))`` takes it up."""
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
        """Takes over (copies) what :meth:`state_dict` gave. After an error all is as before.

        Raises:
            TypeError: an entry of another type: no integer, no mapping, arrays without numbers.
            ValueError: not such a state, or its names or shapes are those of other parameters.
        """
        owner, known = type(self).__name__, self._entries()
        if not isinstance(state, Mapping):
            raise TypeError(f"the state of {owner} is a mapping, not {type(state).__name__}")
        if "t" not in state:
            raise ValueError(f"the state of {owner} has 't', the number of steps; it is missing")
        counter = count(state["t"])
        arrays = {key: dict[str, Array]() for key in known}
        for entry in state:
            name, dot, key = str(entry).rpartition(".")
            if entry == "t":
                continue
            if not dot or key not in known:
                raise ValueError(
                    f"the state of {owner} has no {entry!r}; besides 't' it has "
                    f"{' and '.join(f'<parameter>.{key}' for key in known[:-1])}"
                )
            arrays[key][name] = loaded(entry, state[entry])
            if key in self._squares and (arrays[key][name] < 0).any():
                least = arrays[key][name].min()
                raise ValueError(f"{key} of {name}, a mean of squares, has an element {least}")
            if key == MISSED:
                integer(entry, state[entry], 0, int(counter))
        held = self._state
        if not held.bound:
            is_new = int(counter) == 0 and not any(arrays.values())
            self._state = _nothing(counter, None if is_new else arrays)
            return
        used = [_native.optimizer_states(self.native, row) for row in self.rows()]
        wanted = [self._wanted(kind, used[group])
                  for kind, group in zip(held.kinds, held.group_of, strict=True)]  # fmt: skip
        fitting, missed, numbers = self._fit(arrays, held.names, held.kinds, wanted)
        self._state = held._replace(
            arrays=fitting, counter=counter, missed=missed, numbers=numbers, loaded=None, first=-1
        )

    def _entries(self) -> tuple[str, ...]:
        """What a state may have for each parameter."""
        return (*self._kept_names(), *self._number_names(), MISSED)

    def __repr__(self) -> str:
        options = ", ".join(f"{name}={x}" for name, x in self._given().items())
        return f"{type(self).__name__}({options}, t={self.t})"


@dataclass_transform(field_specifiers=())
def optimizer(kind: type[Kept]) -> type[Kept]:
    """A class whose fields are its options, in the core's order; what its constructor takes
    besides is said by :class:`Optimizer`."""
    made = dataclass(eq=False, repr=False)(kind)
    common = {field.name for field in fields(Optimizer)} | set(kind._for_all)
    made._options = tuple(field.name for field in fields(made) if field.name not in common)
    return made
