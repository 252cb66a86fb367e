//! Tests of impersonation.

use serde_json::json;

use super::*;

fn headers(pairs: &[(&str, &str)]) -> HeaderMap {
    let mut headers = HeaderMap::new();
    for (name, value) in pairs {
        headers.append(HeaderName::try_from(*name).unwrap(), HeaderValue::from_str(value).unwrap());
    }
    headers
}

fn authorizer(rules: serde_json::Value) -> Authorizer {
    let authorizer = Authorizer::new();
    authorizer.apply("ClusterRole", &json!({"metadata": {"name": "r"}, "rules": rules}));
    authorizer.apply(
        "ClusterRoleBinding",
        &json!({
            "metadata": {"name": "r"}, "roleRef": {"kind": "ClusterRole", "name": "r"},
            "subjects": [{"kind": "User", "name": "proxy"}],
        }),
    );
    authorizer
}

fn proxy() -> Identity {
    Identity::authenticated("proxy", &[])
}

#[test]
fn without_the_headers_nothing_changes_and_without_a_user_it_is_refused() {
    let authorizer = authorizer(json!([]));
    assert_eq!(evaluate(&headers(&[("accept", "*/*")]), &authorizer, &proxy()), Ok(None));
    let error = evaluate(&headers(&[("Impersonate-Group", "team")]), &authorizer, &proxy()).unwrap_err();
    assert_eq!(error.code, 400);
}

#[test]
fn every_part_needs_its_own_permission() {
    let wanted = headers(&[
        ("Impersonate-User", "jane"),
        ("Impersonate-Group", "team"),
        ("Impersonate-Uid", "u1"),
        ("Impersonate-Extra-Acme.com%2fScope", "view"),
    ]);
    let rule = |group: &str, resource: &str, name: &str| json!({"verbs": ["impersonate"], "apiGroups": [group], "resources": [resource], "resourceNames": [name]});
    let rules = [
        rule("", "users", "jane"),
        rule("", "groups", "team"),
        rule(GROUP, "uids", "u1"),
        rule(GROUP, "userextras/acme.com/scope", "view"),
    ];
    let identity = evaluate(&wanted, &authorizer(json!(rules)), &proxy()).unwrap().unwrap();
    assert_eq!(identity.user, "jane");
    assert_eq!(identity.groups, ["team", "system:authenticated"]);
    assert_eq!(identity.uid, "u1");
    assert_eq!(identity.extra, [("acme.com/scope".to_owned(), vec!["view".to_owned()])]);
    for left_out in 0..rules.len() {
        let mut fewer = rules.to_vec();
        fewer.remove(left_out);
        let error = evaluate(&wanted, &authorizer(json!(fewer)), &proxy()).unwrap_err();
        assert_eq!(error.code, 403, "without rule {left_out}");
    }
}

#[test]
fn service_accounts_have_their_groups_and_are_a_resource_of_their_own() {
    let wanted = headers(&[("Impersonate-User", "system:serviceaccount:ns:bot")]);
    let users = json!([{"verbs": ["impersonate"], "apiGroups": [""], "resources": ["users"]}]);
    assert_eq!(evaluate(&wanted, &authorizer(users), &proxy()).unwrap_err().code, 403);
    let accounts = json!([{"verbs": ["impersonate"], "apiGroups": [""], "resources": ["serviceaccounts"]}]);
    let identity = evaluate(&wanted, &authorizer(accounts), &proxy()).unwrap().unwrap();
    assert_eq!(
        identity.groups,
        ["system:serviceaccounts", "system:serviceaccounts:ns", "system:authenticated"]
    );
    let admin = Identity::authenticated("root", &["system:masters"]);
    let anonymous = headers(&[("Impersonate-User", "system:anonymous")]);
    let identity = evaluate(&anonymous, &authorizer(json!([])), &admin).unwrap().unwrap();
    assert_eq!(identity.groups, ["system:unauthenticated"]);
}

#[test]
fn the_headers_are_not_passed_on() {
    let mut map = headers(&[("Impersonate-User", "jane"), ("Impersonate-Extra-a", "b"), ("accept", "*/*")]);
    strip(&mut map);
    assert_eq!(map, headers(&[("accept", "*/*")]));
}
