"""Tests versions of AdamW8bit's codes in tensors, as on arrays."""

from __future__ import annotations

import copy
import io
import pickle
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import cutback.optim as arrays
import cutback.torch.optim as ours

FILE = Path(__file__).parents[2] / "data" / "optim" / "adamw_8bit_version_1.npz"
STATES = ("m", "v", "m_scale", "v_scale")
SHAPES = {"w": (20, 35), "b": (3,), "e": (0, 3)}


def tensors(dtype=torch.float32):
    params = [nn.Parameter(torch.ones(shape, dtype=dtype)) for shape in SHAPES.values()]
    for p in params:
        p.grad = torch.linspace(-1, 1, p.numel(), dtype=dtype).reshape(p.shape)
    return params


def old_state(**options):
    """Returns a state as written by version 1, whose groups had no version."""
    state = ours.AdamW8bit(tensors(), **options).state_dict()
    for group in state["param_groups"]:
        assert group.pop("codes") == 2
    with np.load(FILE) as file:
        for i, name in enumerate(SHAPES):
            found = {key: torch.from_numpy(file[f"params['{name}'].{key}"]) for key in STATES}
            state["state"][i] = {"step": torch.tensor(40.0), **found}
    return state


def assert_as_on_arrays(optimizer):
    twin = arrays.AdamW8bit()
    with np.load(FILE) as file:
        twin.load_state_dict(file)
    held = twin.state_dict()
    for p, name in zip(optimizer.param_groups[0]["params"], SHAPES, strict=True):
        for key in STATES:
            found, wanted = optimizer.state[p][key].numpy(), held[f"params['{name}'].{key}"]
            assert (found.dtype, found.shape) == (wanted.dtype, wanted.shape)
            assert found.tobytes() == wanted.tobytes()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("stepped", [True, False])
def test_a_state_of_version_1(stepped, dtype):
    params = tensors(dtype)
    optimizer, state = ours.AdamW8bit(params), old_state()
    if stepped:
        optimizer.step()
    given = copy.deepcopy(state)
    optimizer.load_state_dict(state)
    assert str(state) == str(given)
    assert_as_on_arrays(optimizer)
    optimizer.step()
    file = io.BytesIO()
    torch.save(optimizer.state_dict(), file)
    file.seek(0)
    again = ours.AdamW8bit(tensors(dtype))
    again.load_state_dict(torch.load(file))
    for p, q in zip(params, again.param_groups[0]["params"], strict=True):
        assert all(torch.equal(optimizer.state[p][key], again.state[q][key]) for key in STATES)


def test_a_pickle_with_codes_of_version_1():
    optimizer, state = ours.AdamW8bit(tensors()), old_state()
    optimizer.step()
    del optimizer.param_groups[0]["codes"]
    for i, p in enumerate(optimizer.param_groups[0]["params"]):
        optimizer.state[p] = state["state"][i]
    for again in (pickle.loads(pickle.dumps(optimizer)), copy.deepcopy(optimizer)):
        assert_as_on_arrays(again)
        again.step()


def test_a_state_of_version_1_of_halves():
    params = [nn.Parameter(p.detach().bfloat16()) for p in tensors()]
    state, optimizer = old_state(), ours.AdamW8bit(params, half="master")
    for i, p in enumerate(params):
        state["state"][i]["master"] = p.detach().float()
    optimizer.load_state_dict(state)
    assert_as_on_arrays(optimizer)


@pytest.mark.parametrize("version", [3, 0, 1.5, "2a", None, torch.tensor(7)])
def test_versions_that_are_not_known_are_refused(version):
    optimizer = ours.AdamW8bit(tensors())
    optimizer.step()
    state = copy.deepcopy(optimizer.state_dict())
    before, state["param_groups"][0]["codes"] = str(state), version
    with pytest.raises(ValueError, match="AdamW8bit: group 0 of the state has 8-bit codes of vers"):
        optimizer.load_state_dict(state)
    assert str(optimizer.state_dict()) == before
    optimizer.step()


def test_a_group_that_is_added_later_has_a_version():
    first, *others = tensors()
    optimizer = ours.AdamW8bit([first])
    optimizer.add_param_group({"params": others})
    assert [group["codes"] for group in optimizer.param_groups] == [2, 2]
    assert "codes" not in ours.Lion([first]).param_groups[0]


def filled(key, value):
    def change(state):
        state["state"][0][key] = torch.full_like(state["state"][0][key], value)

    return change


def filled_first(key, value):
    def change(state):
        scales = state["state"][0][key]
        state["state"][0][key] = torch.stack([torch.full((3,), value), torch.ones(3)], 1)
        assert scales.shape in ((3, 2), (3,))

    return change


def missing(key):
    def change(state):
        state["state"][0][key] = None

    return change


def version(value):
    def change(state):
        state["param_groups"][0]["codes"] = value

    return change


@pytest.mark.parametrize("old", [False, True])
@pytest.mark.parametrize(("change", "text"), [
    (filled("m_scale", float("nan")), "m_scale of parameter 0 .* has a scale of nan"),
    (filled("v_scale", -1.0), "v_scale of parameter 0 .* has a scale of -1"),
    (filled("v_scale", float("inf")), "v_scale of parameter 0 .* has a scale of inf"),
    (filled_first("v_scale", 1e30), "v_scale of parameter 0 .* least scale, 1e.30, is above"),
    (missing("m"), "m of parameter 0 of group 0 in the state to load is None"),
    (missing("v_scale"), "v_scale of parameter 0 of group 0 in the state to load is None"),
    (version(True), "codes of version True"),
    (version(np.True_), "codes of version True"),
])  # fmt: skip
def test_damaged_codes_are_refused(change, text, old):
    optimizer = ours.AdamW8bit(tensors())
    optimizer.step()
    state = old_state() if old else copy.deepcopy(optimizer.state_dict())
    before = str(optimizer.state_dict())
    change(state)
    with pytest.raises(ValueError, match=text):
        optimizer.load_state_dict(state)
    assert str(optimizer.state_dict()) == before
    optimizer.step()


@pytest.mark.parametrize("kind", [ours.AdamW8bit, ours.AdamW, ours.Lion])
def test_states_in_numpy_arrays(kind):
    first, params = kind(tensors(), lr=0.1), tensors()
    first.step()
    state, second = first.state_dict(), kind(params, lr=0.1)
    as_arrays = {
        n: {key: x.numpy() for key, x in held.items()} for n, held in state["state"].items()
    }
    second.load_state_dict({**state, "state": as_arrays})
    assert str(second.state_dict()) == str(state)
    second.step()
    key = next(key for key in state["state"][0] if key != "step")
    wrong = np.full(SHAPES["w"], None)
    with pytest.raises(TypeError, match=f"{key} of parameter 0 .* is an array of object"):
        second.load_state_dict({**state, "state": {0: {**state["state"][0], key: wrong}}})
