use base::Instant;
use base::ids::{DomainId, NodeId, RailId};
use link::Name;
use link::pair::Channel;

use crate::cells::{EdgeGauges, MAX_RAILS};

/// What a channel shows in the gauges of each loan that it carries: found once for all of them.
#[derive(Clone, PartialEq)]
pub(crate) struct ChannelGauges {
    last_heard: u64,
    /// Round trip in nanoseconds, whether it answers, lost packets of a million.
    rails: [[u64; 3]; MAX_RAILS],
    cipher: u64,
    /// The same of the path through shared memory, where 0 stands for none.
    private: [u64; 3],
    peer: Option<(NodeId, Name, DomainId)>,
}

impl ChannelGauges {
    /// As the channel is now.
    pub(crate) fn of(now: Instant, channel: &Channel<'_>) -> Self {
        let nanos = |time: Option<core::time::Duration>| time.map_or(0, |time| time.as_nanos() as u64);
        let ppm = |loss: f64| (loss * 1e6) as u64;
        let mut rails = [[0; 3]; MAX_RAILS];
        for rail in RailId::ALL.into_iter().filter(|rail| channel.has_rail(*rail)) {
            let (round_trip, up, loss) = channel.path_status(rail.get(), now);
            rails[rail.index()] = [nanos(round_trip), up.into(), ppm(loss)];
        }
        let private = channel.private_status(now);
        let (round_trip, up, loss) = private.unwrap_or_default();
        Self {
            last_heard: channel.last_heard().as_nanos(),
            rails,
            cipher: channel.cipher().map_or(0, |cipher| cipher as u64),
            private: [nanos(round_trip), private.map_or(0, |_| 1 + u64::from(up)), ppm(loss)],
            peer: channel.peer(),
        }
    }

    /// Shows it in the gauges of a loan.
    pub(crate) fn publish(&self, edge: &EdgeGauges) {
        edge.last_heard.set(self.last_heard);
        for (rail, [round_trip, up, loss]) in self.rails.iter().enumerate() {
            edge.rtt_ns[rail].set(*round_trip);
            edge.rail_up[rail].set(*up);
            edge.loss_ppm[rail].set(*loss);
        }
        edge.cipher.set(self.cipher);
        let [round_trip, state, loss] = self.private;
        edge.private_rtt_ns.set(round_trip);
        edge.private_state.set(state);
        edge.private_loss_ppm.set(loss);
        if let Some((node, name, domain)) = self.peer {
            edge.set_peer(node, name, domain);
        }
    }
}
