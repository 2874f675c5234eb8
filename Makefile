# Everything a newcomer needs, from nothing but Python >= 3.11, make and a C compiler:
#
#   make demo    train two models under three plans each; writes demo/report.html     (< 5 minutes; DEVICE=cuda: on a GPU)
#   make test    C tests, Python tests, PyTorch's, sanitizers, layer check, notebooks (half an hour; installs PyTorch)
#   make test-torch   only the bridge to PyTorch                                      (installs PyTorch)
#   make test-frontends   Trainer, Accelerate, Lightning, timm, PEFT under budgets    (a few minutes; installs them)
#   make bench   benchmarks/results/*.json and RESULTS.md                             (installs PyTorch)
#   make bench-planner   the planner's part of it                                     (< 12 minutes)
#   make bench-optim     optimizers beside PyTorch's                               (ten minutes; installs PyTorch)
#   make bench-cpu       kernels on a CPU beside PyTorch's, eager and by Inductor     (an hour; installs PyTorch)
#   make bench-torch     PyTorch models on a CPU by code generator (an hour; installs PyTorch)
#   make test-slow       the planner's limits on every traced graph, PyTorch's operators, models of libraries, fuzzing (an hour; installs them)
#   make test-versions   Python tests and the bridge's with other versions of Python and PyTorch   (part of test-slow)
#   make gpu LIMIT=330   on an NVIDIA GPU: whether it works, is correct, how fast it is   (ten minutes; installs nothing)
#   make fuzz SECONDS=60 fuzzing that looks for coverage, so long for each target     (needs clang)
#   make mutate-gpu      mistakes planted in the CUDA backend, which its tests must find (20 minutes)
#   make docs    the documentation site, build/docs/index.html                        (a minute; installs PyTorch)
#   make lint    formatter, linters, types
#   make clean   remove everything the targets above made

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
TREE   := build/package
export PATH := $(CURDIR)/$(BIN):$(PATH)
# Python compiles the modules that are imported and keeps the result, whatever the environment says: without it, each
# process that imports PyTorch compiles for ten seconds. Compiling all of PyTorch takes longer than importing it.
export PIP_COMPILE := 0
unexport PYTHONDONTWRITEBYTECODE
export PIP_DISABLE_PIP_VERSION_CHECK := 1
PARALLEL := -n auto --dist worksteal
# Each worker of pytest has one core: NumPy's BLAS would keep others busy waiting.
test test-python test-far test-sanitize test-torch test-slow wheels test-wheels: export OPENBLAS_NUM_THREADS := 1
SOURCES := $(shell find csrc cuda python -name '*.c' -o -name '*.h' -o -name '*.def' -o -name '*.cuh' -o -name '*.py' -o -name '*.pyi' -o -name CMakeLists.txt 2>/dev/null)

.PHONY: demo test test-c test-clang test-arm test-python test-slow test-versions fuzz test-far test-sanitize test-threads test-notebooks test-torch test-frontends check bench bench-planner bench-optim bench-cpu bench-torch gpu docs lint wheel wheels test-wheels release clean

demo: $(VENV)/.demo
	$(BIN)/python examples/demo/run.py --out demo $(if $(DEVICE),--device $(DEVICE))

# Installs packages while the core compiles: pip keeps one core busy. The checks need no packages.
test:
	$(MAKE) -j 2 $(VENV)/.torch check
	$(MAKE) test-c test-python test-far test-torch test-sanitize test-notebooks
	@echo "all tests passed"

check:
	$(PYTHON) tools/check_layers.py
	$(PYTHON) tools/check_parameters.py
	$(PYTHON) tools/loc.py
	$(PYTHON) tools/gen_docs.py --check
	$(PYTHON) tools/wrap_docs.py
	$(PYTHON) tools/same_code.py --self-test

# In the tree that the package was built in, so that the core is compiled once; warnings are errors in the sanitized
# build and in clang's.
test-c: $(VENV)/.test
	$(BIN)/cmake -S . -B $(TREE) -DCB_TESTS=ON
	$(BIN)/cmake --build $(TREE)
	$(BIN)/ctest --test-dir $(TREE) --output-on-failure --no-tests=error --timeout 600 -j 2

# Warnings of clang, which differ from gcc's, for every C file, the extension's too; not part of `make test`, since it needs clang.
test-clang: $(VENV)/.build-tools
	$(BIN)/cmake --preset dev-clang -DCB_PYTHON=ON -DPython_EXECUTABLE=$(CURDIR)/$(BIN)/python
	$(BIN)/python tools/clang_warnings.py build/dev-clang

