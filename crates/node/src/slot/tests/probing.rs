//! Functions that a slot might meet: none at all, and some that make no sense.

use base::ids::{DomainId, RailId};
use base::ledger::{Arena, Journal, Ledger, PageCells, Pages};
use base::{Instant, RuleSet};
use fabric::{FabricAddress, Window};
use host::AccessError;
use host::AccessId;
use host::vfio_user::SlotConfigError;
use pcie::Header;
use proptest::prelude::*;
use zerocopy::FromBytes;

use super::super::BorrowedSlot;
use super::super::bringup::Stage;
use crate::cells::{EndCells, LoanKind, LoanParts, parts_of};
use crate::transaction::requester_of;

/// Where TLPs are queued.
#[derive(FromBytes)]
#[repr(C)]
struct PortCells {
    sender: link::SenderCells,
    tags: link::TagCells,
    receiver: link::ReceiverCells,
    pages: PageCells,
}

const NOW: Instant = Instant::from_nanos(1);

/// A function of registers, some of whose bits can be written.
struct Function {
    registers: Vec<u32>,
    writable: Vec<u32>,
}

impl Function {
    fn empty() -> Self {
        Self { registers: vec![0; 1024], writable: vec![0; 1024] }
    }

    fn with_bar(mut self, bar: usize, flags: u32, mask: u32) -> Self {
        (self.registers[4 + bar], self.writable[4 + bar]) = (flags, mask);
        self
    }

    /// Answers every request of the slot, `lost` of them too late, until it wants nothing more.
    fn serve(&mut self, slot: &mut BorrowedSlot<'_>, journal: Journal<'_>, mut lost: usize) {
        for _ in 0..20_000 {
            let Some((id, register, written)) = slot.next_for_tests() else { return };
            if lost > 0 {
                lost -= 1;
                slot.brought(NOW, id, Err(AccessError::Timeout));
                continue;
            }
            let index = usize::from(register) / 4;
            let answer = match written {
                Some(value) => {
                    let mask = self.writable[index];
                    self.registers[index] = self.registers[index] & !mask | value & mask;
                    Ok(Vec::new())
                }
                None => Ok(self.registers[index].to_le_bytes().to_vec()),
            };
            slot.brought(NOW, id, answer.as_deref().map_err(|error: &AccessError| *error));
            // Once more, and one of long ago.
            slot.brought(NOW, AccessId(id.0 ^ 1 << 20), Ok(&[0; 4]));
            journal.commit();
        }
        panic!("it never ends");
    }
}

fn new_slot<'m>(parts: LoanParts<'m>, journal: Journal<'m>) -> BorrowedSlot<'m> {
    let EndCells::Slot { session, slot } = parts.end else { unreachable!("it was made for a slot") };
    let (pages, gauges) = (Pages::new(parts.pages, journal), &parts.cells.edge);
    BorrowedSlot::new((session, slot), gauges, pages, journal, (0, requester_of(0)))
}

fn probe(function: &mut Function, lost: usize, look: impl FnOnce(&BorrowedSlot<'_>)) {
    let arena = Arena::default();
    let (journal, parts) = parts_of(&arena, LoanKind::Slot);
    let mut slot = new_slot(parts, journal);
    slot.begin_anew(NOW);
    function.serve(&mut slot, journal, lost);
    look(&slot);
    // A new card finds the same.
    let next = new_slot(parts, journal);
    assert_eq!((next.session().is_some(), next.unusable()), (slot.session().is_some(), slot.unusable()));
}

#[test]
fn without_a_function_there_is_no_slot() {
    let mut function = Function { registers: vec![u32::MAX; 1024], writable: vec![0; 1024] };
    probe(&mut function, 0, |slot| {
        assert_eq!(slot.unusable(), Some(SlotConfigError::Absent));
        assert!(!slot.is_ready() && slot.stage() == Stage::Unusable);
    });
}

#[test]
fn bars_are_sized_and_get_their_addresses_back() {
    let mut function = Function::empty().with_bar(0, 0x1000_0004, 0xffff_c000).with_bar(1, 2, u32::MAX);
    function = function.with_bar(2, 0, 0xffff_f000).with_bar(3, 1, 0xffff_ff00);
    let before = function.registers.clone();
    probe(&mut function, 3000, |slot| {
        assert!(slot.is_ready());
        assert_eq!(slot.bar_sizes_for_tests(), [0x4000, 0, 0x1000, 0, 0, 0]);
    });
    assert_eq!(function.registers, before);
}

/// Eight bytes of alignment are enough for a vector table, so that an entry may cross 4 KiB; and a BAR that has nothing
/// but flags is none.
#[test]
fn entries_of_a_vector_table_are_written_across_pages() {
    let mut function = Function::empty().with_bar(0, 0, 0xffff_c000).with_bar(1, 8, 0);
    function.registers[1] = 1 << 20;
    function.registers[0x34 / 4] = 0x40;
    (function.registers[0x40 / 4], function.registers[0x44 / 4]) = (1 << 16 | 0x11, 0xff8);
    function.registers[0x48 / 4] = 0x3000;
    let arena = Arena::default();
    let (journal, parts) = parts_of(&arena, LoanKind::Slot);
    let mut slot = new_slot(parts, journal);
    slot.begin_anew(NOW);
    function.serve(&mut slot, journal, 0);
    assert!(slot.is_ready(), "{:?}", slot.unusable());
    let (arena, window) = (Arena::default(), Window::new(DomainId(2), requester_of(4)));
    let Ledger { journal, root } = arena.zeroed::<PortCells>().ledger::<PortCells>(None, RuleSet::ALL);
    let sender = link::Sender::new(&root.sender, Pages::new(&root.pages, journal), journal);
    let tags = link::Tags::new(&root.tags, journal, base::times::COMPLETION_TIMEOUT);
    let mut port =
        link::Port { sender, tags, held: link::Held::new(&root.receiver, journal), rail: RailId::default() };
    (0..2).for_each(|vector| slot.program_vector(Instant::ZERO, &mut port, &window, vector, true));
    let written: Vec<_> = port.sender.headers().map(|header| Header::decode(header.as_bytes())).collect();
    let mut places: Vec<_> = written
        .into_iter()
        .map(|header| match header {
            Ok(Header::MemoryWrite(request)) => {
                (FabricAddress::decode(request.address).offset, request.byte_range().1)
            }
            other => panic!("{other:?}"),
        })
        .collect();
    places.sort_unstable();
    assert_eq!(places, [(0xff8, 8), (0x1000, 8), (0x1008, 8), (0x1010, 8)]);
}

#[test]
fn a_bar_that_no_fabric_address_reaches_is_refused_by_name() {
    let mut function = Function::empty().with_bar(2, 4, 0).with_bar(3, 0, 0xffff_fe00);
    probe(&mut function, 0, |slot| assert_eq!(slot.unusable(), Some(SlotConfigError::Bar(2))));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    /// Whatever it says, it is shown or refused.
    #[test]
    fn any_function_is_survived(
        head in proptest::collection::vec(any::<u32>(), 0x50),
        writable in proptest::collection::vec(any::<u32>(), 6),
        seed in any::<u32>(),
    ) {
        let mut function = Function::empty();
        function.registers[..0x50].copy_from_slice(&head);
        for (at, register) in function.registers.iter_mut().enumerate().skip(0x50) {
            *register = seed.wrapping_mul(at as u32 | 1).rotate_left(at as u32);
        }
        function.writable[4..10].copy_from_slice(&writable);
        probe(&mut function, 0, |slot| {
            assert!(slot.is_ready() || slot.unusable().is_some(), "{:?}", slot.stage());
        });
    }
}
