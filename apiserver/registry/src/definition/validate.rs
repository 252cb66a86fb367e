//! Validation of definitions.

use std::collections::{BTreeMap, BTreeSet, HashSet};

use serde_json::{Value, json};

use super::status::names_errors;
use crate::behaviour::Written;
use crate::limits::{COLUMNS, SELECTABLE_FIELDS};
use apiserver_schema::error::{FieldError, FieldReason};
use apiserver_schema::meta;
use apiserver_schema::repeats::repeats;
use apiserver_schema::validation::{Errors, given, items, metadata, names, text};
use apiserver_structural as structural;
use apiserver_structural::{Kind, Patterns, Structural, field_path};

const COLUMN_TYPES: [&str; 5] = ["boolean", "date", "integer", "number", "string"];
const COLUMN_FORMATS: [&str; 8] =
    ["byte", "date", "date-time", "double", "float", "int32", "int64", "password"];
/// The fields that the root of a schema may have if the status is a subresource.
const ROOT_FIELDS: [&str; 22] = [
    "description",
    "type",
    "format",
    "title",
    "maximum",
    "exclusiveMaximum",
    "minimum",
    "exclusiveMinimum",
    "maxLength",
    "minLength",
    "pattern",
    "maxItems",
    "minItems",
    "uniqueItems",
    "multipleOf",
    "required",
    "items",
    "properties",
    "externalDocs",
    "example",
    "x-kubernetes-preserve-unknown-fields",
    "x-kubernetes-validations",
];
/// The fields that are moved to the top of the definition if all versions agree on them.
const LIFTED: [&str; 4] = ["schema", "subresources", "additionalPrinterColumns", "selectableFields"];
const APPROVAL: &str = "api-approved.kubernetes.io";

/// Errors of a new definition.
pub fn validate(definition: &Value) -> Vec<FieldError> {
    let mut errors = Errors::default();
    let spec = &definition["spec"];
    let wanted = format!("{}.{}", text(&spec["names"], "plural"), text(spec, "group"));
    errors.extend(metadata::validate(definition, names::dns_subdomain));
    let name = meta::name(definition);
    let detail = "must be spec.names.plural+\".\"+spec.group";
    for (field, name) in [("generateName", meta::generate_name(definition)), ("name", name)] {
        if !name.is_empty() && name != wanted {
            errors.invalid(format!("metadata.{field}"), &json!(name), detail);
        }
    }
    spec_errors(spec, None, &mut errors);
    status_errors(definition, &mut errors);
    approval(definition, None, &mut errors);
    preserving(spec, &mut errors);
    errors.list()
}

fn preserves_unknown(spec: &Value) -> bool {
    spec["preserveUnknownFields"] == true
}

fn preserving(spec: &Value, errors: &mut Errors) {
    if preserves_unknown(spec) {
        let detail = "cannot set to true, set x-kubernetes-preserve-unknown-fields to true in spec.versions[*].schema instead";
        errors.invalid("spec.preserveUnknownFields", &json!(true), detail);
    }
}

/// Returns `true` if a schema, or one nested in it, has a default.
fn has_default(schema: &Value) -> bool {
    let held = |value: &Value| match value {
        Value::Array(schemas) => schemas.iter().any(has_default),
        schema => has_default(schema),
    };
    let named = |value: &Value| value.as_object().is_some_and(|schemas| schemas.values().any(has_default));
    let Some(map) = schema.as_object() else { return false };
    map.iter().any(|(key, value)| match key.as_str() {
        "default" => !value.is_null(),
        "items" | "allOf" | "anyOf" | "oneOf" | "not" | "additionalProperties" | "additionalItems" => {
            held(value)
        }
        "properties" | "patternProperties" | "definitions" | "dependencies" => named(value),
        _ => false,
    })
}

