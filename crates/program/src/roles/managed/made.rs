//! Functions that the manager makes here, and deletes: from what it has said to what is lent.
//!
//! ```text
//! said ──► planned: controller and place on the medium, durable ──► zeroed, durable ──► lent
//! said no more, and nobody has it ──► not in the table, durable ──► lent no more, and its namespace is gone
//! ```
//!
//! Whoever dies when, the table says at the next start what is lent, and what is not as was said is done then.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use io::agent::{LoanSpec, Zeroing};
use io::event::Event;
use manager::member::Member;
use manager::model::{Made, MadeId, MadeList, Name, Storage, Unmade};
use node::{DriveCells, FUNCTIONS_MAX, MAX_LOANS, MadeNamespace};

use super::{Hands, about};
use crate::config::{Device, Layout};
use crate::exit::Failure;
use crate::roles::{lend, report};
use crate::state_dir::StateDir;
use crate::state_dir::made::MadeRow;

/// Between two looks at what is under way.
const LOOK: Duration = Duration::from_millis(20);
/// Between two looks at what waits for somebody.
const LATER: Duration = Duration::from_millis(500);
/// Before something that could not be kept is tried again.
const AGAIN: Duration = Duration::from_secs(1);

/// The functions that were made here.
pub(super) struct Maker {
    /// As is durable.
    rows: Vec<MadeRow>,
    /// Of the list that was said last: what cannot be made, and why.
    refused: (Option<MadeId>, BTreeMap<Name, String>),
    /// Where nothing is to be left of what was there before.
    zeroing: Option<Task>,
    /// When there is something to do; `None`: all is as was said.
    looks_at: Option<Instant>,
}

/// A place on a medium that is made to read as zeroes, for this function.
struct Task {
    made: Made,
    drive: usize,
    zeroing: Zeroing,
}

/// How far it is.
enum Progress {
    /// All is as was said.
    Done,
    /// Something is under way.
    UnderWay,
    /// Somebody has what is to go.
    Waits,
}

/// Why a function is not made now.
#[derive(Debug, PartialEq, Eq)]
enum Unplanned {
    /// It cannot be.
    Never(String),
    /// Something else is done first.
    Later,
}

impl Maker {
    pub(super) fn new(rows: Vec<MadeRow>) -> Self {
        Self { rows, refused: (None, BTreeMap::new()), zeroing: None, looks_at: None }
    }

