//! The state that a process leaves at any moment of its life, the recovery by the next one, and the behaviour
//! without room.

use std::net::IpAddr;

use ebpf_common::frontend::{Lut, frontend_flag};
use proptest::prelude::*;

use super::*;
use crate::convert;
use crate::fake::FakeLimits;
use crate::fake::memory::Memory;
use crate::maglev::{self, Candidate};
use crate::tables::{self, Algorithm, Backend, Forwarding, Protocol, Scope};

type Plane = Synchronizer<Memory>;

fn small() -> FakeLimits {
    FakeLimits { frontends: 64, backends: 96, services: 16, luts: 16_384, source_ranges: 24 }
}

fn open(memory: Memory) -> Plane {
    Synchronizer::new(memory).unwrap()
}

fn key(last: u8, port: u16) -> FrontendKey {
    let address = IpAddr::from([10, 96, 0, last]);
    FrontendKey { address, port, protocol: Protocol::Tcp, scope: Scope::External }
}

fn backend(number: u8, weight: u16) -> Backend {
    Backend { weight, ..Backend::new(IpAddr::from([10, 1, 0, number]), 8_080, number.is_multiple_of(2)) }
}

fn frontend(key: FrontendKey, backends: &[Backend]) -> tables::Frontend {
    tables::Frontend::new(key, backends.to_vec())
}

fn service(frontends: Vec<tables::Frontend>, ranges: &[&str]) -> ServiceTables {
    ServiceTables { frontends, source_ranges: ranges.iter().map(|range| range.parse().unwrap()).collect() }
}

fn tables(services: &[(&str, ServiceTables)]) -> Tables {
    services.iter().map(|(name, tables)| ((*name).to_owned(), tables.clone())).collect()
}

/// Returns the desired frontend of a key, with its service's ranges.
fn desired<'a>(tables: &'a Tables, key: &FrontendKey) -> Option<(&'a tables::Frontend, &'a [IpNetwork])> {
    tables.values().find_map(|service| {
        let frontend = service.frontends.iter().find(|frontend| frontend.key == *key)?;
        Some((frontend, service.source_ranges.as_slice()))
    })
}

fn sorted(backends: &[Backend]) -> Vec<Backend> {
    let mut sorted = backends.to_vec();
    convert::sort(&mut sorted);
    sorted
}

/// Returns `true` if the store holds the frontend exactly as desired.
fn is_whole(memory: &Memory, value: &Frontend, wanted: &tables::Frontend, ranges: &[IpNetwork]) -> bool {
    let list = sorted(&wanted.backends);
    let family = Family::of(&wanted.key);
    let places = value.block()..value.block() + u32::from(value.count());
    let held: Option<Vec<Backend>> =
        places.map(|place| memory.backends.get(&(family, place)).copied()).collect();
    let candidates: Vec<Candidate> =
        list.iter().map(|one| Candidate { identity: convert::identity(one), weight: one.weight }).collect();
    let lut = || {
        Lut::unpack(value.lut)
            .is_none_or(|lut| memory.lut_equals(lut, &maglev::table(&candidates, maglev::bits(&candidates))))
    };
    let limited = value.flags() & frontend_flag::SOURCE_RANGES != 0;
    held.as_ref() == Some(&list)
        && (!list.is_empty() || value.lut == 0)
        && lut()
        && limited == wanted.limited
        && (!limited || ranges.iter().all(|range| memory.source_ranges.contains(&(value.service, *range))))
        && (value.flags() & frontend_flag::CONSISTENT != 0) == (wanted.algorithm == Algorithm::Consistent)
}

/// Asserts that everything in the store is consistent, and from the previous or the desired tables.
fn check(memory: &Memory, worlds: &[&Tables]) -> Result<(), TestCaseError> {
    for (key, value) in &memory.frontends {
        let fits = worlds
            .iter()
            .filter_map(|world| desired(world, key))
            .any(|(wanted, ranges)| is_whole(memory, value, wanted, ranges));
        prop_assert!(fits, "{:?} is {:?}", key, value);
    }
    // Frontends of both worlds are never missing.
    for service in worlds[0].values() {
        for frontend in &service.frontends {
            let stays = worlds.iter().all(|world| desired(world, &frontend.key).is_some());
            prop_assert!(!stays || memory.frontends.contains_key(&frontend.key), "{:?}", frontend.key);
        }
    }
    Ok(())
}

