"""Records an optimizer's formula as a list of operations. The formula is called once with proxies
of its arrays and numbers, and the proxies record the operations."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from .. import _native

Node = tuple[str, tuple[int, ...], float]

_UNARY = ("abs", "erf", "exp", "floor", "log", "log1p", "sign", "sigmoid", "sqrt", "tanh")
_BINARY = ("maximum", "minimum", "logical_and", "logical_or")


class RecordingError(TypeError):
    """Raised if a formula does something that cannot be recorded.

    >>> def branches(p, g, *, lr=0.1):
    ...     return p - lr * g if g > 0 else p
    >>> try:
    ...     cutback.optim.foreach(branches)
    ... except cutback.optim.RecordingError as error:
    ...     print("not recorded")
    not recorded
    """


def _refuse(what: str, instead: str) -> NoReturn:
    raise RecordingError(
        f"{what}: a formula is recorded once, for tensors of any shape and all steps; {instead}"
    )


def _float(x: Any, op: str) -> float:
    """Converts a number in a formula to float.

    Raises:
        RecordingError: if ``x`` is not a number.
        OverflowError: if ``x`` is an integer that is too large for a float.
    """
    try:
        return float(x)
    except (TypeError, ValueError):
        _refuse(
            f"{op} with {type(x).__name__}",
            "it may only compute with its parameter, gradient, states and numbers",
        )
    except OverflowError:
        raise OverflowError(
            f"{op}: an integer of {x.bit_length()} bits is too large for a float"
        ) from None


class Recording:
    """The nodes of one formula, without duplicates."""

    def __init__(self) -> None:
        self.nodes: list[Node] = []
        self._known: dict[tuple[Node, float], int] = {}

    def node(self, op: str, operands: tuple[int, ...] = (), value: float = 0.0) -> int:
        """Returns the index of a node, which is added if it is new."""
        # 0.0 == -0.0, but they are different constants
        node = (op, operands, value)
        key = (node, math.copysign(1, value))
        if key not in self._known:
            self._known[key] = len(self.nodes)
            self.nodes.append(node)
        return self._known[key]

    def value(self, op: str, *operands: Any) -> Value:
        """Records an operation on values and numbers, and returns its result."""
        values = [self.take(x, op) for x in operands]
        is_array = any(x.is_array for x in values) and op != "sum"
        return Value(self, self.node(op, tuple(x.node for x in values)), is_array)

    def take(self, x: Any, op: str) -> Value:
        """Converts an operand to a value; numbers become constants.

        Raises:
            RecordingError: if it is neither a value of this recording nor a number.
            OverflowError: if it is an integer that is too large for a float.
        """
        if isinstance(x, Value):
            if x.recording is not self:
                _refuse(
                    f"{op} with a value of another optimizer", "use the formula's own arguments"
                )
            return x
        return Value(self, self.node("constant", (), _float(x, op)), False)


class Value:
    """A proxy of an array in a formula, or of a number that is the same for all elements.

    The following operators and functions are recorded; functions may be those of NumPy or PyTorch,
    or methods:
    ``+ - * / **``, comparisons, ``& | ~``, ``abs``, ``sqrt``, ``exp``, ``log``, ``log1p``,
    ``tanh``, ``sign``, ``floor``, ``maximum``, ``minimum``, ``clip``, ``where``, ``square``, and
    the reductions over all elements of a tensor, ``sum``, ``mean`` and ``norm``.
    """

    __slots__ = ("is_array", "node", "recording")
    __array_priority__ = 1000
    __hash__ = None  # type: ignore[assignment]

    def __init__(self, recording: Recording, node: int, is_array: bool) -> None:
        self.recording = recording
        self.node = node
        self.is_array = is_array

    def __repr__(self) -> str:
        return f"<{'array' if self.is_array else 'number'} {self.node} of a recorded optimizer>"

    # ---- operators

    def __add__(self, other: Any) -> Value:
        return self.recording.value("add", self, other)

    def __radd__(self, other: Any) -> Value:
        return self.recording.value("add", other, self)

    def __sub__(self, other: Any) -> Value:
        return self.recording.value("sub", self, other)

    def __rsub__(self, other: Any) -> Value:
        return self.recording.value("sub", other, self)

    def __mul__(self, other: Any) -> Value:
        return self.recording.value("mul", self, other)

    def __rmul__(self, other: Any) -> Value:
        return self.recording.value("mul", other, self)

    def __truediv__(self, other: Any) -> Value:
        return self.recording.value("div", self, other)

    def __rtruediv__(self, other: Any) -> Value:
        return self.recording.value("div", other, self)

    def __neg__(self) -> Value:
        return self.recording.value("neg", self)

    def __pos__(self) -> Value:
        return self

    def __abs__(self) -> Value:
        return self.recording.value("abs", self)

    def __eq__(self, other: Any) -> Value:  # type: ignore[override]
        return self.recording.value("eq", self, other)

    def __ne__(self, other: Any) -> Value:  # type: ignore[override]
        return self.recording.value("ne", self, other)

    def __lt__(self, other: Any) -> Value:
        return self.recording.value("lt", self, other)

    def __le__(self, other: Any) -> Value:
        return self.recording.value("le", self, other)

    def __gt__(self, other: Any) -> Value:
        return self.recording.value("gt", self, other)

    def __ge__(self, other: Any) -> Value:
        return self.recording.value("ge", self, other)

    def __and__(self, other: Any) -> Value:
        return self.recording.value("logical_and", self, other)

    def __or__(self, other: Any) -> Value:
        return self.recording.value("logical_or", self, other)

    __rand__, __ror__ = __and__, __or__

    def __invert__(self) -> Value:
        return self.recording.value("logical_not", self)

    def __pow__(self, exponent: Any) -> Value:
        if not self.is_array and not (isinstance(exponent, Value) and exponent.is_array):
            return self.recording.value("pow", self, exponent)
        if not isinstance(exponent, Value):
            exponent = _float(exponent, "**")
        known: dict[float, Callable[[], Value]] = {
            1: lambda: self,
            2: lambda: self * self,
            3: lambda: self * self * self,
            4: lambda: (self * self) * (self * self),
            0.5: self.sqrt,
            -0.5: self.rsqrt,
            -1: lambda: 1 / self,
            -2: lambda: 1 / (self * self),
        }
        if isinstance(exponent, Value) or exponent not in known:
            _refuse(f"** {exponent!r} of an array", "use products, sqrt or exp(y * log(x))")
        return known[exponent]()

    def __rpow__(self, base: Any) -> Value:
        if self.is_array:
            _refuse("a number ** an array", "write it as exp(log(base) * x)")
        return self.recording.value("pow", base, self)

    # ---- functions

    def square(self) -> Value:
        """Returns ``self * self``."""
        return self * self

    def sqrt(self) -> Value:
        """Returns the square root."""
        return self.recording.value("sqrt", self)

    def rsqrt(self) -> Value:
        """Returns ``1 / sqrt(self)``."""
        return 1 / self.sqrt()

    def reciprocal(self) -> Value:
        """Returns ``1 / self``."""
        return 1 / self

    def clip(self, min: Any = None, max: Any = None) -> Value:
        """Limits the elements to [``min``, ``max``]; None means no limit."""
        x = self if min is None else self.recording.value("maximum", self, min)
        return x if max is None else self.recording.value("minimum", x, max)

    clamp = clip

    def sum(self, *axes: Any, **options: Any) -> Value:
        """Returns the sum of all elements of the tensor."""
        if axes or options:
            _refuse("a sum along axes", "sums, means and norms are over all elements of a tensor")
        if not self.is_array:
            _refuse("the sum of a number", "sum an array")
        return self.recording.value("sum", self)

    def mean(self, *axes: Any, **options: Any) -> Value:
        """Returns the mean of all elements of the tensor."""
        return self.sum(*axes, **options) / self.size

    def norm(self, *axes: Any, **options: Any) -> Value:
        """Returns the Euclidean norm of all elements of the tensor."""
        return (self * self).sum(*axes, **options).sqrt()

    @property
    def size(self) -> Value:
        """Number of elements of the tensor."""
        return self.recording.value("size")

    def numel(self) -> Value:
        """Returns the number of elements of the tensor."""
        return self.size

    # ---- functions of NumPy and PyTorch

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **options: Any) -> Value:
        if method != "__call__" or options:
            _refuse(f"numpy.{ufunc.__name__}.{method}", "call it with arrays only, without options")
        return _call(ufunc.__name__, inputs, {})

    def __array_function__(self, function: Any, types: Any, args: Any, options: Any) -> Value:
        return _call(function.__name__, args, options)

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any, options: Any = None) -> Value:
        return _call(function.__name__, args, options or {})

    # ---- operations that cannot be recorded

    def __bool__(self) -> bool:
        _refuse(
            "if, while, and, or, not, min and max need values that are not known yet",
            "write where(condition, a, b), maximum and minimum, & | and ~",
        )

    def __float__(self) -> float:
        _refuse("float() of a value", "write x ** 0.5, numpy.sqrt or numpy.exp, not math's")

    def __int__(self) -> int:
        _refuse("int() of a value", "use the value as it is")

    __index__ = __int__

    def __len__(self) -> int:
        _refuse("len() of an array", "x.size is the number of its elements")

    def __iter__(self) -> Any:
        _refuse("a loop over an array", "write the formula for whole tensors")

    def __getitem__(self, key: Any) -> Any:
        _refuse("an index into an array", "use elementwise operations and sums over all elements")

    def __setitem__(self, key: Any, value: Any) -> None:
        _refuse("writing into an array", "return the new values: (p, state, ...)")

    def __matmul__(self, other: Any) -> Any:
        _refuse("a matrix product", "use elementwise operations and sums over all elements")

    __rmatmul__ = __matmul__

    def __getattr__(self, name: str) -> Any:
        if name in _UNARY:
            return lambda: self.recording.value(name, self)
        if name in _BINARY:
            return lambda other: self.recording.value(name, self, other)
        if name.startswith("__"):
            raise AttributeError(name)
        _refuse(
            f".{name} of {'an array' if self.is_array else 'a number'}",
            "shapes and types are not known, and in-place operations are not supported",
        )


def _recording_of(args: Sequence[Any]) -> Recording:
    return next(x.recording for x in args if isinstance(x, Value))


def _call(name: str, args: Sequence[Any], options: dict[str, Any]) -> Value:
    """Records a call of a NumPy or PyTorch function, by its name."""
    recording, name = _recording_of([*args, *options.values()]), _NAMES.get(name, name)
    operators = {"add": "__add__", "sub": "__sub__", "mul": "__mul__", "div": "__truediv__"}
    if options and name not in ("clip", "where", "sum", "mean", "norm"):
        _refuse(f"{name} with {', '.join(options)}", "call it with arrays and numbers only")
    if name in operators and len(args) == 2:
        return recording.value(name, *args)
    if name == "where" and len(args) == 3:
        return recording.value("where", *args)
    if name == "pow" and len(args) == 2:
        power: Value = recording.take(args[0], name) ** args[1]
        return power
    if name in ("eq", "ne", "lt", "le", "gt", "ge", *_BINARY) and len(args) == 2:
        return recording.value(name, *args)
    if name in ("neg", "logical_not", *_UNARY) and len(args) == 1:
        return recording.value(name, args[0])
    methods = ("square", "rsqrt", "reciprocal", "clip", "sum", "mean", "norm")
    if name in methods and isinstance(args[0], Value):
        result: Value = getattr(args[0], name)(*args[1:], **options)
        return result
    _refuse(f"{name}()", "this function cannot be recorded (docs/optim.md lists those that can)")


_NAMES = {
    "subtract": "sub", "multiply": "mul", "divide": "div", "true_divide": "div", "power": "pow",
    "float_power": "pow", "equal": "eq", "not_equal": "ne", "less": "lt", "less_equal": "le",
    "greater": "gt", "greater_equal": "ge", "negative": "neg", "absolute": "abs", "fabs": "abs",
    "bitwise_and": "logical_and", "bitwise_or": "logical_or", "bitwise_not": "logical_not",
    "invert": "logical_not", "clamp": "clip", "vector_norm": "norm",
}  # fmt: skip


def record(
    formula: Callable[..., Any],
    name: str,
    states: Sequence[str],
    numbers: Sequence[str],
    fixed: dict[str, Any],
    counts: bool,
) -> _native.Expression:
    """Records a formula for the core. It is called with proxies for ``numbers``, with the values of
    ``fixed``, and with a proxy of the step number ``t`` if it ``counts``.

    Raises:
        RecordingError: if the formula does something that cannot be recorded, or does not return
            one array for the parameter and one for each state.
        NotImplementedError: if the formula is too long.
    """
    recording = Recording()

    def leaf(op: str, which: tuple[int, ...] = (), is_array: bool = True) -> Value:
        return Value(recording, recording.node(op, which), is_array)

    arrays = [leaf("param"), leaf("grad"), *(leaf("state", (k,)) for k in range(len(states)))]
    given = {key: leaf("hyper", (k,), False) for k, key in enumerate(numbers)}
    if counts:
        given["t"] = leaf("t", (), False)
    result = formula(*arrays, **given, **fixed)
    results = [result] if isinstance(result, Value) else result
    wanted = ", ".join(("the parameter", *states))
    if not isinstance(results, tuple | list) or len(results) != 1 + len(states):
        what = type(result).__name__
        if isinstance(results, tuple | list):
            what = f"{len(results)} result{'s' * (len(results) != 1)}"
        raise RecordingError(f"{name} returned {what}; it must return new values of {wanted}")
    out = tuple(recording.take(x, "return").node for x in results)
    return _native.Expression(name, tuple(states), tuple(numbers), tuple(recording.nodes), out)
