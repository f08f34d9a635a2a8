//! What `status` says, from what the card has counted.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::time::Duration;

use base::ids::NodeId;
use io::address::RailAddress;
use io::agent::{self, Condition, Edge, LoanEnd, LoanSpec, LoanView, View};
use io::event::Event;
use node::{
    Address, Cause, ChannelStats, Cipher, DriverCells, FunctionCells, FunctionId, LendConfig, Name, Right,
    ServerCells, SessionCounters, StreamStats, Tenancy,
};

use super::domains::Domains;
use super::trouble::{self, Misdeed};
use crate::status::{Card, Channel, Counters, Device, Loan, Node, Rail, Role, Status, Stream};

/// What is to go, when those who have it let go of it.
pub(super) struct Leaving {
    /// By place.
    pub(super) loans: Vec<usize>,
    /// By the drive's name.
    pub(super) devices: Vec<String>,
}

/// The status of a running node.
pub(super) fn status(
    view: &View<'_>,
    http: SocketAddr,
    slots: &Domains,
    leaving: &Leaving,
    is_shared: &dyn Fn(NodeId) -> bool,
) -> Status {
    let spec = view.spec();
    let node = Node {
        name: spec.name.clone(),
        id: spec.identity.id().to_string(),
        pid: std::process::id(),
        incarnation: spec.incarnation,
        http: Some(http.to_string()),
        identity_shared: is_shared(spec.identity.id()),
    };
    let mut status = Status::new(node);
    status.cards = vec![card(view)];
    let (mut neighbours, mut channels) = (BTreeSet::new(), BTreeMap::new());
    for (index, (loan, cells)) in view.loans().enumerate() {
        // Where nothing is, and no slot waits for something.
        if loan.is_vacant() && slots.slot_of(index).is_none() {
            continue;
        }
        // Loans with one peer have their ways there together, in whatever group they are.
        if party(cells).is_some_and(|party| neighbours.insert(party)) {
            status.rails.extend(spec.rails.iter().map(|rail| rail_of(view, cells, rail)));
            status.rails.extend(shared_memory(view, cells));
        }
        if let Some(peer) = cells.peer_place() {
            let row = channels.entry(peer).or_insert_with(|| channel(view, loan, cells));
            row.retransmissions += retransmissions(cells);
        }
        status.streams.push(stream(loan, cells));
        if loan.lent().is_some() {
            let device = device(view, loan, cells);
            status.devices.push(Device { leaving: leaving.devices.contains(&device.drive), ..device });
        }
        let mut shown = loan_of(view, loan, cells);
        shown.leaving = leaving.loans.contains(&index);
        let kept = view.absent_holder(loan, cells).map(|(tenancy, _)| tenancy.node);
        shown.identity_shared = kept.or(cells.edge().peer().map(|(node, _)| node)).is_some_and(is_shared);
        slots.annotate(index, &mut shown);
        status.loans.push(shown);
    }
    if neighbours.is_empty() {
        status.rails = spec.rails.iter().map(idle_rail).collect();
    }
    status.channels = channels.into_values().collect();
    status.counters = counters(view);
    status
}

/// The identity of the node at the other end of a loan, once there was one.
pub(super) fn peer_of(view: &View<'_>, loan: usize) -> Option<NodeId> {
    let (_, cells) = view.loan(loan)?;
    cells.edge().peer().map(|(node, _)| node)
}

/// How the other ends of all loans are doing, one entry for each peer that has a loan, or had one and is silent now.
pub(super) fn peers(view: &View<'_>) -> Vec<trouble::Peer> {
    let mut peers: BTreeMap<NodeId, trouble::Peer> = BTreeMap::new();
    for (loan, cells) in view.loans() {
        let is_here = !loan.is_vacant() && is_open(cells);
        let Some((node, name)) = cells.edge().peer().filter(|_| is_here) else { continue };
        let silence = view.silence(cells);
        let peer = peers.entry(node).or_insert_with(|| trouble::Peer {
            name: named(name, node),
            borrowed: Vec::new(),
            lent: Vec::new(),
            silence,
            rails: Vec::new(),
        });
        match had_by(loan, node) {
            Some(lent) => peer.lent.push(lent),
            None => peer.borrowed.push(loan.function.clone()),
        }
        // A loan is looked at now and then: what is known best of its peer counts.
        peer.silence = peer.silence.min(silence);
        if view.shared_memory(cells).is_none() {
            add_rails(view, cells, &mut peer.rails);
        }
    }
    peers.into_values().collect()
}

