//! Any bytes as an envelope: nothing panics, both ways to JSON give the same object, and what was
//! read can be written and read again.

#![no_main]

use apiserver_api::protobuf;
use libfuzzer_sys::fuzz_target;
use serde_json::Value;

fuzz_target!(|bytes: &[u8]| {
    let Ok(object) = protobuf::from_envelope(bytes) else { return };
    if let Ok(text) = protobuf::to_json(bytes) {
        // Numbers beyond what a tree holds are kept as text alone.
        if let Ok(other) = serde_json::from_slice::<Value>(&text) {
            assert_eq!(other, object);
        }
    }
    let again = protobuf::to_envelope(&object).expect("what was read can be written");
    protobuf::from_envelope(&again).expect("what was written can be read");
});
