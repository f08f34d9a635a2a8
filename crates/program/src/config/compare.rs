//! What a changed file asks of a node that runs: two configurations, compared.
//!
//! A device is known by its function's name, a loan by the secret of its line, rails, domains and slots by their names.
//! What differs is either something that a running node does, or a [`Fixed`], which takes a restart or another reload.

use std::fmt;

use base::ids::RailId;
use manager::model::OnSilence;
use serde::{Deserialize, Serialize};

use super::{Config, Device, Domain, Layout, Loan, Rail, Slot};
use crate::line::Line;

/// What to do about a change that no running node can make.
const RESTART: &str = "restart the node for that";
const ANEW: &str = "take it out of the file and reload, and when nobody has it any more put it in again and reload, or \
                    restart the node";

const LAST_RAIL: &str =
    "a node needs a rail to be reached by, and one that the file names: let another one come first";
const BY_DEFAULT: &str = "the node listens at addresses that its file does not name: restart it for that";
const OTHER_RAIL: &str = "let a rail of another name come in its place, or restart the node";
const OTHER_ID: &str =
    "let a rail of another name come in its place, at another address or port, or restart the node";

/// One thing in which two configurations differ.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change {
    /// A device more is to be lent.
    DeviceAdded(Device),
    /// A device is to be lent no more.
    DeviceRemoved(Device),
    /// Other nodes may have what a device lends.
    Allow(Device),
    /// The functions of a device have other limits.
    Limits(Device),
    /// A rail is to come.
    RailAdded(Rail),
    /// A rail is to go.
    RailRemoved(Rail),
    /// Something more is to be borrowed.
    LoanAdded(Loan),
    /// Something is to be given back.
    LoanRemoved(Loan),
    /// Slots of a virtual machine come: of one that is there, or of a new one.
    SlotsAdded(Domain, Vec<Slot>),
    /// Slots of a virtual machine go: perhaps all.
    SlotsRemoved(Domain, Vec<Slot>),
    /// A slot of a virtual machine has another socket or preset: as it was, and as it is to be.
    SlotChanged(Domain, Box<[Slot; 2]>),
    /// What a running node cannot do.
    Fixed(Fixed),
}

/// A change that a running node cannot make.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fixed {
    /// Of what.
    pub thing: Thing,
    /// Of which one.
    pub name: String,
    /// What is to become of it.
    pub action: Action,
    /// In which way.
    pub detail: String,
    /// What to do instead.
    pub remedy: String,
}

/// What a change is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Thing {
    /// Something that is lent.
    Device,
    /// Something that is borrowed.
    Loan,
    /// An address to listen at.
    Rail,
    /// A virtual machine with slots.
    Domain,
    /// A key of the node itself.
    Setting,
}

/// What becomes of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Action {
    /// It comes.
    Added,
    /// It goes.
    Removed,
    /// It stays, and is another one.
    Changed,
}

impl fmt::Display for Thing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Device => "device",
            Self::Loan => "loan",
            Self::Rail => "rail",
            Self::Domain => "domain",
            Self::Setting => "setting",
        })
    }
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Added => "added",
            Self::Removed => "removed",
            Self::Changed => "changed",
        })
    }
}

