"""Traces a Python function called with example arguments to a graph."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Sequence
from enum import Enum
from typing import Any, TypeVar

import numpy as np

from .. import _native, dtypes, tree
from ..device_arrays import DeviceArray
from ..policies import PolicyFunction
from ..run.arrays import as_array, of_traced
from ..run.executable import Executable
from ..source import located
from .gradients import check_argnums, check_loss
from .graph import Graph, tracing
from .surroundings import Surroundings
from .tracer import Array

Spec = tuple[Any, ...]
"""The properties of a leaf that a trace depends on: (dtype, shape) of an array, (type, value) of a
constant."""

_VALUE: dict[type, Callable[[Any], Any]] = {
    # Compare bits instead of using ==, for which -0.0 equals 0.0 and NaN does not equal itself. Use
    # the methods of the type itself, because those of a subclass may do anything.
    int: int.__pos__,
    float: lambda x: struct.pack("=d", x),
    complex: lambda x: struct.pack("=dd", complex.real.__get__(x), complex.imag.__get__(x)),
    str: str.__str__,
    bytes: lambda x: bytes(memoryview(x)),
}
_CONSTANT = (*_VALUE, Enum)


class _Itself:
    """A key for an object: it equals only keys of the same object, and keeps the object alive."""

    __slots__ = ("thing",)

    def __init__(self, thing: object) -> None:
        self.thing = thing

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Itself) and self.thing is other.thing

    def __hash__(self) -> int:
        return id(self.thing)


def _has_state(x: object) -> bool:
    """Returns True if an instance of a subclass has attributes besides the value of its base."""
    return bool(getattr(x, "__dict__", None)) or any(
        cls.__dict__.get("__slots__") for cls in type(x).__mro__
    )


def constant_key(x: Any) -> Any:
    """Returns a key that is equal for constants that give the same trace. They must have the same
    type and bits; functions, and values with attributes, must be the same object."""
    if callable(x):
        try:
            hash(x)
        except TypeError:
            return _Itself(x)
        return x
    if isinstance(x, Enum) or (type(x) not in _VALUE and _has_state(x)):
        return _Itself(x)
    if isinstance(x, bool):
        return x
    return next(value(x) for base, value in _VALUE.items() if isinstance(x, base))


class Call:
    """The arguments of one call, and the key of the trace that they need.

    Leaves that are arrays become arguments of the graph. Python numbers, strings and functions are
    constants of the trace: another value needs another trace. ``np.float32(x)`` is an array.

    Args:
        function: the function that is called.
        args, kwargs: its arguments.
        stream: the CUDA stream that arrays are used on, or None.
        known: signatures of earlier calls. If the call fits one of them, ``fitting`` is that
            signature, and ``key`` and ``arrays``, which take longer, are not computed.
    """

    __slots__ = (
        "_names", "arrays", "fitting", "function", "given", "key", "leaves", "scalars", "stream",
        "tree",
    )  # fmt: skip

    def __init__(
        self,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        stream: int | None = None,
        known: Iterable[Signature] = (),
    ) -> None:
        self.function = function
        self.stream = stream
        self.leaves, self.tree = tree.flatten((args, kwargs))
        self.given: list[Any] = []  # ndarrays and DeviceArrays, in the order of their leaves
        self.scalars: list[int] = []  # leaves that are NumPy scalars, which cannot be written to
        self._names: list[str] | None = None
        self.fitting: Signature | None = None
        for signature in known:
            if self._fits(signature):
                self.fitting = signature
                return
        self._read()

    def _fits(self, signature: Signature) -> bool:
        """Returns True if the leaves fit the signature; then ``key`` would be equal. False may also
        mean that a constant is equal but a different object."""
        if self.tree != signature.tree:
            return False
        found = signature.native.match(self.leaves)
        if found is None:
            return False
        self.given, unread = found
        self.scalars = []
        for i, place in unread:
            array, spec = self._leaf(i, self.leaves[i], signature.names)
            if spec != signature.specs[i]:
                return False
            self.given[place] = array
        return True

    def read(self) -> None:
        """Computes ``key`` and ``arrays`` if this was skipped because the call fits an earlier
        one."""
        if self.fitting is not None:
            self._read()

    def _read(self) -> None:
        # an ndarray or DeviceArray for each leaf, or None for a constant
        self.arrays: list[Any] = []
        self.scalars = []
        specs: list[Spec] = []
        for i, leaf in enumerate(self.leaves):
            if type(leaf) is np.ndarray and (known := dtypes.from_numpy(leaf.dtype)) is not None:
                self.arrays.append(leaf)
                specs.append((known, leaf.shape))
            else:
                array, spec = self._leaf(i, leaf, None)
                self.arrays.append(array)
                specs.append(spec)
        self.given = [array for array in self.arrays if array is not None]
        self.key = (self.tree, tuple(specs))

    def _leaf(self, i: int, leaf: Any, names: list[str] | None) -> tuple[Any, Spec]:
        """Returns the array of a leaf (None for a constant), and its spec."""
        constant = isinstance(leaf, _CONSTANT) or callable(leaf)
        if constant and not isinstance(leaf, np.generic):
            return None, (type(leaf), constant_key(leaf))
        if type(leaf) is DeviceArray:
            return leaf, (leaf.core_dtype, leaf.shape)
        name = (names or self.names())[i]
        if isinstance(leaf, Array):
            raise of_traced(name)
        array, dtype = as_array(leaf, name, self.stream)
        if isinstance(leaf, np.generic):
            self.scalars.append(i)
        return array, (dtype, array.shape)

    def names(self) -> list[str]:
        """Returns a readable name for each leaf, made from the function's parameters, such as
        ``"params['w']"``."""
        if self._names is None:
            self._names = self._make_names()
        return self._names

    def _make_names(self) -> list[str]:
        args_tree, kwargs_tree = self.tree[3]
        function: Any = self.function
        for _ in range(20):  # unwrap transformations, such as grad(grad(f))
            function = getattr(function, "__wrapped__", function)
        code = getattr(function, "__code__", None)
        parameters = code.co_varnames[: code.co_argcount] if code is not None else ()
        if getattr(function, "__self__", None) is not None:
            parameters = parameters[1:]
        result = []
        for i, child in enumerate(args_tree[3]):
            result += tree.names(child, parameters[i] if i < len(parameters) else f"arg{i}")
        for key, child in zip(kwargs_tree[2], kwargs_tree[3], strict=True):
            result += tree.names(child, str(key))
        return result

    def positional(self) -> list[range]:
        """Returns the leaves that belong to each positional argument."""
        ranges, end = [], 0
        for child in self.tree[3][0][3]:
            begin, end = end, end + tree.count(child)
            ranges.append(range(begin, end))
        return ranges


class Signature:
    """The properties that the leaves of a call must have to run an already compiled program."""

    def __init__(self, call: Call, names: list[str]) -> None:
        self.tree = call.tree
        self.specs: tuple[Spec, ...] = call.key[1]
        self.names = names
        rows = zip(call.leaves, call.arrays, self.specs, strict=True)
        self.native = _native.Signature(
            tuple([(leaf,) if array is None else spec for leaf, array, spec in rows])
        )


_RECENT = 4  # number of signatures that a call is compared with before its key is computed
Known = TypeVar("Known", bound=Signature)


def with_first(recent: Sequence[Known], used: Known) -> list[Known]:
    """Returns the recent signatures with ``used`` moved or added to the front."""
    others = [other for other in recent if other is not used]
    return [used, *others[: _RECENT - 1]]


def leaves_of(positional: Sequence[range], argnums: Sequence[int]) -> list[range]:
    """Returns the leaves of the positional arguments ``argnums``.

    Raises:
        ValueError: if there is no such argument.
    """
    check_argnums(argnums, len(positional))
    return [positional[argnum] for argnum in argnums]


MOST_LINES = 400  # limit on the lines of a graph shown in a notebook


class Traced:
    """A traced function: its graph, and the nesting of its arguments and results.

    ``print(traced)`` shows the forward graph; ``print(traced.joint())`` shows forward and backward.

    >>> traced = cutback.trace(loss, params, x, y)
    >>> print(traced.joint())
    """

    def __init__(
        self,
        call: Call,
        argnums: Sequence[int],
        policy: PolicyFunction | None,
        watches: bool = True,
    ) -> None:
        self.graph = Graph()
        self._watches = watches  # warn if values besides the arguments change later
        self.names = call.names()
        self._leaves_of = call.positional()
        ranges = leaves_of(self._leaves_of, argnums)
        self._among = [i for leaves in ranges for i in leaves]
        self.wrt = [i for i in self._among if call.arrays[i] is not None]
        _check_wrt(call, argnums, ranges, self.names)
        arrays = [i for i, array in enumerate(call.arrays) if array is not None]
        self._position = {leaf: n for n, leaf in enumerate(arrays)}  # leaf -> argument of the graph
        self.wrt_positions = [self._position[i] for i in self.wrt]
        traced = self._inputs(call)
        args, kwargs = tree.unflatten(call.tree, traced)
        self.surroundings = Surroundings(call.function)
        self.graph.random = self.surroundings.random if watches else None
        with tracing(self.graph), self.graph.policy(policy):
            try:
                self.result = call.function(*args, **kwargs)
            except TypeError as error:
                from .words import explain  # here, because only errors need it

                explain(error)
                raise
            except ValueError as error:
                from .words import name_arguments

                name_arguments(error, self.graph.arguments())
                raise
        self.graph.random = None

    def _inputs(self, call: Call) -> list[Any]:
        """Returns a traced value for each array, and the leaf itself for each constant."""
        wrt = set(self.wrt)
        values: list[Any] = []
        for i, (leaf, array, spec) in enumerate(
            zip(call.leaves, call.arrays, call.key[1], strict=True)
        ):
            if array is None:
                values.append(leaf)
            else:
                role = "param" if i in wrt else "data"
                values.append(self.graph.input(self.names[i], array.shape, spec[0], role))
        return values

    def finish(self, with_loss: bool, has_aux: bool = False) -> None:
        """Makes the results outputs of the graph; the loss, if any, comes first.

        Raises:
            ValueError, TypeError: if the function did not return a scalar loss, or returned
                something that is not an array.
        """
        if with_loss:
            check_loss(self.result, has_aux)
        leaves, self.out_tree = tree.flatten(self.result)
        with tracing(self.graph):
            for i, leaf in enumerate(leaves):
                if isinstance(leaf, (str, bytes)) or callable(leaf):
                    raise TypeError(
                        located(
                            f"the traced function returned {leaf!r}; results must be arrays or "
                            "numbers"
                        )
                    )
                name = "loss" if with_loss and i == 0 else f"output{i}"
                self.graph.output(self.graph.lift(leaf), name)
        if self._watches:
            self.surroundings.end_of_trace(self.graph.captured)
        for i, position in zip(self.wrt, self.wrt_positions, strict=True):
            if position in self.graph._states:
                raise ValueError(
                    f"{self.names[i]} is both a parameter and a running statistic that the step "
                    "updates; pass the statistics as another argument, which is not in argnums"
                )

    def written(self, updates: bool) -> frozenset[int]:
        """Returns the leaves that a step writes to. If ``updates``, these include the arguments to
        differentiate by."""
        states = [i for i, n in self._position.items() if n in self.graph._states]
        return frozenset([*states, *(self._among if updates else ())])

    def not_writable(self, i: int, leaf: Any) -> TypeError:
        """Returns the error for a number in the place of an array that the step writes to. The
        update of a number would be lost."""
        return TypeError(
            located(
                f"{self.names[i]} is {leaf!r}, a {type(leaf).__name__}, which a step cannot "
                "update in place; convert it with np.asarray(...) and keep that array, or, if it "
                "should not be updated, pass it in an argument outside argnums"
            )
        )

    def text(self) -> str:
        """Returns the forward graph as text."""
        return self.graph.text()

    def joint(self, argnums: int | Sequence[int] = 0) -> str:
        """Returns the joint graph as text: the forward, and the backward of the first result with
        respect to the arguments ``argnums``.

        Raises:
            ValueError, TypeError: if the first result is not a scalar, or an argument has no
                gradient.
        """
        numbers = (argnums,) if isinstance(argnums, int) else argnums
        wrt = [
            self._position[i] for n in numbers for i in self._leaves_of[n] if i in self._position
        ]
        return Executable(self.graph, wrt, backend="null").text("joint")

    def __str__(self) -> str:
        return self.text()

    def __repr__(self) -> str:
        return f"<cutback.Traced with {len(self.names)} arguments>"

    def _repr_html_(self) -> str:
        from ..report.page import code, facts  # here, so that importing the package is fast
        from ..report.table import table

        lines = [line for line in self.text().splitlines() if line.startswith("%")]
        types = self.graph.input_types()
        rows = [("arguments", str(len(types))), ("operations", str(len(lines) - len(types)))]
        more = len(lines) - MOST_LINES
        shown = [*lines[:MOST_LINES], *([f"and {more} more"] if more > 0 else [])]
        arguments = table(("argument", "type"), types)
        return facts(rows, ("arguments", arguments), ("forward graph", code("\n".join(shown))))


def _check_wrt(
    call: Call, argnums: Sequence[int], ranges: Sequence[range], names: list[str]
) -> None:
    for argnum, leaves in zip(argnums, ranges, strict=True):
        arrays = [i for i in leaves if call.arrays[i] is not None]
        if not arrays:
            raise TypeError(
                located(
                    f"argnums={argnum}: that argument holds no arrays; pass np.asarray(x) for a "
                    "number"
                )
            )
        for i in arrays:
            dtype = call.key[1][i][0]
            if dtype not in dtypes.FLOATS:
                raise TypeError(
                    located(
                        f"argnums={argnum}: {names[i]} is {dtype}; gradients need floating-point "
                        "arrays"
                    )
                )