/// Asserts that the store holds `world`, and nothing else.
fn equals(plane: &mut Plane, world: &Tables) -> Result<(), TestCaseError> {
    check(&plane.store, &[world])?;
    let count: usize = world.values().map(|service| service.frontends.len()).sum();
    prop_assert_eq!(plane.store.frontends.len(), count);
    let named = world.values().filter(|service| !service.frontends.is_empty());
    prop_assert_eq!(plane.store.names.len(), named.clone().count());
    let ranges: usize = named.map(|service| service.source_ranges.len()).sum();
    prop_assert_eq!(plane.store.source_ranges.len(), ranges);
    prop_assert_eq!(plane.apply_full(world).unwrap(), Applied::default());
    // All unused space is available.
    plane.arenas.iter_mut().for_each(Arena::rested);
    for (space, arena) in Space::ALL.into_iter().zip(&plane.arenas) {
        let used: u32 = plane
            .services
            .values()
            .flat_map(|service| &service.runs)
            .filter(|run| run.0 == space)
            .map(|run| run.1.length)
            .sum();
        prop_assert_eq!(arena.taken(), used + u32::from(space == Space::Luts), "{:?}", space);
    }
    Ok(())
}

/// Runs a process that dies after each of its writes in turn, and its successor.
fn die_at_every_write(before: &Tables, after: &Tables) -> Result<usize, TestCaseError> {
    let mut plane = open(Memory::new(small()));
    plane.apply_full(before).unwrap();
    let start = plane.store;
    for writes in 0.. {
        let mut plane = open(Memory { writes_left: Some(usize::MAX), ..start.clone() });
        plane.store.writes_left = Some(writes);
        let _ = plane.apply_full(after);
        let died = plane.store.writes_left == Some(0);
        let left = Memory { writes_left: None, ..plane.store };
        check(&left, &[before, after])?;
        let epoch = left.epoch;
        let mut next = open(left);
        prop_assert!(next.store.epoch > epoch, "flows look once");
        check(&next.store, &[before, after])?;
        next.apply_full(after).unwrap();
        equals(&mut next, after)?;
        if !died {
            return Ok(writes);
        }
    }
    unreachable!("numbers do not end")
}

fn consistent(key: FrontendKey, backends: &[Backend]) -> tables::Frontend {
    tables::Frontend { algorithm: Algorithm::Consistent, ..frontend(key, backends) }
}

fn many(weights: impl IntoIterator<Item = u16>) -> Vec<Backend> {
    (1..).zip(weights).map(|(number, weight)| backend(number, weight)).collect()
}

#[test]
fn dying_at_any_write_leaves_what_the_next_process_can_use() {
    let limited = |key, list: &[Backend]| tables::Frontend { limited: true, ..frontend(key, list) };
    let before = tables(&[
        (
            "a/changes",
            service(vec![frontend(key(1, 80), &many([1, 1])), frontend(key(1, 81), &many([1; 4]))], &[]),
        ),
        ("a/goes", service(vec![limited(key(2, 80), &many([1, 2]))], &["192.0.2.0/24"])),
        ("a/stays", service(vec![consistent(key(3, 80), &many([1; 12]))], &[])),
        ("b/limits", service(vec![limited(key(4, 80), &many([1]))], &["192.0.2.0/24", "fd00::/8"])),
    ]);
    let after = tables(&[
        ("a/changes", service(vec![frontend(key(1, 80), &many([1, 3, 0])), frontend(key(1, 82), &[])], &[])),
        ("a/comes", service(vec![limited(key(2, 80), &many([1, 1, 1]))], &["198.51.100.0/24"])),
        ("a/stays", service(vec![consistent(key(3, 80), &many([1; 12]))], &[])),
        ("b/limits", service(vec![limited(key(4, 80), &many([1, 1]))], &["203.0.113.0/24", "fd00::/8"])),
    ]);
    let writes = die_at_every_write(&before, &after).unwrap();
    assert!(writes > 100, "look-up tables are written entry by entry: {writes}");
}

