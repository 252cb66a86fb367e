//! Webhooks and bindings of policies: defaults of one version alone, and Kubernetes' own words.

use serde_json::{Value, json};

use super::extension_tests::{MUTATING, errors, merge, refused, webhook};

#[test]
fn the_service_and_the_url_of_a_webhook_are_judged_as_kubernetes_does() {
    let errors_of = |config: Value| {
        let mut object = webhook(json!({}));
        object["webhooks"][0]["clientConfig"] = config;
        errors(MUTATING, &object)
    };
    let path = "webhooks[0].clientConfig";
    let missing = format!("{path}.service.name: Required value");
    assert_eq!(errors_of(json!({"service": {"name": "s"}})), [missing]);
    let told = errors_of(json!({"service": {"name": "s", "namespace": "n", "path": "x/Y/"}}));
    let wanted = ["must start with a '/'", "segment[0] may not be empty", "segment[1]: "];
    assert!(told.iter().zip(wanted).all(|(told, wanted)| told.contains(wanted)), "{told:?}");
    assert_eq!(told.len(), wanted.len());
    let (scheme, host) = ("'https' is the only allowed URL scheme", "host must be specified");
    let form = "desired format: https://host[/path]";
    let told = [scheme, host].map(|why| format!("{path}.url: Invalid value: \"\": {why}; {form}"));
    assert_eq!(errors_of(json!({"url": "example.com/https://h/v"})), told);
    let wrong = format!(
        "{path}.url: Required value: url must be a valid URL: parse \"://x\": missing protocol scheme; {form}"
    );
    assert_eq!(errors_of(json!({"url": "://x"})), [wrong]);
}

#[test]
fn a_missing_parameter_denies_by_default_in_v1alpha1_alone() {
    let binding = json!({"spec": {"policyName": "p", "paramRef": {"name": "n"}}});
    let path =
        |version: &str| format!("admissionregistration.k8s.io/{version}/mutatingadmissionpolicybindings");
    refused(&path("v1alpha1"), &binding, &[]);
    let missing = "spec.paramRef.parameterNotFoundAction: Required value";
    for version in ["v1beta1", "v1"] {
        assert_eq!(errors(&path(version), &binding), [missing], "{version}");
    }
    let empty = merge(&binding, &json!({"spec": {"paramRef": {"parameterNotFoundAction": ""}}}));
    assert_eq!(errors(&path("v1"), &empty), [missing]);
}

#[test]
fn faults_of_policies_are_told_in_kubernetes_order() {
    let path = "admissionregistration.k8s.io/v1/mutatingadmissionpolicies";
    let rule = json!({"apiGroups": ["apps"], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["deployments"]});
    let mutation =
        json!({"patchType": "JSONPatch", "jsonPatch": {}, "applyConfiguration": {"expression": "Object{}"}});
    let condition = |expression: &str| json!({"name": "c", "expression": expression});
    let policy = json!({"spec": {"matchConstraints": {"resourceRules": [rule]}, "reinvocationPolicy": "Never",
        "matchConditions": [condition("true"), condition("true"), condition("")], "mutations": [mutation]}});
    assert_eq!(
        errors(path, &policy),
        [
            "spec.matchConditions[1].name: Duplicate value: \"c\"",
            "spec.matchConditions[2].expression: Required value",
            "spec.matchConditions[2].name: Duplicate value: \"c\"",
            "spec.mutations[0].jsonPatch.expression: Required value",
            "spec.mutations[0].applyConfiguration: Invalid value: \"{applyConfiguration}\": must not be specified when \
             patchType is JSONPatch",
        ]
    );
}
