//! What a manager has, as rows of tables and as single documents.

use std::fmt::Write;

use management::shapes::{
    ApiToken, Audit, Domain, Fabric, Function, JoinToken, Limits, Loan, Making, Node, Rail, RailVerdict,
    Slot, Switch,
};
use serde::Serialize;

use crate::cli::ByteSize;
use crate::status::{shown, table};

/// Something of which there is a list.
pub(super) trait Row: Serialize {
    /// How several are called, in a document too.
    const PLURAL: &'static str;
    /// Titles of the columns.
    const HEADING: &'static [&'static str];

    /// What is in the columns.
    fn cells(&self) -> Vec<String>;
}

/// Something that is shown alone.
pub(super) trait Whole: Serialize {
    /// Names and values. What is empty is left out.
    fn facts(&self) -> Vec<(&'static str, String)>;

    /// What else there is.
    fn tables(&self, _text: &mut String) {}
}

/// What nodes lend, by node.
#[derive(Serialize)]
pub(super) struct Device {
    pub(super) node: String,
    pub(super) functions: Vec<Function>,
}

/// A rail, with its node.
#[derive(Serialize)]
pub(super) struct NodeRail {
    pub(super) node: String,
    #[serde(flatten)]
    pub(super) rail: Rail,
}

/// A slot, with its domain.
#[derive(Serialize)]
pub(super) struct DomainSlot {
    pub(super) node: String,
    pub(super) domain: String,
    #[serde(flatten)]
    pub(super) slot: Slot,
}

fn access(read_only: bool) -> String {
    if read_only { "read-only" } else { "read-write" }.to_owned()
}

fn groups(groups: &[u16]) -> String {
    groups.iter().map(u16::to_string).collect::<Vec<_>>().join(",")
}

fn or_nothing(value: &Option<String>) -> String {
    value.clone().unwrap_or_default()
}

impl Row for Node {
    const PLURAL: &'static str = "nodes";
    const HEADING: &'static [&'static str] =
        &["NODE", "STATE", "FUNCTIONS", "GROUPS", "DOMAINS", "PROGRAM", "SINCE", "ALARMS"];

    fn cells(&self) -> Vec<String> {
        vec![
            self.name.clone(),
            self.state.clone(),
            self.functions.to_string(),
            groups(&self.groups),
            self.domains.clone(),
            or_nothing(&self.program),
            self.since.clone(),
            self.alarms.join("; "),
        ]
    }
}

impl Whole for Node {
    fn facts(&self) -> Vec<(&'static str, String)> {
        vec![
            ("node", self.name.clone()),
            ("id", self.node.clone()),
            ("state", self.state.clone()),
            ("since", self.since.clone()),
            ("silent since", or_nothing(&self.silent_since)),
            ("domains", self.domains.clone()),
            ("groups", groups(&self.groups)),
            ("functions", self.functions.to_string()),
            ("program", or_nothing(&self.program)),
            ("alarms", self.alarms.join("; ")),
        ]
    }

    fn tables(&self, text: &mut String) {
        let making = |it: &Making| vec![it.function.clone(), it.state.clone(), or_nothing(&it.why)];
        let rows: Vec<_> = self.making.iter().map(making).collect();
        if !rows.is_empty() {
            table(text, &["FUNCTION", "STATE", "WHY"], &rows);
        }
        let row = |rail: &Rail| {
            let (name, medium, address) = (&rail.name, &rail.medium, &rail.address);
            vec![name.clone(), medium.clone(), address.clone(), carrier(rail).to_owned(), verdict(rail)]
        };
        let rows: Vec<_> = self.rails.iter().map(row).collect();
        table(text, &["RAIL", "MEDIUM", "ADDRESS", "STATE", "VERDICT"], &rows);
    }
}

fn carrier(rail: &Rail) -> &'static str {
    if rail.is_up { "up" } else { "down" }
}

/// Why the rail seems to be dead, if it does.
fn verdict(rail: &Rail) -> String {
    let said =
        |it: &RailVerdict| format!("dead since {} ({}, says {})", it.since, it.cause, it.by.join(", "));
    rail.verdict.as_ref().map(said).unwrap_or_default()
}

