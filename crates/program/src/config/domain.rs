//! Virtual machines with slots.

use std::path::PathBuf;
use std::time::Duration;

use base::ids::{DomainBlock, DomainId};
use manager::model::OnSilence;
use toml::Spanned;

use super::raw;
use super::validate::Check;
use crate::cli::{NodeName, SocketAccess};
use crate::line::Line;

/// How long a guest may take to let go of a function, if nothing is said.
const REMOVE_AFTER: Duration = Duration::from_secs(30);

/// A virtual machine whose slots functions are attached to while it runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Domain {
    /// Its name.
    pub name: NodeName,
    /// QEMU's QMP socket, if slots are to be plugged in and out there.
    pub qmp: Option<PathBuf>,
    /// How long a guest may take to let go of a function.
    pub remove_after: Duration,
    /// Its slots.
    pub slots: Vec<Slot>,
}

/// A place for a function.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Slot {
    /// Its name, once in its domain.
    pub name: NodeName,
    /// Where its vfio-user socket lies while something is attached.
    pub socket: PathBuf,
    /// Who may connect.
    pub access: SocketAccess,
    /// The port that QMP plugs it into.
    pub bus: Option<String>,
    /// What QEMU calls the device.
    pub device: String,
    /// What is attached as long as nobody says otherwise.
    pub preset: Option<Line>,
    /// What becomes of what a line has attached when its lender is silent; `None`: it is kept, however long that takes.
    pub on_silence: Option<OnSilence>,
}

impl Domain {
    /// A machine with one slot, which is plugged in and out by this monitor.
    pub(crate) fn of_slot(name: NodeName, qmp: PathBuf, slot: Slot) -> Self {
        Self { name, qmp: Some(qmp), remove_after: REMOVE_AFTER, slots: vec![slot] }
    }
}

impl Check<'_> {
    /// `BASE/LEN`.
    pub(super) fn domain_block(&mut self, text: &Spanned<String>) -> Option<DomainBlock> {
        let parts = text.get_ref().split_once('/');
        let block = parts.and_then(|(base, len)| DomainBlock::new(base.parse().ok()?, len.parse().ok()?));
        if block.is_none() {
            let (shown, all) = (text.get_ref().escape_debug(), 1_u32 << DomainId::BITS);
            let what = format!(
                "`{shown}` is no block of domains: BASE/LEN, such as 4096/16, is LEN domains from BASE on, LEN a power \
                 of two and BASE a multiple of it, not 0, and none beyond {}",
                all - 1
            );
            self.wrong(text.span().start, what);
        }
        block
    }

    pub(super) fn domains(&mut self, raw: &[Spanned<raw::Domain>]) -> Vec<Domain> {
        let names = raw.iter().map(|domain| &domain.get_ref().name);
        self.twice("domain", names.map(|name| (name.span().start, name.get_ref())));
        raw.iter().filter_map(|domain| self.domain(domain)).collect()
    }

    fn domain(&mut self, raw: &Spanned<raw::Domain>) -> Option<Domain> {
        let at = raw.span().start;
        let raw = raw.get_ref();
        if raw.kind.get_ref() != "vm" {
            let shown = raw.kind.get_ref().escape_debug();
            self.wrong(
                raw.kind.span().start,
                format_args!("`{shown}` is no kind of domain; there is \"vm\""),
            );
        }
        if raw.slots.is_empty() {
            self.wrong(at, "a domain needs slots: add [[domains.slots]]");
        }
        let names = raw.slots.iter().map(|slot| &slot.get_ref().name);
        self.twice("slot", names.map(|name| (name.span().start, name.get_ref())));
        let name = self.parsed(&raw.name);
        let qmp = raw.qmp.as_ref().map(|qmp| self.socket(qmp));
        let remove_after = match &raw.remove_after_s {
            None => Some(REMOVE_AFTER),
            Some(seconds) => match u64::try_from(*seconds.get_ref()) {
                Ok(seconds @ 1..=3600) => Some(Duration::from_secs(seconds)),
                _ => {
                    self.wrong(seconds.span().start, "remove_after_s is a number of seconds from 1 to 3600");
                    None
                }
            },
        };
        for slot in raw.slots.iter().filter(|slot| raw.qmp.is_some() && slot.get_ref().bus.is_none()) {
            let why = "a slot that `qmp` plugs in needs `bus`: the root port for it, such as \"rp1\"; others take \
                       nothing while a machine runs";
            self.wrong(slot.span().start, why);
        }
        let slots = raw.slots.iter().filter_map(|slot| self.slot(slot)).collect();
        Some(Domain {
            name: name?,
            qmp: qmp.map_or(Some(None), |qmp| qmp.map(Some))?,
            remove_after: remove_after?,
            slots,
        })
    }

    fn slot(&mut self, raw: &Spanned<raw::Slot>) -> Option<Slot> {
        let at = raw.span().start;
        let raw = raw.get_ref();
        let name = self.parsed(&raw.name);
        let socket = self.socket(&raw.socket);
        let access = self.access([&raw.owner, &raw.group, &raw.mode]);
        let bus = raw.bus.as_ref().map(|bus| bus.get_ref().clone());
        let preset = match (&raw.line, &raw.line_file) {
            (None, None) => Some(None),
            (line, file) => self.line(at, line.as_ref(), file.as_ref()).map(Some),
        };
        let on_silence = self.on_silence(raw.on_silence.as_ref());
        let name: NodeName = name?;
        let device = format!("causeway-{name}");
        let (socket, access, preset, on_silence) = (socket?, access?, preset?, on_silence?);
        Some(Slot { name, socket, access, bus, device, preset, on_silence })
    }
}
