//! Changes, and what becomes of them.

use std::time::{Duration, Instant};

use base::ids::Group;
use management::client::Target;
use management::shapes::{Assign, Changed, Function, Limits, Loan, Node, SetGroups};
use manager::model::{FunctionName, Name};

use super::args::{Asker, AssignArgs, LimitFunctionArgs, UnassignArgs, WaitArgs};
use super::rows::limits_text;
use super::{Session, look, target_of};
use crate::cli::run::{print, print_json};
use crate::cli::{Output, OutputArgs};
use crate::exit::Failure;

/// How long a lender is waited for, if nothing is said.
pub(super) const WAIT: Duration = Duration::from_secs(30);
/// Between two looks whether it is done.
pub(super) const LOOK: Duration = Duration::from_millis(200);
/// What a change says of itself.
const DONE: &str = "done";
pub(super) const PENDING: &str = "pending";

/// `causeway assign`.
pub(super) fn assign(args: &AssignArgs) -> Result<(), Failure> {
    let mut session = Session::open(&args.asker)?;
    let body = Assign {
        slot: args.slot.clone(),
        group: args.group.map(|group| group.0),
        on_silence: args.on_silence.map(|it| it.to_string()),
    };
    let changed: Changed = session.put(&assignment(&args.function), &body)?;
    let changed = wait(&mut session, &args.function, changed, args.wait, progress)?;
    let but = match changed.progress.as_str() {
        DONE => of_silent_borrower(&mut session, &args.function)?,
        _ => None,
    };
    let words = Words {
        but,
        function: &args.function,
        done: format!("is in {}", args.slot),
        already: format!("was in {} already", args.slot),
        pending: format!("is assigned to {}", args.slot),
        leaving: None,
    };
    tell(&changed, &words, args.output)
}

/// `causeway unassign`.
pub(super) fn unassign(args: &UnassignArgs) -> Result<(), Failure> {
    let mut session = Session::open(&args.asker)?;
    let target = assignment(&args.function);
    let target = if args.force { target.with("force", "true") } else { target };
    let changed: Changed = session.delete(&target)?;
    let changed = wait(&mut session, &args.function, changed, args.wait, progress)?;
    let leaving = match changed.progress.as_str() {
        PENDING => session.find::<Loan>(&target_of("loans", &args.function))?,
        _ => None,
    };
    let words = Words {
        but: None,
        function: &args.function,
        done: "is free".to_owned(),
        already: "was free already".to_owned(),
        pending: "is taken back".to_owned(),
        leaving: leaving.filter(|loan| loan.state == "leaving").map(|loan| loan.borrower),
    };
    tell(&changed, &words, args.output)
}

/// `causeway function limit`.
pub(super) fn limit(args: &LimitFunctionArgs) -> Result<(), Failure> {
    let mut session = Session::open(&args.asker)?;
    let name = &args.function;
    let limits = Limits { iops: args.iops, bytes_per_s: args.bytes_per_s };
    let target = Target::new(["functions", name.node.as_str(), name.function.as_str(), "limits"]);
    let changed: Changed = session.put(&target, &limits)?;
    let limited = |function: Option<&Function>, _| match function {
        Some(function) if function.limits != Some(limits) => "overtaken",
        Some(function) if !function.is_limited => PENDING,
        Some(_) => DONE,
        None => "overtaken",
    };
    let changed = wait(&mut session, name, changed, args.wait, limited)?;
    let text = limits_text(limits);
    let words = Words {
        but: None,
        function: name,
        done: format!("has these limits: {text}"),
        already: format!("had these limits already: {text}"),
        pending: format!("is to have these limits: {text}"),
        leaving: None,
    };
    tell(&changed, &words, args.output)
}

/// `causeway node groups`.
pub(super) fn groups(
    asker: &Asker,
    name: &Name,
    groups: &[Group],
    output: OutputArgs,
) -> Result<(), Failure> {
    let body = SetGroups { groups: groups.iter().map(|group| group.0).collect() };
    let target = Target::new(["nodes", name.as_str(), "groups"]);
    let changed: Changed = Session::open(asker)?.put(&target, &body)?;
    let list = groups.iter().map(Group::to_string).collect::<Vec<_>>().join(", ");
    tell_plain(&changed, &format!("{name} may enter {list}, and no other group"), output)
}

/// Removes what is there.
pub(super) fn remove(asker: &Asker, path: [&str; 2], what: &str, output: OutputArgs) -> Result<(), Failure> {
    let changed: Changed = Session::open(asker)?.delete(&Target::new(path))?;
    tell_plain(&changed, what, output)
}

/// `causeway manager end-restore`.
pub(super) fn end_restore(asker: &Asker, anyway: bool) -> Result<(), Failure> {
    let target = Target::new(["restore", "end"]);
    let target = if anyway { target.with("anyway", "true") } else { target };
    Session::open(asker)?.post::<Changed>(&target, &serde_json::json!({}))?;
    print("the restore has ended\n")
}