/// Errors of a changed definition. Schemas that did not change are not judged again.
pub fn validate_change(new: &Value, old: &Value, written: Written) -> Vec<FieldError> {
    let mut errors = Errors::default();
    errors.extend(metadata::validate(new, names::dns_subdomain));
    if written == Written::Status {
        errors.extend(names_errors(&new["status"]["acceptedNames"], "status.acceptedNames"));
        return errors.list();
    }
    spec_errors(&new["spec"], Some(&old["spec"]), &mut errors);
    if meta::condition_is_true(old, "Established") {
        errors.immutable("spec.scope", new, old);
        errors.immutable("spec.names.kind", new, old);
    }
    errors.immutable("spec.group", new, old);
    errors.immutable("spec.names.plural", new, old);
    status_errors(new, &mut errors);
    approval(new, Some(old), &mut errors);
    if !preserves_unknown(&old["spec"]) {
        preserving(&new["spec"], &mut errors);
    }
    errors.list()
}

fn spec_errors(spec: &Value, old: Option<&Value>, errors: &mut Errors) {
    let group = text(spec, "group");
    let faults = names::dns_subdomain(group);
    if group.is_empty() {
        errors.required("spec.group", "");
    } else if !faults.is_empty() {
        errors.invalid("spec.group", &json!(group), &faults.join(","));
    } else if !group.contains('.') {
        errors.invalid("spec.group", &json!(group), "should be a domain with at least one dot");
    }
    errors.one_of("spec.scope", spec.get("scope"), &["Cluster", "Namespaced"]);
    if preserves_unknown(spec) {
        let schemas = items(spec, "versions").iter().map(|version| &version["schema"]["openAPIV3Schema"]);
        if schemas.into_iter().any(has_default) {
            let detail = "must be false in order to use defaults in the schema";
            errors.invalid("spec.preserveUnknownFields", &json!(true), detail);
        }
        let strategy = text(&spec["conversion"], "strategy");
        if spec["conversion"].is_object() && strategy != "None" {
            let detail = "must be None if spec.preserveUnknownFields is true";
            errors.invalid("spec.conversion.strategy", &json!(strategy), detail);
        }
    }
    versions(spec, old, errors);
    for field in ["plural", "singular", "kind", "listKind"] {
        if text(&spec["names"], field).is_empty() {
            errors.required(format!("spec.names.{field}"), "");
        }
    }
    errors.extend(names_errors(&spec["names"], "spec.names"));
    conversion(&spec["conversion"], errors);
}

