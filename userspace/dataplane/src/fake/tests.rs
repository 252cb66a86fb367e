use super::*;
use crate::tables;
use proptest::prelude::*;

fn key(address: &str, port: u16) -> FrontendKey {
    FrontendKey { address: address.parse().unwrap(), port, protocol: Protocol::Tcp, scope: Scope::Internal }
}

fn backend(number: u8) -> Backend {
    Backend::new(IpAddr::from([10, 0, 0, number]), 80, number.is_multiple_of(2))
}

fn service(keys: &[FrontendKey], backends: &[u8]) -> ServiceTables {
    let backends: Vec<Backend> = backends.iter().map(|number| backend(*number)).collect();
    let frontend = |key: &FrontendKey| tables::Frontend::new(*key, backends.clone());
    ServiceTables { frontends: keys.iter().map(frontend).collect(), ..ServiceTables::default() }
}

#[test]
fn frontends_of_a_service_share_a_block() {
    let mut fake = Fake::default();
    let tables = service(&[key("10.96.0.1", 80), key("0.0.0.0", 30080)], &[1, 2]);
    let applied = fake.apply_service("a/b", Some(&tables)).unwrap();
    let expected = Applied { frontends_written: 2, blocks_written: 1, ..Applied::default() };
    assert_eq!(applied, expected);
    assert_eq!(fake.apply_service("a/b", Some(&tables)).unwrap(), Applied::default());
}

#[test]
fn a_change_writes_one_block_and_one_value_and_frees_one_block() {
    let mut fake = Fake::default();
    fake.apply_service("a/b", Some(&service(&[key("10.96.0.1", 80)], &[1, 2]))).unwrap();
    let applied = fake.apply_service("a/b", Some(&service(&[key("10.96.0.1", 80)], &[1]))).unwrap();
    let expected = Applied { frontends_written: 1, frontends_deleted: 0, blocks_written: 1, blocks_freed: 1 };
    assert_eq!(applied, expected);
    assert_eq!(fake.backends(&key("10.96.0.1", 80)), Some(vec![backend(1)]));
}

#[test]
fn a_removed_service_leaves_nothing() {
    let mut fake = Fake::default();
    fake.apply_service("a/b", Some(&service(&[key("10.96.0.1", 80)], &[1, 2]))).unwrap();
    let applied = fake.apply_service("a/b", None).unwrap();
    assert_eq!((applied.frontends_deleted, applied.blocks_freed), (1, 1));
    assert_eq!((fake.frontends(), fake.services().len()), (0, 0));
}

#[test]
fn an_address_that_moves_to_another_service_stays_with_it() {
    let mut fake = Fake::default();
    let address = [key("10.96.0.1", 80)];
    fake.apply_service("a/old", Some(&service(&address, &[1]))).unwrap();
    fake.apply_service("a/new", Some(&service(&address, &[2]))).unwrap();
    // The old owner goes after the new one has come.
    fake.apply_service("a/old", None).unwrap();
    assert_eq!(fake.backends(&address[0]), Some(vec![backend(2)]));
}

#[test]
fn a_full_arena_waits_for_a_grace_period_then_refuses_and_keeps_what_it_has() {
    let mut fake = Fake::new(FakeLimits { backends: 4, ..FakeLimits::default() });
    let address = [key("10.96.0.1", 80)];
    fake.apply_service("a/b", Some(&service(&address, &[1, 2, 3]))).unwrap();
    fake.apply_service("a/b", Some(&service(&address, &[1]))).unwrap();
    assert_eq!(fake.grace_periods(), 0);
    fake.apply_service("a/b", Some(&service(&address, &[1, 4, 5]))).unwrap();
    assert_eq!(fake.grace_periods(), 1);
    let error = fake.apply_service("a/b", Some(&service(&address, &[1, 2, 3, 4, 5]))).unwrap_err();
    assert_eq!(error.to_string(), "a/b: map BACKENDS4 is full at 4 entries");
    assert_eq!(fake.backends(&address[0]), Some(vec![backend(4), backend(1), backend(5)]));
}

#[test]
fn a_full_frontend_map_refuses_the_newcomer_only() {
    let mut fake = Fake::new(FakeLimits { frontends: 1, ..FakeLimits::default() });
    let mut tables = Tables::new();
    tables.insert("a/first".into(), service(&[key("10.96.0.1", 80)], &[1]));
    tables.insert("b/second".into(), service(&[key("10.96.0.2", 80)], &[2]));
    let error = fake.apply_full(&tables).unwrap_err();
    assert_eq!(error.to_string(), "b/second: map FRONTENDS4 is full at 1 entries");
    assert_eq!(fake.backends(&key("10.96.0.1", 80)), Some(vec![backend(1)]));
    tables.remove("a/first");
    fake.apply_full(&tables).unwrap();
    assert_eq!(fake.backends(&key("10.96.0.2", 80)), Some(vec![backend(2)]));
}

#[test]
fn without_backends_a_frontend_refuses_or_drops() {
    let mut fake = Fake::default();
    let mut tables = service(&[key("10.96.0.1", 80)], &[]);
    let resolve =
        |fake: &Fake| fake.resolve("10.96.0.1".parse().unwrap(), 80, Protocol::Tcp, Scope::Internal, 0);
    fake.apply_service("a/b", Some(&tables)).unwrap();
    assert_eq!(resolve(&fake), Resolution::Refused);
    tables.frontends[0].drop_when_empty = true;
    fake.apply_service("a/b", Some(&tables)).unwrap();
    assert_eq!(resolve(&fake), Resolution::Dropped);
}

