//! What QEMU is to be started with so that a virtual machine has borrowed functions.

use std::fs::{OpenOptions, Permissions};
use std::io::Write;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use serde::Serialize;
use serde_json::{Value, json};

use crate::cli::{NodeName, Output, QemuArgs, check_socket_path};
use crate::control::{Request, Response, find, running, runtime_dir};
use crate::exit::Failure;
use crate::qmp::empty_image;

/// Version of the document.
const VERSION: u32 = 1;
/// Root ports need chassis numbers that no other port has: these are hardly taken by anybody.
const FIRST_CHASSIS: usize = 101;
/// What the image that keeps a machine where it is is called, behind the name of a socket of the machine's.
const STAYS: &str = ".stays.vdi";
/// Of libvirt's elements for QEMU.
const LIBVIRT_NAMESPACE: &str = "http://libvirt.org/schemas/domain/qemu/1.0";

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
    let mut arguments = if args.libvirt { Vec::new() } else { memory(&args.memory.exact()).to_vec() };
    if let Some(path) = &args.qmp {
        arguments.extend(qmp(&text(&absolute(path)?)?));
    }
    arguments.extend(devices(&sockets, args.libvirt));
    // A node with a monitor sees to it while the machine has a device, and libvirt's QEMU may open no file of ours.
    if args.qmp.is_none() && !args.libvirt {
        arguments.extend(stays(&sockets));
    }
    match args.output.format {
        Output::Text if args.libvirt => crate::cli::print(&element(&arguments)?),
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
            Ok(vec![text(&absolute(path)?)?])
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
            "{name} has nothing for virtual machines; borrow something with --vm PATH, or name a socket by a path with \
             a slash"
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

/// QEMU is started in a folder of its own.
fn absolute(path: &Path) -> Result<PathBuf, Failure> {
    let absolute = std::path::absolute(path);
    absolute.map_err(|error| Failure::io(format!("no path {}", path.display()), &error))
}

/// Memory that other processes can share. libvirt makes it by itself, as the domain's `<memoryBacking>` says.
fn memory(size: &str) -> [String; 4] {
    [
        "-machine".to_owned(),
        "q35,memory-backend=causeway-memory".to_owned(),
        "-object".to_owned(),
        format!("memory-backend-memfd,id=causeway-memory,size={size},share=on"),
    ]
}

/// A monitor's socket. In QEMU's options a comma in a value is written twice.
fn qmp(path: &str) -> [String; 2] {
    ["-qmp".to_owned(), format!("unix:{},server=on,wait=off", path.replace(',', ",,"))]
}

/// What makes QEMU refuse to save or migrate the machine (see [`crate::qmp`]): an image beside the first socket, since
/// a command line has no descriptors.
fn stays(sockets: &[String]) -> Vec<String> {
    let Some(socket) = sockets.first() else { return Vec::new() };
    let path = PathBuf::from(format!("{socket}{STAYS}"));
    if let Err(error) = keep_image(&path, Path::new(socket)) {
        eprintln!(
            "causeway: nothing keeps the machine from being saved or migrated, after which its drive would be dead, \
             because the image for that, {}, cannot be made: {error}",
            path.display()
        );
        return Vec::new();
    }
    let file = json!({ "driver": "file", "filename": path.to_string_lossy(), "locking": "off" });
    let node = json!({ "driver": "vdi", "node-name": "causeway-stays", "file": file });
    vec!["-blockdev".to_owned(), node.to_string()]
}

/// Puts an image without content at `path`, in place of what is there, for whom the socket is for.
fn keep_image(path: &Path, socket: &Path) -> std::io::Result<()> {
    let mut beside = path.to_owned().into_os_string();
    beside.push(format!(".{:x}", std::process::id()));
    // Nobody else's file is written to, nor one that a link leads to.
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&beside)?;
    if let Ok(like) = std::fs::symlink_metadata(socket) {
        // Without rights to give it away it is for who runs QEMU as we do.
        let _ = std::os::unix::fs::fchown(&file, Some(like.uid()), Some(like.gid()));
        let _ = file.set_permissions(Permissions::from_mode(like.mode() & 0o660 | 0o600));
    }
    let written = file.write_all(&empty_image()).and_then(|()| std::fs::rename(&beside, path));
    if written.is_err() {
        // What cannot be removed is a kilobyte.
        let _ = std::fs::remove_file(&beside);
    }
    written
}

/// Whether a process has the image of [`stays`] open: QEMU that was started by these arguments. One that may not be
/// looked at has not.
pub(crate) fn has_image(pid: i32) -> bool {
    let Ok(files) = std::fs::read_dir(format!("/proc/{pid}/fd")) else { return false };
    let paths = files.flatten().filter_map(|file| std::fs::read_link(file.path()).ok());
    paths.into_iter().any(|path| {
        let path = path.as_os_str().as_encoded_bytes();
        // Another machine's arguments may have put another one there since.
        path.strip_suffix(b" (deleted)").unwrap_or(path).ends_with(STAYS.as_bytes())
    })
}

/// A root port and a device for each socket.
///
/// QEMU makes the devices that it is given in JSON after all others, and a device without an address takes the first
/// place that is free: a port that is not in JSON may take one that a device in JSON names. libvirt names all of its
/// places so.
fn devices(sockets: &[String], ports_in_json: bool) -> Vec<String> {
    let mut arguments = Vec::new();
    for (index, socket) in sockets.iter().enumerate() {
        let (id, chassis) = (port(index), FIRST_CHASSIS + index);
        let port = if ports_in_json {
            json!({ "driver": "pcie-root-port", "id": id, "chassis": chassis, "slot": 1 }).to_string()
        } else {
            format!("pcie-root-port,id={id},chassis={chassis},slot=1")
        };
        let device = numbered(index, socket).to_string();
        arguments.extend(["-device".to_owned(), port, "-device".to_owned(), device]);
    }
    arguments
}

