//! The process that a [`campaign::lossy::LossyFs`] holds: a FUSE file system with one file, `disk.img`, in memory.
//! Writes are seen at once, and kept when they are synchronised; `forget` on standard input drops all others. Closing
//! the file keeps nothing. It ends with its standard input.
//!
//! With `cached` the kernel keeps writes in its page cache and writes them back when it likes, or when it is flushed;
//! `fail` lets the next of those writes fail, and answers how many have failed so far. There is no direct I/O then.

use fuser::{
    BsdFileFlags, Config, Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags, Generation, INodeNo,
    InitFlags, KernelConfig, LockOwner, OpenFlags, ReplyAttr, ReplyData, ReplyEmpty, ReplyEntry, ReplyOpen,
    ReplyWrite, Request, Session, TimeOrNow, WriteFlags,
};
use rustix::fs::OFlags;
use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::io::{self, BufRead, Write};
use std::process::ExitCode;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

const PAGE: usize = 4096;
const FILE: INodeNo = INodeNo(2);
const FILE_NAME: &str = "disk.img";
/// Attributes never change.
const TTL: Duration = Duration::from_secs(3600);

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let (folder, size, cached) = match &arguments[..] {
        [folder, size] => (folder, size, false),
        [folder, size, cached] if cached == "cached" => (folder, size, true),
        _ => {
            eprintln!("usage: causeway-lossy-fs FOLDER BYTES [cached]");
            return ExitCode::FAILURE;
        }
    };
    match size.parse().map_err(io::Error::other).and_then(|size| serve(folder, size, cached)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("causeway-lossy-fs: {error}");
            ExitCode::FAILURE
        }
    }
}

fn serve(folder: &str, size: usize, cached: bool) -> io::Result<()> {
    let content = Content {
        seen: vec![0; size],
        durable: vec![0; size],
        dirty: BTreeSet::new(),
        lies: false,
        fails: false,
        failed: 0,
    };
    let shared = Arc::new(Mutex::new(content));
    let mount =
        Session::new(LossyFs { content: Arc::clone(&shared), size, cached }, folder, &Config::default())?;
    let _mounted = mount.spawn()?;
    println!("ready");
    for line in io::stdin().lock().lines() {
        let mut content = lock(&shared);
        let answer = match line?.as_str() {
            "forget" => content.forget(),
            "fail" => {
                content.fails = true;
                content.failed
            }
            "failed" => content.failed,
            "lie" => {
                content.lies = true;
                0
            }
            other => return Err(io::Error::other(format!("unknown command {other:?}"))),
        };
        writeln!(io::stdout(), "{answer}")?;
    }
    Ok(())
}

/// The file's bytes.
struct Content {
    /// What reads find.
    seen: Vec<u8>,
    /// What stays.
    durable: Vec<u8>,
    /// Pages that differ.
    dirty: BTreeSet<usize>,
    lies: bool,
    /// The next write fails.
    fails: bool,
    /// How many have.
    failed: usize,
}

impl Content {
    fn write(&mut self, offset: usize, data: &[u8]) {
        self.seen[offset..offset + data.len()].copy_from_slice(data);
        self.dirty.extend(offset / PAGE..(offset + data.len()).div_ceil(PAGE));
    }

    fn synchronise(&mut self) {
        if self.lies {
            return;
        }
        for page in std::mem::take(&mut self.dirty) {
            let range = self.range(page);
            self.durable[range.clone()].copy_from_slice(&self.seen[range]);
        }
    }

    fn forget(&mut self) -> usize {
        let dirty = std::mem::take(&mut self.dirty);
        for &page in &dirty {
            let range = self.range(page);
            self.seen[range.clone()].copy_from_slice(&self.durable[range]);
        }
        dirty.len()
    }

    fn range(&self, page: usize) -> std::ops::Range<usize> {
        page * PAGE..((page + 1) * PAGE).min(self.seen.len())
    }
}

struct LossyFs {
    content: Arc<Mutex<Content>>,
    size: usize,
    cached: bool,
}

impl LossyFs {
    fn attributes(&self, number: INodeNo) -> Option<FileAttr> {
        let (kind, perm, size) = match number {
            INodeNo::ROOT => (FileType::Directory, 0o755, 0),
            FILE => (FileType::RegularFile, 0o600, self.size as u64),
            _ => return None,
        };
        let (uid, gid) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
        Some(FileAttr {
            ino: number,
            size,
            blocks: size.div_ceil(512),
            atime: UNIX_EPOCH,
            mtime: UNIX_EPOCH,
            ctime: UNIX_EPOCH,
            crtime: UNIX_EPOCH,
            kind,
            perm,
            nlink: 1,
            uid,
            gid,
            rdev: 0,
            blksize: PAGE as u32,
            flags: 0,
        })
    }