/// Parts of the versions, and where errors in them are reported: Kubernetes lifts what all versions
/// have in common to the top.
fn versions(spec: &Value, old: Option<&Value>, errors: &mut Errors) {
    let versions = items(spec, "versions");
    let named: Vec<&str> = versions.iter().map(|v| text(v, "name")).collect();
    let common: BTreeSet<&str> = LIFTED
        .into_iter()
        .filter(|field| versions.windows(2).all(|pair| pair[0].get(field) == pair[1].get(field)))
        .collect();
    let mut old_versions: BTreeMap<&str, &Value> = BTreeMap::new();
    for version in old.map(|old| items(old, "versions")).unwrap_or_default() {
        old_versions.entry(text(version, "name")).or_insert(version);
    }
    let schema_field =
        |version: &Value| version.pointer("/schema/openAPIV3Schema").is_some_and(Value::is_object);
    let mut patterns = Patterns::default();
    for (i, version) in versions.iter().enumerate() {
        let path = format!("spec.versions[{i}]");
        if !schema_field(version) {
            errors.required(format!("{path}.schema.openAPIV3Schema"), "");
        }
        let faults = names::dns_1035_label(named[i]);
        if !faults.is_empty() {
            errors.invalid(format!("{path}.name"), &json!(named[i]), &faults.join(","));
        }
        deprecation(version, &path, errors);
        let place = |field: &str, top: &str| match (common.contains(field), i) {
            (true, 0) => Some(format!("spec.{top}")),
            (true, _) => None,
            (false, _) => Some(format!("{path}.{field}")),
        };
        let before = old_versions.get(named[i]);
        if let Some(at) = place("schema", "validation").filter(|_| schema_field(version)) {
            let at = format!("{at}.openAPIV3Schema");
            let unchanged = before.is_some_and(|before| before.get("schema") == version.get("schema"));
            schema(version, &at, unchanged, &mut patterns, errors);
        }
        if let Some(at) = place("subresources", "subresources") {
            scale(&version["subresources"]["scale"], &format!("{at}.scale"), errors);
        }
        if let Some(at) = place("additionalPrinterColumns", "additionalPrinterColumns") {
            let columns = items(version, "additionalPrinterColumns");
            let field = "additionalPrinterColumns";
            let unchanged = before.is_some_and(|before| before.get(field) == version.get(field));
            if columns.len() > COLUMNS && !unchanged {
                errors.too_many(at.as_str(), columns.len(), COLUMNS);
            }
            for (j, column) in columns.iter().enumerate() {
                printer_column(column, &format!("{at}[{j}]"), errors);
            }
        }
        if let Some(at) = place("selectableFields", "selectableFields") {
            let unchanged =
                before.is_some_and(|b| b.get("selectableFields") == version.get("selectableFields"));
            selectable(version, &at, unchanged, errors);
        }
    }
    // Kubernetes keeps the first name in a field of long ago, too.
    let first = named.first().copied().unwrap_or_default();
    let faults = names::dns_1035_label(first);
    if !first.is_empty() && !faults.is_empty() {
        errors.invalid("spec.version", &json!(first), &faults.join(","));
    }
    let shown = json!(named);
    if repeats(&named).next().is_some() {
        errors.invalid("spec.versions", &shown, "must contain unique version names");
    }
    if versions.iter().filter(|v| v["storage"] == true).count() != 1 {
        errors.invalid("spec.versions", &shown, "must have exactly one version marked as storage version");
    }
}

fn deprecation(version: &Value, path: &str, errors: &mut Errors) {
    let Some(warning) = version.get("deprecationWarning").and_then(Value::as_str) else { return };
    let path = format!("{path}.deprecationWarning");
    let mut fault = |detail: &str| errors.invalid(path.as_str(), &json!(warning), detail);
    if version.get("deprecated") != Some(&json!(true)) {
        return fault("can only be set for deprecated versions");
    }
    if warning.len() > 256 {
        fault("must be <= 256 characters long");
    }
    if warning.is_empty() {
        fault("must not be an empty string");
    }
    if let Some((at, _)) = warning.char_indices().find(|(_, c)| c.is_control()) {
        fault(&format!(
            "must only contain printable UTF-8 characters; non-printable character found at index {at}"
        ));
    }
}

fn schema(version: &Value, path: &str, unchanged: bool, patterns: &mut Patterns, errors: &mut Errors) {
    let schema = &version["schema"]["openAPIV3Schema"];
    if !version["subresources"]["status"].is_null() {
        let kind = text(schema, "type");
        if kind != "object" && !kind.is_empty() {
            let detail = "only \"object\" is allowed as the type at the root of the schema if the status subresource is enabled";
            errors.invalid(format!("{path}.type"), &json!(kind), detail);
        }
        let others = schema.as_object().into_iter().flatten();
        if others.into_iter().any(|(key, value)| !value.is_null() && !ROOT_FIELDS.contains(&key.as_str())) {
            let detail = format!(
                "only {ROOT_FIELDS:?} fields are allowed at the root of the schema if the status subresource is enabled"
            );
            errors.invalid(path, &json!(""), &detail);
        }
    }
    if schema.get("nullable") == Some(&json!(true)) {
        errors.forbidden(format!("{path}.nullable"), "nullable cannot be true at the root");
    }
    if unchanged {
        return;
    }
    let compiled = Structural::compile(schema);
    let mut found = structural::structural_errors(schema, path, patterns);
    if found.is_empty() {
        found.extend(super::defaults::default_errors(&compiled, path));
    }
    let sound = found.is_empty();
    found.extend(structural::schema_errors(schema, path));
    if sound {
        // Expressions are judged by the types of a schema that is sound.
        let rules = apiserver_cel::rules::rule_errors(&compiled, path, &found, patterns);
        found.extend(rules);
    }
    errors.extend(found);
}

