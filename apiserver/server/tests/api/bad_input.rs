//! Malformed requests: each gets Kubernetes' answer, and nothing changes.

use bytes::Bytes;
use serde_json::{Value, json};

use crate::api::harness::{Api, Reply, pod};

pub const MAPS: &str = "/api/v1/namespaces/default/configmaps";
const PODS: &str = "/api/v1/namespaces/default/pods";
pub const MAP: &str = "/api/v1/namespaces/default/configmaps/m";
const POD: &str = "/api/v1/namespaces/default/pods/p";
pub const JSON: &str = "application/json";
const YAML: &str = "application/yaml";
const PROTOBUF: &str = "application/vnd.kubernetes.protobuf";
const JSON_PATCH: &str = "application/json-patch+json";
pub const MERGE: &str = "application/merge-patch+json";
const STRATEGIC: &str = "application/strategic-merge-patch+json";
const APPLY: &str = "application/apply-patch+yaml";

pub struct Case {
    method: &'static str,
    path: String,
    media: &'static str,
    body: Bytes,
    code: u16,
    reason: &'static str,
    /// The text that the message contains.
    says: &'static str,
}

pub fn case(
    (method, path): (&'static str, &str),
    (media, body): (&'static str, impl Into<Bytes>),
    (code, reason, says): (u16, &'static str, &'static str),
) -> Case {
    Case { method, path: path.to_owned(), media, body: body.into(), code, reason, says }
}

pub fn bad(says: &'static str) -> (u16, &'static str, &'static str) {
    (400, "BadRequest", says)
}

/// Starts a server with a ConfigMap and a pod.
pub async fn world() -> Api {
    let api = Api::start().await;
    api.config_map("m", json!({"app": "m"})).await;
    api.post(PODS, pod("p")).await.expect(201);
    api
}

async fn items(api: &Api) -> Vec<Value> {
    let mut all = Vec::new();
    for path in
        ["/api/v1/configmaps", "/api/v1/pods", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"]
    {
        all.push(api.get(path).await.expect(200).body["items"].clone());
    }
    all
}

async fn send(api: &Api, case: &Case) -> Reply {
    let headers = [("content-type", case.media)];
    let headers = if case.media.is_empty() { &headers[..0] } else { &headers[..] };
    api.call(case.method, &case.path, headers, case.body.clone()).await
}

/// Every case has its answer as a `Status`, and all of them together have changed nothing.
pub async fn all_refused(cases: Vec<Case>) {
    let api = world().await;
    let before = items(&api).await;
    let mut wrong = Vec::new();
    for case in cases {
        let reply = send(&api, &case).await;
        let head = String::from_utf8_lossy(&case.body[..case.body.len().min(80)]).into_owned();
        let is_status = reply.body["kind"] == "Status" && reply.body["status"] == "Failure";
        let as_expected =
            (reply.code, reply.reason()) == (case.code, case.reason) && reply.message().contains(case.says);
        // A client that sends much garbage does not get as much back.
        if !is_status || !as_expected || reply.text.len() > 64 * 1024 {
            let answer: String = reply.text.chars().take(400).collect();
            wrong.push(format!("{} {} {head}\n  {} {answer}", case.method, case.path, reply.code));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert_eq!(items(&api).await, before);
}

fn nested(open: &str, close: &str, depth: usize) -> String {
    format!(r#"{{"metadata":{{"name":"deep"}},"data":{}1{}}}"#, open.repeat(depth), close.repeat(depth))
}

/// Nine layers of nine aliases each.
fn alias_bomb() -> String {
    let mut text = "kind: ConfigMap\na0: &a0 [x,x,x,x,x,x,x,x,x]\n".to_owned();
    for layer in 1..10 {
        let below = format!("*a{},", layer - 1).repeat(9);
        text.push_str(&format!("a{layer}: &a{layer} [{}]\n", below.trim_end_matches(',')));
    }
    text
}

#[tokio::test]
async fn bodies_that_are_no_objects() {
    let create = ("POST", MAPS);
    let cut = "couldn't get version/kind; json parse error: unexpected end of JSON input";
    let parse = "couldn't get version/kind; json parse error";
    all_refused(vec![
        case(create, (JSON, ""), bad(cut)),
        case(create, ("", ""), bad("(<empty>)")),
        case(create, (JSON, r#"{"kind":"ConfigMap","metadata":{"name":"x""#), bad(cut)),
        case(
            create,
            (JSON, r#"{"metadata":{"name":"x"}} {}"#),
            bad("json parse error: invalid character '{' after top-level value"),
        ),
        case(
            create,
            (JSON, "nonsense"),
            bad("invalid character 'o' in literal null (expecting 'u') (6e6f6e73656e7365)"),
        ),
        case(
            create,
            (JSON, "{'metadata': {}}"),
            bad("invalid character '\\'' looking for beginning of object key string"),
        ),
        case(
            create,
            (JSON, "[]"),
            bad("json: cannot unmarshal array into Go value of type struct { APIVersion string"),
        ),
        case(create, (JSON, "7"), bad("json: cannot unmarshal number into Go value of type struct")),
        case(create, (JSON, "null"), (422, "Invalid", "name or generateName is required")),
        case(
            create,
            (JSON, r#"{"kind":7,"metadata":{"name":"x"}}"#),
            bad("json: cannot unmarshal number into Go struct field .kind of type string ({\"kind\":7,"),
        ),
        // Bytes that are not Unicode are read as U+FFFD, which no name has.
        case(create, (JSON, &b"{\"metadata\":{\"name\":\"\xff\xfe\"}}"[..]), (422, "Invalid", "RFC 1123")),
        case(create, (JSON, r#"{"metadata":{"name":"\ud800"}}"#), (422, "Invalid", "RFC 1123")),
        case(create, (JSON, nested("[", "]", 100_000)), bad("json parse error: exceeded max depth")),
        case(create, (JSON, nested(r#"{"a":"#, "}", 100_000)), bad(parse)),
        case(
            create,
            (JSON, r#"{"metadata":{"name":7}}"#),
            bad("ConfigMap in version \"v1\" cannot be handled as a ConfigMap"),
        ),
        case(create, (JSON, r#"{"metadata":[]}"#), bad("cannot be handled as a ConfigMap")),
        case(
            create,
            (JSON, r#"{"kind":"Pod","metadata":{"name":"x"}}"#),
            bad("Pod in version \"v1\" cannot be handled as a ConfigMap: converting (v1.Pod) to (core.ConfigMap): unknown conversion"),
        ),
        case(
            create,
            (JSON, r#"{"apiVersion":"v2","metadata":{"name":"x"}}"#),
            bad("ConfigMap in version \"v2\" cannot be handled as a ConfigMap: no kind \"ConfigMap\" is registered for version \"v2\" in scheme"),
        ),
        case(("PUT", MAP), (JSON, r#"{"metadata":{"name":"other"}}"#), bad("does not match")),
        case(("DELETE", MAP), (JSON, "{"), bad(cut)),
        case(
            ("DELETE", MAP),
            (JSON, r#"{"kind":"Pod"}"#),
            bad("no kind \"Pod\" is registered for version \"meta.k8s.io/v1\""),
        ),
    ])
    .await;
}

#[tokio::test]
async fn yaml_that_is_no_object() {
    let create = ("POST", MAPS);
    let yaml = "the object provided is unrecognized (must be of type ConfigMap): yaml: ";
    all_refused(vec![
        case(create, (YAML, "a: [1, 2"), bad(yaml)),
        case(create, (YAML, &b"a: \xff"[..]), bad("yaml: invalid leading UTF-8 octet")),
        case(create, (YAML, "a: \u{1}"), bad("yaml: control characters are not allowed")),
        case(create, (YAML, "\u{feff}metadata: {name: B}"), (422, "Invalid", "RFC 1123")),
        case(create, (YAML, alias_bomb()), bad("yaml: document contains excessive aliasing")),
        case(create, (YAML, "[".repeat(100_000)), bad(yaml)),
        case(create, (YAML, "- ".repeat(100_000)), bad(yaml)),
        case(create, (YAML, "a: &a [*a]"), bad("yaml: line 1: anchor value contains itself")),
        case(create, (YAML, "~: x"), bad("yaml: line 1: a key of a map is null")),
        case(create, (YAML, "just text"), bad("json: cannot unmarshal string into Go value of type struct")),
        case(create, (YAML, "---\n---\nmetadata: {name: b}\n"), (422, "Invalid", "name or generateName")),
    ])
    .await;
}

#[tokio::test]
async fn yaml_may_be_deep_by_its_text_or_by_its_aliases() {
    let api = Api::start().await;
    let nest = |depth: usize, inner: &str| format!("{}{inner}{}", "[".repeat(depth), "]".repeat(depth));
    for (name, text, alias) in [("text", 60, 0), ("aliases", 20, 20), ("both", 60, 60)] {
        let body = format!(
            "metadata: {{name: {name}}}\nignored: &a {}\nalso: {}\n",
            nest(text, "1"),
            nest(alias, "*a"),
        );
        let media = [("content-type", YAML)];
        api.call("POST", &format!("{MAPS}?fieldValidation=Ignore"), &media, body).await.expect(201);
    }
}

#[tokio::test]
async fn media_types_that_are_not_served() {
    const OBJECTS: &str = "the body of the request was in an unknown format - accepted media types include: \
        application/json, application/yaml, application/vnd.kubernetes.protobuf";
    const PATCHES: &str = "the body of the request was in an unknown format - accepted media types include: \
        application/json-patch+json, application/merge-patch+json, application/strategic-merge-patch+json, \
        application/apply-patch+yaml";
    let (objects, patches) = ((415, "UnsupportedMediaType", OBJECTS), (415, "UnsupportedMediaType", PATCHES));
    let body = r#"{"metadata":{"name":"x"}}"#;
    let mut cases = Vec::new();
    for media in [
        "text/plain",
        "text/json",
        "application/x-www-form-urlencoded",
        "application/cbor",
        "*/*",
        "/",
        "json",
    ] {
        cases.push(case(("POST", MAPS), (media, body), objects));
        cases.push(case(("PUT", MAP), (media, body), objects));
        cases.push(case(("DELETE", MAP), (media, "{}"), objects));
        cases.push(case(("PATCH", MAP), (media, body), patches));
    }
    for media in
        ["application/json;charset", "application/json; a=1; a=2", ";a=1", "application/json,text/plain"]
    {
        cases.push(case(("POST", MAPS), (media, body), objects));
    }
    cases.push(case(("PATCH", MAP), ("", "{}"), patches));
    cases.push(case(("PATCH", MAP), (JSON, "{}"), patches));
    cases.push(case(("PATCH", MAP), ("application/apply-patch+cbor", "\u{0}"), patches));
    all_refused(cases).await;
    // Parameters are none of the type.
    let api = world().await;
    let utf8 = [("content-type", "application/merge-patch+json; charset=utf-8")];
    api.call("PATCH", MAP, &utf8, "{}").await.expect(200);
}

#[tokio::test]
async fn protobuf_that_lies() {
    let create = |body: Vec<u8>| case(("POST", MAPS), (PROTOBUF, body), bad("protobuf"));
    let sealed = |object: Vec<u8>| {
        let mut body = apiserver_schema::protobuf::envelope_head("v1", "ConfigMap", object.len());
        body.extend(object);
        body.extend(apiserver_schema::protobuf::ENVELOPE_TAIL);
        body
    };
    let whole = apiserver_schema::protobuf::to_envelope(&json!({"apiVersion": "v1", "kind": "ConfigMap",
        "metadata": {"name": "x", "labels": {"a": "b"}}, "data": {"k": "v"}}))
    .unwrap();
    // A text that is cut between two fields is a smaller object.
    let cut = (1..whole.len()).map(|length| &whole[..length]);
    let cut = cut.filter(|bytes| apiserver_schema::protobuf::from_envelope(bytes).is_err());
    let mut cases: Vec<Case> = cut.map(|bytes| create(bytes.to_vec())).collect();
    assert!(cases.len() > whole.len() / 2, "{} of {}", cases.len(), whole.len());
    cases.extend([
        create(b"k8s\0".to_vec()),
        create(b"nonsense".to_vec()),
        // Lengths of 2 to the 63rd, of 4 GiB, and one byte more than there is.
        create(sealed(vec![0x0a, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f])),
        create(sealed(vec![0x0a, 0xff, 0xff, 0xff, 0xff, 0x0f])),
        create(sealed(vec![0x0a, 0x05, 0x0a, 0x03, b'a', b'b'])),
        // A number that never ends, a wire type that is none, and a group.
        create(sealed(vec![0xff; 30])),
        create(sealed(vec![0x0f, 0x00])),
        create(sealed(vec![0x0b; 10_000])),
        // A name that is not UTF-8.
        create(sealed(vec![0x0a, 0x04, 0x0a, 0x02, 0xff, 0xfe])),
    ]);
    all_refused(cases).await;
}

#[tokio::test]
async fn patches_that_are_none_or_do_not_fit() {
    let (map, pod) = (("PATCH", MAP), ("PATCH", POD));
    let unfit = |says| (422, "Invalid", says);
    let generic = unfit("the server rejected our request due to an error in our request");
    all_refused(vec![
        case(map, (JSON_PATCH, ""), bad("error decoding patch: unexpected end of JSON input")),
        case(map, (JSON_PATCH, "[{"), bad("error decoding patch: unexpected end of JSON input")),
        case(map, (MERGE, r#"{"data":"#), bad("error decoding patch: unexpected end of JSON input")),
        case(map, (STRATEGIC, r#"{"data":"#), bad("unexpected end of JSON input")),
        case(map, (STRATEGIC, "nonsense"), bad("invalid character 'o' in literal null (expecting 'u')")),
        case(
            map,
            (MERGE, r#"{"data":{"a":"b",}}"#),
            bad("error decoding patch: invalid character '}' looking for beginning of object key string"),
        ),
        case(
            map,
            (JSON_PATCH, "{}"),
            bad("error decoding patch: json: cannot unmarshal object into Go value of type []handlers.jsonPatchOp"),
        ),
        case(
            map,
            (JSON_PATCH, r#"[7]"#),
            bad("error decoding patch: json: cannot unmarshal number into Go value of type handlers.jsonPatchOp"),
        ),
        case(
            map,
            (JSON_PATCH, r#"[{"op":7,"path":"/data"}]"#),
            bad("cannot unmarshal number into Go struct field jsonPatchOp.op of type string"),
        ),
        case(map, (JSON_PATCH, r#"[{"op":"frob","path":"/data"}]"#), generic),
        case(map, (JSON_PATCH, r#"[{"path":"/data"}]"#), generic),
        case(map, (JSON_PATCH, r#"[{"op":"add","path":"data","value":1}]"#), generic),
        case(map, (JSON_PATCH, r#"[{"op":"move","path":"/data"}]"#), generic),
        case(
            map,
            (MERGE, "[]"),
            bad("error decoding patch: json: cannot unmarshal array into Go value of type map[string]interface {}"),
        ),
        case(map, (MERGE, "null"), bad("Invalid JSON Patch")),
        case(map, (STRATEGIC, "7"), bad("json: cannot unmarshal number into Go value of type map[string]interface {}")),
        case(map, (JSON_PATCH, r#"[{"op":"test","path":"/data/a","value":"2"}]"#), generic),
        case(map, (JSON_PATCH, r#"[{"op":"remove","path":"/data/none"}]"#), generic),
        case(map, (JSON_PATCH, r#"[{"op":"replace","path":"/none/at/all","value":1}]"#), generic),
        case(map, (JSON_PATCH, r#"[{"op":"copy","from":"/none/x","path":"/data/b"}]"#), generic),
        case(map, (JSON_PATCH, r#"[{"op":"move","from":"/metadata","path":"/metadata/labels"}]"#), generic),
        case(pod, (JSON_PATCH, r#"[{"op":"add","path":"/spec/containers/7","value":{}}]"#), generic),
        case(pod, (JSON_PATCH, r#"[{"op":"remove","path":"/spec/containers/-"}]"#), generic),
    ])
    .await;
}

#[tokio::test]
async fn patches_that_are_sound_and_make_what_is_not() {
    let map = ("PATCH", MAP);
    let unfit = |says| (422, "Invalid", says);
    all_refused(vec![
        case(map, (MERGE, r#"{"data":7}"#), unfit("patch: Invalid value: ")),
        case(
            map,
            (JSON_PATCH, r#"[{"op":"add","path":"/data/b","value":[]}]"#),
            unfit("patch: Invalid value: "),
        ),
        case(
            map,
            (JSON_PATCH, r#"[{"op":"replace","path":"","value":[]}]"#),
            unfit("couldn't get version/kind; json parse error: json: cannot unmarshal array into Go value"),
        ),
        case(
            map,
            (MERGE, r#"{"kind":5}"#),
            unfit(
                "json parse error: json: cannot unmarshal number into Go struct field .kind of type string",
            ),
        ),
        case(map, (MERGE, r#"{"metadata":{"name":"other"}}"#), bad("name of the object")),
        case(map, (MERGE, r#"{"metadata":{"namespace":"other"}}"#), bad("namespace of the provided object")),
        case(
            map,
            (MERGE, r#"{"kind":"Pod"}"#),
            unfit("converting (v1.Pod) to (core.ConfigMap): unknown conversion"),
        ),
    ])
    .await;
}

#[tokio::test]
async fn directives_and_configurations_that_are_malformed() {
    let pod = ("PATCH", POD);
    let config = format!("{MAP}?fieldManager=f");
    let config = ("PATCH", config.as_str());
    let unfit = |says| (422, "Invalid", says);
    let failed = |says| (500, "", says);
    all_refused(vec![
        case(
            pod,
            (STRATEGIC, r#"{"$patch":"frob"}"#),
            failed("unknown patch type: frob in map: map[$patch:frob]"),
        ),
        case(
            pod,
            (STRATEGIC, r#"{"spec":{"containers":[{"$patch":"frob","name":"c"}]}}"#),
            failed("unknown patch type: frob in map: map[$patch:frob name:c]"),
        ),
        case(pod, (STRATEGIC, r#"{"spec":{"containers":{"name":"c"}}}"#), unfit("patch: Invalid value: ")),
        case(
            pod,
            (STRATEGIC, r#"{"spec":{"containers":[{"image":"nameless"}]}}"#),
            failed("map: map[image:nameless] does not contain declared merge key: name"),
        ),
        case(
            pod,
            (STRATEGIC, r#"{"spec":{"$setElementOrder/containers":7}}"#),
            bad("invalid patch format of setElementOrder list"),
        ),
        case(
            pod,
            (STRATEGIC, r#"{"metadata":{"$deleteFromPrimitiveList/finalizers":7}}"#),
            bad("invalid patch format of primitive list"),
        ),
        case(
            pod,
            (STRATEGIC, r#"{"spec":{"$retainKeys":"name"}}"#),
            bad("invalid patch format of retainKeys"),
        ),
        case(config, (APPLY, "a: ["), bad("error decoding YAML: error converting YAML to JSON: yaml: ")),
        case(
            config,
            (APPLY, "[]"),
            bad("error decoding YAML: error unmarshaling JSON: while decoding JSON: "),
        ),
        case(config, (APPLY, alias_bomb()), bad("error decoding YAML: ")),
    ])
    .await;
}

#[tokio::test]
async fn patch_bombs() {
    let copies = |count: usize| {
        let mut operations = vec![json!({"op": "add", "path": "/data/x0", "value": "x".repeat(1024)})];
        // Each copy is of all the copies before it.
        operations.extend(
            (0..count).map(|i| json!({"op": "copy", "from": "/data", "path": format!("/data/c{i}")})),
        );
        Value::Array(operations).to_string()
    };
    let many = format!("[{}]", vec![r#"{"op":"test","path":"/kind","value":"ConfigMap"}"#; 10_001].join(","));
    all_refused(vec![
        case(
            ("PATCH", MAP),
            (JSON_PATCH, many),
            (
                413,
                "RequestEntityTooLarge",
                "Request entity too large: The allowed maximum operations in a JSON patch is 10000, got 10001",
            ),
        ),
        case(
            ("PATCH", MAP),
            (JSON_PATCH, copies(60)),
            (422, "Invalid", "the server rejected our request due to an error in our request"),
        ),
        case(("PATCH", MAP), (MERGE, nested(r#"{"a":"#, "}", 100_000)), bad("error decoding patch: ")),
    ])
    .await;
    let api = world().await;
    let allowed =
        format!("[{}]", vec![r#"{"op":"test","path":"/kind","value":"ConfigMap"}"#; 10_000].join(","));
    api.call("PATCH", MAP, &[("content-type", JSON_PATCH)], allowed).await.expect(200);
}

#[tokio::test]
async fn fields_that_are_said_twice() {
    let api = world().await;
    let strict = |path: &str| format!("{path}?fieldValidation=Strict");
    let twice = r#"{"metadata":{"name":"x"},"data":{"a":"1","a":"2"}}"#;
    let yaml = "metadata:\n  name: x\ndata:\n  a: '1'\n  a: '2'\n";
    let send = |method, path: String, media, body: &'static str| {
        let api = &api;
        async move { api.call(method, &path, &[("content-type", media)], body).await }
    };
    let said = "strict decoding error: duplicate field \"data.a\"";
    let refused = send("POST", strict(MAPS), JSON, twice).await.expect(400);
    assert!(refused.message().contains(said), "{}", refused.text);
    let refused = send("POST", strict(MAPS), YAML, yaml).await.expect(400);
    assert!(refused.message().contains("line 5: key \"a\" already set in map"), "{}", refused.text);
    let refused = send("PATCH", strict(MAP), MERGE, r#"{"data":{"a":"1","a":"2"}}"#).await.expect(422);
    assert!(refused.message().starts_with(" \"\" is invalid: patch: Invalid value: "), "{}", refused.text);
    assert!(refused.message().ends_with(said), "{}", refused.text);
    let operations = r#"[{"op":"test","op":"test","path":"/kind","value":"ConfigMap"}]"#;
    let refused = send("PATCH", strict(MAP), JSON_PATCH, operations).await.expect(422);
    assert!(refused.message().contains("json patch duplicate field \"[0].op\""), "{}", refused.text);
    let apply = format!("{MAP}?fieldManager=f&fieldValidation=Strict");
    let refused = send(
        "PATCH",
        apply,
        APPLY,
        "apiVersion: v1\nkind: ConfigMap\nkind: ConfigMap\nmetadata: {name: m}\n",
    )
    .await
    .expect(400);
    assert!(refused.message().starts_with("error strict decoding YAML: "), "{}", refused.text);
    assert!(refused.message().ends_with("line 3: key \"kind\" already set in map"), "{}", refused.text);
    assert_eq!(api.get(MAP).await.body["data"]["a"], "1");
    // Otherwise it is a warning, and what comes last counts.
    let warned = send("POST", MAPS.to_owned(), YAML, yaml).await.expect(201);
    assert_eq!(warned.body["data"]["a"], "2");
    let warning = warned.headers.get("warning").unwrap().to_str().unwrap();
    assert_eq!(warning, r#"299 - "line 5: key \"a\" already set in map""#);
    let quiet = send("PUT", format!("{MAPS}/x?fieldValidation=Ignore"), JSON, twice).await.expect(200);
    assert!(quiet.headers.get("warning").is_none());
}

#[tokio::test]
async fn bodies_and_objects_that_are_too_large() {
    let map =
        |size: usize| json!({"metadata": {"name": "large"}, "data": {"a": "x".repeat(size)}}).to_string();
    const LIMIT: &str = "Request entity too large: limit is 3145728";
    let too_large = (413, "RequestEntityTooLarge", LIMIT);
    let binary =
        |size: usize| json!({"metadata": {"name": "large"}, "spec": {"x": "y".repeat(size)}}).to_string();
    all_refused(vec![
        case(("POST", MAPS), (JSON, map(3 << 20)), too_large),
        case(("PUT", MAP), (JSON, map(3 << 20)), too_large),
        case(("PATCH", MAP), (MERGE, map(3 << 20)), too_large),
        case(("DELETE", MAP), (JSON, binary(3 << 20)), too_large),
    ])
    .await;
    // The store takes less than the door does.
    let api = world().await;
    let object = crate::api::bad_rules::frob(
        json!({"metadata": {"name": "large"}, "spec": {"a": "x".repeat(2 << 20)}}),
    );
    api.post(
        "/apis/apiextensions.k8s.io/v1/customresourcedefinitions",
        crate::api::bad_rules::definition(json!({
            "type": "object", "x-kubernetes-preserve-unknown-fields": true,
        })),
    )
    .await
    .expect(201);
    let refused = loop {
        let reply = api.post(crate::api::bad_rules::FROBS, object.clone()).await;
        if reply.code != 404 {
            break reply;
        }
        tokio::task::yield_now().await;
    };
    assert_eq!((refused.code, refused.message()), (500, "etcdserver: request is too large"));
    assert_eq!(api.get(crate::api::bad_rules::FROBS).await.expect(200).names(), Vec::<&str>::new());
    // An object that only its managed fields make too large is stored without them.
    let keys: serde_json::Map<String, Value> =
        (0..5_000).map(|i| (format!("{i:0>60}"), json!("y".repeat(7)))).collect();
    let object = crate::api::bad_rules::frob(json!({"metadata": {"name": "tracked"}, "spec": keys}));
    let stored = api.post(crate::api::bad_rules::FROBS, object.clone()).await.expect(201);
    assert!(!stored.body["metadata"]["managedFields"].is_null());
    let keys: serde_json::Map<String, Value> =
        (0..12_000).map(|i| (format!("{i:0>60}"), json!("y".repeat(50)))).collect();
    let object = crate::api::bad_rules::frob(json!({"metadata": {"name": "forgotten"}, "spec": keys}));
    let stored = api.post(crate::api::bad_rules::FROBS, object).await.expect(201);
    assert!(stored.body["metadata"]["managedFields"].is_null());
}
