"""Graphs that are built operation by operation, and the graph of the function that is being
traced."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from .. import _native, dtypes
from ..policies import OPS, CheckpointPolicy, Op, PolicyContext, PolicyFunction, answer_of
from ..run.arrays import as_array
from ..run.executable import Executable
from ..source import located, location, place
from .surroundings import Captured, RandomNumbers
from .tracer import Array

ROLES = ("data", "param", "tangent", "state")
_Call = tuple[str, tuple[Array, ...], dict[str, Any], str | None]
_VIEW = 1 << 3  # flag of an operation whose result shares its input's storage
_KEEPS = (
    CheckpointPolicy.MUST_SAVE,
    CheckpointPolicy.PREFER_SAVE,
    CheckpointPolicy.MUST_OFFLOAD,
    CheckpointPolicy.PREFER_OFFLOAD,
)


class Graph:
    """A forward graph under construction; the interface to the core's graph builder.

    >>> g = Graph()
    >>> x = g.input("x", (8, 4))
    >>> w = g.input("w", (4, 2), role="param")
    >>> y = g.op("matmul", x, w)
    >>> g.output(g.op("sum", y * y))
    >>> run = g.compile(wrt=["w"])

    Values are :class:`cutback.Array`, so operators work on them too. ``cutback ops`` lists the
    operations. Arrays that are not values of the graph become constants: they are copied, and
    passed to each run.
    """

    def __init__(self) -> None:
        self._native = _native.Graph()
        self.inputs: list[tuple[str, np.ndarray[Any, Any] | None]] = []  # name, value of a constant
        self._input_of: dict[int, int] = {}  # value id -> position of the argument
        self._constants: dict[
            int, tuple[Any, bytes, Array]
        ] = {}  # id(object) -> the object, kept, its bits, and its value
        self.captured: list[Captured] = []  # NumPy arrays that became constants
        self.random: RandomNumbers | None = None  # watched while a function is traced
        self._states: dict[int, int] = {}  # position of the argument -> value id
        self._constraints: dict[int, CheckpointPolicy] = {}  # value id -> policy, unless FREE
        self._made: dict[int, _Call] = {}  # value id -> the operation that made it, under a policy
        self._base: dict[int, int] = {}  # value id of a view -> the value it views
        self._regions: list[tuple[int, str]] = []  # id and name, innermost last
        self._policies: list[PolicyFunction] = []
        self._n_streams = 0
        self._n_outputs = 0
        self._n_constants = 0

    # ---- building --------------------------------------------------------------------------------

    def input(
        self, name: str, shape: Sequence[int], dtype: Any = "f32", role: str = "data"
    ) -> Array:
        """Adds an argument. ``role`` is ``"data"``, ``"param"`` or ``"state"``.

        Raises:
            ValueError, TypeError: if the role, dtype or shape is invalid.
        """
        if role not in ROLES:
            raise ValueError(
                located(f"input {name!r}: role={role!r} is not one of {', '.join(ROLES)}")
            )
        return self._add_input(name, tuple(shape), dtypes.parse(dtype), role, None)

    def _add_input(
        self,
        name: str,
        shape: tuple[int, ...],
        dtype: str,
        role: str,
        value: np.ndarray[Any, Any] | None,
    ) -> Array:
        number = self._native.input(name, shape, dtype, ROLES.index(role))
        self._input_of[number] = len(self.inputs)
        self.inputs.append((name, value))
        return Array(self, number, dtype, tuple(int(n) for n in shape))

    def constant(self, value: Any) -> Array:
        """Copies a NumPy array, NumPy scalar or DLPack tensor into this graph, and returns its
        value in the graph.

        Raises:
            TypeError: if its dtype is not supported.
        """
        try:
            array, dtype = as_array(value, "a constant of the traced function")
        except (TypeError, ValueError) as error:
            raise type(error)(located(str(error))) from None
        bits = array.tobytes()  # the function may change the array between two uses
        known = self._constants.get(id(value))
        if known is not None and known[1] == bits:
            return known[2]
        if array.ndim == 0 and dtype != "bf16":
            result = self.full((), array.item(), dtype)
        else:
            self._n_constants += 1
            name = f"constant{self._n_constants - 1}"
            result = self._add_input(name, array.shape, dtype, "data", np.array(array, order="C"))
        self._constants[id(value)] = (value, bits, result)
        if isinstance(value, np.ndarray):
            self.capture(value, bits)
        if self.random is not None:
            self.random.look()
        return result

    def capture(self, array: np.ndarray[Any, Any], bits: bytes | None = None) -> None:
        """Records that the elements of an array have become part of the graph."""
        self.captured.append(Captured(array, array.tobytes() if bits is None else bits, location()))

    def constant_bytes(self) -> int:
        """Returns the bytes of arrays that became constants, and of the copies kept for
        comparison."""
        copies = {id(bits): len(bits) for _, bits, _ in self._constants.values()}
        copies.update((id(one.bits), len(one.bits)) for one in self.captured)
        arrays = sum(value.nbytes for _, value in self.inputs if value is not None)
        return sum(copies.values()) + arrays

    def full(self, shape: tuple[int, ...], value: bool | int | float, dtype: dtypes.Name) -> Array:
        """Returns an array of ``shape`` filled with ``value``.

        Raises:
            OverflowError, ValueError: if ``value`` is an integer that the dtype, or a double, which
                constants are stored in, cannot hold.
        """
        try:
            number = float(value)
        except OverflowError:
            raise OverflowError(
                located(f"an integer of {int(value).bit_length()} bits does not fit into {dtype}")
            ) from None
        if isinstance(value, int) and dtype in dtypes.INTS:
            limits = np.iinfo(dtypes.to_numpy(str(dtype)))
            if not limits.min <= value <= limits.max:
                raise OverflowError(located(f"the integer {value} does not fit into {dtype}"))
            if int(number) != value:
                raise ValueError(
                    located(f"the constant {value} needs more than 53 bits; pass it as an argument")
                )
        (result,) = self.apply("full", (), {"value": number, "shape": shape, "dtype": dtype})
        return result

    def op(self, name: str, *ins: Any, **attrs: Any) -> Any:
        """Adds one operation, with NumPy broadcasting. Inputs must have the same dtype.

        Returns:
            An :class:`Array`, or a tuple of arrays for an operation with several outputs.

        Raises:
            ValueError, TypeError: if the operation or an attribute does not exist, or the inputs do
                not fit.
        """
        results = self.apply(name, tuple(self.lift(x) for x in ins), attrs)
        return results[0] if len(results) == 1 else results

    def apply(self, name: str, ins: tuple[Array, ...], attrs: dict[str, Any]) -> tuple[Array, ...]:
        """Adds one operation on values of this graph, and asks the current policies about it.
        Returns all of its outputs.

        Raises:
            ValueError: if an input belongs to another graph.
        """
        for x in ins:
            if x.graph is not self:
                if (inner := innermost(ins)) is not self:
                    found: tuple[Array, ...] = inner.apply(name, ins, attrs)
                    return found
                raise ValueError(
                    located(
                        f"{name}: an input belongs to another trace; a traced array cannot be used "
                        "in a later call: return it from the function"
                    )
                )
        if isinstance(attrs.get("dtype"), dtypes.DType):
            attrs = {**attrs, "dtype": str(attrs["dtype"])}
        where = location()
        decision = self._decide(name, ins, attrs, where) if self._policies else None
        region = self._regions[-1][0] if self._regions else None
        try:
            rows = self._native.op(name, [x.id for x in ins], attrs, where, decision or 0, region)
        except (ValueError, TypeError, OverflowError) as error:
            place(error)
            raise
        if decision:
            for row in rows:
                self._constraints[row[0]] = decision
                self._made[row[0]] = (name, ins, attrs, where)
        if OPS[name][4] & _VIEW:
            self._base[rows[0][0]] = ins[0].id
        return tuple(Array(self, *row) for row in rows)

    def alias(self, x: Array) -> Array:
        """Returns a copy of ``x`` by which results can be differentiated. Results computed from
        ``x`` itself do not depend on the copy."""
        return self.apply("expand", (x,), {"shape": x.shape})[0]

    def gradients(
        self, of: Sequence[Array], given: Sequence[Array], wrt: Sequence[Array]
    ) -> list[Array | None]:
        """Adds gradient operations. Given the gradients ``given`` of the values ``of``, returns the
        gradients of ``wrt``, with None for values that no value of ``of`` depends on."""
        results, before, values = ([self._own(x).id for x in row] for row in (of, given, wrt))
        region = self._regions[-1][0] if self._regions else None
        try:
            rows = self._native.gradients(results, before, values, region)
        except (ValueError, TypeError) as error:
            place(error)
            raise
        return [None if row is None else Array(self, *row) for row in rows]

    def lift(self, x: Any) -> Array:
        """Returns ``x`` as a value of this graph. A traced array is returned unchanged; a Python
        scalar becomes a bool, i64 or f64; other arrays become constants."""
        if isinstance(x, Array):
            return x
        if isinstance(x, bool):
            return self.full((), x, "bool")
        if isinstance(x, int):
            return self.full((), x, "i64")
        if isinstance(x, float):
            return self.full((), x, "f64")
        return self.constant(x)

    def output(self, value: Array, name: str | None = None) -> None:
        """Makes ``value`` a result. If gradients are requested, the first result must be the loss,
        a scalar."""
        self._native.output(name or f"output{self._n_outputs}", self._own(value).id)
        self._n_outputs += 1

    def state(self, argument: Array, value: Array) -> None:
        """Makes a step write ``value`` into the array that is passed for ``argument``.

        Raises:
            ValueError: if ``argument`` is not an argument of the graph, or is updated already.
        """
        position = self._input_of.get(self._own(argument).id)
        if position is None or self.inputs[position][1] is not None:
            raise ValueError(
                located("only an argument of the traced function can be updated as a state")
            )
        if position in self._states:
            raise ValueError(located(f"{self.inputs[position][0]} is updated twice in one step"))
        self._native.state(position, self._own(value).id)
        self._states[position] = value.id

    def next_stream(self) -> int:
        """Returns the number of the next random operation, in program order. It is part of the
        random generator's counter."""
        self._n_streams += 1
        return self._n_streams - 1

    def _own(self, value: Array) -> Array:
        if not isinstance(value, Array) or value.graph is not self:
            raise ValueError(located(f"{value!r} is not a value of this graph"))
        return value

    # ---- policies --------------------------------------------------------------------------------

    def _decide(
        self, name: str, ins: tuple[Array, ...], attrs: dict[str, Any], where: str | None
    ) -> CheckpointPolicy | None:
        return self._ask(name, ins, attrs, where)[0]

    def _ask(
        self, name: str, ins: tuple[Array, ...], attrs: dict[str, Any], where: str | None
    ) -> tuple[CheckpointPolicy | None, PolicyFunction | None]:
        """Asks the policies about an operation. Returns the decision and the policy that made
        it."""
        context = PolicyContext(self._regions[-1][1] if self._regions else None, where)
        for policy in reversed(self._policies):
            answer = policy(context, Op(name), *ins, **attrs)
            try:
                decision = answer_of(answer, name)
            except TypeError as error:
                raise TypeError(located(str(error))) from None
            if decision is not None:
                return decision, policy
        return None, None

    @contextmanager
    def policy(self, policy: PolicyFunction | None) -> Iterator[None]:
        """Applies ``policy`` to operations that are added inside the ``with`` block. If it returns
        None, the enclosing policies are asked."""
        if policy is None:
            yield
            return
        self._policies.append(policy)
        try:
            yield
        finally:
            self._policies.pop()

    @contextmanager
    def region(self, name: str, saved_limit: int | None = None) -> Iterator[None]:
        """Adds operations inside the ``with`` block to a checkpoint region, of whose values at most
        ``saved_limit`` bytes are saved."""
        parent = self._regions[-1][0] if self._regions else None
        self._regions.append((self._native.region(name, parent, saved_limit), name))
        try:
            yield
        finally:
            self._regions.pop()

    def constrain(self, value: Array, decision: CheckpointPolicy) -> None:
        """Sets the policy of a value that already exists."""
        self._native.constrain(self._own(value).id, decision)
        self._constraints[value.id] = decision

    def release(self, value: Array) -> None:
        """Removes a value, and the value that it is a view of, from the region that would recompute
        it. The policies around that region decide about it instead."""
        number: int | None = self._own(value).id
        recompute = (CheckpointPolicy.MUST_RECOMPUTE, CheckpointPolicy.PREFER_RECOMPUTE)
        while number is not None:
            if self._constraints.get(number) in recompute and number in self._made:
                decision = self._decide(*self._made[number]) or CheckpointPolicy.FREE
                self._native.constrain(number, decision)
                self._constraints[number] = decision
            number = self._base.get(number)

    def mark(self, value: Array, name: str) -> None:
        """Asks the policies about a named value. If one of them says save or offload, this
        overrides the decision for the operation that made the value. "Recompute" only counts from
        policies that are made for names, because other policies return it for every operation that
        they do not know."""
        decision, policy = self._ask(
            "checkpoint_name", (self._own(value),), {"name": name}, location()
        )
        if decision in _KEEPS or (decision and getattr(policy, "drops_names", False)):
            self.constrain(value, decision)

    # ---- printing and running --------------------------------------------------------------------

    def text(self) -> str:
        """Returns the graph as text, one line per operation; :meth:`from_text` reads it."""
        return self._native.text()

    def to_json(self) -> str:
        """Returns the graph as JSON; :meth:`from_json` reads it."""
        return self._native.json()

    def arguments(self) -> list[tuple[str, tuple[int, ...]]]:
        """Returns the name and shape of each input that is not a constant."""
        rows = zip(self.inputs, self._native.inputs(), strict=True)
        return [
            (name, self._native.info(number)[2])
            for (name, constant), (_, number) in rows
            if constant is None
        ]

    def input_types(self) -> list[tuple[str, str]]:
        """Returns the name and type of each input, such as ``("x", "f32[8,16]")``."""
        rows = [(name, self._native.info(number)) for name, number in self._native.inputs()]
        return [(name, f"{dtype}[{','.join(map(str, shape))}]") for name, (_, dtype, shape) in rows]

    @classmethod
    def from_text(cls, text: str) -> Graph:
        """Reads a graph from the text that :meth:`text` returns.

        Raises:
            ValueError, TypeError: if the text has a mistake; the message gives its line.
        """
        return cls._adopt(_native.Graph.from_text(text))

    @classmethod
    def from_json(cls, text: str) -> Graph:
        """Reads a graph from the JSON that :meth:`to_json` returns.

        Raises:
            ValueError, TypeError: if the text has a mistake.
        """
        return cls._adopt(_native.Graph.from_json(text))

    @classmethod
    def _adopt(cls, native: _native.Graph) -> Graph:
        graph = cls()
        graph._native = native
        for position, (name, number) in enumerate(native.inputs()):
            graph.inputs.append((name, None))
            graph._input_of[number] = position
        return graph

    def compile(self, wrt: Iterable[str] = (), **options: Any) -> Executable:
        """Compiles the graph; ``wrt`` names the arguments to differentiate by.

        The ``options`` are those of :class:`cutback.run.executable.Executable`: ``budget``,
        ``measure``, ``preset``, ``backend``, ...

        Returns:
            A function of the arguments, as arrays in the order of :meth:`arguments`. It returns
            the lists (results, gradients).

        Raises:
            ValueError: if a name in ``wrt`` belongs to no argument or to several. Other errors are
                those of :class:`cutback.run.executable.Executable`.
        """
        names = [name for name, _ in self.inputs]
        positions = {name: i for i, name in enumerate(names)}
        wrt = (wrt,) if isinstance(wrt, str) else tuple(wrt)
        for name in wrt:
            if names.count(name) > 1:
                raise ValueError(
                    f"wrt names {name!r}, but {names.count(name)} inputs have that name"
                )
        missing = [name for name in wrt if name not in positions]
        if missing:
            raise ValueError(
                f"wrt names {missing[0]!r}, but the arguments are {', '.join(positions)}"
            )
        return Executable(self, [positions[name] for name in wrt], **options)

    def __repr__(self) -> str:
        return f"<cutback.Graph with {len(self.inputs)} inputs>"


