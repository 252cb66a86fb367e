//! Runs the fuzz targets without the fuzzer: over the corpus, so that fixed bugs stay fixed, and over inputs
//! that are made from it by chance, the same in every run. `cargo xtask test --fuzz` searches with the fuzzer.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test")]

use std::path::{Path, PathBuf};

use fastrand::Rng;
use tests_fuzz::ALL;

/// Number of inputs that are made for each target.
const MADE: usize = 3_000;
/// Maximum number of changes from an input of the corpus to one that is made.
const CHANGES: usize = 6;
/// Maximum size of an input that is made, in bytes: the fuzzer's.
const LONGEST: usize = 8_192;
/// Numbers at which integers and lengths end.
const EDGES: [u64; 8] = [0, 1, 0x7f, 0xff, 0x7fff_ffff, 0xffff_ffff, i64::MAX as u64, u64::MAX];
/// Texts that mean something to many parsers.
const TOKENS: [&str; 24] = [
    "\n---\n",
    "{",
    "}",
    "[",
    "]",
    "\"",
    "\\u0000",
    "null",
    "true",
    "-0",
    "1e309",
    "9223372036854775808",
    "..",
    "/",
    "~1",
    "%00",
    "$(",
    ":",
    ",",
    "=",
    "*",
    "\u{feff}",
    "\u{10ffff}",
    "\0",
];

/// Returns the inputs of a target's corpus with their paths, in the order of the paths.
fn corpus(name: &str) -> Vec<(PathBuf, Vec<u8>)> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus").join(name);
    let mut paths: Vec<_> =
        std::fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    assert!(!paths.is_empty(), "the corpus of {name} is empty");
    paths.into_iter().map(|path| (path.clone(), std::fs::read(path).unwrap())).collect()
}

/// Changes an input at one place; `other` is one to take parts of.
fn change(input: &mut Vec<u8>, other: &[u8], chance: &mut Rng) {
    let at = chance.usize(..=input.len());
    let end = (at + chance.usize(..32)).min(input.len());
    let other_at = chance.usize(..=other.len());
    let part = &other[other_at..(other_at + chance.usize(..64)).min(other.len())];
    match chance.u8(..8) {
        0 if at < input.len() => input[at] ^= 1 << chance.u8(..8),
        1 if at < input.len() => input[at] = chance.u8(..),
        2 => drop(input.drain(at..end)),
        3 => {
            let again = input[at..end].to_vec();
            input.splice(at..at, again);
        }
        4 => drop(input.splice(at..end, part.iter().copied())),
        5 => drop(input.splice(at..at, TOKENS[chance.usize(..TOKENS.len())].bytes())),
        6 => {
            let width = 1 << chance.u8(..4);
            let mut bytes = EDGES[chance.usize(..EDGES.len())].to_le_bytes()[..width].to_vec();
            if chance.bool() {
                bytes.reverse();
            }
            input.splice(at..(at + width).min(input.len()), bytes);
        }
        _ => input.truncate(at),
    }
    input.truncate(LONGEST);
}

#[test]
fn no_input_of_the_corpus_panics() {
    for (name, target) in ALL {
        for (path, input) in corpus(name) {
            let run = std::panic::catch_unwind(|| target(&input));
            assert!(run.is_ok(), "{}", path.display());
        }
    }
}

#[test]
fn no_input_made_from_the_corpus_panics() {
    for (name, target) in ALL {
        let corpus = corpus(name);
        let mut chance = Rng::with_seed(1);
        for number in 0..MADE {
            let [mut input, other] = [(); 2].map(|()| corpus[chance.usize(..corpus.len())].1.clone());
            for _ in 0..=chance.usize(..CHANGES) {
                change(&mut input, &other, &mut chance);
            }
            let run = std::panic::catch_unwind(|| target(&input));
            assert!(run.is_ok(), "{name}, made input {number}: b\"{}\"", input.escape_ascii());
        }
    }
}
