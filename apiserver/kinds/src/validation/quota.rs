//! ResourceQuota and LimitRange.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};

use super::{Errors, given, items, names, resources, text, with_metadata};
use apiserver_meta::quantity::{self, Quantity};
use apiserver_schema::error::FieldError;

const SCOPES: [&str; 7] = [
    "BestEffort",
    "CrossNamespacePodAffinity",
    "NotBestEffort",
    "NotTerminating",
    "PriorityClass",
    "Terminating",
    "VolumeAttributesClass",
];
/// Scopes that exclude each other.
const OPPOSITES: [[&str; 2]; 2] = [["BestEffort", "NotBestEffort"], ["NotTerminating", "Terminating"]];

/// Errors of a ResourceQuota.
pub fn resource_quota(object: &Value) -> Vec<FieldError> {
    let mut errors = with_metadata(object);
    let spec = &object["spec"];
    amounts(spec, "hard", "spec", &mut errors);
    scopes(spec, &mut errors);
    if let Some(selector) = given(spec, "scopeSelector") {
        scope_selector(spec, selector, &mut errors);
    }
    status(object, &mut errors);
    errors.list()
}

fn status(object: &Value, errors: &mut Errors) {
    for field in ["hard", "used"] {
        amounts(&object["status"], field, "status", errors);
    }
}

/// Scopes of a ResourceQuota stay. Arguments: new, old.
pub fn resource_quota_update(new: &Value, old: &Value) -> Vec<FieldError> {
    let mut errors = Errors::default();
    let set = |object: &Value| -> BTreeSet<String> {
        items(&object["spec"], "scopes").iter().filter_map(|s| Some(s.as_str()?.to_owned())).collect()
    };
    if set(new) != set(old) {
        errors.invalid("spec.scopes", &json!(items(&new["spec"], "scopes")), super::IMMUTABLE);
    }
    errors.list()
}

/// Errors of a write of a ResourceQuota's status. Arguments: new, old.
pub fn resource_quota_status(new: &Value, _old: &Value) -> Vec<FieldError> {
    let mut errors = Errors::default();
    status(new, &mut errors);
    errors.list()
}

fn amounts(parent: &Value, field: &str, path: &str, errors: &mut Errors) {
    for (name, amount) in parent[field].as_object().into_iter().flatten() {
        let path = format!("{path}.{field}[{name}]");
        resources::resource_name(name, &path, errors);
        if !name.contains('/') && !resources::is_quota_resource(name) {
            errors.invalid(path.as_str(), &json!(name), "must be a standard resource for quota");
        }
        resources::one(name, amount, &path, errors);
    }
}

/// Returns true if a scope applies to a resource.
fn applies(scope: &str, resource: &str) -> bool {
    let computed = [
        "cpu",
        "memory",
        "requests.cpu",
        "requests.memory",
        "limits.cpu",
        "limits.memory",
        "pods",
        "ephemeral-storage",
        "requests.ephemeral-storage",
        "limits.ephemeral-storage",
    ];
    match scope {
        "BestEffort" => resource == "pods",
        "VolumeAttributesClass" => {
            matches!(resource, "persistentvolumeclaims" | "requests.storage")
        }
        "Terminating"
        | "NotTerminating"
        | "NotBestEffort"
        | "PriorityClass"
        | "CrossNamespacePodAffinity" => computed.contains(&resource),
        _ => true,
    }
}

fn limited(spec: &Value) -> Vec<&str> {
    let hard = spec["hard"].as_object().into_iter().flatten();
    hard.map(|(name, _)| name.as_str()).filter(|n| resources::is_quota_resource(n)).collect()
}

fn opposites(given: &[&str], shown: &Value, path: &str, errors: &mut Errors) {
    for pair in OPPOSITES {
        if pair.iter().all(|scope| given.contains(scope)) {
            errors.invalid(path, shown, "conflicting scopes");
        }
    }
}

