//! The functions and namespaces of a lent drive, as a file declares them.

use base::hash::fnv1a;
use base::ids::Group;
use node::{FUNCTIONS_MAX, Limit};
use toml::Spanned;

use super::raw;
use super::validate::Check;
use crate::cli::ByteSize;
use crate::line::FunctionName;

/// How a drive is divided.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Layout {
    /// One function has it all: the physical one.
    Whole,
    /// So many virtual functions with a namespace each, all of one size; none: those that a manager makes.
    Split(u16),
    /// As declared, one by one.
    Declared {
        /// The namespaces, in the order in which they lie on the medium.
        namespaces: Vec<Namespace>,
        /// The virtual functions, from the first on.
        functions: Vec<Function>,
    },
}

/// A namespace of a drive.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Namespace {
    /// Its name, or that of the only function that has it.
    pub name: String,
    /// Its size; `None` for an equal part of what the others leave.
    pub bytes: Option<u64>,
    /// Several functions may have it.
    pub shared: bool,
    /// Writes are refused.
    pub read_only: bool,
}

/// A virtual function of a drive.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Function {
    /// Its name in the line.
    pub name: FunctionName,
    /// Which of the namespaces it has.
    pub namespace: usize,
    /// What it may do.
    pub limit: Limit,
    /// The zone that it is lent in.
    pub group: Group,
}

/// What functions have of their device that do not say it themselves.
#[derive(Clone, Copy)]
pub(super) struct OfDevice {
    pub(super) block_size: u32,
    pub(super) read_only: bool,
    pub(super) limit: Limit,
    pub(super) group: Group,
}

impl Layout {
    /// How many functions are lent.
    pub fn functions(&self) -> usize {
        match self {
            Self::Whole => 1,
            Self::Split(count) => usize::from(*count),
            Self::Declared { functions, .. } => functions.len(),
        }
    }

    /// What tells this layout from another, wherever the medium's size does not matter: limits, groups and names do not
    /// either.
    pub fn fingerprint(&self, block_size: u32) -> u64 {
        let mut text = format!("{block_size}");
        match self {
            Self::Whole => {}
            Self::Split(count) => text += &format!(" split {count}"),
            Self::Declared { namespaces, functions } => {
                for namespace in namespaces {
                    let Namespace { bytes, shared, read_only, .. } = namespace;
                    text += &format!(" namespace {} {shared} {read_only}", bytes.unwrap_or(0));
                }
                functions.iter().for_each(|function| text += &format!(" function {}", function.namespace));
            }
        }
        fnv1a(text.as_bytes())
    }
}

