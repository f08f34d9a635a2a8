#!/bin/bash
# Runs every fuzz target for FUZZ_SECONDS (20). cargo-fuzz and a nightly toolchain are not required for anything
# else, so they are named here and not installed.
set -euo pipefail

cd "$(dirname "$0")/.."
cargo=${CARGO:-cargo}
seconds=${FUZZ_SECONDS:-20}

if [[ ! -f fuzz/Cargo.toml ]]; then
    echo "fuzz: there is no fuzz/Cargo.toml in this tree, so nothing to run" >&2
    exit 1
fi
if ! $cargo fuzz --version >/dev/null 2>&1; then
    echo "fuzz: cargo-fuzz is missing; install it and a nightly toolchain, which libFuzzer needs:" >&2
    echo "    cargo install cargo-fuzz --locked && rustup toolchain install nightly" >&2
    exit 1
fi

mapfile -t targets < <($cargo fuzz list)
for target in "${targets[@]}"; do
    echo "fuzz: $target for $seconds s"
    $cargo +nightly fuzz run "$target" -- -max_total_time="$seconds" -rss_limit_mb=1024
done
echo "fuzz: ${#targets[@]} targets, no finding"
