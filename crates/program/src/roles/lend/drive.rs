//! From a device as it was declared to the drive that the card makes.

use base::hash::fnv1a;
use base::ids::Group;
use io::event::Event;
use io::files::{Image, ImageKind};
use node::{DriveConfig, Limit, NamespaceConfig, WriteCache};
use tracing::debug;

use super::{made, unique_id};
use crate::cli::ByteSize;
use crate::config::{Cache, Device, Function, Layout};
use crate::exit::Failure;
use crate::line::FunctionName;
use crate::state_dir::StateDir;
use crate::state_dir::drive::{self, Kept};
use crate::state_dir::made::MadeRow;

/// Namespaces begin at whole pages of the medium.
const ALIGNMENT: u64 = 4096;

/// A function that is lent.
pub(in crate::roles) struct Lent {
    pub(in crate::roles) name: FunctionName,
    pub(in crate::roles) controller: u16,
    pub(in crate::roles) limit: Limit,
    pub(in crate::roles) group: Group,
}

/// Each function of a device.
pub(in crate::roles) fn functions(device: &Device) -> Result<Vec<Lent>, Failure> {
    let (limit, group) = (device.limit, device.group);
    match &device.layout {
        Layout::Whole => Ok(vec![Lent { name: device.function.clone(), controller: 0, limit, group }]),
        Layout::Split(count) => (1..=*count)
            .map(|controller| {
                let name = format!("{}-{controller}", device.function).parse().map_err(Failure::usage)?;
                Ok(Lent { name, controller, limit, group })
            })
            .collect(),
        Layout::Declared { functions, .. } => {
            let functions = (1..).zip(functions.iter().cloned());
            let lent = functions.map(|(controller, Function { name, limit, group, .. })| Lent {
                name,
                controller,
                limit,
                group,
            });
            Ok(lent.collect())
        }
    }
}

/// What the drive is made for: from its declaration, its image, and what was kept of it.
pub(super) fn config(
    device: &Device,
    made: &[MadeRow],
    image: &Image,
    state: &StateDir,
) -> Result<DriveConfig, Failure> {
    let block_size = device.block_size.bytes();
    let bytes = image.info().bytes;
    let mut config =
        DriveConfig::new(bytes / u64::from(block_size), block_size, unique_id(state, &device.function));
    config.read_only = image.info().read_only;
    config.cache = match device.cache {
        // What memory holds is as durable as a flush could make it.
        _ if image.info().memory_backed => WriteCache::Absent,
        Cache::None => WriteCache::Hidden,
        Cache::Volatile => WriteCache::Shown { keeper: keeper(device, image) },
    };
    // A hole in a file reads as zeroes; what a disk returns for blocks that it was told to discard is its own affair.
    config.zeroes_deallocated = image.info().kind == ImageKind::File;
    // Memory is new in each life of the node, and so is the drive in front of it.
    config.keeps_state = device.source.memory().is_none();
    config.functions = match &device.layout {
        Layout::Whole => 0,
        layout => layout.functions() as u16,
    };
    config.namespaces = namespaces(device, bytes)?;
    config.is_empty = device.layout != Layout::Whole;
    config.made = made::functions(made);
    let source = &device.source;
    config.check().map_err(|error| Failure::usage(format_args!("{source}: {}", named(device, &error))))?;
    if config.keeps_state {
        config.saved = saved(device, state)?;
        let file = drive::path(state.path(), &device.function);
        config.check().map_err(|error| {
            Failure::refused(format_args!(
                "{source}: {error}; if the image was replaced, remove {} and the drive is made anew",
                file.display()
            ))
        })?;
    }
    Ok(config)
}

/// Stands for what keeps the drive's unflushed writes: the same number only while they are certainly there.
fn keeper(device: &Device, image: &Image) -> u64 {
    let facts = image.page_cache().unwrap_or_else(|error| {
        Event::CacheUntold { source: device.source.to_string(), error: error.to_string() }.say();
        // Two starts never have the same.
        format!("{:?}", std::time::SystemTime::now())
    });
    debug!(source = %device.source, facts, "what keeps unflushed writes");
    fnv1a(facts.as_bytes())
}

fn saved(device: &Device, state: &StateDir) -> Result<Option<Vec<u8>>, Failure> {
    let layout = device.layout.fingerprint(device.block_size.bytes());
    match drive::read(state.path(), &device.function, layout).map_err(Failure::refused)? {
        Kept::Nothing => Ok(None),
        Kept::Record(record) => Ok(Some(record)),
        Kept::OtherLayout => Err(Failure::refused(format_args!(
            "{} has been lent with other functions or namespaces, and where their data lie would change; lend it as \
             before, or remove {} to divide it anew",
            device.source,
            drive::path(state.path(), &device.function).display()
        ))),
    }
}

