"""The translator names what it does not support, and the committed PTX is NVRTC's output."""

from __future__ import annotations

import pytest

import cases
import nvrtc
from client import CudaError, Driver

EMPTY = ".version 8.0\n.target sm_80\n.address_size 64\n.visible .entry k() {{ {} ret; }}\n"


@pytest.mark.parametrize("file", ["pointwise", "rows", "tiles", "language", "faults"])
def test_committed_ptx(file: str) -> None:
    if nvrtc.library() is None:
        pytest.skip(f"{nvrtc.PACKAGE} is not installed")
    source = (nvrtc.KERNELS / f"{file}.cu").read_text()
    assert nvrtc.compile_to_ptx(source) == cases.ptx(file)


@pytest.mark.parametrize(
    ("body", "named"),
    [
        ("wgmma.fence.sync.aligned;", "unknown instruction wgmma.fence.sync.aligned"),
        (".reg .b32 %r<3>; vadd4.u32.u32.u32 %r1, %r2, %r2, %r1;", "vadd4"),
        (".reg .b32 %r<2>; add.rz.s32 %r1, %r1, %r1;", "unknown instruction add.rz.s32"),
        (".reg .b32 %r<2>; ld.global.L9.b32 %r1, [%r1];", "ld.global.L9.b32"),
        (".reg .b32 %r<2>; mov.u32 %r1, %clusterid.x;", "clusterid"),
        (".reg .b32 %r<2>; add.s32 %r1, %r7, %r1;", "%r7"),
        (".reg .b64 %rd<2>; call.uni vprintf, (%rd1);", "vprintf"),
        (".reg .b128 %q<2>;", ".b128"),
    ],
)
def test_unknown_is_named(driver: Driver, body: str, named: str) -> None:
    with pytest.raises(CudaError) as error:
        driver.load(EMPTY.format(body))
    assert error.value.name == "INVALID_PTX"
    assert named in error.value.reports


def test_images_that_are_no_ptx(driver: Driver) -> None:
    for image, name in (
        ("\x7fELF and so on", "NO_BINARY_FOR_GPU"),
        ("not PTX at all", "INVALID_IMAGE"),
        (EMPTY.format("").replace("sm_80", "sm_120"), "NO_BINARY_FOR_GPU"),
        (EMPTY.format("").replace("sm_80", "sm_80a"), "NO_BINARY_FOR_GPU"),
    ):
        with pytest.raises(CudaError) as error:
            driver.load(image)
        assert error.value.name == name


def test_newer_devices_take_older_ptx(driver: Driver) -> None:
    text = EMPTY.format("")
    driver.launch(text, "k", 1, 1)
    driver.set(capability=75)
    driver.modules.pop(text)
    with pytest.raises(CudaError, match="NO_BINARY_FOR_GPU"):
        driver.load(text)
