#!/usr/bin/env bash
# The C tests under AddressSanitizer + UBSan and (those with threads) under ThreadSanitizer, then the Python
# tests against an extension built with ASan + UBSan.
#
#     tools/sanitize.sh [BIN [all]]      BIN: folder of the python and cmake to use (default: those on PATH)
#                                        all: every Python test, and not only what reaches deep into the core;
#                                        and all of the C tests' random cases
set -euo pipefail
cd "$(dirname "$0")/.."
bin=${1:-}
python=${bin:+$bin/}python
cmake=${bin:+$bin/}cmake
ctest=${bin:+$bin/}ctest

if [ "${2:-}" = all ]; then export CUTBACK_TESTS=all; fi

# One tree for the C tests and the extension.
$cmake --preset asan-ubsan -DCB_PYTHON=ON -DPython_EXECUTABLE="$(command -v "$python")"
$cmake --build --preset asan-ubsan
$ctest --preset asan-ubsan -j 2

# What runs threads, each way to run them once: the rest takes no pool, and all is slow under this sanitizer.
threaded=(base_threads exec_backends exec_conv exec_matmul exec_vjp optim_adamw core_api core_step plan_crew)
if [ "${2:-}" = all ]; then threaded+=(exec_kernels_reduce core_models core_random); fi
$cmake --preset tsan
$cmake --build --preset tsan --target "${threaded[@]/#/test_}"
$ctest --preset tsan -j 2 -R "^test_($(IFS='|'; echo "${threaded[*]}"))$"

# What reaches deepest into the extension: memory of others, errors half way, threads, signals. What the other tests
# show of the core has been seen in the C tests above.
deep=(dlpack errors graph indexing memory process racing_indices tracer training)
tests=("${deep[@]/#/tests/python/test_}")
tests=("${tests[@]/%/.py}")
if [ "${2:-}" = all ]; then tests=(tests/python); fi

# The extension: the sanitizer's runtime must come first in the process, so it is preloaded.
stage=build/asan-python
rm -rf $stage && mkdir -p $stage
cp -r python/cutback $stage/cutback
cp "$(find build/asan-ubsan -name '_native*.so' | head -1)" $stage/cutback/
LD_PRELOAD="$(gcc -print-file-name=libasan.so) $(gcc -print-file-name=libubsan.so)" \
  ASAN_OPTIONS=detect_leaks=0:allocator_may_return_null=1 PYTHONMALLOC=malloc PYTHONPATH=$stage \
  $python -m pytest -q -n auto --dist worksteal -m "not slow and not very_slow" "${tests[@]}"
