//! Admission, aggregation, flow control, certificates of pods.

use serde_json::{Map, Value};

use super::{Object, each, fill, fill_absent, fill_zero, is, made, object, with_spec};

/// The default lifetime of a pod's certificate in seconds.
const DAY: i64 = 86_400;

/// Defaults of a ValidatingWebhookConfiguration.
pub fn validating_webhooks(value: &mut Value) {
    let Value::Object(map) = value else { return };
    each(map, "webhooks", webhook);
}

/// Defaults of a MutatingWebhookConfiguration.
pub fn mutating_webhooks(value: &mut Value) {
    let Value::Object(map) = value else { return };
    each(map, "webhooks", |hook| {
        webhook(hook);
        fill_absent(hook, "reinvocationPolicy", "Never");
    });
}

fn webhook(hook: &mut Object) {
    fill_absent(hook, "failurePolicy", "Fail");
    fill(hook, "timeoutSeconds", 10);
    selectors(hook);
    each(hook, "rules", |rule| fill_absent(rule, "scope", "*"));
    if let Some(service) = object(hook, "clientConfig").and_then(|config| object(config, "service")) {
        fill(service, "port", 443);
    }
}

/// Fills in selectors that match every object, and the match policy for every version.
fn selectors(holder: &mut Object) {
    fill_absent(holder, "matchPolicy", "Equivalent");
    fill(holder, "namespaceSelector", Map::new());
    fill(holder, "objectSelector", Map::new());
}

/// Defaults of an admission policy of either sort.
pub fn policy(value: &mut Value) {
    with_spec(value, |spec| {
        fill_absent(spec, "failurePolicy", "Fail");
        if let Some(constraints) = object(spec, "matchConstraints") {
            match_resources(constraints);
        }
    });
}

/// Defaults of a binding of either sort.
pub fn policy_binding(value: &mut Value) {
    with_spec(value, |spec| {
        if let Some(resources) = object(spec, "matchResources") {
            match_resources(resources);
        }
    });
}

/// Defaults of a binding in `v1alpha1`, where a missing parameter denies unless the binding says otherwise.
pub fn alpha_policy_binding(value: &mut Value) {
    policy_binding(value);
    with_spec(value, |spec| {
        if let Some(parameter) = object(spec, "paramRef") {
            fill_absent(parameter, "parameterNotFoundAction", "Deny");
        }
    });
}

fn match_resources(constraints: &mut Object) {
    selectors(constraints);
    for rules in ["resourceRules", "excludeResourceRules"] {
        each(constraints, rules, |rule| fill_absent(rule, "scope", "*"));
    }
}

/// Defaults of an APIService.
pub fn api_service(value: &mut Value) {
    with_spec(value, |spec| {
        if let Some(service) = object(spec, "service") {
            fill(service, "port", 443);
        }
    });
}

/// An APIService that this server answers itself is available from the start; about others nothing
/// is known yet.
pub fn prepare_create_api_service(value: &mut Value) {
    let local = value.pointer("/spec/service").is_none_or(Value::is_null);
    if let (true, Value::Object(map)) = (local, value) {
        let mut condition = serde_json::json!({
            "type": "Available", "status": "True", "reason": "Local",
            "message": "Local APIServices are always available",
        });
        if let Some(created) = map.get("metadata").and_then(|metadata| metadata.get("creationTimestamp")) {
            condition["lastTransitionTime"] = created.clone();
        }
        map.insert("status".to_owned(), serde_json::json!({"conditions": [condition]}));
    }
}

/// Defaults of a FlowSchema.
pub fn flow_schema(value: &mut Value) {
    with_spec(value, |spec| fill_zero(spec, "matchingPrecedence", 1000));
}

/// Defaults of a PriorityLevelConfiguration.
pub fn priority_level(value: &mut Value) {
    with_spec(value, |spec| {
        if is(spec, "type", "Exempt")
            && let Some(exempt) = made(spec, "exempt")
        {
            fill(exempt, "nominalConcurrencyShares", 0);
            fill(exempt, "lendablePercent", 0);
        }
        let Some(limited) = object(spec, "limited") else { return };
        fill(limited, "nominalConcurrencyShares", 30);
        fill(limited, "lendablePercent", 0);
        let Some(queuing) = object(limited, "limitResponse").and_then(|r| object(r, "queuing")) else {
            return;
        };
        for (field, number) in [("handSize", 8), ("queues", 64), ("queueLengthLimit", 50)] {
            fill_zero(queuing, field, number);
        }
    });
}

/// Defaults of a PodCertificateRequest.
pub fn pod_certificate(value: &mut Value) {
    with_spec(value, |spec| fill(spec, "maxExpirationSeconds", DAY));
}
