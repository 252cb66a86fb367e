//! ServiceAccounts.

use apiserver_schema::meta;
use serde_json::{Value, json};

use crate::kind::Kind;
use crate::shared::cells;
use crate::shared::columns::{AGE, Columns, NAME};
use crate::shared::defaults::each_object;

pub(crate) static KIND: Kind = Kind {
    group: "",
    plural: "serviceaccounts",
    short_names: &["sa"],
    prepare_create: prepare,
    prepare_update: |new, _| prepare(new),
    warnings: Some(warnings),
    columns: COLUMNS,
    ..Kind::DEFAULT
};

/// Secrets of a ServiceAccount are those of its namespace, so only their names are stored.
fn prepare(value: &mut Value) {
    if let Value::Object(map) = value {
        each_object(map, "secrets", |secret| secret.retain(|field, _| field == "name"));
    }
}

const COLUMNS: Columns = Columns {
    headers: &[NAME, ("Secrets", "string", 0, "Number of secrets"), AGE],
    cells: |object, now| {
        vec![cells::name(object), json!(cells::count(object, "/secrets")), cells::age(object, now)]
    },
};

fn warnings(new: &Value, _old: Option<&Value>) -> Vec<String> {
    const KEY: &str = "kubernetes.io/enforce-mountable-secrets";
    let warning = meta::annotation(new, KEY).map(|_| {
        format!(
            "metadata.annotations[{KEY}]: deprecated in v1.32+; prefer separate namespaces to isolate access to mounted secrets"
        )
    });
    warning.into_iter().collect()
}
