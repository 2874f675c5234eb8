"""States of other optimizers and other parameters are refused with the reason, and nothing
changes."""

from __future__ import annotations

import copy
import functools

import numpy as np
import pytest
import torch
from torch import nn

import cutback.torch.optim as ours


def trained(kind, shape=(3, 2), **options):
    p = nn.Parameter(torch.ones(shape))
    optimizer = kind([p], lr=0.1, **options)
    p.grad = torch.ones(shape)
    optimizer.step()
    return p, optimizer


def whole(optimizer):
    return repr(optimizer.state_dict())


@pytest.mark.parametrize(("one", "other", "text"), [
    ("AdamW", "SGD", "AdamW: group 0 of the state has no 'betas'; .* dampening"),
    ("SGD", "AdamW", "SGD: group 0 of the state has no 'momentum'; .* betas"),
    ("RMSprop", "Adagrad", "RMSprop: group 0 of the state has no 'alpha'"),
    ("Rprop", "Adamax", "Rprop: group 0 of the state has no 'etas'"),
])  # fmt: skip
def test_the_state_of_another_optimizer(one, other, text):
    p, optimizer = trained(getattr(ours, one))
    _, given = trained(getattr(ours, other))
    before = whole(optimizer), p.clone()
    with pytest.raises(ValueError, match=text):
        optimizer.load_state_dict(given.state_dict())
    assert whole(optimizer) == before[0] and torch.equal(p, before[1])
    optimizer.step()
    assert not torch.equal(p, before[1])


@pytest.mark.parametrize("name", ["AdamW", "SGD", "Adafactor", "AdamW8bit"])
def test_the_state_of_other_shapes(name):
    options = {"momentum": 0.9} if name == "SGD" else {}
    _, optimizer = trained(getattr(ours, name), **options)
    _, given = trained(getattr(ours, name), (5, 400), **options)
    before = whole(optimizer)
    with pytest.raises(ValueError, match=rf"{name}: .* of parameter 0 of group 0 is .*\(3, 2\)"):
        optimizer.load_state_dict(given.state_dict())
    assert whole(optimizer) == before
    optimizer.step()


@pytest.mark.parametrize(("name", "half", "key", "is_type", "wrong"), [
    ("AdamW8bit", None, "m", torch.uint8, torch.float32),
    ("AdamW8bit", None, "v", torch.uint8, torch.int8),
    ("AdamW8bit", None, "m_scale", torch.float32, torch.int32),
    ("AdamW", None, "exp_avg", torch.float32, torch.uint8),
    ("AdamW", None, "exp_avg_sq", torch.float32, torch.complex64),
    ("SGD", None, "momentum_buffer", torch.float32, torch.int64),
    ("Adafactor", None, "row_var", torch.float32, torch.bool),
    ("SOAP", None, "left", torch.float32, torch.int32),
    ("AdamW", "remainder", "remainder", torch.int16, torch.float32),
    ("AdamW", "master", "master", torch.float32, torch.int16),
])  # fmt: skip
@pytest.mark.filterwarnings("ignore:Casting complex")
def test_states_of_another_kind(name, half, key, is_type, wrong):
    options = {"momentum": 0.9} if name == "SGD" else {}
    params = [nn.Parameter(torch.ones(3, 2, dtype=torch.bfloat16 if half else torch.float32))
              for _ in range(3)]  # fmt: skip
    for p in params:
        p.grad = torch.ones_like(p)
    groups = [{"params": params[:1]}, {"params": params[1:]}]
    optimizer = getattr(ours, name)(groups, lr=0.1, half=half, **options)
    optimizer.step()
    state, before = copy.deepcopy(optimizer.state_dict()), whole(optimizer)
    assert state["state"][2][key].dtype is is_type
    state["state"][2][key] = state["state"][2][key].to(wrong)
    text = f"{name}: {key} of parameter 1 of group 1 in the state to load is {wrong}, .* {is_type};"
    with pytest.raises(ValueError, match=text):
        optimizer.load_state_dict(state)
    assert whole(optimizer) == before
    optimizer.step()


