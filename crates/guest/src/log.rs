//! The guest's kernel log.

/// The highest level that counts as trouble: `KERN_ERR`.
const ERROR: u8 = 3;

/// `KERN_WARNING`.
const WARNING: u8 = 4;

/// One message of the kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    /// 0 (emergency) to 7 (debug), as in `linux/kern_levels.h`.
    pub level: u8,
    /// The text, its time included.
    pub text: String,
}

impl Message {
    /// Whether something went wrong: an error or worse, or a time-out, reset or abort that a driver calls a warning.
    pub fn is_trouble(&self) -> bool {
        const WORDS: [&str; 7] =
            ["timeout", "timed out", "I/O error", "resetting controller", "will reset", "Call Trace", "BUG:"];
        let text = &self.text;
        self.level <= ERROR || self.level == WARNING && WORDS.iter().any(|word| text.contains(word))
    }
}

/// Reads what `dmesg -r` prints: `<LEVEL>[TIME] TEXT` a line. A line without a level belongs to the message before it.
pub fn parse_kernel_log(text: &str) -> Vec<Message> {
    let mut messages: Vec<Message> = Vec::new();
    for line in text.lines() {
        let begun = line.strip_prefix('<').and_then(|rest| rest.split_once('>'));
        let begun = begun.and_then(|(level, text)| Some((level.parse::<u32>().ok()?, text)));
        match (begun, messages.last_mut()) {
            // The bits above are the facility.
            (Some((level, text)), _) => {
                messages.push(Message { level: (level & 7) as u8, text: text.into() });
            }
            (None, Some(last)) => {
                last.text.push('\n');
                last.text.push_str(line);
            }
            (None, None) => messages.push(Message { level: 7, text: line.into() }),
        }
    }
    messages
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_and_continued_lines() {
        let log = parse_kernel_log("<6>[    0.1] a\n<3>[    1.0] b\nmore\n<30>[ 2.0] c\n");
        let seen: Vec<_> = log.iter().map(|message| (message.level, message.text.as_str())).collect();
        assert_eq!(seen, [(6, "[    0.1] a"), (3, "[    1.0] b\nmore"), (6, "[ 2.0] c")]);
    }

    #[test]
    fn trouble_is_an_error_or_a_warning_of_a_time_out() {
        let is_trouble = |level, text: &str| Message { level, text: text.into() }.is_trouble();
        assert!(is_trouble(3, "anything"));
        assert!(is_trouble(4, "nvme nvme0: I/O tag 1 QID 1 timeout, aborting"));
        assert!(is_trouble(
            4,
            "nvme nvme0: controller is down; will reset: CSTS=0xffffffff, PCI_STATUS=0xffff"
        ));
        assert!(!is_trouble(4, "nvme nvme0: Ignoring bogus Namespace Identifiers"));
        assert!(!is_trouble(6, "clocksource: timeout"));
    }
}
