use super::*;
use crate::testing::dice::Dice;
use crate::testing::{labels, node};

fn member(zone: &str, ready: bool) -> Member {
    let mut node = node("n");
    node.metadata.labels = Some(labels(&[(ZONE[0], zone)]));
    Member::of(&node, ready, false)
}

fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

/// Zones of so many nodes, `ZONE-NUMBER`, all of them ready.
struct Bench {
    zones: Zones,
    now: Instant,
}

impl Bench {
    fn new(rates: EvictionRates, sizes: &[(&str, usize)]) -> Self {
        let mut bench = Self { zones: Zones::new(rates), now: Instant::now() };
        for (zone, size) in sizes {
            (0..*size).for_each(|number| drop(bench.set(zone, number, true)));
        }
        bench.zones.start(bench.now);
        bench
    }

    fn set(&mut self, zone: &str, number: usize, ready: bool) -> Effects {
        self.zones.observe(&format!("{zone}-{number}"), Some(member(zone, ready)), self.now)
    }

    fn fail(&mut self, zone: &str, numbers: std::ops::Range<usize>) {
        numbers.for_each(|number| drop(self.set(zone, number, false)));
    }

    fn ask(&mut self, zone: &str, number: usize) -> Turn {
        self.zones.ask(&format!("{zone}-{number}"), self.now)
    }

    fn pass(&mut self, seconds: u64) {
        self.now += Duration::from_secs(seconds);
    }
}

#[test]
fn zone_health_depends_on_the_fraction_of_at_least_three_unready_nodes() {
    let rates = EvictionRates::default();
    for (ready, unready, expected) in [
        (0, 0, Health::Normal),
        (1, 0, Health::Normal),
        (0, 1, Health::Full),
        (1, 2, Health::Normal),
        (1, 3, Health::Partial),
        (9, 10, Health::Normal),
        (9, 11, Health::Partial),
        (8, 10, Health::Partial),
        (0, 50, Health::Full),
    ] {
        assert_eq!(health(ready, unready, &rates), expected, "{ready} {unready}");
    }
    let rates = EvictionRates { unhealthy: 0.3, ..rates };
    assert_eq!(health(7, 3, &rates), Health::Partial);
}

#[test]
fn rate_of_an_unhealthy_zone_is_the_secondary_one_only_if_it_is_large() {
    let rates = EvictionRates::default();
    assert_eq!(rate(Health::Normal, 3, &rates), 0.1);
    assert_eq!(rate(Health::Full, 3, &rates), 0.1);
    assert_eq!(rate(Health::Partial, 50, &rates), 0.0);
    assert_eq!(rate(Health::Partial, 51, &rates), 0.01);
}

#[test]
fn regions_and_zones_are_read_from_old_and_new_labels() {
    let mut node = node("n");
    assert_eq!(place(&node), Place::default());
    node.metadata.labels = Some(labels(&[(ZONE[1], "a"), (REGION[1], "r")]));
    assert_eq!(place(&node), ("r".to_owned(), "a".to_owned()));
    node.metadata.labels.as_mut().unwrap().insert(ZONE[0].to_owned(), "b".to_owned());
    assert_eq!(place(&node), ("r".to_owned(), "b".to_owned()));
}

#[tokio::test(start_paused = true)]
async fn nodes_of_a_healthy_zone_have_their_turn_in_order_at_the_primary_rate() {
    let mut bench = Bench::new(EvictionRates::default(), &[("a", 10)]);
    bench.fail("a", 0..3);
    assert_eq!(bench.ask("a", 1), Turn::Now);
    assert_eq!(bench.ask("a", 1), Turn::Now, "the answer stands until the taint is there");
    assert_eq!(bench.ask("a", 0), Turn::Wait(Some(seconds(10))));
    assert_eq!(bench.ask("a", 2), Turn::Wait(Some(seconds(20))));
    bench.pass(10);
    assert_eq!(bench.ask("a", 2), Turn::Wait(Some(seconds(10))), "the first goes first");
    assert_eq!(bench.ask("a", 0), Turn::Now);
    bench.pass(9);
    assert_eq!(bench.ask("a", 2), Turn::Wait(Some(seconds(1))));
    bench.pass(1);
    assert_eq!(bench.ask("a", 2), Turn::Now);
}

