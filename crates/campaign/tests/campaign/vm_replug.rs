//! A drive that a virtual machine lets go of and takes again at the same socket, by hand: nothing tells the node of it.

use crate::bench::{Bench, LONG, MIB};
use campaign::causeway::{Lender, STOP_TIMEOUT, Slot, kill_card};
use campaign::process::poll_until;
use campaign::{gate, scale, tools};
use guest::{Builder, Kit};
use serde_json::json;
use std::io::Read;
use std::os::unix::net::UnixStream;

/// A machine that may be reset, with a drive of 64 MiB.
fn start(kit: &Kit, name: &str) -> Bench {
    Bench::start(kit, name, |image| tools::empty_image(image, 64 * MIB).unwrap(), Builder::resets)
}

impl Bench {
    /// As somebody does it at QEMU's monitor.
    fn unplug(&mut self) {
        // Looking at the memory tree keeps QEMU 11.1 from an assertion; it says nothing when the device is gone.
        self.vm.qmp().human("info mtree -f").unwrap();
        self.vm.qmp().execute("device_del", json!({ "id": "v1" })).unwrap();
        self.vm.wait_for(LONG, "test -z \"$(ls /dev | grep nvme.n1)\"").unwrap();
        // The event that says so does not come for such devices.
        let name = |device: &serde_json::Value| device["name"] == "v1";
        let vm = &mut self.vm;
        poll_until("QEMU has let go of it", LONG, || {
            let devices = vm.qmp().execute("qom-list", json!({ "path": "/machine/peripheral" })).unwrap();
            Ok((!devices.as_array().unwrap().iter().any(name)).then_some(()))
        })
        .unwrap();
    }

    fn plug(&mut self) {
        self.plug_as("v1", "rp1");
    }

    fn plug_as(&mut self, id: &str, port: &str) {
        self.vm.hot_add(self.slot.device(id, port)).unwrap();
        self.vm.wait_for(LONG, "ls /dev/nvme?n1").unwrap();
    }
}

/// Writes what differs from round to round, and reads what the round before has left.
fn use_drive(bench: &mut Bench, round: u32) {
    let mark = |round: u32| format!("seq {round}00000 {round}40000");
    if round > 0 {
        let compare =
            "dd if=$(ls /dev/nvme?n1) iflag=direct bs=64k count=4 2>/dev/null | head -c 200000 | md5sum";
        let found = bench.vm.check(compare).unwrap();
        let expected = bench.vm.check(&format!("{} | head -c 200000 | md5sum", mark(round - 1))).unwrap();
        assert_eq!(found, expected, "round {round}");
    }
    let write = "dd of=$(ls /dev/nvme?n1) bs=64k count=4 iflag=fullblock conv=fsync 2>/dev/null";
    bench.vm.check(&format!("{} | head -c 262144 | {write}", mark(round))).unwrap();
}

#[test]
fn the_same_machine_plugs_it_in_again() {
    let _place = gate::computes();
    let Some(kit) = guest::kit() else { return };
    let mut bench = start(&kit, "replug");
    let rounds = scale::kills_of(4, 40);
    for round in 0..rounds {
        use_drive(&mut bench, round);
        bench.unplug();
        if round % 4 == 1 {
            kill_card(bench.world.left(), "slot", LONG).unwrap();
        }
        bench.plug();
        if round % 4 == 2 {
            kill_card(bench.world.left(), "slot", LONG).unwrap();
        }
    }
    use_drive(&mut bench, rounds);
    // Somebody else is still sent away.
    let mut other = UnixStream::connect(&bench.slot.socket).unwrap();
    other.set_read_timeout(Some(LONG)).unwrap();
    assert_eq!(other.read(&mut [0; 64]).unwrap(), 0);
    use_drive(&mut bench, rounds + 1);
    bench.assert_no_trouble();
    // What is left of the dead devices in QEMU does not hinder it, nor this drive.
    bench.vm.qmp().execute("system_reset", json!({})).unwrap();
    bench.vm.wait_ready().unwrap();
    bench.vm.wait_for(LONG, "ls /dev/nvme?n1").unwrap();
    use_drive(&mut bench, rounds + 2);
    bench.end();
}

/// The node knows no monitor: its log says what to do, and that helps.
#[test]
fn a_lender_that_was_away_and_a_drive_that_is_brought_back_by_hand() {
    let _place = gate::computes();
    let Some(kit) = guest::kit() else { return };
    let mut bench = Bench::start(
        &kit,
        "away",
        |image| tools::empty_image(image, 64 * MIB).unwrap(),
        |vm| vm.kernel_arguments("nvme_core.io_timeout=2 nvme_core.admin_timeout=2"),
    );
    use_drive(&mut bench, 0);
    for round in 1..3 {
        bench.lender.process.kill_tree().unwrap();
        // Its driver gives the drive up.
        let failed =
            bench.vm.run("dd if=$(ls /dev/nvme?n1) of=/dev/null bs=4k count=1 iflag=direct").unwrap();
        assert_ne!(failed.status, 0, "{}", failed.text);
        let image = bench.world.right().dir().join("disk.img");
        bench.lender = Lender::start(bench.world.right(), &[image.to_str().unwrap()], &[]).unwrap();
        poll_until("what to do", LONG, || {
            let log = std::fs::read_to_string(bench.slot.process.log()).unwrap();
            let said = log.lines().filter(|line| line.contains("device_del") && line.contains("rescan"));
            Ok((said.count() == round as usize).then_some(()))
        })
        .unwrap();
        if round == 1 {
            bench.unplug();
            bench.plug();
        } else {
            let rescan = "cd /sys/class/nvme/nvme?/device; echo 1 >remove; echo 1 >/sys/bus/pci/rescan";
            bench.vm.check(rescan).unwrap();
            bench.vm.wait_for(LONG, "ls /dev/nvme?n1").unwrap();
        }
        use_drive(&mut bench, round);
    }
    bench.end();
}

/// Its firmware changes what memory is where, and QEMU ends a machine that cannot tell a device of it.
#[test]
fn a_machine_whose_drive_is_gone_can_be_reset() {
    let _place = gate::computes();
    let Some(kit) = guest::kit() else { return };
    let mut bench = start(&kit, "gone");
    assert_eq!(bench.slot.process.terminate(STOP_TIMEOUT).unwrap(), 0, "{}", bench.slot.process.tail());
    for _ in 0..2 {
        bench.vm.qmp().execute("system_reset", json!({})).unwrap();
        bench.vm.wait_ready().unwrap();
        assert_eq!(bench.vm.ended().unwrap(), None);
    }
    let line = bench.lender.lines[0].clone();
    bench.slot = Slot::start_as(bench.world.left(), "slot", &line, &[]).unwrap();
    // A dead device that no guest has enabled cannot be taken out: QEMU's assertion would get it.
    bench.plug_as("v2", "rp2");
    use_drive(&mut bench, 0);
    bench.end();
}
