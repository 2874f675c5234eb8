"""Compares ``cutback.torch.optim`` with ``torch.optim``: 100 steps with every option, states and
checkpoints both ways, and what training loops do around a step."""

from __future__ import annotations

import copy
import gc
import io
import itertools
import pickle
import warnings

import pytest
import torch
from torch import nn

import cutback
import cutback.torch.optim as ours

STEPS = 100
NAMES = ("Adam", "AdamW", "SGD")
ADAM = [
    {"weight_decay": decay, "amsgrad": amsgrad, "maximize": maximize, "betas": betas, "eps": eps}
    for decay, amsgrad, maximize, (betas, eps) in itertools.product(
        (0.0, 0.1), (False, True), (False, True), (((0.9, 0.999), 1e-8), ((0.0, 0.95), 1e-3)))
]  # fmt: skip
SGD = [
    {"lr": 0.1, "momentum": momentum, "dampening": dampening, "weight_decay": decay,
     "nesterov": nesterov, "maximize": maximize}
    for momentum, dampening, decay, nesterov, maximize in itertools.product(
        (0.0, 0.9), (0.0, 0.25), (0.0, 0.05), (False, True), (False, True))
    if not nesterov or (momentum and not dampening)
]  # fmt: skip
OTHERS = {
    "RAdam": [{}, {"lr": 0.05, "betas": (0.8, 0.9), "weight_decay": 0.1},
              {"betas": (0.8, 0.9), "weight_decay": 0.1, "decoupled_weight_decay": True},
              {"betas": (0.9, 0.95), "maximize": True, "eps": 1e-3}],
    "NAdam": [{}, {"lr": 0.05, "betas": (0.8, 0.9), "weight_decay": 0.1, "momentum_decay": 0.05},
              {"weight_decay": 0.1, "decoupled_weight_decay": True, "maximize": True}],
    "ASGD": [{}, {"lr": 0.05, "lambd": 0.1, "alpha": 0.5, "t0": 5, "weight_decay": 0.1},
             {"lr": 0.05, "t0": 0, "maximize": True}],
    "Rprop": [{}, {"lr": 0.05, "etas": (0.3, 1.5), "step_sizes": (1e-3, 0.1), "maximize": True}],
    "Adamax": [{}, {"lr": 0.05, "betas": (0.8, 0.9), "weight_decay": 0.1, "maximize": True}],
    "Adagrad": [{}, {"lr": 0.1, "lr_decay": 0.1, "weight_decay": 0.1},
                {"lr": 0.1, "initial_accumulator_value": 0.5, "eps": 1e-3, "maximize": True}],
    "Adadelta": [{}, {"lr": 0.5, "rho": 0.7, "weight_decay": 0.1, "maximize": True}],
    "RMSprop": [{}, {"alpha": 0.9, "momentum": 0.5, "weight_decay": 0.1},
                {"alpha": 0.9, "centered": True, "eps": 0.1},
                {"centered": True, "momentum": 0.5, "maximize": True, "eps": 0.1}],
}  # fmt: skip
CASES = [(name, o) for name in NAMES for o in (SGD if name == "SGD" else ADAM)]
CASES += [(name, o) for name, cases in OTHERS.items() for o in cases]
ALL = (*NAMES, *OTHERS)


def tensors(dtype=torch.float32, seed=0):
    """Returns parameters of all shapes: without axes, empty, channels last, one with a size-1
    axis."""
    g = torch.Generator().manual_seed(seed)
    shapes = [(), (5,), (0, 3), (4, 1, 2), (129,), (2, 3, 4, 5)]
    made = [torch.randn(shape, generator=g, dtype=dtype) for shape in shapes]
    made[-1] = made[-1].to(memory_format=torch.channels_last)
    return [nn.Parameter(x) for x in made]


def set_gradients(params, others, seed):
    g = torch.Generator().manual_seed(1000 + seed)
    for i, (p, q) in enumerate(zip(params, others, strict=True)):
        grad = torch.randn(p.shape, generator=g, dtype=p.dtype)
        # one step without gradients, one with some missing
        if seed == 2 or (i == 1 and seed % 3 == 1):
            p.grad = q.grad = None
            continue
        p.grad = grad if i != len(params) - 1 or seed % 2 else grad.to(
            memory_format=torch.channels_last)  # fmt: skip
        q.grad = grad.clone()


