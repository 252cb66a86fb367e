use apiserver_meta::ambient::Ambient;
use apiserver_schema::meta;
use serde_json::json;

use super::*;
use apiserver_auth::authentication::pki::Pki;
use apiserver_meta::seeded;

const YEARS: i64 = 11 * 366 * 24 * 3600;

/// Authorities that are good for ten years from now, and the present.
fn authorities<const N: usize>() -> ([String; N], Timestamp) {
    let (ambient, _) = seeded::ambient(1);
    (std::array::from_fn(|_| authority(&ambient)), ambient.now())
}

fn authority(ambient: &Ambient) -> String {
    let dir = tempfile::tempdir().unwrap();
    Pki::open(dir.path(), ambient).unwrap().ca_pem().to_owned()
}

fn der(text: &str) -> Vec<CertificateDer<'static>> {
    certificates(text)
}

fn map(data: Value) -> Value {
    json!({"metadata": {"name": NAME, "namespace": NAMESPACE, "resourceVersion": "7"}, "data": data})
}

#[test]
fn authorities_are_published_once_and_in_kubernetes_spelling() {
    let ([own], now) = authorities();
    let made = wanted(None, &own, now).unwrap();
    assert_eq!((meta::namespace(&made), meta::name(&made)), ("kube-system", NAME));
    assert_eq!(made["data"].as_object().unwrap().len(), 1);
    assert_eq!(der(made["data"]["client-ca-file"].as_str().unwrap()), der(&own));
    assert_eq!(wanted(Some(&made), &own, now), None);
    assert_eq!(wanted(Some(&made), &format!("# a comment\n{own}{own}"), now), None);
    assert_eq!(wanted(None, "", now), None);
}

#[test]
fn authorities_of_other_servers_stay_and_expired_ones_go() {
    let ([own, other, proxy], now) = authorities();
    let data = json!({
        "client-ca-file": other, "requestheader-client-ca-file": proxy, "unknown": "x",
        "requestheader-username-headers": "[\"X-Remote-User\"]",
    });
    let made = wanted(Some(&map(data)), &own, now).unwrap();
    assert_eq!(made["metadata"]["resourceVersion"], "7");
    let data = &made["data"];
    let clients: Vec<_> = [&other, &own].into_iter().flat_map(|text| der(text)).collect();
    assert_eq!(der(data["client-ca-file"].as_str().unwrap()), clients);
    assert_eq!(der(data["requestheader-client-ca-file"].as_str().unwrap()), der(&proxy));
    assert_eq!(data["requestheader-username-headers"], "[\"X-Remote-User\"]");
    assert_eq!(data.get("unknown"), None);
    let (later, _) = seeded::ambient(2);
    let later = Timestamp::from_second(later.now().as_second() + YEARS).unwrap();
    assert_eq!(wanted(Some(&made), &own, later).unwrap()["data"], json!({}));
}

#[test]
fn unwritable_trust_config_map_does_not_stop_the_server() {
    let ([own], now) = authorities();
    let mut immutable = map(json!({"client-ca-file": ""}));
    immutable["immutable"] = true.into();
    assert_eq!(wanted(Some(&immutable), &own, now), None);
    let proxy = json!({
        "requestheader-client-ca-file": own,
        "requestheader-allowed-names": "x".repeat(limits::CONFIG_MAP_DATA),
    });
    let made = wanted(Some(&map(proxy)), &own, now).unwrap();
    assert_eq!(made["data"].as_object().unwrap().len(), 1);
}
