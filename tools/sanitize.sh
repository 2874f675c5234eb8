#!/usr/bin/env bash
# The C tests under AddressSanitizer + UBSan and the Python tests against an extension built with these; or the C
# tests with threads under ThreadSanitizer.
#
#     tools/sanitize.sh memory|threads [BIN [all]]    BIN: folder of the python and cmake to use (default: on PATH)
#                                                     all: all random cases of the C tests, and every Python test,
#                                                     not only what reaches deep into the core
set -euo pipefail
cd "$(dirname "$0")/.."
what=${1:?memory or threads}
bin=${2:-}
python=${bin:+$bin/}python
cmake=${bin:+$bin/}cmake
ctest=${bin:+$bin/}ctest

if [ "${3:-}" = all ]; then export CUTBACK_TESTS=all; fi

if [ "$what" = threads ]; then
  # What runs threads, each way to run them once: the rest takes no pool, and all is slow under this sanitizer.
  threaded=(base_kept base_threads exec_backends exec_conv exec_matmul exec_vjp optim_adam optim_sgd optim_table core_api core_run_memory core_step plan_workers)
  if [ "${3:-}" = all ]; then threaded+=(exec_kernels_reduce core_models core_random); fi
  $cmake --preset tsan
  $cmake --build --preset tsan --target "${threaded[@]/#/test_}"
  $ctest --preset tsan -j 2 -R "^test_($(IFS='|'; echo "${threaded[*]}"))$"
  exit
fi

# One tree for the C tests and the extension.
$cmake --preset asan-ubsan -DCB_PYTHON=ON -DPython_EXECUTABLE="$(command -v "$python")"
$cmake --build --preset asan-ubsan
# Of the far backend's tests, test_far_core_step and those of memory and errors are enough here: the others compare
# bits, and do so in the plain build. So do those of models; long searches take the paths of the short ones.
again='^test_(far_core_(models|parity|random)|core_models|plan_(ends|search))$'
if [ "${3:-}" = all ]; then again='^$'; fi
$ctest --preset asan-ubsan -j 2 -E "$again"

# What reaches deepest into the extension: memory of others, errors half way, threads, signals. What the other tests
# show of the core has been seen in the C tests above.
deep=(frontend/test_{dlpack,errors,graph,indexing,tracer} run/test_{batches,kept_memory,memory,process,racing_indices,run_memory,training})
tests=("${deep[@]/#/tests/python/}")
tests=("${tests[@]/%/.py}")
# Tables of operators and dtypes, which the plain run compares with NumPy: each entry takes the same path.
tables="unary_functions or operators_agree_with_numpy or promotion_is_numpys or python_scalars_are_weak"
if [ "${3:-}" = all ]; then tests=(tests/python) tables=; fi

# The extension: the sanitizer's runtime must come first in the process, so it is preloaded.
stage=build/asan-python
rm -rf $stage && mkdir -p $stage
cp -r python/cutback $stage/cutback
cp "$(find build/asan-ubsan -name '_native*.so' | head -1)" $stage/cutback/
CUTBACK_TEST_PLANS=unchecked LD_PRELOAD="$(gcc -print-file-name=libasan.so) $(gcc -print-file-name=libubsan.so)" \
  ASAN_OPTIONS=detect_leaks=0:allocator_may_return_null=1 PYTHONMALLOC=malloc PYTHONPATH=$stage \
  $python -m pytest -q -n auto --dist worksteal -m "not slow and not very_slow" -k "${tables:+not ($tables)}" "${tests[@]}"
