//! Tests of CEL expressions as clients meet them: refusals of definitions, policies, webhooks and device
//! classes, and the results of a definition's rules on objects.

use serde_json::{Value, json};

use crate::api::bad_rules::{CRDS, FROBS, definition, frob};
use crate::api::crds::establish;
use crate::api::harness::{Api, Reply};

const ADMISSION: &str = "/apis/admissionregistration.k8s.io/v1";

/// The causes of a refusal: field and message.
fn causes(reply: &Reply) -> Vec<String> {
    let list = reply.body["details"]["causes"].as_array().unwrap();
    list.iter()
        .map(|c| format!("{}: {}", c["field"].as_str().unwrap(), c["message"].as_str().unwrap()))
        .collect()
}

fn with_rules(properties: Value, rules: Value) -> Value {
    definition(json!({"type": "object", "properties": {"spec":
        {"type": "object", "properties": properties, "x-kubernetes-validations": rules}}}))
}

fn properties() -> Value {
    json!({
        "n": {"type": "integer"}, "s": {"type": "string", "maxLength": 20},
        "l": {"type": "array", "maxItems": 10, "items": {"type": "object", "properties": {
            "name": {"type": "string", "maxLength": 10}, "weight": {"type": "integer"}}}},
        "m": {"type": "object", "maxProperties": 10, "additionalProperties": {"type": "integer"}},
        "a-b": {"type": "string", "maxLength": 10}, "when": {"type": "string", "format": "date-time"},
        "port": {"x-kubernetes-int-or-string": true},
    })
}

#[tokio::test(start_paused = true)]
async fn a_definition_is_told_of_all_that_is_wrong_with_its_rules() {
    let api = Api::start().await;
    let rules = json!([
        {"rule": "self.n + self.s == 1"}, {"rule": "self.n == 'x' || other"}, {"rule": "self.n"},
        {"rule": "true", "messageExpression": "self.n"}, {"rule": "self.n > oldSelf.n", "optionalOldSelf": true},
        {"rule": "self.n >"}, {"rule": "has(self.n)", "optionalOldSelf": true}]);
    let refused = api.post(CRDS, with_rules(properties(), rules)).await.expect(422);
    let at = "spec.validation.openAPIV3Schema.properties[spec].x-kubernetes-validations";
    let found: Vec<String> = causes(&refused).into_iter().map(|cause| cause.replace(at, "")).collect();
    let wanted = [
        (
            "[0].rule",
            "ERROR: <input>:1:8: found no matching overload for '_+_' applied to '(int, string)'\n | self.n + self.s == 1\n | .......^",
        ),
        (
            "[1].rule",
            "'_==_' applied to '(int, string)'\n | self.n == 'x' || other\n | .......^\nERROR: <input>:1:18: undeclared reference to 'other' (in container '')",
        ),
        (
            "[2].rule",
            "Invalid value: {\"Rule\":\"self.n\",\"Message\":\"\",\"MessageExpression\":\"\",\"Reason\":null,\"FieldPath\":\"\",\"OptionalOldSelf\":null}: cel expression must evaluate to a bool",
        ),
        ("[3].messageExpression", "messageExpression must evaluate to a string"),
        // An optional does not compare with its content.
        ("[4].rule", "'_>_' applied to '(int, optional_type(int))'"),
        ("[4].optionalOldSelf", "may not be set if oldSelf is not used in rule"),
        (
            "[5].rule",
            "ERROR: <input>:1:9: Syntax error: mismatched input '<EOF>' expecting {'[', '{', '(', '.', '-', '!', 'true'",
        ),
        ("[6].optionalOldSelf", "may not be set if oldSelf is not used in rule"),
    ];
    for (place, text) in wanted {
        assert!(found.iter().any(|f| f.contains(place) && f.contains(text)), "{place} {text}\n{found:#?}");
    }
    assert_eq!(found.len(), wanted.len(), "{found:#?}");
    // An empty rule suppresses the errors of its own place and of those around it, no more.
    let schema = json!({"type": "object", "properties": {
        "a": {"type": "object", "x-kubernetes-validations": [{"rule": " "}, {"rule": "1"}]},
        "b": {"type": "object", "x-kubernetes-validations": [{"rule": "2"}]}}});
    let refused = api.post(CRDS, definition(schema)).await.expect(422);
    let found = causes(&refused);
    assert_eq!(found.len(), 2, "{found:?}");
    assert!(
        found[0].ends_with(
            "properties[a].x-kubernetes-validations[0].rule: Required value: rule is not specified"
        )
    );
    assert!(found[1].contains("properties[b].x-kubernetes-validations[0].rule: Invalid value"));
}

