//! Random cases that can be had again: included by each crate's tests.

use proptest::test_runner::{Config, RngSeed};

/// So many cases from a seed that is drawn anew, or taken from `PROPTEST_RNG_SEED`. It is printed
/// where a test fails, as what to set to have the same cases again; nothing is kept in files.
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

/// Seeds of that many lives in a row, from one that is drawn anew, or the one in `LIFE_SEED` alone.
/// The first is printed where a test fails.
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

/// Another one each time: what a hasher of the standard library starts with is random.
fn drawn() -> u64 {
    use std::hash::{BuildHasher, Hasher};
    std::collections::hash_map::RandomState::new().build_hasher().finish()
}

#[test]
fn a_seed_gives_the_same_cases_again() {
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