#[tokio::test(start_paused = true)]
async fn node_that_recovers_is_tainted_or_goes_makes_room_for_those_behind_it() {
    let mut bench = Bench::new(EvictionRates::default(), &[("a", 20)]);
    bench.fail("a", 0..5);
    assert_eq!(bench.ask("a", 0), Turn::Now);
    for number in 1..5 {
        assert!(matches!(bench.ask("a", number), Turn::Wait(Some(_))));
    }
    assert_eq!(bench.set("a", 2, true).nodes, ["a-3", "a-4"]);
    assert_eq!(bench.ask("a", 3), Turn::Wait(Some(seconds(20))));
    let tainted = Member { tainted: true, ..member("a", false) };
    assert_eq!(bench.zones.observe("a-1", Some(tainted), bench.now).nodes, ["a-3", "a-4"]);
    assert_eq!(bench.ask("a", 1), Turn::Wait(None), "it has what it asked for");
    assert_eq!(bench.zones.observe("a-3", None, bench.now).nodes, ["a-4"]);
    assert_eq!(bench.ask("a", 4), Turn::Wait(Some(seconds(10))));
    // One whose taint was removed by others asks again, and waits like any other.
    assert_eq!(bench.set("a", 1, false), Effects::default());
    assert_eq!(bench.ask("a", 1), Turn::Wait(Some(seconds(20))));
}

#[tokio::test(start_paused = true)]
async fn small_unhealthy_zone_keeps_its_pods_until_it_is_healthy_again() {
    let mut bench = Bench::new(EvictionRates::default(), &[("a", 10), ("b", 10)]);
    bench.fail("a", 0..6);
    assert_eq!(bench.ask("a", 0), Turn::Wait(None));
    assert_eq!(bench.ask("a", 1), Turn::Wait(None));
    bench.fail("b", 0..1);
    assert_eq!(bench.ask("b", 0), Turn::Now, "the zones do not depend on each other");
    bench.pass(100);
    let effects = bench.set("a", 5, true);
    assert_eq!((effects.nodes, effects.recovered), (vec!["a-0".to_owned(), "a-1".to_owned()], false));
    assert_eq!(bench.ask("a", 0), Turn::Wait(Some(seconds(10))));
    assert_eq!(bench.ask("a", 1), Turn::Wait(Some(seconds(20))));
}

#[tokio::test(start_paused = true)]
async fn large_unhealthy_zone_is_emptied_at_the_secondary_rate() {
    let mut bench = Bench::new(EvictionRates::default(), &[("a", 60), ("b", 3)]);
    bench.fail("a", 0..40);
    assert_eq!(bench.ask("a", 0), Turn::Now);
    assert_eq!(bench.ask("a", 1), Turn::Wait(Some(seconds(100))));
    // Without a ready node it is emptied as fast as a healthy one, as long as there are others.
    bench.fail("a", 40..60);
    assert_eq!(bench.ask("a", 1), Turn::Wait(Some(seconds(10))));
}

#[tokio::test(start_paused = true)]
async fn cluster_without_a_ready_node_evicts_nobody_and_begins_anew() {
    let mut bench = Bench::new(EvictionRates::default(), &[("a", 2), ("b", 2)]);
    bench.fail("a", 0..2);
    assert_eq!(bench.ask("a", 0), Turn::Now);
    bench.fail("b", 0..1);
    let last = bench.set("b", 1, false);
    assert_eq!((last.nodes.len(), last.recovered), (4, false), "the taints of all go");
    assert_eq!(bench.ask("a", 0), Turn::Never);
    assert_eq!(bench.ask("b", 1), Turn::Never);
    bench.pass(1000);
    let first = bench.set("b", 1, true);
    assert_eq!((first.nodes.len(), first.recovered), (4, true));
    assert_eq!(bench.ask("a", 0), Turn::Wait(Some(seconds(10))));
    assert_eq!(bench.ask("b", 0), Turn::Wait(Some(seconds(10))));
}