fn add_rails(view: &View<'_>, cells: LoanView<'_>, rails: &mut Vec<trouble::Rail>) {
    for rail in &view.spec().rails {
        let seen = view.rail(cells, rail);
        let Some(to) = seen.peer.map(|peer| peer.to_string()) else { continue };
        match rails.iter_mut().find(|known| known.name == rail.name && known.to == to) {
            Some(known) => known.is_up |= seen.up,
            None => rails.push(trouble::Rail { name: rail.name.clone(), to, is_up: seen.up }),
        }
    }
}

/// What others have of this node just now, and who.
pub(super) fn in_use<'a>(view: &View<'a>) -> impl Iterator<Item = (&'a str, String)> + use<'a> {
    // Of one that has been taken just now the card has not shown yet that it is open: but whose it is was made durable.
    let is_had = |loan: &LoanSpec, cells| is_open(cells) || loan.config.tenancy.is_held;
    let lent = view.loans().filter(|(loan, _)| loan.lent().is_some());
    let had = lent.filter(move |(loan, cells)| is_had(loan, *cells));
    had.map(|(loan, cells)| match loan.config.tenancy.is_held {
        true => (loan.function.as_str(), loan.config.tenancy.name.to_string()),
        false => (loan.function.as_str(), peer_name(cells)),
    })
}

/// The domains of this node and of those that it has a loan with.
pub(super) fn domains(view: &View<'_>) -> trouble::Domains {
    let (node, block) = (view.spec().identity.id(), view.spec().domains);
    let mut peers: BTreeMap<NodeId, trouble::Member> = BTreeMap::new();
    for (_, cells) in view.loans().filter(|(loan, cells)| !loan.is_vacant() && is_open(*cells)) {
        let Some((node, name)) = cells.edge().peer() else { continue };
        let peer = peers.entry(node).or_default();
        peer.name = named(name, node);
        peer.domains.insert(cells.edge().peer_domain());
        peer.domains.extend(cells.offer().map(|offer| offer.place().0));
    }
    trouble::Domains { node, block, peers }
}

/// Functions that nodes have which do not come, and for how long they have not.
pub(super) fn kept(view: &View<'_>) -> Vec<trouble::Kept> {
    let kept = view.loans().filter_map(|(loan, cells)| {
        let (Tenancy { name, node, .. }, silence) = view.absent_holder(loan, cells)?;
        Some(trouble::Kept { lent: had_by(loan, node)?, holder: named(name, node), node, silence })
    });
    kept.collect()
}

/// What was seen of nodes that somebody should know of.
pub(super) fn sightings(view: &View<'_>) -> Vec<trouble::Sighting> {
    let loans = &view.spec().loans;
    let lent = |function: FunctionId| {
        let is_it = |loan: &&LoanSpec| loan.lent().is_some() && loan.config.function == function;
        loans.iter().find(is_it).map(|loan| loan.function.clone())
    };
    let own = || view.spec().rails.iter().map(|rail| rail.socket.local()).collect();
    let seen = view.sightings().map(|it| trouble::Sighting {
        cause: it.cause,
        node: it.node,
        function: it.function.and_then(lent),
        // Who asks for the first time has not proven yet where it is.
        at: place_of(it.at, || view.addresses_of(it.node)),
        met: if it.cause == Cause::Twin { view.addresses_of(it.node) } else { own() },
        count: it.count,
    });
    seen.collect()
}

/// Where a node was seen, or else where it is by now, on the first of its rails.
fn place_of(seen: Option<Address>, known: impl FnOnce() -> Vec<RailAddress>) -> Option<RailAddress> {
    seen.and_then(|at| at.try_into().ok()).or_else(|| known().first().copied())
}

/// What a node calls itself, or its id.
fn named(name: Name, node: NodeId) -> String {
    Some(name.to_string()).filter(|name| !name.is_empty()).unwrap_or_else(|| node.to_string())
}

/// Loans whose lender has never answered, and for how long those in their places have been waited for.
pub(super) fn wanted(
    view: &View<'_>,
    waited: impl Fn(usize) -> Duration,
    is_refused: impl Fn(usize, u64) -> bool,
) -> Vec<trouble::Wanted> {
    let never_met = view.loans().enumerate().filter(|(_, (_, cells))| cells.edge().peer().is_none());
    let wanted = never_met.filter_map(|(place, (loan, _))| match &loan.config.role {
        LoanEnd::Borrow { peers, lender, .. } => {
            let at: Vec<String> = peers.iter().map(|(_, address)| address.to_string()).collect();
            let (function, node) = (loan.function.clone(), lender.key.id().to_string());
            let (waited, is_refused) = (waited(place), is_refused(place, loan.config.life));
            Some(trouble::Wanted { function, at: at.join(" and "), node, waited, is_refused })
        }
        LoanEnd::Lend { .. } | LoanEnd::Vacant { .. } => None,
    });
    wanted.collect()
}

/// Accesses that were denied since the last look, an event for each loan; `known` has what was said of each.
pub(super) fn denied(view: &View<'_>, known: &mut BTreeMap<usize, u64>) -> Vec<Event> {
    let mut events = Vec::new();
    for (index, (loan, cells)) in view.loans().enumerate() {
        let now = cells.edge().denied_accesses.get();
        let before = known.insert(index, now).unwrap_or(0);
        // Another loan of this place counts from zero.
        let count = if now < before { now } else { now - before };
        if count > 0 {
            let last = cells.edge().last_denial();
            events.push(Event::AccessDenied {
                function: loan.function.clone(),
                count,
                requester: last.map(|denial| denial.requester.to_string()),
                address: last.map(|denial| format!("{:#x}", denial.address)),
                right: last.map(|denial| match denial.right {
                    Right::Read => "read",
                    Right::Write => "write",
                    Right::Config => "config",
                }),
            });
        }
    }
    events
}

/// What peers have done so far that the protocol forbids.
pub(super) fn misdeeds(view: &View<'_>) -> trouble::Misdeeds {
    let mut names = BTreeMap::new();
    let mut counts = trouble::Misdeeds::new();
    let mut count = |name: String, what: Misdeed, more: u64| *counts.entry((name, what)).or_insert(0) += more;
    for (_, cells) in view.loans() {
        let Some((node, name)) = cells.edge().peer() else { continue };
        let name = names.entry(node).or_insert_with(|| named(name, node));
        count(name.clone(), Misdeed::Credit, cells.stream().map_or(0, |it| it.credit_violations.get()));
    }
    for (node, stats) in view.channels() {
        let name = names.get(&node).cloned().unwrap_or_else(|| node.to_string());
        count(name.clone(), Misdeed::Stream, stats.wrong_numbers.get());
        count(name, Misdeed::Status, stats.wrong_statuses.get());
    }
    counts
}

fn card(view: &View<'_>) -> Card {
    let record = view.card;
    let state = match (record.condition, record.running, record.draining, record.restarts) {
        (Condition::Stopped, ..) => "stopped",
        (Condition::Hung, ..) => "hung",
        (_, true, ..) => "running",
        // The next card waits for disk requests of the dead one.
        (_, _, Some(_), _) => "draining",
        // It could not be started, and is tried again.
        _ if record.failed_starts > 0 => "dead",
        (_, _, None, 0) => "starting",
        (_, _, None, _) => "recovering",
    };
    let known = |pid: Option<i32>| pid.and_then(|pid| u32::try_from(pid).ok());
    Card {
        pid: known(record.pid),
        generation: record.generation,
        restarts: record.restarts.into(),
        state: state.to_owned(),
        last_recovery_s: record.last_recovery.map(|time| time.as_secs_f64()),
        standby_pid: known(view.standby),
    }
}

pub(super) fn medium_of(address: RailAddress) -> &'static str {
    match address {
        RailAddress::Udp(_) => "udp",
        RailAddress::Ethernet(_) => "ethernet",
    }
}

