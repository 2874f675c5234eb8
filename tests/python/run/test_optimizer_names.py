"""A formula's options and states may have any name that Python allows."""

from __future__ import annotations

import copy
import keyword
import pickle

import numpy as np
import pytest

import cutback
from cutback import optim

USED = {name for name in dir(optim.recorded.Recorded) if not name.startswith("__")}
USED |= {"half", "seed", "native", "options", "self", "params", "grads", "definition", "lr",
         "state_names", "_fixed", "_state", "_table", "_busy", "_halves", "_numbers"}  # fmt: skip
NAMES = sorted(USED - {"groups", "t"})


def formula_of(name):
    """Returns the formula p - name * g, with an option of this name."""
    assert name.isidentifier() and not keyword.iskeyword(name)
    scope = {}
    exec(f"def formula(p, g, m, *, {name}=2.0): return p - {name} * g, m + g", scope)
    return scope["formula"]


@pytest.mark.parametrize("name", NAMES)
def test_an_option_of_any_name(name):
    kind = optim.foreach(formula_of(name))
    params, grads = [np.zeros(3, "f4"), np.zeros(2, "f4")], [np.ones(3, "f4"), np.ones(2, "f4")]
    optimizer = kind(**{name: 5.0})
    assert optimizer.options == {name: 5.0} and f"{name}=5.0" in repr(optimizer)
    optimizer.step(params, grads)
    assert (params[0] == -5).all()
    optimizer.options[name] = 1.0
    optimizer.step(params, grads)
    assert (params[0] == -6).all() and optimizer.t == 2
    assert [a.tolist() for a in optimizer.states["m"]] == [[2.0] * 3, [2.0] * 2]
    twin = copy.deepcopy(optimizer)
    twin.load_state_dict(optimizer.state_dict())
    twin.step(copy.deepcopy(params), grads)
    assert twin.t == 3 and optimizer.t == 2 and twin.options == {name: 1.0}
    kind().step([np.zeros(3, "f4")], [np.ones(3, "f4")])
    with pytest.raises(TypeError, match="number"):
        kind(**{name: "five"})


@pytest.mark.parametrize("name", ["lr", "half", "seed", "width"])
def test_options_are_attributes_where_the_name_is_free(name):
    optimizer = optim.foreach(formula_of(name))(**{name: 5.0})
    assert getattr(optimizer, name) == 5.0
    setattr(optimizer, name, lambda t: 1.0 + t)
    p = np.zeros(3, "f4")
    optimizer.step(p, np.ones(3, "f4"))
    optimizer.step(p, np.ones(3, "f4"))
    assert (p == -3).all()


@pytest.mark.parametrize("name", ["seed", "half", "states", "step", "rows"])
def test_an_option_of_any_name_differs_between_groups_and_in_a_compiled_step(name):
    kind = optim.foreach(formula_of(name))
    optimizer = kind(groups=[{"names": "*1*", name: 7.0}])
    params = [np.zeros(3, "f4"), np.zeros(3, "f4")]
    step = cutback.compile(lambda p: (p[0] + p[1]).sum(), optimizer=optimizer)
    step(params)
    assert (params[0] == -2).all() and (params[1] == -7).all()


def test_an_option_called_names_is_the_same_for_all_groups():
    """In a group, ``names`` means its patterns."""

    def formula(p, g, *, names=2.0, lr=1.0):
        return p - names * lr * g

    optimizer = optim.foreach(formula)(names=3.0, groups=[{"names": "*1*", "lr": 2.0}])
    params, grads = [np.zeros(2, "f4")] * 1 + [np.zeros(2, "f4")], [np.ones(2, "f4")] * 2
    optimizer.step(params, grads)
    assert (params[0] == -3).all() and (params[1] == -6).all()


def test_names_that_cannot_be_are_errors():
    with pytest.raises(TypeError, match="every optimizer has an option 'groups'"):
        optim.foreach(formula_of("groups"))
    with pytest.raises(TypeError, match="reserved name missed; rename the state"):
        optim.foreach(lambda p, g, missed, *, lr=1.0: (p - lr * g, missed))


@optim.foreach
def seeded(p, g, *, seed=2.0):
    return p - seed * g


def test_pickles_keep_options():
    optimizer = pickle.loads(pickle.dumps(seeded(seed=4.0)))
    p = np.zeros(2, "f4")
    optimizer.step(p, np.ones(2, "f4"))
    assert (p == -4).all() and optimizer.seed == 4.0


@pytest.mark.parametrize("option", ["beta1", "beta2"])
@pytest.mark.parametrize("value", [1.0, -0.1, 2.0])
def test_betas_of_lamb_are_below_one(option, value):
    """With beta 1 the bias correction would divide by 0."""
    with pytest.raises(ValueError, match=f"{option}={value} is not in"):
        optim.LAMB(**{option: value})


@pytest.mark.parametrize("option", ["lr", "eps", "weight_decay"])
def test_other_options_of_lamb_are_not_negative(option):
    with pytest.raises(ValueError, match=f"LAMB: {option}=-1.0 must be finite and at least 0"):
        optim.LAMB(**{option: -1})


@pytest.mark.parametrize("where", [0, 1])
def test_masked_arrays_are_refused(where):
    """A masked array would lose its mask."""
    arrays = [np.ones(4, "f4"), np.ones(4, "f4")]
    optimizer = optim.SGD(lr=1.0)
    optimizer.step(*arrays)
    arrays[where] = np.ma.masked_array(arrays[where], [0, 1, 0, 0])
    for _ in range(2):
        with pytest.raises(TypeError, match="masked arrays are not supported"):
            optimizer.step(*arrays)
    assert optimizer.t == 1


def test_groups_by_a_function_of_the_name():
    params = {"w": np.ones(3), "bias": np.ones(3)}
    zeros = {name: np.zeros(3) for name in params}
    decays = {name for name in params if not name.startswith("b")}
    optimizer = cutback.optim.SGD(
        lr=0.1,
        weight_decay=1.0,
        groups=[{"names": lambda name: name[8:-2] not in decays, "weight_decay": 0.0}],
    )
    optimizer.step(params, zeros)
    np.testing.assert_allclose(params["w"], 0.9)
    np.testing.assert_array_equal(params["bias"], 1.0)
    with pytest.raises(ValueError, match="do not match any parameter"):
        cutback.optim.SGD(groups=[{"names": lambda name: False}]).step(params, zeros)
    with pytest.raises(TypeError, match="a function of a name"):
        cutback.optim.SGD(groups=[{"names": 3}])


def test_the_rows_that_are_returned_belong_to_the_caller():
    p, g = np.ones(3, "f4"), np.ones(3, "f4")
    optimizer = optim.SGD(lr=1.0)
    optimizer.rows()[0] = (0.0,) * 6
    optimizer.step(p, g)
    assert (p == 0).all() and optimizer.rows()[0][0] == 1.0


def test_copies_and_pickles_make_rows_of_their_own():
    """An earlier version's pickle has no rows."""
    optimizer = optim.SGD(lr=1.0)
    for again in (copy.copy(optimizer), copy.deepcopy(optimizer),
                  pickle.loads(pickle.dumps(optimizer))):  # fmt: skip
        assert again._last is not optimizer._last
        again.lr = 2.0
        assert again.rows()[0][0] == 2.0 and optimizer.rows()[0][0] == 1.0
    state = optimizer.__getstate__()
    assert "_last" not in state
