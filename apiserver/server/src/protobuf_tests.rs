use super::*;
use proptest::prelude::*;

/// Length-delimited field.
fn part(number: u8, content: &[u8]) -> Vec<u8> {
    let mut out = vec![number << 3 | 2];
    let mut length = content.len();
    while length >= 0x80 {
        out.push((length & 0x7f) as u8 | 0x80);
        length >>= 7;
    }
    out.push(length as u8);
    out.extend_from_slice(content);
    out
}

fn body(api_version: &str, kind: &str, raw: &[u8]) -> Vec<u8> {
    let meta = [part(1, api_version.as_bytes()), part(2, kind.as_bytes())].concat();
    [MAGIC.to_vec(), part(1, &meta), part(2, raw), part(3, b""), part(4, b"")].concat()
}

#[test]
fn a_deployment_becomes_its_json_and_zeros_are_dropped_unless_they_mean_something() {
    let metadata = [
        part(1, b"web"),
        part(2, b""),
        vec![7 << 3, 0],
        part(8, b""),
        part(11, &[part(1, b"a"), part(2, b"b")].concat()),
    ]
    .concat();
    let limits = part(1, &[part(1, b"cpu"), part(2, &part(1, b"100m"))].concat());
    let container = [part(1, b"c"), part(2, b"i"), part(8, &limits)].concat();
    let volume = [part(1, b"v"), part(2, &part(2, b""))].concat();
    let pod = [part(1, &volume), part(2, &container), part(3, b""), vec![11 << 3, 0]].concat();
    // replicas is a pointer, minReadySeconds is not.
    let spec = [vec![1 << 3, 0], part(3, &part(2, &pod)), part(4, b""), vec![5 << 3, 0]].concat();
    let raw = [part(1, &metadata), part(2, &spec), part(3, b"")].concat();
    let object = decode(&body("apps/v1", "Deployment", &raw)).unwrap();
    assert_eq!(
        object,
        json!({
            "apiVersion": "apps/v1", "kind": "Deployment",
            "metadata": {"name": "web", "labels": {"a": "b"}},
            "spec": {"replicas": 0, "template": {"spec": {
                "volumes": [{"name": "v", "emptyDir": {}}],
                "containers": [{"name": "c", "image": "i", "resources": {"limits": {"cpu": "100m"}}}],
            }}},
        })
    );
}

#[test]
fn special_types_are_spelled_as_in_json() {
    let secret = [part(2, &[part(1, b"k"), part(2, b"\x00\xff")].concat()), part(3, b"Opaque")].concat();
    let object = decode(&body("v1", "Secret", &secret)).unwrap();
    assert_eq!((&object["data"]["k"], &object["type"]), (&json!("AP8="), &json!("Opaque")));
    let port = |target: &[u8]| [vec![3 << 3, 80], part(4, target)].concat();
    let named = [vec![1 << 3, 1], part(3, b"http")].concat();
    let service =
        part(2, &[part(1, &port(&named)), part(1, &port(&[2 << 3, 90])), part(1, &port(b""))].concat());
    let ports = decode(&body("v1", "Service", &service)).unwrap()["spec"]["ports"].clone();
    assert_eq!(
        ports,
        json!([{"port": 80, "targetPort": "http"}, {"port": 80, "targetPort": 90}, {"port": 80}])
    );
    let options = decode(&body("apps/v1", "DeleteOptions", &[1 << 3, 0])).unwrap();
    assert_eq!(options["gracePeriodSeconds"], 0);
}

#[test]
fn what_is_no_object_is_refused() {
    for bad in [
        &b""[..],
        b"{}",
        b"k8s\0",
        b"k8s\0\x0a\xff",
        &body("v1", "Frob", b""),
        &body("v1", "Pod", b"\x0a\x05ab"),
    ] {
        assert_eq!(decode(bad).unwrap_err().code, 400, "{bad:?}");
    }
}

#[test]
fn every_message_that_a_field_names_is_in_the_table() {
    for (name, message) in messages() {
        for field in message.0.values() {
            if let Kind::Message(inner) = field.kind {
                assert!(messages().contains_key(inner), "{name} names {inner}");
            }
        }
    }
}

proptest! {
    #[test]
    fn no_bytes_do_harm(raw in proptest::collection::vec(any::<u8>(), 0..300)) {
        let _ = decode(&body("v1", "Pod", &raw));
        let _ = decode(&raw);
    }
}
