//! The status of a ResourceClaim: its allocation, its users, and the status of its devices that drivers
//! report.

use std::collections::{BTreeSet, HashSet};

use apiserver_schema::meta;
use apiserver_schema::validation::{Errors, IMMUTABLE, given, items, names, same, text};
use serde_json::{Value, json};

use crate::core::pod;
use crate::resource::requests::MOST;
use crate::resource::{requests, sets};
use crate::shared::{checks, ip};

const MOST_RESERVED: usize = 256;

const MOST_CONDITIONS: usize = 8;

const MOST_BINDING: usize = 4;

const MOST_ADDRESSES: usize = 16;

/// Longest name of a network interface and longest hardware address, bytes.
const INTERFACE: usize = 256;

const HARDWARE: usize = 128;

/// Identifies a device, or a share of it.
fn device_id(one: &Value) -> String {
    ["driver", "pool", "device", "shareID"].map(|field| text(one, field)).join("/")
}

/// Drops what drivers have reported about devices that a write takes away from a claim, so that clients which give
/// devices back need not know of it. Arguments: new, old.
pub(crate) fn drop_deallocated(new: &mut Value, old: &Value) {
    let allocated = |claim: &Value| -> BTreeSet<String> {
        let results =
            claim.pointer("/status/allocation/devices").map_or(&[][..], |devices| items(devices, "results"));
        results.iter().map(device_id).collect()
    };
    let (before, now) = (allocated(old), allocated(new));
    let Some(Value::Object(status)) = new.get_mut("status") else { return };
    let Some(Value::Array(devices)) = status.get_mut("devices") else { return };
    devices.retain(|one| {
        let id = device_id(one);
        now.contains(&id) || !before.contains(&id)
    });
    if devices.is_empty() {
        status.remove("devices");
    }
}

/// Errors of a write of a claim's status; `old` is the status before.
pub(crate) fn validate(claim: &Value, old: &Value, errors: &mut Errors) {
    let status = &claim["status"];
    let uid = |consumer: &Value| consumer["uid"].clone();
    sets::set((status, "reservedFor"), "status", MOST_RESERVED, uid, errors, &mut |one, path, errors| {
        errors.required_texts(one, path, &["resource", "name", "uid"]);
    });
    device_statuses(status, errors);
    let allocation = given(status, "allocation");
    let (reserved, before) = (items(status, "reservedFor"), items(old, "reservedFor"));
    if !reserved.is_empty() && allocation.is_none() {
        errors.forbidden("status.reservedFor", "may not be specified when `allocated` is not set");
    } else if meta::deletion_timestamp(claim).is_some() && reserved.iter().any(|one| !before.contains(one)) {
        let detail =
            "new entries may not be added while `deallocationRequested` or `deletionTimestamp` are set";
        errors.forbidden("status.reservedFor", detail);
    }
    match (allocation, given(old, "allocation")) {
        (Some(now), Some(before)) if !same(Some(now), Some(before)) => {
            errors.invalid("status.allocation", now, IMMUTABLE);
        }
        (Some(allocation), None) => allocated(claim, allocation, errors),
        _ => {}
    }
}

fn allocated(claim: &Value, allocation: &Value, errors: &mut Errors) {
    let known = requests::requests_of(&claim["spec"]);
    let (path, devices) = ("status.allocation.devices", &allocation["devices"]);
    sets::list(devices, "results", path, MOST, errors, &mut |result, path, errors| {
        requests::reference(text(result, "request"), &format!("{path}.request"), &known, errors);
        device(result, path, errors);
        binding(result, path, errors);
        share(result, path, errors);
    });
    sets::list(devices, "config", path, 2 * MOST, errors, &mut |config, path, errors| {
        let sources = ["FromClaim", "FromClass"];
        errors.one_of(&format!("{path}.source"), config.get("source"), &sources);
        requests::references(config, path, &known, errors);
        requests::configuration(config, path, errors);
    });
    if let Some(selector) = given(allocation, "nodeSelector") {
        pod::scheduling::node_selector(selector, "status.allocation.nodeSelector", errors);
    }
}

/// Driver, pool and name of a device.
fn device(holder: &Value, path: &str, errors: &mut Errors) {
    requests::driver_name(text(holder, "driver"), &format!("{path}.driver"), errors);
    requests::pool_name(text(holder, "pool"), &format!("{path}.pool"), errors);
    let name = text(holder, "device");
    errors.faults(&format!("{path}.device"), name, names::dns_label(name));
}

