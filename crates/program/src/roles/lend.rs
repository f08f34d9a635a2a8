//! What a node lends: images, the keys of their loans, and the lines.

mod drive;
pub(super) mod made;
pub(super) mod medium;

pub(super) use drive::{Lent, functions};

use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;
use std::time::Duration;

use base::ids::NodeId;
use io::address::Addresses;
use io::agent::{DriveSpec, LoanEnd, LoanSpec, Rail};
use io::event::Event;
use io::files::{Image, LastWrites};
use node::{DriveConfig, FunctionId, LendConfig, Lender, Limit, LoanConfig, Secret, WriteCache};

use super::{image, managed};
use crate::cli::{ByteSize, LendArgs};
use crate::config::{BlockSize, Device, Layout};
use crate::exit::Failure;
use crate::line::{FunctionName, Key, Line};
use crate::state_dir::made::MadeRow;
use crate::state_dir::{StateDir, StateError};

/// What was opened to be lent.
#[derive(Default)]
pub(super) struct Opened {
    /// The drives.
    pub(super) drives: Vec<Option<DriveSpec>>,
    /// Their names, and what stands for their layout in what is kept of them.
    pub(super) layouts: Vec<(FunctionName, u64)>,
    /// One loan for each function.
    pub(super) loans: Vec<LoanSpec>,
    /// The devices, as they were declared.
    pub(super) devices: Vec<Device>,
    /// When the images are written; there if any of them outlives the node.
    pub(super) last_writes: Option<LastWrites>,
}

/// The drives of `causeway lend`: one a source.
pub(super) fn devices(args: &LendArgs) -> Vec<Device> {
    let sources = args.sources.iter().enumerate();
    sources
        .map(|(index, source)| Device {
            function: FunctionName::nvme(index),
            source: source.clone(),
            read_only: args.read_only,
            block_size: BlockSize::default(),
            cache: args.cache,
            allow: Some(args.allow.clone()).filter(|ids| !ids.is_empty()),
            limit: Limit::NONE,
            layout: args.functions.map_or(Layout::Whole, Layout::Split),
            group: args.group,
        })
        .collect()
}

/// Refuses what cannot work whatever the files hold: one source twice, more memory than there is. Nothing is opened
/// for it, so that a source's own lock, which waits for a dead node's, is not waited for.
pub(super) fn check(devices: &[Device]) -> Result<(), Failure> {
    for (index, device) in devices.iter().enumerate() {
        let Some(path) = device.source.path() else { continue };
        let same = |earlier: &&Device| earlier.source.path().is_some_and(|other| is_same(path, other));
        if let Some(earlier) = devices[..index].iter().find(same) {
            let (source, name) = (&device.source, &device.function);
            let also = if earlier.source == *source {
                String::new()
            } else {
                format!(", there by the name of {}", earlier.source)
            };
            return Err(Failure::usage(format!(
                "{source} is to be lent twice, as {} and as {name}{also}; a source is one function, remove one of them",
                earlier.function
            )));
        }
    }
    let system = rustix::system::sysinfo();
    fits_memory(devices, system.totalram as u64 * u64::from(system.mem_unit))
}

/// Whether two paths lead to one file or one block device. What is not there is no file yet, and refused by name later.
fn is_same(one: &Path, other: &Path) -> bool {
    let identity = |path: &Path| {
        let found = std::fs::metadata(path).ok()?;
        let is_device = found.file_type().is_block_device();
        Some(if is_device { (true, found.rdev(), 0) } else { (false, found.dev(), found.ino()) })
    };
    one == other || identity(one).is_some_and(|found| identity(other) == Some(found))
}

fn fits_memory(devices: &[Device], memory: u64) -> Result<(), Failure> {
    let mut wanted = 0_u64;
    for device in devices {
        let Some(size) = device.source.memory() else { continue };
        wanted = wanted.saturating_add(size.0);
        if wanted > memory {
            let (source, name) = (&device.source, &device.function);
            let all = if wanted == size.0 {
                String::new()
            } else {
                format!(" together with the ones before ({} in all)", ByteSize(wanted))
            };
            return Err(Failure::usage(format!(
                "{source} for {name} is more{all} than this machine's memory, {}; choose a smaller size, or lend a \
                 file",
                ByteSize(memory)
            )));
        }
    }
    Ok(())
}

