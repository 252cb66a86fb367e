//! Endpoints.

use apiserver_registry::Written;
use apiserver_schema::error::FieldError;
use apiserver_schema::meta;
use apiserver_schema::validation::{Errors, items, names, same, text, with_metadata};
use serde_json::{Value, json};

use crate::kind::Kind;
use crate::shared::cells::NONE;
use crate::shared::columns::{AGE, Columns, NAME};
use crate::shared::defaults::{each_object, fill};
use crate::shared::{cells, ip};

pub(crate) static KIND: Kind = Kind {
    group: "",
    plural: "endpoints",
    short_names: &["ep"],
    prefix: "services/endpoints",
    create_on_update: true,
    default,
    validate,
    validate_change: Some(validate_change),
    warnings: Some(warnings),
    columns: COLUMNS,
    ..Kind::DEFAULT
};

/// Defaults of an Endpoints object.
fn default(value: &mut Value) {
    if let Value::Object(map) = value {
        each_object(map, "subsets", |subset| {
            each_object(subset, "ports", |port| fill(port, "protocol", "TCP"))
        });
    }
}

/// Errors of a changed Endpoints object: subsets that stay are not validated again. Arguments: new, old.
fn validate_change(new: &Value, old: &Value, _: Written) -> Vec<FieldError> {
    if same(new.get("subsets"), old.get("subsets")) { with_metadata(new).list() } else { validate(new) }
}

/// Errors of an Endpoints object.
fn validate(object: &Value) -> Vec<FieldError> {
    let mut errors = with_metadata(object);
    for (index, subset) in items(object, "subsets").iter().enumerate() {
        let path = format!("subsets[{index}]");
        let lists = ["addresses", "notReadyAddresses"];
        if lists.iter().all(|list| items(subset, list).is_empty()) {
            errors.required(path.as_str(), "must specify `addresses` or `notReadyAddresses`");
        }
        for list in lists {
            for (index, entry) in items(subset, list).iter().enumerate() {
                endpoint_address(entry, &format!("{path}.{list}[{index}]"), &mut errors);
            }
        }
        let ports = items(subset, "ports");
        for (index, port) in ports.iter().enumerate() {
            let path = format!("{path}.ports[{index}]");
            let name = text(port, "name");
            if name.is_empty() && ports.len() > 1 {
                errors.required(format!("{path}.name"), "");
            }
            errors.name_if_set(&format!("{path}.name"), name, names::dns_label);
            let number = port["port"].as_i64().unwrap_or(0);
            for fault in names::port_number(number) {
                errors.invalid(format!("{path}.port"), &json!(number), &fault);
            }
            errors.one_of(&format!("{path}.protocol"), port.get("protocol"), &["SCTP", "TCP", "UDP"]);
            let protocol = port.get("appProtocol");
            errors.name_if_given(&format!("{path}.appProtocol"), protocol, names::qualified_name);
        }
    }
    errors.list()
}

fn endpoint_address(entry: &Value, path: &str, errors: &mut Errors) {
    let (address, at) = (text(entry, "ip"), format!("{path}.ip"));
    let parsed = ip::address(address, true, &at, errors);
    errors.name_if_set(&format!("{path}.hostname"), text(entry, "hostname"), names::dns_label);
    errors.name_if_given(&format!("{path}.nodeName"), entry.get("nodeName"), names::dns_subdomain);
    if let Some(parsed) = parsed {
        ip::not_special(parsed, address, &at, errors);
    } else {
        // Two rules of Kubernetes each report it.
        errors.invalid(at, &json!(address), "must be a valid IP address");
    }
}

/// Maximum number of addresses and ports shown; the rest is counted.
const SHOWN: usize = 3;

const COLUMNS: Columns = Columns {
    headers: &[NAME, ("Endpoints", "string", 0, "Addresses and ports that are ready"), AGE],
    cells: |object, now| {
        let subsets = meta::list(object, "/subsets");
        // Only those that are shown are made: an object may have many ports for each of many addresses.
        let (mut list, mut total) = (Vec::new(), 0_usize);
        for subset in subsets {
            let (addresses, ports) = (meta::list(subset, "/addresses"), meta::list(subset, "/ports"));
            total = total.saturating_add(addresses.len().saturating_mul(ports.len().max(1)));
            let ips = || addresses.iter().map(|address| meta::text(address, "/ip")).take(SHOWN);
            if ports.is_empty() {
                list.extend(ips().map(str::to_owned));
            }
            for port in ports.iter().take(SHOWN) {
                list.extend(ips().map(|ip| host_port(ip, port["port"].as_i64().unwrap_or(0))));
            }
            list.truncate(SHOWN);
        }
        // If nothing is ready nothing is shown; only an object without subsets shows that it has none.
        let nothing = if subsets.is_empty() { NONE } else { "" };
        vec![cells::name(object), json!(of_total(&list, total, nothing)), cells::age(object, now)]
    },
};

fn host_port(ip: &str, port: i64) -> String {
    if ip.contains(':') { format!("[{ip}]:{port}") } else { format!("{ip}:{port}") }
}

pub(crate) fn shortened(list: &[String], empty: &str) -> String {
    of_total(list, list.len(), empty)
}

/// Returns the first texts of `total`, of which `list` may have only those that are shown.
fn of_total(list: &[String], total: usize, empty: &str) -> String {
    match total {
        0 => empty.to_owned(),
        n if n > SHOWN => format!("{} + {} more...", list[..SHOWN].join(","), n - SHOWN),
        _ => list.join(","),
    }
}

fn warnings(new: &Value, _old: Option<&Value>) -> Vec<String> {
    let mut warnings =
        vec!["v1 Endpoints is deprecated in v1.33+; use discovery.k8s.io/v1 EndpointSlice".to_owned()];
    for (index, subset) in items(new, "subsets").iter().enumerate() {
        for list in ["addresses", "notReadyAddresses"] {
            for (number, entry) in items(subset, list).iter().enumerate() {
                let path = format!("subsets[{index}].{list}[{number}].ip");
                warnings.extend(ip::address_warning(text(entry, "ip"), &path));
            }
        }
    }
    warnings
}
