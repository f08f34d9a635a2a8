//! A configuration space as an NVMe function has it, seen through reads and writes.

use proptest::prelude::*;

use super::*;
use crate::capability::{aer, express::ExpressOptions, find, find_extended};
use crate::spec::capability::{EXPRESS, EXTENDED_AER, EXTENDED_SERIAL_NUMBER, MSIX, POWER_MANAGEMENT};

const LOCATION: MsixLocation =
    MsixLocation { vectors: 33, table_bar: 0, table_offset: 0x2000, pending_bar: 4, pending_offset: 0x800 };

fn layout() -> Arc<ConfigLayout> {
    let builder = ConfigBuilder::endpoint(0x1b36, 0x0010)
        .class(0x01_08_02, 2)
        .subsystem(0x1af4, 0x1100)
        .interrupt_pin(1)
        .bar_64(0, 0x4000, false)
        .bar_64(2, 1 << 33, true)
        .bar_32(4, 0x1000)
        .power_management()
        .express(ExpressOptions::default())
        .msix(LOCATION)
        .advanced_error_reporting()
        .serial_number(0x0123_4567_89ab_cdef);
    Arc::new(builder.build())
}

fn space() -> ConfigSpace {
    ConfigSpace::new(layout())
}

fn read(space: &ConfigSpace, register: u16) -> u32 {
    let mut bytes = [0; 4];
    space.read(usize::from(register), &mut bytes);
    u32::from_le_bytes(bytes)
}

fn write(space: &mut ConfigSpace, register: u16, value: u32) -> ConfigEffect {
    space.write(usize::from(register), &value.to_le_bytes())
}

fn offset_of(space: &ConfigSpace, id: u8) -> u16 {
    find(|register| read(space, register), id).unwrap()
}

#[test]
fn header_reads_as_built() {
    let space = space();
    assert_eq!(read(&space, 0x00), 0x0010_1b36);
    assert_eq!(read(&space, 0x04), 0x0010_0000);
    assert_eq!(read(&space, 0x08), 0x0108_0202);
    assert_eq!(read(&space, 0x0c), 0);
    assert_eq!(read(&space, 0x10), 0x4);
    assert_eq!(read(&space, 0x18), 0xc);
    assert_eq!(read(&space, 0x2c), 0x1100_1af4);
    assert_eq!(read(&space, 0x3c), 0x0100);
    let mut class = [0; 3];
    space.read(0x09, &mut class);
    assert_eq!(class, [0x02, 0x08, 0x01]);
}

#[test]
fn capabilities_are_found() {
    let space = space();
    let reader = |register: u16| read(&space, register);
    assert_eq!(find(reader, POWER_MANAGEMENT), Some(0x40));
    assert_eq!(find(reader, EXPRESS), Some(0x48));
    assert_eq!(find(reader, MSIX), Some(0x84));
    assert_eq!(find(reader, 0x05), None);
    assert_eq!(MsixLocation::decode(reader, 0x84), LOCATION);
    assert_eq!(find_extended(reader, EXTENDED_AER), Some(0x100));
    let serial = find_extended(reader, EXTENDED_SERIAL_NUMBER).unwrap();
    assert_eq!((reader(serial + 8), reader(serial + 4)), (0x0123_4567, 0x89ab_cdef));
    assert_eq!(find_extended(reader, 0x0010), None);
}

#[test]
fn chains_from_outside_end() {
    // Every link points to itself or to all ones; none has the id.
    assert_eq!(find(|_| 0x0010_4040, 0x11), None);
    assert_eq!(find(|_| u32::MAX, 0x11), None);
    assert_eq!(find_extended(|_| 0x1001_0002, 0x0001), None);
    assert_eq!(find_extended(|_| u32::MAX, 0x0001), None);
    assert_eq!(find_extended(|_| 0, 0), None);
}

#[test]
fn bars_are_sized_and_moved() {
    let mut space = space();
    assert_eq!(write(&mut space, 0x10, u32::MAX).bars_moved, 0b1);
    assert_eq!(write(&mut space, 0x14, u32::MAX).bars_moved, 0b1);
    assert_eq!((read(&space, 0x10), read(&space, 0x14)), (0xffff_c004, u32::MAX));
    write(&mut space, 0x18, u32::MAX);
    assert_eq!(write(&mut space, 0x1c, u32::MAX).bars_moved, 0b100);
    assert_eq!((read(&space, 0x18), read(&space, 0x1c)), (0x0000_000c, 0xffff_fffe));
    write(&mut space, 0x20, u32::MAX);
    assert_eq!(read(&space, 0x20), 0xffff_f000);
    assert!(write(&mut space, 0x24, u32::MAX).is_none(), "there is no BAR 5");
    assert_eq!(read(&space, 0x24), 0);

    write(&mut space, 0x10, 0xfebf_0000);
    write(&mut space, 0x14, 0x12);
    assert_eq!(space.registers().bar(0), Some(Bar { address: 0x12_febf_0000, size: 0x4000 }));
    assert_eq!(space.registers().bar(1), None);
    assert_eq!(space.registers().bar(6), None);
    assert!(write(&mut space, 0x14, 0x12).is_none(), "the same address is no move");
}

