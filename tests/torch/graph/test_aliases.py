"""For inputs that share memory and are written into, the compiled step gives eager mode's bits, in
outputs, gradients and the shared memory. AOTAutograd replaces these inputs by one, their base, and
adds a tangent for what was written."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import pytest

torch = pytest.importorskip("torch")

from torch.utils.checkpoint import CheckpointPolicy

import cutback.torch as ct

WISHES = (
    {"budget": "min"},
    {"policy": CheckpointPolicy.MUST_RECOMPUTE},
)


class Case(NamedTuple):
    """``views`` makes the inputs from memory of 12 numbers, possibly shared."""

    step: Callable[..., Any]
    views: Callable[[Any], Sequence[Any]]


def _read_by_both(a: Any, b: Any, w: Any) -> Any:
    a.add_(1)
    return ((a + b) * w[: a.numel()].view(a.shape)).sin()


def _read_before_and_after(a: Any, b: Any, w: Any) -> Any:
    y = (b.flatten()[:4] + w[:4].sin()).exp()
    a.mul_(2)
    return y * b.flatten()[:4].cos()


def _both_written(a: Any, b: Any, w: Any) -> Any:
    a.mul_(2)
    b.add_(a.sum())
    return (a.flatten()[:4] * b.flatten()[:4] * w[:4]).sin().sin()


def _view_returned(a: Any, b: Any, w: Any) -> Any:
    a.mul_(3)
    return (a.flatten()[:4] * w[:4]).sin(), b.view(-1)[2:], a


def _other_returned(a: Any, b: Any, w: Any) -> Any:
    b.add_(1)
    return (b.flatten()[:6].sin() * w[:6].exp()).cos(), a.flatten()[:3] + 1


def _without_gradient(a: Any, b: Any, w: Any) -> Any:
    with torch.no_grad():
        a.mul_(0.5)
    return (b.flatten()[:4].sin() * w[:4]).exp()


def _part_written(a: Any, b: Any, w: Any) -> Any:
    a[..., 0] = w[0].sin()
    return (b.flatten() * w[: b.numel()]).sin().cumsum(0)


def _copied_into(a: Any, b: Any, w: Any) -> Any:
    a.copy_(w[: b.numel()].view(b.shape).sin())
    return (a * b).tanh()


def _never_read(a: Any, b: Any, w: Any) -> Any:
    a.zero_()
    return (w.sin() * w.exp()).sin()


def _four(a: Any, b: Any, c: Any, d: Any, w: Any) -> Any:
    b.add_(1)
    c.mul_(2)
    return ((a + d).flatten()[:3] * (b.flatten()[:3] + c.flatten()[:3]) * w[:3]).sin()


def _two_pairs(m: Any) -> Sequence[Any]:
    other = torch.ones(6) + m.detach()[0]
    return m[:6].view(2, 3), other, other.view(3, 2), m[3:9].view(2, 3)


CASES = {
    "same view twice": Case(_read_by_both, lambda m: (m[:4], m.view(3, 4)[0])),
    "views that meet in part": Case(_read_by_both, lambda m: (m[:4], m[2:6])),
    "views that do not meet": Case(_read_by_both, lambda m: (m[:4], m[4:8])),
    "the base and a view": Case(_read_before_and_after, lambda m: (m, m.view(3, 4))),
    "a view and the base": Case(_read_before_and_after, lambda m: (m.view(3, 4), m)),
    "the same tensor twice": Case(_read_before_and_after, lambda m: (m, m)),
    "both written": Case(_both_written, lambda m: (m[:8], m[4:])),
    "both written, in other shapes": Case(_both_written, lambda m: (m.view(3, 4), m.view(4, 3))),
    "a view is returned": Case(_view_returned, lambda m: (m.view(-1), m.view(4, 3))),
    "the other is written": Case(_other_returned, lambda m: (m, m.view(3, 4))),
    "without gradient": Case(_without_gradient, lambda m: (m.view(3, 4), m)),
    "a part is written": Case(_part_written, lambda m: (m.view(3, 4), m)),
    "steps between elements": Case(_copied_into, lambda m: (m[::2], m[1::2])),
    "transposed": Case(_copied_into, lambda m: (m[:9].view(3, 3), m[:9].view(3, 3).t().clone())),
    "written, never read": Case(_never_read, lambda m: (m[:8], m[4:])),
    "two pairs, in turn": Case(_four, _two_pairs),
}


def outcome(call: Callable[..., Any], case: Case, grad: bool) -> list[Any]:
    """Returns everything that a step makes or changes. With ``grad``, gradients flow through the
    memory that the inputs share."""
    leaf = torch.linspace(-1, 1, 12, requires_grad=grad)
    memory = leaf * 2 if grad else leaf.clone()
    w = torch.linspace(1, 2, 12, requires_grad=True)
    outputs = call(*case.views(memory), w)
    outputs = outputs if isinstance(outputs, tuple) else (outputs,)
    sum((o.float() * 0.5).sin().sum() for o in outputs if o.requires_grad).backward()
    gradients = [t.grad for t in (w, leaf) if t.grad is not None]
    return [*(o.detach() for o in outputs), *gradients, memory.detach()]


PYTORCHS_OWN = {"a view is returned", "written, never read"}
"""With gradients through the shared memory, PyTorch's own ``aot_eager`` loses or leaves out some of
these (torch 2.13). Plans cover what PyTorch traces."""

NOT_TRACED = {"both written", "both written, in other shapes", "without gradient"}
"""With gradients through the shared memory, ``aot_eager`` fails on these."""


def _names() -> list[tuple[str, bool]]:
    return [(n, g) for n in CASES for g in (False, True) if not (g and n in NOT_TRACED)]


@pytest.mark.parametrize(("name", "grad"), _names())
def test_written_inputs_that_share_memory(
    name: str, grad: bool, ran: Counter[str], same_bits: Callable[..., bool]
) -> None:
    case = CASES[name]
    reference = case.step
    if grad and name in PYTORCHS_OWN:
        reference = torch.compile(case.step, backend="aot_eager", fullgraph=True, dynamic=False)
    expected = outcome(reference, case, grad)
    for k, wishes in enumerate(WISHES if grad else WISHES[1:], 1):
        torch._dynamo.reset()
        call = ct.compile(case.step, fullgraph=True, dynamic=False, **wishes)
        got = outcome(call, case, grad)
        assert same_bits(got, expected), wishes
        assert ran["forward"] == ran["backward"] == k and len(call.plans) == 1


def test_a_policy_cannot_run_again_what_reads_overwritten_memory(
    ran: Counter[str], same_bits: Callable[..., bool]
) -> None:
    """Under MUST_RECOMPUTE for everything, values read before a write are saved, like random
    ones."""

    def f(w: Any, x: Any) -> Any:
        y = (w + x).sin().sin()
        x.add_(1)
        return (y * x).sum()

    expected: Any = None
    own = ct.compile(f, policy=CheckpointPolicy.MUST_RECOMPUTE)
    for call in (f, own):
        w, x = torch.linspace(0, 1, 64, requires_grad=True), torch.linspace(1, 2, 64)
        loss = call(w, x)
        loss.backward()
        expected = expected or (loss.detach(), w.grad, x)
        assert same_bits((loss.detach(), w.grad, x), expected)
    (plan,) = own.plans
    steps, start = plan.document["steps"], plan.document["backward_starts"]
    again = [plan.problem["ops"][i]["name"] for i in steps[start:]]
    assert "sin" in again and "add" not in again
