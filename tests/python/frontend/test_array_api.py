"""Runs the array API standard's public test suite on the namespace of traced arrays: each call is a
step (``tests/reference/eager_namespace.py``).

Set CUTBACK_ARRAY_API_TESTS to a checkout of github.com/data-apis/array-api-tests with its
submodule; it needs ndindex and pytest-json-report.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

CHECKOUT = os.environ.get("CUTBACK_ARRAY_API_TESTS", "")
FILES = [
    "constants", "creation_functions", "data_type_functions", "has_names", "indexing_functions",
    "inspection_functions", "manipulation_functions", "searching_functions", "set_functions",
    "signatures", "sorting_functions", "statistical_functions", "utility_functions",
]  # fmt: skip
"""The suite has more: elementwise functions, linear algebra, operators, special cases and DLPack.
They compile a step for each of many thousands of examples, which takes too long."""


REASONS = {
    "the core has no such operation": (
        "bitwise_left_shift bitwise_right_shift nextafter __lshift__ __rshift__"
    ),
    "the number of elements would depend on elements": (
        "nonzero unique_all unique_counts unique_inverse unique_values"
    ),
    "nothing writes into a traced array": "__setitem__",
    "there are no complex numbers": (
        "conj imag real fft fftfreq fftn fftshift hfft ifft ifftn ifftshift ihfft irfft irfftn "
        "rfft rfftfreq rfftn"
    ),
    "the core has no singular values": "eigh eigvalsh matrix_rank pinv qr svd svdvals",
    "DLPack arrays are arguments of steps": "from_dlpack __dlpack__",
    "linalg.trace has no dtype=": "trace",
    "there is no uint64, which the test draws": "test_full",
    "the attributes of finfo are NumPy's f32 numbers": "test_finfo",
    "a Python number has no type of its own": "test_with_scalars",
}
KNOWN = {name: reason for reason, names in REASONS.items() for name in names.split()}


def name_of(test: str) -> str:
    """Returns what a test is about: ``acos`` for ``test_func_signature[acos]``."""
    function, _, inner = test.partition("[")
    name = inner.rstrip("]").replace("-", ".").rpartition(".")[2]
    return function if function == "test_finfo" or not name else name


@pytest.mark.very_slow
@pytest.mark.skipif(not CHECKOUT, reason="CUTBACK_ARRAY_API_TESTS is not set")
def test_the_suite_fails_where_the_list_says(tmp_path: Path) -> None:
    suite = tmp_path / "suite"
    shutil.copytree(CHECKOUT, suite)
    for file, old, new in (  # the suite cannot be imported without complex numbers and uint64
        (
            "dtype_helpers",
            "key=lambda x: x[1]\n)[0]",
            "key=lambda x: x[1],default=(xp.float64,))[0]",
        ),
        ("hypothesis_helpers", "if xp.uint64 in mixed", "if 'u64' in mixed"),
    ):
        path = suite / "array_api_tests" / f"{file}.py"
        path.write_text(path.read_text().replace(old, new))
    other = "complex64,complex128,int8,int16,uint16,uint32,uint64"
    reference = str(Path(__file__).parents[2] / "reference")
    environment = {
        "ARRAY_API_TESTS_MODULE": "eager_namespace", "ARRAY_API_TESTS_VERSION": "2024.12",
        "ARRAY_API_TESTS_SKIP_DTYPES": other,
        "PYTHONPATH": os.pathsep.join([reference, os.environ.get("PYTHONPATH", "")]),
    }  # fmt: skip
    subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--max-examples", "2",
         "--disable-deadline", "--derandomize", "--disable-dds", "--junitxml=result.xml",
         *(f"array_api_tests/test_{name}.py" for name in FILES)],
        cwd=suite, env=os.environ | environment, check=False, stdout=subprocess.DEVNULL,
    )  # fmt: skip
    cases = list(ElementTree.parse(suite / "result.xml").iter("testcase"))
    failed = {
        case.attrib["name"]
        for case in cases
        if case.find("failure") is not None or case.find("error") is not None
    }
    assert len(cases) > 400
    assert {test for test in failed if name_of(test) not in KNOWN} == set()
    assert {name_of(test) for test in failed} == set(KNOWN)