impl Change {
    /// What it is about: which thing, its name, what becomes of it, and how.
    pub fn parts(&self) -> (Thing, String, Action, String) {
        let device =
            |device: &Device, action, detail| (Thing::Device, device.function.to_string(), action, detail);
        let rail = |rail: &Rail, action| (Thing::Rail, rail.name.clone(), action, rail.listen.to_string());
        let loan = |loan: &Loan, action| {
            let detail = format!("from {}, served at {}", addresses(&loan.line), loan.edge.uri());
            (Thing::Loan, loan.line.function().to_string(), action, detail)
        };
        // What comes to a domain, or goes from it, changes that.
        let domain = |domain: &Domain, slots: &[Slot], action| {
            let names: Vec<&str> = slots.iter().map(|slot| slot.name.as_str()).collect();
            let names = names.join(", ");
            match slots.len() == domain.slots.len() {
                true => (Thing::Domain, domain.name.to_string(), action, format!("with its slots {names}")),
                false => (
                    Thing::Domain,
                    domain.name.to_string(),
                    Action::Changed,
                    format!("slots {action}: {names}"),
                ),
            }
        };
        match self {
            Self::DeviceAdded(it) => device(it, Action::Added, source(it)),
            Self::DeviceRemoved(it) => device(it, Action::Removed, source(it)),
            Self::Allow(it) => device(it, Action::Changed, allowed(it)),
            Self::Limits(it) => device(it, Action::Changed, "limits".to_owned()),
            Self::RailAdded(it) => rail(it, Action::Added),
            Self::RailRemoved(it) => rail(it, Action::Removed),
            Self::LoanAdded(it) => loan(it, Action::Added),
            Self::LoanRemoved(it) => loan(it, Action::Removed),
            Self::SlotsAdded(it, slots) => domain(it, slots, Action::Added),
            Self::SlotsRemoved(it, slots) => domain(it, slots, Action::Removed),
            Self::SlotChanged(it, slots) => {
                (Thing::Domain, it.name.to_string(), Action::Changed, slot_change(slots))
            }
            Self::Fixed(it) => (it.thing, it.name.clone(), it.action, it.detail.clone()),
        }
    }
}

/// In what `wanted` differs from `running`. What goes comes first, in the order of the running one.
pub fn compare(running: &Config, wanted: &Config) -> Vec<Change> {
    let mut changes = Vec::new();
    settings(running, wanted, &mut changes);
    rails(running, wanted, &mut changes);
    domains(running, wanted, &mut changes);
    devices(running, wanted, &mut changes);
    loans(running, wanted, &mut changes);
    changes
}

fn fixed(thing: Thing, name: impl Into<String>, action: Action, detail: String, remedy: &str) -> Change {
    Change::Fixed(Fixed { thing, name: name.into(), action, detail, remedy: remedy.to_owned() })
}

fn settings(running: &Config, wanted: &Config, changes: &mut Vec<Change>) {
    let mut compare = |key: &str, is_same: bool, detail: String| {
        if !is_same {
            changes.push(fixed(Thing::Setting, key, Action::Changed, detail, RESTART));
        }
    };
    compare("name", running.name == wanted.name, format!("{} to {}", running.name, wanted.name));
    let folder = |config: &Config| match &config.state_dir {
        Some(path) => path.display().to_string(),
        None => "the default".to_owned(),
    };
    let is_same = running.state_dir == wanted.state_dir;
    compare("state_dir", is_same, format!("{} to {}", folder(running), folder(wanted)));
    let is_same = running.protection == wanted.protection;
    compare("insecure, cipher", is_same, "how frames are protected".to_owned());
    compare("mode", running.rail_mode == wanted.rail_mode, "how several rails are used".to_owned());
    let is_same = running.shared_memory == wanted.shared_memory;
    compare("shm", is_same, format!("{} to {}", running.shared_memory, wanted.shared_memory));
    let is_same = running.only_members == wanted.only_members;
    compare("only_members", is_same, "who is let in".to_owned());
    let is_same = running.domain_block == wanted.domain_block;
    compare("domain_block", is_same, "the node's domains".to_owned());
    compare("group_key", running.group_key == wanted.group_key, "the key for notices to all".to_owned());
    compare("ledger", running.ledger == wanted.ledger, "how large the ledger may become".to_owned());
}

/// What `running` has and `wanted` has not, what both have, and what only `wanted` has.
fn matched<'a, T, K: PartialEq>(
    running: &'a [T],
    wanted: &'a [T],
    key: impl Fn(&'a T) -> K,
) -> (Vec<&'a T>, Vec<(&'a T, &'a T)>, Vec<&'a T>) {
    let find = |among: &'a [T], of: &'a T| among.iter().find(|it| key(it) == key(of));
    let gone = running.iter().filter(|it| find(wanted, it).is_none()).collect();
    let both = running.iter().filter_map(|it| Some((it, find(wanted, it)?))).collect();
    let come = wanted.iter().filter(|it| find(running, it).is_none()).collect();
    (gone, both, come)
}

