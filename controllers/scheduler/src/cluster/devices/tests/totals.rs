//! The devices of a class on the node `n`, which has the label `zone` `a`, and those in use.

use std::collections::BTreeMap;

use k8s_openapi::api::resource::v1::DeviceClass;
use serde_json::{Value, from_value, json};

use super::{devices, drawn, selector, slice, used, with};
use crate::cluster::devices::{Target, Totals};

/// Returns the number of devices of a class with these selectors, and of those in use.
fn totals(slices: &[Value], uses: &[Value], selectors: &[&str]) -> (i64, i64) {
    let selectors: Vec<Value> = selectors.iter().map(|one| selector(one)[0].clone()).collect();
    let class = json!({"metadata": {"name": "c"}, "spec": {"selectors": selectors}});
    let class: DeviceClass = from_value(class).unwrap();
    let devices = devices(slices, uses);
    let labels = BTreeMap::from([("zone".to_owned(), "a".to_owned())]);
    let count = || devices.totals(&class, Target { name: "n", labels: &labels });
    let Totals { all, used } = count();
    assert_eq!(count(), Totals { all, used }, "answers that are remembered are the same");
    (all, used)
}

#[test]
fn devices_count_as_used_once_however_many_claims_have_them() {
    let three = [drawn("n", &["a", "b", "c shared"])];
    let share =
        |id: &str| json!([{"request": "r", "driver": "d", "pool": "n", "device": "c", "shareID": id}]);
    let mut of_admin = used("b");
    of_admin[0]["adminAccess"] = json!(true);
    let elsewhere = json!([{"request": "r", "driver": "d", "pool": "m", "device": "a"}]);
    for (uses, expected) in [
        (vec![], (3, 0)),
        (vec![used("a")], (3, 1)),
        (vec![share("1")], (3, 1)),
        (vec![share("1"), share("2")], (3, 1)),
        (vec![used("a"), share("1")], (3, 2)),
        (vec![of_admin], (3, 0)),
        (vec![elsewhere, used("gone")], (3, 0)),
    ] {
        assert_eq!(totals(&three, &uses, &[]), expected, "{uses:?}");
    }
    assert_eq!(totals(&[], &[], &[]), (0, 0));
}

#[test]
fn devices_count_that_the_node_can_use() {
    let zone = |value: &str| json!({"nodeSelectorTerms": [{"matchExpressions": [{"key": "zone", "operator": "In", "values": [value]}]}]});
    let in_zone = |value: &str| {
        with(drawn("s", &["a"]), json!({"spec": {"nodeName": null, "nodeSelector": zone(value)}}))
    };
    let of_all = with(drawn("s", &["a"]), json!({"spec": {"nodeName": null, "allNodes": true}}));
    let stale =
        with(drawn("s", &["a"]), json!({"spec": {"pool": {"generation": 0, "resourceSliceCount": 7}}}));
    let each = json!([
        {"name": "own", "nodeName": "n"}, {"name": "other", "nodeName": "m"}, {"name": "all", "allNodes": true},
        {"name": "near", "nodeSelector": zone("a")}, {"name": "far", "nodeSelector": zone("b")},
    ]);
    let each =
        with(slice("s", "n", each), json!({"spec": {"nodeName": null, "perDeviceNodeSelection": true}}));
    for (what, slice, expected) in [
        ("its own", drawn("s", &["a"]), 1),
        ("that of another node", slice("s", "m", json!([{"name": "a"}])), 0),
        ("its zone", in_zone("a"), 1),
        ("another zone", in_zone("b"), 0),
        ("all nodes", of_all, 1),
        ("each device for itself", each, 3),
        ("a pool that is not whole", stale, 1),
    ] {
        assert_eq!(totals(&[slice], &[], &[]).0, expected, "{what}");
    }
}

#[test]
fn devices_count_that_all_selectors_select_and_none_if_one_has_no_answer() {
    let slices = [drawn("n", &["a mem=4 gen:v5", "b mem=8 gen:v5", "c mem=8 gen:v6"])];
    let (v5, large) =
        ("device.attributes['d'].gen == 'v5'", "device.capacity['d'].mem.compareTo(quantity('8')) >= 0");
    let some = "device.attributes['d'].other == 'v5'";
    for (selectors, expected) in [
        (&[v5][..], (2, 1)),
        (&[large], (2, 1)),
        (&[v5, large], (1, 1)),
        (&["device.driver == 'e'"], (0, 0)),
        (&["device.driver == 'e'", some], (0, 0)),
        (&[some], (0, 0)),
        (&["no expression"], (0, 0)),
    ] {
        assert_eq!(totals(&slices, &[used("b")], selectors), expected, "{selectors:?}");
    }
}