/// A path in dot notation below one of `roots`.
fn simple_path(path: String, value: &str, roots: &[&str], under: &str, errors: &mut Errors) {
    if !value.starts_with('.') {
        errors.invalid(path, &json!(value), "must be a simple json path starting with .");
    } else if !roots.is_empty() && !roots.iter().any(|root| value.starts_with(root)) {
        errors.invalid(path, &json!(value), &format!("should be a json path under {under}"));
    }
}

fn scale(scale: &Value, path: &str, errors: &mut Errors) {
    if !scale.is_object() {
        return;
    }
    for (field, root, under) in
        [("specReplicasPath", ".spec.", ".spec"), ("statusReplicasPath", ".status.", ".status")]
    {
        let at = format!("{path}.{field}");
        match text(scale, field) {
            "" => errors.required(at, ""),
            value => simple_path(at, value, &[root], under, errors),
        }
    }
    let selector = text(scale, "labelSelectorPath");
    if !selector.is_empty() {
        let at = format!("{path}.labelSelectorPath");
        simple_path(at, selector, &[".spec.", ".status."], "either .spec or .status", errors);
    }
}

fn printer_column(column: &Value, path: &str, errors: &mut Errors) {
    if text(column, "name").is_empty() {
        errors.required(format!("{path}.name"), "");
    }
    let types = format!("must be one of {}", COLUMN_TYPES.join(","));
    match text(column, "type") {
        "" => errors.required(format!("{path}.type"), &types),
        kind if !COLUMN_TYPES.contains(&kind) => errors.invalid(format!("{path}.type"), &json!(kind), &types),
        _ => {}
    }
    let format = text(column, "format");
    if !format.is_empty() && !COLUMN_FORMATS.contains(&format) {
        let detail = format!("must be one of {}", COLUMN_FORMATS.join(","));
        errors.invalid(format!("{path}.format"), &json!(format), &detail);
    }
    let at = format!("{path}.JSONPath");
    match text(column, "jsonPath") {
        "" => errors.required(at, ""),
        value => simple_path(at, value, &[], "", errors),
    }
}

fn selectable(version: &Value, path: &str, unchanged: bool, errors: &mut Errors) {
    let schema = Structural::compile(&version["schema"]["openAPIV3Schema"]);
    let mut seen: BTreeSet<Vec<String>> = BTreeSet::new();
    for (i, field) in items(version, "selectableFields").iter().enumerate() {
        let (at, value) = (format!("{path}[{i}].jsonPath"), text(field, "jsonPath"));
        if value.is_empty() {
            errors.required(at, "");
            continue;
        }
        let (names, found) = match field_path(value, &schema, false) {
            Ok(found) => found,
            Err(fault) => {
                errors.invalid(at, &json!(value), &format!("is an invalid path: {fault}"));
                continue;
            }
        };
        if names.first().is_some_and(|name| name == "metadata") {
            errors.invalid(at.as_str(), &json!(value), "must not point to fields in metadata");
        }
        if !matches!(found.kind, Some(Kind::String | Kind::Boolean | Kind::Integer)) {
            let detail = "must point to a field of type string, boolean or integer. Enum string fields and strings with formats are allowed.";
            errors.invalid(at.as_str(), &json!(value), detail);
        }
        if !seen.insert(names) {
            errors.duplicate(at, &json!(value));
        }
    }
    if seen.len() > SELECTABLE_FIELDS && !unchanged {
        errors.too_many(path, seen.len(), SELECTABLE_FIELDS);
    }
}

