"""Problems as the planner takes them: read from documents and files, with measured times and a
policy laid over them."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, Protocol

from .. import _native, devices, files, problem
from ..constraints import lay_policy
from ..policies import Policy, WholeGraph, constrain_whole

AnyProblem = problem.Problem | _native.Problem | Mapping[str, Any] | str | os.PathLike[str]
"""What users call a problem: :class:`cutback.problem.Problem`, a document (dict), its JSON, or the
path of a file with it."""
Times = Mapping[Any, float]  # seconds by operation, its name or id


class Timed(Protocol):
    """What ``profile=`` takes besides plain times: a profile of a step, from either front door."""

    def times(self) -> dict[str, float]:
        """Seconds by operation."""
        ...


def read_graph(what: AnyProblem) -> str:
    """The text of a problem or a traced graph.

    Raises:
        OSError: the file cannot be read. ValueError: it is no text. TypeError: none of these.
    """
    if isinstance(what, (problem.Problem, _native.Problem)):
        return what.to_json()
    if isinstance(what, Mapping):
        return files.to_json(dict(what), "problem")
    if isinstance(what, str):
        text = what.removeprefix("\ufeff")  # some editors' mark of UTF-8
        if text.lstrip().startswith("{"):
            return text
    if isinstance(what, (str, os.PathLike)):
        return files.read_text(what)
    raise TypeError(
        "a problem is a document (dict), its JSON or the path of a file, not "
        f"{type(what).__name__}; for a cutback.Graph there is "
        'graph.compile(wrt=..., backend="null").plan'
    )


def read_problem(what: AnyProblem) -> _native.Problem:
    """The same in the core, checked; a traced graph becomes a problem.

    Raises:
        OSError: the file cannot be read. ValueError: it holds neither.
    """
    if isinstance(what, _native.Problem):
        return what
    if isinstance(what, problem.Problem):
        return what.check()
    return _native.Problem.read(read_graph(what))


def times_of(profile: Timed | Times | str | os.PathLike[str]) -> Times:
    """Seconds by operation."""
    if isinstance(profile, (str, os.PathLike)):
        return files.read_times(profile)
    if isinstance(profile, Mapping):
        return profile
    if not callable(getattr(profile, "times", None)):
        raise TypeError(
            "profile is seconds by operation, the path of a file with them, or what step.profile "
            f"returned, not {type(profile).__name__}"
        )
    return profile.times()


def under_policy(
    checked: _native.Problem,
    policy: Policy | WholeGraph | str | None,
    device: devices.Device | None,
) -> _native.Problem:
    """A problem with a policy laid over it.

    Raises:
        TypeError: the policy is one for functions.
    """
    if isinstance(policy, WholeGraph):
        return constrain_whole(policy, checked, devices.resolve(device))
    if isinstance(policy, str):
        return lay_policy(checked, policy, devices.resolve(device))
    if policy is not None:
        raise TypeError(
            f"policy={policy!r}: a problem takes a policy by name; see cutback.constraints"
        )
    return checked


def ready_problem(
    what: AnyProblem,
    *,
    policy: Policy | WholeGraph | str | None = None,
    device: devices.Device | None = None,
    profile: Timed | Times | str | os.PathLike[str] | None = None,
) -> _native.Problem:
    """The problem of what :func:`read_problem` takes, with times and policy laid over it.

    Raises:
        ValueError, TypeError: a mistake in it.
    """
    checked = read_problem(what)
    if profile is not None:
        parts = checked.parts()
        files.lay_times(parts, times_of(profile))
        checked = parts.check()
    return under_policy(checked, policy, device)
