//! What QEMU is to be started with so that a virtual machine has borrowed functions.

use std::path::{Path, PathBuf};

use serde::Serialize;
use serde_json::{Value, json};

use crate::cli::{NodeName, Output, QemuArgs, check_socket_path};
use crate::control::{Request, Response, find, running, runtime_dir};
use crate::exit::Failure;

/// Version of the document.
const VERSION: u32 = 1;
/// Root ports need chassis numbers that no other port has: these are hardly taken by anybody.
const FIRST_CHASSIS: usize = 101;

/// What `-o json` prints.
#[derive(Serialize)]
struct Document {
    version: u32,
    /// Of QEMU's command line.
    arguments: Vec<String>,
    /// For QMP, one a slot; the bus is one that the arguments make.
    device_add: Vec<Value>,
}

/// `causeway qemu-args`.
pub(crate) fn run(args: &QemuArgs) -> Result<(), Failure> {
    let sockets = sockets(args)?;
    let arguments = arguments(&sockets, &args.memory.exact());
    match args.output.format {
        Output::Text => {
            let quoted: Vec<String> = arguments.iter().map(|argument| quoted(argument)).collect();
            crate::cli::print(&format!("{}\n", quoted.join(" ")))
        }
        Output::Json => {
            let devices: Vec<Value> =
                sockets.iter().enumerate().map(|(index, socket)| numbered(index, socket)).collect();
            let document = Document { version: VERSION, arguments, device_add: devices };
            let text = serde_json::to_string_pretty(&document).map_err(Failure::failed)?;
            crate::cli::print(&format!("{text}\n"))
        }
    }
}

/// The sockets of what was named: a path has a slash in it, or is there; a name has not, and is a node's.
fn sockets(args: &QemuArgs) -> Result<Vec<String>, Failure> {
    let path = Path::new(&args.target);
    let name = args.target.to_str().and_then(|text| text.parse::<NodeName>().ok());
    match name {
        Some(name) if !path.exists() => slots_of(&name),
        _ => {
            check_socket_path(path).map_err(Failure::usage)?;
            let absolute = std::path::absolute(path);
            let absolute =
                absolute.map_err(|error| Failure::io(format!("no path {}", path.display()), &error))?;
            Ok(vec![text(&absolute)?])
        }
    }
}

/// The slots of the domain of this name that a node here has, else those of the node of this name.
fn slots_of(name: &NodeName) -> Result<Vec<String>, Failure> {
    let folder = runtime_dir();
    for (node, _) in running(&folder)? {
        let Some(node) = node.parse().ok() else { continue };
        let prefix = format!("{name}/");
        let sockets = sockets_of(&node, |slot| slot.is_some_and(|slot| slot.starts_with(&prefix)))?;
        if !sockets.is_empty() {
            return Ok(sockets);
        }
    }
    let sockets = sockets_of(name, |_| true)?;
    if sockets.is_empty() {
        return Err(Failure::refused(format!(
            "{name} has nothing for virtual machines; borrow something with --vm PATH, or name a socket by a path with a slash"
        )));
    }
    Ok(sockets)
}

/// The sockets of a node's loans in slots that are chosen by their names.
fn sockets_of(name: &NodeName, is_chosen: impl Fn(Option<&str>) -> bool) -> Result<Vec<String>, Failure> {
    let status = match find(&runtime_dir(), Some(name))?.call(&Request::Status)? {
        Response::Status { status } => status,
        _ => return Err(Failure::unreachable(format!("{name} says nothing of itself"))),
    };
    // A node may have been told a path from the folder that it was started in.
    let folder = std::fs::read_link(format!("/proc/{}/cwd", status.node.pid)).unwrap_or_default();
    let loans = status.loans.iter().filter(|loan| is_chosen(loan.slot.as_deref()));
    let edges = loans.filter_map(|loan| loan.edge.as_deref()?.strip_prefix("vfio-user:"));
    edges.map(|socket| text(&folder.join(socket))).collect()
}

fn text(path: &Path) -> Result<String, Failure> {
    let text = PathBuf::from(path).into_os_string().into_string();
    text.map_err(|path| Failure::usage(format!("QEMU takes no path that is not UTF-8: {}", path.display())))
}

fn arguments(sockets: &[String], memory: &str) -> Vec<String> {
    let mut arguments = vec![
        "-machine".to_owned(),
        "q35,memory-backend=causeway-memory".to_owned(),
        "-object".to_owned(),
        format!("memory-backend-memfd,id=causeway-memory,size={memory},share=on"),
    ];
    for (index, socket) in sockets.iter().enumerate() {
        let chassis = FIRST_CHASSIS + index;
        let port = port(index);
        arguments
            .extend(["-device".to_owned(), format!("pcie-root-port,id={port},chassis={chassis},slot=1")]);
        arguments.extend(["-device".to_owned(), numbered(index, socket).to_string()]);
    }
    arguments
}

fn numbered(index: usize, socket: &str) -> Value {
    device(&format!("causeway{}", index + 1), &port(index), socket)
}

/// A function in a port, as `-device` and QMP's `device_add` have it.
pub(crate) fn device(id: &str, bus: &str, socket: &str) -> Value {
    json!({
        "driver": "vfio-user-pci",
        "id": id,
        "bus": bus,
        "socket": { "type": "unix", "path": socket },
    })
}

fn port(index: usize) -> String {
    format!("causeway-port{}", index + 1)
}

/// The argument as a shell has to be given it.
fn quoted(argument: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_=,.:/@%+".contains(c);
    if !argument.is_empty() && argument.chars().all(is_plain) {
        return argument.to_owned();
    }
    format!("'{}'", argument.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_pass_a_shell_unchanged() {
        let sockets = ["/run/a b.sock".to_owned(), "/tmp/it's,{x}\"y\".sock".to_owned()];
        let arguments = arguments(&sockets, "512M");
        let line: Vec<String> = arguments.iter().map(|argument| quoted(argument)).collect();
        let script = format!("printf '%s\\n' {}", line.join(" "));
        let printed = std::process::Command::new("sh").args(["-c", &script]).output().unwrap();
        let printed = String::from_utf8(printed.stdout).unwrap();
        assert!(printed.lines().eq(&arguments), "{printed}");
        assert!(arguments[3].ends_with("size=512M,share=on"));
        let device: Value = serde_json::from_str(&arguments[11]).unwrap();
        assert_eq!(device["socket"]["path"], sockets[1]);
        assert_eq!(device["bus"], "causeway-port2");
    }
}
