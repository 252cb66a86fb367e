//! Targets for the DNS server: queries of clients, and answers of upstreams.

use k8s_openapi::api::core::v1::Service as ServiceObject;
use serde_json::json;
use userspace_dns::answer::{Answer, QUESTION, refusal};
use userspace_dns::cluster::{Found, PodMode, Records, Service, Settings, Slice, Zone};
use userspace_dns::forward::{Question, Reply};
use userspace_dns::name::Name;
use userspace_dns::query::{Query, Refusal};
use userspace_dns::wire;

use crate::choice;

/// The maximum of our datagrams.
const OURS: usize = 1232;

/// A zone with Services of each sort.
fn zone() -> Zone {
    let mut zone = Zone::new(Settings {
        domain: Name::parse("c").expect("a name"),
        ttl: 30,
        pods: PodMode::Insecure,
        servers: vec!["10.96.0.10".parse().expect("an address")],
        networks: Vec::new(),
    });
    zone.set_complete();
    zone.set_namespace("n", true);
    let ports = json!([{"name": "p", "port": 80}]);
    for (name, spec) in [
        ("a", json!({"clusterIPs": ["10.96.0.1", "fd00::1"], "ports": ports})),
        ("h", json!({"clusterIPs": ["None"], "ports": ports})),
        ("x", json!({"type": "ExternalName", "externalName": "a.n.svc.c"})),
    ] {
        let metadata = json!({"namespace": "n", "name": name});
        let object = json!({"metadata": metadata, "spec": spec});
        let object: ServiceObject = serde_json::from_value(object).expect("a Service");
        let endpoints: Vec<_> = (0..40)
            .map(|n| json!({"addresses": [format!("10.0.0.{n}")], "hostname": format!("e{n}")}))
            .collect();
        let slice = json!({
            "metadata": metadata, "addressType": "IPv4", "ports": ports, "endpoints": endpoints,
        });
        let slice = Slice::of(serde_json::from_value(slice).expect("an EndpointSlice"));
        zone.set_service("n", name, Some(Records::compile(&Service::of(object), &[slice])));
    }
    zone
}

/// Input: a query. Its answer is never longer than the client's maximum, has the client's id and question,
/// and every record of it can be found again.
pub fn query(bytes: &[u8]) {
    let mut out = vec![0; 4096];
    let query = match Query::parse(bytes) {
        Ok(query) => query,
        Err(Refusal::Silence) => return,
        Err(Refusal::Code(code)) => {
            let length = refusal(&mut out, bytes, code);
            assert!((wire::HEADER..=bytes.len()).contains(&length));
            assert_eq!(out[wire::HEADER..length], bytes[wire::HEADER..length]);
            return;
        }
    };
    let (zone, limit) = (zone(), query.datagram(OURS));
    assert!((512..=OURS).contains(&limit));
    let mut answer = Answer::begin(&mut out, bytes, &query, limit, OURS);
    let mut code = wire::NAME_ERROR;
    if let Some(below) = query.name.below(&zone.settings().domain) {
        code = match zone.answer(&query, below, QUESTION, &mut answer) {
            Found::Code(code) => code,
            Found::Alias(_, at) => {
                assert!(at < limit);
                wire::NO_ERROR
            }
        };
    } else {
        let zones = ["in-addr.arpa", "ip6.arpa"].map(|text| Name::parse(text).expect("a name"));
        if let Some(apex) = zones.iter().find(|apex| query.name.below(apex).is_some())
            && !zone.answer_reverse(apex, &query, &mut answer)
        {
            code = zone.deny_reverse(apex, &query, &mut answer);
        }
    }
    let length = answer.finish(&query, code, 0);
    assert!(length <= limit, "{length} bytes for a client that takes {limit}");
    let message = &out[..length];
    assert_eq!(message[..2], bytes[..2]);
    assert_eq!(message[wire::HEADER..query.question_end], bytes[wire::HEADER..query.question_end]);
    let counted: u16 = [6, 8, 10].map(|at| wire::u16_at(message, at)).iter().sum();
    let found = wire::records(message, query.question_end).count();
    assert_eq!(found, usize::from(counted), "records that were counted are not there");
}

/// Input: a byte that chooses what was asked, and the answer of an upstream. What is accepted answers that
/// question, and is served within the client's maximum.
pub fn reply(bytes: &[u8]) {
    let (choice, rest) = choice(bytes);
    let name = Name::parse(if choice & 1 == 0 { "www.example.org" } else { "a" }).expect("a name");
    let kind = if choice & 2 == 0 { wire::A } else { wire::SRV };
    let sent = Question { name, kind, dnssec: choice & 4 != 0 }.query(0x1234);
    let Ok(reply) = Reply::read(rest, &sent) else { return };
    let query = Query::parse(&sent).expect("we understand our own queries");
    let end = query.question_end;
    assert!(reply.message.len() >= end, "an answer without its question");
    let found = wire::records(&reply.message, end).count();
    assert_eq!(found, reply.counts.iter().map(|count| usize::from(*count)).sum::<usize>());
    for limit in [512, OURS, 65_535] {
        let mut out = vec![0; limit];
        let mut answer = Answer::begin(&mut out, &sent, &query, limit, OURS);
        answer.copy(&reply.message, reply.counts, |ttl| ttl.min(30));
        let length = answer.finish(&query, reply.code, 0);
        assert!(length <= limit);
    }
}
