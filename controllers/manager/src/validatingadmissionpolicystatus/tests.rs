//! Tests of the kinds that a policy is checked against, and of the warnings.

use std::collections::BTreeMap;
use std::sync::Arc;

use apiserver_cel::{Declaration, Document, Params};
use k8s_openapi::api::admissionregistration::v1::ValidatingAdmissionPolicy;
use serde_json::{Value, json};

use super::check;
use super::plan::{self, GroupVersion, Kind, Resources};
use super::schemas::Schemas;
use crate::limits::{KINDS_OF_POLICY, KINDS_OF_RULE, KINDS_REMEMBERED, WARNINGS_BYTES};

fn version(group: &str, version: &str) -> GroupVersion {
    GroupVersion { group: group.to_owned(), version: version.to_owned() }
}

fn kind(group: &str, of: &str, name: &str) -> Kind {
    Kind { of: version(group, of), name: name.to_owned() }
}

fn policy(spec: Value) -> ValidatingAdmissionPolicy {
    let policy = json!({"metadata": {"name": "p", "uid": "u", "generation": 3}, "spec": spec});
    serde_json::from_value(policy).unwrap()
}

/// A rule: groups, versions and resources, each separated by commas; `core` is the core group.
fn rule([groups, versions, resources]: [&str; 3]) -> Value {
    let list = |text: &str| -> Vec<String> {
        let entries = text.split(',').filter(|entry| !entry.is_empty());
        entries.map(|entry| if entry == "core" { "" } else { entry }.to_owned()).collect()
    };
    json!({"apiGroups": list(groups), "apiVersions": list(versions), "resources": list(resources),
        "operations": ["CREATE"]})
}

fn matching(rules: &[[&str; 3]]) -> ValidatingAdmissionPolicy {
    let rules: Vec<Value> = rules.iter().copied().map(rule).collect();
    policy(json!({"matchConstraints": {"resourceRules": rules}}))
}

/// The resources of a small cluster.
fn served() -> Resources {
    let kinds = |pairs: &[(&str, &str)]| -> BTreeMap<String, String> {
        pairs.iter().map(|(plural, kind)| ((*plural).to_owned(), (*kind).to_owned())).collect()
    };
    [
        (version("", "v1"), kinds(&[("pods", "Pod"), ("services", "Service"), ("events", "Event")])),
        (version("apps", "v1"), kinds(&[("deployments", "Deployment"), ("daemonsets", "DaemonSet")])),
        (version("events.k8s.io", "v1"), kinds(&[("events", "Event")])),
        (version("example.com", "v1"), kinds(&[("gadgets", "Gadget")])),
        (version("example.com", "v2"), kinds(&[("gadgets", "Gadget"), ("widgets", "Widget")])),
    ]
    .into()
}

