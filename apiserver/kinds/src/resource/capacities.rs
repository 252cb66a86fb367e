//! Capacities of devices, and what of them may be asked for (KEP-5075).

use apiserver_meta::quantity;
use apiserver_meta::quantity::Quantity;
use apiserver_schema::validation::{Errors, given, items};
use serde_json::{Value, json};

const MOST_VALUES: usize = 10;

/// One capacity; `shared` if several may use the device.
pub(crate) fn capacity(capacity: &Value, shared: bool, path: &str, errors: &mut Errors) {
    let Some(policy) = given(capacity, "requestPolicy") else { return };
    let path = format!("{path}.requestPolicy");
    if !shared {
        return errors.forbidden(path, "allowMultipleAllocations must be true");
    }
    let most = amount(capacity, "value").unwrap_or_else(|| Quantity::from_value(0));
    let (values, range) = (items(policy, "validValues"), given(policy, "validRange"));
    match (values.is_empty(), range) {
        (false, Some(_)) => {
            let detail = "exactly one policy can be specified, cannot specify \"validValues\" and \"validRange\" at \
                          the same time";
            errors.forbidden(path, detail);
        }
        (false, None) => match amount(policy, "default") {
            None => errors.required(format!("{path}.default"), "required when validValues is defined"),
            Some(default) => list(default, most, values, &format!("{path}.validValues"), errors),
        },
        (true, Some(range)) => match amount(policy, "default") {
            None => errors.required(format!("{path}.default"), "required when validRange is defined"),
            Some(default) => self::range(default, most, range, &format!("{path}.validRange"), errors),
        },
        (true, None) => {}
    }
}

fn amount(holder: &Value, field: &str) -> Option<Quantity> {
    given(holder, field).and_then(|value| quantity::parse_value(value).ok())
}

fn refuse(path: String, value: Quantity, detail: &str, errors: &mut Errors) {
    errors.invalid(path, &json!(value.to_string()), detail);
}

fn list(default: Quantity, most: Quantity, values: &[Value], path: &str, errors: &mut Errors) {
    let values: Vec<Quantity> = values.iter().filter_map(|value| quantity::parse_value(value).ok()).collect();
    for index in 1..values.len() {
        if values[index - 1] > values[index] {
            let detail = "values must be sorted in ascending order";
            refuse(format!("{path}[{index}]"), values[index], detail, errors);
        }
    }
    if values.len() > MOST_VALUES {
        errors.too_many(path, values.len(), MOST_VALUES);
    } else {
        for (index, value) in values.iter().enumerate().filter(|(_, value)| **value > most) {
            let detail = format!("option is larger than capacity value: {most}");
            refuse(format!("{path}[{index}]"), *value, &detail, errors);
        }
        for index in 0..values.len() {
            let same = |other: &Quantity| other.value() == values[index].value();
            if values[..index].iter().any(same) {
                errors.duplicate(format!("{path}[{index}]"), &json!(values[index].value().to_string()));
            }
        }
    }
    if values.len() > MOST_VALUES || !values.contains(&default) {
        let detail = "default value is not valid according to the requestPolicy";
        refuse(path.to_owned(), default, detail, errors);
    }
}

fn range(default: Quantity, most: Quantity, range: &Value, path: &str, errors: &mut Errors) {
    let Some(min) = amount(range, "min") else {
        return errors.required(format!("{path}.min"), "required when validRange is defined");
    };
    let (max, step) = (amount(range, "max"), amount(range, "step"));
    let at = |field: &str| format!("{path}.{field}");
    if min > most {
        refuse(at("min"), min, &format!("min is larger than capacity value: {most}"), errors);
    }
    if default < min {
        refuse(at("min"), default, &format!("default is less than min: {min}"), errors);
    }
    if let Some(max) = max {
        if min > max {
            refuse(at("max"), min, &format!("min is larger than max: {max}"), errors);
        }
        if max > most {
            refuse(at("max"), max, &format!("max is larger than capacity value: {most}"), errors);
        }
        if default > max {
            refuse(at("max"), default, &format!("default is more than max: {max}"), errors);
        }
    }
    let Some(step) = step else { return };
    let added = min.saturating_add(step);
    if added > most {
        let detail = format!("one step {added} is larger than capacity value: {most}");
        refuse(at("step"), step, &detail, errors);
    }
    for value in [Some(default), max].into_iter().flatten() {
        // A step of nothing fits no distance but none.
        let distance = value.value().saturating_sub(min.value());
        if distance.checked_rem(step.value()) != Some(0) {
            let detail = format!("value is not a multiple of a given step ({step}) from ({min})");
            refuse(at("step"), value, &detail, errors);
        }
    }
}
