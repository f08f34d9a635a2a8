//! A status as Prometheus reads it.

use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::{Registry, Unit};

use super::{Channel, Rail, Status};

/// The content type of [`render_metrics`] (OpenMetrics 1.0).
pub(crate) const METRICS_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

type Labels = Vec<(&'static str, String)>;
type Level = Gauge<f64, std::sync::atomic::AtomicU64>;

/// The metrics of a node. They are made anew for each scrape from what the node says about itself; docs/metrics.md
/// lists them.
pub(crate) fn render_metrics(status: &Status) -> String {
    let mut metrics = Metrics { registry: Registry::with_prefix("causeway") };
    metrics.node(status);
    metrics.cards(status);
    metrics.rails(status);
    metrics.channels(status);
    metrics.devices(status);
    metrics.loans(status);
    let mut text = String::new();
    encode(&mut text, &metrics.registry).expect("writing to a string does not fail");
    text
}

struct Metrics {
    registry: Registry,
}

impl Metrics {
    fn node(&mut self, status: &Status) {
        let name = |value| [(vec![("name", status.node.name.clone())], value)];
        self.gauge(
            "node_incarnation",
            "Greater after each start of the node, and whenever something comes to it while it runs",
            name(status.node.incarnation as f64),
        );
        let events = status.counters.all();
        let events = events.into_iter().map(|(event, count)| (vec![("event", event.to_owned())], count));
        self.counter("events", "What was counted since the node started, by name", events);
    }

    fn cards(&mut self, status: &Status) {
        let cards =
            || status.cards.iter().enumerate().map(|(index, card)| (card, vec![("card", index.to_string())]));
        let running = cards().map(|(card, labels)| (labels, f64::from(card.state == "running")));
        self.gauge("card_up", "Whether the data plane runs", running);
        self.counter(
            "card_restarts",
            "Deaths of the card",
            cards().map(|(card, labels)| (labels, card.restarts)),
        );
        let recovery = cards().filter_map(|(card, labels)| Some((labels, card.last_recovery_s?)));
        self.measure(
            "card_last_recovery",
            "From the last death to the moment its successor served",
            Unit::Seconds,
            recovery,
        );
    }

    fn rails(&mut self, status: &Status) {
        let rails = || {
            let labels = |rail: &Rail| {
                vec![
                    ("rail", rail.name.clone()),
                    ("medium", rail.medium.clone()),
                    ("peer", rail.node.clone()),
                ]
            };
            status.rails.iter().map(move |rail| (rail, labels(rail)))
        };
        let up = rails().map(|(rail, labels)| (labels, f64::from(rail.state == "up")));
        self.gauge("rail_up", "Whether the rail answers", up);
        let round_trip = rails().filter_map(|(rail, labels)| Some((labels, rail.rtt_us? * 1e-6)));
        self.measure("rail_round_trip", "Smoothed round trip", Unit::Seconds, round_trip);
        let loss = rails().map(|(rail, labels)| (labels, rail.loss_ratio));
        self.gauge("rail_loss_ratio", "Frames lost, of frames sent", loss);
    }

    /// One channel for each peer and group, one stream for each loan.
    fn channels(&mut self, status: &Status) {
        let channels = || {
            let labels = |channel: &Channel| {
                vec![("peer", channel.peer.clone()), ("group", channel.group.to_string())]
            };
            status.channels.iter().map(move |channel| (channel, labels(channel)))
        };
        let sent = channels().map(|(channel, labels)| (labels, channel.sent_frames));
        self.counter("channel_sent_frames", "Frames sent", sent);
        let received = channels().map(|(channel, labels)| (labels, channel.received_frames));
        self.counter("channel_received_frames", "Frames received and authenticated", received);
        let again = channels().map(|(channel, labels)| (labels, channel.retransmissions));
        self.counter("channel_retransmissions", "TLPs sent again", again);
        let streams = || status.streams.iter();
        let in_flight = streams().map(|stream| (function(&stream.loan), stream.in_flight as f64));
        self.gauge("stream_in_flight", "TLPs that bear a number and are not committed", in_flight);
        let replay = streams().map(|stream| (function(&stream.loan), stream.replay_bytes as f64));
        self.measure("stream_replay", "What is kept to be sent again", Unit::Bytes, replay);
    }

    fn devices(&mut self, status: &Status) {
        let devices = || status.devices.iter();
        let size = devices().map(|device| (function(&device.function), device.bytes as f64));
        self.measure("device_size", "Size of a lent device", Unit::Bytes, size);
        let lent = devices().map(|device| (function(&device.function), f64::from(device.lent_to.is_some())));
        self.gauge("device_lent", "Whether somebody has the device", lent);
    }

    fn loans(&mut self, status: &Status) {
        let up = status.loans.iter().map(|loan| {
            let role = format!("{:?}", loan.role).to_lowercase();
            let mut labels = function(&loan.function);
            labels.extend([("role", role), ("peer", loan.peer.clone())]);
            (labels, f64::from(loan.state == "up"))
        });
        self.gauge("loan_up", "Whether the loan is connected and its peer heard", up);
    }

    fn gauge(&mut self, name: &str, help: &str, values: impl IntoIterator<Item = (Labels, f64)>) {
        self.registry.register(name, help, levels(values));
    }

    fn measure(
        &mut self,
        name: &str,
        help: &str,
        unit: Unit,
        values: impl IntoIterator<Item = (Labels, f64)>,
    ) {
        self.registry.register_with_unit(name, help, unit, levels(values));
    }

    fn counter(&mut self, name: &str, help: &str, values: impl IntoIterator<Item = (Labels, u64)>) {
        let family = Family::<Labels, Counter>::default();
        values.into_iter().for_each(|(labels, value)| {
            family.get_or_create(&labels).inc_by(value);
        });
        self.registry.register(name, help, family);
    }
}

fn levels(values: impl IntoIterator<Item = (Labels, f64)>) -> Family<Labels, Level> {
    let family = Family::<Labels, Level>::default();
    values.into_iter().for_each(|(labels, value)| {
        family.get_or_create(&labels).set(value);
    });
    family
}

fn function(name: &str) -> Labels {
    vec![("function", name.to_owned())]
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::status::tests::example;

    #[test]
    fn metrics_are_what_the_status_says() {
        let text = render_metrics(&example());
        for line in [
            r#"causeway_node_incarnation{name="disk"} 7.0"#,
            r#"causeway_events_total{event="dropped_auth"} 2"#,
            r#"causeway_card_restarts_total{card="0"} 2"#,
            r#"causeway_card_last_recovery_seconds{card="0"} 0.0034"#,
            r#"causeway_rail_up{rail="left",medium="udp",peer=""} 1.0"#,
            r#"causeway_rail_loss_ratio{rail="left",medium="udp",peer=""} 0.0512"#,
            r#"causeway_channel_retransmissions_total{peer="9f3c2a771b0e55d4",group="1"} 17"#,
            r#"causeway_stream_replay_bytes{function="nvme0"} 12288.0"#,
            r#"causeway_loan_up{function="nvme0",role="lender",peer="9f3c2a771b0e55d4"} 1.0"#,
        ] {
            assert!(text.lines().any(|found| found == line), "no `{line}` in {text}");
        }
        assert!(text.ends_with("# EOF\n"), "{text}");
    }

    #[test]
    fn the_documented_metrics_are_those_that_are_served() {
        let text = render_metrics(&example());
        let served: BTreeSet<&str> =
            text.lines().filter_map(|line| line.split_once('{')).map(|(name, _)| name).collect();
        let table = include_str!("../../../../docs/metrics.md").lines();
        let documented =
            table.filter_map(|line| line.strip_prefix("| `")?.split_once('`')).map(|(name, _)| name);
        assert_eq!(served, documented.collect());
    }
}
