//! `clusterIPs`, `ipFamilies` and `ipFamilyPolicy` of a Service, and how they may change.

use std::collections::BTreeSet;

use apiserver_schema::validation::{Errors, given, items, text};
use serde_json::{Value, json};

use crate::shared::ip;

const POLICIES: [&str; 3] = ["PreferDualStack", "RequireDualStack", "SingleStack"];

/// The addresses of a Service, under either of the two fields.
pub(crate) fn cluster_ips(spec: &Value) -> Vec<&str> {
    let list: Vec<&str> = items(spec, "clusterIPs").iter().filter_map(Value::as_str).collect();
    let first = text(spec, "clusterIP");
    if list.is_empty() && !first.is_empty() { vec![first] } else { list }
}

/// Returns `true` if a Service is headless: it has no address and wants none.
pub(crate) fn is_headless(spec: &Value) -> bool {
    cluster_ips(spec) == ["None"]
}

/// Families, policy and addresses for themselves and together.
pub(crate) fn related(spec: &Value, strict: bool, errors: &mut Errors) {
    if text(spec, "type") == "ExternalName" {
        return;
    }
    let path = "spec.clusterIPs";
    let (first, all) = (text(spec, "clusterIP"), items(spec, "clusterIPs"));
    if first.is_empty() {
        if !all.is_empty() {
            errors.invalid(path, &json!(all), "must be empty when `clusterIP` is not specified");
        }
    } else if !all.is_empty() && all[0] != first {
        errors.invalid(path, &json!(all), "first value must match `clusterIP`");
    }
    let mut seen = BTreeSet::new();
    for (index, family) in items(spec, "ipFamilies").iter().filter_map(Value::as_str).enumerate() {
        let path = format!("spec.ipFamilies[{index}]");
        if !matches!(family, "IPv4" | "IPv6") {
            errors.not_supported(path.as_str(), &json!(family), &["IPv4", "IPv6"]);
        }
        if !seen.insert(family) {
            errors.duplicate(path, &json!(family));
        }
    }
    errors.one_of_if_given("spec.ipFamilyPolicy", spec.get("ipFamilyPolicy"), &POLICIES);
    let ips = cluster_ips(spec);
    let mut wrong = false;
    for (index, address) in ips.iter().enumerate() {
        if index == 0 && *address == "None" {
            if ips.len() > 1 {
                wrong = true;
                errors.invalid(path, &json!(ips), "'None' must be the first and only value");
            }
            continue;
        }
        wrong |= ip::address(address, strict, &format!("{path}[{index}]"), errors).is_none();
    }
    if ips.len() > 2 {
        errors.invalid(path, &json!(ips), "may only hold up to 2 values");
    }
    if !wrong {
        families_fit(spec, &ips, errors);
    }
}

fn families_fit(spec: &Value, ips: &[&str], errors: &mut Errors) {
    let is_v6 = |text: &str| ip::parse(text).is_some_and(|ip| ip.is_ipv6());
    if ips.len() > 1 {
        let families: BTreeSet<bool> = ips.iter().map(|ip| is_v6(ip)).collect();
        if families.len() < 2 {
            let detail = "may specify no more than one IP for each IP family";
            errors.invalid("spec.clusterIPs", &json!(ips), detail);
        }
    }
    if self::is_headless(spec) {
        return;
    }
    let families = items(spec, "ipFamilies").iter().filter_map(Value::as_str);
    for (index, (address, family)) in ips.iter().zip(families).enumerate() {
        if matches!((family, is_v6(address)), ("IPv4", true) | ("IPv6", false)) {
            let detail = format!("expected an {family} value as indicated by `ipFamilies[{index}]`");
            errors.invalid(format!("spec.clusterIPs[{index}]"), &json!(address), &detail);
        }
    }
}

/// Validates that the first address and family stay; a second may be added, and removed if the policy allows
/// it.
pub(crate) fn update(spec: &Value, before: &Value, errors: &mut Errors) {
    let named = |spec: &Value| text(spec, "type") == "ExternalName";
    if named(spec) || named(before) {
        return;
    }
    let (headless, was_headless) = (is_headless(spec), is_headless(before));
    if !(headless && was_headless) {
        addresses(spec, before, errors);
    }
    if !headless && !was_headless {
        families(spec, before, errors);
    }
}

fn single(spec: &Value) -> bool {
    text(spec, "ipFamilyPolicy") == "SingleStack"
}

fn addresses(spec: &Value, before: &Value, errors: &mut Errors) {
    let (now, was) = (cluster_ips(spec), cluster_ips(before));
    let mut changed = |index: usize, detail: &str| {
        errors.invalid(format!("spec.clusterIPs[{index}]"), &json!(now), detail);
    };
    if now.len() == was.len() {
        for index in (0..was.len()).filter(|i| now[*i] != was[*i]) {
            changed(index, "may not change once set");
        }
        return;
    }
    match (now.first(), was.first()) {
        (None, Some(_)) => changed(0, "primary clusterIP can not be unset"),
        (Some(new), Some(old)) if new != old => changed(0, "may not change once set"),
        _ => {}
    }
    if now.len() == 1 && was.len() > 1 && !single(spec) {
        let detail = "must be set to 'SingleStack' when releasing the secondary clusterIP";
        errors.invalid("spec.ipFamilyPolicy", given(spec, "ipFamilyPolicy").unwrap_or(&Value::Null), detail);
    }
}

fn families(spec: &Value, before: &Value, errors: &mut Errors) {
    let list = |spec: &Value| items(spec, "ipFamilies").to_vec();
    let (now, was) = (list(spec), list(before));
    let path = "spec.ipFamilies[0]";
    let moved = if now.len() == was.len() {
        now != was
    } else {
        matches!((now.first(), was.first()), (Some(new), Some(old)) if new != old)
    };
    if moved {
        errors.invalid(path, &json!(now), "may not change once set");
    }
    if now.len() == 1 && was.len() > 1 && !single(spec) {
        let detail = "must be set to 'SingleStack' when releasing the secondary ipFamily";
        errors.invalid("spec.ipFamilyPolicy", given(spec, "ipFamilyPolicy").unwrap_or(&Value::Null), detail);
    }
}