fn scopes(spec: &Value, errors: &mut Errors) {
    let path = "spec.scopes";
    let shown = json!(items(spec, "scopes"));
    let given: Vec<&str> = items(spec, "scopes").iter().filter_map(Value::as_str).collect();
    let limited = limited(spec);
    let mut seen = BTreeSet::new();
    for scope in &given {
        if !SCOPES.contains(scope) {
            errors.invalid(path, &shown, "unsupported scope");
        }
        // A scope that is repeated gets no further errors.
        let new = seen.insert(scope);
        for _ in limited.iter().filter(|resource| new && !applies(scope, resource)) {
            errors.invalid(path, &shown, "unsupported scope applied to resource");
        }
    }
    opposites(&given, &shown, path, errors);
}

fn scope_selector(spec: &Value, selector: &Value, errors: &mut Errors) {
    let path = "spec.scopeSelector.matchExpressions";
    let expressions = items(selector, "matchExpressions");
    let (limited, mut seen) = (limited(spec), BTreeSet::new());
    for expression in expressions {
        let (scope, operator) = (text(expression, "scopeName"), text(expression, "operator"));
        let values = items(expression, "values");
        if !SCOPES.contains(&scope) {
            errors.invalid(format!("{path}.scopeName"), &json!(scope), "unsupported scope");
        }
        let new = seen.insert(scope);
        for _ in limited.iter().filter(|resource| new && !applies(scope, resource)) {
            errors.invalid(path, selector, "unsupported scope applied to resource");
        }
        let plain = SCOPES.contains(&scope) && !matches!(scope, "PriorityClass" | "VolumeAttributesClass");
        if plain && operator != "Exists" {
            let detail = "must be 'Exists' when scope is any of ResourceQuotaScopeTerminating, \
                          ResourceQuotaScopeNotTerminating, ResourceQuotaScopeBestEffort, \
                          ResourceQuotaScopeNotBestEffort or ResourceQuotaScopeCrossNamespacePodAffinity";
            errors.invalid(format!("{path}.operator"), &json!(operator), detail);
        }
        match operator {
            "In" | "NotIn" if values.is_empty() => errors.required(
                format!("{path}.values"),
                "must be at least one value when `operator` is 'In' or 'NotIn' for scope selector",
            ),
            "Exists" | "DoesNotExist" if !values.is_empty() => errors.invalid(
                format!("{path}.values"),
                &json!(values),
                "must be no value when `operator` is 'Exist' or 'DoesNotExist' for scope selector",
            ),
            "In" | "NotIn" | "Exists" | "DoesNotExist" => {}
            other => {
                errors.invalid(format!("{path}.operator"), &json!(other), "not a valid selector operator");
            }
        }
    }
    let given: Vec<&str> = expressions.iter().map(|e| text(e, "scopeName")).collect();
    opposites(&given, &json!(items(spec, "scopes")), path, errors);
}

/// Errors of a LimitRange.
pub fn limit_range(object: &Value) -> Vec<FieldError> {
    let mut errors = with_metadata(object);
    let mut seen = BTreeSet::new();
    for (index, item) in items(&object["spec"], "limits").iter().enumerate() {
        let path = format!("spec.limits[{index}]");
        let kind = text(item, "type");
        let at = format!("{path}.type");
        let faults = names::qualified_name(kind);
        if faults.is_empty()
            && !kind.contains('/')
            && !matches!(kind, "Pod" | "Container" | "PersistentVolumeClaim")
        {
            errors.invalid(at.as_str(), &json!(kind), "must be a standard limit type or fully qualified");
        }
        errors.faults(&at, kind, faults);
        if !seen.insert(kind) {
            errors.duplicate(at, &json!(kind));
        }
        limit(item, kind, &path, &mut errors);
    }
    errors.list()
}

type Amounts = BTreeMap<String, Quantity>;