#[test]
fn kinds_are_those_that_rules_name_one_by_one_in_order() {
    let deployment = "apps/v1, Kind=Deployment";
    for (rules, expected) in [
        (vec![], vec![]),
        (vec![["apps", "v1", "deployments"]], vec![deployment]),
        (vec![["apps", "v1", "deployments"], ["core", "v1", "pods"]], vec!["/v1, Kind=Pod", deployment]),
        (vec![["core,apps", "v1", "pods,deployments"]], vec!["/v1, Kind=Pod", deployment]),
        // The core group is no wildcard: others may have resources of the same name.
        (vec![["core", "v1", "events"]], vec!["/v1, Kind=Event"]),
        (vec![["events.k8s.io", "v1", "events"]], vec!["events.k8s.io/v1, Kind=Event"]),
        (
            vec![["example.com", "v2,v1", "widgets,gadgets"]],
            vec!["example.com/v1, Kind=Gadget", "example.com/v2, Kind=Gadget", "example.com/v2, Kind=Widget"],
        ),
        // Resources that are not served, or named in the singular.
        (vec![["apps", "v1beta1", "deployments"], ["none", "v1", "pods"], ["core", "v1", "pod"]], vec![]),
        // Wildcards and subresources.
        (vec![["apps", "v1", "*"]], vec![]),
        (vec![["*", "v1", "deployments"]], vec![]),
        (vec![["apps", "*", "deployments"]], vec![]),
        (vec![["apps,*", "v1", "deployments"]], vec![]),
        (vec![["apps", "v1,v*", "deployments"]], vec![]),
        (vec![["core", "v1", "pods/*"], ["core", "v1", "pods/status"], ["core", "v1", "*/scale"]], vec![]),
        (vec![["apps", "v1", "*,deployments,deployments/scale"]], vec![deployment]),
        (vec![["apps", "*", "daemonsets"], ["apps", "v1", "deployments"]], vec![deployment]),
        // Rules that are not complete.
        (vec![["", "v1", "pods"], ["core", "", "pods"], ["core", "v1", ""]], vec![]),
        (vec![["apps", "v1", "deployments,deployments"], ["apps", "v1", "deployments"]], vec![deployment]),
    ] {
        let policy = matching(&rules);
        let kinds: Vec<String> =
            plan::kinds(&plan::rules(&policy), &served()).iter().map(Kind::to_string).collect();
        assert_eq!(kinds, expected, "{rules:?}");
    }
    assert!(plan::rules(&policy(json!({}))).is_empty());
    assert!(plan::rules(&policy(json!({"matchConstraints": {}}))).is_empty());
    assert!(plan::rules(&ValidatingAdmissionPolicy::default()).is_empty());
}

#[test]
fn rule_counts_for_ten_kinds_and_ends_the_search_then() {
    let many = |prefix: &str, count: usize| -> BTreeMap<String, String> {
        (0..count).map(|number| (format!("{prefix}{number:03}"), format!("K{number:03}"))).collect()
    };
    let names = |prefix: &str, count: usize| many(prefix, count).into_keys().collect::<Vec<_>>().join(",");
    let served: Resources =
        (0..30).map(|number| (version(&format!("g{number:02}"), "v1"), many("r", 12))).collect();
    let of = |rules: &[[&str; 3]]| plan::kinds(&plan::rules(&matching(rules)), &served).len();
    let (nine, twelve) = (names("r", 9), names("r", 12));
    assert_eq!(of(&[["g00", "v1", &twelve]]), KINDS_OF_RULE);
    assert_eq!(of(&[["g00,g01", "v1", &nine]]), KINDS_OF_RULE);
    assert_eq!(of(&[["g00", "v1", &nine], ["g01", "v1", &nine]]), 18);
    assert_eq!(of(&[["g00", "v1", &nine], ["g01", "v1", &twelve], ["g02", "v1", &nine]]), 19);
    let groups: Vec<String> = (0..30).map(|number| format!("g{number:02}")).collect();
    let rules: Vec<[&str; 3]> = groups.iter().map(|group| [group.as_str(), "v1", nine.as_str()]).collect();
    assert_eq!(of(&rules), KINDS_OF_POLICY.next_multiple_of(9));
}

#[test]
fn documents_are_read_only_of_versions_that_rules_match() {
    let names = [
        "api/v1",
        "apis",
        "apis/apps",
        "apis/apps/v1",
        "apis/batch/v1",
        "version",
        "apis/../v1",
        "apis//v1",
        "api/v1/x",
        "apis/a/v1/x",
        "api/",
        "apis/example.com/v%31",
        "",
    ];
    let known: Vec<GroupVersion> = names.into_iter().filter_map(GroupVersion::of_document).collect();
    assert_eq!(known, [version("", "v1"), version("apps", "v1"), version("batch", "v1")]);
    assert_eq!(known[0].api_version() + " " + &known[1].api_version(), "v1 apps/v1");
    let policy = matching(&[["core,apps", "v1", "pods"], ["batch", "v2", "jobs"], ["*", "v1", "x"]]);
    let read = plan::versions(&plan::rules(&policy), known.iter());
    assert_eq!(read, [&known[0], &known[1]]);
}