/// A rail of a node that has no peer.
fn idle_rail(rail: &agent::Rail) -> Rail {
    let local = rail.socket.local();
    Rail {
        name: rail.name.clone(),
        medium: medium_of(local).to_owned(),
        local: local.to_string(),
        switch: rail.gateway.map(|gateway| gateway.to_string()),
        state: "idle".to_owned(),
        ..Rail::default()
    }
}

fn rail_of(view: &View<'_>, cells: LoanView<'_>, rail: &agent::Rail) -> Rail {
    let seen = view.rail(cells, rail);
    let state = match (seen.peer, seen.up) {
        (None, _) => "idle",
        (Some(_), true) => "up",
        (Some(_), false) => "down",
    };
    Rail {
        peer: seen.peer.map(|peer| peer.to_string()).unwrap_or_default(),
        node: peer_node(cells),
        state: state.to_owned(),
        rtt_us: seen.round_trip.map(|time| time.as_secs_f64() * 1e6),
        loss_ratio: seen.loss_ratio,
        ..idle_rail(rail)
    }
}

/// The memory that is shared with the peer of a loan, if any is: a rail to this peer alone.
fn shared_memory(view: &View<'_>, cells: LoanView<'_>) -> Option<Rail> {
    let seen = view.shared_memory(cells)?;
    Some(Rail {
        name: "shm".to_owned(),
        medium: "shm".to_owned(),
        local: view.spec().identity.id().to_string(),
        peer: peer_node(cells),
        node: peer_node(cells),
        switch: None,
        state: if seen.up { "up" } else { "down" }.to_owned(),
        rtt_us: seen.round_trip.map(|time| time.as_secs_f64() * 1e6),
        loss_ratio: seen.loss_ratio,
    })
}

