//! The file as serde sees it: keys and kinds of values, each with its place in the text.

use std::fmt;
use std::path::PathBuf;

use serde::de::{SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};
use toml::Spanned;

#[derive(Deserialize)]
#[serde(deny_unknown_fields, expecting = "the keys of a node")]
pub(super) struct Node {
    pub(super) name: Option<Spanned<String>>,
    pub(super) state_dir: Option<PathBuf>,
    #[serde(default)]
    pub(super) insecure: bool,
    pub(super) cipher: Option<Spanned<String>>,
    pub(super) mode: Option<Spanned<String>>,
    pub(super) shm: Option<bool>,
    #[serde(default)]
    pub(super) only_members: bool,
    pub(super) domain_block: Option<Spanned<String>>,
    pub(super) group: Option<Spanned<i64>>,
    pub(super) group_key: Option<Spanned<PathBuf>>,
    pub(super) ledger: Option<Spanned<String>>,
    #[serde(default)]
    pub(super) rails: Vec<Spanned<Rail>>,
    #[serde(default)]
    pub(super) devices: Vec<Spanned<Device>>,
    #[serde(default)]
    pub(super) loans: Vec<Spanned<Loan>>,
    #[serde(default)]
    pub(super) domains: Vec<Spanned<Domain>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, expecting = "a domain: [[domains]] with name, kind and slots")]
pub(super) struct Domain {
    pub(super) name: Spanned<String>,
    pub(super) kind: Spanned<String>,
    pub(super) qmp: Option<Spanned<PathBuf>>,
    pub(super) remove_after_s: Option<Spanned<i64>>,
    #[serde(default)]
    pub(super) slots: Vec<Spanned<Slot>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, expecting = "a slot: [[domains.slots]] with name and socket")]
pub(super) struct Slot {
    pub(super) name: Spanned<String>,
    pub(super) socket: Spanned<PathBuf>,
    pub(super) owner: Option<Spanned<String>>,
    pub(super) group: Option<Spanned<String>>,
    pub(super) mode: Option<Spanned<String>>,
    pub(super) bus: Option<Spanned<String>>,
    pub(super) line: Option<Spanned<String>>,
    pub(super) line_file: Option<Spanned<PathBuf>>,
    pub(super) on_silence: Option<Spanned<String>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, expecting = "a rail: [[rails]] with name and listen or ethernet")]
pub(super) struct Rail {
    pub(super) name: Spanned<String>,
    pub(super) listen: Option<Spanned<String>>,
    pub(super) ethernet: Option<Spanned<String>>,
    pub(super) port: Option<Spanned<i64>>,
    pub(super) id: Option<Spanned<i64>>,
    pub(super) switch: Option<Spanned<String>>,
    #[serde(default = "yes")]
    pub(super) announce: bool,
    #[serde(default = "yes")]
    pub(super) offload: bool,
}

fn yes() -> bool {
    true
}

impl Rail {
    /// What says where it is.
    pub(super) fn place(&self) -> Option<&Spanned<String>> {
        self.listen.as_ref().or(self.ethernet.as_ref())
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, expecting = "a device: [[devices]] with function and source")]
pub(super) struct Device {
    pub(super) function: Spanned<String>,
    pub(super) source: Spanned<String>,
    #[serde(default)]
    pub(super) read_only: bool,
    pub(super) block_size: Option<Spanned<i64>>,
    pub(super) cache: Option<Spanned<String>>,
    pub(super) allow: Option<Vec<Spanned<String>>>,
    pub(super) iops: Option<Spanned<i64>>,
    pub(super) bytes_per_s: Option<Spanned<i64>>,
    pub(super) functions: Option<Spanned<Functions>>,
    #[serde(default)]
    pub(super) namespaces: Vec<Spanned<Namespace>>,
    pub(super) group: Option<Spanned<i64>>,
}

/// `functions = N`, or `[[devices.functions]]`.
pub(super) enum Functions {
    Count(i64),
    Each(Vec<Spanned<Function>>),
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, expecting = "a function: [[devices.functions]] with name")]
pub(super) struct Function {
    pub(super) name: Spanned<String>,
    pub(super) size: Option<Spanned<String>>,
    pub(super) namespace: Option<Spanned<String>>,
    pub(super) iops: Option<Spanned<i64>>,
    pub(super) bytes_per_s: Option<Spanned<i64>>,
    pub(super) group: Option<Spanned<i64>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, expecting = "a namespace: [[devices.namespaces]] with name and size")]
pub(super) struct Namespace {
    pub(super) name: Spanned<String>,
    pub(super) size: Spanned<String>,
    #[serde(default)]
    pub(super) shared: bool,
    #[serde(default)]
    pub(super) read_only: bool,
}

impl<'de> Deserialize<'de> for Functions {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Either;
        impl<'de> Visitor<'de> for Either {
            type Value = Functions;

            fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str("a number of functions, or tables [[devices.functions]]")
            }

            fn visit_i64<E: serde::de::Error>(self, count: i64) -> Result<Functions, E> {
                Ok(Functions::Count(count))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut tables: A) -> Result<Functions, A::Error> {
                let mut each = Vec::new();
                while let Some(table) = tables.next_element()? {
                    each.push(table);
                }
                Ok(Functions::Each(each))
            }
        }
        deserializer.deserialize_any(Either)
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, expecting = "a loan: [[loans]] with line or line_file, and nbd or vm")]
pub(super) struct Loan {
    pub(super) line: Option<Spanned<String>>,
    pub(super) line_file: Option<Spanned<PathBuf>>,
    pub(super) nbd: Option<Spanned<PathBuf>>,
    pub(super) vm: Option<Spanned<PathBuf>>,
    pub(super) vm_owner: Option<Spanned<String>>,
    pub(super) vm_group: Option<Spanned<String>>,
    pub(super) vm_mode: Option<Spanned<String>>,
    pub(super) io_timeout_s: Option<Spanned<i64>>,
    pub(super) on_silence: Option<Spanned<String>>,
}
