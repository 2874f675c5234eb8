"""Sends Ctrl-C between any two bytecodes of a drop-in's step, including PyTorch's code around it.
The step is complete or not begun, and gradient recording is as before."""

from __future__ import annotations

import sys
import warnings

import pytest
import torch
from torch import nn

import cutback.torch.optim as ours

SHAPES = ((), (4, 3), (0,), (2, 3, 4, 5))


def parameters(dtype=torch.float32):
    g = torch.Generator().manual_seed(0)
    return [nn.Parameter(torch.randn(s, generator=g).to(dtype)) for s in SHAPES]


def set_gradients(params, seed):
    """Sets gradients, the last in another layout than its parameter; it gets the parameter's
    layout."""
    g = torch.Generator().manual_seed(seed)
    for p in params:
        p.grad = torch.randn(p.shape, generator=g).to(p.dtype)
    params[-1].grad = params[-1].grad.to(memory_format=torch.channels_last)


def whole(params, optimizer):
    """Returns parameters and state as bytes; a state that has not begun is empty."""
    states = [optimizer.state.get(p) or {} for p in params]
    rows = [(key, state[key]) for state in states for key in sorted(state)]
    rows += [("p", p.detach()) for p in params]
    return b"".join(key.encode() + x.contiguous().view(torch.uint8).numpy().tobytes()
                    if x.dim() else key.encode() + repr(x.item()).encode()
                    for key, x in rows)  # fmt: skip


def interrupted(step, number):
    """Calls the step with a KeyboardInterrupt before its n-th bytecode outside this file; returns
    True if it finished first."""
    left = [number]

    def tracer(frame, event, argument):
        if frame.f_code.co_filename == __file__:
            return None
        frame.f_trace_opcodes = True
        if event == "opcode":
            left[0] -= 1
            if left[0] < 0:
                raise KeyboardInterrupt
        return tracer

    old = sys.gettrace()
    try:
        sys._getframe().f_trace_opcodes = True  # 3.12 looks for one frame that has it
        sys.settrace(tracer)
        step()
    except KeyboardInterrupt:
        return False
    finally:
        sys.settrace(old)
    return True


KINDS = {
    "AdamW": lambda params: ours.AdamW(params, lr=0.1, amsgrad=True),
    "SGD": lambda params: ours.SGD(params, lr=0.1, momentum=0.9, dampening=0.5),
    "NAdam": lambda params: ours.NAdam(params, lr=0.1),
    "Lion": lambda params: ours.Lion(params, lr=0.1),
}


@pytest.mark.parametrize("every", [23, pytest.param(1, marks=pytest.mark.very_slow)])
@pytest.mark.parametrize("begun", [False, True])
@pytest.mark.parametrize("make", KINDS.values(), ids=KINDS.keys())
def test_an_interrupt_at_each_bytecode_leaves_no_mixture(make, begun, every):
    def prepared():
        params = parameters()
        optimizer = make(params)
        for seed in range(2 * begun):
            set_gradients(params, seed)
            optimizer.step()
        set_gradients(params, 9)
        return params, optimizer

    params, optimizer = prepared()
    before = whole(params, optimizer)
    optimizer.step()
    after, number = whole(params, optimizer), -every
    while True:
        number += every
        params, optimizer = prepared()
        finished = interrupted(optimizer.step, number)
        assert torch.is_grad_enabled(), number
        now = whole(params, optimizer)
        assert now in (before, after), number
        if finished:
            break
        if now == before:  # the step can still be taken, and is the same
            set_gradients(params, 9)
            optimizer.step()
            assert whole(params, optimizer) == after, number
    assert number > 500


@pytest.mark.parametrize("every", [11, pytest.param(1, marks=pytest.mark.very_slow)])
@pytest.mark.parametrize("enabled", [False, True])
def test_gradients_are_recorded_as_before_where_pytorch_steps(enabled, every):
    """Gradients are recorded as before, even if a closure records them in a program that does
    not."""
    number = -every
    while True:
        number += every
        params = parameters(torch.bfloat16)
        optimizer = ours.SGD(params, lr=0.1)
        optimizer.why_torch = "it was said before"

        def closure(params=params):
            for p in params:
                p.grad = None
            loss = sum((p * p).sum() for p in params)
            loss.backward()
            return loss

        with torch.set_grad_enabled(enabled), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            finished = interrupted(lambda f=closure, o=optimizer: o.step(f), number)
            assert torch.is_grad_enabled() == enabled, number
        assert torch.is_grad_enabled()
        if finished:
            break
    assert number > 500
