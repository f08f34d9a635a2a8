#!/bin/bash
# The long campaign: every test with the counts that `make soak` sets, the simulator over many seeds, the canaries.
# Usage: soak.sh REPORT_DIR. Writes REPORT_DIR/report.txt (commit, machine, seeds, outcome) and the logs beside it.
# Tests report by printing lines that start with "soak: "; they are copied into the report.
set -euo pipefail

cd "$(dirname "$0")/.."
out=${1:?usage: soak.sh REPORT_DIR}
: "${CAUSEWAY_BIN:?name the causeway program under test}"
kills=${CAUSEWAY_KILLS:?} seeds=${CAUSEWAY_SEEDS:?} first=${CAUSEWAY_FIRST_SEED:-1}
mkdir -p "$out"
report=$out/report.txt
status=0

commit() {
    local name
    name=$(git rev-parse HEAD 2>/dev/null) || { echo "unknown (no git here)"; return; }
    [[ -z $(git status --porcelain 2>/dev/null) ]] || name+=" with uncommitted changes"
    echo "$name"
}

# run NAME COMMAND...: runs it with its own log, and notes outcome and duration in the report.
run() {
    local name=$1 start=$SECONDS outcome=passed
    shift
    echo "soak: $name: $*"
    "$@" 2>&1 | tee "$out/$name.log" || { outcome=FAILED; status=1; }
    grep -h '^soak: ' "$out/$name.log" >>"$report" || true
    echo "$name: $outcome in $((SECONDS - start)) s ($*)" | tee -a "$report"
}

{
    echo "commit:  $(commit)"
    echo "date:    $(date -u +%Y-%m-%dT%H:%M:%SZ)"
    echo "machine: $(uname -srm), $(nproc) cores"
    echo "counts:  $kills kills a campaign, seeds $first to $((first + seeds - 1))"
} >"$report"

run tests "${CARGO:-cargo}" test --workspace --locked --no-fail-fast -- --nocapture
run sim "$CAUSEWAY_BIN" sim --seed "$first" --count "$seeds"
run canaries "$CAUSEWAY_BIN" sim --seed "$first" --canaries

if ((status)); then echo "outcome: FAILED" >>"$report"; else echo "outcome: passed" >>"$report"; fi
cat "$report"
echo "report: $report"
exit "$status"
