//! One program for all targets, so that shared code is compiled and linked once: `FUZZ_TARGET=protobuf fuzz
//! CORPUS -max_total_time=60`. Without a target it prints their names.

#![no_main]

use std::sync::OnceLock;

use libfuzzer_sys::fuzz_target;
use tests_fuzz::{ALL, Target};

static CHOSEN: OnceLock<Target> = OnceLock::new();

fn choose() {
    let name = std::env::var("FUZZ_TARGET").unwrap_or_default();
    let Some((_, target)) = ALL.iter().find(|(known, _)| *known == name) else {
        for (name, _) in ALL {
            println!("{name}");
        }
        std::process::exit(i32::from(!name.is_empty()));
    };
    let _ = CHOSEN.set(*target);
}

fuzz_target!(init: choose(), |bytes: &[u8]| {
    if let Some(target) = CHOSEN.get() {
        target(bytes);
    }
});
