"""From a Python function and example arguments to a graph."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from enum import Enum
from typing import Any

import numpy as np

from .. import dtypes, tree
from ..policies import PolicyFunction
from ..run.arrays import as_array, of_traced
from ..run.executable import Executable
from ..source import located
from .graph import Graph, tracing
from .surroundings import Surroundings
from .tracer import Array

Spec = tuple[Any, ...]
"""What a leaf means to a trace: (dtype, shape) of an array, (type, value) of a constant."""

_VALUE: dict[type, Callable[[Any], Any]] = {
    # Bits, not ==, which takes -0.0 for 0.0 and no NaN for itself; and by the type's own methods,
    # not those of a subclass, which may answer as they like.
    int: int.__pos__,
    float: lambda x: struct.pack("=d", x),
    complex: lambda x: struct.pack("=dd", complex.real.__get__(x), complex.imag.__get__(x)),
    str: str.__str__,
    bytes: lambda x: bytes(memoryview(x)),
}
_CONSTANT = tuple(_VALUE)


class _Itself:
    """An object as a key that is equal to itself alone, and keeps it alive."""

    __slots__ = ("thing",)

    def __init__(self, thing: object) -> None:
        self.thing = thing

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Itself) and self.thing is other.thing

    def __hash__(self) -> int:
        return id(self.thing)


def _has_state(x: object) -> bool:
    """Has an instance of a subclass more to it than the value of its base?"""
    return bool(getattr(x, "__dict__", None)) or any(
        cls.__dict__.get("__slots__") for cls in type(x).__mro__
    )


def constant_key(x: Any) -> Any:
    """What another call must have in place of the constant ``x`` to be the same call: exactly the
    same type and bits; of functions and what carries attributes of its own, the same object."""
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
    """The arguments of one call: arrays, and what the trace depends on.

    Leaves that are arrays become arguments of the graph. Python numbers, strings and functions are
    constants of the trace: another value traces again. ``np.float32(x)`` is an array.
    """

    __slots__ = ("arrays", "function", "key", "leaves", "scalars", "stream", "tree")

    def __init__(
        self,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        stream: int | None = None,
    ) -> None:
        self.function = function
        self.stream = stream
        self.leaves, self.tree = tree.flatten((args, kwargs))
        # for each leaf an ndarray or a DeviceArray; None: a constant
        self.arrays: list[Any] = []
        self.scalars: list[int] = []  # leaves that are NumPy scalars: nothing can be written there
        specs: list[Spec] = []
        for i, leaf in enumerate(self.leaves):
            if type(leaf) is np.ndarray and (known := dtypes.from_numpy(leaf.dtype)) is not None:
                self.arrays.append(leaf)
                specs.append((known, leaf.shape))
            else:
                specs.append(self._read(i, leaf))
        self.key = (self.tree, tuple(specs))

    def _read(self, i: int, leaf: Any) -> Spec:
        constant = isinstance(leaf, (*_CONSTANT, Enum)) or callable(leaf)
        if constant and not isinstance(leaf, np.generic):
            self.arrays.append(None)
            return type(leaf), constant_key(leaf)
        if isinstance(leaf, Array):
            raise of_traced(self.names()[i])
        array, dtype = as_array(leaf, self.names()[i], self.stream)
        if isinstance(leaf, np.generic):
            self.scalars.append(i)
        self.arrays.append(array)
        return dtype, array.shape

    def names(self) -> list[str]:
        """A readable name for each leaf, from the function's parameters: ``"params['w']"``."""
        args_tree, kwargs_tree = self.tree[3]
        code = getattr(self.function, "__code__", None)
        parameters = code.co_varnames[: code.co_argcount] if code is not None else ()
        if getattr(self.function, "__self__", None) is not None:
            parameters = parameters[1:]
        result = []
        for i, child in enumerate(args_tree[3]):
            result += tree.names(child, parameters[i] if i < len(parameters) else f"arg{i}")
        for key, child in zip(kwargs_tree[2], kwargs_tree[3], strict=True):
            result += tree.names(child, str(key))
        return result

    def leaves_of(self, argnum: int) -> range:
        """The leaves that belong to a positional argument.

        Raises:
            ValueError: there is no such argument.
        """
        children = self.tree[3][0][3]
        if not 0 <= argnum < len(children):
            raise ValueError(
                located(
                    f"argnums={argnum}, but the function was called with {len(children)} "
                    "positional arguments"
                )
            )
        before = sum(tree.count(child) for child in children[:argnum])
        return range(before, before + tree.count(children[argnum]))


