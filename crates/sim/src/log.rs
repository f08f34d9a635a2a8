use core::fmt::Arguments;

/// The events of a run: always digested, so that two runs can be compared; printed on request.
///
/// A line is `time node what details`; node `L` lends, `B` borrows, `R` is its rival, `-` is the world. Legend of
/// `what`:
///
/// | what | meaning | what | meaning |
/// |---|---|---|---|
/// | `start` | a card starts (generation) | `dies` | a card is killed |
/// | `boot` | a node reboots (incarnation) | `drain` | the agent drains the ring |
/// | `tx` | a frame leaves (rail, packet number) | `rx` | a frame arrives (rail, packet number) |
/// | `lost` `twice` `bent` | the network loses, repeats, corrupts it | `old` `forged` | a replayed, forged one leaves |
/// | `cut` `mend` | a rail goes, comes back (direction, rail) | `net` | the network is impaired otherwise |
/// | `media` | a piece of work for the disk | `done` | the disk has done it |
/// | `ask` | a client sends a request (number, kind) | `got` | a client has its answer |
/// | `open` `close` | a client connects, is gone | `calm` | faults end |
/// | `tenant` | who has a loan is durable (loan, node) | `overtaken` | a borrower hears of another one |
/// | `leave` `gone` | a node gives back, its program ends | `island` | nobody reaches a node |
pub(crate) struct Log {
    digest: u64,
    events: u64,
    print: bool,
}

impl Log {
    pub(crate) fn new(print: bool) -> Self {
        Self { digest: 0xcbf2_9ce4_8422_2325, events: 0, print }
    }

    pub(crate) fn event(&mut self, now: u64, node: Option<usize>, what: &str, a: u64, b: u64) {
        let node_code = node.map_or(9, |node| node as u64);
        for word in [now, node_code, what.len() as u64, a, b] {
            self.digest = (self.digest ^ word).wrapping_mul(0x0000_0100_0000_01b3).rotate_left(23);
        }
        self.events += 1;
        if self.print {
            let name = ["L", "B", "R"].get(node.unwrap_or(9)).unwrap_or(&"-");
            eprintln!("{:>12.3} {name} {what} {a} {b}", now as f64 / 1000.0);
        }
    }

    /// A line for debugging that is no part of the digest.
    pub(crate) fn note(&self, text: Arguments<'_>) {
        if self.print {
            eprintln!("             * {text}");
        }
    }

    pub(crate) fn digest(&self) -> u64 {
        self.digest
    }

    pub(crate) fn events(&self) -> u64 {
        self.events
    }
}
