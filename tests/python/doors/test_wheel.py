"""Checks what the extension module requires of the system that loads it."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from cutback import _native

GLIBC = (2, 34)  # Debian 12, Ubuntu 22.04, RHEL 9
NEEDED = {"libc.so.6", "libm.so.6", "ld-linux-x86-64.so.2", "ld-linux-aarch64.so.1"}
MODULE = Path(_native.__file__)

pytestmark = pytest.mark.skipif(
    sys.platform != "linux" or shutil.which("readelf") is None, reason="needs Linux and readelf"
)


def read(*options):
    command = ["readelf", "--wide", *options, MODULE]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def test_no_symbol_needs_a_later_glibc():
    found = {
        (int(major), int(minor))
        for major, minor in re.findall(r"\bGLIBC_(\d+)\.(\d+)", read("--version-info"))
    }
    assert found and max(found) <= GLIBC


def test_no_library_besides_those_of_glibc():
    found = set(re.findall(r"\(NEEDED\).*\[(.+)\]", read("--dynamic")))
    sanitizers = {name for name in found if re.match(r"lib(asan|ubsan|tsan)\.", name)}
    assert found - sanitizers <= NEEDED


def test_only_the_start_of_the_module_is_exported():
    rows = [line.split() for line in read("--dyn-syms").splitlines()]
    exported = [row[7] for row in rows if len(row) > 7 and row[4] == "GLOBAL" and row[6].isdigit()]
    assert exported == ["PyInit__native"]