fn assignment(function: &FunctionName) -> Target {
    Target::new(["functions", function.node.as_str(), function.function.as_str(), "assignment"])
}

/// The manager waits for the lender only shortly: looks again until it is done, or for as long as was asked.
fn wait(
    session: &mut Session,
    name: &FunctionName,
    mut changed: Changed,
    args: WaitArgs,
    progress: impl Fn(Option<&Function>, Option<u64>) -> &'static str,
) -> Result<Changed, Failure> {
    let patience = match args.wait {
        Some(seconds) => Duration::from_secs(seconds),
        None if changed.is_silent => Duration::ZERO,
        None => WAIT,
    };
    let until = Instant::now() + patience;
    while changed.progress == PENDING && Instant::now() < until {
        std::thread::sleep(LOOK.min(patience));
        let function: Option<Function> = session.find(&target_of("functions", name))?;
        changed.progress = progress(function.as_ref(), changed.generation).to_owned();
    }
    if changed.progress == PENDING && !patience.is_zero() {
        changed.is_silent = look::is_silent(session, &name.node)?;
    } else if changed.progress != PENDING {
        (changed.waits_for, changed.is_silent) = (None, false);
    }
    Ok(changed)
}

/// What is said of an assignment that its lender has applied, while the node that has the slot is silent.
fn of_silent_borrower(session: &mut Session, name: &FunctionName) -> Result<Option<String>, Failure> {
    let Some(loan) = session.find::<Loan>(&target_of("loans", name))? else { return Ok(None) };
    let borrower: Option<Node> = session.find(&Target::new(["nodes", &loan.borrower]))?;
    Ok(borrower.filter(|node| node.state == "silent").map(|node| has_yet_to_hear(&loan, &node)))
}

fn has_yet_to_hear(loan: &Loan, borrower: &Node) -> String {
    let since = borrower.silent_since.as_deref().unwrap_or("the manager was started");
    format!(
        "its lender {} has applied it, but {}, which has the slot, is silent (not heard since {since}): it is plugged \
         in there when it is heard, without another command",
        loan.lender, borrower.name
    )
}

/// How far the assignment of this generation has come.
fn progress(function: Option<&Function>, generation: Option<u64>) -> &'static str {
    match function {
        // What is not lent any more nobody has.
        None => "overtaken",
        Some(function) if generation.is_some_and(|generation| function.generation > generation) => {
            "overtaken"
        }
        Some(function) if matches!(function.state.as_str(), "free" | "applied") => DONE,
        Some(_) => PENDING,
    }
}

/// What is said of a change to a function.
pub(super) struct Words<'a> {
    pub(super) function: &'a FunctionName,
    pub(super) done: String,
    pub(super) already: String,
    pub(super) pending: String,
    /// What is missing, though it is done.
    pub(super) but: Option<String>,
    /// Who has yet to let go of it.
    pub(super) leaving: Option<String>,
}

impl Words<'_> {
    /// One line, or why the change is not what it is now.
    fn say(&self, changed: &Changed) -> Result<String, Failure> {
        let Self { function, done, already, pending, but, leaving } = self;
        let but = but.as_ref().map(|but| format!("; {but}")).unwrap_or_default();
        let generation = changed.generation.map(|it| format!(", generation {it}")).unwrap_or_default();
        let lender = changed.waits_for.as_deref().unwrap_or(function.node.as_str());
        Ok(match (changed.progress.as_str(), leaving) {
            (DONE, _) if changed.index.is_none() => format!("{function} {already}{generation}{but}"),
            (DONE, _) => format!("{function} {done}{generation}{but}"),
            (PENDING, _) if changed.is_silent => format!(
                "pending: {function} {pending}{generation}, but its lender {lender} is silent, and goes on as before \
                 until it is heard; then it is done without another command"
            ),
            (PENDING, Some(borrower)) => format!(
                "pending: {function} {pending}{generation}; {lender} waits for {borrower} to let go of it, which takes \
                 as long as its guest uses it (--force does not wait)"
            ),
            (PENDING, None) => format!(
                "pending: {function} {pending}{generation}; {lender} has yet to do it, and does without another command"
            ),
            _ => {
                return Err(Failure::refused(format_args!(
                    "overtaken: somebody has decided something else about {function} since; see `causeway function \
                     show {function}`"
                )));
            }
        })
    }
}

pub(super) fn tell(changed: &Changed, words: &Words<'_>, output: OutputArgs) -> Result<(), Failure> {
    let line = words.say(changed);
    match output.format {
        Output::Text => print(&format!("{}\n", line?)),
        Output::Json => {
            print_json(changed)?;
            line.map(drop)
        }
    }
}

fn tell_plain(changed: &Changed, what: &str, output: OutputArgs) -> Result<(), Failure> {
    match output.format {
        Output::Text => print(&said_plain(changed, what)),
        Output::Json => print_json(changed),
    }
}

