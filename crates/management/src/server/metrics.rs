//! The manager as Prometheus reads it.

use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::{ConstCounter, Counter};
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::{Registry, Unit};

use super::core::View;
use super::routes::state_of;

/// The content type of what is rendered (OpenMetrics 1.0).
pub(super) const TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

type Labels = Vec<(&'static str, String)>;

/// What is counted since the process has started.
#[derive(Clone, Debug, Default)]
pub(super) struct Counters {
    requests: Family<Labels, Counter>,
}

impl Counters {
    /// A request was answered.
    pub(super) fn answered(&self, status: u16) {
        self.requests.get_or_create(&vec![("status", status.to_string())]).inc();
    }

    /// All of it, and what is so at present.
    pub(super) fn render(&self, view: &View<'_>) -> String {
        let mut registry = Registry::with_prefix("causeway_manager");
        registry.register("requests", "Requests that were answered, by status", self.requests.clone());
        state(&mut registry, view);
        disk(&mut registry, view);
        let mut text = String::new();
        // Writing to a string does not fail.
        let _ = encode(&mut text, &registry);
        text
    }
}

fn state(registry: &mut Registry, view: &View<'_>) {
    let mut gauge = |name: &str, help: &str, value: u64| {
        registry.register(name, help, ConstGauge::new(value as f64));
    };
    let state = view.state();
    gauge("epoch", "The manager's epoch", state.epoch());
    gauge("index", "The last durable entry of the log", view.manager.durable());
    let joined = || state.nodes().filter(|node| node.is_joined());
    gauge("nodes", "Nodes that belong to the fabric", joined().count() as u64);
    let reachable = joined().filter(|node| view.manager.is_reachable(node.id)).count();
    gauge("nodes_reachable", "Those of them that are heard", reachable as u64);
    let dead = view.manager.dead_rails().count();
    gauge("rails_dead", "Rails that seem to be dead, by what nodes say of them", dead as u64);
    let told = ConstCounter::new(view.rails_told);
    registry.register("rails_told", "How often nodes were told that a rail seems to be dead", told);
    let lost = view.manager.lost_events();
    registry.register("lost_events", "Events that nobody took in time", ConstCounter::new(lost));
    let functions = Family::<Labels, prometheus_client::metrics::gauge::Gauge>::default();
    for function in state.functions() {
        functions.get_or_create(&vec![("state", state_of(&function.loan).to_owned())]).inc();
    }
    registry.register("functions", "Functions, by what is done with them", functions);
}

fn disk(registry: &mut Registry, view: &View<'_>) {
    let disk = view.disk;
    registry.register_with_unit(
        "log",
        "Length of the log",
        Unit::Bytes,
        ConstGauge::new(disk.log_bytes as f64),
    );
    let mut counter = |name: &str, help: &str, value: u64| {
        registry.register(name, help, ConstCounter::new(value));
    };
    counter("records", "Records of the log that were made durable", disk.records);
    counter("entries", "Entries in them", disk.entries);
    counter("disk_failures", "How often the disk refused", disk.failures);
    let durable = ConstCounter::new(disk.durable.as_secs_f64());
    registry.register_with_unit("durable", "Time that making them durable took", Unit::Seconds, durable);
}
