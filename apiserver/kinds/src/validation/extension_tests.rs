//! Tests of kinds that extend and govern the API, and of groups of pods: defaults, refusals and their words.

use serde_json::{Value, json};

use apiserver_registry::{Resource, Written};

fn kind(path: &str) -> Resource {
    let (version, plural) = path.rsplit_once('/').unwrap();
    let (group, version) = version.split_once('/').unwrap();
    let registry = crate::registry();
    Resource::clone(registry.lookup(group, version, plural).unwrap_or_else(|| panic!("{path}")))
}

/// `patch` put over `base`, as a merge patch does it.
pub(super) fn merge(base: &Value, patch: &Value) -> Value {
    let (Value::Object(base), Value::Object(patch)) = (base, patch) else { return patch.clone() };
    let mut merged = base.clone();
    for (key, value) in patch {
        if value.is_null() {
            merged.remove(key);
        } else {
            let old = merged.get(key).cloned().unwrap_or(Value::Null);
            let old = if old.is_object() { old } else { json!({}) };
            merged.insert(key.clone(), if value.is_object() { merge(&old, value) } else { value.clone() });
        }
    }
    Value::Object(merged)
}

pub(super) fn defaulted(path: &str, object: &Value) -> Value {
    let kind = kind(path);
    let mut object = object.clone();
    object["apiVersion"] = kind.api_version().into();
    object["kind"] = kind.kind.clone().into();
    if object["metadata"]["name"].is_null() {
        object["metadata"]["name"] = "test".into();
    }
    (kind.behaviour.default)(&mut object);
    object
}

pub(super) fn errors(path: &str, object: &Value) -> Vec<String> {
    let found = (kind(path).behaviour.validate)(&defaulted(path, object));
    found.into_iter().map(|e| format!("{}: {}", e.field, e.message)).collect()
}

/// Errors of a change, and of a write of the status.
pub(super) fn change(path: &str, new: &Value, old: &Value, written: Written) -> Vec<String> {
    let behaviour = kind(path).behaviour;
    let (new, old) = (defaulted(path, new), defaulted(path, old));
    let found = match &behaviour.validate_change {
        Some(check) => check(&new, &old, written),
        None => (behaviour.validate_update)(&new, &old),
    };
    found.into_iter().map(|e| format!("{}: {}", e.field, e.message)).collect()
}

/// Checks the errors of each patch of a valid object.
#[track_caller]
pub(super) fn refused(path: &str, base: &Value, cases: &[(Value, &[&str])]) {
    assert_eq!(errors(path, base), [""; 0], "{path}");
    for (patch, wanted) in cases {
        assert_eq!(errors(path, &merge(base, patch)), *wanted, "{path} {patch}");
    }
}

fn rules() -> Value {
    json!([{"apiGroups": ["apps"], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["deployments"]}])
}

pub(super) const MUTATING: &str = "admissionregistration.k8s.io/v1/mutatingwebhookconfigurations";

/// A configuration of one webhook, patched.
pub(super) fn webhook(patch: Value) -> Value {
    let hook = json!({"name": "a.example.com", "clientConfig": {"service": {"namespace": "n", "name": "s"}},
        "rules": rules(), "sideEffects": "None", "admissionReviewVersions": ["v1"]});
    json!({"webhooks": [merge(&hook, &patch)]})
}

