"""NVRTC without the backend: from CUDA C to PTX. The tests run committed PTX; this module
regenerates it.

python nvrtc.py    writes kernels/*.ptx from kernels/*.cu
"""

from __future__ import annotations

import ctypes
import importlib.metadata
import re
from pathlib import Path

KERNELS = Path(__file__).parent / "kernels"
PACKAGE = "nvidia-cuda-nvrtc"


def library() -> Path | None:
    """Returns the path of NVRTC in its package, or None if it is not installed."""
    try:
        files = importlib.metadata.files(PACKAGE) or []
    except importlib.metadata.PackageNotFoundError:
        return None
    for file in files:
        if re.fullmatch(r"libnvrtc\.so\.\d+", file.name):
            return Path(str(file.locate()))
    return None


def compile_to_ptx(source: str, *options: str) -> str:
    """Compiles to PTX without comments that name the compiler. A RuntimeError has NVRTC's own
    text."""
    path = library()
    assert path is not None
    nvrtc = ctypes.CDLL(str(path))
    program = ctypes.c_void_p()
    nvrtc.nvrtcCreateProgram(ctypes.byref(program), source.encode(), b"/kernels.cu", 0, None, None)
    listed = [b"--gpu-architecture=compute_90", b"-lineinfo", *(o.encode() for o in options)]
    texts = (ctypes.c_char_p * len(listed))(*listed)
    failed = nvrtc.nvrtcCompileProgram(program, len(listed), texts)
    kind = "ProgramLog" if failed else "PTX"
    size = ctypes.c_size_t()
    getattr(nvrtc, f"nvrtcGet{kind}Size")(program, ctypes.byref(size))
    text = ctypes.create_string_buffer(size.value)
    getattr(nvrtc, f"nvrtcGet{kind}")(program, text)
    nvrtc.nvrtcDestroyProgram(ctypes.byref(program))
    if failed:
        raise RuntimeError(text.value.decode())
    lines = re.sub(r"//[^\n]*", "", text.value.decode()).splitlines()
    return "\n".join(line.rstrip() for line in lines if line.strip()) + "\n"


if __name__ == "__main__":
    for path in sorted(KERNELS.glob("*.cu")):
        path.with_suffix(".ptx").write_text(compile_to_ptx(path.read_text()))
