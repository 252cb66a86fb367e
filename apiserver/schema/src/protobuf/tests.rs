use std::collections::BTreeSet;
use std::path::Path;

use proptest::prelude::*;
use serde_json::{Value, json};

use super::read_tests::without_nulls;
use super::*;
use crate::messages::random::Random;
use crate::schema;
use crate::schema::{Definition, Type};

/// An object of the kind in its envelope, from the bytes of its message.
fn body(api_version: &str, kind: &str, raw: &[u8]) -> Vec<u8> {
    [&envelope_head(api_version, kind, raw.len())[..], raw, ENVELOPE_TAIL].concat()
}

/// Length-delimited field.
fn part(number: u16, content: &[u8]) -> Vec<u8> {
    let mut out = Backward::default();
    out.bytes(number, content);
    out.finish()
}

#[test]
fn every_message_survives_a_round_trip() {
    for (i, message) in messages().enumerate() {
        for round in 0..12 {
            let mut random = Random::new(1 + i as u64 * 100 + round, 1 + round % 8);
            let object = Value::Object(random.object(message, 5));
            let bytes = encode(message, &object).unwrap();
            let back = decode(message, &bytes);
            assert!(back.as_ref() == Ok(&object), "{} round {round}", message.name());
            assert_eq!(encode(message, &back.unwrap()).unwrap(), bytes, "{}", message.name());
            // Text in the order of names, in that of the type, and from the last member to the first.
            let mut typed = Vec::new();
            ordered::write_message(&mut typed, message, &object);
            let typed = String::from_utf8(typed).unwrap();
            for text in [object.to_string(), typed, backwards(message, &object)] {
                assert_eq!(encode_text(message, &text).unwrap(), bytes, "{text}");
            }
        }
    }
}

fn encode_text(message: Message, text: &str) -> Result<Vec<u8>, Unencodable> {
    let mut out = Backward::default();
    encode_into(&mut out, &Object::parse(message, text)?)?;
    Ok(out.finish())
}

/// The text of an object whose members, and those of the messages in it, come from the greatest name to the least.
fn backwards(message: Message, object: &Value) -> String {
    let members = object.as_object().unwrap().iter().rev().map(|(name, value)| {
        let inner = match message.member(name) {
            Some((_, field)) if field.shape == Shape::One && value.is_object() => match field.kind {
                Kind::Message(inner) => Some(at(inner)),
                _ => None,
            },
            _ => None,
        };
        let text = inner.map_or_else(|| value.to_string(), |inner| backwards(inner, value));
        format!("{}:{text}", json!(name))
    });
    format!("{{{}}}", members.collect::<Vec<_>>().join(","))
}