fn channel(view: &View<'_>, loan: &LoanSpec, cells: LoanView<'_>) -> Channel {
    let count = |of: fn(&ChannelStats) -> u64| cells.channel().map_or(0, of);
    Channel {
        peer: peer_node(cells),
        group: loan.zone().0,
        state: if view.silence(cells) > base::times::SILENCE { "silent" } else { "open" }.to_owned(),
        sealed: view.spec().protection.is_sealed(),
        cipher: Cipher::from_number(cells.edge().cipher.get() as u8).map(|cipher| cipher.name().to_owned()),
        sent_frames: count(|stats| stats.sent_frames.get()),
        received_frames: count(|stats| stats.received_frames.get()),
        retransmissions: 0,
    }
}

fn retransmissions(cells: LoanView<'_>) -> u64 {
    cells.stream().map_or(0, |stats| stats.retransmissions.get())
}

fn stream(loan: &LoanSpec, cells: LoanView<'_>) -> Stream {
    Stream {
        loan: loan.function.clone(),
        direction: "out".to_owned(),
        in_flight: cells.edge().in_flight.get(),
        replay_bytes: cells.edge().replay_bytes.get(),
        retransmissions: retransmissions(cells),
    }
}

/// Bytes of the drive of a function that is lent, and whether nobody can write there.
pub(super) fn extent(view: &View<'_>, loan: &LoanSpec, cells: LoanView<'_>) -> (u64, bool) {
    let drive = loan.lent().and_then(|lent| view.spec().drive(lent.drive));
    let read_only = drive.is_some_and(|drive| drive.image.info().read_only);
    (cells.edge().drive_bytes.get(), read_only || cells.edge().drive_rights.get() == 2)
}