def innermost(values: Sequence[Array]) -> Any:
    """Returns the graph that operations on these values belong to. Each call of
    :func:`cutback.vmap` has a graph; operations belong to that of the innermost call."""
    return max((x.graph for x in values), key=lambda graph: getattr(graph, "depth", 0))


_active = threading.local()


def random_graph(x: Array) -> Any:
    """Returns the graph for random operations on ``x``. Inside :func:`cutback.vmap` this is the
    graph of examples, because examples draw different numbers even if they share ``x``."""
    around = current() if is_tracing() else x.graph
    return around if getattr(around, "depth", 0) > getattr(x.graph, "depth", 0) else x.graph


@contextmanager
def composing() -> Iterator[None]:
    """Makes operations that have forward-mode derivatives only for their parts be composed of these
    parts inside the ``with`` block."""
    before = composes()
    _active.composes = True
    try:
        yield
    finally:
        _active.composes = before


def composes() -> bool:
    """Returns True inside a :func:`composing` block."""
    return bool(getattr(_active, "composes", False))


def is_tracing() -> bool:
    """Returns True if a function is being traced on this thread."""
    return bool(getattr(_active, "stack", None))


def current() -> Graph:
    """Returns the graph being traced on this thread.

    Raises:
        TypeError: if no graph is being traced: an operation was called outside a traced function.
    """
    stack = getattr(_active, "stack", None)
    if not stack:
        raise TypeError(
            located(
                "no function is being traced: cutback's operations work on traced arrays; "
                "outside, use NumPy"
            )
        )
    return stack[-1]  # type: ignore[no-any-return]


@contextmanager
def tracing(graph: Graph) -> Iterator[Graph]:
    """Makes ``graph`` the current graph inside the ``with`` block."""
    stack = _active.__dict__.setdefault("stack", [])
    stack.append(graph)
    try:
        yield graph
    finally:
        stack.pop()
