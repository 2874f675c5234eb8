"""Tests what a trace depends on: constants among the arguments, dtypes, and leaves that are
numbers."""

from __future__ import annotations

import copy
import enum
import math
import pickle
import struct
from fractions import Fraction

import numpy as np
import pytest

import cutback
from cutback import dtypes
from cutback.frontend.tracing import Call, constant_key
from cutback.run.arrays import RawArray

X = np.arange(4, dtype=np.float32)


# ---- dtypes inside a trace -------------------------------------------------------------------

SPELLINGS = {
    "bool": [bool, np.bool_, "?"],
    "u8": [np.uint8, "uint8", "u1"],
    "i32": [np.int32, "int32", "i4", "<i4"],
    "i64": [np.int64, "int64", int, "i8"],
    "f16": [np.float16, "float16", "f2"],
    "f32": [np.float32, "float32", "f4"],
    "f64": [np.float64, "float64", float, "f8", np.double],
}


def dtype_inside(array):
    seen = []
    cutback.trace(lambda x: seen.append(x.dtype) or x, array)
    return seen[0]


@pytest.mark.parametrize("name", SPELLINGS)
def test_a_dtype_equals_its_spellings_from_both_sides(name):
    inside = dtype_inside(np.zeros(3, dtypes.to_numpy(name)))
    for core, spellings in SPELLINGS.items():
        for spec in [core, *spellings, np.dtype(spellings[0])]:
            expected = core == name
            assert (inside == spec) is expected and (spec == inside) is expected, spec
            assert (inside != spec) is not expected and (spec != inside) is not expected, spec
    assert inside in (name,) and {name: 1}[inside] == 1 and hash(inside) == hash(name)
    for other in (None, 3, "nothing", object(), np.uint64, np.longdouble, ">f4", "u1,u1", []):
        assert inside != other and (inside == other) is False


@pytest.mark.parametrize("name", SPELLINGS)
def test_numpy_takes_the_dtype_of_a_traced_array(name):
    numpy, inside = dtypes.to_numpy(name), dtype_inside(np.zeros(3, dtypes.to_numpy(name)))
    assert np.dtype(inside) == numpy and np.zeros(2, inside).dtype == numpy
    assert np.issubdtype(inside, np.floating) == np.issubdtype(numpy, np.floating)
    assert (inside.name, inside.kind, inside.itemsize) == (numpy.name, numpy.kind, numpy.itemsize)
    assert str(inside) == f"{inside}" == name and f"{inside:>5}" == f"{name:>5}"
    assert dtypes.parse(inside) == name
    assert pickle.loads(pickle.dumps(inside)) == copy.copy(inside) == name


def test_bf16():
    inside = dtype_inside(RawArray(np.zeros(3, np.uint16)))
    assert inside == "bf16" and inside == "bfloat16" and inside != np.uint16
    assert (inside.name, inside.kind, inside.itemsize) == ("bfloat16", "f", 2)


def test_a_branch_on_the_dtype(run):
    def f(x):
        return x * 2 if x.dtype == np.float32 else x * 3

    for dtype, factor in ((np.float32, 2), (np.float64, 3), (np.int32, 3)):
        np.testing.assert_array_equal(run(f, np.ones(2, dtype)), np.full(2, factor))


def test_operations_take_a_traced_dtype(run):
    def f(x, y):
        ones = cutback.ones((4,), x.dtype) + cutback.zeros_like(x, y.dtype)
        return ones + cutback.arange(4, x.dtype) if False else ones + y.astype(x.dtype)

    np.testing.assert_array_equal(run(f, X, X.astype(np.int32)), 1 + X)


# ---- constants -------------------------------------------------------------------------------


class Fixed(float):
    def __repr__(self):
        return "1.0"

    __str__ = __repr__

    def __eq__(self, other):
        return True

    def __hash__(self):
        return 0


