"""The examples in the docstrings of ``cutback.torch`` run, with the names that their readers have.
Those of front ends run in ``tests/frontends``, where these are installed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import docstrings
import pytest

torch = pytest.importorskip("torch")

import cutback
import cutback.torch

EXAMPLES = {
    example.place: example
    for example in docstrings.examples(torch=True)
    if not example.place.startswith("torch.frontends") or "compile_in_place" in example.place
}

SLOW = pytest.mark.very_slow
OTHERS = (  # examples that run other examples, too
    "torch.compiler.compiling.compile", "torch.profiler.batches.MaxBatch",
    "torch.profiler.mutwo.Selection", "torch.profiler.profiling.Profile",
    "torch.profiler.tracing.TracedStep",
)  # fmt: skip


def of_readers() -> dict[str, Any]:
    """Returns a model that takes images, and an op of another library."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Conv2d(3, 4, 7, 4), torch.nn.ReLU(), torch.nn.Flatten(1, 2), torch.nn.Tanh(),
        torch.nn.AdaptiveAvgPool1d(4),
    )  # fmt: skip
    x = torch.randn(2, 3, 224, 224)
    return {
        "torch": torch, "cutback": cutback, "model": model, "x": x, "inputs": (x,),
        "max_batch": cutback.torch.max_batch, "weight": torch.nn.Parameter(torch.ones(4, 4)),
    }  # fmt: skip


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Registers an op of the reader's library. Its name differs from those in the snippets of
    docs/, which stay registered."""
    with torch.library._scoped_library("mylib_of_examples", "FRAGMENT") as library:
        library.define("fused_norm(Tensor x) -> Tensor")
        monkeypatch.setattr(torch.ops, "mylib", torch.ops.mylib_of_examples, raising=False)
        yield library


@pytest.mark.parametrize(
    "place", [pytest.param(p, marks=SLOW if p in OTHERS else ()) for p in EXAMPLES]
)
@pytest.mark.usefixtures("library")
def test_it_runs(place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names = of_readers()
    example = EXAMPLES[place]
    if place == "torch.profiler.batches.max_batch":  # found faster with a smaller budget
        source = example.lines[0].source.replace('"6GiB"', '"1MiB"')
        example.lines[0].source = source
    docstrings.run(example, names)
    if "step" in names:
        (plan,) = names["step"].plans or [None]
        assert plan is None or plan.numbers["live_bytes"] > 0


def test_every_public_name_has_an_example() -> None:
    assert docstrings.without_example(torch=True) == []


def test_every_parameter_of_a_public_name_is_described() -> None:
    assert docstrings.undescribed(torch=True) == []


def test_docstrings_name_the_errors_that_the_function_raises() -> None:
    assert len(docstrings.documented(torch=True)) > 50
    assert docstrings.unnamed_errors(docstrings.documented(torch=True)) == []


def test_docstrings_say_what_the_function_returns() -> None:
    assert docstrings.unnamed_results(docstrings.documented(torch=True)) == []
