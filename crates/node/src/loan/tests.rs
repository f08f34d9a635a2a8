//! Whatever TLPs a peer sends, each end of a loan goes on: nothing panics, and each step ends with a commit.

use base::RuleSet;
use base::ids::{CardGeneration, DomainId, Incarnation, LifeId, RailId};
use base::ledger::Arena;
use fabric::FabricAddress;
use link::pair::FunctionId;
use link::{Lender, NodeKey, Secret, Sink};
use pcie::{Completion, CompletionStatus, ConfigKind, ConfigRequest, Header, MemoryRequest, Tag, TlpView};
use proptest::prelude::*;

use super::*;
use crate::Address;
use crate::apertures::bar_address;
use crate::config::{LendConfig, LoanConfig};
use crate::transaction::requester_of;
use crate::{BorrowEdge, DriveConfig, NodeLedger, RailConfig, Route};

const NOW: Instant = Instant::from_nanos(1);
const DOMAIN: DomainId = DomainId(7);
/// What this end is called by the other one.
const OTHER: pcie::Bdf = pcie::Bdf(0x500);
/// Where something lies in the aperture of either end: registers, the MSI-X table, queues, interrupts, data, and
/// nothing.
const BASES: [u64; 6] = [0, 0x2000, 0x1000_0000, 0x2000_0000, 0x4000_0000, 0x7_0000_0000];

#[derive(Clone, Debug)]
enum Tlp {
    Write(usize, u32, Vec<u8>),
    Read(usize, u32, usize, u16),
    ConfigRead(u16, u16),
    ConfigWrite(u16, u32, u8, u16),
    Completion(u16, Option<Vec<u8>>),
    Raw(Vec<u8>),
}

fn any_tlp() -> impl Strategy<Value = Tlp> {
    let offset = || prop_oneof![0..0x40_u32, 0x1000..0x1010_u32, 0..0x6000_u32].prop_map(|at| at & !3);
    let bytes = |most| proptest::collection::vec(any::<u8>(), 0..most);
    let dwords = proptest::collection::vec(any::<[u8; 4]>(), 1..=64).prop_map(|data| data.concat());
    prop_oneof![
        4 => (0..BASES.len(), offset(), dwords.clone()).prop_map(|(base, at, data)| Tlp::Write(base, at, data)),
        2 => (0..BASES.len(), offset(), 1..=256_usize, 0..1024_u16)
            .prop_map(|(base, at, len, tag)| Tlp::Read(base, at, len, tag)),
        1 => (0..0x100_u16, 0..1024_u16).prop_map(|(register, tag)| Tlp::ConfigRead(register * 4, tag)),
        1 => (0..0x100_u16, any::<u32>(), 0..16_u8, 0..1024_u16)
            .prop_map(|(register, value, enables, tag)| Tlp::ConfigWrite(register * 4, value, enables, tag)),
        2 => (0..64_u16, proptest::option::of(dwords)).prop_map(|(tag, data)| Tlp::Completion(tag, data)),
        1 => bytes(96).prop_map(Tlp::Raw),
    ]
}

impl Tlp {
    /// As it travels; nothing where its parts make no packet.
    fn encode(&self, sender: pcie::Bdf, bar: u8) -> Option<Vec<u8>> {
        let tag = |tag: u16| Tag::new(tag).expect("ten bits are a tag");
        let at = |base: usize, offset: u32| {
            let offset = BASES[base] + u64::from(offset);
            let offset = if BASES[base] < 0x1000_0000 { bar_address(bar, offset).unwrap() } else { offset };
            FabricAddress { domain: DOMAIN, rail: RailId::default(), offset }.encode()
        };
        let target = OTHER;
        let config = |register, tag_: u16, first_be| ConfigRequest {
            requester: sender,
            tag: tag(tag_),
            target,
            register,
            first_be,
            kind: ConfigKind::Type0,
            poisoned: false,
        };
        let (header, data) = match self {
            Self::Raw(bytes) => return Some(bytes.clone()),
            Self::Write(base, offset, data) => {
                let request = MemoryRequest::new(sender, Tag::default(), at(*base, *offset), data.len());
                (Header::MemoryWrite(request.ok()?), data.clone())
            }
            Self::Read(base, offset, len, number) => {
                let request = MemoryRequest::new(sender, tag(*number), at(*base, *offset), *len);
                (Header::MemoryRead(request.ok()?), Vec::new())
            }
            Self::ConfigRead(register, number) => {
                (Header::ConfigRead(config(*register, *number, 0xf)), Vec::new())
            }
            Self::ConfigWrite(register, value, enables, number) => {
                let header = Header::ConfigWrite(config(*register, *number, *enables));
                (header, value.to_le_bytes().to_vec())
            }
            Self::Completion(number, data) => {
                let header = match data {
                    Some(_) => Completion::config_data(target, tag(*number), sender),
                    None => {
                        let status = CompletionStatus::UnsupportedRequest;
                        Completion::without_data(target, tag(*number), sender, status)
                    }
                };
                (Header::Completion(header), data.clone().map(|data| data[..4].to_vec()).unwrap_or_default())
            }
        };
        Some([header.encode().as_bytes(), &data].concat())
    }
}

