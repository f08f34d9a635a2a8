#!/bin/bash
# The long campaign: the tests of whole programs with long counts, the simulator over many seeds, the canaries. Some
# hours on 2 cores, times SOAK_SCALE.
# Usage: soak.sh REPORT_DIR. Writes REPORT_DIR/report.txt (commit, machine, seeds, outcome) and the logs beside it.
# Tests report by printing "soak: " and what they have to say; that is copied into the report.
set -euo pipefail

cd "$(dirname "$0")/.."
out=${1:?usage: soak.sh REPORT_DIR}
: "${CAUSEWAY_BIN:?name the causeway program under test}"
export CAUSEWAY_SOAK=1 SOAK_SCALE=${SOAK_SCALE:-1} CAUSEWAY_FIRST_SEED=${CAUSEWAY_FIRST_SEED:-1}
# Seeds that the simulator runs through at scale 1.
sim_seeds=20000

if [[ ! $SOAK_SCALE =~ ^[0-9]+(\.[0-9]+)?$ || ! $CAUSEWAY_FIRST_SEED =~ ^[0-9]+$ ]]; then
    echo "soak: SOAK_SCALE is a number such as 1, 0.1 or 8, the first seed a whole one;" \
        "these are \`$SOAK_SCALE\` and \`$CAUSEWAY_FIRST_SEED\`" >&2
    exit 2
fi
first=$CAUSEWAY_FIRST_SEED
# times COUNT: so many at this scale.
times() { awk -v scale="$SOAK_SCALE" -v count="$1" 'BEGIN { n = int(scale * count); print (n < 1 ? 1 : n) }'; }
seeds=$(times "$sim_seeds")
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
    # The test runner may have begun the line with the test's name.
    grep -ho 'soak: .*' "$out/$name.log" >>"$report" || true
    echo "$name: $outcome in $((SECONDS - start)) s ($*)" | tee -a "$report"
}

{
    echo "commit:  $(commit)"
    echo "program: $("$CAUSEWAY_BIN" --version), sha256 $(sha256sum "$CAUSEWAY_BIN" | cut -c 1-16)"
    echo "date:    $(date -u +%Y-%m-%dT%H:%M:%SZ)"
    echo "machine: $(uname -srm), $(nproc) cores"
    echo "counts:  scale $SOAK_SCALE; campaigns with seed $first, the simulator with seeds $first to $((first + seeds - 1))"
} >"$report"

# What cannot be shown here fails, and is not skipped.
export CI=true

run campaigns "${CARGO:-cargo}" test -p causeway-campaign --locked --no-fail-fast -- --nocapture --test-threads 1
# Those of two nodes on two machines, over the other media.
for medium in ethernet switch; do
    run "campaigns-$medium" env CAUSEWAY_MEDIUM=$medium SOAK_SCALE="$(awk -v scale="$SOAK_SCALE" 'BEGIN { print scale / 4 }')" \
        "${CARGO:-cargo}" test -p causeway-campaign --locked --no-fail-fast --test campaign -- --nocapture --test-threads 1 \
        s1_cards_killed t1_killed_cards_over t3_nothing_flushed t3_a_flush_sent t3_an_orderly t5_killed_early \
        vm_slots::t7 vm_slots::w1 vm_resets vm_database
done
run sim "$CAUSEWAY_BIN" sim --seed "$first" --count "$seeds"
# Fleets of up to 16 nodes, crowds of loans, nodes that lie, trees of switches: ten times what each run has.
run worlds env CAUSEWAY_FLEET="$(times 600)" CAUSEWAY_CROWDS="$(times 40)" CAUSEWAY_ROGUES="$(times 600)" \
    CAUSEWAY_MANAGED="$(times 600)" CAUSEWAY_LIARS="$(times 600)" CAUSEWAY_TREES="$(times 1500)" \
    "${CARGO:-cargo}" test -p causeway-sim --test sim --locked --no-fail-fast -- --nocapture
# A manager, its nodes and clients: half of the seeds in each of two tests.
run manager env FIRST="$first" SEEDS="$(times 10000)" \
    "${CARGO:-cargo}" test -p causeway-manager --locked --no-fail-fast -- --nocapture seed_finds_anything
# Two cards, or three, of which a fuzzer is one and has the keys.
run fuzz env FUZZ_SECONDS="$(times 600)" scripts/fuzz.sh lying_borrower lying_lender lying_lender_of_slot rogue
# A rail that loses or takes long takes nothing from the good one.
run rails "${CARGO:-cargo}" run --release --locked -q -p causeway-campaign --bin causeway-network-bench -- --check \
    one-rail-loses-5-percent one-rail-takes-20-ms
run canaries "$CAUSEWAY_BIN" sim --seed "$first" --canaries

echo "time:    $SECONDS s" >>"$report"
if ((status)); then echo "outcome: FAILED" >>"$report"; else echo "outcome: passed" >>"$report"; fi
cat "$report"
echo "report: $report"
exit "$status"