    /// The manager has said something, or what is durable may not be so.
    pub(super) fn begin(&mut self) {
        self.looks_at = Some(Instant::now());
    }

    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        self.looks_at
    }

    /// Whether the function of this name was made.
    pub(super) fn has(&self, name: &str) -> bool {
        self.rows.iter().any(|row| row.made.name.as_str() == name)
    }

    /// The functions of a device that are in the table, lent or not yet.
    pub(super) fn made_on<'a>(&'a self, device: &'a str) -> impl Iterator<Item = &'a str> {
        let rows = self.rows.iter().filter(move |row| row.made.shape.device.as_str() == device);
        rows.map(|row| row.made.name.as_str())
    }

    /// By which decision the function of a loan was made; `None`: it is the file's.
    pub(super) fn made(&self, loan: &LoanSpec) -> Option<MadeId> {
        self.rows.iter().find(|row| is_of(loan, row)).map(|row| row.made.id)
    }

    /// Does what there is to do, if it is time.
    pub(super) fn turn(&mut self, member: &mut Member, hands: &mut Hands<'_>) {
        if self.looks_at.is_none_or(|at| at > Instant::now()) {
            return;
        }
        let pause = match self.follow(member, hands) {
            Ok(Progress::Done) => {
                self.looks_at = None;
                return;
            }
            Ok(Progress::UnderWay) => LOOK,
            Ok(Progress::Waits) => LATER,
            Err(failure) => {
                Event::DecisionUnkept { error: failure.message().to_owned() }.say();
                AGAIN
            }
        };
        self.looks_at = Some(Instant::now() + pause);
    }

    fn follow(&mut self, member: &mut Member, hands: &mut Hands<'_>) -> Result<Progress, Failure> {
        // Whatever cannot be kept: else the image would be somebody else's.
        if let Some(task) = &self.zeroing {
            hands.agent.note_zeroing(task.drive);
        }
        let Some(list) = member.kept().made.clone() else { return Ok(Progress::Done) };
        if self.refused.0 != Some(list.id) {
            self.refused = (Some(list.id), BTreeMap::new());
        }
        let waits = self.let_go(&list, member, hands)?;
        let mut is_under_way = self.plan_all(&list, hands)?;
        is_under_way |= self.zero(&list, hands)?;
        self.refuse_impossible(&list, hands);
        is_under_way |= self.divide(member, hands)?;
        let waits = waits || self.rows.iter().any(|row| row.is_ready && self.lacks_place(row, hands));
        let lent = about::functions(&hands.agent.view(), |loan| self.made(loan));
        let is_lent = |made: &Made| lent.iter().any(|(_, name, it)| *name == made.name && it.bytes > 0);
        let is_refused = |made: &Made| self.refused.1.contains_key(&made.name);
        // What was made on a device that is not there is there when that is.
        let is_absent = |made: &Made| drive_of(made, hands).is_none() && !is_refused(made);
        let is_made = |made: &Made| is_refused(made) || is_absent(made) || is_lent(made);
        let has_made = is_divided(hands) && list.functions.iter().all(is_made);
        member.set_functions(lent.iter().cloned());
        if is_under_way || !(has_made || waits) {
            return Ok(Progress::UnderWay);
        }
        if waits {
            return Ok(Progress::Waits);
        }
        let refused = self.refused.1.iter();
        let refused = refused.map(|(name, why)| Unmade { name: name.clone(), why: why.clone() });
        member.handle_made(list.id, refused.collect());
        Ok(Progress::Done)
    }

    /// What was made and is said no more leaves the table, unless somebody has it. Whether anybody has.
    fn let_go(
        &mut self,
        list: &MadeList,
        member: &mut Member,
        hands: &mut Hands<'_>,
    ) -> Result<bool, Failure> {
        let is_wanted = |row: &MadeRow| list.functions.contains(&row.made);
        let mut rows = Vec::new();
        let mut waits = false;
        for row in &self.rows {
            if is_wanted(row) {
                rows.push(row.clone());
            } else if self.is_used(row, member, hands) {
                waits = true;
                self.number(row, hands).into_iter().for_each(|number| member.give_up(number));
                rows.push(row.clone());
            }
        }
        self.keep(rows, hands.state)?;
        Ok(waits)
    }

    /// What the loan of a function is known by, if it is lent.
    fn number(&self, row: &MadeRow, hands: &Hands<'_>) -> Option<u32> {
        let loans = &hands.agent.view().spec().loans;
        loans.iter().find(|loan| is_of(loan, row)).map(|loan| loan.config.function.0)
    }

    fn is_used(&self, row: &MadeRow, member: &Member, hands: &Hands<'_>) -> bool {
        if self.zeroing.as_ref().is_some_and(|task| task.made == row.made) {
            return true;
        }
        let view = hands.agent.view();
        let loans = view.loans().filter(|(loan, _)| is_of(loan, row));
        let mut loans = loans.map(|(loan, cells)| (loan.config.function.0, report::is_open(cells)));
        loans.any(|(number, is_open)| is_open || !member.is_unused(number))
    }

    /// The table is this from now on.
    fn keep(&mut self, rows: Vec<MadeRow>, state: &StateDir) -> Result<(), Failure> {
        if rows != self.rows {
            state.keep_made(&rows)?;
            self.rows = rows;
        }
        Ok(())
    }

    /// What is said and was not made gets its place. Whether something has to be done first.
    fn plan_all(&mut self, list: &MadeList, hands: &mut Hands<'_>) -> Result<bool, Failure> {
        let mut is_late = false;
        for made in &list.functions {
            let is_known = self.rows.iter().any(|row| row.made == *made);
            if is_known || self.refused.1.contains_key(&made.name) {
                continue;
            }
            match self.plan(made, hands) {
                Ok(row) => {
                    let rows = self.rows.iter().cloned().chain([row]).collect();
                    self.keep(rows, hands.state)?;
                }
                Err(Unplanned::Later) => is_late = true,
                Err(Unplanned::Never(why)) => self.refuse(&made.name, why),
            }
        }
        Ok(is_late)
    }

    fn refuse(&mut self, name: &Name, why: String) {
        Event::FunctionUnmade { function: name.to_string(), why: why.clone() }.say();
        self.refused.1.insert(name.clone(), why);
    }

    fn plan(&self, made: &Made, hands: &Hands<'_>) -> Result<MadeRow, Unplanned> {
        let never = |why: String| Err(Unplanned::Never(why));
        let shape = &made.shape;
        let Some(device) = hands.devices.iter().find(|it| it.function.as_str() == shape.device.as_str())
        else {
            let names: Vec<&str> = hands.devices.iter().map(|it| it.function.as_str()).collect();
            let has = if names.is_empty() { "none".to_owned() } else { names.join(", ") };
            return never(format!("this node has no device {}; it has {has}", shape.device));
        };
        if device.layout == Layout::Whole {
            return never(format!(
                "the device {} is lent as a whole, without virtual functions: give it `functions = 0`, or another \
                 number, in its node's file",
                device.function
            ));
        }
        self.check_name(made, hands)?;
        let spec = hands.agent.view().spec();
        let Some((drive, _)) = spec.drives().find(|(_, it)| it.name == device.function.as_str()) else {
            return never(format!("the device {} is not lent now", device.function));
        };
        let controller = self.free_controller(device).ok_or_else(|| {
            let most = format!(
                "the device {} has {FUNCTIONS_MAX} functions, and can have no more: delete another one, or choose \
                 another device",
                device.function
            );
            Unplanned::Never(most)
        })?;
        let namespace = self.namespace(&shape.storage, device, drive, hands)?;
        let is_ready = matches!(namespace, MadeNamespace::Shared { .. });
        Ok(MadeRow { made: made.clone(), controller, namespace, is_ready })
    }

    fn check_name(&self, made: &Made, hands: &Hands<'_>) -> Result<(), Unplanned> {
        let name = made.name.as_str();
        if name.parse::<crate::line::FunctionName>().is_err() {
            return Err(Unplanned::Never(
                "the functions of a node are called by 1 to 32 of `a-z 0-9 -`: choose another name"
                    .to_owned(),
            ));
        }
        // One that is to go has its name until it has gone.
        if self.has(name) {
            return Err(Unplanned::Later);
        }
        let loans = &hands.agent.view().spec().loans;
        match loans.iter().find(|loan| loan.lent().is_some() && loan.function == name) {
            Some(loan) if lend::made::is_made(loan) => Err(Unplanned::Later),
            Some(_) => Err(Unplanned::Never(format!("this node lends another function {name}"))),
            None if self.free_places(hands) == 0 => Err(Unplanned::Never(format!(
                "a node has room for {MAX_LOANS} functions, loans and slots together, and has as many"
            ))),
            None => Ok(()),
        }
    }

    /// How many functions may come beside those that are on their way.
    fn free_places(&self, hands: &Hands<'_>) -> usize {
        let is_lent = |row: &&MadeRow| self.loan(row, hands).is_some();
        let coming = self.rows.iter().filter(|row| !is_lent(row)).count();
        places(hands).len().saturating_sub(coming)
    }

    /// From the last one on: those from the first one on are the file's, which may come to have more of them.
    fn free_controller(&self, device: &Device) -> Option<u16> {
        let own = device.layout.functions() as u16;
        let made = self.rows.iter().filter(|row| row.made.shape.device.as_str() == device.function.as_str());
        let used: BTreeSet<u16> = made.map(|row| row.controller).collect();
        (own + 1..=FUNCTIONS_MAX).rev().find(|controller| !used.contains(controller))
    }

    fn namespace(
        &self,
        storage: &Storage,
        device: &Device,
        drive: usize,
        hands: &Hands<'_>,
    ) -> Result<MadeNamespace, Unplanned> {
        let view = hands.agent.view();
        let is_divided = view.spec().drive(drive).is_some_and(|spec| view.is_divided(drive, &spec.config));
        // A card that has just begun has yet to make the drive; a function that is to go has its namespace, and its
        // controller what it has saved, until then.
        let cells = view.drive(drive).filter(|_| is_divided && !self.is_leaving(drive, hands));
        self.namespace_of(storage, device, cells)
    }

    /// `cells`: of the drive, if nothing of a function that has gone is left there.
    fn namespace_of(
        &self,
        storage: &Storage,
        device: &Device,
        cells: Option<&DriveCells>,
    ) -> Result<MadeNamespace, Unplanned> {
        let bytes = match storage {
            Storage::Shared { namespace } => {
                let found = shared(namespace, device)?;
                return cells.map(|_| found).ok_or(Unplanned::Later);
            }
            Storage::Own { bytes } => bytes.get(),
        };
        let block = device.block_size.bytes();
        if device.read_only {
            return Err(Unplanned::Never(format!(
                "the device {} refuses writes: nothing can be put into a namespace of its own",
                device.function
            )));
        }
        if !bytes.is_multiple_of(block.into()) {
            return Err(Unplanned::Never(format!(
                "a namespace of the device {} has whole blocks of {block} bytes",
                device.function
            )));
        }
        let Some(cells) = cells else { return Err(Unplanned::Later) };
        let of = |row: &&MadeRow| row.made.shape.device.as_str() == device.function.as_str();
        let taken = self.rows.iter().filter(of).filter_map(|row| match row.namespace {
            MadeNamespace::Own { start, bytes } => Some((start, bytes)),
            MadeNamespace::Shared { .. } => None,
        });
        let taken: Vec<(u64, u64)> = taken.collect();
        match cells.gap(bytes, &taken) {
            Some(start) => Ok(MadeNamespace::Own { start, bytes }),
            None => Err(Unplanned::Never(format!(
                "the device {} has no room for {bytes} bytes in one piece: {} bytes of it are free",
                device.function,
                cells.unallocated()
            ))),
        }
    }

    /// Whether a function of a drive is lent that is in the table no more.
    fn is_leaving(&self, drive: usize, hands: &Hands<'_>) -> bool {
        !self.gone(drive, &hands.agent.view().spec().loans).is_empty()
    }

    /// The places of those.
    fn gone(&self, drive: usize, loans: &[LoanSpec]) -> Vec<usize> {
        let is_lent = |loan: &LoanSpec| {
            lend::made::is_made(loan) && loan.lent().is_some_and(|lent| lent.drive == drive)
        };
        let is_gone = |loan: &LoanSpec| is_lent(loan) && !self.rows.iter().any(|row| is_of(loan, row));
        (0..loans.len()).filter(|place| is_gone(&loans[*place])).collect()
    }

    /// Has the place of the next function read as zeroes. Whether that goes on.
    fn zero(&mut self, list: &MadeList, hands: &mut Hands<'_>) -> Result<bool, Failure> {
        if let Some(task) = &self.zeroing {
            let Some(done) = task.zeroing.poll() else { return Ok(true) };
            let made = task.made.clone();
            self.zeroing = None;
            let is_wanted = list.functions.contains(&made);
            let rows = zeroed(&self.rows, &made, done.is_ok() && is_wanted);
            if let Some(error) = done.err().filter(|_| is_wanted) {
                self.refuse(&made.name, format!("its place on the device cannot be cleared: {error}"));
            }
            self.keep(rows, hands.state)?;
        }
        // A device that is not there may come back.
        let place = |row: &MadeRow| match row.namespace {
            MadeNamespace::Own { start, bytes } => {
                Some((drive_of(&row.made, hands)?, start, bytes)).filter(|_| !row.is_ready)
            }
            MadeNamespace::Shared { .. } => None,
        };
        let next = self.rows.iter().find_map(|row| Some((row, place(row)?)));
        let Some((row, (drive, start, bytes))) = next else { return Ok(false) };
        let zeroing = hands.agent.zero_beside(drive, start, bytes);
        let zeroing = zeroing.map_err(|error| Failure::io("cannot clear the place of a function", &error))?;
        self.zeroing = Some(Task { made: row.made.clone(), drive, zeroing });
        Ok(true)
    }

    /// What is in the table, and its drive cannot have, is said: nobody waits for it. If it is lent, it has nothing.
    fn refuse_impossible(&mut self, list: &MadeList, hands: &Hands<'_>) {
        let view = hands.agent.view();
        let mut impossible = Vec::new();
        let is_wanted = |row: &&MadeRow| row.is_ready && list.functions.contains(&row.made);
        for row in self.rows.iter().filter(is_wanted) {
            let drive = drive_of(&row.made, hands);
            let spec = drive.and_then(|drive| Some((drive, view.spec().drive(drive)?)));
            let Some((drive, spec)) = spec else { continue };
            let Some(cells) = view.drive(drive).filter(|cells| cells.is_divided(&spec.config)) else {
                continue;
            };
            if !cells.can_have(row.namespace) && !self.refused.1.contains_key(&row.made.name) {
                impossible.push(row.made.clone());
            }
        }
        for made in impossible {
            let device = &made.shape.device;
            let why = format!(
                "what it is to have of the device {device} is not there, or is another one's: delete it, and make it \
                 anew"
            );
            self.refuse(&made.name, why);
        }
    }

    /// Whether a function waits for another one to go: the node has as many as it can.
    fn lacks_place(&self, row: &MadeRow, hands: &Hands<'_>) -> bool {
        drive_of(&row.made, hands).is_some() && self.loan(row, hands).is_none()
    }

    /// Lends what is in the table, and nothing that is there no more. Whether the card has to be replaced for it.
    fn divide(&mut self, member: &mut Member, hands: &mut Hands<'_>) -> Result<bool, Failure> {
        let spec = hands.agent.view().spec();
        let drives: Vec<(usize, String)> = spec.drives().map(|(at, it)| (at, it.name.clone())).collect();
        let mut has_changed = false;
        for (drive, name) in drives {
            let Some(device) = hands.devices.iter().find(|it| it.function.as_str() == name) else { continue };
            let of = |row: &&MadeRow| row.made.shape.device.as_str() == name && row.is_ready;
            let rows: Vec<MadeRow> = self.rows.iter().filter(of).cloned().collect();
            let gone = self.gone(drive, &hands.agent.view().spec().loans);
            let (rows, come) = seated(rows, |row| self.loan(row, hands).is_some(), places(hands));
            if gone.is_empty() && come.is_empty() {
                continue;
            }
            let mut loans = Vec::new();
            for (place, row) in &come {
                // Whoever has had one of this name finds another drive.
                hands.state.renew_tenancy(&lend::made::name(row)?)?;
                let mut loan = lend::made::loan(row, device, drive, hands.state)?;
                loan.config.life = hands.state.begin_life()?;
                loans.push((*place, loan));
            }
            let went: Vec<(String, u32)> = {
                let loans = &hands.agent.view().spec().loans;
                let gone = gone.iter().map(|place| &loans[*place]);
                gone.map(|loan| (loan.function.clone(), loan.config.function.0)).collect()
            };
            let came: Vec<String> = loans.iter().map(|(_, loan)| loan.function.clone()).collect();
            let divided = hands.agent.divide(drive, lend::made::functions(&rows), &gone, loans);
            divided.map_err(|error| Failure::io("there is no memory for a function", &error))?;
            for (function, number) in went {
                // No other one has its number: nothing of it counts any more.
                member.handle_deleted(number);
                hands.state.forget_managed(number)?;
                Event::FunctionDeleted { function, device: name.clone() }.say();
            }
            for function in came {
                Event::FunctionMade { function, device: name.clone() }.say();
            }
            has_changed = true;
        }
        Ok(has_changed)
    }

    /// Where a function is lent.
    fn loan(&self, row: &MadeRow, hands: &Hands<'_>) -> Option<usize> {
        hands.agent.view().spec().loans.iter().position(|loan| is_of(loan, row))
    }
}

