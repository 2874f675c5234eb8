"""The stages of ``run.py``, in order, with their shares of time. Two calls cover them: the first
seven take 310 seconds, the rest 260."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
GPU, ROWS = "tests/gpu/", "benchmarks/gpu/"


@dataclass(frozen=True)
class Listing:
    """Items of a script, which prints them for ``--list name`` and runs one for ``--item``."""

    name: str
    script: str
    jobs: int = 1  # at a time
    own_cache: bool = (
        False  # each item compiles its own kernels; their sources are kept if it fails
    )

    @property
    def path(self) -> Path:
        return ROOT / self.script


@dataclass(frozen=True)
class Stage:
    """A time share for items, and for those that run in parallel within the same share.

    ``always`` means that each run repeats it. ``each_card`` means that a run on another card
    repeats it, before items that no card has run. ``needed`` means that nothing else works without
    it, so it may take all the time there is.
    """

    items: Listing
    seconds: float
    title: str
    beside: tuple[Listing, ...] = field(default=())
    always: bool = False
    each_card: bool = False
    needed: bool = False

    @property
    def name(self) -> str:
        return self.items.name

    @property
    def listings(self) -> tuple[Listing, ...]:
        return (self.items, *self.beside)


AFTER = Listing("after", GPU + "facts.py")
STAGES = (
    Stage(Listing("facts", GPU + "facts.py", jobs=3), 5, "the machine", always=True, needed=True),
    Stage(
        Listing("build", GPU + "package.py"),
        60,
        "the package",
        always=True,
        needed=True,
    ),
    Stage(
        Listing("smoke", GPU + "smoke.py", jobs=7, own_cache=True),
        30,
        "first steps",
        beside=(Listing("libraries", GPU + "facts.py"),),
        each_card=True,
    ),
    Stage(Listing("card", ROWS + "bench_gpu.py"), 15, "rates of the card", each_card=True),
    Stage(
        Listing("checks", GPU + "checks.py", jobs=8, own_cache=True),
        90,
        "results compared with the CPU's and PyTorch's",
        beside=(
            Listing("sanitizer", GPU + "sanitizer.py"),
            Listing("warm", ROWS + "bench_gpu.py", jobs=4),
        ),
    ),
    Stage(Listing("rows", ROWS + "bench_gpu.py"), 70, "kernels compared with PyTorch eager"),
    Stage(Listing("bridge", ROWS + "bench_bridge.py"), 40, "a small PyTorch model under budgets"),
    Stage(Listing("compile", ROWS + "bench_gpu.py"), 80, "kernels compared with torch.compile"),
    Stage(Listing("kernels", ROWS + "bench_gpu.py"), 50, "one kernel at a time"),
    Stage(Listing("models", ROWS + "bench_bridge.py"), 130, "PyTorch models under budgets"),
)
NAMES = tuple(stage.name for stage in STAGES)
