//! Objects as the cache keeps them.

use super::*;

fn read(stored: &str, fields: &[&str]) -> Entry {
    Entry::read("ns/a".into(), 42, Bytes::copy_from_slice(stored.as_bytes()), &Fields::new(fields)).unwrap()
}

#[test]
fn the_resource_version_is_spliced_in_and_replaced_on_deletion() {
    let entry = read(r#"{"kind":"Pod","metadata":{"name":"a","labels":{"x":"y"}},"spec":{}}"#, &[]);
    let object: Value = serde_json::from_slice(&entry.object()).unwrap();
    assert_eq!(object["metadata"]["resourceVersion"], "42");
    assert_eq!(entry.labels["x"], "y");
    let event: Value = serde_json::from_slice(&entry.deleted(1000)).unwrap();
    assert_eq!(event["type"], "DELETED");
    assert_eq!(event["object"]["metadata"]["resourceVersion"], "1000");
    assert_eq!(event["object"]["metadata"]["name"], "a");
    let event: Value = serde_json::from_slice(&entry.modified()).unwrap();
    assert_eq!(event["type"], "MODIFIED");
}

#[test]
fn metadata_alone_are_those_of_the_object() {
    for stored in [
        r#"{"kind":"Pod","metadata":{"name":"a","annotations":{"b":"}\"{","c":"é"}},"spec":{"metadata":{}}}"#,
        r#"{"metadata":{},"spec":{}}"#,
        r#"{"metadata": { } ,"spec":{}}"#,
    ] {
        let entry = read(stored, &[]);
        let object: Value = serde_json::from_slice(&entry.object()).unwrap();
        assert_eq!(entry.metadata(), object["metadata"], "{stored}");
        let message = protobuf::of_kind("v1", "Pod").unwrap();
        let mut encoded = Backward::default();
        entry.put_protobuf(&mut encoded, message).unwrap();
        assert_eq!(encoded.as_slice(), protobuf::encode(message, &object).unwrap(), "{stored}");
    }
}

#[test]
fn items_of_lists_have_no_version_and_no_kind_of_their_own() {
    // The cases that the text shows without being parsed.
    for (shown, stored) in [
        (true, r#"{"kind":"Pod","apiVersion":"v1","metadata":{"name":"a"},"spec":{"kind":"b"}}"#),
        (true, r#"{"kind":"Pod","apiVersion":"v1","metadata":{}}"#),
        (true, r#"{"kind":"ConfigMap","apiVersion":"v1","metadata":{"name":"a"},"data":{"kind":"x"}}"#),
        (false, r#"{"apiVersion":"v1","kind":"Pod","metadata":{"name":"a"}}"#),
        (false, r#"{ "kind": "Pod", "apiVersion": "v1", "metadata": { "name": "a" } }"#),
        (false, r#"{"kind":"Pod","metadata":{"name":"a"},"apiVersion":"v1"}"#),
    ] {
        let entry = read(stored, &[]);
        assert_eq!(entry.names_end().is_some(), shown, "{stored}");
        let mut out = BytesMut::new();
        entry.put_item(&mut out);
        let item: Value = serde_json::from_slice(&out).unwrap();
        let mut wanted: Value = serde_json::from_slice(&entry.object()).unwrap();
        for name in ["apiVersion", "kind"] {
            wanted.as_object_mut().unwrap().remove(name).unwrap();
        }
        assert_eq!(item, wanted, "{stored}");
        assert_eq!(entry.item(), wanted, "{stored}");
        assert!(out.len() <= entry.object_len(), "{stored}");
    }
}

#[test]
fn the_resource_version_stands_behind_the_uid_or_where_the_alphabet_has_it() {
    let put = |text: &str| text.replace('#', r#""resourceVersion":"42""#);
    for text in [
        r##"{"kind":"Pod","apiVersion":"v1","metadata":{"name":"a","uid":"u",#,"labels":{"a":"b"}},"spec":{}}"##,
        r##"{"kind":"Pod","apiVersion":"v1","metadata":{"name":"a","uid":"u",#}}"##,
        r##"{"kind":"Pod","apiVersion":"v1","metadata":{#,"labels":{"a":"b"}}}"##,
        r##"{"kind":"Pod","apiVersion":"v1","metadata":{#}}"##,
        r##"{"apiVersion":"e/v1","kind":"Foo","metadata":{"labels":{"z":"b"},"name":"a",#,"uid":"u"}}"##,
        r##"{"apiVersion":"e/v1","kind":"Foo","metadata":{"name":"a",#}}"##,
    ] {
        let stored = text.replace(",#", "").replace("#,", "").replace('#', "");
        let entry = read(&stored, &[]);
        assert_eq!(entry.object(), put(text), "{stored}");
        assert_eq!(entry.object().len(), entry.object_len());
        assert_eq!(entry.added(), format!("{{\"type\":\"ADDED\",\"object\":{}}}\n", put(text)));
    }
}

#[test]
fn metadata_alone_have_the_order_of_their_type() {
    let entry = read(
        r#"{"apiVersion":"e/v1","kind":"Foo","metadata":{"labels":{"z":"b"},"name":"a","uid":"u"}}"#,
        &[],
    );
    let wanted = r#"{"name":"a","uid":"u","resourceVersion":"42","labels":{"z":"b"}}"#;
    assert_eq!(entry.metadata_text(), wanted);
}

#[test]
fn empty_metadata_and_a_foreign_resource_version_are_handled() {
    let entry = read(r#"{"metadata":{}}"#, &[]);
    assert_eq!(&entry.object()[..], br#"{"metadata":{"resourceVersion":"42"}}"#);
    let entry = read(r#"{"metadata":{"resourceVersion":"7","name":"a"}}"#, &[]);
    let object: Value = serde_json::from_slice(&entry.object()).unwrap();
    assert_eq!(object["metadata"]["resourceVersion"], "42");
}

#[test]
fn fields_are_found_in_one_pass_and_absent_ones_have_their_zero() {
    let fields = ["spec.nodeName", "status.phase", "spec.unschedulable", "status.podIPs"];
    let entry = read(
        r#"{"metadata":{"name":"a"},"spec":{"containers":[{"nodeName":"no"}],"nodeName":"n1"},
           "status":{"podIPs":[{"ip":"10.0.0.1"},{"ip":"fd00::1"}]}}"#,
        &fields,
    );
    let values: Vec<&str> = (0..5).map(|place| entry.field(place)).collect();
    assert_eq!(values, ["n1", "", "false", "10.0.0.1,fd00::1", ""]);
    assert_eq!(entry.object().len(), entry.object_len());
}

#[test]
fn stored_value_that_is_no_object_is_refused() {
    for stored in [&b"k8s\0..."[..], b"[]", br#"{"metadata":7}"#, br#"{"kind":"Pod"}"#] {
        assert!(Entry::read("a".into(), 1, Bytes::from_static(stored), &Fields::default()).is_err());
    }
}

#[test]
fn values_are_those_that_the_text_means() {
    let fields = ["spec.a", "spec.b", "spec.c", "spec.d", "spec.e", "status.podIPs", "metadata.labels.x"];
    let entry = read(
        r#"{"metadata":{"name":"a","labels":{"x":"\u0079"},"uid":"u\u0031"},
           "spec":{"a":"q\"uote","b":12,"c":1e2,"d":true,"e":null},"status":{"podIPs":[{"ip":"10.0.0.1"}]}}"#,
        &fields,
    );
    let values: Vec<&str> = (0..fields.len()).map(|place| entry.field(place)).collect();
    assert_eq!(values, ["q\"uote", "12", "100.0", "true", "", "10.0.0.1", "y"]);
    assert_eq!((entry.uid(), entry.label("x")), ("u1", Some("y")));
    let entry = read(r#"{"metadata":{"name":"a","uid":"u2"}}"#, &["metadata.uid", "metadata.name"]);
    assert_eq!((entry.uid(), entry.field(0), entry.field(1)), ("u2", "u2", "a"));
}

#[test]
fn the_version_goes_in_however_the_metadata_are_written() {
    for stored in [
        r#"{"metadata":{"name":"a"}}"#,
        r#"{"metadata": {"name":"a"}}"#,
        r#"{"metadata":{ "name":"a"}}"#,
        r#"{"metadata":{"na\u006de":"a"}}"#,
        r#"{ "metadata" : { "name" : "a" , "resourceVersion" : null } }"#,
    ] {
        let entry = read(stored, &[]);
        let object: Value = serde_json::from_slice(&entry.object()).unwrap();
        assert_eq!(object["metadata"]["name"], "a", "{stored}");
        assert!(object.to_string().contains(r#""resourceVersion":""#) || stored.contains("null"), "{stored}");
        assert_eq!(entry.object().len(), entry.object_len());
        assert!(entry.metadata_text().contains(r#""resourceVersion":"42""#));
    }
}

/// The memory of an object besides its text is counted in bytes: see "memory" in the benchmarks.
#[test]
fn an_object_in_the_cache_takes_little_beside_its_text() {
    assert!(size_of::<Entry>() <= 104, "{}", size_of::<Entry>());
    let entry = read(r#"{"metadata":{"name":"a","uid":"u"},"spec":{"nodeName":"n"}}"#, &["spec.nodeName"]);
    assert_eq!((entry.uid(), entry.field(0)), ("u", "n"));
}
