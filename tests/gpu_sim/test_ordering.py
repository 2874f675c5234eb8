"""Every ordering is needed: each wait, event and synchronisation of the backend, and each barrier
in its kernels, is skipped in turn, and the stand-in notices every one."""

from __future__ import annotations

import ctypes
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import cutback as cb
import mutations
from client import Driver
from cutback import cuda, tree
from cutback.nn import functional as F
from foreign import Tensor
from mutations import Deletion

X = np.linspace(-1, 1, 3000, dtype=np.float32)


def share(x: Any) -> Any:
    """Computes a function whose intermediates are in the arena, which calls share."""
    y = cb.exp(x)
    return y / y.sum()


def on_two_streams(gpu: Driver, s: list[int]) -> list[bytes]:
    """Runs one step on two streams, and reads both results on others."""
    gpu.wait()  # for earlier calls
    cuda.release_memory()  # so that no block has marks of an earlier call
    x, twice = cuda.to_device((X, 2 * X))
    y = STEPS["share"](x, stream=s[0])
    z = STEPS["share"](twice, stream=s[1])
    more = STEPS["more"](y, stream=s[2])
    other = STEPS["double"](z, stream=s[0])
    return [a.numpy().tobytes() for a in (more, other, z, y)]


def of_others(gpu: Driver, s: list[int]) -> list[bytes]:
    """Lets a library fill a tensor on its stream, take the result on another, and continue."""
    cuda.release_memory()
    x = Tensor(gpu, np.zeros(2000, np.float32))
    x.stream, theirs = ctypes.c_void_p(s[0]), ctypes.c_void_p(s[1])
    target = gpu.allocate(8000)
    fill = ctypes.c_uint64(x.memory.address), 0x40400000, ctypes.c_size_t(2000)
    gpu.call("cuMemsetD32Async", *fill, x.stream)
    y = STEPS["share"](x)
    y = STEPS["more"](y, stream=s[2])
    y.__dlpack__(stream=theirs.value)
    gpu.call(
        "cuMemcpyDtoDAsync",
        ctypes.c_uint64(target.address),
        ctypes.c_uint64(y.address),
        ctypes.c_size_t(8000),
        theirs,
    )
    gpu.call("cuStreamSynchronize", theirs)
    result = gpu.get(target, np.float32, 2000).tobytes()
    gpu.free(target, x.memory)
    return [result]


def of_the_host(gpu: Driver, s: list[int]) -> list[bytes]:
    """Uses arguments in pinned memory, which the device accesses when the work runs."""
    w, x = PINNED
    w[...], x[...] = np.linspace(-1, 1, len(w)), X[: len(w)]
    optimizer = cb.optim.SGD(lr=0.1, momentum=0.9)
    step = STEPS["trained"]
    step.optimizer = optimizer
    losses = [float(step(w, x)) for _ in range(2)]
    return [np.float32(losses).tobytes(), w.tobytes()]


def of_replays(gpu: Driver, s: list[int]) -> list[bytes]:
    """Replays a graph on two streams, and reads its parameter on a third in between and after."""
    gpu.wait()
    cuda.release_memory()
    w, x = cuda.to_device((np.linspace(-1, 1, len(X), dtype=np.float32), X))
    step = STEPS["trained"]
    step.optimizer = cb.optim.SGD(lr=0.1, momentum=0.9)
    captured = step.capture(w)
    captured(x)
    before = captured(x, stream=s[0])
    between = STEPS["double"](w, stream=s[1])
    after = captured(x, stream=s[2])
    end = STEPS["more"](w, stream=s[1])
    return [a.numpy().tobytes() for a in (end, after, between, before, w)]


LAST: list[str] = []
PINNED: list[np.ndarray[Any, Any]] = []
STEPS: dict[str, cb.Step] = {}
SCENARIOS = (on_two_streams, of_others, of_the_host)
SEEDS = (1, 0, 2, 5)


def outcome(gpu: Driver, scenario: Callable[..., list[bytes]], streams: list[int]) -> Any:
    """Returns the result of a scenario; None if the stand-in reported something."""
    try:
        result: Any = scenario(gpu, streams)
        gpu.wait()
    except Exception as error:
        result = None
        LAST.append(repr(error))
    found = gpu.recover()
    LAST.append(found)
    return None if found else result


