//! `causeway reload`: a running node reads its file again.

use super::{Output, ReloadArgs};
use crate::control::{ControlError, Request, Response, find, runtime_dir};
use crate::exit::Failure;
use crate::roles::lines::warn_of_journal;

pub(super) fn run(args: &ReloadArgs) -> Result<(), Failure> {
    let client = find(&runtime_dir(), args.name.as_ref())?;
    let report = match client.call(&Request::Reload { dry_run: args.dry_run })? {
        Response::Reload { report } => report,
        Response::Refused { why } => return Err(Failure::refused(why)),
        _ => {
            let (name, why) = (client.name(), "something else".to_owned());
            return Err(ControlError::Answer { name, why }.into());
        }
    };
    warn_of_journal(&report.lines, "start the node with --line-file PATH");
    match args.output.format {
        Output::Text => super::print(&report.render())?,
        Output::Json => {
            let json = serde_json::to_string_pretty(&report);
            let json = json.map_err(|error| Failure::unreachable(format_args!("no report: {error}")))?;
            super::print(&format!("{json}\n"))?;
        }
    }
    report.outcome()
}
