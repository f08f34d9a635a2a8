# One entry point for everything a developer runs. `make` alone lists the targets.
# A fresh clone needs Rust, a C compiler and make; `make deps` installs what the tests need beyond that.

PREFIX ?= /usr/local
DESTDIR ?=
CARGO ?= cargo
INSTALL ?= install
# Nothing is linked, so no libFuzzer is compiled, which would need C++.
FUZZ_LINT := CUSTOM_LIBFUZZER_PATH=$(abspath fuzz)/libnone.a
# Arguments for the program: make demo ARGS='--image disk.img --seed 7'.
ARGS ?=

TARGET_DIR := $(abspath $(or $(CARGO_TARGET_DIR),target))
BINARY := $(TARGET_DIR)/release/causeway
DOC_DIR = $(DESTDIR)$(PREFIX)/share/doc/causeway

# The long campaign of `make soak`: some hours on 2 cores, times SOAK_SCALE (0.1, 8, ...).
SOAK_SCALE ?= 1
SOAK_FIRST_SEED ?= 1

# Most tests of whole programs wait most of the time, so more of them run than there are cores; those that need a core
# or the whole machine wait for it (crates/campaign/src/gate.rs).
TEST_THREADS ?= $(shell echo $$((4 * $$(nproc))))
TESTS = CAUSEWAY_BIN=$(BINARY) RUST_TEST_THREADS=$(TEST_THREADS) $(CARGO) test --locked

.DEFAULT_GOAL := help
.PHONY: help build demo test test-crate seed guest profile soak deps install uninstall fmt lint bench bench-network \
	fuzz clean

help: ## list the targets
	@echo 'Causeway: PCI Express in software. Targets:'
	@sed -n 's/^\([a-z-]*\):[^#]*## \(.*\)/  make \1|\2/p' $(firstword $(MAKEFILE_LIST)) \
		| while IFS='|' read -r target what; do printf '%-20s%s\n' "  $$target" "$$what"; done

build: ## build the program in release mode
	$(CARGO) build --release --locked -p causeway

demo: build ## borrow a drive through loss, cut and slow links, killed cards, switches and a manager (ARGS='--image FILE')
	$(BINARY) demo $(ARGS)

# The program under test is the release build; the tests themselves keep debug assertions and overflow checks.
test: deps build ## all tests, whatever fails; the files with failures are listed at the end
	$(TESTS) --workspace --no-fail-fast

# What a target cannot do without: $(call needs,NAME,EXAMPLE).
needs = $(if $($(1)),,$(error which one? make $@ $(1)=$(2)))

test-crate: $(if $(filter campaign,$(CRATE)),build) ## the tests of one crate (CRATE=link, ARGS='part_of_a_name')
	$(call needs,CRATE,link)$(TESTS) -p $(if $(filter causeway,$(CRATE)),causeway,causeway-$(CRATE)) $(ARGS)

seed: ## one seed of the simulator (SEED=113 or SEED='fleet 113'; ARGS=trace prints each event)
	$(call needs,SEED,113)$(CARGO) run --release --locked -p causeway-sim --example seeds -- $(SEED) 1 $(ARGS)

guest: build ## one test with guests in QEMU (TEST=vm_slots, or a part of a test's name)
	$(call needs,TEST,vm_slots)$(TESTS) --workspace --test campaign -- --nocapture $(TEST)

profile: ## where the time of a bench case goes: perf and a flame graph (CASE=native-4k-read-qd32)
	$(call needs,CASE,native-4k-read-qd32)CARGO="$(CARGO)" scripts/profile.sh $(CASE) $(TARGET_DIR)/profile

soak: deps build ## the same campaigns with long counts, some hours (SOAK_SCALE, SOAK_FIRST_SEED)
	CAUSEWAY_BIN=$(BINARY) CARGO="$(CARGO)" SOAK_SCALE=$(SOAK_SCALE) CAUSEWAY_FIRST_SEED=$(SOAK_FIRST_SEED) \
		scripts/soak.sh $(TARGET_DIR)/soak

deps: ## install the tools the tests need (apt, as root), or name what is missing
	@scripts/deps.sh

# Built as the user who builds, installed by whoever may write to PREFIX: an existing build is not built again.
install: $(if $(wildcard $(BINARY)),,build) ## install program, documents and examples (PREFIX, DESTDIR)
	$(INSTALL) -d $(DESTDIR)$(PREFIX)/bin $(DOC_DIR)
	$(INSTALL) -m 755 $(BINARY) $(DESTDIR)$(PREFIX)/bin/causeway
	$(INSTALL) -m 644 LICENSE-APACHE LICENSE-MIT $(wildcard *.md) $(DOC_DIR)
	@for folder in docs examples; do \
		[ -d $$folder ] || continue; \
		find $$folder -type f | while read -r file; do \
			$(INSTALL) -D -m 644 "$$file" "$(DOC_DIR)/$$file" || exit 1; \
		done || exit 1; \
		echo "installed $$folder in $(DOC_DIR)/$$folder"; \
	done

uninstall: ## remove what install put there
	rm -f $(DESTDIR)$(PREFIX)/bin/causeway
	rm -rf $(DOC_DIR)

fmt: ## format the sources
	$(CARGO) fmt --all

lint: ## formatting and clippy, warnings denied
	$(CARGO) fmt --all --check
	$(CARGO) clippy --workspace --all-targets --locked -- -D warnings
	$(CARGO) fmt --manifest-path fuzz/Cargo.toml --check
	$(FUZZ_LINT) $(CARGO) clippy --manifest-path fuzz/Cargo.toml --target-dir $(TARGET_DIR) --locked -- -D warnings

bench: build ## measure, beside the peer on this machine (ARGS='CASE --rounds N')
	$(BINARY) bench $(ARGS)

bench-network: deps build ## rails, notices and their failures in network namespaces (ARGS='CASE --rounds N')
	CAUSEWAY_BIN=$(BINARY) $(CARGO) run --release --locked -q -p causeway-campaign --bin causeway-network-bench -- $(ARGS)

fuzz: ## a short run of every fuzz target (FUZZ_SECONDS each, 20)
	@CARGO="$(CARGO)" scripts/fuzz.sh

clean: ## remove what was built
	$(CARGO) clean
