//! ValidatingWebhookConfiguration, MutatingWebhookConfiguration, and what admission policies share
//! with them: rules and match conditions.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::{Errors, given, items, label_selector, lenient_selector, metadata, names, text, url};
use apiserver_cel as cel;
use apiserver_cel::{Admission, Expected};
use apiserver_registry::Written;
use apiserver_schema::error::FieldError;

const OPERATIONS: [&str; 5] = ["*", "CONNECT", "CREATE", "DELETE", "UPDATE"];
/// Versions of AdmissionReview that an apiserver can send.
const REVIEWS: [&str; 2] = ["v1", "v1beta1"];
const MOST_CONDITIONS: usize = 64;

/// Metadata of a kind of this group, as errors to add to: finalizers need no domain.
pub(super) fn with_any_finalizer(object: &Value) -> Errors {
    Errors::of(metadata::validate(object, names::dns_subdomain))
}

/// Runs a check that reads expressions, which may be nested deeply.
pub(super) fn reading(check: impl FnOnce() -> Vec<FieldError> + Send) -> Vec<FieldError> {
    cel::on_large_stack(check)
}

/// Errors of a new ValidatingWebhookConfiguration.
pub fn validating_webhooks(object: &Value) -> Vec<FieldError> {
    reading(|| webhooks(object, false, &Rules::of_new()))
}

/// Errors of a new MutatingWebhookConfiguration.
pub fn mutating_webhooks(object: &Value) -> Vec<FieldError> {
    reading(|| webhooks(object, true, &Rules::of_new()))
}

/// Returns the errors of a change of a ValidatingWebhookConfiguration; existing faults may stay. Arguments:
/// new, old.
pub fn validating_webhooks_change(new: &Value, old: &Value, _: Written) -> Vec<FieldError> {
    reading(|| webhooks(new, false, &Rules::of_change(new, old)))
}

/// The same of a MutatingWebhookConfiguration. Arguments: new, old.
pub fn mutating_webhooks_change(new: &Value, old: &Value, _: Written) -> Vec<FieldError> {
    reading(|| webhooks(new, true, &Rules::of_change(new, old)))
}

/// The rules to apply, depending on the previous configuration: objects that were created before a rule
/// existed may go on breaking it.
struct Rules {
    /// Side effects that a webhook may have.
    effects: &'static [&'static str],
    /// Versions of reviews are known.
    reviews: bool,
    /// Each webhook has a name of its own.
    names: bool,
    /// Selectors compare with values that labels can have.
    values: bool,
    /// True if match conditions are validated.
    conditions: bool,
}

const NO_EFFECTS: [&str; 2] = ["None", "NoneOnDryRun"];
const ALL_EFFECTS: [&str; 4] = ["None", "NoneOnDryRun", "Some", "Unknown"];

impl Rules {
    fn of_new() -> Self {
        Self { effects: &NO_EFFECTS, reviews: true, names: true, values: true, conditions: true }
    }

    fn of_change(new: &Value, old: &Value) -> Self {
        let (now, was) = (items(new, "webhooks"), items(old, "webhooks"));
        let harmless = was.iter().all(|hook| NO_EFFECTS.contains(&text(hook, "sideEffects")));
        let known = |hook: &Value| {
            let versions = items(hook, "admissionReviewVersions");
            versions.is_empty() || versions.iter().any(|v| v.as_str().is_some_and(|v| REVIEWS.contains(&v)))
        };
        let mut seen = BTreeSet::new();
        let names = was.iter().all(|hook| seen.insert(text(hook, "name")));
        let mut faults = Errors::default();
        for hook in was {
            for field in ["namespaceSelector", "objectSelector"] {
                label_selector(hook.get(field), field, &mut faults);
            }
        }
        let conditions = |hook: &Value| items(hook, "matchConditions").to_vec();
        Self {
            effects: if harmless { &NO_EFFECTS } else { &ALL_EFFECTS },
            reviews: was.iter().all(known),
            names,
            values: faults.count() == 0,
            conditions: !now.iter().map(conditions).eq(was.iter().map(conditions)),
        }
    }
}