/// The share of a device that is used by several: a UUID in small letters.
fn share(holder: &Value, path: &str, errors: &mut Errors) {
    let Some(id) = given(holder, "shareID").and_then(Value::as_str) else { return };
    let plain = |id: &str| {
        id.len() == 36
            && id.bytes().enumerate().all(|(index, byte)| match index {
                8 | 13 | 18 | 23 => byte == b'-',
                _ => byte.is_ascii_hexdigit(),
            })
    };
    let detail = if !plain(id) {
        format!("error validating uid: invalid UUID length: {}", id.len())
    } else if id.bytes().any(|byte| byte.is_ascii_uppercase()) {
        "uid must be in RFC 4122 normalized form, `xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx` with lowercase hexadecimal \
         characters"
            .to_owned()
    } else {
        return;
    };
    errors.invalid(format!("{path}.shareID"), &json!(id), &detail);
}

/// Validates the conditions that a pod waits for, and those that make it give up: both or neither must be
/// set.
pub(crate) fn binding(holder: &Value, path: &str, errors: &mut Errors) {
    const FIELDS: [&str; 2] = ["bindingConditions", "bindingFailureConditions"];
    for field in FIELDS {
        sets::list(holder, field, path, MOST_BINDING, errors, &mut |name, path, errors| {
            let name = name.as_str().unwrap_or_default();
            errors.faults(path, name, names::qualified_name(name));
        });
    }
    let [waits, gives_up] = FIELDS.map(|field| items(holder, field));
    let waited_for: HashSet<&Value> = waits.iter().collect();
    for (field, list) in FIELDS.into_iter().zip([waits, gives_up]) {
        let mut seen = HashSet::new();
        for (index, name) in list.iter().enumerate() {
            let path = format!("{path}.{field}[{index}]");
            if !seen.insert(name) {
                errors.duplicate(path.as_str(), name);
            }
            if field == FIELDS[1] && waited_for.contains(name) {
                let detail = "bindingFailureConditions must not overlap with bindingConditions";
                errors.invalid(path, name, detail);
            }
        }
    }
    let shown = |field: &str| holder.get(field).cloned().unwrap_or_default();
    if waits.is_empty() && !gives_up.is_empty() {
        let detail = "bindingConditions are required to use bindingFailureConditions";
        errors.invalid(format!("{path}.{}", FIELDS[0]), &shown(FIELDS[0]), detail);
    }
    if gives_up.is_empty() && !waits.is_empty() {
        let detail = "bindingFailureConditions are required to use bindingConditions";
        errors.invalid(format!("{path}.{}", FIELDS[1]), &shown(FIELDS[1]), detail);
    }
}

/// Validates the device statuses that drivers report; each must be about an allocated device.
fn device_statuses(status: &Value, errors: &mut Errors) {
    let id = |one: &Value| json!(device_id(one));
    let results = items(&status["allocation"]["devices"], "results");
    let known: BTreeSet<String> = results.iter().map(|one| id(one).to_string()).collect();
    sets::set((status, "devices"), "status", usize::MAX, id, errors, &mut |one, path, errors| {
        device(one, path, errors);
        share(one, path, errors);
        if !known.contains(&id(one).to_string()) {
            errors.invalid(path, &id(one), "must be an allocated device in the claim");
        }
        let conditions = items(one, "conditions");
        if conditions.len() > MOST_CONDITIONS {
            errors.too_many(format!("{path}.conditions"), conditions.len(), MOST_CONDITIONS);
        }
        checks::conditions(conditions, &format!("{path}.conditions"), errors);
        if let Some(data) = given(one, "data") {
            requests::any_object(data, &format!("{path}.data"), errors);
        }
        if let Some(network) = given(one, "networkData") {
            network_data(network, &format!("{path}.networkData"), errors);
        }
    });
}

fn network_data(network: &Value, path: &str, errors: &mut Errors) {
    for (field, limit) in [("interfaceName", INTERFACE), ("hardwareAddress", HARDWARE)] {
        if text(network, field).len() > limit {
            errors.too_long(format!("{path}.{field}"), limit);
        }
    }
    let of = (network, "ips");
    sets::set(of, path, MOST_ADDRESSES, sets::itself, errors, &mut |address, path, errors| {
        ip::interface_address(address.as_str().unwrap_or_default(), path, errors);
    });
}