impl Row for Function {
    const PLURAL: &'static str = "functions";
    const HEADING: &'static [&'static str] =
        &["FUNCTION", "KIND", "SIZE", "ACCESS", "STATE", "SLOT", "GEN", "SINCE"];

    fn cells(&self) -> Vec<String> {
        vec![
            self.name.clone(),
            self.kind.clone(),
            ByteSize(self.bytes).to_string(),
            access(self.read_only),
            self.state.clone(),
            or_nothing(&self.slot),
            self.generation.to_string(),
            or_nothing(&self.since),
        ]
    }
}

impl Whole for Function {
    fn facts(&self) -> Vec<(&'static str, String)> {
        vec![
            ("function", self.name.clone()),
            ("lender", self.node.clone()),
            ("made on", or_nothing(&self.made_on)),
            ("number", self.number.to_string()),
            ("kind", self.kind.clone()),
            ("size", ByteSize(self.bytes).to_string()),
            ("access", access(self.read_only)),
            ("state", self.state.clone()),
            ("slot", or_nothing(&self.slot)),
            ("since", or_nothing(&self.since)),
            ("generation", self.generation.to_string()),
            ("limits", limits(self)),
        ]
    }
}

/// What it may do by the manager's word; empty: that has said nothing.
fn limits(function: &Function) -> String {
    let Some(limits) = function.limits else { return String::new() };
    let pending = if function.is_limited { "" } else { ", which its lender has yet to apply" };
    format!("{}{pending}", limits_text(limits))
}

/// Limits in words.
pub(super) fn limits_text(limits: Limits) -> String {
    let commands = limits.iops.map(|iops| format!("{iops} commands"));
    let bytes = limits.bytes_per_s.map(|bytes| ByteSize(bytes).to_string());
    match (commands, bytes) {
        (None, None) => "none".to_owned(),
        (Some(commands), Some(bytes)) => format!("{commands} and {bytes} a second"),
        (Some(it), None) | (None, Some(it)) => format!("{it} a second"),
    }
}

impl Row for Device {
    const PLURAL: &'static str = "devices";
    const HEADING: &'static [&'static str] = &["LENDER", "FUNCTIONS", "FREE", "SIZE"];

    fn cells(&self) -> Vec<String> {
        let free = self.functions.iter().filter(|function| function.state == "free").count();
        let bytes = self.functions.iter().fold(0_u64, |sum, function| sum.saturating_add(function.bytes));
        vec![
            self.node.clone(),
            self.functions.len().to_string(),
            free.to_string(),
            ByteSize(bytes).to_string(),
        ]
    }
}

impl Whole for Device {
    fn facts(&self) -> Vec<(&'static str, String)> {
        vec![("lender", self.node.clone()), ("functions", self.functions.len().to_string())]
    }

    fn tables(&self, text: &mut String) {
        let rows: Vec<_> = self.functions.iter().map(Row::cells).collect();
        table(text, Function::HEADING, &rows);
    }
}

impl Row for Domain {
    const PLURAL: &'static str = "domains";
    const HEADING: &'static [&'static str] = &["DOMAIN", "NUMBER", "SLOTS", "TAKEN"];

    fn cells(&self) -> Vec<String> {
        let taken = self.slots.iter().filter(|slot| slot.function.is_some()).count();
        vec![
            self.name.clone(),
            format!("{:05x}", self.domain),
            self.slots.len().to_string(),
            taken.to_string(),
        ]
    }
}

impl Whole for Domain {
    fn facts(&self) -> Vec<(&'static str, String)> {
        vec![
            ("domain", self.name.clone()),
            ("node", self.node.clone()),
            ("number", format!("{:05x}", self.domain)),
        ]
    }

    fn tables(&self, text: &mut String) {
        let rows: Vec<_> = self.slots.iter().map(slot_cells).collect();
        table(text, SLOTS, &rows);
    }
}

const SLOTS: &[&str] = &["SLOT", "NUMBER", "FUNCTION", "STATE", "TROUBLE"];

fn slot_cells(slot: &Slot) -> Vec<String> {
    vec![
        slot.name.clone(),
        slot.slot.to_string(),
        or_nothing(&slot.function),
        or_nothing(&slot.state),
        or_nothing(&slot.trouble),
    ]
}

