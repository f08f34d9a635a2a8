//! From what the file says to what a node can do: names, addresses, sizes, paths, and nothing twice.

use std::ffi::OsString;
use std::fmt::Display;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use base::ids::{Group, NodeId, RailId};
use clap::ValueEnum;
use io::agent::{descriptors_for, slots_by_descriptors};
use manager::model::OnSilence;
use node::{Limit, Protection, RailMode, Secret};
use toml::Spanned;

use super::drive::OfDevice;
use super::error::Problem;
use super::listen::Place;
use super::{
    BlockSize, Cache, Config, DEVICES_MAX, Device, ENTRIES_MAX, Layout, Loan, LoanEdge, Rail, SLOTS_MAX,
    group_key, raw,
};
use crate::cli::{
    ByteSize, IO_TIMEOUT_DEFAULT_S, Listen, NodeName, OnlyCipher, SocketAccess, Source, check_socket_path,
    gateway, protection, socket_mode,
};
use crate::line::{FUNCTION_NAME_MAX, FunctionName, Line, RAILS_MAX, read_regular_line_file};

/// Longest name of a rail, in characters.
const RAIL_NAME_MAX: usize = 32;

/// Checks everything, and reports all problems at once.
pub(super) fn config(raw: raw::Node, text: &str, path: &Path) -> Result<Config, Vec<Problem>> {
    let folder = path.parent().unwrap_or(Path::new(""));
    let mut check = Check { text, folder, group: Group::DEFAULT, problems: Vec::new() };
    let name = match &raw.name {
        Some(name) => check.parsed::<NodeName>(name),
        None => Some(NodeName::cleaned(&path.file_stem().unwrap_or_default().to_string_lossy())),
    };
    let state_dir = raw.state_dir.map(|dir| check.folder.join(dir));
    let protection = check.protection(raw.insecure, raw.cipher.as_ref());
    let rail_mode = check.rail_mode(raw.mode.as_ref());
    let rails = check.rails(&raw.rails);
    check.group = check.group(raw.group.as_ref(), Group::DEFAULT);
    let devices = check.devices(&raw.devices);
    let loans = check.loans(&raw.loans);
    let domains = check.domains(&raw.domains);
    let domain_block = raw.domain_block.as_ref().and_then(|block| check.domain_block(block));
    let group_key = raw.group_key.as_ref().and_then(|file| check.group_key(file));
    let ledger = raw.ledger.as_ref().and_then(|size| check.parsed::<ByteSize>(size));
    let sockets = raw.loans.iter().flat_map(|loan| [&loan.get_ref().nbd, &loan.get_ref().vm]).flatten();
    let slots = raw.domains.iter().flat_map(|domain| &domain.get_ref().slots);
    if let Some(extra) = slots.clone().nth(SLOTS_MAX) {
        check.wrong(extra.span().start, format_args!("a node has at most {SLOTS_MAX} slots"));
    }
    let machines = raw.loans.iter().filter_map(|loan| Some(loan.get_ref().vm.as_ref()?.span().start));
    let machines: Vec<usize> = machines.chain(slots.clone().map(|slot| slot.span().start)).collect();
    let (fit, descriptors) = slots_by_descriptors();
    if let Some(extra) = machines.get(fit) {
        let wanted = descriptors_for(machines.len());
        let what = format!(
            "a process may open {descriptors} files here, which is enough for {fit} slots of virtual machines and not \
             for {}: allow {wanted} (ulimit -n, or LimitNOFILE= in the unit)",
            machines.len()
        );
        check.wrong(*extra, what);
    }
    let sockets = sockets.chain(slots.map(|slot| &slot.get_ref().socket));
    check.twice("socket", sockets.map(|path| (path.span().start, path.get_ref().display())));
    // Each list has its own limit; together they share one, in which each function counts.
    let lent: usize = devices.iter().map(|device| device.layout.functions()).sum();
    let lent = lent + domains.iter().map(|domain| domain.slots.len()).sum::<usize>();
    let extra = match raw.loans.get(ENTRIES_MAX.saturating_sub(lent)) {
        Some(extra) => Some(extra.span().start),
        None => raw.devices.last().filter(|_| lent > ENTRIES_MAX).map(|device| device.span().start),
    };
    if let Some(at) = extra {
        check.wrong(at, format_args!("a node has at most {ENTRIES_MAX} functions, loans and slots together"));
    }
    if raw.devices.is_empty() && raw.loans.is_empty() && raw.domains.is_empty() {
        check.wrong(
            text.len(),
            "this node would do nothing: add [[devices]] to lend, [[loans]] to borrow, or [[domains]] with slots",
        );
    }
    match name {
        Some(name) if check.problems.is_empty() => {
            let shared_memory = raw.shm.unwrap_or(true);
            Ok(Config {
                name,
                state_dir,
                protection,
                rail_mode,
                shared_memory,
                only_members: raw.only_members,
                domain_block,
                group_key,
                ledger,
                rails,
                devices,
                loans,
                domains,
            })
        }
        _ => Err(check.problems),
    }
}

