# The two commands of the README are `make demo` and `make test`; the rest are parts of them.
SHELL := /bin/bash
.DEFAULT_GOAL := help
.PHONY: help setup build dist profile build-bench demo test fetch tested lint test-unit fuzz-targets test-fuzz doc deb wheel release test-deploy \
	test-dashboard bench-local docs clean

# Python keeps the bytecode that it compiles: without, a process of Ray takes twice the time to start.
unexport PYTHONDONTWRITEBYTECODE

CARGO ?= cargo
FUZZ_SECONDS ?= 20
PYTHON ?= python3
BINARIES := target/release
# As packages have them and benchmarks measure them: the profile in Cargo.toml.
DIST := target/dist
# What a run of the programs has shown to run most; `make dist PROFILE=` does without.
PROFILE := target/profile/merged.profdata
DEMO_ENV := target/demo-env
# Runs parts of `test` at the same time: while one waits for the network, processes or clocks, another computes. Prints the output
# of a part when the part has ended. Cargo counts its own jobs: a fifo of make's would have it share these.
AT_ONCE = $(MAKE) --no-print-directory --output-sync=target $(if $(filter jobserver-fifo,$(.FEATURES)),--jobserver-style=pipe) --jobs
# The wheel builds the same packages: with others beside them, their dependencies would have other features, and nearly all
# would be built again.
PROGRAMS := -p hoplite-cli -p hoplite-store -p hoplite-directory

help: ## Lists the targets.
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

setup: ## Installs what is missing: a C and C++ compiler (linker, fuzzers). Needs root only if something is.
	@./setup.sh

build: setup ## Builds the programs: target/release/{hoplite,hoplite-store,hoplite-directory}.
	$(CARGO) build --release $(PROGRAMS)

# What the profile did not see run may be just what somebody needs: it is as quick as without a profile, not small instead.
USE_PROFILE = -Cprofile-use=$(abspath $(PROFILE)) -Cllvm-args=-pgso=false
# With other flags all would be built again.
DIST_FLAGS = RUSTFLAGS="$(strip $(RUSTFLAGS) $(if $(PROFILE),$(USE_PROFILE)))"
DIST_BUILD = $(DIST_FLAGS) $(CARGO) build --profile dist

dist: setup $(PROFILE) ## Builds them as packages have them and benchmarks measure them, in target/dist. Ten minutes more, five the next time.
	$(DIST_BUILD) $(PROGRAMS)
	$(if $(PROFILE),deploy/profile.sh --check $(PROFILE) $(DIST)/hoplite-store)

build-bench: dist
	$(DIST_BUILD) $(PROGRAMS) -p hoplite-tests --bins

profile: setup ## Learns anew what of the programs runs most, for dist.
	CARGO=$(CARGO) deploy/profile.sh $(PROFILE)
	rm -rf $(DIST)

target/profile/merged.profdata: | setup
	CARGO=$(CARGO) deploy/profile.sh $@

demo: setup $(DEMO_ENV) ## A 4-node cluster moves a real file and adds arrays, then Python trains a model on another; says how fast.
	$(CARGO) build --release $(PROGRAMS) -p hoplite-python
	$(BINARIES)/hoplite demo --nodes 4
	HOPLITE_EXTENSION=../$(BINARIES)/lib_native.so \
		$(DEMO_ENV)/bin/pip install --editable ./python $$(grep '^scikit-learn==' python/requirements-integrations.txt)
	HOPLITE_BINARIES=$(abspath $(BINARIES)) $(DEMO_ENV)/bin/python python/examples/async_parameter_server.py --seconds 5

$(DEMO_ENV): | setup
	$(PYTHON) -m venv $@

# First what compiles, then what runs. Ray gives up when a process of its own starts slowly, so its tests run alone.
# Parts end in any order, so the messages of failed Rust tests are repeated after the others.
test: setup ## Everything that a change must pass.
	+$(AT_ONCE)=2 fetch lint tested fuzz-targets doc lint-python docs
	rm -f target/test-unit.log
	+$(AT_ONCE)=2 test-unit test-without-ray UNIT_LOG=target/test-unit.log || \
		{ awk '/^failures:$$/ { shown = 1 } /^test result/ { shown = 0 } shown' target/test-unit.log 2>/dev/null; exit 1; }
	$(MAKE) --no-print-directory --jobs=1 test-with-ray test-fuzz test-lab test-chaos test-deploy test-dashboard

