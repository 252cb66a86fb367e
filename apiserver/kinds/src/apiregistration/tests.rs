use serde_json::json;

use crate::testing::{assert_refused, defaulted_at, resource_at};

#[test]
fn api_services_with_wrong_fields_are_refused() {
    let path = "apiregistration.k8s.io/v1/apiservices";
    let base = json!({"metadata": {"name": "v1.example.com"},
        "spec": {"group": "example.com", "version": "v1", "groupPriorityMinimum": 100, "versionPriority": 10}});
    assert_refused(
        path,
        &base,
        &[
            (
                json!({"metadata": {"name": "x"}}),
                &[
                    "metadata.name: Invalid value: \"x\": must be `spec.version+\".\"+spec.group`: \"v1.example.com\"",
                ],
            ),
            (
                json!({"spec": {"groupPriorityMinimum": 20001}}),
                &["spec.groupPriorityMinimum: Invalid value: 20001: must be positive and less than 20000"],
            ),
            (
                json!({"spec": {"insecureSkipTLSVerify": true}}),
                &["spec.insecureSkipTLSVerify: Invalid value: true: local \
            APIServices may not have insecureSkipTLSVerify"],
            ),
            (
                json!({"spec": {"service": {}}}),
                &["spec.service.namespace: Required value", "spec.service.name: Required value"],
            ),
        ],
    );
    let mut local = defaulted_at(path, &base);
    (resource_at(path).behaviour.prepare_create)(&mut local);
    assert_eq!(local["status"]["conditions"][0]["reason"], "Local");
}
