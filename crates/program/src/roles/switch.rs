//! `causeway switch`: forwards until SIGTERM.
//!
//! It has a key and an id as a node has, and a control socket under its name. Nothing that it forwards needs the key:
//! it is for a channel of its own, over which it can be told of its ports.

mod announcement;
mod control;

use std::sync::Arc;
use std::time::{Duration, Instant};

use io::event::Event;
use io::switch::{Door, OPTIONS, Place, PortView, Switch};
use node::switch::{Ownership, Reason};

use self::announcement::Announcement;
use self::control::{Control, Listed, Partitions};
use super::report::medium_of;
use super::signals::{Asked, Hangup, Signals};
use super::{open_state, rails, serve};
use crate::cli::Listen;
use crate::config::SwitchConfig;
use crate::control::capture::{Capture, CaptureOrder, Link};
use crate::control::{Answers, Request, Response};
use crate::exit::Failure;
use crate::state_dir::StateDir;
use crate::status::{self, Status};

/// How long a busy switch goes without looking whether somebody asks something of it.
const DEAF: Duration = Duration::from_millis(5);

/// Forwards until SIGTERM.
pub fn switch(config: SwitchConfig) -> Result<(), Failure> {
    let SwitchConfig { name, state_dir, control: control_at, ports, table, spec, owners } = config;
    let mut state = open_state(state_dir.as_deref(), &name)?;
    let mut control = serve::control_socket(&name)?;
    let (partitions, restored) = Partitions::new(Ownership::new(spec, owners), ports, &state)?;
    let ports = partitions.ports();
    let (mut doors, mut places): (Vec<(Listen, Door)>, Vec<Place>) = (Vec::new(), Vec::new());
    for port in ports {
        let known = doors.iter().position(|(listen, _)| *listen == port.listen);
        let door = match known {
            Some(door) => door,
            None => {
                let socket = rails::open(&port.listen, 0, &OPTIONS)?;
                let interface = match &port.listen {
                    Listen::Ethernet { interface } => Some(interface.clone()),
                    Listen::Udp { .. } => None,
                };
                doors.push((port.listen.clone(), Door::new(&port.name, socket, interface)));
                doors.len() - 1
            }
        };
        places.push(Place { door, peer: port.peer, announces: port.announces });
    }
    let (table, listed) = (restored.unwrap_or(table), partitions.listed());
    let count = ports.len();
    let told_at = control_at.map(Control::bind).transpose()?;
    let doors = doors.into_iter().map(|(_, door)| door).collect();
    let failed = |error: std::io::Error| Failure::io("the switch cannot go on", &error);
    let mut switch = Switch::new(table, doors, places).map_err(failed)?;
    let mut signals =
        Signals::listen(Hangup::Ends).map_err(|error| Failure::io("cannot watch for signals", &error))?;
    switch.watch(rustix::fd::AsFd::as_fd(&signals)).map_err(failed)?;
    switch.watch(control.as_fd()).map_err(failed)?;
    state.keep();
    let state = Arc::new(state);
    let channel = told_at.map(|socket| Control::start(socket, partitions, &state)).transpose()?;
    if let Some(channel) = &channel {
        switch.watch(rustix::fd::AsFd::as_fd(channel)).map_err(failed)?;
    }
    crate::cli::print(&format!("switch {name}, {count} ports, id {}\n", state.identity().id()))?;
    let url = channel.as_ref().map(|channel| channel.url.to_string());
    if let Some(url) = &url {
        crate::cli::print(&format!("{url}\n"))?;
    }
    let mut announcement = Announcement::new(name.as_str(), &state, &switch);
    let mut looked = Instant::now();
    let mut stop = false;
    loop {
        let is_busy = switch.turn().map_err(failed)?;
        if is_busy && looked.elapsed() < DEAF {
            continue;
        }
        looked = Instant::now();
        announcement.turn(&mut switch).map_err(failed)?;
        stop |= matches!(signals.take(), Some(Asked::First | Asked::Again));
        if let Some(channel) = &channel {
            channel.turn(&mut switch);
        }
        let http = control.address().to_string();
        let told = Told { name: name.as_str(), http: &http, url: url.as_deref(), listed: &listed };
        control.turn(&mut Answering { switch: &mut switch, state: &state, told, stop: &mut stop });
        if stop {
            Event::NodeEnding {}.say();
            return Ok(());
        }
    }
}

/// What a switch says of itself beside its ports.
struct Told<'a> {
    name: &'a str,
    http: &'a str,
    url: Option<&'a str>,
    listed: &'a Listed,
}

/// Who answers what a switch is asked on its machine.
struct Answering<'a> {
    switch: &'a mut Switch,
    state: &'a StateDir,
    told: Told<'a>,
    stop: &'a mut bool,
}