#[test]
fn parameters_have_the_kind_that_the_policy_names() {
    let of = |kind: Value| plan::params(&policy(json!({"paramKind": kind})));
    assert_eq!(of(json!({"apiVersion": "v1", "kind": "ConfigMap"})), Some(kind("", "v1", "ConfigMap")));
    assert_eq!(of(json!({"apiVersion": "g.io/v1", "kind": "Limit"})), Some(kind("g.io", "v1", "Limit")));
    assert_eq!(of(json!({"apiVersion": "a/b/c", "kind": "Limit"})), None);
    assert_eq!(of(json!(null)), None);
}

#[test]
fn policy_is_due_when_its_spec_is_newer_than_its_status() {
    for (generation, observed, due) in
        [(1, json!(null), true), (2, json!(1), true), (2, json!(2), false), (2, json!(3), false)]
    {
        let policy =
            json!({"metadata": {"generation": generation}, "status": {"observedGeneration": observed}});
        let policy = serde_json::from_value(policy).unwrap();
        assert_eq!(plan::is_due(&policy), due, "{generation} {observed}");
    }
}

#[test]
fn status_names_the_object_and_nothing_that_others_write() {
    let policy = policy(json!({"validations": [{"expression": "true"}]}));
    let base = json!({"apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingAdmissionPolicy",
        "metadata": {"name": "p", "uid": "u"}, "status": {"observedGeneration": 3, "typeChecking": {}}});
    assert_eq!(plan::status(&policy, Vec::new()), base);
    let warning = json!({"fieldRef": "spec.validations[0].expression", "warning": "w"});
    let mut warned = base;
    warned["status"]["typeChecking"] = json!({"expressionWarnings": [warning]});
    assert_eq!(plan::status(&policy, vec![serde_json::from_value(warning).unwrap()]), warned);
}

/// The kind `Thing` of the group and version `g/v1`, with these fields.
fn thing(properties: Value) -> Declaration {
    declared(json!({"type": "object", "properties": properties}))
}

fn declared(mut schema: Value) -> Declaration {
    schema["x-kubernetes-group-version-kind"] = json!([{"group": "g", "version": "v1", "kind": "Thing"}]);
    let document = json!({"components": {"schemas": {"Thing": schema}}}).to_string();
    Document::read(document.as_bytes()).unwrap().declaration("g", "v1", "Thing").unwrap()
}

/// Returns the warnings of a policy on objects of one kind as (field, text).
fn warned(spec: Value, object: &Declaration, params: Params<'_>) -> Vec<(String, String)> {
    let policy = policy(spec);
    let findings = check::check(&policy, &kind("g", "v1", "Thing"), object, params);
    let warnings = check::warnings(&policy, &[findings]);
    warnings.into_iter().map(|warning| (warning.field_ref, warning.warning)).collect()
}

fn validations(expressions: &[&str]) -> Value {
    json!(expressions.iter().map(|expression| json!({"expression": expression})).collect::<Vec<_>>())
}

#[test]
fn warnings_tell_field_kind_and_place() {
    let spec = json!({"validations": [
        {"expression": "object.n > 1", "messageExpression": "'n is ' + string(object.n)"},
        {"expression": "object.n > '1'", "messageExpression": "'n is ' + object.n"},
        {"expression": "object.more\n  && object.less", "messageExpression": ""},
    ]});
    let warnings = warned(spec, &thing(json!({"n": {"type": "integer"}})), Params::Absent);
    let expected = [
        (
            "spec.validations[1].expression",
            "g/v1, Kind=Thing: ERROR: <input>:1:10: found no matching overload for '_>_' applied to '(int, string)'\n \
             | object.n > '1'\n | .........^\n",
        ),
        (
            "spec.validations[1].messageExpression",
            "g/v1, Kind=Thing: ERROR: <input>:1:9: found no matching overload for '_+_' applied to '(string, int)'\n \
             | 'n is ' + object.n\n | ........^\n",
        ),
        (
            "spec.validations[2].expression",
            "g/v1, Kind=Thing: ERROR: <input>:1:7: undefined field 'more'\n | object.more\n | ......^\n\
             ERROR: <input>:2:12: undefined field 'less'\n |   && object.less\n | ...........^\n",
        ),
    ];
    let expected = expected.map(|(field, text)| (field.to_owned(), text.to_owned()));
    assert_eq!(warnings, expected);
}

