//! Any text is a configuration, or an error that can be shown.
#![no_main]

use std::path::Path;

use libfuzzer_sys::fuzz_target;
use program::config::Config;

fuzz_target!(|text: &str| {
    if let Err(error) = Config::parse(text, Path::new("/nowhere/node.toml")) {
        assert!(!error.to_string().is_empty());
    }
});
