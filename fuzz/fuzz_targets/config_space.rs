//! Reads and writes of a configuration space, by register and by byte range: what is not writable never changes.
#![no_main]

use base::ledger::Arena;
use libfuzzer_sys::arbitrary::{self, Arbitrary};
use libfuzzer_sys::fuzz_target;

#[derive(Arbitrary, Debug)]
enum Step {
    Register { register: u16, value: u32, enables: u8 },
    Bytes { offset: u16, bytes: Vec<u8> },
    Read { offset: u32, len: u8 },
    FunctionLevelReset,
}

fuzz_target!(|steps: Vec<Step>| {
    let arena = Arena::default();
    let rig = rigs::nvme::rig(&arena);
    let controller = rigs::nvme::controller(&rig, 8);
    let layout = controller.layout();
    let mut state = layout.reset();
    for step in &steps {
        match step {
            Step::Register { register, value, enables } => {
                layout.write_register(&mut state, *register, *value, *enables);
            }
            Step::Bytes { offset, bytes } => drop(layout.write_bytes(&mut state, (*offset).into(), bytes)),
            Step::Read { offset, len } => {
                layout.read(&state, *offset as usize, &mut vec![0; usize::from(*len)]);
            }
            Step::FunctionLevelReset => state = layout.function_level_reset(&state),
        }
    }
    for register in (0..4096).step_by(4) {
        if layout.slot(register).is_none() {
            assert_eq!(layout.read_register(&state, register), layout.initial(register));
        }
    }
    // Whatever was written, the registers can be looked at.
    let registers = layout.registers(|register| layout.read_register(&state, register));
    let _ =
        (registers.command(), registers.msix_control(), registers.device_control(), registers.power_state());
    let _ = (0..6).filter_map(|index| registers.bar(index)).count();
});
