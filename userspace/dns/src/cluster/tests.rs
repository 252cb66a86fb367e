//! The table of records of Kubernetes' DNS specification 1.1, section by section.

use std::net::IpAddr;

use hickory_proto::op::{Message, ResponseCode};
use hickory_proto::rr::{Name as RecordName, RecordType};
use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;
use crate::answer::{Answer, QUESTION};
use crate::limits;
use crate::name::Name;
use crate::query::Query;
use crate::testing::question;
use crate::wire;

fn service(spec: Value) -> Service {
    let object = json!({"metadata": {"namespace": "shop", "name": "web"}, "spec": spec});
    Service::of(serde_json::from_value(object).unwrap())
}

fn slice(family: &str, ports: Value, endpoints: Value) -> Slice {
    let object = json!({
        "metadata": {
            "namespace": "shop", "name": "web-1", "labels": {"kubernetes.io/service-name": "web"},
        },
        "addressType": family, "ports": ports, "endpoints": endpoints,
    });
    Slice::of(serde_json::from_value(object).unwrap())
}

fn settings() -> Settings {
    Settings {
        domain: Name::parse("cluster.local").unwrap(),
        ttl: 30,
        pods: PodMode::Insecure,
        servers: vec!["10.96.0.10".parse().unwrap(), "fd00::a".parse().unwrap()],
        networks: Vec::new(),
    }
}

fn zone(service: &Service, slices: &[Slice]) -> Zone {
    let mut zone = Zone::new(settings());
    zone.set_namespace("shop", true);
    zone.set_service("shop", "web", Some(Records::compile(service, slices)));
    zone
}

fn cluster_ip() -> Zone {
    let ports =
        json!([{"name": "http", "port": 80}, {"name": "dns", "port": 53, "protocol": "UDP"}, {"port": 9}]);
    let spec = json!({"clusterIPs": ["10.96.0.1", "fd00::1"], "ports": ports});
    let endpoints =
        json!([{"addresses": ["10.244.0.5"]}, {"addresses": ["10.244.0.6"], "conditions": {"ready": false}}]);
    zone(&service(spec), &[slice("IPv4", json!([{"name": "http", "port": 8080}]), endpoints)])
}

fn headless(publish: bool) -> Zone {
    let spec = json!({"clusterIPs": ["None"], "publishNotReadyAddresses": publish, "ports": [{"name": "http", "port": 80}]});
    let endpoints = json!([
        {"addresses": ["10.244.0.5"], "hostname": "Web-0"},
        {"addresses": ["10.244.0.6"]},
        {"addresses": ["10.244.0.7"], "hostname": "web-2", "conditions": {"ready": false}},
    ]);
    let ports = json!([{"name": "http", "port": 8080}]);
    let v6 = json!([{"addresses": ["fd00:1::5"], "hostname": "web-0"}]);
    zone(&service(spec), &[slice("IPv4", ports.clone(), endpoints), slice("IPv6", ports, v6)])
}

fn external(target: &str) -> Zone {
    zone(&service(json!({"type": "ExternalName", "externalName": target})), &[])
}

/// The answer of a zone as text: the code, then records as `TYPE data`, answers before `+` additional ones.
fn ask(zone: &Zone, name: &str, kind: u16) -> String {
    let request = question(0, name, kind, Some((4096, false)));
    let query = Query::parse(&request).unwrap();
    let mut out = vec![0; 4096];
    let mut answer = Answer::begin(&mut out, &request, &query, 4096, 1232);
    let apex = ["in-addr.arpa", "ip6.arpa"].map(|text| Name::parse(text).unwrap());
    let code = match apex.iter().find(|apex| query.name.below(apex).is_some()) {
        Some(apex) if zone.answer_reverse(apex, &query, &mut answer) => wire::NO_ERROR,
        Some(apex) => zone.deny_reverse(apex, &query, &mut answer),
        None => {
            let Some(below) = query.name.below(&zone.settings().domain) else { return "not here".to_owned() };
            match zone.answer(&query, below, QUESTION, &mut answer) {
                Found::Code(code) => code,
                Found::Alias(name, _) => {
                    let length = answer.finish(&query, 0, 0);
                    return format!("{} then {name}", text(&out[..length]));
                }
            }
        }
    };
    let length = answer.finish(&query, code, 0);
    text(&out[..length])
}

