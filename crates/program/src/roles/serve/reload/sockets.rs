//! Sockets at which this very node listens: to probe one would make the node a guest of its own.

use std::path::{Path, PathBuf};

use io::agent::Edge;

use super::Node;
use crate::cli::SlotName;
use crate::config::{Change, LoanEdge};
use crate::exit::Failure;
use crate::roles::socket;

/// What listens, by name, and where.
type Listening = (String, PathBuf);

/// Refuses sockets that are to come where something of this node listens that stays, or has not gone yet.
pub(super) fn refuse_own(changes: &[Change], node: &Node) -> Result<(), Failure> {
    refuse(changes, &listening(node))
}

fn listening(node: &Node) -> Vec<Listening> {
    let view = node.agent.view();
    let own = view.spec().loans.iter().enumerate().filter_map(|(place, loan)| {
        let (Edge::Nbd { path, listener: Some(_) } | Edge::Vm { path, listener: Some(_), .. }) =
            loan.config.role.edge()?
        else {
            return None;
        };
        let name = node.domains.slot_of(place).map(|slot| format!("slot {slot}"));
        Some((name.unwrap_or_else(|| format!("the loan of {}", loan.function)), path.clone()))
    });
    let waiting = node.domains.waiting_sockets().map(|(slot, path)| (format!("slot {slot}"), path));
    own.chain(waiting).collect()
}

fn refuse(changes: &[Change], own: &[Listening]) -> Result<(), Failure> {
    for (name, path, may_stay) in changes.iter().flat_map(coming) {
        let is_there = |(other, at): &&Listening| !(may_stay && *other == name) && socket::is_same(at, path);
        if let Some((other, _)) = own.iter().find(is_there) {
            return Err(Failure::refused(format!(
                "socket {} is that of {other} of this node, until that has gone: choose another path for {name}; or \
                 take {name} out of the file and reload, and when {other} has gone put it in again and reload",
                path.display()
            )));
        }
    }
    Ok(())
}

/// The sockets that come by a change, what they are of, and whether that may have been there already.
fn coming(change: &Change) -> Vec<(String, &Path, bool)> {
    let slot = |domain, slot| format!("slot {}", SlotName { domain, slot });
    match change {
        Change::LoanAdded(loan) => {
            let (LoanEdge::Nbd { path } | LoanEdge::Vm { path, .. }) = &loan.edge;
            vec![(format!("the loan of {}", loan.line.function()), path, false)]
        }
        Change::SlotsAdded(domain, slots) => {
            let named = |it: &crate::config::Slot| slot(domain.name.clone(), it.name.clone());
            slots.iter().map(|it| (named(it), it.socket.as_path(), false)).collect()
        }
        Change::SlotChanged(domain, slots) => {
            vec![(slot(domain.name.clone(), slots[1].name.clone()), &slots[1].socket, true)]
        }
        _ => Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use super::*;
    use crate::config::{Config, compare};

    fn config(text: &str) -> Config {
        Config::parse(text, Path::new("/etc/causeway/store1.toml")).unwrap()
    }

    #[test]
    fn a_domain_of_another_name_is_no_guest_of_its_own_node() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("vm.sock");
        let listener = UnixListener::bind(&path).unwrap();
        listener.set_nonblocking(true).unwrap();
        let own = [("slot old/a".to_owned(), path.clone())];
        let domain = |name: &str, at: &str, access: &str| {
            let at = folder.path().join(at);
            config(&format!(
                "[[domains]]\nname = '{name}'\nkind = 'vm'\n[[domains.slots]]\nname = 'a'\nsocket = '{}'\n{access}",
                at.display()
            ))
        };
        let old = domain("old", "vm.sock", "");
        let why = |wanted: &Config| {
            refuse(&compare(&old, wanted), &own).err().map(|failure| failure.message().to_owned())
        };
        let said = why(&domain("new", "vm.sock", "")).unwrap();
        let words = ["is that of slot old/a of this node", "choose another path for slot new/a"];
        words.iter().for_each(|word| assert!(said.contains(word), "{said}"));
        let name = folder.path().file_name().unwrap().to_str().unwrap();
        assert!(why(&domain("new", &format!("../{name}/vm.sock"), "")).is_some(), "the same, in other words");
        assert_eq!(why(&domain("new", "other.sock", "")), None);
        assert_eq!(why(&domain("old", "vm.sock", "mode = '0660'\n")), None, "its own");
        assert!(listener.accept().is_err(), "it was probed");
    }
}