/// A rail is its name as long as the node runs: which id it has where the file says none stays as it is.
fn rails(running: &Config, wanted: &Config, changes: &mut Vec<Change>) {
    let (gone, both, come) = matched(&running.rails, &wanted.rails, |rail| &rail.name);
    let is_by_default = running.rails.is_empty() || wanted.rails.is_empty();
    let mut add = |rail: &Rail, action, detail, remedy| {
        changes.push(fixed(Thing::Rail, &rail.name, action, detail, remedy));
    };
    if is_by_default {
        gone.iter().for_each(|rail| add(rail, Action::Removed, rail.listen.to_string(), LAST_RAIL));
        come.iter().for_each(|rail| add(rail, Action::Added, rail.listen.to_string(), BY_DEFAULT));
        return;
    }
    for (before, after) in both.iter().filter(|(before, after)| before.listen != after.listen) {
        add(after, Action::Changed, format!("{} to {}", before.listen, after.listen), OTHER_RAIL);
    }
    for (_, after) in both.iter().filter(|(before, after)| before.switch != after.switch) {
        let detail =
            after.switch.map_or("without a switch".to_owned(), |switch| format!("behind switch {switch}"));
        add(after, Action::Changed, detail, OTHER_RAIL);
    }
    for (_, after) in both.iter().filter(|(before, after)| before.announce != after.announce) {
        let detail = if after.announce { "it announces the node" } else { "it announces nothing" };
        add(after, Action::Changed, detail.to_owned(), OTHER_RAIL);
    }
    for (_, after) in both.iter().filter(|(before, after)| before.offload != after.offload) {
        let detail = if after.offload { "frames go many at once" } else { "frames go one by one" };
        add(after, Action::Changed, detail.to_owned(), OTHER_RAIL);
    }
    let is_other = |(before, after): &&(&Rail, &Rail)| after.id.is_some() && before.id != after.id;
    for (_, after) in both.iter().filter(is_other) {
        let id = after.id.map_or(0, RailId::get);
        add(after, Action::Changed, format!("its id is to be {id}"), OTHER_ID);
    }
    changes.extend(come.into_iter().cloned().map(Change::RailAdded));
    changes.extend(gone.into_iter().cloned().map(Change::RailRemoved));
}

fn domains(running: &Config, wanted: &Config, changes: &mut Vec<Change>) {
    let (gone, both, come) = matched(&running.domains, &wanted.domains, |domain| &domain.name);
    let removed = |it: &Domain| Change::SlotsRemoved(it.clone(), it.slots.clone());
    changes.extend(gone.into_iter().map(removed));
    for (before, after) in both {
        let name = before.name.as_str();
        if (&before.qmp, before.remove_after) != (&after.qmp, after.remove_after) {
            let detail = "its qmp or remove_after_s".to_owned();
            changes.push(fixed(Thing::Domain, name, Action::Changed, detail, ANEW));
        }
        let (gone, both, come) = matched(&before.slots, &after.slots, |slot| &slot.name);
        let all = |slots: Vec<&Slot>| slots.into_iter().cloned().collect::<Vec<_>>();
        if !gone.is_empty() {
            changes.push(Change::SlotsRemoved(before.clone(), all(gone)));
        }
        for (slot, wanted) in both.into_iter().filter(|(before, after)| before != after) {
            changes.push(if slot.bus == wanted.bus {
                Change::SlotChanged(after.clone(), Box::new([slot.clone(), wanted.clone()]))
            } else {
                let detail = format!("the bus of slot {}", slot.name);
                fixed(Thing::Domain, name, Action::Changed, detail, ANEW)
            });
        }
        if !come.is_empty() {
            changes.push(Change::SlotsAdded(after.clone(), all(come)));
        }
    }
    changes.extend(come.into_iter().map(|it| Change::SlotsAdded(it.clone(), it.slots.clone())));
}

