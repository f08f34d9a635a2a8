//! The lines of the log.

use node::agent::{Event, Severity};
use tracing::{error, info, warn};

use super::LoanSpec;

/// Says what has happened, with its values beside.
pub(super) fn say(event: &Event, loans: &[LoanSpec]) {
    let function_of = |loan: usize| loans.get(loan).map_or("?", |loan| loan.function.as_str());
    match event {
        Event::CardKilled { signal, generation } => warn!(signal, generation, "{event}"),
        Event::CardEnded { status, generation } => error!(status, generation, "{event}"),
        Event::CardRecovered { generation, after } => info!(generation, ?after, "{event}"),
        Event::StartFailed { error, again_in } => warn!(%error, ?again_in, "{event}"),
        Event::Draining { in_flight, since, why } => warn!(in_flight, ?since, why, "{event}"),
        Event::Drained { after } => info!(?after, "{event}"),
        Event::CardStuck { pid, generation, state } => warn!(pid, generation, ?state, "{event}"),
        Event::CardFree { pid, generation, after } => info!(pid, generation, ?after, "{event}"),
        Event::Stale { loan, life } => info!(loan, life, "{event}"),
        Event::Attached { loan, generation } => info!(loan, generation, "{event}"),
        Event::TenancyUnsaved { loan, tenancy, again_in, .. } => {
            warn!(function = function_of(*loan), node = %tenancy.node, ?again_in, "{event}");
        }
        Event::CardReplaced { pid, generation, .. } => match event.severity() {
            Severity::Error => error!(pid, generation, "{event}"),
            Severity::Warning | Severity::Info => warn!(pid, generation, "{event}"),
        },
    }
}