#[test]
fn each_kind_adds_its_own_lines_to_a_warning() {
    let policy = policy(json!({"validations": validations(&["object.a == 1", "object.b == 1", "true"])}));
    let (integer, text) = (json!({"type": "integer"}), json!({"type": "string"}));
    let kinds = [
        (kind("", "v1", "A"), thing(json!({"a": integer, "b": text}))),
        (kind("g", "v1", "B"), thing(json!({"a": integer, "b": integer}))),
        (kind("g", "v1", "C"), thing(json!({"a": integer}))),
    ];
    let findings: Vec<_> =
        kinds.iter().map(|(kind, object)| check::check(&policy, kind, object, Params::Absent)).collect();
    let warnings = check::warnings(&policy, &findings);
    assert_eq!(warnings.len(), 1);
    assert_eq!(warnings[0].field_ref, "spec.validations[1].expression");
    let expected = "/v1, Kind=A: ERROR: <input>:1:10: found no matching overload for '_==_' applied to '(string, int)'\n \
        | object.b == 1\n | .........^\n\n\
        g/v1, Kind=C: ERROR: <input>:1:7: undefined field 'b'\n | object.b == 1\n | ......^\n";
    assert_eq!(warnings[0].warning, expected);
    assert!(check::warnings(&policy, &[]).is_empty(), "without a schema there is nothing to warn of");
}

#[test]
fn expressions_are_checked_with_variables_parameters_and_the_authorizer() {
    let text = json!({"type": "string"});
    let (object, params) = (thing(json!({"foo": text})), thing(json!({"bar": text})));
    let number = thing(json!({"foo": {"type": "integer", "format": "int64"}}));
    let of = |expressions: &[&str]| json!({"validations": validations(expressions)});
    let with = |name: &str, value: &str, expression: &str| {
        let mut spec = of(&[expression]);
        spec["variables"] = json!([{"name": name, "expression": value}]);
        spec
    };
    let deep = thing(json!({
        "spec": {"type": "object", "properties": {"text": text}},
        "status": {"type": "object", "properties": {"any": {"type": "object", "additionalProperties": true}}}}));
    let untyped = declared(json!({}));
    for (spec, object, params, expected) in [
        (of(&["object.foo == 'bar'"]), &object, Params::Absent, None),
        (of(&["object.foo == 'bar'"]), &params, Params::Absent, Some("undefined field 'foo'")),
        (of(&["object.foo == 'bar'"]), &number, Params::Absent, Some("found no matching overload")),
        (of(&["has(object.spec.text)"]), &deep, Params::Absent, None),
        (of(&["true", "object.anything > 1"]), &untyped, Params::Absent, None),
        (of(&["object.foo == params.bar"]), &object, Params::Of(&params), None),
        (of(&["object.foo == params.bar"]), &object, Params::Of(&object), Some("undefined field 'bar'")),
        (of(&["object.foo == params.bar"]), &object, Params::Unknown, None),
        (
            of(&["object.foo == params.bar"]),
            &object,
            Params::Absent,
            Some("undeclared reference to 'params'"),
        ),
        (of(&["params != null && params.x == 1"]), &object, Params::Of(&untyped), None),
        // Two objects of one kind are of two types.
        (of(&["object == params"]), &object, Params::Of(&object), Some("'(Thing, Thing)'")),
        (of(&["object == oldObject"]), &object, Params::Of(&object), None),
        (
            of(&["authorizer.group('').resource('endpoints').check('create').allowed()"]),
            &object,
            Params::Absent,
            None,
        ),
        (
            of(&["authorizer.allowed()"]),
            &object,
            Params::Absent,
            Some("overload for 'allowed' applied to 'kubernetes.authorization.Authorizer.()'"),
        ),
        (with("works", "true", "variables.works"), &object, Params::Absent, None),
        (with("works", "true", "variables.other"), &object, Params::Absent, Some("undefined field 'other'")),
        (
            with("name", "'x'", "variables.name == object.foo"),
            &number,
            Params::Absent,
            Some("'_==_' applied to '(string, int)'"),
        ),
        // Faults of a variable cause no warning.
        (with("name", "object.foo == 'x'", "variables.name == object.foo"), &number, Params::Absent, None),
        (with("p", "params.bar", "variables.p > 1"), &object, Params::Of(&params), Some("'(string, int)'")),
    ] {
        let warnings = warned(spec.clone(), object, params);
        match expected {
            None => assert!(warnings.is_empty(), "{spec}: {warnings:?}"),
            Some(text) => {
                assert!(warnings.len() == 1 && warnings[0].1.contains(text), "{spec}: {warnings:?}")
            }
        }
    }
}

