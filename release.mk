# What a release consists of. .github/workflows only calls these targets; docs/releasing.md says how one is made.

# renovate: crate cargo-deb
DEB_VERSION := 3.8.0
# renovate: crate cargo-cyclonedx
SBOM_VERSION := 0.5.9
# renovate: pypi check-jsonschema
CHECK_JSONSCHEMA_VERSION := 0.39.0
# renovate: pypi zizmor
ZIZMOR_VERSION := 1.32.0
# renovate: pypi cyclonedx-python-lib
CYCLONEDX_VERSION := 11.12.0

version := $(shell sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -n 1)
architecture := $(shell uname -m)
debian_architecture := $(patsubst aarch64,arm64,$(patsubst x86_64,amd64,$(architecture)))
artifacts := target/artifacts
# names and digests of what `make publish` pushed
published := target/published
registry := $(tools)/docker-registry
cargo_deb := $(tools)/cargo-deb-$(DEB_VERSION)
cargo_cyclonedx := $(tools)/cargo-cyclonedx-$(SBOM_VERSION)
linters := $(tools)/linters-$(CHECK_JSONSCHEMA_VERSION)-$(ZIZMOR_VERSION)
sbom_validator := $(tools)/cyclonedx-$(CYCLONEDX_VERSION)

# the C libraries that `make dist` builds for: musl where Rust has its target
has_musl := $(wildcard $(shell rustc --print target-libdir --target $(architecture)-unknown-linux-musl 2> /dev/null))
DIST_LIBC ?= gnu $(if $(has_musl),musl)
# the image's name without its tag, as users will pull it
IMAGE ?= weir
# `docker save` archives of one architecture each
IMAGES ?= $(artifacts)/parts/weir-$(version)-$(debian_architecture).tar
dist_program := target/$(architecture)-unknown-linux-gnu/dist/weir
# times in archives, so that the same commit makes the same bytes
export SOURCE_DATE_EPOCH ?= $(shell git log -1 --format=%ct 2> /dev/null || echo 0)

.PHONY: publish man dist deb sbom image package checksums release-check release-notes release-dry-run lint-workflows release-tools

man: ## write man pages to target/man
	$(CARGO) run --locked --quiet -- man target/man
	@ls target/man/*.1

dist: ## build archives of the program for this machine's architecture (several minutes)
	@mkdir -p $(artifacts)
	scripts/dist.sh $(version) $(artifacts) $(foreach libc,$(DIST_LIBC),$(architecture)-unknown-linux-$(libc))
	$(if $(has_musl),,@echo "without musl: rustup target add $(architecture)-unknown-linux-musl, and install musl-tools")

# DEB_PROGRAM packages a program that exists already
deb: $(cargo_deb) $(if $(DEB_PROGRAM),,$(dist_program)) ## build the Debian package, with a systemd unit
	@mkdir -p $(artifacts)
	scripts/stage.sh $(or $(DEB_PROGRAM),$(dist_program)) target/staged
	$(cargo_deb) --locked --no-build --no-strip --output $(artifacts)/

$(dist_program):
	scripts/dist.sh $(version) $(artifacts) $(architecture)-unknown-linux-gnu

sbom: $(cargo_cyclonedx) $(sbom_validator) ## write and validate the list of all dependencies (CycloneDX)
	@mkdir -p $(artifacts)
	scripts/sbom.sh $(cargo_cyclonedx) $(venv) $(artifacts)/weir-$(version).cdx.json

image: $(dist_program) ## save the image of this machine's architecture
	@mkdir -p $(artifacts)/parts
	scripts/image.sh $(dist_program) weir:$(version) $(artifacts)/parts/weir-$(version)-$(debian_architecture).tar

# IMAGES names the archives of several architectures, which become one image
package: $(if $(filter command line environment,$(origin IMAGES)),,image) $(helm) ## package the image, the chart with its digest, and the crate
	@mkdir -p $(artifacts)
	scripts/oci-image.py weir:$(version) $(artifacts)/weir-$(version)-image.tar $(IMAGES) > target/image-digest
	scripts/release.py chart "$$(cat target/image-digest)" $(IMAGE) target/chart/weir
	$(helm) lint --strict target/chart/weir
	$(helm) package target/chart/weir --destination target/chart
	mv target/chart/weir-$(version).tgz $(artifacts)/weir-$(version)-chart.tgz
	$(CARGO) package --locked --workspace --exclude weir-benches --exclude weir-harness --exclude weir-testing $(CARGO_PACKAGE_FLAGS)
	cp target/package/weir-$(version).crate target/package/weir-*-$(version).crate $(artifacts)/

# CHARTS is the repository of charts, such as registry.example.com/charts. Log in with skopeo and helm before.
publish: $(helm) skopeo ## push the image and the chart that `make package` made to IMAGE and CHARTS
	scripts/publish.sh $(helm) $(version) $(IMAGE) $(CHARTS) $(artifacts) $(published)

checksums:
	cd $(artifacts) && find . -maxdepth 1 -type f ! -name SHA256SUMS -printf '%P\n' | LC_ALL=C sort | xargs sha256sum > SHA256SUMS

# TAG is the tag of the release
release-check: ## check that all files, and the tag TAG, agree about the version
	scripts/release.py check $(TAG)

release-notes: ## print the changes of this version
	@scripts/release.py notes $(TAG)

release-dry-run: release-tools $(helm) ## build all that a release of the last commit has, from a clean clone (5 to 15 minutes)
	scripts/release-dry-run.sh

lint-workflows: $(linters) ## check the workflows and the other files of .github
	scripts/lint-workflows.sh $(venv)

# === tools ===

release-tools: $(cargo_deb) $(cargo_cyclonedx) $(linters) $(sbom_validator) $(registry) skopeo systemd-analyze

skopeo:
	@command -v skopeo > /dev/null || scripts/apt-install.sh skopeo

# The registry that `make publish` is tested with: not installed, since Debian would start it as a service.
$(registry):
	mkdir -p $(tools)
	scripts/deb-tool.sh $(tools)/docker-registry-deb docker-registry
	ln -sfn docker-registry-deb/usr/bin/docker-registry $@

# checks the systemd unit
systemd-analyze:
	@command -v systemd-analyze > /dev/null || scripts/apt-install.sh systemd

# unoptimized, because they only pack files
$(cargo_deb):
	CARGO_PROFILE_RELEASE_OPT_LEVEL=0 $(CARGO) install --locked --root $(tools) cargo-deb@$(DEB_VERSION)
	ln -sf bin/cargo-deb $@

$(cargo_cyclonedx):
	CARGO_PROFILE_RELEASE_OPT_LEVEL=0 $(CARGO) install --locked --root $(tools) cargo-cyclonedx@$(SBOM_VERSION)
	ln -sf bin/cargo-cyclonedx $@

$(linters): | $(venv)/bin/pip
	$(venv)/bin/python3 -m pip install --quiet --disable-pip-version-check \
		check-jsonschema==$(CHECK_JSONSCHEMA_VERSION) zizmor==$(ZIZMOR_VERSION)
	touch $@

$(sbom_validator): | $(venv)/bin/pip
	$(venv)/bin/python3 -m pip install --quiet --disable-pip-version-check 'cyclonedx-python-lib[json-validation]==$(CYCLONEDX_VERSION)'
	touch $@