fn device(view: &View<'_>, loan: &LoanSpec, cells: LoanView<'_>) -> Device {
    let Some(LendConfig { drive, controller, limit, .. }) = loan.lent() else { return Device::default() };
    let Some(drive) = view.spec().drive(*drive) else { return Device::default() };
    let kept = holder(view, loan, cells);
    let (bytes, read_only) = extent(view, loan, cells);
    let lent_to = is_open(cells).then(|| peer_name(cells));
    Device {
        function: loan.function.clone(),
        kind: "nvme".to_owned(),
        source: drive.source.clone(),
        bytes,
        read_only,
        media: if cells.edge().media_fault.get() == 0 { "ok" } else { "failed" }.to_owned(),
        lent_to: lent_to.or(kept.as_ref().map(|absent| absent.name.clone())),
        kept_s: kept.and_then(|absent| absent.kept_s()),
        io: view.medium(loan).map(|medium| medium.name().to_owned()).unwrap_or_default(),
        drive: drive.name.clone(),
        controller: *controller,
        iops: limit.iops(),
        bytes_per_s: limit.bytes_per_s(),
        leaving: false,
    }
}

fn loan_of(view: &View<'_>, loan: &LoanSpec, cells: LoanView<'_>) -> Loan {
    // Before a peer was ever heard there is no time since when.
    let had_peer = cells.edge().peer().is_some();
    let silence = Some(view.silence(cells)).filter(|silence| had_peer && *silence > base::times::SILENCE);
    let silent = silence.is_some();
    let kept = holder(view, loan, cells);
    let state = match channel_state(cells) {
        _ if loan.is_vacant() => "vacant",
        _ if kept.is_some() => "kept",
        "open" if silent => "silent",
        "open" => "up",
        "closed" => "returned",
        "idle" if loan.lent().is_some() => "free",
        _ => "connecting",
    };
    let silent_s =
        silence.filter(|_| matches!(state, "silent" | "connecting")).map(|time| time.as_secs_f64());
    let (role, edge) = match loan.config.role.edge() {
        None => (Role::Lender, None),
        Some(Edge::Nbd { path, .. }) => (Role::Borrower, Some(crate::edge::nbd(path))),
        Some(Edge::Vm { path, .. }) => (Role::Borrower, Some(crate::edge::vfio_user(path))),
        Some(Edge::Load(_)) => (Role::Borrower, None),
    };
    Loan {
        function: loan.function.clone(),
        generation: loan.generation().0,
        group: loan.zone().0,
        role,
        peer: kept.as_ref().map_or_else(|| peer_name(cells), |absent| absent.name.clone()),
        node: other_end(view, loan, cells),
        state: state.to_owned(),
        // Nobody is expected to speak for a function that is free or was given back.
        silent_s: silent_s.or(kept.as_ref().map(|absent| absent.silence.as_secs_f64())),
        kept_s: kept.and_then(|absent| absent.kept_s()),
        edge,
        slot: None,
        leaving: false,
        identity_shared: false,
    }
}

/// The id of the node at the other end: a line says it before anybody has answered, and a tenancy when nobody does.
fn other_end(view: &View<'_>, loan: &LoanSpec, cells: LoanView<'_>) -> String {
    match (&loan.config.role, view.absent_holder(loan, cells)) {
        (LoanEnd::Borrow { lender, .. }, _) => lender.key.id().to_string(),
        (_, Some((tenancy, _))) => tenancy.node.to_string(),
        _ => peer_node(cells),
    }
}

/// Whom a loan is with: the node, or its place as long as that is not known.
fn party(cells: LoanView<'_>) -> Option<String> {
    let place = cells.peer_place()?;
    Some(cells.edge().peer().map_or_else(|| place.to_string(), |(node, _)| node.to_string()))
}

/// For whom what is lent is kept that has no stream of it.
struct Absent {
    name: String,
    /// For how long it has not come.
    silence: Duration,
    /// For how long it may stay away yet. `None`: no longer, and it is for a manager to say who has it next.
    left: Option<Duration>,
}

