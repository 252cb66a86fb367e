//! Policies on objects whose kind is known, and the documents that tell about kinds.

use serde_json::{Value, json};

use super::*;

/// A document with kinds of group `g` and version `v1`, each with the schema of its name.
fn document(schemas: &Value) -> Document {
    let mut schemas = schemas.clone();
    for (name, schema) in schemas.as_object_mut().unwrap() {
        schema["x-kubernetes-group-version-kind"] = json!([
            {"group": "other", "version": "v1", "kind": name}, {"group": "g", "version": "v1", "kind": name}]);
    }
    let document = json!({"openapi": "3.0.0", "paths": {"/apis/g/v1": {"get": [1]}},
        "components": {"schemas": schemas, "securitySchemes": {}}});
    Document::read(document.to_string().as_bytes()).unwrap()
}

fn declared(schema: &Value) -> Declaration {
    document(&json!({"Kind": schema})).declaration("g", "v1", "Kind").unwrap()
}

fn object(properties: Value) -> Value {
    json!({"type": "object", "properties": properties})
}

/// The first line of what is wrong with an expression; empty if nothing is.
fn wrong(kind: &Declaration, source: &str) -> String {
    let checked = TypedPolicy::new(kind, Params::Absent).check(source);
    let text = checked.err().unwrap_or_default();
    text.lines().next().unwrap_or_default().trim_start_matches("ERROR: <input>:").to_owned()
}

fn all_fit(kind: &Declaration, sources: &[&str]) {
    for source in sources {
        assert_eq!(wrong(kind, source), "", "{source}");
    }
}

/// A kind with fields of all types.
fn all_types() -> Declaration {
    declared(&object(json!({
        "spec": object(json!({
            "count": {"type": "integer", "format": "int32"},
            "share": {"type": "number"},
            "flag": {"type": "boolean"},
            "text": {"type": "string", "default": ""},
            "secret": {"type": "string", "format": "byte"},
            "since": {"type": "string", "format": "date-time"},
            "day": {"type": "string", "format": "date"},
            "lasts": {"type": "string", "format": "duration"},
            // Not the name of a format that has a type.
            "datetime": {"type": "string", "format": "datetime"},
            "port": {"format": "int-or-string", "oneOf": [{"type": "integer"}, {"type": "string"}]},
            "percent": {"x-kubernetes-int-or-string": true},
            "names": {"type": "array", "items": {"type": "string"}},
            "labels": {"type": "object", "additionalProperties": {"type": "string"}},
            "open": {"type": "object", "additionalProperties": true},
            "items": {"type": "array", "items": object(json!({"n": {"type": "integer"}}))},
            "by-name": {"type": "object", "additionalProperties": object(json!({"n": {"type": ["integer", "null"]}}))},
            "namespace": {"type": "string"},
            "raw": {"type": "object", "x-kubernetes-embedded-resource": true},
            // Quantities have no type, and neither has what is made of them.
            "size": {"oneOf": [{"type": "string"}, {"type": "number"}]},
            "limits": {"type": "object", "additionalProperties": {"oneOf": [{"type": "string"}]}},
            "sizes": {"type": "array", "items": {"format": "x"}},
            "pairs": {"type": "array", "items": [{"type": "string"}]},
        })),
    })))
}

