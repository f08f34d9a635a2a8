//! A manager's log and snapshot: any bytes, or those of a log that was cut and changed, are a state, a torn tail, or
//! damage with a name.
#![no_main]

use libfuzzer_sys::arbitrary::{self, Arbitrary};
use libfuzzer_sys::fuzz_target;
use manager::entry::Entry;
use manager::log::{Base, Writer, read, read_snapshot, snapshot};
use manager::model::FabricId;

#[derive(Arbitrary, Debug)]
struct Input<'a> {
    /// Entries, as they are written.
    entries: &'a [u8],
    /// Bytes behind the log's header instead of a record of them.
    raw: Option<&'a [u8]>,
    changes: Vec<(u16, u8)>,
    len: u16,
    /// What the log is known to have had.
    acknowledged: u64,
}

const FABRIC: FabricId = FabricId([7; 16]);

fuzz_target!(|input: Input| {
    let mut writer = Writer::new(FABRIC, 0, 0);
    let mut log = writer.header();
    match input.raw {
        Some(raw) => log.extend(raw),
        None => {
            let Ok(entries) = serde_json::from_slice::<Vec<Entry>>(input.entries) else { return };
            log.extend(writer.record(&entries));
        }
    }
    for &(at, value) in &input.changes {
        let at = usize::from(at) % log.len();
        log[at] ^= value;
    }
    log.truncate(usize::from(input.len));
    match read(&log, Base::new(FABRIC), input.acknowledged) {
        Ok(recovered) => {
            assert_eq!(recovered.len + recovered.torn, log.len());
            let again =
                read(&log[..recovered.len], Base::new(FABRIC), input.acknowledged).expect("it was whole");
            assert_eq!((again.state, again.torn), (recovered.state.clone(), 0));
            let mut kept = snapshot(&recovered.state, &recovered.writer);
            let base = read_snapshot(&kept, FABRIC).expect("a snapshot is read");
            assert_eq!((&base.state, base.writer), (&recovered.state, recovered.writer));
            for &(at, value) in input.changes.iter().filter(|(_, value)| *value != 0).take(1) {
                let at = usize::from(at) % kept.len();
                kept[at] ^= value;
                assert!(read_snapshot(&kept, FABRIC).is_err(), "one changed byte is found");
            }
        }
        Err(damage) => assert!(!damage.to_string().is_empty()),
    }
    let _ = read_snapshot(&log, FABRIC);
});
