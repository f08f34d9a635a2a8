use spec::nvme::identify::NvmIdentifyController;
use spec::nvme::{Cns, IdentifyNamespace};

use crate::nvme::Limit;

use super::conformance::{answer, identify};
use super::shared::reads_in;
use super::*;

/// Zeroes that keep their space may have to be written as data: a piece at a time, so that no command has the card for
/// long.
#[test]
fn zeroes_keep_their_space_unless_the_host_gives_it_up() {
    with_rig(Config { blocks: 8192, ..config() }, |rig| {
        rig.start();
        for (deallocate, pieces) in [(false, vec![1 << 20, 1 << 20, 512]), (true, vec![(2 << 20) + 512])] {
            rig.disk.fill(0xff);
            rig.zeroed.clear();
            let zeroes = SubmissionEntry::write_zeroes(1, 1, 1000, 4097, deallocate);
            assert_eq!(rig.run(2, zeroes).status(), Status::SUCCESS);
            assert_eq!(rig.zeroed, pieces.into_iter().map(|len| (len, deallocate)).collect::<Vec<_>>());
            let zero = 1000 * 512..5097 * 512;
            assert!(rig.disk.iter().enumerate().all(|(at, byte)| (*byte == 0) == zero.contains(&at)));
        }
        // What is deallocated reads as zeroes, and zeroing may deallocate (NVM CS 1.0 §4.1.5.1); up to 32 MiB at a
        // time.
        rig.run(0, identify(Cns::NAMESPACE, 1));
        assert_eq!(answer::<IdentifyNamespace>(rig).dlfeat, 0b1001);
        rig.run(0, identify(Cns::IO_CONTROLLER, 0));
        assert_eq!(answer::<NvmIdentifyController>(rig).wzsl, 13);
        assert_eq!(rig.controller.statistics.write_commands.get(), 2);
    });
    with_rig(Config { zeroes_deallocated: false, ..config() }, |rig| {
        rig.start();
        rig.run(0, identify(Cns::NAMESPACE, 1));
        assert_eq!(answer::<IdentifyNamespace>(rig).dlfeat & 7, 0);
    });
}

#[test]
fn zeroes_cost_what_may_have_to_be_written() {
    for (deallocate, is_held_back) in [(false, true), (true, false)] {
        let limit = Limit::new(None, Some(1 << 20)).unwrap();
        with_rig(Config { blocks: 8192, limit, ..config() }, |rig| {
            rig.start();
            rig.submit(2, SubmissionEntry::write_zeroes(1, 1, 0, 8192, deallocate));
            // The bucket fills.
            for _ in 0..10 {
                rig.now += core::time::Duration::from_millis(1);
                rig.wake();
                rig.settle();
            }
            assert_eq!(rig.reap(2).len(), 1);
            let done = reads_in(rig, 2, 1);
            assert_eq!(done == 0, is_held_back, "{done}");
        });
    }
}
