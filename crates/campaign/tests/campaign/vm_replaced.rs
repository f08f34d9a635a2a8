//! W5: a guest whose lender is killed, and whose image is replaced before it is started again. The drive is pulled out
//! and plugged in again, the guest reads what lies there now, and nothing that it has written is put over it.

use crate::events;
use crate::vm_power::{builder, start_node};
use campaign::causeway::{Lender, STOP_TIMEOUT};
use campaign::host::Host;
use campaign::world::{World, WorldConfig};
use campaign::{gate, scale, tools};
use std::time::Duration;

const MIB: u64 = 1 << 20;
const LONG: Duration = Duration::from_secs(120);

#[test]
fn w5_a_guest_gets_what_lies_where_its_image_was() {
    let _place = gate::computes();
    let Some(kit) = guest::kit() else { return };
    let world = World::new(&WorldConfig { rails: 1, ..WorldConfig::default() }).unwrap();
    let [image, other] = ["disk.img", "other.img"].map(|name| world.right().dir().join(name));
    tools::empty_image(&image, 16 * MIB).unwrap();
    tools::random_image(&other, 16 * MIB, scale::first_seed()).unwrap();
    let content = tools::sha256(&other).unwrap();
    let lend = || Lender::start(world.right(), &[image.to_str().unwrap()], &[]).unwrap();
    let mut lender = lend();
    let line = lender.lines[0].clone();
    let mut vm = builder(&kit, "replaced").start().unwrap();
    let mut node = start_node(&world, &vm, &line);
    vm.wait_for(LONG, "ls /dev/nvme0n1").unwrap();
    vm.check("dd if=/dev/urandom of=/run/old bs=64k count=16 2>/dev/null").unwrap();
    // A driver that found its drive again would send again what is under way when the lender dies.
    let write = "while dd if=/run/old of=/dev/nvme0n1 bs=4k oflag=direct 2>/dev/null; do :; done";
    let job = vm.start(write).unwrap();
    vm.wait_for(LONG, "awk '$5 < 200 { exit 1 }' /sys/block/nvme0n1/stat").unwrap();

    lender.process.kill_tree().unwrap();
    // Another file, as what is written into the same one right after a kill may be the lender's own.
    std::fs::rename(&other, &image).unwrap();
    lender = lend();
    assert_eq!(lender.lines[0], line);
    let is_news = |line: &str| line.contains("is not what this node lent before");
    lender.process.wait_log("that the image is another one", LONG, is_news).unwrap();
    vm.wait(job, LONG).unwrap_or_else(|error| panic!("{error}\n{}", node.tail()));
    let read =
        format!("dd if=$(ls /dev/nvme?n1) bs=1M iflag=direct 2>/dev/null | sha256sum | grep {content}");
    vm.wait_for(LONG, &read).unwrap_or_else(|error| panic!("{error}\n{}", node.tail()));
    let renewed = events::all(world.left(), Host::NAME, "slot-renewed");
    assert!(renewed.iter().any(|event| event["loss"] == "replaced"), "{renewed:?}");
    let log = vm.kernel_log().unwrap();
    let found = log.iter().filter(|message| message.text.contains("pci function")).count();
    assert!(found > 1, "its driver was given no other device: {log:?}");

    vm.shutdown().unwrap();
    assert_eq!(node.terminate(STOP_TIMEOUT).unwrap(), 0, "{}", node.tail());
    assert_eq!(lender.process.terminate(STOP_TIMEOUT).unwrap(), 0, "{}", lender.process.tail());
    assert_eq!(tools::sha256(&image).unwrap(), content, "something was put over it");
}
