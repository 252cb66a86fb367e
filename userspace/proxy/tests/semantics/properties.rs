//! Random clusters, compiled and put into the in-memory data plane.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;

use apiserver_client::{ObjectKey, Projection};
use k8s_openapi::api::core::v1::Service;
use proptest::prelude::*;
use userspace_dataplane::DataPlane;
use userspace_dataplane::tables::{Algorithm, Forwarding, Frontend, Scope};
use userspace_dataplane::{Fake, Resolution};
use userspace_proxy::compile::{
    Desired, Effect, Rank, ServiceProjection, Slice, health_check, rank, service_of, warnings,
};
use userspace_proxy::compile_service;

use crate::semantics::model::{Attempt, Verdict, World, health, judge};
use crate::semantics::plan::{attempt, world};
use crate::semantics::tables::{answering, compiled, context, key, node_tables, read};

/// Number of hash values tried for one attempt in the in-memory data plane, spread over all hashes.
const HASHES: u32 = 64;

/// The in-memory data plane, filled and read.
struct Plane {
    fake: Fake,
    world: World,
}

impl Plane {
    fn new(world: World) -> Self {
        let mut fake = Fake::default();
        fake.set_node(&node_tables(&world)).unwrap();
        fake.apply_full(&compiled(&world)).unwrap();
        Self { fake, world }
    }

    /// Checks that it holds what was compiled, and picks only what the oracle allows.
    fn check(&self, attempt: &Attempt, expected: &Verdict) -> Result<(), TestCaseError> {
        let tables = compiled(&self.world);
        let Some((_, frontend)) = answering(&tables, &node_tables(&self.world), attempt) else {
            return Ok(());
        };
        let held = self.fake.backends(&frontend.key);
        prop_assert_eq!(held.as_ref(), Some(&frontend.backends));
        if frontend.limited || attempt.to.ip().is_loopback() {
            // The in-memory data plane has no sources and namespaces.
            return Ok(());
        }
        for number in 0..HASHES {
            let hash = number * (u32::MAX / HASHES);
            let key = key(attempt, attempt.to.ip());
            let found = self.fake.resolve(key.address, key.port, key.protocol, key.scope, hash);
            let fits = match (&found, expected) {
                (Resolution::Refused, Verdict::Rejected) | (Resolution::Dropped, Verdict::Dropped) => true,
                (Resolution::Backend(backend), Verdict::To(allowed)) => {
                    allowed.contains_key(&SocketAddr::new(backend.address, backend.port))
                        || backend.weight == 0
                }
                _ => false,
            };
            prop_assert!(fits, "{:?}, but the in-memory data plane: {:?}", expected, found);
        }
        Ok(())
    }
}

/// Checks what must hold of every frontend.
fn sound(frontend: &Frontend) -> Result<(), TestCaseError> {
    let places: Vec<_> = frontend.backends.iter().map(|one| (!one.local, one.address, one.port)).collect();
    let sorted: Vec<_> = places.iter().copied().collect::<BTreeSet<_>>().into_iter().collect();
    prop_assert_eq!(&places, &sorted, "local ones first, each once");
    let family = |address: std::net::IpAddr| address.is_ipv4();
    prop_assert!(
        frontend.backends.iter().all(|one| family(one.address) == family(frontend.key.address)),
        "backends of the frontend's family: {:?}",
        frontend
    );
    prop_assert!(
        frontend.backends.is_empty() || frontend.backends.iter().any(|one| one.weight > 0),
        "somebody has a share: {:?}",
        frontend
    );
    if frontend.key.scope == Scope::Internal {
        prop_assert_eq!(frontend.forwarding, Forwarding::Nat);
    }
    if *frontend == Frontend::mark(frontend.key.address) {
        prop_assert_eq!(frontend.algorithm, Algorithm::Random);
    }
    Ok(())
}