# The C tests as an ARM processor with NEON runs them; needs Debian's gcc-aarch64-linux-gnu and qemu-user, which gives up
# in a child that was forked beside threads (test_base_threads).
test-arm: $(VENV)/.build-tools
	$(BIN)/cmake --preset release-arm
	$(BIN)/cmake --build --preset release-arm
	CUTBACK_TESTS=few $(BIN)/ctest --test-dir build/release-arm --output-on-failure --no-tests=error --timeout 600 -E "gpu|base_threads" -j 2

test-python: $(VENV)/.test
	$(BIN)/python -m pytest $(PARALLEL) tests/python tests/plan tests/gpu_sim

# Steps on a backend whose memory the host cannot touch; the C tests have their own (test_far_*).
test-far: $(VENV)/.test
	tools/far.sh $(BIN)

# The whole core and the extension under AddressSanitizer and UBSan.
test-sanitize: $(VENV)/.test
	tools/sanitize.sh memory $(BIN)

# What runs threads, in C and from Python, under ThreadSanitizer; not part of `make test`, as it takes long and changes seldom.
test-threads: $(VENV)/.test
	tools/sanitize.sh threads $(BIN)

# What takes too long for every change.
test-slow: $(VENV)/.zoo $(VENV)/.browser
	CUTBACK_TESTS=all $(MAKE) test-c
	$(BIN)/python -m pytest $(PARALLEL) tests -m very_slow
	tools/sanitize.sh memory $(BIN) all
	tools/sanitize.sh threads $(BIN) all
	$(MAKE) test-versions
	$(MAKE) wheels
	@if command -v clang >/dev/null; then $(MAKE) fuzz SECONDS=45; else echo "no clang: fuzzing is left out"; fi

# With other versions of Python and PyTorch, as far as they are available; PAIRS="3.12=2.13.0 3.13=" runs some.
test-versions:
	$(PYTHON) tools/test_versions.py $(PAIRS)

# Each target of tests/fuzz for so many seconds, two at a time; fails when one has found something.
SECONDS := 60
fuzz: $(VENV)/.build-tools
	$(BIN)/cmake --preset fuzz
	$(BIN)/cmake --build --preset fuzz
	$(BIN)/python tests/fuzz/run.py build/fuzz --seconds $(SECONDS)

