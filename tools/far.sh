#!/usr/bin/env bash
# The Python tests of steps against an extension whose backend has memory that the host cannot touch (tests/c/far).
#
#     tools/far.sh [BIN [ARGUMENTS OF PYTEST]]    BIN: folder of the python and cmake to use (default: on PATH)
set -euo pipefail
cd "$(dirname "$0")/.."
bin=${1:-}
python=${bin:+$bin/}python
cmake=${bin:+$bin/}cmake
tests=("${@:2}")
if [ ${#tests[@]} = 0 ]; then
  tests=(tests/python/run tests/python/frontend -m "not slow and not very_slow")
  # Not again on this backend: updates of arrays outside of a step, which use no backend; tables of operations and
  # kernels, whose bits test_far_core_* compare here; what is refused before anything runs.
  again=(run/test_{across,attention,batch_norm,benchmark_intervals,bf16_products,cpu_benchmark,foreach,fused}
    run/test_optimizer_{8bit,codes,extras,factored,formulas,halves,matrices,names,soap,tables}
    frontend/test_{constants,coverage,functional,slice_gradients,source,tracer,tree,vmap,wrong_types})
  for name in "${again[@]}"; do tests+=("--ignore=tests/python/$name.py"); done
fi

# In the tree that the package was built in, so that the core is compiled once.
tree=build/package
$cmake -S . -B $tree -DCB_PYTHON=ON -DCB_FAR=ON -DPython_EXECUTABLE="$(command -v "$python")"
$cmake --build $tree --target _native_far

stage=build/far-python
rm -rf $stage && mkdir -p $stage
cp -r python/cutback $stage/cutback
cp "$(find $tree/far -name '_native*.so' | head -1)" $stage/cutback/
CUTBACK_TEST_BACKEND=far PYTHONPATH=$stage $python -m pytest -q -n auto --dist worksteal "${tests[@]}"
