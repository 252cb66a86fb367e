//! Services in, addresses and ports out.

use std::collections::BTreeMap;

use proptest::prelude::*;
use serde_json::json;

use apiserver_kinds::builtin;
use apiserver_store::Range;
use apiserver_store::disk::SimDisk;
use apiserver_store::embedded::{Embedded, Options};

use super::blocks::Block;
use super::plan::held;
use super::*;
use apiserver_meta::seeded::ambient;

/// An allocator over a store of its own, and the runtime that both live on.
struct Bench {
    runtime: tokio::runtime::Runtime,
    allocator: Allocator,
    store: Arc<dyn Store>,
}

fn allocator(cidrs: &[&str]) -> Bench {
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build().unwrap();
    let disk = Arc::new(SimDisk::new(1));
    let store: Arc<dyn Store> = Arc::new(runtime.block_on(Embedded::open(disk, Options::default())).unwrap());
    let allocator = runtime.block_on(async { over(&store, cidrs, 1) });
    Bench { runtime, allocator, store }
}

fn over(store: &Arc<dyn Store>, cidrs: &[&str], seed: u64) -> Allocator {
    let cidrs: Vec<IpNetwork> = cidrs.iter().map(|c| c.parse().unwrap()).collect();
    let blocks = Arc::new(Blocks::default());
    blocks.set("kubernetes", Some(Block { cidrs: cidrs.clone(), open: true, going: false }));
    let kind = builtin::registry().lookup("networking.k8s.io", "v1", "ipaddresses").unwrap().clone();
    Allocator::new(Config::new(cidrs), store, (kind, None), blocks, &ambient(seed).0)
}

fn service(name: &str, spec: Value) -> Value {
    json!({"metadata": {"namespace": "ns", "name": name}, "spec": spec})
}

fn texts(refused: Refused) -> Vec<String> {
    match refused {
        Refused::Fields(errors) => errors.iter().map(|e| format!("{}: {}", e.field, e.message)).collect(),
        Refused::Internal(why) => vec![why],
        Refused::Store(error) => panic!("the store works: {error}"),
    }
}

fn create(bench: &Bench, name: &str, spec: Value) -> Result<Value, Vec<String>> {
    let mut service = service(name, spec);
    bench.runtime.block_on(async {
        bench.allocator.create(&mut service, false).await.map_err(texts)?.commit().await;
        Ok(service)
    })
}

fn update(bench: &Bench, new: &Value, old: &Value) -> Result<Value, Vec<String>> {
    let mut new = new.clone();
    bench.runtime.block_on(async {
        bench.allocator.update(&mut new, old, false).await.map_err(texts)?.commit().await;
        Ok(new)
    })
}

fn release(bench: &Bench, service: &Value) {
    bench.runtime.block_on(bench.allocator.release(service));
}

fn claimed(bench: &Bench) -> Vec<Item> {
    bench.runtime.block_on(async {
        let range = Range { prefix: "/registry/ipaddresses/".to_owned(), ..Range::default() };
        let page = bench.store.list(range).await.unwrap();
        let addresses = page.kvs.iter().map(|kv| kv.key.rsplit('/').next().unwrap().parse().unwrap());
        let ports = ports::read(&*bench.store, &bench.allocator.config.node_ports).await.unwrap();
        addresses.map(Item::Address).chain(ports.set.taken.into_iter().map(Item::Port)).collect()
    })
}

fn taken(bench: &Bench) -> (usize, usize) {
    let claimed = claimed(bench);
    let addresses = claimed.iter().filter(|item| matches!(item, Item::Address(_))).count();
    (addresses, claimed.len() - addresses)
}

#[test]
fn a_service_gets_an_address_from_the_upper_part_of_the_range() {
    let allocator = allocator(&["10.96.0.0/24"]);
    let service = create(&allocator, "a", json!({"ports": [{"port": 80}]})).unwrap();
    let spec = &service["spec"];
    let address: IpAddr = spec["clusterIP"].as_str().unwrap().parse().unwrap();
    // 254 addresses, of which the first 16 are left to explicit requests.
    assert!(address > "10.96.0.16".parse::<IpAddr>().unwrap(), "{address}");
    assert_eq!(spec["clusterIPs"], json!([spec["clusterIP"]]));
    assert_eq!(spec["ipFamilies"], json!(["IPv4"]));
    assert_eq!(spec["ipFamilyPolicy"], "SingleStack");
    assert!(spec["ports"][0].get("nodePort").is_none());
}

