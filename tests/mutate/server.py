"""A pytest plugin that runs tests on request, each in a process forked after all imports and the
collection. Requests and answers are lines of JSON:

    {"test": "tests/gpu_sim/test_sums.py::...", "env": {...}, "cpu": 30, "wall": 300}
    {"passed": false, "seconds": 1.25}

Answers go to the file descriptor that CUTBACK_MUTATE_ANSWERS names."""

from __future__ import annotations

import json
import os
import resource
import signal
import sys
import time
from pathlib import Path
from typing import Any

import pytest


class Outcome:
    failed = False

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.failed |= report.failed


def run_child(item: pytest.Item, request: dict[str, Any]) -> None:
    """Runs a test in a forked child, and never returns."""
    os.setsid()
    silent = os.open(os.devnull, os.O_RDWR)
    for fd in (0, 1, 2):
        os.dup2(silent, fd)
    os.environ.update(request["env"])
    cpu = max(1, int(request["cpu"]))
    resource.setrlimit(resource.RLIMIT_CPU, (cpu, cpu + 1))
    outcome = Outcome()
    item.config.pluginmanager.register(outcome)
    try:
        item.config.hook.pytest_runtest_protocol(item=item, nextitem=None)
    except BaseException:
        outcome.failed = True
    os._exit(1 if outcome.failed else 0)


def run(item: pytest.Item, request: dict[str, Any]) -> dict[str, Any]:
    pid = os.fork()
    if pid == 0:
        run_child(item, request)
    end = time.monotonic() + request["wall"]
    killed = False
    while True:
        done, status, usage = os.wait4(pid, os.WNOHANG)
        if done:
            break
        if time.monotonic() > end and not killed:
            killed = True
            os.killpg(pid, signal.SIGKILL)
        time.sleep(0.01)
    return {"passed": status == 0 and not killed, "seconds": usage.ru_utime + usage.ru_stime}


def pytest_runtestloop(session: pytest.Session) -> bool:
    sys.path.insert(0, str(Path(__file__).parents[1] / "gpu_sim"))
    import client

    client.build()  # once, not in each child
    items = {item.nodeid: item for item in session.items}
    answers = os.fdopen(int(os.environ["CUTBACK_MUTATE_ANSWERS"]), "w", buffering=1)
    print(json.dumps(list(items)), file=answers)
    for line in sys.stdin:
        request = json.loads(line)
        print(json.dumps(run(items[request["test"]], request)), file=answers)
    return True