fn webhooks(object: &Value, mutating: bool, rules: &Rules) -> Vec<FieldError> {
    let mut errors = with_any_finalizer(object);
    let mut seen = BTreeSet::new();
    for (index, hook) in items(object, "webhooks").iter().enumerate() {
        let path = format!("webhooks[{index}]");
        webhook(hook, rules, &path, &mut errors);
        if mutating {
            let policies = ["IfNeeded", "Never"];
            let policy = hook.get("reinvocationPolicy");
            errors.one_of_if_given(&format!("{path}.reinvocationPolicy"), policy, &policies);
        }
        reviews(hook, rules, &path, &mut errors);
        let name = text(hook, "name");
        if rules.names && !name.is_empty() && !seen.insert(name) {
            errors.duplicate(format!("{path}.name"), &json!(name));
        }
    }
    errors.list()
}

fn webhook(hook: &Value, rules: &Rules, path: &str, errors: &mut Errors) {
    qualified_domain(text(hook, "name"), &format!("{path}.name"), errors);
    for (index, rule) in items(hook, "rules").iter().enumerate() {
        rule_with_operations(rule, &format!("{path}.rules[{index}]"), errors);
    }
    errors.one_of_if_given(&format!("{path}.failurePolicy"), hook.get("failurePolicy"), &["Fail", "Ignore"]);
    errors.one_of_if_given(&format!("{path}.matchPolicy"), hook.get("matchPolicy"), &["Equivalent", "Exact"]);
    match given(hook, "sideEffects") {
        None => {
            let detail = format!("must specify one of {}", rules.effects.join(", "));
            errors.required(format!("{path}.sideEffects"), &detail);
        }
        effects => errors.one_of_if_given(&format!("{path}.sideEffects"), effects, rules.effects),
    }
    if let Some(seconds) =
        hook.get("timeoutSeconds").filter(|s| s.as_i64().is_some_and(|s| !(1..=30).contains(&s)))
    {
        let detail = "the timeout value must be between 1 and 30 seconds";
        errors.invalid(format!("{path}.timeoutSeconds"), seconds, detail);
    }
    for field in ["namespaceSelector", "objectSelector"] {
        lenient_selector(hook.get(field), !rules.values, &format!("{path}.{field}"), errors);
    }
    client(&hook["clientConfig"], &format!("{path}.clientConfig"), errors);
    if rules.conditions {
        let path = format!("{path}.matchConditions");
        match_conditions(items(hook, "matchConditions"), &path, false, errors);
    }
}

/// A domain of at least three labels.
fn qualified_domain(name: &str, path: &str, errors: &mut Errors) {
    if name.is_empty() {
        errors.required(path, "");
        return;
    }
    let faults = names::dns_subdomain(name);
    if faults.is_empty() && name.split('.').count() < 3 {
        let detail = "should be a domain with at least three segments separated by dots";
        errors.invalid(path, &json!(name), detail);
    }
    if !faults.is_empty() {
        errors.invalid(path, &json!(name), &faults.join(","));
    }
}

fn reviews(hook: &Value, rules: &Rules, path: &str, errors: &mut Errors) {
    let path = format!("{path}.admissionReviewVersions");
    let versions = items(hook, "admissionReviewVersions");
    if versions.is_empty() {
        errors.required(path, "must specify one of v1, v1beta1");
        return;
    }
    let mut seen = BTreeSet::new();
    for (index, version) in versions.iter().filter_map(Value::as_str).enumerate() {
        let path = format!("{path}[{index}]");
        if !seen.insert(version) {
            errors.invalid(path.as_str(), &json!(version), "duplicate version");
            continue;
        }
        errors.faults(&path, version, names::dns_1035_label(version));
    }
    if rules.reviews && !seen.iter().any(|version| REVIEWS.contains(version)) {
        errors.invalid(path, &json!(versions), "must include at least one of v1, v1beta1");
    }
}