fn text(message: &[u8]) -> String {
    let message = Message::from_vec(message).unwrap();
    let mut words = Vec::new();
    if message.metadata.response_code != ResponseCode::NoError {
        words.push(format!("{:?}", message.metadata.response_code));
    }
    let name = &message.queries[0].name;
    for record in &message.answers {
        assert_eq!(record.name, *name);
        words.push(format!("{} {}", record.record_type(), record.data));
    }
    for record in &message.authorities {
        // A negative answer carries the SOA record of the zone, for its time in caches.
        assert_eq!(record.record_type(), RecordType::SOA);
        let zones = ["cluster.local.", "in-addr.arpa.", "ip6.arpa."]
            .map(|zone| RecordName::from_ascii(zone).unwrap());
        assert!(zones.contains(&record.name) && record.name.zone_of(name), "{} of {name}", record.name);
        words.push("soa".to_owned());
    }
    for record in &message.additionals {
        words.push(format!("+ {} {} {}", record.name, record.record_type(), record.data));
    }
    words.join(" | ")
}

const MISSING: &str = "NXDomain | soa";
const EMPTY: &str = "soa";

#[test]
fn the_schema_has_a_version_and_the_zone_its_own_records() {
    let zone = cluster_ip();
    assert_eq!(ask(&zone, "dns-version.cluster.local", wire::TXT), "TXT 1.1.0");
    assert_eq!(ask(&zone, "dns-version.cluster.local", wire::A), EMPTY);
    assert_eq!(ask(&zone, "cluster.local", wire::NS), "NS ns.dns.cluster.local.");
    let soa = ask(&zone, "cluster.local", wire::SOA);
    assert_eq!(soa, "SOA ns.dns.cluster.local. hostmaster.cluster.local. 1 7200 1800 86400 30");
    assert_eq!(ask(&zone, "ns.dns.cluster.local", wire::A), "A 10.96.0.10");
    assert_eq!(ask(&zone, "ns.dns.cluster.local", wire::AAAA), "AAAA fd00::a");
    assert_eq!(ask(&zone, "cluster.local", wire::A), EMPTY);
}

#[test]
fn services_with_addresses_have_a_and_aaaa_records() {
    let zone = cluster_ip();
    assert_eq!(ask(&zone, "web.shop.svc.cluster.local", wire::A), "A 10.96.0.1");
    assert_eq!(ask(&zone, "WEB.Shop.svc.Cluster.LOCAL", wire::A), "A 10.96.0.1");
    assert_eq!(ask(&zone, "web.shop.svc.cluster.local", wire::AAAA), "AAAA fd00::1");
    assert_eq!(ask(&zone, "web.shop.svc.cluster.local", wire::TXT), EMPTY);
    // An endpoint that is ready has a name by its address.
    assert_eq!(ask(&zone, "10-244-0-5.web.shop.svc.cluster.local", wire::A), "A 10.244.0.5");
    assert_eq!(ask(&zone, "10-244-0-5.web.shop.svc.cluster.local", wire::AAAA), EMPTY);
    assert_eq!(ask(&zone, "10-244-0-6.web.shop.svc.cluster.local", wire::A), MISSING);
}