class FixedInt(int):
    def __repr__(self):
        return "1"

    def __eq__(self, other):
        return True

    def __hash__(self):
        return 0

    def __int__(self):
        return 1

    __index__ = __pos__ = __int__


class FixedText(str):
    def __repr__(self):
        return "''"

    __str__ = __repr__

    def __eq__(self, other):
        return True

    def __hash__(self):
        return 0


class Unit(float):
    unit = 1.0


class Colour(enum.IntEnum):
    RED = 1
    BLUE = 2

    def __repr__(self):
        return "colour"


class Mode(enum.Enum):
    SUM = "sum"
    MEAN = "mean"


@pytest.mark.parametrize(
    ("f", "values"),
    [
        (lambda x, c: x * float.__add__(c, 0.0), [Fixed(1.0), Fixed(2.0), Fixed(-3.0)]),
        (lambda x, c: x * int.__add__(c, 0), [FixedInt(1), FixedInt(2)]),
        (lambda x, c: x * str.__len__(c), [FixedText("a"), FixedText("bb")]),
        (lambda x, c: x * c, [0.0, -0.0, 0, False, True, 1, 1.0]),
        (lambda x, c: x * (2.0 if isinstance(c, bool) else 3.0), [True, 1, 1.0]),
        (lambda x, c: x * math.copysign(1.0, c), [0.0, -0.0, math.nan, -math.nan]),
        (lambda x, c: x * int(c), [Colour.RED, Colour.BLUE, 1, 2]),
        (lambda x, c: x.sum() if c is Mode.SUM else x.mean(), [Mode.SUM, Mode.MEAN]),
        (lambda x, c: x * c.imag, [1 + 2j, 1 + 3j, complex(1, -0.0), complex(1, 0.0)]),
        (lambda x, c: x * c[0], [b"a", b"b"]),
    ],
)  # fmt: skip
def test_another_constant_traces_again(f, values):
    """A step that is called with all values gives the same results as a new step for each value."""
    shared = cutback.compile(f, argnums=None)
    for value in values * 2:
        with np.errstate(invalid="ignore"):
            expected = cutback.compile(f, argnums=None)(X, value)
        found = shared(X, value)
        assert np.asarray(found).tobytes() == np.asarray(expected).tobytes(), value
    assert shared.n_compiled <= len(values)


def test_attributes_of_a_constant_count():
    first, second = Unit(1.0), Unit(1.0)
    second.unit = 5.0
    step = cutback.compile(lambda x, c: x * c.unit, argnums=None)
    np.testing.assert_array_equal(step(X, first), X)
    np.testing.assert_array_equal(step(X, second), 5 * X)


def test_equal_constants_trace_once():
    step = cutback.compile(lambda x, c: x * 2 if c else x, argnums=None)
    nan = struct.unpack("=d", struct.pack("=d", math.nan))[0]
    for pair in (
        (1.5, float("1.5")), (math.nan, nan), ("word", "".join(["wo", "rd"])),
        (10**30, int("1" + "0" * 30)), (Colour.RED, Colour(1)), (b"ab", bytes([97, 98])),
        (Unit(1.0), Unit(1.0)), (len, len), (Mode.SUM, Mode("sum")),
    ):  # fmt: skip
        before = step.n_compiled
        for value in pair:
            step(X, value)
        assert step.n_compiled == before + 1, pair


def test_functions_that_have_no_hash_are_themselves():
    class Scale:
        __hash__ = None

        def __init__(self, k):
            self.k = k

        def __eq__(self, other):
            return True

        def __call__(self, x):
            return x * self.k

    two, three = Scale(2.0), Scale(3.0)
    step = cutback.compile(lambda x, f: f(x), argnums=None)
    for f in (two, three, two):
        np.testing.assert_array_equal(step(X, f), f(X))
    assert step.n_compiled == 2
    assert constant_key(two) != constant_key(three)