#[test]
fn headless_and_external_names_take_nothing() {
    let allocator = allocator(&["10.96.0.0/24"]);
    let before = taken(&allocator);
    let headless = create(&allocator, "a", json!({"clusterIP": "None", "selector": {"app": "a"}})).unwrap();
    assert_eq!(headless["spec"]["clusterIPs"], json!(["None"]));
    assert_eq!(headless["spec"]["ipFamilyPolicy"], "SingleStack");
    let by_hand = create(&allocator, "b", json!({"clusterIP": "None"})).unwrap();
    assert_eq!(by_hand["spec"]["ipFamilies"], json!(["IPv4", "IPv6"]));
    assert_eq!(by_hand["spec"]["ipFamilyPolicy"], "RequireDualStack");
    let external = json!({"type": "ExternalName", "externalName": "example.com"});
    assert_eq!(create(&allocator, "c", external.clone()).unwrap()["spec"], external);
    assert_eq!(taken(&allocator), before);
}

#[test]
fn explicit_addresses_are_checked_as_in_kubernetes() {
    let allocator = allocator(&["10.96.0.0/24"]);
    assert!(create(&allocator, "a", json!({"clusterIP": "10.96.0.10"})).is_ok());
    let refused =
        |address: &str| create(&allocator, "b", json!({"clusterIP": address})).unwrap_err().remove(0);
    assert_eq!(
        refused("10.96.0.10"),
        "spec.clusterIPs: Invalid value: [\"10.96.0.10\"]: failed to allocate IP 10.96.0.10: provided IP is already \
         allocated"
    );
    assert!(refused("10.96.0.1").ends_with("provided IP is already allocated"), "kept for the API server");
    for address in ["10.96.1.1", "10.96.0.0", "10.96.0.255"] {
        assert!(
            refused(address).contains("is not in the valid range. The range of valid IPs is 10.96.0.0/24")
        );
    }
    assert!(
        refused("nonsense")
            .starts_with("spec.clusterIPs[0]: Invalid value: \"nonsense\": must be a valid IP")
    );
    assert!(refused("fd00::1").contains("IPv6"), "{}", refused("fd00::1"));
    let mut kubernetes = json!({
        "metadata": {"namespace": "default", "name": "kubernetes"}, "spec": {"clusterIP": "10.96.0.1"},
    });
    allocator.runtime.block_on(async {
        allocator.allocator.create(&mut kubernetes, false).await.unwrap().commit().await;
    });
    assert!(create(&allocator, "a", json!({"clusterIP": "10.96.0.1"})).is_err());
    release(&allocator, &kubernetes);
    assert!(refused("10.96.0.1").ends_with("already allocated"), "still kept");
}

#[test]
fn a_reservation_that_is_dropped_gives_everything_back() {
    let allocator = allocator(&["10.96.0.0/24"]);
    let before = taken(&allocator);
    let spec =
        json!({"type": "NodePort", "clusterIP": "10.96.0.9", "ports": [{"port": 80, "nodePort": 30080}]});
    let mut pending = service("a", spec.clone());
    let make = allocator.allocator.create(&mut pending, false);
    let reservation = allocator.runtime.block_on(make).unwrap();
    // Both are taken meanwhile, and the first is said.
    assert_eq!(create(&allocator, "b", spec.clone()).unwrap_err().len(), 1);
    let port = json!({"type": "NodePort", "ports": [{"port": 80, "nodePort": 30080}]});
    assert!(create(&allocator, "b", port).unwrap_err()[0].starts_with("spec.ports[0].nodePort: "));
    allocator.runtime.block_on(reservation.abandon());
    assert_eq!(taken(&allocator), before);
    // A request that is cut off does the same, a little later.
    allocator.runtime.block_on(async {
        drop(allocator.allocator.create(&mut service("a", spec.clone()), false).await.unwrap());
        tokio::time::sleep(std::time::Duration::from_secs(1)).await;
    });
    assert_eq!(taken(&allocator), before);
    // A dry run returns the result and takes nothing.
    let mut dry = service("a", spec.clone());
    allocator.runtime.block_on(async {
        allocator.allocator.create(&mut dry, true).await.unwrap().commit().await;
    });
    assert_eq!(dry["spec"]["ports"][0]["nodePort"], 30080);
    assert_eq!(taken(&allocator), before);
    assert!(create(&allocator, "b", spec).is_ok());
}