#[test]
fn named_ports_have_srv_records_with_the_addresses_of_their_target() {
    let zone = cluster_ip();
    let target = "web.shop.svc.cluster.local.";
    let addresses = format!("+ {target} A 10.96.0.1 | + {target} AAAA fd00::1");
    let srv = |weight: u16, port: u16| format!("SRV 0 {weight} {port} {target}");
    assert_eq!(
        ask(&zone, "_http._tcp.web.shop.svc.cluster.local", wire::SRV),
        format!("{} | {addresses}", srv(100, 80))
    );
    assert_eq!(
        ask(&zone, "_dns._udp.web.shop.svc.cluster.local", wire::SRV),
        format!("{} | {addresses}", srv(100, 53))
    );
    // The Service's own name has the records of all its ports, as with CoreDNS.
    let all = [srv(33, 80), srv(33, 53), srv(33, 9), addresses].join(" | ");
    assert_eq!(ask(&zone, "web.shop.svc.cluster.local", wire::SRV), all);
    assert_eq!(ask(&zone, "_http._tcp.web.shop.svc.cluster.local", wire::A), EMPTY);
    for missing in ["_http._udp", "_https._tcp", "http._tcp", "_._tcp", "x._http._tcp", "_sctp", "_x"] {
        let name = format!("{missing}.web.shop.svc.cluster.local");
        assert_eq!(ask(&zone, &name, wire::SRV), MISSING, "{name}");
    }
    // Names between those with records exist (RFC 8020).
    assert_eq!(ask(&zone, "_tcp.web.shop.svc.cluster.local", wire::SRV), EMPTY);
}

#[test]
fn addresses_of_services_lead_back_to_their_names() {
    let zone = cluster_ip();
    assert_eq!(ask(&zone, "1.0.96.10.in-addr.arpa", wire::PTR), "PTR web.shop.svc.cluster.local.");
    let v6 = format!("1.{}0.0.d.f.ip6.arpa", "0.".repeat(27));
    assert_eq!(ask(&zone, &v6, wire::PTR), "PTR web.shop.svc.cluster.local.");
    assert_eq!(ask(&zone, "1.0.96.10.in-addr.arpa", wire::A), EMPTY);
    assert_eq!(ask(&zone, "2.0.96.10.in-addr.arpa", wire::PTR), MISSING);
    assert_eq!(
        ask(&zone, "5.0.244.10.in-addr.arpa", wire::PTR),
        MISSING,
        "an endpoint of no headless Service"
    );
    let soa = ask(&zone, "in-addr.arpa", wire::SOA);
    assert_eq!(soa, "SOA ns.dns.cluster.local. hostmaster.cluster.local. 1 7200 1800 86400 30");
    assert_eq!(ask(&zone, "in-addr.arpa", wire::NS), "NS ns.dns.cluster.local.");
    assert_eq!(ask(&zone, "in-addr.arpa", wire::PTR), EMPTY);
}

/// A headless Service of a namespace, whose endpoints a controller wrote, or the tenant.
fn claim(zone: &mut Zone, namespace: &str, selects: bool, managed: &str, ips: &[&str]) {
    let selector = if selects { json!({"app": "x"}) } else { json!({}) };
    let metadata = json!({"namespace": namespace, "name": "web"});
    let spec = json!({"clusterIPs": ["None"], "selector": selector});
    let service = Service::of(serde_json::from_value(json!({"metadata": metadata, "spec": spec})).unwrap());
    let object = json!({
        "metadata": {
            "namespace": namespace, "name": "s", "labels": {
                "kubernetes.io/service-name": "web", "endpointslice.kubernetes.io/managed-by": managed,
            },
        },
        "addressType": "IPv4", "ports": [], "endpoints": [{"addresses": ips}],
    });
    let slice = Slice::of(serde_json::from_value(object).unwrap());
    zone.set_service(namespace, "web", Some(Records::compile(&service, &[slice])));
}