impl Row for DomainSlot {
    const PLURAL: &'static str = "slots";
    const HEADING: &'static [&'static str] = SLOTS;

    fn cells(&self) -> Vec<String> {
        slot_cells(&self.slot)
    }
}

impl Whole for DomainSlot {
    fn facts(&self) -> Vec<(&'static str, String)> {
        let Slot { name, slot, function, state, trouble } = &self.slot;
        vec![
            ("slot", name.clone()),
            ("number", slot.to_string()),
            ("node", self.node.clone()),
            ("domain", self.domain.clone()),
            ("function", or_nothing(function)),
            ("state", or_nothing(state)),
            ("trouble", or_nothing(trouble)),
        ]
    }
}

impl Whole for NodeRail {
    fn facts(&self) -> Vec<(&'static str, String)> {
        let rail = &self.rail;
        vec![
            ("rail", rail.name.clone()),
            ("number", rail.rail.to_string()),
            ("node", self.node.clone()),
            ("medium", rail.medium.clone()),
            ("address", rail.address.clone()),
            ("state", carrier(rail).to_owned()),
            ("verdict", verdict(rail)),
        ]
    }
}

impl Row for NodeRail {
    const PLURAL: &'static str = "rails";
    const HEADING: &'static [&'static str] = &["NODE", "RAIL", "MEDIUM", "ADDRESS", "STATE", "VERDICT"];

    fn cells(&self) -> Vec<String> {
        let rail = &self.rail;
        vec![
            self.node.clone(),
            rail.name.clone(),
            rail.medium.clone(),
            rail.address.clone(),
            carrier(rail).to_owned(),
            verdict(rail),
        ]
    }
}

impl Row for Switch {
    const PLURAL: &'static str = "switches";
    const HEADING: &'static [&'static str] = &["SWITCH", "STATE", "NODES", "PORTS", "ID"];

    fn cells(&self) -> Vec<String> {
        let (nodes, ports) = (self.nodes.join(" "), self.ports.join(" "));
        vec![shown(&self.name), self.state.clone(), nodes, ports, self.switch.clone()]
    }
}

impl Whole for Switch {
    fn facts(&self) -> Vec<(&'static str, String)> {
        vec![
            ("switch", shown(&self.name)),
            ("id", self.switch.clone()),
            ("state", self.state.clone()),
            ("heard by", self.nodes.join(" ")),
            ("ports", self.ports.join(" ")),
        ]
    }
}

impl Row for Loan {
    const PLURAL: &'static str = "loans";
    const HEADING: &'static [&'static str] =
        &["LOAN", "SLOT", "BORROWER", "GROUP", "STATE", "GEN", "ON SILENCE", "SINCE"];

    fn cells(&self) -> Vec<String> {
        vec![
            self.name.clone(),
            self.slot.clone(),
            self.borrower.clone(),
            self.group.to_string(),
            self.state.clone(),
            self.generation.to_string(),
            self.on_silence.clone(),
            self.since.clone(),
        ]
    }
}

impl Whole for Loan {
    fn facts(&self) -> Vec<(&'static str, String)> {
        vec![
            ("loan", self.name.clone()),
            ("lender", self.lender.clone()),
            ("borrower", self.borrower.clone()),
            ("slot", self.slot.clone()),
            ("group", self.group.to_string()),
            ("state", self.state.clone()),
            ("since", self.since.clone()),
            ("generation", self.generation.to_string()),
            ("on silence", self.on_silence.clone()),
        ]
    }
}

impl Row for ApiToken {
    const PLURAL: &'static str = "tokens";
    const HEADING: &'static [&'static str] = &["TOKEN", "ROLE", "HASH"];

    fn cells(&self) -> Vec<String> {
        vec![self.name.clone(), self.role.clone(), self.hash.clone()]
    }
}

impl Row for JoinToken {
    const PLURAL: &'static str = "join_tokens";
    const HEADING: &'static [&'static str] = &["JOIN TOKEN", "EXPIRES", "GROUPS", "DOMAINS", "USED BY"];

    fn cells(&self) -> Vec<String> {
        vec![
            self.hash.clone(),
            self.expires.clone(),
            groups(&self.groups),
            self.domains.to_string(),
            or_nothing(&self.used_by),
        ]
    }
}

