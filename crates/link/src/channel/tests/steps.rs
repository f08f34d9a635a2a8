//! A step ends in time, however much a peer makes of one frame.

use base::ledger::STEP_ENTRIES;

use super::*;

/// Words that each TLP changes.
const WORDS: usize = 9_000;

#[derive(FromBytes)]
#[repr(C)]
struct Busy {
    root: Root,
    words: [Cell<u64>; WORDS],
}

/// Changes as much with each posted write as one can.
struct Worker<'m> {
    words: &'m [Cell<u64>; WORDS],
    journal: Journal<'m>,
    log: Log,
}

impl<'m> Sink<'m> for Worker<'m> {
    fn accept(&mut self, now: Instant, port: &mut Port<'m>, tlp: &TlpView<'_>) {
        for word in self.words {
            word.update(self.journal, |word| word + 1);
        }
        self.log.accept(now, port, tlp);
    }
}

#[test]
fn a_frame_that_is_too_much_for_one_step_is_worked_off_in_several() {
    let arena = Arena::default();
    let mut borrower = End::new(&arena, Role::Borrower, |_| {});
    let lender = End::new(&arena, Role::Lender, |_| {}).config;
    let memory = arena.zeroed::<Busy>();
    let ledger = memory.ledger::<Busy>(None, RuleSet::ALL);
    let (journal, busy) = (ledger.journal, ledger.root);
    let pages = Pages::new(&busy.root.pages, journal);
    let mut channel = Channel::new(&busy.root.channel, pages, journal, lender, Instant::ZERO);
    let mut worker = Worker { words: &busy.words, journal, log: Log::default() };
    let (mut now, mut buffer, mut steps, mut most) = (Instant::ZERO, vec![0; MAX_FRAME], 0, 0);
    for turn in 0..200 {
        if turn == 50 {
            // All of them go in one frame.
            for index in 0..60 {
                let request = MemoryRequest::new(Bdf(8), Tag::new(0).unwrap(), index * 4, 4).unwrap();
                let header = TlpHeader::MemoryWrite(request);
                borrower.channel.stream.port.sender.push(&header, Payload::inline(&[1; 4]), false);
            }
        }
        now += Duration::from_micros(100);
        borrower.step(now);
        while let Some(sent) = borrower.channel.poll_transmit(now, &mut buffer) {
            channel.handle_frame(now, &mut buffer[..sent.len], &mut worker);
            let before = worker.log.0.len();
            channel.handle_timeout(now);
            while channel.deliver_ahead(now, &mut worker) {}
            while let Some(event) = channel.poll_event() {
                if event == Event::Reset {
                    channel.open();
                }
            }
            (steps, most) = (steps + usize::from(before > 0), most.max(journal.pending()));
            journal.commit();
        }
        // What is left of a frame needs no other one.
        while channel.stream.receiver().has_ahead() {
            while channel.deliver_ahead(now, &mut worker) {}
            (steps, most) = (steps + 1, most.max(journal.pending()));
            journal.commit();
        }
        while let Some(sent) = channel.poll_transmit(now, &mut buffer) {
            borrower.channel.handle_frame(now, &mut buffer[..sent.len], &mut borrower.log);
        }
    }
    assert_eq!(worker.log.0, (0..60).map(|index| index * 4).collect::<Vec<_>>(), "each once, in order");
    assert!((STEP_ENTRIES..STEP_ENTRIES + 2 * WORDS).contains(&most), "{most} words in the longest step");
    assert!(steps > 60 * WORDS / (STEP_ENTRIES + WORDS), "{steps} steps");
    assert!(borrower.channel.stream.is_idle(), "all of it was committed, and nothing had to be sent again");
    assert_eq!(borrower.channel.stream.stats().retransmissions.get(), 0);
}
