#!/usr/bin/env bash
# The C tests under AddressSanitizer + UBSan and the Python tests against an extension built with these; or the C
# tests and the Python tests with threads under ThreadSanitizer.
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

watch_all=OFF # only the kernels of the widest instruction set: cmake/kernels.cmake
if [ "${3:-}" = all ]; then export CUTBACK_TESTS=all; watch_all=ON; fi

# stage_extension TREE: the package with the extension of build/TREE, in build/TREE-python.
stage_extension() {
  rm -rf "build/$1-python" && mkdir -p "build/$1-python"
  cp -r python/cutback "build/$1-python/cutback"
  cp "$(find "build/$1" -name '_native.*so' | head -1)" "build/$1-python/cutback/"
}

if [ "$what" = threads ]; then
  # What runs threads, each way to run them once: the rest takes no pool, and all is slow under this sanitizer.
  threaded=(base_kept base_threads exec_backends exec_conv exec_matmul exec_vjp optim_adam optim_sgd optim_table core_api core_run_memory core_step plan_workers)
  if [ "${3:-}" = all ]; then threaded+=(exec_kernels_reduce core_models core_random); fi
  $cmake --preset tsan -DCB_WATCH_ALL=$watch_all -DCB_PYTHON=ON -DPython_EXECUTABLE="$(command -v "$python")"
  $cmake --build --preset tsan --target _native "${threaded[@]/#/test_}"
  $ctest --preset tsan -j 2 -R "^test_($(IFS='|'; echo "${threaded[*]}"))$"
  # Of Python and NumPy the sanitizer sees only calls of the C library, locks among them. It ends a child that starts
  # threads, so tests that fork are left out; test_racing_indices.py races on purpose.
  with_threads=(run/test_{host_path,kept_memory,optimizer_threads,optimizers,process,run_memory} planner/test_{devices,watched})
  stage_extension tsan
  CUTBACK_TEST_PLANS=unchecked LD_PRELOAD="$(gcc -print-file-name=libtsan.so)" OPENBLAS_NUM_THREADS=1 \
    TSAN_OPTIONS=halt_on_error=1:second_deadlock_stack=1 PYTHONPATH=build/tsan-python \
    $python -m pytest -q -m "not slow and not very_slow" -k "thread and not fork" \
    $(printf 'tests/python/%s.py ' "${with_threads[@]}")
  exit
fi

# One tree for the C tests and the extension.
$cmake --preset asan-ubsan -DCB_WATCH_ALL=$watch_all -DCB_PYTHON=ON -DPython_EXECUTABLE="$(command -v "$python")"
$cmake --build --preset asan-ubsan
# Of the far backend's tests, test_far_core_step and those of memory and errors are enough here: the others compare
# bits, and do so in the plain build. So do those of models; long searches take the paths of the short ones.
again='^test_(far_core_(models|parity|random)|core_models|plan_(ends|plan|search|workers))$'
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
stage_extension asan-ubsan
CUTBACK_TEST_PLANS=unchecked LD_PRELOAD="$(gcc -print-file-name=libasan.so) $(gcc -print-file-name=libubsan.so)" \
  ASAN_OPTIONS=detect_leaks=0:allocator_may_return_null=1 PYTHONMALLOC=malloc PYTHONPATH=build/asan-ubsan-python \
  $python -m pytest -q -n auto --dist worksteal -m "not slow and not very_slow" -k "${tables:+not ($tables)}" "${tests[@]}"