#[test]
fn members_that_come_twice_count_once_and_others_not_at_all() {
    let pod = message("core/v1.Pod").unwrap();
    let volume = message("core/v1.Volume").unwrap();
    for (message, text, same) in [
        (
            pod,
            r#"{"spec":{"nodeName":"a"},"x":[{}],"spec":{"nodeName":"b"}}"#,
            r#"{"spec":{"nodeName":"b"}}"#,
        ),
        (
            pod,
            r#"{"metadata":{"labels":{"b":"1","a":"2","b":"3"}}}"#,
            r#"{"metadata":{"labels":{"a":"2","b":"3"}}}"#,
        ),
        (
            volume,
            r#"{"emptyDir":{"medium":"a"},"name":"v","emptyDir":{"medium":"b"},"hostPath":{"path":"/"}}"#,
            r#"{"name":"v","hostPath":{"path":"/"},"emptyDir":{"medium":"b"}}"#,
        ),
        (
            volume,
            r#"{"":{"hostPath":{"path":"/"}},"name":"v","emptyDir":{}}"#,
            r#"{"name":"v","emptyDir":{}}"#,
        ),
        (volume, r#"{"":null,"emptyDir":{},"name":"v"}"#, r#"{"name":"v","emptyDir":{}}"#),
    ] {
        let same: Value = serde_json::from_str(same).unwrap();
        assert_eq!(encode_text(message, text).unwrap(), encode(message, &same).unwrap(), "{text}");
    }
}

#[test]
fn texts_that_do_not_fit_are_refused_with_their_field() {
    let pod = message("core/v1.Pod").unwrap();
    for (text, message, field) in [
        ("[]", "core/v1.Pod", ""),
        ("{", "core/v1.Pod", ""),
        ("{} {}", "core/v1.Pod", ""),
        (r#"{"spec":[]}"#, "core/v1.Pod", "spec"),
        (r#"{"spec":{"nodeName":{"a":1}}}"#, "core/v1.PodSpec", "nodeName"),
        (r#"{"metadata":{"labels":["a"]}}"#, "meta/v1.ObjectMeta", "labels"),
        (r#"{"spec":{"containers":{"a":{}}}}"#, "core/v1.PodSpec", "containers"),
        (r#"{"spec":{"priority":"a"}}"#, "core/v1.PodSpec", "priority"),
    ] {
        assert_eq!(encode_text(pod, text), Err(Unencodable::Type { message, field }), "{text}");
    }
}

#[test]
fn every_kind_goes_through_its_envelope() {
    for (api_version, kind, message) in kinds() {
        let mut object = Value::Object(Random::new(7, 4).object(message, 5));
        object["apiVersion"] = api_version.into();
        object["kind"] = kind.into();
        let bytes = to_envelope(&object).unwrap();
        assert!(is_envelope(&bytes));
        assert_eq!(from_envelope(&bytes).unwrap(), object, "{api_version} {kind}");
        for round in 0..12 {
            let object = Random::new(50 + round, 1 + round % 8).object(message, 5);
            let bytes = body(api_version, kind, &encode(message, &object.into()).unwrap());
            let text: Value = serde_json::from_slice(&to_json(&bytes).unwrap()).unwrap();
            assert!(text == from_envelope(&bytes).unwrap(), "{api_version} {kind} round {round}");
        }
        assert_eq!(bytes, body(api_version, kind, &encode(message, &object).unwrap()));
    }
}

#[test]
fn every_kind_that_is_served_or_only_known_has_a_message() {
    let table: Value = serde_json::from_str(include_str!("../../data/resources.json")).unwrap();
    for row in table.as_array().unwrap() {
        let text = |key: &str| row[key].as_str().unwrap();
        let version = if text("group").is_empty() {
            text("version").to_owned()
        } else {
            format!("{}/{}", text("group"), text("version"))
        };
        assert!(of_kind(&version, text("kind")).is_some(), "{row}");
        let created_only = row["verbs"].as_array().unwrap().iter().all(|v| v == "create");
        assert!(created_only || of_kind(&version, &format!("{}List", text("kind"))).is_some(), "{row}");
    }
    for (version, kind) in [
        ("v1", "Status"),
        ("apps/v1", "DeleteOptions"),
        ("v1", "DeleteOptions"),
        ("v1", "APIGroupList"),
        ("autoscaling/v1", "Scale"),
        ("policy/v1", "Eviction"),
        ("v1", "Binding"),
        ("authentication.k8s.io/v1", "TokenRequest"),
        ("meta.k8s.io/v1", "PartialObjectMetadataList"),
    ] {
        assert!(of_kind(version, kind).is_some(), "{version} {kind}");
    }
    assert!(of_kind("apps.example.com/v1", "Deployment").is_none());
    assert!(of_kind("meta.k8s.io/v1", "Table").is_none());
}

/// The message that a definition of OpenAPI is.
fn message_of(definition: Definition) -> Option<Message> {
    let parts: Vec<&str> = definition.name().split('.').collect();
    let [.., group, version, name] = parts[..] else { return None };
    message(&format!("{group}/{version}.{name}"))
}

/// JSON names and fields, those of inlined messages among them.
fn flat(message: Message, out: &mut Vec<(&'static str, &'static Field)>) {
    for field in message.fields() {
        match field.kind.message() {
            Some(inner) if field.name().is_empty() => flat(inner, out),
            _ => out.push((field.name(), field)),
        }
    }
}

fn agrees(ty: Type, field: &Field) -> bool {
    let element = match (field.shape, ty) {
        (Shape::List, Type::List(_)) | (Shape::Map, Type::Map(_)) => ty.element().unwrap(),
        (Shape::One, _) => ty,
        _ => return false,
    };
    match (field.kind, element) {
        (Kind::Text, Type::String)
        | (Kind::Flag, Type::Bool)
        | (Kind::Int32, Type::Int32)
        | (Kind::Int64, Type::Int64)
        | (Kind::Double, Type::Number)
        | (Kind::Bytes, Type::Bytes)
        | (Kind::Time, Type::Time)
        | (Kind::MicroTime, Type::MicroTime)
        | (Kind::Quantity, Type::Quantity)
        | (Kind::IntOrString, Type::IntOrString)
        | (Kind::Raw | Kind::SchemaOrFlag(_) | Kind::SchemaOrList(_) | Kind::SchemaOrTexts(_), Type::Any) => {
            true
        }
        (Kind::Texts, list) => list.element() == Some(Type::String),
        (Kind::Message(_), Type::Object(_)) => {
            message_of(element.object().unwrap()).map(Message::name)
                == field.kind.message().map(Message::name)
        }
        // Objects without fields are open in OpenAPI.
        (Kind::Message(_), Type::Any) => field.kind.message().unwrap().fields().is_empty(),
        _ => false,
    }
}

/// Definitions that Kubernetes sends as JSON alone.
const ONLY_JSON: [&str; 2] =
    ["io.k8s.apimachinery.pkg.apis.meta.v1.Patch", "io.k8s.apimachinery.pkg.version.Info"];

/// The type graph comes from OpenAPI and not from the struct tags: names and types must agree.
#[test]
fn the_messages_have_the_fields_and_types_of_the_type_graph() {
    let mut checked = 0;
    for definition in schema::definitions() {
        let Some(message) = message_of(definition) else {
            assert!(ONLY_JSON.contains(&definition.name()), "{} has no message", definition.name());
            continue;
        };
        let mut fields = Vec::new();
        flat(message, &mut fields);
        for field in definition.fields().filter(|f| !matches!(f.name(), "apiVersion" | "kind")) {
            let (_, found) = fields
                .iter()
                .find(|(name, _)| *name == field.name())
                .unwrap_or_else(|| panic!("{} lacks {}", message.name(), field.name()));
            assert!(
                agrees(field.ty(), found),
                "{} {}: {:?} {:?}",
                message.name(),
                field.name(),
                field.ty(),
                found.kind
            );
            checked += 1;
        }
        let known: BTreeSet<&str> = definition.fields().map(|f| f.name()).collect();
        for (name, _) in fields {
            assert!(known.contains(name), "{} has {name}, OpenAPI has not", message.name());
        }
    }
    assert!(checked > 1500, "{checked}");
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
    let object = from_envelope(&body("apps/v1", "Deployment", &raw)).unwrap();
    assert_eq!(
        object,
        json!({
            "apiVersion": "apps/v1", "kind": "Deployment",
            "metadata": {"name": "web", "labels": {"a": "b"}},
            "spec": {"replicas": 0, "selector": null, "strategy": {}, "template": {"metadata": {}, "spec": {
                "volumes": [{"name": "v", "emptyDir": {}}],
                "containers": [{"name": "c", "image": "i", "resources": {"limits": {"cpu": "100m"}}}],
            }}},
            "status": {},
        })
    );
}

#[test]
fn special_types_are_spelled_as_in_json() {
    let secret = [part(2, &[part(1, b"k"), part(2, b"\x00\xff")].concat()), part(3, b"Opaque")].concat();
    let object = from_envelope(&body("v1", "Secret", &secret)).unwrap();
    assert_eq!((&object["data"]["k"], &object["type"]), (&json!("AP8="), &json!("Opaque")));
    let port = |target: &[u8]| [vec![3 << 3, 80], part(4, target)].concat();
    let named = [vec![1 << 3, 1], part(3, b"http")].concat();
    let service =
        part(2, &[part(1, &port(&named)), part(1, &port(&[2 << 3, 90])), part(1, &port(b""))].concat());
    let ports = from_envelope(&body("v1", "Service", &service)).unwrap()["spec"]["ports"].clone();
    assert_eq!(
        ports,
        json!([{"port": 80, "targetPort": "http"}, {"port": 80, "targetPort": 90}, {"port": 80, "targetPort": 0}])
    );
    let options = from_envelope(&body("apps/v1", "DeleteOptions", &[1 << 3, 0])).unwrap();
    assert_eq!(options["gracePeriodSeconds"], 0);
}

#[test]
fn decoded_messages_have_implied_zero_fields() {
    let status = decode(message("core/v1.ContainerStatus").unwrap(), &part(1, b"c")).unwrap();
    assert_eq!(status["ready"], false);
    assert_eq!(status["restartCount"], 0);
    assert_eq!(status["state"], json!({}));
    let set = decode(message("apps/v1.ReplicaSet").unwrap(), b"").unwrap();
    let spec = json!({"selector": null, "template": {"metadata": {}, "spec": {"containers": null}}});
    assert_eq!(set, json!({"metadata": {}, "spec": spec, "status": {"replicas": 0}}));
    let policy = decode(message("networking/v1.IngressSpec").unwrap(), b"").unwrap();
    assert_eq!(policy, json!({}));
}

#[test]
fn the_bytes_are_those_of_kubernetes_encoder() {
    // By hand, from the behaviour of the generated encoder: `namespace` and the like are always written.
    let object = json!({"apiVersion": "v1", "kind": "ConfigMap",
        "metadata": {"name": "a", "namespace": "b", "uid": "u", "creationTimestamp": "1970-01-01T00:00:01Z"},
        "data": {"k": "v", "a": ""}});
    let wanted = [
        &b"k8s\0\x0a\x0f\x0a\x02v1\x12\x09ConfigMap\x12\x28"[..],
        b"\x0a\x17\x0a\x01a\x12\x00\x1a\x01b\x22\x00\x2a\x01u\x32\x00\x38\x00\x42\x04\x08\x01\x10\x00",
        b"\x12\x05\x0a\x01a\x12\x00\x12\x06\x0a\x01k\x12\x01v",
        b"\x1a\x00\x22\x00",
    ]
    .concat();
    assert_eq!(to_envelope(&object).unwrap(), wanted);
}

#[test]
fn values_without_an_encoding_are_refused() {
    let custom = json!({"apiVersion": "example.com/v1", "kind": "Pod", "metadata": {}});
    assert!(matches!(to_envelope(&custom), Err(Unencodable::Kind { .. })));
    let wrong = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {}, "spec": {"hostNetwork": "yes"}});
    let error = to_envelope(&wrong).unwrap_err();
    assert_eq!(error, Unencodable::Type { message: "core/v1.PodSpec", field: "hostNetwork" });
}

#[test]
fn files_that_are_not_elf_objects_are_refused() {
    for bad in [
        &b""[..],
        b"{}",
        b"k8s\0",
        b"k8s\0\x0a\xff",
        &body("v1", "Frob", b""),
        &body("v1", "Pod", b"\x0a\x05ab"),
        &body("v1", "Pod", b"\x0a\x03\x0a\x01\xff"),
    ] {
        assert!(from_envelope(bad).is_err(), "{bad:?}");
    }
}

#[test]
fn packed_numbers_groups_and_unknown_fields_are_read_as_protobuf_wants() {
    let security = message("core/v1.PodSecurityContext").unwrap();
    let packed = [part(4, &[1, 2, 0x80, 1]), vec![4 << 3, 7]].concat();
    assert_eq!(decode(security, &packed).unwrap()["supplementalGroups"], json!([1, 2, 128, 7]));
    // Field 100: a group that holds a group, then one of 32 bits.
    let unknown = [0xa3, 6, 0x0b, 8, 1, 0x0c, 0xa4, 6, 0xa5, 6, 1, 2, 3, 4, 2 << 3, 5];
    assert_eq!(decode(security, &unknown).unwrap()["runAsUser"], 5);
    assert!(decode(security, &[0xa3, 6, 0x0b]).is_err());
    let bomb = [0x0b].repeat(1000);
    assert_eq!(decode(security, &bomb), Err(Malformed::Deep));
}

#[test]
fn times_that_cannot_be_written_are_absent() {
    let meta = message("meta/v1.ObjectMeta").unwrap();
    // deletionTimestamp: nothing at all, the year -209, and one that there is.
    let far = (-68_000_000_000_i64).cast_unsigned();
    for (seconds, wanted) in [(None, None), (Some(far), None), (Some(1), Some("1970-01-01T00:00:01Z"))] {
        let mut out = Backward::default();
        if let Some(seconds) = seconds {
            out.integer(1, seconds.cast_signed());
        }
        let bytes = part(9, out.as_slice());
        let time = decode(meta, &bytes).unwrap().get("deletionTimestamp").cloned();
        assert_eq!(time, wanted.map(Value::from));
    }
}

#[test]
fn message_with_too_many_values_is_refused() {
    // A list of empty containers: two bytes each.
    let raw = part(2, &b"\x12\x00".repeat(1 << 20));
    assert_eq!(from_envelope(&body("v1", "Pod", &raw)), Err(Malformed::Large));
    assert_eq!(to_json(&body("v1", "Pod", &raw)), Err(Malformed::Large));
    // Schemas in schemas: `not` is field 28.
    let mut deep = Vec::new();
    for _ in 0..200 {
        deep = part(28, &deep);
    }
    assert_eq!(decode(message("apiextensions/v1.JSONSchemaProps").unwrap(), &deep), Err(Malformed::Deep));
    let mut embedded = b"{}".to_vec();
    for _ in 0..200 {
        embedded = body("apps/v1", "ControllerRevision", &part(2, &part(1, &embedded)));
    }
    assert_eq!(from_envelope(&embedded), Err(Malformed::Deep));
    assert_eq!(to_json(&embedded), Err(Malformed::Deep));
}

/// The files that Kubernetes' own encoders made: `k8s.io/api/testdata/HEAD` of the release that the
/// table is of, in the directory that the variable names.
#[test]
#[ignore = "needs what Kubernetes encoded: cargo xtask test"]
fn kubernetes_own_files_are_read_and_written_byte_for_byte() {
    let directory = std::env::var("HAWSER_KUBERNETES_TESTDATA")
        .expect("HAWSER_KUBERNETES_TESTDATA names a directory; `cargo xtask test` sets it");
    let mut checked = 0;
    for file in std::fs::read_dir(Path::new(&directory)).unwrap() {
        let path = file.unwrap().path();
        if path.extension().is_none_or(|e| e != "pb") {
            continue;
        }
        let bytes = std::fs::read(&path).unwrap();
        let json: Value =
            serde_json::from_slice(&std::fs::read(path.with_extension("json")).unwrap()).unwrap();
        let Some(message) = of_object(&json) else { continue };
        let name = path.display();
        assert_eq!(from_envelope(&bytes).unwrap(), json, "{name}");
        assert_eq!(serde_json::from_slice::<Value>(&to_json(&bytes).unwrap()).unwrap(), json, "{name}");
        assert_eq!(to_envelope(&json).unwrap(), bytes, "{name} {}", message.name());
        let read: Value = Encoded::open(&bytes).unwrap().read(Reading::default()).unwrap();
        assert_eq!(read, without_nulls(message, json), "{name}");
        checked += 1;
    }
    assert!(checked > 70, "{checked}");
}

proptest! {
    #[test]
    fn no_bytes_do_harm(raw in proptest::collection::vec(any::<u8>(), 0..300), which in any::<prop::sample::Index>()) {
        let all: Vec<_> = kinds().collect();
        let (version, kind, message) = all[which.index(all.len())];
        let whole = body(version, kind, &raw);
        if let (Ok(text), Ok(object)) = (to_json(&whole), from_envelope(&whole)) {
            prop_assert_eq!(serde_json::from_slice::<Value>(&text).unwrap(), object);
        }
        if let Ok(object) = from_envelope(&whole) {
            // Anything that can be read can be written, and read again.
            let bytes = encode(message, &object).unwrap();
            prop_assert!(decode(message, &bytes).is_ok());
        }
        let _ = from_envelope(&raw);
    }

    #[test]
    fn a_damaged_object_does_no_harm(seed in 1..1000_u64, at in any::<prop::sample::Index>(), with: u8) {
        let message = message("core/v1.Pod").unwrap();
        let object = Value::Object(Random::new(seed, 4).object(message, 5));
        let mut bytes = encode(message, &object).unwrap();
        let at = at.index(bytes.len());
        bytes[at] = with;
        for _ in 0..2 {
            let whole = body("v1", "Pod", &bytes);
            if let (Ok(text), Ok(object)) = (to_json(&whole), from_envelope(&whole)) {
                prop_assert_eq!(serde_json::from_slice::<Value>(&text).unwrap(), object);
            }
            bytes.truncate(at);
        }
    }
}