impl Answers for Answering<'_> {
    fn answer(&mut self, request: Request) -> Response {
        match request {
            Request::Status => Response::Status { status: Box::new(self.status()) },
            Request::Stop => {
                *self.stop = true;
                Response::Done
            }
            other => Response::Refused { why: refusal(self.told.name, &other) },
        }
    }

    fn capture(&mut self, order: &CaptureOrder) -> Result<Capture, String> {
        if order.opened {
            return Err(unopened(self.told.name));
        }
        let links = self.switch.ports().map(|port| link_of(&port)).collect();
        Capture::begin(self.told.name.to_owned(), links, order, |link| self.switch.capture(link))
    }
}

impl Answering<'_> {
    fn status(&self) -> Status {
        let Self { switch, state, told, .. } = self;
        let node = status::Node {
            name: told.name.to_owned(),
            id: state.identity().id().to_string(),
            pid: std::process::id(),
            incarnation: state.incarnation(),
            http: Some(told.http.to_owned()),
            identity_shared: false,
        };
        let ports = switch.ports().map(|port| port_of(&port)).collect();
        let listeners = switch.doors();
        let listeners = listeners
            .map(|(local, strangers)| status::SwitchListener { local: local.to_string(), strangers });
        let switch = status::Switch {
            ports,
            listeners: listeners.collect(),
            partitions: told.listed.get(),
            control: told.url.map(str::to_owned),
        };
        let mut status = Status { switch: Some(switch), ..Status::new(node) };
        let counts = told.listed.counts().into_iter();
        status.counters.more.extend(counts.map(|(name, count)| (name.to_owned(), count)));
        status
    }
}

/// Why frames are not opened at a switch of this name, and what is to be done instead.
fn unopened(name: &str) -> String {
    format!(
        "{name} is a switch, which has no key for what it forwards: capture without `--opened`, or a link of the node \
         whose frames are to be opened (`causeway link capture --opened --name NODE`)"
    )
}

/// Why a switch of this name does not do what only a node can, and what is to be done instead.
fn refusal(name: &str, request: &Request) -> String {
    match request {
        Request::Impair(_) => format!(
            "{name} is a switch, and its links cannot be cut here: cut the rail of a node behind it (`causeway link \
             down RAIL --name NODE`), or set down the interface of a port (`ip link set INTERFACE down`)"
        ),
        Request::Peers | Request::Map => format!(
            "{name} is a switch, which knows no nodes: ask a node, or see `causeway status --name {name}`"
        ),
        Request::Reload { .. } => format!(
            "{name} is a switch, which reads its file at its start: start it anew; its owners say who is behind its \
             ports, and move them, while it runs (`causeway switch ctl`)"
        ),
        _ => format!("{name} is a switch, which lends and borrows nothing: ask a node (`--name NODE`)"),
    }
}

fn link_of(port: &PortView<'_>) -> Link {
    let (medium, local) = (medium_of(port.local).to_owned(), port.local.to_string());
    Link { number: port.id.index(), name: port.name.to_owned(), medium, local }
}

fn port_of(port: &PortView<'_>) -> status::SwitchPort {
    let counters = port.counters;
    let dropped = Reason::ALL.into_iter().map(|reason| (reason, counters.dropped[reason.index()]));
    status::SwitchPort {
        name: port.name.to_owned(),
        partition: port.partition.to_owned(),
        local: port.local.to_string(),
        peer: port.peer.map(|peer| peer.to_string()).unwrap_or_default(),
        state: if port.is_up { "up" } else { "silent" }.to_owned(),
        standby_for: port.standby_for.map(str::to_owned),
        received_frames: counters.received,
        received_bytes: counters.received_bytes,
        sent_frames: counters.sent,
        sent_bytes: counters.sent_bytes,
        marked_frames: counters.marked,
        queued_bytes: port.queued_bytes as u64,
        dropped: dropped.map(|(reason, count)| (reason.name().to_owned(), count)).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::Impairment;

    #[test]
    fn who_asks_a_switch_for_what_nodes_do_is_told_whom_to_ask() {
        for (why, instead) in [
            (unopened("s1"), &["without `--opened`", "link capture --opened --name NODE"][..]),
            (
                refusal("s1", &Request::Impair(Impairment::default())),
                &["link down RAIL --name NODE", "ip link set"],
            ),
            (refusal("s1", &Request::Peers), &["causeway status --name s1"]),
            (refusal("s1", &Request::Reload { dry_run: true }), &["start it anew", "switch ctl"]),
            (refusal("s1", &Request::Slot { slot: "0/1".to_owned() }), &["ask a node"]),
        ] {
            assert!(why.starts_with("s1 is a switch, "), "{why}");
            assert!(instead.iter().all(|words| why.contains(words)), "{why}");
        }
    }
}
