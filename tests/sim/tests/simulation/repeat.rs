//! A seed decides everything.

use crate::faults::faults;
use tests_sim::scenario;

#[test]
fn a_seed_repeats() {
    let scenario = scenario("repeat::a_seed_repeats");
    for (seed, first) in scenario.run(1, faults) {
        assert_eq!(first, scenario.spawn(seed), "seed {seed} does not repeat");
        assert_ne!(first, scenario.spawn(seed + 1), "the seed changes nothing");
    }
}
