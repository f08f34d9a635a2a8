//! What of the guest's kernel log is about the drive.

use guest::Message;

/// Parts of the kernel that a borrowed drive can get into trouble.
const OF_THE_DRIVE: [&str; 9] = [
    "nvme",
    "pcieport",
    "AER:",
    "blk_",
    "I/O error",
    "EXT4-fs",
    "BUG:",
    "Call Trace",
    "blocked for more than",
];

/// Trouble of the drive: a time-out, an abort, a reset, an error. Others, such as those of a processor that a guest may
/// have on this machine, are none.
pub(super) fn is_of_the_drive(message: &Message) -> bool {
    message.is_trouble() && OF_THE_DRIVE.iter().any(|word| message.text.contains(word))
}

/// Worth a line on the terminal: what the driver says, and any trouble.
pub(super) fn is_highlight(message: &Message) -> bool {
    // Not where it is only named, as in the kernel's command line.
    message.is_trouble() || [" nvme", "nvme0n"].iter().any(|word| message.text.contains(word))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn trouble_of_the_drive_is_told_from_the_rest() {
        let message = |level, text: &str| Message { level, text: text.to_owned() };
        for (level, text) in [
            (4, "[ 9.1] nvme nvme0: I/O tag 1 (1001) opcode 0x2 (I/O Cmd) QID 1 timeout, aborting"),
            (4, "[ 9.1] nvme nvme0: controller is down; will reset: CSTS=0xffffffff, PCI_STATUS=0xffff"),
            (4, "[ 9.1] nvme nvme0: resetting controller"),
            (3, "[ 9.1] I/O error, dev nvme0n1, sector 8 op 0x1:(WRITE)"),
            (3, "[ 9.1] INFO: task fio:99 blocked for more than 120 seconds."),
        ] {
            assert!(is_of_the_drive(&message(level, text)) && is_highlight(&message(level, text)), "{text}");
        }
        let driver = message(6, "[ 1.0] nvme nvme0: pci function 0000:01:00.0");
        assert!(!is_of_the_drive(&driver) && is_highlight(&driver));
        let other = message(3, "[ 0.1] x86/cpu: VMX (outside TXT) disabled by BIOS");
        assert!(!is_of_the_drive(&other) && is_highlight(&other));
        for text in ["[ 0.0] Linux version 6.12", "[ 0.0] Command line: console=ttyS0 guest.modules=nvme"] {
            assert!(!is_highlight(&message(6, text)), "{text}");
        }
    }
}
