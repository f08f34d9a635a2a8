#!/bin/bash
# Makes the guest's initramfs of what fetch.sh has fetched and of the scripts beside this one, and prints its path. It is
# named for its content, so it is made once; the same content gives the same bytes. Not compressed: the guest's processor
# is the slow one.
#
# Usage: initramfs.sh [--small]
#   --small   only busybox and the drive's modules, for boot loaders that read slowly
set -euo pipefail
export LC_ALL=C

here=$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")
case ${1-} in
"") kind=full ;;
--small) kind=small ;;
*) echo "guest: unknown argument \`$1\`; there is --small" >&2; exit 2 ;;
esac
"$here/fetch.sh" --check
where=$("$here/fetch.sh" --where)
busybox=$where/root/usr/bin/busybox
key=$(cat "$here"/{init,serve,initramfs.sh} | sha256sum | cut -c 1-16)
initramfs=$where/initramfs-$kind-$key.cpio

exec 9>"$where.lock"
flock 9
if [[ ! -e $initramfs ]]; then
    work=$(mktemp -d "$where.XXXXXX")
    # shellcheck disable=SC2064
    trap "rm -rf '$work'" EXIT
    cp -a "$where/root" "$work/root"
    if [[ $kind == small ]]; then
        find "$work"/root/usr/{bin,lib,lib64,share} ! -type d ! -name busybox -delete
    fi
    cp -a "$where/kernel/modules/lib/modules" "$work/root/usr/lib/"
    if [[ $kind == small ]]; then
        find "$work/root/usr/lib/modules" -name '*.ko' ! -path '*/nvme/*' -delete
    fi
    mkdir "$work"/root/{dev,proc,sys,run,tmp,mnt}
    cp "$here"/{init,serve} "$work/root/"
    # For mount without -t: these are modules, loaded when asked for.
    printf '%s\n' ext4 vfat >"$work/root/etc/filesystems"
    # Links once, here, and not at each start of a guest. Real programs come first.
    for applet in $("$busybox" --list); do
        [[ -e $work/root/usr/bin/$applet ]] || ln -s busybox "$work/root/usr/bin/$applet"
    done
    chmod -R u=rwX,go=rX "$work/root"
    chmod +x "$work/root/init"
    find "$work/root" -exec touch -h -d @0 {} +
    (cd "$work/root" && find . | sort | "$busybox" cpio -o -H newc -R 0:0 --ignore-devno --renumber-inodes) \
        >"$work/initramfs" 2>"$work/log" || { cat "$work/log" >&2; exit 1; }
    # Another working copy may be using an older one.
    find "$where" -name 'initramfs-*.cpio' -mtime +7 -delete
    mv "$work/initramfs" "$initramfs"
    echo "guest: initramfs of $(du -m "$initramfs" | cut -f 1) MB" >&2
fi
echo "$initramfs"