proptest! {
    #![proptest_config(crate::seeded::config(1024))]

    #[test]
    fn compiled_clusters_do_what_services_mean(
        plan in world(),
        attempts in prop::collection::vec(attempt(), 24),
    ) {
        let plane = Plane::new(plan.world());
        let (tables, node) = (compiled(&plane.world), node_tables(&plane.world));
        for frontend in tables.values().flat_map(|tables| &tables.frontends) {
            sound(frontend)?;
        }
        for attempt in attempts.iter().map(|attempt| attempt.attempt(&plan)) {
            let expected = judge(&plane.world, &attempt);
            prop_assert_eq!(&read(&tables, &node, &attempt), &expected, "{:?}", attempt);
            plane.check(&attempt, &expected)?;
        }
    }

    #[test]
    fn load_balancers_hear_of_the_ready_endpoints_here(plan in world()) {
        let world = plan.world();
        let mut found = BTreeMap::new();
        for service in &world.services {
            let name = ObjectKey::of(service);
            let own = world.slices.iter().filter(|slice| service_of(slice).as_ref() == Some(&name));
            if let Some(check) = health_check(service, own, &context(&world)) {
                prop_assert_eq!(&check.service, &name);
                found.insert(check.port, (name.name, check.local_endpoints));
            }
        }
        prop_assert_eq!(found, health(&world));
    }

    /// The retained part of a Service compiles as the whole object.
    #[test]
    fn kept_services_compile_as_their_objects(plan in world()) {
        let world = plan.world();
        for service in &world.services {
            let (name, kept) = (ObjectKey::of(service), ServiceProjection::project(service.clone()));
            prop_assert_eq!(kept.key(), name.clone());
            let (kept, context) = (kept.read(), context(&world));
            let own = || world.slices.iter().filter(|slice| service_of(slice).as_ref() == Some(&name));
            let packed: Vec<_> = own().map(Slice::of).collect();
            prop_assert_eq!(compile_service(&kept, &packed, &context), compile_service(service, own(), &context));
            prop_assert_eq!(health_check(&kept, &packed, &context), health_check(service, own(), &context));
            prop_assert_eq!((rank(&kept), warnings(&kept)), (rank(service), warnings(service)));
        }
    }

    /// Objects arrive in any order, and a Service's slices too.
    #[test]
    fn order_means_nothing(plan in world(), seed in any::<u64>()) {
        let world = plan.world();
        let mut shuffled = world.clone();
        let mut state = seed | 1;
        let mut next = |length: usize| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) as usize % length
        };
        for index in (1..shuffled.slices.len()).rev() {
            shuffled.slices.swap(index, next(index + 1));
        }
        for slice in &mut shuffled.slices {
            let endpoints = slice.endpoints.as_mut().unwrap();
            for index in (1..endpoints.len()).rev() {
                endpoints.swap(index, next(index + 1));
            }
        }
        shuffled.services.reverse();
        prop_assert_eq!(compiled(&world), compiled(&shuffled));
    }
}

proptest! {
    #![proptest_config(crate::seeded::config(256))]

    /// Changing one Service after the other, in any order, gives the same as compiling all at once: in the
    /// desired tables, and in a data plane to which the changes are applied.
    #[test]
    fn a_cluster_becomes_another_service_by_service(before in world(), after in world(), backwards in any::<bool>()) {
        let (before, after) = (before.world(), after.world());
        let mut desired = Desired::default();
        for service in &before.services {
            set(&mut desired, service, &before);
        }
        prop_assert_eq!(desired.tables(), compiled(&before));
        let mut plane = Plane::new(before.clone());
        let names: BTreeSet<_> = before.services.iter().chain(&after.services).map(ObjectKey::of).collect();
        let mut names: Vec<_> = names.into_iter().collect();
        if backwards {
            names.reverse();
        }
        for name in names {
            let effect = match after.services.iter().find(|service| ObjectKey::of(*service) == name) {
                Some(service) => set(&mut desired, service, &after),
                None => desired.set(&name.to_string(), Rank(0), None),
            };
            let (last, first): (Vec<_>, Vec<_>) =
                effect.changed.iter().partition(|name| effect.yielded.contains(*name));
            for changed in first.into_iter().chain(last) {
                plane.fake.apply_service(changed, desired.effective(changed).as_ref()).unwrap();
            }
        }
        let expected = compiled(&after);
        prop_assert_eq!(desired.tables(), expected.clone());
        let frontends = || expected.values().flat_map(|tables| &tables.frontends);
        prop_assert_eq!(plane.fake.frontends(), frontends().count());
        for frontend in frontends() {
            let held = plane.fake.backends(&frontend.key);
            prop_assert_eq!(held.as_ref(), Some(&frontend.backends));
        }
    }
}

fn set(desired: &mut Desired, service: &Service, world: &World) -> Effect {
    let name = ObjectKey::of(service);
    let own = world.slices.iter().filter(|slice| service_of(slice).as_ref() == Some(&name));
    let tables = compile_service(service, own, &context(world));
    desired.set(&name.to_string(), rank(service), Some(tables))
}

/// The generator covers every verdict: otherwise the properties would hold for lack of cases.
#[test]
fn every_verdict_is_among_the_random_ones() {
    let mut runner = proptest::test_runner::TestRunner::deterministic();
    let mut seen = BTreeMap::<&str, u32>::new();
    for _ in 0..400 {
        use proptest::strategy::ValueTree;
        let plan = world().new_tree(&mut runner).unwrap().current();
        let world = plan.world();
        for _ in 0..24 {
            let attempt = attempt().new_tree(&mut runner).unwrap().current().attempt(&plan);
            let name = match judge(&world, &attempt) {
                Verdict::Untouched => "untouched",
                Verdict::Dropped => "dropped",
                Verdict::Rejected => "rejected",
                Verdict::To(to) if to.len() > 1 => "to several",
                Verdict::To(_) => "to one",
            };
            *seen.entry(name).or_default() += 1;
        }
    }
    for name in ["untouched", "dropped", "rejected", "to several", "to one"] {
        assert!(seen.get(name).is_some_and(|count| *count > 300), "{seen:?}");
    }
}
