"""Indexing of traced arrays against NumPy."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import cutback


@settings(max_examples=120)
@given(hnp.array_shapes(max_dims=4, max_side=4), st.data())
def test_basic_indexing_is_numpys(shape, data):
    a = np.arange(np.prod(shape), dtype=np.float64).reshape(shape)
    key = data.draw(hnp.basic_indices(shape, allow_newaxis=True, allow_ellipsis=True))
    got = cutback.compile(lambda x: x[key], argnums=None)(a)
    np.testing.assert_array_equal(got, a[key])


@pytest.mark.parametrize(
    "key",
    [
        np.array([2, 0, -1]),
        [1, 1],
        (slice(None), np.array([[0, 1], [1, 0]])),
        (np.array([0, 2]), np.array([1, -1])),
        (np.array([[0], [2]]), np.array([1, 0])),
        (np.array([0, 2]), slice(1, None), np.array([3, 1])),
        (slice(None), np.array([0, 1]), np.array([3, -4])),
        (0, np.array([0, 1])),
        (..., np.array([3, 3])),
        (np.array([1]), None),
        (slice(None, None, -1), np.array([0, 1])),
        np.zeros((0,), np.int64),
    ],
)
def test_integer_arrays(key, run):
    a = np.arange(24.0).reshape(3, 2, 4)
    np.testing.assert_array_equal(run(lambda x: x[key], a), a[key])


@pytest.mark.parametrize("dtype", [np.int64, np.int32])
def test_traced_index_arrays(run, dtype):
    a = np.arange(12.0).reshape(4, 3)
    i, j = np.array([3, -1, 0], dtype), np.array([2, 0, -3], dtype)
    np.testing.assert_array_equal(run(lambda x, i: x[i], a, i), a[i])
    np.testing.assert_array_equal(run(lambda x, i, j: x[i, j], a, i, j), a[i, j])
    np.testing.assert_array_equal(run(lambda x, j: x[:, j], a, j), a[:, j])
    np.testing.assert_array_equal(run(lambda x, j: x[np.arange(3), j], a, j), a[np.arange(3), j])


def test_an_index_out_of_range_is_an_error(run):
    a = np.arange(12.0).reshape(4, 3)
    with pytest.raises(IndexError, match="index 4 is out of bounds for axis 0"):
        run(lambda x: x[4], a)
    with pytest.raises(IndexError, match="index 3 is out of bounds for axis 1"):
        run(lambda x: x[:, np.array([0, 3])], a)
    with pytest.raises(ValueError, match="4"):
        run(lambda x, i: x[i], a, np.array([4]))


@pytest.mark.parametrize("dtype", [np.int64, np.int32])
@pytest.mark.parametrize("wrong", [-11, -7, 6, 2**31 - 1])
def test_the_index_named_is_the_one_given(run, wrong, dtype):
    """The error names neither the index after counting from the end, nor the combined row
    number."""
    a = np.arange(12.0).reshape(4, 3)
    i, good = np.array([0, wrong], dtype), np.array([0, 1], dtype)
    calls = [
        (lambda x, i: x[i], 4), (lambda x, i: x[:, i], 3), (lambda x, i: x[i, good], 4),
        (lambda x, i: x[good, i], 3), (lambda x, i: x[i, 1], 4), (lambda x, i: x[i, i], 4),
        (lambda x, i: cutback.take(x, i, axis=1), 3),
        (lambda x, i: cutback.take_along_axis(x[:, :1], i.reshape(2, 1), 0), 4),
        (lambda x, i: cutback.nn.functional.embedding(i, x), 4),
    ]  # fmt: skip
    for call, rows in calls:
        with pytest.raises(ValueError, match=f"index {wrong} out of range for .*{rows}"):
            run(call, a, i)
    # each index on its own axis, although together they make an existing row number
    with pytest.raises(ValueError, match="index 3 out of range for 3 rows"):
        run(lambda x, i, j: x[i, j], a, np.array([0], dtype), np.array([3], dtype))
    with pytest.raises(IndexError, match=f"index {wrong} is out of bounds for axis 1 with size 3"):
        run(lambda x, i: x[i, np.array([0, wrong])], a, good)


def test_index_arrays_on_empty_axes(run):
    a, none = np.zeros((0, 3)), np.zeros(0, np.int64)
    assert run(lambda x, i: x[i], a, none).shape == (0, 3)
    assert run(lambda x, i, j: x[i, j], a, none, none).shape == (0,)
    with pytest.raises(ValueError, match="index 0 out of range for 0 rows"):
        run(lambda x, i, j: x[i, j], a, np.zeros(1, np.int64), np.zeros(1, np.int64))


ROWS = np.array([True, False, True])
PAIRS = np.array([[True, False, True, True], [False] * 4, [True] * 4])


@pytest.mark.parametrize(
    "key",
    [
        ROWS, PAIRS, ~ROWS & ROWS, [True, False, True], (ROWS, None), (ROWS, slice(None), 1),
        (PAIRS, 1), (..., np.array([True, False])), (ROWS, [0, 1]), (slice(1, 3), PAIRS[0]),
    ],
    ids=range(10),
)  # fmt: skip
def test_masks_of_numpy_select_a_known_number_of_elements(key, run):
    a = np.arange(24.0).reshape(3, 4, 2)
    np.testing.assert_array_equal(run(lambda x: x[key], a), a[key])


def test_masks_that_do_not_fit():
    with pytest.raises(IndexError, match=r"mask of shape \(3,\) does not fit axes of sizes \(4,\)"):
        cutback.trace(lambda x: x[:, ROWS], np.zeros((3, 4)))


def test_what_has_no_fixed_shape_is_refused():
    a = np.arange(6.0).reshape(2, 3)
    with pytest.raises(TypeError, match="boolean mask"):
        cutback.trace(lambda x: x[x > 2], a)
    with pytest.raises(TypeError, match="must hold integers"):
        cutback.trace(lambda x: x[x], a)
    with pytest.raises(IndexError, match="3 indices"):
        cutback.trace(lambda x: x[0, 0, 0], a)
    with pytest.raises(TypeError, match="is not an index"):
        cutback.trace(lambda x: x["a"], a)


def test_gradients_of_indexing(check_grad):
    a = np.random.default_rng(0).standard_normal((4, 3))
    check_grad(lambda x: x[1:, ::2] * 2, a)
    check_grad(lambda x: x[::-1], a)
    check_grad(lambda x: x[np.array([0, 0, 3])] * x[1], a)
    check_grad(lambda x: x[np.array([0, 0, 3]), np.array([1, 1, 2])], a)


def test_new_axes_up_to_eight(run):
    a = np.arange(24.0).reshape(2, 3, 4)
    key = (None, 0, None, 1, None, slice(None), None, None, None, None)
    np.testing.assert_array_equal(run(lambda x: x[key], a), a[key])
    with pytest.raises(ValueError, match=r"9 dimensions.*\[test_indexing.py:"):
        cutback.trace(lambda x: x[(None,) * 6], a)


@pytest.mark.parametrize("shape", [(7,), (7, 3), (7, 2, 2)])
def test_segment_sum_is_that_of_numpy(shape):
    rng = np.random.default_rng(0)
    x, ids = rng.standard_normal(shape), np.array([2, 0, 2, 4, 0, 2, 1])
    want = np.zeros((5, *shape[1:]))
    np.add.at(want, ids, x)
    weights = rng.standard_normal(want.shape)

    def loss(x, ids):
        return (cutback.segment_sum(x, ids, num_segments=5) * weights).sum()

    found = cutback.compile(lambda x, i: cutback.segment_sum(x, i, 5), argnums=None)(x, ids)
    np.testing.assert_allclose(found, want, rtol=0, atol=1e-15)
    np.testing.assert_array_equal(cutback.grad(loss)(x, ids), weights[ids])
    each = cutback.vmap(lambda x, i: cutback.segment_sum(x, i, 5))(
        np.stack([x, 2 * x]), np.stack([ids, ids])
    )
    np.testing.assert_allclose(each[1], 2 * want, rtol=0, atol=1e-14)


def test_segment_sum_refuses():
    x = np.zeros((3, 2))
    for args, error, text in [
        ((x, np.zeros(2, int), 4), ValueError, r"one id for each of the 3 slices .* is \(2,\)"),
        ((x.astype(int), np.zeros(3, int), 4), TypeError, "floating, not i64"),
        ((x, np.array([0, 4, 1]), 4), ValueError, "index 4 out of range for 4 rows"),
    ]:
        step = cutback.compile(lambda x, i, n=args[2]: cutback.segment_sum(x, i, n), argnums=None)
        with pytest.raises(error, match=text):
            step(*args[:2])
