//! Guests start from a drive, with either firmware, and start anew after a reset.

use guest::{Boot, Kit, Vm};
use serde_json::json;
use std::path::PathBuf;
use std::time::Instant;

/// An image that is gone with the test.
struct Image(PathBuf);

impl Image {
    fn bootable(kit: &Kit, name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("causeway-guest-{}-{name}.img", std::process::id()));
        kit.make_bootable(&path).unwrap();
        Self(path)
    }
}

impl Drop for Image {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

fn boot(kit: &Kit, image: &Image, boot: Boot) -> Vm {
    let begun = Instant::now();
    let builder = Vm::builder(kit).name("boot").boot(boot).resets().drive("d1", &image.0);
    let vm = builder.device("nvme,serial=BOOT,drive=d1,bus=rp1,bootindex=0").start().unwrap();
    println!("{boot:?}: the guest took commands after {:.2} s", begun.elapsed().as_secs_f64());
    vm
}

#[test]
fn seabios_boots_from_a_drive_and_again_after_a_reset() {
    let Some(kit) = guest::kit() else { return };
    let _place = crate::place();
    let image = Image::bootable(&kit, "bios");
    let mut vm = boot(&kit, &image, Boot::Bios);
    vm.check("[ ! -d /sys/firmware/efi ] && [ -b /dev/nvme0n1p1 ] && touch /run/mark").unwrap();
    vm.qmp().execute("system_reset", json!({})).unwrap();
    vm.wait_ready().unwrap();
    vm.check("[ ! -e /run/mark ]").unwrap();
    vm.shutdown().unwrap();
}

#[test]
fn ovmf_boots_from_a_drive() {
    let Some(kit) = guest::kit() else { return };
    let _place = crate::place();
    let image = Image::bootable(&kit, "uefi");
    let mut vm = boot(&kit, &image, Boot::Uefi);
    vm.check("[ -d /sys/firmware/efi ] && [ -b /dev/nvme0n1p1 ]").unwrap();
    vm.shutdown().unwrap();
}