fn conversion(conversion: &Value, errors: &mut Errors) {
    if !conversion.is_object() {
        return;
    }
    errors.one_of("spec.conversion.strategy", conversion.get("strategy"), &["None", "Webhook"]);
    let webhook = &conversion["webhook"];
    let (config_at, versions_at) =
        ("spec.conversion.webhookClientConfig", "spec.conversion.conversionReviewVersions");
    if text(conversion, "strategy") != "Webhook" {
        let detail = "should not be set when strategy is not set to Webhook";
        if given(webhook, "clientConfig").is_some() {
            errors.forbidden(config_at, detail);
        }
        if !items(webhook, "conversionReviewVersions").is_empty() {
            errors.forbidden(versions_at, detail);
        }
        return;
    }
    client_config(&webhook["clientConfig"], config_at, errors);
    let versions: Vec<&str> =
        items(webhook, "conversionReviewVersions").iter().filter_map(Value::as_str).collect();
    if versions.is_empty() {
        errors.required(versions_at, "");
        return;
    }
    let mut seen = BTreeSet::new();
    for (i, version) in versions.iter().enumerate() {
        let at = format!("{versions_at}[{i}]");
        if !seen.insert(version) {
            errors.invalid(at, &json!(version), "duplicate version");
            continue;
        }
        errors.faults(&at, version, names::dns_1035_label(version));
    }
    if !versions.iter().any(|v| matches!(*v, "v1" | "v1beta1")) {
        errors.invalid(versions_at, &json!(versions), "must include at least one of v1, v1beta1");
    }
}

fn client_config(config: &Value, path: &str, errors: &mut Errors) {
    if !config.is_object() {
        errors.required(path, "required when strategy is set to Webhook");
        return;
    }
    let (url, service) =
        (config.get("url").and_then(Value::as_str), config.get("service").filter(|s| s.is_object()));
    match (url, service) {
        (Some(url), None) => webhook_url(url, &format!("{path}.url"), errors),
        (None, Some(service)) => webhook_service(service, &format!("{path}.service"), errors),
        _ => errors.required(path, "exactly one of url or service is required"),
    }
}

fn webhook_url(url: &str, path: &str, errors: &mut Errors) {
    const FORM: &str = "; desired format: https://host[/path]";
    let (scheme, rest) = url.split_once("://").unwrap_or(("", url));
    let authority = rest.split(['/', '?', '#']).next().unwrap_or_default();
    let host = authority.rsplit('@').next().unwrap_or_default();
    if scheme != "https" {
        errors.invalid(path, &json!(scheme), &format!("'https' is the only allowed URL scheme{FORM}"));
    }
    if host.is_empty() {
        errors.invalid(path, &json!(host), &format!("host must be specified{FORM}"));
    }
    if let Some((user, _)) = authority.rsplit_once('@') {
        errors.invalid(path, &json!(user), "user information is not permitted in the URL");
    }
    if let Some((_, fragment)) = rest.split_once('#') {
        errors.invalid(path, &json!(fragment), "fragments are not permitted in the URL");
    }
    if let Some((_, query)) = rest.split('#').next().and_then(|rest| rest.split_once('?')) {
        errors.invalid(path, &json!(query), "query parameters are not permitted in the URL");
    }
}

fn webhook_service(service: &Value, path: &str, errors: &mut Errors) {
    if text(service, "name").is_empty() {
        errors.required(format!("{path}.name"), "");
    }
    if text(service, "namespace").is_empty() {
        errors.required(format!("{path}.namespace"), "");
    }
    if let Some(port) = service.get("port").and_then(Value::as_i64).filter(|p| !(1..=65535).contains(p)) {
        let detail = "port is not valid: must be between 1 and 65535, inclusive";
        errors.invalid(format!("{path}.port"), &json!(port), detail);
    }
    let Some(target) = service.get("path").and_then(Value::as_str) else { return };
    if !target.is_empty() && target != "/" && !target.starts_with('/') {
        errors.invalid(format!("{path}.path"), &json!(target), "must start with a '/'");
    }
    let steps = target.strip_prefix('/').unwrap_or(target);
    let steps: Vec<&str> = steps.strip_suffix('/').unwrap_or(steps).split('/').collect();
    for (i, step) in steps.iter().enumerate().filter(|_| !matches!(target, "" | "/" | "//")) {
        if step.is_empty() {
            errors.invalid(format!("{path}.path"), &json!(target), &format!("segment[{i}] may not be empty"));
        }
    }
}

