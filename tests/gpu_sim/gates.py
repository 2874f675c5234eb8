"""Reads what NVRTC compiles kernels to on real GPUs from machine code: registers, stack, shared
memory, instructions, and the width of global memory accesses. No GPU is needed.

python gates.py    rewrites gates.json and prints what has changed
"""

from __future__ import annotations

import ctypes
import json
import re
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

import nvrtc

ROOT = Path(__file__).parents[2]
GATES = Path(__file__).parent / "gates.json"
ARCHITECTURES = (80, 90, 100, 120)


@dataclass(frozen=True)
class Kernel:
    """The numbers of one kernel: per thread, except shared memory (bytes per block)."""

    registers: int
    stack: int
    shared: int
    instructions: int
    wide: int  # 16-byte loads and stores of global memory
    middle: int  # 8-byte loads and stores
    narrow: int  # loads and stores of 4 bytes or less
    spills: int  # loads and stores of local memory


def disassembler() -> Path | None:
    """Returns the path of nvdisasm, from its package or from a toolkit."""
    for folder in sys.path:
        for path in Path(folder or ".").glob("nvidia/cu1*/bin/nvdisasm"):
            return path
    found = shutil.which("nvdisasm")
    return Path(found) if found else None


def headers() -> dict[str, str]:
    """Returns the headers that kernels include, by the names that the core uses."""
    listed = (ROOT / "cmake" / "text.cmake").read_text()
    rows = re.findall(r"^  (\S+\.(?:cuh|h))=(\S+?)\)?$", listed, re.MULTILINE)
    return {name: (ROOT / "csrc" / path).read_text() for name, path in rows}


def cubin(source: str, architecture: int) -> bytes:
    """Compiles like cuda/cu_jit.c. A RuntimeError has NVRTC's own text."""
    library = ctypes.CDLL(str(nvrtc.library()))
    files = headers()
    texts = (ctypes.c_char_p * len(files))(*(text.encode() for text in files.values()))
    names = (ctypes.c_char_p * len(files))(*(name.encode() for name in files))
    program = ctypes.c_void_p()
    library.nvrtcCreateProgram(
        ctypes.byref(program), source.encode(), b"cutback.cu", len(files), texts, names
    )
    options = [f"--gpu-architecture=sm_{architecture}".encode(), b"--fmad=false", b"--std=c++17"]
    options.append(b"--device-as-default-execution-space")
    failed = library.nvrtcCompileProgram(
        program, len(options), (ctypes.c_char_p * len(options))(*options)
    )
    kind = "ProgramLog" if failed else "CUBIN"
    size = ctypes.c_size_t()
    getattr(library, f"nvrtcGet{kind}Size")(program, ctypes.byref(size))
    text = ctypes.create_string_buffer(size.value)
    getattr(library, f"nvrtcGet{kind}")(program, text)
    library.nvrtcDestroyProgram(ctypes.byref(program))
    if failed:
        raise RuntimeError(text.value.decode())
    return text.raw


def measure(code: bytes) -> dict[str, Kernel]:
    """Returns every kernel of a cubin by its name."""
    tool = disassembler()
    assert tool is not None
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(code)
        file.flush()
        done = subprocess.run([str(tool), file.name], capture_output=True, text=True, check=True)
    return _kernels(done.stdout.splitlines())


ACCESS = re.compile(r"\b(?:LDG|STG|LD|ST)\.E((?:\.\w+)*)")


def _kernels(lines: Sequence[str]) -> dict[str, Kernel]:
    """Reads kernels in one pass over sections: code, shared memory, or attributes. Each attribute
    names the kernel by its symbol, with the number on the next line."""
    section, attribute, symbol = "", "", ""
    rows: dict[str, Counter[str]] = {}
    attributes: dict[tuple[str, str], int] = {}
    for line in lines:
        if found := re.match(r"\s*\.section\s+([\w.$]+)", line):
            section = found[1]
        elif found := re.search(r"nvinfo : EIATTR_(\w+)", line):
            attribute = found[1]
        elif found := re.search(r"index@\(([\w$]+)\)", line):
            symbol = found[1]
        elif symbol and (found := re.search(r"\.word\s+(0x[0-9a-f]+)", line)):
            attributes[attribute, symbol], symbol = int(found[1], 16), ""
        elif section.startswith(".nv.shared.") and (found := re.search(r"\.zero\s+(\d+)", line)):
            rows.setdefault(section[11:], Counter())["shared"] += int(found[1])
        elif section.startswith(".text.") and re.match(r"\s*/\*[0-9a-f]{4,}\*/", line):
            _instruction(line, rows.setdefault(section[6:], Counter()))
    kernels = {}
    for name, row in rows.items():
        if row["instructions"]:
            numbers = {key: row[key] for key in Kernel.__annotations__ if key != "registers"}
            numbers["stack"] = attributes.get(("FRAME_SIZE", name), 0)
            kernels[name] = Kernel(attributes.get(("REGCOUNT", name), 0), **numbers)
    return kernels