#[test]
fn node_ports_are_checked_shared_between_protocols_and_freed() {
    let allocator = allocator(&["10.96.0.0/24"]);
    let dns = json!({"type": "NodePort", "ports": [
        {"name": "udp", "port": 53, "protocol": "UDP"}, {"name": "tcp", "port": 53, "protocol": "TCP"},
        {"name": "metrics", "port": 9153},
    ]});
    let service = create(&allocator, "dns", dns).unwrap();
    let number =
        |service: &Value, index: usize| service["spec"]["ports"][index]["nodePort"].as_i64().unwrap();
    assert_eq!(number(&service, 0), number(&service, 1));
    assert_ne!(number(&service, 0), number(&service, 2));
    assert!((30086..=32767).contains(&number(&service, 2)), "from the upper part");

    let explicit = |port: i64| json!({"type": "NodePort", "ports": [{"port": 80, "nodePort": port}]});
    assert_eq!(
        create(&allocator, "b", explicit(number(&service, 0))).unwrap_err(),
        [format!(
            "spec.ports[0].nodePort: Invalid value: {}: provided port is already allocated",
            number(&service, 0)
        )]
    );
    assert_eq!(
        create(&allocator, "b", explicit(80)).unwrap_err(),
        [
            "spec.ports[0].nodePort: Invalid value: 80: provided port is not in the valid range. The range of valid \
          ports is 30000-32767"
        ]
    );
    let both = json!({"type": "NodePort", "ports": [
        {"name": "t", "port": 80, "protocol": "TCP", "nodePort": 30080},
        {"name": "u", "port": 80, "protocol": "UDP", "nodePort": 30080},
    ]});
    assert!(create(&allocator, "c", both).is_ok());
    release(&allocator, &service);
    assert!(create(&allocator, "b", explicit(number(&service, 0))).is_ok());
}

#[test]
fn load_balancers_may_do_without_node_ports_and_have_a_health_check_port() {
    let allocator = allocator(&["10.96.0.0/24"]);
    let without = json!({
        "type": "LoadBalancer", "allocateLoadBalancerNodePorts": false, "externalTrafficPolicy": "Cluster",
        "ports": [{"port": 80}],
    });
    let service = create(&allocator, "a", without).unwrap();
    assert!(service["spec"]["ports"][0].get("nodePort").is_none());
    let local = json!({"type": "LoadBalancer", "externalTrafficPolicy": "Local", "ports": [{"port": 80}]});
    let service = create(&allocator, "b", local).unwrap();
    let health = service["spec"]["healthCheckNodePort"].as_i64().unwrap();
    let mut changed = service.clone();
    changed["spec"]["externalTrafficPolicy"] = json!("Cluster");
    let changed = update(&allocator, &changed, &service).unwrap();
    assert!(changed["spec"].get("healthCheckNodePort").is_none());
    let again = json!({"type": "NodePort", "ports": [{"port": 80, "nodePort": health}]});
    assert!(create(&allocator, "c", again).is_ok(), "the port is free again");
}

#[test]
fn an_update_keeps_what_it_does_not_change() {
    let allocator = allocator(&["10.96.0.0/24"]);
    let old = create(&allocator, "a", json!({"type": "NodePort", "ports": [{"name": "http", "port": 80}]}))
        .unwrap();
    let before = taken(&allocator);
    // `kubectl replace` sends the manifest without anything allocated.
    let plain = service("a", json!({"type": "NodePort", "ports": [{"name": "http", "port": 81}]}));
    let new = update(&allocator, &plain, &old).unwrap();
    for field in ["clusterIP", "clusterIPs", "ipFamilies", "ipFamilyPolicy"] {
        assert_eq!(new["spec"][field], old["spec"][field], "{field}");
    }
    assert_eq!(new["spec"]["ports"][0]["nodePort"], old["spec"]["ports"][0]["nodePort"]);
    assert_eq!(taken(&allocator), before);

    let mut moved = old.clone();
    moved["spec"]["clusterIP"] = json!("10.96.0.7");
    let error = update(&allocator, &moved, &old).unwrap_err().remove(0);
    assert_eq!(error, "spec.clusterIPs[0]: Invalid value: [\"10.96.0.7\"]: may not change once set");
}

