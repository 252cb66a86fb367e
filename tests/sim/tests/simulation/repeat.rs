//! Repeatability: the seed determines everything.

use crate::faults::faults;
use tests_sim::scenario;

#[test]
fn equal_seeds_give_equal_runs() {
    let scenario = scenario("repeat::equal_seeds_give_equal_runs");
    for (seed, first) in scenario.run(1, faults) {
        assert_eq!(first, scenario.spawn(seed), "seed {seed} does not repeat");
        assert_ne!(first, scenario.spawn(seed + 1), "the seed changes nothing");
    }
}
