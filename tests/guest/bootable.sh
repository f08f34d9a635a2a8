#!/bin/bash
# Makes an image of a drive that SeaBIOS and OVMF boot: GRUB, the kernel and the small initramfs, whose shell on the second
# serial port is the one that crates/guest talks to. Nothing is mounted and root is not needed.
#
# Usage: bootable.sh IMAGE
# The image is 64 MiB: GRUB before the first partition, which is FAT and has everything else.
set -euo pipefail
export LC_ALL=C

here=$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")
image=${1:?usage: bootable.sh IMAGE}
initramfs=$("$here/initramfs.sh" --small)
where=$("$here/fetch.sh" --where)
sectors=131072
first=2048
work=$(mktemp -d)
# shellcheck disable=SC2064
trap "rm -rf '$work'" EXIT

cat >"$work/grub.cfg" <<-'END'
	serial --unit=0 --speed=115200
	terminal_output serial
	search --file --set=root /vmlinuz
	linux /vmlinuz console=ttyS0 panic=-1 cryptomgr.notests no_timer_check guest.modules=nvme
	initrd /initramfs
	boot
	END

# grub PLATFORM MODULE...: GRUB with its configuration inside.
grub() {
    "$where/bin/grub-mkimage" -O "$1" -d "$where/host/grub/$1" -c "$work/grub.cfg" -p / -o "$work/$1" \
        part_msdos fat search search_fs_file serial terminal linux boot "${@:2}"
}
grub i386-pc biosdisk
grub x86_64-efi

# The ESP, put together outside of the image.
mtools() { "$where/bin/mtools" -c "$@"; }
mtools mformat -C -i "$work/esp" -T $((sectors - first)) -h 16 -s 63 -v CAUSEWAY ::
mtools mmd -i "$work/esp" ::EFI ::EFI/BOOT
mtools mcopy -i "$work/esp" "$work/x86_64-efi" ::EFI/BOOT/BOOTX64.EFI
mtools mcopy -i "$work/esp" "$where/kernel/vmlinuz" ::vmlinuz
mtools mcopy -i "$work/esp" "$initramfs" ::initramfs

# little_endian NUMBER: four bytes.
little_endian() { printf '%b' "$(printf '\\x%02x' $(($1 & 255)) $(($1 >> 8 & 255)) $(($1 >> 16 & 255)) $(($1 >> 24)))"; }
put() { dd of="$work/image" bs=512 seek="$1" conv=notrunc status=none; }

truncate -s $((sectors * 512)) "$work/image"
put 0 <"$where/host/grub/i386-pc/boot.img"
# The boot sector reads on from the next one, where GRUB's core begins.
put 1 <"$work/i386-pc"
put "$first" <"$work/esp"
# The partition table, where the boot sector has code for floppy disks. Its first entry is active, an EFI system partition,
# and addressed by sectors; the others are empty.
{
    printf '\x80\xfe\xff\xff\xef\xfe\xff\xff'
    little_endian "$first"
    little_endian $((sectors - first))
    head -c 48 /dev/zero
} | dd of="$work/image" bs=1 seek=446 conv=notrunc status=none
cp --sparse=always "$work/image" "$image"