#[test]
fn fields_have_the_types_of_the_schema() {
    let kind = all_types();
    all_fit(
        &kind,
        &[
            "object.spec.count > 1 && oldObject.spec.count < object.spec.count",
            "object.spec.share > 0.5 && object.spec.flag && object.spec.text == ''",
            "object.spec.secret == b'x' && object.spec.since < timestamp(0) && object.spec.day < timestamp(0)",
            "object.spec.lasts > duration('1s') && object.spec.datetime.startsWith('2')",
            "object.spec.port == 1 && object.spec.port == 'http' && object.spec.percent + 1 > 0",
            "object.spec.names.all(n, n.size() > 1) && object.spec.labels['a'] == 'b' && object.spec.labels.a == 'b'",
            "object.spec.items[0].n == 1 && object.spec.by__dash__name.all(k, object.spec.by__dash__name[k].n > 0)",
            "object.spec.namespace == 'a' && object.spec.__namespace__ == 'a'",
            "object.spec.raw.kind == 'Pod' && object.spec.raw.metadata.name == 'x'",
            "object.kind == 'Kind' && object.apiVersion == 'g/v1' && object.metadata.generateName == ''",
            "oldObject == null || has(object.spec.text)",
            "request.operation == 'CREATE' && namespaceObject.metadata.labels['a'] == 'b'",
            "authorizer.group('').resource('endpoints').check('create').allowed()",
            "authorizer.requestResource.check('get').allowed()",
            "object.spec.count",
        ],
    );
    for (source, expected) in [
        ("object.spec.count > '1'", "1:19: found no matching overload for '_>_' applied to '(int, string)'"),
        ("'a' + object.spec.count", "1:5: found no matching overload for '_+_' applied to '(string, int)'"),
        ("object.spec.more", "1:12: undefined field 'more'"),
        ("object.spec.open.more == 1", "1:17: undefined field 'more'"),
        ("object.spec.size == ''", "1:12: undefined field 'size'"),
        ("object.spec.limits.cpu == ''", "1:12: undefined field 'limits'"),
        ("object.spec.sizes == []", "1:12: undefined field 'sizes'"),
        ("object.spec.pairs == []", "1:12: undefined field 'pairs'"),
        ("object.metadata.labels.a == 'b'", "1:16: undefined field 'labels'"),
        ("object.spec.count.more", "1:18: type 'int' does not support field selection"),
        (
            "object.spec.secret == 'x'",
            "1:20: found no matching overload for '_==_' applied to '(bytes, string)'",
        ),
        ("params.x == 1", "1:1: undeclared reference to 'params' (in container '')"),
        ("variables.x == 1", "1:10: undefined field 'x'"),
        (
            "authorizer.allowed()",
            "1:19: found no matching overload for 'allowed' applied to 'kubernetes.authorization.Authorizer.()'",
        ),
        // Types with fields are called by their place.
        ("object == 1", "1:8: found no matching overload for '_==_' applied to '(Kind, int)'"),
        ("object.spec == 1", "1:13: found no matching overload for '_==_' applied to '(Kind.spec, int)'"),
        (
            "object.spec.items[0] == 1",
            "1:22: found no matching overload for '_==_' applied to '(Kind.spec.items.@idx, int)'",
        ),
        (
            "object.spec.by__dash__name == 1",
            "1:28: found no matching overload for '_==_' applied to '(map(string, Kind.spec.by__dash__name.@elem), int)'",
        ),
    ] {
        assert_eq!(wrong(&kind, source), expected, "{source}");
    }
}

#[test]
fn metadata_is_known_as_far_as_the_schema_describes_it() {
    let text = json!({"type": "string"});
    let labels = json!({"type": "object", "additionalProperties": {"type": "string"}});
    let metadata = object(json!({"name": text, "generateName": text, "namespace": text, "labels": labels}));
    let full = json!({"apiVersion": text, "kind": text, "metadata": metadata});
    all_fit(
        &declared(&object(full.clone())),
        &["object.metadata.labels.a == object.metadata.name", "object.metadata.namespace == 'a'"],
    );
    for field in ["apiVersion", "kind", "metadata/properties/generateName"] {
        let mut partly = full.clone();
        *partly.pointer_mut(&format!("/{field}")).unwrap() = json!({"type": "integer"});
        let kind = declared(&object(partly));
        assert_eq!(
            wrong(&kind, "object.metadata.labels.a == ''"),
            "1:16: undefined field 'labels'",
            "{field}"
        );
        all_fit(&kind, &["object.metadata.name + object.metadata.generateName + object.kind == ''"]);
    }
}

#[test]
fn kind_without_a_type_may_be_anything() {
    for schema in [json!({}), json!({"type": "null"}), json!({"properties": {"a": {"type": "string"}}})] {
        all_fit(&declared(&schema), &["true", "object.a == 1 && object.b.c == 'x'"]);
    }
}

#[test]
fn parameters_are_of_their_kind_or_of_any() {
    let kind = declared(&object(json!({"foo": {"type": "string"}})));
    let other = declared(&object(json!({"bar": {"type": "string"}})));
    let of = |params| TypedPolicy::new(&kind, params);
    assert_eq!(of(Params::Of(&other)).check("object.foo == params.bar"), Ok(()));
    let error = of(Params::Of(&other)).check("object.foo == params.foo").unwrap_err();
    assert!(error.contains("undefined field 'foo'"), "{error}");
    assert_eq!(of(Params::Unknown).check("params.any.thing == 1 && params != null"), Ok(()));
    assert_eq!(of(Params::Of(&declared(&json!({})))).check("params.any == 1 && params != null"), Ok(()));
}