#[test]
fn addresses_are_decoded_while_memory_space_is_enabled() {
    let mut space = space();
    // The large BAR out of the way: at 0 it would cover the other.
    write(&mut space, 0x1c, 0x100);
    write(&mut space, 0x20, 0xfe00_0000);
    assert_eq!(space.registers().decode(0xfe00_0010), None);
    assert!(write(&mut space, 0x04, 0x0006).command_changed);
    let registers = space.registers();
    assert!(registers.command().memory_space() && registers.command().bus_master());
    assert_eq!(registers.decode(0xfe00_0010), Some((4, 0x10)));
    assert_eq!(registers.decode(0xfe00_1000), None);
}

#[test]
fn command_takes_only_its_bits_and_status_is_cleared_by_ones() {
    let mut space = space();
    write(&mut space, 0x04, 0x0000_ffff);
    assert_eq!(read(&space, 0x04), 0x0010_0546);
    space.set(0x04, 0xf900_0000, 0xf900_0000);
    write(&mut space, 0x04, 0x2000_0546);
    assert_eq!(read(&space, 0x04), 0xd910_0546);
    // A byte write elsewhere in the dword clears nothing.
    space.write(0x04, &[0xff]);
    assert_eq!(read(&space, 0x04), 0xd910_0546);
}

#[test]
fn bytes_that_are_not_enabled_stay() {
    let layout = layout();
    let current = 0xf910_0006;
    assert_eq!(layout.write(current, 0x04, u32::MAX, 0b0000), current);
    assert_eq!(layout.write(current, 0x04, u32::MAX, 0b0001), 0xf910_0046);
    assert_eq!(layout.write(current, 0x04, u32::MAX, 0b0010), 0xf910_0506);
    assert_eq!(layout.write(current, 0x04, u32::MAX, 0b1000), 0x0010_0006);
    let express = layout.express_offset().unwrap() + 8;
    let reset = layout.effect(express, 0, 0, u32::MAX, 0b0010);
    assert!(reset.function_level_reset);
    assert!(layout.effect(express, 0, 0, u32::MAX, 0b1101).is_none());
}

#[test]
fn msix_control() {
    let mut space = space();
    let offset = usize::from(offset_of(&space, MSIX));
    assert!(space.write(offset + 2, &0x8000_u16.to_le_bytes()).msix_changed);
    let control = space.registers().msix_control().unwrap();
    assert_eq!(control, MsixControl { enabled: true, masked: false, vectors: 33 });
    assert!(space.write(offset + 3, &[0xc0]).msix_changed);
    assert!(space.registers().msix_control().unwrap().masked);
    assert!(space.write(offset + 2, &0xc000_u16.to_le_bytes()).is_none());
    assert!(space.write(offset + 4, &[0xff; 8]).is_none(), "table and PBA places are read-only");
    assert_eq!(MsixLocation::decode(|register| read(&space, register), offset as u16), LOCATION);
}

#[test]
fn function_level_reset_keeps_what_belongs_to_the_link() {
    let mut space = space();
    let control = offset_of(&space, EXPRESS) + 8;
    write(&mut space, 0x04, 0x6);
    write(&mut space, 0x10, 0xfebf_0000);
    let effect = write(&mut space, control, 5 << 5 | 3 << 12);
    assert!(effect.device_control_changed && !effect.function_level_reset);
    let aer_offset = space.layout().aer_offset().unwrap();
    space.set(aer_offset + aer::UNCORRECTABLE_STATUS, u32::MAX, aer::POISONED);
    space.set(aer_offset + aer::HEADER_LOG, u32::MAX, 0x4000_0001);

    let before = read(&space, control);
    let effect = space.write(usize::from(control) + 1, &[(before >> 8) as u8 | 0x80]);
    assert!(effect.function_level_reset && !effect.device_control_changed);
    assert_eq!(read(&space, control), before, "the bit reads as 0");
    space.function_level_reset();
    assert!(!space.registers().command().memory_space());
    assert_eq!(space.registers().bar(0).unwrap().address, 0);
    let device_control = space.registers().device_control().unwrap();
    assert_eq!((device_control.max_payload, device_control.max_read_request), (4096, 512));
    assert_eq!(read(&space, aer_offset + aer::UNCORRECTABLE_STATUS), aer::POISONED);
    assert_eq!(read(&space, aer_offset + aer::HEADER_LOG), 0x4000_0001);
    write(&mut space, aer_offset + aer::UNCORRECTABLE_STATUS, aer::POISONED);
    assert_eq!(read(&space, aer_offset + aer::UNCORRECTABLE_STATUS), 0);
    space.reset();
    assert_eq!(space.state(), &space.layout().reset());
}

