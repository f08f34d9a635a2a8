//! Starting, watching and reaping a card.
//!
//! A card is the same executable in another role. It is started with `posix_spawn`, which costs
//! the same however much memory the agent has (a plain fork copies page tables: 28 ms for 1 GiB),
//! gets exactly the descriptors it is given, at numbers both sides know, and is watched and
//! killed through a pidfd, so that a recycled process id can never be hit.

use std::ffi::{CStr, CString};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::ptr;

pub use node::agent::Exit;
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::process::{Pid, PidfdFlags, Signal, WaitId, WaitIdOptions, WaitIdStatus};

/// The executable that is running now, even if its file has been replaced meanwhile.
pub const OWN_EXECUTABLE: &CStr = c"/proc/self/exe";

/// Most descriptors a child can be given.
pub const MAX_DESCRIPTORS: usize = 4096;

/// What a child is started with.
#[derive(Debug)]
pub struct Spawn<'a> {
    /// Path of the executable; usually [`OWN_EXECUTABLE`].
    pub program: &'a CStr,
    /// All arguments, the name the process goes by first.
    pub arguments: &'a [CString],
    /// The whole environment, as `NAME=value`; nothing of the caller's own is added.
    pub environment: &'a [CString],
    /// Descriptors to inherit and the number each has in the child. Numbers 0, 1 and 2 may be given too: otherwise
    /// standard input is `/dev/null` and the outputs are the caller's.
    pub descriptors: &'a [(BorrowedFd<'a>, RawFd)],
}

impl Spawn<'_> {
    /// Starts the child and returns once it runs its own program. Everything not listed is closed in it, no signal is
    /// blocked or ignored, and it leads a process group of its own (a terminal's Ctrl-C reaches the agent alone).
    ///
    /// The thread that calls this must live as long as the child: see [`die_with_parent`].
    ///
    /// # Errors
    /// What `posix_spawn` returned, among them `ENOENT` and `EACCES` of the program, or `EMFILE` while preparing.
    ///
    /// # Panics
    /// If a number is given twice, is negative, or there are more than [`MAX_DESCRIPTORS`].
    pub fn start(&self) -> io::Result<Child> {
        assert!(
            self.descriptors.iter().all(|(_, number)| *number >= 0),
            "descriptor numbers are not negative"
        );
        let first_free = self.descriptors.iter().map(|(_, number)| *number).max().unwrap_or(2).max(2) + 1;
        assert!(first_free <= MAX_DESCRIPTORS as RawFd && self.descriptors.len() <= MAX_DESCRIPTORS);
        // A source may already have a number that another one wants: all are moved above the highest first.
        let moved = self
            .descriptors
            .iter()
            .map(|(fd, number)| Ok((rustix::io::fcntl_dupfd_cloexec(fd, first_free)?, *number)))
            .collect::<io::Result<Vec<_>>>()?;
        let mut actions = FileActions::new()?;
        for number in 0..first_free {
            let mut given = moved.iter().filter(|(_, wanted)| *wanted == number);
            match (given.next(), number) {
                (Some((fd, _)), _) => actions.duplicate(fd.as_raw_fd(), number)?,
                (None, 0) => actions.open_null(0)?,
                (None, 1 | 2) => {}
                (None, _) => actions.close(number)?,
            }
            assert!(given.next().is_none(), "descriptor number {number} is given twice");
        }
        actions.close_from(first_free)?;
        let attributes = Attributes::new()?;
        Child::watch(self.spawn(&actions, &attributes)?)
    }

    fn spawn(&self, actions: &FileActions, attributes: &Attributes) -> io::Result<Pid> {
        let arguments = pointers(self.arguments);
        let environment = pointers(self.environment);
        let mut pid = 0;
        // SAFETY: program, arguments and environment are NUL-terminated and live across the call, both arrays end
        // with a null pointer, and actions and attributes were initialised by their constructors.
        let error = unsafe {
            libc::posix_spawn(
                &mut pid,
                self.program.as_ptr(),
                &*actions.0,
                &*attributes.0,
                arguments.as_ptr(),
                environment.as_ptr(),
            )
        };
        check(error)?;
        Ok(Pid::from_raw(pid).expect("posix_spawn returns the id of a process that exists"))
    }
}

/// A started child. Dropping it kills the process, so that a forgotten card cannot go on writing; only
/// [`Child::reap`] waits for its end.
#[derive(Debug)]
pub struct Child {
    pid: Pid,
    pidfd: OwnedFd,
    exit: Option<Exit>,
}

impl Child {
    fn watch(pid: Pid) -> io::Result<Self> {
        // The child is ours and unreaped, so its id cannot have been given to another process.
        let pidfd = rustix::process::pidfd_open(pid, PidfdFlags::empty())?;
        Ok(Self { pid, pidfd, exit: None })
    }

    /// The process id, for people and logs; use the pidfd for everything else.
    #[must_use]
    pub fn pid(&self) -> i32 {
        self.pid.as_raw_nonzero().get()
    }

