"""Tests the search for NVIDIA's libraries on trees of files made for the test, with a loader that
accepts the files it is told to, and `cutback doctor` on the stand-in driver."""

from __future__ import annotations

import mmap
import os
import re
import shutil
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from cutback import cuda_libraries
from cutback.cuda_libraries import CUBLASLT, DRIVER, NVRTC, LibraryError, Surroundings, find

GPU_SIM = Path(__file__).parents[2] / "gpu_sim"


def touch(path: Path) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("")
    return str(path)


def refuse(path: str) -> str:
    raise NotImplementedError(f"{path} is refused")


def take(path: str) -> str:
    """Accepts existing files, like a loader."""
    return path if Path(path).exists() else refuse(path)


def around(tmp_path: Path, *mapped: str, **environment: str) -> Surroundings:
    packages = [tmp_path / "packages", tmp_path / "more"]
    return Surroundings(environment, mapped, packages, tmp_path / "toolkit")


def test_order(tmp_path: Path) -> None:
    """A place is used when those before it are gone."""
    environment = {
        "CUTBACK_NVRTC": touch(tmp_path / "asked" / "anything.so"),
        "CONDA_PREFIX": str(tmp_path / "conda"),
        "CUDA_PATH": str(tmp_path / "path"),
        "CUDA_HOME": str(tmp_path / "home"),
    }
    expected = [
        environment["CUTBACK_NVRTC"],
        touch(tmp_path / "mapped" / "libnvrtc.so.12"),
        touch(tmp_path / "finder" / "libnvrtc.so.13"),
        touch(tmp_path / "packages" / "nvidia/cu13/lib" / "libnvrtc.so.13"),
        touch(tmp_path / "more" / "nvidia/cuda_nvrtc/lib" / "libnvrtc.so.12"),
        touch(tmp_path / "conda" / "lib" / "libnvrtc.so.13"),
        touch(tmp_path / "conda" / "targets/x86_64-linux/lib" / "libnvrtc.so.12"),
        touch(tmp_path / "path" / "lib64" / "libnvrtc.so.12"),
        touch(tmp_path / "home" / "lib" / "libnvrtc.so.12"),
        touch(tmp_path / "toolkit" / "lib64" / "libnvrtc.so.13"),
    ]
    touch(tmp_path / "packages" / "nvidia/cu13/lib" / "libnvrtc-builtins.so.13.0")
    where = Surroundings(
        environment,
        ["/lib/libc.so.6", "/x/libnvrtc-builtins.so.13", expected[1]],
        [tmp_path / "packages", tmp_path / "more"],
        tmp_path / "toolkit",
        lambda name: expected[2] if name == "nvrtc" else "",
    )
    tried = [place.path for place in cuda_libraries.places(NVRTC, where) if place.path]
    assert tried == [*expected, "libnvrtc.so.13", "libnvrtc.so.12"]
    for i, path in enumerate(expected):
        assert find(NVRTC, take, where).path == path
        if i == 0:
            del environment["CUTBACK_NVRTC"]
        Path(path).unlink()
    with pytest.raises(LibraryError):
        find(NVRTC, take, where)


def test_all_places_are_listed(tmp_path: Path) -> None:
    touch(tmp_path / "toolkit/lib64/libcublasLt.so.12")
    with pytest.raises(LibraryError) as error:
        find(CUBLASLT, refuse, around(tmp_path, CUDA_HOME="/nowhere"))
    text = str(error.value)
    assert text.startswith("cuBLASLt was not found or cannot be used:\n")
    for line in (
        "CUTBACK_CUBLASLT: not set",
        "mapped into this process: no libcublasLt.so.13 or libcublasLt.so.12",
        "cuda.pathfinder: not installed",
        "wheels of CUDA 13: no nvidia/cu13/lib in any folder of packages",
        "wheels of CUDA 12: no nvidia/cublas/lib in any folder of packages",
        "CONDA_PREFIX: not set",
        "CUDA_PATH: not set",
        "CUDA_HOME: no libcublasLt.so.13 or libcublasLt.so.12 in /nowhere/lib64, /nowhere/lib",
        "the toolkit: " + str(tmp_path / "toolkit/lib64/libcublasLt.so.12 is refused"),
        "the system's loader: libcublasLt.so.13 is refused",
        "the system's loader: libcublasLt.so.12 is refused",
    ):
        assert f"  {line}\n" in text + "\n"


def test_a_driver_is_no_toolkit(tmp_path: Path) -> None:
    """The driver belongs to the system; a toolkit has only a stub of it."""
    touch(tmp_path / "toolkit/lib64/stubs/libcuda.so.1")
    touch(tmp_path / "toolkit/lib64/libcuda.so.1")
    tried = [place.path for place in cuda_libraries.places(DRIVER, around(tmp_path))]
    assert tried == [None, None, "libcuda.so.1"]


def test_stubs_are_passed_over(tmp_path: Path) -> None:
    touch(tmp_path / "stubs/lib64/libnvrtc.so.13")
    with pytest.raises(LibraryError, match="CUDA_HOME: no libnvrtc"):
        find(NVRTC, take, around(tmp_path, CUDA_HOME=str(tmp_path / "stubs")))