/// Opens everything that is to be lent. Each function has a key of its own, so that its line opens no other.
pub(super) fn open(devices: &[Device], state: &StateDir) -> Result<Opened, Failure> {
    let mut opened = Opened::default();
    let outlives = |device: &Device| device.source.memory().is_none();
    if devices.iter().any(outlives) {
        let page = LastWrites::of_folder(state.path());
        let page = page.map_err(|error| Failure::io("cannot have memory for the node", &error))?;
        if !page.is_kept() {
            Event::WritesUnkept {}.say();
        }
        opened.last_writes = Some(page);
    }
    for (place, device) in devices.iter().enumerate() {
        let ready = Ready::open(device, state, image::LOCK_PATIENCE)?;
        let settled = ready.settle(place, state, opened.last_writes.as_ref())?;
        opened.drives.push(Some(settled.drive));
        opened.layouts.push((device.function.clone(), settled.layout));
        opened.loans.extend(settled.loans);
    }
    opened.devices = devices.to_vec();
    Ok(opened)
}

/// A device whose image is open and locked; nothing durable has changed for it.
pub(super) struct Ready {
    device: Device,
    /// Functions of it that a manager has made.
    made: Vec<MadeRow>,
    image: Image,
    config: DriveConfig,
}

/// A device that can be lent.
pub(super) struct Settled {
    pub(super) drive: DriveSpec,
    /// What stands for its layout.
    pub(super) layout: u64,
    /// One loan for each function.
    pub(super) loans: Vec<LoanSpec>,
}

impl Ready {
    /// Opens the image, whose lock somebody else may hold for so long.
    pub(super) fn open(device: &Device, state: &StateDir, patience: Duration) -> Result<Self, Failure> {
        let image = image::open(&device.source, device.read_only, device.block_size.bytes(), patience)?;
        let mut made = state.made()?;
        made::refuse_name(device, &made)?;
        made.retain(|row| row.is_ready && row.made.shape.device.as_str() == device.function.as_str());
        let config = drive::config(device, &made, &image, state)?;
        Ok(Self { device: device.clone(), made, image, config })
    }

    /// How many functions it has.
    pub(super) fn functions(&self) -> usize {
        self.device.layout.functions() + self.made.len()
    }

    /// They, and how nodes name them.
    pub(super) fn function_ids(&self, state: &StateDir) -> Result<Vec<(FunctionName, FunctionId)>, Failure> {
        let functions = functions(&self.device)?.into_iter();
        let id = |name: &FunctionName| function_id(&function_secret(state.key(), name));
        let own = functions.map(|Lent { name, .. }| (name.clone(), id(&name)));
        Ok(own.chain(made::ids(&self.made, state)?).collect())
    }

    /// Makes durable what has to be before the device is lent as the drive in `place`: see [`medium::settle`].
    pub(super) fn settle(
        self,
        place: usize,
        state: &StateDir,
        last_writes: Option<&LastWrites>,
    ) -> Result<Settled, Failure> {
        let Self { device, made, image, mut config } = self;
        let outlives = device.source.memory().is_none();
        if let Some(last_writes) = last_writes.filter(|_| outlives) {
            let shows_cache = matches!(config.cache, WriteCache::Shown { .. });
            medium::settle_flush(&device.function, shows_cache, state, last_writes)?;
            medium::settle((&device, &made), place, &image, state, last_writes)?;
        }
        if let WriteCache::Shown { keeper } = &mut config.cache {
            *keeper = keeper.wrapping_add(state.untold_flushes(&device.function)?);
        }
        let has_lost = outlives && state.fault(&device.function)?;
        let mut loans = loans(&device, place, state)?;
        for row in &made {
            loans.push(made::loan(row, &device, place, state)?);
        }
        let (flash, source) = (device.source.card(), device.source.to_string());
        let (name, layout) = (device.function.as_str().to_owned(), device.layout_fingerprint());
        let drive = DriveSpec { name, image, config, flash, source, has_lost };
        Ok(Settled { drive, layout, loans })
    }
}