#[test]
fn warnings_fit_into_an_object() {
    let long = format!("object.{}", "x".repeat(10_000));
    let expressions = vec![long.as_str(); 100];
    let warnings =
        warned(json!({"validations": validations(&expressions)}), &thing(json!({})), Params::Absent);
    let bytes: usize = warnings.iter().map(|(field, text)| field.len() + text.len()).sum();
    assert!(bytes <= WARNINGS_BYTES && bytes > WARNINGS_BYTES - 30_000, "{bytes}");
    assert_eq!(warnings[0].0, "spec.validations[0].expression");
}

#[test]
fn kinds_are_remembered_while_their_document_has_its_address_and_they_are_used() {
    let schemas = Schemas::default();
    let (thing_, other) = (kind("g", "v1", "Thing"), kind("g", "v1", "Other"));
    let known = Some(Arc::new(thing(json!({}))));
    schemas.insert(&thing_, "/openapi/v3/apis/g/v1?hash=1", known.clone());
    schemas.insert(&other, "/openapi/v3/apis/g/v1?hash=1", None);
    let found = |kind: &Kind, hash: u32| schemas.get(kind, &format!("/openapi/v3/apis/g/v1?hash={hash}"));
    assert!(found(&thing_, 1).is_some_and(|known| known.is_some()));
    assert!(found(&other, 1).is_some_and(|known| known.is_none()), "the document has no such kind");
    assert!(found(&thing_, 2).is_none(), "the definition has changed");
    schemas.insert(&thing_, "/openapi/v3/apis/g/v1?hash=2", known.clone());
    assert!(found(&thing_, 1).is_none() && found(&thing_, 2).is_some() && schemas.len() == 2);
    // An address that tells nothing about the content.
    schemas.insert(&kind("g", "v1", "Plain"), "/openapi/v3/apis/g/v1", known.clone());
    assert_eq!(schemas.len(), 2);
    schemas.sweep();
    assert!(found(&thing_, 2).is_some());
    schemas.sweep();
    assert!(found(&thing_, 2).is_some() && found(&other, 1).is_none());
    for number in 0..100 {
        schemas.insert(&kind("g", "v1", &format!("K{number}")), "?hash=1", known.clone());
    }
    assert_eq!(schemas.len(), KINDS_REMEMBERED);
    assert!(schemas.get(&kind("g", "v1", "K99"), "?hash=1").is_some());
    schemas.sweep();
    schemas.sweep();
    assert_eq!(schemas.len(), 0);
}
