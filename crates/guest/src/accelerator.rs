//! What runs the guest's processors.

use crate::Error;
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
    /// KVM where this machine has it and may use it. A `/dev/kvm` without hardware behind it (a nested host that
    /// emulates one) opens as well, and then fails in the middle of a kernel's start.
    pub fn here() -> Result<Self, Error> {
        if let Some(chosen) = std::env::var_os("CAUSEWAY_GUEST_ACCEL") {
            return Self::named(&chosen.to_string_lossy());
        }
        let may_use = File::options().read(true).write(true).open("/dev/kvm").is_ok();
        let processors = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        Ok(if may_use && has_virtualisation(&processors) { Self::Kvm } else { Self::Tcg })
    }

    fn named(name: &str) -> Result<Self, Error> {
        match name {
            "tcg" => Ok(Self::Tcg),
            "kvm" => Ok(Self::Kvm),
            other => Err(Error::Missing(format!(
                "CAUSEWAY_GUEST_ACCEL={} is neither tcg nor kvm",
                other.escape_debug()
            ))),
        }
    }

    /// As QEMU calls it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Tcg => "tcg",
            Self::Kvm => "kvm",
        }
    }

    /// QEMU's arguments for it. The plain processor model starts a kernel half a second sooner under TCG than `max`
    /// does; without random numbers of its own the guest would wait seconds for its first ones.
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
    fn what_was_chosen_is_one_of_both() {
        for known in [Accelerator::Tcg, Accelerator::Kvm] {
            assert_eq!(Accelerator::named(known.name()).unwrap(), known);
        }
        assert!(matches!(Accelerator::named("hvf"), Err(Error::Missing(why)) if why.contains("hvf")));
    }

    #[test]
    fn hardware_is_told_from_a_mere_device_node() {
        assert!(has_virtualisation("processor : 0\nflags\t\t: fpu vmx sse\n"));
        assert!(has_virtualisation("flags : fpu svm\n"));
        assert!(!has_virtualisation("flags : fpu svm_lock\nbugs : svm\n"));
        assert!(!has_virtualisation(""));
    }
}
