//! Claims, slices and rules about devices.

use apiserver_registry::Written;
use serde_json::{Value, json};

use crate::testing::{assert_refused, change_errors_at, defaulted_at, errors_at, merge};

#[test]
fn claims_get_the_same_errors_in_every_version() {
    let v1 = "resource.k8s.io/v1/resourceclaims";
    let request =
        |exactly: Value| json!({"spec": {"devices": {"requests": [{"name": "r", "exactly": exactly}]}}});
    let base = request(json!({"deviceClassName": "c"}));
    let filled = &defaulted_at(v1, &base)["spec"]["devices"]["requests"][0]["exactly"];
    assert_eq!((&filled["allocationMode"], &filled["count"]), (&json!("ExactCount"), &json!(1)));
    let path = "spec.devices.requests[0].exactly";
    let class = format!("{path}.deviceClassName: Required value");
    let count = format!("{path}.count: Invalid value: 2: must not be specified when allocationMode is 'All'");
    assert_refused(
        v1,
        &base,
        &[
            (request(json!({"deviceClassName": ""})), &[class.as_str()]),
            (
                request(json!({"deviceClassName": "c", "allocationMode": "All", "count": 2})),
                &[count.as_str()],
            ),
            (
                json!({"spec": {"devices": {"requests": [{"name": "r"}]}}}),
                &[
                    "spec.devices.requests[0]: Required value: exactly one of `exactly` or `firstAvailable` is required",
                ],
            ),
            (
                json!({"spec": {"devices": {"constraints": [{"requests": ["x"], "matchAttribute": "a"}]}}}),
                &[
                    "spec.devices.constraints[0].requests[0]: Invalid value: \"x\": must be the name of a request in the claim or \
             the name of a request and a subrequest separated by '/'",
                    "spec.devices.constraints[0].matchAttribute: Invalid value: \"a\": a fully qualified name must be a domain and a \
             name separated by a slash",
                ],
            ),
        ],
    );
    let old = "resource.k8s.io/v1beta1/resourceclaims";
    let flat =
        |request: Value| json!({"spec": {"devices": {"requests": [merge(&json!({"name": "r"}), &request)]}}});
    let filled = defaulted_at(old, &flat(json!({"deviceClassName": "c"})));
    assert_eq!(filled["apiVersion"], "resource.k8s.io/v1beta1");
    assert_eq!(
        filled["spec"]["devices"]["requests"][0],
        json!({"name": "r", "deviceClassName": "c",
        "allocationMode": "ExactCount", "count": 1})
    );
    let wrong = flat(json!({"deviceClassName": "c", "allocationMode": "All", "count": 2}));
    assert_eq!(errors_at(old, &wrong), [count]);
    let other = request(json!({"deviceClassName": "d"}));
    let found = change_errors_at(v1, &other, &base, Written::Main);
    assert!(found.len() == 1 && found[0].ends_with("field is immutable"), "{found:?}");
    let reserved =
        merge(&base, &json!({"status": {"reservedFor": [{"resource": "pods", "name": "p", "uid": "u"}]}}));
    assert_eq!(
        change_errors_at(v1, &reserved, &base, Written::Status),
        ["status.reservedFor: Forbidden: may not be specified when `allocated` is not set"]
    );
}

#[test]
fn a_request_of_v1beta1_without_a_class_is_not_one_for_a_class() {
    let path = "resource.k8s.io/v1beta1/resourceclaims";
    let claim = |request: Value| json!({"spec": {"devices": {"requests": [request]}}});
    let needed =
        "spec.devices.requests[0]: Required value: exactly one of `exactly` or `firstAvailable` is required";
    assert_eq!(errors_at(path, &claim(json!({"name": "r", "deviceClassName": ""}))), [needed]);
    let tolerant = claim(json!({"name": "r", "tolerations": [{"key": "a"}]}));
    assert_eq!(
        defaulted_at(path, &tolerant)["spec"]["devices"]["requests"][0],
        json!({"name": "r", "tolerations": [{"key": "a", "operator": "Equal"}]})
    );
    let exactly = "spec.devices.requests[0].exactly";
    let errors = [
        format!("{exactly}.deviceClassName: Required value"),
        format!(
            "{exactly}.allocationMode: Unsupported value: \"\": supported values: \"All\", \"ExactCount\""
        ),
    ];
    assert_eq!(errors_at(path, &tolerant), errors);
    let template = json!({"spec": tolerant});
    let errors = errors.map(|error| error.replacen("spec.", "spec.spec.", 1));
    assert_eq!(errors_at("resource.k8s.io/v1beta1/resourceclaimtemplates", &template), errors);
}

