//! SubjectAccessReviews and their kin.

use apiserver_schema::error::FieldError;
use apiserver_schema::validation::{Errors, given, items, label_selector, metadata, text};
use serde_json::{Value, json};

const RESOURCE: &str = "spec.resourceAttributes";

const PATHS: &str = "spec.nonResourceAttributes";

/// Errors of a SubjectAccessReview, LocalSubjectAccessReview or SelfSubjectAccessReview.
pub fn validate(kind: &str, review: &Value) -> Vec<FieldError> {
    let mut errors = Errors::default();
    let spec = &review["spec"];
    let resource = given(spec, "resourceAttributes");
    let paths = given(spec, "nonResourceAttributes");
    if let (Some(_), Some(paths)) = (resource, paths) {
        let detail = "cannot be specified in combination with resourceAttributes";
        errors.invalid(PATHS, paths, detail);
    }
    if resource.is_none() && paths.is_none() {
        let detail = "exactly one of nonResourceAttributes or resourceAttributes must be specified";
        errors.invalid(RESOURCE, &Value::Null, detail);
    }
    let nobody = text(spec, "user").is_empty() && items(spec, "groups").is_empty();
    if kind != "SelfSubjectAccessReview" && nobody {
        errors.invalid("spec.user", &json!(""), "at least one of user or group must be specified");
    }
    if let Some(resource) = resource {
        selectors(resource, &mut errors);
    }
    let local = kind == "LocalSubjectAccessReview";
    let metadata = given(review, "metadata").and_then(Value::as_object);
    let said = |(field, value): (&String, &Value)| {
        field != "managedFields" && !(local && field == "namespace") && !value.is_null()
    };
    if metadata.is_some_and(|metadata| metadata.iter().any(said)) {
        let detail = if local { "must be empty except for namespace" } else { "must be empty" };
        errors.invalid_shown("metadata", &metadata::shown(&review["metadata"]), detail);
    }
    if local {
        let namespace = resource.map(|resource| text(resource, "namespace"));
        if let Some(namespace) =
            namespace.filter(|namespace| *namespace != text(&review["metadata"], "namespace"))
        {
            let detail = "must match metadata.namespace";
            errors.invalid(format!("{RESOURCE}.namespace"), &json!(namespace), detail);
        }
        if let Some(paths) = paths {
            errors.invalid(PATHS, paths, "disallowed on this kind of request");
        }
    }
    errors.list()
}

fn selectors(resource: &Value, errors: &mut Errors) {
    for field in ["fieldSelector", "labelSelector"] {
        let Some(selector) = given(resource, field) else { continue };
        let path = format!("{RESOURCE}.{field}");
        let (raw, requirements) = (text(selector, "rawSelector"), items(selector, "requirements"));
        if !raw.is_empty() && !requirements.is_empty() {
            let detail = "may not specified at the same time as requirements";
            errors.invalid(format!("{path}.rawSelector"), &json!(raw), detail);
        }
        if raw.is_empty() && requirements.is_empty() {
            let detail = format!("when {path} is specified, requirements or rawSelector is required");
            errors.required(format!("{path}.requirements"), &detail);
        }
        for (index, requirement) in requirements.iter().enumerate() {
            let path = format!("{path}.requirements[{index}]");
            if field == "fieldSelector" && text(requirement, "key").is_empty() {
                errors.required(format!("{path}.key"), "must be specified");
            }
            // An operator that only later versions know is not an error here.
            let mut found = Errors::default();
            label_selector(Some(&json!({"matchExpressions": [requirement]})), &path, &mut found);
            let below = format!("{path}.matchExpressions[0]");
            errors.extend(found.list().into_iter().filter_map(|error| {
                let part = error.field.strip_prefix(&below)?;
                let of_labels = part == ".key" || part.starts_with(".values[");
                let reported = part != ".operator" && (field == "labelSelector" || !of_labels);
                reported.then(|| FieldError { field: format!("{path}{part}"), ..error.clone() })
            }));
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn messages(kind: &str, review: Value) -> Vec<String> {
        validate(kind, &review).iter().map(|error| format!("{}: {}", error.field, error.message)).collect()
    }

    #[test]
    fn a_review_has_no_metadata() {
        let spec = json!({"user": "u", "resourceAttributes": {"namespace": "n"}});
        let named = json!({"metadata": {"namespace": "n", "name": "x", "managedFields": []}, "spec": spec});
        let errors = messages("LocalSubjectAccessReview", named);
        assert_eq!(
            errors,
            [
                r#"metadata: Invalid value: {"name":"x","namespace":"n","managedFields":[]}: must be empty except for namespace"#
            ]
        );
        let placed = json!({"metadata": {"namespace": "n", "managedFields": []}, "spec": spec});
        assert!(messages("LocalSubjectAccessReview", placed).is_empty());
    }

    #[test]
    fn a_review_needs_a_user_and_one_question() {
        let both = json!({"resourceAttributes": {}, "nonResourceAttributes": {"verb": "get"}});
        let review = json!({"spec": both});
        let combined = r#"spec.nonResourceAttributes: Invalid value: {"verb":"get"}: cannot be specified in combination with resourceAttributes"#;
        assert_eq!(messages("SelfSubjectAccessReview", review.clone()), [combined]);
        assert_eq!(
            messages("SubjectAccessReview", review),
            [combined, r#"spec.user: Invalid value: "": at least one of user or group must be specified"#]
        );
        let none = r#"spec.resourceAttributes: Invalid value: null: exactly one of nonResourceAttributes or resourceAttributes must be specified"#;
        assert_eq!(messages("SelfSubjectAccessReview", json!({"spec": {}})), [none]);
    }

    #[test]
    fn wrong_selectors_of_a_review_are_refused() {
        let resource = json!({"fieldSelector": {"rawSelector": "a=b", "requirements": [{"operator": "In"}]},
            "labelSelector": {"requirements": [{"key": "a b", "operator": "New"}, {"key": "a", "operator": "In", "values": ["-"]}]}});
        let fields: Vec<String> =
            validate("SelfSubjectAccessReview", &json!({"spec": {"resourceAttributes": resource}}))
                .into_iter()
                .map(|error| error.field.replace("spec.resourceAttributes.", ""))
                .collect();
        assert_eq!(
            fields,
            [
                "fieldSelector.rawSelector",
                "fieldSelector.requirements[0].key",
                "fieldSelector.requirements[0].values",
                "labelSelector.requirements[0].key",
                "labelSelector.requirements[1].values[0]",
            ]
        );
    }
}
