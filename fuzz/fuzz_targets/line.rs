//! A text that is a line is the only one of that line; errors never show the key.
#![no_main]

use io::address::Addresses;
use libfuzzer_sys::fuzz_target;
use program::line::{Line, redact};

fuzz_target!(|text: &str| {
    let _ = redact(text);
    // A line's addresses, which stand behind a checksum there.
    if let Ok(addresses) = text.parse::<Addresses>() {
        assert_eq!(addresses.to_string().parse(), Ok(addresses));
        assert_eq!(Addresses::from(<[node::Address; 4]>::from(addresses)), addresses);
    }
    match text.parse::<Line>() {
        Ok(line) => {
            assert_eq!(line.reveal().parse(), Ok(line.clone()));
            let key = &line.reveal()[..40];
            assert!(!line.to_string().contains(key) && !format!("{line:?}").contains(key));
        }
        Err(error) => assert!(!error.to_string().is_empty()),
    }
});
