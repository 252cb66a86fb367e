//! The whole matrix of `resourceVersion`, `resourceVersionMatch`, `limit` and `continue` (KEP-2523),
//! continue tokens, and the encodings of lists.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde_json::{Value, json};

use crate::api::harness::{Api, Reply, as_item, pod};

const MAPS: &str = "/api/v1/namespaces/default/configmaps";
const INVALID: &str = "ListOptions.meta.k8s.io \"\" is invalid: ";
const UNPROVIDED: &str =
    "resourceVersionMatch: Forbidden: resourceVersionMatch is forbidden unless resourceVersion is provided";
const CONTINUED: &str =
    "resourceVersionMatch: Forbidden: resourceVersionMatch is forbidden when continue is provided";
const EXACT_ZERO: &str =
    "resourceVersionMatch: Forbidden: resourceVersionMatch \"exact\" is forbidden for resourceVersion \"0\"";
const NO_INITIAL: &str = "sendInitialEvents: Forbidden: sendInitialEvents is forbidden for list";
const NO_SUCH_RULE: &str =
    r#"resourceVersionMatch: Unsupported value: "Newest": supported values: "Exact", "NotOlderThan", """#;

/// A server with ConfigMaps `a`, `b`, `c`, and the versions after each.
async fn three() -> (Api, [i64; 3]) {
    let api = Api::start().await;
    let mut versions = [0; 3];
    for (version, name) in versions.iter_mut().zip(["a", "b", "c"]) {
        *version = api.config_map(name, json!({})).await.parse().unwrap();
    }
    (api, versions)
}

fn token(value: &str) -> String {
    URL_SAFE_NO_PAD.encode(value)
}