    /// The part of the file that a request means, if it lies in the file.
    fn range(&self, offset: u64, length: u64) -> Option<std::ops::Range<usize>> {
        let start = usize::try_from(offset).ok().filter(|start| *start <= self.size)?;
        let end = start.checked_add(usize::try_from(length).ok()?)?;
        Some(start..end.min(self.size))
    }
}

impl Filesystem for LossyFs {
    fn init(&mut self, _: &Request, config: &mut KernelConfig) -> io::Result<()> {
        if self.cached {
            let added = config.add_capabilities(InitFlags::FUSE_WRITEBACK_CACHE);
            added.map_err(|_| io::Error::other("the kernel has no write-back cache for FUSE"))?;
        }
        Ok(())
    }

    fn lookup(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let wanted = parent == INodeNo::ROOT && name == FILE_NAME;
        match self.attributes(FILE).filter(|_| wanted) {
            Some(attributes) => reply.entry(&TTL, &attributes, Generation(0)),
            None => reply.error(Errno::ENOENT),
        }
    }

    fn getattr(&self, _: &Request, number: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        match self.attributes(number) {
            Some(attributes) => reply.attr(&TTL, &attributes),
            None => reply.error(Errno::ENOENT),
        }
    }

    /// With a write-back cache the kernel keeps the times, and hands them over with a flush, which would fail with
    /// this.
    fn setattr(
        &self,
        _: &Request,
        number: INodeNo,
        _: Option<u32>,
        _: Option<u32>,
        _: Option<u32>,
        size: Option<u64>,
        _: Option<TimeOrNow>,
        _: Option<TimeOrNow>,
        _: Option<SystemTime>,
        _: Option<FileHandle>,
        _: Option<SystemTime>,
        _: Option<SystemTime>,
        _: Option<SystemTime>,
        _: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        match self.attributes(number).filter(|_| size.is_none()) {
            Some(attributes) => reply.attr(&TTL, &attributes),
            None => reply.error(Errno::EPERM),
        }
    }

    fn open(&self, _: &Request, _: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        reply.opened(FileHandle(0), FopenFlags::empty());
    }

    fn read(
        &self,
        _: &Request,
        _: INodeNo,
        _: FileHandle,
        offset: u64,
        size: u32,
        flags: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyData,
    ) {
        if self.cached && OFlags::from_bits_retain(flags.0 as u32).contains(OFlags::DIRECT) {
            return reply.error(Errno::EINVAL);
        }
        match self.range(offset, u64::from(size)) {
            Some(range) => reply.data(&lock(&self.content).seen[range]),
            None => reply.data(&[]),
        }
    }

    fn write(
        &self,
        _: &Request,
        _: INodeNo,
        _: FileHandle,
        offset: u64,
        data: &[u8],
        _: WriteFlags,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        let mut content = lock(&self.content);
        if std::mem::take(&mut content.fails) {
            content.failed += 1;
            return reply.error(Errno::EIO);
        }
        match self.range(offset, data.len() as u64).filter(|range| range.len() == data.len()) {
            Some(range) => {
                content.write(range.start, data);
                reply.written(data.len() as u32);
            }
            None => reply.error(Errno::ENOSPC),
        }
    }

    fn fallocate(
        &self,
        _: &Request,
        _: INodeNo,
        _: FileHandle,
        offset: u64,
        length: u64,
        _: i32,
        reply: ReplyEmpty,
    ) {
        // Both kinds that a drive asks for, a hole and zeroes, read as zeroes afterwards.
        if let Some(range) = self.range(offset, length) {
            let zeroes = vec![0; range.len()];
            lock(&self.content).write(range.start, &zeroes);
        }
        reply.ok();
    }

    fn fsync(&self, _: &Request, _: INodeNo, _: FileHandle, _: bool, reply: ReplyEmpty) {
        lock(&self.content).synchronise();
        reply.ok();
    }

    fn flush(&self, _: &Request, _: INodeNo, _: FileHandle, _: LockOwner, reply: ReplyEmpty) {
        reply.ok();
    }
}

fn lock(content: &Mutex<Content>) -> MutexGuard<'_, Content> {
    content.lock().unwrap_or_else(PoisonError::into_inner)
}
