"""Tests optimizers that PyTorch lacks: they have the same bits on tensors as on arrays."""

from __future__ import annotations

import copy
import io

import numpy as np
import pytest
import torch
from torch import nn

import cutback.optim as arrays
import cutback.torch.optim as ours

SHAPES = ((16, 16), (8, 40), (300, 7), (3, 4))
CASES = [
    ("AdamW8bit", {"lr": 0.01, "maximize": True}),
    ("SOAP", {"lr": 0.01, "precondition_frequency": 2, "max_precond_dim": 50}),
    ("Lion", {"weight_decay": 0.1}),
    ("ADOPT", {"decoupled_weight_decay": True}),
    ("AdEMAMix", {"betas": (0.8, 0.9, 0.99), "alpha_warmup": 3}),
    ("NorMuon", {"ns_steps": 3}),
]


def tensors(name, dtype=torch.float32):
    g = torch.Generator().manual_seed(0)
    shapes = SHAPES if name == "NorMuon" else (*SHAPES, (), (7,), (600,), (6, 5, 3))
    return [nn.Parameter(torch.randn(s, generator=g, dtype=dtype)) for s in shapes]


def set_gradients(params, seed):
    g = torch.Generator().manual_seed(seed)
    for i, p in enumerate(params):
        grad = torch.randn(p.shape, generator=g, dtype=torch.float64).to(p.dtype)
        p.grad = None if (i, seed) == (1, 1) else grad


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("name", "options"), CASES)
def test_on_tensors_as_on_arrays(name, options, dtype):
    """Checkpoints survive a file and return with the same types."""
    params = tensors(name, dtype)
    twins = [p.detach().numpy().copy() for p in params]
    one, both = getattr(ours, name)(params, **options), getattr(arrays, name)(**options)
    for seed in range(6):
        set_gradients(params, seed)
        one.step()
        both.step(twins, [None if p.grad is None else p.grad.numpy() for p in params])
        file = io.BytesIO()
        torch.save(one.state_dict(), file)
        file.seek(0)
        again = getattr(ours, name)(params)
        again.load_state_dict(torch.load(file))
        one = copy.deepcopy(again) if seed == 3 else again
        params = [p for group in one.param_groups for p in group["params"]]
    for i, (p, twin) in enumerate(zip(params, twins, strict=True)):
        assert p.detach().numpy().tobytes() == twin.tobytes()
        held = {key: row[i] for key, row in both.states.items() if row[i] is not None}
        assert set(one.state[p]) == {"step", *held}
        for key, x in held.items():
            mine = one.state[p][key].numpy()
            assert (mine.dtype, mine.shape) == (x.dtype, x.shape)
            assert mine.tobytes() == x.tobytes()


def test_groups_and_schedules():
    params, others = tensors("SOAP"), tensors("SOAP")
    groups = [{"params": params[:2], "max_precond_dim": 10, "lr": 0.1}, {"params": params[2:]}]
    optimizer = ours.SOAP(groups, lr=0.01)
    parts = [arrays.SOAP(lr=0.1, max_precond_dim=10), arrays.SOAP(lr=0.01)]
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
    twins = [p.detach().numpy() for p in others]
    for seed in range(3):
        set_gradients(params, seed + 2)
        for k, (part, row) in enumerate(zip(parts, (slice(2), slice(2, None)), strict=True)):
            part.lr = optimizer.param_groups[k]["lr"]
            part.step(twins[row], [p.grad.numpy() for p in params[row]])
        optimizer.step()
        schedule.step()
    assert [p.detach().numpy().tobytes() for p in params] == [p.tobytes() for p in twins]
    assert "right" not in optimizer.state[params[1]] and "left" in optimizer.state[params[1]]
    # longer sides from now on: missing states are reported, and nothing is updated
    optimizer.param_groups[0]["max_precond_dim"] = 100
    with pytest.raises(RuntimeError, match="SOAP: a state has"):
        optimizer.step()
    assert [p.detach().numpy().tobytes() for p in params] == [p.tobytes() for p in twins]