#[test]
fn a_change_of_type_frees_and_takes() {
    let allocator = allocator(&["10.96.0.0/24"]);
    let empty = taken(&allocator);
    let node_port = create(&allocator, "a", json!({"type": "NodePort", "ports": [{"port": 80}]})).unwrap();
    let mut cluster = node_port.clone();
    cluster["spec"]["type"] = json!("ClusterIP");

    // A write that the store refuses frees nothing.
    let mut refused = cluster.clone();
    allocator.runtime.block_on(async {
        allocator.allocator.update(&mut refused, &node_port, false).await.unwrap().abandon().await;
    });
    assert_eq!(taken(&allocator), (empty.0 + 1, empty.1 + 1));

    let cluster = update(&allocator, &cluster, &node_port).unwrap();
    assert!(cluster["spec"]["ports"][0].get("nodePort").is_none());
    assert_eq!(taken(&allocator), (empty.0 + 1, empty.1));
    let mut external = cluster.clone();
    external["spec"]["type"] = json!("ExternalName");
    let external = update(&allocator, &external, &cluster).unwrap();
    assert!(external["spec"].get("clusterIP").is_none());
    assert_eq!(taken(&allocator), empty);
    let mut back = external.clone();
    back["spec"]["type"] = json!("NodePort");
    let back = update(&allocator, &back, &external).unwrap();
    assert!(back["spec"]["clusterIP"].is_string() && back["spec"]["ports"][0]["nodePort"].is_number());
    assert_eq!(taken(&allocator), (empty.0 + 1, empty.1 + 1));
}

#[test]
fn dual_stack_is_given_taken_away_and_refused_where_there_is_none() {
    let allocator = allocator(&["10.96.0.0/24", "fd00:96::/112"]);
    let single = create(&allocator, "a", json!({})).unwrap();
    assert_eq!(single["spec"]["ipFamilies"], json!(["IPv4"]));
    let mut both = single.clone();
    both["spec"]["ipFamilyPolicy"] = json!("PreferDualStack");
    let both = update(&allocator, &both, &single).unwrap();
    assert_eq!(both["spec"]["ipFamilies"], json!(["IPv4", "IPv6"]));
    assert_eq!(both["spec"]["clusterIPs"][0], single["spec"]["clusterIP"]);
    assert!(both["spec"]["clusterIPs"][1].as_str().unwrap().starts_with("fd00:96::"));
    let mut less = both.clone();
    less["spec"]["ipFamilyPolicy"] = json!("SingleStack");
    let less = update(&allocator, &less, &both).unwrap();
    assert_eq!(less["spec"]["clusterIPs"], single["spec"]["clusterIPs"]);
    assert_eq!(taken(&allocator).0, 1);

    let six = create(&allocator, "b", json!({"ipFamilies": ["IPv6"]})).unwrap();
    assert!(six["spec"]["clusterIP"].as_str().unwrap().starts_with("fd00:96::"));
    let mixed = json!({"ipFamilies": ["IPv6"], "clusterIP": "10.96.0.20"});
    assert!(create(&allocator, "c", mixed).unwrap_err()[0].contains("expected an IPv6 value"));
    let two = json!({"ipFamilies": ["IPv6", "IPv4"]});
    assert!(create(&allocator, "c", two).unwrap_err()[0].starts_with("spec.ipFamilyPolicy: Required value"));

    let allocator = super::tests::allocator(&["10.96.0.0/24"]);
    let require = json!({"ipFamilyPolicy": "RequireDualStack"});
    assert_eq!(
        create(&allocator, "a", require).unwrap_err(),
        [
            "spec.ipFamilyPolicy: Invalid value: \"RequireDualStack\": this cluster is not configured for dual-stack \
          services"
        ]
    );
    assert_eq!(
        create(&allocator, "a", json!({"ipFamilies": ["IPv6"]})).unwrap_err(),
        ["spec.ipFamilies[0]: Invalid value: \"IPv6\": not configured on this cluster"]
    );
    let prefer = create(&allocator, "a", json!({"ipFamilyPolicy": "PreferDualStack"})).unwrap();
    assert_eq!(prefer["spec"]["ipFamilies"], json!(["IPv4"]));
}

