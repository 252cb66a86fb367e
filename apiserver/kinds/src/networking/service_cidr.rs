//! ServiceCIDRs.

use apiserver_registry::Written;
use apiserver_schema::error::FieldError;
use apiserver_schema::meta;
use apiserver_schema::validation::{Errors, IMMUTABLE, items, with_metadata};
use serde_json::{Value, json};

use crate::kind::Kind;
use crate::shared::columns::{AGE, Columns, NAME};
use crate::shared::{cells, ip};

pub(crate) static KIND: Kind = Kind {
    group: "networking.k8s.io",
    plural: "servicecidrs",
    validate,
    validate_change: Some(validate_change),
    validate_status: Some(|_, _| Vec::new()),
    columns: COLUMNS,
    ..Kind::DEFAULT
};

/// Errors of a ServiceCIDR.
fn validate(object: &Value) -> Vec<FieldError> {
    let mut errors = with_metadata(object);
    let (spec, path) = (&object["spec"], "spec.cidrs");
    let ranges: Vec<&str> = items(spec, "cidrs").iter().filter_map(Value::as_str).collect();
    if ranges.is_empty() {
        errors.required(path, "at least one CIDR required");
        return errors.list();
    }
    if ranges.len() > 2 {
        errors.invalid(path, spec, "may only hold up to 2 values");
        return errors.list();
    }
    for (index, range) in ranges.iter().enumerate() {
        ip::canonical_range(range, &format!("{path}[{index}]"), &mut errors);
    }
    if let [one, other] = ranges[..] {
        let family = |range: &str| ip::parse_range(range).map(|(address, _)| address.is_ipv4());
        if family(one).zip(family(other)).is_some_and(|(one, other)| one == other) {
            let detail =
                "may specify no more than one IP for each IP family, i.e 192.168.0.0/24 and 2001:db8::/64";
            errors.invalid(path, &spec["cidrs"], detail);
        }
    }
    errors.list()
}

/// The ranges of a ServiceCIDR stay; one may be joined by one of the other family. Arguments: new, old.
fn validate_change(new: &Value, old: &Value, _: Written) -> Vec<FieldError> {
    let path = "spec.cidrs";
    let mut errors = Errors::default();
    let (now, before) = (items(&new["spec"], "cidrs"), items(&old["spec"], "cidrs"));
    match (before.len(), now.len()) {
        (a, b) if a == b => {
            for (index, (now, _)) in now.iter().zip(before).enumerate().filter(|(_, (now, was))| now != was) {
                errors.invalid(format!("{path}[{index}]"), now, IMMUTABLE);
            }
        }
        (1, 2) => {
            if now[0] != before[0] {
                errors.invalid(format!("{path}[0]"), &now[0], IMMUTABLE);
            }
            errors.extend(validate(new).into_iter().filter(|error| error.field.starts_with(path)));
        }
        _ => errors.invalid(path, &new["spec"]["cidrs"], IMMUTABLE),
    }
    errors.list()
}

const COLUMNS: Columns = Columns {
    headers: &[NAME, ("CIDRs", "string", 0, "Ranges from which addresses are taken"), AGE],
    cells: |object, now| {
        let ranges: Vec<&str> = meta::list(object, "/spec/cidrs").iter().filter_map(Value::as_str).collect();
        vec![cells::name(object), json!(ranges.join(",")), cells::age(object, now)]
    },
};