def pinned(gpu: Driver, n: int) -> np.ndarray[Any, Any]:
    at = ctypes.c_void_p()
    gpu.call("cuMemAllocHost", ctypes.byref(at), ctypes.c_size_t(4 * n))
    assert at.value
    return np.frombuffer((ctypes.c_float * n).from_address(at.value), np.float32)


def sought(
    gpu: Driver, scenario: Callable[..., list[bytes]], entry: str, streams: list[int]
) -> tuple[int, list[int]]:
    """Returns the number of calls of the entry, and those that can be skipped unnoticed."""
    expected = outcome(gpu, scenario, streams)
    assert expected is not None, LAST[-2:]
    missed = []
    for nth in range(1, 200):
        found = was_due = False
        for seed in SEEDS:
            gpu.seed(seed)
            gpu.skip(entry, nth)
            found |= outcome(gpu, scenario, streams) != expected
            was_due = gpu.is_due(entry)
            gpu.fail(entry, 0)
            if found or was_due:
                break
        gpu.seed(0)
        if was_due:
            return nth - 1, missed
        if not found:
            missed.append(nth)
    raise AssertionError(entry)


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_each_wait_and_event_of_the_backend_is_needed(
    gpu: Driver, scenario: Callable[..., list[bytes]]
) -> None:
    """Only events that somebody waits for are needed; the others measure time. Copies to the host
    wait themselves, except copies into pinned memory."""
    loss = cb.compile(
        lambda w, x: ((w * x - 1) ** 2).sum(), optimizer=cb.optim.SGD(lr=1), device="cuda"
    )
    functions = {"share": share, "more": lambda x: x + 1, "double": lambda x: x * 2}
    STEPS.update({k: cb.compile(f, argnums=None, device="cuda") for k, f in functions.items()})
    STEPS["trained"] = loss
    streams = [gpu.stream().value for _ in range(3)]
    PINNED[:] = [pinned(gpu, 600) for _ in range(2)]
    n_waits, missed = sought(gpu, scenario, "cuStreamWaitEvent", streams)
    # The first call of a step waits for its previous one on another stream, which the host has
    # already waited for.
    assert missed == ([1] if scenario is on_two_streams else [])
    n_events, without = sought(gpu, scenario, "cuEventRecord", streams)
    assert n_events - len(without) == n_waits - len(missed)
    if scenario is not of_the_host:
        n_syncs, without = sought(gpu, scenario, "cuStreamSynchronize", streams)
        assert len(without) < n_syncs
    for array in PINNED:
        gpu.call("cuMemFreeHost", ctypes.c_void_p(array.ctypes.data))


def test_replays_wait_for_other_users_of_their_arrays(gpu: Driver) -> None:
    """The step between the replays waits for the first, the second replay for that step, and the
    step at the end for the second replay. Skipping one of these waits is noticed; some others are
    implied by the order of the captured step's own runs."""
    STEPS.update({
        "trained": cb.compile(
            lambda w, x: ((w * x - 1) ** 2).sum(), optimizer=cb.optim.SGD(lr=1), device="cuda"
        ),
        "more": cb.compile(lambda x: x + 1, argnums=None, device="cuda"),
        "double": cb.compile(lambda x: x * 2, argnums=None, device="cuda"),
    })  # fmt: skip
    streams = [gpu.stream().value for _ in range(3)]
    n_waits, missed = sought(gpu, of_replays, "cuStreamWaitEvent", streams)
    assert n_waits - len(missed) >= 3


# ---- barriers of the kernels that the backend writes


def norm(x: Any, w: Any, b: Any) -> Any:
    return (F.layer_norm(F.gelu(x), w, b) * F.softmax(x)).sum()


def lookup(table: Any, i: Any) -> Any:
    return (F.embedding(i, table) ** 2).sum()


def before_product(x: Any, w: Any, b: Any, y: Any) -> Any:
    """Computes a norm before a product. The gradient of the norm is a separate group."""
    return ((F.layer_norm(x, w, b) @ y) ** 2).sum()


def chosen(x: Any, labels: Any) -> Any:
    return F.cross_entropy(x, labels).mean()


def numbers(*shape: int, dtype: Any = np.float32) -> np.ndarray[Any, Any]:
    return np.random.default_rng(1).standard_normal(shape).astype(dtype)


