//! What tests of slots have in common. A test file adds what it needs beyond that.

use std::path::Path;
use std::time::Duration;

use campaign::causeway::{Lender, STOP_TIMEOUT, Slot, start_slot, status};
use campaign::process::poll_until;
use campaign::world::{World, WorldConfig};
use guest::{Builder, Kit, Message, Vm};

pub(crate) const MIB: u64 = 1 << 20;
pub(crate) const LONG: Duration = Duration::from_secs(120);

/// A lender on one machine, a borrower on the other one, with a virtual machine that has the drive from its start.
pub(crate) struct Bench {
    pub(crate) vm: Vm,
    pub(crate) slot: Slot,
    pub(crate) lender: Lender,
    pub(crate) world: World,
}

impl Bench {
    /// With the image that `make_image` makes, and the machine as `change` wants it.
    pub(crate) fn start(
        kit: &Kit,
        name: &str,
        make_image: impl FnOnce(&Path),
        change: impl FnOnce(Builder) -> Builder,
    ) -> Self {
        let world = World::new(&WorldConfig::default()).unwrap();
        let image = world.right().dir().join("disk.img");
        make_image(&image);
        let (lender, slot) = start_slot(&world, image.to_str().unwrap()).unwrap();
        // The guest's driver is to find out soon what it waits for in vain.
        let vm = Vm::builder(kit).name(name).kernel_arguments("nvme_core.io_timeout=5");
        let mut vm = change(vm).device(&slot.device("v1", "rp1").to_string()).start().unwrap();
        vm.wait_for(LONG, "ls /dev/nvme0n1").unwrap();
        Self { vm, slot, lender, world }
    }

    #[track_caller]
    pub(crate) fn assert_no_trouble(&mut self) {
        assert_eq!(self.vm.kernel_trouble().unwrap(), Vec::<Message>::new());
    }

    /// Ends everything in order; the lender has its drive back then.
    pub(crate) fn end(self) {
        let Self { vm, mut slot, mut lender, world } = self;
        vm.shutdown().unwrap();
        assert_eq!(slot.process.terminate(STOP_TIMEOUT).unwrap(), 0, "{}", slot.process.tail());
        assert!(!slot.socket.exists(), "an ended borrower leaves no socket");
        poll_until("the lender to say that it has the drive back", LONG, || {
            Ok(status(world.right(), "lender")?["devices"][0]["lent_to"].is_null().then_some(()))
        })
        .unwrap();
        assert_eq!(lender.process.terminate(STOP_TIMEOUT).unwrap(), 0, "{}", lender.process.tail());
    }
}