fn said_plain(changed: &Changed, what: &str) -> String {
    let already = if changed.index.is_none() { ", as before: nothing was changed" } else { "" };
    format!("{what}{already}\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exit::Exit;

    fn changed(progress: &str, is_silent: bool, index: Option<u64>) -> Changed {
        let waits_for = (progress == PENDING).then(|| "store".to_owned());
        Changed {
            version: 1,
            progress: progress.to_owned(),
            waits_for,
            is_silent,
            index,
            generation: Some(4),
        }
    }

    #[test]
    fn it_is_said_what_became_of_a_change_and_who_is_waited_for() {
        let function: FunctionName = "store/nvme0".parse().unwrap();
        let say = |changed: &Changed, leaving: Option<&str>| {
            let words = Words {
                but: None,
                function: &function,
                done: "is free".to_owned(),
                already: "was free already".to_owned(),
                pending: "is taken back".to_owned(),
                leaving: leaving.map(str::to_owned),
            };
            words.say(changed)
        };
        let said = |changed: &Changed, leaving| say(changed, leaving).unwrap();
        assert_eq!(said(&changed("done", false, Some(9)), None), "store/nvme0 is free, generation 4");
        assert_eq!(said(&changed("done", false, None), None), "store/nvme0 was free already, generation 4");
        let silent = said(&changed("pending", true, Some(9)), Some("desk"));
        assert!(silent.starts_with("pending: ") && silent.contains("store is silent"), "{silent}");
        let leaving = said(&changed("pending", false, Some(9)), Some("desk"));
        assert!(leaving.contains("store waits for desk") && leaving.contains("--force"), "{leaving}");
        let late = said(&changed("pending", false, Some(9)), None);
        assert!(late.contains("store has yet to do it"), "{late}");
        let overtaken = say(&changed("overtaken", false, Some(9)), None).unwrap_err();
        assert_eq!(overtaken.exit(), Exit::Refused);
    }

    #[test]
    fn it_is_said_that_the_node_of_the_slot_is_silent() {
        let loan = |borrower: &str| Loan {
            name: "store/nvme0".to_owned(),
            lender: "store".to_owned(),
            borrower: borrower.to_owned(),
            slot: "desk/vm/b".to_owned(),
            group: 1,
            generation: 4,
            state: "applied".to_owned(),
            since: "2026-11-28T03:59:37Z".to_owned(),
            on_silence: "hold(600)".to_owned(),
        };
        let node = |silent_since: Option<&str>| Node {
            name: "desk".to_owned(),
            node: String::new(),
            state: "silent".to_owned(),
            since: String::new(),
            silent_since: silent_since.map(str::to_owned),
            domains: String::new(),
            groups: vec![],
            functions: 0,
            rails: vec![],
            program: None,
            alarms: vec![],
            making: vec![],
        };
        let function: FunctionName = "store/nvme0".parse().unwrap();
        for (since, index, expected) in [
            (
                Some("2026-11-28T04:00:00Z"),
                Some(9),
                ["is in vm/b, generation 4; its lender store has applied it", "T04:00"],
            ),
            (None, None, ["was in vm/b already", "not heard since the manager was started"]),
        ] {
            let words = Words {
                but: Some(has_yet_to_hear(&loan("desk"), &node(since))),
                function: &function,
                done: "is in vm/b".to_owned(),
                already: "was in vm/b already".to_owned(),
                pending: String::new(),
                leaving: None,
            };
            let said = words.say(&changed("done", false, index)).unwrap();
            assert!(said.contains("desk, which has the slot, is silent"), "{said}");
            assert!(expected.iter().all(|expected| said.contains(expected)), "{said}");
        }
    }

    #[test]
    fn what_was_so_already_is_told() {
        let say = |index| said_plain(&changed("done", false, index), "desk may enter 1");
        assert_eq!(say(Some(3)), "desk may enter 1\n");
        assert_eq!(say(None), "desk may enter 1, as before: nothing was changed\n");
    }

    #[test]
    fn how_far_a_change_is_shows_in_the_function() {
        let function = |state: &str, generation| Function {
            name: "store/nvme0".to_owned(),
            node: "store".to_owned(),
            number: 1,
            kind: "nvme".to_owned(),
            bytes: 1,
            read_only: false,
            generation,
            state: state.to_owned(),
            slot: None,
            since: None,
            made_on: None,
            limits: None,
            is_limited: false,
        };
        for (state, generation, expected) in [
            ("applied", 4, DONE),
            ("free", 4, DONE),
            ("wanted", 4, PENDING),
            ("leaving", 4, PENDING),
            ("forced", 4, PENDING),
            ("applied", 5, "overtaken"),
        ] {
            assert_eq!(
                progress(Some(&function(state, generation)), Some(4)),
                expected,
                "{state} {generation}"
            );
        }
        assert_eq!(progress(None, Some(4)), "overtaken");
    }
}