/// Operations, groups, versions, resources and scope of a rule.
pub(super) fn rule_with_operations(rule: &Value, path: &str, errors: &mut Errors) {
    let operations = items(rule, "operations");
    alone(operations, &format!("{path}.operations"), "operations", errors);
    for (index, operation) in operations.iter().enumerate() {
        if !operation.as_str().is_some_and(|o| OPERATIONS.contains(&o)) {
            let path = format!("{path}.operations[{index}]");
            errors.extend([FieldError::not_supported(path, operation, &OPERATIONS)]);
        }
    }
    alone(items(rule, "apiGroups"), &format!("{path}.apiGroups"), "API groups", errors);
    let versions = items(rule, "apiVersions");
    alone(versions, &format!("{path}.apiVersions"), "API versions", errors);
    for (index, _) in versions.iter().enumerate().filter(|(_, v)| v.as_str() == Some("")) {
        errors.required(format!("{path}.apiVersions[{index}]"), "");
    }
    resources(items(rule, "resources"), &format!("{path}.resources"), errors);
    let scopes = ["*", "Cluster", "Namespaced"];
    errors.one_of_if_given(&format!("{path}.scope"), rule.get("scope"), &scopes);
}

/// Validates a list that must not be empty, and in which `*` must be the only item.
fn alone(list: &[Value], path: &str, what: &str, errors: &mut Errors) {
    if list.is_empty() {
        errors.required(path, "");
    } else if list.len() > 1 && list.iter().any(|item| item == "*") {
        errors.invalid(path, &json!(list), &format!("if '*' is present, must not specify other {what}"));
    }
}

/// Validates resources: `pods`, `pods/*`, `*/scale`, `*`, `*/*`; none may be included in an earlier one.
fn resources(list: &[Value], path: &str, errors: &mut Errors) {
    if list.is_empty() {
        errors.required(path, "");
        return;
    }
    let (mut whole, mut subresources) = (BTreeSet::new(), BTreeSet::new());
    // The last name without a subresource decides, as in Kubernetes.
    let mut plain = false;
    for (index, name) in list.iter().filter_map(Value::as_str).enumerate() {
        let path = format!("{path}[{index}]");
        if name.is_empty() {
            errors.required(path, "");
            continue;
        }
        let Some((resource, subresource)) = name.split_once('/') else {
            plain = name != "*";
            continue;
        };
        if whole.contains(resource) {
            let detail = format!("if '{resource}/*' is present, must not specify {name}");
            errors.invalid(path.as_str(), &json!(name), &detail);
        }
        if subresources.contains(subresource) {
            let detail = format!("if '*/{subresource}' is present, must not specify {name}");
            errors.invalid(path, &json!(name), &detail);
        }
        if subresource == "*" {
            whole.insert(resource);
        }
        if resource == "*" {
            subresources.insert(subresource);
        }
    }
    if list.len() > 1 && list.iter().any(|name| name == "*/*") {
        errors.invalid(path, &json!(list), "if '*/*' is present, must not specify other resources");
    }
    if plain && list.iter().any(|name| name == "*") {
        let detail = "if '*' is present, must not specify other resources without subresources";
        errors.invalid(path, &json!(list), detail);
    }
}

