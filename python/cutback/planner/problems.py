"""Problems as the planner takes them: read from documents and files, with measured times and a
policy laid over them."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, Protocol

from .. import _native, devices, files
from ..constraints import constrain
from ..policies import Policy, WholeGraph

Problem = Mapping[str, Any] | str | os.PathLike[str]
Times = Mapping[Any, float]  # seconds by operation, its name or id


class Timed(Protocol):
    """What ``profile=`` takes besides plain times: a profile of a step, from either front door."""

    def times(self) -> dict[str, float]:
        """Seconds by operation."""
        ...


def read_graph(problem: Problem) -> str:
    """The text of a problem or a traced graph: a document, JSON text, or the path of a file,
    gzipped or not.

    Raises:
        OSError: the file cannot be read. ValueError: it is no text. TypeError: none of these.
    """
    if isinstance(problem, Mapping):
        return files.to_json(dict(problem), "problem")
    if isinstance(problem, str):
        text = problem.removeprefix("\ufeff")  # some editors' mark of UTF-8
        if text.lstrip().startswith("{"):
            return text
    if isinstance(problem, (str, os.PathLike)):
        return files.read_text(problem)
    raise TypeError(
        "a problem is a document (dict), its JSON or the path of a file, not "
        f"{type(problem).__name__}; for a cutback.Graph there is "
        'graph.compile(wrt=..., backend="null").plan'
    )


def read_problem(problem: Problem) -> str:
    """The same as a problem's text: a traced graph becomes a problem.

    Raises:
        OSError: the file cannot be read. ValueError: it holds neither.
    """
    return _native.problem_json(read_graph(problem))


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
    problem: str, policy: Policy | WholeGraph | str | None, device: devices.Device | None
) -> str:
    """A problem with a policy laid over it.

    Raises:
        TypeError: the policy is one for functions.
    """
    if isinstance(policy, WholeGraph):
        return policy.constrain(problem, devices.resolve(device))
    if isinstance(policy, str):
        return constrain(problem, policy, devices.resolve(device))
    if policy is not None:
        raise TypeError(
            f"policy={policy!r}: a problem takes a policy by name; see cutback.constraints"
        )
    return problem


def problem_text(
    problem: Problem,
    *,
    policy: Policy | WholeGraph | str | None = None,
    device: devices.Device | None = None,
    profile: Timed | Times | str | os.PathLike[str] | None = None,
) -> str:
    """The problem (JSON) of what :func:`read_graph` takes, with times and policy laid over it.

    Raises:
        ValueError, TypeError: a mistake in it.
    """
    text = read_problem(problem)
    if profile is not None:
        text = files.with_times(text, times_of(profile))
    return under_policy(text, policy, device)