#[test]
fn tenants_cannot_name_addresses_of_others() {
    let controller = "endpointslice-controller.k8s.io";
    let networks = vec!["10.0.0.0/8".parse().unwrap()];
    let mut zone = Zone::new(Settings { networks, ..settings() });
    let bank = service(json!({"clusterIPs": ["10.96.0.1"]}));
    zone.set_service("shop", "bank", Some(Records::compile::<Slice>(&bank, &[])));
    claim(&mut zone, "shop", true, controller, &["10.244.0.5", "192.0.2.5"]);
    let all = ["10.96.0.1", "10.244.0.5", "192.0.2.5", "192.0.2.6", "10.244.0.6"];
    // Without a selector, nobody corrects what the tenant writes, under whatever label.
    claim(&mut zone, "evil", false, controller, &all);
    claim(&mut zone, "evil2", true, "me", &all);
    let ask = |reversed: &str| ask(&zone, &format!("{reversed}.in-addr.arpa"), wire::PTR);
    assert_eq!(ask("1.0.96.10"), "PTR bank.shop.svc.cluster.local.");
    assert_eq!(ask("5.0.244.10"), "PTR 10-244-0-5.web.shop.svc.cluster.local.");
    assert_eq!(ask("5.2.0.192"), "PTR 192-0-2-5.web.shop.svc.cluster.local.");
    assert_eq!(ask("6.0.244.10"), MISSING, "a pod's address");
    let outside = ["evil", "evil2"].map(|n| format!("PTR 192-0-2-6.web.{n}.svc.cluster.local."));
    assert_eq!(ask("6.2.0.192"), outside.join(" | "), "an address outside of the cluster");
}

#[test]
fn headless_services_have_the_records_of_their_ready_endpoints() {
    let zone = headless(false);
    assert_eq!(ask(&zone, "web.shop.svc.cluster.local", wire::A), "A 10.244.0.5 | A 10.244.0.6");
    assert_eq!(ask(&zone, "web.shop.svc.cluster.local", wire::AAAA), "AAAA fd00:1::5");
    assert_eq!(ask(&zone, "web-0.web.shop.svc.cluster.local", wire::A), "A 10.244.0.5");
    assert_eq!(ask(&zone, "web-0.web.shop.svc.cluster.local", wire::AAAA), "AAAA fd00:1::5");
    assert_eq!(ask(&zone, "10-244-0-6.web.shop.svc.cluster.local", wire::A), "A 10.244.0.6");
    assert_eq!(ask(&zone, "fd00-1--5.web.shop.svc.cluster.local", wire::AAAA), "AAAA fd00:1::5");
    assert_eq!(ask(&zone, "web-2.web.shop.svc.cluster.local", wire::A), MISSING);
    assert_eq!(ask(&zone, "x.web-0.web.shop.svc.cluster.local", wire::A), MISSING);
    let srv = ask(&zone, "_http._tcp.web.shop.svc.cluster.local", wire::SRV);
    let (first, second) = ("web-0.web.shop.svc.cluster.local.", "10-244-0-6.web.shop.svc.cluster.local.");
    for expected in [
        format!("SRV 0 33 8080 {first}"),
        format!("SRV 0 33 8080 {second}"),
        format!("+ {first} A 10.244.0.5"),
        format!("+ {first} AAAA fd00:1::5"),
        format!("+ {second} A 10.244.0.6"),
    ] {
        assert!(srv.contains(&expected), "{expected}: {srv}");
    }
    assert!(!srv.contains("web-2"), "{srv}");
    assert_eq!(ask(&zone, "5.0.244.10.in-addr.arpa", wire::PTR), "PTR web-0.web.shop.svc.cluster.local.");
    assert_eq!(
        ask(&zone, "6.0.244.10.in-addr.arpa", wire::PTR),
        "PTR 10-244-0-6.web.shop.svc.cluster.local."
    );
}

#[test]
fn ports_of_a_headless_service_beyond_the_limit_have_no_records() {
    let ports: Vec<Value> =
        (0..=limits::PORTS).map(|n| json!({"name": format!("p{n:04}"), "port": n + 1})).collect();
    let spec = json!({"clusterIPs": ["None"], "ports": []});
    let zone = zone(&service(spec), &[slice("IPv4", json!(ports), json!([{"addresses": ["10.244.0.5"]}]))]);
    let ask =
        |number: usize| ask(&zone, &format!("_p{number:04}._tcp.web.shop.svc.cluster.local"), wire::SRV);
    assert!(ask(limits::PORTS - 1).starts_with("SRV 0 100 1000 "), "{}", ask(limits::PORTS - 1));
    assert_eq!(ask(limits::PORTS), MISSING);
}

