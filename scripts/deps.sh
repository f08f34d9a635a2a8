#!/bin/bash
# Installs the tools that the tests drive Causeway with: only those that are missing, with apt, as root.
# Anyone else is told what is missing and how to get it, and the script fails: tests are never skipped for it.
set -euo pipefail

PATH=$PATH:/usr/local/sbin:/usr/sbin:/sbin

# command, Debian package, what it is for
tools=(
    "fio fio             load with verification over NBD"
    "nbdcopy libnbd-bin  copies images over NBD"
    "nbdinfo libnbd-bin  asks what an NBD server offers"
    "nbdkit nbdkit       the peer in benchmarks, and a server to test our client with"
    "qemu-img qemu-utils images over NBD"
    "qemu-nbd qemu-utils a second server to test our client with"
    "mke2fs e2fsprogs    the demo's file system image"
    "e2fsck e2fsprogs    checks that image afterwards"
    "ip iproute2         network namespaces and their links"
    "unshare util-linux  network and mount namespaces"
    "nsenter util-linux  runs programs inside them"
    "mount mount         private folders inside them"
    "fusermount3 fuse3   a backing that loses what was not synchronised"
    "setpriv util-linux  ends guests with the test that started them"
    "sha256sum coreutils compares images"
    "openssl openssl     the certificate of the peer in benchmarks with TLS"
    "virsh libvirt-clients  virtual machines that libvirt runs; no daemon"
    "virt-qemu-run libvirt-daemon-driver-qemu  the part of libvirt that runs QEMU"
    "python3 python3     small helpers of the tests"
    "tshark tshark       reads what was captured, with our dissector"
    "nft nftables        loses packets of the tests' own networks"
)

packages=()
for entry in "${tools[@]}"; do
    read -r tool package purpose <<<"$entry"
    command -v "$tool" >/dev/null 2>&1 && continue
    echo "deps: $tool is missing (package $package: $purpose)" >&2
    [[ " ${packages[*]-} " == *" $package "* ]] || packages+=("$package")
done

if ((${#packages[@]})); then
    install="apt-get install -y --no-install-recommends ${packages[*]}"
    if ! command -v apt-get >/dev/null 2>&1; then
        echo "deps: no apt-get here; install the tools named above with this system's package manager" >&2
        exit 1
    fi
    if ((EUID != 0)); then
        echo "deps: not root; run this as root and start again:" >&2
        echo "    apt-get update && $install" >&2
        exit 1
    fi
    export DEBIAN_FRONTEND=noninteractive
    apt-get -q -o DPkg::Lock::Timeout=300 update
    # The words of $install are meant to be split.
    # shellcheck disable=SC2086
    ${install/apt-get/apt-get -q -o DPkg::Lock::Timeout=300}
    hash -r
fi

for entry in "${tools[@]}"; do
    read -r tool package _ <<<"$entry"
    command -v "$tool" >/dev/null 2>&1 || {
        echo "deps: $tool is still missing although package $package is installed" >&2
        exit 1
    }
done
if ! fio --enghelp 2>/dev/null | grep -qw nbd; then
    echo "deps: this fio was built without the nbd engine; install one built with libnbd (Debian's is)" >&2
    exit 1
fi
# A program of Python that asks a manager whatever its description says: a virtual environment, nothing of the system.
if ! python3 -c 'import ensurepip' 2>/dev/null; then
    if ((EUID == 0)) && command -v apt-get >/dev/null 2>&1; then
        apt-get -q -o DPkg::Lock::Timeout=300 update
        DEBIAN_FRONTEND=noninteractive apt-get -q -o DPkg::Lock::Timeout=300 install -y --no-install-recommends \
            python3-venv
    else
        echo "deps: python3 has no ensurepip; install python3-venv and start again" >&2
        exit 1
    fi
fi
"$(dirname "$0")/schemathesis.sh" >/dev/null
# QEMU and a kernel for tests with real guests, fetched without root. Where they cannot be had, those tests say that they
# are skipped; with CI=true that would be a failure, so it is one here.
if ! "$(dirname "$0")/../tests/guest/fetch.sh"; then
    [[ ${CI-} != true ]] || exit 1
    echo "deps: no guests on this machine, see above; their tests will be skipped" >&2
fi
echo "deps: all ${#tools[@]} tools are here"
