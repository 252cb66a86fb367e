use apiserver_registry::Written;
use serde_json::json;

use crate::testing::{assert_refused, change_errors_at, merge};

#[test]
fn migrations_refuse_changes_of_their_resource() {
    let path = "storagemigration.k8s.io/v1beta1/storageversionmigrations";
    let base = json!({"spec": {"resource": {"group": "apps", "resource": "deployments"}}});
    assert_refused(
        path,
        &base,
        &[(
            json!({"spec": {"resource": {"resource": ""}}}),
            &["spec.resource.resource: Required value: resource is required"],
        )],
    );
    let other = merge(&base, &json!({"spec": {"resource": {"group": "batch"}}}));
    assert_eq!(
        change_errors_at(path, &other, &base, Written::Main),
        ["group: Invalid value: \"batch\": field is immutable"]
    );
}