#[test]
fn power_states_without_support_are_discarded() {
    let mut space = space();
    let control = offset_of(&space, POWER_MANAGEMENT) + 4;
    assert_eq!(space.registers().power_state(), PowerState::D0);
    assert!(write(&mut space, control, 3).power_state_changed);
    assert_eq!(space.registers().power_state(), PowerState::D3Hot);
    assert!(write(&mut space, control, 1).is_none());
    assert_eq!(read(&space, control), 0xb);
    assert!(write(&mut space, control, 0).power_state_changed);
    assert_eq!(read(&space, control), 0x8);
}

#[test]
fn beyond_the_end() {
    let mut space = space();
    let mut bytes = [0; 8];
    space.read(4092, &mut bytes);
    assert_eq!(bytes, [0, 0, 0, 0, 0xff, 0xff, 0xff, 0xff]);
    space.read(usize::MAX - 3, &mut bytes);
    assert_eq!(bytes, [0xff; 8]);
    assert!(space.write(4094, &[0xff; 8]).is_none());
    assert!(space.write(usize::MAX, &[0xff; 8]).is_none());
    assert_eq!(space.state(), &space.layout().reset());
}

#[test]
fn reset_values_of_the_state_are_the_layout() {
    let layout = layout();
    assert!(layout.mutable_registers().len() <= 32, "{:x?}", layout.mutable_registers());
    for register in (0..4096_u16).step_by(4) {
        assert_eq!(layout.read_register(&layout.reset(), register), layout.initial(register));
    }
}

#[test]
fn a_physical_function_describes_its_virtual_ones() {
    use crate::capability::sriov::{self, SrIovOptions};
    use crate::spec::capability::{EXTENDED_ARI, EXTENDED_SRIOV};
    let options = SrIovOptions {
        total: 64,
        first_offset: 1,
        stride: 1,
        device: 0x0001,
        bars: vec![(0, 0x1_0000, false), (4, 0x8_0000, true)],
    };
    let layout = ConfigBuilder::endpoint(1, 2).advanced_error_reporting().sriov(&options).build();
    let mut space = ConfigSpace::new(Arc::new(layout.clone()));
    assert!(find_extended(|at| layout.initial(at), EXTENDED_ARI).is_some());
    let at = find_extended(|at| layout.initial(at), EXTENDED_SRIOV).unwrap();
    let read = |space: &ConfigSpace, offset| space.layout().read_register(space.state(), at + offset);
    assert_eq!(read(&space, sriov::TOTAL_VFS), 0x0040_0040);
    assert_eq!((read(&space, sriov::ROUTING), read(&space, sriov::VF_DEVICE)), (0x0001_0001, 0x0001_0000));
    // A sized BAR tells its bytes and keeps its flags.
    space.write(usize::from(at + sriov::VF_BARS), &[0xff; 8]);
    assert_eq!(read(&space, sriov::VF_BARS), 0xffff_0004);
    space.write(usize::from(at + sriov::VF_BARS + 16), &[0xff; 4]);
    assert_eq!(read(&space, sriov::VF_BARS + 16), 0xfff8_000c);
    space.write(usize::from(at + sriov::NUM_VFS), &64_u16.to_le_bytes());
    space.write(usize::from(at + sriov::CONTROL), &[0xff; 4]);
    assert_eq!((read(&space, sriov::NUM_VFS), read(&space, sriov::CONTROL)), (64, 0x19));
}

#[test]
#[should_panic(expected = "outside of BAR 4")]
fn pending_bits_must_fit_their_bar() {
    let location = MsixLocation { pending_offset: 0x1000, ..LOCATION };
    let _ = ConfigBuilder::endpoint(1, 2).bar_64(0, 0x4000, false).bar_32(4, 0x1000).msix(location);
}

proptest! {
    /// Read-only bits stay, a write of any length is the same as its bytes one by one, and a space restored from
    /// its state is the same space.
    #[test]
    fn any_writes(
        writes in prop::collection::vec((0..4100_usize, prop::collection::vec(any::<u8>(), 0..12)), 0..24),
    ) {
        let layout = layout();
        let mut whole = ConfigSpace::new(layout.clone());
        let mut bytewise = ConfigSpace::new(layout.clone());
        for (offset, bytes) in &writes {
            // Half of them where something changes.
            let offset = if offset % 2 == 0 { offset % 0x180 } else { *offset };
            let effect = whole.write(offset, bytes);
            let mut sum = ConfigEffect::default();
            for (index, byte) in bytes.iter().enumerate() {
                sum = sum.and(bytewise.write(offset + index, &[*byte]));
            }
            prop_assert_eq!(effect, sum);
            prop_assert_eq!(whole.state(), bytewise.state());
        }
        for (register, dword) in layout.dwords.iter().enumerate() {
            let now = layout.read_register(whole.state(), register as u16 * 4);
            prop_assert_eq!((now ^ dword.initial) & !(dword.writable | dword.clearable), 0);
        }
        let restored = ConfigSpace::with_state(layout, *whole.state());
        let (mut left, mut right) = ([0; 4096], [0; 4096]);
        restored.read(0, &mut left);
        whole.read(0, &mut right);
        prop_assert_eq!(left, right);
    }
}