#[test]
fn an_address_goes_from_one_service_to_another_without_a_moment_in_between() {
    let of = |name: &'static str, list: &[Backend]| {
        tables(&[(name, service(vec![frontend(key(1, 80), list)], &[]))])
    };
    // In either alphabetical order.
    die_at_every_write(&of("a/one", &many([1])), &of("b/two", &many([1, 1]))).unwrap();
    die_at_every_write(&of("b/one", &many([1])), &of("a/two", &many([1, 1]))).unwrap();
    // The newcomer has no room: no backend is better than a block that is another's by now.
    let mut plane = open(Memory::new(FakeLimits { backends: 4, ..small() }));
    plane.apply_full(&of("a/one", &many([1; 2]))).unwrap();
    let error = plane.apply_full(&of("b/two", &many([1; 5]))).unwrap_err();
    assert_eq!(error.to_string(), "b/two: map BACKENDS4 is full at 4 entries");
    assert!(plane.store.frontends.is_empty());
    plane.apply_full(&of("b/two", &many([1; 4]))).unwrap();
    equals(&mut plane, &of("b/two", &many([1; 4]))).unwrap();
}

#[test]
fn weights_and_long_consistent_lists_have_look_up_tables_that_frontends_share() {
    let mut plane = open(Memory::new(small()));
    let weighted = many([1, 3]);
    let world = tables(&[(
        "a/b",
        service(
            vec![
                frontend(key(1, 80), &weighted),
                frontend(key(1, 81), &weighted),
                consistent(key(1, 82), &many([1; 8])),
                consistent(key(1, 83), &many([1; 9])),
                frontend(key(1, 84), &many([1; 9])),
                consistent(key(1, 85), &weighted),
            ],
            &[],
        ),
    )]);
    plane.apply_full(&world).unwrap();
    equals(&mut plane, &world).unwrap();
    let lut = |port| plane.store.frontends[&key(1, port)].lut;
    assert!(lut(80) != 0 && lut(83) != 0 && lut(83) != lut(80));
    assert_eq!((lut(80), lut(80), 0, 0), (lut(81), lut(85), lut(82), lut(84)));
    assert_eq!(plane.store.frontends[&key(1, 83)].block(), plane.store.frontends[&key(1, 84)].block());
    // A new process compares and finds everything unchanged.
    let mut plane = open(plane.store);
    assert_eq!(plane.apply_full(&world).unwrap(), Applied::default());
    equals(&mut plane, &world).unwrap();
}

#[test]
fn a_weight_changes_the_look_up_table_and_no_flow_needs_to_look() {
    let mut plane = open(Memory::new(small()));
    let world = |weights: [u16; 2]| service(vec![frontend(key(1, 80), &many(weights))], &[]);
    plane.apply_service("a/b", Some(&world([1, 1]))).unwrap();
    assert_eq!(plane.store.frontends[&key(1, 80)].lut, 0);
    let epoch = plane.store.epoch;
    let mut before = 0;
    for weights in [[1, 2], [0, 1], [9, 1]] {
        plane.apply_service("a/b", Some(&world(weights))).unwrap();
        let lut = plane.store.frontends[&key(1, 80)].lut;
        assert!(lut != 0 && lut != before);
        before = lut;
    }
    assert_eq!(plane.store.epoch, epoch, "no backend has gone");
    equals(&mut plane, &tables(&[("a/b", world([9, 1]))])).unwrap();
}

#[test]
fn only_losses_make_flows_look() {
    let mut plane = open(Memory::new(small()));
    let mut apply = |list: &[Backend], also: &[Backend]| {
        let world = service(vec![frontend(key(1, 80), list), frontend(key(1, 81), also)], &[]);
        let before = plane.store.epoch;
        plane.apply_service("a/b", Some(&world)).unwrap();
        plane.store.epoch - before
    };
    assert_eq!(apply(&many([1, 1]), &many([1, 1])), 0, "new");
    assert_eq!(apply(&many([1, 1, 1]), &many([1, 1])), 0, "one more");
    assert_eq!(apply(&many([1, 1, 1]), &many([1])), 1, "one frontend less");
    assert_eq!(apply(&many([1, 1]), &many([1])), 1, "one less");
    assert_eq!(apply(&[], &many([1])), 1, "none left");
    assert_eq!(apply(&many([1]), &many([1])), 0, "back again");
    let service = plane.service_ids().next().unwrap().1;
    assert_eq!(plane.store.losses[&service], plane.store.epoch);
}

