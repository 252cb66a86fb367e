//! The access reviews of `authorization.k8s.io` and `SelfSubjectReview`: request in, the same
//! object with its status out. Nothing is stored.

use apiserver_kinds::authorization::access_review;
use apiserver_meta::identity::Identity;
use apiserver_registry::{FieldSelector, FieldTerm, LabelSelector};
use apiserver_schema::error::ApiError;
use serde_json::{Map, Value, json};

use crate::attributes::Attributes;
use crate::authentication::user_info;
use crate::authorizer::Authorizer;

/// Answers the review of `kind` (`SubjectAccessReview`, `SelfSubjectAccessReview`,
/// `LocalSubjectAccessReview`, `SelfSubjectRulesReview`, `SelfSubjectReview`) that `identity` sent
/// to `namespace` (empty for the cluster-wide ones). 400 or 422 for a bad request, 404 for
/// another kind.
pub fn review(
    kind: &str,
    authorizer: &Authorizer,
    identity: &Identity,
    namespace: &str,
    body: &Value,
) -> Result<Value, ApiError> {
    match kind {
        "SubjectAccessReview" => subject_access(kind, authorizer, body),
        "SelfSubjectAccessReview" => self_access(authorizer, identity, body),
        "LocalSubjectAccessReview" => local_access(authorizer, namespace, body),
        "SelfSubjectRulesReview" => self_rules(authorizer, identity, body),
        "SelfSubjectReview" => {
            let status = json!({"userInfo": user_info(identity)});
            Ok(answer("authentication.k8s.io/v1", kind, &json!({}), status))
        }
        other => Err(ApiError::not_found("", "reviews", other)),
    }
}

fn subject_access(kind: &str, authorizer: &Authorizer, body: &Value) -> Result<Value, ApiError> {
    check(kind, body)?;
    let spec = &body["spec"];
    Ok(answer("authorization.k8s.io/v1", kind, body, decide(authorizer, &subject(spec), spec)))
}

fn self_access(authorizer: &Authorizer, identity: &Identity, body: &Value) -> Result<Value, ApiError> {
    check("SelfSubjectAccessReview", body)?;
    let status = decide(authorizer, identity, &body["spec"]);
    Ok(answer("authorization.k8s.io/v1", "SelfSubjectAccessReview", body, status))
}

fn local_access(authorizer: &Authorizer, namespace: &str, body: &Value) -> Result<Value, ApiError> {
    const KIND: &str = "LocalSubjectAccessReview";
    check(KIND, body)?;
    if apiserver_schema::meta::namespace(body) != namespace {
        return Err(ApiError::bad_request(format!(
            "spec.resourceAttributes.namespace must match namespace: {namespace}"
        )));
    }
    subject_access(KIND, authorizer, body)
}

/// 422 if a review cannot be answered. Kubernetes names no kind in it.
fn check(kind: &str, body: &Value) -> Result<(), ApiError> {
    let errors = access_review::validate(kind, body);
    if errors.is_empty() {
        return Ok(());
    }
    Err(ApiError::invalid("authorization.k8s.io", "", "", &errors))
}

fn self_rules(authorizer: &Authorizer, identity: &Identity, body: &Value) -> Result<Value, ApiError> {
    let namespace = body.pointer("/spec/namespace").and_then(Value::as_str).unwrap_or_default();
    if namespace.is_empty() {
        return Err(ApiError::bad_request("no namespace on request"));
    }
    let (mut resource_rules, mut path_rules) = (Vec::new(), Vec::new());
    for rule in authorizer.rules_for(identity, namespace) {
        if !rule.resources.is_empty() {
            resource_rules.push(rule.to_value());
        }
        if !rule.non_resource_urls.is_empty() {
            path_rules.push(json!({"verbs": rule.verbs, "nonResourceURLs": rule.non_resource_urls}));
        }
    }
    let mut status =
        json!({"resourceRules": resource_rules, "nonResourceRules": path_rules, "incomplete": false});
    if let Some(why) = authorizer.incomplete_rules(identity) {
        status["incomplete"] = true.into();
        status["evaluationError"] = why.into();
    }
    // The answer does not repeat the question.
    Ok(answer("authorization.k8s.io/v1", "SelfSubjectRulesReview", &json!({"spec": {}}), status))
}

