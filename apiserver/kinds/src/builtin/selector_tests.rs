//! Field selectors of built-in kinds.

use apiserver_registry::FieldSelector;
use apiserver_registry::Resource;
use serde_json::json;

fn pods() -> std::sync::Arc<Resource> {
    crate::registry().lookup("", "v1", "pods").unwrap().clone()
}

#[test]
fn declared_fields_select_by_equality_and_inequality() {
    let pod = json!({
        "metadata": {"name": "a", "namespace": "b"},
        "spec": {"nodeName": "n1"},
        "status": {"phase": "Running", "podIPs": [{"ip": "10.0.0.1"}, {"ip": "fd00::1"}]},
    });
    let cases = [
        ("", true),
        ("spec.nodeName=n1", true),
        ("spec.nodeName==n1,status.phase!=Failed", true),
        ("spec.host=n1", true),
        ("spec.nodeName!=n1", false),
        ("metadata.name=a,metadata.namespace=b", true),
        ("spec.hostNetwork=false", true),
        ("status.nominatedNodeName=", true),
        ("status.podIPs=10.0.0.1\\,fd00::1", true),
    ];
    for (text, matches) in cases {
        let selector = FieldSelector::parse(text).unwrap();
        selector.supported(&pods()).unwrap();
        assert_eq!(selector.matches(&pod, &pods()), matches, "{text}");
    }
}

#[test]
fn unknown_fields_and_malformed_selectors_are_bad_requests() {
    let error = FieldSelector::parse("spec.color=red").unwrap().supported(&pods()).unwrap_err();
    assert_eq!((error.code, error.message.as_str()), (400, "field label not supported: spec.color"));
    assert_eq!(
        FieldSelector::parse("oops").unwrap_err().message,
        "invalid selector: 'oops'; can't understand 'oops'"
    );
    assert!(FieldSelector::parse("a=b=c").is_err());
    assert!(FieldSelector::parse("a=b\\c").is_err());
}