def _instruction(line: str, row: Counter[str]) -> None:
    if " NOP" in line:  # padding to the end of the cache line
        return
    row["instructions"] += 1
    row["spills"] += bool(re.search(r"\b(?:LDL|STL)\b", line))
    if found := ACCESS.search(line):
        parts = found[1].split(".")
        row["wide" if "128" in parts else "middle" if "64" in parts else "narrow"] += 1


# Programs whose kernels are inspected. They are compiled for the backend on the stand-in, and the
# kept sources are used.


def gelu_bias() -> tuple[Callable[..., Any], list[np.ndarray[Any, Any]]]:
    from cutback.nn import functional as F

    def f(x: Any, bias: Any, residual: Any) -> Any:
        return F.gelu(x + bias) + residual

    return f, [np.zeros(s, np.float32) for s in ((4096, 1024), (1024,), (4096, 1024))]


def dropout_mask() -> tuple[Callable[..., Any], list[np.ndarray[Any, Any]]]:
    from cutback.nn import functional as F

    def f(x: Any) -> Any:
        return F.dropout(F.silu(x), 0.1)

    return f, [np.zeros((64, 4096), np.float32)]


def softmax() -> tuple[Callable[..., Any], list[np.ndarray[Any, Any]]]:
    from cutback.nn import functional as F

    def f(x: Any) -> Any:
        return F.softmax(x * 0.125)

    return f, [np.zeros((512, 1024), np.float32)]


def layer_norm() -> tuple[Callable[..., Any], list[np.ndarray[Any, Any]]]:
    from cutback.nn import functional as F

    def f(x: Any, weight: Any, bias: Any) -> Any:
        return F.layer_norm(x, weight, bias)

    return f, [np.zeros(s, np.float32) for s in ((512, 1024), (1024,), (1024,))]


def transposed() -> tuple[Callable[..., Any], list[np.ndarray[Any, Any]]]:
    def f(x: Any) -> Any:
        return x.T + 1

    return f, [np.zeros((1024, 2048), np.float32)]


def transposed_halves() -> tuple[Callable[..., Any], list[np.ndarray[Any, Any]]]:
    return transposed()[0], [np.zeros((1024, 2048), np.float16)]


def norm_gradients() -> tuple[Callable[..., Any], list[np.ndarray[Any, Any]]]:
    from cutback.nn import functional as F

    def f(x: Any, weight: Any, bias: Any, w: Any) -> Any:
        return ((F.layer_norm(x, weight, bias) @ w) ** 2).sum()

    shapes = (2048, 1024), (1024,), (1024,), (1024, 8)
    return f, [np.zeros(s, np.float32) for s in shapes]


def softmax_of_columns() -> tuple[Callable[..., Any], list[np.ndarray[Any, Any]]]:
    from cutback.nn import functional as F

    def f(x: Any) -> Any:
        return F.softmax(x.T)

    return f, [np.zeros((1024, 512), np.float32)]


def cross_entropy() -> tuple[Callable[..., Any], list[np.ndarray[Any, Any]]]:
    from cutback.nn import functional as F

    def f(x: Any, labels: Any) -> Any:
        return F.cross_entropy(x, labels)

    return f, [np.zeros((512, 1024), np.float32), np.zeros(512, np.int32)]


def matmul() -> tuple[Callable[..., Any], list[np.ndarray[Any, Any]]]:
    def f(x: Any, y: Any) -> Any:
        return x @ y

    return f, [np.zeros((256, 256), np.float32), np.zeros((256, 256), np.float32)]


def matmul_halves() -> tuple[Callable[..., Any], list[np.ndarray[Any, Any]]]:
    return matmul()[0], [np.zeros((256, 256), np.float16), np.zeros((256, 256), np.float16)]


def matmul_large() -> tuple[Callable[..., Any], list[np.ndarray[Any, Any]]]:
    return matmul()[0], [np.zeros((2048, 64), np.float16), np.zeros((64, 2048), np.float16)]


