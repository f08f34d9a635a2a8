#!/bin/bash
# Gets what tests with real guests need, without root and without changing the system: a QEMU with a vfio-user client (10.1
# or later), its firmware, a Linux kernel, programs for inside the guest, and GRUB for drives to boot from. All are Debian
# packages: apt fetches and verifies them with lists and a package status of its own, from the mirror that this system's
# own sources name, and nothing is installed.
#
# Usage: fetch.sh [--where | --check]
#   --where   prints the folder, whether or not anything is in it
#   --check   fails unless everything is there already; fetches nothing
# The folder is one for this state of the script, in $CAUSEWAY_GUEST, else causeway/guest in $XDG_CACHE_HOME or ~/.cache;
# what is there is not fetched again. `rm -r` gets rid of everything. In it:
#   bin/           qemu-system-x86_64, grub-mkimage, mtools, mke2fs: scripts that start what lies in host/
#   host/          those programs, their libraries and loader, firmware, GRUB's modules
#   kernel/        vmlinuz, and modules for it
#   root/          the guest's programs and their libraries: initramfs.sh makes an initramfs of them
#   packages.txt   each package and its version
set -euo pipefail
export LC_ALL=C
PATH=$PATH:/usr/local/sbin:/usr/sbin:/sbin

release=trixie
triplet=x86_64-linux-gnu
host_packages=(qemu-system-x86 seabios ovmf)
boot_packages=(grub-common grub-pc-bin grub-efi-amd64-bin mtools e2fsprogs)
guest_packages=(linux-image-amd64 kmod busybox-static nvme-cli fio e2fsprogs kexec-tools pciutils mdadm sqlite3)
host_programs=(qemu-system-x86_64 grub-mkimage mtools mke2fs)
guest_programs=(busybox nvme fio mke2fs e2fsck kexec lspci setpci mdadm sqlite3)
firmware=(
    seabios/bios-256k.bin qemu/linuxboot_dma.bin qemu/pvh.bin qemu/kvmvapic.bin
    OVMF/OVMF_CODE_4M.fd OVMF/OVMF_VARS_4M.fd
)
# With what they depend on.
modules=(nvme vfio-pci vfio_iommu_type1 raid1 ext4 crc32c_generic crc32c_intel vfat nls_cp437 nls_ascii loop virtio_net virtio_blk e1000e igb)

say() { echo "guest: $*" >&2; }
fail() { say "$*"; exit 1; }

cache=${CAUSEWAY_GUEST:-${XDG_CACHE_HOME:-${HOME:?HOME is not set; name a folder in CAUSEWAY_GUEST}/.cache}/causeway/guest}
recipe=$(sha256sum "${BASH_SOURCE[0]}" | cut -c 1-16)
where=$cache/$recipe

case ${1-} in
--where) echo "$where"; exit 0 ;;
--check) [[ -d $where ]] || fail "QEMU and kernel are not in $where; run tests/guest/fetch.sh"; exit 0 ;;
"") ;;
*) fail "unknown argument \`$1\`; there are --where and --check" ;;
esac

# Nothing of the system's apt is written to; its proxy settings and the like hold.
configure_apt() {
    local keyring=/usr/share/keyrings/debian-archive-keyring.gpg mirror
    mirror=$(find_mirror)
    [[ -r $keyring ]] || fail "$keyring is missing: install debian-archive-keyring, which apt verifies with"
    say "Debian $release and its backports from $mirror"
    mkdir -p "$work"/apt/{lists/partial,archives/partial,empty}
    : >"$work/apt/status"
    cat >"$work/apt/debian.sources" <<-END
	Types: deb
	URIs: $mirror
	Suites: $release $release-backports
	Components: main
	Architectures: amd64
	Signed-By: $keyring
	END
    cat >"$work/apt/apt.conf" <<-END
	#clear APT::Update::Pre-Invoke;
	#clear APT::Update::Post-Invoke;
	#clear APT::Update::Post-Invoke-Success;
	#clear APT::Default-Release;
	#clear DPkg::Pre-Install-Pkgs;
	#clear DPkg::Post-Invoke;
	APT::Architecture "amd64";
	APT::Architectures:: "amd64";
	APT::Install-Recommends "false";
	APT::Update::Error-Mode "any";
	APT::Sandbox::User "$(id -un)";
	Acquire::Languages "none";
	Acquire::Retries "3";
	Acquire::IndexTargets::deb::DEP-11::DefaultEnabled "false";
	Acquire::IndexTargets::deb::Contents-deb::DefaultEnabled "false";
	Dir::State::status "$work/apt/status";
	Dir::State::lists "$work/apt/lists";
	Dir::Cache "$work/apt";
	Dir::Cache::archives "$work/apt/archives";
	Dir::Etc::sourcelist "$work/apt/debian.sources";
	Dir::Etc::sourceparts "$work/apt/empty";
	Dir::Etc::preferences "/dev/null";
	Dir::Etc::preferencesparts "$work/apt/empty";
	END
}

