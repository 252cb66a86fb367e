//! Pools, generations, nodes, counters.

use serde_json::{Value, json};

use super::{all, allocate, claim, devices, found, request, slice, used, with};

fn one() -> Value {
    claim("x", json!([request("r", 1)]))
}

fn pool(generation: i64, count: i64) -> Value {
    json!({"spec": {"pool": {"generation": generation, "resourceSliceCount": count}}})
}

#[test]
fn only_the_newest_generation_of_a_whole_pool_counts() {
    let (a, b) = (json!([{"name": "a"}]), json!([{"name": "b"}]));
    for (what, slices, wanted) in [
        ("no slices", vec![], "none"),
        ("another node", vec![slice("s", "other", a.clone())], "none"),
        (
            "two slices",
            vec![with(slice("t", "n", a.clone()), pool(1, 2)), with(slice("s", "n", b.clone()), pool(1, 2))],
            "r=b",
        ),
        ("an old one", vec![slice("s", "n", a.clone()), with(slice("t", "n", b.clone()), pool(2, 1))], "r=b"),
        ("a part is missing", vec![with(slice("s", "n", a.clone()), pool(1, 2))], "none"),
        (
            "the rest is for another node",
            vec![
                with(slice("s", "n", a.clone()), pool(1, 2)),
                with(
                    slice("t", "o", b.clone()),
                    json!({"spec": {"pool": {"name": "n", "generation": 1, "resourceSliceCount": 2}}}),
                ),
            ],
            "r=a",
        ),
        (
            "a newer one is for another node",
            vec![
                with(slice("s", "n", a.clone()), pool(1, 2)),
                with(
                    slice("t", "o", b.clone()),
                    json!({"spec": {"pool": {"name": "n", "generation": 2, "resourceSliceCount": 1}}}),
                ),
            ],
            "none",
        ),
        (
            "two devices of one name",
            vec![slice("s", "n", json!([{"name": "a"}, {"name": "a"}]))],
            "invalid resource pools were encountered",
        ),
        (
            "another pool is invalid",
            vec![
                slice("s", "n", json!([{"name": "a"}, {"name": "a"}])),
                with(slice("t", "n", b.clone()), json!({"spec": {"driver": "e"}})),
            ],
            "r=b",
        ),
    ] {
        assert_eq!(found(&slices, &[], &[one()]), wanted, "{what}");
    }
    let whole = claim("x", json!([{"name": "r", "exactly": all()}]));
    let missing = found(&[with(slice("s", "n", a.clone()), pool(1, 2))], &[], std::slice::from_ref(&whole));
    assert_eq!(
        missing,
        "claim ns/x, request r: asks for all devices, but resource pool d/n is currently being updated"
    );
    let twice = found(&[slice("s", "n", json!([{"name": "a"}, {"name": "a"}]))], &[], &[whole]);
    assert_eq!(
        twice,
        "claim ns/x, request r: asks for all devices, but resource pool d/n is currently invalid"
    );
}

#[test]
fn pools_are_ordered_by_driver_and_name_and_those_to_prepare_come_last() {
    let of = |driver: &str, pool: &str, device: Value| {
        with(
            slice(&format!("{driver}{pool}"), "n", json!([device])),
            json!({"spec": {"driver": driver, "pool": {"name": pool}}}),
        )
    };
    let plain = |name: &str| json!({"name": name});
    let slices = [of("d", "q", plain("b")), of("e", "a", plain("c")), of("d", "p", plain("a"))];
    assert_eq!(found(&slices, &[], &[claim("x", json!([request("r", 3)]))]), "r=a r=b r=c");
    let slow = json!({"name": "a", "bindingConditions": ["ready"]});
    let slices = [of("d", "p", slow), of("e", "a", plain("c"))];
    assert_eq!(found(&slices, &[], &[claim("x", json!([request("r", 2)]))]), "r=c r=a");
    let result = allocate(&devices(&slices, &[]), &[claim("x", json!([request("r", 2)]))]).unwrap().unwrap();
    let results = result[0].devices.as_ref().unwrap().results.as_ref().unwrap();
    assert_eq!(results[1].binding_conditions.as_deref(), Some(["ready".to_owned()].as_slice()));
}