fn numbered(index: usize, socket: &str) -> Value {
    device(&device_id(index), Some(&port(index)), Path::new(socket))
}

/// A function in a port, or in one that QEMU chooses, as `-device` and QMP's `device_add` have it: the one place that
/// says so.
pub fn device(id: &str, bus: Option<&str>, socket: &Path) -> Value {
    let socket = json!({ "type": "unix", "path": socket.to_string_lossy() });
    let mut device = json!({ "driver": "vfio-user-pci", "id": id, "socket": socket });
    if let Some(bus) = bus {
        device["bus"] = bus.into();
    }
    device
}

/// What the device of this index is called, in a machine that was started with it.
pub(crate) fn device_id(index: usize) -> String {
    format!("causeway{}", index + 1)
}

/// What its port is called.
pub(crate) fn port(index: usize) -> String {
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

/// The element that adds arguments to those of libvirt. It declares its prefix, so that it is whole wherever it is put.
fn element(arguments: &[String]) -> Result<String, Failure> {
    let mut element = format!("<qemu:commandline xmlns:qemu='{LIBVIRT_NAMESPACE}'>\n");
    for argument in arguments {
        element.push_str(&format!("  <qemu:arg value='{}'/>\n", attribute(argument)?));
    }
    element.push_str("</qemu:commandline>\n");
    Ok(element)
}

/// The argument as the value of an attribute of XML.
fn attribute(argument: &str) -> Result<String, Failure> {
    let mut value = String::with_capacity(argument.len());
    for c in argument.chars() {
        match c {
            '&' => value.push_str("&amp;"),
            '<' => value.push_str("&lt;"),
            '\'' => value.push_str("&apos;"),
            c if c.is_control() => {
                return Err(Failure::usage(format!(
                    "libvirt takes no control characters, as in {argument:?}"
                )));
            }
            c => value.push(c),
        }
    }
    Ok(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_pass_a_shell_unchanged() {
        let sockets = ["/run/a b.sock".to_owned(), "/tmp/it's,{x}\"y\".sock".to_owned()];
        let arguments = [&memory("512M")[..], &qmp("/run/a,b.sock"), &devices(&sockets, false)].concat();
        let line: Vec<String> = arguments.iter().map(|argument| quoted(argument)).collect();
        let script = format!("printf '%s\\n' {}", line.join(" "));
        let printed = std::process::Command::new("sh").args(["-c", &script]).output().unwrap();
        let printed = String::from_utf8(printed.stdout).unwrap();
        assert!(printed.lines().eq(&arguments), "{printed}");
        assert!(arguments[3].ends_with("size=512M,share=on"));
        let device: Value = serde_json::from_str(&arguments[13]).unwrap();
        assert_eq!(device["socket"]["path"], sockets[1]);
        assert_eq!(device["bus"], "causeway-port2");
        assert_eq!(arguments[5], "unix:/run/a,,b.sock,server=on,wait=off");
    }

    #[test]
    fn arguments_pass_libvirt_unchanged() {
        let sockets = ["/tmp/it's,<x>\"y\"&amp;é.sock".to_owned()];
        let arguments = devices(&sockets, true);
        let element = element(&arguments).unwrap();
        let script = "import sys,xml.etree.ElementTree as e\nfor a in e.fromstring(sys.argv[1]): print(a.get('value'))";
        let printed = std::process::Command::new("python3").args(["-c", script, &element]).output().unwrap();
        let text = String::from_utf8(printed.stdout).unwrap();
        assert!(text.lines().eq(&arguments), "{element}{text}{}", String::from_utf8_lossy(&printed.stderr));
        let names = element.matches("qemu:arg value=").count();
        assert_eq!((names, arguments.len()), (4, 4), "no memory: libvirt makes it");
        assert!(super::element(&["a\nb".to_owned()]).is_err(), "attributes do not keep line ends");
    }

    #[test]
    fn the_image_that_keeps_a_machine_is_made_over_no_link_and_for_whom_the_socket_is() {
        let folder = std::env::temp_dir().join(format!("stays-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let (socket, other) = (folder.join("a.sock"), folder.join("other"));
        std::fs::write(&other, "mine").unwrap();
        let image = folder.join("a.sock.stays.vdi");
        std::os::unix::fs::symlink(&other, &image).unwrap();
        let of = |socket: &Path| stays(&[text(socket).unwrap()]);
        for _ in 0..2 {
            let node: Value = serde_json::from_str(&of(&socket)[1]).unwrap();
            assert_eq!(
                (node["driver"].as_str(), node["file"]["filename"].as_str()),
                (Some("vdi"), image.to_str())
            );
            assert_eq!(std::fs::read(&image).unwrap(), empty_image());
        }
        assert_eq!(std::fs::read_to_string(&other).unwrap(), "mine");
        assert!(!has_image(std::process::id() as i32));
        let open = std::fs::File::open(&image).unwrap();
        assert!(has_image(std::process::id() as i32));
        std::fs::write(&socket, "").unwrap();
        std::fs::set_permissions(&socket, Permissions::from_mode(0o660)).unwrap();
        of(&socket);
        assert_eq!(std::fs::metadata(&image).unwrap().mode() & 0o777, 0o660);
        assert!(has_image(std::process::id() as i32));
        drop(open);
        // Where it cannot be made the machine starts all the same.
        assert!(of(&folder.join("missing/a.sock")).is_empty());
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
