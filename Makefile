# make help says what there is. Everything here runs as root or not, with cargo on the PATH or in ~/.cargo/bin.

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory

export PATH := $(or $(CARGO_HOME),$(HOME)/.cargo)/bin:$(PATH)

# Words for the command that runs: make run ARGS="--seconds 10", make bench FILTER=rings
ARGS ?=
FILTER ?=

.PHONY: help setup run test lint fmt bench evidence clean

help: ## say what there is
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-10s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: ## get what is needed to build, or say what to do
	@scripts/setup

run: setup ## build and run the demonstration (ARGS="..." goes to `osier demo`)
	cargo run --quiet --package osier -- demo $(ARGS)

test: setup ## every check and every test; what .ci/run runs
	cargo fmt --all --check
	cargo clippy --quiet --workspace --all-targets -- --deny warnings
	cargo xtask tidy
	@scripts/test-guests
	@scripts/test-models
	@scripts/test-workspace

lint: setup ## clippy and the source checker
	cargo clippy --workspace --all-targets -- --deny warnings
	cargo xtask tidy

fmt: setup ## format every source
	cargo fmt --all
	@if [ -f actors/Cargo.toml ]; then cargo fmt --all --manifest-path actors/Cargo.toml; fi

bench: setup ## the benchmarks (FILTER=text for some); results in target/bench/
	cargo xtask bench $(FILTER)

evidence: setup ## the long jobs of SPECIFICATION.md, resumable; results in docs/evidence/
	cargo xtask evidence $(FILTER)

clean: ## remove what was built
	rm -rf target actors/target