    /// Sends SIGKILL. A child that is already dead is not an error.
    ///
    /// # Errors
    /// What `pidfd_send_signal` returned, except `ESRCH`.
    pub fn kill(&self) -> io::Result<()> {
        self.signal(Signal::KILL)
    }

    /// Sends a signal. A child that is already dead is not an error.
    ///
    /// # Errors
    /// What `pidfd_send_signal` returned, except `ESRCH`.
    pub fn signal(&self, signal: Signal) -> io::Result<()> {
        match rustix::process::pidfd_send_signal(&self.pidfd, signal) {
            Ok(()) | Err(rustix::io::Errno::SRCH) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Waits until the child has ended and is gone. After this none of its plain system calls is still running;
    /// requests of an io_uring may be: see [`crate::ring`].
    ///
    /// # Errors
    /// What `waitid` returned.
    pub fn reap(&mut self) -> io::Result<Exit> {
        loop {
            if let Some(exit) = self.wait(WaitIdOptions::EXITED)? {
                return Ok(exit);
            }
        }
    }

    /// Reaps the child if it has ended. The pidfd becomes readable when it has.
    ///
    /// # Errors
    /// What `waitid` returned.
    pub fn try_reap(&mut self) -> io::Result<Option<Exit>> {
        self.wait(WaitIdOptions::EXITED | WaitIdOptions::NOHANG)
    }

    /// Lets the child go on by itself.
    pub fn leave(mut self) {
        // What has ended is not killed.
        self.exit = Some(Exit::Status(0));
    }

    fn wait(&mut self, options: WaitIdOptions) -> io::Result<Option<Exit>> {
        if self.exit.is_none() {
            self.exit = match rustix::process::waitid(WaitId::PidFd(self.pidfd.as_fd()), options) {
                Ok(status) => status.as_ref().and_then(exit_of),
                Err(rustix::io::Errno::INTR) => None,
                Err(error) => return Err(error.into()),
            };
        }
        Ok(self.exit)
    }
}

impl AsFd for Child {
    /// The pidfd: readable once the child has ended.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.pidfd.as_fd()
    }
}

/// How long a killed child may take to be gone before it is left to the kernel: only a disk that hangs inside of a
/// system call takes longer.
const LAST_WAIT: Timespec = Timespec { tv_sec: 2, tv_nsec: 0 };

impl Drop for Child {
    /// Kills it, and waits until it is gone: whoever sees its parent end may rely on that.
    fn drop(&mut self) {
        if self.exit.is_none() {
            let _ = self.kill();
            let _ = rustix::event::poll(&mut [PollFd::new(&self.pidfd, PollFlags::IN)], Some(&LAST_WAIT));
            let _ = self.try_reap();
        }
    }
}

/// Called by a child first of all: from now on it is killed when its parent ends.
///
/// The kernel watches the *thread* that started the child, so the agent starts cards from a thread that lives as
/// long as the agent. The setting survives exec.
///
/// # Errors
/// `ESRCH` if the parent is not `parent_pid` any more: it died before the call, and the child should exit.
pub fn die_with_parent(parent_pid: i32) -> io::Result<()> {
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
    match rustix::process::getppid().map(|pid| pid.as_raw_nonzero().get()) {
        Some(pid) if pid == parent_pid => Ok(()),
        _ => Err(rustix::io::Errno::SRCH.into()),
    }
}

/// The opposite: it goes on when its parent ends.
///
/// # Errors
/// None that is known.
pub fn outlive_parent() -> io::Result<()> {
    Ok(rustix::process::set_parent_process_death_signal(None)?)
}

/// Takes over an inherited descriptor by its number and makes it close-on-exec again.
///
/// # Errors
/// `EBADF` if no descriptor has this number.
///
/// # Safety
/// The number must be one the parent gave to this process with [`Spawn::descriptors`], and be taken once only:
/// the returned value closes it.
pub unsafe fn inherited(number: RawFd) -> io::Result<OwnedFd> {
    // SAFETY: F_GETFD on any number is harmless: it only tells whether a descriptor is open there.
    if unsafe { libc::fcntl(number, libc::F_GETFD) } < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the descriptor is open, as just seen, and the caller promises that nobody else owns it.
    let fd = unsafe { OwnedFd::from_raw_fd(number) };
    rustix::io::fcntl_setfd(&fd, rustix::io::FdFlags::CLOEXEC)?;
    Ok(fd)
}

/// Forks a child that shares the descriptors of this process: one with copies would keep open, and locked, what other
/// tests have closed.
///
/// # Safety
/// The child may only make system calls and touch shared memory, and never returns.
#[cfg(test)]
pub(crate) unsafe fn fork_with_our_descriptors() -> libc::pid_t {
    let none = 0_usize;
    // SAFETY: as fork, but for the table of descriptors; the caller keeps to what a child may do.
    let pid =
        unsafe { libc::syscall(libc::SYS_clone, libc::CLONE_FILES | libc::SIGCHLD, none, none, none, none) };
    assert!(pid >= 0, "{}", io::Error::last_os_error());
    pid as libc::pid_t
}

fn exit_of(status: &WaitIdStatus) -> Option<Exit> {
    status.exit_status().map(Exit::Status).or_else(|| status.terminating_signal().map(Exit::Signal))
}

fn pointers(strings: &[CString]) -> Vec<*mut libc::c_char> {
    strings.iter().map(|string| string.as_ptr().cast_mut()).chain([ptr::null_mut()]).collect()
}

fn check(error: i32) -> io::Result<()> {
    if error == 0 { Ok(()) } else { Err(io::Error::from_raw_os_error(error)) }
}

/// The list of what happens to descriptors between the birth of the child and its exec.
struct FileActions(Box<libc::posix_spawn_file_actions_t>);

impl FileActions {
    fn new() -> io::Result<Self> {
        // SAFETY: the type is plain C data for which zero bytes are a value; the next call initialises it.
        let mut actions = Self(Box::new(unsafe { std::mem::zeroed() }));
        // SAFETY: the pointer is to memory of the right type that stays where it is.
        check(unsafe { libc::posix_spawn_file_actions_init(&mut *actions.0) })?;
        Ok(actions)
    }

