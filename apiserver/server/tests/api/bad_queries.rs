//! Malformed parameters of requests: each gets Kubernetes' answer, and nothing changes.

use serde_json::{Value, json};

use crate::api::bad_input::{Case, JSON, MAP, MAPS, MERGE, all_refused, bad, case, world};

/// A list with these parameters.
fn get(query: &str, answer: (u16, &'static str, &'static str)) -> Case {
    case(("GET", &format!("{MAPS}?{query}")), ("", ""), answer)
}

#[tokio::test]
async fn selectors_that_do_not_parse() {
    all_refused(vec![
        get("labelSelector=a%3D%3D%3Db", bad("unable to parse requirement: found '='")),
        get("labelSelector=a,", bad("found '', expected: identifier after ','")),
        get("labelSelector=,a", bad("found ','")),
        get("labelSelector=a%20in%20b", bad("expected: '('")),
        get("labelSelector=a%20in%20(b", bad("expected: ")),
        get("labelSelector=a%20in%20(b)c", bad("found 'c', expected: ',' or 'end of string'")),
        get("labelSelector=a%20frob%20(b)", bad("found 'frob', expected: ")),
        get("labelSelector=!", bad("unable to parse requirement")),
        get("labelSelector=a%3Ex", bad("for 'Gt', 'Lt' operators, the value must be an integer")),
        get(
            "labelSelector=-a%3Db",
            bad("Invalid value: \"-a\": name part must consist of alphanumeric characters"),
        ),
        get("labelSelector=a%3D-b", bad("Invalid value: \"-b\"")),
        get(&format!("labelSelector={}", "a".repeat(64)), bad("must be no more than 63")),
        get("fieldSelector=nonsense", bad("invalid selector: 'nonsense'; can't understand 'nonsense'")),
        get("fieldSelector=metadata.name%3Da,b", bad("can't understand 'b'")),
        get(
            "fieldSelector=metadata.name%3Da%5Cx",
            bad("invalid field selector: invalid escape sequence: \\x"),
        ),
        get("fieldSelector=spec.frob%3Da", bad("\"spec.frob\" is not a known field selector: only")),
    ])
    .await;
}

#[tokio::test]
async fn numbers_spans_and_continue_tokens_that_do_not_parse() {
    let token = |value: &Value| {
        use base64::Engine as _;
        base64::engine::general_purpose::URL_SAFE_NO_PAD.encode(value.to_string())
    };
    let go_on = |value: Value| format!("limit=1&continue={}", token(&value));
    let continued = "invalid continue token: continue key is not valid";
    all_refused(vec![
        get("limit=x", bad("strconv.ParseInt: parsing \"x\": invalid syntax")),
        get("limit=", bad("strconv.ParseInt: parsing \"\": invalid syntax")),
        get("limit=1.5", bad("strconv.ParseInt: parsing \"1.5\": invalid syntax")),
        get("limit=99999999999999999999", bad("value out of range")),
        get("watch=1&timeoutSeconds=x", bad("strconv.ParseInt: parsing \"x\": invalid syntax")),
        get("timeout=x", bad("invalid timeout specified in the request URL - time: invalid duration \"x\"")),
        get("timeout=5", bad("time: missing unit in duration \"5\"")),
        get("limit=1&continue=%25%25", bad(continued)),
        get("limit=1&continue=bm9uc2Vuc2U", bad(continued)),
        get(
            &go_on(json!({"v": "meta.k8s.io/v2", "rv": 1, "start": "default/a"})),
            bad("does not recognize this encoded version"),
        ),
        get(
            &go_on(json!({"v": "meta.k8s.io/v1", "rv": 0, "start": "default/a"})),
            bad("incorrect encoded start resourceVersion"),
        ),
        get(&go_on(json!({"v": "meta.k8s.io/v1", "rv": 1, "start": ""})), bad("encoded start key empty")),
        get(&go_on(json!({"v": "meta.k8s.io/v1", "rv": 1, "start": "../secrets/default/a"})), bad(continued)),
        get(&go_on(json!({"v": "meta.k8s.io/v1", "rv": 1, "start": "default/./a"})), bad(continued)),
        get(
            &go_on(json!({"v": "meta.k8s.io/v1", "rv": "1", "start": "default/a"})),
            bad("the resource version is not a whole number"),
        ),
    ])
    .await;
}