/// Conditions in CEL: named, and readable; with `params` they may name a policy's parameters.
pub(super) fn match_conditions(list: &[Value], path: &str, params: bool, errors: &mut Errors) {
    if list.len() > MOST_CONDITIONS {
        errors.too_many(path, list.len(), MOST_CONDITIONS);
        return;
    }
    let mut seen = BTreeSet::new();
    for (index, condition) in list.iter().enumerate() {
        let path = format!("{path}[{index}]");
        let has = Admission { authorizer: true, params, patches: false };
        let check = |source: &str| cel::expression(source, has, Expected::Bool);
        expression(text(condition, "expression"), &format!("{path}.expression"), "", errors, check);
        let name = text(condition, "name");
        if name.is_empty() {
            errors.required(format!("{path}.name"), "");
        } else {
            errors.faults(&format!("{path}.name"), name, names::qualified_name(name));
            if !seen.insert(name) {
                errors.duplicate(format!("{path}.name"), &json!(name));
            }
        }
    }
}

/// An expression in CEL that must be there and hold what `check` asks of it. Called within
/// [`reading`].
pub(super) fn expression(
    source: &str,
    path: &str,
    missing: &str,
    errors: &mut Errors,
    check: impl FnOnce(&str) -> Result<(), String>,
) {
    if source.trim().is_empty() {
        errors.required(path, missing);
    } else if let Err(why) = check(source) {
        errors.invalid(path, &json!(source), &why);
    }
}

fn client(config: &Value, path: &str, errors: &mut Errors) {
    let has = |field: &str| config.get(field).is_some_and(|v| !v.is_null());
    match (has("url"), has("service")) {
        (true, false) => url(text(config, "url"), &format!("{path}.url"), errors),
        (false, true) => service(&config["service"], &format!("{path}.service"), errors),
        _ => errors.required(path, "exactly one of url or service is required"),
    }
}

fn url(text: &str, path: &str, errors: &mut Errors) {
    const FORM: &str = "; desired format: https://host[/path]";
    let url = match url::parse(text) {
        Ok(url) => url,
        Err(wrong) => {
            let detail = format!("url must be a valid URL: parse {}: {wrong}{FORM}", json!(text));
            return errors.required(path, &detail);
        }
    };
    if url.scheme != "https" {
        errors.invalid(path, &json!(url.scheme), &format!("'https' is the only allowed URL scheme{FORM}"));
    }
    if url.host.is_empty() {
        errors.invalid(path, &json!(""), &format!("host must be specified{FORM}"));
    }
    for (part, detail) in [
        (url.user, "user information is not permitted in the URL"),
        (url.fragment, "fragments are not permitted in the URL"),
        (url.query, "query parameters are not permitted in the URL"),
    ] {
        if !part.is_empty() {
            errors.invalid(path, &json!(part), detail);
        }
    }
}

fn service(service: &Value, path: &str, errors: &mut Errors) {
    // Kubernetes takes the two for each other: it names `name` where the namespace is missing.
    for (missing, named) in [("namespace", "name"), ("name", "namespace")] {
        if text(service, missing).is_empty() {
            errors.required(format!("{path}.{named}"), "");
        }
    }
    let port = service["port"].as_i64().unwrap_or(443);
    for fault in names::port_number(port) {
        errors.invalid(format!("{path}.port"), &json!(port), &format!("port is not valid: {fault}"));
    }
    let Some(url_path) = service.get("path").and_then(Value::as_str) else { return };
    let path = format!("{path}.path");
    if matches!(url_path, "" | "/") {
        return;
    }
    if url_path == "//" {
        errors.invalid(path, &json!(url_path), "segment[0] may not be empty");
        return;
    }
    if !url_path.starts_with('/') {
        errors.invalid(path.as_str(), &json!(url_path), "must start with a '/'");
    }
    // The first character is skipped, as in Kubernetes.
    let mut steps = url_path.chars();
    steps.next();
    let steps = steps.as_str().strip_suffix('/').unwrap_or(steps.as_str());
    for (index, step) in steps.split('/').enumerate() {
        if step.is_empty() {
            errors.invalid(path.as_str(), &json!(url_path), &format!("segment[{index}] may not be empty"));
            continue;
        }
        for fault in names::dns_subdomain(step) {
            errors.invalid(path.as_str(), &json!(url_path), &format!("segment[{index}]: {fault}"));
        }
    }
}