#[test]
fn devices_beside_the_node_say_which_nodes_can_use_them() {
    let at = |place: Value| {
        with(
            with(slice("s", "n", json!([{"name": "a"}])), json!({"spec": {"nodeName": null}})),
            json!({"spec": place}),
        )
    };
    let zone = |zone: &str| json!({"nodeSelectorTerms": [{"matchExpressions": [{"key": "zone", "operator": "In", "values": [zone]}]}]});
    let each = |device: Value| {
        with(
            at(json!({"perDeviceNodeSelection": true})),
            json!({"spec": {"devices": [device, {"name": "z", "nodeName": "other"}]}}),
        )
    };
    for (what, slice, wanted, selector) in [
        ("all nodes", at(json!({"allNodes": true})), "r=a", Value::Null),
        ("its zone", at(json!({"nodeSelector": zone("a")})), "r=a", zone("a")),
        ("another zone", at(json!({"nodeSelector": zone("b")})), "none", Value::Null),
        ("nothing known", at(json!({})), "none", Value::Null),
        ("a device of all", each(json!({"name": "a", "allNodes": true})), "r=a", Value::Null),
        ("a device of its zone", each(json!({"name": "a", "nodeSelector": zone("a")})), "r=a", zone("a")),
        (
            "a device of another zone",
            each(json!({"name": "a", "nodeSelector": zone("b")})),
            "none",
            Value::Null,
        ),
        ("a device of another node", each(json!({"name": "a", "nodeName": "o"})), "none", Value::Null),
    ] {
        let slices = [slice];
        assert_eq!(found(&slices, &[], &[one()]), wanted, "{what}");
        if wanted == "r=a" {
            let result = allocate(&devices(&slices, &[]), &[one()]).unwrap().unwrap();
            assert_eq!(json!(result[0].node_selector), selector, "{what}");
        }
    }
    let bound = at(json!({"allNodes": true, "devices": [{"name": "a", "bindsToNode": true}]}));
    let result = allocate(&devices(&[bound], &[]), &[one()]).unwrap().unwrap();
    assert!(result[0].node_selector.is_some(), "the claim stays on its node");
}

/// Returns the slices of a pool whose devices take parts of 4 units of `set`.
fn partitions(parts: &[(&str, i64)]) -> [Value; 2] {
    let taken = |(name, amount): &(&str, i64)| json!({"name": name, "consumesCounters": [{"counterSet": "set", "counters": {"units": {"value": amount.to_string()}}}]});
    let devices: Vec<Value> = parts.iter().map(taken).collect();
    let set = json!([{"name": "set", "counters": {"units": {"value": "4"}, "others": {"value": "1"}}}]);
    [
        with(slice("s", "n", Value::Null), with(pool(1, 2), json!({"spec": {"sharedCounters": set}}))),
        with(slice("t", "n", json!(devices)), pool(1, 2)),
    ]
}

#[test]
fn partitions_share_what_the_counters_of_their_pool_have() {
    let parts = partitions(&[("whole", 4), ("half", 2), ("other", 2), ("third", 2)]);
    for (what, uses, count, wanted) in [
        ("one", vec![], 1, "r=whole"),
        ("two", vec![], 2, "r=half r=other"),
        ("three", vec![], 3, "none"),
        ("a half is in use", vec![used("half")], 1, "r=other"),
        ("the whole is in use", vec![used("whole")], 1, "none"),
        ("more than there is", vec![used("whole"), used("half")], 1, "none"),
    ] {
        let claims = [claim("x", json!([request("r", count)]))];
        assert_eq!(found(&parts, &uses, &claims), wanted, "{what}");
    }
    let [counters, partitions] = parts;
    let broken = |fields: Value| [with(counters.clone(), fields), partitions.clone()];
    let invalid = "invalid resource pools were encountered";
    let renamed =
        json!({"spec": {"sharedCounters": [{"name": "else", "counters": {"units": {"value": "4"}}}]}});
    assert_eq!(found(&broken(renamed), &[], &[one()]), invalid, "an unknown set");
    let without =
        json!({"spec": {"sharedCounters": [{"name": "set", "counters": {"else": {"value": "4"}}}]}});
    assert_eq!(found(&broken(without), &[], &[one()]), invalid, "an unknown counter");
    let set = json!({"name": "set", "counters": {"units": {"value": "4"}}});
    let twice = json!({"spec": {"sharedCounters": [set.clone(), set]}});
    assert_eq!(found(&broken(twice), &[], &[one()]), invalid, "two sets of one name");
}