# The first Debian mirror among the system's own sources that is not the one of security updates.
find_mirror() {
    local targets mirror
    # Words in $( ) are apt's own, for apt. It need not have fetched its lists yet.
    # shellcheck disable=SC2016
    targets=$(apt-get indextargets --no-release-info --format '$(REPO_URI) $(COMPONENT)' 'Created-By: Packages') || true
    mirror=$(awk '$1 ~ /\/debian(\.list)?(\/|$)/ && $2 == "main" { print $1; exit }' <<<"$targets")
    [[ -n $mirror ]] || fail "no Debian mirror among this system's apt sources (apt-get indextargets lists none)"
    echo "$mirror"
}

run_apt() {
    apt-get -q -y -c "$work/apt/apt.conf" "$@" >"$work/apt.log" 2>&1 || {
        tail -n 20 "$work/apt.log" >&2
        fail "apt-get $* failed, see above"
    }
}

# download NAME SUITE PACKAGE...: packages and what they depend on, unpacked into $work/NAME.
download() {
    local name=$1 suite=$2 package tree=$work/$1 start=$SECONDS
    shift 2
    rm -f "$work"/apt/archives/*.deb
    run_apt -t "$suite" --download-only install "$@"
    say "$name: $(find "$work/apt/archives" -name '*.deb' | wc -l) packages," \
        "$(du -cm "$work"/apt/archives/*.deb | tail -n 1 | cut -f 1) MB in $((SECONDS - start)) s"
    mkdir -p "$tree/usr"/{bin,sbin,lib,lib64}
    for package in bin sbin lib lib64; do ln -s "usr/$package" "$tree/$package"; done
    for package in "$work"/apt/archives/*.deb; do
        dpkg-deb --fsys-tarfile "$package" | tar -x -C "$tree" --keep-directory-symlink --no-same-owner \
            --exclude=./usr/share/doc --exclude=./usr/share/man --exclude=./usr/share/locale
        # shellcheck disable=SC2016
        dpkg-deb --show --showformat '${Package} ${Version}\n' "$package" >>"$work/packages.txt"
    done
}

# The libraries that a program in TREE is linked with, as paths in TREE; the loader is the first.
libraries_of() {
    local tree=$1 program=$2 loader=$1/usr/lib64/ld-linux-x86-64.so.2 lib=$1/usr/lib/$triplet list
    if list=$("$loader" --verify "$program" 2>&1); then
        list=$("$loader" --inhibit-cache --library-path "$lib:$lib/ceph:$lib/systemd" --list "$program")
        echo "$loader"
        # The loader may stand among them once more.
        awk -v tree="$tree/" -v program="$program" '
            /ld-linux-x86-64/ { next }
            $2 == "=>" && index($3, tree) == 1 { print $3; next }
            $2 == "=>" { print "guest: " program " needs " $1 ": not fetched" >"/dev/stderr"; bad = 1 }
            END { exit bad }' <<<"$list"
    fi # Else it is linked statically.
}

program_in() {
    local tree=$1 name=$2 folder
    for folder in usr/bin usr/sbin; do
        [[ ! -x $tree/$folder/$name ]] || { echo "$tree/$folder/$name"; return; }
    done
    fail "program $name is in none of the packages"
}

install_host() {
    local program path blob tree=$work/host-tree
    mkdir -p "$new"/bin "$new"/host/{bin,lib,firmware}
    for program in "${host_programs[@]}"; do
        path=$(program_in "$tree" "$program")
        libraries_of "$tree" "$path" >"$work/libraries"
        xargs -r cp -L -t "$new/host/lib" <"$work/libraries"
        cp -L "$path" "$new/host/bin/"
        cat >"$new/bin/$program" <<-'END'
	#!/bin/sh
	# Starts the program of this name with the libraries that it was fetched with.
	here=$(dirname "$(readlink -f "$0")")/../host
	# Not the system's modules: they are of another version.
	export QEMU_MODULE_DIR="$here/modules"
	case $0 in */qemu-system-*) set -- -L "$here/firmware" "$@" ;; esac
	exec "$here/lib/ld-linux-x86-64.so.2" --inhibit-cache --library-path "$here/lib" "$here/bin/$(basename "$0")" "$@"
	END
        chmod +x "$new/bin/$program"
    done
    for blob in "${firmware[@]}"; do cp -L "$tree/usr/share/$blob" "$new/host/firmware/"; done
    cp -rL "$tree/usr/lib/grub" "$new/host/grub"
    cp -L "$tree/etc/mke2fs.conf" "$new/host/"
}