#[test]
fn variables_have_types_unless_they_have_fields_or_are_wrong() {
    let kind =
        declared(&object(json!({"spec": object(json!({"n": {"type": "integer"}, "list": {"type": "array",
        "items": object(json!({"t": {"type": "string"}}))}}))})));
    let mut policy = TypedPolicy::new(&kind, Params::Absent);
    for (name, source) in [
        ("n", "object.spec.n"),
        ("next", "variables.n + 1"),
        ("text", "string(variables.next)"),
        ("spec", "object.spec"),
        ("list", "object.spec.list"),
        ("texts", "object.spec.list.map(i, i.t)"),
        ("maybe", "object.?spec"),
        ("size", "quantity('1')"),
        ("wrong", "object.spec.n == ''"),
        ("unreadable", "object.spec."),
    ] {
        policy.variable(name, source);
    }
    for source in [
        "variables.next > 1 && variables.text == ''",
        "variables.spec.any.thing == 1",
        "variables.list[0].any == 1",
        "variables.texts[0].size() == 1",
        "variables.maybe.any == 1 && variables.size == 1",
        "variables.wrong + variables.unreadable > 1",
    ] {
        assert_eq!(policy.check(source), Ok(()), "{source}");
    }
    for (source, expected) in [
        ("variables.text > 1", "'_>_' applied to '(string, int)'"),
        ("variables.texts == 1", "'_==_' applied to '(list(string), int)'"),
        ("variables.list == 1", "'_==_' applied to '(list(dyn), int)'"),
        ("variables.later == 1", "undefined field 'later'"),
    ] {
        let error = policy.check(source).unwrap_err();
        assert!(error.contains(expected), "{source}: {error}");
    }
}

#[test]
fn references_are_followed_and_end_where_they_return() {
    let reference = |name: &str| json!({"$ref": format!("#/components/schemas/{name}")});
    let described = |name: &str| json!({"description": "x", "default": {}, "allOf": [reference(name)]});
    let document = document(&json!({
        "Tree": object(json!({"value": described("Value"), "left": described("Tree"),
            "others": {"type": "array", "items": described("Tree")},
            "named": {"type": "object", "additionalProperties": reference("Value")}})),
        "Value": object(json!({"n": {"type": "integer"}, "tree": reference("Tree")})),
        "Broken": object(json!({"a": object(json!({"b": reference("Nothing")}))})),
        // A reference to a reference is not followed: it has no type.
        "Twice": object(json!({"a": reference("Once")})),
        "Once": reference("Value"),
    }));
    let tree = document.declaration("g", "v1", "Tree").unwrap();
    all_fit(&tree, &["object.value.n == 1 && object.named['a'].n == 1 && object.left != null"]);
    for (source, field) in [
        ("object.left.value", "value"),
        ("object.others[0].value", "value"),
        ("object.value.tree.value", "value"),
    ] {
        assert!(wrong(&tree, source).ends_with(&format!("undefined field '{field}'")), "{source}");
    }
    let twice = document.declaration("g", "v1", "Twice").unwrap();
    assert!(wrong(&twice, "object.a.n == 1").ends_with("undefined field 'a'"));
    let unresolved = |version, kind| document.declaration("g", version, kind).unwrap_err();
    assert_eq!(unresolved("v1", "Broken"), Unresolved::Reference("Nothing".to_owned()));
    assert_eq!(unresolved("v1", "None"), Unresolved::Unknown);
    assert_eq!(unresolved("v2", "Tree"), Unresolved::Unknown);
}

#[test]
fn schemas_that_grow_without_end_are_refused() {
    let reference = |number: u32| json!({"$ref": format!("#/components/schemas/K{number}")});
    // Each holds the next one twice.
    let doubling = (0..40).map(|number| {
        let next = reference(number + 1);
        (format!("K{number}"), object(json!({"a": next, "b": next})))
    });
    let doubling: serde_json::Map<String, Value> = doubling.chain([("K40".to_owned(), json!({}))]).collect();
    let of = |schemas: &Value| document(schemas).declaration("g", "v1", "K0").map(drop);
    assert_eq!(of(&Value::Object(doubling)), Err(Unresolved::TooLarge));
    let chain = |length: u32| {
        let links =
            (0..length).map(|number| (format!("K{number}"), object(json!({"a": reference(number + 1)}))));
        let last = [(format!("K{length}"), json!({"type": "string"}))];
        Value::Object(links.chain(last).collect())
    };
    assert_eq!(of(&chain(99)), Ok(()));
    assert_eq!(of(&chain(100)), Err(Unresolved::TooLarge));
}

#[test]
fn documents_with_anything_in_them_are_read_or_refused() {
    for text in ["", "{", "1", "[1]", r#"{"components": {"schemas": {"A": 1}}}"#] {
        assert!(Document::read(text.as_bytes()).is_err(), "{text}");
    }
    let deep = format!("{}{}", r#"{"items":"#.repeat(200), "}".repeat(200));
    let deep = format!(r#"{{"components": {{"schemas": {{"A": {deep}}}}}}}"#);
    assert!(Document::read(deep.as_bytes()).is_err());
    for text in
        ["{}", r#"{"components": {}}"#, r#"{"components": {"schemas": {"A": {"type": 1, "items": null}}}}"#]
    {
        let document = Document::read(text.as_bytes()).unwrap();
        assert_eq!(document.declaration("g", "v1", "A").map(drop), Err(Unresolved::Unknown), "{text}");
    }
}