/// The drive that the device of a function is.
fn drive_of(made: &Made, hands: &Hands<'_>) -> Option<usize> {
    let device = made.shape.device.as_str();
    hands.agent.view().spec().drives().find(|(_, it)| it.name == device).map(|(drive, _)| drive)
}

/// Whether no drive has anything left of functions that have gone.
fn is_divided(hands: &Hands<'_>) -> bool {
    let view = hands.agent.view();
    view.spec().drives().all(|(drive, spec)| view.is_divided(drive, &spec.config))
}

/// The table when the place of a function reads as zeroes, or when that function is not to be lent.
fn zeroed(rows: &[MadeRow], made: &Made, is_to_be_lent: bool) -> Vec<MadeRow> {
    let rows = rows.iter().filter(|row| is_to_be_lent || row.made != *made);
    rows.map(|row| MadeRow { is_ready: row.is_ready || row.made == *made, ..row.clone() }).collect()
}

/// Of the functions of a drive those that are lent or come now, and the places of the latter, as far as there are any.
fn seated(
    rows: Vec<MadeRow>,
    is_lent: impl Fn(&MadeRow) -> bool,
    places: Vec<usize>,
) -> (Vec<MadeRow>, Vec<(usize, MadeRow)>) {
    let mut places = places.into_iter();
    let (mut all, mut come) = (Vec::new(), Vec::new());
    for row in rows {
        if !is_lent(&row) {
            let Some(place) = places.next() else { continue };
            come.push((place, row.clone()));
        }
        all.push(row);
    }
    (all, come)
}