    fn duplicate(&mut self, from: RawFd, to: RawFd) -> io::Result<()> {
        // SAFETY: the list was initialised by `new`; numbers are only interpreted in the child.
        check(unsafe { libc::posix_spawn_file_actions_adddup2(&mut *self.0, from, to) })
    }

    fn open_null(&mut self, number: RawFd) -> io::Result<()> {
        let (path, flags) = (c"/dev/null".as_ptr(), libc::O_RDONLY);
        // SAFETY: the list was initialised by `new`, and the path is a static string.
        check(unsafe { libc::posix_spawn_file_actions_addopen(&mut *self.0, number, path, flags, 0) })
    }

    fn close(&mut self, number: RawFd) -> io::Result<()> {
        // SAFETY: the list was initialised by `new`; closing a number that is not open is ignored in the child.
        check(unsafe { libc::posix_spawn_file_actions_addclose(&mut *self.0, number) })
    }

    fn close_from(&mut self, number: RawFd) -> io::Result<()> {
        // SAFETY: the list was initialised by `new`.
        check(unsafe { libc::posix_spawn_file_actions_addclosefrom_np(&mut *self.0, number) })
    }
}

impl Drop for FileActions {
    fn drop(&mut self) {
        // SAFETY: the list was initialised by `new` and is not used after this.
        unsafe { libc::posix_spawn_file_actions_destroy(&mut *self.0) };
    }
}

/// Signals as a new program expects them, and a process group of its own.
struct Attributes(Box<libc::posix_spawnattr_t>);

impl Attributes {
    fn new() -> io::Result<Self> {
        // SAFETY: the type is plain C data for which zero bytes are a value; the next call initialises it.
        let mut attributes = Self(Box::new(unsafe { std::mem::zeroed() }));
        let raw: *mut libc::posix_spawnattr_t = &mut *attributes.0;
        let flags = libc::POSIX_SPAWN_SETSIGMASK | libc::POSIX_SPAWN_SETSIGDEF | libc::POSIX_SPAWN_SETPGROUP;
        // SAFETY: `raw` points to a live object that the first call initialises; the signal sets are initialised by
        // sigemptyset and sigfillset before they are read.
        unsafe {
            check(libc::posix_spawnattr_init(raw))?;
            let (mut none, mut all) = (std::mem::zeroed(), std::mem::zeroed());
            libc::sigemptyset(&mut none);
            libc::sigfillset(&mut all);
            check(libc::posix_spawnattr_setsigmask(raw, &none))?;
            check(libc::posix_spawnattr_setsigdefault(raw, &all))?;
            check(libc::posix_spawnattr_setpgroup(raw, 0))?;
            check(libc::posix_spawnattr_setflags(raw, flags as libc::c_short))?;
        }
        Ok(attributes)
    }
}

impl Drop for Attributes {
    fn drop(&mut self) {
        // SAFETY: the object was initialised by `new` and is not used after this.
        unsafe { libc::posix_spawnattr_destroy(&mut *self.0) };
    }
}

/// The process at the other end of a Unix socket, as the kernel tells. None: there is none that this process can see,
/// as from another namespace of process ids.
pub(crate) fn peer_pid(socket: BorrowedFd<'_>) -> io::Result<Option<i32>> {
    let mut credentials = libc::ucred { pid: 0, uid: 0, gid: 0 };
    let mut len = size_of::<libc::ucred>() as libc::socklen_t;
    // SAFETY: the kernel writes at most `len` bytes, which is the size of what it is given.
    let result = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERCRED,
            (&raw mut credentials).cast(),
            &mut len,
        )
    };
    if result != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(Some(credentials.pid).filter(|pid| *pid > 0))
}

#[cfg(test)]
mod tests;
