//! What table, plot and page say differently of a client and of a guest.

/// The words for one sort of load.
#[derive(Debug)]
pub(super) struct Words {
    /// What `longest_gap_s` is called.
    pub gap: &'static str,
    /// Above the plot.
    pub plot: &'static str,
    /// Of the curve in it.
    pub curve: &'static str,
    /// Between a kill and its recovery time.
    pub recovered: &'static str,
    /// What a recovery time is.
    pub recovery: &'static str,
    /// What runs, after the sentence on lending.
    pub what_ran: &'static str,
    /// The picture of it.
    pub topology: &'static str,
}

/// For the client in this process.
pub(super) const CLIENT: Words = Words {
    gap: "longest gap",
    plot: "Gaps between completed requests",
    curve: "longest gap in each moment",
    recovered: "I/O back after",
    recovery: "from the kill to the first answer to a request that was sent after it, the longest of the phase",
    what_ran: "Another borrows it over two sealed UDP rails, one of which leads by two switches, and serves it as NBD \
               to a client that reads and writes all the time, eight requests outstanding, and checks every byte.",
    topology: include_str!("topology.svg"),
};

/// For fio in a guest.
pub(super) const GUEST: Words = Words {
    gap: "longest wait",
    plot: "How long requests of the guest waited",
    curve: "longest wait of a request that ended in each moment, as fio in the guest measured it",
    recovered: "a request waited",
    recovery: "the longest wait of a request that was under way at the kill, or was sent in the 0.1 s after it, as \
               fio in the guest measured it; the longest of the phase",
    what_ran: "Another borrows it over two sealed UDP rails, one of which leads by two switches, and gives it to a \
               virtual machine, as a PCI Express device. Debian's kernel in it uses the drive with its own NVMe \
               driver, and two fio write and read all the time, eight requests outstanding each: they write their \
               half of an area in random order, read all of it back, check each block's checksum, place and \
               generation, and begin again. A phase ends when all that was written in it has been read back.",
    topology: include_str!("topology_vm.svg"),
};
