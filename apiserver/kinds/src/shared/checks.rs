//! Checks that several kinds make.

use std::collections::BTreeSet;

use apiserver_schema::validation::{Errors, items, names, text};
use serde_json::{Value, json};

/// A text that must be there and follow a grammar.
pub(crate) fn required_name(
    object: &Value,
    field: &str,
    path: &str,
    grammar: fn(&str) -> names::Faults,
    errors: &mut Errors,
) {
    let (name, path) = (text(object, field), format!("{path}.{field}"));
    if name.is_empty() {
        errors.required(path, "");
    } else {
        errors.faults(&path, name, grammar(name));
    }
}

/// Validates that a list has at most `limit` items.
pub(crate) fn at_most(object: &Value, field: &str, path: &str, limit: usize, errors: &mut Errors) {
    let count = items(object, field).len();
    if count > limit {
        errors.too_many(format!("{path}.{field}"), count, limit);
    }
}

/// Items that each have a name of their own; `path` is that of the list.
pub(crate) fn distinct(list: &[Value], key: &str, path: &str, errors: &mut Errors) {
    let mut seen = BTreeSet::new();
    for (index, item) in list.iter().enumerate() {
        let name = text(item, key);
        if !name.is_empty() && !seen.insert(name) {
            errors.duplicate(format!("{path}[{index}].{key}"), &json!(name));
        }
    }
}

/// Validates `metav1.Condition`s: distinct types, and all required fields.
pub(crate) fn conditions(list: &[Value], path: &str, errors: &mut Errors) {
    let mut seen = BTreeSet::new();
    for (index, condition) in list.iter().enumerate() {
        let at = format!("{path}[{index}]");
        let kind = text(condition, "type");
        if !seen.insert(kind) {
            errors.duplicate(format!("{at}.type"), &json!(kind));
        }
        errors.faults(&format!("{at}.type"), kind, names::qualified_name(kind));
        let (state, states) = (text(condition, "status"), ["False", "True", "Unknown"]);
        if !states.contains(&state) {
            errors.not_supported(format!("{at}.status"), &json!(state), &states);
        }
        if condition["observedGeneration"].as_i64().is_some_and(|n| n < 0) {
            let detail = "must be greater than or equal to zero";
            errors.invalid(format!("{at}.observedGeneration"), &condition["observedGeneration"], detail);
        }
        if text(condition, "lastTransitionTime").is_empty() {
            errors.required(format!("{at}.lastTransitionTime"), "");
        }
        let reason = text(condition, "reason");
        if reason.is_empty() {
            errors.required(format!("{at}.reason"), "");
        } else if !is_reason(reason) {
            errors.invalid(format!("{at}.reason"), &json!(reason), REASON);
        }
        for (field, limit) in [("reason", 1024), ("message", 32 * 1024)] {
            if text(condition, field).len() > limit {
                errors.too_long(format!("{at}.{field}"), limit);
            }
        }
    }
}

const REASON: &str = "a condition reason must start with alphabetic character, optionally followed by a string of \
    alphanumeric characters or '_,:', and must end with an alphanumeric character or '_' (e.g. 'my_name',  or \
    'MY_NAME',  or 'MyName',  or 'ReasonA,ReasonB',  or 'ReasonA:ReasonB', regex used for validation is \
    '[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?')";

fn is_reason(reason: &str) -> bool {
    reason.starts_with(|c: char| c.is_ascii_alphabetic())
        && reason.ends_with(|c: char| c.is_ascii_alphanumeric() || c == '_')
        && reason.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'_' | b',' | b':'))
}

/// Longest name of a signer: a domain, a slash, and a namespace and a name with a dot between, bytes.
const SIGNER: usize = 253 + 1 + 253 + 63 + 1;

/// `example.com/signer`: a domain of two labels or more, and a path.
pub(crate) fn signer_name(name: &str, path: &str, errors: &mut Errors) {
    if name.is_empty() {
        errors.required(path, "");
        return;
    }
    let Some((domain, rest)) = name.split_once('/').filter(|(_, rest)| !rest.contains('/')) else {
        let detail = "must be a fully qualified domain and path of the form 'example.com/signer-name'";
        errors.invalid(path, &json!(name), detail);
        return;
    };
    if domain.len() > 253 {
        errors.too_long(path, 253);
    }
    labels(domain, names::dns_label, path, errors);
    if !domain.contains('.') {
        let detail = "should be a domain with at least two segments separated by dots";
        errors.invalid(path, &json!(domain), detail);
    }
    labels(rest, names::dns_subdomain, path, errors);
    if name.len() > SIGNER {
        errors.too_long(path, SIGNER);
    }
}

/// The first part between dots that is wrong.
fn labels(text: &str, grammar: fn(&str) -> names::Faults, path: &str, errors: &mut Errors) {
    let wrong = text.split('.').map(|label| (label, grammar(label))).find(|(_, faults)| !faults.is_empty());
    for (label, fault) in
        wrong.into_iter().flat_map(|(label, faults)| faults.into_iter().map(move |f| (label, f)))
    {
        errors.invalid(path, &json!(text), &format!("validating label {label:?}: {fault}"));
    }
}

/// Returns the three numbers of a semantic version, by which versions are ordered; `None` if the text is not
/// one.
pub(crate) fn semantic_version(text: &str) -> Option<[u64; 3]> {
    let (core, build) = text.split_once('+').map_or((text, None), |(core, build)| (core, Some(build)));
    let (core, pre) = core.split_once('-').map_or((core, None), |(core, pre)| (core, Some(pre)));
    let words = [build, pre].into_iter().flatten().flat_map(|part| part.split('.'));
    for word in words {
        if word.is_empty() || !word.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-') {
            return None;
        }
    }
    let mut numbers = core.split('.').map(|part| {
        let plain = part.bytes().all(|b| b.is_ascii_digit()) && (part == "0" || !part.starts_with('0'));
        part.parse::<u64>().ok().filter(|_| plain)
    });
    let version = [numbers.next()??, numbers.next()??, numbers.next()??];
    numbers.next().is_none().then_some(version)
}

pub(crate) fn status_number(status: &Value, field: &str) -> i64 {
    status[field].as_i64().unwrap_or(0)
}

pub(crate) fn status_counts(status: &Value, fields: &[&str], errors: &mut Errors) {
    for field in fields {
        errors.not_negative(format!("status.{field}"), status.get(*field));
    }
}