fn limit(item: &Value, kind: &str, path: &str, errors: &mut Errors) {
    let read = |field: &str, errors: &mut Errors| -> Amounts {
        let mut amounts = Amounts::new();
        for (name, amount) in item[field].as_object().into_iter().flatten() {
            let path = format!("{path}.{field}[{name}]");
            if matches!(kind, "Pod" | "Container") {
                resources::container_resource(name, &path, errors);
            } else {
                resources::resource_name(name, &path, errors);
            }
            amounts.extend(quantity::parse_value(amount).ok().map(|q| (name.clone(), q)));
        }
        amounts
    };
    let (most, least) = (read("max", errors), read("min", errors));
    let (default, request) = if kind == "Pod" {
        (Amounts::new(), Amounts::new())
    } else {
        (read("default", errors), read("defaultRequest", errors))
    };
    if kind == "Pod" {
        for field in ["default", "defaultRequest"] {
            if !super::same(item.get(field), None) {
                errors.forbidden(format!("{path}.{field}"), "may not be specified when `type` is 'Pod'");
            }
        }
    }
    let storage = |amounts: &Amounts| amounts.contains_key("storage");
    if kind == "PersistentVolumeClaim" && !storage(&least) && !storage(&most) {
        let detail = "either minimum or maximum storage value is required, but neither was provided";
        errors.required(format!("{path}.limits"), detail);
    }
    let ratio = read("maxLimitRequestRatio", errors);
    let names: BTreeSet<&String> =
        [&most, &least, &default, &request, &ratio].into_iter().flat_map(BTreeMap::keys).collect();
    for name in names {
        let amounts = [&least, &most, &default, &request].map(|a| a.get(name).copied());
        order(amounts, name, path, errors);
        if let Some(ratio) = ratio.get(name) {
            ratio_fits(
                *ratio,
                amounts[0],
                amounts[1],
                &format!("{path}.maxLimitRequestRatio[{name}]"),
                errors,
            );
        }
    }
}

/// Validates `min ≤ defaultRequest ≤ default ≤ max` for those that are given. The order of arguments: min,
/// max, default, defaultRequest.
fn order([min, max, default, request]: [Option<Quantity>; 4], name: &str, path: &str, errors: &mut Errors) {
    type Pair<'a> = (Option<Quantity>, &'a str, Option<Quantity>, &'a str, &'a str, bool);
    // The lower, its name, the higher, its name, the field that is wrong, whether it is the lower.
    let pairs: [Pair<'_>; 6] = [
        (min, "min", max, "max", "min", true),
        (min, "min", request, "default request", "defaultRequest", false),
        (request, "default request", max, "max", "defaultRequest", true),
        (request, "default request", default, "default limit", "defaultRequest", true),
        (min, "min", default, "default", "default", true),
        (default, "default", max, "max", "default", false),
    ];
    for (low, low_name, high, high_name, field, shows_low) in pairs {
        let (Some(low), Some(high)) = (low, high) else { continue };
        if low > high {
            let shown = if shows_low { low } else { high };
            let detail = format!("{low_name} value {low} is greater than {high_name} value {high}");
            errors.invalid(format!("{path}.{field}[{name}]"), &json!(shown.to_string()), &detail);
        }
    }
    if let (Some(default), Some(request)) = (default, request)
        && !resources::overcommits(name)
        && default != request
    {
        let detail =
            format!("default value {default} must equal to defaultRequest value {request} in {name}");
        errors.invalid(format!("{path}.defaultRequest[{name}]"), &json!(request.to_string()), &detail);
    }
}

fn ratio_fits(
    ratio: Quantity,
    min: Option<Quantity>,
    max: Option<Quantity>,
    path: &str,
    errors: &mut Errors,
) {
    let shown = json!(ratio.to_string());
    if ratio < Quantity::from_value(1) {
        errors.invalid(path, &shown, &format!("ratio {ratio} is less than 1"));
    }
    if let (Some(min), Some(max)) = (min, max)
        && min.nano() > 0
    {
        // Exact for all amounts that occur; the text shows six digits anyway.
        #[expect(clippy::cast_precision_loss, reason = "compared and shown with six digits")]
        let (limit, value) = (max.nano() as f64 / min.nano() as f64, ratio.nano() as f64 / 1e9);
        if value > limit {
            errors.invalid(path, &shown, &format!("ratio {ratio} is greater than max/min = {limit:.6}"));
        }
    }
}
