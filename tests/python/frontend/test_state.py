"""The state of a run, saved and loaded: training continues with the same bits."""

from __future__ import annotations

import io
import pickle
from typing import Any, NamedTuple

import numpy as np
import pytest

import cutback as cb
from cutback.nn import functional as F

RNG = np.random.default_rng(0)
X = RNG.standard_normal((8, 4)).astype(np.float32)


class Norm(NamedTuple):
    mean: Any
    var: Any


def fresh() -> Any:
    rng = np.random.default_rng(1)
    w = rng.standard_normal((4, 6)).astype(np.float32)
    return {"net": [{"w": w, "b": np.zeros(6)}], "half": np.ones(6, np.float32)}, Norm(
        np.zeros(6, np.float32), np.ones(6, np.float32)
    )


def loss(params: Any, norm: Norm, x: Any) -> Any:
    layer = params["net"][0]
    h = F.batch_norm(x @ layer["w"], norm.mean, norm.var, training=True)
    return (F.dropout(h, 0.3) * params["half"] + layer["b"] - 1).astype("f32").std()


def stepped(optimizer: Any, n: int, seed: int = 5) -> Any:
    params, norm = fresh()
    step = cb.compile(loss, optimizer=optimizer, seed=seed)
    for _ in range(n):
        step(params, norm, X)
    return step, params, norm


@pytest.mark.parametrize("make", [cb.optim.AdamW, cb.optim.SGD, cb.optim.NAdam])
def test_a_run_goes_on_with_the_same_bits(make: Any) -> None:
    step, params, norm = stepped(make(lr=1e-2), 3)
    file = io.BytesIO()
    np.savez(file, **step.state_dict((params, norm)))
    want = [step(params, norm, X).tobytes() for _ in range(3)]
    for n in (0, 2):  # also if the optimizer already has states
        other, others, norms = stepped(make(lr=1e-2), n, seed=0)
        file.seek(0)
        other.load_state_dict(np.load(file), (others, norms))
        assert [other(others, norms, X).tobytes() for _ in range(3)] == want
        pairs = (cb.tree.flatten(tree)[0] for tree in ((params, norm), (others, norms)))
        for x, y in zip(*pairs, strict=True):
            assert x.tobytes() == y.tobytes()


def test_entries_are_named_as_in_the_tree() -> None:
    step, params, norm = stepped(cb.optim.AdamW(lr=1e-2), 1)
    state = step.state_dict({"params": params, "norm": norm})
    assert {"params['norm'].mean", "params['params']['net'][0]['w']", "rng_step", "seed"} <= set(
        state
    )
    assert "optimizer.params['net'][0]['w'].m" in state and state["optimizer.t"] == 1
    assert all(isinstance(x, np.ndarray) for x in state.values())
    params["half"][...] = 7
    assert (state["params['params']['half']"] != 7).all()


@pytest.mark.parametrize(
    ("change", "error", "text"),
    [
        (lambda s: s.pop("params[0]['half']"), ValueError, r"lacks params\[0\]\['half'\]"),
        (lambda s: s.update({"params[0]['q']": X}), ValueError, r"has params\[0\]\['q'\]"),
        (lambda s: s.update({"params[1].mean": X}), ValueError, r"f32\[6\]|float32\[6\].*\[8, 4\]"),
        (lambda s: s.update({"params[1].mean": np.zeros(6)}), ValueError, "float32.*float64"),
        (lambda s: s.pop("rng_step"), ValueError, "lacks 'rng_step'"),
        (lambda s: s.pop("optimizer.t"), ValueError, "lacks 't'"),
        (lambda s: [s.pop(n) for n in list(s) if "optim" in n], ValueError, "without an optimizer"),
    ],
)
def test_a_state_that_does_not_fit_changes_nothing(change: Any, error: Any, text: str) -> None:
    step, params, norm = stepped(cb.optim.AdamW(lr=1e-2), 2)
    state = step.state_dict((params, norm))
    step(params, norm, X)
    before = {name: x.tobytes() for name, x in step.state_dict((params, norm)).items()}
    change(state)
    with pytest.raises(error, match=text):
        step.load_state_dict(state, (params, norm))
    after = {name: x.tobytes() for name, x in step.state_dict((params, norm)).items()}
    assert after == before


def test_a_step_without_optimizer() -> None:
    step = cb.value_and_grad(lambda p: (F.dropout(p, 0.5) ** 2).sum(), seed=3)
    p = np.ones(64)
    step(p)
    state = step.state_dict(p)
    want = step(p)[0]
    other = cb.value_and_grad(lambda p: (F.dropout(p, 0.5) ** 2).sum())
    other.load_state_dict(state, p)
    assert other(p)[0] == want
    with pytest.raises(TypeError, match="a mapping, not list"):
        other.load_state_dict([], p)
    fixed = np.ones(64)
    fixed.flags.writeable = False
    with pytest.raises(ValueError, match="read-only"):
        other.load_state_dict(state, fixed)


def test_pickle_says_why_not() -> None:
    step = cb.grad(lambda x: x.sum())
    with pytest.raises(TypeError, match="cannot be pickled: save what its state_dict returns"):
        pickle.dumps(step)
