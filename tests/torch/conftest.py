"""Shared by the tests of the PyTorch bridge: checked plans, counted runs, and a measured training
step. Without torch nothing here is collected."""

from __future__ import annotations

import gc
import importlib.util
import os
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest


def _has_torch() -> bool:
    """True if PyTorch is installed. This folder itself may be imported as ``torch``, so a part of
    PyTorch is looked up."""
    try:
        return importlib.util.find_spec("torch.nn") is not None
    except ModuleNotFoundError:
        return False


if not _has_torch():
    collect_ignore_glob = ["test_*.py"]

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent / "reference")]

if _has_torch() and importlib.util.find_spec("torchvision") is not None:
    import vision_operators

    vision_operators.define()  # models of other libraries import it


# Inductor compiles and loads a library for each instruction set, to see whether that works.
os.environ.setdefault("TORCHINDUCTOR_VEC_ISA_OK", "1")


def pytest_configure(config: pytest.Config) -> None:
    """Hides warnings that PyTorch causes itself while it compiles, and hides unless warnings are
    errors. Also hides that a region's first run is over its budget (many small regions are here,
    and equal ones warn only once, in whichever test comes first) and that kernels need much scratch
    relative to small tensors."""
    config.addinivalue_line("filterwarnings", "ignore:kernels take scratch")
    config.addinivalue_line("filterwarnings", "ignore:the first run of a region")
    config.addinivalue_line("filterwarnings", "ignore:the model was split into")
    config.addinivalue_line("filterwarnings", "ignore:a region deviated from its planned runs")
    config.addinivalue_line("filterwarnings", "ignore:The .grad attribute of a Tensor")
    config.addinivalue_line("filterwarnings", "ignore:.* should not be instantiated")
    config.addinivalue_line("filterwarnings", "ignore:`torch.jit:DeprecationWarning")


@pytest.fixture(autouse=True, scope="module")
def little_to_collect() -> Iterator[None]:
    """Freezes objects left by PyTorch and earlier tests, whose scanning in collections took a fifth
    of the time."""
    import torch._dynamo
    import torch._functorch.aot_autograd  # noqa: F401

    gc.collect()
    gc.freeze()
    yield


@pytest.fixture(autouse=True)
def kernels_by_the_table(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets ``codegen="native"`` measure nothing, so that tests see the same groups on each
    machine."""
    from cutback.torch.native import choosing

    monkeypatch.setattr(choosing, "enabled", False)


@pytest.fixture(autouse=True)
def every_plan_is_checked(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Checks each plan with the independent evaluator."""
    from evaluate import check_plan

    from cutback.planner.plan import Plan

    take_plan = Plan.of

    def take_and_check(core: Any, step: Any = None, position: Any = None) -> Plan:
        plan = take_plan(core, step, position)
        check_plan(plan.problem, plan.document, plan.document["device"])
        return plan

    monkeypatch.setattr(Plan, "of", take_and_check)
    yield


@pytest.fixture(autouse=True)
def fresh_compiler(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Resets PyTorch's compiler between tests and uses one thread. Guards are not timed for the
    log, because that flushes caches and took a tenth of all compile time."""
    import torch

    monkeypatch.setattr(torch._dynamo.guards, "profile_guard_manager", lambda *_: 0.0)
    torch._dynamo.reset()
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Counts runs of generated code: ``ran["forward"]``, ``ran["backward"]``, ``ran["inference"]``.
    A test of compiled code asserts that it ran."""
    from cutback.torch.graph import codegen

    counts: Counter[str] = Counter()
    lock = threading.Lock()  # several threads may run one compiled model
    compile_boxed = codegen.compile_boxed

    def counted(gm: Any, name: str = "step", watch: Any = None) -> Any:
        run = compile_boxed(gm, name, watch)

        def call(args: list[Any]) -> Any:
            with lock:
                counts[name] += 1
            return run(args)

        call._boxed_call = True  # type: ignore[attr-defined]
        return call

    monkeypatch.setattr(codegen, "compile_boxed", counted)
    return counts


class Measured(NamedTuple):
    """The results of one training step."""

    loss: Any
    gradients: dict[str, Any]
    buffers: dict[str, Any]
    peak_bytes: int


@pytest.fixture
def train_step() -> Callable[..., Measured]:
    """Provides train_step(module, *inputs): a measured step with seed 7 and new gradients."""
    import torch

    from cutback.torch import MemoryTracker

    def step(module: Any, *inputs: Any) -> Measured:
        module.zero_grad(set_to_none=True)
        torch.manual_seed(7)
        with MemoryTracker() as memory:
            loss = module(*inputs)
            loss.backward()
            peak = memory.peak_bytes
        gradients = {
            n: None if p.grad is None else p.grad.clone() for n, p in module.named_parameters()
        }
        return Measured(
            loss.detach(), gradients, {n: b.clone() for n, b in module.named_buffers()}, peak
        )

    return step


@pytest.fixture
def same_bits() -> Callable[[Any, Any], bool]:
    """Provides a function that is true if two trees of tensors are equal, bit for bit."""
    import torch
    from torch.utils._pytree import tree_leaves

    def equal(a: Any, b: Any) -> bool:
        xs, ys = tree_leaves(a), tree_leaves(b)
        return len(xs) == len(ys) and all(
            torch.equal(x, y) if isinstance(x, torch.Tensor) else x is y or x == y
            for x, y in zip(xs, ys, strict=True)
        )

    return equal