fn card(role: LoanRole) -> CardConfig {
    let loan = LoanConfig::new(Secret([5; 32]), FunctionId(7), role);
    // The memory of a machine has a domain to itself.
    let is_slot = matches!(loan.role, LoanRole::Borrow { edge: BorrowEdge::Slot { .. }, .. });
    CardConfig {
        identity: NodeKey::numbered(1),
        name: Name::new("node"),
        domain: if is_slot { DomainId(6) } else { DOMAIN },
        incarnation: Incarnation(1),
        life: LifeId([1; 16]),
        restored_as: None,
        generation: CardGeneration(1),
        seed: Secret([1; 32]),
        protection: link::Protection::Aegis,
        rail_mode: link::RailMode::default(),
        lost_carriers: 0,
        rails: RailConfig::first(1, 9000),
        drives: vec![Some(DriveConfig::new(1 << 12, 512, 7))],
        loans: vec![loan],
        holders: Vec::new(),
        rekey_frames: link::REKEY_FRAMES,
        rules: RuleSet::ALL,
    }
}

/// Hands everything to the end of a loan that `role` makes, and lets it do what follows.
fn give(role: LoanRole, sender: pcie::Bdf, tlps: &[Tlp]) {
    let arena = Arena::default();
    let config = card(role);
    let ledger = NodeLedger::new(config.new_memory(&arena), None, RuleSet::ALL);
    let owner = crate::cells::drive_owner(0, 0);
    let (journal, cells) = (ledger.journal, ledger.obtain_drive(owner).unwrap());
    let parts = ledger.parts(0, &config.loans[0], &ledger.loans()).unwrap().unwrap();
    let lent = config.drives[0].clone();
    let drives = [lent.map(|lent| Drive::new(0, (owner, cells), journal, lent, &config.loans))];
    let decoder = Rc::new(config.decoder());
    let mut loan = Loan::new(parts, journal, &config, 0, (&drives, None), decoder, NOW);
    let window = Some(Window::new(DomainId(8), OTHER));
    loan.end.set_peer(window, 4096);
    loan.end.handle_reset(NOW);
    loan.end.handle_open(NOW);
    journal.commit();
    let mut now = NOW;
    for tlp in tlps {
        now += core::time::Duration::from_micros(50);
        let Some(bytes) = tlp.encode(sender, 0) else { continue };
        let Ok(view) = TlpView::parse(&bytes) else { continue };
        loan.end.accept(now, &mut loan.stream.port, &view);
        _ = loan.end.pump(now, &mut loan.stream.port, true);
        while loan.poll_media(0).is_some() {}
        journal.commit();
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn a_lent_function_takes_any_tlps(tlps in proptest::collection::vec(any_tlp(), 0..200)) {
        give(LoanRole::Lend(LendConfig::of(0)), requester_of(0), &tlps);
    }

    #[test]
    fn a_borrowed_drive_takes_any_tlps(tlps in proptest::collection::vec(any_tlp(), 0..200)) {
        let io_timeout = core::time::Duration::from_secs(1);
        let routes = vec![Route { rail: RailId::ALL[0], peer: Address::NONE, max_frame: 9000 }];
        let (lender, edge) = (Lender::default(), BorrowEdge::Drive);
        give(LoanRole::Borrow { lender, routes, io_timeout, edge }, requester_of(0), &tlps);
    }

    #[test]
    fn a_borrowed_slot_takes_any_tlps(tlps in proptest::collection::vec(any_tlp(), 0..200)) {
        let io_timeout = core::time::Duration::from_secs(1);
        let routes = vec![Route { rail: RailId::ALL[0], peer: Address::NONE, max_frame: 9000 }];
        let (lender, edge) = (Lender::default(), BorrowEdge::Slot { domain: DOMAIN });
        give(LoanRole::Borrow { lender, routes, io_timeout, edge }, requester_of(0), &tlps);
    }
}
