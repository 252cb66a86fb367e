use apiserver_registry::Written;
use serde_json::{Value, json};

use crate::testing::{assert_refused, change_errors_at, defaulted_at, errors_at, merge};

#[test]
fn webhooks_with_wrong_services_and_urls_are_refused() {
    let errors_of = |config: Value| {
        let mut object = webhook(json!({}));
        object["webhooks"][0]["clientConfig"] = config;
        errors_at(MUTATING, &object)
    };
    let path = "webhooks[0].clientConfig";
    let missing = format!("{path}.service.name: Required value");
    assert_eq!(errors_of(json!({"service": {"name": "s"}})), [missing]);
    let found = errors_of(json!({"service": {"name": "s", "namespace": "n", "path": "x/Y/"}}));
    let wanted = ["must start with a '/'", "segment[0] may not be empty", "segment[1]: "];
    assert!(found.iter().zip(wanted).all(|(found, wanted)| found.contains(wanted)), "{found:?}");
    assert_eq!(found.len(), wanted.len());
    let (scheme, host) = ("'https' is the only allowed URL scheme", "host must be specified");
    let form = "desired format: https://host[/path]";
    let wanted = [scheme, host].map(|why| format!("{path}.url: Invalid value: \"\": {why}; {form}"));
    assert_eq!(errors_of(json!({"url": "example.com/https://h/v"})), wanted);
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
    assert_refused(&path("v1alpha1"), &binding, &[]);
    let missing = "spec.paramRef.parameterNotFoundAction: Required value";
    for version in ["v1beta1", "v1"] {
        assert_eq!(errors_at(&path(version), &binding), [missing], "{version}");
    }
    let empty = merge(&binding, &json!({"spec": {"paramRef": {"parameterNotFoundAction": ""}}}));
    assert_eq!(errors_at(&path("v1"), &empty), [missing]);
}