@pytest.mark.parametrize("name", ["AdamW8bit", "SOAP", "Lion"])
def test_what_a_step_does_beside_the_update(name):
    params, twins = tensors(name), tensors(name)
    optimizer, plain = (getattr(ours, name)(x, lr=0.1) for x in (params, twins))
    averages = [torch.zeros_like(p) for p in params]
    copies = [torch.empty_like(p, dtype=torch.bfloat16) for p in params]
    for seed in range(2, 5):
        set_gradients(params, seed)
        for p, q in zip(params, twins, strict=True):
            q.grad = p.grad / 4
        norm = nn.utils.clip_grad_norm_(twins, 0.5, foreach=False)
        optimizer.step(grad_scale=4.0, max_norm=0.5, averages=averages, average_decay=0.0,
                       copies=copies, zero_grads=True)  # fmt: skip
        plain.step()
        assert optimizer.outcome.grad_norm == pytest.approx(float(norm), rel=1e-5)
    for p, q, a, half in zip(params, twins, averages, copies, strict=True):
        torch.testing.assert_close(p, q, rtol=1e-3, atol=0.02 if name == "Lion" else 2e-3)
        assert torch.equal(a, p) and torch.equal(half, p.bfloat16()) and not p.grad.any()
    params[0].grad[0, 0] = float("inf")
    before = [p.detach().clone() for p in params]
    optimizer.step(grad_scale=2.0)
    assert optimizer.outcome.skipped
    assert all(torch.equal(p, q) for p, q in zip(params, before, strict=True))


def test_eight_bits_of_halves():
    params = [nn.Parameter(p.detach().bfloat16()) for p in tensors("AdamW8bit")]
    others = [nn.Parameter(p.detach().float()) for p in params]
    optimizer, other = ours.AdamW8bit(params, half="master"), ours.AdamW8bit(others)
    for seed in range(3):
        set_gradients(params, seed + 2)
        for p, q in zip(params, others, strict=True):
            q.grad = p.grad.float()
        optimizer.step()
        other.step()
        again = ours.AdamW8bit(params, half="master")
        again.load_state_dict(optimizer.state_dict())
        optimizer = again
    for p, q in zip(params, others, strict=True):
        assert torch.equal(optimizer.state[p]["master"], q)
        assert optimizer.state[p]["m"].dtype == torch.uint8


def test_what_cannot_be_is_said():
    p = nn.Parameter(torch.ones(4, 3).t())
    p.grad = torch.ones_like(p)
    for name in ("AdamW8bit", "SOAP"):
        with pytest.raises(RuntimeError, match="is not stored row by row, and no other code"):
            getattr(ours, name)([p]).step()
    z = nn.Parameter(torch.ones(3, dtype=torch.complex64))
    z.grad = torch.ones_like(z)
    with pytest.raises(RuntimeError, match="AdamW8bit: parameter 0 of group 0 is complex"):
        ours.AdamW8bit([z]).step()
    h = nn.Parameter(torch.ones(3, dtype=torch.bfloat16))
    h.grad = torch.ones_like(h)
    with pytest.raises(RuntimeError, match=r"neither single nor double precision.*half= to step"):
        ours.AdamW8bit([h]).step()
    with pytest.raises(NotImplementedError, match="soap: row 0 is bf16; it steps only f32 and f64"):
        ours.SOAP([h], half="master").step()
    with pytest.raises(TypeError, match="pass groups as params"):
        ours.Lion([p], groups=[])
    with pytest.raises(TypeError, match="unexpected keyword"):
        ours.Lion([p], rate=3)
    with pytest.raises(ValueError, match="lr=-1"):
        ours.Lion([p], -1.0)
    for wrong in ("x", "0.01", torch.ones(2), [0.1], True):
        with pytest.raises(TypeError, match=r"Lion: lr=.* is not a number"):
            ours.Lion([p], wrong)
    q = nn.Parameter(torch.ones(3))
    q.grad = torch.ones(3)
    optimizer = ours.AdamW8bit([q])
    optimizer.step()
    optimizer.state[q]["m"] = torch.zeros(3, dtype=torch.float64)
    with pytest.raises(RuntimeError, match="a state of parameter 0 of group 0 is of another type"):
        optimizer.step()
    optimizer.state[q]["m"] = torch.zeros(4, dtype=torch.uint8)
    with pytest.raises(
        ValueError, match=r"m of parameter 0 of group 0 is \(4,\), but must be \(3,"
    ):
        optimizer.step()
    assert np.isfinite(q.detach().numpy()).all()


