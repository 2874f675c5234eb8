"""Steps a drop-in, or two with one parameter, from two threads. The result is the bits of a serial
order, or RuntimeError for the second thread."""

from __future__ import annotations

import copy
import sys
import threading
import warnings

import pytest
import torch
from torch import nn

import cutback.torch.optim as ours


@pytest.fixture(autouse=True)
def often():
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(before)


def race(functions, times):
    done, wrong, go = [0] * len(functions), [], threading.Barrier(len(functions))

    def work(i):
        go.wait()
        for _ in range(times):
            try:
                functions[i]()
                done[i] += 1
            except RuntimeError as error:
                if "already stepping" not in str(error) and "is being updated" not in str(error):
                    wrong.append(error)
            except BaseException as error:
                wrong.append(error)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(len(functions))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    return done


def parameters(seed, dtype=torch.float32):
    g = torch.Generator().manual_seed(seed)
    params = [nn.Parameter(torch.randn(40, 30, generator=g).to(dtype)) for _ in range(6)]
    for p in params:
        p.grad = torch.randn(40, 30, generator=g).to(dtype)
    return params


def one_round(name, seed, is_warm, times=6, dtype=torch.float32):
    params, twins = parameters(seed, dtype), parameters(seed, dtype)
    kind = getattr(ours, name)
    optimizer, other = kind(params, lr=0.01), kind(twins, lr=0.01)
    if is_warm:
        optimizer.step()
    done = race([optimizer.step, optimizer.step], times)
    for _ in range(is_warm + sum(done)):
        other.step()
    for p, q in zip(params, twins, strict=True):
        assert torch.equal(p, q)
        assert optimizer.state[p].keys() == other.state[q].keys()
        for key, x in optimizer.state[p].items():
            assert torch.equal(x, other.state[q][key])


@pytest.mark.parametrize("is_warm", [False, True])
@pytest.mark.parametrize("name", ["AdamW", "SGD", "NAdam"])
def test_two_threads_share_a_drop_in(name, is_warm):
    for seed in range(8):
        one_round(name, seed, is_warm)


def test_two_threads_where_pytorch_steps():
    """PyTorch's own code makes several calls that let other threads run in between."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        for seed in range(4):
            one_round("AdamW", seed, seed % 2, dtype=torch.bfloat16)


@pytest.mark.very_slow
@pytest.mark.parametrize("part", range(5))
def test_thousands_of_rounds(part):
    for seed in range(500 * part, 500 * (part + 1)):
        one_round(("AdamW", "SGD", "NAdam")[seed % 3], seed, seed % 2)


def test_two_drop_ins_over_one_parameter():
    p = nn.Parameter(torch.zeros(1 << 20))
    p.grad = torch.ones(1 << 20)
    optimizers = [ours.SGD([p], lr=1.0) for _ in range(2)]
    done = race([o.step for o in optimizers], 20)
    assert (p == -sum(done)).all()


def test_two_drop_ins_over_one_state():
    """`load_state_dict` does not copy tensors that fit."""
    params = [nn.Parameter(torch.zeros(1 << 18)) for _ in range(2)]
    for p in params:
        p.grad = torch.ones(1 << 18)
    one, two = (ours.SGD([p], lr=1.0, momentum=0.5) for p in params)
    one.step()
    two.load_state_dict(one.state_dict())
    buffer = one.state[params[0]]["momentum_buffer"]
    two.state[params[1]]["momentum_buffer"] = buffer
    done = race([one.step, two.step], 20)
    assert (buffer == sum(0.5**k for k in range(1 + sum(done)))).all()


def test_a_step_inside_a_step_is_refused_and_copies_are_free():
    p = nn.Parameter(torch.zeros(3))
    optimizer = ours.SGD([p], lr=1.0)
    p.grad, seen = torch.ones(3), []

    class Rate(float):
        def __float__(self):
            with pytest.raises(RuntimeError, match="already stepping"):
                optimizer.step()
            copy.deepcopy(optimizer)
            seen.append(1)
            return 1.0

    optimizer.param_groups[0]["lr"] = Rate(1.0)
    optimizer.step()
    assert seen and p.tolist() == [-1.0] * 3
    again = copy.deepcopy(optimizer)
    again.param_groups[0]["lr"] = 1.0
    q = again.param_groups[0]["params"][0]
    q.grad = torch.ones(3)
    again.step()
    assert q.tolist() == [-2.0] * 3
