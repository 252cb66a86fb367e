//! LimitRanges.

use std::collections::{BTreeMap, BTreeSet};

use apiserver_meta::quantity;
use apiserver_meta::quantity::Quantity;
use apiserver_schema::error::FieldError;
use apiserver_schema::validation::{Errors, items, names, same, text, with_metadata};
use serde_json::{Value, json};

use crate::kind::Kind;
use crate::shared::defaults::{Object, each_object, has_text, object_or_insert, with_spec};
use crate::shared::quantities::{container_resource, overcommits, resource_name};

pub(crate) static KIND: Kind = Kind {
    group: "",
    plural: "limitranges",
    short_names: &["limits"],
    create_on_update: true,
    default,
    validate,
    optional_name: true,
    ..Kind::DEFAULT
};

/// Defaults of a LimitRange: `default` is at most `max`, `defaultRequest` is `default` or `min`.
pub(crate) fn default(value: &mut Value) {
    with_spec(value, |spec| each_object(spec, "limits", container_limits));
}

fn container_limits(item: &mut Object) {
    if !has_text(item, "type", "Container") {
        return;
    }
    for (target, source) in [("default", "max"), ("defaultRequest", "default"), ("defaultRequest", "min")] {
        let Some(Value::Object(amounts)) = item.get(source).cloned() else { continue };
        if let Some(target) = object_or_insert(item, target) {
            for (name, amount) in amounts {
                target.entry(name).or_insert(amount);
            }
        }
    }
}

/// Errors of a LimitRange.
fn validate(object: &Value) -> Vec<FieldError> {
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
                container_resource(name, &path, errors);
            } else {
                resource_name(name, &path, errors);
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
            if !same(item.get(field), None) {
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
        && !overcommits(name)
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