/// The loans of a device's functions, which is the drive in `place`.
fn loans(device: &Device, place: usize, state: &StateDir) -> Result<Vec<LoanSpec>, Failure> {
    let allowed: Option<Box<[NodeId]>> = device.allow.as_deref().map(Box::from);
    let mut loans = Vec::new();
    for Lent { name: function, controller, limit, group } in functions(device)? {
        let secret = function_secret(state.key(), &function);
        let number = function_id(&secret);
        let row = state.managed_row(number.0)?;
        let entry = row.as_ref().and_then(managed::entry_of);
        let limit = row.as_ref().and_then(managed::limit_of).unwrap_or(limit);
        let lent = LendConfig { drive: place, controller, limit, allowed: allowed.clone(), entry };
        // Memory is new in each life of the node.
        let tenancy = match device.source.memory() {
            Some(_) => state.renew_tenancy(&function)?,
            None => state.tenancy(&function)?,
        };
        let first = LoanConfig::new(Secret(secret), number, LoanEnd::Lend(lent));
        let config = LoanConfig { group, tenancy, ..first };
        loans.push(LoanSpec { function: function.as_str().to_owned(), config, hold: None });
    }
    Ok(loans)
}

impl Opened {
    /// From now on the images may be written to: nothing but the first card's start can be refused any more, and who is
    /// refused then, or here, calls [`withdraw`].
    pub(super) fn begin(&self, state: &StateDir) -> Result<(), StateError> {
        let Some(last_writes) = &self.last_writes else { return Ok(()) };
        last_writes.begin(state.incarnation(), self.drives.iter().flatten().map(written));
        let mut drives = self.drives.iter().flatten().zip(&self.layouts);
        drives.try_for_each(|(drive, (name, _))| begin(drive, name, state))
    }
}

/// The time of the last write to the image of a drive, as far as its file system tells.
pub(super) fn written(drive: &DriveSpec) -> Option<i64> {
    drive.image.identify().ok().and_then(|identity| identity.written())
}

/// From now on cards may write to the image of this drive.
pub(super) fn begin(drive: &DriveSpec, name: &FunctionName, state: &StateDir) -> Result<(), StateError> {
    if drive.config.keeps_state && !drive.image.info().read_only {
        medium::begin(state, name)?;
    }
    Ok(())
}

/// Where these rails are.
pub(super) fn addresses_of<'a>(rails: impl IntoIterator<Item = &'a Rail>) -> Addresses {
    let mut addresses = Addresses::NONE;
    rails.into_iter().for_each(|rail| addresses.set(rail.id, rail.socket.local()));
    addresses
}

/// The lines of what this node lends at these addresses.
pub(super) fn lines<'a>(
    lender: Lender,
    loans: impl IntoIterator<Item = &'a LoanSpec>,
    addresses: Addresses,
) -> Result<Vec<String>, Failure> {
    loans
        .into_iter()
        .filter_map(|loan| Some((loan, loan.config.title.secret()?)))
        .map(|(loan, secret)| {
            let function = loan.function.parse().map_err(Failure::usage)?;
            let secret = Key::new(secret.0);
            let line = Line::new(lender, secret, addresses, function).map_err(Failure::usage)?;
            Ok(line.in_group(loan.config.group).reveal())
        })
        .collect()
}

/// How nodes name a function: anyone who has its key can tell, and nobody needs to be asked.
pub(super) fn function_id(key: &[u8; 32]) -> FunctionId {
    // The word is older than the name: another one would rename every drive.
    let [a, b, c, d, ..] = link::derive(key, u64::from_le_bytes(*b"group\0\0\0"));
    FunctionId(u32::from_le_bytes([a, b, c, d]))
}

/// No card was started: nothing was written.
pub(super) fn withdraw(layouts: &[(FunctionName, u64)], state: &StateDir) {
    for (name, _) in layouts {
        // The start has failed, which is said; what cannot be kept is known by less at the next one.
        let _ = medium::withdraw(state, name);
    }
}

/// What no other drive has: the node's identity and the drive's name in one number.
fn unique_id(state: &StateDir, drive: &FunctionName) -> u64 {
    state.serial() ^ u64::from(function_id(&function_secret(state.key(), drive)).0).rotate_left(32)
}

