"""Describes the machine: card, driver, compiler, libraries.

python facts.py --list facts|libraries|after     python facts.py --item NAME

Uses only the driver, ``nvidia-smi`` and, for ``torch``, PyTorch: it works before the package is
built. The result says what is missing; the card's settings are not changed.
"""

from __future__ import annotations

import ctypes
import os
import platform
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from concurrent.futures import ThreadPoolExecutor
from importlib import metadata
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

import cudnn
import items
import package

COMPUTE_MODES = ("default", "exclusive thread", "prohibited", "exclusive process")
ATTRIBUTES = {  # attributes of cuDeviceGetAttribute
    "compute mode": 20, "ECC": 32, "multiprocessors": 16, "clock kHz": 13, "memory clock kHz": 36,
    "bus bits": 37, "L2 bytes": 38, "PCI bus": 33, "PCI device": 34, "PCI domain": 50,
    "capability major": 75, "capability minor": 76, "shared bytes per block": 97,
    "shared bytes per multiprocessor": 81, "memory pools": 115,
}  # fmt: skip
PACKAGES = (
    "torch", "triton", "numpy", "ml_dtypes", "cuda-pathfinder", "cuda-bindings", "cupy-cuda13x",
    "nvidia-cuda-nvrtc", "nvidia-cuda-nvrtc-cu12", "nvidia-cublas", "nvidia-cudnn-cu13",
    "nvidia-cuda-runtime", "transformers", "scikit-build-core", "cmake", "ninja",
)  # fmt: skip
TOOLS = ("nvidia-smi", "nvcc", "ncu", "compute-sanitizer", "cmake", "ninja", "make", "git")
VARIABLES = re.compile(r"CUDA_|NVIDIA_|CUTBACK_|TORCH|TRITON|PYTORCH_|LD_LIBRARY_PATH|CC$|CXX$")


class DriverError(RuntimeError):
    """A driver call failed."""


class Driver:
    """libcuda, by ctypes."""

    def __init__(self) -> None:
        self.library = ctypes.CDLL(os.environ.get("CUTBACK_CUDA_DRIVER") or "libcuda.so.1")

    def error(self, code: int) -> str:
        name = ctypes.c_char_p()
        self.library.cuGetErrorName(code, ctypes.byref(name))
        return f"{(name.value or b'an error without a name').decode()} ({code})"

    def result(self, entry: str, *arguments: Any) -> int:
        versioned = f"{entry}_v2"
        function = getattr(self.library, versioned if hasattr(self.library, versioned) else entry)
        return int(function(*arguments))

    def call(self, entry: str, *arguments: Any) -> None:
        code = self.result(entry, *arguments)
        if code:
            raise DriverError(f"{entry}: {self.error(code)}")


def _attributes(driver: Driver, device: ctypes.c_int) -> dict[str, int]:
    found = {}
    for name, number in ATTRIBUTES.items():
        value = ctypes.c_int()
        if driver.result("cuDeviceGetAttribute", ctypes.byref(value), number, device) == 0:
            found[name] = value.value
    return found


