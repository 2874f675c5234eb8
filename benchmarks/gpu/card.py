"""The limits of the card: a measured device for `device=` (cutback.devices.resolve), and the rates
used for predicted times (docs/cuda.md)."""

from __future__ import annotations

import ctypes
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parents[1] / "tests" / "gpu")]

import gpu_rows
import items
import numpy as np
from device_clock import (
    MULTIPROCESSORS,
    Candidate,
    DeviceClock,
    DriverError,
    about,
    is_small,
    torch_device,
    torch_with_gpu,
)

LAUNCHES = 200
Part = Callable[[DeviceClock, dict[str, Any]], None]


def memory(clock: DeviceClock, found: dict[str, Any]) -> None:
    """Measures the GB/s of our kernels that read one or two arrays of f32 and write one."""
    import cutback as cb
    from cutback import cuda

    n = 1 << 10 if is_small() else 1 << 27
    host = gpu_rows.Repeated(1).standard_normal(n, np.float32)
    x, y = (cuda.to_device(host) for _ in range(2))
    one = cb.compile(lambda x: x + 1, argnums=None, device="cuda")
    two = cb.compile(lambda x, y: x + y, argnums=None, device="cuda")
    times = clock.measure(
        {
            "copy": Candidate(lambda: one(x, stream=clock.stream), after=one.wait),
            "add": Candidate(lambda: two(x, y, stream=clock.stream), after=two.wait),
        }
    )
    found |= {
        "bytes": 8 * n,
        "copy GB/s": 8e-6 * n / times["copy"].device_ms,
        "two reads, one write GB/s": 12e-6 * n / times["add"].device_ms,
    }


def launch_gap(clock: DeviceClock, found: dict[str, Any]) -> None:
    """Measures the microseconds between the starts of two small kernels, on the device and on the
    host."""
    import cutback as cb
    from cutback import cuda

    n = 8 if is_small() else LAUNCHES

    def chain(x: Any) -> Any:
        for _ in range(n):
            x = -x  # integer ops do not fuse: each is a kernel
        return x

    step = cb.compile(chain, argnums=None, device="cuda")
    x = cuda.to_device(np.ones(1, np.int32))
    run = Candidate(lambda: step(x, stream=clock.stream), after=step.wait)
    times = clock.measure({"chain": run})["chain"]
    found |= {
        "launches": n,
        "launch gap us": 1e3 * times.device_ms / n,
        "host us a launch": 1e3 * times.host_ms / n,
    }


def link(clock: DeviceClock, found: dict[str, Any]) -> None:
    """Measures the GB/s between host and device, from pinned and from pageable memory."""
    driver, size = clock.driver, 1 << 12 if is_small() else 128 << 20
    device = driver.allocate(size)
    pageable = np.ones(size, np.uint8)
    pinned = ctypes.c_void_p()
    places = {"pageable": ctypes.c_void_p(pageable.ctypes.data)}
    try:
        driver.call("cuMemAllocHost", ctypes.byref(pinned), ctypes.c_size_t(size))
        ctypes.memset(pinned, 1, size)
        places = {"pinned": pinned, **places}
    except DriverError as error:
        found["pinned"] = str(error)
    stream, n = ctypes.c_void_p(clock.stream), ctypes.c_size_t(size)
    for name, host in places.items():
        copies = {
            "to device": lambda host=host: driver.call(
                "cuMemcpyHtoDAsync", device, host, n, stream
            ),
            "to host": lambda host=host: driver.call("cuMemcpyDtoHAsync", host, device, n, stream),
        }
        for way, copy in copies.items():
            copy()
            clock.wait()
            begin, rounds = time.perf_counter(), 4
            for _ in range(rounds):
                copy()
            clock.wait()
            rate = rounds * size / (time.perf_counter() - begin)
            found[f"{name} {way} GB/s"] = 1e-9 * rate
    driver.call("cuMemFree", device)
    if pinned.value:
        driver.call("cuMemFreeHost", pinned)