fn status_errors(definition: &Value, errors: &mut Errors) {
    let status = &definition["status"];
    errors.extend(names_errors(&status["acceptedNames"], "status.acceptedNames"));
    let stored = items(status, "storedVersions");
    let path = "status.storedVersions";
    // Kubernetes has no list where it is empty.
    let shown = if stored.is_empty() { Value::Null } else { json!(stored) };
    if stored.is_empty() {
        errors.invalid(path, &shown, "must have at least one stored version");
        return;
    }
    let versions = items(&definition["spec"], "versions");
    let mut in_store: HashSet<&Value> = stored.iter().collect();
    let known: HashSet<&Value> = versions.iter().map(|version| &version["name"]).collect();
    for version in versions {
        // Only the first of several versions with the same name is compared.
        if !in_store.remove(&version["name"]) && version["storage"] == true {
            errors.invalid(path, &shown, &format!("must have the storage version {}", text(version, "name")));
        }
    }
    for (i, version) in stored.iter().enumerate() {
        if !known.contains(version) {
            let name = version.as_str().unwrap_or_default();
            let detail = format!(
                "missing from spec.versions; {name} was previously a storage version, and must remain in \
                 spec.versions until a storage migration ensures no data remains persisted in {name} and removes \
                 {name} from status.storedVersions"
            );
            errors.invalid(format!("{path}[{i}]"), version, &detail);
        }
    }
}

/// Returns `true` if definitions of the group need the community's approval.
pub(super) fn is_protected(group: &str) -> bool {
    ["k8s.io", "kubernetes.io"]
        .iter()
        .any(|domain| group == *domain || group.strip_suffix(domain).is_some_and(|rest| rest.ends_with('.')))
}

/// Parses the approval annotation: `Ok` with the reason and the message of the condition, or why it is not an
/// approval.
pub(super) fn approval_state(definition: &Value) -> Result<(&'static str, String), (bool, String)> {
    let value = meta::annotation(definition, APPROVAL).unwrap_or_default();
    if value.is_empty() {
        let detail = format!(
            "protected groups must have approval annotation \"{APPROVAL}\", see https://github.com/kubernetes/enhancements/pull/1111"
        );
        return Err((true, detail));
    }
    if value.starts_with("unapproved") {
        return Ok(("UnapprovedAnnotation", format!("not approved: \"{value}\"")));
    }
    if value.split_once("://").is_some_and(|(scheme, host)| !scheme.is_empty() && !host.is_empty()) {
        return Ok(("ApprovedAnnotation", format!("approved in {value}")));
    }
    let detail = format!(
        "protected groups must have approval annotation \"{APPROVAL}\" with either a URL or a reason starting with \
         \"unapproved\", see https://github.com/kubernetes/enhancements/pull/1111"
    );
    Err((false, detail))
}

fn approval(new: &Value, old: Option<&Value>, errors: &mut Errors) {
    if !is_protected(text(&new["spec"], "group")) {
        return;
    }
    let annotation = |definition: &Value| meta::annotation(definition, APPROVAL).map(str::to_owned);
    if old.is_some_and(|old| annotation(old) == annotation(new)) {
        return;
    }
    let path = format!("metadata.annotations[{APPROVAL}]");
    match approval_state(new) {
        Ok(_) => {}
        Err((true, detail)) => errors.required(path, &detail),
        Err((false, detail)) => errors.extend([FieldError {
            field: path,
            reason: FieldReason::Invalid,
            message: format!("Invalid value: {}: {detail}", json!(annotation(new))),
        }]),
    }
}