#[test]
fn webhooks_are_defaulted() {
    let filled = defaulted(MUTATING, &webhook(json!({})))["webhooks"][0].clone();
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
fn webhooks() {
    let with = webhook;
    let base = with(json!({}));
    refused(
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
fn what_was_wrong_with_a_webhook_may_stay() {
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
        assert_eq!(change(MUTATING, &later, &wrong, Written::Main), [""; 0], "{wrong}");
        let found = change(MUTATING, &wrong, &sound, Written::Main);
        assert!(found.len() == 1 && found[0].contains(says), "{found:?}");
        assert_eq!(errors(MUTATING, &wrong), found);
    }
    let twice = json!({"webhooks": [webhook(json!({}))["webhooks"][0], webhook(json!({}))["webhooks"][0]]});
    assert_eq!(change(MUTATING, &twice, &twice, Written::Main), [""; 0]);
    let once = webhook(json!({}));
    assert_eq!(
        change(MUTATING, &twice, &once, Written::Main),
        ["webhooks[1].name: Duplicate value: \"a.example.com\""]
    );
    // Other rules hold for changes too.
    let late = webhook(json!({"timeoutSeconds": 31}));
    assert_eq!(change(MUTATING, &late, &late, Written::Main).len(), 1);
}

#[test]
fn rules_and_conditions_of_webhooks() {
    let with = webhook;
    let base = with(json!({}));
    let hook = &base["webhooks"][0];
    refused(
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
    let found = errors(MUTATING, &broken);
    assert!(found[0].starts_with(
        "webhooks[0].matchConditions[0].expression: Invalid value: \"a +\": compilation failed: "
    ));
}

#[test]
fn policies() {
    let path = "admissionregistration.k8s.io/v1/validatingadmissionpolicies";
    let base = json!({"spec": {"matchConstraints": {"resourceRules": rules()}, "validations": [{"expression": "true"}]}});
    let filled = defaulted(path, &base);
    assert_eq!(filled["spec"]["failurePolicy"], "Fail");
    assert_eq!(filled["spec"]["matchConstraints"]["matchPolicy"], "Equivalent");
    refused(
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
fn bindings_of_policies() {
    let path = "admissionregistration.k8s.io/v1/validatingadmissionpolicybindings";
    let base = json!({"spec": {"policyName": "p", "validationActions": ["Deny"]}});
    refused(
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
    let rules = json!({"resourceRules": rules()});
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
        refused(&path, &object, &[]);
        object["metadata"]["finalizers"] = json!(["a b"]);
        let faults = errors(&path, &object);
        assert!(faults[0].starts_with("metadata.finalizers: Invalid value: \"a b\""), "{plural}: {faults:?}");
    }
}

#[test]
fn mutating_policies() {
    let path = "admissionregistration.k8s.io/v1/mutatingadmissionpolicies";
    let mutation = json!({"patchType": "JSONPatch", "jsonPatch": {"expression": "[JSONPatch{op: 'remove', path: '/spec'}]"}});
    let base = json!({"spec": {"matchConstraints": {"resourceRules": rules()}, "reinvocationPolicy": "Never",
        "mutations": [mutation]}});
    refused(
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

#[test]
fn flow_control() {
    let path = "flowcontrol.apiserver.k8s.io/v1/flowschemas";
    let base = json!({"spec": {"priorityLevelConfiguration": {"name": "l"}}});
    assert_eq!(defaulted(path, &base)["spec"]["matchingPrecedence"], 1000);
    refused(
        path,
        &base,
        &[
            (
                json!({"spec": {"matchingPrecedence": 1}}),
                &[
                    "spec.matchingPrecedence: Invalid value: 1: only the schema named 'exempt' may have matchingPrecedence 1",
                ],
            ),
            (
                json!({"spec": {"matchingPrecedence": 10001}}),
                &["spec.matchingPrecedence: Invalid value: 10001: must not be greater than 10000"],
            ),
            (
                json!({"spec": {"rules": [{"subjects": [{"kind": "User", "group": {"name": "g"}}]}]}}),
                &[
                    "spec.rules[0].subjects[0].group: Forbidden: group is forbidden when subject kind is not 'Group'",
                    "spec.rules[0].subjects[0].user: Required value: user is required when subject kind is 'User'",
                    "spec.rules[0]: Required value: at least one of resourceRules and nonResourceRules has to be non-empty",
                ],
            ),
        ],
    );
    let path = "flowcontrol.apiserver.k8s.io/v1/prioritylevelconfigurations";
    let base =
        json!({"spec": {"type": "Limited", "limited": {"limitResponse": {"type": "Queue", "queuing": {}}}}});
    let limited = defaulted(path, &base)["spec"]["limited"].clone();
    assert_eq!((&limited["nominalConcurrencyShares"], &limited["lendablePercent"]), (&json!(30), &json!(0)));
    assert_eq!(
        limited["limitResponse"]["queuing"],
        json!({"handSize": 8, "queues": 64, "queueLengthLimit": 50})
    );
    refused(
        path,
        &base,
        &[
            (
                json!({"spec": {"type": "Exempt"}}),
                &[
                    "spec.type: Invalid value: \"Exempt\": must be 'Exempt' if and only if `name` is 'exempt'",
                    "spec.limited: Forbidden: must be nil if the type is not Limited",
                ],
            ),
            (
                json!({"spec": {"limited": {"limitResponse": {"queuing": {"queues": 4}}}}}),
                &[
                    "spec.limited.limitResponse.queuing.handSize: Invalid value: 8: should not be greater than queues (4)",
                ],
            ),
            (
                json!({"spec": {"limited": {"limitResponse": {"type": "Reject"}}}}),
                &[
                    "spec.limited.limitResponse.queuing: Forbidden: must be nil if limited.limitResponse.type is not Limited",
                ],
            ),
        ],
    );
}

#[test]
fn api_services() {
    let path = "apiregistration.k8s.io/v1/apiservices";
    let base = json!({"metadata": {"name": "v1.example.com"},
        "spec": {"group": "example.com", "version": "v1", "groupPriorityMinimum": 100, "versionPriority": 10}});
    refused(
        path,
        &base,
        &[
            (
                json!({"metadata": {"name": "x"}}),
                &[
                    "metadata.name: Invalid value: \"x\": must be `spec.version+\".\"+spec.group`: \"v1.example.com\"",
                ],
            ),
            (
                json!({"spec": {"groupPriorityMinimum": 20001}}),
                &["spec.groupPriorityMinimum: Invalid value: 20001: must be positive and less than 20000"],
            ),
            (
                json!({"spec": {"insecureSkipTLSVerify": true}}),
                &["spec.insecureSkipTLSVerify: Invalid value: true: local \
            APIServices may not have insecureSkipTLSVerify"],
            ),
            (
                json!({"spec": {"service": {}}}),
                &["spec.service.namespace: Required value", "spec.service.name: Required value"],
            ),
        ],
    );
    let mut local = defaulted(path, &base);
    (kind(path).behaviour.prepare_create)(&mut local);
    assert_eq!(local["status"]["conditions"][0]["reason"], "Local");
}

#[test]
fn certificates_of_pods_live_for_a_day() {
    let path = "certificates.k8s.io/v1beta1/podcertificaterequests";
    let base = json!({"spec": {"signerName": "example.com/s", "podName": "p", "podUID": "u", "serviceAccountName": "s",
        "serviceAccountUID": "v", "nodeName": "n", "nodeUID": "w", "pkixPublicKey": "MAYCAQECAQI="}});
    assert_eq!(defaulted(path, &base)["spec"]["maxExpirationSeconds"], 86_400);
}

#[test]
fn groups_leases_and_migrations() {
    let path = "scheduling.k8s.io/v1alpha2/workloads";
    let base = json!({"spec": {"podGroupTemplates": [{"name": "g", "schedulingPolicy": {"gang": {"minCount": 2}}}]}});
    refused(
        path,
        &base,
        &[
            (
                json!({"spec": {"podGroupTemplates": []}}),
                &["spec.podGroupTemplates: Required value: must have at least one item"],
            ),
            (
                json!({"spec": {"podGroupTemplates": [{"name": "g", "schedulingPolicy": {}}]}}),
                &[
                    "spec.podGroupTemplates[0].schedulingPolicy: Invalid value: \"\": must specify one of: `basic`, `gang`",
                ],
            ),
        ],
    );
    let many: Vec<Value> =
        (0..9).map(|i| json!({"name": format!("g{i}"), "schedulingPolicy": {"basic": {}}})).collect();
    assert_eq!(
        errors(path, &json!({"spec": {"podGroupTemplates": many}})),
        ["spec.podGroupTemplates: Too many: 9: must have at most 8 items"]
    );
    let path = "coordination.k8s.io/v1beta1/leasecandidates";
    let base = json!({"spec": {"leaseName": "l", "binaryVersion": "1.36.0", "emulationVersion": "1.35.0",
        "strategy": "OldestEmulationVersion"}});
    refused(
        path,
        &base,
        &[
            (
                json!({"spec": {"binaryVersion": "1.34.0"}}),
                &["spec.binaryVersion: Invalid value: \"1.34.0\": must be greater \
            than or equal to `emulationVersion`"],
            ),
            (
                json!({"spec": {"emulationVersion": null}}),
                &["spec.emulationVersion: Required value: must be specified when \
            `strategy` is 'OldestEmulationVersion'"],
            ),
            (
                json!({"spec": {"binaryVersion": "1"}}),
                &[
                    "spec.binaryVersion: Invalid value: \"1\": must be a valid semantic version",
                    "spec.binaryVersion: Invalid value: \"1\": must be greater than or equal to `emulationVersion`",
                ],
            ),
        ],
    );
    let path = "storagemigration.k8s.io/v1beta1/storageversionmigrations";
    let base = json!({"spec": {"resource": {"group": "apps", "resource": "deployments"}}});
    refused(
        path,
        &base,
        &[(
            json!({"spec": {"resource": {"resource": ""}}}),
            &["spec.resource.resource: Required value: resource is required"],
        )],
    );
    let other = merge(&base, &json!({"spec": {"resource": {"group": "batch"}}}));
    assert_eq!(
        change(path, &other, &base, Written::Main),
        ["group: Invalid value: \"batch\": field is immutable"]
    );
}

#[test]
fn new_events_say_more_and_change_less() {
    let path = "events.k8s.io/v1/events";
    let base = json!({"metadata": {"name": "e", "namespace": "default"}, "regarding": {"namespace": "default"},
        "eventTime": "2026-01-02T03:04:05.000006Z", "reportingController": "example.com/c", "reportingInstance": "i",
        "action": "A", "reason": "R", "type": "Normal"});
    refused(
        path,
        &base,
        &[
            (json!({"eventTime": null}), &["eventTime: Required value"]),
            (
                json!({"type": "Odd", "deprecatedCount": 2}),
                &[
                    "type: Invalid value: \"\": has invalid value: Odd",
                    "count: Invalid value: \"\": needs to be unset",
                ],
            ),
            (
                json!({"action": "", "reportingInstance": "i".repeat(129)}),
                &[
                    "reportingInstance: Invalid value: \"\": can have at most 128 characters",
                    "action: Required value",
                ],
            ),
            (
                json!({"series": {"count": 1}}),
                &[
                    "series.count: Invalid value: \"\": should be at least 2",
                    "series.lastObservedTime: Required value",
                ],
            ),
        ],
    );
    let series =
        merge(&base, &json!({"series": {"count": 2, "lastObservedTime": "2026-01-02T03:04:06.000000Z"}}));
    assert_eq!(change(path, &series, &base, Written::Main), [""; 0]);
    let other = merge(&base, &json!({"note": "else"}));
    assert_eq!(
        change(path, &other, &base, Written::Main),
        ["message: Invalid value: \"else\": field is immutable"]
    );
}
