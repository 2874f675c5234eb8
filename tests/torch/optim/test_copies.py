"""Copies and pickles of whole optimizers after steps: each continues independently, with the same
bits."""

from __future__ import annotations

import copy
import io
import pickle
import subprocess
import sys

import pytest
import torch
from torch import nn

import cutback.optim as arrays
import cutback.torch.optim as ours


def formula(p, g, m, *, lr=0.1):
    return p - lr * (m + g), 0.5 * m + g


@ours.foreach
def decorated(p, g, m, *, lr=0.1):
    return p - lr * (m + g), 0.5 * m + g


@arrays.foreach
def of_arrays(p, g, m, *, lr=0.1):
    return p - lr * (m + g), 0.5 * m + g


def saved(x):
    file = io.BytesIO()
    torch.save(x, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


KINDS = [getattr(ours, name) for name in ours.__all__ if name != "foreach"]
KINDS += [ours.foreach(arrays.LAMB), ours.foreach(formula), decorated, ours.foreach(of_arrays)]
WAYS = {"deepcopy": copy.deepcopy, "pickle": lambda x: pickle.loads(pickle.dumps(x)),
        "save": saved}  # fmt: skip


def stepped(kind, steps, seed=0):
    g = torch.Generator().manual_seed(seed)
    params = [nn.Parameter(torch.randn(6, 4, generator=g)) for _ in range(2)]
    optimizer = kind(params, lr=0.05)
    go_on(params, optimizer, range(steps))
    return params, optimizer


def go_on(params, optimizer, seeds):
    for seed in seeds:
        g = torch.Generator().manual_seed(seed)
        for p in params:
            p.grad = torch.randn(6, 4, generator=g)
        optimizer.step()


@pytest.mark.parametrize("again", WAYS.values(), ids=WAYS.keys())
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__qualname__)
def test_copies_go_on_by_themselves(kind, again):
    params, optimizer = stepped(kind, 3)
    other = again(optimizer)
    assert type(other) is type(optimizer)
    others = [p for group in other.param_groups for p in group["params"]]
    go_on(params, optimizer, range(3, 6))
    assert not any(torch.equal(p, q) for p, q in zip(params, others, strict=True))
    go_on(others, other, range(3, 6))
    assert all(torch.equal(p, q) for p, q in zip(params, others, strict=True))


def test_a_formula_that_no_module_has_is_copied_and_not_pickled():
    @ours.foreach
    def local(p, g, *, lr=0.1):
        return p - lr * g

    params, optimizer = stepped(local, 2)
    other = copy.deepcopy(optimizer)
    go_on([p for group in other.param_groups for p in group["params"]], other, [2])
    with pytest.raises((pickle.PicklingError, AttributeError), match=r"<locals>\.local"):
        pickle.dumps(optimizer)
    assert params[0].grad is not None


@pytest.mark.very_slow
def test_another_process_takes_a_pickle_up(tmp_path):
    """The other process has not used the formula before."""
    lamb = next(kind for kind in KINDS if kind.__name__ == "LAMB")
    params, optimizer = stepped(lamb, 2)
    (tmp_path / "whole").write_bytes(pickle.dumps(optimizer))
    code = (
        "import pickle, sys, torch\n"
        "o = pickle.load(open(sys.argv[1], 'rb'))\n"
        "for p in o.param_groups[0]['params']: p.grad = torch.ones(6, 4)\n"
        "o.step()\n"
        "torch.save([p.detach() for p in o.param_groups[0]['params']], sys.argv[2])\n"
    )
    subprocess.run([sys.executable, "-c", code, tmp_path / "whole", tmp_path / "p"], check=True)
    for p in params:
        p.grad = torch.ones(6, 4)
    optimizer.step()
    assert all(torch.equal(p, q) for p, q in zip(params, torch.load(tmp_path / "p"), strict=True))


def test_a_copy_is_of_the_same_class():
    """The class is the same even if the formula was used for two optimizers."""
    first, second = ours.foreach(formula), ours.foreach(formula)
    for kind in (first, second):
        params, optimizer = stepped(kind, 2)
        other = copy.deepcopy(optimizer)
        assert type(other) is kind
        go_on(params, optimizer, [5])
        copies = [p for group in other.param_groups for p in group["params"]]
        go_on(copies, other, [5])
        assert all(torch.equal(p, q) for p, q in zip(params, copies, strict=True))
    alone = arrays.foreach(formula)
    arrays.foreach(formula)
    assert type(copy.deepcopy(alone(lr=0.1))) is alone


PAIRS = [(kind, copy.deepcopy) for kind in KINDS] + [(ours.AdamW, way) for way in WAYS.values()]


@pytest.mark.parametrize(("kind", "again"), PAIRS)
def test_copies_have_the_public_attributes_of_the_original(kind, again):
    _, fresh = stepped(kind, 0)
    public = {key for key in vars(fresh) if key[0] != "_"}
    assert public == {key for key in vars(again(fresh)) if key[0] != "_"}
    _, optimizer = stepped(kind, 1)
    optimizer.step(max_norm=1e9)
    twin = again(optimizer)
    public = {key for key in vars(optimizer) if key[0] != "_"}
    assert public == {key for key in vars(twin) if key[0] != "_"}
    assert str(twin.outcome) == str(optimizer.outcome) and twin.why_torch == optimizer.why_torch
    assert (twin.half, twin.seed) == (optimizer.half, optimizer.seed)
    assert twin.outcome.grad_norm > 0


def test_copies_remember_why_pytorch_steps():
    p = nn.Parameter(torch.ones(4)[::2])
    optimizer = ours.SGD([p], lr=1.0)
    p.grad = torch.ones(2)
    with pytest.warns(RuntimeWarning):
        optimizer.step()
    twin = copy.deepcopy(optimizer)
    assert "gaps" in twin.why_torch
    twin.param_groups[0]["params"][0].grad = torch.ones(2)
    twin.step()  # the warning came already