def test_a_newer_library_than_the_driver(tmp_path: Path) -> None:
    """The newer library would make code that the driver rejects."""
    newer = touch(tmp_path / "packages/nvidia/cu13/lib/libnvrtc.so.13")
    older = touch(tmp_path / "more/nvidia/cuda_nvrtc/lib/libnvrtc.so.12")
    where = around(tmp_path, newer)
    assert find(NVRTC, take, where, newest=13).path == newer
    assert find(NVRTC, take, where, newest=12).path == older
    finder = Surroundings({}, pathfinder=lambda name: newer)
    with pytest.raises(LibraryError, match=r"which is not libnvrtc\.so\.12"):
        find(NVRTC, take, finder, newest=12)


def test_what_is_asked_for_is_taken_or_is_the_error(tmp_path: Path) -> None:
    touch(tmp_path / "packages/nvidia/cu13/lib/libnvrtc.so.13")
    with pytest.raises(LibraryError) as error:
        find(NVRTC, take, around(tmp_path, CUTBACK_NVRTC="/no/such.so"))
    assert str(error.value).count("\n") == 1 and "/no/such.so is refused" in str(error.value)


def test_pathfinder_that_fails() -> None:
    def fails(name: str) -> str:
        raise LookupError(f"no {name}\nand so on")

    with pytest.raises(LibraryError, match=r"cuda\.pathfinder: no nvrtc\n"):
        find(NVRTC, take, Surroundings({}, pathfinder=fails))


def test_files_of_other_kinds(tmp_path: Path) -> None:
    """The loader's own error text is passed on."""
    path = touch(tmp_path / "packages/nvidia/cu13/lib/libnvrtc.so.13")
    with pytest.raises(LibraryError, match="file too short"):
        # another NVRTC may be loaded already
        cuda_libraries.nvrtc(around(tmp_path, CUTBACK_NVRTC=path))
    with pytest.raises(LibraryError, match="file too short"):
        cuda_libraries.driver(around(tmp_path, CUTBACK_CUDA_DRIVER=path))
    with pytest.raises(LibraryError, match="no function cublasLtGetVersion"):
        cuda_libraries.blaslt(around(tmp_path, CUTBACK_CUBLASLT="libm.so.6"))


