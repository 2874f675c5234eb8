"""Compares the extras of a step with PyTorch's own passes over 100 steps, and tests optimizers from
their formulas on tensors."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

import cutback
import cutback.torch.optim as ours

STEPS = 100
SHAPES = [(), (5,), (0, 3), (4, 1, 2), (2049,), (2, 3, 4, 5)]
NAMES = ("AdamW", "SGD", "RMSprop")


@cutback.optim.foreach
def adamw(p, g, m, v, t, *, lr=1e-3, beta1=0.9, beta2=0.999, eps=1e-8, weight_decay=0.01):
    m = beta1 * m + (1 - beta1) * g
    v = beta2 * v + (1 - beta2) * g * g
    root = v.sqrt() * (1 / (1 - beta2**t) ** 0.5)
    return p * (1 - lr * weight_decay) - (lr / (1 - beta1**t)) * m / (root + eps), m, v


def tensors(seed=0):
    g = torch.Generator().manual_seed(seed)
    made = [torch.randn(shape, generator=g) for shape in SHAPES]
    made[-1] = made[-1].contiguous(memory_format=torch.channels_last)
    return [nn.Parameter(x) for x in made]


def set_gradients(seed, scale, *lists):
    g = torch.Generator().manual_seed(seed)
    for row in zip(*lists, strict=True):
        grad = torch.randn(row[0].shape, generator=g) * scale
        for p in row:
            p.grad = torch.empty_like(p).copy_(grad)


def options_of(name):
    return {"lr": 0.01, **({"momentum": 0.9} if name == "SGD" else {})}


@pytest.mark.parametrize("name", NAMES)
def test_clipping_averages_copies_and_zeros_are_those_of_a_hundred_passes(name):
    params, others = tensors(), tensors()
    one = getattr(ours, name)(params, **options_of(name))
    many = getattr(torch.optim, name)(others, **options_of(name))
    model = nn.ParameterList(others)
    average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9))
    averages = [p.detach().clone() for p in params]
    copies = [torch.empty_like(p, dtype=torch.bfloat16) for p in params]
    average.update_parameters(model)  # the first update copies
    for t in range(STEPS):
        set_gradients(t, 1 + t % 7, params, others)
        one.step(max_norm=20.0, averages=averages, average_decay=0.9, copies=copies,
                 zero_grads=True)  # fmt: skip
        norm = nn.utils.clip_grad_norm_(others, 20.0)
        many.step()
        average.update_parameters(model)
        assert one.outcome.grad_norm == pytest.approx(norm.item(), rel=1e-5)
        assert one.why_torch is None and all(not p.grad.any() for p in params)
    for p, q, a, b, half in zip(
        params, others, averages, average.module.parameters(), copies, strict=True
    ):
        torch.testing.assert_close(p, q, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(a, b.detach(), rtol=1e-4, atol=1e-5)
        assert torch.equal(half, p.detach().to(torch.bfloat16))


@pytest.mark.parametrize("way", ["scaler", "argument"])
@pytest.mark.parametrize("name", NAMES)
def test_a_scale_is_that_of_a_scaler_over_a_hundred_steps(name, way):
    params, others = tensors(), tensors()
    one = getattr(ours, name)(params, **options_of(name))
    many = getattr(torch.optim, name)(others, **options_of(name))
    scalers = [torch.amp.GradScaler("cpu", init_scale=2.0**12, growth_interval=5) for _ in "ab"]
    skipped, stepped = 0, []
    one.register_step_post_hook(lambda *_: stepped.append(1))
    for t in range(STEPS):
        scale = scalers[0].scale(torch.ones(())).item()
        scalers[1].scale(torch.ones(()))
        set_gradients(t, scale, params, others)
        if t % 10 == 3:
            params[4].grad[-1] = others[4].grad[-1] = (float("inf"), float("nan"))[t % 20 == 3]
        if way == "scaler":
            calls = len(stepped)
            scalers[0].step(one)
            scalers[0].update()
            skipped += len(stepped) == calls
        else:
            one.step(grad_scale=scale)
            assert one.outcome.skipped == (t % 10 == 3)
            skipped += one.outcome.skipped
        scalers[1].step(many)
        scalers[1].update()
        if way == "argument":
            scalers[0].load_state_dict(scalers[1].state_dict())
    assert skipped == STEPS // 10 and scalers[0].get_scale() == scalers[1].get_scale()
    for p, q in zip(params, others, strict=True):
        torch.testing.assert_close(p, q, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_clipping_skips_a_step_that_has_no_norm(bad):
    """PyTorch's two passes would set every parameter to NaN."""
    p, q = nn.Parameter(torch.ones(3)), nn.Parameter(torch.ones(5))
    optimizer = ours.AdamW([p, q], lr=0.1)
    p.grad, q.grad = torch.tensor([1.0, bad, 1.0]), torch.ones(5)
    optimizer.step(max_norm=1.0)
    assert optimizer.outcome.skipped and optimizer.outcome.grad_norm != optimizer.outcome.grad_norm
    assert p.tolist() == [1.0] * 3 and q.tolist() == [1.0] * 5 and not optimizer.state


