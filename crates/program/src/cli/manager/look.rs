//! Lists, and single things.

use std::collections::BTreeMap;

use management::client::Target;
use management::shapes::{Domain, Fabric, Function, Node, Switch};
use manager::model::{Name, nearest_text};
use serde::de::DeserializeOwned;
use serde::ser::SerializeMap;
use serde::{Serialize, Serializer};
use serde_json::Value;

use super::args::{Asker, ListArgs, NamedArgs, OfNodeArgs, PartNamedArgs, SwitchNamedArgs};
use super::rows::{Device, DomainSlot, NodeRail, Row, Whole, render, render_whole};
use super::{Session, filtered, target_of};
use crate::cli::run::{print, print_json};
use crate::cli::{Output, OutputArgs};
use crate::exit::Failure;
use crate::status::shown;

/// Of documents that are printed.
const VERSION: u32 = 1;

/// All rows of a list of the interface.
pub(super) fn list<R: Row + DeserializeOwned>(args: &ListArgs, path: &[&str]) -> Result<(), Failure> {
    let rows: Vec<R> = Session::open(&args.asker)?.list(&filtered(path, &args.filter))?;
    print_rows(&rows, args.output)
}

/// One document of the interface.
pub(super) fn show<W: Whole + DeserializeOwned>(
    asker: &Asker,
    path: [&str; 2],
    output: OutputArgs,
) -> Result<(), Failure> {
    print_whole(&Session::open(asker)?.get::<W>(&Target::new(path))?, output)
}

/// One thing that a node has.
pub(super) fn show_of_node<W: Whole + DeserializeOwned>(
    args: &OfNodeArgs,
    kind: &str,
) -> Result<(), Failure> {
    print_whole(&Session::open(&args.asker)?.get::<W>(&target_of(kind, &args.name))?, args.output)
}

/// The fabric.
pub(super) fn fabric(asker: &Asker, output: OutputArgs) -> Result<(), Failure> {
    let fabric: Fabric = Session::open(asker)?.get(&Target::new([]))?;
    match output.format {
        Output::Text => print(&render_whole(&fabric)),
        Output::Json => print_json(&fabric),
    }
}

/// `causeway device list`: what is lent, by lender. The filter is for functions.
pub(in crate::cli) fn devices(args: &ListArgs) -> Result<(), Failure> {
    let functions = Session::open(&args.asker)?.list(&filtered(&["functions"], &args.filter))?;
    print_rows(&by_lender(functions), args.output)
}

/// `causeway device show`.
pub(in crate::cli) fn show_device(args: &NamedArgs) -> Result<(), Failure> {
    let mut session = Session::open(&args.asker)?;
    // One that does not lend has no functions; one that is not there is answered with the nearest name.
    let node: Node = session.get(&Target::new(["nodes", args.name.as_str()]))?;
    let functions = session.list(&Target::new(["functions"]).with("node", &node.name))?;
    print_whole(&Device { node: node.name, functions }, args.output)
}

/// `causeway switch list`.
pub(in crate::cli) fn switches(args: &ListArgs) -> Result<(), Failure> {
    list::<Switch>(args, &["switches"])
}

/// `causeway switch show`.
pub(in crate::cli) fn show_switch(args: &SwitchNamedArgs) -> Result<(), Failure> {
    let all: Vec<Switch> = Session::open(&args.asker)?.list(&Target::new(["switches"]))?;
    print_whole(one_switch(&all, &args.name)?, args.output)
}

/// The switch of this id, or the only one of this name.
fn one_switch<'a>(all: &'a [Switch], name: &str) -> Result<&'a Switch, Failure> {
    let called: Vec<&Switch> = all.iter().filter(|it| it.name == name || it.switch == name).collect();
    match called[..] {
        [one] => Ok(one),
        [] => {
            let meant = nearest_text(name, all.iter().map(|it| it.name.as_str()));
            let meant = meant.map(|meant| format!("; did you mean `{}`?", shown(meant))).unwrap_or_default();
            let name = name.escape_debug();
            Err(Failure::refused(format_args!("no node has said of a switch `{name}`{meant}")))
        }
        ref several => {
            let ids: Vec<&str> = several.iter().map(|it| it.switch.as_str()).collect();
            let (name, ids) = (name.escape_debug(), ids.join(", "));
            Err(Failure::refused(format_args!(
                "several switches call themselves `{name}`: say which one, {ids}"
            )))
        }
    }
}

/// `causeway slot list`.
pub(super) fn slots(args: &ListArgs) -> Result<(), Failure> {
    let fields = &["node", "domain", "name", "slot", "function", "state", "trouble"];
    print_rows(&chosen(all_slots(&args.asker)?, &args.filter, fields)?, args.output)
}