#[tokio::test(start_paused = true)]
async fn rules_use_the_whole_language_on_objects() {
    let api = Api::start().await;
    let rules = json!([
        {"rule": "!has(self.l) || self.l.sortBy(e, e.weight).map(e, e.name) == self.l.map(e, e.name)", "message": "not in order"},
        {"rule": "!has(self.m) || self.m.all(k, v, k.startsWith('k') && v > 0)", "message": "bad map"},
        {"rule": "!has(self.m) || self.m.transformMap(k, v, v * 2).exists(k, v, v == 4)", "message": "no two"},
        {"rule": "self.?n.orValue(1) != 0", "message": "n is zero"},
        {"rule": "!has(self.a__dash__b) || isIP(self.a__dash__b)", "message": "no address", "fieldPath": ".a-b", "reason": "FieldValueRequired"},
        {"rule": "!has(self.when) || self.when.getFullYear('UTC') > 2000", "messageExpression": "'year ' + string(self.when.getFullYear()) + ' is long ago'"},
        {"rule": "!has(self.port) || (type(self.port) == int ? self.port > 0 : self.port.matches('^[a-z]+$'))", "message": "bad port"},
        {"rule": "!has(self.s) || 10 / (self.s.size() - 1) > 0"},
        {"rule": "self.n >= oldSelf.n", "message": "n may only grow"},
        {"rule": "oldSelf.hasValue() || self.?n.orValue(0) < 100", "optionalOldSelf": true, "message": "starts too large"},
    ]);
    establish(&api, with_rules(properties(), rules)).await;
    for (spec, wanted) in [
        (
            json!({"l": [{"name": "a", "weight": 2}, {"name": "b", "weight": 1}]}),
            "spec: Invalid value: not in order",
        ),
        (json!({"m": {"x": 2}}), "spec: Invalid value: bad map"),
        (json!({"m": {"k": 3}}), "spec: Invalid value: no two"),
        (json!({"n": 0}), "spec: Invalid value: n is zero"),
        (json!({"a-b": "x"}), "spec.a-b: Required value: no address"),
        (json!({"when": "1999-01-01T00:00:00Z"}), "spec: Invalid value: year 1999 is long ago"),
        (json!({"port": "80"}), "spec: Invalid value: bad port"),
        (json!({"port": 0}), "spec: Invalid value: bad port"),
        (
            json!({"s": "x"}),
            "spec: Invalid value: \"object\": division by zero evaluating rule: !has(self.s) || 10 / (self.s.size() - 1) > 0",
        ),
        (json!({"n": 100}), "spec: Invalid value: starts too large"),
    ] {
        let refused =
            api.post(FROBS, frob(json!({"metadata": {"name": "a"}, "spec": spec}))).await.expect(422);
        assert_eq!(causes(&refused), [wanted]);
    }
    let good = json!({"n": 5, "l": [{"name": "b", "weight": 1}, {"name": "a", "weight": 2}], "m": {"k": 2}, "a-b": "::1",
        "when": "2024-01-01T00:00:00Z", "port": "http", "s": "text"});
    api.post(FROBS, frob(json!({"metadata": {"name": "a"}, "spec": good}))).await.expect(201);
    let path = format!("{FROBS}/a");
    let refused = api.patch("merge", &path, json!({"spec": {"n": 4}})).await.expect(422);
    assert_eq!(causes(&refused), ["spec: Invalid value: n may only grow"]);
    api.patch("merge", &path, json!({"spec": {"n": 500}})).await.expect(200);
}

