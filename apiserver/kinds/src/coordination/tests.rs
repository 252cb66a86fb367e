use serde_json::json;

use crate::testing::{assert_refused, errors, row};

#[test]
fn lease_candidates_with_wrong_versions_are_refused() {
    let path = "coordination.k8s.io/v1beta1/leasecandidates";
    let base = json!({"spec": {"leaseName": "l", "binaryVersion": "1.36.0", "emulationVersion": "1.35.0",
        "strategy": "OldestEmulationVersion"}});
    assert_refused(
        path,
        &base,
        &[
            (
                json!({"spec": {"binaryVersion": "1.34.0"}}),
                &["spec.binaryVersion: Invalid value: \"1.34.0\": must be greater \
            than or equal to `emulationVersion`"],
            ),
            (
                json!({"spec": {"emulationVersion": null}}),
                &["spec.emulationVersion: Required value: must be specified when \
            `strategy` is 'OldestEmulationVersion'"],
            ),
            (
                json!({"spec": {"binaryVersion": "1"}}),
                &[
                    "spec.binaryVersion: Invalid value: \"1\": must be a valid semantic version",
                    "spec.binaryVersion: Invalid value: \"1\": must be greater than or equal to `emulationVersion`",
                ],
            ),
        ],
    );
}

#[test]
fn leases_without_a_duration_are_refused() {
    assert_eq!(
        errors(
            "coordination.k8s.io",
            "leases",
            &json!({"metadata": {"name": "l"}, "spec": {"leaseDurationSeconds": 0}})
        ),
        ["spec.leaseDurationSeconds: Invalid value: 0: must be greater than 0"]
    );
}

#[test]
fn rows_of_leases_show_their_holder() {
    let lease = json!({"metadata": {"name": "l"}, "spec": {"holderIdentity": "me"}});
    assert_eq!(row("coordination.k8s.io", "leases", &lease), "l | me | <unknown>");
}