#[test]
fn a_headless_service_without_ready_endpoints_does_not_exist() {
    let spec = json!({"clusterIPs": ["None"], "ports": [{"name": "http", "port": 80}]});
    let endpoints = json!([{"addresses": ["10.244.0.7"], "hostname": "a", "conditions": {"ready": false}}]);
    let zone = zone(&service(spec), &[slice("IPv4", json!([{"name": "http", "port": 80}]), endpoints)]);
    for name in ["web", "a.web", "_http._tcp.web", "_tcp.web"] {
        assert_eq!(ask(&zone, &format!("{name}.shop.svc.cluster.local"), wire::A), MISSING, "{name}");
    }
}

#[test]
fn addresses_that_are_not_ready_are_published_if_the_service_says_so() {
    let zone = headless(true);
    assert_eq!(ask(&zone, "web-2.web.shop.svc.cluster.local", wire::A), "A 10.244.0.7");
    assert_eq!(ask(&zone, "web.shop.svc.cluster.local", wire::A).matches("A 10").count(), 3);
}

#[test]
fn external_names_are_aliases() {
    let zone = external("www.Example.org");
    let name = "web.shop.svc.cluster.local";
    assert_eq!(ask(&zone, name, wire::CNAME), "CNAME www.example.org.");
    assert_eq!(ask(&zone, name, wire::A), "CNAME www.example.org. then www.example.org.");
    assert_eq!(ask(&zone, &format!("_http._tcp.{name}"), wire::SRV), MISSING);
    assert_eq!(ask(&external("not..a.name"), name, wire::A), MISSING);
    // Kubernetes takes digits for a name, not for an address.
    assert_eq!(ask(&external("192.0.2.1"), name, wire::CNAME), "CNAME 192.0.2.1.");
}

#[test]
fn pods_have_records_by_their_address_as_configured() {
    let mut zone = cluster_ip();
    let name = "10-244-0-9.shop.pod.cluster.local";
    assert_eq!(ask(&zone, name, wire::A), "A 10.244.0.9");
    assert_eq!(ask(&zone, "fd00--9.shop.pod.cluster.local", wire::AAAA), "AAAA fd00::9");
    for missing in ["10-244-0-9.elsewhere", "10-244-0.shop", "x.10-244-0-9.shop", "web.shop"] {
        assert_eq!(ask(&zone, &format!("{missing}.pod.cluster.local"), wire::A), MISSING, "{missing}");
    }
    let with = |pods| {
        let mut zone = Zone::new(Settings { pods, ..settings() });
        zone.set_namespace("shop", true);
        zone
    };
    assert_eq!(ask(&with(PodMode::Disabled), name, wire::A), MISSING);
    assert_eq!(ask(&with(PodMode::Disabled), "pod.cluster.local", wire::A), MISSING);
    zone = with(PodMode::Verified);
    assert_eq!(ask(&zone, name, wire::A), MISSING);
    zone.set_pod("shop", "10.244.0.9".parse().unwrap(), true);
    assert_eq!(ask(&zone, name, wire::A), "A 10.244.0.9");
    zone.set_pod("shop", "10.244.0.9".parse().unwrap(), false);
    assert_eq!(ask(&zone, name, wire::A), MISSING);
}

#[test]
fn names_between_exist_and_others_do_not() {
    let zone = cluster_ip();
    for empty in ["svc", "pod", "dns", "shop.svc", "shop.pod"] {
        assert_eq!(ask(&zone, &format!("{empty}.cluster.local"), wire::A), EMPTY, "{empty}");
    }
    for missing in
        ["x", "elsewhere.svc", "elsewhere.pod", "api.shop.svc", "web.elsewhere.svc", "x.dns", "x.dns-version"]
    {
        assert_eq!(ask(&zone, &format!("{missing}.cluster.local"), wire::A), MISSING, "{missing}");
    }
}