def card() -> dict[str, Any]:
    """Describes the first card as the driver does, and whether this process can get a context."""
    driver = Driver()
    version, count = ctypes.c_int(), ctypes.c_int()
    driver.library.cuDriverGetVersion(ctypes.byref(version))
    driver.call("cuInit", 0)
    driver.call("cuDeviceGetCount", ctypes.byref(count))
    if count.value == 0:
        raise DriverError("the driver sees no device")
    device = ctypes.c_int()
    driver.call("cuDeviceGet", ctypes.byref(device), 0)
    name, size = ctypes.create_string_buffer(256), ctypes.c_size_t()
    driver.call("cuDeviceGetName", name, 256, device)
    driver.call("cuDeviceTotalMem", ctypes.byref(size), device)
    found = {"card": name.value.decode(), "cards": count.value, "bytes": size.value}
    found |= {"CUDA of the driver": version.value, **_attributes(driver, device)}
    mode = found.pop("compute mode", 0)
    found["compute mode"] = COMPUTE_MODES[mode] if mode < len(COMPUTE_MODES) else str(mode)
    context = ctypes.c_void_p()
    code = driver.result("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
    found["context"] = driver.error(code) if code else "ok"
    if code == 0:
        driver.result("cuDevicePrimaryCtxRelease", device)
    if code == 46:
        found["context"] += ": another process has the card, whose mode is exclusive"
    return found


# nvidia-smi


def _output(*command: str, seconds: float = 5) -> str:
    """Returns the output of a command or, in brackets, how it failed."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=seconds, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"[{error}]"
    text = done.stdout.strip() or done.stderr.strip()
    return text if done.returncode == 0 else f"[exit status {done.returncode}: {text[:300]}]"


def _reasons(gpu: ElementTree.Element) -> list[str]:
    """Returns the active reasons for lower clocks; older drivers call them throttle reasons."""
    found = []
    for word in ("event", "throttle"):
        prefix = f"clocks_{word}_reason_"
        for part in gpu.iter():
            if part.tag.startswith(prefix) and (part.text or "").strip() == "Active":
                found.append(part.tag.removeprefix(prefix))
    return found


def read_smi(text: str) -> dict[str, Any]:
    """Returns the facts about the first card in the output of ``nvidia-smi -q -x``. Tags that this
    version lacks are left out."""
    gpu = ElementTree.fromstring(text).find("gpu")
    if gpu is None:
        return {"problem": "nvidia-smi lists no card"}
    paths = {
        "name": "product_name", "uuid": "uuid", "compute mode": "compute_mode",
        "MIG": "mig_mode/current_mig", "ECC": "ecc_mode/current_ecc",
        "persistence": "persistence_mode", "memory": "fb_memory_usage/total",
        "memory used": "fb_memory_usage/used", "utilization": "utilization/gpu_util",
        "SM clock": "clocks/sm_clock", "memory clock": "clocks/mem_clock",
        "most SM clock": "max_clocks/sm_clock", "most memory clock": "max_clocks/mem_clock",
        "temperature": "temperature/gpu_temp", "power": "gpu_power_readings/instant_power_draw",
        "power limit": "gpu_power_readings/current_power_limit",
        "PCIe generation": "pci/pci_gpu_link_info/pcie_gen/current_link_gen",
        "most PCIe generation": "pci/pci_gpu_link_info/pcie_gen/max_link_gen",
        "PCIe lanes": "pci/pci_gpu_link_info/link_widths/current_link_width",
        "most PCIe lanes": "pci/pci_gpu_link_info/link_widths/max_link_width",
    }  # fmt: skip
    found: dict[str, Any] = {}
    for name, path in paths.items():
        value = (gpu.findtext(path) or "").strip()
        if value:
            found[name] = value
    if "power" not in found and (value := gpu.findtext("gpu_power_readings/power_draw")):
        found["power"] = value.strip()
    found["reasons for lower clocks"] = _reasons(gpu)
    found["other processes"] = [
        {
            tag: (process.findtext(tag) or "").strip()
            for tag in ("pid", "process_name", "used_memory")
        }
        for process in gpu.iter("process_info")
    ]
    root = ElementTree.fromstring(text)
    for tag in ("driver_version", "cuda_version"):
        if value := root.findtext(tag):
            found[tag.replace("_", " ")] = value.strip()
    return found


def smi() -> dict[str, Any]:
    """Returns clocks, reasons for lower clocks, modes, PCIe, and other processes, from
    ``nvidia-smi``."""
    if not shutil.which("nvidia-smi"):
        return {"left out": "there is no nvidia-smi"}
    text = _output("nvidia-smi", "-q", "-x")
    if text.startswith("["):
        return {"problem": f"nvidia-smi: {text}"}
    print(text, file=sys.stderr)  # all of it, for the log
    try:
        return read_smi(text)
    except ElementTree.ParseError as error:
        return {"problem": f"what nvidia-smi prints cannot be read: {error}"}


def after() -> dict[str, Any]:
    """Returns what :func:`smi` returns at the end, and faults of the card in the kernel's log."""
    found, log = smi(), _output("dmesg")
    faults = [line.strip() for line in log.splitlines() if "Xid" in line]
    return found | ({"faults": faults[-5:]} if faults else {})


# The machine


def _versions() -> dict[str, str]:
    found = {}
    for name in PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def _first_line(text: str) -> str:
    """Returns the line with the version, which some tools print below others."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    named = (line for line in lines if re.search(r"\brelease \d|^Version ", line))
    return next(named, (lines or [""])[0])


def _tool(name: str) -> str:
    """Returns the version and path of a program."""
    path = shutil.which(name)
    asked = "-L" if name == "nvidia-smi" else "--version"
    return f"{_first_line(_output(path, asked, seconds=4))} ({path})" if path else "none"


def _tools() -> dict[str, str]:
    """Returns versions of programs, queried in parallel, because some take a second to answer."""
    compilers = (os.environ.get("CC", ""), "cc", "gcc", "clang")
    compiler = next((name for name in compilers if name and shutil.which(name)), "cc")
    with ThreadPoolExecutor(len(TOOLS) + 1) as pool:
        said = list(pool.map(_tool, (compiler, *TOOLS)))
    return dict(zip(("C compiler", *TOOLS), said, strict=True))


def _writable(folder: str) -> bool:
    try:
        with tempfile.TemporaryFile(dir=folder):
            return True
    except OSError:
        return False


def machine() -> dict[str, Any]:
    """Returns processor, Python, compiler, tools, versions of packages, and commit."""
    header = Path(sysconfig.get_paths()["include"]) / "Python.h"
    home = os.path.expanduser("~")
    pages, size = os.sysconf("SC_PHYS_PAGES"), os.sysconf("SC_PAGE_SIZE")
    found = {
        "commit": package.commit(),
        "python": f"{platform.python_version()} ({sys.executable})",
        "Python.h": str(header) if header.is_file() else f"none at {header}",
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "cores": len(os.sched_getaffinity(0)),
        "GiB": round(pages * size / 2**30, 1),
        "free GiB of disk": round(shutil.disk_usage(HERE).free / 2**30, 1),
        "home": f"{home}: {'can' if _writable(home) else 'cannot'} be written",
        "packages": _versions(),
        "variables": {k: v for k, v in sorted(os.environ.items()) if VARIABLES.match(k)},
    }
    items.show(found)
    return found | {"tools": _tools()}


# Libraries


def opened() -> list[str]:
    """Returns NVIDIA's libraries that this process has really opened."""
    pattern = re.compile(
        r"/(lib(cuda|nvrtc|cublas|cudnn|nvJitLink|nvjitlink|nvptx|cupti|nvml)[^/]*)$"
    )
    try:
        lines = Path("/proc/self/maps").read_text(errors="replace").splitlines()
    except OSError:
        return []
    paths = {line.split(None, 5)[5] for line in lines if len(line.split(None, 5)) == 6}
    return sorted(path for path in paths if pattern.search(path))


def torch() -> dict[str, Any]:
    """Returns facts about PyTorch: versions, devices, the libraries it opens for a product and a
    convolution, and cuDNN's description of the device."""
    try:
        import torch
    except Exception as error:
        return {"left out": items.no_torch(error)}
    found: dict[str, Any] = {"torch": torch.__version__, "built for CUDA": torch.version.cuda}
    try:
        import triton

        found["triton"] = triton.__version__
    except Exception as error:
        found["triton"] = f"none: {error}"
    if not torch.cuda.is_available():
        return {**found, "problem": "PyTorch sees no GPU"}
    items.show(found)
    found["properties"] = str(torch.cuda.get_device_properties(0))
    found["architectures"] = torch.cuda.get_arch_list()
    found["cuDNN"] = torch.backends.cudnn.version()
    a = torch.ones(64, 64, device="cuda")
    (a @ a).sum().item()
    items.show(found | {"opened": opened()})
    image = torch.ones(1, 1, 8, 8, device="cuda")
    torch.nn.functional.conv2d(image, image[:, :, :3, :3]).sum().item()
    found["opened"] = opened()
    items.show(found)
    found["cuDNN device properties"] = cudnn.device_properties()
    return found


def _facts() -> dict[str, items.Item]:
    return {"card": (30, card), "smi": (8, smi), "machine": (8, machine)}


STAGES = {
    "facts": _facts,
    "libraries": lambda: {"torch": (40, torch)},
    "after": lambda: {"smi after": (3, after)},
}

if __name__ == "__main__":
    sys.exit(items.main(STAGES))