/// The user of a SubjectAccessReview, exactly as given: no group is added.
fn subject(spec: &Value) -> Identity {
    let text = |key: &str| spec[key].as_str().unwrap_or_default().to_owned();
    let strings = |value: &Value| -> Vec<String> {
        let list = value.as_array().map(Vec::as_slice).unwrap_or_default();
        list.iter().filter_map(Value::as_str).map(str::to_owned).collect()
    };
    let no_extra = Map::new();
    let extra = spec["extra"].as_object().unwrap_or(&no_extra);
    Identity {
        user: text("user"),
        uid: text("uid"),
        groups: strings(&spec["groups"]),
        extra: extra.iter().map(|(key, values)| (key.clone(), strings(values))).collect(),
    }
}

fn decide(authorizer: &Authorizer, identity: &Identity, spec: &Value) -> Value {
    let text = |object: &'static str, key: &str| spec[object][key].as_str().unwrap_or_default();
    let fields = field_selector(&spec["resourceAttributes"]["fieldSelector"]);
    let attributes = if spec["resourceAttributes"].is_object() {
        let of = |key| text("resourceAttributes", key);
        Attributes {
            version: of("version"),
            subresource: of("subresource"),
            namespace: of("namespace"),
            name: of("name"),
            fields: fields.as_ref(),
            ..Attributes::resource(identity, of("verb"), of("group"), of("resource"))
        }
    } else {
        Attributes::path(
            identity,
            text("nonResourceAttributes", "verb"),
            text("nonResourceAttributes", "path"),
        )
    };
    let decision = authorizer.authorize(&attributes);
    let mut status = json!({"allowed": decision.allowed});
    let unread = evaluation_error(&spec["resourceAttributes"]);
    if !unread.is_empty() {
        status["evaluationError"] = unread.into();
    }
    if !decision.reason.is_empty() {
        status["reason"] = json!(decision.reason);
    }
    status
}

/// Returns the evaluation error of a review whose selectors, or some of their requirements, cannot be parsed.
fn evaluation_error(attributes: &Value) -> String {
    let told = |selector: &str, readable: &dyn Fn(&Value) -> bool, parses: &dyn Fn(&str) -> bool| {
        let (text, list) = (&attributes[selector]["rawSelector"], &attributes[selector]["requirements"]);
        let list = list.as_array().map(Vec::as_slice).unwrap_or_default();
        let read = list.iter().filter(|requirement| readable(requirement)).count();
        let how = match text.as_str().filter(|text| !text.is_empty()) {
            _ if read < list.len() && read > 0 => "partially ignored",
            _ if read < list.len() => "ignored",
            Some(text) if list.is_empty() && !parses(text) => "ignored",
            _ => return None,
        };
        Some(format!("spec.resourceAttributes.{selector} {how} due to parse error"))
    };
    let label =
        |requirement: &Value| LabelSelector::from_meta(&json!({"matchExpressions": [requirement]})).is_ok();
    let fields =
        told("fieldSelector", &|r| field_term(r).is_some(), &|text| FieldSelector::parse(text).is_ok());
    let labels = told("labelSelector", &label, &|text| LabelSelector::parse(text).is_ok());
    fields.into_iter().chain(labels).collect::<Vec<_>>().join("; ")
}

fn field_term(requirement: &Value) -> Option<FieldTerm> {
    let negated = match requirement["operator"].as_str()? {
        "In" => false,
        "NotIn" => true,
        _ => return None,
    };
    let [value] = requirement["values"].as_array()?.as_slice() else { return None };
    let (path, value) = (requirement["key"].as_str()?.to_owned(), value.as_str()?.to_owned());
    Some(FieldTerm { path, value, negated })
}

/// Parses the field selector of a review: a text, or requirements. An unreadable one narrows nothing, so that
/// it gives no rights.
fn field_selector(selector: &Value) -> Option<FieldSelector> {
    if let Some(text) = selector["rawSelector"].as_str().filter(|text| !text.is_empty()) {
        return FieldSelector::parse(text).ok();
    }
    Some(FieldSelector::of(selector["requirements"].as_array()?.iter().filter_map(field_term).collect()))
}

fn answer(api_version: &str, kind: &str, body: &Value, status: Value) -> Value {
    let metadata = body.get("metadata").filter(|m| m.is_object()).cloned().unwrap_or_else(|| json!({}));
    let mut answer = json!({"kind": kind, "apiVersion": api_version, "metadata": metadata});
    if let Some(spec) = body.get("spec") {
        answer["spec"] = spec.clone();
    }
    answer["status"] = status;
    answer
}

#[cfg(test)]
#[path = "review_tests.rs"]
mod tests;