def test_states_of_another_precision_are_cast_as_by_pytorch():
    p, optimizer = trained(ours.AdamW)
    state = copy.deepcopy(optimizer.state_dict())
    state["state"][0]["exp_avg"] = state["state"][0]["exp_avg"].double()
    optimizer.load_state_dict(state)
    assert optimizer.state[p]["exp_avg"].dtype is torch.float32
    optimizer.step()
    assert optimizer.why_torch is None


def test_states_that_lack_something():
    _, optimizer = trained(ours.NAdam)
    state = copy.deepcopy(optimizer.state_dict())
    del state["state"][0]["mu_product"]
    with pytest.raises(ValueError, match="state of parameter 0 of group 0 has no mu_product"):
        optimizer.load_state_dict(state)
    state["state"][0] = {"momentum_buffer": torch.ones(3, 2)}
    with pytest.raises(ValueError, match="has momentum_buffer and none of"):
        optimizer.load_state_dict(state)


@pytest.mark.parametrize(("name", "key", "wrong", "text"), [
    ("AdamW", "step", None, "is None, but must be a count"),
    ("AdamW", "step", "3", "is '3', but must be a count"),
    ("AdamW", "step", torch.tensor(-1.0), r"is tensor\(-1.\), but must be a count"),
    ("AdamW", "step", 2.5, "is 2.5, but must be a count"),
    ("AdamW", "step", True, "is True, but must be a count"),
    ("AdamW", "step", torch.tensor(1.0, device="meta"), "is tensor.*meta.*, but must be a count"),
    ("AdamW8bit", "step", torch.tensor(float("nan")), r"is tensor\(nan\), but must be a count"),
    ("SOAP", "step", 10**400, r"is 10+\.\.\., but must be a count"),
    ("Lion", "step", torch.tensor([1.0, 2.0]), r"is tensor\(\[1., 2.\]\), but must be a count"),
    ("Lion", "step", torch.tensor([1.0]).to_sparse(), "is tensor.*, but must be a count"),
    ("NAdam", "mu_product", torch.tensor(float("inf")), r"is tensor\(inf\), .* a finite number"),
    ("NAdam", "mu_product", 10**400, "is 10.*, but must be a finite number"),
    ("ASGD", "eta", torch.tensor([]), r"is tensor\(\[\]\), but must be a finite number"),
])  # fmt: skip
def test_counts_that_are_none(name, key, wrong, text):
    _, optimizer = trained(getattr(ours, name))
    state, before = copy.deepcopy(optimizer.state_dict()), whole(optimizer)
    state["state"][0][key] = wrong
    text = f"{name}: {key} of parameter 0 of the state to load {text}"
    with pytest.raises(ValueError, match=text):
        optimizer.load_state_dict(state)
    assert whole(optimizer) == before
    optimizer.step()


@pytest.mark.parametrize("name", ["AdamW", "NAdam", "Rprop", "Adafactor", "AdamW8bit", "Lion",
                                  "SOAP", "ADOPT"])  # fmt: skip
@pytest.mark.parametrize("as_kind", [int, float, np.int64, np.float32, lambda x: torch.tensor([x]),
                                     lambda x: torch.tensor(x, dtype=torch.float64),
                                     lambda x: torch.tensor(int(x), dtype=torch.uint8),
                                     lambda x: torch.tensor(x, dtype=torch.float16)])  # fmt: skip
@pytest.mark.filterwarnings("ignore:.*PyTorch's own code steps")
def test_counts_of_any_kind(name, as_kind):
    """Old checkpoints have other kinds of counts, and other libraries convert them."""
    p, optimizer = trained(getattr(ours, name))
    q, other = trained(getattr(ours, name))
    state = copy.deepcopy(other.state_dict())
    state["state"][0]["step"] = as_kind(float(state["state"][0]["step"]))
    other.load_state_dict(state)
    for _ in range(2):
        optimizer.step()
        other.step()
    assert torch.allclose(p, q, rtol=1e-5, atol=0) and not torch.isnan(p).any()
    assert float(other.state[q]["step"]) == 3


