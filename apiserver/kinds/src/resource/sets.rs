//! Lists, sets and maps of device APIs: too many items are reported for the list alone, an item that occurs
//! twice for the item, and long keys are cut in the middle.

use std::collections::BTreeSet;

use apiserver_schema::validation::{Errors, items};
use serde_json::Value;

/// One item: it, and its path.
type Each<'a> = &'a mut dyn FnMut(&Value, &str, &mut Errors);

/// Validates each item of a list of at most `most` items under `field`.
pub(crate) fn list(
    holder: &Value,
    field: &str,
    path: &str,
    most: usize,
    errors: &mut Errors,
    each: Each<'_>,
) {
    all(items(holder, field), &format!("{path}.{field}"), most, errors, each);
}

fn all(list: &[Value], path: &str, most: usize, errors: &mut Errors, each: Each<'_>) -> bool {
    if list.len() > most {
        errors.too_many(path, list.len(), most);
        return false;
    }
    for (index, item) in list.iter().enumerate() {
        each(item, &format!("{path}[{index}]"), errors);
    }
    true
}

/// A [`list`] whose items differ in what `key` gives.
pub(crate) fn set(
    (holder, field): (&Value, &str),
    path: &str,
    most: usize,
    key: fn(&Value) -> Value,
    errors: &mut Errors,
    each: Each<'_>,
) {
    let (path, found) = (format!("{path}.{field}"), items(holder, field));
    if !all(found, &path, most, errors, each) {
        return;
    }
    let mut seen = BTreeSet::new();
    for (index, key) in found.iter().map(key).enumerate() {
        if !seen.insert(key.to_string()) {
            errors.duplicate(format!("{path}[{index}]"), &key);
        }
    }
}

/// The name of an item.
pub(crate) fn name(item: &Value) -> Value {
    item.get("name").cloned().unwrap_or_else(|| "".into())
}

/// The item itself.
pub(crate) fn itself(item: &Value) -> Value {
    item.clone()
}

/// A key as paths show it: longer ones than `most` bytes are cut in the middle.
pub(crate) fn shown_key(key: &str, most: usize) -> String {
    let most = most.max(16);
    if key.len() <= most || !key.is_ascii() {
        return key.to_owned();
    }
    let left = most - 3;
    format!("{}...{}", &key[..left.div_ceil(2)], &key[key.len() - left / 2..])
}
