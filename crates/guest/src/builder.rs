//! A machine's description, and QEMU's arguments for it.

use crate::{Accelerator, Error, Kit, Vm};
use std::ffi::OsString;
use std::fs::DirBuilder;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

/// Files in a machine's folder.
pub(crate) const QEMU_LOG: &str = "qemu.log";
pub(crate) const CONSOLE_LOG: &str = "console.log";
pub(crate) const SHELL_LOG: &str = "shell.log";
pub(crate) const QMP_LOG: &str = "qmp.log";
pub(crate) const SHELL_SOCKET: &str = "shell.sock";
pub(crate) const QMP_SOCKET: &str = "qmp.sock";
pub(crate) const SECOND_QMP_SOCKET: &str = "qmp2.sock";

/// What a machine starts from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Boot {
    /// The kit's kernel and initramfs, put into memory by QEMU.
    Kernel,
    /// A drive, with SeaBIOS. Which one says `bootindex` at a device.
    Bios,
    /// A drive, with OVMF.
    Uefi,
}

/// How the guest learns of new and leaving devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HotPlug {
    /// ACPI, as q35 has it unless told otherwise: both within a tenth of a second.
    Acpi,
    /// The root ports' own (pciehp): removal takes six seconds, for the guest waits for somebody to press the attention
    /// button again. Bus resets and recovery from fatal errors work only so.
    Pciehp,
}

/// Describes a machine. Made by [`Vm::builder`].
#[derive(Clone, Debug)]
pub struct Builder {
    kit: Kit,
    name: String,
    memory_mib: u32,
    processors: u32,
    root_ports: u32,
    hot_plug: HotPlug,
    boot: Boot,
    modules: Vec<String>,
    kernel_arguments: String,
    resets: bool,
    arguments: Vec<OsString>,
}

impl Builder {
    pub(crate) fn new(kit: &Kit) -> Self {
        Self {
            kit: kit.clone(),
            name: "vm".into(),
            memory_mib: 512,
            processors: 2,
            root_ports: 2,
            hot_plug: HotPlug::Acpi,
            boot: Boot::Kernel,
            modules: vec!["nvme".into()],
            kernel_arguments: String::new(),
            resets: false,
            arguments: Vec::new(),
        }
    }

    /// The name that its folder ends with; `vm` if none is given.
    pub fn name(mut self, name: &str) -> Self {
        self.name = name.into();
        self
    }

    /// Memory, 512 MiB unless told otherwise. It is a memfd that devices of other processes can share.
    pub fn memory_mib(mut self, mib: u32) -> Self {
        self.memory_mib = mib;
        self
    }

    /// Processors, two unless told otherwise.
    pub fn processors(mut self, count: u32) -> Self {
        self.processors = count;
        self
    }

    /// Root ports `rp1`, `rp2` and so on, for devices to be plugged into; two unless told otherwise. They can be
    /// unplugged from only while the machine runs, so make enough.
    pub fn root_ports(mut self, count: u32) -> Self {
        self.root_ports = count;
        self
    }

    /// ACPI unless told otherwise.
    pub fn hot_plug(mut self, hot_plug: HotPlug) -> Self {
        self.hot_plug = hot_plug;
        self
    }

    /// What to start from, the kit's kernel unless told otherwise.
    pub fn boot(mut self, boot: Boot) -> Self {
        self.boot = boot;
        self
    }

    /// Kernel modules to load before the shell is there; `nvme` unless told otherwise.
    pub fn modules(mut self, modules: &[&str]) -> Self {
        self.modules = modules.iter().map(|&module| module.to_owned()).collect();
        self
    }

    /// More arguments for the kernel.
    pub fn kernel_arguments(mut self, arguments: &str) -> Self {
        self.kernel_arguments = arguments.into();
        self
    }

    /// A reset starts the guest anew. Without this it ends QEMU, so that a panic is not mistaken for a slow start.
    pub fn resets(mut self) -> Self {
        self.resets = true;
        self
    }

    /// A file that a device can have behind it, with `drive=ID`.
    pub fn drive(self, id: &str, image: &Path) -> Self {
        self.drive_with(id, image, "")
    }

    /// The same with more options in QEMU's words, each behind a comma.
    pub fn drive_with(self, id: &str, image: &Path, options: &str) -> Self {
        let mut value = OsString::from(format!("if=none,format=raw,id={id},file="));
        value.push(escape_commas(image));
        value.push(options);
        self.argument("-drive").argument(value)
    }

    /// A device in QEMU's words, such as `nvme,serial=1,drive=d1,bus=rp1`, or in JSON.
    pub fn device(self, device: &str) -> Self {
        self.argument("-device").argument(device)
    }

    /// One more argument for QEMU, in the order of the calls.
    pub fn argument(mut self, argument: impl Into<OsString>) -> Self {
        self.arguments.push(argument.into());
        self
    }

