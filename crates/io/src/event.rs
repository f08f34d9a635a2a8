//! What happens in a running node: one list of all of it.
//!
//! Whoever finds that something has happened says an [`Event`], once ([`Event::say`]). It becomes a line of the log,
//! and the program keeps it for `causeway events`: both have the same words and the same values.
//!
//! A kind is for programs: it keeps its name and its values, and is added, never renamed. Values in brackets are words
//! of the message and nothing else; they may change. Times are in seconds, rounded to microseconds.

use std::fmt;
use std::num::NonZero;
use std::time::Duration;

/// Before the kind of an event, as target of its line of the log.
pub const TARGET: &str = "event.";

/// How much an event matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Severity {
    /// Something of this software's own is wrong, or data are lost.
    Error,
    /// Somebody should look.
    Warning,
    /// Good to know.
    Info,
}

impl Severity {
    /// The level of the line in the log.
    const fn level(self) -> tracing::Level {
        match self {
            Self::Error => tracing::Level::ERROR,
            Self::Warning => tracing::Level::WARN,
            Self::Info => tracing::Level::INFO,
        }
    }
}

/// A duration as an event tells it.
pub fn seconds(duration: Duration) -> f64 {
    duration.as_micros() as f64 / 1e6
}

macro_rules! events {
    ($(
        $(#[$doc:meta])*
        $severity:ident $kind:literal $name:ident
        { $($value:ident: $type:ty),* $(,)? } $([$($word:ident: $words:ty),*])? => $message:literal
    )*) => {
        /// Something that has happened. Its [`Display`](fmt::Display) is the message of the log's line.
        #[derive(Clone, Debug, PartialEq)]
        pub enum Event {
            $(
                $(#[$doc])*
                #[allow(missing_docs, reason = "the values have the names of the document")]
                $name { $($value: $type,)* $($($word: $words,)*)? },
            )*
        }

        impl Event {
            /// All kinds.
            pub const KINDS: &[&str] = &[$($kind),*];

            /// What programs know it by.
            pub fn kind(&self) -> &'static str {
                match self {
                    $(Self::$name { .. } => $kind,)*
                }
            }

            /// How much it matters.
            pub fn severity(&self) -> Severity {
                match self {
                    $(Self::$name { .. } => Severity::$severity,)*
                }
            }

            /// Says that it has happened.
            pub fn say(&self) {
                match self {
                    $(Self::$name { $($value,)* .. } => tracing::event!(
                        target: concat!("event.", $kind), Severity::$severity.level(),
                        { $($value = $value),* }, "{self}"
                    ),)*
                }
            }
        }

        impl fmt::Display for Event {
            #[allow(unused_variables, reason = "not every message repeats every value")]
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                match self {
                    $(Self::$name { $($value,)* $($($word,)*)? } => write!(f, $message),)*
                }
            }
        }
    };
}

/// How many of the same kind were not said since the last one that was.
pub(crate) type Others = Option<NonZero<u64>>;