install_guest() {
    local program path library tree=$work/guest-tree root=$new/root
    mkdir -p "$root"/usr/{bin,lib,lib64,share/misc} "$root/etc"
    for program in bin lib lib64; do ln -s "usr/$program" "$root/$program"; done
    ln -s usr/bin "$root/sbin"
    ln -s bin "$root/usr/sbin"
    for program in "${guest_programs[@]}"; do
        path=$(program_in "$tree" "$program")
        cp -L "$path" "$root/usr/bin/"
        libraries_of "$tree" "$path" >"$work/libraries"
        while read -r library; do
            case $library in
            */ld-linux-*) cp -L "$library" "$root/usr/lib64/" ;;
            *) cp -L "$library" "$root/usr/lib/" ;;
            esac
        done <"$work/libraries"
    done
    # Loaded by name at run time: pthread_cancel needs it.
    cp -L "$tree/usr/lib/$triplet/libgcc_s.so.1" "$root/usr/lib/"
    ln -s mke2fs "$root/usr/bin/mkfs.ext4"
    ln -s e2fsck "$root/usr/bin/fsck.ext4"
    cp -L "$tree/etc/mke2fs.conf" "$root/etc/"
    # Names of classes; those of vendors come as numbers.
    sed -n '/^C 00/,$p' "$tree/usr/share/misc/pci.ids" >"$root/usr/share/misc/pci.ids"
}

# The modules named above and what they depend on, not compressed: the guest's processor is slow, and so the list that
# modprobe reads is made anew for them.
install_kernel() {
    local tree=$work/guest-tree lib=$work/guest-tree/usr/lib/$triplet kernel version path
    local depmod=("$tree/usr/lib64/ld-linux-x86-64.so.2" --inhibit-cache --library-path "$lib" --argv0 depmod)
    depmod+=("$(program_in "$tree" kmod)")
    kernel=$(find "$tree/boot" -name 'vmlinuz-*' | head -n 1)
    [[ -n $kernel ]] || fail "the kernel's package has no vmlinuz"
    version=${kernel##*/vmlinuz-}
    mkdir -p "$new/kernel/modules/lib/modules/$version"
    cp "$kernel" "$new/kernel/vmlinuz"
    "${depmod[@]}" -b "$tree" "$version"
    for path in "${modules[@]}"; do closure_of "$tree/usr/lib/modules/$version" "$path"; done | sort -u >"$work/modules"
    while read -r path; do
        mkdir -p "$new/kernel/modules/lib/modules/$version/${path%/*}"
        xz -dc "$tree/usr/lib/modules/$version/$path" >"$new/kernel/modules/lib/modules/$version/${path%.xz}"
    done <"$work/modules"
    cp "$tree/usr/lib/modules/$version"/modules.{builtin,builtin.modinfo,order} "$new/kernel/modules/lib/modules/$version/"
    "${depmod[@]}" -b "$new/kernel/modules" "$version"
    rm -f "$new/kernel/modules/lib/modules/$version"/*.bin
    say "kernel $version with $(wc -l <"$work/modules") modules"
}

# closure_of FOLDER MODULE: its file and those of all that it depends on; nothing if it is built in.
closure_of() {
    # Names of files have either - or _ where names of modules have _.
    local file
    file=/${2//[-_]/[-_]}'\.ko'
    if grep -q "$file$" "$1/modules.builtin"; then return; fi
    grep "^[^:]*$file" "$1/modules.dep" | tr -d : | tr ' ' '\n' | grep . ||
        fail "the kernel has no module $2"
}

# A QEMU without vfio-user would only be noticed by tests, one after the other.
check_qemu() {
    local version
    version=$("$new/bin/qemu-system-x86_64" --version | head -n 1) || fail "the fetched QEMU does not start"
    "$new/bin/qemu-system-x86_64" -device vfio-user-pci,help >/dev/null || fail "$version has no vfio-user-pci"
    say "$version"
}

main() {
    local tool new work start=$SECONDS
    for tool in apt-get dpkg-deb flock tar xz awk sha256sum; do
        command -v "$tool" >/dev/null || fail "$tool is missing; QEMU and kernel come as Debian packages"
    done
    [[ $(uname -m) == x86_64 ]] || fail "this is $(uname -m); guests are x86_64, and so is the QEMU fetched here"
    mkdir -p "$cache"
    exec 9>"$where.lock"
    flock -n 9 || { say "another fetch.sh is at work; waiting for it"; flock 9; }
    if [[ -d $where ]]; then say "all is in $where"; return; fi
    work=$(mktemp -d "$where.XXXXXX")
    # shellcheck disable=SC2064
    trap "rm -rf '$work'" EXIT
    new=$work/new
    mkdir "$new"
    configure_apt
    run_apt update
    download host-tree "$release-backports" "${host_packages[@]}" "${boot_packages[@]}"
    download guest-tree "$release" "${guest_packages[@]}"
    install_host
    install_guest
    install_kernel
    check_qemu
    sort -u "$work/packages.txt" >"$new/packages.txt"
    mv "$new" "$where"
    say "$(du -sm "$where" | cut -f 1) MB in $where, in $((SECONDS - start)) s"
}

main
