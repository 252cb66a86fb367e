//! Tests of rules and patterns that would run for ever: they are refused or stopped by their cost, never by a
//! clock.

use serde_json::{Value, json};

use crate::api::harness::{Api, Reply};

pub const CRDS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
pub const FROBS: &str = "/apis/example.com/v1/namespaces/default/frobs";

/// A definition of `frobs.example.com` with this schema.
pub fn definition(schema: Value) -> Value {
    json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": "frobs.example.com"},
        "spec": {
            "group": "example.com", "scope": "Namespaced",
            "names": {"plural": "frobs", "singular": "frob", "kind": "Frob", "listKind": "FrobList"},
            "versions": [{"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": schema}}],
        },
    })
}

fn with_rule(list: Value, rule: &str) -> Value {
    definition(json!({
        "type": "object",
        "properties": {"spec": {
            "type": "object", "properties": {"l": list},
            "x-kubernetes-validations": [{"rule": rule}],
        }},
    }))
}

/// Sends a custom resource as soon as its kind is there.
/// An object of the kind.
pub fn frob(mut object: Value) -> Value {
    object["apiVersion"] = "example.com/v1".into();
    object["kind"] = "Frob".into();
    object
}

async fn create(api: &Api, object: Value) -> Reply {
    let object = frob(object);
    loop {
        let reply = api.post(FROBS, object.clone()).await;
        if reply.code != 404 {
            return reply;
        }
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn rules_that_may_cost_too_much_are_not_accepted() {
    let api = Api::start().await;
    let unbounded = json!({"type": "array", "items": {"type": "string"}});
    let nested = "self.l.all(a, self.l.all(b, self.l.all(c, self.l.all(d, a + b + c + d != ''))))";
    let growing = (0..10).fold("'x'".to_owned(), |text, _| format!("({text} + {text})"));
    for rule in [
        nested.to_owned(),
        "self.l.all(a, a.matches('^(a+)+$') && self.l.exists(b, b.matches(a)))".to_owned(),
        growing.chars().take(20_000).collect(),
        "(".repeat(5_000) + "true" + &")".repeat(5_000),
        "self.l[".repeat(2_000),
        // The parser needed 12 seconds for this one, before it found the end missing.
        "[".repeat(10_000),
        // And lost count in this one.
        "a ? b : ".repeat(1_500) + "true",
        "true ||".repeat(20_000) + " true",
    ] {
        let refused = api.post(CRDS, with_rule(unbounded.clone(), &rule)).await.expect(422);
        assert_eq!(refused.reason(), "Invalid");
        assert!(refused.message().contains("x-kubernetes-validations[0].rule"), "{}", &refused.text[..300]);
    }
    api.get(&format!("{CRDS}/frobs.example.com")).await.expect(404);
}

#[tokio::test]
async fn a_rule_that_a_large_object_makes_dear_is_stopped() {
    let api = Api::start().await;
    let short = json!({"type": "array", "maxItems": 3000, "items": {"type": "string", "maxLength": 5}});
    // Quadratic: bounded by what the schema allows, and still more than one call may cost.
    let rule = "self.l.all(a, self.l.exists(b, a == b))";
    let accepted = api.post(CRDS, with_rule(short, rule)).await;
    if accepted.code == 422 {
        assert!(accepted.message().contains("estimated rule cost exceeds budget"), "{}", accepted.text);
        return;
    }
    let list: Vec<String> = (0..3000).map(|i| i.to_string()).collect();
    let refused = create(&api, json!({"metadata": {"name": "a"}, "spec": {"l": list}})).await.expect(422);
    assert!(refused.message().contains("cost"), "{}", refused.text);
}

#[tokio::test]
async fn patterns_take_time_linear_in_the_text() {
    let api = Api::start().await;
    let pattern = |text: &str| {
        definition(json!({"type": "object", "properties": {"p": {"type": "string", "pattern": text}}}))
    };
    for bad in ["(a", "a{1001}", "((a{1000}){1000}){1000}", r"\1", "(?=a)"] {
        let refused = api.post(CRDS, pattern(bad)).await.expect(422);
        assert!(refused.message().contains("pattern"), "{}", refused.text);
    }
    api.post(CRDS, pattern("^(a|a)*(a+)+$")).await.expect(201);
    // A backtracking engine would need 2 to the 100,000th steps.
    let text = format!("{}b", "a".repeat(100_000));
    let refused = create(&api, json!({"metadata": {"name": "a"}, "p": text})).await.expect(422);
    assert!(refused.message().contains("should match '^(a|a)*(a+)+$'"), "{}", &refused.text[..100]);
}