def test_what_only_has_a_float_is_refused_by_name():
    class Almost:
        def __float__(self):
            return 1.0

    for thing in (Almost(), Fraction(1, 2)):
        with pytest.raises(TypeError, match=r"rate: expected a NumPy array"):
            cutback.compile(lambda x, rate: x * rate, argnums=None)(X, thing)


def test_a_buffer_that_the_function_writes_into(run):
    """An array is used as a constant twice, with different contents the second time."""

    def f(x):
        buffer = np.zeros(4, np.float32)
        first = x + buffer
        buffer += 10
        second = x + buffer
        buffer[...] = 0
        return first, second, x + buffer

    first, second, third = run(f, X)
    np.testing.assert_array_equal(first, X)
    np.testing.assert_array_equal(second, X + 10)
    np.testing.assert_array_equal(third, X)

    def g(x):
        scalar = np.zeros((), np.float32)
        first = x + scalar
        scalar += 10
        return first, x + scalar

    first, second = run(g, X)
    np.testing.assert_array_equal(second, X + 10)


def test_calls_with_the_same_arrays_share_a_key():
    assert Call(len, (X, 1.0), {}).key == Call(len, (X + 1, 1.0), {}).key


# ---- leaves that are numbers -----------------------------------------------------------------


def scaled(params, x):
    return ((x * params["w"] * params["scale"]) ** 2).mean()


def test_a_scalar_that_is_an_array_is_trained():
    params = {"w": np.ones(4, np.float32), "scale": np.asarray(np.float32(2.0))}
    step = cutback.compile(scaled, optimizer=cutback.optim.AdamW(lr=0.1))
    step(params, X)
    assert params["scale"] < 2.0


@pytest.mark.parametrize("number", [np.float32(2.0), np.float64(2.0), 2.0, Unit(2.0)])
def test_a_number_among_the_parameters_is_refused_by_name(number):
    params = {"w": np.ones(4), "scale": number}
    step = cutback.compile(scaled, optimizer=cutback.optim.AdamW(lr=0.1))
    kind = type(number).__name__
    for call in (step, step.prepare):
        with pytest.raises(TypeError, match=rf"params\['scale'\] is .*{kind}.*np.asarray"):
            call(params, X.astype(np.float64))
    np.testing.assert_array_equal(params["w"], np.ones(4))
    assert step.optimizer.t == 0


def test_a_scalar_in_the_place_of_an_array_is_refused_at_any_call():
    """Scalar and array have the same dtype and shape, so they share a compiled program."""
    step = cutback.compile(scaled, optimizer=cutback.optim.AdamW(lr=0.1))
    step({"w": np.ones(4, np.float32), "scale": np.ones((), np.float32)}, X)
    with pytest.raises(TypeError, match=r"params\['scale'\]"):
        step({"w": np.ones(4, np.float32), "scale": np.float32(1)}, X)
    assert step.optimizer.t == 1


def test_numbers_that_nothing_updates_are_fine():
    params = {"w": np.ones(4, np.float32), "scale": np.float32(2.0), "n": 3, "name": "a"}
    _, gradient = cutback.value_and_grad(scaled)(params, X)
    assert gradient["scale"].shape == () and gradient["n"] is None
    step = cutback.compile(
        lambda p, x, rate: ((x * p["w"]) ** 2).mean() * rate,
        optimizer=cutback.optim.AdamW(lr=0.1),
    )
    step({"w": np.ones(4, np.float32), "layers": 3}, X, np.float32(0.5))
    step({"w": np.ones(4, np.float32), "layers": 3}, X, 0.5)


def test_gradients_are_not_lost_in_a_scalar():
    step = cutback.value_and_grad(lambda w: w * w)
    with pytest.raises(TypeError, match=r"out: .*NumPy scalar"):
        step(np.ones(()), out=np.float64(0))
    out = np.zeros(())
    step(np.ones(()), out=out)
    assert out == 2
