//! Machines that end and come back, as far as it matters for what is plugged into them.

use std::time::{Duration, Instant};

/// Between two looks whether machines are there, and whether functions have left their guests without an answer.
pub(super) const WATCH: Duration = Duration::from_secs(1);

/// The machine of a slot whose function is attached, as far as that matters for plugging it in.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) enum Machine {
    /// Nobody has connected yet.
    Unseen,
    Connected,
    /// The connection is over: the machine has ended, or somebody has taken the device out by hand. Asked since then.
    Left {
        asked: Instant,
    },
    /// There is none. Asked then.
    Away {
        asked: Instant,
    },
}

impl Machine {
    /// What follows from whether it is connected to the slot now; true if its monitor is to be asked.
    pub(super) fn follow(&mut self, is_connected: bool, now: Instant) -> bool {
        let next = match *self {
            _ if is_connected => Self::Connected,
            Self::Connected => Self::Left { asked: now },
            Self::Left { asked } if now - asked >= WATCH => Self::Left { asked: now },
            Self::Away { asked } if now - asked >= WATCH => Self::Away { asked: now },
            same => same,
        };
        let asks = next != *self && next != Self::Connected;
        *self = next;
        asks
    }

    /// What follows from whether its monitor answers; true if the function is to be plugged in.
    pub(super) fn looked(&mut self, is_running: bool, now: Instant) -> bool {
        match (*self, is_running) {
            (Self::Left { .. } | Self::Away { .. }, false) => {
                *self = Self::Away { asked: now };
                false
            }
            // Taken out by hand, and not to be forced upon it.
            (Self::Left { .. }, true) => {
                *self = Self::Unseen;
                false
            }
            (Self::Away { .. }, true) => {
                *self = Self::Unseen;
                true
            }
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a machine is asked, and what follows, after such connections and answers.
    fn follow(machine: &mut Machine, now: &mut Instant, is_connected: bool) -> bool {
        *now += WATCH;
        machine.follow(is_connected, *now)
    }

    #[test]
    fn a_machine_that_comes_back_gets_its_function_again() {
        let (mut machine, mut now) = (Machine::Unseen, Instant::now());
        assert!(!follow(&mut machine, &mut now, false) && !follow(&mut machine, &mut now, true));
        assert!(follow(&mut machine, &mut now, false), "it has left");
        assert!(!machine.looked(false, now));
        assert!(!machine.follow(false, now), "a moment has to pass");
        assert!(follow(&mut machine, &mut now, false) && !machine.looked(false, now));
        assert!(follow(&mut machine, &mut now, false) && machine.looked(true, now), "it is back");
        assert!(!follow(&mut machine, &mut now, true));
    }

    #[test]
    fn a_machine_that_was_not_there_at_first_gets_it_when_it_comes() {
        let mut now = Instant::now();
        // Plugging has failed.
        let mut machine = Machine::Away { asked: now };
        assert!(follow(&mut machine, &mut now, false) && machine.looked(true, now));
        // It failed again, but not because there is none.
        assert!(!follow(&mut machine, &mut now, false));
    }

    #[test]
    fn what_was_taken_out_by_hand_stays_out() {
        let (mut machine, mut now) = (Machine::Connected, Instant::now());
        assert!(follow(&mut machine, &mut now, false) && !machine.looked(true, now));
        assert!(!follow(&mut machine, &mut now, false));
        // Until somebody plugs it in by hand.
        assert!(!follow(&mut machine, &mut now, true) && machine == Machine::Connected);
    }
}