#[test]
fn full_look_up_tables_refuse_the_newcomer() {
    // Room for one table of 256 entries besides the unused unit.
    let mut plane = open(Memory::new(FakeLimits { luts: 80, ..small() }));
    let weighted = |last| service(vec![frontend(key(last, 80), &many([1, 2]))], &[]);
    plane.apply_service("a/first", Some(&weighted(1))).unwrap();
    let error = plane.apply_service("a/second", Some(&weighted(2))).unwrap_err();
    assert_eq!(error.to_string(), "a/second: map LUTS is full at 80 entries");
    equals(&mut plane, &tables(&[("a/first", weighted(1))])).unwrap();
    plane.apply_service("a/first", None).unwrap();
    plane.apply_service("a/second", Some(&weighted(2))).unwrap();
    assert_eq!(plane.store.grace_periods, 1);
    equals(&mut plane, &tables(&[("a/second", weighted(2))])).unwrap();
}

#[test]
fn without_room_for_its_table_an_even_choice_goes_on_without_one() {
    let mut plane = open(Memory::new(FakeLimits { luts: 80, ..small() }));
    plane.apply_service("a/first", Some(&service(vec![frontend(key(1, 80), &many([1, 2]))], &[]))).unwrap();
    let consistent =
        tables::Frontend { algorithm: tables::Algorithm::Consistent, ..frontend(key(2, 80), &many([1; 9])) };
    let second = service(vec![consistent], &[]);
    plane.apply_service("a/second", Some(&second)).unwrap();
    let lut = |plane: &Synchronizer<Memory>| plane.store.frontends[&key(2, 80)].lut;
    assert_eq!(lut(&plane), 0);
    // With room, the next pass completes it.
    plane.apply_service("a/first", None).unwrap();
    plane.apply_full(&tables(&[("a/second", second)])).unwrap();
    assert_eq!(lut(&plane), 0, "nine backends take more than there is");
}

#[test]
fn a_full_set_of_ranges_refuses_the_newcomer() {
    let mut plane = open(Memory::new(FakeLimits { source_ranges: 2, ..small() }));
    let limited = |last, ranges: &[&str]| {
        service(vec![tables::Frontend { limited: true, ..frontend(key(last, 80), &many([1])) }], ranges)
    };
    let first = limited(1, &["10.0.0.0/8"]);
    plane.apply_service("a/first", Some(&first)).unwrap();
    let two = limited(2, &["10.0.0.0/8", "192.0.2.0/24"]);
    let error = plane.apply_service("a/second", Some(&two)).unwrap_err();
    assert_eq!(error.to_string(), "a/second: map SOURCE_RANGES4 is full at 2 entries");
    equals(&mut plane, &tables(&[("a/first", first)])).unwrap();
}

#[test]
fn ranges_are_compared_as_networks() {
    let mut plane = open(Memory::new(small()));
    let limited = |ranges: &[&str]| {
        service(vec![tables::Frontend { limited: true, ..frontend(key(1, 80), &many([1])) }], ranges)
    };
    plane.apply_service("a/b", Some(&limited(&["10.1.2.3/8", "10.0.0.0/8"]))).unwrap();
    assert_eq!(plane.store.source_ranges.len(), 1);
    let mut plane = open(plane.store);
    plane.apply_service("a/b", Some(&limited(&["10.9.9.9/8"]))).unwrap();
    equals(&mut plane, &tables(&[("a/b", limited(&["10.0.0.0/8"]))])).unwrap();
}

#[test]
fn a_full_apply_that_replaces_everything_needs_no_room_for_both() {
    let mut plane = open(Memory::new(FakeLimits { backends: 12, ..small() }));
    let world = |shift: u8| {
        let list = |last: u8| (0..3).map(|one| backend(10 * last + shift + one, 1)).collect::<Vec<_>>();
        tables(&["a", "b", "c"].map(|name| {
            let last = name.as_bytes()[0] - b'a';
            (name, service(vec![frontend(key(last, 80), &list(last))], &[]))
        }))
    };
    plane.apply_full(&world(0)).unwrap();
    plane.apply_full(&world(3)).unwrap();
    equals(&mut plane, &world(3)).unwrap();
}