#[test]
fn errors_of_policies_are_in_the_order_of_kubernetes() {
    let path = "admissionregistration.k8s.io/v1/mutatingadmissionpolicies";
    let rule = json!({"apiGroups": ["apps"], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["deployments"]});
    let mutation =
        json!({"patchType": "JSONPatch", "jsonPatch": {}, "applyConfiguration": {"expression": "Object{}"}});
    let condition = |expression: &str| json!({"name": "c", "expression": expression});
    let policy = json!({"spec": {"matchConstraints": {"resourceRules": [rule]}, "reinvocationPolicy": "Never",
        "matchConditions": [condition("true"), condition("true"), condition("")], "mutations": [mutation]}});
    assert_eq!(
        errors_at(path, &policy),
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

fn rules() -> Value {
    json!([{"apiGroups": ["apps"], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["deployments"]}])
}

const MUTATING: &str = "admissionregistration.k8s.io/v1/mutatingwebhookconfigurations";

/// A configuration of one webhook, patched.
fn webhook(patch: Value) -> Value {
    let hook = json!({"name": "a.example.com", "clientConfig": {"service": {"namespace": "n", "name": "s"}},
        "rules": rules(), "sideEffects": "None", "admissionReviewVersions": ["v1"]});
    json!({"webhooks": [merge(&hook, &patch)]})
}

#[test]
fn webhooks_get_their_defaults() {
    let filled = defaulted_at(MUTATING, &webhook(json!({})))["webhooks"][0].clone();
    for (field, value) in [
        ("failurePolicy", json!("Fail")),
        ("matchPolicy", json!("Equivalent")),
        ("timeoutSeconds", json!(10)),
        ("reinvocationPolicy", json!("Never")),
        ("namespaceSelector", json!({})),
    ] {
        assert_eq!(filled[field], value, "{field}");
    }
    assert_eq!(
        (&filled["rules"][0]["scope"], &filled["clientConfig"]["service"]["port"]),
        (&json!("*"), &json!(443))
    );
}

#[test]
fn webhooks_with_wrong_fields_are_refused() {
    let with = webhook;
    let base = with(json!({}));
    assert_refused(
        MUTATING,
        &base,
        &[
            (
                with(json!({"name": "a.b"})),
                &[
                    "webhooks[0].name: Invalid value: \"a.b\": should be a domain with at least three segments separated by dots",
                ],
            ),
            (
                with(json!({"sideEffects": "Some"})),
                &[
                    "webhooks[0].sideEffects: Unsupported value: \"Some\": supported values: \"None\", \"NoneOnDryRun\"",
                ],
            ),
            (
                with(json!({"sideEffects": null})),
                &["webhooks[0].sideEffects: Required value: must specify one of None, NoneOnDryRun"],
            ),
            (
                with(json!({"timeoutSeconds": 31})),
                &[
                    "webhooks[0].timeoutSeconds: Invalid value: 31: the timeout value must be between 1 and 30 seconds",
                ],
            ),
            (
                with(json!({"clientConfig": {"url": "https://x"}})),
                &["webhooks[0].clientConfig: Required value: exactly one of url or service is required"],
            ),
            (
                with(json!({"clientConfig": {"service": null, "url": "http://x"}})),
                &[
                    "webhooks[0].clientConfig.url: Invalid value: \"http\": 'https' is the only allowed URL scheme; desired \
               format: https://host[/path]",
                ],
            ),
        ],
    );
}

/// An object that breaks a rule of a later Kubernetes version may stay as it is, and a change of it does not
/// have to mend it.
#[test]
fn existing_faults_of_a_webhook_may_stay() {
    let selector = json!({"matchExpressions": [{"key": "a", "operator": "In", "values": ["not a value"]}]});
    for (wrong, says) in [
        (json!({"sideEffects": "Some"}), "sideEffects: Unsupported value"),
        (json!({"admissionReviewVersions": ["v2"]}), "admissionReviewVersions: Invalid value"),
        (json!({"objectSelector": selector}), "objectSelector.matchExpressions[0].values[0]: Invalid value"),
        (json!({"matchConditions": [{"name": "c", "expression": "("}]}), "matchConditions[0].expression"),
    ] {
        let (sound, wrong) = (webhook(json!({})), webhook(wrong));
        let mut later = wrong.clone();
        later["webhooks"][0]["timeoutSeconds"] = json!(5);
        assert_eq!(change_errors_at(MUTATING, &later, &wrong, Written::Main), [""; 0], "{wrong}");
        let found = change_errors_at(MUTATING, &wrong, &sound, Written::Main);
        assert!(found.len() == 1 && found[0].contains(says), "{found:?}");
        assert_eq!(errors_at(MUTATING, &wrong), found);
    }
    let twice = json!({"webhooks": [webhook(json!({}))["webhooks"][0], webhook(json!({}))["webhooks"][0]]});
    assert_eq!(change_errors_at(MUTATING, &twice, &twice, Written::Main), [""; 0]);
    let once = webhook(json!({}));
    assert_eq!(
        change_errors_at(MUTATING, &twice, &once, Written::Main),
        ["webhooks[1].name: Duplicate value: \"a.example.com\""]
    );
    // Other rules hold for changes too.
    let late = webhook(json!({"timeoutSeconds": 31}));
    assert_eq!(change_errors_at(MUTATING, &late, &late, Written::Main).len(), 1);
}

#[test]
fn webhooks_with_wrong_rules_and_conditions_are_refused() {
    let with = webhook;
    let base = with(json!({}));
    let hook = &base["webhooks"][0];
    assert_refused(
        MUTATING,
        &base,
        &[
            (
                with(json!({"admissionReviewVersions": ["v2"]})),
                &[
                    "webhooks[0].admissionReviewVersions: Invalid value: [\"v2\"]: must include at least one of v1, v1beta1",
                ],
            ),
            (
                with(
                    json!({"rules": [{"apiGroups": ["*", "a"], "apiVersions": [], "operations": ["READ"], "resources": ["a/*", "a/b"]}]}),
                ),
                &[
                    "webhooks[0].rules[0].operations[0]: Unsupported value: \"READ\": supported values: \"*\", \"CONNECT\", \
             \"CREATE\", \"DELETE\", \"UPDATE\"",
                    "webhooks[0].rules[0].apiGroups: Invalid value: [\"*\",\"a\"]: if '*' is present, must not specify other API \
             groups",
                    "webhooks[0].rules[0].apiVersions: Required value",
                    "webhooks[0].rules[0].resources[1]: Invalid value: \"a/b\": if 'a/*' is present, must not specify a/b",
                ],
            ),
            (json!({"webhooks": [hook, hook]}), &["webhooks[1].name: Duplicate value: \"a.example.com\""]),
            (
                with(json!({"matchConditions": [{"name": "x", "expression": ""}]})),
                &["webhooks[0].matchConditions[0].expression: Required value"],
            ),
        ],
    );
    let broken = with(json!({"matchConditions": [{"name": "x", "expression": "a +"}]}));
    let found = errors_at(MUTATING, &broken);
    assert!(found[0].starts_with(
        "webhooks[0].matchConditions[0].expression: Invalid value: \"a +\": compilation failed: "
    ));
}

#[test]
fn policies_with_wrong_fields_are_refused() {
    let path = "admissionregistration.k8s.io/v1/validatingadmissionpolicies";
    let base = json!({"spec": {"matchConstraints": {"resourceRules": rules()}, "validations": [{"expression": "true"}]}});
    let filled = defaulted_at(path, &base);
    assert_eq!(filled["spec"]["failurePolicy"], "Fail");
    assert_eq!(filled["spec"]["matchConstraints"]["matchPolicy"], "Equivalent");
    assert_refused(
        path,
        &base,
        &[
            (json!({"spec": {"matchConstraints": null}}), &["spec.matchConstraints: Required value"]),
            (
                json!({"spec": {"validations": []}}),
                &[
                    "spec.validations: Required value: validations or auditAnnotations must contain at least one item",
                    "spec.auditAnnotations: Required value: validations or auditAnnotations must contain at least one item",
                ],
            ),
            (
                json!({"spec": {"validations": [{"expression": " ", "message": "a\nb", "reason": "No"}]}}),
                &[
                    "spec.validations[0].expression: Required value: expression is not specified",
                    "spec.validations[0].message: Invalid value: \"a\\nb\": must not contain line breaks",
                    "spec.validations[0].reason: Unsupported value: \"No\": supported values: \"Forbidden\", \"Invalid\", \
             \"RequestEntityTooLarge\"",
                ],
            ),
            (
                json!({"spec": {"variables": [{"name": "1a", "expression": "1"}]}}),
                &["spec.variables[0].name: Invalid value: \"1a\": must be a valid CEL identifier"],
            ),
            (
                json!({"spec": {"paramKind": {"apiVersion": "", "kind": ""}}}),
                &["spec.paramKind.apiVersion: Required value", "spec.paramKind.kind: Required value"],
            ),
        ],
    );
}

#[test]
fn bindings_with_wrong_fields_are_refused() {
    let path = "admissionregistration.k8s.io/v1/validatingadmissionpolicybindings";
    let base = json!({"spec": {"policyName": "p", "validationActions": ["Deny"]}});
    assert_refused(
        path,
        &base,
        &[
            (json!({"spec": {"policyName": ""}}), &["spec.policyName: Required value"]),
            (
                json!({"spec": {"validationActions": []}}),
                &["spec.validationActions: Required value: at least one validation action is required"],
            ),
            (
                json!({"spec": {"validationActions": ["Deny", "Deny"]}}),
                &["spec.validationActions[1]: Duplicate value: \"Deny\""],
            ),
            (
                json!({"spec": {"paramRef": {"parameterNotFoundAction": "Deny"}}}),
                &["spec.paramRef: Required value: one of name or selector must be specified"],
            ),
            (
                json!({"spec": {"paramRef": {"name": "x", "selector": {}}}}),
                &[
                    "spec.paramRef.name: Forbidden: name and selector are mutually exclusive",
                    "spec.paramRef.selector: Forbidden: name and selector are mutually exclusive",
                    "spec.paramRef.parameterNotFoundAction: Required value",
                ],
            ),
        ],
    );
}

#[test]
fn finalizers_of_the_admission_kinds_need_no_domain() {
    let rules = json!({"resourceRules": self::rules()});
    let mutation = json!({"patchType": "JSONPatch", "jsonPatch": {"expression": "[JSONPatch{op: 'remove', path: '/spec'}]"}});
    for (plural, content) in [
        ("validatingwebhookconfigurations", json!({})),
        ("mutatingwebhookconfigurations", json!({})),
        (
            "validatingadmissionpolicies",
            json!({"spec": {"matchConstraints": rules, "validations": [{"expression": "true"}]}}),
        ),
        (
            "mutatingadmissionpolicies",
            json!({"spec": {"matchConstraints": rules, "reinvocationPolicy": "Never", "mutations": [mutation]}}),
        ),
        (
            "validatingadmissionpolicybindings",
            json!({"spec": {"policyName": "p", "validationActions": ["Deny"]}}),
        ),
        ("mutatingadmissionpolicybindings", json!({"spec": {"policyName": "p"}})),
    ] {
        let path = format!("admissionregistration.k8s.io/v1/{plural}");
        let mut object = content;
        object["metadata"]["finalizers"] = json!(["plain"]);
        assert_refused(&path, &object, &[]);
        object["metadata"]["finalizers"] = json!(["a b"]);
        let faults = errors_at(&path, &object);
        assert!(faults[0].starts_with("metadata.finalizers: Invalid value: \"a b\""), "{plural}: {faults:?}");
    }
}

#[test]
fn mutating_policies_with_wrong_mutations_are_refused() {
    let path = "admissionregistration.k8s.io/v1/mutatingadmissionpolicies";
    let mutation = json!({"patchType": "JSONPatch", "jsonPatch": {"expression": "[JSONPatch{op: 'remove', path: '/spec'}]"}});
    let base = json!({"spec": {"matchConstraints": {"resourceRules": rules()}, "reinvocationPolicy": "Never",
        "mutations": [mutation]}});
    assert_refused(
        path,
        &base,
        &[
            (json!({"spec": {"reinvocationPolicy": null}}), &["spec.reinvocationPolicy: Required value"]),
            (
                json!({"spec": {"mutations": [{"patchType": "ApplyConfiguration"}]}}),
                &[
                    "spec.mutations[0].applyConfiguration: Required value: must be specified when patchType is ApplyConfiguration",
                ],
            ),
            (
                json!({"spec": {"mutations": [{"patchType": "x", "jsonPatch": {"expression": ""}}]}}),
                &[
                    "spec.mutations[0].patchType: Unsupported value: \"x\": supported values: \"ApplyConfiguration\", \"JSONPatch\"",
                ],
            ),
            (
                json!({"spec": {"matchConstraints": {"resourceRules": [{"apiGroups": [""], "apiVersions": ["v1"],
                    "operations": ["DELETE"], "resources": ["pods"]}]}}}),
                &[
                    "spec.matchConstraints.resourceRules.operations: Unsupported value: \"DELETE\": supported values: \"*\", \"CONNECT\", \"CREATE\", \"UPDATE\"",
                ],
            ),
        ],
    );
}
