//! Places on media that are made to read as zeroes, each for a function that is lent then.
//!
//! A disk may take hours for one, so some of a drive are cleared at once, the smallest first, and nothing waits for one
//! but its function. What was deleted meanwhile keeps its place until the disk is through with it.

use io::agent::{ZEROINGS_MAX, Zeroing};
use node::MadeNamespace;

use crate::state_dir::made::MadeRow;

/// Those that are being cleared.
#[derive(Default)]
pub(super) struct Clearings(Vec<Clearing>);

struct Clearing {
    /// As it was in the table when that began.
    row: MadeRow,
    drive: usize,
    zeroing: Zeroing,
}

impl Clearings {
    /// Whether there is any.
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// On which drives.
    pub(super) fn drives(&self) -> impl Iterator<Item = usize> {
        self.0.iter().map(|clearing| clearing.drive)
    }

    /// For which functions of a device, be it that they were deleted since.
    pub(super) fn on<'a>(&'a self, device: &'a str) -> impl Iterator<Item = &'a MadeRow> {
        self.0
            .iter()
            .map(|clearing| &clearing.row)
            .filter(move |row| row.made.shape.device.as_str() == device)
    }

    /// Those that are over, and how that went.
    pub(super) fn take_over(&mut self) -> Vec<(MadeRow, std::io::Result<()>)> {
        let mut over = Vec::new();
        self.0.retain(|clearing| match clearing.zeroing.poll() {
            Some(done) => {
                over.push((clearing.row.clone(), done));
                false
            }
            None => true,
        });
        over
    }

    /// Begins to clear the places of what is not ready, as far as there may be more on a drive. A device that is not
    /// there may come back.
    ///
    /// # Errors
    /// One could not be begun, of which all others may be.
    pub(super) fn begin(
        &mut self,
        rows: &[MadeRow],
        drive_of: impl Fn(&MadeRow) -> Option<usize>,
        mut zero: impl FnMut(usize, u64, u64) -> std::io::Result<Zeroing>,
    ) -> std::io::Result<()> {
        let place = |row: &MadeRow| match row.namespace {
            MadeNamespace::Own { start, bytes } => Some((start, bytes)).filter(|_| !row.is_ready),
            MadeNamespace::Shared { .. } => None,
        };
        let is_begun = |row: &MadeRow| self.0.iter().any(|clearing| clearing.row == *row);
        let waiting = rows.iter().filter(|row| !is_begun(row));
        let mut waiting: Vec<_> =
            waiting.filter_map(|row| Some((place(row)?, drive_of(row)?, row.clone()))).collect();
        waiting.sort_by_key(|((_, bytes), ..)| *bytes);
        let mut begun = Ok(());
        for ((start, bytes), drive, row) in waiting {
            if self.drives().filter(|it| *it == drive).count() >= ZEROINGS_MAX {
                continue;
            }
            match zero(drive, start, bytes) {
                Ok(zeroing) => self.0.push(Clearing { row, drive, zeroing }),
                Err(error) => begun = Err(error),
            }
        }
        begun
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::sync::mpsc;

    use super::super::made::testing::{names, row};
    use super::*;

    /// A medium of which nothing is cleared before that is said, by where it begins.
    #[derive(Default)]
    struct Medium(BTreeMap<u64, mpsc::Sender<std::io::Result<()>>>);

    impl Medium {
        fn zero(&mut self, start: u64) -> Zeroing {
            let (tell, told) = mpsc::channel();
            self.0.insert(start, tell);
            told.into()
        }

        fn begin(&mut self, clearings: &mut Clearings, rows: &[MadeRow]) -> Vec<u64> {
            let drive = |row: &MadeRow| Some(usize::from(row.made.shape.device.as_str() != "d"));
            let mut begun = Vec::new();
            let zero = |_, start, _| {
                begun.push(start);
                Ok(self.zero(start))
            };
            clearings.begin(rows, drive, zero).unwrap();
            begun
        }
    }

    fn at(name: &str, device: &str, start: u64, bytes: u64) -> MadeRow {
        MadeRow { namespace: MadeNamespace::Own { start, bytes }, ..row(name, device, false) }
    }

    /// One that takes hours, or never ends, is no reason for another one to wait.
    #[test]
    fn places_are_cleared_beside_one_that_does_not_end() {
        let (mut clearings, mut medium) = (Clearings::default(), Medium::default());
        let mut rows = vec![at("huge", "d", 0, 1 << 40), at("small", "d", 1 << 40, 4096)];
        assert_eq!(medium.begin(&mut clearings, &rows), [1 << 40, 0], "the smallest first");
        assert!(medium.begin(&mut clearings, &rows).is_empty(), "they are being cleared");
        medium.0[&(1 << 40)].send(Ok(())).unwrap();
        let over = clearings.take_over();
        assert!(matches!(&over[..], [(row, Ok(()))] if *row == rows[1]));
        rows[1].is_ready = true;
        // No more than so many of a drive at once, and of another drive all the same.
        let more = |at_: u64| at(&format!("more-{at_}"), "d", at_ << 41, at_ * 4096);
        rows.extend((1..=ZEROINGS_MAX as u64).map(more));
        rows.push(at("other", "e", 7, 1 << 30));
        let begun = medium.begin(&mut clearings, &rows);
        assert_eq!(begun, [1 << 41, 2 << 41, 3 << 41, 7]);
        assert!(clearings.take_over().is_empty());
        medium.0[&(2 << 41)].send(Err(std::io::ErrorKind::StorageFull.into())).unwrap();
        assert!(matches!(&clearings.take_over()[..], [(row, Err(_))] if *row == rows[3]));
        rows.remove(3);
        assert_eq!(medium.begin(&mut clearings, &rows), [4 << 41]);
    }

    #[test]
    fn what_cannot_be_begun_keeps_no_other_back() {
        let (mut clearings, mut medium) = (Clearings::default(), Medium::default());
        let rows = [at("bad", "d", 0, 4096), at("good", "d", 4096, 8192)];
        let zero = |_, start, _| {
            if start == 0 { Err(std::io::ErrorKind::Other.into()) } else { Ok(medium.zero(start)) }
        };
        assert!(clearings.begin(&rows, |_| Some(0), zero).is_err());
        assert_eq!(clearings.on("d").cloned().collect::<Vec<_>>(), rows[1..]);
        assert_eq!(names(&rows[..1]), ["bad"]);
        assert_eq!(medium.begin(&mut clearings, &rows), [0]);
        assert!(clearings.begin(&[at("away", "d", 1 << 20, 4096)], |_| None, |_, _, _| panic!()).is_ok());
    }
}
