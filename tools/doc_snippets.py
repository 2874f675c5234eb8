#!/usr/bin/env python3
"""The Python snippets of README.md and docs/ as programs, checked by type checkers.

    tools/doc_snippets.py mypy       exit 1 if mypy --strict finds an error in them
    tools/doc_snippets.py pyright    the same with basedpyright, in pyright's standard mode

GIVEN has the names that a document assumes; it precedes the snippets. The functions in snippets
have no annotations, like those of most users, and mypy is told to accept that. PyTorch's own types
are not checked. `tests/torch/documents/test_snippets.py` runs these programs, and mypy on them;
`make lint` runs both checkers.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
FENCE = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)

MODEL = """\
import functools
from typing import Any

import numpy as np
import torch
from torch import nn

import cutback
import cutback.torch


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([nn.Sequential(nn.Linear(8, 8), nn.GELU()) for _ in range(6)])

    def forward(self, x: Any, y: Any = 0.0) -> Any:
        for block in self.blocks:
            x = block(x)
        return ((x - y) ** 2).mean()


model: Any = Model()
x, y = torch.randn(32, 8), torch.randn(32, 8)
"""
ARRAYS = """\
from typing import Any

import numpy as np

import cutback
import cutback as cb
"""
PROCESS_GROUP = """\
import os
from torch import distributed
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

group = "file://" + os.path.abspath("group")
distributed.init_process_group("gloo", init_method=group, rank=0, world_size=1)
"""
IMAGES = """\
class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3)

    def forward(self, x: Any) -> Any:
        return self.conv(x).relu().mean()
"""
OPS = """\
@torch.library.custom_op("mylib::fused_norm", mutates_args=())
def fused_norm(x: torch.Tensor) -> torch.Tensor:
    return x / x.norm()


torch.library.register_fake("mylib::fused_norm", torch.empty_like)


@torch.library.custom_op("theirs::counts_its_calls", mutates_args=())
def counts_its_calls(x: torch.Tensor) -> torch.Tensor:
    return x.clone()


torch.library.register_fake("theirs::counts_its_calls", torch.empty_like)
"""
LOSS = """
params: Any = np.ones((4, 4), np.float32)
x: Any = np.ones((2, 4), np.float32)
y: Any = np.zeros((2, 4), np.float32)
batches = [(x, y)]


def loss(params, x, y):
    return ((x @ params - y) ** 2).mean()


"""
# Names that documents assume. A text: all snippets are one program. A list: each snippet is a
# program that begins with its entry.
GIVEN: dict[str, str | list[str]] = {
    "README.md": [MODEL, ""],
    "docs/compile.md": ARRAYS
    + """
params = {"w": np.ones((4, 4), np.float32)}
x = np.ones((2, 4), np.float32)
""",
    "docs/cuda.md": [
        ARRAYS + LOSS,
        ARRAYS + LOSS,
        ARRAYS + LOSS + 'step = cb.compile(loss, optimizer=cb.optim.SGD(lr=0.1), device="cuda")\n',
        ARRAYS
        + LOSS
        + 'step = cb.compile(loss, optimizer=cb.optim.SGD(lr=0.1), device="cuda")\n'
        + "import cutback.cuda\n\nparams = cutback.cuda.to_device(params)\n",
    ],
    "docs/transforms.md": ARRAYS
    + """
params = {"a": np.ones((2, 4), np.float32), "b": np.ones((4, 1), np.float32)}
x = np.ones((3, 2), np.float32)
y = np.ones((3, 1), np.float32)


def critic(params, x):
    return cb.tanh(x @ params["a"]) @ params["b"]


def one_loss(params, x, y):
    return ((critic(params, x) - y) ** 2).sum()


""",
    "docs/estimate.md": ARRAYS
    + """
params = np.ones((4, 4), np.float32)
x = np.ones((2, 4), np.float32)


def loss(params, x):
    return cb.tanh(x @ params).sum()


""",
    "docs/fusion.md": [
        ARRAYS
        + """
from cutback.nn import functional as F

params = [np.ones((32, 32), np.float32)]
x = residual = np.ones((64, 32), np.float32)
step = cutback.value_and_grad(lambda p, x, r: (F.gelu(x @ p[0]) + r).mean())
""",
        *["from cutback.nn import functional as F\n"] * 3,
    ],
    "docs/howto/fsdp.md": MODEL + PROCESS_GROUP,
    "docs/howto/gpu.md": MODEL + "import cutback as cb\n",
    "docs/howto/lengths.md": MODEL + "import cutback as cb\n",
    "docs/howto/offload.md": MODEL,
    "docs/howto/out-of-memory.md": MODEL,
    "docs/memory.md": ARRAYS + LOSS,
    "docs/modules.md": "",
    "docs/optim.md": MODEL
    + """
model = nn.Linear(4, 4).bfloat16()
params = {"head": np.ones((4, 4), np.float32), "bias": np.ones(4, np.float32)}
params["norm"] = np.ones(4, np.float32)
grads = {name: np.ones_like(p) for name, p in params.items()}
averages = {name: p.copy() for name, p in params.items()}
halves = {name: p.astype(np.float16) for name, p in params.items()}
scale = 1.0
x: Any = np.ones((2, 4), np.float32)  # type: ignore[no-redef]