// The card.
events! {
    /// A signal has ended the card.
    Warning "card-killed" CardKilled { signal: i32, generation: u64 } => "card was killed"

    /// The card has ended by itself, which it never should.
    Error "card-ended" CardEnded { status: i32, generation: u64 } => "card has ended"

    /// A successor of a dead card serves, so long after the death.
    Info "card-recovered" CardRecovered { generation: u64, after_s: f64 } => "card recovered"

    /// The next card could not be started.
    Warning "card-start-failed" CardStartFailed { error: String, again_in_s: f64 }
    => "the next card could not be started"

    /// The disks take their time with what a dead card has asked for.
    Warning "card-draining" CardDraining { in_flight: u32, since_s: f64, why: String }
    => "waiting for disk requests of the old card, which must end before the next card may start: look at the disk"

    /// They have ended it after all.
    Info "card-drained" CardDrained { after_s: f64 } => "the disk requests of the old card have ended"

    /// The card is in one system call all the time.
    Warning "card-stuck" CardStuck { pid: i32, generation: u64, state: &'static str, for_s: u64 }
    => "the card has been in one system call for {for_s} s and serves nobody meanwhile; it is left alone, since \
        killing it would not end the call: look at the disk behind what is lent"

    /// It has come out of that.
    Info "card-free" CardFree { pid: i32, generation: u64, after_s: f64 } => "the card goes on"

    /// The card lives and does not work, for a reason that somebody else has.
    Warning "card-replaced" CardReplaced { pid: i32, generation: u64, fault: &'static str } [why: &'static str]
    => "{why}: it is killed and replaced"

    /// The card lives and does not work, which is a mistake of this software.
    Error "card-spins" CardSpins { pid: i32, generation: u64 }
    => "the card runs and makes no turn: it is killed and replaced. Please report this with the log"

    /// A vacant place has a loan now, of which the card knows nothing.
    Info "card-renewed" CardRenewed { function: String, generation: u64 }
    => "the card is replaced by one that knows the new loan"

    /// Drives or loans have come or gone in a way that no card that runs can be told of.
    Info "card-replanned" CardReplanned { generation: u64 }
    => "the card is replaced by one that knows what has come to this node, and what has left it"

    /// The card has said something of a loan that has left its place, which counts for nothing.
    Info "loan-stale" LoanStale { place: usize, life: u64 } => "what the card said of a loan that is gone is dropped"

    /// What the card says is of another version of the program, or makes no sense.
    Error "card-unintelligible" CardUnintelligible { error: String } => "the card cannot be understood, and is replaced"

    /// At the end of the node the card cannot be ended.
    Warning "card-unended" CardUnended { error: String } => "the card cannot be ended in order"

    /// There is no memory for what loans need.
    Warning "ledger-not-grown" LedgerNotGrown { error: String }
    => "the ledger has not grown: loans that find no room in it are not served"

    // The machine.

    /// io_uring is forbidden.
    Warning "ring-unavailable" RingUnavailable { error: String }
    => "io_uring is not available: disks are served with plain system calls in threads"

    /// This machine goes on from a snapshot.
    Info "machine-restored" MachineRestored {}
    => "this machine was restored from a snapshot: the keys of all loans are renewed, and what is borrowed is borrowed \
        anew, since the drives may have gone on meanwhile"

    /// It may.
    Info "machine-perhaps-restored" MachinePerhapsRestored {}
    => "the kernel has said more than it could keep for this node, and it may have said that this machine was \
        restored from a snapshot: the keys of all loans are renewed, which does no harm"

    /// Nobody would say so.
    Warning "restoration-unheard" RestorationUnheard { error: String }
    => "the log of the kernel cannot be read, so this node would not hear it if this machine were restored from a \
        snapshot, and would go on with keys that another copy uses: give it CAP_SYSLOG, or end it before a snapshot is \
        restored"

    /// Clients of edges wait.
    Warning "clients-waiting" ClientsWaiting { error: String, again_in_s: f64, others: Others }
    => "clients cannot be accepted for now"

    /// Nobody hears of the node on a rail, and it of nobody.
    Warning "rail-unannounced" RailUnannounced { rail: String, error: String }
    => "the node cannot say on this rail that it is there: others need its line"

    // Memory shared with other nodes of this machine.

    /// This node shares none.
    Warning "memory-unshared" MemoryUnshared { error: String, name: String } => "memory is shared with nobody"

    /// The channel with a node has a path through memory.
    Info "memory-shared" MemoryShared { node: String } => "memory is shared with the neighbour"

    /// It has none any more.
    Info "memory-parted" MemoryParted { node: String } => "no memory is shared with the neighbour any more"

    /// Neighbours wait.
    Warning "neighbours-waiting" NeighboursWaiting { error: String, again_in_s: f64, others: Others }
    => "neighbours cannot be accepted for now"

    /// Somebody has called as this node, and has proven nothing.
    Warning "neighbour-unproven" NeighbourUnproven { node: String, others: Others }
    => "a process of this machine passes itself off as a node that it is not"

    /// Somebody has answered as this node, and has proven nothing.
    Warning "neighbour-impostor" NeighbourImpostor { node: String }
    => "a process of this machine answers as a node that it is not"

    // Drives that are lent.

    /// What lay behind a drive when this node had it last is another one now.
    Warning "image-replaced" ImageReplaced { drive: String, source: String } [what: String]
    => "{source} is not what this node lent before: {what}. Whoever has borrowed it is told so, and nothing that was \
        written to the old one and not flushed is put over it. If another image was meant, stop this node and put that \
        one in its place"

    /// Two starts cannot be told from each other by what keeps unflushed writes.
    Warning "cache-untold" CacheUntold { source: String } [error: String]
    => "the system does not tell whether it has kept what was not flushed, so with `cache = \"volatile\"` virtual \
        machines find another drive after each start of this node: {error}"

    /// Nothing tells after a `kill -9` when images were written last.
    Warning "writes-unkept" WritesUnkept {}
    => "/dev/shm keeps nothing for this node: content that somebody copies into an image after a `kill -9` of it goes \
        unnoticed"

    /// Nobody will tell what a card may have heard of the disk.
    Warning "image-unwitnessed" ImageUnwitnessed { source: String, error: String }
    => "the image cannot be opened once more: an error that a card takes with it stays unknown"

    /// The file has no name any more.
    Warning "image-removed" ImageRemoved { source: String }
    => "the image was removed: it is lent until this node ends, and then gone"

    /// The file has another name, or none, and its old one is another's.
    Warning "image-displaced" ImageDisplaced { source: String }
    => "another file lies where the image was: the old one is lent until this node ends. The new one is another drive"

    /// The drive is larger from now on.
    Info "image-grown" ImageGrown { source: String, bytes: u64 } => "the image has grown"

    /// Somebody else has written to it.
    Warning "image-overwritten" ImageOverwritten { source: String }
    => "somebody else has written to the image while it is lent: what was answered may be gone, and flushes fail with \
        EIO from now on. End this node, look who it was, put into the image what it is to hold, start this node again, \
        then say `causeway device clear`"

    /// Somebody else has cut something off.
    Warning "image-cut" ImageCut { source: String, bytes: u64, had: u64 }
    => "the image has become shorter while it is lent, and what lay behind its end is lost: requests there, and \
        flushes, fail with EIO from now on. Restore it from a backup, start this node again, then say `causeway device \
        clear`"

    /// Its file system is full.
    Warning "image-full" ImageFull { source: String }
    => "no space is left where the image lies: writes fail with ENOSPC until there is room again"

    /// It is in memory, and is served like a disk.
    Warning "image-unmapped" ImageUnmapped { source: String, error: String }
    => "the image lies in memory and cannot be mapped: it is read and written by system calls, which is slower"

    /// Another program has it.
    Warning "image-locked" ImageLocked { source: String, holder: String, up_to_s: f64 }
    => "waiting for {holder} to let go of the image"

    /// Its file system takes nothing.
    Warning "image-read-only" ImageReadOnly { source: String }
    => "the image refuses to be written, and writes fail: look whether its file system has become read-only"

    /// The disk has failed something.
    Warning "image-failed" ImageFailed { source: String }
    => "the image has failed a request, which its user sees as EIO: look at the disk and at the kernel's log"

    /// It was not found until the end of the node.
    Warning "image-changed" ImageChanged { source: String }
    => "somebody else has changed the image before this node ended: at the next start it is another drive"

    /// The disk has lost something, and flushes fail.
    Error "media-fault" MediaFault { source: String, drive: String } [node: String]
    => "the disk could not keep what it was given: writes that had been answered may be lost, and each flush fails \
        until that was seen to. Look at the disk and at what is on it, then: causeway device clear {drive} --name \
        {node}"

    /// An operator has seen to that.
    Info "media-cleared" MediaCleared { device: String } => "flushes of the drive may succeed again"

    /// What is to be durable of a drive is not.
    Warning "drive-unkept" DriveUnkept { drive: String, error: String, others: Others }
    => "the state of a drive cannot be kept: what has changed it fails"

    /// Nor is what became of it.
    Warning "drive-end-unkept" DriveEndUnkept { source: String } [error: String]
    => "what became of the drive cannot be kept for the next start: {error}"

    /// Nor is that its image has changed.
    Warning "image-change-unkept" ImageChangeUnkept { drive: String } [error: String]
    => "that the image has changed cannot be kept for the next start: {error}"

    /// A function may do more, or less, from now on.
    Info "limit-changed" LimitChanged { function: String, iops: Option<u64>, bytes_per_s: Option<u64> }
    => "limit changed"

    // Loans.

    /// What is borrowed can be used.
    Info "loan-usable" LoanUsable { function: String, group: u16 } => "drive is usable"

    /// The lender says no.
    Warning "loan-refused" LoanRefused {
        function: String, reason: &'static str, holder: Option<String>, node: Option<String>,
    } [why: String] => "{why}"

    /// The function cannot be used here.
    Warning "loan-unusable" LoanUnusable { function: String, peer: Option<String> } [why: String] => "{why}"

    /// Somebody takes what is lent.
    Info "loan-taken" LoanTaken { function: String, group: u16, by: String, node: String }
    => "another node takes the function than before, or the same one in another life"

    /// The borrowed drive does not hold any more what this node has left there.
    Warning "loan-overtaken" LoanOvertaken { function: String } [cause: &'static str]
    => "the drive no longer holds what this node left there: {cause}. Requests under way fail, clients are \
        disconnected, and what was not flushed is lost"

    /// A function is kept for a node that does not come.
    Warning "loan-kept" LoanKept { functions: String, holder: String, node: String, until_s: u64 }
    [until: String, why: &'static str, advice: &'static str]
    => "{holder} ({node}) has not given {functions} back and {why}: until {until} UTC nobody else can have that. To \
        have it sooner, {advice}, or lend it with a list of nodes on which \
        that one does not stand (`allow`, --allow)"

    /// It is over, in order.
    Info "loan-returned" LoanReturned {
        function: String, has_lost: bool, by: Option<String>, node: Option<String>,
    } => "loan was given back"

    /// It is over before it has begun.
    Info "loan-unwanted" LoanUnwanted { function: String } => "the loan was never had, and is wanted no more"

    /// A measurement is over.
    Info "load-ended" LoadEnded { function: String } => "the load has ended"

    /// Events of one kind and loan come so often that most are not said.
    Info "repeated" Repeated { function: String, what: &'static str, unsaid: u64 }
    => "this happens again and again"

    /// Something reached for what it has no grant for: this is the last of so many since this was said last.
    Warning "access-denied" AccessDenied {
        function: String, count: u64, requester: Option<String>, address: Option<String>, right: Option<&'static str>,
    } => "an access to what was not granted was denied"

    /// Who uses a function could not be made durable, so it waits.
    Warning "tenancy-delayed" TenancyDelayed { function: String, node: String, again_in_s: f64, others: Others }
        [what: &'static str, error: String]
    => "the function cannot be {what} yet: {error}"

    /// Where a node is that uses a function could not be made durable: the next life of this node might not find it.
    Warning "holder-delayed" HolderDelayed { node: String, again_in_s: f64, others: Others } [error: String]
    => "where a borrower is cannot be kept: {error}"

    /// At the end of the node it still could not.
    Warning "tenancy-unkept" TenancyUnkept { function: String, node: String } [error: String]
    => "who has the function cannot be kept: {error}"

    /// The lender knows a later life of this node.
    Warning "state-outdated" StateOutdated { function: String, incarnation: u64, seen: u64 } [folder: String]
    => "the state directory {folder} is older than what the lender has seen of this node: it was restored or copied. \
        This node goes on with a greater incarnation; if another one runs with a copy, give one of them a state \
        directory of its own"

    /// The same, and nothing can be done about it.
    Warning "state-not-raised" StateNotRaised { function: String, seen: u64 } [folder: String, error: String]
    => "the lender has seen a later life of this node than the state directory {folder} knows of, and does not let it \
        in: {error}; restore a newer copy of the folder, or give this node a new one"

    /// A borrower knows a later life of this node.
    Warning "state-refused" StateRefused { node: String, at: Option<String> } [what: String] => "{what}"

    /// Two programs have one identity.
    Warning "identity-shared" IdentityShared {
        node: String, at: Option<String>, other: Option<String>, refused_by: Option<String>,
    } [what: String] => "{what}. The state directory of one is a copy of the other's, or its machine is a copy: end \
                         one of them, or give it a new state directory (--state-dir, `state_dir`)"

    /// Two nodes have one domain.
    Warning "domain-shared" DomainShared { domain: u32, node: String, peer: String } [what: String] => "{what}"

    // Peers and rails.

    /// Nobody has answered for what is to be borrowed.
    Warning "lender-awaited" LenderAwaited { function: String, at: String, node: String }
    => "nobody has answered for {function} at {at} yet, and it is waited for: is `causeway lend` running there, as \
        node {node} (`causeway id` says; another node keeps silent), and do firewalls on the way let it pass?"

    /// A peer is not heard on any rail.
    Warning "peer-silent" PeerSilent { peer: String, silent_s: u64 } [what: String]
    => "{peer} has not been heard for {silent_s} s{what}"

    /// It is heard again.
    Info "peer-heard" PeerHeard { peer: String, silent_s: u64 } => "{peer} is heard again, after {silent_s} s of \
                                                            silence"

    /// It was silent until what it has is free.
    Info "peer-released" PeerReleased { peer: String, hold_s: u64 } [functions: String]
    => "{peer} was silent for the whole hold time of {hold_s} s: others may now have {functions}"

    /// A rail to a peer does not answer, and others do.
    Warning "rail-down" RailDown { rail: String, peer: String, to: String }
    => "rail {rail} to {peer} ({to}) does not answer: its frames take another path; look at this link, its addresses \
        and firewalls"

    /// It answers again.
    Info "rail-up" RailUp { rail: String, peer: String, to: String } => "rail {rail} to {peer} ({to}) answers again"

    /// A node has asked for what is not for it.
    Warning "caller-refused" CallerRefused {
        node: String, at: Option<String>, reason: &'static str, function: Option<String>, count: u64,
    } [what: String] => "{what}"

    /// A node that is who it says does what the protocol forbids.
    Warning "peer-misbehaves" PeerMisbehaves { node: String, what: &'static str, count: u64 } [words: &'static str]
    => "node {node} {words}, {count} times so far; it is dropped. The program of that node is broken, or somebody else \
        has its key: look at it, or let it in no more"

    /// Frames come for what is not here.
    Warning "frames-unknown" FramesUnknown { count: u64 }
    => "frames come for nothing that this node lends or borrows, {count} so far: perhaps somebody uses a line that was \
        printed before the state folder of this node was lost or replaced; give out the present one"

    // Slots of virtual machines.

    /// A machine has the slot.
    Info "guest-connected" GuestConnected { function: String, pid: Option<i32>, others: Others }
    => "a virtual machine has connected to the slot"

    /// Its device at the slot is gone, and its connection is kept.
    Info "guest-parked" GuestParked { function: String, pid: Option<i32>, others: Others }
    => "the virtual machine has lost the slot"

    /// It has the slot again, by another connection.
    Info "guest-again" GuestAgain { function: String, pid: Option<i32>, others: Others }
    => "the virtual machine has the slot again"

    /// It has closed its connection.
    Info "guest-left" GuestLeft { function: String, pid: Option<i32>, others: Others }
    => "the virtual machine has left the slot"

    /// It cannot have the slot.
    Warning "guest-refused" GuestRefused { function: String, pid: Option<i32>, others: Others } [why: String]
    => "a virtual machine was sent away: {why}"

    /// Its connection is of no use.
    Warning "guest-broken" GuestBroken { function: String, error: String, others: Others }
    => "a message of a virtual machine cannot be received: it is disconnected"

    /// It has more than a slot may have.
    Warning "guest-crowded" GuestCrowded { function: String, others: Others }
    => "this virtual machine shares more files and event descriptors than a slot may have: memory in further ones is \
        read and written by asking the machine, which is slow, and further interrupts are refused. Raise the limit of \
        open files of the node (`ulimit -n`), or give the machine its memory in fewer files"

    /// Its memory is its own.
    Warning "guest-unshared" GuestUnshared { function: String, pid: Option<i32>, others: Others }
    => "the memory of this virtual machine is not shared, so the drive has to ask the machine for all of it, which is \
        slow: give it -object memory-backend-memfd,...,share=on (`causeway qemu-args` prints all of it), or in libvirt \
        <memoryBacking> <source type='memfd'/> <access mode='shared'/> </memoryBacking>"

    /// Its memory lies where it is not looked for.
    Warning "guest-on-disk" GuestOnDisk { function: String, others: Others }
    => "memory of this virtual machine lies in a file on a disk, which is not reached: requests there fail. Give it \
        -object memory-backend-memfd,...,share=on, or a file on a tmpfs"

    /// It has more memory than can be reached.
    Warning "guest-large" GuestLarge { function: String, others: Others }
    => "this virtual machine shares files of more than 1 TiB in all: requests in what is more fail"

    /// Its memory is less than it said.
    Warning "guest-memory-short" GuestMemoryShort { function: String, others: Others }
    => "memory of this virtual machine has become shorter while it was in use: requests there fail"

    /// It can make the card wait.
    Warning "guest-may-block" GuestMayBlock { function: String, error: String, others: Others }
    => "there is no io_uring of Linux 5.19 here for interrupts: a virtual machine that makes its own block can make \
        this node wait"

    /// Nobody can connect to a slot.
    Warning "slot-unwatched" SlotUnwatched { function: String, error: String } => "the socket of a slot cannot be \
                                                            watched"

    /// Somebody has attached a function.
    Info "slot-attached" SlotAttached { slot: String, function: String } => "a function is attached"

    /// That was not possible, and may be tried at the next start all the same.
    Warning "slot-undecided" SlotUndecided { slot: String } [error: String]
    => "a function that could not be attached may be at the next start: {error}"

    /// The manager of the fabric has assigned a function to it.
    Info "slot-assigned" SlotAssigned { slot: String, function: String, generation: u64 }
    => "the manager has assigned {function} to it, by generation {generation}"

    /// The manager has taken it back.
    Info "slot-unassigned" SlotUnassigned { slot: String, function: String }
    => "the manager has taken {function} back"

    /// The function of a slot cannot be had.
    Warning "slot-refused" SlotRefused { slot: String } [why: String] => "{why}"

    /// Nothing is attached any more.
    Info "slot-vacant" SlotVacant { slot: String } => "the slot is vacant"

    /// The guest has the function.
    Info "slot-plugged" SlotPlugged { slot: String } => "plugged in"

    /// It does not.
    Warning "slot-not-plugged" SlotNotPlugged { slot: String } [error: String] => "{error}"

    /// It has it no more.
    Info "slot-unplugged" SlotUnplugged { slot: String } => "unplugged"

    /// It still has it.
    Warning "slot-not-unplugged" SlotNotUnplugged { slot: String } [error: String] => "{error}"

    /// A dead device stays in the machine.
    Warning "slot-left-behind" SlotLeftBehind { slot: String } [why: String] => "{why}"

    /// The guest was asked for long enough.
    Warning "slot-surprised" SlotSurprised { slot: String }
    => "the guest does not let go of the function, which is taken away"

    /// The lender was asked for long enough.
    Warning "slot-abandoned" SlotAbandoned { slot: String }
    => "the lender does not answer; it keeps the function for this node"

    /// The lender was waited for long enough.
    Warning "slot-lost" SlotLost { slot: String, function: String, silent_s: u64 } [then: &'static str]
    => "the lender of {function} was silent for {silent_s} s: the function is taken out of the machine, {then}"

    /// The guest's device is worth nothing any more, and it gets another.
    Warning "slot-renewed" SlotRenewed { slot: String, function: String, loss: &'static str } [what: &'static str]
    => "{what}: the device is taken out of the machine and plugged in again"

    /// The same, where somebody has to do it by hand.
    Warning "slot-worn-out" SlotWornOut { function: String, loss: &'static str }
        [what: &'static str, by_hand: &'static str]
    => "{what}: {by_hand}"

    /// The guest was told that its function has not answered.
    Warning "guest-told" GuestTold { slot: String } => "the function did not answer its guest, which was told so"

    /// It was not.
    Warning "guest-not-told" GuestNotTold { slot: String } [why: String]
    => "the function did not answer its guest, which was not told: {why}"

    /// Nothing keeps a machine from being migrated.
    Warning "machine-not-held" MachineNotHeld { slot: String } [error: String]
    => "nothing keeps this machine from being saved or migrated, after which the drive would be dead: do neither while \
        it has the drive ({error})"

    /// Its monitor is not known.
    Warning "machine-unguarded" MachineUnguarded { function: String, others: Others }
    => "nobody keeps the virtual machine that has this function from being saved or migrated, after which the drive \
        would be dead: do neither while it has it, or start it by `causeway qemu-args`, or give the node its monitor \
        (`qmp` of the domain, or --qmp of `causeway borrow --vm`); then QEMU refuses"

    /// It may be.
    Info "machine-released" MachineReleased { slot: String }
    => "the machine does not have the device any more, and may be saved and migrated"

    /// A machine that was away runs.
    Info "machine-back" MachineBack { slot: String } => "the machine is back"

    // The configuration, read again.

    /// What the file says holds from now on.
    Info "reload-done" ReloadDone { changes: u64, pending: u64 }
    => "the configuration was read again: {changes} changes, {pending} of which wait for others"

    /// It does not, and nothing has changed.
    Warning "reload-refused" ReloadRefused {} [why: String]
    => "the configuration was read again and is not applied, so nothing has changed: {why}"

    /// Another device is lent.
    Info "device-added" DeviceAdded { device: String, source: String } => "the device is lent from now on"

    /// What is asked of a device that is lent has changed.
    Info "device-changed" DeviceChanged { device: String } [what: String] => "{what} of the device has changed"

    /// A device is to be lent no more, when nobody has it any more.
    Info "device-leaving" DeviceLeaving { device: String, waits_for: String }
    => "the device is to be lent no more: it waits for {waits_for}"

    /// It is to stay after all.
    Info "device-kept" DeviceKept { device: String } => "the device stays"

    /// It is lent no more.
    Info "device-removed" DeviceRemoved { device: String, source: String } => "the device is lent no more"

    /// Slots have come, perhaps with their virtual machine.
    Info "slots-added" SlotsAdded { domain: String, slots: String } => "the slots are there"

    /// Slots are to go, when their machine has let go of what is attached to them.
    Info "slots-leaving" SlotsLeaving { domain: String, slots: String, waits_for: String }
    => "the slots are to go: they wait for {waits_for}"

    /// Slots have gone.
    Info "slots-removed" SlotsRemoved { domain: String, slots: String } => "the slots are gone"

    /// A rail has come.
    Info "rail-added" RailAdded { rail: String, listen: String } => "the rail is there"

    /// A rail has gone.
    Info "rail-removed" RailRemoved { rail: String, listen: String }
    => "the rail is gone: what was under way there is sent again over others"

    /// Another node says that a rail seems to have failed.
    Info "rail-doubted" RailDoubted { rail: u8, peer: String, cause: &'static str, others: Others }
    => "another node says of rail {rail} of {peer} that {cause}: others are used until it has answered"

    /// An interface carries nothing, or is gone.
    Warning "interface-down" InterfaceDown { rail: String, interface: String }
    => "interface {interface} is down or has no carrier: the rail carries nothing until it is up (`ip link set \
        {interface} up`)"

    /// It carries again.
    Info "interface-up" InterfaceUp { rail: String, interface: String }
    => "interface {interface} is up: the rail carries again"

    /// A way to a lender is left out.
    Warning "rail-unused" RailUnused { rail: String } [why: String] => "a rail of the lender is not used here: {why}"

    /// A slot has another socket or preset in the file, and waits for who uses it.
    Info "slot-changing" SlotChanging { slot: String, waits_for: String }
    => "the slot is to change: it waits for {waits_for}"

    /// A slot is as the file says.
    Info "slot-changed" SlotChanged { slot: String } => "the slot is what the file says"

    /// Something else is borrowed.
    Info "loan-added" LoanAdded { function: String, edge: String } => "the function is borrowed from now on"

    /// What is borrowed is given back when nobody uses it any more.
    Info "loan-leaving" LoanLeaving { function: String, waits_for: String }
    => "the function is to be given back: it waits for {waits_for}"

    /// It was given back.
    Info "loan-removed" LoanRemoved { function: String } => "the function is borrowed no more"

    /// The same, though its lender has not taken it back in time.
    Warning "loan-abandoned" LoanAbandoned { function: String }
    => "the lender does not answer; it keeps the function for this node, which borrows it no more"

    /// Its lender was waited for long enough.
    Warning "loan-lost" LoanLost { function: String, silent_s: u64 }
    => "its lender was silent for {silent_s} s: the loan is over, its socket is gone, and its lender gets the function \
        back when it is heard"

    /// Lines of what is lent from now on could not be printed, or kept in their file.
    Warning "lines-unprinted" LinesUnprinted { error: String }
    => "the lines of what has come cannot be told ({error}); `causeway reload` has them for whoever asks"

    // Switches.

    /// A switch drops frames of a port: the first time, and once a minute while it goes on.
    Warning "switch-drops" SwitchDrops { port: String, reason: &'static str, count: u64 } [words: &'static str]
    => "frames at port {port} are dropped, {count} so far: {words}"

    /// Frames come to a switch from elsewhere than its ports are.
    Warning "switch-strangers" SwitchStrangers { listen: String, count: u64 }
    => "frames come to {listen} from addresses that are no port's, or in a group that they do not name, {count} so \
        far: they are dropped"

    /// A node has taken a partition of a switch.
    Info "partition-taken" PartitionTaken { partition: String, node: String, epoch: u64 }
    => "partition {partition} is {node}'s now, epoch {epoch}"

    /// Ports of a switch are in another partition.
    Info "ports-moved" PortsMoved { ports: String, partition: String, node: String }
    => "ports {ports} are in partition {partition} now, as {node} has said"

    /// A switch was told who is behind a port.
    Info "peer-told" PeerTold { port: String, peer: String, node: String }
    => "behind port {port} is {peer} now, as {node} has said"

    /// A switch does not do what was asked of it over its channel of control.
    Warning "control-refused" ControlRefused { node: String, why: String, others: Others }
    => "{node} is refused what it asks of this switch: {why}"

    /// What comes to a switch's channel of control is not answered: the first time, and once a minute while it goes on.
    Warning "control-dropped" ControlDropped { listen: String, from: String, reason: &'static str, count: u64 }
    [words: &'static str]
    => "what comes to {listen}, where this switch takes orders, is dropped and not answered, {count} so far; from \
        {from}: {words}"

    /// A port is not heard, or hears nothing at its other end, and the one that stands by for it is up.
    Warning "switch-standby" SwitchStandby { port: String, standby: String }
    => "nothing comes by port {port}, or nothing arrives that leaves by it: port {standby} is used in its place"

    /// The port is heard again, or the one that stood by is not any more.
    Info "switch-standby-ends" SwitchStandbyEnds { port: String, standby: String }
    => "port {standby} is not used any more in place of port {port}"

    /// An interface of a switch has lost its carrier, was set down, or is gone.
    Warning "switch-interface-down" SwitchInterfaceDown { interface: String }
    => "interface {interface} is down, has no carrier, or is gone: its ports carry nothing"

    /// It is back.
    Info "switch-interface-up" SwitchInterfaceUp { interface: String } => "interface {interface} is up again"

    // The manager of the fabric.

    /// The node speaks to it.
    Info "manager-connected" ManagerConnected { manager: String } => "connected to manager {manager}"

    /// It does not, or not any more.
    Warning "manager-lost" ManagerLost {} [why: String]
    => "no manager is heard, and all goes on as was told last: {why}"

    /// What the node shows of itself to others of the fabric is not good at this time.
    Warning "certificate-unfit" CertificateUnfit {} [why: String] => "{why}"

    /// A node does not belong to the fabric any more.
    Info "node-removed" NodeRemoved { node: String }
    => "node {node} was removed from the fabric: nothing of it is heard any more, and what it had here ends"

    /// It has decided something about a function that is lent here.
    Info "function-managed" FunctionManaged { function: String, generation: u64 } [what: String]
    => "{function} {what}, by generation {generation}"

    /// It has made a function here.
    Info "function-made" FunctionMade { function: String, device: String }
    => "{function} is lent from now on, a function of {device} that the manager has made"

    /// It has deleted one.
    Info "function-deleted" FunctionDeleted { function: String, device: String }
    => "{function} of {device} is there no more, and nothing of what was in it: the manager has deleted it"

    /// It wants a function that cannot be made.
    Warning "function-unmade" FunctionUnmade { function: String } [why: String]
    => "{function} cannot be made: {why}"

    /// What it has decided could not be kept, so it is not so here.
    Warning "decision-unkept" DecisionUnkept {} [error: String]
    => "what the manager has decided cannot be kept, and is asked for again: {error}"

    /// It wants what this node cannot do.
    Warning "decision-unfit" DecisionUnfit { function: String } [why: String] => "{function}: {why}"

    // The end of the node.

    /// Somebody has asked for it.
    Info "node-ending" NodeEnding {} => "ending"

    /// Once more.
    Info "node-hurried" NodeHurried {} => "ending at once, as somebody has asked again"

    /// What others have of this node then.
    Warning "loan-interrupted" LoanInterrupted { function: String, borrower: String }
    => "what is lent is in use: its requests wait until this node is started again, or fail with the borrower's I/O \
        time-out"

    /// It takes its time.
    Info "node-waiting" NodeWaiting { functions: String, up_to_s: u64 }
    => "waiting for the lender to take back what was borrowed, {up_to_s} s at most; a second Ctrl-C or SIGTERM ends at \
        once"

    /// Nothing can interrupt it.
    Warning "signals-unheard" SignalsUnheard {} [error: String]
    => "a signal does not end this node from here on, until its disks have answered: {error}"
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    /// Programs rely on these.
    #[test]
    fn kinds_are_unique_and_documented() {
        let kinds: BTreeSet<_> = Event::KINDS.iter().collect();
        assert_eq!(kinds.len(), Event::KINDS.len());
        let text = include_str!("../../../docs/events.md");
        for kind in kinds {
            assert!(kind.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'-'), "{kind}");
            assert!(text.contains(&format!("| `{kind}` |")), "docs/events.md says nothing of {kind}");
        }
    }

    #[test]
    fn an_event_has_kind_severity_and_words() {
        let event = Event::RailUp { rail: "left".into(), peer: "store".into(), to: "10.0.0.2:7411".into() };
        assert_eq!((event.kind(), event.severity()), ("rail-up", Severity::Info));
        assert_eq!(event.to_string(), "rail left to store (10.0.0.2:7411) answers again");
        assert_eq!(seconds(Duration::from_nanos(5_234_112)), 0.005234);
    }
}
