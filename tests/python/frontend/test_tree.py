"""Tests pytrees and the small parsers."""

from __future__ import annotations

import collections
import dataclasses

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cutback import budgets, dtypes, tree

Point = collections.namedtuple("Point", "x y")


@dataclasses.dataclass
class Box:
    a: object
    b: object


LEAVES = st.integers()
TREES = st.recursive(
    st.one_of(LEAVES, st.none()),
    lambda t: st.one_of(
        st.lists(t, max_size=3),
        st.lists(t, max_size=3).map(tuple),
        st.dictionaries(st.text(max_size=3), t, max_size=3),
        st.tuples(t, t).map(lambda p: Point(*p)),
        st.tuples(t, t).map(lambda p: Box(*p)),
    ),
    max_leaves=10,
)


@given(TREES)
def test_flatten_and_back(x):
    leaves, structure = tree.flatten(x)
    assert tree.unflatten(structure, leaves) == x
    assert tree.count(structure) == len(leaves) == len(tree.names(structure, "x"))
    assert hash(structure) == hash(tree.flatten(x)[1])
    assert tree.flatten(tree.map(lambda n: n + 1, x))[0] == [n + 1 for n in leaves]


def test_names_read_like_the_program():
    x = {"w": [1, (2, None)], "b": Box(3, Point(4, 5)), 0: 6}
    with pytest.raises(TypeError):
        sorted(x)
    structure = tree.flatten(x)[1]
    assert tree.names(structure, "p") == [
        "p['w'][0]",
        "p['w'][1][0]",
        "p['b'].a",
        "p['b'].b.x",
        "p['b'].b.y",
        "p[0]",
    ]


def test_dicts_are_taken_in_key_order():
    assert tree.flatten({"b": 1, "a": 2}) == tree.flatten({"a": 2, "b": 1})


def test_mismatches():
    structure = tree.flatten([1, 2])[1]
    with pytest.raises(ValueError, match="fewer"):
        tree.unflatten(structure, [1])
    with pytest.raises(ValueError, match="more"):
        tree.unflatten(structure, [1, 2, 3])
    with pytest.raises(ValueError, match="differ"):
        tree.map(lambda a, b: a, [1, 2], [1])


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        (None, None),
        (1000, (1, 1000, 0.0, 0)),
        ("1000", (1, 1000, 0.0, 0)),
        ("6GiB", (1, 6 * 2**30, 0.0, 0)),
        ("1.5 MB", (1, 1_500_000, 0.0, 0)),
        ("500kb", (1, 500_000, 0.0, 0)),
        ("0.4x", (2, 0, 0.4, 0)),
        ("40%", (2, 0, 0.4, 0)),
        ("min", (3, 0, 0.0, 0)),
        (0.4, (4, 0, 0.4, 0)),
        (np.float32(0.5), (4, 0, 0.5, 0)),
        (0, (4, 0, 0.0, 0)),
        (1, (4, 0, 1.0, 0)),
        (np.int64(1), (4, 0, 1.0, 0)),
        (2, (1, 2, 0.0, 0)),
        ("1B", (1, 1, 0.0, 0)),
        ("smallest", (5, 0, 0.0, 0)),
    ],
)
def test_budgets(spec, expected):
    assert budgets.parse(spec) == expected


@pytest.mark.parametrize("spec", ["Min", "half", "1PiB"])
def test_budgets_that_are_none_name_all_forms(spec):
    with pytest.raises(
        ValueError, match=r"write bytes, .*a position such as 0.4, .*'min' or 'smallest'"
    ):
        budgets.parse(spec)


def test_measures_are_numbered_as_in_the_core():
    for number, measure in enumerate(("arena", "live", "saved", "total")):
        parsed = budgets.parse(5, measure)
        assert parsed is not None and parsed[3] == number


def test_bytes_for_people():
    assert budgets.text(None) == "none"
    assert budgets.text(12) == "12 B"
    assert budgets.text(3 * 2**20) == "3.00 MiB"
    assert budgets.text(5 * 2**40) == "5120.00 GiB"


@pytest.mark.parametrize(
    ("spec", "name"),
    [("f32", "f32"), ("float32", "f32"), (float, "f64"), ("<i4", "i32"), (bool, "bool")],
)
def test_dtype_spellings(spec, name):
    assert dtypes.parse(spec) == name


@pytest.mark.parametrize("spec", ["c8", "f31", object(), "i2"])
def test_dtypes_that_do_not_exist(spec):
    with pytest.raises(TypeError, match="supported dtypes"):
        dtypes.parse(spec)


def test_names_of_jax() -> None:
    x = {"w": 3, "b": [1, Box(2, None)]}
    assert tree.leaves(x) == [1, 2, 3]
    assert tree.structure(x) == tree.flatten(x)[1]
    assert tree.map(lambda a, b: a - b, x, x) == {"w": 0, "b": [0, Box(0, None)]}
    assert tree.reduce(lambda a, b: a * b, x) == 6 and tree.reduce(max, [], 5) == 5