impl Row for Audit {
    const PLURAL: &'static str = "entries";
    const HEADING: &'static [&'static str] = &["INDEX", "AT", "WHO", "WHAT", "RESULT"];

    fn cells(&self) -> Vec<String> {
        vec![self.index.clone(), self.at.clone(), self.who.clone(), self.what.clone(), self.result.clone()]
    }
}

impl Whole for Fabric {
    fn facts(&self) -> Vec<(&'static str, String)> {
        let restoring = self.restoring.as_ref().map(|nodes| match nodes.is_empty() {
            true => "all nodes of the backup were heard: `causeway manager end-restore` ends it".to_owned(),
            false => format!("not heard since: {}", nodes.join(", ")),
        });
        vec![
            ("fabric", self.fabric.clone()),
            ("epoch", self.epoch.to_string()),
            ("log entry", self.index.to_string()),
            ("nodes", format!("{}, {} of them heard", self.nodes, self.reachable)),
            ("functions", self.functions.to_string()),
            ("restore", or_nothing(&restoring)),
            ("clock", self.now.clone()),
            ("alarms", self.alarms.join("; ")),
        ]
    }
}

/// A table for people.
pub(super) fn render<R: Row>(rows: &[R]) -> String {
    if rows.is_empty() {
        return format!("no {}\n", R::PLURAL.replace('_', " "));
    }
    let mut text = String::new();
    table(&mut text, R::HEADING, &rows.iter().map(Row::cells).collect::<Vec<_>>());
    text.split_off(1)
}

/// Names and values in two columns, then tables.
pub(super) fn render_whole(it: &impl Whole) -> String {
    let facts: Vec<_> = it.facts().into_iter().filter(|(_, value)| !value.is_empty()).collect();
    let width = facts.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
    let mut text = String::new();
    for (name, value) in facts {
        let _ = writeln!(text, "{name:width$}  {}", shown(&value));
    }
    it.tables(&mut text);
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn function(name: &str, state: &str, slot: Option<&str>) -> Function {
        Function {
            name: format!("store/{name}"),
            node: "store".to_owned(),
            number: 1,
            kind: "nvme".to_owned(),
            bytes: 1 << 30,
            read_only: false,
            generation: 3,
            state: state.to_owned(),
            slot: slot.map(str::to_owned),
            since: None,
            made_on: None,
            limits: None,
            is_limited: false,
        }
    }

    #[test]
    fn lists_are_aligned_and_cannot_write_to_the_terminal() {
        let rows = [function("nvme0", "applied", Some("desk/vm1/disk0")), function("a\u{1b}", "free", None)];
        assert_eq!(
            render(&rows),
            "FUNCTION     KIND  SIZE   ACCESS      STATE    SLOT            GEN  SINCE\n\
             store/nvme0  nvme  1 GiB  read-write  applied  desk/vm1/disk0  3    -\n\
             store/a?     nvme  1 GiB  read-write  free     -               3    -\n"
        );
        assert_eq!(render::<JoinToken>(&[]), "no join tokens\n");
        let device = Device { node: "store".to_owned(), functions: rows.into() };
        assert_eq!(render(&[device]), "LENDER  FUNCTIONS  FREE  SIZE\nstore   2          1     2 GiB\n");
    }

    #[test]
    fn one_thing_is_shown_line_by_line_without_what_is_empty() {
        assert_eq!(
            render_whole(&function("nvme0", "fr\nee", None)),
            "function    store/nvme0\nlender      store\nnumber      1\nkind        nvme\nsize        1 GiB\n\
             access      read-write\nstate       fr?ee\ngeneration  3\n"
        );
        let slot = Slot {
            name: "desk/vm1/disk0".to_owned(),
            slot: 0,
            function: Some("store/nvme0".to_owned()),
            state: Some("guest has it".to_owned()),
            trouble: None,
        };
        let domain = Domain {
            name: "desk/vm1".to_owned(),
            node: "desk".to_owned(),
            domain: 0x1041,
            slots: vec![slot],
        };
        assert_eq!(
            render_whole(&domain),
            "domain  desk/vm1\nnode    desk\nnumber  01041\n\n\
             SLOT            NUMBER  FUNCTION     STATE         TROUBLE\n\
             desk/vm1/disk0  0       store/nvme0  guest has it  -\n"
        );
    }
}