impl Absent {
    fn kept_s(&self) -> Option<f64> {
        self.left.map(|left| left.as_secs_f64())
    }
}

fn holder(view: &View<'_>, loan: &LoanSpec, cells: LoanView<'_>) -> Option<Absent> {
    let (Tenancy { name, node, .. }, silence) = view.absent_holder(loan, cells)?;
    let lent = had_by(loan, node).filter(|lent| !lent.is_released(silence))?;
    Some(Absent { name: named(name, node), silence, left: lent.left(silence) })
}

/// What this holder has by a loan, if that lends anything.
fn had_by(loan: &LoanSpec, holder: NodeId) -> Option<trouble::Lent> {
    let lent = loan.lent()?;
    let (function, hold) = (loan.function.clone(), lent.patience(holder));
    Some(trouble::Lent { function, hold, is_managed: lent.entry.is_some() })
}

/// Something that a channel counts.
type Counted = fn(&ChannelStats) -> u64;

/// What a peer says of streams that makes no sense here, by what it is; `stray_records` is all of it.
const STRAYS: [(&str, Counted); 5] = [
    ("unknown_streams", |it| it.unknown_streams.get()),
    ("wrong_stream_numbers", |it| it.wrong_numbers.get()),
    ("too_many_streams", |it| it.too_many_streams.get()),
    ("wrong_statuses", |it| it.wrong_statuses.get()),
    ("unknown_refusals", |it| it.unknown_verdicts.get()),
];

fn counters(view: &View<'_>) -> Counters {
    let mut counters = Counters::default();
    let mut more = BTreeMap::new();
    let mut count = |name: &str, value: u64| *more.entry(name.to_owned()).or_insert(0) += value;
    // Of a place without cells there is nothing to count, but all names are there.
    let channels = |of: fn(&ChannelStats) -> u64| view.channels().map(|(_, stats)| of(stats)).sum::<u64>();
    // What was dropped before it was clear of whom it is.
    let lobby = view.lobby();
    counters.dropped_auth = channels(|it| it.dropped_auth.get()) + lobby.dropped_auth.get();
    counters.dropped_replay = channels(|it| it.dropped_replay.get()) + lobby.dropped_replay.get();
    counters.dropped_malformed = channels(|it| it.dropped_malformed.get());
    count(
        "dropped_misdirected",
        channels(|it| it.dropped_misdirected.get()) + lobby.dropped_misdirected.get(),
    );
    let not_understood = channels(|it| it.dropped_not_understood.get());
    count("dropped_not_understood", not_understood + lobby.dropped_not_understood.get());
    count("dropped_generation", channels(|it| it.dropped_generation.get()));
    count("handshakes", channels(|it| it.handshakes.get()));
    count("deferred_handshakes", channels(|it| it.deferred_handshakes.get()) + lobby.deferred.get());
    count("refused_handshakes", lobby.refused.get());
    count("cookies", lobby.cookies.get());
    count("wrong_proofs", channels(|it| it.wrong_proofs.get()));
    count_strays(channels, &mut count);
    for (loan, cells) in view.loans() {
        let stream = |of: fn(&StreamStats) -> u64| cells.stream().map_or(0, of);
        let edge = cells.edge();
        counters.denied_accesses += edge.denied_accesses.get();
        count("credit_violations", stream(|it| it.credit_violations.get()));
        count("unexpected_completions", edge.unexpected_completions.get());
        count("malformed_tlps", edge.malformed_tlps.get() + stream(|it| it.malformed_tlps.get()));
        count("completion_timeouts", edge.completion_timeouts.get());
        count("information_frames", edge.information_frames.get());
        match loan.config.role {
            LoanEnd::Lend { .. } => count_lent(cells, &mut count),
            LoanEnd::Borrow { .. } | LoanEnd::Vacant { .. } => {
                count("unflushed_writes", edge.kept_writes.get());
                count_drive(cells, &mut count);
                count_slot(cells, &mut count);
            }
        }
    }
    counters.dropped_malformed += view.gauges().dropped_malformed.get();
    counters.dropped_version = view.gauges().dropped_version.get();
    count("dropped_misdirected", view.gauges().dropped_misdirected.get());
    count("dropped_calls", view.gauges().dropped_calls.get());
    count("dropped_unknown", view.gauges().dropped_unknown.get());
    counters.more = more;
    counters
}

