//! Functions that the manager makes here, and deletes: from what it has said to what is lent.
//!
//! ```text
//! said ──► planned: controller and place on the medium, durable ──► zeroed, durable ──► lent
//! said no more, and nobody has it ──► not in the table, durable ──► lent no more, and its namespace is gone
//! ```
//!
//! What takes its time is that a place reads as zeroes: the manager is told that all else is as it has said meanwhile,
//! and hears of each function when that is lent.
//!
//! Whoever dies when, the table says at the next start what is lent, and what is not as was said is done then.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use io::agent::LoanSpec;
use io::event::Event;
use manager::member::Member;
use manager::model::{Made, MadeId, MadeList, Name, Storage, Unmade};
use node::{DriveCells, FUNCTIONS_MAX, MAX_LOANS, MadeNamespace};

use super::clearing::Clearings;
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
    clearings: Clearings,
    /// When there is something to do; `None`: all is as was said.
    looks_at: Option<Instant>,
}

/// What is so after a look.
#[derive(Clone, Copy, Default)]
struct Stand {
    /// Something that takes no time.
    is_under_way: bool,
    /// Somebody has what is to go.
    waits: bool,
    /// Places are being cleared.
    is_clearing: bool,
    /// All that was said is lent or cannot be, but for what waits for its place to be cleared.
    has_made: bool,
}

impl Stand {
    /// Whether the manager is told that all is as it has said, as far as that takes no time.
    fn is_told(self) -> bool {
        self.has_made && !self.is_under_way && !self.waits
    }

    fn progress(self) -> Progress {
        if self.is_under_way || self.is_clearing || !(self.has_made || self.waits) {
            return Progress::UnderWay;
        }
        if self.waits { Progress::Waits } else { Progress::Done }
    }
}

/// First bytes and lengths.
type Places = Vec<(u64, u64)>;

/// How far it is.
#[derive(Debug, PartialEq, Eq)]
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
    /// There is room when places are cleared that nobody is to have any more.
    Crowded,
}

impl Maker {
    pub(super) fn new(rows: Vec<MadeRow>) -> Self {
        Self { rows, refused: (None, BTreeMap::new()), clearings: Clearings::default(), looks_at: None }
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

    /// The functions of a device that are in the table, lent or not yet, and those that are there no more and of which
    /// the disk is clearing the places still.
    pub(super) fn made_on<'a>(&'a self, device: &'a str) -> impl Iterator<Item = &'a str> {
        let rows = self.rows.iter().filter(move |row| row.made.shape.device.as_str() == device);
        let left = self.clearings.on(device).filter(|row| !self.rows.contains(row));
        rows.chain(left).map(|row| row.made.name.as_str())
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
        self.clearings.drives().for_each(|drive| hands.agent.note_zeroing(drive));
        let Some(list) = member.kept().made.clone() else { return Ok(Progress::Done) };
        if self.refused.0 != Some(list.id) {
            self.refused = (Some(list.id), BTreeMap::new());
        }
        let waits = self.let_go(&list, member, hands)?;
        let (is_late, crowded) = self.plan_all(&list, hands)?;
        let cleared = self.clear(&list, hands);
        self.refuse_impossible(&list, hands);
        let is_dividing = self.divide(member, hands)?;
        cleared?;
        let waits = waits || self.rows.iter().any(|row| row.is_ready && self.lacks_place(row, hands));
        let lent = about::functions(&hands.agent.view(), |loan| self.made(loan));
        let is_lent = |made: &Made| lent.iter().any(|(_, name, it)| *name == made.name && it.bytes > 0);
        let is_refused = |made: &Made| self.refused.1.contains_key(&made.name);
        // What was made on a device that is not there is there when that is.
        let is_absent = |made: &Made| drive_of(made, hands).is_none() && !is_refused(made);
        let is_slow = |made: &Made| self.is_unready(made) || crowded.contains(&made.name);
        let is_made = |made: &Made| is_refused(made) || is_absent(made) || is_slow(made) || is_lent(made);
        let has_made = is_divided(hands) && list.functions.iter().all(is_made);
        member.set_functions(lent.iter().cloned());
        let is_clearing = !self.clearings.is_empty();
        let stand = Stand { is_under_way: is_late || is_dividing, waits, is_clearing, has_made };
        if stand.is_told() {
            let refused = self.refused.1.iter();
            let refused = refused.map(|(name, why)| Unmade { name: name.clone(), why: why.clone() });
            member.handle_made(list.id, refused.collect());
        }
        Ok(stand.progress())
    }

    /// Whether the place of a function has yet to read as zeroes.
    fn is_unready(&self, made: &Made) -> bool {
        self.rows.iter().any(|row| row.made == *made && !row.is_ready)
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

    /// What is said and was not made gets its place. Whether something has to be done first, and which functions wait
    /// for room.
    fn plan_all(
        &mut self,
        list: &MadeList,
        hands: &mut Hands<'_>,
    ) -> Result<(bool, BTreeSet<Name>), Failure> {
        let (mut is_late, mut crowded) = (false, BTreeSet::new());
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
                Err(Unplanned::Crowded) => drop(crowded.insert(made.name.clone())),
                Err(Unplanned::Never(why)) => self.refuse(&made.name, why),
            }
        }
        Ok((is_late, crowded))
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
        let (taken, left) = self.taken(device.function.as_str());
        match room(|taken| cells.gap(bytes, taken), &taken, &left) {
            Some(start) => Ok(MadeNamespace::Own { start: start?, bytes }),
            None => Err(Unplanned::Never(format!(
                "the device {} has no room for {bytes} bytes in one piece: {} bytes of it are free",
                device.function,
                cells.unallocated()
            ))),
        }
    }

