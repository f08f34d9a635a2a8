//! A packet that parses has exactly one encoding: the bytes it came from.
#![no_main]

use libfuzzer_sys::fuzz_target;
use pcie::{Completion, Header, Outstanding, ReadCompletionBoundary, TlpView};

fuzz_target!(|bytes: &[u8]| {
    let Ok(view) = TlpView::parse(bytes) else { return };
    let header = view.header();
    assert_eq!(header.encode().as_bytes(), &bytes[..header.header_len()]);
    assert_eq!(view.total_len(), header.total_len());
    assert_eq!(view.payload(), &bytes[header.header_len()..view.total_len()]);
    let Header::MemoryRead(read) = header else { return };
    // However it is cut, the parts of its answer fit the request.
    for max_payload in [128, 1024, 4096] {
        let mut waiting = Outstanding::new(&header).expect("a read waits for completions");
        for part in Completion::split(&read, read.requester, max_payload, ReadCompletionBoundary::Bytes64) {
            waiting.accept(&part.completion).expect("a part of the answer is expected");
        }
    }
});
