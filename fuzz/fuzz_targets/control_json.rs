//! Both directions of the control socket: any bytes are a message or an error, and a message comes back.
#![no_main]

use libfuzzer_sys::fuzz_target;
use program::control::{Request, Response};

fuzz_target!(|bytes: &[u8]| {
    if let Ok(request) = serde_json::from_slice::<Request>(bytes) {
        let again = serde_json::to_vec(&request).expect("a request can be written");
        assert_eq!(serde_json::from_slice::<Request>(&again).expect("and read"), request);
    }
    if let Ok(response) = serde_json::from_slice::<Response>(bytes) {
        serde_json::to_vec(&response).expect("an answer can be written");
        if let Response::Status { status } = response {
            let _ = program::status::render(&status);
        }
    }
});