#[test]
fn node_ports_answer_on_the_node_s_addresses() {
    let mut fake = Fake::default();
    fake.apply_service("a/b", Some(&service(&[key("0.0.0.0", 30080)], &[1]))).unwrap();
    let here = "192.0.2.1".parse().unwrap();
    let resolve = |fake: &Fake| fake.resolve(here, 30080, Protocol::Tcp, Scope::Internal, u32::MAX);
    assert_eq!(resolve(&fake), Resolution::NotAService);
    fake.set_node(&NodeTables { addresses: vec![here], ..NodeTables::default() }).unwrap();
    assert_eq!(resolve(&fake), Resolution::Backend(backend(1)));
}

/// Generates desired tables over a small world, so that steps overlap.
fn worlds() -> impl Strategy<Value = Tables> {
    let lists = prop::collection::vec(0_u8..6, 0..5);
    let frontends = prop::collection::btree_map(0_u16..4, lists, 0..4);
    prop::collection::btree_map("[a-d]", frontends, 0..4).prop_map(|services| {
        let tables = services.into_iter().enumerate().map(|(number, (name, frontends))| {
            let frontends = frontends.into_iter().map(|(port, list)| tables::Frontend {
                affinity_seconds: u32::from(port) % 2,
                drop_when_empty: port == 3,
                ..tables::Frontend::new(
                    key(&format!("10.96.0.{number}"), port),
                    list.iter().map(|number| backend(*number)).collect(),
                )
            });
            (name, ServiceTables { frontends: frontends.collect(), ..ServiceTables::default() })
        });
        tables.collect()
    })
}

proptest! {
    #![proptest_config(crate::seeded::config(256))]

    /// Tables become equal to the desired ones, whatever they were before and whether or not the process
    /// restarts in between, and a second apply writes nothing.
    #[test]
    fn becomes_what_is_desired(steps in prop::collection::vec((worlds(), any::<bool>()), 1..8)) {
        let mut fake = Fake::new(FakeLimits { backends: 256, ..FakeLimits::default() });
        for (desired, restart) in steps {
            fake.apply_full(&desired).unwrap();
            if restart {
                fake = fake.restarted();
            }
            prop_assert_eq!(fake.apply_full(&desired).unwrap(), Applied::default());
            let count: usize = desired.values().map(|tables| tables.frontends.len()).sum();
            prop_assert_eq!(fake.frontends(), count);
            for frontend in desired.values().flat_map(|tables| &tables.frontends) {
                let mut wanted = frontend.backends.clone();
                wanted.sort_by_key(|backend| (!backend.local, backend.address, backend.port));
                prop_assert_eq!(fake.backends(&frontend.key), Some(wanted));
            }
        }
    }
}

#[test]
fn addresses_of_services_answer_on_their_ports_only() {
    let mut fake = Fake::default();
    let address: IpAddr = "10.96.0.1".parse().unwrap();
    let mut tables = service(&[key("10.96.0.1", 80)], &[1]);
    tables.frontends.push(tables::Frontend::mark(address));
    fake.apply_service("a/b", Some(&tables)).unwrap();
    let service_ranges = vec!["10.96.0.0/16".parse().unwrap()];
    fake.set_node(&NodeTables { service_ranges, ..NodeTables::default() }).unwrap();
    let resolve =
        |address: &str, port| fake.resolve(address.parse().unwrap(), port, Protocol::Tcp, Scope::Internal, 0);
    assert_eq!(resolve("10.96.0.1", 80), Resolution::Backend(backend(1)));
    assert_eq!(resolve("10.96.0.1", 81), Resolution::Refused);
    assert_eq!(resolve("10.96.0.2", 80), Resolution::Dropped);
    assert_eq!(resolve("10.97.0.2", 80), Resolution::NotAService);
}

#[test]
fn connections_follow_weights() {
    let mut fake = Fake::default();
    let weighted = [(1, 3), (2, 1), (3, 0)].map(|(number, weight)| Backend { weight, ..backend(number) });
    let frontend = tables::Frontend::new(key("10.96.0.1", 80), weighted.to_vec());
    let tables = ServiceTables { frontends: vec![frontend], ..ServiceTables::default() };
    fake.apply_service("a/b", Some(&tables)).unwrap();
    let mut counts = [0_u32; 4];
    for step in 0..4_000_u32 {
        let address = "10.96.0.1".parse().unwrap();
        let hash = step * (u32::MAX / 4_000);
        let found = fake.resolve(address, 80, Protocol::Tcp, Scope::Internal, hash);
        let Resolution::Backend(Backend { address: IpAddr::V4(address), .. }) = found else {
            panic!("{found:?}");
        };
        counts[usize::from(address.octets()[3])] += 1;
    }
    assert_eq!(counts[3], 0, "{counts:?}");
    assert!((2_700..3_300).contains(&counts[1]) && (700..1_300).contains(&counts[2]), "{counts:?}");
}

#[test]
fn sources_are_let_in_by_range() {
    let mut fake = Fake::default();
    let limited =
        tables::Frontend { limited: true, ..tables::Frontend::new(key("10.96.0.1", 80), Vec::new()) };
    let open = tables::Frontend::new(key("10.96.0.1", 81), Vec::new());
    let source_ranges = vec!["192.0.2.0/24".parse().unwrap()];
    fake.apply_service("a/b", Some(&ServiceTables { frontends: vec![limited, open], source_ranges }))
        .unwrap();
    let admits = |port, source: &str| fake.admits(&key("10.96.0.1", port), source.parse().unwrap());
    assert_eq!((admits(80, "192.0.2.9"), admits(80, "192.0.3.9")), (Some(true), Some(false)));
    assert_eq!((admits(81, "192.0.3.9"), admits(82, "192.0.2.9")), (Some(true), None));
}