/// In which way a slot is another one.
fn slot_change([before, after]: &[Slot; 2]) -> String {
    let mut found = Vec::new();
    if before.socket != after.socket {
        found.push(format!("socket {} to {}", before.socket.display(), after.socket.display()));
    }
    if before.access != after.access {
        found.push("who may connect".to_owned());
    }
    if before.preset != after.preset {
        let [before, after] = [before, after].map(|slot| match &slot.preset {
            None => "nothing".to_owned(),
            Some(line) => format!("{} from {}", line.function(), addresses(line)),
        });
        found.push(format!("attached {before} to {after}"));
    }
    found.extend(silence_change(before.on_silence, after.on_silence));
    format!("slot {}: {}", after.name, found.join(", "))
}

/// In which way other things become of it in silence.
fn silence_change(before: Option<OnSilence>, after: Option<OnSilence>) -> Option<String> {
    let text = |it: Option<OnSilence>| it.map_or("nothing".to_owned(), |it| it.to_string());
    (before != after).then(|| format!("on_silence {} to {}", text(before), text(after)))
}

fn devices(running: &Config, wanted: &Config, changes: &mut Vec<Change>) {
    let (gone, both, come) = matched(&running.devices, &wanted.devices, |device| &device.function);
    changes.extend(gone.iter().map(|device| Change::DeviceRemoved((*device).clone())));
    for (before, after) in both {
        if let Some(detail) = rebuilt(before, after) {
            let name = before.function.to_string();
            changes.push(fixed(Thing::Device, name, Action::Changed, detail, ANEW));
            continue;
        }
        if before.allow != after.allow {
            changes.push(Change::Allow(after.clone()));
        }
        if before.limit != after.limit || before.layout != after.layout {
            changes.push(Change::Limits(after.clone()));
        }
    }
    for device in come {
        let path = device.source.path();
        changes.push(match gone.iter().find(|it| path.is_some() && it.source.path() == path) {
            None => Change::DeviceAdded(device.clone()),
            // Its image is free when the disk has ended what was asked of it.
            Some(before) => {
                let remedy = format!(
                    "{} is lent from that, and has to go first: reload without either, and put {} in when it has gone",
                    before.function, device.function
                );
                fixed(Thing::Device, device.function.to_string(), Action::Added, source(device), &remedy)
            }
        });
    }
}

/// What makes another drive of a device, if anything does.
fn rebuilt(before: &Device, after: &Device) -> Option<String> {
    let from_to =
        |key: &str, before: &dyn fmt::Display, after: &dyn fmt::Display| format!("{key} {before} to {after}");
    let mut found = Vec::new();
    if before.source != after.source {
        found.push(from_to("source", &before.source, &after.source));
    }
    if before.read_only != after.read_only {
        found.push(from_to("read_only", &before.read_only, &after.read_only));
    }
    if before.block_size != after.block_size {
        found.push(from_to("block_size", &before.block_size.bytes(), &after.block_size.bytes()));
    }
    if before.cache != after.cache {
        found.push("cache".to_owned());
    }
    if before.group != after.group {
        found.push(from_to("group", &before.group, &after.group));
    }
    if !has_same_parts(&before.layout, &after.layout) {
        found.push("functions or namespaces".to_owned());
    } else if before.group == after.group
        && let (Layout::Declared { functions, .. }, Layout::Declared { functions: others, .. }) =
            (&before.layout, &after.layout)
    {
        let moved = functions.iter().zip(others).filter(|(before, after)| before.group != after.group);
        found.extend(moved.map(|(before, after)| {
            from_to(&format!("group of {}", before.name), &before.group, &after.group)
        }));
    }
    (!found.is_empty()).then(|| found.join(", "))
}