/// The namespaces of a new drive on a medium of so many bytes.
fn namespaces(device: &Device, bytes: u64) -> Result<Vec<NamespaceConfig>, Failure> {
    let block_size = device.block_size.bytes();
    let make = |bytes: u64, read_only: bool, shared: bool, controllers: Vec<u16>| NamespaceConfig {
        blocks: bytes / u64::from(block_size),
        block_size,
        read_only,
        shared,
        controllers,
    };
    match &device.layout {
        Layout::Whole => Ok(Vec::new()),
        Layout::Split(0) => Ok(Vec::new()),
        Layout::Split(count) => {
            let part = part(device, bytes, usize::from(*count))?;
            Ok((1..=*count).map(|it| make(part, device.read_only, false, vec![it])).collect())
        }
        Layout::Declared { namespaces, functions } => {
            let sized = namespaces.iter().filter_map(|it| it.bytes);
            let taken =
                sized.fold(0, |sum: u64, bytes| sum.saturating_add(bytes.next_multiple_of(ALIGNMENT)));
            let rest = namespaces.iter().filter(|it| it.bytes.is_none()).count();
            let part = if rest > 0 { part(device, bytes.saturating_sub(taken), rest)? } else { 0 };
            let users = |index: usize| {
                let controllers = (1..).zip(functions).filter(move |(_, it)| it.namespace == index);
                controllers.map(|(controller, _)| controller).collect()
            };
            let each = namespaces.iter().enumerate();
            Ok(each
                .map(|(index, it)| make(it.bytes.unwrap_or(part), it.read_only, it.shared, users(index)))
                .collect())
        }
    }
}

/// One of `count` equal parts.
fn part(device: &Device, bytes: u64, count: usize) -> Result<u64, Failure> {
    match bytes / count as u64 / ALIGNMENT * ALIGNMENT {
        0 => Err(Failure::usage(format_args!(
            "{}: {} are too few to be divided among {count} functions; enlarge it, or lend fewer",
            device.source,
            ByteSize(bytes)
        ))),
        part => Ok(part),
    }
}

/// An error of a drive, with the name that a namespace was given.
fn named(device: &Device, error: &node::DriveConfigError) -> String {
    let (Layout::Declared { namespaces, .. }, node::DriveConfigError::NamespaceTooLarge { nsid, missing }) =
        (&device.layout, error)
    else {
        return error.to_string();
    };
    let name = namespaces.get(*nsid as usize - 1).map_or("?", |it| it.name.as_str());
    format!("namespace `{name}` is too large: the drive lacks {missing} bytes")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::Source;
    use crate::config::Namespace;

    fn device(layout: Layout) -> Device {
        Device {
            function: "d".parse().unwrap(),
            source: Source::from_os("ram:1M".into()).unwrap(),
            read_only: false,
            block_size: crate::config::BlockSize::B512,
            cache: Cache::default(),
            allow: None,
            limit: Limit::NONE,
            layout,
            group: Group::DEFAULT,
        }
    }

    #[test]
    fn a_drive_is_divided_as_declared() {
        let split = device(Layout::Split(3));
        let parts = namespaces(&split, 1 << 20).unwrap();
        assert!(parts.iter().all(|it| it.blocks == (1 << 20) / 3 / 4096 * 8 && !it.shared));
        assert_eq!(functions(&split).unwrap()[2].name.as_str(), "d-3");
        assert!(namespaces(&split, 8192).unwrap_err().message().contains("too few"));

        let namespace =
            |name: &str, bytes, shared| Namespace { name: name.to_owned(), bytes, shared, read_only: false };
        let function = |name: &str, namespace, group| Function {
            name: name.parse().unwrap(),
            namespace,
            limit: Limit::NONE,
            group: Group(group),
        };
        let declared = device(Layout::Declared {
            namespaces: vec![namespace("data", Some(512), true), namespace("c", None, false)],
            functions: vec![function("a", 0, 1), function("b", 0, 2), function("c", 1, 1)],
        });
        let groups: Vec<u16> = functions(&declared).unwrap().iter().map(|it| it.group.0).collect();
        assert_eq!(groups, [1, 2, 1]);
        let parts = namespaces(&declared, 1 << 20).unwrap();
        assert_eq!((parts[0].blocks, &parts[0].controllers[..], parts[0].shared), (1, &[1, 2][..], true));
        assert_eq!((parts[1].blocks, &parts[1].controllers[..]), ((1 << 11) - 8, &[3][..]));
        assert_ne!(declared.layout.fingerprint(512), split.layout.fingerprint(512));
        assert_eq!(split.layout.fingerprint(512), 0x3ace_bf50_a6ac_e69a, "files of earlier versions have it");
    }
}
