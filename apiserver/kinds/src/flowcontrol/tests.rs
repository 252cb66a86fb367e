use serde_json::{Value, json};

use crate::testing::{assert_refused, defaulted_at, row};

#[test]
fn flow_schemas_and_priority_levels_with_wrong_fields_are_refused() {
    let path = "flowcontrol.apiserver.k8s.io/v1/flowschemas";
    let base = json!({"spec": {"priorityLevelConfiguration": {"name": "l"}}});
    assert_eq!(defaulted_at(path, &base)["spec"]["matchingPrecedence"], 1000);
    assert_refused(
        path,
        &base,
        &[
            (
                json!({"spec": {"matchingPrecedence": 1}}),
                &[
                    "spec.matchingPrecedence: Invalid value: 1: only the schema named 'exempt' may have matchingPrecedence 1",
                ],
            ),
            (
                json!({"spec": {"matchingPrecedence": 10001}}),
                &["spec.matchingPrecedence: Invalid value: 10001: must not be greater than 10000"],
            ),
            (
                json!({"spec": {"rules": [{"subjects": [{"kind": "User", "group": {"name": "g"}}]}]}}),
                &[
                    "spec.rules[0].subjects[0].group: Forbidden: group is forbidden when subject kind is not 'Group'",
                    "spec.rules[0].subjects[0].user: Required value: user is required when subject kind is 'User'",
                    "spec.rules[0]: Required value: at least one of resourceRules and nonResourceRules has to be non-empty",
                ],
            ),
        ],
    );
    let path = "flowcontrol.apiserver.k8s.io/v1/prioritylevelconfigurations";
    let base =
        json!({"spec": {"type": "Limited", "limited": {"limitResponse": {"type": "Queue", "queuing": {}}}}});
    let limited = defaulted_at(path, &base)["spec"]["limited"].clone();
    assert_eq!((&limited["nominalConcurrencyShares"], &limited["lendablePercent"]), (&json!(30), &json!(0)));
    assert_eq!(
        limited["limitResponse"]["queuing"],
        json!({"handSize": 8, "queues": 64, "queueLengthLimit": 50})
    );
    assert_refused(
        path,
        &base,
        &[
            (
                json!({"spec": {"type": "Exempt"}}),
                &[
                    "spec.type: Invalid value: \"Exempt\": must be 'Exempt' if and only if `name` is 'exempt'",
                    "spec.limited: Forbidden: must be nil if the type is not Limited",
                ],
            ),
            (
                json!({"spec": {"limited": {"limitResponse": {"queuing": {"queues": 4}}}}}),
                &[
                    "spec.limited.limitResponse.queuing.handSize: Invalid value: 8: should not be greater than queues (4)",
                ],
            ),
            (
                json!({"spec": {"limited": {"limitResponse": {"type": "Reject"}}}}),
                &[
                    "spec.limited.limitResponse.queuing: Forbidden: must be nil if limited.limitResponse.type is not Limited",
                ],
            ),
        ],
    );
}

#[test]
fn rows_of_priority_levels_show_their_queues() {
    let flow = |plural: &str, spec: Value| {
        row("flowcontrol.apiserver.k8s.io", plural, &json!({"metadata": {"name": "f"}, "spec": spec}))
    };
    let level = "prioritylevelconfigurations";
    assert_eq!(
        flow(level, json!({"type": "Exempt", "exempt": {"nominalConcurrencyShares": 5}})),
        "f | Exempt | <none> | <none> | <none> | <none> | <unknown>"
    );
    let queuing = json!({"queues": 64, "handSize": 6, "queueLengthLimit": 50});
    let limited = json!({"nominalConcurrencyShares": 30, "limitResponse": {"queuing": queuing}});
    assert_eq!(
        flow(level, json!({"type": "Limited", "limited": limited})),
        "f | Limited | 30 | 64 | 6 | 50 | <unknown>"
    );
}
