//! Repeatable random cases, included by the tests of each crate.

use proptest::test_runner::{Config, RngSeed};

/// Returns a configuration for this many cases from a random seed, or that in `PROPTEST_RNG_SEED`. If a test
/// fails, the seed is printed in the form of that variable; nothing is stored in files.
#[allow(clippy::print_stdout, reason = "shown where the test fails")]
pub fn config(cases: u32) -> Config {
    let given = Config::default().rng_seed;
    let seed = match given {
        RngSeed::Fixed(seed) => seed,
        RngSeed::Random => drawn(),
    };
    println!("the same cases again: PROPTEST_RNG_SEED={seed}");
    Config { cases, failure_persistence: None, rng_seed: RngSeed::Fixed(seed), ..Config::default() }
}

/// Returns consecutive seeds for this many runs from a random start, or only that in `LIFE_SEED`. The first
/// is printed if a test fails.
#[allow(dead_code, reason = "for the tests that have lives")]
#[allow(clippy::print_stdout, reason = "shown where the test fails")]
pub fn seeds(lives: u64) -> std::ops::Range<u64> {
    if let Some(seed) = std::env::var("LIFE_SEED").ok().and_then(|text| text.parse::<u64>().ok()) {
        return seed..seed + 1;
    }
    // Small enough that tests can multiply it.
    let first = drawn() >> 24;
    println!("lives with the seeds from {first} on; one alone: LIFE_SEED={first}");
    first..first + lives
}

/// Returns a different number each time, from the random initial state of a standard hasher.
fn drawn() -> u64 {
    use std::hash::{BuildHasher, Hasher};
    std::collections::hash_map::RandomState::new().build_hasher().finish()
}

#[test]
fn equal_seeds_give_equal_cases() {
    use proptest::strategy::{Strategy, ValueTree};
    use proptest::test_runner::TestRunner;
    let first = config(1);
    assert!(matches!(first.rng_seed, RngSeed::Fixed(_)), "{first:?}");
    let cases = |config: &Config| -> Vec<u64> {
        let mut runner = TestRunner::new(config.clone());
        (0..8).map(|_| proptest::num::u64::ANY.new_tree(&mut runner).unwrap().current()).collect()
    };
    assert_eq!(cases(&first), cases(&first));
}