def test_a_first_step_that_is_skipped_leaves_no_state():
    p = nn.Parameter(torch.ones(3))
    optimizer = ours.SGD([p], lr=0.1, momentum=0.9)
    p.grad = torch.full((3,), float("nan"))
    optimizer.step(grad_scale=2.0)
    assert optimizer.outcome.skipped and not optimizer.state[p]
    p.grad = torch.full((3,), 2.0)
    optimizer.step(grad_scale=2.0)
    assert torch.equal(p.detach(), torch.full((3,), 0.9))


def test_where_pytorch_steps_a_scaler_is_minded_and_extras_are_refused():
    params = [nn.Parameter(torch.ones(4, dtype=torch.bfloat16)) for _ in range(2)]
    kinds, scalers = (ours, torch.optim), []
    for kind, p in zip(kinds, params, strict=True):
        optimizer, scaler = kind.AdamW([p], lr=0.1), torch.amp.GradScaler("cpu", init_scale=8.0)
        for value in (1.0, float("inf"), 3.0):
            scaler.scale(torch.ones(()))
            p.grad = torch.full((4,), value * scaler.get_scale(), dtype=torch.bfloat16)
            if kind is ours and value == 1.0:
                with pytest.warns(RuntimeWarning, match="PyTorch's own code"):
                    scaler.step(optimizer)
            else:
                scaler.step(optimizer)
            scaler.update()
        scalers.append(optimizer)
    assert torch.equal(*params)
    with pytest.raises(
        RuntimeError,
        match=r"neither single nor double precision, .* does not support the other arguments",
    ):
        scalers[0].step(max_norm=1.0)
    assert torch.equal(*params)


def test_mistakes_touch_nothing():
    p = nn.Parameter(torch.ones(2, 3))
    optimizer = ours.AdamW([p])
    p.grad = torch.ones(2, 3)
    for options, error, text in (
        ({"max_norm": -1.0}, ValueError, "max_norm"),
        ({"averages": []}, ValueError, "got 0 tensors, expected one average for each of 1"),
        ({"averages": [torch.ones(2, 3).double()]}, ValueError, "must be torch.float32"),
        ({"averages": [torch.ones(3, 2).t()]}, ValueError, "strides"),
        ({"averages": [1.0]}, TypeError, "not a tensor"),
        ({"averages": [p]}, ValueError, "share memory"),
        ({"copies": [torch.ones(2, 3)]}, ValueError, "float16 or bfloat16"),
        ({"averages": [p.grad], "zero_grads": True}, ValueError, "share memory"),
    ):
        with pytest.raises(error, match=text):
            optimizer.step(**options)
        assert torch.equal(p.detach(), torch.ones(2, 3)) and torch.equal(p.grad, torch.ones(2, 3))
    optimizer.step()


