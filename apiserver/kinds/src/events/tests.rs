use apiserver_registry::Written;
use serde_json::json;

use crate::testing::{assert_refused, change_errors_at, merge};

#[test]
fn events_of_the_new_group_require_more_and_change_less() {
    let path = "events.k8s.io/v1/events";
    let base = json!({"metadata": {"name": "e", "namespace": "default"}, "regarding": {"namespace": "default"},
        "eventTime": "2026-01-02T03:04:05.000006Z", "reportingController": "example.com/c", "reportingInstance": "i",
        "action": "A", "reason": "R", "type": "Normal"});
    assert_refused(
        path,
        &base,
        &[
            (json!({"eventTime": null}), &["eventTime: Required value"]),
            (
                json!({"type": "Odd", "deprecatedCount": 2}),
                &[
                    "type: Invalid value: \"\": has invalid value: Odd",
                    "count: Invalid value: \"\": needs to be unset",
                ],
            ),
            (
                json!({"action": "", "reportingInstance": "i".repeat(129)}),
                &[
                    "reportingInstance: Invalid value: \"\": can have at most 128 characters",
                    "action: Required value",
                ],
            ),
            (
                json!({"series": {"count": 1}}),
                &[
                    "series.count: Invalid value: \"\": should be at least 2",
                    "series.lastObservedTime: Required value",
                ],
            ),
        ],
    );
    let series =
        merge(&base, &json!({"series": {"count": 2, "lastObservedTime": "2026-01-02T03:04:06.000000Z"}}));
    assert_eq!(change_errors_at(path, &series, &base, Written::Main), [""; 0]);
    let other = merge(&base, &json!({"note": "else"}));
    assert_eq!(
        change_errors_at(path, &other, &base, Written::Main),
        ["message: Invalid value: \"else\": field is immutable"]
    );
}