#[test]
fn slices_rules_and_pool_requests_with_wrong_fields_are_refused() {
    let path = "resource.k8s.io/v1/resourceslices";
    let base = json!({"spec": {"nodeName": "n", "driver": "d.example.com",
        "pool": {"name": "n", "generation": 1, "resourceSliceCount": 1}, "devices": [{"name": "d0"}]}});
    let places =
        "exactly one of `nodeName`, `nodeSelector`, `allNodes`, `perDeviceNodeSelection` is required";
    let (none, many) = (
        format!("spec: Required value: {places}"),
        format!("spec: Invalid value: \"{{`nodeName`, `allNodes`}}\": {places}, but multiple fields are set"),
    );
    assert_refused(
        path,
        &base,
        &[
            (json!({"spec": {"nodeName": null}}), &[none.as_str()]),
            (json!({"spec": {"allNodes": true}}), &[many.as_str()]),
            (json!({"spec": {"driver": ""}}), &["spec.driver: Required value"]),
            (
                json!({"spec": {"pool": {"resourceSliceCount": 0}}}),
                &["spec.pool.resourceSliceCount: Invalid value: 0: must be greater than zero"],
            ),
            (
                json!({"spec": {"devices": [{"name": "d0"}, {"name": "d0"}]}}),
                &["spec.devices[1]: Duplicate value: \"d0\""],
            ),
            (
                json!({"spec": {"devices": [{"name": "d0", "attributes": {"a": {}, "b": {"version": "1"}}}]}}),
                &[
                    "spec.devices[0].attributes[a]: Invalid value: \"\": exactly one value must be specified",
                    "spec.devices[0].attributes[b].version: Invalid value: \"1\": must be a string compatible with semver.org spec \
             2.0.0",
                ],
            ),
        ],
    );
    let moved = merge(&base, &json!({"spec": {"nodeName": "m"}}));
    assert_eq!(
        change_errors_at(path, &moved, &base, Written::Main),
        ["spec.nodeName: Invalid value: \"m\": field is immutable"]
    );
    let path = "resource.k8s.io/v1alpha3/devicetaintrules";
    let base = json!({"spec": {"taint": {"key": "example.com/k", "effect": "NoSchedule"}}});
    assert_refused(
        path,
        &base,
        &[(
            json!({"spec": {"taint": {"effect": "Never", "key": "a/b/c"}}}),
            &[
                "spec.taint.key: Invalid value: \"a/b/c\": a valid label key must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is '([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]') with an optional DNS subdomain prefix and '/' (e.g. 'example.com/MyName')",
                "spec.taint.effect: Unsupported value: \"Never\": supported values: \"NoExecute\", \"NoSchedule\", \"None\"",
            ],
        )],
    );
    let path = "resource.k8s.io/v1alpha3/resourcepoolstatusrequests";
    let base = json!({"spec": {"driver": "d.example.com"}});
    assert_eq!(defaulted_at(path, &base)["spec"]["limit"], 100);
    assert_refused(
        path,
        &base,
        &[(
            json!({"spec": {"limit": 1001}}),
            &["spec.limit: Invalid value: 1001: must be less than or equal to 1000"],
        )],
    );
}

#[test]
fn patterns_in_the_selectors_of_a_claim_have_one_bound() {
    let selector = |i: usize| {
        let pattern = format!(r"^{i}[\\p{{L}}]{{1,100}}$");
        json!({"cel": {"expression": format!("device.driver.matches('{pattern}')")}})
    };
    let request = |r: usize| {
        let selectors: Vec<Value> = (0..8).map(|i| selector(r * 8 + i)).collect();
        json!({"name": format!("r{r}"), "exactly": {"deviceClassName": "c", "selectors": selectors}})
    };
    let claim = |requests: Value| json!({"spec": {"devices": {"requests": requests}}});
    let path = "resource.k8s.io/v1/resourceclaims";
    let one = json!([{"name": "r", "exactly": {"deviceClassName": "c", "selectors": [selector(0)]}}]);
    assert_eq!(errors_at(path, &claim(one)), [""; 0]);
    let found = errors_at(path, &claim((0..8).map(request).collect()));
    assert!(found.iter().any(|error| error.contains("expression")), "{found:?}");
    assert!(found.len() < 64, "the first ones are within the bound");
}
