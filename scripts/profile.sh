#!/bin/bash
# Where the processors spend a case of `causeway bench`: perf over all of its processes, and a flame graph.
# Usage: profile.sh CASE DIR. The program is built with frame pointers in DIR; DIR/CASE.svg is for a browser,
# DIR/CASE.data for `perf report -i`. perf is not required for anything else, so it is named here and not installed.
set -euo pipefail

cd "$(dirname "$0")/.."
case=${1:?usage: profile.sh CASE DIR}
out=${2:?usage: profile.sh CASE DIR}
# Enough for thousands of samples; a profile needs no statistics over rounds.
rounds=2

if ! command -v perf >/dev/null; then
    echo "profile: perf is missing; install it (Debian: apt-get install linux-perf)" >&2
    exit 1
fi
RUSTFLAGS="-C force-frame-pointers=yes" ${CARGO:-cargo} build --release --locked -p causeway --target-dir "$out"
data=$out/$case.data
# The clock works in virtual machines that show no counters. Kernel frames need root or perf_event_paranoid of 1.
perf record --event cpu-clock --freq 1999 -g --output "$data" -- \
    "$out/release/causeway" bench "$case" --rounds "$rounds" --out "$out/$case"
# Inlined functions would be looked up one sample after the other, for minutes.
perf script --input "$data" --no-inline --fields comm,ip,sym 2>/dev/null \
    | scripts/flamegraph.py "$case" >"$out/$case.svg"
echo "profile: $out/$case.svg; or: perf report -i $data"