#[tokio::test(start_paused = true)]
async fn values_older_than_a_rule_are_tolerated_until_changed() {
    let api = Api::start().await;
    let item = json!({"type": "object", "required": ["k"], "properties": {"k": {"type": "string", "maxLength": 9}, "n": {"type": "integer"}}});
    let mut list = json!({"type": "array", "maxItems": 9, "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["k"], "items": item});
    establish(&api, with_rules(json!({"l": list, "z": {"type": "integer"}}), json!([]))).await;
    let object = json!({"metadata": {"name": "a"}, "spec": {"l": [{"k": "a", "n": 1}, {"k": "b", "n": 1}]}});
    api.post(FROBS, frob(object)).await.expect(201);
    list["items"]["x-kubernetes-validations"] = json!([{"rule": "self.n > 5", "message": "too small"}]);
    let read = api.get(&format!("{CRDS}/frobs.example.com")).await.expect(200).body;
    let mut changed = read;
    changed["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]["l"] =
        list;
    api.put(&format!("{CRDS}/frobs.example.com"), changed).await.expect(200);
    let path = format!("{FROBS}/a");
    let mut refused = None;
    for _ in 0..200 {
        let body = json!({"spec": {"l": [{"k": "b", "n": 2}, {"k": "a", "n": 1}]}});
        let reply = api.patch("merge", &format!("{path}?dryRun=All"), body).await;
        if reply.code == 422 {
            refused = Some(reply);
            break;
        }
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
    // Only the changed item is reported, at its present place.
    assert_eq!(causes(&refused.unwrap()), ["spec.l[0]: Invalid value: too small"]);
    // A change of the object gets warnings about its existing faults.
    let touched = api.patch("merge", &path, json!({"spec": {"z": 1}})).await.expect(200);
    let warning = |i: usize| format!("299 - \"spec.l[{i}]: Invalid value: too small\"");
    let warned: Vec<&str> =
        touched.headers.get_all("warning").iter().map(|value| value.to_str().unwrap()).collect();
    assert_eq!(warned, [warning(0), warning(1)]);
    let more = json!({"spec": {"l": [{"k": "a", "n": 1}, {"k": "b", "n": 9}]}});
    api.patch("merge", &path, more).await.expect(200);
}

fn policy(spec: Value) -> Value {
    let mut whole = json!({"failurePolicy": "Fail", "matchConstraints": {"resourceRules": [{"operations": ["CREATE"],
        "apiGroups": ["apps"], "apiVersions": ["v1"], "resources": ["deployments"]}]}});
    whole.as_object_mut().unwrap().extend(spec.as_object().unwrap().clone());
    json!({"metadata": {"name": "p.example.com"}, "spec": whole})
}

#[tokio::test(start_paused = true)]
async fn policies_are_refused_for_expressions_that_do_not_compile() {
    let api = Api::start().await;
    let validating = format!("{ADMISSION}/validatingadmissionpolicies");
    let ok = json!([{"expression": "true"}]);
    for (spec, wanted) in [
        (
            json!({"validations": [{"expression": "object.spec.replicas <"}]}),
            "spec.validations[0].expression: Invalid value: \"object.spec.replicas <\": compilation failed: ERROR: <input>:1:23: Syntax error",
        ),
        (
            json!({"validations": [{"expression": "object.spec.replicas"}]}),
            "spec.validations[0].expression: Invalid value: \"object.spec.replicas\": must evaluate to bool but got dyn",
        ),
        (json!({"validations": [{"expression": "request.none == ''"}]}), "undefined field 'none'"),
        (
            json!({"validations": [{"expression": "params.x == 1"}]}),
            "undeclared reference to 'params' (in container '')",
        ),
        (
            json!({"validations": [{"expression": "true", "messageExpression": "1"}]}),
            "spec.validations[0].messageExpression: Invalid value: \"1\": must evaluate to string but got int",
        ),
        (
            json!({"validations": [{"expression": "true", "messageExpression": "string(authorizer.path('/').check('get').allowed())"}]}),
            "undeclared reference to 'authorizer'",
        ),
        (
            json!({"validations": ok, "matchConditions": [{"name": "c", "expression": "variables.x"}]}),
            "spec.matchConditions[0].expression: Invalid value: \"variables.x\": compilation failed: ERROR: <input>:1:1: undeclared reference to 'variables'",
        ),
        (
            json!({"validations": ok, "matchConditions": [{"name": "c", "expression": "'x'"}]}),
            "must evaluate to bool but got string",
        ),
        (
            json!({"validations": [{"expression": "variables.b > 1"}], "variables": [{"name": "a", "expression": "1"}, {"name": "b", "expression": "string(variables.a)"}]}),
            "found no matching overload for '_>_' applied to '(string, int)'",
        ),
        (
            json!({"validations": ok, "variables": [{"name": "a", "expression": "variables.b"}, {"name": "b", "expression": "1"}]}),
            "spec.variables[0].expression: Invalid value: \"variables.b\": compilation failed: ERROR: <input>:1:10: undefined field 'b'",
        ),
        (
            json!({"auditAnnotations": [{"key": "k", "valueExpression": "1"}]}),
            "spec.auditAnnotations[0].valueExpression: Invalid value: \"1\": must evaluate to one of [string null_type] but got int",
        ),
    ] {
        let refused = api.post(&validating, policy(spec.clone())).await.expect(422);
        assert!(
            causes(&refused).iter().any(|cause| cause.contains(wanted)),
            "{wanted}\n{:#?}",
            causes(&refused)
        );
    }
    let good = json!({"paramKind": {"apiVersion": "v1", "kind": "ConfigMap"},
        "variables": [{"name": "n", "expression": "object.spec.replicas + 1"}, {"name": "t", "expression": "string(variables.n)"}],
        "matchConditions": [{"name": "c", "expression": "request.operation == 'CREATE' && params.data.x == '1'"}],
        "validations": [{"expression": "variables.t.size() < int(params.data.max) && authorizer.requestResource.check('get').allowed()",
            "messageExpression": "'replicas: ' + variables.t"}],
        "auditAnnotations": [{"key": "k", "valueExpression": "variables.n > 5 ? variables.t : 'few'"}]});
    api.post(&validating, policy(good)).await.expect(201);
}

#[tokio::test(start_paused = true)]
async fn mutations_are_refused_that_make_something_else_than_they_should() {
    let api = Api::start().await;
    let mutating = format!("{ADMISSION}/mutatingadmissionpolicies");
    let mutation = |kind: &str, expression: &str| {
        let field = if kind == "JSONPatch" { "jsonPatch" } else { "applyConfiguration" };
        policy(
            json!({"reinvocationPolicy": "Never", "mutations": [{"patchType": kind, field: {"expression": expression}}]}),
        )
    };
    for (kind, expression, wanted) in [
        ("ApplyConfiguration", "1", "must evaluate to Object but got int"),
        ("ApplyConfiguration", "Object{", "compilation failed: ERROR: <input>:1:8: Syntax error"),
        ("JSONPatch", "Object{}", "must evaluate to list(JSONPatch) but got Object"),
        ("JSONPatch", "[JSONPatch{verb: 'add'}]", "undefined field 'verb'"),
    ] {
        let refused = api.post(&mutating, mutation(kind, expression)).await.expect(422);
        assert!(causes(&refused)[0].contains(wanted), "{:?}", causes(&refused));
    }
    let patch = "[JSONPatch{op: 'add', path: '/metadata/labels/' + jsonpatch.escapeKey('a/b'), value: 'x'}]";
    api.post(&mutating, mutation("JSONPatch", patch)).await.expect(201);
}

#[tokio::test(start_paused = true)]
async fn selectors_of_devices_are_compiled() {
    let api = Api::start().await;
    let path = "/apis/resource.k8s.io/v1/deviceclasses";
    let class = |name: &str, expression: &str| json!({"metadata": {"name": name}, "spec": {"selectors": [{"cel": {"expression": expression}}]}});
    for (expression, wanted) in [
        ("device.other == 1", "compilation failed: ERROR: <input>:1:7: undefined field 'other'"),
        ("device.driver", "must evaluate to bool or the unknown type, not string"),
        ("request.name == ''", "undeclared reference to 'request'"),
    ] {
        let refused = api.post(path, class("a", expression)).await.expect(422);
        let cause = &causes(&refused)[0];
        assert!(
            cause.starts_with("spec.selectors[0].cel.expression: Invalid value: ") && cause.contains(wanted),
            "{cause}"
        );
    }
    let good = "device.driver == 'd.example.com' && device.attributes['d.example.com'].model == 'a' && device.capacity['d.example.com'].memory.isGreaterThan(quantity('1Gi'))";
    api.post(path, class("a", good)).await.expect(201);
}