def test_the_library_for_products_may_be_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The library is searched for but not opened; one that the user names must exist."""
    monkeypatch.setattr(cuda_libraries._native, "cuda_blaslt", refuse)  # the loader may know one
    assert cuda_libraries.products(around(tmp_path)) is None
    path = touch(tmp_path / "packages/nvidia/cu13/lib/libcublasLt.so.13")
    assert cuda_libraries.products(around(tmp_path)) == path
    assert cuda_libraries.products(around(tmp_path), newest=12) is None
    assert cuda_libraries.products(around(tmp_path, CUTBACK_CUBLASLT="none")) is None
    other = touch(tmp_path / "other.so")
    assert cuda_libraries.products(around(tmp_path, CUTBACK_CUBLASLT=other)) == other
    with pytest.raises(LibraryError, match=r"the file /nowhere/x\.so does not exist"):
        cuda_libraries.products(around(tmp_path, CUTBACK_CUBLASLT="/nowhere/x.so"))


# The step of a PyTorch model takes seconds, and test_cli.py has it.
WITHOUT_TORCH = """
import sys
from cutback import cli, doctor
doctor._torch = lambda: "not tried"
sys.exit(cli.main(["doctor", *sys.argv[1:]]))
"""


def doctor(*options: str, code: int = 0, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_TORCH, *options],
        env={**os.environ, "CUTBACK_CUDA_CODE": "ptx", **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def stand_in() -> str:
    if sys.platform != "linux":
        pytest.skip("the stand-in driver is for Linux")
    if not GPU_SIM.exists():
        pytest.skip("an archive of the sources does not have the stand-in driver")
    sys.path.insert(0, str(GPU_SIM))
    import client

    return str(client.build())


@pytest.fixture(scope="module")
def real_nvrtc(stand_in: str) -> Path:
    import nvrtc

    path = nvrtc.library()
    if path is None:
        pytest.skip("NVRTC is not installed (pip install nvidia-cuda-nvrtc)")
    return path


def test_doctor_compiles_and_runs_a_kernel(stand_in: str, real_nvrtc: Path) -> None:
    out = doctor(CUTBACK_CUDA_DRIVER=stand_in, CUTBACK_NVRTC=str(real_nvrtc))
    assert f"cuda driver     13.0 in {stand_in}\n" in out
    assert "cuda device     stand-in (PTX on the CPU), sm_90, 8.0 GiB\n" in out
    assert f"in {real_nvrtc}, for sm_75 to sm_" in out
    assert "cuda kernel     ok: compiled one and ran it on the GPU\n" in out
    assert "  CUTBACK_CUDA_DRIVER: " not in out


BROKEN = """
import ctypes, os, sys
driver = ctypes.CDLL(os.environ["CUTBACK_CUDA_DRIVER"])
entry, act, code = sys.argv[1].encode(), sys.argv[2], int(sys.argv[3])
driver.sim_set(b"quiet", ctypes.c_long(1))
driver.sim_set(b"unwritten", ctypes.c_long(0))
driver.sim_skip(entry, 1) if act == "skip" else driver.sim_fail(entry, 1, code)
from cutback import cli, doctor
doctor._torch = lambda: "not tried"
sys.exit(cli.main(["doctor"]))
"""


@pytest.mark.parametrize(
    ("entry", "act", "code", "words"),
    [
        ("cuLaunchKernel", "skip", "0", "a kernel ran on the GPU, but its result is wrong"),
        ("cuLaunchKernel", "fail", "719", "CUDA_ERROR_LAUNCH_FAILED"),
        ("cuDevicePrimaryCtxRetain", "fail", "101", "cuDevicePrimaryCtxRetain"),
    ],
)
def test_doctor_says_when_the_kernel_fails(
    stand_in: str, real_nvrtc: Path, entry: str, act: str, code: str, words: str
) -> None:
    """The kernel never runs, or fails, or another process uses the device exclusively."""
    files = {"CUTBACK_CUDA_DRIVER": stand_in, "CUTBACK_NVRTC": str(real_nvrtc)}
    done = subprocess.run(
        [sys.executable, "-c", BROKEN, entry, act, code],
        env={**os.environ, **files, "CUTBACK_CUDA_CODE": "ptx"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1, done.stdout + done.stderr
    assert "cuda kernel     FAILED: " in done.stdout and words in done.stdout
    assert "training step   ok" in done.stdout


def test_doctor_without_nvrtc(stand_in: str) -> None:
    out = doctor(CUTBACK_CUDA_DRIVER=stand_in, CUTBACK_NVRTC="/nowhere/libnvrtc.so.13")
    assert "nvrtc           /nowhere/libnvrtc.so.13: cannot open shared object file" in out
    assert "(pip install cutback[cuda13] installs NVRTC)\n" in out
    assert "cuda kernel     not run: compiling a kernel needs NVRTC\n" in out


def test_doctor_without_a_gpu() -> None:
    """The doctor prints one line, and the places searched only on request."""
    nowhere = "/nowhere/libcuda.so.1"
    out = doctor(CUTBACK_CUDA_DRIVER=nowhere)
    about = [line for line in out.splitlines() if re.search("cuda|nvrtc|cublas", line, re.I)]
    assert len(about) == 1
    assert about[0].startswith(f"cuda driver     no GPU is used: {nowhere}: cannot open shared")
    assert out.rstrip().endswith("ok")
    out = doctor("--verbose", CUTBACK_CUDA_DRIVER=nowhere)
    assert "cuda driver     the CUDA driver was not found or cannot be used:\n" in out
    assert " CUTBACK_CUDA_DRIVER: /nowhere/libcuda.so.1: cannot open shared object file" in out
    assert "\nnvrtc " in out and "\ncublasLt " in out
    assert " CONDA_PREFIX: " in out and out.rstrip().endswith("ok")


def without_rpath(library: Path, copy: Path) -> None:
    """Copies a library without its RPATH; the wheel of NVRTC 13.0 has none."""
    shutil.copyfile(library, copy)
    with copy.open("r+b") as file, mmap.mmap(file.fileno(), 0) as data:
        (sections,) = struct.unpack_from("<Q", data, 0x28)
        size, number = struct.unpack_from("<HH", data, 0x3A)
        for i in range(number):
            kind, *_, at, length = struct.unpack_from("<IQQQQ", data, sections + i * size + 4)
            if kind != 6:  # SHT_DYNAMIC
                continue
            for entry in range(at, at + length, 16):
                if struct.unpack_from("<Q", data, entry)[0] in (15, 29):  # DT_RPATH, DT_RUNPATH
                    struct.pack_into("<Q", data, entry, 0x6FFFFEF0)  # an unknown tag


@pytest.fixture(scope="module")
def no_rpath(real_nvrtc: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    copy = tmp_path_factory.mktemp("nvrtc") / real_nvrtc.name
    without_rpath(real_nvrtc, copy)
    return copy


def test_nvrtc_without_rpath_finds_its_builtins(
    stand_in: str, real_nvrtc: Path, no_rpath: Path
) -> None:
    """NVRTC needs the builtins of its own version in its own folder; another version does not
    work."""
    (builtins,) = real_nvrtc.parent.glob("libnvrtc-builtins.so.*")
    files = {"CUTBACK_CUDA_DRIVER": stand_in, "CUTBACK_NVRTC": str(no_rpath)}
    beside = no_rpath.parent / builtins.name
    beside.unlink(missing_ok=True)
    (no_rpath.parent / "libnvrtc-builtins.so.13.99").symlink_to(builtins)
    out = doctor(**files)
    assert f"{no_rpath} needs {builtins.name}, which is neither in its folder nor" in out
    assert "cuda kernel     not run" in out
    beside.symlink_to(builtins)
    assert "cuda kernel     ok" in doctor(**files)
