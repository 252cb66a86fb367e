//! Runs the fuzz targets over the corpus without the fuzzer, so that fixed bugs stay fixed.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test")]

use std::path::Path;

use tests_fuzz::ALL;

#[test]
fn no_input_of_the_corpus_panics() {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus");
    for (name, target) in ALL {
        let mut inputs: Vec<_> =
            std::fs::read_dir(corpus.join(name)).unwrap().map(|entry| entry.unwrap().path()).collect();
        inputs.sort();
        assert!(!inputs.is_empty(), "the corpus of {name} is empty");
        for input in inputs {
            let bytes = std::fs::read(&input).unwrap();
            let run = std::panic::catch_unwind(|| target(&bytes));
            assert!(run.is_ok(), "{}", input.display());
        }
    }
}
