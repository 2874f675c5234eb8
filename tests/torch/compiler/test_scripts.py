"""Runs scripts as written by people who have not read our documentation, with one line added, at
half of the memory. They have the same parameters and losses as without that line, and peaks within
the budget, or an error sentence with the smallest share."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn
from torch.nn import functional as F

import cutback
import cutback.torch as ct
from cutback.torch import MemoryTracker

Add = Callable[[nn.Module], Any]
STEPS = 2


def small_cnn(add: Add) -> Iterator[Any]:
    model = nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(),
        nn.Conv2d(16, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 10),
    )  # fmt: skip
    run = add(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    criterion = nn.CrossEntropyLoss()
    for _ in range(STEPS):
        images, labels = torch.randn(8, 3, 16, 16), torch.randint(10, (8,))
        optimizer.zero_grad()
        loss = criterion(run(images), labels)
        loss.backward()
        optimizer.step()
        yield loss
    yield from model.state_dict().values()


def mlp(add: Add) -> Iterator[Any]:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList([nn.Linear(64, 64) for _ in range(6)])
            self.drop = nn.Dropout(0.1)
            self.head = nn.Linear(64, 1)

        def forward(self, x: Any) -> Any:
            for layer in self.layers:
                x = self.drop(F.gelu(layer(x)))
            return self.head(x).squeeze(-1)

    model = Net()
    run = add(model)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for _ in range(STEPS):
        x, y = torch.randn(128, 64), torch.randn(128)
        loss = F.mse_loss(run(x), y)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        yield loss
    yield from model.parameters()


def rnn(add: Add) -> Iterator[Any]:
    class Tagger(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed = nn.Embedding(50, 32)
            self.inputs, self.hidden = nn.Linear(32, 32), nn.Linear(32, 32)
            self.head = nn.Linear(32, 5)

        def forward(self, tokens: Any) -> Any:
            h, out = torch.zeros(tokens.shape[0], 32), []
            for x in self.embed(tokens).unbind(1):
                h = torch.tanh(self.inputs(x) + self.hidden(h))
                out.append(h)
            return self.head(torch.stack(out, 1))

    model = Tagger()
    run = add(model)
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(STEPS):
        tokens, tags = torch.randint(50, (16, 6)), torch.randint(5, (16, 6))
        optimizer.zero_grad()
        loss = F.cross_entropy(run(tokens).flatten(0, 1), tags.flatten())
        loss.backward()
        optimizer.step()
        yield loss
    yield from model.parameters()


def transformer(add: Add) -> Iterator[Any]:
    layer = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.1, batch_first=True)
    model = nn.Sequential(nn.Embedding(40, 32), nn.TransformerEncoder(layer, 2), nn.Linear(32, 40))
    run = add(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (1 + step))
    for _ in range(STEPS):
        tokens = torch.randint(40, (8, 17))
        loss = F.cross_entropy(run(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        scheduler.step()
        yield loss
    yield from model.parameters()


def gan(add: Add) -> Iterator[Any]:
    generator = nn.Sequential(
        nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64), nn.Tanh()
    )
    discriminator = nn.Sequential(
        nn.Linear(64, 64), nn.LeakyReLU(0.2), nn.Linear(64, 64), nn.LeakyReLU(0.2), nn.Linear(64, 1)
    )
    make, judge = add(generator), add(discriminator)
    of_generator = torch.optim.Adam(generator.parameters(), lr=2e-4)
    of_judge = torch.optim.Adam(discriminator.parameters(), lr=2e-4)
    bce = nn.BCEWithLogitsLoss()
    for _ in range(STEPS):
        real, noise = torch.randn(512, 64), torch.randn(512, 8)
        fake = make(noise)
        of_judge.zero_grad()
        loss = bce(judge(real), torch.ones(512, 1)) + bce(judge(fake.detach()), torch.zeros(512, 1))
        loss.backward()
        of_judge.step()
        yield loss
        of_generator.zero_grad()
        loss = bce(judge(fake), torch.ones(512, 1))
        loss.backward()
        of_generator.step()
        yield loss
    yield from [*generator.parameters(), *discriminator.parameters()]


def contrastive(add: Add) -> Iterator[Any]:
    encoder = nn.Sequential(
        nn.Linear(32, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(),
        nn.Linear(64, 16),
    )  # fmt: skip
    encode = add(encoder)
    optimizer = torch.optim.Adam(encoder.parameters())
    for _ in range(STEPS):
        x = torch.randn(32, 32)
        a, b = encode(x + 0.1 * torch.randn(32, 32)), encode(x + 0.1 * torch.randn(32, 32))
        logits = F.normalize(a, dim=1) @ F.normalize(b, dim=1).T / 0.1
        loss = F.cross_entropy(logits, torch.arange(32))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        yield loss
    yield from encoder.state_dict().values()


SCRIPTS = [small_cnn, mlp, rnn, transformer, gan, contrastive]
QUICK = (mlp, contrastive)


def outcome(script: Callable[[Add], Iterator[Any]], add: Add) -> tuple[list[Any], int]:
    """Returns the results of a script, and its peak after the first step."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    found, peak, run = [], 0, script(add)
    while True:
        with MemoryTracker() as memory:
            value = next(run, None)
        if value is None:
            return found, peak
        found.append(value.detach().clone())
        if len(found) > 1 and value.dim() == 0:
            peak = max(peak, memory.peak_bytes)
        del value


@pytest.mark.parametrize(
    "script",
    [
        pytest.param(f, id=f.__name__, marks=[pytest.mark.very_slow] * (f not in QUICK))
        for f in SCRIPTS
    ],
)
def test_a_script_with_one_line_more(script: Callable[[Add], Iterator[Any]]) -> None:
    plain, _ = outcome(script, lambda model: torch.compile(model, backend="aot_eager"))
    smallest = 0.5
    with warnings.catch_warnings():  # about calls that are pending together in the first step
        warnings.simplefilter("ignore", UserWarning)
        whole, most = outcome(script, lambda model: ct.compile(model))
        try:
            half, least = outcome(script, lambda model: ct.compile(model, budget="0.5x"))
        except cutback.BudgetError as error:
            assert error.share == 0.5 and error.smallest_share is not None, str(error)
            smallest = error.smallest_share
            half, least = outcome(script, lambda model: ct.compile(model, budget=f"{smallest}x"))
    for name, values in (("no budget", whole), ("half", half)):
        assert len(values) == len(plain)
        assert all(torch.equal(a, b) for a, b in zip(values, plain, strict=True)), name
    assert least < most or (smallest == 1 and least == most)
