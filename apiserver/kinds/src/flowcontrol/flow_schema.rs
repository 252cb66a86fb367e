//! FlowSchemas.

use std::collections::BTreeSet;

use apiserver_schema::error::FieldError;
use apiserver_schema::meta;
use apiserver_schema::validation::{Errors, items, names, text, with_metadata};
use serde_json::{Value, json};

use crate::kind::{Kind, METADATA_OF_STATUS};
use crate::shared::cells::{self, NONE};
use crate::shared::columns::{AGE, Columns, NAME};
use crate::shared::defaults::{fill_zero, with_spec};

pub(crate) static KIND: Kind = Kind {
    group: "flowcontrol.apiserver.k8s.io",
    plural: "flowschemas",
    generation: true,
    default,
    validate,
    validate_status: Some(validate_status),
    columns: COLUMNS,
    unowned: METADATA_OF_STATUS,
    ..Kind::DEFAULT
};

/// Defaults of a FlowSchema.
fn default(value: &mut Value) {
    with_spec(value, |spec| fill_zero(spec, "matchingPrecedence", 1000));
}

const HIGHEST_PRECEDENCE: i64 = 10_000;

const VERBS: [&str; 9] =
    ["create", "delete", "deletecollection", "get", "list", "patch", "proxy", "update", "watch"];

/// Errors of a FlowSchema.
fn validate(object: &Value) -> Vec<FieldError> {
    let mut errors = with_metadata(object);
    let spec = &object["spec"];
    let path = "spec.matchingPrecedence";
    let shown = &spec["matchingPrecedence"];
    match shown.as_i64().unwrap_or(0) {
        ..=0 => errors.invalid(path, shown, "must be a positive value"),
        1 if meta::name(object) != "exempt" => {
            errors.invalid(path, shown, "only the schema named 'exempt' may have matchingPrecedence 1");
        }
        1..=HIGHEST_PRECEDENCE => {}
        _ => errors.invalid(path, shown, &format!("must not be greater than {HIGHEST_PRECEDENCE}")),
    }
    if let Some(method) = spec.get("distinguisherMethod").filter(|m| !m.is_null()) {
        let kinds = ["ByNamespace", "ByUser"];
        if !kinds.contains(&text(method, "type")) {
            let shown = format!("{{\"Type\":{}}}", json!(text(method, "type")));
            errors.not_supported_shown("spec.distinguisherMethod.type", &shown, &kinds);
        }
    }
    let level = text(&spec["priorityLevelConfiguration"], "name");
    let path = "spec.priorityLevelConfiguration.name";
    if level.is_empty() {
        errors.required(path, "must reference a priority level");
    } else {
        errors.faults(path, level, names::dns_subdomain(level));
    }
    for (index, rule) in items(spec, "rules").iter().enumerate() {
        rule_errors(rule, &format!("spec.rules[{index}]"), &mut errors);
    }
    conditions(&object["status"], &mut errors);
    errors.list()
}

pub(crate) fn conditions(status: &Value, errors: &mut Errors) {
    let mut seen = BTreeSet::new();
    for (index, condition) in items(status, "conditions").iter().enumerate() {
        let (path, kind) = (format!("status.conditions[{index}].type"), text(condition, "type"));
        if !seen.insert(kind) {
            errors.duplicate(path.as_str(), &json!(kind));
        }
        if kind.is_empty() {
            errors.required(path, "must not be empty");
        }
    }
}

/// Errors of a write of the status of a FlowSchema or PriorityLevelConfiguration. Arguments: new, old.
pub(crate) fn validate_status(new: &Value, _old: &Value) -> Vec<FieldError> {
    let mut errors = Errors::default();
    conditions(&new["status"], &mut errors);
    errors.list()
}

fn rule_errors(rule: &Value, path: &str, errors: &mut Errors) {
    let subjects = items(rule, "subjects");
    if subjects.is_empty() {
        errors.required(format!("{path}.subjects"), "subjects must contain at least one value");
    }
    for (index, one) in subjects.iter().enumerate() {
        subject(one, &format!("{path}.subjects[{index}]"), errors);
    }
    let (resources, others) = (items(rule, "resourceRules"), items(rule, "nonResourceRules"));
    if resources.is_empty() && others.is_empty() {
        errors.required(path, "at least one of resourceRules and nonResourceRules has to be non-empty");
    }
    for (index, rule) in resources.iter().enumerate() {
        resource_rule(rule, &format!("{path}.resourceRules[{index}]"), errors);
    }
    for (index, rule) in others.iter().enumerate() {
        let path = format!("{path}.nonResourceRules[{index}]");
        verbs(rule, &path, errors);
        let needed = "nonResourceURLs must contain at least one value";
        wildcard(rule, &path, ("nonResourceURLs", needed, "non-resource URLs"), errors);
        if has_wildcard(items(rule, "nonResourceURLs")) {
            continue;
        }
        for (index, url) in items(rule, "nonResourceURLs").iter().filter_map(Value::as_str).enumerate() {
            url_path(url, &format!("{path}.nonResourceURLs[{index}]"), errors);
        }
    }
}