/// `causeway slot show`.
pub(super) fn show_slot(args: &PartNamedArgs) -> Result<(), Failure> {
    let all: Vec<_> = all_slots(&args.asker)?.map(|slot| (slot.slot.name.clone(), slot)).collect();
    print_whole(one_of(&all, &args.name)?, args.output)
}

fn all_slots(asker: &Asker) -> Result<impl Iterator<Item = DomainSlot>, Failure> {
    let domains: Vec<Domain> = Session::open(asker)?.list(&Target::new(["domains"]))?;
    let of = |it: Domain| {
        let (node, domain) = (it.node, it.name);
        it.slots.into_iter().map(move |slot| DomainSlot { node: node.clone(), domain: domain.clone(), slot })
    };
    Ok(domains.into_iter().flat_map(of))
}

/// `causeway rail list`.
pub(super) fn rails(args: &ListArgs) -> Result<(), Failure> {
    let fields = &["node", "name", "rail", "medium", "address", "is_up", "verdict"];
    print_rows(&chosen(all_rails(&args.asker)?, &args.filter, fields)?, args.output)
}

/// `causeway rail show`.
pub(super) fn show_rail(args: &PartNamedArgs) -> Result<(), Failure> {
    let name = |it: &NodeRail| format!("{}/{}", it.node, it.rail.name);
    let all: Vec<_> = all_rails(&args.asker)?.map(|rail| (name(&rail), rail)).collect();
    print_whole(one_of(&all, &args.name)?, args.output)
}

fn all_rails(asker: &Asker) -> Result<impl Iterator<Item = NodeRail>, Failure> {
    let nodes: Vec<Node> = Session::open(asker)?.list(&Target::new(["nodes"]))?;
    let of = |it: Node| {
        let name = it.name;
        it.rails.into_iter().map(move |rail| NodeRail { node: name.clone(), rail })
    };
    Ok(nodes.into_iter().flat_map(of))
}

/// The one of this name; or which name is like it.
fn one_of<'a, R: Row>(all: &'a [(String, R)], name: &str) -> Result<&'a R, Failure> {
    if let Some((_, it)) = all.iter().find(|(known, _)| known == name) {
        return Ok(it);
    }
    let meant = nearest_text(name, all.iter().map(|(known, _)| known.as_str()));
    let meant = meant.map(|meant| format!("; did you mean `{}`?", shown(meant))).unwrap_or_default();
    let (kind, name) = (R::PLURAL, name.escape_debug());
    Err(Failure::refused(format_args!("there is no `{name}` among the {kind} of the fabric{meant}")))
}

fn by_lender(functions: Vec<Function>) -> Vec<Device> {
    let mut devices: BTreeMap<String, Vec<Function>> = BTreeMap::new();
    for function in functions {
        devices.entry(function.node.clone()).or_default().push(function);
    }
    devices.into_iter().map(|(node, functions)| Device { node, functions }).collect()
}

/// Those rows of which each of these fields has its value. The interface knows no such list, so nobody else does it.
fn chosen<R: Row>(
    rows: impl Iterator<Item = R>,
    filter: &[(String, String)],
    fields: &[&str],
) -> Result<Vec<R>, Failure> {
    if let Some((wrong, _)) = filter.iter().find(|(field, _)| !fields.contains(&field.as_str())) {
        let hint = match nearest_text(wrong, fields.iter().copied()) {
            Some(meant) => format!("did you mean `{meant}`?"),
            None => format!("there are: {}", fields.join(", ")),
        };
        let kind = R::PLURAL;
        return Err(Failure::usage(format_args!("{kind} have no field `{}`; {hint}", wrong.escape_debug())));
    }
    let fits = |row: &R| {
        let row = serde_json::to_value(row).unwrap_or_default();
        filter.iter().all(|(field, value)| match &row[field] {
            Value::String(text) => text == value,
            // What is not there is as empty.
            Value::Null => value.is_empty(),
            other => serde_json::from_str(value).is_ok_and(|value: Value| value == *other),
        })
    };
    Ok(rows.filter(fits).collect())
}

/// `{"version": 1, PLURAL: rows}`.
struct Rows<'a, R>(&'a [R]);

impl<R: Row> Serialize for Rows<'_, R> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(2))?;
        map.serialize_entry("version", &VERSION)?;
        map.serialize_entry(R::PLURAL, self.0)?;
        map.end()
    }
}

/// One thing, with the version before its fields.
#[derive(Serialize)]
struct Document<'a, W> {
    version: u32,
    #[serde(flatten)]
    it: &'a W,
}

fn print_rows<R: Row>(rows: &[R], output: OutputArgs) -> Result<(), Failure> {
    match output.format {
        Output::Text => print(&render(rows)),
        Output::Json => print_json(&Rows(rows)),
    }
}