fetch: python-env # What the tests run besides our programs: torch, Ray, a browser, Docker.
	./setup.sh --browser
	PYTHON=$(PYTHON) tests/deploy/install.sh

# All features of dependencies that tests need too: built without them, nearly all would be built twice.
tested: setup # What the tests run.
	$(CARGO) build --workspace --all-targets

# HOPLITE_ADVISORIES names a checkout of https://github.com/RustSec/advisory-db, in which dependencies are looked up.
lint: ## Formatting, lints, the licences and sources of dependencies, the names and links of pages, and sentences.
	$(CARGO) fmt --all --check
	$(CARGO) clippy --workspace --all-targets -- -D warnings
	$(PYTHON) -m unittest discover -s tests/lint
	CARGO=$(CARGO) $(PYTHON) tests/lint/dependencies.py
	$(PYTHON) tests/lint/pages.py
	$(PYTHON) tests/lint/levels.py
	$(PYTHON) tests/lint/prose.py
	$(PYTHON) tests/lint/lengths.py
	PYTHON=$(PYTHON) deploy/release.sh --check

# Ends tests that hang. The test programs name each test that takes more than a minute.
TEST_LIMIT ?= 40m

# Cargo's rustdoc would warn that it cannot use make's job server, which make lends to `$(MAKE)` only.
test-unit: tested ## Unit, property, simulation, conformance and process tests.
	env --unset=MAKEFLAGS --unset=MFLAGS timeout --verbose $(TEST_LIMIT) $(CARGO) test --workspace --no-fail-fast \
		$(if $(UNIT_LOG),> $(UNIT_LOG) 2>&1; status=$$?; cat $(UNIT_LOG); exit $$status)

fuzz-targets: setup # What test-fuzz runs.
	tests/fuzz/run.sh --build

test-fuzz: ## A short run of each fuzz target; FUZZ_SECONDS=600 for a long one.
	FUZZ_SECONDS=$(FUZZ_SECONDS) ./tests/fuzz/run.sh

doc: ## The API documentation, without a warning.
	RUSTDOCFLAGS="-D warnings" nice $(CARGO) doc --workspace --no-deps --document-private-items

DOCS_ENV := target/docs-env

# HOPLITE_REPOSITORY=https://github.com/OWNER/NAME makes links to other files of the repository work there.
docs: $(DOCS_ENV)/.installed ## The site with the pages of docs/, in target/site; a broken link is an error. Needs PyPI the first time.
	NO_MKDOCS_2_WARNING=1 $(DOCS_ENV)/bin/mkdocs build --strict

$(DOCS_ENV)/.installed: docs/requirements.txt | setup
	$(PYTHON) -m venv $(DOCS_ENV)
	$(DOCS_ENV)/bin/pip install --quiet --requirement $<
	touch $@

deb: dist ## A Debian package of the programs and their units, in target/debian.
	deploy/debian/build.sh $(DIST) target/debian

release: ## All packages of one version, in target/release-VERSION: make release VERSION=0.2.0. Takes long; needs PyPI.
	CARGO=$(CARGO) PYTHON=$(PYTHON) deploy/release.sh $(VERSION)

# TARGET=aarch64-unknown-linux-gnu builds a wheel for another architecture.
wheel: setup ## The Python package as a wheel for other Linux systems, checked, and its sources, in target/wheel. Needs PyPI.
	deploy/wheel/build.sh target/wheel $(TARGET)

test-deploy: tested ## Tests of deploy/: units, package, image, compose, chart, rules. Fetches what they need; most need root.
	PYTHON=$(PYTHON) tests/deploy/install.sh
	cd tests && ../target/deploy-tools/venv/bin/python -m unittest discover -s deploy -t .

