"""Reads problems from documents and files, and adds measured times and a policy to them."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, Protocol

from .. import _native, devices, files, problem
from ..constraints import lay_policy
from ..policies import Policy, WholeGraph, constrain_whole

AnyProblem = problem.Problem | _native.Problem | Mapping[str, Any] | str | os.PathLike[str]
"""Everything that users may pass as a problem: a :class:`cutback.problem.Problem`, a document
(dict), its JSON, or the path of a file with the JSON."""
Times = Mapping[Any, float]  # operation (name or id) -> seconds


class Timed(Protocol):
    """A profile of a native or a PyTorch step, which ``profile=`` accepts instead of times."""

    def times(self) -> dict[str, float]:
        """Returns the seconds of each operation, by name or id."""
        ...


def read_graph(what: AnyProblem) -> str:
    """Returns the JSON of a problem or a traced graph.

    Raises:
        OSError: if the file cannot be read.
        ValueError: if the file does not contain text.
        TypeError: if ``what`` has an unsupported type.
    """
    if isinstance(what, (problem.Problem, _native.Problem)):
        return what.to_json()
    if isinstance(what, Mapping):
        return files.to_json(dict(what), "problem")
    if isinstance(what, str):
        text = what.removeprefix("\ufeff")  # byte order mark
        if text.lstrip().startswith("{"):
            return text
    if isinstance(what, (str, os.PathLike)):
        return files.read_text(what)
    raise TypeError(
        "a problem must be a document (dict), its JSON or the path of a file, not "
        f"{type(what).__name__}; for a cutback.Graph use "
        'graph.compile(wrt=..., backend="null").plan'
    )


def read_problem(what: AnyProblem) -> _native.Problem:
    """Reads and checks a problem. A traced graph is converted to a problem.

    Raises:
        OSError: if the file cannot be read.
        ValueError: if ``what`` is neither a problem nor a traced graph.
    """
    if isinstance(what, _native.Problem):
        return what
    if isinstance(what, problem.Problem):
        return what.check()
    return _native.Problem.read(read_graph(what))


def times_of(profile: Timed | Times | str | os.PathLike[str]) -> Times:
    """Returns the seconds of each operation from any form of ``profile``."""
    if isinstance(profile, (str, os.PathLike)):
        return files.read_times(profile)
    if isinstance(profile, Mapping):
        return profile
    if not callable(getattr(profile, "times", None)):
        raise TypeError(
            "profile must be a dict of operation to seconds, the path of a JSON file with one, or "
            f"the result of step.profile, not {type(profile).__name__}"
        )
    return profile.times()


def under_policy(
    checked: _native.Problem,
    policy: Policy | WholeGraph | str | None,
    device: devices.Device | None,
) -> _native.Problem:
    """Adds the constraints of a policy to a problem.

    Raises:
        TypeError: if the policy only works for traced functions.
    """
    if isinstance(policy, WholeGraph):
        return constrain_whole(policy, checked, devices.resolve(device))
    if isinstance(policy, str):
        return lay_policy(checked, policy, devices.resolve(device))
    if policy is not None:
        raise TypeError(
            f"policy={policy!r}: for a problem, give a policy by name; see cutback.constraints"
        )
    return checked


def ready_problem(
    what: AnyProblem,
    *,
    policy: Policy | WholeGraph | str | None = None,
    device: devices.Device | None = None,
    profile: Timed | Times | str | os.PathLike[str] | None = None,
) -> _native.Problem:
    """Reads a problem like :func:`read_problem` and applies ``profile`` and ``policy``.

    Raises:
        ValueError, TypeError: if an argument is invalid.
    """
    checked = read_problem(what)
    if profile is not None:
        parts = checked.parts()
        files.lay_times(parts, times_of(profile))
        checked = parts.check()
    return under_policy(checked, policy, device)