PROGRAMS = (
    gelu_bias,
    dropout_mask,
    softmax,
    layer_norm,
    transposed,
    transposed_halves,
    softmax_of_columns,
    norm_gradients,
    cross_entropy,
    matmul,
    matmul_halves,
    matmul_large,
)


def optimizers() -> str:
    """Returns one source with every element formula, each under its name, and the counting of steps
    of AdamW."""
    listed = headers()["../../../optim/formula_factors.h"]
    table = listed[listed.index("CB_ELEMENT_FORMULAS(X)") : listed.index("define CB_FORMULAS(X)")]
    lines = ["#define CB_F32_ALONE", '#include "optim.cuh"', '#include "adamw_factors.h"']
    lines.append("COUNTER(cb_adamw_factors, cb_counts_nothing)")
    for identifier, name in re.findall(r"X\((\w+), (\w+)\)", table):
        lines += ["#undef cb_optim_step", f"#define cb_optim_step cb_optim_{name}"]
        lines.append(f"STEPPER({identifier}, {name})")
    return "\n".join(lines) + "\n"


def steps() -> dict[str, str]:
    """Returns the sources of the optimizers with kernels of their own, as update.c writes them."""
    begin, moments = '#define CB_F32_ALONE\n{}#include "optim.cuh"\n', "adamw_8bit"
    return {
        "steps of blocks": begin.format("#define CB_BLOCKS\n")
        + f'#include "{moments}_factors.h"\n'
        + f"OPTIMIZER(ADAMW_8BIT, {moments}_block, cb_{moments}_factors, cb_counts_nothing)\n",
        "steps of matrices": begin.format("")
        + 'COUNTER(cb_muon_factors, cb_counts_nothing)\n#include "orthogonal.cuh"\n',
        "steps of means": begin.format("")
        + 'COUNTER(cb_adafactor_factors, cb_counts_nothing)\n#include "factored.cuh"\n',
    }


def sources(folder: Path) -> dict[str, str]:
    """Returns the CUDA C of each program, compiled into an empty folder that keeps sources."""
    import cutback as cb

    found = {"optimizers": optimizers()}
    for program in PROGRAMS:
        f, arguments = program()
        seen = set(folder.glob("sources/*.cu"))
        argnums = (0, 1, 2) if program is norm_gradients else None
        cb.compile(f, argnums=argnums, backend="cuda").prepare(*arguments)
        (new,) = set(folder.glob("sources/*.cu")) - seen
        found[program.__name__] = new.read_text()
    return found


def every(
    folder: Path, architectures: Sequence[int] = ARCHITECTURES
) -> dict[str, dict[str, dict[str, int]]]:
    """Maps program and kernel, then architecture, to numbers."""
    return numbers(sources(folder), architectures)


def numbers(
    programs: dict[str, str], architectures: Sequence[int] = ARCHITECTURES
) -> dict[str, dict[str, dict[str, int]]]:
    """Does the same for the sources of programs."""
    out: dict[str, dict[str, dict[str, int]]] = {}
    for program, source in programs.items():
        for architecture in architectures:
            for name, kernel in measure(cubin(source, architecture)).items():
                row = out.setdefault(f"{program} {name}", {})
                row[f"sm_{architecture}"] = asdict(kernel)
    return out


def changes(before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    """Returns one line for each number that differs."""
    lines = []
    for name in sorted(before.keys() | after.keys()):
        for arch in sorted(before.get(name, {}).keys() | after.get(name, {}).keys()):
            old, new = (side.get(name, {}).get(arch, {}) for side in (before, after))
            lines += [
                f"{name} {arch} {key}: {old.get(key)} -> {new.get(key)}"
                for key in sorted(old.keys() | new.keys())
                if old.get(key) != new.get(key)
            ]
    return lines


def dump(rows: dict[str, Any]) -> str:
    return json.dumps(rows, indent=1, sort_keys=True) + "\n"


if __name__ == "__main__":
    import os

    from client import build

    with tempfile.TemporaryDirectory() as kept:
        os.environ |= {
            "CUTBACK_CUDA_DRIVER": str(build()),
            "CUTBACK_NVRTC": str(nvrtc.library()),
            "CUTBACK_CUBLASLT": "none",
            "CUTBACK_CUDA_CODE": "ptx",
            "CUTBACK_CACHE_DIR": kept,
            "CUTBACK_CUDA_KEEP_SOURCES": "1",
        }
        measured = every(Path(kept)) | numbers(steps())
    known = json.loads(GATES.read_text()) if GATES.exists() else {}
    print("\n".join(changes(known, measured)) or "nothing has changed")
    GATES.write_text(dump(measured))
