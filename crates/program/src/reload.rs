//! What `causeway reload` answers: what has changed in a node's file, and what became of it.

use serde::{Deserialize, Serialize};

use crate::config::{Action, Change, Thing};
use crate::exit::{Exit, Failure};

/// The answer of a node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReloadReport {
    /// 1.
    pub version: u32,
    /// The node's name.
    pub node: String,
    /// Nothing was to be done.
    pub dry_run: bool,
    /// Why nothing was changed, or would be; `null` where there is no reason.
    pub refusal: Option<Refusal>,
    /// What differs between the file and what runs.
    pub changes: Vec<Entry>,
    /// Whether the card was replaced for it, which costs all loans some milliseconds.
    pub card_replaced: bool,
    /// The lines of what is lent from now on.
    pub lines: Vec<String>,
    /// Functions that a manager has made: they stay, whatever the file says.
    #[serde(default)]
    pub made: Vec<String>,
}

/// One thing that differs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    /// What it is about.
    pub thing: Thing,
    /// Its name.
    pub name: String,
    /// What becomes of it.
    pub action: Action,
    /// In words.
    pub detail: String,
    /// How far that is.
    pub state: Progress,
    /// For whom or what it waits, or would wait.
    pub waits_for: Option<String>,
}

/// How far a change is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Progress {
    /// Nothing was done.
    Planned,
    /// It is so.
    Done,
    /// Others have to do something first; `status` and `events` show it.
    Pending,
    /// A running node cannot do it.
    Impossible,
}

/// Why nothing was changed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Refusal {
    /// What the command ends with.
    pub exit: u8,
    /// What is wrong, and what to do.
    pub why: String,
}

impl ReloadReport {
    /// Of a node that has not looked into its file yet.
    pub fn new(node: &str, dry_run: bool) -> Self {
        Self {
            version: 1,
            node: node.to_owned(),
            dry_run,
            refusal: None,
            changes: Vec::new(),
            card_replaced: false,
            lines: Vec::new(),
            made: Vec::new(),
        }
    }

    /// The file differs in this.
    pub fn add(&mut self, change: &Change) {
        let (thing, name, action, detail) = change.parts();
        let is_fixed = matches!(change, Change::Fixed(_));
        let state = if is_fixed { Progress::Impossible } else { Progress::Planned };
        self.changes.push(Entry { thing, name, action, detail, state, waits_for: None });
    }

    /// Something that an earlier reload has asked for, and that still waits for somebody.
    pub fn add_pending(&mut self, change: &Change, waits_for: String) {
        let (thing, name, action, detail) = change.parts();
        let (state, waits_for) = (Progress::Pending, Some(waits_for));
        self.changes.push(Entry { thing, name, action, detail, state, waits_for });
    }

    /// Nothing was changed, for this reason.
    pub fn refuse(&mut self, failure: &Failure) {
        self.refusal = Some(Refusal { exit: failure.exit().code(), why: failure.message().to_owned() });
    }

    /// How many changes wait for others.
    pub fn pending(&self) -> usize {
        self.changes.iter().filter(|entry| entry.state == Progress::Pending).count()
    }

    /// What the command ends with.
    ///
    /// # Errors
    /// Why nothing was changed.
    pub fn outcome(&self) -> Result<(), Failure> {
        let Some(Refusal { exit, why }) = &self.refusal else { return Ok(()) };
        let exits = [Exit::Failed, Exit::Usage, Exit::Unreachable];
        let exit = exits.into_iter().find(|known| known.code() == *exit).unwrap_or(Exit::Refused);
        let done = if self.dry_run { "would change" } else { "has changed" };
        Err(Failure::new(exit, format_args!("nothing {done}: {why}")))
    }