impl Check<'_> {
    /// A limit; `fallback` says what is not limited here.
    pub(super) fn drive_limit(
        &mut self,
        iops: Option<&Spanned<i64>>,
        bytes_per_s: Option<&Spanned<i64>>,
        fallback: Limit,
    ) -> Option<Limit> {
        let mut rate = |key: &str, value: Option<&Spanned<i64>>, fallback: Option<u64>| match value {
            None => Some(fallback),
            Some(value) => match u64::try_from(*value.get_ref()) {
                Ok(rate @ 1..) => Some(Some(rate)),
                _ => {
                    let what = format!(
                        "a limit of {} for {key} would stop the function: leave it out, or give a number above 0",
                        value.get_ref()
                    );
                    self.wrong(value.span().start, what);
                    None
                }
            },
        };
        let iops = rate("iops", iops, fallback.iops());
        let bytes_per_s = rate("bytes_per_s", bytes_per_s, fallback.bytes_per_s());
        Limit::new(iops?, bytes_per_s?).ok()
    }

    /// How a device is divided.
    pub(super) fn layout(&mut self, raw: &raw::Device, device: OfDevice) -> Option<Layout> {
        let namespaces: Vec<_> =
            raw.namespaces.iter().map(|it| self.namespace(it.get_ref(), device)).collect();
        let names = raw.namespaces.iter().map(|it| &it.get_ref().name);
        self.twice("namespace", names.map(|name| (name.span().start, name.get_ref())));
        let Some(functions) = &raw.functions else {
            if let Some(namespace) = raw.namespaces.first() {
                self.wrong(namespace.span().start, "namespaces need [[devices.functions]] that have them");
                return None;
            }
            return Some(Layout::Whole);
        };
        let at = functions.span().start;
        let count = match functions.get_ref() {
            raw::Functions::Count(count) => *count,
            raw::Functions::Each(each) => each.len() as i64,
        };
        // Of a drive without any a manager makes them.
        if !(0..=i64::from(FUNCTIONS_MAX)).contains(&count) {
            let what = format!("a drive has 0 to {FUNCTIONS_MAX} virtual functions, not {count}");
            self.wrong(at, what);
            return None;
        }
        match functions.get_ref() {
            raw::Functions::Count(_) if !raw.namespaces.is_empty() => {
                self.wrong(
                    at,
                    "`functions = N` makes its own namespaces; write [[devices.functions]] instead",
                );
                None
            }
            raw::Functions::Count(count) => Some(Layout::Split(*count as u16)),
            raw::Functions::Each(each) => {
                let namespaces = namespaces.into_iter().collect::<Option<Vec<_>>>()?;
                self.declared(each, namespaces, device)
            }
        }
    }

    fn namespace(&mut self, raw: &raw::Namespace, device: OfDevice) -> Option<Namespace> {
        let bytes = self.namespace_size(&raw.size, device.block_size)?;
        let name = raw.name.get_ref().clone();
        Some(Namespace {
            name,
            bytes: Some(bytes),
            shared: raw.shared,
            read_only: raw.read_only || device.read_only,
        })
    }

    fn declared(
        &mut self,
        each: &[Spanned<raw::Function>],
        mut namespaces: Vec<Namespace>,
        device: OfDevice,
    ) -> Option<Layout> {
        let declared = namespaces.len();
        let mut users: Vec<Option<String>> = vec![None; declared];
        let mut functions = Vec::new();
        for raw in each.iter().map(Spanned::get_ref) {
            let name = self.parsed::<FunctionName>(&raw.name);
            let limit = self.drive_limit(raw.iops.as_ref(), raw.bytes_per_s.as_ref(), device.limit);
            let group = self.group(raw.group.as_ref(), device.group);
            let namespace = match (&raw.namespace, &raw.size) {
                (Some(wanted), None) => {
                    let found = namespaces[..declared].iter().position(|it| it.name == *wanted.get_ref());
                    self.shared_namespace(wanted, found, raw.name.get_ref(), &namespaces, &mut users)
                }
                (Some(_), Some(size)) => {
                    self.wrong(size.span().start, "`namespace` has a size already; remove one of them");
                    None
                }
                (None, size) => {
                    let bytes = match size {
                        Some(size) => self.namespace_size(size, device.block_size).map(Some),
                        None => Some(None),
                    };
                    let name = raw.name.get_ref().clone();
                    bytes.map(|bytes| {
                        let read_only = device.read_only;
                        namespaces.push(Namespace { name, bytes, shared: false, read_only });
                        namespaces.len() - 1
                    })
                }
            };
            if let (Some(name), Some(namespace), Some(limit)) = (name, namespace, limit) {
                functions.push(Function { name, namespace, limit, group });
            }
        }
        (functions.len() == each.len()).then_some(Layout::Declared { namespaces, functions })
    }

    /// The declared namespace that a function names: one of its own, or one that says that it is shared.
    fn shared_namespace(
        &mut self,
        wanted: &Spanned<String>,
        found: Option<usize>,
        function: &str,
        namespaces: &[Namespace],
        users: &mut [Option<String>],
    ) -> Option<usize> {
        let at = wanted.span().start;
        let Some(index) = found else {
            let what = format!("there is no namespace `{}` in [[devices.namespaces]]", wanted.get_ref());
            self.wrong(at, what);
            return None;
        };
        match users[index].replace(function.to_owned()) {
            Some(other) if !namespaces[index].shared => {
                let what = format!(
                    "namespace `{}` is on `{other}` and on `{function}`, but does not say `shared = true`: two \
                     filing systems on it would destroy each other",
                    wanted.get_ref()
                );
                self.wrong(at, what);
                None
            }
            _ => Some(index),
        }
    }

    fn namespace_size(&mut self, size: &Spanned<String>, block_size: u32) -> Option<u64> {
        let bytes = self.parsed::<ByteSize>(size)?.0;
        if bytes == 0 || !bytes.is_multiple_of(block_size.into()) {
            let what = format!("a namespace has whole blocks of {block_size} bytes, at least one");
            self.wrong(size.span().start, what);
            return None;
        }
        Some(bytes)
    }
}