/// Whether two layouts differ in limits and groups at most.
fn has_same_parts(before: &Layout, after: &Layout) -> bool {
    match (before, after) {
        (
            Layout::Declared { namespaces, functions },
            Layout::Declared { namespaces: others, functions: after },
        ) => {
            let part = |it: &super::Function| (it.name.clone(), it.namespace);
            namespaces == others && functions.iter().map(part).eq(after.iter().map(part))
        }
        _ => before == after,
    }
}

fn loans(running: &Config, wanted: &Config, changes: &mut Vec<Change>) {
    let (gone, both, come) = matched(&running.loans, &wanted.loans, |loan| loan.line.secret());
    changes.extend(gone.into_iter().cloned().map(Change::LoanRemoved));
    for (before, after) in both.into_iter().filter(|(before, after)| before != after) {
        let mut found = Vec::new();
        if before.line != after.line {
            found.push(format!(
                "its lender's address {} to {}",
                addresses(&before.line),
                addresses(&after.line)
            ));
        }
        if before.edge != after.edge {
            found.push(format!("its socket {} to {}", before.edge.uri(), after.edge.uri()));
        }
        if before.io_timeout != after.io_timeout {
            let [before, after] = [before, after].map(|loan| loan.io_timeout.as_secs());
            found.push(format!("io_timeout_s {before} to {after}"));
        }
        found.extend(silence_change(before.on_silence, after.on_silence));
        let name = before.line.function().to_string();
        changes.push(fixed(Thing::Loan, name, Action::Changed, found.join(", "), ANEW));
    }
    changes.extend(come.into_iter().cloned().map(Change::LoanAdded));
}

fn source(device: &Device) -> String {
    match device.layout.functions() {
        1 => device.source.to_string(),
        count => format!("{}, {count} functions", device.source),
    }
}

fn allowed(device: &Device) -> String {
    match device.allow.as_deref() {
        None => "all that have its line may have it".to_owned(),
        Some([]) => "nobody may have it".to_owned(),
        Some([_]) => "one node may have it".to_owned(),
        Some(nodes) => format!("{} nodes may have it", nodes.len()),
    }
}