@pytest.mark.parametrize("name", ["NAdam", "Lion"])
def test_what_stands_beside_the_parameters_is_left_alone(name):
    p, optimizer = trained(getattr(ours, name))
    state = copy.deepcopy(optimizer.state_dict())
    state["state"] |= {"version": 3, 7: {"step": "none"}}
    optimizer.load_state_dict(state)
    assert optimizer.state["version"] == 3
    optimizer.step()
    assert optimizer.why_torch is None and float(optimizer.state[p]["step"]) == 2


@pytest.mark.parametrize(("wrong", "text"), [
    ({"state": None}, "'state' of the state to load is None, not a dict"),
    ({"state": [1]}, r"'state' of the state to load is \[1\], not a dict"),
    ({"state": {0: None}}, "parameter 0 of the state to load has None, not a dict"),
    ({"state": {0: torch.ones(2)}}, "parameter 0 of the state to load has tensor.*, not a dict"),
])  # fmt: skip
def test_states_that_are_none(wrong, text):
    _, optimizer = trained(ours.AdamW)
    before = whole(optimizer)
    with pytest.raises(ValueError, match=f"AdamW: {text}"):
        optimizer.load_state_dict({**optimizer.state_dict(), **wrong})
    assert whole(optimizer) == before


@pytest.mark.parametrize("name", ["AdamW", "RMSprop"])
def test_pytorch_s_code_does_not_begin_on_a_state_of_another_shape(name):
    p, q = nn.Parameter(torch.ones(3)), nn.Parameter(torch.ones(3))
    optimizer = getattr(ours, name)([p, q], lr=0.1)
    for _ in range(2):
        p.grad, q.grad = torch.ones(3), torch.ones(3)
        optimizer.step()
    key = optimizer._keys[0]
    optimizer.state[q][key] = torch.ones(4)
    before = p.clone(), whole(optimizer)
    with pytest.raises(ValueError, match=rf"{name}: {key} of parameter 1 of group 0 is \(4,\)"):
        optimizer.step()
    assert torch.equal(p, before[0]) and whole(optimizer) == before[1]


def named(order, groups=1, names="abcd", kind=ours.AdamW):
    """Makes parameters of one shape, in this order, with different gradients, and takes two
    steps."""
    params = {name: nn.Parameter(torch.full((3,), float(ord(name)))) for name in names}
    rows = [(name, params[name]) for name in order]
    half = len(rows) // groups
    split = [rows[i : i + half] for i in range(0, len(rows), half)]
    optimizer = kind([{"params": row} for row in split], lr=0.1)
    for name, p in params.items():
        p.grad = torch.full((3,), 0.01 * ord(name))
    return params, optimizer


@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("kind", [ours.AdamW, ours.SGD, ours.Lion, ours.AdamW8bit])
def test_states_are_matched_by_name(kind, groups):
    if kind is ours.SGD:
        kind = functools.partial(ours.SGD, momentum=0.9)
    params, optimizer = named("abcd", groups, kind=kind)
    optimizer.step()
    others, other = named("dbca" if groups == 1 else "badc", groups, kind=kind)
    other.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    for name in "abcd":
        state, found = optimizer.state[params[name]], other.state[others[name]]
        assert state.keys() == found.keys()
        assert all(torch.equal(state[key], found[key]) for key in state)
        others[name].data.copy_(params[name].detach())
    assert [n for g in other.param_groups for n in g["param_names"]] == list(
        "dbca" if groups == 1 else "badc"
    )
    optimizer.step()
    other.step()
    assert all(torch.equal(params[name], others[name]) for name in "abcd")


def test_states_of_other_names_are_matched_by_order():
    """As in PyTorch, a wrapper may have added a prefix to each name. A name known to both must not
    be at another position."""
    params, optimizer = named("abcd")
    optimizer.step()
    others, other = named("ebcd", names="ebcd")
    other.load_state_dict(optimizer.state_dict())
    state, found = optimizer.state[params["a"]], other.state[others["e"]]
    assert torch.equal(state["exp_avg"], found["exp_avg"])
    _, another = named("becd", names="ebcd")
    with pytest.raises(ValueError, match="parameter 0 is b, and in the state to load a"):
        another.load_state_dict(optimizer.state_dict())
    assert not another.state