/// Whether a loan is of this function.
fn is_of(loan: &LoanSpec, row: &MadeRow) -> bool {
    let is_it = loan.lent().is_some_and(|lent| lent.controller == row.controller);
    is_it && lend::made::is_made(loan) && loan.function == row.made.name.as_str()
}

/// Places for functions that come: those of slots are kept for these.
fn places(hands: &Hands<'_>) -> Vec<usize> {
    hands.agent.free_places(|place| hands.domains.slot_of(place).is_some())
}

/// The namespace that the file says is shared by this name.
fn shared(name: &Name, device: &Device) -> Result<MadeNamespace, Unplanned> {
    let declared = match &device.layout {
        Layout::Declared { namespaces, .. } => &namespaces[..],
        Layout::Whole | Layout::Split(_) => &[],
    };
    match declared.iter().position(|it| it.name == name.as_str()) {
        Some(at) if declared[at].shared => Ok(MadeNamespace::Shared { nsid: at as u32 + 1 }),
        Some(_) => Err(Unplanned::Never(format!(
            "namespace {name} of the device {} does not say `shared = true` in its node's file",
            device.function
        ))),
        None => Err(Unplanned::Never(format!(
            "the device {} has no namespace {name} in its node's file",
            device.function
        ))),
    }
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU64;

    use base::ids::Group;
    use manager::model::{Limits, Shape};
    use node::Limit;

    use super::*;
    use crate::cli::Source;
    use crate::config::{BlockSize, Cache, Namespace};

    fn row(name: &str, device: &str, is_ready: bool) -> MadeRow {
        let storage = Storage::Own { bytes: NonZeroU64::new(4096).unwrap() };
        let shape =
            Shape { device: device.parse().unwrap(), storage, group: None, limits: Limits::default() };
        let made = Made { name: name.parse().unwrap(), id: MadeId { epoch: 1, index: 1 }, shape };
        let namespace = MadeNamespace::Own { start: 4096, bytes: 4096 };
        MadeRow { made, controller: 64, namespace, is_ready }
    }

    fn names(rows: &[MadeRow]) -> Vec<&str> {
        rows.iter().map(|row| row.made.name.as_str()).collect()
    }

    /// Its controller may still have another one's namespace, and what that has saved.
    #[test]
    fn a_function_waits_for_what_was_there_before_whatever_it_is_to_have() {
        let namespace =
            Namespace { name: "common".parse().unwrap(), bytes: None, shared: true, read_only: false };
        let device = Device {
            function: "d".parse().unwrap(),
            source: Source::from_os("ram:1M".into()).unwrap(),
            read_only: false,
            block_size: BlockSize::B512,
            cache: Cache::default(),
            allow: None,
            limit: Limit::NONE,
            layout: Layout::Declared { namespaces: vec![namespace], functions: vec![] },
            group: Group::DEFAULT,
        };
        let maker = Maker::new(Vec::new());
        let of = |storage| maker.namespace_of(&storage, &device, None);
        assert_eq!(of(Storage::Shared { namespace: "common".parse().unwrap() }), Err(Unplanned::Later));
        assert_eq!(of(Storage::Own { bytes: NonZeroU64::new(4096).unwrap() }), Err(Unplanned::Later));
        let absent = of(Storage::Shared { namespace: "other".parse().unwrap() });
        assert!(matches!(absent, Err(Unplanned::Never(_))));
    }

    #[test]
    fn a_function_that_was_deleted_while_its_place_was_cleared_is_never_lent() {
        let rows = [row("a", "d", false), row("b", "d", false)];
        let after = zeroed(&rows, &rows[0].made, true);
        assert_eq!(after.iter().map(|row| row.is_ready).collect::<Vec<_>>(), [true, false]);
        assert_eq!(zeroed(&rows, &rows[0].made, false), rows[1..]);
    }

    #[test]
    fn only_functions_that_have_a_place_are_the_cards() {
        let rows = || ["a", "b", "c"].map(|name| row(name, "d", true)).to_vec();
        let is_lent = |row: &MadeRow| row.made.name.as_str() == "b";
        let (all, come) = seated(rows(), is_lent, vec![7]);
        assert_eq!(names(&all), ["a", "b"]);
        assert_eq!(
            come.iter().map(|(place, row)| (*place, row.made.name.as_str())).collect::<Vec<_>>(),
            [(7, "a")]
        );
        let (all, come) = seated(rows(), is_lent, vec![]);
        assert_eq!((names(&all), come), (vec!["b"], vec![]), "no card is replaced for nothing");
    }

    #[test]
    fn a_device_has_functions_from_when_they_are_planned() {
        let maker = Maker::new(vec![row("a", "d", false), row("b", "e", false), row("c", "d", true)]);
        assert_eq!(maker.made_on("d").collect::<Vec<_>>(), ["a", "c"]);
        assert_eq!(maker.made_on("f").count(), 0);
    }
}
