//! A text that is a line is the only one of that line; errors never show the key.
#![no_main]

use causeway::line::{Line, redact};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    let _ = redact(text);
    match text.parse::<Line>() {
        Ok(line) => {
            assert_eq!(line.reveal().parse(), Ok(line.clone()));
            let key = &line.reveal()[..40];
            assert!(!line.to_string().contains(key) && !format!("{line:?}").contains(key));
        }
        Err(error) => assert!(!error.to_string().is_empty()),
    }
});
