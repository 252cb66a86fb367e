//! The targets of the fuzzer over its corpus, without the fuzzer: what it once found stays mended.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test")]

use std::path::Path;

use tests_fuzz::ALL;

#[test]
fn every_input_of_the_corpus_is_survived() {
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
