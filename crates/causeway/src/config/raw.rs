//! The file as serde sees it: keys and kinds of values, each with its place in the text.

use std::path::PathBuf;

use serde::Deserialize;
use toml::Spanned;

#[derive(Deserialize)]
#[serde(deny_unknown_fields, expecting = "the keys of a node")]
pub(super) struct Node {
    pub(super) name: Option<Spanned<String>>,
    pub(super) state_dir: Option<PathBuf>,
    #[serde(default)]
    pub(super) insecure: bool,
    pub(super) shm: Option<bool>,
    #[serde(default)]
    pub(super) rails: Vec<Spanned<Rail>>,
    #[serde(default)]
    pub(super) devices: Vec<Spanned<Device>>,
    #[serde(default)]
    pub(super) loans: Vec<Spanned<Loan>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, expecting = "a rail: [[rails]] with name, listen and perhaps port")]
pub(super) struct Rail {
    pub(super) name: Spanned<String>,
    pub(super) listen: Spanned<String>,
    pub(super) port: Option<Spanned<i64>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, expecting = "a device: [[devices]] with function and source")]
pub(super) struct Device {
    pub(super) function: Spanned<String>,
    pub(super) source: Spanned<String>,
    #[serde(default)]
    pub(super) read_only: bool,
    pub(super) block_size: Option<Spanned<i64>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, expecting = "a loan: [[loans]] with line or line_file, and nbd")]
pub(super) struct Loan {
    pub(super) line: Option<Spanned<String>>,
    pub(super) line_file: Option<Spanned<PathBuf>>,
    pub(super) nbd: Spanned<PathBuf>,
    pub(super) io_timeout_s: Option<Spanned<i64>>,
}