#[test]
fn values_say_what_was_chosen() {
    let mut plane = open(Memory::new(small()));
    let plain = frontend(key(1, 80), &many([1]));
    let chosen = [
        (plain.clone(), 0),
        (tables::Frontend { masquerade: true, ..plain.clone() }, frontend_flag::MASQUERADE),
        (tables::Frontend { limited: true, ..plain.clone() }, frontend_flag::SOURCE_RANGES),
        (tables::Frontend { drop_when_empty: true, ..plain.clone() }, frontend_flag::DROP_WHEN_EMPTY),
        (tables::Frontend { forwarding: Forwarding::DsrOption, ..plain.clone() }, frontend_flag::DSR_OPTION),
        (tables::Frontend { forwarding: Forwarding::DsrIpip, ..plain.clone() }, frontend_flag::DSR_IPIP),
        (tables::Frontend { algorithm: Algorithm::Consistent, ..plain }, frontend_flag::CONSISTENT),
    ];
    for (frontend, flags) in chosen {
        plane.apply_service("a/b", Some(&service(vec![frontend], &[]))).unwrap();
        assert_eq!(plane.store.frontends[&key(1, 80)].flags(), flags);
    }
    let mark = tables::Frontend::mark(IpAddr::from([10, 96, 0, 1]));
    plane.apply_service("a/b", Some(&service(vec![mark.clone()], &[]))).unwrap();
    assert_eq!(plane.store.frontends[&mark.key].switch, 0);
}

/// Generates desired tables over a small world, so that steps overlap: lists and weights, choices, and
/// addresses that move between services.
fn worlds() -> impl Strategy<Value = Tables> {
    let lists = prop::collection::vec((0_u8..12, 0_u16..3), 0..11);
    let ranges = prop::collection::btree_set(0_u8..3, 0..3);
    let one = (lists, any::<bool>(), any::<bool>());
    let frontends = prop::collection::btree_map(0_u8..6, one, 0..4);
    prop::collection::btree_map("[a-d]", (frontends, ranges), 0..4).prop_map(|services| {
        let mut taken = BTreeSet::new();
        let mut world = Tables::new();
        for (name, (frontends, ranges)) in services {
            let mut tables = ServiceTables::default();
            for (last, (list, limited, consistent)) in frontends {
                // One owner per address, as with Services.
                if !taken.insert(last) {
                    continue;
                }
                let list: BTreeMap<u8, u16> = list.into_iter().collect();
                let list: Vec<Backend> =
                    list.into_iter().map(|(number, weight)| backend(number, weight)).collect();
                let algorithm = if consistent { Algorithm::Consistent } else { Algorithm::Random };
                tables.frontends.push(tables::Frontend {
                    limited,
                    algorithm,
                    ..frontend(key(last, 80), &list)
                });
            }
            let range = |number: u8| format!("192.0.{number}.0/24").parse().unwrap();
            tables.source_ranges = ranges.into_iter().map(range).collect();
            world.insert(name, tables);
        }
        world
    })
}

proptest! {
    #![proptest_config(crate::seeded::config(96))]

    /// From any tables to any others, dying anywhere on the way, any number of times.
    #[test]
    fn sync_recovers_from_a_crash_at_any_step(steps in prop::collection::vec((worlds(), 0_usize..400), 1..6)) {
        let mut plane = open(Memory::new(small()));
        let mut worlds: Vec<Tables> = vec![Tables::new()];
        for (world, writes) in steps {
            worlds.push(world);
            let world = &worlds[worlds.len() - 1];
            plane.store.writes_left = Some(writes);
            let _ = plane.apply_full(world);
            let died = plane.store.writes_left == Some(0);
            plane.store.writes_left = None;
            // Values that no process has repaired yet may be from any world since.
            for (key, value) in &plane.store.frontends {
                let fits = worlds.iter().filter_map(|world| desired(world, key)).any(|(wanted, ranges)| {
                    is_whole(&plane.store, value, wanted, ranges)
                });
                prop_assert!(fits, "{:?} is {:?}", key, value);
            }
            if died {
                plane = open(plane.store);
            }
        }
        let last = &worlds[worlds.len() - 1];
        plane.apply_full(last).unwrap();
        equals(&mut plane, last)?;
    }

    /// One service at a time gives the same as all at once.
    #[test]
    fn one_by_one_is_as_all_at_once(steps in prop::collection::vec(worlds(), 1..5)) {
        let mut plane = open(Memory::new(small()));
        let mut names = BTreeSet::new();
        for world in &steps {
            names.extend(world.keys().cloned());
            // Those that give up addresses come first, so that an address has one owner all the while.
            let empty = ServiceTables::default();
            for name in &names {
                plane.apply_service(name, Some(&empty)).unwrap();
            }
            for name in &names {
                plane.apply_service(name, world.get(name)).unwrap();
            }
            equals(&mut plane, world)?;
        }
    }
}
