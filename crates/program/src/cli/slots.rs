//! `causeway attach` and `causeway detach`: they ask the node, and wait until it is so.

use std::time::{Duration, Instant};

use super::{AttachArgs, DetachArgs, NodeName, SlotName};
use crate::control::{Request, Response, SlotReport, SlotState, find, runtime_dir};
use crate::exit::Failure;
use crate::line::Line;

/// How long a lender may take to answer before the command ends without it.
const PATIENCE: Duration = Duration::from_secs(15);
/// Between two looks.
const PAUSE: Duration = Duration::from_millis(50);

pub(super) fn attach(args: &AttachArgs, line: &Line) -> Result<(), Failure> {
    let request = Request::Attach { slot: args.slot.to_string(), line: line.reveal() };
    let mut report = ask(args.name.as_ref(), &request)?;
    let deadline = Instant::now() + PATIENCE;
    loop {
        match report.state {
            SlotState::Attached if !report.plugging => break,
            SlotState::Vacant => {
                let why = report.trouble.unwrap_or_else(|| "somebody has detached it".to_owned());
                return Err(Failure::refused(format!("{}: {why}", args.slot)));
            }
            _ if Instant::now() <= deadline => {}
            SlotState::Attached => {
                report.trouble = Some(format!("QEMU has not answered within {} s", PATIENCE.as_secs()));
                break;
            }
            _ => return Err(overdue(&report, &line.function().to_string(), &args.slot)),
        }
        std::thread::sleep(PAUSE);
        report = look(args.name.as_ref(), &args.slot)?;
    }
    crate::cli::print(&format!("{}\n", report.edge))?;
    if let Some(typed) = report.plug {
        crate::cli::print(&format!("over QMP: {typed}\n"))?;
    }
    match report.trouble {
        Some(trouble) => {
            let slot = &args.slot;
            Err(Failure::refused(format!(
                "the function is attached to {slot}, and is not plugged in: {trouble}"
            )))
        }
        None => Ok(()),
    }
}

/// Why a function is not attached after all this time.
fn overdue(report: &SlotReport, function: &str, slot: &SlotName) -> Failure {
    match (report.state, report.met) {
        (SlotState::Leaving | SlotState::Returning, _) => {
            let why = report.trouble.as_deref().unwrap_or("somebody has detached it");
            Failure::refused(format!("{slot}: {why}; it is being given back"))
        }
        (_, true) => Failure::unreachable(format!(
            "the lender of {function} has answered, and the function cannot be used yet: look at the log of this node \
             and at that of the lender; {slot} keeps it and shows it when it can, `causeway detach {slot}` gives it up"
        )),
        (_, false) => Failure::unreachable(format!(
            "the lender of {function} does not answer; {slot} keeps it and shows it when it does, \
             `causeway detach {slot}` gives it up"
        )),
    }
}

pub(super) fn detach(args: &DetachArgs) -> Result<(), Failure> {
    let mut report = ask(args.name.as_ref(), &Request::Detach { slot: args.slot.to_string() })?;
    if let Some(typed) = report.unplug.as_ref().filter(|_| report.state == SlotState::Leaving) {
        crate::cli::print(&format!("in QEMU's monitor: {typed}\n"))?;
    }
    // The node bounds how long this takes.
    while report.state != SlotState::Vacant {
        std::thread::sleep(PAUSE);
        report = look(args.name.as_ref(), &args.slot)?;
    }
    match report.trouble {
        Some(trouble) => Err(Failure::failed(format!("{}: {trouble}", args.slot))),
        None => Ok(()),
    }
}

fn look(name: Option<&NodeName>, slot: &SlotName) -> Result<SlotReport, Failure> {
    ask(name, &Request::Slot { slot: slot.to_string() })
}

fn ask(name: Option<&NodeName>, request: &Request) -> Result<SlotReport, Failure> {
    match find(&runtime_dir(), name)?.call(request)? {
        Response::Slot { slot } => Ok(slot),
        Response::Refused { why } => Err(Failure::refused(why)),
        _ => Err(Failure::failed("the node did not say how the slot is doing")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_is_late_is_blamed() {
        let slot: SlotName = "vm1/disk".parse().unwrap();
        let words = |state, met, trouble: Option<&str>| {
            let trouble = trouble.map(str::to_owned);
            let edge = String::new();
            let report = SlotReport { state, edge, plugging: false, met, plug: None, unplug: None, trouble };
            overdue(&report, "e1", &slot).message().to_owned()
        };
        assert!(words(SlotState::Attaching, false, None).starts_with("the lender of e1 does not answer"));
        assert!(words(SlotState::Attaching, true, None).starts_with("the lender of e1 has answered"));
        let given_back = words(SlotState::Returning, true, Some("the function is in use by p1"));
        assert!(
            given_back.contains("in use by p1") && !given_back.contains("does not answer"),
            "{given_back}"
        );
    }
}