#[test]
fn a_service_that_goes_takes_its_records_along() {
    let mut zone = cluster_ip();
    let moved = service(json!({"clusterIPs": ["10.96.0.2"]}));
    zone.set_service("shop", "web", Some(Records::compile::<Slice>(&moved, &[])));
    assert_eq!(ask(&zone, "1.0.96.10.in-addr.arpa", wire::PTR), MISSING);
    assert_eq!(ask(&zone, "2.0.96.10.in-addr.arpa", wire::PTR), "PTR web.shop.svc.cluster.local.");
    zone.set_service("shop", "web", None);
    assert_eq!(ask(&zone, "web.shop.svc.cluster.local", wire::A), MISSING);
    assert_eq!(ask(&zone, "2.0.96.10.in-addr.arpa", wire::PTR), MISSING);
    assert!(zone.is_empty());
}

proptest! {
    /// An answer never panics, is never longer than the client's maximum, and can be decoded.
    #[test]
    fn answers_are_well_formed_and_never_too_long(
        count in 0_usize..200,
        host in any::<bool>(),
        size in prop::option::of(0_u16..5000),
        prefix in prop::sample::select(vec!["", "_http._tcp.", "_tcp.", "h1.", "10-0-0-1.", "x."]),
        kind in prop::sample::select(vec![wire::A, wire::AAAA, wire::SRV, wire::PTR, wire::CNAME, wire::ANY]),
    ) {
        let endpoints: Vec<Value> = (0..count).map(|number| {
            let address = IpAddr::from([10, 0, (number / 250) as u8, (number % 250) as u8]).to_string();
            if host { json!({"addresses": [address], "hostname": format!("h{number}")}) } else { json!({"addresses": [address]}) }
        }).collect();
        let spec = json!({"clusterIPs": ["None"]});
        let slices = [slice("IPv4", json!([{"name": "http", "port": 80}]), endpoints.into())];
        let zone = zone(&service(spec), &slices);
        let request = question(7, &format!("{prefix}web.shop.svc.cluster.local"), kind, size.map(|size| (size, true)));
        let query = Query::parse(&request).unwrap();
        let limit = query.datagram(1232);
        let mut out = vec![0; 4096];
        let mut answer = Answer::begin(&mut out, &request, &query, limit, 1232);
        let below = query.name.below(&zone.settings().domain).unwrap();
        let Found::Code(code) = zone.answer(&query, below, QUESTION, &mut answer) else { panic!("no alias") };
        let length = answer.finish(&query, code, 0);
        prop_assert!(length <= limit, "{} of {}", length, limit);
        let message = Message::from_vec(&out[..length]).unwrap();
        let all = if prefix.is_empty() && kind == wire::A || kind == wire::SRV && (prefix.is_empty() || prefix == "_http._tcp.") { count } else { 0 };
        if all > 0 && message.answers.len() != all {
            prop_assert!(message.metadata.truncation, "{} of {}", message.answers.len(), all);
        }
    }
}

#[test]
fn service_in_memory_stays_within_its_size_classes() {
    // Ten thousand Services are common. jemalloc rounds up to these sizes, and each object has two counts before it.
    let sizes = [
        (size_of::<Service>() + 16, 128),
        (size_of::<Slice>() + 16, 192),
        (size_of::<Records>() + 16, 224),
        (size_of::<Endpoint>(), 40),
    ];
    for (at, (size, most)) in sizes.into_iter().enumerate() {
        assert!(size <= most, "{at}: {size} bytes");
    }
    let service = service(json!({"clusterIPs": ["10.96.0.1"], "ports": [{"name": "http", "port": 80}]}));
    let records = Records::compile::<Slice>(&service, &[]);
    assert!(std::sync::Arc::ptr_eq(&service.ports, &records.ports), "they share their ports");
}
