use base::Instant;
use base::ids::{DomainId, NodeId, RailId};
use link::pair::Channel;
use link::{Name, PathStatus};

use crate::cells::{EdgeGauges, MAX_RAILS};

/// What a channel shows in the gauges of each loan that it carries: found once for all of them.
#[derive(Clone, PartialEq)]
pub(crate) struct ChannelGauges {
    last_heard: u64,
    /// Round trip in nanoseconds, as [`EdgeGauges::rail_state`], lost packets of a million.
    rails: [[u64; 3]; MAX_RAILS],
    /// As [`EdgeGauges::rail_peer`].
    rail_peers: [u64; MAX_RAILS],
    cipher: u64,
    /// The same of the path through shared memory.
    shm: [u64; 3],
    peer: Option<(NodeId, Name, DomainId)>,
}

impl ChannelGauges {
    /// As the channel is now.
    pub(crate) fn of(now: Instant, channel: &Channel<'_>) -> Self {
        let nanos = |time: Option<core::time::Duration>| time.map_or(0, |time| time.as_nanos() as u64);
        let ppm = |loss: f64| (loss * 1e6) as u64;
        let (mut rails, mut rail_peers) = ([[0; 3]; MAX_RAILS], [0; MAX_RAILS]);
        let of = |status: Option<PathStatus>| {
            let PathStatus { round_trip, is_up, loss } = status.unwrap_or_default();
            [nanos(round_trip), status.map_or(0, |_| 1 + u64::from(is_up)), ppm(loss)]
        };
        for rail in RailId::ALL {
            let status = channel.rail_status(rail, now);
            rails[rail.index()] = of(status.map(|(_, status)| status));
            let peer = status.and_then(|(path, _)| path.rails());
            rail_peers[rail.index()] = peer.map_or(0, |(_, peer)| peer.get().into());
        }
        Self {
            last_heard: channel.last_heard().as_nanos(),
            rails,
            rail_peers,
            cipher: channel.cipher().map_or(0, |cipher| cipher as u64),
            shm: of(channel.shm_status(now)),
            peer: channel.peer(),
        }
    }

    /// Shows it in the gauges of a loan.
    pub(crate) fn publish(&self, edge: &EdgeGauges) {
        edge.last_heard.set(self.last_heard);
        for (rail, peer) in self.rail_peers.iter().enumerate() {
            edge.rail_peer[rail].set(*peer);
        }
        for (rail, [round_trip, state, loss]) in self.rails.iter().enumerate() {
            edge.rtt_ns[rail].set(*round_trip);
            edge.rail_state[rail].set(*state);
            edge.loss_ppm[rail].set(*loss);
        }
        edge.cipher.set(self.cipher);
        let [round_trip, state, loss] = self.shm;
        edge.shm_rtt_ns.set(round_trip);
        edge.shm_state.set(state);
        edge.shm_loss_ppm.set(loss);
        if let Some((node, name, domain)) = self.peer {
            edge.set_peer(node, name, domain);
        }
    }
}
