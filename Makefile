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

# The long campaign of `make soak`: about an hour on 2 cores, times SOAK_SCALE (0.1, 8, ...).
SOAK_SCALE ?= 1
SOAK_FIRST_SEED ?= 1

.DEFAULT_GOAL := help
.PHONY: help build demo test soak deps install uninstall fmt lint bench fuzz clean

help: ## list the targets
	@echo 'Causeway: PCI Express in software. Targets:'
	@sed -n 's/^\([a-z]*\):[^#]*## \(.*\)/  make \1|\2/p' $(firstword $(MAKEFILE_LIST)) \
		| while IFS='|' read -r target what; do printf '%-20s%s\n' "  $$target" "$$what"; done

build: ## build the program in release mode
	$(CARGO) build --release --locked -p causeway

demo: build ## borrow a drive through loss, a rail cut and killed cards (ARGS='--image FILE')
	$(BINARY) demo $(ARGS)

# The program under test is the release build; the tests themselves keep debug assertions and overflow checks.
test: deps build ## all tests, whatever fails; what failed is listed at the end
	CAUSEWAY_BIN=$(BINARY) $(CARGO) test --workspace --locked --no-fail-fast

soak: deps build ## the same campaigns with long counts, about an hour (SOAK_SCALE, SOAK_FIRST_SEED)
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

fuzz: ## a short run of every fuzz target (FUZZ_SECONDS each, 20)
	@CARGO="$(CARGO)" scripts/fuzz.sh

clean: ## remove what was built
	$(CARGO) clean