@pytest.mark.parametrize("change", [
    lambda p: p.double(), lambda p: p.reshape(2, 6), lambda p: p.t().contiguous().t(),
])  # fmt: skip
@pytest.mark.parametrize("name", ["AdamW8bit", "Lion", "SOAP"])
def test_a_parameter_that_changes_after_a_step(name, change):
    """The type changes, or the shape, or the layout if the optimizer needs rows. A new optimizer
    that loads the state can step the new type."""
    p = nn.Parameter(torch.arange(12.0).reshape(4, 3))
    p.grad = torch.ones_like(p)
    optimizer = getattr(ours, name)([p], lr=0.1)
    optimizer.step()
    before = {key: x.clone() for key, x in optimizer.state[p].items()}
    p.data, p.grad = change(p.detach()), None
    p.grad = torch.ones_like(p)
    value = p.detach().clone()
    if name == "Lion" and not p.is_contiguous():
        optimizer.step()  # element by element, in any order
        return
    with pytest.raises((ValueError, RuntimeError), match=rf"{name}: .*parameter 0 of group 0"):
        optimizer.step()
    assert torch.equal(p, value)
    assert all(torch.equal(x, optimizer.state[p][key]) for key, x in before.items())
    if p.dtype is torch.float64:
        again = getattr(ours, name)([p], lr=0.1)
        again.load_state_dict(optimizer.state_dict())
        again.step()
        assert not torch.equal(p, value)


@pytest.mark.very_slow
@pytest.mark.parametrize("name", [pytest.param("Lion", marks=pytest.mark.very_slow), "AdamW8bit"])
@pytest.mark.filterwarnings("ignore:Dynamo does not know how to trace:UserWarning")
def test_a_step_may_be_called_in_what_is_compiled(name):
    """Compiled code may call a step, even the first one."""
    both = [[nn.Parameter(torch.ones(300))] for _ in range(2)]
    optimizers = [getattr(ours, name)(params, lr=0.1) for params in both]
    steps = [optimizers[0].step, torch.compile(optimizers[1].step, backend="eager")]
    for _ in range(2):
        for (p,), step in zip(both, steps, strict=True):
            p.grad = torch.ones(300)
            step()
    assert torch.equal(both[0][0], both[1][0])


ANY = ("seed", "half", "states", "names", "counter", "rows", "step", "native", "state", "self",
       "differentiable", "fused")  # fmt: skip


@pytest.mark.parametrize("name", ANY)
def test_options_of_a_formula_have_any_name(name):
    scope = {}
    exec(f"def formula(p, g, m, *, {name}=2.0): return p - {name} * g, m + g", scope)
    p, q = nn.Parameter(torch.zeros(3)), nn.Parameter(torch.zeros(2))
    p.grad, q.grad = torch.ones(3), torch.ones(2)
    kind = ours.foreach(scope["formula"])
    optimizer = kind([{"params": [p]}, {"params": [q], name: 7.0}], **{name: 5.0})
    optimizer.step()
    assert p.tolist() == [-5.0] * 3 and q.tolist() == [-7.0] * 2
    optimizer.param_groups[0][name] = 1.0
    optimizer.step()
    assert p.tolist() == [-6.0] * 3
    optimizer.load_state_dict(copy.deepcopy(optimizer).state_dict())
    optimizer.step()
    assert p.tolist() == [-7.0] * 3 and optimizer.state[p]["m"].tolist() == [3.0] * 3


def test_names_that_pytorch_uses_are_errors():
    with pytest.raises(TypeError, match="the name 'params'"):
        ours.foreach(lambda p, g, *, params=1.0: p - params * g)
    with pytest.raises(TypeError, match="the name 'step'"):
        ours.foreach(lambda p, g, step, *, lr=1.0: (p - lr * g, step))
