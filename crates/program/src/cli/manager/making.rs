//! Functions that are made at nodes, and deleted.

use std::time::{Duration, Instant};

use management::client::Target;
use management::shapes::{Changed, MakeFunction, Node, Storage};
use manager::model::FunctionName;

use super::Session;
use super::args::{CreateFunctionArgs, DeleteFunctionArgs, WaitArgs};
use super::change::{LOOK, PENDING, WAIT, Words, tell};
use crate::exit::Failure;

/// `causeway function create`.
pub(super) fn create(args: &CreateFunctionArgs) -> Result<(), Failure> {
    let mut session = Session::open(&args.asker)?;
    let name = FunctionName { node: args.device.node.clone(), function: args.name.clone() };
    let storage = match (args.size, &args.namespace) {
        (Some(size), _) => Storage::Bytes(size.0),
        (None, Some(namespace)) => Storage::Namespace(namespace.clone()),
        (None, None) => return Err(Failure::usage("say --size, or --namespace")),
    };
    let body = MakeFunction {
        device: args.device.function.to_string(),
        storage,
        group: args.group.map(|group| group.0),
        iops: args.iops,
        bytes_per_s: args.bytes_per_s,
    };
    let changed: Changed = session.put(&target(&name), &body)?;
    let changed = wait(&mut session, &name, changed, args.wait)?;
    let words = Words {
        but: None,
        function: &name,
        done: format!("is there, a function of {}", args.device),
        already: format!("was there already, a function of {}", args.device),
        pending: format!("is to be made on {}", args.device),
        leaving: None,
    };
    tell(&changed, &words, args.output)
}

/// `causeway function delete`.
pub(super) fn delete(args: &DeleteFunctionArgs) -> Result<(), Failure> {
    let mut session = Session::open(&args.asker)?;
    let changed: Changed = session.delete(&target(&args.function))?;
    let changed = wait(&mut session, &args.function, changed, args.wait)?;
    let words = Words {
        but: None,
        function: &args.function,
        done: "is there no more".to_owned(),
        already: "is there no more".to_owned(),
        pending: "is to be deleted".to_owned(),
        leaving: None,
    };
    tell(&changed, &words, args.output)
}

fn target(name: &FunctionName) -> Target {
    Target::new(["functions", name.node.as_str(), name.function.as_str()])
}

/// The manager waits for the lender only shortly: looks again until it is done, or for as long as was asked.
fn wait(
    session: &mut Session,
    name: &FunctionName,
    mut changed: Changed,
    args: WaitArgs,
) -> Result<Changed, Failure> {
    let patience = match args.wait {
        Some(seconds) => Duration::from_secs(seconds),
        None if changed.is_silent => Duration::ZERO,
        None => WAIT,
    };
    let until = Instant::now() + patience;
    while changed.progress == PENDING && Instant::now() < until {
        std::thread::sleep(LOOK.min(patience));
        let node: Node = session.get(&Target::new(["nodes", name.node.as_str()]))?;
        changed.is_silent = node.state != "reachable";
        let making = node.making.into_iter().find(|it| it.function == name.function.as_str());
        match making {
            None => changed.progress = "done".to_owned(),
            Some(it) if it.state == "refused" => {
                let why = it.why.unwrap_or_default();
                return Err(Failure::refused(format_args!("{} cannot be made: {why}", name.function)));
            }
            Some(_) => {}
        }
    }
    if changed.progress != PENDING {
        (changed.waits_for, changed.is_silent) = (None, false);
    }
    Ok(changed)
}
