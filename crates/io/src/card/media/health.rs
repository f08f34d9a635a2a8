use std::collections::VecDeque;
use std::io;
use std::time::Duration;

use base::Instant;
use node::{MediaError, MediaKind};

use crate::files::{Image, ImageKind};
use crate::messages::{FromDrive, MediumTrouble, ToAgent};

/// How often an image that is used is looked at: what somebody cuts off must not grow again by a write behind its end.
const LOOK: Duration = Duration::from_millis(1);
/// How often the same trouble is told.
const REPEAT: Duration = Duration::from_secs(60);

/// What is known of a drive's image: how long it is to be, and what went wrong with it.
pub(super) struct Health {
    drive: usize,
    bytes: u64,
    block_bytes: u64,
    look_at: Instant,
    /// It was found shorter than it is to be. For good: if it grows again, that is not what was there.
    cut_to: Option<u64>,
    /// When trouble of each kind was told.
    told: [Option<Instant>; MediumTrouble::KINDS],
}

/// Trouble that the agent has not been told of.
pub(super) type Told = VecDeque<ToAgent>;

impl Health {
    pub(super) fn new(drive: usize, blocks: u64, block_bytes: u32) -> Self {
        let (told, block_bytes) = ([None; MediumTrouble::KINDS], u64::from(block_bytes));
        Self { drive, bytes: blocks * block_bytes, block_bytes, look_at: Instant::ZERO, cut_to: None, told }
    }

    /// The image has grown to so many blocks.
    pub(super) fn grow(&mut self, blocks: u64) {
        self.bytes = self.bytes.max(blocks * self.block_bytes);
    }

    /// An earlier card, or the agent, has found the image cut off.
    pub(super) fn cut(&mut self, bytes: u64) {
        self.cut_to = Some(self.cut_to.map_or(bytes, |known| known.min(bytes)));
    }

    /// What the image answers to this work whatever it is asked: an error for what lies where it was cut off, and for a
    /// flush, since what was written there is gone.
    pub(super) fn refuses(
        &mut self,
        now: Instant,
        image: &Image,
        (kind, offset, len): (MediaKind, u64, u32),
        told: &mut Told,
    ) -> Option<MediaError> {
        if now >= self.look_at {
            self.look_at = now + LOOK;
            self.look(image, told);
        }
        let end = self.cut_to?;
        let is_behind = kind == MediaKind::Flush || offset + u64::from(len) > end;
        is_behind.then_some(MediaError::Io)
    }

    fn look(&mut self, image: &Image, told: &mut Told) {
        if image.info().kind != ImageKind::File {
            return;
        }
        // What cannot be asked says more when it is read.
        let Ok(bytes) = image.bytes_now() else { return };
        if bytes < self.bytes && self.cut_to.is_none_or(|known| bytes < known) {
            self.cut(bytes);
            told.push_back(ToAgent::Drive(self.drive, FromDrive::Medium(MediumTrouble::Cut(bytes))));
        }
    }

    /// It lies in memory, and cannot be mapped.
    pub(super) fn note_unmapped(&self, error: &io::Error, told: &mut Told) {
        let trouble = MediumTrouble::Unmapped(error.raw_os_error().unwrap_or_default());
        told.push_back(ToAgent::Drive(self.drive, FromDrive::Medium(trouble)));
    }

    /// A request has failed, and whoever sent it is told. So is the agent, now and then.
    pub(super) fn note(&mut self, now: Instant, error: MediaError, told: &mut Told) {
        let trouble = match error {
            // The log has a better reason.
            MediaError::Io if self.cut_to.is_some() => return,
            MediaError::NoSpace => MediumTrouble::Full,
            MediaError::ReadOnly => MediumTrouble::ReadOnly,
            _ => MediumTrouble::Failed,
        };
        let last = &mut self.told[trouble.kind()];
        if last.is_none_or(|at| now.since(at) >= REPEAT) {
            *last = Some(now);
            told.push_back(ToAgent::Drive(self.drive, FromDrive::Medium(trouble)));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::OwnedFd;

    fn image(bytes: u64) -> (std::fs::File, Image) {
        let file = rustix::fs::memfd_create("test", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        let file = std::fs::File::from(file);
        file.set_len(bytes).unwrap();
        let image = Image::from_fd(OwnedFd::from(file.try_clone().unwrap())).unwrap();
        (file, image)
    }

    #[test]
    fn what_was_cut_off_is_an_error_and_stays_one() {
        let (file, image) = image(1 << 20);
        let (mut health, mut told) = (Health::new(3, 256, 4096), Told::new());
        let mut now = Instant::from_nanos(1);
        let mut ask = |health: &mut Health, told: &mut Told, kind, offset| {
            now += LOOK;
            health.refuses(now, &image, (kind, offset, 4096), told)
        };
        let last = (1 << 20) - 4096;
        assert_eq!(ask(&mut health, &mut told, MediaKind::Write, last), None);
        file.set_len(8192).unwrap();
        assert_eq!(ask(&mut health, &mut told, MediaKind::Write, last), Some(MediaError::Io));
        assert_eq!(ask(&mut health, &mut told, MediaKind::Read, 4096), None, "the rest is there");
        assert_eq!(ask(&mut health, &mut told, MediaKind::Read, 8192), Some(MediaError::Io));
        assert_eq!(ask(&mut health, &mut told, MediaKind::Flush, 0), Some(MediaError::Io));
        // Somebody makes it as long as it was. What was there is gone all the same.
        file.set_len(1 << 20).unwrap();
        assert_eq!(ask(&mut health, &mut told, MediaKind::Read, last), Some(MediaError::Io));
        assert_eq!(told, [ToAgent::Drive(3, FromDrive::Medium(MediumTrouble::Cut(8192)))]);
    }

    #[test]
    fn the_same_trouble_is_told_once_a_minute() {
        let (mut health, mut told) = (Health::new(0, 256, 4096), Told::new());
        let at = |second: u64| Instant::from_nanos(second * 1_000_000_000);
        for second in 0..100 {
            health.note(at(second), MediaError::NoSpace, &mut told);
        }
        health.note(at(100), MediaError::Io, &mut told);
        let said = |trouble| ToAgent::Drive(0, FromDrive::Medium(trouble));
        assert_eq!(told, [MediumTrouble::Full, MediumTrouble::Full, MediumTrouble::Failed].map(said));
    }
}