#[tokio::test(start_paused = true)]
async fn contradictory_options_are_422_in_kubernetes_words() {
    let (api, [first, ..]) = three().await;
    let good = token(&format!(r#"{{"v":"meta.k8s.io/v1","rv":{first},"start":"a\u0000"}}"#));
    let both = |one: &str, two: &str| format!("[{one}, {two}]");
    let table = [
        ("resourceVersionMatch=Exact".to_owned(), UNPROVIDED.to_owned()),
        ("resourceVersionMatch=NotOlderThan".into(), UNPROVIDED.into()),
        ("resourceVersionMatch=NotOlderThan&limit=2".into(), UNPROVIDED.into()),
        ("resourceVersionMatch=Newest".into(), both(UNPROVIDED, NO_SUCH_RULE)),
        (format!("resourceVersionMatch=Newest&resourceVersion={first}"), NO_SUCH_RULE.into()),
        ("resourceVersion=0&resourceVersionMatch=Exact".into(), EXACT_ZERO.into()),
        (format!("resourceVersion={first}&resourceVersionMatch=Exact&continue={good}"), CONTINUED.into()),
        (format!("resourceVersionMatch=NotOlderThan&continue={good}"), both(UNPROVIDED, CONTINUED)),
        ("sendInitialEvents=true".into(), NO_INITIAL.into()),
        ("sendInitialEvents=false".into(), NO_INITIAL.into()),
        ("sendInitialEvents=true&resourceVersionMatch=Exact".into(), both(UNPROVIDED, NO_INITIAL)),
    ];
    for (query, expected) in table {
        let reply = api.get(&format!("{MAPS}?{query}")).await.expect(422);
        assert_eq!(reply.message(), format!("{INVALID}{expected}"), "{query}");
        assert_eq!((reply.reason(), &reply.body["details"]["kind"]), ("Invalid", &json!("ListOptions")));
        assert_eq!(reply.body["details"]["group"], "meta.k8s.io");
        // Deleting a collection is choosing it first.
        let reply = api.call("DELETE", &format!("{MAPS}?{query}"), &[], "").await.expect(422);
        assert_eq!(reply.message(), format!("{INVALID}{expected}"), "{query}");
    }
    assert_eq!(api.get(MAPS).await.names().len(), 3);
}

#[tokio::test(start_paused = true)]
async fn unreadable_options_are_400_in_gos_words() {
    let (api, [first, ..]) = three().await;
    let good = token(&format!(r#"{{"v":"meta.k8s.io/v1","rv":{first},"start":"a\u0000"}}"#));
    let version = |text: &str| {
        format!(
            "invalid resource version: resourceVersion: Invalid value: \"{text}\": strconv.ParseUint: parsing \"{text}\": invalid syntax"
        )
    };
    let key = |why: &str| format!("invalid continue token: continue key is not valid: {why}");
    let table = [
        ("limit=many".to_owned(), "strconv.ParseInt: parsing \"many\": invalid syntax".to_owned()),
        ("limit=".into(), "strconv.ParseInt: parsing \"\": invalid syntax".into()),
        (
            "limit=9223372036854775808".into(),
            "strconv.ParseInt: parsing \"9223372036854775808\": value out of range".into(),
        ),
        ("timeoutSeconds=1s".into(), "strconv.ParseInt: parsing \"1s\": invalid syntax".into()),
        ("resourceVersion=abc".into(), version("abc")),
        ("resourceVersion=-1".into(), version("-1")),
        ("resourceVersion=1.5&resourceVersionMatch=Exact".into(), version("1.5")),
        ("continue=%25".into(), key("illegal base64 data at input byte 0")),
        (
            format!("continue={}", token(r#"{"v":"v0","rv":1,"start":"a"}"#)),
            key("server does not recognize this encoded version v0"),
        ),
        (
            format!("continue={}", token(r#"{"v":"meta.k8s.io/v1","rv":0,"start":"a"}"#)),
            key("incorrect encoded start resourceVersion (version meta.k8s.io/v1)"),
        ),
        (
            format!("continue={}", token(r#"{"v":"meta.k8s.io/v1","rv":1}"#)),
            key("encoded start key empty (version meta.k8s.io/v1)"),
        ),
        (
            format!("continue={}", token(r#"{"v":"meta.k8s.io/v1","rv":1,"start":"../kube-system/x"}"#)),
            key("../kube-system/x"),
        ),
        (
            format!("continue={good}&resourceVersion={first}"),
            "specifying resource version is not allowed when using continue".into(),
        ),
    ];
    for (query, expected) in table {
        let reply = api.get(&format!("{MAPS}?{query}")).await.expect(400);
        assert_eq!((reply.message(), reply.reason()), (expected.as_str(), "BadRequest"), "{query}");
    }
    // A get that cannot be read is another's fault, as it is in Kubernetes.
    let reply = api.get(&format!("{MAPS}/a?resourceVersion=abc")).await.expect(500);
    assert_eq!(format!("invalid resource version: {}", reply.message()), version("abc"));
}

#[tokio::test(start_paused = true)]
async fn each_combination_shows_the_state_that_it_should() {
    let (api, [first, second, third]) = three().await;
    let now = third.to_string();
    let (one, two) = (first.to_string(), second.to_string());
    // Query, objects shown, the list's version, what remains.
    let table: [(String, usize, &str, Option<u64>); 17] = [
        (String::new(), 3, &now, None),
        ("limit=2".into(), 2, &now, Some(1)),
        ("limit=3".into(), 3, &now, None),
        ("limit=0".into(), 3, &now, None),
        ("limit=-5".into(), 3, &now, None),
        ("resourceVersion=".into(), 3, &now, None),
        ("resourceVersion=0".into(), 3, &now, None),
        // With resourceVersion=0 the limit is ignored, and the cached state is returned whole.
        ("resourceVersion=0&limit=2".into(), 3, &now, None),
        ("resourceVersion=0&limit=2&resourceVersionMatch=NotOlderThan".into(), 3, &now, None),
        (format!("resourceVersion={one}"), 3, &now, None),
        (format!("resourceVersion={one}&limit=1"), 1, &one, None),
        (format!("resourceVersion={two}&limit=1"), 1, &two, Some(1)),
        (format!("resourceVersion={two}&limit=1&resourceVersionMatch=NotOlderThan"), 1, &now, Some(2)),
        (format!("resourceVersion={two}&resourceVersionMatch=NotOlderThan"), 3, &now, None),
        (format!("resourceVersion={two}&resourceVersionMatch=Exact"), 2, &two, None),
        (format!("resourceVersion={two}&resourceVersionMatch=Exact&limit=1"), 1, &two, Some(1)),
        (format!("resourceVersion={two}&resourceVersionMatch=Exact&limit=1&labelSelector=!x"), 1, &two, None),
    ];
    for (query, count, version, remaining) in table {
        let reply = api.get(&format!("{MAPS}?{query}")).await.expect(200);
        assert_eq!((reply.names().len(), reply.version().as_str()), (count, version), "{query}");
        let metadata = &reply.body["metadata"];
        assert_eq!(metadata["remainingItemCount"].as_u64(), remaining, "{query}");
        let goes_on = remaining.is_some() || query.contains("labelSelector");
        assert_eq!(metadata["continue"].is_string(), goes_on, "{query}");
    }
}

#[tokio::test(start_paused = true)]
async fn future_revision_times_out_and_compacted_one_is_gone() {
    let (api, [first, _, third]) = three().await;
    let future = third + 1000;
    for query in [
        format!("{MAPS}?resourceVersion={future}"),
        format!("{MAPS}?resourceVersion={future}&limit=1"),
        format!("{MAPS}?resourceVersion={future}&resourceVersionMatch=Exact"),
        format!("{MAPS}?resourceVersion={future}&resourceVersionMatch=NotOlderThan"),
        format!("{MAPS}/a?resourceVersion={future}"),
    ] {
        let reply = api.get(&query).await.expect(504);
        assert_eq!(
            reply.message(),
            format!("Timeout: Too large resource version: {future}, current: {third}"),
            "{query}"
        );
        assert_eq!((reply.reason(), &reply.headers["retry-after"]), ("Timeout", &"1".parse().unwrap()));
        let details = json!({
            "causes": [{"reason": "ResourceVersionTooLarge", "message": "Too large resource version"}],
            "retryAfterSeconds": 1,
        });
        assert_eq!(reply.body["details"], details, "{query}");
    }
    forget(&api).await;
    for query in [
        format!("resourceVersion={first}&resourceVersionMatch=Exact"),
        format!("resourceVersion={first}&limit=1"),
    ] {
        let reply = api.get(&format!("{MAPS}?{query}")).await.expect(410);
        let expected = ("The resourceVersion for the provided list is too old.", "Expired");
        assert_eq!((reply.message(), reply.reason()), expected, "{query}");
    }
    // Inexact reads still succeed.
    assert_eq!(api.get(&format!("{MAPS}?resourceVersion={first}")).await.expect(200).names().len(), 3);
    api.get(&format!("{MAPS}/a?resourceVersion={first}")).await.expect(200);
}

/// Lets the server forget everything up to now.
async fn forget(api: &Api) {
    for key in ["i", "j"] {
        tokio::time::sleep(std::time::Duration::from_secs(200)).await;
        for i in 0..120 {
            api.patch("merge", &format!("{MAPS}/c"), json!({"data": {key: i.to_string()}})).await.expect(200);
        }
    }
    api.store.compact(api.store.revision().await.unwrap()).await.unwrap();
}

fn next(reply: &Reply) -> Option<String> {
    reply.body["metadata"]["continue"].as_str().map(str::to_owned)
}

#[tokio::test(start_paused = true)]
async fn pages_of_a_selection_are_consistent_and_count_nothing() {
    let api = Api::start().await;
    for i in 0..9 {
        api.config_map(&format!("m{i}"), json!({"even": (i % 2 == 0).to_string()})).await;
    }
    for other in ["kube-system", "kube-public"] {
        let map = json!({"metadata": {"name": "z", "labels": {"even": "true"}}});
        api.post(&format!("/api/v1/namespaces/{other}/configmaps"), map).await.expect(201);
    }
    let (mut names, mut query) = (Vec::new(), String::new());
    let mut pages = 0;
    loop {
        let path = format!("/api/v1/configmaps?labelSelector=even%3Dtrue&limit=3{query}");
        let reply = api.get(&path).await.expect(200);
        names.extend(reply.names().into_iter().map(str::to_owned));
        assert_eq!(reply.body["metadata"].get("remainingItemCount"), None);
        pages += 1;
        // Other writes in between change nothing.
        let label = json!({"metadata": {"labels": {"even": "false"}}});
        api.patch("merge", &format!("{MAPS}/m8"), label).await.expect(200);
        match next(&reply) {
            Some(token) => query = format!("&continue={token}"),
            None => break,
        }
    }
    assert_eq!((pages, names), (3, ["m0", "m2", "m4", "m6", "m8", "z", "z"].map(str::to_owned).to_vec()));
}

#[tokio::test(start_paused = true)]
async fn every_page_counts_the_remaining_items() {
    let api = Api::start().await;
    for i in 0..7 {
        api.config_map(&format!("m{i}"), json!({})).await;
        let map = json!({"metadata": {"name": format!("k{i}")}});
        api.post("/api/v1/namespaces/kube-system/configmaps", map).await.expect(201);
    }
    for (path, all) in [("/api/v1/configmaps", 14), (MAPS, 7)] {
        let (mut seen, mut query) = (0, String::new());
        loop {
            let reply = api.get(&format!("{path}?limit=3{query}")).await.expect(200);
            seen += reply.names().len();
            let remaining = reply.body["metadata"]["remainingItemCount"].as_u64();
            assert_eq!(remaining.unwrap_or(0), all - seen as u64, "{path}");
            let Some(token) = next(&reply) else { break };
            query = format!("&continue={token}");
        }
        assert_eq!(seen as u64, all);
    }
}

#[tokio::test(start_paused = true)]
async fn a_token_of_one_collection_shows_nothing_of_another() {
    let (api, _) = three().await;
    api.post("/api/v1/namespaces/kube-system/configmaps", json!({"metadata": {"name": "secret"}}))
        .await
        .expect(201);
    let revision = api.store.revision().await.unwrap();
    for start in ["kube-system/secret", "a", "/b\0"] {
        let value = json!({"v": "meta.k8s.io/v1", "rv": revision, "start": start});
        let reply = api.get(&format!("{MAPS}?continue={}", token(&value.to_string()))).await.expect(200);
        assert!(!reply.text.contains("secret"), "{start}: {}", reply.text);
    }
}

#[tokio::test(start_paused = true)]
async fn an_expired_token_is_exchanged_for_one_that_goes_on_anyhow() {
    let (api, _) = three().await;
    let page = api.get(&format!("{MAPS}?limit=1")).await.expect(200);
    forget(&api).await;
    let reply = api.get(&format!("{MAPS}?limit=1&continue={}", next(&page).unwrap())).await.expect(410);
    assert!(
        reply.message().starts_with(
            "The provided continue parameter is too old to display a consistent list result. You can start a \
             new list without the continue parameter, or use the continue token in this response"
        ),
        "{}",
        reply.text
    );
    let fresh = URL_SAFE_NO_PAD.decode(next(&reply).unwrap()).unwrap();
    let fresh: Value = serde_json::from_slice(&fresh).unwrap();
    assert_eq!(fresh, json!({"v": "meta.k8s.io/v1", "rv": -1, "start": "a\0"}));
    api.config_map("aa", json!({})).await;
    let rest = api.get(&format!("{MAPS}?limit=1&continue={}", next(&reply).unwrap())).await.expect(200);
    assert_eq!(rest.names(), ["aa"]);
    // From here on it is consistent again.
    api.config_map("ab", json!({})).await;
    let rest = api.get(&format!("{MAPS}?continue={}", next(&rest).unwrap())).await.expect(200);
    assert_eq!(rest.names(), ["b", "c"]);
}

const TABLE: &str = "application/json;as=Table;g=meta.k8s.io;v=v1";

fn without_ages(mut table: Value) -> Value {
    for row in table["rows"].as_array_mut().unwrap() {
        row["cells"].as_array_mut().unwrap().truncate(3);
    }
    table
}

fn yaml(text: &str) -> Value {
    serde_saphyr::from_str(text).unwrap()
}

#[tokio::test(start_paused = true)]
async fn every_encoding_of_a_list_says_the_same_small_and_large() {
    let api = Api::start().await;
    let pods = "/api/v1/namespaces/default/pods";
    for round in 0..2 {
        let json = api.get(pods).await.expect(200).body;
        let text = api.get_as(pods, "application/yaml").await.expect(200);
        assert_eq!(text.headers["content-type"], "application/yaml");
        assert_eq!(yaml(&text.text), json, "{round}");
        let partial = "PartialObjectMetadataList;g=meta.k8s.io;v=v1";
        let short = api.get_as(pods, &format!("application/json;as={partial}")).await.expect(200).body;
        let items = json["items"].as_array().unwrap();
        for (short, whole) in short["items"].as_array().unwrap().iter().zip(items) {
            assert_eq!(short["metadata"], whole["metadata"]);
            assert_eq!(short["kind"], "PartialObjectMetadata");
        }
        let text = api.get_as(pods, &format!("application/yaml;as={partial}")).await.expect(200).text;
        assert_eq!(yaml(&text), short);
        for include in ["None", "Metadata", "Object"] {
            let path = format!("{pods}?includeObject={include}");
            let table = api.get_as(&path, TABLE).await.expect(200).body;
            assert_eq!(table["metadata"], json["metadata"]);
            let rows = table["rows"].as_array().unwrap();
            assert_eq!(rows.len(), items.len());
            for (row, item) in rows.iter().zip(items) {
                assert_eq!(row["cells"][0], item["metadata"]["name"]);
                let expected = match include {
                    "None" => Value::Null,
                    "Object" => {
                        assert_eq!(as_item(&row["object"]), *item);
                        continue;
                    }
                    _ => json!({"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1",
                        "metadata": item["metadata"]}),
                };
                assert_eq!(row["object"], expected, "{include}");
            }
            let text = api.get_as(&path, &TABLE.replace("json", "yaml")).await.expect(200).text;
            // Ages go on between the two.
            assert_eq!(without_ages(yaml(&text)), without_ages(table.clone()), "{include}");
        }
        // The second time the lists come in many pieces.
        for i in 0..60 * (1 - round) {
            let mut pod = pod(&format!("p{i:03}"));
            pod["metadata"]["annotations"] = json!({"long": "x: \"y\"\n".repeat(1000)});
            api.post(pods, pod).await.expect(201);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn answers_are_negotiated_as_kubernetes_does() {
    let (api, _) = three().await;
    let one = format!("{MAPS}/a");
    let as_ = |kind: &str| format!("application/json;as={kind};g=meta.k8s.io;v=v1");
    let (json, yaml) = ("application/json", "application/yaml");
    let table = [
        ("", json, "ConfigMapList"),
        ("*/*", json, "ConfigMapList"),
        ("application/*", json, "ConfigMapList"),
        ("application/json;q=0.1,application/yaml;q=0.2", yaml, ""),
        ("*/*,application/yaml", yaml, ""),
        ("text/html,application/json;q=0.9,*/*;q=0.8", json, "ConfigMapList"),
        ("application/json;as=Table;g=meta.k8s.io;v=v9,application/json", json, "ConfigMapList"),
        ("application/json;as=Table;g=meta.k8s.io;v=v1beta1", json, "Table"),
        ("application/json;as=Table;g=meta.k8s.io;v=v1,application/json", json, "Table"),
        ("*/*;as=Table;g=meta.k8s.io;v=v1", json, "Table"),
    ];
    for (accept, media, kind) in table {
        let reply = api.get_as(MAPS, accept).await.expect(200);
        assert_eq!(reply.headers["content-type"], media, "{accept}");
        assert_eq!(reply.body["kind"].as_str().unwrap_or_default(), kind, "{accept}");
    }
    let beta = api.get_as(MAPS, "application/json;as=Table;g=meta.k8s.io;v=v1beta1").await.body;
    assert_eq!(beta["apiVersion"], "meta.k8s.io/v1beta1");
    assert_eq!(beta["rows"][0]["object"]["apiVersion"], "meta.k8s.io/v1beta1");
    let types = "only the following media types are accepted: application/json, application/yaml, \
                 application/vnd.kubernetes.protobuf";
    let refused = [
        (MAPS, "text/html".to_owned(), types),
        (MAPS, as_("Chair"), types),
        (MAPS, "application/json;as=Table".to_owned(), types),
        (MAPS, "application/vnd.kubernetes.protobuf;as=Table;g=meta.k8s.io;v=v1".to_owned(), types),
        (
            MAPS,
            as_("PartialObjectMetadata"),
            "you requested PartialObjectMetadata, but the requested object is a list (*core.ConfigMapList)",
        ),
        (
            one.as_str(),
            as_("PartialObjectMetadataList"),
            "you requested PartialObjectMetadataList, but the requested object is not a list (*core.ConfigMap)",
        ),
    ];
    for (path, accept, expected) in refused {
        let reply = api.get_as(path, &accept).await.expect(406);
        assert_eq!((reply.message(), reply.reason()), (expected, "NotAcceptable"), "{accept}");
    }
    let bad = api.get_as(&format!("{MAPS}?includeObject=All"), TABLE).await.expect(400);
    assert_eq!(
        bad.message(),
        "Unable to convert to Table as requested: includeObject: Invalid value: \"All\": must be \
         'Metadata', 'Object', 'None', or empty"
    );
}
