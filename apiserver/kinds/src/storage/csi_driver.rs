//! CSIDrivers.

use std::collections::BTreeSet;

use apiserver_schema::error::FieldError;
use apiserver_schema::meta;
use apiserver_schema::validation::{Errors, IMMUTABLE, given, items, same, text, with_metadata};
use serde_json::{Value, json};

use crate::kind::Kind;
use crate::shared::cells::{NONE, UNSET};
use crate::shared::columns::{AGE, Columns, NAME};
use crate::shared::defaults::{fill, fill_absent, is_empty, with_spec};
use crate::shared::gates::Gate;
use crate::shared::{cells, gates};

pub(crate) static KIND: Kind = Kind {
    group: "storage.k8s.io",
    plural: "csidrivers",
    needs_version: true,
    default,
    prepare_update,
    drop_disabled: Some(|new, old| gates::drop_at(new, old, "/spec", GATES)),
    validate,
    validate_update,
    warnings: Some(warnings),
    columns: COLUMNS,
    ..Kind::DEFAULT
};

/// A CSIDriver's spec is counted from its first change on. Arguments: new, old.
fn prepare_update(new: &mut Value, old: &Value) {
    if !same(new.get("spec"), old.get("spec")) {
        let generation = meta::generation(old) + 1;
        meta::set(new, "generation", generation);
    }
}

/// Defaults of a CSIDriver.
fn default(value: &mut Value) {
    with_spec(value, |spec| {
        fill(spec, "attachRequired", true);
        for key in ["podInfoOnMount", "storageCapacity", "requiresRepublish", "seLinuxMount"] {
            fill(spec, key, false);
        }
        fill_absent(spec, "fsGroupPolicy", "ReadWriteOnceWithFSType");
        if is_empty(spec, "volumeLifecycleModes") {
            spec.insert("volumeLifecycleModes".into(), json!(["Persistent"]));
        }
    });
}

// VolumeLimitScaling
static GATES: &[Gate] = &[gates::gate(&["preventPodSchedulingIfMissing"])];

/// Returns the errors of a CSIDriver, whose name is that of its driver.
fn validate(object: &Value) -> Vec<FieldError> {
    let mut errors = with_metadata(object);
    let spec = &object["spec"];
    let policies = ["File", "None", "ReadWriteOnceWithFSType"];
    errors.one_of_if_given("spec.fsGroupPolicy", spec.get("fsGroupPolicy"), &policies);
    let mut seen = BTreeSet::new();
    for (index, request) in items(spec, "tokenRequests").iter().enumerate() {
        let path = format!("spec.tokenRequests[{index}]");
        let audience = text(request, "audience");
        if !seen.insert(audience) {
            errors.duplicate(format!("{path}.audience"), &json!(audience));
            continue;
        }
        let at = format!("{path}.expirationSeconds");
        match request["expirationSeconds"].as_i64() {
            Some(seconds) if seconds < 600 => {
                errors.invalid(at, &json!(seconds), "may not specify a duration less than 10 minutes");
            }
            Some(seconds) if seconds > 1 << 32 => {
                errors.invalid(at, &json!(seconds), "may not specify a duration larger than 2^32 seconds");
            }
            _ => {}
        }
    }
    for mode in items(spec, "volumeLifecycleModes") {
        if mode != "Persistent" && mode != "Ephemeral" {
            errors.not_supported("spec.volumeLifecycleModes", mode, &["Persistent", "Ephemeral"]);
        }
    }
    if let Some(seconds) = spec["nodeAllocatableUpdatePeriodSeconds"].as_i64().filter(|s| *s < 10) {
        let path = "spec.nodeAllocatableUpdatePeriodSeconds";
        errors.invalid(path, &json!(seconds), "must be greater than or equal to 10 seconds");
    }
    if let Some(secrets) = given(spec, "serviceAccountTokenInSecrets")
        && items(spec, "tokenRequests").is_empty()
    {
        let detail = "serviceAccountTokenInSecrets is set but no tokenRequests are specified";
        errors.invalid("spec.serviceAccountTokenInSecrets", secrets, detail);
    }
    errors.list()
}

/// Validates that the attachment and lifecycle settings of a CSIDriver do not change. Arguments: new, old.
fn validate_update(new: &Value, old: &Value) -> Vec<FieldError> {
    let mut errors = Errors::default();
    // The name of the first path is Kubernetes' own.
    for (field, path) in
        [("attachRequired", "spec.attachedRequired"), ("volumeLifecycleModes", "spec.volumeLifecycleModes")]
    {
        let (now, was) = (new["spec"].get(field), old["spec"].get(field));
        if !same(now, was) {
            errors.invalid(path, now.unwrap_or(&Value::Null), IMMUTABLE);
        }
    }
    errors.list()
}

const COLUMNS: Columns = Columns {
    headers: &[
        NAME,
        ("AttachRequired", "boolean", 0, "Whether volumes are attached before they are mounted"),
        ("PodInfoOnMount", "boolean", 0, "Whether the driver is told about the pod"),
        ("StorageCapacity", "boolean", 0, "Whether the driver publishes capacities"),
        ("TokenRequests", "string", 0, "Audiences of the tokens that the driver gets"),
        ("RequiresRepublish", "boolean", 0, "Whether volumes are published again and again"),
        ("Modes", "string", 0, "Lifecycles of its volumes"),
        AGE,
    ],
    cells: |object, now| {
        let flag = |field: &str| json!(object["spec"][field] == true);
        let joined = |list: &[Value], field: Option<&str>| {
            let text = |v: &Value| field.map_or(v.as_str(), |f| v[f].as_str()).unwrap_or_default().to_owned();
            list.iter().map(text).collect::<Vec<_>>().join(",")
        };
        let tokens = joined(meta::list(object, "/spec/tokenRequests"), Some("audience"));
        let modes = joined(meta::list(object, "/spec/volumeLifecycleModes"), None);
        vec![
            cells::name(object),
            flag("attachRequired"),
            flag("podInfoOnMount"),
            flag("storageCapacity"),
            json!(if tokens.is_empty() { UNSET.to_owned() } else { tokens }),
            flag("requiresRepublish"),
            json!(if modes.is_empty() { NONE.to_owned() } else { modes }),
            cells::age(object, now),
        ]
    },
};

fn warnings(new: &Value, old: Option<&Value>) -> Vec<String> {
    let requests = |driver: &Value| items(&driver["spec"], "tokenRequests").to_vec();
    let undecided = given(&new["spec"], "serviceAccountTokenInSecrets").is_none();
    let changed = old.is_none_or(|old| requests(old) != requests(new));
    if requests(new).is_empty() || !undecided || !changed {
        return Vec::new();
    }
    vec![
        "spec.serviceAccountTokenInSecrets is unset; if supported by this CSI driver, set to true to prevent possible \
         logging of tokens in volume attributes"
            .to_owned(),
    ]
}