#[test]
fn a_small_range_can_be_used_up_to_its_last_address() {
    let allocator = allocator(&["10.96.0.0/29"]);
    for number in 0..5 {
        create(&allocator, &format!("s{number}"), json!({})).unwrap();
    }
    let error = create(&allocator, "late", json!({})).unwrap_err().remove(0);
    assert!(error.contains("range is full: 10.96.0.0/29"), "{error}");
}

#[test]
fn a_second_server_knows_what_the_first_has_given_out() {
    let first = allocator(&["10.96.0.0/24"]);
    let stored = create(&first, "a", json!({"type": "NodePort", "ports": [{"port": 80}]})).unwrap();
    let second = first.runtime.block_on(async { over(&first.store, &["10.96.0.0/24"], 2) });
    let Bench { runtime, store, allocator } = first;
    let second = Bench { runtime, store, allocator: second };
    assert!(create(&second, "b", json!({"clusterIP": stored["spec"]["clusterIP"]})).is_err());
    let port = &stored["spec"]["ports"][0]["nodePort"];
    let same = json!({"type": "NodePort", "ports": [{"port": 80, "nodePort": port}]});
    assert!(create(&second, "b", same.clone()).is_err());
    second.runtime.block_on(allocator.release(&stored));
    assert_eq!(taken(&second), (0, 0));
    // Its memory of the ports is older than that, and it looks again before it refuses.
    assert!(create(&second, "b", same).is_ok());
}

#[test]
fn ranges_that_are_added_are_used_and_those_that_go_are_not() {
    let allocator = allocator(&["10.96.0.0/30"]);
    create(&allocator, "a", json!({})).unwrap();
    assert!(create(&allocator, "b", json!({})).unwrap_err()[0].contains("range is full"));
    let blocks = &allocator.allocator.blocks;
    let more = Block { cidrs: vec!["10.97.0.0/24".parse().unwrap()], open: true, going: false };
    blocks.set("more", Some(more.clone()));
    let service = create(&allocator, "b", json!({})).unwrap();
    assert!(service["spec"]["clusterIP"].as_str().unwrap().starts_with("10.97.0."));
    assert!(create(&allocator, "c", json!({"clusterIP": "10.97.0.9"})).is_ok());
    blocks.set("more", Some(Block { open: false, going: true, ..more }));
    assert!(create(&allocator, "d", json!({})).is_err());
    assert!(
        create(&allocator, "d", json!({"clusterIP": "10.97.0.10"})).unwrap_err()[0].contains("valid range")
    );
    // A second family comes with a range of its own.
    let six = Block { cidrs: vec!["fd00:96::/112".parse().unwrap()], open: true, going: false };
    blocks.set("six", Some(six));
    let service = create(&allocator, "d", json!({"ipFamilies": ["IPv6"]})).unwrap();
    assert!(service["spec"]["clusterIP"].as_str().unwrap().starts_with("fd00:96::"));
}

#[derive(Clone, Debug)]
enum Step {
    Create(u8, Value),
    Update(u8, Value),
    Delete(u8),
    Abandon(u8, Value),
}

