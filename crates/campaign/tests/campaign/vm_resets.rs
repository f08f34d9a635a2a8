//! T8: a function is reset under a guest that uses it: by FLR, by a reset of the bus above it, by a kernel that starts
//! another one, and by a kernel that crashes. Each time the drive serves again, with its content, and neither node
//! waits for anything.

use crate::bench::{Bench, LONG, MIB};
use campaign::causeway::{number, status};
use campaign::host::{guest_fio, guest_fio_verified};
use campaign::process::poll_until;
use campaign::{gate, scale};
use guest::{HotPlug, Job};
use std::path::Path;

/// Where drives have what outlives a reset: 2 MiB from here.
const KEPT: &str = "bs=64k skip=1536 count=32";
/// And where the guest writes: nothing else does.
const LOAD: &str = "--filename=/dev/nvme0n1 --bs=4k --iodepth=32 --offset=64M --size=16M --verify_backlog=64 \
                    --time_based --runtime=1000";

impl Bench {
    /// Writes what is to outlive what follows; returns its sum.
    fn keep(&mut self) -> String {
        let write = "dd if=/dev/urandom of=/run/kept bs=64k count=32 2>/dev/null; \
                     dd if=/run/kept of=/dev/nvme0n1 bs=64k seek=1536 oflag=direct conv=fsync 2>/dev/null; md5sum \
                     </run/kept";
        self.vm.check(write).unwrap()
    }

    #[track_caller]
    fn assert_kept(&mut self, kept: &str) {
        let read = format!("dd if=/dev/nvme0n1 {KEPT} iflag=direct 2>/dev/null | md5sum");
        assert_eq!(self.vm.check(&read).unwrap(), kept);
    }

    /// The guest writes and verifies until it is told to end.
    fn load(&mut self) -> Job {
        let job = self.vm.start(&format!("echo $$ >/run/fio; exec {}", guest_fio(LOAD))).unwrap();
        self.wait_written(200);
        job
    }

    /// Waits until the guest has written so many times more.
    #[track_caller]
    fn wait_written(&mut self, more: u64) {
        let count = self.vm.check("awk '{ print $5 }' /sys/block/nvme0n1/stat").unwrap();
        let goal = count.trim().parse::<u64>().unwrap() + more;
        self.vm.wait_for(LONG, &format!("awk '$5 < {goal} {{ exit 1 }}' /sys/block/nvme0n1/stat")).unwrap();
    }

    #[track_caller]
    fn end_load(&mut self, job: Job) {
        // Asked to end, fio says what it has done.
        self.vm.check("kill -INT $(cat /run/fio)").unwrap();
        let output = self.vm.wait(job, LONG).unwrap();
        println!("{} requests", guest_fio_verified(&output.text).unwrap());
    }

    /// With a guest that wants nothing, nothing is under way on either side.
    fn assert_idle(&self) {
        for (machine, name) in [(self.world.left(), "slot"), (self.world.right(), "lender")] {
            poll_until(&format!("{name} to have nothing in flight"), LONG, || {
                Ok((number(&status(machine, name)?, "/streams/0/in_flight")? == 0).then_some(()))
            })
            .unwrap();
        }
    }

    fn denied(&self) -> u64 {
        number(&status(self.world.left(), "slot").unwrap(), "/counters/denied_accesses").unwrap()
    }
}

/// The kernel resets the function as administrators do, beneath its own driver.
fn reset_by(bench: &mut Bench, method: &str, rounds: u32) {
    let kept = bench.keep();
    let device = bench.vm.check("readlink -f /sys/class/nvme/nvme0/device").unwrap();
    let device = device.trim();
    bench.vm.check(&format!("echo {method} >{device}/reset_method && cat {device}/reset_method")).unwrap();
    let job = bench.load();
    for _ in 0..rounds {
        bench.vm.check(&format!("echo 1 >{device}/reset")).unwrap();
        bench.wait_written(200);
        assert!(!bench.vm.has_ended(&job).unwrap());
    }
    bench.end_load(job);
    bench.assert_kept(&kept);
    bench.assert_no_trouble();
    bench.assert_idle();
    assert_eq!(bench.denied(), 0, "nothing of the function outlives its reset");
}

/// What the guest starts another kernel with, which is on its drive.
const LOAD_KERNEL: &str = "mkdir -p /run/boot && mount -t vfat -o ro /dev/nvme0n1p1 /run/boot && \
                           kexec $MODE /run/boot/vmlinuz --initrd=/run/boot/initramfs --append=\"console=ttyS0 \
                           panic=-1 cryptomgr.notests no_timer_check guest.modules=nvme nvme_core.io_timeout=5 \
                           reset_devices\" && umount /run/boot";

/// The guest starts another kernel while it writes: in order, where its driver disables the controller before, or after
/// a crash, where nobody does.
fn another_kernel(bench: &mut Bench, mode: &str, jump: &str) {
    bench.vm.check(&LOAD_KERNEL.replace("$MODE", mode)).unwrap();
    let kept = bench.keep();
    bench.load();
    bench.vm.start(jump).unwrap();
    bench.vm.wait_ready().unwrap();
    bench.vm.wait_for(LONG, "ls /dev/nvme0n1").unwrap();
    assert!(bench.vm.check("cat /proc/cmdline").unwrap().contains("reset_devices"), "{jump}");
    bench.assert_kept(&kept);
    let again = bench.keep();
    bench.assert_kept(&again);
    // An interrupt that was on its way when the old kernel crashed is nobody's in the new one, which says so.
    let trouble = bench.vm.kernel_trouble().unwrap();
    assert!(!trouble.iter().any(|message| message.text.contains("nvme")), "{trouble:?}");
    bench.assert_idle();
}

#[test]
fn t8_resets_and_other_kernels_under_load() {
    let _place = gate::computes();
    let Some(kit) = guest::kit() else { return };
    let bootable = |image: &Path| {
        kit.make_bootable(image).unwrap();
        std::fs::File::options().write(true).open(image).unwrap().set_len(128 * MIB).unwrap();
    };
    let mut bench = Bench::start(&kit, "resets", bootable, |vm| {
        let modules = ["nvme", "vfat", "nls_cp437", "nls_ascii"];
        // Only with pciehp may a bus below a root port be reset.
        let vm = vm.hot_plug(HotPlug::Pciehp).modules(&modules).memory_mib(768).resets();
        vm.kernel_arguments("nvme_core.io_timeout=5 crashkernel=192M")
    });
    let rounds = scale::kills_of(2, 100);
    reset_by(&mut bench, "flr", rounds);
    reset_by(&mut bench, "bus", rounds);
    another_kernel(&mut bench, "-p", "echo c >/proc/sysrq-trigger");
    if scale::is_soak() {
        // The small system has neither fio nor kexec.
        bench.vm.qmp().execute("system_reset", serde_json::json!({})).unwrap();
        bench.vm.wait_ready().unwrap();
        bench.vm.wait_for(LONG, "ls /dev/nvme0n1").unwrap();
        another_kernel(&mut bench, "-l", "kexec -e");
    }
    bench.end();
}
