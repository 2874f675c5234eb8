"""Profiles of small models, shared by several tests."""

from __future__ import annotations

import copy
from functools import cache
from typing import Any

import torch
from small_models import GPT
from small_models import make as make_model

import cutback.torch as ct
from cutback.torch.graph.moving import schedule_of
from cutback.torch.profiler.stepping import Program

MODELS = ("gpt", "resnet", "unet")


def make(name: str, dropout: float = 0.1) -> tuple[Any, tuple[Any, ...]]:
    """Returns the model and its inputs, the same each time."""
    if name != "gpt":
        return make_model(name)
    torch.manual_seed(0)
    return GPT(1, dropout=dropout), (torch.randint(50, (4, 32)), torch.randint(50, (4, 32)))


@cache
def profiled(name: str) -> Any:
    """Returns one profile for all tests that only read it."""
    model, inputs = make(name)
    return ct.profile(model, *inputs, runs=2, link=1e9)


def given_times(profile: Any) -> Any:
    """Returns the same profile with times that do not depend on the machine: 10 us plus 1 ns per
    byte."""
    given = copy.copy(profile)
    given.rows = [row._replace(seconds=1e-5 + 1e-9 * row.bytes) for row in profile.rows]
    return given


def outputs(profile: Any, plan: Any) -> list[Any]:
    """Returns the results of a plan in the profiler's run, forward and backward."""
    schedule = schedule_of(plan.core)
    program = Program(profile.captured.under(plan), schedule)
    with program.quiet():
        torch.manual_seed(7)
        return program.run()
