"""The examples in the docstrings of ``cutback.torch.frontends`` run with the front ends."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import docstrings
import lightning
import pytest
import torch
from lightning_models import TanhRows, quiet
from test_front_ends import Tokens, gpt2

from cutback.torch import frontends

EXAMPLES = {
    example.place: example
    for example in docstrings.examples(torch=True)
    if example.place.startswith("torch.frontends") and "compile_in_place" not in example.place
}


def of_readers(folder: Path) -> dict[str, Any]:
    from accelerate import Accelerator
    from transformers import Trainer, TrainingArguments

    arguments = TrainingArguments(output_dir=str(folder), max_steps=1, report_to=[], use_cpu=True)
    model = gpt2()
    names = {name: getattr(frontends, name) for name in dir(frontends) if name[0] != "_"}
    return {
        **names, "lightning": lightning, "Accelerator": functools.partial(Accelerator, cpu=True),
        "Trainer": functools.partial(Trainer, train_dataset=Tokens()), "args": arguments,
        "model": model, "module": TanhRows(),
        "loader": torch.utils.data.DataLoader(Tokens(), batch_size=4),
        "optimizer": torch.optim.SGD(model.parameters(), lr=0.1),
    }  # fmt: skip


@pytest.mark.parametrize("place", EXAMPLES)
def test_it_runs(place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names = of_readers(tmp_path)
    monkeypatch.setattr(
        names["lightning"], "Trainer", functools.partial(lightning.Trainer, **quiet(tmp_path))
    )
    docstrings.run(EXAMPLES[place], names)
