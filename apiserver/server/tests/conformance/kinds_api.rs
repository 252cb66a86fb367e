//! Kinds of the API itself: flow control, admission, certificates, events, leases.

use serde_json::{Value, json};

use crate::conformance::operations::{Kind, condition, operations};

const ADMISSION: &str = "admissionregistration.k8s.io";

#[tokio::test]
async fn flow_schemas() {
    let object = json!({"spec": {"matchingPrecedence": 10000, "priorityLevelConfiguration": {"name": "global-default"},
        "rules": [{"subjects": [{"kind": "User", "user": {"name": "example-e2e-flow-schema"}}],
            "nonResourceRules": [{"verbs": ["*"], "nonResourceURLs": ["/"]}]}]}});
    let kind = Kind::new("flowcontrol.apiserver.k8s.io", "v1", "flowschemas", &object).of_cluster();
    // The server's own condition stays as it is, so that it has nothing to add.
    let level = "This FlowSchema references the PriorityLevelConfiguration object named";
    let found = json!({"type": "Dangling", "status": "False", "reason": "Found",
        "message": format!("{level} \"global-default\" and it exists"), "lastTransitionTime": "2026-01-01T00:00:00Z"});
    let status = json!({"conditions": [found, condition("FlowSchemaConditionType")]});
    operations(kind.with_status(status).marked()).await;
}

#[tokio::test]
async fn priority_level_configurations() {
    let object = json!({"spec": {"type": "Limited",
        "limited": {"nominalConcurrencyShares": 2, "limitResponse": {"type": "Reject"}}}});
    let kind =
        Kind::new("flowcontrol.apiserver.k8s.io", "v1", "prioritylevelconfigurations", &object).of_cluster();
    operations(kind.with_status(json!({"conditions": [condition("TestType")]}))).await;
}

fn policy_rules() -> Value {
    json!({"resourceRules": [{"operations": ["CREATE"], "apiGroups": ["apps"], "apiVersions": ["v1"],
        "resources": ["deployments"]}]})
}

#[tokio::test]
async fn validating_admission_policies() {
    let object = json!({"spec": {"matchConstraints": policy_rules(), "failurePolicy": "Fail",
        "validations": [{"expression": "object.spec.replicas <= 100"}]}});
    let kind = Kind::new(ADMISSION, "v1", "validatingadmissionpolicies", &object).of_cluster();
    operations(kind.with_status(json!({"conditions": [condition("Tested")]}))).await;
}

#[tokio::test]
async fn validating_admission_policy_bindings() {
    let object =
        json!({"spec": {"policyName": "replicalimit-policy.example.com", "validationActions": ["Deny"]}});
    operations(Kind::new(ADMISSION, "v1", "validatingadmissionpolicybindings", &object).of_cluster()).await;
}

#[tokio::test]
async fn mutating_admission_policies() {
    let object = json!({"spec": {"matchConstraints": policy_rules(), "reinvocationPolicy": "Never",
        "mutations": [{"patchType": "ApplyConfiguration",
            "applyConfiguration": {"expression": "Object{metadata: Object.metadata{annotations: {\"a\": \"b\"}}}"}}]}});
    operations(Kind::new(ADMISSION, "v1", "mutatingadmissionpolicies", &object).of_cluster()).await;
}

#[tokio::test]
async fn mutating_admission_policy_bindings() {
    let object = json!({"spec": {"policyName": "annotate.example.com"}});
    operations(Kind::new(ADMISSION, "v1", "mutatingadmissionpolicybindings", &object).of_cluster()).await;
}

fn webhooks() -> Value {
    json!({"webhooks": [{"name": "hook.example.com", "sideEffects": "None", "admissionReviewVersions": ["v1"],
        "clientConfig": {"url": "https://example.com/hook"},
        "rules": [{"operations": ["CREATE"], "apiGroups": [""], "apiVersions": ["v1"], "resources": ["configmaps"]}],
        "matchConditions": [{"name": "expression-1", "expression": "object.metadata.name != 'skip'"}]}]})
}

#[tokio::test]
async fn mutating_webhook_configurations() {
    operations(Kind::new(ADMISSION, "v1", "mutatingwebhookconfigurations", &webhooks()).of_cluster()).await;
}

#[tokio::test]
async fn validating_webhook_configurations() {
    operations(Kind::new(ADMISSION, "v1", "validatingwebhookconfigurations", &webhooks()).of_cluster()).await;
}