    /// The places on a device that functions in the table have, and those that are being cleared and nobody has.
    fn taken(&self, device: &str) -> (Places, Places) {
        let place = |row: &MadeRow| match row.namespace {
            MadeNamespace::Own { start, bytes } => Some((start, bytes)),
            MadeNamespace::Shared { .. } => None,
        };
        let of = |row: &&MadeRow| row.made.shape.device.as_str() == device;
        let taken: Places = self.rows.iter().filter(of).filter_map(place).collect();
        let left = self.clearings.on(device).filter_map(place).filter(|it| !taken.contains(it)).collect();
        (taken, left)
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

    /// Has the places of functions read as zeroes, and what does is ready.
    fn clear(&mut self, list: &MadeList, hands: &mut Hands<'_>) -> Result<(), Failure> {
        for (row, done) in self.clearings.take_over() {
            let is_wanted = list.functions.contains(&row.made);
            // What cannot be kept is cleared again.
            self.keep(zeroed(&self.rows, &row, done.is_ok() && is_wanted), hands.state)?;
            if let Some(error) = done.err().filter(|_| is_wanted) {
                self.refuse(&row.made.name, format!("its place on the device cannot be cleared: {error}"));
            }
        }
        let agent = &mut *hands.agent;
        let drives: Vec<(usize, String)> =
            agent.view().spec().drives().map(|(drive, it)| (drive, it.name.clone())).collect();
        let drive_of = |row: &MadeRow| {
            let device = row.made.shape.device.as_str();
            drives.iter().find(|(_, name)| name == device).map(|(drive, _)| *drive)
        };
        let zero = |drive, start, bytes| agent.zero_beside(drive, start, bytes);
        let begun = self.clearings.begin(&self.rows, drive_of, zero);
        begun.map_err(|error| Failure::io("cannot clear the place of a function", &error))
    }

    /// What is in the table, and its drive cannot have, is said: nobody waits for it. If it is lent, it has nothing.
    fn refuse_impossible(&mut self, list: &MadeList, hands: &Hands<'_>) {
        let view = hands.agent.view();
        let can_have = |row: &MadeRow| {
            let drive = drive_of(&row.made, hands)?;
            let spec = view.spec().drive(drive)?;
            let cells = view.drive(drive).filter(|cells| cells.is_divided(&spec.config))?;
            Some(cells.can_have(row.namespace))
        };
        let impossible = self.impossible(list, can_have);
        for made in impossible {
            let device = &made.shape.device;
            let why = format!(
                "what it is to have of the device {device} is not there, or is another one's: delete it, and make it \
                 anew"
            );
            self.refuse(&made.name, why);
        }
    }

    /// What of the list is lent and has nothing. `can_have`: whether its drive can have its namespace; `None`: nobody
    /// knows.
    fn impossible(&self, list: &MadeList, can_have: impl Fn(&MadeRow) -> Option<bool>) -> Vec<Made> {
        let is_wanted = |row: &&MadeRow| row.is_ready && list.functions.contains(&row.made);
        let is_said = |row: &&MadeRow| self.refused.1.contains_key(&row.made.name);
        let rows = self.rows.iter().filter(is_wanted).filter(|row| !is_said(row));
        rows.filter(|row| can_have(row) == Some(false)).map(|row| row.made.clone()).collect()
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

/// Where there is room, beside what is taken and what is left of functions that nobody has any more; `None`: nowhere,
/// also when nothing is left of those.
fn room(
    gap: impl Fn(&[(u64, u64)]) -> Option<u64>,
    taken: &[(u64, u64)],
    left: &[(u64, u64)],
) -> Option<Result<u64, Unplanned>> {
    let now = gap(&[taken, left].concat());
    now.map(Ok).or_else(|| gap(taken).map(|_| Err(Unplanned::Crowded)))
}

/// The table when the place that a function had by it reads as zeroes, or when that function is not to be lent.
fn zeroed(rows: &[MadeRow], cleared: &MadeRow, is_to_be_lent: bool) -> Vec<MadeRow> {
    let rows = rows.iter().filter(|row| is_to_be_lent || *row != cleared);
    rows.map(|row| MadeRow { is_ready: row.is_ready || row == cleared, ..row.clone() }).collect()
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
pub(super) mod testing {
    use std::num::NonZeroU64;

    use manager::model::{Limits, Shape};

    use super::*;

    pub(in crate::roles::managed) fn row(name: &str, device: &str, is_ready: bool) -> MadeRow {
        let storage = Storage::Own { bytes: NonZeroU64::new(4096).unwrap() };
        let shape =
            Shape { device: device.parse().unwrap(), storage, group: None, limits: Limits::default() };
        let made = Made { name: name.parse().unwrap(), id: MadeId { epoch: 1, index: 1 }, shape };
        let namespace = MadeNamespace::Own { start: 4096, bytes: 4096 };
        MadeRow { made, controller: 64, namespace, is_ready }
    }

    pub(in crate::roles::managed) fn names(rows: &[MadeRow]) -> Vec<&str> {
        rows.iter().map(|row| row.made.name.as_str()).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU64;
    use std::sync::mpsc;

    use base::ids::Group;
    use io::agent::Zeroing;
    use node::Limit;

    use super::testing::{names, row};
    use super::*;
    use crate::cli::Source;
    use crate::config::{BlockSize, Cache, Namespace};

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
        let after = zeroed(&rows, &rows[0], true);
        assert_eq!(after.iter().map(|row| row.is_ready).collect::<Vec<_>>(), [true, false]);
        assert_eq!(zeroed(&rows, &rows[0], false), rows[1..]);
        // The same one has come again meanwhile, elsewhere: nobody has cleared that.
        let elsewhere =
            MadeRow { namespace: MadeNamespace::Own { start: 8192, bytes: 4096 }, ..rows[0].clone() };
        for is_to_be_lent in [true, false] {
            let rows = [elsewhere.clone()];
            assert_eq!(zeroed(&rows, &row("a", "d", false), is_to_be_lent), rows);
        }
    }

    /// A disk that takes hours for one, or does not answer, holds up neither others nor who is to hear of them.
    #[test]
    fn the_manager_is_told_beside_a_place_that_is_being_cleared() {
        let all = Stand { has_made: true, ..Stand::default() };
        assert!(all.is_told());
        assert_eq!(all.progress(), Progress::Done);
        let clearing = Stand { is_clearing: true, ..all };
        assert!(clearing.is_told());
        assert_eq!(clearing.progress(), Progress::UnderWay, "its function is lent when that is over");
        for stand in [Stand { is_under_way: true, ..all }, Stand { has_made: false, ..clearing }] {
            assert!(!stand.is_told());
            assert_eq!(stand.progress(), Progress::UnderWay);
        }
        let waits = Stand { waits: true, ..all };
        assert_eq!((waits.is_told(), waits.progress()), (false, Progress::Waits));
        let maker = Maker::new(vec![row("slow", "d", false), row("quick", "d", true)]);
        let is_slow = |at: usize| maker.is_unready(&maker.rows[at].made);
        assert!(is_slow(0) && !is_slow(1));
    }

    /// The disk may be at it when its function is deleted: nobody else gets the place, and the device stays.
    #[test]
    fn a_place_that_is_being_cleared_is_nobodys_when_its_function_was_deleted() {
        let mut maker = Maker::new(vec![row("a", "d", false), row("b", "e", false)]);
        let (tell, told) = mpsc::channel();
        let mut zeroing = Some(Zeroing::from(told));
        let zero = |_, _, _| Ok(zeroing.take().unwrap());
        let on_d = |row: &MadeRow| Some(0).filter(|_| row.made.shape.device.as_str() == "d");
        maker.clearings.begin(&maker.rows, on_d, zero).unwrap();
        assert_eq!(maker.taken("d"), (vec![(4096, 4096)], vec![]));
        assert_eq!(maker.made_on("d").collect::<Vec<_>>(), ["a"]);
        maker.rows.remove(0);
        assert_eq!(maker.taken("d"), (vec![], vec![(4096, 4096)]));
        assert_eq!(maker.made_on("d").collect::<Vec<_>>(), ["a"]);
        assert!(!maker.has("a"), "another one may have its name");
        tell.send(Ok(())).unwrap();
        assert_eq!(maker.clearings.take_over().len(), 1);
        assert_eq!((maker.taken("d"), maker.made_on("d").count()), ((vec![], vec![]), 0));
        assert_eq!(maker.taken("e"), (vec![(4096, 4096)], vec![]));
    }

    #[test]
    fn where_a_place_is_being_cleared_there_is_room_later() {
        let gap_of = |most: usize| move |taken: &[(u64, u64)]| Some(7).filter(|_| taken.len() <= most);
        assert_eq!(room(gap_of(2), &[(0, 1)], &[(1, 1)]), Some(Ok(7)));
        assert_eq!(room(gap_of(1), &[(0, 1)], &[(1, 1)]), Some(Err(Unplanned::Crowded)));
        assert_eq!(room(gap_of(0), &[(0, 1)], &[(1, 1)]), None);
    }

    /// Nobody waits for what its drive cannot have: its place is not there, or another one's.
    #[test]
    fn what_is_lent_and_has_nothing_is_refused_once() {
        let rows = ["a", "b", "c", "d"].map(|name| row(name, "d", name != "c"));
        let functions = rows[..3].iter().map(|row| row.made.clone()).collect();
        let list = MadeList { id: MadeId { epoch: 1, index: 1 }, functions };
        let mut maker = Maker::new(rows.to_vec());
        assert_eq!(maker.impossible(&list, |_| Some(true)), []);
        let impossible = |maker: &Maker| maker.impossible(&list, |_| Some(false));
        assert_eq!(maker.impossible(&list, |_| None), [], "no card has made the drive yet");
        let made = |at: usize| rows[at].made.clone();
        assert_eq!(impossible(&maker), [made(0), made(1)], "the third is not ready, the fourth not wanted");
        maker.refuse(&rows[0].made.name, "no".to_owned());
        assert_eq!(impossible(&maker), [made(1)]);
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
