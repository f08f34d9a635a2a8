//! What runs the guest's processors.

use std::fs::File;

/// Chosen by [`Accelerator::here`], or by `CAUSEWAY_GUEST_ACCEL` (`tcg` or `kvm`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Accelerator {
    /// QEMU translates: works everywhere, and is slow.
    Tcg,
    /// The processor does it.
    Kvm,
}

impl Accelerator {
    /// KVM where this machine has it and may use it. A `/dev/kvm` without hardware behind it (a nested host that emulates
    /// one) opens as well, and then fails in the middle of a kernel's start.
    pub fn here() -> Self {
        match std::env::var("CAUSEWAY_GUEST_ACCEL").as_deref() {
            Ok("tcg") => return Self::Tcg,
            Ok("kvm") => return Self::Kvm,
            Ok(other) => panic!("CAUSEWAY_GUEST_ACCEL={other} is neither tcg nor kvm"),
            Err(_) => {}
        }
        let may_use = File::options().read(true).write(true).open("/dev/kvm").is_ok();
        let processors = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        if may_use && has_virtualisation(&processors) { Self::Kvm } else { Self::Tcg }
    }

    /// QEMU's arguments for it. The plain processor model starts a kernel half a second sooner under TCG than `max` does;
    /// without random numbers of its own the guest would wait seconds for its first ones.
    pub(crate) fn arguments(self) -> [&'static str; 4] {
        match self {
            Self::Tcg => ["-accel", "tcg,thread=multi", "-cpu", "qemu64,+rdrand"],
            Self::Kvm => ["-accel", "kvm", "-cpu", "host"],
        }
    }
}

fn has_virtualisation(cpuinfo: &str) -> bool {
    let flags = cpuinfo.lines().find(|line| line.starts_with("flags"));
    flags.is_some_and(|flags| flags.split_whitespace().any(|flag| flag == "vmx" || flag == "svm"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hardware_is_told_from_a_mere_device_node() {
        assert!(has_virtualisation("processor : 0\nflags\t\t: fpu vmx sse\n"));
        assert!(has_virtualisation("flags : fpu svm\n"));
        assert!(!has_virtualisation("flags : fpu svm_lock\nbugs : svm\n"));
        assert!(!has_virtualisation(""));
    }
}