/// `all` sums up something of all channels.
fn count_strays(all: impl Fn(Counted) -> u64, mut count: impl FnMut(&str, u64)) {
    for (name, of) in STRAYS {
        count(name, all(of));
        count("stray_records", all(of));
    }
}

fn count_lent(cells: LoanView<'_>, mut count: impl FnMut(&str, u64)) {
    count("media_errors", cells.controller().map_or(0, FunctionCells::media_errors));
    count("failed_media", cells.edge().media_fault.get());
}

fn count_drive(cells: LoanView<'_>, mut count: impl FnMut(&str, u64)) {
    let driver = |of: fn(&DriverCells) -> u64| cells.drive().map_or(0, |(driver, _)| of(driver));
    count("rewritten_writes", driver(|it| it.counters.rewritten.get()));
    count("lost_writes", driver(|it| it.counters.lost.get()));
    let server = |of: fn(&ServerCells) -> u64| cells.drive().map_or(0, |(_, server)| of(server));
    count("timed_out_requests", server(|it| it.counters.timeouts.get()));
    count("stalled_clients", server(|it| it.counters.stalled.get()));
}

fn count_slot(cells: LoanView<'_>, mut count: impl FnMut(&str, u64)) {
    let session = |of: fn(&SessionCounters) -> u64| cells.session().map_or(0, |it| of(&it.counters));
    count("client_errors", session(|it| it.errors.get()));
    count("client_protocol_errors", session(|it| it.protocol_errors.get()));
    count("client_timeouts", session(|it| it.timeouts.get()));
    count("dropped_writes", session(|it| it.dropped_writes.get()));
    count("refused_maps", session(|it| it.refused_maps.get()));
    count("stray_interrupts", session(|it| it.stray_interrupts.get()));
    count("memory_messages", session(|it| it.transfers.get()));
    count("failed_memory_messages", session(|it| it.failed_transfers.get()));
}

/// Whether the stream of a loan flows: before that nobody reaches anything.
pub(super) fn has_stream(cells: LoanView<'_>) -> bool {
    channel_state(cells) == "open"
}

/// Whether the two ends of a loan have each other.
pub(super) fn is_open(cells: LoanView<'_>) -> bool {
    matches!(channel_state(cells), "open" | "resetting")
}

