//! What people call a slot, and which one that is.
//!
//! | text | which |
//! |---|---|
//! | `DOMAIN/SLOT` | that slot of the only domain of that name |
//! | `NODE/DOMAIN/SLOT` | also where several nodes have such a domain |
//!
//! A domain and a slot may be named by number, too, also when the node has never been heard: the domain as five
//! hexadecimal digits, as it is shown everywhere (`00021`), the slot in decimal digits. A name goes before a number.

use base::ids::DomainId;
use manager::model::{Name, Place, nearest};
use manager::refusal::Refusal;
use manager::state::State;

use super::core::View;
use super::nodes::Nodes;
use super::problem::Failure;
use crate::wire::DomainSaid;

/// Candidates in an answer.
const CANDIDATES: usize = 8;

/// Finds the slot.
pub(super) fn find(view: &View<'_>, text: &str) -> Result<Place, Failure> {
    let parts: Vec<&str> = text.split('/').collect();
    match parts[..] {
        [domain, slot] => find_in(view, None, domain, slot),
        [node, domain, slot] => {
            let name = parse(node)?;
            find_in(view, Some(&name), domain, slot)
        }
        _ => Err(Failure::malformed(format!(
            "`{}` is no slot: one is DOMAIN/SLOT or NODE/DOMAIN/SLOT",
            short(text)
        ))),
    }
}

/// What a slot is called.
pub(super) fn name(state: &State, nodes: &Nodes, place: Place) -> String {
    let Some(node) = state.node_of_domain(place.domain) else { return place.to_string() };
    let domains = nodes.get(node.id).map(|known| &known.about.domains[..]).unwrap_or_default();
    let domain = domains.iter().find(|domain| domain.domain == place.domain);
    let slot = domain.and_then(|domain| domain.slots.iter().find(|slot| slot.slot == place.slot));
    let of = |name: Option<&Name>, number: String| name.map_or(number, ToString::to_string);
    let domain = of(domain.map(|domain| &domain.name), place.domain.to_string());
    let slot = of(slot.map(|slot| &slot.name), place.slot.to_string());
    format!("{}/{domain}/{slot}", node.name)
}

fn find_in(view: &View<'_>, node: Option<&Name>, domain: &str, slot: &str) -> Result<Place, Failure> {
    if let Some(name) = node
        && view.state().node_called(name).is_none()
    {
        let nearest = nearest(name, view.state().node_names());
        return Err(Refusal::NoNode { name: name.clone(), nearest }.into());
    }
    let called: Vec<(&Name, &DomainSaid)> =
        domains(view, node).filter(|(_, said)| said.name.as_str() == domain).collect();
    // Names of other nodes may be the same, and look like numbers: only a node's own are certain.
    let is_certain = node.is_some() || called.len() != 1;
    if !is_certain && (number(domain).is_some() || view.has_unheard()) {
        return Err(Failure::new(
            super::problem::Kind::Conflict,
            format!(
                "say which node, as {}/{domain}/{slot}: `{domain}` may be a number, or a domain of a node that was not \
                 heard since the manager was started",
                called[0].0
            ),
        ));
    }
    match called[..] {
        [(_, said)] => slot_of(said, slot),
        [] => by_number(view, node, domain, slot),
        _ => {
            let candidates = called.iter().take(CANDIDATES);
            let candidates: Vec<String> =
                candidates.map(|(node, said)| format!("{node}/{}/{slot}", said.name)).collect();
            Err(Failure::new(
                super::problem::Kind::Conflict,
                format!(
                    "{} nodes have a domain `{domain}`: say which, as {}",
                    called.len(),
                    candidates.join(", ")
                ),
            ))
        }
    }
}

/// Domains that nodes have said they have, of one node or of all.
fn domains<'v>(
    view: &'v View<'_>,
    node: Option<&'v Name>,
) -> impl Iterator<Item = (&'v Name, &'v DomainSaid)> {
    // In order of names, so that an answer with candidates is the same each time.
    let names = view.state().node_names().filter(move |it| node.is_none_or(|name| *it == name));
    let nodes = names.filter_map(|name| view.state().node_called(name));
    nodes.flat_map(|node| {
        let domains = view.nodes.get(node.id).map(|known| &known.about.domains[..]).unwrap_or_default();
        domains.iter().map(|domain| (&node.name, domain))
    })
}

fn slot_of(domain: &DomainSaid, slot: &str) -> Result<Place, Failure> {
    let named = domain.slots.iter().find(|said| said.name.as_str() == slot).map(|said| said.slot);
    match named.or_else(|| slot.parse().ok()) {
        Some(slot) => Ok(Place { domain: domain.domain, slot }),
        None => {
            let nearest = nearest(&parse(slot)?, domain.slots.iter().map(|slot| &slot.name));
            Err(unknown("slot", slot, nearest, format!("domain `{}` has no", domain.name)))
        }
    }
}

fn by_number(view: &View<'_>, node: Option<&Name>, domain: &str, slot: &str) -> Result<Place, Failure> {
    let Some(number) = number(domain) else {
        let name = parse(domain)?;
        let nearest = nearest(&name, domains(view, node).map(|(_, said)| &said.name));
        return Err(unknown("domain", domain, nearest, "no node that was heard has a".to_owned()));
    };
    let owner = view.state().node_of_domain(number).ok_or(Refusal::NoDomain { domain: number })?;
    if let Some(name) = node.filter(|name| **name != owner.name) {
        return Err(Failure::not_found(format!(
            "domain {number} is not of `{name}` but of `{}`",
            owner.name
        )));
    }
    let said = view.nodes.get(owner.id).map(|known| &known.about.domains[..]).unwrap_or_default();
    if let Some(said) = said.iter().find(|said| said.domain == number) {
        return slot_of(said, slot);
    }
    let malformed = || {
        Failure::malformed(format!(
            "`{}` is no number of a slot, and node `{}` has not said what its slots are called",
            short(slot),
            owner.name
        ))
    };
    let slot = slot.parse().map_err(|_| malformed())?;
    Ok(Place { domain: number, slot })
}

/// A domain as its number is shown.
fn number(text: &str) -> Option<DomainId> {
    let is_number = text.len() == 5 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    is_number.then(|| u32::from_str_radix(text, 16).ok()).flatten()?.try_into().ok()
}

fn unknown(what: &str, text: &str, nearest: Option<Name>, who: String) -> Failure {
    let meant = nearest.map(|name| format!("; did you mean `{name}`?")).unwrap_or_default();
    Failure::not_found(format!("{who} {what} `{}`{meant}", short(text)))
}

fn parse(text: &str) -> Result<Name, Failure> {
    text.parse().map_err(|error: manager::model::BadName| Failure::malformed(error.to_string()))
}

/// The beginning of what a stranger has sent.
fn short(text: &str) -> String {
    text.chars().take(Name::MAX).collect::<String>().escape_debug().to_string()
}