pub(super) struct Check<'a> {
    text: &'a str,
    folder: &'a Path,
    /// That of devices that say no other.
    group: Group,
    problems: Vec<Problem>,
}

impl Check<'_> {
    fn protection(&mut self, insecure: bool, cipher: Option<&Spanned<String>>) -> Protection {
        let only = cipher.and_then(|name| OnlyCipher::from_str(name.get_ref(), false).ok());
        let at = cipher.map_or(0, |name| name.span().start);
        if cipher.is_some() && only.is_none() {
            self.wrong(
                at,
                "`cipher` can be \"aes-256-gcm\"; without it the two ends of a loan take AEGIS-128X2 where both have \
                 instructions for AES, else AES-256-GCM",
            );
        }
        if cipher.is_some() && insecure {
            self.wrong(at, "with `insecure = true` nothing is encrypted: remove one");
        }
        protection(insecure, only)
    }

    fn rails(&mut self, raw: &[Spanned<raw::Rail>]) -> Vec<Rail> {
        if let Some(extra) = raw.get(RAILS_MAX) {
            self.wrong(extra.span().start, format_args!("a node has at most {RAILS_MAX} rails"));
        }
        let rails: Vec<(&raw::Rail, Option<Rail>)> =
            raw.iter().map(|rail| (rail.get_ref(), self.rail(rail.get_ref()))).collect();
        self.twice("rail name", rails.iter().map(|(raw, _)| (raw.name.span().start, raw.name.get_ref())));
        let listens: Vec<(usize, Listen)> = rails
            .iter()
            .filter_map(|(raw, rail)| Some((raw.place()?.span().start, rail.as_ref()?.listen.clone())))
            .collect();
        self.twice("address", listens.iter().map(|(at, listen)| (*at, listen)));
        let ids: Vec<(usize, RailId)> = rails
            .iter()
            .filter_map(|(raw, rail)| Some((raw.id.as_ref()?.span().start, rail.as_ref()?.id?)))
            .collect();
        self.twice("rail id", ids.iter().map(|(at, id)| (*at, id)));
        rails.into_iter().filter_map(|(_, rail)| rail).collect()
    }

    /// Where a rail is to be.
    fn listen(&mut self, raw: &raw::Rail) -> Option<Listen> {
        let place = Place {
            of: "rail",
            example: "ADDR",
            at: raw.name.span().start,
            listen: raw.listen.as_ref(),
            ethernet: raw.ethernet.as_ref(),
        };
        place.find().map_err(|(at, what)| self.wrong(at, what)).ok()
    }

    fn rail(&mut self, raw: &raw::Rail) -> Option<Rail> {
        let name = raw.name.get_ref();
        let allowed = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
        if name.is_empty() || name.len() > RAIL_NAME_MAX || !name.chars().all(allowed) {
            let shown = name.escape_debug();
            let what = format!(
                "`{shown}` is no name of a rail: 1 to {RAIL_NAME_MAX} letters, digits, `.`, `_`, `-`"
            );
            self.wrong(raw.name.span().start, what);
        }
        let mut listen = self.listen(raw)?;
        if let Some(raw_port) = &raw.port {
            let at = raw_port.span().start;
            match (u16::try_from(*raw_port.get_ref()), &mut listen) {
                (Ok(1..), Listen::Udp { port: Some(_), .. }) => {
                    self.wrong(at, "the port stands in `listen` already; remove one of them");
                }
                (Ok(chosen @ 1..), Listen::Udp { port, .. }) => *port = Some(chosen),
                (Ok(1..), Listen::Ethernet { .. }) => self.wrong(at, "a rail over Ethernet has no port"),
                _ => self.wrong(at, "a port is a number from 1 to 65535"),
            }
        }
        let id = raw.id.as_ref().and_then(|id| {
            let found = u8::try_from(*id.get_ref()).ok().and_then(RailId::new);
            if found.is_none() {
                self.wrong(
                    id.span().start,
                    format_args!("the id of a rail is a number from 0 to {}", RAILS_MAX - 1),
                );
            }
            found
        });
        let switch = raw.switch.as_ref().and_then(|switch| {
            let found = gateway(switch.get_ref(), &listen);
            found.map_err(|error| self.wrong(switch.span().start, error)).ok()
        });
        let raw::Rail { announce, offload, .. } = *raw;
        Some(Rail { name: name.clone(), listen, id, switch, announce, offload })
    }

    fn devices(&mut self, raw: &[Spanned<raw::Device>]) -> Vec<Device> {
        self.limit("devices", raw, DEVICES_MAX);
        let devices: Vec<Option<Device>> = raw.iter().map(|device| self.device(device.get_ref())).collect();
        let mut names: Vec<(usize, String)> = Vec::new();
        for (raw, device) in raw.iter().map(Spanned::get_ref).zip(&devices) {
            let at = raw.function.span().start;
            match (&raw.functions.as_ref().map(Spanned::get_ref), device) {
                (Some(raw::Functions::Each(each)), _) => {
                    let each = each.iter().map(|function| &function.get_ref().name);
                    names.extend(each.map(|name| (name.span().start, name.get_ref().clone())));
                }
                (Some(raw::Functions::Count(_)), Some(device)) => {
                    let each = 1..=device.layout.functions();
                    names.extend(each.map(|index| (at, format!("{}-{index}", device.function))));
                }
                (Some(raw::Functions::Count(_)), None) => {}
                (None, _) => names.push((at, raw.function.get_ref().clone())),
            }
        }
        self.twice("function", names.iter().map(|(at, name)| (*at, name)));
        // A drive's name names what is kept of it.
        let drives = raw.iter().map(|device| &device.get_ref().function);
        let drives = drives.filter(|name| !names.iter().any(|(at, _)| *at == name.span().start));
        self.twice("function", drives.map(|name| (name.span().start, name.get_ref())));

        let sources: Vec<(usize, &Path)> = devices
            .iter()
            .zip(raw)
            .filter_map(|(device, raw)| {
                let path = device.as_ref()?.source.path()?;
                Some((raw.get_ref().source.span().start, path))
            })
            .collect();
        self.twice("source", sources.iter().map(|(at, path)| (*at, path.display())));
        devices.into_iter().flatten().collect()
    }

    fn device(&mut self, raw: &raw::Device) -> Option<Device> {
        let block_size = match &raw.block_size {
            None => Some(BlockSize::default()),
            Some(size) => match size.get_ref() {
                512 => Some(BlockSize::B512),
                4096 => Some(BlockSize::B4096),
                other => {
                    self.wrong(
                        size.span().start,
                        format_args!("block_size {other} is not possible; write 512 or 4096"),
                    );
                    None
                }
            },
        };
        let cache = self.cache(raw.cache.as_ref());
        let allow = match &raw.allow {
            None => Some(None),
            Some(ids) => ids.iter().map(|id| self.parsed(id)).collect::<Option<Vec<NodeId>>>().map(Some),
        };
        let function = self.parsed::<FunctionName>(&raw.function);
        let at = raw.source.span().start;
        let source = Source::from_os(OsString::from(raw.source.get_ref()));
        let source = source.map_err(|error| self.wrong(at, error)).ok();
        let (function, source, block_size, cache, allow) = (function?, source?, block_size?, cache?, allow?);
        let source = source.in_folder(self.folder);
        let block = block_size.bytes();
        if source.memory().is_some_and(|size| !size.0.is_multiple_of(block.into())) {
            self.wrong(at, format_args!("{source} is not a multiple of the block size, {block} bytes"));
        }
        let limit = self.drive_limit(raw.iops.as_ref(), raw.bytes_per_s.as_ref(), Limit::NONE)?;
        let (group, read_only) = (self.group(raw.group.as_ref(), self.group), raw.read_only);
        let layout = self.layout(raw, OfDevice { block_size: block, read_only, limit, group })?;
        if matches!(layout, Layout::Split(_)) && function.as_str().len() + 3 > FUNCTION_NAME_MAX {
            let what = format!(
                "with `-64` behind it, `{function}` would be longer than {FUNCTION_NAME_MAX} characters"
            );
            self.wrong(raw.function.span().start, what);
        }
        Some(Device { function, source, read_only, block_size, cache, allow, limit, layout, group })
    }

    /// Of a function, a device or the node; `fallback` is what holds where none is said.
    pub(super) fn group(&mut self, raw: Option<&Spanned<i64>>, fallback: Group) -> Group {
        let Some(raw) = raw else { return fallback };
        Group::new(*raw.get_ref()).unwrap_or_else(|| {
            let most = Group::MAX;
            self.wrong(raw.span().start, format_args!("group {} is none: 1 to {most}", raw.get_ref()));
            fallback
        })
    }

    fn rail_mode(&mut self, raw: Option<&Spanned<String>>) -> RailMode {
        let Some(raw) = raw else { return RailMode::default() };
        match raw.get_ref().as_str() {
            "balance" => RailMode::Balance,
            "standby" => RailMode::Standby,
            other => {
                let what = format_args!("mode \"{other}\" is not possible; write \"balance\" or \"standby\"");
                self.wrong(raw.span().start, what);
                RailMode::default()
            }
        }
    }

    fn cache(&mut self, raw: Option<&Spanned<String>>) -> Option<Cache> {
        let Some(raw) = raw else { return Some(Cache::default()) };
        match raw.get_ref().as_str() {
            "none" => Some(Cache::None),
            "volatile" => Some(Cache::Volatile),
            other => {
                let what = format_args!("cache \"{other}\" is not possible; write \"none\" or \"volatile\"");
                self.wrong(raw.span().start, what);
                None
            }
        }
    }

    fn loans(&mut self, raw: &[Spanned<raw::Loan>]) -> Vec<Loan> {
        self.limit("loans", raw, ENTRIES_MAX);
        raw.iter().filter_map(|loan| self.loan(loan)).collect()
    }

    fn loan(&mut self, raw: &Spanned<raw::Loan>) -> Option<Loan> {
        let at = raw.span().start;
        let raw = raw.get_ref();
        let line = self.line(at, raw.line.as_ref(), raw.line_file.as_ref());
        let edge = self.edge(at, raw);
        let io_timeout = match &raw.io_timeout_s {
            None => Some(IO_TIMEOUT_DEFAULT_S),
            Some(seconds) => match u64::try_from(*seconds.get_ref()) {
                Ok(seconds @ 1..=86_400) => Some(seconds),
                _ => {
                    self.wrong(seconds.span().start, "io_timeout_s is a number of seconds from 1 to 86400");
                    None
                }
            },
        };
        let on_silence = self.on_silence(raw.on_silence.as_ref());
        let io_timeout = Duration::from_secs(io_timeout?);
        Some(Loan { line: line?, edge: edge?, io_timeout, on_silence: on_silence? })
    }

    fn edge(&mut self, at: usize, raw: &raw::Loan) -> Option<LoanEdge> {
        let access = [&raw.vm_owner, &raw.vm_group, &raw.vm_mode].into_iter().flatten().next();
        match (&raw.nbd, &raw.vm) {
            (Some(nbd), None) => {
                if let Some(access) = access {
                    self.wrong(
                        access.span().start,
                        "this is about the socket of a virtual machine; add `vm`",
                    );
                }
                Some(LoanEdge::Nbd { path: self.socket(nbd)? })
            }
            (None, Some(vm)) => {
                let access = self.access([&raw.vm_owner, &raw.vm_group, &raw.vm_mode]);
                Some(LoanEdge::Vm { path: self.socket(vm)?, access: access? })
            }
            (Some(_), Some(vm)) => {
                self.wrong(vm.span().start, "`nbd` and `vm` both say who uses the drive; remove one of them");
                None
            }
            (None, None) => {
                self.wrong(at, "nobody would use this loan; add `nbd` or `vm`, the path of a socket");
                None
            }
        }
    }

    /// Who may connect: owner, group and mode.
    pub(super) fn access(&mut self, raw: [&Option<Spanned<String>>; 3]) -> Option<SocketAccess> {
        let [owner, group, mode] = raw;
        let text = |value: &Option<Spanned<String>>| value.as_ref().map(|value| value.get_ref().clone());
        let mode = match mode {
            None => None,
            Some(text) => {
                let mode = socket_mode(text.get_ref());
                Some(mode.map_err(|error| self.wrong(text.span().start, error)).ok()?)
            }
        };
        Some(SocketAccess { owner: text(owner), group: text(group), mode })
    }

    /// The path of a socket.
    pub(super) fn socket(&mut self, raw: &Spanned<PathBuf>) -> Option<PathBuf> {
        let joined = self.folder.join(raw.get_ref());
        // What was written decides for relative paths too: the folder's own length counts as well.
        let path = if raw.get_ref().as_os_str().is_empty() { raw.get_ref() } else { &joined };
        check_socket_path(path).map_err(|error| self.wrong(raw.span().start, error)).ok()?;
        Some(joined)
    }

    fn group_key(&mut self, file: &Spanned<PathBuf>) -> Option<Secret> {
        let read = group_key::read(&self.folder.join(file.get_ref()));
        read.map_err(|error| self.wrong(file.span().start, error)).ok()
    }

    pub(super) fn line(
        &mut self,
        at: usize,
        line: Option<&Spanned<String>>,
        file: Option<&Spanned<PathBuf>>,
    ) -> Option<Line> {
        match (line, file) {
            (Some(line), None) => self.parsed(line),
            (None, Some(file)) => {
                let path = self.folder.join(file.get_ref());
                let read = read_regular_line_file(&path);
                read.map_err(|error| {
                    let absent = error.is_absent().then_some(path);
                    let problem = Problem::at(self.text, file.span().start, error);
                    self.problems.push(Problem { absent, ..problem });
                })
                .ok()
            }
            (Some(_), Some(file)) => {
                self.wrong(
                    file.span().start,
                    "`line` and `line_file` both name the lender; remove one of them",
                );
                None
            }
            (None, None) => {
                self.wrong(at, "this loan names no lender; add `line` or `line_file`");
                None
            }
        }
    }

    /// What becomes of a loan in silence, where the file says it.
    pub(super) fn on_silence(&mut self, text: Option<&Spanned<String>>) -> Option<Option<OnSilence>> {
        text.map_or(Some(None), |text| self.parsed(text).map(Some))
    }

    pub(super) fn parsed<T: FromStr<Err: Display>>(&mut self, text: &Spanned<String>) -> Option<T> {
        text.get_ref().parse().map_err(|error| self.wrong(text.span().start, error)).ok()
    }

    fn limit<T>(&mut self, what: &str, entries: &[Spanned<T>], most: usize) {
        if let Some(extra) = entries.get(most) {
            self.wrong(extra.span().start, format_args!("a node has at most {most} {what}"));
        }
    }

    /// Names each value that stood before, with the line it stood in.
    pub(super) fn twice(&mut self, what: &str, values: impl Iterator<Item = (usize, impl Display)>) {
        let mut seen = std::collections::BTreeMap::new();
        for (at, value) in values {
            let value = value.to_string();
            match seen.get(&value) {
                None => {
                    seen.insert(value, at);
                }
                Some(first) => {
                    let line = Problem::at(self.text, *first, "").line;
                    self.wrong(at, format_args!("{what} `{value}` stands in line {line} already"));
                }
            }
        }
    }

    pub(super) fn wrong(&mut self, at: usize, what: impl Display) {
        self.problems.push(Problem::at(self.text, at, what));
    }
}