class Traced:
    """A traced function: its graph and how arguments and results are nested.

    ``print(traced)`` shows the forward graph, ``print(traced.joint())`` forward and backward.
    """

    def __init__(self, call: Call, argnums: Sequence[int], policy: PolicyFunction | None) -> None:
        self.graph = Graph()
        self.names = call.names()
        self.wrt = [
            i for argnum in argnums for i in call.leaves_of(argnum) if call.arrays[i] is not None
        ]
        self._among = [i for argnum in argnums for i in call.leaves_of(argnum)]
        _check_wrt(call, argnums, self.names)
        arrays = [i for i, array in enumerate(call.arrays) if array is not None]
        self._position = {leaf: n for n, leaf in enumerate(arrays)}  # leaf -> argument of the graph
        self._leaves_of = [call.leaves_of(n) for n in range(len(call.tree[3][0][3]))]
        self.wrt_positions = [self._position[i] for i in self.wrt]
        traced = self._inputs(call)
        args, kwargs = tree.unflatten(call.tree, traced)
        self.surroundings = Surroundings(call.function)
        self.graph.random = self.surroundings.random
        with tracing(self.graph), self.graph.policy(policy):
            self.result = call.function(*args, **kwargs)
        self.graph.random = None

    def _inputs(self, call: Call) -> list[Any]:
        """A traced value for each array, the leaf itself for each constant."""
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
        """Declares the results as outputs of the graph; of a loss, the loss first.

        Raises:
            ValueError, TypeError: the function did not return a scalar loss, or returned what is no
                array.
        """
        if with_loss:
            self._check_loss(has_aux)
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
        self.surroundings.end_of_trace(self.graph.captured)
        for i, position in zip(self.wrt, self.wrt_positions, strict=True):
            if position in self.graph._states:
                raise ValueError(
                    f"{self.names[i]} is both a parameter and a running statistic that the step "
                    "updates; pass the statistics as another argument, which is not in argnums"
                )

    def _check_loss(self, has_aux: bool) -> None:
        loss = self.result
        if has_aux:
            if not isinstance(loss, tuple) or len(loss) != 2:
                raise TypeError(
                    located("with has_aux=True the function returns a pair (loss, aux)")
                )
            loss = loss[0]
        if not isinstance(loss, Array):
            kind = type(loss).__name__
            hint = (
                "; with more results than the loss pass has_aux=True"
                if isinstance(loss, tuple)
                else ""
            )
            raise TypeError(
                located(f"the function must return a traced scalar, the loss, not a {kind}{hint}")
            )
        if loss.shape or loss.dtype not in dtypes.FLOATS:
            raise ValueError(
                located(
                    "gradients need a floating-point scalar loss, but the function returned "
                    f"{loss.dtype}{list(loss.shape)}; reduce it, as with .mean() or .sum()"
                )
            )

    def check_written(self, call: Call, updates: bool) -> None:
        """Can what a step updates be written? ``updates``: the arguments differentiated by are.

        Raises:
            TypeError: a number stands there that is no array, so that its update would be lost.
        """
        written = [i for i, n in self._position.items() if n in self.graph._states]
        numbers = [i for i in call.scalars if i in written]
        if updates:
            numbers += [i for i in self._among if i in call.scalars]
            numbers += [i for i in self._among if isinstance(call.leaves[i], (float, complex))]
        for i in numbers:
            leaf = call.leaves[i]
            raise TypeError(
                located(
                    f"{self.names[i]} is {leaf!r}, a {type(leaf).__name__}, which a step cannot "
                    "update in place; pass np.asarray(...) of it and keep that array, or, if it is "
                    "not to be updated, pass it in an argument outside argnums"
                )
            )

    def text(self) -> str:
        """The forward graph."""
        return self.graph.text()

    def joint(self, argnums: int | Sequence[int] = 0) -> str:
        """The joint graph: forward, and backward of the first result with respect to the arguments
        ``argnums``.

        Raises:
            ValueError, TypeError: the first result is no scalar, or an argument has no gradient.
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


def _check_wrt(call: Call, argnums: Sequence[int], names: list[str]) -> None:
    for argnum in argnums:
        arrays = [i for i in call.leaves_of(argnum) if call.arrays[i] is not None]
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