ROWS = [numbers(9, 2500), numbers(2500), numbers(2500)]
INDEX = (np.arange(700) * 7 % 40).astype(np.int32)
PROGRAMS: dict[str, tuple[Any, Any, list[np.ndarray[Any, Any]]]] = {
    "products": (lambda x, y: x @ y, None, [numbers(70, 40), numbers(40, 70)]),
    "products of halves": (
        lambda x, y: x @ y,
        None,
        [numbers(70, 96, dtype=np.float16), numbers(96, 72, dtype=np.float16)],
    ),
    "uneven products of halves": (
        lambda x, y: x @ y,
        None,
        [numbers(70, 67, dtype=np.float16), numbers(67, 70, dtype=np.float16)],
    ),
    "short rows": (norm, (0, 1, 2), [numbers(33, 128), numbers(128), numbers(128)]),
    "rows of two leaves": (F.softmax, None, [numbers(5, 1500)]),
    "long rows": (F.softmax, None, [numbers(5, 5000)]),
    "turned": (lambda x: x.T * 2, None, [numbers(40, 36)]),
    "turned rows": (lambda x: F.softmax(x.T), None, [numbers(68, 40)]),
    "gradients of norms": (
        before_product,
        (0, 1, 2),
        [numbers(530, 128), numbers(128), numbers(128), numbers(128, 4)],
    ),
    "totals": (lambda x: (x * x).mean(), None, [numbers(200_000)]),
    "norms of long rows": (norm, (0, 1, 2), ROWS),
    "norms in double": (norm, (0, 1, 2), [a.astype(np.float64) for a in ROWS]),
    "lookups": (lookup, 0, [numbers(40, 30), INDEX]),
    "labels": (chosen, 0, [numbers(700, 40), INDEX]),
    "labels of long rows": (chosen, 0, [numbers(9, 3000), INDEX[:9] * 70]),
}


LONG = {"norms in double", "norms of long rows", "labels of long rows", "long rows", "lookups"}


def ptx_of(folder: Path) -> str:
    """Returns the PTX of the only source compiled into the folder."""
    (path,) = folder.glob("[0-9a-f][0-9a-f]/*.bin")
    return path.read_bytes()[len(b"cutback kernel 2\n") + 32 :].rstrip(b"\0").decode()


def sample(all_of_them: list[Deletion], few: bool) -> list[Deletion]:
    listed = [d for d in all_of_them if mutations.is_among_few(d.what)]
    if not few:
        return listed
    others = [d for d in listed if "shfl" not in d.what]
    return others[:: 1 + len(others) // 8] + [d for d in listed if "shfl" in d.what][:3]


@pytest.mark.parametrize(
    ("name", "few"),
    [
        *(pytest.param(n, True, id=n) for n in PROGRAMS if n not in LONG),
        *(pytest.param(n, False, id=f"more of {n}", marks=pytest.mark.very_slow) for n in PROGRAMS),
    ],
)
def test_each_barrier_and_shuffle_of_written_kernels_is_needed(
    gpu: Driver, name: str, few: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Skips each barrier and shuffle in turn, in the cached kernels. By default, it skips about
    eight barriers and three shuffles per program; to skip all barriers and one shuffle in seven
    (hundreds are alike) is very slow."""
    monkeypatch.setenv("CUTBACK_CACHE_DIR", str(tmp_path))
    f, argnums, arguments = PROGRAMS[name]

    def compiled() -> bytes:
        results = tree.flatten(cb.compile(f, argnums=argnums, backend="cuda")(*arguments))[0]
        return b"".join(np.asarray(result).tobytes() for result in results)

    expected = compiled()
    ptx = ptx_of(tmp_path)
    kernels = tuple(re.findall(r"\.entry\s+(\w+)", ptx))

    def is_found(deletion: Deletion) -> bool:
        """True if the deletion is noticed, or is never reached because the line is for other
        numbers of rows."""
        was_reached = False
        for seed in (0, 1, 2):
            gpu.seed(seed)
            gpu.leave_out(deletion.kernel, deletion.line)
            try:
                found = compiled() != expected
            except RuntimeError:
                found = True
            found |= gpu.recover() != ""
            was_reached |= gpu.leave_out() > 0
            if found:
                reached.append(deletion.what)
                return True
        return not was_reached

    reached: list[str] = []
    listed = list(mutations.deletions(ptx, kernels))
    if name == "labels of long rows":  # few rows: most shuffles of their total add zeros
        listed = [d for d in listed if "shfl" not in d.what]
    missed = [d.what for d in sample(listed, few) if not is_found(d)]
    assert reached and not missed