fn spec() -> impl Strategy<Value = Value> {
    let port = prop_oneof![Just(Value::Null), (30000_i64..30006).prop_map(Value::from)];
    let kind = prop_oneof![Just("ClusterIP"), Just("NodePort"), Just("LoadBalancer"), Just("ExternalName")];
    let address = prop_oneof![
        3 => Just(Value::Null),
        1 => Just(json!("None")),
        1 => (2_u8..6).prop_map(|last| json!(format!("10.96.0.{last}"))),
    ];
    (kind, port.clone(), port, address, any::<bool>()).prop_map(|(kind, tcp, udp, address, local)| {
        let mut spec = json!({"type": kind, "ports": [
            {"name": "t", "port": 80, "protocol": "TCP"}, {"name": "u", "port": 81, "protocol": "UDP"},
        ]});
        if kind != "ExternalName" && !address.is_null() {
            spec["clusterIP"] = address;
        }
        if matches!(kind, "NodePort" | "LoadBalancer") {
            spec["externalTrafficPolicy"] = json!(if local { "Local" } else { "Cluster" });
            for (index, port) in [tcp, udp].into_iter().enumerate().filter(|(_, port)| !port.is_null()) {
                spec["ports"][index]["nodePort"] = port;
            }
        }
        spec
    })
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        (0_u8..6, spec()).prop_map(|(name, spec)| Step::Create(name, spec)),
        (0_u8..6, spec()).prop_map(|(name, spec)| Step::Update(name, spec)),
        (0_u8..6).prop_map(Step::Delete),
        (0_u8..6, spec()).prop_map(|(name, spec)| Step::Abandon(name, spec)),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]
    /// After any steps the claims are exactly those of the stored Services, and no two Services share one.
    #[test]
    fn claims_agree_with_the_stored_services(steps in proptest::collection::vec(step(), 1..40)) {
        let allocator = allocator(&["10.96.0.0/28"]);
        let mut stored: BTreeMap<u8, Value> = BTreeMap::new();
        for step in steps {
            match step {
                Step::Create(name, spec) if !stored.contains_key(&name) => {
                    if let Ok(service) = create(&allocator, &name.to_string(), spec) {
                        stored.insert(name, service);
                    }
                }
                Step::Update(name, spec) if stored.contains_key(&name) => {
                    let new = service(&name.to_string(), spec);
                    if let Ok(service) = update(&allocator, &new, &stored[&name]) {
                        stored.insert(name, service);
                    }
                }
                Step::Delete(name) => {
                    if let Some(service) = stored.remove(&name) {
                        release(&allocator, &service);
                    }
                }
                Step::Abandon(name, spec) => {
                    let mut new = service(&name.to_string(), spec);
                    allocator.runtime.block_on(async {
                        let made = match stored.get(&name) {
                            Some(old) => allocator.allocator.update(&mut new, old, false).await,
                            None => allocator.allocator.create(&mut new, false).await,
                        };
                        if let Ok(reservation) = made {
                            reservation.abandon().await;
                        }
                    });
                }
                Step::Create(..) | Step::Update(..) => {}
            }
            let mut all: Vec<Item> = stored.values().flat_map(held).collect();
            all.sort();
            for pair in all.windows(2) {
                prop_assert_ne!(pair[0], pair[1], "held twice");
            }
            let mut claimed = claimed(&allocator);
            claimed.sort();
            prop_assert_eq!(claimed, all);
        }
    }
}

/// A body holds any number of ports, and they are checked before the range is found to be too small for them.
#[test]
fn a_service_of_very_many_ports_is_planned_in_time_that_grows_with_them() {
    let ports = |extra: fn(usize) -> serde_json::Value| {
        let port = |n: usize| {
            let protocol = ["TCP", "UDP"][n % 2];
            let mut port = json!({"name": format!("p{n}"), "port": n + 1, "protocol": protocol});
            port["nodePort"] = extra(n);
            port
        };
        json!({"spec": {"type": "NodePort", "ports": (0..60_000).map(port).collect::<Vec<_>>()}})
    };
    let mut fresh = ports(|_| json!(null));
    let plan = plan::Plan::of(&mut fresh, None, &[true], Some(&(30_000..=32_767))).unwrap();
    assert_eq!(plan.fresh.len(), 60_000);
    let mut asked = ports(|n| json!(n + 1));
    let plan = plan::Plan::of(&mut asked, None, &[true], None).unwrap();
    assert_eq!(plan.explicit.len(), 60_000);
    let mut kept = ports(|_| json!(null));
    let plan = plan::Plan::of(&mut kept, Some(&asked), &[true], None).unwrap();
    assert_eq!((plan.fresh.len(), plan.explicit.len()), (0, 0));
    assert_eq!(kept["spec"]["ports"], asked["spec"]["ports"]);
}
