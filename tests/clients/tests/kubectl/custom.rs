//! Custom resources: how kubectl uses their schemas, and how the server applies them.

use serde_json::{Value, json};
use tests_clients::{Api, Kubectl, each_kubectl};

/// Defines `foos` with this schema, and waits until kubectl can use them.
fn define(kubectl: &Kubectl<'_>, schema: &Value) {
    let definition = json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": "foos.kubectl.example.com"},
        "spec": {"group": "kubectl.example.com", "scope": "Namespaced",
            "names": {"plural": "foos", "singular": "foo", "kind": "Foo", "listKind": "FooList"},
            "versions": [{"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": schema}}]}});
    kubectl.feed("create -f -", &definition.to_string());
    // kubectl fails while there are no conditions: they are `null` then, as in Kubernetes.
    let mut attempts = (0..600).map(|_| {
        kubectl.attempt("wait --for=condition=Established --timeout=60s crd/foos.kubectl.example.com", "")
    });
    let ended = attempts.find(|outcome| outcome.success || !outcome.stderr.contains("accessor error"));
    assert!(
        ended.as_ref().is_some_and(|outcome| outcome.success),
        "{:?}",
        ended.map(|outcome| outcome.stderr)
    );
}

fn foo(fields: &Value) -> String {
    let mut object =
        json!({"apiVersion": "kubectl.example.com/v1", "kind": "Foo", "metadata": {"name": "test"}});
    for (key, value) in fields.as_object().unwrap() {
        object[key] = value.clone();
    }
    object.to_string()
}

/// Creates an object, applies it with a change and deletes it; then applies it from scratch and deletes it.
fn is_accepted(kubectl: &Kubectl<'_>, one: &Value, two: &Value) {
    assert_eq!(kubectl.feed("create -f -", &foo(one)), "foo.kubectl.example.com/test created\n");
    kubectl.run("delete foos test");
    assert_eq!(kubectl.feed("apply -f -", &foo(one)), "foo.kubectl.example.com/test created\n");
    assert_eq!(kubectl.feed("apply -f -", &foo(two)), "foo.kubectl.example.com/test configured\n");
    kubectl.run("delete foos test");
}

#[test]
#[ignore = "needs kubectl and the binary: cargo xtask test"]
fn a_schema_is_checked_and_explained() -> anyhow::Result<()> {
    each_kubectl(Api::start, |kubectl| {
        let bar = json!({"type": "object", "required": ["name"], "properties": {
            "name": {"type": "string", "description": "Name of Bar."},
            "age": {"type": "string", "description": "Age of Bar."},
            "bazs": {"type": "array", "description": "List of Bazs.", "items": {"type": "string"}}}});
        define(
            kubectl,
            &json!({"type": "object", "description": "Foo CRD for Testing", "properties": {
            "spec": {"type": "object", "description": "Specification of Foo",
                "properties": {"bars": {"type": "array", "description": "List of Bars and their specs.", "items": bar}}}}}),
        );
        let bars = |bar: Value| json!({"spec": {"bars": [bar]}});
        is_accepted(
            kubectl,
            &bars(json!({"name": "a"})),
            &bars(json!({"name": "a", "age": "10", "bazs": ["on"]})),
        );
        for (line, wrong, text) in [
            ("create", json!({"spec": {"foo": true}}), "unknown field \"spec.foo\""),
            ("apply", json!({"spec": {"foo": true}}), "unknown field \"spec.foo\""),
            ("create", bars(json!({"age": "10"})), "spec.bars[0].name: Required value"),
            ("apply", bars(json!({"age": "10"})), "spec.bars[0].name: Required value"),
            ("create", bars(json!({"name": 7})), "spec.bars[0].name: Invalid value: \"integer\""),
        ] {
            let refused = kubectl.fails_with(&format!("{line} -f -"), &foo(&wrong));
            assert!(refused.contains(text), "{line}: {refused}");
        }
        kubectl.shows(
            "explain foos",
            &[
                "DESCRIPTION:",
                "Foo CRD for Testing",
                "FIELDS:",
                "apiVersion\t<string>",
                "metadata\t<ObjectMeta>",
                "spec\t<Object>",
            ],
        );
        kubectl.shows("explain foos.metadata", &["DESCRIPTION:", "creationTimestamp"]);
        kubectl.shows("explain foos.spec", &["Specification of Foo", "bars\t<[]Object>"]);
        kubectl.shows(
            "explain foos.spec.bars",
            &["bars <[]Object>", "name\t<string> -required-", "Age of Bar."],
        );
        kubectl.shows("explain foos.spec.bars.bazs", &["List of Bazs."]);
        let refused = kubectl.fails("explain foos.spec.bars2");
        assert!(refused.contains("field \"bars2\" does not exist"), "{refused}");
    })
}

#[test]
#[ignore = "needs kubectl and the binary: cargo xtask test"]
fn without_properties_everything_is_kept_and_described() -> anyhow::Result<()> {
    each_kubectl(Api::start, |kubectl| {
        define(
            kubectl,
            &json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true, "description": "empty"}),
        );
        is_accepted(kubectl, &json!({"a": {"b": [{"c": "d"}]}}), &json!({"a": {"b": [{"c": "e"}]}}));
        kubectl.shows("explain foos", &["DESCRIPTION:", "empty"]);
    })
}

#[test]
#[ignore = "needs kubectl and the binary: cargo xtask test"]
fn unknown_fields_at_the_root_are_kept_and_explained() -> anyhow::Result<()> {
    each_kubectl(Api::start, |kubectl| {
        define(
            kubectl,
            &json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true,
            "properties": {"spec": {"type": "object", "properties": {"known": {"type": "string"}}}}}),
        );
        is_accepted(
            kubectl,
            &json!({"a": 1, "spec": {"known": "x"}}),
            &json!({"a": 2, "spec": {"known": "y"}}),
        );
        kubectl.shows("explain foos", &["KIND:       Foo"]);
    })
}

#[test]
#[ignore = "needs kubectl and the binary: cargo xtask test"]
fn unknown_fields_below_are_kept_and_explained() -> anyhow::Result<()> {
    each_kubectl(Api::start, |kubectl| {
        define(
            kubectl,
            &json!({"type": "object", "description": "preserve-unknown-properties in nested field for Testing", "properties": {
            "spec": {"type": "object", "description": "Specification of Waldo", "properties": {
                "dummy": {"type": "object", "description": "Dummy property.", "x-kubernetes-preserve-unknown-fields": true}}}}}),
        );
        is_accepted(
            kubectl,
            &json!({"spec": {"dummy": {"b": [{"c": "d"}]}}}),
            &json!({"spec": {"dummy": {"b": []}}}),
        );
        kubectl.shows(
            "explain foos",
            &["KIND:       Foo", "preserve-unknown-properties in nested field for Testing"],
        );
        kubectl.shows("explain foos.spec", &["Specification of Waldo", "dummy\t<Object>", "Dummy property."]);
    })
}
