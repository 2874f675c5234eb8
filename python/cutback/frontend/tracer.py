"""The value that represents an array while a function is traced.

It has a shape and a dtype but no elements. Operators and methods follow NumPy's rules for
broadcasting, promotion (Python scalars are weak), axes and keepdims. Operations that NumPy would
refuse raise ValueError or TypeError with both values and the user's source line.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Iterator, Sequence
from typing import Any, NoReturn, Protocol, TypeAlias

import numpy as np

from .. import dtypes
from ..integers import index
from ..run.arrays import instead_of
from ..source import located
from .methods import Methods

Axis = int | Sequence[int] | None
"""One axis, several, or all of them."""

_SCALARS = (bool, int, float)


_REFUSED: Array = NotImplemented  # then Python tries the other operand, or raises TypeError


class DLPack(Protocol):
    """A tensor of another library."""

    def __dlpack__(self) -> Any: ...


class Builder(Protocol):
    """The part of :class:`cutback.Graph` that traced arrays and their operations use; its methods
    are documented there."""

    def apply(  # noqa: D102
        self, name: str, ins: tuple[Array, ...], attrs: dict[str, Any]
    ) -> tuple[Array, ...]: ...
    def constant(self, value: Any) -> Array: ...  # noqa: D102
    def alias(self, x: Array) -> Array: ...  # noqa: D102
    def gradients(  # noqa: D102
        self, of: Sequence[Array], given: Sequence[Array], wrt: Sequence[Array]
    ) -> list[Array | None]: ...
    def full(  # noqa: D102
        self, shape: tuple[int, ...], value: bool | int | float, dtype: dtypes.Name
    ) -> Array: ...
    def lift(self, x: Any) -> Array: ...  # noqa: D102
    def state(self, argument: Array, value: Array) -> None: ...  # noqa: D102
    def next_stream(self) -> int: ...  # noqa: D102


def is_weak(x: Any) -> bool:
    """Returns whether ``x`` is a number of Python, which takes the dtype of the other operand."""
    return isinstance(x, _SCALARS) and not isinstance(x, np.generic)


def _other(graph: Builder, x: Any) -> Any:
    """Converts an operand to an Array or a Python scalar. Returns NotImplemented for other
    types."""
    if isinstance(x, Array) or is_weak(x):
        return x
    if isinstance(x, (np.ndarray, np.generic)) or hasattr(x, "__dlpack__"):
        return graph.constant(x)
    return NotImplemented


def common(graph: Builder, name: str, values: Sequence[Any]) -> list[Array]:
    """Converts operands to arrays of one dtype: NumPy's ``result_type``, with weak Python scalars.

    Raises:
        TypeError: if an operand is not an array or a number, or the dtypes have no common type.
    """
    operands = [_other(graph, x) for x in values]
    for given, found in zip(values, operands, strict=True):
        if found is NotImplemented:
            raise TypeError(
                located(
                    f"{name}: expected an array or a number, got {type(given).__name__}"
                    + instead_of(given)
                )
            )
    dtype: dtypes.Name | None = None
    try:
        for x in operands:
            if isinstance(x, Array):
                dtype = x.dtype if dtype is None else dtypes.promote(dtype, x.dtype)
    except TypeError as error:
        raise TypeError(located(f"{name}: {error}")) from None
    for x in operands:
        if not isinstance(x, Array):
            start: dtypes.Name = "bool" if dtype is None else dtype
            dtype = dtypes.with_scalar(start, x)
    assert dtype is not None
    return [x.astype(dtype) if isinstance(x, Array) else graph.full((), x, dtype) for x in operands]


def whole(value: Any, what: str) -> int:
    """Converts an integer argument to an int.

    Raises:
        TypeError: if ``value`` is not an integer; the message begins with ``what``.
    """
    try:
        return index(value)
    except TypeError:
        raise TypeError(located(f"{what} must be an integer, not {value!r:.60}")) from None


def _normalize_axis(axis: Any, ndim: int, what: str) -> int:
    number = whole(axis, f"{what}: an axis")
    if not -ndim <= number < ndim:
        raise ValueError(
            located(f"{what}: axis {number} is out of bounds for an array of dimension {ndim}")
        )
    return number % ndim


def _normalize_axes(axis: Axis, ndim: int, what: str) -> tuple[int, ...]:
    """Returns the axes in ascending order; None means all axes."""
    if axis is None:
        return tuple(range(ndim))
    given = tuple(axis) if isinstance(axis, (tuple, list)) else (axis,)
    axes = sorted(_normalize_axis(a, ndim, what) for a in given)
    if len(set(axes)) != len(axes):
        raise ValueError(located(f"{what}: axis={axis} names the same axis twice"))
    return tuple(axes)


def _shape_of(args: tuple[Any, ...]) -> tuple[int, ...]:
    """Returns the shape ``(2, 3)`` from the arguments of ``f(2, 3)`` or ``f((2, 3))``."""
    if len(args) == 1 and isinstance(args[0], (tuple, list)):
        args = tuple(args[0])
    return tuple(index(n) for n in args)


class Array(Methods):
    """A traced array: a value of a graph, with ``shape`` (a tuple of ints) and ``dtype`` (a
    :class:`cutback.dtypes.DType`, equal to ``"f32"``, ``np.float32``, ...), but without elements.

    >>> def f(x):  # x is an Array while f is traced
    ...     return (x.reshape(-1) ** 2).sum() / x.size
    >>> value, gradient = cutback.value_and_grad(f)(x)
    """

    __slots__ = ("dtype", "graph", "id", "shape")
    is_traced = True  # recognized by modules that must not import this one
    __hash__ = None  # type: ignore[assignment]  # like NumPy's arrays: == compares elements

    def __init__(self, graph: Builder, number: int, dtype: str, shape: tuple[int, ...]) -> None:
        self.graph = graph
        self.id = number
        self.dtype = dtypes.DTYPES[dtype]
        self.shape = shape

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def T(self) -> Array:  # noqa: N802
        """The array with its axes in reverse order."""
        return self.transpose()

    def __repr__(self) -> str:
        return f"<traced {self.dtype}{list(self.shape)}>"

    def _apply(self, name: str, *others: Array, **attrs: Any) -> Array:
        return self.graph.apply(name, (self, *others), attrs)[0]

    def _floating(self, name: str) -> Array:
        """Applies the operation ``name`` in the type in which NumPy computes it."""
        return self.astype(dtypes.floating(self.dtype))._apply(name)

    # ---- uses that need elements -----------------------------------------------------------------

    def _no_elements(self, what: str, instead: str = "") -> NoReturn:
        raise TypeError(
            located(
                f"{what} of a traced array {self.dtype}{list(self.shape)}: its elements are not "
                "known while the function is traced; use cutback.where to choose by value, "
                f"{instead}or compute it outside the function"
            )
        )

    def __bool__(self) -> bool:
        self._no_elements("truth value")

    def __float__(self) -> float:
        self._no_elements("float()")

    def __int__(self) -> int:
        self._no_elements("int()")

    def __index__(self) -> int:
        self._no_elements("use as an index")

    def __format__(self, spec: str) -> str:
        if spec:
            self._no_elements(f"format {spec!r}")
        return repr(self)

    def item(self) -> NoReturn:
        """Raises TypeError, because elements are not known while tracing."""
        self._no_elements("item()")

    def __array__(self, *args: Any, **kwargs: Any) -> NoReturn:
        self._no_elements("conversion to NumPy", "cutback's function in place of NumPy's, ")

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **kwargs: Any) -> Any:
        """Handles ``ndarray + traced`` and ``np.exp(traced)``."""
        apply = _OPERATORS.get(ufunc.__name__)
        if apply is not None and method == "__call__" and not kwargs and len(inputs) == 2:
            return apply(*(x if is_weak(x) else self.graph.lift(x) for x in inputs))
        from .numpy_calls import ufunc_call  # here, so that importing the package is fast

        return ufunc_call(ufunc, method, inputs, kwargs)

    def __array_function__(self, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        """Handles ``np.mean(traced)``."""
        from .numpy_calls import function_call

        return function_call(func, args, kwargs)

    # ---- arithmetic ------------------------------------------------------------------------------

    def _binary(self, name: str, other: Any, *, swap: bool = False) -> Array:
        if _other(self.graph, other) is NotImplemented and (
            name in ("eq", "ne") or not isinstance(other, (list, tuple))
        ):
            return _REFUSED
        x, y = common(self.graph, name, (other, self) if swap else (self, other))
        return x._apply(name, y)

    def __add__(self, other: Any) -> Array:
        return self._binary("add", other)

    def __radd__(self, other: Any) -> Array:
        return self._binary("add", other, swap=True)

    def __sub__(self, other: Any) -> Array:
        return self._binary("sub", other)

    def __rsub__(self, other: Any) -> Array:
        return self._binary("sub", other, swap=True)

    def __mul__(self, other: Any) -> Array:
        return self._binary("mul", other)

    def __rmul__(self, other: Any) -> Array:
        return self._binary("mul", other, swap=True)

    def _divide(self, other: Any, *, swap: bool = False) -> Array:
        if _other(self.graph, other) is NotImplemented and not isinstance(other, (list, tuple)):
            return _REFUSED
        x, y = common(self.graph, "div", (other, self) if swap else (self, other))
        dtype = (
            x.dtype if x.dtype in dtypes.FLOATS else "f64"
        )  # integers divide in f64, as in NumPy
        return x.astype(dtype)._apply("div", y.astype(dtype))

    def __truediv__(self, other: Any) -> Array:
        return self._divide(other)

    def __rtruediv__(self, other: Any) -> Array:
        return self._divide(other, swap=True)

    def __pow__(self, other: Any) -> Array:
        if is_weak(other):
            short = self._power_of(other)
            if short is not None:
                return short
        return self._power(other)

    def __rpow__(self, other: Any) -> Array:
        return self._power(other, swap=True)

    def _power_of(self, exponent: float) -> Array | None:
        """Computes powers for which there is a special operation, as in NumPy; returns None for
        others."""
        if (
            exponent == 2
            and self.dtype != "bool"
            and (isinstance(exponent, int) or self.dtype in dtypes.FLOATS)
        ):
            return self._apply("square")
        if exponent == 1 and (isinstance(exponent, int) or self.dtype in dtypes.FLOATS):
            return self
        if self.dtype in dtypes.FLOATS and exponent == 0.5:
            return self._apply("sqrt")
        if self.dtype in dtypes.FLOATS and exponent == -1:
            return self._apply("reciprocal")
        if self.dtype in dtypes.FLOATS and exponent == -0.5:
            return self._apply("rsqrt")
        if self.dtype in dtypes.FLOATS and exponent in (3, 4):  # about ten times as fast as pow
            squared = self._apply("square")
            return squared * self if exponent == 3 else squared._apply("square")
        return None

    def _power(self, other: Any, *, swap: bool = False) -> Array:
        if _other(self.graph, other) is NotImplemented and not isinstance(other, (list, tuple)):
            return _REFUSED
        x, y = common(self.graph, "pow", (other, self) if swap else (self, other))
        if x.dtype not in dtypes.FLOATS:
            raise TypeError(
                located(
                    f"pow: {x.dtype} powers other than x**2 are not supported; use .astype('f64')"
                )
            )
        return x._apply("pow", y)

    def __matmul__(self, other: Any) -> Array:
        return self._binary("matmul", other)

    def __rmatmul__(self, other: Any) -> Array:
        return self._binary("matmul", other, swap=True)

    def __neg__(self) -> Array:
        return self._apply("neg")

    def __pos__(self) -> Array:
        return self

    def __abs__(self) -> Array:
        return self._apply("abs")

    # ---- comparison and logic --------------------------------------------------------------------

    def __eq__(self, other: object) -> Array:  # type: ignore[override]
        return self._binary("eq", other)

    def __ne__(self, other: object) -> Array:  # type: ignore[override]
        return self._binary("ne", other)

    def __lt__(self, other: Any) -> Array:
        return self._binary("lt", other)

    def __le__(self, other: Any) -> Array:
        return self._binary("le", other)

    def __gt__(self, other: Any) -> Array:
        return self._binary("gt", other)

    def __ge__(self, other: Any) -> Array:
        return self._binary("ge", other)

    def _logical(self, name: str, other: Any, *, swap: bool = False) -> Array:
        value = _other(self.graph, other)
        if value is NotImplemented:
            return _REFUSED
        value = self.graph.lift(value)
        if self.dtype != "bool" or value.dtype != "bool":
            raise TypeError(
                located(f"{name}: expected two bool arrays, got {self.dtype} and {value.dtype}")
            )
        return value._apply(name, self) if swap else self._apply(name, value)

    def __and__(self, other: Any) -> Array:
        return self._logical("logical_and", other)

    def __rand__(self, other: Any) -> Array:
        return self._logical("logical_and", other, swap=True)

    def __or__(self, other: Any) -> Array:
        return self._logical("logical_or", other)

    def __ror__(self, other: Any) -> Array:
        return self._logical("logical_or", other, swap=True)

    def __xor__(self, other: Any) -> Array:
        return self._logical("ne", other)

    def __rxor__(self, other: Any) -> Array:
        return self._logical("ne", other, swap=True)

    def __invert__(self) -> Array:
        if self.dtype != "bool":
            raise TypeError(located(f"~: expected a bool array, got {self.dtype}"))
        return self._apply("logical_not")

    # ---- types and shapes ------------------------------------------------------------------------

    def astype(self, dtype: Any) -> Array:
        """Converts the elements to another dtype; returns this array itself if it has that dtype.
        A dtype that is not supported raises TypeError."""
        try:
            name = dtypes.parse(dtype)
        except TypeError as error:
            raise TypeError(located(f"astype: {error}")) from None
        return self if name == self.dtype else self._apply("cast", dtype=name)

    def reshape(self, *shape: Any) -> Array:
        """Returns the same elements, in row-major order, in another shape; one size may be -1."""
        target = _shape_of(shape)
        return self if target == self.shape else self._apply("reshape", shape=target)

    def ravel(self) -> Array:
        """Flattens the array to one axis."""
        return self.reshape(-1) if self.size else self.reshape(0)

    flatten = ravel

    def transpose(self, *axes: Any) -> Array:
        """Reorders the axes; without ``axes``, reverses them. Raises ValueError unless each axis is
        given once."""
        order = _shape_of(axes) if axes and axes != (None,) else tuple(range(self.ndim))[::-1]
        normal = tuple(_normalize_axis(a, self.ndim, "transpose") for a in order)
        if sorted(normal) != list(range(self.ndim)):
            raise ValueError(
                located(
                    f"transpose: axes {order} do not fit an array of dimension {self.ndim}"
                    + ("; swapaxes exchanges two axes" if len(order) == 2 else "")
                )
            )
        return self if normal == tuple(range(self.ndim)) else self._apply("transpose", axes=normal)

    def swapaxes(self, axis1: int, axis2: int) -> Array:
        """Exchanges two axes."""
        order = list(range(self.ndim))
        a, b = (
            _normalize_axis(axis1, self.ndim, "swapaxes"),
            _normalize_axis(axis2, self.ndim, "swapaxes"),
        )
        order[a], order[b] = order[b], order[a]
        return self.transpose(order)

    def squeeze(self, axis: Axis = None) -> Array:
        """Removes axes of size 1 (all of them, or the given ones). A given axis of another size
        raises ValueError."""
        axes = _normalize_axes(axis, self.ndim, "squeeze")
        if axis is None:
            axes = tuple(a for a in axes if self.shape[a] == 1)
        for a in axes:
            if self.shape[a] != 1:
                raise ValueError(
                    located(
                        f"squeeze: axis {a} of shape {self.shape} has size {self.shape[a]}, not 1"
                    )
                )
        return self.reshape([n for a, n in enumerate(self.shape) if a not in axes])

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError(located("a traced array without axes has no len()"))
        return self.shape[0]

    def __iter__(self) -> Iterator[Array]:
        return iter([self[i] for i in range(len(self))])

    def __getitem__(self, key: Any) -> Array:
        from .indexing import getitem  # here, so that importing the package is fast

        return getitem(self, key)

    def __setitem__(self, key: Any, value: Any) -> NoReturn:
        raise TypeError(
            located(
                "a traced array cannot be assigned to; use cutback.where or cutback.concatenate"
            )
        )

    # ---- reductions ------------------------------------------------------------------------------

    def _reduce(self, name: str, axis: Axis, keepdims: bool) -> Array:
        axes = _normalize_axes(axis, self.ndim, name)
        if not axes:
            return self
        return self._apply(name, axes=axes, keepdims=int(keepdims))

    def sum(self, axis: Axis = None, keepdims: bool = False) -> Array:
        """Returns the sum over axes (None: all). Bools and integers are added in i64."""
        return self.astype(dtypes.accumulator(self.dtype))._reduce("sum", axis, keepdims)

    def mean(self, axis: Axis = None, keepdims: bool = False) -> Array:
        """Returns the mean over axes (None: all); for integers, in f64."""
        dtype = self.dtype if self.dtype in dtypes.FLOATS else "f64"
        return self.astype(dtype)._reduce("mean", axis, keepdims)

    def var(self, axis: Axis = None, ddof: int = 0, keepdims: bool = False) -> Array:
        """Returns the variance over axes: the sum of squared distances from the mean, divided by n
        - ddof."""
        axes = _normalize_axes(axis, self.ndim, "var")
        x = self if self.dtype in dtypes.FLOATS else self.astype("f64")
        squares = (x - x.mean(axes, keepdims=True))._apply("square")
        if ddof == 0:
            return squares.mean(axes, keepdims)
        n = math.prod(self.shape[a] for a in axes)
        return squares.sum(axes, keepdims) / float(max(n - ddof, 0))

    def std(self, axis: Axis = None, ddof: int = 0, keepdims: bool = False) -> Array:
        """Returns the square root of :meth:`var`."""
        return self.var(axis, ddof, keepdims)._apply("sqrt")

    def _extreme(self, name: str, axis: Axis, keepdims: bool) -> Array:
        axes = _normalize_axes(axis, self.ndim, name)
        if any(self.shape[a] == 0 for a in axes):
            raise ValueError(
                located(f"{name} needs at least one element, got shape {self.shape}, axes {axes}")
            )
        return self._reduce(name, axes, keepdims)

    def max(self, axis: Axis = None, keepdims: bool = False) -> Array:
        """Returns the largest element over axes (None: all), or NaN if one is NaN. Equal elements
        share the gradient."""
        return self._extreme("amax", axis, keepdims)

    def min(self, axis: Axis = None, keepdims: bool = False) -> Array:
        """Returns the smallest element over axes (None: all), or NaN if one is NaN. Equal elements
        share the gradient."""
        return self._extreme("amin", axis, keepdims)

    def argmax(self, axis: int | None = None, keepdims: bool = False) -> Array:
        """Returns the index (i64) of the first largest element along ``axis`` (None: in the
        flattened array)."""
        if axis is None:
            flat = self.ravel()._argmax(0, keepdims=False)
            return flat.reshape((1,) * self.ndim) if keepdims else flat
        return self._argmax(_normalize_axis(axis, self.ndim, "argmax"), keepdims)

    def _argmax(self, axis: int, keepdims: bool) -> Array:
        if self.shape[axis] == 0:
            raise ValueError(
                located(f"argmax needs at least one element, got shape {self.shape}, axis {axis}")
            )
        return self._apply("argmax", axis=axis, keepdims=int(keepdims))

    def clip(self, min: Any = None, max: Any = None) -> Array:  # NumPy's names
        """Limits elements to [min, max]; None means no limit. A limit that is neither a number nor
        an array raises TypeError."""
        x = self
        for name, limit in (("maximum", min), ("minimum", max)):
            if limit is None:
                continue
            if _other(self.graph, limit) is NotImplemented:
                raise TypeError(
                    located(f"clip: a limit must be a number or an array, not {limit!r}")
                )
            x = x._binary(name, limit)
        return x

    def take(self, indices: Any, axis: int | None = None) -> Array:
        """Returns the elements, or the slices along ``axis``, at ``indices``. None takes from the
        flattened array."""
        if axis is None:
            return self.ravel()[
                self.graph.lift(indices) if not isinstance(indices, (int, list)) else indices
            ]
        return self[(slice(None),) * _normalize_axis(axis, self.ndim, "take") + (indices,)]


_OPERATORS = {
    "add": operator.add, "subtract": operator.sub, "multiply": operator.mul, "divide":
    operator.truediv, "power": operator.pow, "matmul": operator.matmul, "equal": operator.eq,
    "not_equal": operator.ne, "less": operator.lt, "less_equal": operator.le, "greater":
    operator.gt, "greater_equal": operator.ge, "logical_and": operator.and_, "logical_or":
    operator.or_, "bitwise_and": operator.and_, "bitwise_or": operator.or_, "bitwise_xor":
    operator.xor,

}  # fmt: skip

ArrayLike: TypeAlias = Array | np.ndarray[Any, Any] | np.generic | bool | int | float | DLPack
"""The types that operations accept: a traced array, or an array or number that becomes a
constant."""