def test_an_optimizer_from_its_formula_is_torch_s_over_a_hundred_steps():
    params, others, arrays = tensors(), tensors(), [p.detach().numpy() for p in tensors()]
    one = ours.foreach(adamw)(params, lr=0.01)
    many = torch.optim.AdamW(others, lr=0.01)
    both = adamw(lr=0.01)
    schedule = [torch.optim.lr_scheduler.ExponentialLR(o, 0.99) for o in (one, many)]
    for t in range(STEPS):
        set_gradients(t, 1.0, params, others)
        both.lr = one.param_groups[0]["lr"]
        both.step(arrays[:-1], [p.grad.numpy() for p in params[:-1]])
        for optimizer, scheduler in zip((one, many), schedule, strict=True):
            optimizer.step()
            scheduler.step()
    for p, q in zip(params, others, strict=True):
        torch.testing.assert_close(p, q, rtol=1e-4, atol=1e-5)
    for p, x in zip(params[:-1], arrays[:-1], strict=True):
        np.testing.assert_array_equal(p.detach().numpy(), x)


def test_an_optimizer_from_its_formula_is_an_optimizer_of_torch():
    @ours.foreach
    def lion(p, g, m, *, lr=1e-2, beta1=0.9, beta2=0.99, sign=True):
        u = beta1 * m + (1 - beta1) * g
        return p - lr * (torch.sign(u) if sign else torch.clamp(u, -1, 1)), torch.where(
            m == m, beta2 * m + (1 - beta2) * g, m
        )

    params, twins = tensors(), tensors()
    optimizer = lion([{"params": params[:3]}, {"params": params[3:], "lr": 0.1}])
    other = ours.foreach(lion_formula)([{"params": twins[:3]}, {"params": twins[3:], "lr": 0.1}])
    for t in range(4):
        set_gradients(t, 1.0, params, twins)
        optimizer.step()
        other.step()
        if t == 1:
            other = copy.deepcopy(other)
            twins = [p for group in other.param_groups for p in group["params"]]
    assert list(optimizer.state[params[1]]) == ["step", "m"]
    for p, q in zip(params, twins, strict=True):
        assert torch.equal(p, q)
    with pytest.raises(TypeError, match="lion has no option rate"):
        lion(params, rate=1)
    with pytest.raises(ValueError, match="groups differ in sign"):
        optimizer.param_groups[0]["sign"] = False
        optimizer.step()
    z = nn.Parameter(torch.ones(3, dtype=torch.complex64))
    z.grad = torch.ones_like(z)
    with pytest.raises(RuntimeError, match="lion: a parameter is complex, and no other code"):
        lion([z]).step()
    half = nn.Parameter(torch.ones(3, dtype=torch.bfloat16))
    half.grad = torch.ones_like(half)
    with pytest.raises(RuntimeError, match="no other code steps this optimizer"):
        lion([half]).step()


def lion_formula(p, g, m, *, lr=1e-2, beta1=0.9, beta2=0.99):
    u = beta1 * m + (1 - beta1) * g
    return p - lr * u.sign(), beta2 * m + (1 - beta2) * g


@pytest.mark.parametrize("most", [float("inf"), 1e300, 3e38])
@pytest.mark.parametrize("kind", [ours.AdamW, ours.AdamW8bit, ours.SGD, ours.Muon, ours.Adafactor])
def test_a_norm_that_is_only_measured(kind, most):
    ends = []
    for max_norm in (most, None):
        p = nn.Parameter(torch.linspace(-1, 1, 36).reshape(6, 6))
        p.grad = torch.full((6, 6), 10.0)
        optimizer = kind([p], lr=0.1)
        optimizer.step(max_norm=max_norm)
        ends.append((p.detach(), optimizer.outcome))
    assert torch.equal(ends[0][0], ends[1][0])
    assert ends[0][1] == (60.0, False) and ends[1][1] == (None, False)
    for wrong in (0.0, -1.0, float("nan")):
        with pytest.raises(ValueError, match=f"max_norm={wrong} must be above 0"):
            optimizer.step(max_norm=wrong)