    /// The same for people: a line a change.
    pub fn render(&self) -> String {
        let made: String = self
            .made
            .iter()
            .map(|function| format!("function {function} stays: a manager has made it\n"))
            .collect();
        if self.changes.is_empty() && self.refusal.is_none() {
            return format!("{} does what its file says\n{made}", self.node);
        }
        let mut text: String = self.changes.iter().map(|entry| line(entry, self.refusal.is_some())).collect();
        text += &made;
        self.lines.iter().for_each(|line| text += &format!("{line}\n"));
        text
    }
}

fn line(entry: &Entry, is_refused: bool) -> String {
    let Entry { thing, name, action, detail, state, waits_for } = entry;
    let would = match (state, waits_for) {
        (Progress::Impossible, _) => "not while the node runs".to_owned(),
        _ if is_refused => "not done".to_owned(),
        (Progress::Planned, None) => "to do".to_owned(),
        (Progress::Planned, Some(whom)) => format!("to do, and would wait for {whom}"),
        (Progress::Done, _) => "done".to_owned(),
        (Progress::Pending, whom) => {
            format!("waits for {}", whom.as_deref().unwrap_or("others"))
        }
    };
    format!("{thing} {name} {action} ({detail}): {would}\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(state: Progress, waits_for: Option<&str>) -> Entry {
        Entry {
            thing: Thing::Device,
            name: "d".to_owned(),
            action: Action::Removed,
            detail: "ram:1M".to_owned(),
            state,
            waits_for: waits_for.map(str::to_owned),
        }
    }

    #[test]
    fn each_change_says_how_far_it_is() {
        let mut report = ReloadReport::new("n", false);
        assert_eq!(report.render(), "n does what its file says\n");
        report.changes = vec![
            entry(Progress::Done, None),
            entry(Progress::Pending, Some("alice")),
            entry(Progress::Planned, Some("alice")),
            entry(Progress::Impossible, None),
        ];
        let lines: Vec<String> = report.render().lines().map(str::to_owned).collect();
        assert_eq!(lines[0], "device d removed (ram:1M): done");
        assert_eq!(lines[1], "device d removed (ram:1M): waits for alice");
        assert_eq!(lines[2], "device d removed (ram:1M): to do, and would wait for alice");
        assert_eq!(lines[3], "device d removed (ram:1M): not while the node runs");
        assert_eq!((report.pending(), report.outcome()), (1, Ok(())));
    }

    /// Nothing differs, and yet not all is done.
    #[test]
    fn what_waits_since_an_earlier_reload_is_said_again() {
        let text = "[[devices]]\nfunction = 'd'\nsource = 'ram:1M'\n";
        let config = crate::config::Config::parse(text, std::path::Path::new("/n.toml")).unwrap();
        for dry_run in [false, true] {
            let mut report = ReloadReport::new("n", dry_run);
            report.add_pending(&Change::DeviceRemoved(config.devices[0].clone()), "alice".to_owned());
            assert_eq!(report.render(), "device d removed (ram:1M): waits for alice\n");
            assert_eq!(report.pending(), 1);
        }
    }

    #[test]
    fn a_refusal_keeps_its_exit_code() {
        for exit in [Exit::Usage, Exit::Refused] {
            let mut report = ReloadReport::new("n", true);
            report.refuse(&Failure::new(exit, "the file is wrong"));
            let failure = report.outcome().unwrap_err();
            assert_eq!(
                (failure.exit(), failure.message()),
                (exit, "nothing would change: the file is wrong")
            );
        }
        let mut report = ReloadReport::new("n", false);
        report.changes.push(entry(Progress::Planned, None));
        report.refuse(&Failure::refused("no"));
        assert!(report.render().ends_with(": not done\n"));
    }

    #[test]
    fn the_document_is_what_is_promised() {
        let mut report = ReloadReport::new("n", true);
        report.changes.push(entry(Progress::Planned, None));
        let json = serde_json::to_value(&report).unwrap();
        assert_eq!((&json["version"], &json["dry_run"]), (&1.into(), &true.into()));
        let change = &json["changes"][0];
        assert_eq!([&change["thing"], &change["action"], &change["state"]], ["device", "removed", "planned"]);
    }
}