test-dashboard: tested ## Tests of the dashboard in a browser, and of `hoplite top` in a terminal. Root installs the browser, else it is skipped.
	./setup.sh --browser
	cd tests && $(PYTHON) -m unittest discover -s dashboard -t .

bench-local: dist ## Hoplite alone over loopback, for docs/dev/log.md.
	$(DIST)/hoplite bench local
	$(DIST)/hoplite bench p2p
	$(DIST)/hoplite bench broadcast
	$(DIST)/hoplite bench reduce
	$(DIST)/hoplite bench kernels
	$(DIST)/hoplite bench shard
	$(DIST)/hoplite bench directory

clean: ## Removes what was built.
	$(CARGO) clean

# Benchmarks on shaped links, beside other systems: see tests/bench/README.md. They need root.
.PHONY: bench bench-quick bench-peers bench-full bench-report topology-report test-lab test-peers
BENCH_PYTHON := ../target/bench/venv/bin/python
# For example `make bench BENCH_ARGUMENTS=--continue` after an interruption.
BENCH_ARGUMENTS ?=

bench: build-bench bench-peers ## Hoplite beside MPICH, Open MPI, Gloo and Ray, and docs/benchmarks.md. Root; 45 minutes.
	cd tests && $(PYTHON) -m bench run $(BENCH_ARGUMENTS)
	$(MAKE) --no-print-directory bench-report

bench-quick: build-bench ## Hoplite's collectives beside what the links allow, on shaped links. Root, iperf3; two minutes, and the build.
	cd tests && $(PYTHON) -m bench run --quick

bench-peers: ## Installs MPICH, Open MPI, torch, Ray and matplotlib for bench.
	tests/bench/peers/install.sh

bench-full: build-bench bench-peers ## As bench, with more rounds of large objects. Root; takes hours.
	cd tests && $(PYTHON) -m bench run --full $(BENCH_ARGUMENTS)
	$(MAKE) --no-print-directory bench-report

bench-report: ## Writes docs/benchmarks.md and docs/dev/benchmarks.md from the results of the last run.
	cd tests && $$([ -x $(BENCH_PYTHON) ] && echo $(BENCH_PYTHON) || echo $(PYTHON)) -m bench report

topology-report: build-bench ## Reproduces what docs/dev/reproductions.md shows of three papers, and writes it there. Root; fifteen minutes.
	cd tests && $(PYTHON) -m bench.topology --programs $(abspath $(DIST))

test-lab: tested ## Tests of the lab, of Hoplite in it, and of the benchmarks themselves; most need root. Two minutes.
	@[ "$$(id -u)" = 0 ] || echo "test-lab: not root, so there are no hosts and links: what needs them is skipped" >&2
	cd tests && $(PYTHON) -m unittest discover -s lab/tests -t . && $(PYTHON) -m unittest discover -s bench/tests -t .

.PHONY: chaos test-chaos
CHAOS = cd tests && PYTHONPATH=../python ../$(PYTHON_ENV)/bin/python
SECONDS ?= 300
# For example `make chaos SECONDS=60 CHAOS_ARGUMENTS="--seed 7 --faults kill-store cut-pair"`.
CHAOS_ARGUMENTS ?=

chaos: python ## Kills, freezes and cuts off daemons for SECONDS, and checks every result of their clients. Root.
	$(CHAOS) -m chaos --seconds $(SECONDS) $(CHAOS_ARGUMENTS)

test-chaos: python ## A short campaign of faults, and the tests of its checks. Root; a minute.
	$(CHAOS) -m unittest discover -s chaos/tests -t .

test-peers: tested bench-peers ## Every system of the benchmarks, each workload once: before a long run. Root; two minutes.
	cd tests && HOPLITE_TEST_PEERS=1 $(PYTHON) -m unittest -v bench.tests.test_systems

# The Python package, in an environment of its own that is kept.
.PHONY: python-env python lint-python test-python test-with-ray test-without-ray test-pins bench-python suites
PYTHON_ENV := python/.venv
TESTS_WITH_RAY := tests/ray tests/examples