#[tokio::test]
async fn invalid_list_options_are_400() {
    let invalid = |says| (422, "Invalid", says);
    all_refused(vec![
        case(
            ("POST", &format!("{MAPS}?dryRun=Some")),
            (JSON, r#"{"metadata":{"name":"x"}}"#),
            invalid("dryRun: Unsupported value: [\"Some\"]: supported values: \"All\""),
        ),
        case(
            ("POST", &format!("{MAPS}?fieldValidation=Loose")),
            (JSON, r#"{"metadata":{"name":"x"}}"#),
            invalid("fieldValidation: Unsupported value: \"Loose\""),
        ),
        case(
            ("PATCH", &format!("{MAP}?fieldValidation=Loose")),
            (MERGE, "{}"),
            invalid("PatchOptions.meta.k8s.io \"\" is invalid: fieldValidation"),
        ),
        case(
            ("PATCH", &format!("{MAP}?force=true")),
            (MERGE, "{}"),
            invalid("force: Forbidden: may not be specified for non-apply patch"),
        ),
        case(
            ("DELETE", &format!("{MAP}?gracePeriodSeconds=x")),
            ("", ""),
            bad("strconv.ParseInt: parsing \"x\": invalid syntax"),
        ),
        case(
            ("DELETE", &format!("{MAP}?propagationPolicy=Frob")),
            ("", ""),
            invalid(
                "DeleteOptions.meta.k8s.io \"\" is invalid: propagationPolicy: Unsupported value: \"Frob\"",
            ),
        ),
        case(
            ("DELETE", &format!("{MAP}?propagationPolicy=Orphan&orphanDependents=true")),
            ("", ""),
            invalid("cannot be both set"),
        ),
        case(
            ("DELETE", &format!("{MAPS}?labelSelector=((")),
            ("", ""),
            bad("found '(', expected: !, identifier"),
        ),
        case(("DELETE", &format!("{MAPS}?fieldSelector=a")), ("", ""), bad("can't understand 'a'")),
    ])
    .await;
}

#[tokio::test]
async fn parameters_that_mean_less_than_they_seem() {
    let api = world().await;
    // Kubernetes reads these so, too: any value except `0` and `false` is true, and a negative limit means none.
    assert_eq!(api.get(&format!("{MAPS}?limit=-1&timeout=0s")).await.expect(200).names().len(), 1);
    let mut watch = api.watch(&format!("{MAPS}?watch=maybe&timeoutSeconds=1")).await;
    assert_eq!(watch.brief().await, "ADDED m");
    // Paths lead nowhere else.
    for path in ["..", ".", "%2e%2e", "a%2Fb", "%2e%2e%2f%2e%2e%2fsecrets", "%00", "%zz"] {
        let reply = api.get(&format!("{MAPS}/{path}")).await;
        assert!(matches!(reply.code, 400 | 404), "{path}: {} {}", reply.code, reply.text);
    }
}

/// Pairs that Go's parser of queries skips are skipped.
#[tokio::test]
async fn pairs_with_semicolons_or_broken_escapes_are_passed_over() {
    let api = world().await;
    for query in ["limit=x;y", "limit=%zz", "limit=x%", "limit=x;fieldSelector=nonsense&watch=%"] {
        api.get(&format!("{MAPS}?{query}")).await.expect(200);
    }
    api.get(&format!("{MAPS}?limit=x&a=1;b=2")).await.expect(400);
}
