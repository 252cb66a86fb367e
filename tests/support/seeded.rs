//! Repeatable random cases, included by the tests of each crate.

use proptest::test_runner::{Config, RngSeed};

/// Returns a configuration for this many cases. If a test fails, the seed is printed in the form of the variable
/// `PROPTEST_RNG_SEED`, which chooses another; nothing is stored in files.
#[allow(clippy::print_stdout, reason = "shown where the test fails")]
pub fn config(cases: u32) -> Config {
    let given = Config::default().rng_seed;
    let seed = match given {
        RngSeed::Fixed(seed) => seed,
        RngSeed::Random if lives().is_some() => drawn(),
        RngSeed::Random => 0,
    };
    let cases = lives().and_then(|lives| u32::try_from(lives).ok()).unwrap_or(cases);
    println!("the same cases again: PROPTEST_RNG_SEED={seed}");
    Config { cases, failure_persistence: None, rng_seed: RngSeed::Fixed(seed), ..Config::default() }
}

/// Returns the seeds of this many runs. They are the same in each run of the tests, so that a failure is that of a change;
/// to look for what no seed has found, `LIVES` gives a number of new ones. `LIFE_SEED` chooses one, which is printed if a
/// test fails.
#[allow(dead_code, reason = "for the tests that have lives")]
#[allow(clippy::print_stdout, reason = "shown where the test fails")]
pub fn seeds(count: u64) -> std::ops::Range<u64> {
    if let Some(seed) = number("LIFE_SEED") {
        return seed..seed + 1;
    }
    // Small enough that tests can multiply it.
    let (first, count) = lives().map_or((0, count), |lives| (drawn() >> 24, lives));
    println!("lives with the seeds from {first} on; one alone: LIFE_SEED={first}");
    first..first + count
}

/// Returns how many lives or cases each test is to have in place of its own number.
fn lives() -> Option<u64> {
    number("LIVES")
}

fn number(variable: &str) -> Option<u64> {
    std::env::var(variable).ok()?.parse().ok()
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