/// The secret of one function, from the node's and the function's name.
fn function_secret(secret: &Key, function: &FunctionName) -> [u8; 32] {
    secret_of(secret, function.as_str().as_bytes())
}

fn secret_of(secret: &Key, name: &[u8]) -> [u8; 32] {
    // The length comes first: no name is the beginning of another then, and no secret leads to that of another.
    name.chunks(8).fold(link::derive(secret.reveal(), name.len() as u64), |key, part| {
        let mut label = [0; 8];
        label[..part.len()].copy_from_slice(part);
        link::derive(&key, u64::from_le_bytes(label))
    })
}

#[cfg(test)]
mod tests {
    use base::ids::Group;

    use super::*;
    use crate::cli::Source;
    use crate::config::Cache;
    use crate::exit::Exit;

    fn lent(sources: &[&str]) -> Vec<Device> {
        let sources = sources.iter().enumerate();
        sources
            .map(|(index, source)| Device {
                function: FunctionName::nvme(index),
                source: Source::from_os(source.into()).unwrap(),
                read_only: false,
                block_size: BlockSize::default(),
                cache: Cache::default(),
                allow: None,
                limit: Limit::NONE,
                layout: Layout::Whole,
                group: Group::DEFAULT,
            })
            .collect()
    }

    #[test]
    fn one_file_under_two_names_is_refused_with_both() {
        let folder = tempfile::tempdir().unwrap();
        let [file, link, other] = ["a.img", "b.img", "c.img"].map(|name| folder.path().join(name));
        std::fs::write(&file, [0; 512]).unwrap();
        std::fs::write(&other, [0; 512]).unwrap();
        std::os::unix::fs::symlink(&file, &link).unwrap();
        let [file, link, other] = [&file, &link, &other].map(|path| path.to_str().unwrap());
        assert!(check(&lent(&[file, other, "missing.img", "ram:1M", "ram:1M"])).is_ok());
        let failure = check(&lent(&[other, file, link])).unwrap_err();
        assert_eq!(failure.exit(), Exit::Usage);
        for word in [file, link, "nvme1", "nvme2"] {
            assert!(failure.message().contains(word), "{failure}");
        }
        assert!(check(&lent(&["missing.img", "missing.img"])).is_err(), "the same path, file or not");
        assert!(check(&lent(&[file, &format!("flash:{link}?scale=2")])).is_err(), "behind a flash card too");
    }

    #[test]
    fn memory_that_is_not_there_is_refused_by_name() {
        assert!(fits_memory(&lent(&["ram:1G", "flash:1G"]), 2 << 30).is_ok());
        assert!(fits_memory(&lent(&["ram:1G", "flash:ram:1536M?scale=2"]), 2 << 30).is_err());
        let failure = fits_memory(&lent(&["ram:99999G"]), 2 << 30).unwrap_err();
        assert!(failure.message().starts_with("ram:99999G for nvme0 is more than"), "{failure}");
        let failure = fits_memory(&lent(&["ram:1G", "ram:1536M"]), 2 << 30).unwrap_err();
        assert!(
            failure.message().contains("ram:1536M") && failure.message().contains("2.5 GiB"),
            "{failure}"
        );
        assert!(
            fits_memory(&lent(&["ram:16383P", "ram:16383P"]), u64::MAX - 1).is_err(),
            "sums do not overflow"
        );
    }

    #[test]
    fn functions_have_keys_and_groups_of_their_own() {
        let secret = Key::new([3; 32]);
        let keys = ["nvme0", "nvme1", "a-longer-name-of-a-function"]
            .map(|name| function_secret(&secret, &name.parse().unwrap()));
        assert!(keys[0] != keys[1] && keys[1] != keys[2] && !keys.contains(secret.reveal()));
        // Whoever has the line of one function makes no other's of it.
        let [short, long] =
            ["database", "database1"].map(|name| function_secret(&secret, &name.parse().unwrap()));
        assert_ne!(long, link::derive(&short, u64::from(b'1')));
        assert_ne!(function_id(&keys[0]), function_id(&keys[1]));
        assert_eq!(keys[0], function_secret(&secret, &"nvme0".parse().unwrap()));
    }
}
