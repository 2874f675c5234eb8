"""Runs commands as process groups with a time limit, like ``timeout -k 5``.

A child is first asked to end (SIGTERM) and killed GRACE seconds later. Its output goes to files, so
a grandchild that keeps a pipe open cannot block the runner, and what was printed before a kill is
kept. Processes that leave the group (PyTorch's compile workers start sessions of their own) are
found by a variable in their environment and killed too.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

GRACE = 5.0  # seconds between SIGTERM and SIGKILL
TOKEN = "CUTBACK_GPU_TOKEN"  # environment variable that shows which child a process descends from


def _marked(token: str) -> list[int]:
    """Returns the processes started directly or indirectly by the child with that token, except
    this one."""
    prefix, found = f"{TOKEN}=".encode(), []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            variables = (folder / "environ").read_bytes().split(b"\0")
        except OSError:
            continue
        chain = next((v for v in variables if v.startswith(prefix)), b"").removeprefix(prefix)
        if token.encode() in chain.split(b":") and int(folder.name) != os.getpid():
            found.append(int(folder.name))
    return found


class Child:
    """A running command.

    ``limit`` has the seconds until the command is asked to end. ``late`` says whether that
    happened, and ``stopped`` whether something else asked it to end. ``returncode`` is None while
    the command runs, and also if it survived SIGKILL (as a process that waits in the driver can);
    in that case ``lost`` is set.
    """

    def __init__(
        self,
        command: Sequence[str],
        variables: Mapping[str, str],
        limit: float,
        log: Path,
        cwd: Path | None = None,
    ) -> None:
        log.parent.mkdir(parents=True, exist_ok=True)
        self.out, self.err = log.with_name(log.name + ".out"), log.with_name(log.name + ".err")
        self.begin, self.limit = time.monotonic(), limit
        self.late = self.stopped = self.lost = False
        self.ended: float | None = None
        self._asked: float | None = None
        self._token = f"{os.getpid()}.{time.monotonic_ns()}"
        chain = ":".join(filter(None, (variables.get(TOKEN), self._token)))
        with self.out.open("wb") as out, self.err.open("wb") as err:
            self._process = subprocess.Popen(
                command,
                env={**variables, TOKEN: chain},
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                cwd=cwd,
                process_group=0,
            )

    @property
    def returncode(self) -> int | None:
        return self._process.returncode

    @property
    def seconds(self) -> float:
        return (self.ended or time.monotonic()) - self.begin

    def _signal(self, number: int) -> None:
        """Signals the whole group, because its leader may have ended before the other members."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, number)
        if number == signal.SIGKILL:
            for process in _marked(self._token):
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(process, number)

    def stop(self) -> None:
        """Asks the command to end; `poll` kills it GRACE seconds later."""
        if self._asked is None and self.returncode is None:
            self.stopped, self._asked = True, time.monotonic()
            self._signal(signal.SIGTERM)

    def kill(self) -> None:
        """Kills the command and everything it has started, at once."""
        self._signal(signal.SIGKILL)

    def poll(self) -> bool:
        """True if the command has ended. Enforces the limit."""
        if self.ended is not None:
            return True
        now = time.monotonic()
        if self._process.poll() is not None:
            self._signal(signal.SIGKILL)  # any processes it left behind
            self.ended = now
            return True
        if self._asked is None and now - self.begin >= self.limit:
            self.late, self._asked = True, now
            self._signal(signal.SIGTERM)
        elif self._asked is not None and now - self._asked >= GRACE:
            self._signal(signal.SIGKILL)
            if now - self._asked >= 2 * GRACE:
                self.lost, self.ended = True, now
                return True
        return False

    def wait(self) -> None:
        """Waits until the command has ended or is lost."""
        while not self.poll():
            time.sleep(0.02)

    def text(self, which: Path, most: int = 1 << 16) -> str:
        """Returns the command's output, or only its end if it is long."""
        try:
            data = which.read_bytes()
        except OSError:
            return ""
        return data[-most:].decode(errors="replace")


def ended(child: Child) -> str:
    """Says how a command ended, or "" if it succeeded."""
    if child.lost:
        return "it does not end, even killed: it waits in the driver"
    if child.late:
        return f"no end within {child.limit:.0f} s"
    if child.stopped:
        return f"ended with its stage after {child.seconds:.0f} s"
    if child.returncode:
        code = child.returncode
        return f"signal {signal.Signals(-code).name}" if code < 0 else f"exit status {code}"
    return ""
