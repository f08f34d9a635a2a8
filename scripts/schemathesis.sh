#!/bin/bash
# Gets schemathesis, which asks a manager what its description says can be asked (crates/campaign/tests/campaign/api.rs),
# and prints the path of its program. It is in a virtual environment of Python, with the versions that
# schemathesis.txt pins, in $CAUSEWAY_SCHEMATHESIS, else causeway/schemathesis in $XDG_CACHE_HOME or ~/.cache: a folder
# for this state of both files and this Python, and what is there is not fetched again. `rm -r` gets rid of it.
set -euo pipefail

fail() { echo "schemathesis: $*" >&2; exit 1; }

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
cache=${CAUSEWAY_SCHEMATHESIS:-${XDG_CACHE_HOME:-${HOME:?HOME is not set; name a folder in CAUSEWAY_SCHEMATHESIS}/.cache}/causeway/schemathesis}
python3 -c 'import sys; sys.exit(sys.version_info < (3, 11))' || fail "python3 is missing, or older than 3.11"
recipe=$({ cat "${BASH_SOURCE[0]}" "$here/schemathesis.txt"; python3 -V; } | sha256sum | cut -c 1-16)
where=$cache/$recipe
program=$where/bin/schemathesis

# Programs in a virtual environment name its folder, so it is made where it stays, and is there when it is marked so.
mkdir -p "$cache"
exec 9>"$cache/lock"
flock 9
if [[ ! -e $where/complete ]]; then
    rm -rf "$where"
    python3 -m venv "$where" >&2 || fail "python3 makes no virtual environment: install python3-venv"
    "$where/bin/pip" --quiet --disable-pip-version-check install --no-deps -r "$here/schemathesis.txt" >&2 ||
        fail "pip cannot fetch what scripts/schemathesis.txt names"
    "$program" --version >&2 || fail "what was installed in $where does not run"
    touch "$where/complete"
fi
echo "$program"
