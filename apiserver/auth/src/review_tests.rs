//! Reviews: body in, status out.

use super::*;

fn authorizer() -> Authorizer {
    let authorizer = Authorizer::new();
    let metadata = json!({"name": "reader", "namespace": "a"});
    authorizer.apply(
        "Role",
        &json!({"metadata": metadata, "rules": [{"verbs": ["get"], "apiGroups": [""], "resources": ["pods"]}]}),
    );
    authorizer.apply(
        "RoleBinding",
        &json!({
            "metadata": metadata, "roleRef": {"kind": "Role", "name": "reader"},
            "subjects": [{"kind": "User", "name": "jane"}, {"kind": "Group", "name": "team"}],
        }),
    );
    authorizer
}

fn jane() -> Identity {
    Identity::authenticated("jane", &[])
}

fn get_pods(namespace: &str) -> Value {
    json!({"verb": "get", "resource": "pods", "namespace": namespace})
}

#[test]
fn subject_access_review_asks_for_somebody_else() {
    let ask = |spec: Value| {
        review("SubjectAccessReview", &authorizer(), &Identity::anonymous(), "", &json!({"spec": spec}))
    };
    let answer = ask(json!({"user": "jane", "resourceAttributes": get_pods("a")})).unwrap();
    assert_eq!(answer["apiVersion"], "authorization.k8s.io/v1");
    assert_eq!(answer["spec"]["user"], "jane");
    assert_eq!(answer["status"]["allowed"], true);
    assert_eq!(
        answer["status"]["reason"],
        "RBAC: allowed by RoleBinding \"reader/a\" of Role \"reader\" to User \"jane\""
    );
    let answer =
        ask(json!({"user": "joe", "groups": ["team"], "resourceAttributes": get_pods("a")})).unwrap();
    assert_eq!(answer["status"]["allowed"], true);
    let answer = ask(json!({"user": "joe", "resourceAttributes": get_pods("a")})).unwrap();
    assert_eq!(answer["status"], json!({"allowed": false}));
    assert_eq!(ask(json!({"resourceAttributes": get_pods("a")})).unwrap_err().code, 422);
    assert_eq!(ask(json!({"user": "joe"})).unwrap_err().code, 422);
    let both = json!({"user": "joe", "resourceAttributes": {}, "nonResourceAttributes": {}});
    assert_eq!(ask(both).unwrap_err().code, 422);
}

#[test]
fn the_self_reviews_speak_of_the_caller() {
    let ask = |kind: &str, spec: Value| review(kind, &authorizer(), &jane(), "", &json!({"spec": spec}));
    let mine = ask("SelfSubjectAccessReview", json!({"resourceAttributes": get_pods("a")})).unwrap();
    assert_eq!(mine["status"]["allowed"], true);
    let mine = ask("SelfSubjectAccessReview", json!({"resourceAttributes": get_pods("b")})).unwrap();
    assert_eq!(mine["status"]["allowed"], false);
    let rules = ask("SelfSubjectRulesReview", json!({"namespace": "a"})).unwrap();
    assert_eq!(
        rules["status"],
        json!({
            "resourceRules": [{"verbs": ["get"], "apiGroups": [""], "resources": ["pods"]}],
            "nonResourceRules": [], "incomplete": false,
        })
    );
    assert_eq!(ask("SelfSubjectRulesReview", json!({})).unwrap_err().code, 400);
    let who = ask("SelfSubjectReview", json!({})).unwrap();
    assert_eq!(who["status"]["userInfo"], json!({"username": "jane", "groups": ["system:authenticated"]}));
}

#[test]
fn selectors_that_cannot_be_read_are_told() {
    let told = |attributes: Value| {
        let body = json!({"spec": {"user": "jane", "resourceAttributes": attributes}});
        let answer = review("SubjectAccessReview", &authorizer(), &jane(), "", &body)
            .unwrap_or_else(|e| panic!("{}", e.message));
        answer["status"]["evaluationError"].clone()
    };
    let of = |selector: Value| json!({"verb": "get", "resource": "pods", "labelSelector": selector});
    let partly = json!([{"key": "a", "operator": "Exists"}, {"key": "a", "operator": "Odd"}]);
    for (selector, wanted) in [
        (json!({"rawSelector": "a=b"}), json!(null)),
        (
            json!({"rawSelector": "a b c"}),
            json!("spec.resourceAttributes.labelSelector ignored due to parse error"),
        ),
        (
            json!({"requirements": partly}),
            json!("spec.resourceAttributes.labelSelector partially ignored due to parse error"),
        ),
    ] {
        assert_eq!(told(of(selector)), wanted);
    }
}

#[test]
fn a_local_review_stays_in_its_namespace() {
    let ask = |namespace: &str, spec: Value| {
        review(
            "LocalSubjectAccessReview",
            &authorizer(),
            &Identity::anonymous(),
            namespace,
            &json!({"metadata": {"namespace": "a"}, "spec": spec}),
        )
    };
    let spec = json!({"user": "jane", "resourceAttributes": get_pods("a")});
    assert_eq!(ask("a", spec.clone()).unwrap()["status"]["allowed"], true);
    assert_eq!(ask("b", spec).unwrap_err().code, 400);
    assert_eq!(
        ask("a", json!({"user": "jane", "nonResourceAttributes": {"path": "/"}})).unwrap_err().code,
        422
    );
}
