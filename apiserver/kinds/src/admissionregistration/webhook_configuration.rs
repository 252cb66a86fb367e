//! ValidatingWebhookConfigurations and MutatingWebhookConfigurations.

use std::collections::BTreeSet;

use apiserver_registry::Written;
use apiserver_schema::error::FieldError;
use apiserver_schema::validation::{Errors, given, items, label_selector, lenient_selector, names, text};
use serde_json::{Value, json};

use crate::admissionregistration::matching;
use crate::kind::Kind;
use crate::shared::columns::{AGE, Columns, NAME};
use crate::shared::defaults::{Object, each_object, fill, fill_absent, object};
use crate::shared::{cells, url};

pub(crate) static MUTATING: Kind = Kind {
    group: "admissionregistration.k8s.io",
    plural: "mutatingwebhookconfigurations",
    category: Some("api-extensions"),
    generation: true,
    needs_version: true,
    default: default_mutating,
    validate: validate_mutating,
    validate_change: Some(validate_mutating_change),
    columns: COLUMNS,
    ..Kind::DEFAULT
};

pub(crate) static VALIDATING: Kind = Kind {
    group: "admissionregistration.k8s.io",
    plural: "validatingwebhookconfigurations",
    category: Some("api-extensions"),
    generation: true,
    needs_version: true,
    default: default_validating,
    validate: validate_validating,
    validate_change: Some(validate_validating_change),
    columns: COLUMNS,
    ..Kind::DEFAULT
};

/// Defaults of a ValidatingWebhookConfiguration.
fn default_validating(value: &mut Value) {
    let Value::Object(map) = value else { return };
    each_object(map, "webhooks", default_webhook);
}

/// Defaults of a MutatingWebhookConfiguration.
fn default_mutating(value: &mut Value) {
    let Value::Object(map) = value else { return };
    each_object(map, "webhooks", |hook| {
        default_webhook(hook);
        fill_absent(hook, "reinvocationPolicy", "Never");
    });
}

fn default_webhook(hook: &mut Object) {
    fill_absent(hook, "failurePolicy", "Fail");
    fill(hook, "timeoutSeconds", 10);
    matching::default_selectors(hook);
    each_object(hook, "rules", |rule| fill_absent(rule, "scope", "*"));
    if let Some(service) = object(hook, "clientConfig").and_then(|config| object(config, "service")) {
        fill(service, "port", 443);
    }
}

/// Versions of AdmissionReview that an apiserver can send.
const REVIEWS: [&str; 2] = ["v1", "v1beta1"];

/// Errors of a new ValidatingWebhookConfiguration.
fn validate_validating(object: &Value) -> Vec<FieldError> {
    apiserver_cel::on_large_stack(|| webhooks(object, false, &Rules::of_new()))
}

/// Errors of a new MutatingWebhookConfiguration.
fn validate_mutating(object: &Value) -> Vec<FieldError> {
    apiserver_cel::on_large_stack(|| webhooks(object, true, &Rules::of_new()))
}

/// Returns the errors of a change of a ValidatingWebhookConfiguration; existing faults may stay. Arguments:
/// new, old.
fn validate_validating_change(new: &Value, old: &Value, _: Written) -> Vec<FieldError> {
    apiserver_cel::on_large_stack(|| webhooks(new, false, &Rules::of_change(new, old)))
}

/// Returns the errors of a change of a MutatingWebhookConfiguration; existing faults may stay. Arguments:
/// new, old.
fn validate_mutating_change(new: &Value, old: &Value, _: Written) -> Vec<FieldError> {
    apiserver_cel::on_large_stack(|| webhooks(new, true, &Rules::of_change(new, old)))
}

/// The rules to apply, depending on the previous configuration: objects that were created before a rule
/// existed may go on breaking it.
struct Rules {
    /// Side effects that a webhook may have.
    effects: &'static [&'static str],
    /// True if the versions of reviews have to be known ones.
    reviews: bool,
    /// True if the names of webhooks have to be unique.
    names: bool,
    /// True if the values in selectors have to be valid label values.
    values: bool,
    /// True if match conditions are validated.
    conditions: bool,
}

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

const NO_EFFECTS: [&str; 2] = ["None", "NoneOnDryRun"];

const ALL_EFFECTS: [&str; 4] = ["None", "NoneOnDryRun", "Some", "Unknown"];

fn webhooks(object: &Value, mutating: bool, rules: &Rules) -> Vec<FieldError> {
    let mut errors = matching::with_any_finalizer(object);
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
        matching::rule_with_operations(rule, &format!("{path}.rules[{index}]"), errors);
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
        matching::match_conditions(items(hook, "matchConditions"), &path, false, errors);
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

const COLUMNS: Columns = Columns {
    headers: &[NAME, ("Webhooks", "integer", 0, "Number of webhooks"), AGE],
    cells: |object, now| {
        vec![cells::name(object), json!(cells::count(object, "/webhooks")), cells::age(object, now)]
    },
};