def units(x, y):
    """Returns the largest difference, in ulps of the largest number."""
    if x.numel() == 0:
        return 0.0
    x, y = (torch.view_as_real(a) if a.is_complex() else a for a in (x, y))
    largest = y.abs().max()
    unit = torch.nextafter(largest, largest.new_tensor(float("inf"))) - largest
    return float((x - y).abs().max() / unit)


def compare(optimizer, other, params, others, most):
    worst = 0.0
    for p, q in zip(params, others, strict=True):
        worst = max(worst, units(p.detach(), q.detach()))
        state, wanted = optimizer.state[p], other.state[q]
        assert state.keys() == wanted.keys()
        for key in state:
            assert state[key].dtype == wanted[key].dtype
            assert state[key].shape == wanted[key].shape
            if key not in {"momentum_buffer", "step_size"}:  # has the layout of the first gradient
                assert state[key].stride() == wanted[key].stride()
            worst = max(worst, units(state[key], wanted[key]))
    assert worst <= most
    return worst


@pytest.fixture
def default_dtype(dtype):
    """Sets the default dtype, in which PyTorch keeps numbers next to the arrays (`mu_product`)."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64 if dtype == torch.float64 else before)
    yield
    torch.set_default_dtype(before)


@pytest.mark.parametrize(
    ("name", "options", "dtype"),
    [
        pytest.param(*case, dtype, marks=[pytest.mark.very_slow] * (i % 3 != k and k > 0))
        for i, case in enumerate(CASES)
        for k, dtype in enumerate((torch.float32, torch.float64, torch.complex64))
    ],
)
@pytest.mark.usefixtures("default_dtype")
def test_a_hundred_steps(name, options, dtype):
    """PyTorch multiplies and adds with one rounding if the processor can; our code rounds twice."""
    params, others = tensors(dtype), tensors(dtype)
    optimizer = getattr(ours, name)(params, **options)
    other = getattr(torch.optim, name)(others, foreach=False, **options)
    for seed in range(STEPS):
        set_gradients(params, others, seed)
        before = [None if p.grad is None else (p.grad, p.grad.clone()) for p in params]
        optimizer.step()
        other.step()
        for p, old in zip(params, before, strict=True):
            assert (p.grad is None) == (old is None)
            assert old is None or (p.grad is old[0] and torch.equal(p.grad, old[1]))
    assert optimizer.why_torch is None
    compare(optimizer, other, params, others, 64)


@pytest.mark.parametrize("name", ALL)
def test_a_checkpoint_goes_on_in_either(name):
    """The state has the same bytes after loading, and training continues."""
    options = {"lr": 0.05} | {"SGD": {"momentum": 0.9}, "AdamW": {"amsgrad": True},
                              "RMSprop": {"momentum": 0.5}}.get(name, {})  # fmt: skip
    kinds = getattr(ours, name), getattr(torch.optim, name)
    for first, second in (kinds, kinds[::-1]):
        params, others, straight = tensors(), tensors(), tensors()
        begins, whole = first(params, **options), kinds[1](straight, **options)
        for seed in range(5):
            set_gradients(params, straight, seed)
            begins.step()
            whole.step()
        file = io.BytesIO()
        torch.save([begins.state_dict(), [p.detach() for p in params]], file)
        file.seek(0)
        state, values = torch.load(file)
        goes_on = second(others, lr=1.0)
        goes_on.load_state_dict(state)
        for q, value in zip(others, values, strict=True):
            q.data.copy_(value)
        kept, loaded = begins.state_dict(), goes_on.state_dict()
        assert kept["param_groups"] == loaded["param_groups"]
        assert kept["state"].keys() == loaded["state"].keys()
        for i in kept["state"]:
            for key, value in kept["state"][i].items():
                assert torch.equal(value, loaded["state"][i][key])
        for seed in range(5, 10):
            set_gradients(others, straight, seed)
            goes_on.step()
            whole.step()
        for q, r in zip(others, straight, strict=True):
            assert units(q.detach(), r.detach()) <= 16


def model_of(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(6, 16), nn.GELU(), nn.LayerNorm(16), nn.Linear(16, 1))


def train(model, optimizer, steps=12, scheduler=None, closure=False, set_to_none=True):
    torch.manual_seed(7)
    x, y = torch.randn(32, 6), torch.randn(32, 1)
    losses = []
    for _ in range(steps):

        def loss():
            optimizer.zero_grad(set_to_none=set_to_none)
            value = ((model(x) - y) ** 2).mean()
            value.backward()
            return value

        if closure:
            losses.append(optimizer.step(loss).item())
        else:
            losses.append(loss().item())
            optimizer.step()
        if scheduler is not None:
            scheduler.step()
    return losses


SCHEDULERS = {
    "none": lambda o: None,
    "step": lambda o: torch.optim.lr_scheduler.StepLR(o, 3, 0.5),
    "exponential": lambda o: torch.optim.lr_scheduler.ExponentialLR(o, 0.9),
    "one cycle": lambda o: torch.optim.lr_scheduler.OneCycleLR(
        o, 0.1, total_steps=12, cycle_momentum="betas" in o.defaults
    ),
    "cosine": lambda o: torch.optim.lr_scheduler.CosineAnnealingWarmRestarts(o, 4),
    "lambda": lambda o: torch.optim.lr_scheduler.LambdaLR(o, lambda t: 1 / (1 + t)),
}


@pytest.mark.parametrize(
    ("name", "schedule"),
    [
        pytest.param(
            name,
            schedule,
            marks=[] if name == "SGD" or i % len(SCHEDULERS) == k else pytest.mark.very_slow,
        )
        for i, name in enumerate(ALL)
        for k, schedule in enumerate(SCHEDULERS)
    ],
)
def test_a_training_loop(name, schedule):
    schedule, results = SCHEDULERS[schedule], []
    for kind in (getattr(ours, name), getattr(torch.optim, name)):
        for closure, set_to_none in itertools.product((False, True), repeat=2):
            model = model_of()
            groups = [
                {"params": model[0].parameters(), "weight_decay": 0.1},
                {"params": [*model[2].parameters(), *model[3].parameters()], "lr": 0.02},
            ]
            options = {"lr": 0.05, "momentum": 0.5} if name == "SGD" else {"lr": 0.05}
            optimizer = kind(groups, **options)
            scheduler = schedule(optimizer)
            results.append(train(model, optimizer, 12, scheduler, closure, set_to_none))
    for losses in results[1:]:
        torch.testing.assert_close(
            torch.tensor(losses), torch.tensor(results[0]), rtol=1e-3, atol=1e-4
        )


@pytest.mark.parametrize("name", NAMES)
def test_hooks_copies_pickles_and_new_groups(name):
    model = model_of()
    first, last = list(model[0].parameters()), list(model[3].parameters())
    kwargs = {"momentum": 0.9} if name == "SGD" else {}
    optimizer = getattr(ours, name)(first, lr=0.05, **kwargs)
    seen = []
    optimizer.register_step_pre_hook(lambda *_: seen.append("before"))
    optimizer.register_step_post_hook(lambda *_: seen.append("after"))
    train(model, optimizer, 2)
    optimizer.add_param_group({"params": last, "lr": 0.01})
    before = [p.clone() for p in last]
    train(model, optimizer, 1)
    assert seen == ["before", "after"] * 3
    assert not any(torch.equal(p, old) for p, old in zip(last, before, strict=True))
    again = pickle.loads(pickle.dumps(optimizer))
    twin = copy.deepcopy(optimizer)
    for other in (again, twin):
        assert type(other) is type(optimizer)
        for p, q in zip(first + last, itertools.chain.from_iterable(
                group["params"] for group in other.param_groups), strict=True):  # fmt: skip
            q.grad = p.grad.clone()
        other.step()
    optimizer.step()
    for group, other in zip(again.param_groups, twin.param_groups, strict=True):
        for p, q in zip(group["params"], other["params"], strict=True):
            assert torch.equal(p, q)
    assert torch.equal(again.param_groups[0]["params"][0], first[0])


def test_named_parameters_and_a_frozen_subset():
    model = model_of()
    optimizer = ours.AdamW(model.named_parameters(), lr=0.1)
    model[0].weight.requires_grad_(False)
    kept = model[0].weight.clone()
    train(model, optimizer, 3)
    assert torch.equal(model[0].weight, kept) and model[0].weight not in optimizer.state
    model[0].weight.requires_grad_(True)
    train(model, optimizer, 2)
    assert float(optimizer.state[model[0].weight]["step"]) == 2
    assert float(optimizer.state[model[3].bias]["step"]) == 5
    optimizer.param_groups[0]["lr"] = None
    with pytest.raises(TypeError, match="group 0 has lr=None"):
        optimizer.step()


@pytest.mark.parametrize("name", ALL)
def test_autograd_sees_that_a_parameter_was_written(name):
    p = nn.Parameter(torch.ones(3))
    optimizer = getattr(ours, name)([p], lr=0.1)
    loss = (p * p).sum()
    p.grad, version = torch.ones(3), p._version
    optimizer.step()
    assert p._version == version + 1 and p.grad._version == 0
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("fused", [None, True])
def test_a_scaler_unscales_and_skips(name, fused):
    """A step with infinite gradients is skipped."""
    p, q = nn.Parameter(torch.ones(4)), nn.Parameter(torch.ones(4))
    pairs = []
    for kind, x in ((getattr(ours, name), p), (getattr(torch.optim, name), q)):
        pairs.append((x, kind([x], lr=0.1, fused=fused), torch.amp.GradScaler("cpu")))
    for factor in (1.0, float("inf"), 2.0):
        for x, optimizer, scaler in pairs:
            optimizer.zero_grad()
            scaler.scale((x * x).sum() * factor).backward()
            scaler.step(optimizer)
            scaler.update()
    torch.testing.assert_close(p, q)
    assert pairs[0][1].why_torch is None and p.isfinite().all()


@pytest.mark.parametrize("name", ALL)
def test_clipping_before_the_step(name):
    results = []
    for module in (ours, torch.optim):
        model = model_of()
        optimizer = getattr(module, name)(model.parameters(), lr=0.05)
        for _ in range(5):
            optimizer.zero_grad()
            (model(torch.ones(8, 6)) ** 2).sum().backward()
            nn.utils.clip_grad_norm_(model.parameters(), 0.1)
            optimizer.step()
        results.append([p.detach() for p in model.parameters()])
    for x, y in zip(*results, strict=True):
        torch.testing.assert_close(x, y)


def test_a_step_in_the_backward():
    """Each parameter has its own optimizer, which steps as soon as the gradient is ready."""
    results = []
    for module in (ours, torch.optim):
        model = model_of()
        own = {p: module.AdamW([p], lr=0.05) for p in model.parameters()}

        def step(p, own=own):
            own[p].step()
            own[p].zero_grad()

        for p in model.parameters():
            p.register_post_accumulate_grad_hook(step)
        for _ in range(4):
            (model(torch.ones(8, 6)) ** 2).mean().backward()
        assert all(p.grad is None for p in model.parameters())
        results.append([p.detach() for p in model.parameters()])
    for x, y in zip(*results, strict=True):
        torch.testing.assert_close(x, y)


def test_memory_that_moves():
    """Parameters, gradients and states may move to other memory between steps."""
    params, others = tensors(), tensors()
    optimizer = ours.AdamW(params, lr=0.05)
    other = torch.optim.AdamW(others, lr=0.05)
    for seed in range(8):
        set_gradients(params, others, 2 * seed + 3)
        optimizer.step()
        other.step()
        p = params[4]
        if seed % 2:
            p.data = p.data.clone()
            for value in optimizer.state[p].values():
                value.data = value.data.clone()  # as in programs that move states between devices
        else:
            optimizer.state[p]["exp_avg"] = optimizer.state[p]["exp_avg"].clone()
            optimizer.state[p] = dict(optimizer.state[p])
        gc.collect()
    compare(optimizer, other, params, others, 16)


def test_states_in_another_layout_are_laid_out():
    """The checkpoint is of a model before it was converted to channels_last."""
    p = nn.Parameter(torch.randn(2, 3, 4, 5))
    before = torch.optim.AdamW([p])
    p.grad = torch.randn(2, 3, 4, 5)
    before.step()
    q = nn.Parameter(p.detach().to(memory_format=torch.channels_last))
    optimizer = ours.AdamW([q])
    optimizer.load_state_dict(copy.deepcopy(before.state_dict()))
    optimizer.state[q]["exp_avg"] = before.state[p]["exp_avg"].clone()
    assert optimizer.state[q]["exp_avg"].stride() != q.stride()
    q.grad = p.grad.clone()
    optimizer.step()
    before.step()
    assert optimizer.why_torch is None and optimizer.state[q]["exp_avg"].stride() == q.stride()
    torch.testing.assert_close(q.detach(), p.detach())


def test_lazily_negated_and_conjugated_gradients():
    p, q = nn.Parameter(torch.ones(())), nn.Parameter(torch.ones(3, dtype=torch.complex64))
    optimizer = ours.SGD([p, q], lr=1.0)
    p.grad = torch.tensor([1 + 2j]).conj().imag[0]
    q.grad = torch.full((3,), 2j).conj()
    assert p.grad.is_neg() and q.grad.is_conj()
    optimizer.step()
    assert optimizer.why_torch is None
    assert p.item() == 3 and q.tolist() == [1 + 2j] * 3


def fallbacks():
    half = nn.Parameter(torch.ones(3, dtype=torch.bfloat16))
    half.grad = torch.ones(3, dtype=torch.bfloat16)
    yield "half", [half], {}, "parameter 0 of group 0 is neither single nor double precision"
    gaps = nn.Parameter(torch.ones(6)[::2])
    gaps.grad = torch.ones(3)
    yield "gaps", [gaps], {}, "parameter 0 of group 0 has gaps in its memory"

    class Marked(torch.Tensor):
        pass

    marked = nn.Parameter(torch.ones(3))
    marked.grad = torch.ones(3).as_subclass(Marked)
    yield "subclass", [marked], {}, "the gradient of parameter 0 of group 0 is not a plain tensor"
    whole = nn.Parameter(torch.ones(3), requires_grad=False)
    whole.grad = torch.ones(3)
    yield "differentiable", [whole], {"differentiable": True}, "differentiable=True"


FALLBACKS = list(fallbacks())


@pytest.mark.parametrize(("params", "options", "why"), [f[1:] for f in FALLBACKS],
                         ids=[f[0] for f in FALLBACKS])  # fmt: skip
@pytest.mark.parametrize("name", NAMES)
def test_what_is_not_stepped_here_is_stepped_by_torch_and_said(name, params, options, why):
    twins = [nn.Parameter(p.detach().clone(), p.requires_grad) for p in params]
    for p, q in zip(params, twins, strict=True):
        q.grad = p.grad.clone()
    optimizer = getattr(ours, name)(params, lr=0.1, **options)
    calls = []
    optimizer.register_step_post_hook(lambda *_: calls.append(1))
    other = getattr(torch.optim, name)(twins, lr=0.1, **options)
    with pytest.warns(RuntimeWarning, match=why):
        optimizer.step()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        optimizer.step()  # the warning comes once
    other.step()
    other.step()
    assert why in optimizer.why_torch and len(calls) == 2
    # other tests start from the same parameters
    for p, q in zip(params, twins, strict=True):
        assert torch.equal(p.detach(), q.detach())
        p.data.fill_(1)


def test_sparse_gradients_are_torch_s_affair():
    p = nn.Parameter(torch.ones(5, 2))
    with torch.sparse.check_sparse_tensor_invariants():
        p.grad = torch.sparse_coo_tensor([[1]], torch.ones(1, 2), (5, 2))
    with pytest.warns(RuntimeWarning, match="the gradient of parameter 0"):
        ours.SGD([p], lr=0.5).step()
    assert p[1].tolist() == [0.5, 0.5] and p[0].tolist() == [1, 1]
    with pytest.warns(RuntimeWarning), pytest.raises(RuntimeError, match="sparse gradients"):
        ours.AdamW([p]).step()


@pytest.mark.parametrize("name", NAMES)
def test_mistakes_touch_nothing(name):
    p, q = nn.Parameter(torch.ones(4)), nn.Parameter(torch.ones(4))
    kwargs = {"momentum": 0.9} if name == "SGD" else {}
    optimizer = getattr(ours, name)([p, q], lr=0.1, **kwargs)
    p.grad, q.grad = torch.ones(4), torch.ones(4)
    optimizer.step()
    kept = copy.deepcopy(optimizer.state_dict()), p.clone(), q.clone()
    q.grad = p.data
    with pytest.raises(ValueError, match="grad of row 1 overlaps param of row 0"):
        optimizer.step()
    q.grad = torch.ones(4)
    optimizer.param_groups[0]["lr"] = None
    with pytest.raises(TypeError, match="group 0 has lr=None"):
        optimizer.step()
    optimizer.param_groups[0]["lr"] = 0.1
    now = optimizer.state_dict()
    assert torch.equal(p, kept[1]) and torch.equal(q, kept[2])
    for i, state in kept[0]["state"].items():
        assert all(torch.equal(value, now["state"][i][key]) for key, value in state.items())
    optimizer.step()
    assert not torch.equal(p, kept[1])


def test_a_first_step_that_fails_leaves_no_buffer():
    p = nn.Parameter(torch.ones(4))
    p.grad = torch.ones(4)
    optimizer = ours.SGD([p], lr=0.1, momentum=0.9)
    optimizer.param_groups[0]["weight_decay"] = None
    with pytest.raises(TypeError, match="group 0 has weight_decay=None"):
        optimizer.step()
    assert "momentum_buffer" not in optimizer.state[p]


def test_a_learning_rate_in_a_tensor():
    params, others = tensors(), tensors()
    optimizer = ours.AdamW(params, lr=torch.tensor(0.05))
    other = torch.optim.AdamW(others, lr=0.05)
    for seed in (3, 4, 5):
        set_gradients(params, others, seed)
        optimizer.step()
        other.step()
        optimizer.param_groups[0]["lr"].mul_(0.5)
        other.param_groups[0]["lr"] *= 0.5
    compare(optimizer, other, params, others, 16)


def test_the_bits_do_not_depend_on_threads():
    results = set()
    threads = cutback.get_num_threads()
    try:
        for n in (1, 2, 3):
            cutback.set_num_threads(n)
            torch.manual_seed(0)
            params = [nn.Parameter(torch.randn(size)) for size in (3, 70_000, 1, 20_000)]
            optimizer = ours.AdamW(params, lr=0.05, amsgrad=True)
            for _ in range(3):
                for p in params:
                    p.grad = torch.randn(p.shape)
                optimizer.step()
            results.add(b"".join(p.detach().numpy().tobytes() for p in params))
    finally:
        cutback.set_num_threads(threads)
    assert len(results) == 1


def test_no_reference_is_lost_or_kept():
    p = nn.Parameter(torch.ones(4))
    optimizer = ours.AdamW([p], lr=0.1)
    p.grad = torch.ones(4)
    optimizer.step()
    objects = [p, p.grad, *optimizer.state[p].values()]
    before = [len(gc.get_referrers(x)) for x in objects]
    for _ in range(50):
        optimizer.step()
    assert [len(gc.get_referrers(x)) for x in objects] == before
    version = p.grad
    p.grad = None
    assert version.numel() == 4


@pytest.mark.parametrize("name, options", [("AdamW", {}), ("SGD", {"momentum": 0.9})])
def test_large_states_have_the_bits_of_small_ones(name, options):
    """Large states are in separate memory, in rows and in channels_last."""
    torch.manual_seed(0)
    flat, image = torch.randn((1 << 20) + 3), torch.randn(2, 3, 512, 512)
    image = image.to(memory_format=torch.channels_last)
    for large in (flat, image):
        whole = torch.nn.Parameter(large.clone(memory_format=torch.preserve_format))
        parts = (
            [torch.nn.Parameter(x.clone()) for x in whole.detach().split(1)]
            if large is image
            else [torch.nn.Parameter(x.clone()) for x in whole.detach().split(1000)]
        )
        optimizers = [getattr(cutback.torch.optim, name)(x, lr=0.1, **options)
                      for x in ([whole], parts)]  # fmt: skip
        for _ in range(3):
            whole.grad = torch.randn_like(whole)
            pieces = whole.grad.split(1 if large is image else 1000)
            for p, g in zip(parts, pieces, strict=True):
                p.grad = g.clone()
            for optimizer in optimizers:
                optimizer.step()
                assert optimizer.why_torch is None
        assert torch.equal(whole, torch.cat(parts))
        for key, x in optimizers[0].state[whole].items():
            if key != "step":
                assert x.stride() == whole.stride()
                assert torch.equal(x, torch.cat([optimizers[1].state[p][key] for p in parts]))
