//! Fields behind feature gates that Kubernetes 1.36 leaves off. They are dropped from what is written, unless the object
//! has them already.

use serde_json::Value;

use super::with_spec;

/// Drops fields of the spec of `new` that `old`, if there is one, does not have.
fn drop_fields(new: &mut Value, old: Option<&Value>, fields: &[&str]) {
    let kept =
        |field: &str| old.is_some_and(|old| old["spec"].get(field).is_some_and(|value| !value.is_null()));
    with_spec(new, |spec| {
        for field in fields.iter().filter(|field| !kept(field)) {
            spec.remove(*field);
        }
    });
}

/// Coordinated leader election.
const LEASE: [&str; 2] = ["strategy", "preferredHolder"];

/// A new Lease.
pub fn prepare_create_lease(new: &mut Value) {
    drop_fields(new, None, &LEASE);
}

/// A changed Lease. Arguments: new, old.
pub fn prepare_update_lease(new: &mut Value, old: &Value) {
    drop_fields(new, Some(old), &LEASE);
}

/// Scaling by volume limits.
const DRIVER: [&str; 1] = ["preventPodSchedulingIfMissing"];

/// A new CSIDriver.
pub fn prepare_create_csi_driver(new: &mut Value) {
    drop_fields(new, None, &DRIVER);
}

/// A changed CSIDriver, whose spec is counted from its first change on. Arguments: new, old.
pub fn prepare_update_csi_driver(new: &mut Value, old: &Value) {
    drop_fields(new, Some(old), &DRIVER);
    super::storage::prepare_update_csi_driver(new, old);
}

/// Dynamic configuration of kubelets, which is gone.
const NODE: [&str; 1] = ["configSource"];

/// A new Node.
pub fn prepare_create_node(new: &mut Value) {
    drop_fields(new, None, &NODE);
}

/// A changed Node. Arguments: new, old.
pub fn prepare_update_node(new: &mut Value, old: &Value) {
    drop_fields(new, Some(old), &NODE);
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::{prepare_create_lease, prepare_update_lease};

    #[test]
    fn fields_behind_closed_gates_are_dropped_unless_they_are_there() {
        let lease = json!({"spec": {"holderIdentity": "h", "strategy": "S", "preferredHolder": "p"}});
        let mut new = lease.clone();
        prepare_create_lease(&mut new);
        assert_eq!(new, json!({"spec": {"holderIdentity": "h"}}));
        let mut new = lease;
        prepare_update_lease(&mut new, &json!({"spec": {"strategy": "S"}}));
        assert_eq!(new, json!({"spec": {"holderIdentity": "h", "strategy": "S"}}));
    }
}
