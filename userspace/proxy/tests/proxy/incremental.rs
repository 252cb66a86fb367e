//! The tables are those of compiling all objects, whatever the history of these.

use std::collections::BTreeMap;

use crate::proxy::support::{Plane, Proxy, assert_in_tables, object, run_tasks};
use apiserver_client::ObjectKey;
use k8s_openapi::api::core::v1::Service;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use proptest::prelude::*;
use userspace_proxy::{Config, Context, Listeners, NodeView, compile};

/// One write to the API.
#[derive(Clone, Debug)]
enum Event {
    Service {
        name: u8,
        shape: u8,
        ip: u8,
        age: u8,
    },
    NoService(u8),
    Slice {
        name: u8,
        service: u8,
        endpoints: Vec<(u8, u8)>,
    },
    NoSlice(u8),
    /// The worker processes what was written so far.
    Look,
}

fn event() -> impl Strategy<Value = Event> {
    let endpoints = prop::collection::vec((0_u8..6, 0_u8..5), 0..5);
    prop_oneof![
        4 => (0_u8..4, 0_u8..7, 0_u8..5, 0_u8..3)
            .prop_map(|(name, shape, ip, age)| Event::Service { name, shape, ip, age }),
        1 => (0_u8..4).prop_map(Event::NoService),
        5 => (0_u8..5, 0_u8..4, endpoints)
            .prop_map(|(name, service, endpoints)| Event::Slice { name, service, endpoints }),
        1 => (0_u8..5).prop_map(Event::NoSlice),
        3 => Just(Event::Look),
    ]
}

fn service(name: u8, shape: u8, ip: u8, age: u8) -> Service {
    let spec = match shape {
        0 => "type: NodePort, ports: [{port: 80, nodePort: 30080}]",
        1 => "externalTrafficPolicy: Local, type: NodePort, ports: [{port: 80, nodePort: 30081}]",
        2 => "internalTrafficPolicy: Local, ports: [{port: 80}, {port: 80, protocol: UDP, name: dns}]",
        3 => "externalIPs: [192.0.2.1], ports: [{port: 80}]",
        4 => "sessionAffinity: ClientIP, externalIPs: [192.0.2.1], ports: [{port: 80}]",
        5 => "type: ExternalName, externalName: elsewhere",
        _ => "ports: [{port: 80}, {port: 443, name: dns}]",
    };
    object(&format!(
        "metadata: {{namespace: ns, name: s{name}, creationTimestamp: '2026-01-0{}T00:00:00Z'}}\n\
         spec: {{clusterIP: 10.0.0.{ip}, {spec}}}",
        age + 1
    ))
}

fn slice(name: u8, service: u8, endpoints: &[(u8, u8)]) -> EndpointSlice {
    let endpoints: Vec<_> = endpoints
        .iter()
        .map(|(ip, state)| {
            let conditions = match state {
                0 => "ready: false",
                1 => "ready: false, serving: true, terminating: true",
                2 => "ready: false, serving: false, terminating: true",
                _ => "ready: true",
            };
            let node = if ip % 2 == 0 { "here" } else { "there" };
            format!("{{addresses: [10.1.0.{ip}], nodeName: {node}, conditions: {{{conditions}}}}}")
        })
        .collect();
    object(&format!(
        "metadata: {{namespace: ns, name: e{name}, labels: {{kubernetes.io/service-name: s{service}}}}}\n\
         addressType: IPv4\nports: [{{port: 8080}}, {{name: dns, port: 53, protocol: UDP}}]\nendpoints: [{}]",
        endpoints.join(", ")
    ))
}

async fn play(events: Vec<Event>) {
    let config = Config { external_ips: true, ..Config::for_node("here").unwrap() };
    let context = Context { node: NodeView::named("here"), external_ips: true, ..Context::default() };
    let mut proxy = Proxy::start(config, Plane::default(), Listeners::default());
    proxy.sync().await;
    let (mut services, mut slices) = (BTreeMap::new(), BTreeMap::new());
    for event in events.into_iter().chain([Event::Look]) {
        match event {
            Event::Service { name, shape, ip, age } => {
                let object = service(name, shape, ip, age);
                services.insert(name, object.clone());
                proxy.caches.services.apply(object);
            }
            Event::NoService(name) => {
                services.remove(&name);
                proxy.caches.services.delete(&ObjectKey::new("ns", &format!("s{name}")));
            }
            Event::Slice { name, service, endpoints } => {
                let object = slice(name, service, &endpoints);
                slices.insert(name, object.clone());
                proxy.caches.slices.apply(object);
            }
            Event::NoSlice(name) => {
                slices.remove(&name);
                proxy.caches.slices.delete(&ObjectKey::new("ns", &format!("e{name}")));
            }
            Event::Look => {
                run_tasks().await;
                let expected = compile(services.values(), slices.values(), &context);
                assert_eq!(proxy.tables(), expected);
                assert_in_tables(&proxy.plane.0.lock().unwrap(), &expected);
            }
        }
    }
    // The result equals that of a first full apply: nothing was left behind on the way.
    assert_eq!(proxy.calls().iter().filter(|call| *call == "full").count(), 1);
    proxy.stop().await;
}

proptest! {
    #![proptest_config(crate::seeded::config(128))]

    #[test]
    fn changes_one_by_one_give_what_compiling_everything_gives(events in prop::collection::vec(event(), 1..60)) {
        tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .start_paused(true)
            .build()
            .unwrap()
            .block_on(play(events));
    }
}