#[tokio::test(start_paused = true)]
async fn excluded_nodes_do_not_count_but_wait_like_others() {
    let mut bench = Bench::new(EvictionRates::default(), &[("a", 1)]);
    let excluded = |ready: bool| Member { counts: false, ..member("a", ready) };
    bench.zones.observe("x", Some(excluded(false)), bench.now);
    assert_eq!(bench.zones.ask("x", bench.now), Turn::Now);
    bench.zones.observe("x", Some(excluded(true)), bench.now);
    bench.fail("a", 0..1);
    assert_eq!(bench.ask("a", 0), Turn::Never, "an excluded node alone does not make the cluster healthy");
    bench.zones.observe("a-0", None, bench.now);
    bench.zones.observe("x", Some(excluded(false)), bench.now);
    assert_eq!(bench.zones.ask("x", bench.now), Turn::Wait(Some(seconds(10))));
}

#[tokio::test(start_paused = true)]
async fn zones_are_not_judged_before_all_nodes_are_known() {
    let mut zones = Zones::new(EvictionRates::default());
    let now = Instant::now();
    assert_eq!(zones.observe("a", Some(member("a", false)), now), Effects::default());
    assert_eq!(zones.observe("b", Some(member("a", true)), now), Effects::default());
    zones.start(now);
    assert_eq!(zones.ask("a", now), Turn::Now, "the first node in the list is no outage");
}

/// Checks the counts against the members, and that the cluster is disrupted just when no counted node is ready.
fn check(zones: &Zones) {
    for (place, zone) in &zones.zones {
        let counted = |ready: bool| {
            let members = zones.members.values();
            members.filter(|one| one.place == *place && one.counts && one.ready == ready).count()
        };
        assert_eq!((zone.ready, zone.unready), (counted(true), counted(false)));
        for node in &zone.waiting {
            let member = &zones.members[node];
            assert!(member.is_candidate() && member.place == *place && !zones.granted.contains(node));
        }
    }
    assert!(zones.granted.iter().all(|node| zones.members[node].is_candidate()));
    let counted: Vec<_> = zones.members.values().filter(|member| member.counts).collect();
    let disrupted = !counted.is_empty() && counted.iter().all(|member| !member.ready);
    assert_eq!(zones.mode == Mode::Disrupted, disrupted);
}

#[tokio::test(start_paused = true)]
async fn no_zone_is_emptied_faster_than_its_primary_rate_whatever_happens() {
    for seed in crate::seeded::seeds(20) {
        let (mut dice, rates) =
            (Dice::new(seed), EvictionRates { large_zone: 3, ..EvictionRates::default() });
        let mut zones = Zones::new(rates);
        let begin = Instant::now();
        for node in ["a-0", "b-0"] {
            zones.observe(node, Some(member(&node[..1], true)), begin);
        }
        zones.start(begin);
        let (mut now, mut granted) = (begin, BTreeMap::<&str, u32>::new());
        for _ in 0..400 {
            let (zone, number) = (dice.pick(&["a", "b"]), dice.below(8));
            let node = format!("{zone}-{number}");
            match dice.below(8) {
                0..4 => {
                    let tainted = dice.once_in(3);
                    let counts = number != 7;
                    let one = Member { tainted, counts, ..member(zone, dice.once_in(3)) };
                    zones.observe(&node, Some(one), now);
                }
                // A zone that loses its last node would begin anew.
                4 if number > 0 && dice.once_in(5) => drop(zones.observe(&node, None, now)),
                4 => now += Duration::from_secs(dice.below(12)),
                _ => {
                    let known = zones.granted.contains(&node);
                    let turn = zones.ask(&node, now);
                    assert_eq!(turn == Turn::Never, zones.mode == Mode::Disrupted, "{seed}");
                    *granted.entry(zone).or_default() += u32::from(turn == Turn::Now && !known);
                }
            }
            check(&zones);
            let allowed = 1 + u32::try_from((now - begin).as_secs() / 10).unwrap();
            assert!(granted.values().all(|count| *count <= allowed), "{seed}: {granted:?} in {allowed}");
        }
    }
}