fn subject(subject: &Value, path: &str, errors: &mut Errors) {
    const KINDS: [(&str, &str); 3] =
        [("Group", "group"), ("ServiceAccount", "serviceAccount"), ("User", "user")];
    let kind = text(subject, "kind");
    let Some((_, own)) = KINDS.iter().find(|(name, _)| *name == kind) else {
        let error =
            FieldError::not_supported(format!("{path}.kind"), &json!(kind), &KINDS.map(|(name, _)| name));
        errors.extend([error]);
        return;
    };
    for (name, field) in KINDS.iter().filter(|(_, field)| field != own) {
        if subject.get(*field).is_some_and(|v| !v.is_null()) {
            let detail = format!("{field} is forbidden when subject kind is not '{name}'");
            errors.forbidden(format!("{path}.{field}"), &detail);
        }
    }
    let path = format!("{path}.{own}");
    let Some(named) = subject.get(*own).filter(|v| !v.is_null()) else {
        errors.required(path, &format!("{own} is required when subject kind is '{kind}'"));
        return;
    };
    let name = text(named, "name");
    if name.is_empty() {
        errors.required(format!("{path}.name"), "");
    }
    if kind != "ServiceAccount" {
        return;
    }
    if !matches!(name, "" | "*") {
        errors.faults(&format!("{path}.name"), name, names::dns_subdomain(name));
    }
    match text(named, "namespace") {
        "" => errors.required(format!("{path}.namespace"), "must specify namespace for service account"),
        namespace => errors.faults(&format!("{path}.namespace"), namespace, names::dns_label(namespace)),
    }
}

fn resource_rule(rule: &Value, path: &str, errors: &mut Errors) {
    verbs(rule, path, errors);
    let needed = "resource rules must supply at least one api group";
    wildcard(rule, path, ("apiGroups", needed, "api groups"), errors);
    let needed = "resource rules must supply at least one resource";
    wildcard(rule, path, ("resources", needed, "resources"), errors);
    let namespaces = items(rule, "namespaces");
    if namespaces.is_empty() {
        if rule["clusterScope"] != true {
            let needed = "resource rules that are not cluster scoped must supply at least one namespace";
            errors.required(format!("{path}.namespaces"), needed);
        }
        return;
    }
    wildcard(rule, path, ("namespaces", "", "namespaces"), errors);
    if has_wildcard(namespaces) {
        return;
    }
    for (index, namespace) in namespaces.iter().filter_map(Value::as_str).enumerate() {
        for fault in names::dns_label(namespace) {
            let detail = format!("each member of this list must be '*' or a DNS-1123 label; {fault}");
            errors.invalid(format!("{path}.namespaces[{index}]"), &json!(namespace), &detail);
        }
    }
}

/// Returns `true` if a list contains the wildcard `*`; the other items are then not checked.
fn has_wildcard(list: &[Value]) -> bool {
    list.iter().any(|item| item == "*")
}

/// Validates a list that must not be empty, and in which `*` must be the only item.
fn wildcard(rule: &Value, path: &str, (field, needed, what): (&str, &str, &str), errors: &mut Errors) {
    let list = items(rule, field);
    let path = format!("{path}.{field}");
    if list.is_empty() {
        errors.required(path, needed);
    } else if list.len() > 1 && list.iter().any(|item| item == "*") {
        let detail = format!("if '*' is present, must not specify other {what}");
        errors.invalid(path, &json!(list), &detail);
    }
}

fn verbs(rule: &Value, path: &str, errors: &mut Errors) {
    wildcard(rule, path, ("verbs", "verbs must contain at least one value", "verbs"), errors);
    let list = items(rule, "verbs");
    let known = |verb: &Value| verb.as_str().is_some_and(|verb| VERBS.contains(&verb));
    if !has_wildcard(list) && !list.iter().all(known) {
        let error = FieldError::not_supported(format!("{path}.verbs"), &json!(list), &VERBS);
        errors.extend([error]);
    }
}

fn url_path(url: &str, path: &str, errors: &mut Errors) {
    let mut invalid = |detail: &str| errors.invalid(path, &json!(url), detail);
    match url {
        "" => invalid("must not be empty"),
        "/" | "*" => {}
        _ if !url.starts_with('/') => invalid("must start with slash"),
        _ if url.contains(' ') => invalid("must not contain white-space"),
        _ if url.contains("//") => invalid("must not contain double slash"),
        _ if url.strip_suffix("/*").unwrap_or(url).contains('*') => {
            invalid("wildcard can only do suffix matching");
        }
        _ => {}
    }
}

const COLUMNS: Columns = Columns {
    headers: &[
        NAME,
        ("PriorityLevel", "string", 0, "Priority level of the requests that match"),
        ("MatchingPrecedence", "string", 0, "Which of several that match counts: the lowest"),
        ("DistinguisherMethod", "string", 0, "What flows are told apart by"),
        AGE,
        ("MissingPL", "string", 0, "Whether the priority level is missing"),
    ],
    cells: |object, now| {
        let dangling = cells::condition(object, "Dangling").map_or("?", |c| meta::text(c, "/status"));
        vec![
            cells::name(object),
            cells::text_or(object, "/spec/priorityLevelConfiguration/name", ""),
            cells::number(object, "/spec/matchingPrecedence"),
            cells::text_or(object, "/spec/distinguisherMethod/type", NONE),
            cells::age(object, now),
            json!(dangling),
        ]
    },
};