fn addresses(line: &Line) -> String {
    line.addresses().iter().map(|(_, address)| address.to_string()).collect::<Vec<_>>().join(" and ")
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::line::tests::example;

    fn config(text: &str) -> Config {
        Config::parse(text, Path::new("/etc/causeway/store1.toml")).unwrap()
    }

    /// What differs, in words.
    fn changed(before: &str, after: &str) -> Vec<String> {
        let words = |change: &Change| {
            let (thing, name, action, detail) = change.parts();
            let is_fixed = if matches!(change, Change::Fixed(_)) { "fixed: " } else { "" };
            format!("{is_fixed}{thing} {name} {action}: {detail}")
        };
        compare(&config(before), &config(after)).iter().map(words).collect()
    }

    const A: &str = "[[devices]]\nfunction = 'a'\nsource = 'ram:1M'\n";
    const B: &str = "[[devices]]\nfunction = 'b'\nsource = 'b.img'\n";

    fn loan(more: &str) -> String {
        format!("[[loans]]\nline = '{}'\n{more}", example().reveal())
    }

    #[test]
    fn the_same_file_asks_nothing() {
        let text = format!("{A}{B}{}", loan("nbd = 'x'\n"));
        assert_eq!(changed(&text, &text), Vec::<String>::new());
        // Nor does another order of what has no order.
        assert_eq!(changed(&format!("{A}{B}"), &format!("{B}{A}")), Vec::<String>::new());
    }

    #[test]
    fn devices_come_and_go() {
        assert_eq!(changed(A, &format!("{A}{B}")), ["device b added: /etc/causeway/b.img"]);
        assert_eq!(changed(&format!("{A}{B}"), B), ["device a removed: ram:1M"]);
        let renamed = A.replace("'a'", "'c'");
        assert_eq!(changed(A, &renamed), ["device a removed: ram:1M", "device c added: ram:1M"]);
        // What lies in a file is another device only when the one before has gone.
        let renamed = B.replace("'b'", "'c'");
        assert_eq!(
            changed(B, &renamed),
            ["device b removed: /etc/causeway/b.img", "fixed: device c added: /etc/causeway/b.img"]
        );
        let changes = compare(&config(B), &config(&renamed));
        assert!(matches!(&changes[1], Change::Fixed(it) if it.remedy.starts_with("b is lent from that")));
        let split = format!("{A}functions = 4\n");
        assert_eq!(changed(B, &format!("{B}{split}")), ["device a added: ram:1M, 4 functions"]);
    }

    #[test]
    fn lists_and_limits_change_in_place() {
        let limited = format!("{A}iops = 5\n");
        assert_eq!(changed(A, &limited), ["device a changed: limits"]);
        let declared = |limit: &str| {
            format!("{A}[[devices.functions]]\nname = 'x'\n{limit}[[devices.functions]]\nname = 'y'\n")
        };
        assert_eq!(changed(&declared(""), &declared("iops = 7\n")), ["device a changed: limits"]);
        let moved = [declared(""), declared("group = 7\n"), format!("{A}group = 7\n")];
        assert_eq!(changed(&moved[0], &moved[1]), ["fixed: device a changed: group of x 1 to 7"]);
        assert_eq!(changed(A, &moved[2]), ["fixed: device a changed: group 1 to 7"]);
        let nobody = format!("{A}allow = []\n");
        assert_eq!(changed(A, &nobody), ["device a changed: nobody may have it"]);
        assert_eq!(changed(&nobody, A), ["device a changed: all that have its line may have it"]);
        let both = format!("{A}allow = []\nbytes_per_s = 9\n");
        assert_eq!(changed(A, &both).len(), 2);
    }

    #[test]
    fn what_makes_another_drive_is_not_done_in_place() {
        for (more, words) in [
            ("read_only = true\n", "read_only false to true"),
            ("block_size = 4096\n", "block_size 512 to 4096"),
            ("cache = 'volatile'\n", "cache"),
            ("functions = 2\n", "functions or namespaces"),
        ] {
            let after = format!("{A}iops = 3\n{more}");
            assert_eq!(changed(A, &after), [format!("fixed: device a changed: {words}")]);
        }
        let larger = A.replace("1M", "2M");
        assert_eq!(changed(A, &larger), ["fixed: device a changed: source ram:1M to ram:2M"]);
        let declared = |name: &str| format!("{A}[[devices.functions]]\nname = '{name}'\n");
        assert_eq!(
            changed(&declared("x"), &declared("y")),
            ["fixed: device a changed: functions or namespaces"]
        );
    }

    #[test]
    fn loans_come_and_go_and_stay_what_they_are() {
        let address = "192.0.2.1:7411";
        let with = |more: &str| format!("{A}{}", loan(more));
        let nbd = "nbd+unix:///?socket=/etc/causeway/x";
        let added = format!("loan nvme0 added: from {address}, served at {nbd}");
        assert_eq!(changed(&with("nbd = 'x'\n"), A), [added.replace("added", "removed")]);
        assert_eq!(changed(A, &with("nbd = 'x'\n")), [added]);
        let moved = changed(&with("nbd = 'x'\n"), &with("vm = 'y'\nio_timeout_s = 7\n"));
        let to = format!("its socket {nbd} to vfio-user:/etc/causeway/y, io_timeout_s 30 to 7");
        assert_eq!(moved, [format!("fixed: loan nvme0 changed: {to}")]);
        // The function has another address, and is the same.
        let line = example();
        let moved = "192.0.2.9:7411".parse().unwrap();
        let moved = Line::new(line.lender(), line.secret().clone(), moved, line.function().clone()).unwrap();
        let elsewhere = with("nbd = 'x'\n").replace(&line.reveal(), &moved.reveal());
        let [only] = &compare(&config(&with("nbd = 'x'\n")), &config(&elsewhere))[..] else { panic!() };
        assert!(matches!(only, Change::Fixed(fixed) if fixed.detail.contains("192.0.2.9")), "{only:?}");
    }

    #[test]
    fn what_the_node_itself_is_takes_a_restart() {
        let rail =
            |name: &str, port: u16| format!("[[rails]]\nname = '{name}'\nlisten = '10.0.0.1:{port}'\n");
        let before = format!("{}{}{A}", rail("r", 1), rail("s", 2));
        assert_eq!(
            changed(&before, &format!("{}{}{A}", rail("r", 3), rail("t", 2))),
            [
                "fixed: rail r changed: 10.0.0.1:1 to 10.0.0.1:3",
                "rail t added: 10.0.0.1:2",
                "rail s removed: 10.0.0.1:2",
            ]
        );
        // They have ids, whatever their order is.
        assert_eq!(changed(&before, &format!("{}{}{A}", rail("s", 2), rail("r", 1))), [""; 0]);
        let numbered = before.replace("listen = '10.0.0.1:1'", "listen = '10.0.0.1:1'\nid = 2");
        assert_eq!(changed(&before, &numbered), ["fixed: rail r changed: its id is to be 2"]);
        assert_eq!(changed(&numbered, &before), [""; 0], "it has one, and keeps it");
        // A node has a rail that its file names, or those that it finds.
        assert_eq!(
            changed(&before, A),
            ["fixed: rail r removed: 10.0.0.1:1", "fixed: rail s removed: 10.0.0.1:2"]
        );
        assert_eq!(changed(A, &format!("{}{A}", rail("r", 1))), ["fixed: rail r added: 10.0.0.1:1"]);
        let settings = format!("name = 'n'\nstate_dir = 's'\ninsecure = true\nshm = false\n{A}");
        let changes = compare(&config(A), &config(&settings));
        let keys: Vec<_> = changes.iter().map(|change| change.parts().1).collect();
        assert_eq!(keys, ["name", "state_dir", "insecure, cipher", "shm"]);
        let slots = |name: &str| {
            format!(
                "{A}[[domains]]\nname = 'vm'\nkind = 'vm'\n[[domains.slots]]\nname = '{name}'\nsocket = 's'\n"
            )
        };
        assert_eq!(changed(A, &slots("d")), ["domain vm added: with its slots d"]);
        assert_eq!(changed(&slots("d"), A), ["domain vm removed: with its slots d"]);
        let two = format!("{}[[domains.slots]]\nname = 'e'\nsocket = 't'\n", slots("d"));
        assert_eq!(changed(&slots("d"), &two), ["domain vm changed: slots added: e"]);
        assert_eq!(changed(&two, &slots("d")), ["domain vm changed: slots removed: e"]);
        let moved = slots("d").replace("'s'", "'elsewhere'");
        let [change] = &changed(&slots("d"), &moved)[..] else { panic!() };
        assert_eq!(*change, "domain vm changed: slot d: socket /etc/causeway/s to /etc/causeway/elsewhere");
        let line = format!("line = '{}'\n", example().reveal());
        let preset = format!("{}mode = '0660'\n{line}", slots("d"));
        let what = "slot d: who may connect, attached nothing to nvme0 from 192.0.2.1:7411";
        assert_eq!(changed(&slots("d"), &preset), [format!("domain vm changed: {what}")]);
        let [kept, removed] = ["", "on_silence = 'remove'\n"].map(|it| format!("{}{it}", slots("d")));
        let what = "domain vm changed: slot d: on_silence nothing to remove";
        assert_eq!(changed(&kept, &removed), [what], "a node that runs takes it over");
        let bus = format!("{}bus = 'rp1'\n", slots("d"));
        assert_eq!(changed(&slots("d"), &bus), ["fixed: domain vm changed: the bus of slot d"]);
    }
}