python-env: $(PYTHON_ENV)/.installed ## Installs what the Python package is tested with, torch and Ray too (8 GB), once.

# uv takes a minute where pip takes ten. pip has the settings of this machine, such as another index.
$(PYTHON_ENV)/.installed: python/requirements-dev.txt python/requirements-integrations.txt | setup
	$(PYTHON) -m venv $(PYTHON_ENV)
	$(PYTHON_ENV)/bin/pip install --quiet uv==0.13.9 && $(PYTHON_ENV)/bin/uv pip install --quiet --system-certs \
		--python $(PYTHON_ENV)/bin/python $(addprefix --requirement ,$^) || \
		$(PYTHON_ENV)/bin/pip install --quiet $(addprefix --requirement ,$^)
	touch $@

python: tested python-env ## Builds the Python package, unoptimised and in place, and the programs that it uses.
	cd python && PATH=$(abspath $(PYTHON_ENV)/bin):$$PATH HOPLITE_EXTENSION=../target/debug/lib_native.so \
		pip install --quiet --no-deps --no-build-isolation --editable .

lint-python: python-env ## Formatting, mistakes and types of the Python package.
	cd python && .venv/bin/ruff format --check . && .venv/bin/ruff check . && .venv/bin/mypy
	cd python/examples && MYPYPATH=.. ../.venv/bin/mypy --config-file ../pyproject.toml *.py harness
	cd python/benchmarks && MYPYPATH=.. ../.venv/bin/mypy --config-file ../pyproject.toml *.py
	cd tests && MYPYPATH=../python ../$(PYTHON_ENV)/bin/mypy --config-file ../python/pyproject.toml -p chaos

test-python: test-with-ray test-without-ray ## Tests of the Python package.

test-with-ray: python # About half of them: Ray takes long to start.
	cd python && .venv/bin/pytest $(TESTS_WITH_RAY)

test-without-ray: python
	cd python && .venv/bin/pytest $(TESTS_WITH_RAY:%=--ignore=%)

PINS_ENV := target/pins-env

test-pins: python $(PINS_ENV)/.installed ## Tests with the oldest Ray and torch that pyproject.toml allows. Needs PyPI and 2 GB; 20 minutes.
	cd python && PATH=$(abspath $(PYTHON_ENV)/bin):$$PATH ../$(PINS_ENV)/bin/python -m pytest $(TESTS_WITH_RAY) tests/torch

# Other packages are those of PYTHON_ENV.
$(PINS_ENV)/.installed: python/requirements-oldest.txt | python-env
	$(PYTHON_ENV)/bin/python -m venv --clear $(PINS_ENV)
	$(PINS_ENV)/bin/pip install --quiet --no-deps --requirement $<
	ls -d $(CURDIR)/python $(abspath $(PYTHON_ENV))/lib/python*/site-packages > \
		$$($(PINS_ENV)/bin/python -c 'import site; print(*site.getsitepackages())')/rest.pth
	touch $@

# Where what is not in the wheels of torch and Ray is, for example `make suites SUITES="--torch ~/pytorch --ray ~/ray"`.
SUITES ?=

suites: python ## Suites that others wrote, run with Hoplite, and docs/dev/suites.md. Ten minutes.
	cd python && .venv/bin/python suites/run.py $(SUITES)

# For example `make bench-python BENCH_PYTHON_ARGUMENTS="--rounds 5"`.
BENCH_PYTHON_ARGUMENTS ?=
COMPARED := --compare --parameters 16M --delay 0 --seconds 20

bench-python: dist python-env ## Hoplite beside Ray in Python: put, get, parameter servers. 16 GB of memory; ten minutes.
	cd python && $(DIST_FLAGS) .venv/bin/maturin develop --profile dist --quiet
	@cd python && export HOPLITE_BINARIES=$(CURDIR)/$(DIST) && set -x && \
	.venv/bin/python benchmarks/local.py $(BENCH_PYTHON_ARGUMENTS) && \
	.venv/bin/python examples/async_parameter_server.py $(COMPARED) && \
	.venv/bin/python examples/sync_parameter_server.py $(COMPARED)