/// Returns fields of a slice: the name of its pool, the pool's generation and number of slices, and counters.
fn of_pool(generation: i64, count: i64, counters: Value) -> Value {
    let pool = json!({"name": "n", "generation": generation, "resourceSliceCount": count});
    json!({"spec": {"pool": pool, "sharedCounters": counters}})
}

#[test]
fn slices_of_another_node_hide_no_devices() {
    let (a, b) = (json!([{"name": "a"}]), json!([{"name": "b"}]));
    let set = json!([{"name": "set", "counters": {"units": {"value": "4"}}}]);
    let of_zone = json!({"nodeName": null, "nodeSelector": {"nodeSelectorTerms":
        [{"matchExpressions": [{"key": "zone", "operator": "In", "values": ["a"]}]}]}});
    let elsewhere = json!({"nodeName": null, "nodeSelector": {"nodeSelectorTerms":
        [{"matchExpressions": [{"key": "zone", "operator": "In", "values": ["b"]}]}]}});
    let by_node = vec![slice("s", "n", a.clone())];
    let by_zone = vec![
        with(with(slice("s", "n", a.clone()), json!({"spec": of_zone})), pool(1, 2)),
        with(with(slice("t", "n", b), json!({"spec": elsewhere})), pool(1, 2)),
    ];
    let partitioned = partitions(&[("a", 4)]).to_vec();
    let covers = json!([{"name": "b", "consumesCounters": [{"counterSet": "none", "counters": {"units": {"value": "1"}}}]}]);
    let attacks = [
        ("newest with counters", slice("z", "other", Value::Null), of_pool(i64::MAX, 1, set.clone())),
        ("newest with devices", slice("z", "other", a.clone()), of_pool(i64::MAX, 1, Value::Null)),
        ("same with counters", slice("z", "other", Value::Null), of_pool(1, 1, set)),
        ("same with devices", slice("z", "other", a.clone()), of_pool(1, 1, Value::Null)),
        ("same with counters that do not exist", slice("z", "other", covers), of_pool(1, 1, Value::Null)),
        ("same with another number of slices", slice("z", "other", a), of_pool(1, 9, Value::Null)),
    ];
    let pools = [("node", by_node), ("zone", by_zone), ("parts", partitioned)];
    for (what, slices) in &pools {
        assert_eq!(found(slices, &[], &[one()]), "r=a", "{what}");
        for (attack, slice, fields) in &attacks {
            let mut slices = slices.clone();
            slices.push(with(slice.clone(), fields.clone()));
            assert_eq!(found(&slices, &[], &[one()]), "r=a", "{what}: {attack}");
        }
    }
    // A broken pool of another node does not keep requests for all devices from this one's.
    let twice = json!([{"name": "set", "counters": {}}, {"name": "set", "counters": {}}]);
    let fields = with(of_pool(1, 1, twice), json!({"spec": {"pool": {"name": "z"}}}));
    let slices = [slice("s", "n", json!([{"name": "a"}])), with(slice("z", "other", Value::Null), fields)];
    let whole = claim("x", json!([{"name": "r", "exactly": all()}]));
    assert_eq!(found(&slices, &[], &[whole]), "r=a");
}
