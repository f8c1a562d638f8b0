# Everything a person or a CI job runs. `make help` lists it.
# Works on a fresh Debian-like machine with Rust (rustup), Python 3, Node/npm and Go: what else is
# needed is brought by `setup`, into target/ and .tools/ (both ignored by git).

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory

.PHONY: help setup setup-build setup-lint setup-platforms setup-release setup-demo demo build install fmt lint test testacc bench soak release check-platforms reproduce clean

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-15s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: setup-lint ## Bring protoc, both hosts (OpenTofu, Terraform) and the test servers; quick when present
	@tools/setup/run </dev/null

# A build needs no test servers, and a demo uses the host that is already there.
setup-build:
	@tools/setup/run system protoc </dev/null

setup-lint: setup-build
	@tools/setup/run crates deny </dev/null

# What compiles and links for all platforms.
setup-platforms: setup-build
	@tools/setup/run release </dev/null

# The step for emulators reads PLATFORMS and ALLOW_NOT_RUN, which make exports.
setup-release: setup-platforms
	@tools/setup/run signing emulators opentofu terraform </dev/null

setup-demo: setup-build
	@command -v tofu >/dev/null || command -v terraform >/dev/null || tools/setup/run opentofu </dev/null

demo: setup-demo ## Hold, boot and give back a simulated server with a real apply
	@cargo build --locked --workspace --bins
	@tools/demo/run

build: setup-build ## Build the provider (release)
	@cargo build --locked --release

install: build ## Build and put the provider into the local plugin folder
	@tools/install

fmt: ## Format the code
	@cargo fmt --all

lint: setup-lint ## Check the format, run clippy with every warning an error, check the language and what crates come from
	@cargo fmt --all --check
	@cargo clippy --locked --workspace --all-targets -- -D warnings
	@cargo test --locked --quiet --test language
	@tools/deny

# The test servers are brought while clippy compiles: alone, their set-up uses 1.3 of 2 cores.
test: ## Everything: format, clippy, unit, integration and acceptance tests on both hosts
	@$(MAKE) -j2 lint setup
	@tools/test --workspace

testacc: setup ## Only the acceptance tests
	@tools/test --test acceptance

bench: setup ## Run the benchmarks (docs/performance.md says what they show); BENCH="start refresh" names sections
	@tools/bench/run $(BENCH)

soak: setup ## The long tests: each store hammered for 10 minutes (STORE=postgres: one), 200 runs at once, large models, check-platforms
	@tools/soak

release: setup-release ## Build what registries want of a commit into target/release-archives, and run it; PLATFORMS="linux_arm64" names some
	@tools/release $(PLATFORMS)
	@tools/packaging/try "$${CARGO_TARGET_DIR:-target}/release-archives"

check-platforms: setup-platforms ## Compile the code for Windows and macOS, which other checks here leave out; part of soak
	@for platform in windows_amd64 darwin_arm64; do tools/packaging/build "$$platform" check; done

reproduce: setup-platforms ## Build one platform of HEAD twice at two paths and compare the bytes; PLATFORM=linux_amd64
	@tools/packaging/reproduce $(PLATFORM)

clean: ## Remove everything that was built or brought
	@cargo clean
	@rm -rf .tools tools/protoc/target
