#!/bin/bash
# Runs every fuzz target for FUZZ_SECONDS (20). Arguments, if any, name the targets. cargo-fuzz is not required for
# anything else, so it is named here and not installed. Stable Rust will do: the targets run without a sanitizer (the
# memory that unsafe code touches is checked by the tests), and RUSTC_BOOTSTRAP allows the flags for coverage.
set -euo pipefail

cd "$(dirname "$0")/.."
cargo=${CARGO:-cargo}
seconds=${FUZZ_SECONDS:-20}
export RUSTC_BOOTSTRAP=1

if ! $cargo fuzz --version >/dev/null 2>&1; then
    echo "fuzz: cargo-fuzz is missing; install it:" >&2
    echo "    cargo install cargo-fuzz --locked" >&2
    exit 1
fi

if (($#)); then targets=("$@"); else mapfile -t targets < <($cargo fuzz list); fi
$cargo fuzz build -s none
for target in "${targets[@]}"; do
    echo "fuzz: $target for $seconds s"
    corpus=(fuzz/corpus/"$target")
    mkdir -p "${corpus[0]}"
    [[ ! -d fuzz/seeds/$target ]] || corpus+=(fuzz/seeds/"$target")
    # Long inputs from the start: most targets take sequences of steps.
    if ! $cargo fuzz run -s none "$target" "${corpus[@]}" -- -max_total_time="$seconds" -rss_limit_mb=1024 \
        -len_control=0 -max_len=4096 -timeout=20 -verbosity=0 -print_final_stats=1; then
        echo "fuzz: $target has a finding; the lines above name its input and how to repeat it" >&2
        exit 1
    fi
done
echo "fuzz: ${#targets[@]} targets, no finding"