    /// Starts QEMU and waits until the guest takes commands.
    pub fn start(self) -> Result<Vm, Error> {
        let mut vm = self.launch()?;
        vm.wait_ready()?;
        Ok(vm)
    }

    /// Starts QEMU and does not wait for the guest, see [`Vm::wait_ready`].
    pub fn launch(self) -> Result<Vm, Error> {
        let accelerator = Accelerator::here()?;
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("causeway-guest-{}-{number}-{}", std::process::id(), self.name);
        let folder = std::env::temp_dir().join(name);
        let made = DirBuilder::new().mode(0o700).create(&folder);
        made.map_err(Error::io(format!("cannot create {}", folder.display())))?;
        if self.boot == Boot::Uefi {
            let copied = std::fs::copy(self.kit.firmware("OVMF_VARS_4M.fd"), folder.join("variables.fd"));
            copied.map_err(Error::io("cannot copy the firmware's variables"))?;
        }
        let arguments = self.qemu_arguments(accelerator, &folder);
        Vm::launch(&self.kit.program("qemu-system-x86_64"), &arguments, folder)
    }

    /// Everything that QEMU is started with, for a machine in `folder`.
    fn qemu_arguments(&self, accelerator: Accelerator, folder: &Path) -> Vec<OsString> {
        let mut words = Words(Vec::new());
        words.add(
            "-nodefaults -no-user-config -display none -vga none -nic none -M q35,memory-backend=memory",
        );
        words
            .add("-object")
            .push(format!("memory-backend-memfd,id=memory,size={}M,share=on", self.memory_mib));
        words.add(&format!("-smp {}", self.processors)).add(&accelerator.arguments().join(" "));
        if !self.resets {
            words.add("-action reboot=shutdown");
        }
        if self.hot_plug == HotPlug::Pciehp {
            words.add("-global ICH9-LPC.acpi-pci-hotplug-with-bridge-support=off");
        }
        words
            .add("-chardev")
            .option("file,id=console,path=", &folder.join(CONSOLE_LOG), "")
            .add("-serial chardev:console");
        words
            .add("-chardev")
            .option("socket,id=shell,path=", &folder.join(SHELL_SOCKET), "")
            .add("-serial chardev:shell");
        words.add("-qmp").option("unix:", &folder.join(QMP_SOCKET), "");
        words.add("-qmp").option("unix:", &folder.join(SECOND_QMP_SOCKET), ",server=on,wait=off");
        self.boot_arguments(folder, &mut words);
        for port in 1..=self.root_ports {
            words.add("-device").push(format!("pcie-root-port,id=rp{port},chassis={port},slot={port}"));
        }
        words.0.extend(self.arguments.iter().cloned());
        words.0
    }

    fn boot_arguments(&self, folder: &Path, words: &mut Words) {
        match self.boot {
            Boot::Kernel => {
                words.add("-kernel").push(self.kit.kernel());
                words.add("-initrd").push(self.kit.initramfs());
                words.add("-append").push(self.kernel_command_line());
            }
            Boot::Bios => {}
            Boot::Uefi => {
                let code = self.kit.firmware("OVMF_CODE_4M.fd");
                words.add("-drive").option("if=pflash,format=raw,readonly=on,file=", &code, "");
                words.add("-drive").option("if=pflash,format=raw,file=", &folder.join("variables.fd"), "");
            }
        }
    }

    /// What the kernel is told: its messages go to the first serial port, and a panic ends it. It does not wait for
    /// ticks of its timer to believe in it: on a busy machine they are late, and it would say that its firmware is
    /// broken.
    fn kernel_command_line(&self) -> String {
        let modules = self.modules.join(",");
        format!(
            "console=ttyS0 panic=-1 cryptomgr.notests no_timer_check guest.modules={modules} {}",
            self.kernel_arguments
        )
    }
}

/// Arguments, built word by word.
struct Words(Vec<OsString>);

impl Words {
    /// Words without spaces in them.
    fn add(&mut self, words: &str) -> &mut Self {
        self.0.extend(words.split_whitespace().map(OsString::from));
        self
    }

    fn push(&mut self, word: impl Into<OsString>) -> &mut Self {
        self.0.push(word.into());
        self
    }

    /// An option with a path in it.
    fn option(&mut self, before: &str, path: &Path, after: &str) -> &mut Self {
        let mut word = OsString::from(before);
        word.push(escape_commas(path));
        word.push(after);
        self.push(word)
    }
}

/// In QEMU's options a comma in a value is written twice.
fn escape_commas(path: &Path) -> PathBuf {
    path.to_str().map_or_else(|| path.into(), |text| text.replace(',', ",,").into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commas_in_paths_do_not_end_options() {
        let mut words = Words(Vec::new());
        words.add("-drive").option("file=", Path::new("/a,b/c d"), ",if=none");
        assert_eq!(words.0, ["-drive", "file=/a,,b/c d,if=none"]);
    }
}
