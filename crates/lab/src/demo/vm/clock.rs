//! The guest's clock, set against ours.

use std::time::{Duration, Instant};

use guest::{Error, Vm};

use super::fio::GuestWait;

/// Times it is asked; the shortest answer is the best.
const ASKS: u32 = 5;

/// What the guest's wall clock showed at an instant, in microseconds since 1970.
#[derive(Debug, Clone, Copy)]
pub(super) struct Clock {
    at: Instant,
    guest_us: u64,
}

/// When a request ended, as our clock has it; `None` far outside of any time that this program has seen.
pub(super) type Translated = Option<(Instant, Duration)>;

impl Clock {
    /// Asks the guest, which is right to half of the time that it takes to answer.
    pub(super) fn set(vm: &mut Vm) -> Result<Self, Error> {
        let mut best: Option<(Duration, Self)> = None;
        for _ in 0..ASKS {
            let asked = Instant::now();
            // busybox has no other way to show microseconds.
            let text = vm.check("busybox adjtimex")?;
            let took = asked.elapsed();
            let guest_us = parse(&text)
                .ok_or_else(|| Error::Unexpected(format!("the guest does not tell its time: {text}")))?;
            if best.is_none_or(|(shortest, _)| took < shortest) {
                best = Some((took, Self { at: asked + took / 2, guest_us }));
            }
        }
        Ok(best.expect("it was asked").1)
    }

    pub(super) fn translate(&self, wait: &GuestWait) -> Translated {
        let end_us = wait.end_ms.checked_mul(1000)?;
        let at = match end_us.checked_sub(self.guest_us) {
            Some(later) => self.at.checked_add(Duration::from_micros(later))?,
            None => self.at.checked_sub(Duration::from_micros(self.guest_us - end_us))?,
        };
        Some((at, Duration::from_nanos(wait.length_ns)))
    }
}

fn parse(text: &str) -> Option<u64> {
    let value = |name: &str| {
        let line = text.lines().find_map(|line| line.trim().strip_prefix(name))?;
        line.trim().parse::<u64>().ok()
    };
    value("time.tv_sec:")?.checked_mul(1_000_000)?.checked_add(value("time.tv_usec:")?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_is_found_among_the_rest() {
        let text =
            "    mode:         0\n-o  offset:  0 us\n    time.tv_sec:  1795296831\n    time.tv_usec: 28185\n";
        assert_eq!(parse(text), Some(1_795_296_831_028_185));
        assert_eq!(parse("time.tv_sec: 5"), None);
        assert_eq!(parse("time.tv_sec: 18446744073709551615\ntime.tv_usec: 1"), None);
    }

    #[test]
    fn times_of_the_guest_become_ours() {
        let at = Instant::now();
        let clock = Clock { at, guest_us: 5_000_000 };
        let translate = |end_ms| clock.translate(&GuestWait { end_ms, length_ns: 1000 }).map(|(at, _)| at);
        assert_eq!(translate(5010), Some(at + Duration::from_millis(10)));
        assert_eq!(translate(4990), Some(at - Duration::from_millis(10)));
        assert_eq!(translate(u64::MAX), None);
    }
}