#[tokio::test]
async fn webhook_configurations_keep_match_conditions() {
    let api = crate::api::harness::Api::start().await;
    for plural in ["mutatingwebhookconfigurations", "validatingwebhookconfigurations"] {
        let path = format!("/apis/{ADMISSION}/v1/{plural}");
        let mut object = webhooks();
        object["metadata"]["name"] = "conditions".into();
        let made = api.post(&path, object).await.expect(201).body;
        assert_eq!(made["webhooks"][0]["matchConditions"][0]["name"], "expression-1");
        let mut changed = made;
        changed["webhooks"][0]["matchConditions"] =
            json!([{"name": "expression-2", "expression": "object.metadata.namespace == 'production'"}]);
        api.put(&format!("{path}/conditions"), changed.clone()).await.expect(200);
        let read = api.get(&format!("{path}/conditions")).await.expect(200).body;
        assert_eq!(read["webhooks"][0]["matchConditions"], changed["webhooks"][0]["matchConditions"]);
    }
}

#[tokio::test]
async fn webhook_configurations_with_invalid_match_conditions_are_rejected() {
    let api = crate::api::harness::Api::start().await;
    for plural in ["mutatingwebhookconfigurations", "validatingwebhookconfigurations"] {
        let path = format!("/apis/{ADMISSION}/v1/{plural}");
        let mut object = webhooks();
        object["metadata"]["name"] = "conditions".into();
        object["webhooks"][0]["matchConditions"] = json!([
            {"name": "invalid-expression-1", "expression": "... [] bad expression"},
            {"name": "invalid-expression-2", "expression": "... [] bad expression"}]);
        let refused = api.post(&path, object.clone()).await.expect(422);
        let causes = refused.body["details"]["causes"].as_array().unwrap();
        assert_eq!(causes.len(), 2);
        for (index, cause) in causes.iter().enumerate() {
            assert_eq!(cause["field"], format!("webhooks[0].matchConditions[{index}].expression"));
            assert!(cause["message"].as_str().unwrap().contains("compilation failed"), "{cause}");
        }
        api.get(&format!("{path}/conditions")).await.expect(404);
        // Nor may one that compiles be made into one that does not, or asks for no yes or no.
        object["webhooks"][0]["matchConditions"] = json!([{"name": "a", "expression": "true"}]);
        let mut made = api.post(&path, object).await.expect(201).body;
        for bad in ["object.metadata.name", "request.nothing == 1", "params.x", "1 + 'a' == 2"] {
            made["webhooks"][0]["matchConditions"] = json!([{"name": "a", "expression": bad}]);
            api.put(&format!("{path}/conditions"), made.clone()).await.expect(422);
        }
    }
}

#[tokio::test]
async fn certificate_signing_requests() {
    let request = include_str!("../../../../tests/clients/tests/kubectl/joe.csr.base64").trim();
    let object = json!({"spec": {"request": request, "signerName": "example.com/e2e", "expirationSeconds": 3600,
        "usages": ["digital signature", "key encipherment", "server auth"]}});
    let kind = Kind::new("certificates.k8s.io", "v1", "certificatesigningrequests", &object).of_cluster();
    operations(kind.with_status(json!({"conditions": [condition("StatusUpdate")]}))).await;
}

#[tokio::test]
async fn core_events() {
    let object = json!({"involvedObject": {"namespace": "default"}, "reason": "Test", "type": "Normal",
        "message": "This is a test event", "source": {"component": "test"}});
    operations(Kind::new("", "v1", "events", &object)).await;
}

#[tokio::test]
async fn events_with_series() {
    let object = json!({"regarding": {"namespace": "default", "kind": "Pod", "name": "p"}, "action": "Do", "reason": "Test",
        "type": "Normal", "note": "a note", "eventTime": "2026-01-01T00:00:00.000001Z",
        "reportingController": "example.com/test", "reportingInstance": "test-node"});
    operations(Kind::new("events.k8s.io", "v1", "events", &object)).await;
}

#[tokio::test]
async fn leases() {
    let object = json!({"spec": {"holderIdentity": "holder", "leaseDurationSeconds": 30, "leaseTransitions": 0,
        "acquireTime": "2026-01-01T00:00:00.000000Z", "renewTime": "2026-01-01T00:00:05.000000Z"}});
    operations(Kind::new("coordination.k8s.io", "v1", "leases", &object)).await;
}