test-notebooks: $(VENV)/.torch
	$(BIN)/python tools/run_notebooks.py notebooks/*.ipynb

# The bridge to PyTorch, with the version it is written for.
test-torch: $(VENV)/.torch
	$(BIN)/python -m pytest $(PARALLEL) tests/torch

# Front ends as people install them, with our line added.
test-frontends: $(VENV)/.frontends
	$(BIN)/python -m pytest -m very_slow tests/frontends

bench: $(VENV)/.bench $(VENV)/.test
	$(BIN)/python benchmarks/run.py

# The planner alone; needs no PyTorch, compares with it where it is installed.
bench-planner: $(VENV)/.test
	for script in benchmarks/planner/bench_*.py; do $(BIN)/python $$script || exit 1; done
	$(BIN)/python benchmarks/run.py --report

# Optimizers' steps beside torch.optim's.
bench-optim: $(VENV)/.bench
	for script in benchmarks/optim/bench_*.py; do $(BIN)/python $$script || exit 1; done
	$(BIN)/python benchmarks/run.py --report

# Forward and backward beside PyTorch's. ROWS=3,4 measures some, and writes nothing; JAX=PYTHON lets JAX take part.
bench-cpu: $(VENV)/.bench
	$(BIN)/python benchmarks/cpu/bench_fused.py $(if $(ROWS),--only $(ROWS)) $(if $(JAX),--jax $(JAX))
	$(if $(ROWS),,$(BIN)/python benchmarks/cpu/bench_products.py)
	$(BIN)/python benchmarks/run.py --report

# Training steps of PyTorch models: eager, torch.compile, and each of our code generators. ROUNDS=3 measures less, ROWS="GPT;MLP" some models, and THREADS=1 processor time.
bench-torch: $(VENV)/.bench
	$(BIN)/python benchmarks/pytorch/bench_native.py $(if $(ROWS),--models "$(ROWS)") $(if $(ROUNDS),--rounds $(ROUNDS)) $(if $(THREADS),--threads $(THREADS))
	$(BIN)/python benchmarks/run.py --report

# Needs no virtual environment: takes the Python that has PyTorch. LIMIT=seconds; ONLY=stage,... (tests/gpu/README.md).
gpu:
	$(PYTHON) tests/gpu/run.py $(if $(LIMIT),--limit $(LIMIT)) $(if $(ONLY),--only $(ONLY))

# Mutants of the CUDA backend, each beside the tests that reach it; ONLY="3f2a 90c1" runs some.
mutate-gpu: $(VENV)/.mutate
	$(BIN)/python -u tests/mutate/mutate.py $(if $(ONLY),--only $(ONLY))

# The site: pages of docs/, notebooks, and the reference from docstrings. Warnings are errors.
docs: $(VENV)/.docs
	$(BIN)/python -m sphinx -W --keep-going -n -q -b html -d build/docs.cache docs build/docs
	@echo "build/docs/index.html"

lint: $(VENV)/.lint $(VENV)/.build-tools
	git ls-files '*.c' '*.h' | xargs $(BIN)/clang-format --dry-run --Werror
	$(BIN)/cmake -S . -B build/tidy -DCMAKE_EXPORT_COMPILE_COMMANDS=ON -DCB_TESTS=OFF >/dev/null
	git ls-files 'csrc/*.c' | xargs -P 2 -n 35 $(BIN)/clang-tidy -p build/tidy --quiet 2>/dev/null
	$(BIN)/ruff check python tests tools benchmarks examples docs/conf.py docs/_ext
	$(BIN)/ruff format --check python tests tools benchmarks examples docs/conf.py docs/_ext
	$(BIN)/mypy
	$(BIN)/python tools/doc_snippets.py mypy
	$(BIN)/python tools/doc_snippets.py pyright

wheel: $(VENV)/.build-tools
	$(BIN)/python -m pip wheel --no-deps -w dist .

# One for each Python that is installed, with all fast tests in an empty environment (RELEASING.md).
wheels:
	$(PYTHON) tools/wheels.py $(VERSIONS)

# Those that are in dist.
test-wheels:
	$(PYTHON) tools/wheels.py --built $(VERSIONS)

# RELEASING.md. DRY=1 warns where a release would be refused.
release: $(VENV)/.build-tools
	$(BIN)/python tools/release.py $(if $(DRY),--dry)

# One virtual environment; each stamp adds what its target needs. The package is rebuilt when a source changes.
$(BIN)/python:
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -q --upgrade pip

$(VENV)/.build-tools: $(BIN)/python requirements/build.txt
	$(BIN)/python -m pip install -q -r requirements/build.txt
	@touch $@

$(VENV)/.package: $(VENV)/.build-tools pyproject.toml CMakeLists.txt $(SOURCES)
	$(BIN)/python -m pip install -q --no-build-isolation --no-deps --force-reinstall -C build-dir=$(TREE) .
	@touch $@

$(VENV)/.demo: $(VENV)/.package requirements/demo.txt
	$(BIN)/python -m pip install -q -r requirements/demo.txt
	@touch $@

# What tests need beside the package, which `make test` compiles meanwhile.
$(VENV)/.test-packages: $(VENV)/.build-tools requirements/test.txt
	$(BIN)/python -m pip install -q -r requirements/test.txt
	@touch $@

$(VENV)/.test: $(VENV)/.package $(VENV)/.test-packages
	@touch $@

$(VENV)/.mutate: $(VENV)/.test requirements/mutate.txt
	$(BIN)/python -m pip install -q -r requirements/mutate.txt
	@touch $@

$(VENV)/.bench: $(VENV)/.demo requirements/bench.txt
	$(BIN)/python -m pip install -q -r requirements/bench.txt
	@touch $@

$(VENV)/.torch-packages: $(VENV)/.test-packages requirements/torch.txt
	$(BIN)/python -m pip install -q -r requirements/torch.txt
	@touch $@

$(VENV)/.torch: $(VENV)/.test $(VENV)/.torch-packages
	@touch $@

$(VENV)/.frontends: $(VENV)/.torch requirements/frontends.txt
	$(BIN)/python -m pip install -q psutil transformers
	$(BIN)/python -m pip install -q --no-deps -r requirements/frontends.txt
	@touch $@

$(VENV)/.zoo: $(VENV)/.torch requirements/zoo.txt
	$(BIN)/python -m pip install -q transformers==5.23.0 aiohttp importlib_metadata psutil pyparsing requests xxhash
	$(BIN)/python -m pip install -q --no-deps -r requirements/zoo.txt
	@touch $@

# Reports are tested in a browser, which is Debian's chromium; without one these tests are skipped.
$(VENV)/.browser: $(VENV)/.test requirements/browser.txt
	$(BIN)/python -m pip install -q -r requirements/browser.txt
	@touch $@

$(VENV)/.docs: $(VENV)/.torch requirements/docs.txt
	$(BIN)/python -m pip install -q -r requirements/docs.txt
	@touch $@

$(VENV)/.lint: $(BIN)/python requirements/lint.txt
	$(BIN)/python -m pip install -q -r requirements/lint.txt
	@touch $@

clean:
	rm -rf $(VENV) build demo dist