def loss(p, x):
    return ((x @ p["head"] + p["bias"]) * p["norm"]).mean()


""",
    "docs/slices.md": ARRAYS
    + """
params = {"up": np.ones((2, 8), np.float32), "down": np.ones((8, 2), np.float32)}
params["head"] = np.ones((2, 16), np.float32)
x, labels = np.ones((512, 2), np.float32), np.zeros(512, np.int64)
""",
    "docs/traps.md": [ARRAYS + LOSS] * 3,
    "docs/tutorials/first-budget.md": "",
    "docs/tutorials/own-optimizer.md": "",
    "docs/tutorials/report.md": "",
    "docs/tutorials/trainer.md": "import torch\nfrom torch import nn\n\nimport cutback.torch\n\n",
    "docs/tutorials/training-loop.md": "",
    "docs/torch-eager.md": [
        MODEL
        + """
import torch.utils.checkpoint

block = model.blocks[0]
policy: Any = lambda ctx, op, *args, **kwargs: torch.utils.checkpoint.CheckpointPolicy.MUST_SAVE
""",
        MODEL
        + """
import torch.utils.checkpoint

f = model.blocks[0]
policy: Any = lambda ctx, op, *args, **kwargs: torch.utils.checkpoint.CheckpointPolicy.MUST_SAVE
""",
    ],
    "docs/torch.md": [
        MODEL,
        MODEL + PROCESS_GROUP,
        MODEL,
        "from typing import Any\n\nimport torch\nfrom torch import nn\n\nimport cutback.torch\n"
        + IMAGES,
        MODEL + OPS,
        MODEL,
        MODEL,
        MODEL + "optimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n",
        MODEL + "inputs = (x, y)\n",
    ],
}
LEFT_OUT = {
    "docs/adding-an-op.md": "parts of docs/extending/op.patch, which test_extending.py applies",
}
"""Documents whose snippets are no programs, and why."""


class Program(NamedTuple):
    """Some snippets of a document, after the names that they assume."""

    name: str  # the document's, with the number of a snippet that is its own program
    given: str
    code: str


def programs() -> list[Program]:
    """Returns the programs of all documents.

    Raises:
        ValueError: a document's snippets are not those of GIVEN and LEFT_OUT.
    """
    found = []
    pages = [p for p in (ROOT / "docs").rglob("*.md") if "notebooks" not in p.parts]
    for path in (ROOT / "README.md", *sorted(pages)):
        name = path.relative_to(ROOT).as_posix()
        blocks = FENCE.findall(path.read_text(encoding="utf-8"))
        if not blocks or name in LEFT_OUT:
            continue
        given = GIVEN.get(name)
        if given is None or (isinstance(given, list) and len(given) != len(blocks)):
            raise ValueError(f"{name} has {len(blocks)} snippets: say in GIVEN what they need")
        if isinstance(given, str):
            found.append(Program(name, given, "\n".join(blocks)))
        else:
            pairs = zip(given, blocks, strict=True)
            found += [Program(f"{name}#{i}", g, code) for i, (g, code) in enumerate(pairs)]
    return found


MYPY = """\
[mypy]
strict = true
allow_untyped_defs = true
allow_untyped_calls = true
allow_untyped_decorators = true
allow_subclassing_any = true
check_untyped_defs = true
warn_unused_ignores = false
[mypy-torch.*]
follow_imports = skip
ignore_missing_imports = true
"""


def mypy_settings() -> str:
    """Returns MYPY, with no error for another module that pyproject.toml lists as optional."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    optional = {
        module
        for entry in settings["tool"]["mypy"]["overrides"]
        if entry.get("ignore_missing_imports")
        for module in entry["module"]
    }
    others = ",".join(sorted(optional - {"torch", "torch.*"}))
    return f"{MYPY}[mypy-{others}]\nignore_missing_imports = true\n"


def write(folder: Path) -> None:
    """Writes each program as a file."""
    for program in programs():
        file = re.sub(r"\W+", "_", program.name) + ".py"
        (folder / file).write_text(program.given + program.code, encoding="utf-8")


def check(checker: str) -> subprocess.CompletedProcess[str]:
    """Runs a type checker on all programs."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write(folder)
        if checker == "mypy":
            (folder / "mypy.ini").write_text(mypy_settings())
            command = [
                "mypy",
                "--config-file",
                "mypy.ini",
                "--cache-dir",
                str(ROOT / ".mypy_cache"),
            ]
        else:
            settings = {
                "typeCheckingMode": "standard",
                "extraPaths": [str(ROOT / "python")],
                "reportMissingImports": False,
                "reportMissingModuleSource": False,
                "reportAttributeAccessIssue": "error",
            }
            (folder / "pyrightconfig.json").write_text(json.dumps(settings))
            command = ["basedpyright", "--pythonpath", sys.executable]
        return subprocess.run(
            [sys.executable, "-m", *command, "."],
            cwd=folder, env={**os.environ, "MYPYPATH": str(ROOT / "python")},
            capture_output=True, text=True, check=False,
        )  # fmt: skip


def main() -> int:
    """Runs the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("checker", choices=("mypy", "pyright"))
    done = check(parser.parse_args().checker)
    print(done.stdout + done.stderr, end="")
    return done.returncode


if __name__ == "__main__":
    sys.exit(main())