fn print_whole(it: &impl Whole, output: OutputArgs) -> Result<(), Failure> {
    match output.format {
        Output::Text => print(&render_whole(it)),
        Output::Json => print_json(&Document { version: VERSION, it }),
    }
}

/// Whether the manager hears a node; one that is not there it does not.
pub(super) fn is_silent(session: &mut Session, node: &Name) -> Result<bool, Failure> {
    let node: Option<Node> = session.find(&Target::new(["nodes", node.as_str()]))?;
    Ok(node.is_none_or(|node| node.state != "reachable"))
}

#[cfg(test)]
mod tests {
    use management::shapes::{Rail, Slot};

    use super::*;

    fn rail(node: &str, is_up: bool) -> NodeRail {
        let (name, medium, address) = ("rail0".to_owned(), "udp".to_owned(), "10.0.0.1:7411".to_owned());
        NodeRail {
            node: node.to_owned(),
            rail: Rail { name, rail: 0, medium, address, is_up, verdict: None },
        }
    }

    fn filter(text: &str) -> Vec<(String, String)> {
        let (field, value) = text.split_once('=').unwrap();
        vec![(field.to_owned(), value.to_owned())]
    }

    #[test]
    fn documents_begin_with_their_version() {
        let text = serde_json::to_string(&Rows(&[rail("desk", true)])).unwrap();
        assert_eq!(
            text,
            r#"{"version":1,"rails":[{"node":"desk","name":"rail0","rail":0,"medium":"udp","address":"10.0.0.1:7411","is_up":true}]}"#
        );
        let it = Device { node: "store".to_owned(), functions: Vec::new() };
        let text = serde_json::to_string(&Document { version: VERSION, it: &it }).unwrap();
        assert_eq!(text, r#"{"version":1,"node":"store","functions":[]}"#);
    }

    #[test]
    fn a_switch_is_found_by_its_name_or_by_its_id() {
        let switch = |name: &str, id: &str| Switch {
            name: name.to_owned(),
            switch: id.to_owned(),
            state: "heard".to_owned(),
            nodes: Vec::new(),
            ports: Vec::new(),
        };
        let all = [switch("middle", "0a"), switch("edge", "0b"), switch("edge", "0c")];
        let found = |name: &str| one_switch(&all, name).map(|it| it.switch.as_str());
        assert_eq!((found("middle").unwrap(), found("0c").unwrap()), ("0a", "0c"));
        assert!(found("edge").unwrap_err().message().ends_with("which one, 0b, 0c"));
        assert!(found("midle").unwrap_err().message().ends_with("did you mean `middle`?"));
    }

    #[test]
    fn a_part_is_found_by_its_whole_name() {
        let all = ["desk", "store"].map(|node| (format!("{node}/rail0"), rail(node, true)));
        assert_eq!(one_of(&all, "store/rail0").map(|it| it.node.as_str()).unwrap(), "store");
        let wrong = one_of(&all, "stor/rail0").map(|_| ()).unwrap_err();
        let told = "there is no `stor/rail0` among the rails of the fabric; did you mean `store/rail0`?";
        assert_eq!(wrong.message(), told);
        let text = render_whole(&all[0].1);
        assert!(text.contains("desk") && text.contains("10.0.0.1:7411"), "{text}");
    }

    #[test]
    fn rows_are_chosen_by_their_fields() {
        let fields = &["node", "is_up", "function"];
        let nodes = |text: &str| {
            let rows = [rail("desk", true), rail("store", false)];
            let rows = chosen(rows.into_iter(), &filter(text), fields).unwrap();
            rows.into_iter().map(|row| row.node).collect::<Vec<_>>()
        };
        assert_eq!(nodes("node=desk"), ["desk"]);
        assert_eq!(nodes("is_up=false"), ["store"]);
        assert!(nodes("node=des").is_empty());
        let wrong = chosen([rail("desk", true)].into_iter(), &filter("nod=x"), fields).err().unwrap();
        assert_eq!(wrong.message(), "rails have no field `nod`; did you mean `node`?");
        let wrong = chosen([rail("desk", true)].into_iter(), &filter("colour=x"), fields).err().unwrap();
        assert!(wrong.message().ends_with("there are: node, is_up, function"));
        // An empty slot is found by what it has not.
        let slot = |function: Option<&str>| Slot {
            name: "desk/vm1/disk0".to_owned(),
            slot: 0,
            function: function.map(str::to_owned),
            state: None,
            trouble: None,
        };
        let slot = |function| DomainSlot {
            node: "desk".to_owned(),
            domain: "desk/vm1".to_owned(),
            slot: slot(function),
        };
        let rows = [slot(None), slot(Some("store/nvme0"))];
        let found = chosen(rows.into_iter(), &filter("function="), fields).unwrap();
        assert!(found.len() == 1 && found[0].slot.function.is_none());
    }
}