fn channel_state(cells: LoanView<'_>) -> &'static str {
    match cells.edge().channel_state.get() {
        1 => "resetting",
        2 => "open",
        3 => "closed",
        _ => "idle",
    }
}

fn peer_node(cells: LoanView<'_>) -> String {
    cells.edge().peer().map_or_else(String::new, |(node, _)| node.to_string())
}

fn peer_name(cells: LoanView<'_>) -> String {
    cells.edge().peer().map_or_else(String::new, |(_, name)| name.to_string())
}

#[cfg(test)]
mod tests {
    use base::RuleSet;
    use base::ids::{DomainId, Group, LoanGeneration};
    use base::ledger::Arena;
    use base::times::{HOLD, SILENCE};
    use node::{Assignment, Entry, Holder, LoanConfig, Title};

    use super::*;

    const MINUTE: Duration = Duration::from_secs(60);

    /// What node 7 has of a loan with this list and holder.
    fn had(allowed: Option<u64>, holder: Option<Holder>) -> trouble::Lent {
        let allowed: Option<Box<[NodeId]>> = allowed.map(|node| [NodeId::numbered(node)].into());
        let entry = holder.map(|holder| Entry { generation: LoanGeneration(3), holder });
        let role = LoanEnd::Lend(LendConfig { allowed, entry, ..LendConfig::of(0) });
        let config = LoanConfig::by(Title::Nothing, FunctionId(0), role);
        let loan = LoanSpec { function: "nvme0".to_owned(), config, hold: None };
        had_by(&loan, NodeId::numbered(7)).unwrap()
    }

    fn assignment(node: u64, hold: Duration) -> Assignment {
        let (node, domain) = (NodeId::numbered(node), DomainId(2));
        Assignment { node, domain, slot: 0, group: Group::DEFAULT, hold }
    }

    #[test]
    fn a_function_is_held_for_as_long_as_its_list_or_its_entry_says() {
        let by_line = |allowed| had(allowed, None);
        assert_eq!(by_line(None).hold, HOLD);
        assert_eq!(by_line(Some(7)).hold, HOLD);
        assert_eq!(by_line(Some(8)).hold, SILENCE, "it is not on the list");
        assert!(!by_line(Some(8)).is_managed);
        // No list counts.
        let managed = |holder| {
            let lent = had(Some(8), Some(holder));
            assert!(lent.is_managed);
            lent.hold
        };
        for hold in [MINUTE, 60 * MINUTE] {
            assert_eq!(managed(Holder::Assigned(assignment(7, hold))), hold);
            assert_eq!(managed(Holder::Leaving { from: assignment(7, hold), forced: false }), hold);
            assert_eq!(managed(Holder::Assigned(assignment(8, hold))), SILENCE, "it is another one's");
        }
        assert_eq!(managed(Holder::Assigned(assignment(7, Duration::ZERO))), SILENCE, "`remove`");
        assert_eq!(managed(Holder::Nobody), SILENCE);
    }

    #[test]
    fn others_may_have_a_function_when_its_time_is_over_and_nobody_manages_it() {
        let second = Duration::from_secs(1);
        let line = had(None, None);
        assert_eq!(line.left(HOLD - second), Some(second));
        assert!(!line.is_released(HOLD - second));
        assert_eq!((line.left(HOLD), line.is_released(HOLD)), (None, true));
        let assigned = had(None, Some(Holder::Assigned(assignment(7, MINUTE))));
        assert_eq!(assigned.left(second), Some(MINUTE - second));
        assert_eq!((assigned.left(MINUTE), assigned.is_released(MINUTE)), (None, false));
    }

    /// Each is seen apart, and all of them together.
    #[test]
    fn what_makes_no_sense_of_streams_is_counted_by_what_it_is() {
        let arena = Arena::default();
        let stats: &ChannelStats = arena.zeroed::<ChannelStats>().ledger(None, RuleSet::ALL).root;
        stats.unknown_streams.add(1);
        stats.wrong_numbers.add(2);
        stats.too_many_streams.add(4);
        stats.wrong_statuses.add(8);
        stats.unknown_verdicts.add(16);
        let mut counted = BTreeMap::new();
        count_strays(|of| of(stats), |name, more| *counted.entry(name.to_owned()).or_insert(0) += more);
        let expected = [
            ("unknown_streams", 1),
            ("wrong_stream_numbers", 2),
            ("too_many_streams", 4),
            ("wrong_statuses", 8),
            ("unknown_refusals", 16),
            ("stray_records", 31),
        ];
        assert_eq!(counted, BTreeMap::from(expected.map(|(name, count)| (name.to_owned(), count))));
        let documented = include_str!("../../../../docs/status.md");
        for name in counted.keys() {
            assert!(documented.contains(&format!("\n| `{name}` | ")), "{name}");
        }
    }

    #[test]
    fn who_has_not_proven_its_address_when_it_was_seen_has_the_one_that_is_known_since() {
        let at = |port: u16| RailAddress::from(SocketAddr::from(([10, 0, 0, 1], port)));
        assert_eq!(place_of(None, || vec![at(1), at(2)]), Some(at(1)));
        assert_eq!(place_of(Some(at(3).into()), || vec![at(1)]), Some(at(3)));
        assert_eq!(place_of(None, Vec::new), None);
    }
}