def our_products(clock: DeviceClock, found: dict[str, Any]) -> None:
    """Measures the TFLOP/s of our products of square matrices."""
    import cutback as cb
    from cutback import cuda

    n = 16 if is_small() else 8192
    step = cb.compile(lambda a, b: a @ b, argnums=None, device="cuda")
    for dtype in ("f32", "bf16"):
        rng = gpu_rows.Repeated(1)
        host = [gpu_rows.cast(rng.standard_normal((n, n), np.float32), dtype) for _ in range(2)]
        a, b = cuda.to_device(host)
        run = Candidate(lambda a=a, b=b: step(a, b, stream=clock.stream), after=step.wait)
        found[f"{dtype} products TFLOP/s"] = _tera(n, clock.measure({"product": run})["product"])
        items.show(found)


def _tera(n: int, times: Any) -> float:
    return 2e-9 * n**3 / max(float(times.device_ms), 1e-9)


def torch_products(clock: DeviceClock, found: dict[str, Any]) -> None:
    """Measures the same with PyTorch, also in TF32, and its copy rate."""
    torch, why = torch_with_gpu()
    if torch is None:
        found["products of PyTorch"] = why
        return
    n = 16 if is_small() else 8192
    with clock.torch_stream():
        for name, dtype, tf32 in (
            ("bf16", torch.bfloat16, False),
            ("TF32", torch.float32, True),
            ("f32", torch.float32, False),
        ):
            torch.backends.cuda.matmul.allow_tf32 = tf32
            a, b = (torch.randn(n, n, device=torch_device(torch)).to(dtype) for _ in range(2))
            out = torch.empty_like(a)
            run = Candidate(lambda a=a, b=b, out=out: torch.mm(a, b, out=out))
            times = clock.measure({"product": run})["product"]
            found[f"torch {name} products TFLOP/s"] = _tera(n, times)
            items.show(found)
        x = torch.ones(1 << (10 if is_small() else 27), device=torch_device(torch))
        y = torch.empty_like(x)
        times = clock.measure({"copy": Candidate(lambda: y.copy_(x))})["copy"]
        found["torch copy GB/s"] = 8e-6 * x.numel() / max(times.device_ms, 1e-9)


def device_row(found: dict[str, Any]) -> dict[str, Any] | None:
    """Returns a device for ``device=`` from the measurements; None if the products are missing."""
    rates = {}
    for dtype in ("f32", "bf16"):
        known = [found.get(f"{who}{dtype} products TFLOP/s") for who in ("", "torch ")]
        if fastest := max((rate for rate in known if rate), default=None):
            rates[dtype] = 1e12 * float(f"{fastest:.4g}")
    needed = ("two reads, one write GB/s", "launch gap us")
    if "f32" not in rates or any(key not in found for key in needed):
        return None
    if "bf16" in rates:
        rates["f16"] = rates["bf16"]
    row = {
        "name": f"measured {found['gpu']}"[:80],
        "flops_per_s": rates,
        "bytes_per_s": 1e9 * float(f"{found['two reads, one write GB/s']:.4g}"),
        "launch_s": 1e-6 * float(f"{found['launch gap us']:.3g}"),
    }
    pinned = [found.get(f"pinned {way} GB/s") for way in ("to device", "to host")]
    if all(pinned):
        row["link_bytes_per_s"] = 1e9 * float(f"{min(pinned):.4g}")
    return row


def _line(found: dict[str, Any]) -> str:
    short = {
        "copy": "copy GB/s", "2R1W": "two reads, one write GB/s", "launch us": "launch gap us",
        "pinned GB/s": "pinned to device GB/s", "f32 TFLOP/s": "f32 products TFLOP/s",
        "TF32": "torch TF32 products TFLOP/s", "bf16": "bf16 products TFLOP/s",
    }  # fmt: skip
    return ", ".join(f"{k} {found[key]:.4g}" for k, key in short.items() if key in found)


def card() -> dict[str, Any]:
    """Measures all parts; one that fails reports it and does not stop the others."""
    clock = DeviceClock()
    found: dict[str, Any] = {
        **about(),
        "multiprocessors": clock.driver.attribute(MULTIPROCESSORS),
        "flush bytes": clock.flush_bytes,
    }
    for part in _parts():
        try:
            part(clock, found)
        except Exception as error:
            found[f"{part.__name__} failed"] = f"{type(error).__name__}: {error}"[:500]
        found["device"] = device_row(found)
        found["line"] = _line(found)
        items.show(found)
    return found


def _parts() -> Iterator[Part]:
    yield from (memory, launch_gap, link, our_products, torch_products)
