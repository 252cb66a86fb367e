//! Requests, alternatives, constraints, taints.

use serde_json::{Value, json};

use super::{all, allocate, claim, devices, exactly, found, request, selector, slice, used, with};

/// Three devices: `a` and `b` of size 1, `c` of size 2; `a` of another colour than the others.
fn three() -> Value {
    let device = |name: &str, size: i64, colour: &str| {
        json!({"name": name, "attributes": {"size": {"int": size}, "colour": {"string": colour},
            "new": {"bool": size == 2}, "v": {"version": format!("{size}.0.0")}}})
    };
    slice("s", "n", json!([device("a", 1, "red"), device("b", 1, "blue"), device("c", 2, "blue")]))
}

fn big(name: &str) -> Value {
    json!({"name": name, "exactly": {"deviceClassName": "big", "allocationMode": "ExactCount", "count": 1}})
}

fn check(rows: &[(&str, Vec<Value>, Vec<Value>, &str)]) {
    for (what, uses, claims, wanted) in rows {
        assert_eq!(found(&[three()], uses, claims), *wanted, "{what}");
    }
}

#[test]
fn requests_get_the_first_devices_that_leave_some_for_the_others() {
    check(&[
        ("one", vec![], vec![claim("x", json!([request("r", 1)]))], "r=a"),
        ("no claims", vec![], vec![], ""),
        ("two of one request", vec![], vec![claim("x", json!([request("r", 2)]))], "r=a r=b"),
        ("more than there are", vec![], vec![claim("x", json!([request("r", 4)]))], "none"),
        ("one is in use", vec![used("a")], vec![claim("x", json!([request("r", 1)]))], "r=b"),
        (
            "all are in use",
            ["a", "b", "c"].map(used).into(),
            vec![claim("x", json!([request("r", 1)]))],
            "none",
        ),
        ("a class selects", vec![], vec![claim("x", json!([big("r")]))], "r=c"),
        ("the class has no more", vec![used("c")], vec![claim("x", json!([big("r")]))], "none"),
        (
            "an earlier request gives way",
            vec![used("b")],
            vec![claim("x", json!([request("r", 1), big("s")]))],
            "r=a s=c",
        ),
        (
            "a later request needs what an earlier one would take",
            vec![used("a"), used("b")],
            vec![claim("x", json!([request("r", 1), big("s")]))],
            "none",
        ),
        (
            "claims share nothing",
            vec![],
            vec![claim("x", json!([request("r", 1)])), claim("y", json!([request("r", 2)]))],
            "r=a | r=b r=c",
        ),
        (
            "an earlier claim gives way",
            vec![],
            vec![
                claim(
                    "x",
                    json!([with(
                        request("r", 1),
                        json!({"exactly": {"selectors": selector("device.attributes['d'].colour == 'blue'")}})
                    )]),
                ),
                claim(
                    "y",
                    json!([with(
                        request("r", 1),
                        json!({"exactly": {"selectors": selector("device.attributes['d'].size == 1 && device.attributes['d'].colour == 'blue'")}})
                    )]),
                ),
            ],
            "r=c | r=b",
        ),
    ]);
}

#[test]
fn all_devices_are_all_that_match_and_must_be_free() {
    let whole = |name: &str| claim("x", json!([{"name": name, "exactly": all()}]));
    let of_big = json!({"name": "s", "exactly": with(all(), json!({"deviceClassName": "big"}))});
    check(&[
        ("all", vec![], vec![whole("r")], "r=a r=b r=c"),
        ("one is in use", vec![used("b")], vec![whole("r")], "none"),
        ("those of a class", vec![used("b")], vec![claim("x", json!([of_big.clone()]))], "s=c"),
        (
            "with another request",
            vec![],
            vec![claim("x", json!([of_big.clone(), request("r", 2)]))],
            "s=c r=a r=b",
        ),
        ("after another request", vec![], vec![claim("x", json!([request("r", 2), of_big]))], "r=a r=b s=c"),
        (
            "nothing is left",
            vec![],
            vec![claim("x", json!([{"name": "s", "exactly": all()}, request("r", 1)]))],
            "none",
        ),
    ]);
    let nothing = found(&[slice("s", "n", json!([]))], &[], &[whole("r")]);
    assert_eq!(nothing, "none", "at least one device is wanted");
    assert_eq!(found(&[], &[], &[whole("r")]), "none");
}

#[test]
fn administrators_use_what_others_have_but_nothing_twice() {
    let admin =
        |name: &str, count: i64| with(request(name, count), json!({"exactly": {"adminAccess": true}}));
    check(&[
        ("in use", vec![used("a")], vec![claim("x", json!([admin("r", 1)]))], "r=a"),
        ("twice in a claim", vec![], vec![claim("x", json!([admin("r", 1), admin("s", 1)]))], "r=a s=b"),
        (
            "in two claims",
            vec![],
            vec![claim("x", json!([admin("r", 1)])), claim("y", json!([admin("r", 1)]))],
            "r=a | r=a",
        ),
        ("more than there are", vec![], vec![claim("x", json!([admin("r", 4)]))], "none"),
    ]);
    let watched = json!([{"request": "r", "driver": "d", "pool": "n", "device": "a", "adminAccess": true}]);
    let plain = claim("x", json!([request("r", 1)]));
    assert_eq!(found(&[three()], &[watched], &[plain]), "r=a", "who only watches takes nothing");
    let result = allocate(&devices(&[three()], &[]), &[claim("x", json!([admin("r", 1)]))]).unwrap().unwrap();
    let devices = result[0].devices.as_ref().unwrap();
    assert_eq!(devices.results.as_ref().unwrap()[0].admin_access, Some(true));
}

#[test]
fn the_first_alternative_counts_that_leads_to_a_solution() {
    let first = |alternatives: Value| json!({"name": "r", "firstAvailable": alternatives});
    let one = |name: &str, count: i64| with(exactly(count), json!({"name": name}));
    let large = json!({"name": "big", "deviceClassName": "big", "allocationMode": "ExactCount", "count": 1});
    let whole = with(all(), json!({"name": "all"}));
    let some = || first(json!([large.clone(), one("two", 2)]));
    check(&[
        ("the first", vec![], vec![claim("x", json!([some()]))], "r/big=c"),
        ("the second", vec![used("c")], vec![claim("x", json!([some()]))], "r/two=a r/two=b"),
        ("none", vec![used("c"), used("a")], vec![claim("x", json!([some()]))], "none"),
        (
            "a later request decides",
            vec![],
            vec![claim("x", json!([some(), with(big("s"), json!({}))]))],
            "r/two=a r/two=b s=c",
        ),
        (
            "all, but none is in use",
            vec![used("a")],
            vec![claim("x", json!([first(json!([whole, one("one", 1)]))]))],
            "r/one=b",
        ),
        (
            "too many in the first",
            vec![],
            vec![claim("x", json!([first(json!([one("many", 32), one("one", 1)])), request("s", 1)]))],
            "r/one=a s=b",
        ),
    ]);
}

#[test]
fn constraints_compare_attributes_of_devices() {
    let constrained = |count: i64, constraint: Value| {
        let requests = json!([request("r", 1), request("s", count)]);
        with(claim("x", requests), json!({"spec": {"devices": {"constraints": [constraint]}}}))
    };
    let by = |kind: &str, attribute: &str| json!({kind: format!("d/{attribute}")});
    check(&[
        ("equal texts", vec![], vec![constrained(1, by("matchAttribute", "colour"))], "r=b s=c"),
        ("equal numbers", vec![], vec![constrained(1, by("matchAttribute", "size"))], "r=a s=b"),
        ("equal flags", vec![], vec![constrained(1, by("matchAttribute", "new"))], "r=a s=b"),
        ("equal versions", vec![], vec![constrained(1, by("matchAttribute", "v"))], "r=a s=b"),
        ("too many", vec![], vec![constrained(2, by("matchAttribute", "colour"))], "none"),
        ("an attribute that no device has", vec![], vec![constrained(1, by("matchAttribute", "x"))], "none"),
        ("of another driver", vec![], vec![constrained(1, json!({"matchAttribute": "e/size"}))], "none"),
        (
            "one request alone",
            vec![],
            vec![constrained(2, json!({"matchAttribute": "d/colour", "requests": ["s"]}))],
            "r=a s=b s=c",
        ),
        ("other texts", vec![], vec![constrained(1, by("distinctAttribute", "colour"))], "r=a s=b"),
        ("other numbers", vec![], vec![constrained(1, by("distinctAttribute", "size"))], "r=a s=c"),
        ("no others", vec![used("c")], vec![constrained(1, by("distinctAttribute", "size"))], "none"),
        ("nothing to compare", vec![], vec![constrained(1, by("distinctAttribute", "x"))], "none"),
    ]);
    let whole = json!([{"name": "r", "exactly": all()}]);
    let of_all = with(
        claim("x", whole),
        json!({"spec": {"devices": {"constraints": [by("matchAttribute", "size")]}}}),
    );
    let why =
        "claim ns/x, request r: cannot add device d/n/c because a claim constraint would not be satisfied";
    assert_eq!(found(&[three()], &[], &[of_all]), why);
    let first = json!([{"name": "r", "firstAvailable": [with(exactly(2), json!({"name": "s"}))]}]);
    for (requests, wanted) in [("r", "r/s=b r/s=c"), ("r/s", "r/s=b r/s=c"), ("r/t", "r/s=a r/s=b")] {
        let constraint = json!({"matchAttribute": "d/colour", "requests": [requests]});
        let claim =
            with(claim("x", first.clone()), json!({"spec": {"devices": {"constraints": [constraint]}}}));
        assert_eq!(found(&[three()], &[], &[claim]), wanted, "{requests}");
    }
}

#[test]
fn taints_keep_requests_away_that_do_not_tolerate_them() {
    let taint = |key: &str, effect: &str| json!({"key": key, "value": "v", "effect": effect});
    let taken = |taints: Value, tolerations: Value| {
        let slice = slice("s", "n", json!([{"name": "a", "taints": taints}, {"name": "b"}]));
        let request = with(request("r", 1), json!({"exactly": {"tolerations": tolerations}}));
        found(&[slice], &[], &[claim("x", json!([request]))])
    };
    let two = json!([taint("k", "NoSchedule"), taint("l", "NoExecute")]);
    for (taints, tolerations, wanted) in [
        (json!([taint("k", "NoSchedule")]), json!([]), "r=b"),
        (json!([taint("k", "NoExecute")]), json!([]), "r=b"),
        (json!([taint("k", "None")]), json!([]), "r=a"),
        (json!([taint("k", "NoSchedule")]), json!([{"key": "k", "operator": "Exists"}]), "r=a"),
        (json!([taint("k", "NoSchedule")]), json!([{"key": "k", "operator": "Equal", "value": "v"}]), "r=a"),
        (json!([taint("k", "NoSchedule")]), json!([{"key": "k", "value": "w"}]), "r=b"),
        (json!([taint("k", "NoSchedule")]), json!([{"operator": "Exists", "effect": "NoExecute"}]), "r=b"),
        (json!([taint("k", "NoSchedule")]), json!([{"operator": "New"}]), "r=b"),
        (two.clone(), json!([{"key": "k", "operator": "Exists"}]), "r=b"),
        (two, json!([{"operator": "Exists"}]), "r=a"),
    ] {
        assert_eq!(taken(taints.clone(), tolerations.clone()), wanted, "{taints} {tolerations}");
    }
}

#[test]
fn claims_that_nobody_can_serve_say_why() {
    let text = |requests: Value| found(&[three()], &[], &[claim("x", requests)]);
    let exact = |fields: Value| json!([{"name": "r", "exactly": with(exactly(1), fields)}]);
    for (requests, wanted) in [
        (
            exact(json!({"deviceClassName": "no"})),
            "claim ns/x, request r: could not retrieve device class no: deviceclass.resource.k8s.io \"no\" not found",
        ),
        (
            exact(json!({"deviceClassName": ""})),
            "claim ns/x, request r: missing device class name (unsupported request type?)",
        ),
        (exact(json!({"allocationMode": "Some"})), "claim ns/x, request r: unsupported count mode Some"),
        (
            exact(json!({"selectors": [{}]})),
            "claim ns/x, request r, selector #0: CEL expression empty (unsupported selector type?)",
        ),
        (
            exact(json!({"count": 33})),
            "claim ns/x: number of requested devices 33 exceeds the claim limit of 32",
        ),
        (
            exact(json!({"selectors": selector("device.attributes['d'].none == 1")})),
            "claim ns/x: selector #0: CEL runtime error: no such key: none",
        ),
    ] {
        assert_eq!(text(requests.clone()), wanted, "{requests}");
    }
    assert!(
        text(exact(json!({"selectors": selector("device.")})))
            .starts_with("claim ns/x: selector #0: CEL compile error: ")
    );
    let unknown =
        with(claim("x", json!([request("r", 1)])), json!({"spec": {"devices": {"constraints": [{}]}}}));
    assert_eq!(
        found(&[three()], &[], &[unknown]),
        "claim ns/x, constraint #0: empty constraint (unsupported constraint type?)"
    );
    let names: Vec<Value> = (0..24).map(|index| json!({"name": format!("d{index}")})).collect();
    let hopeless = json!([
        request("r", 12),
        with(request("s", 1), json!({"exactly": {"selectors": selector("device.driver == 'other'")}}))
    ]);
    assert_eq!(found(&[slice("s", "n", json!(names))], &[], &[claim("x", hopeless)]), "too long");
}

#[test]
fn results_have_the_configuration_of_classes_and_claims() {
    let config = json!([
        {"opaque": {"driver": "d", "parameters": {"of": "all"}}},
        {"requests": ["s"], "opaque": {"driver": "d", "parameters": {"of": "s"}}},
        {"requests": ["none"], "opaque": {"driver": "d", "parameters": {}}},
    ]);
    let claim = with(
        claim("x", json!([request("r", 1), request("s", 1)])),
        json!({"spec": {"devices": {"config": config}}}),
    );
    let result = allocate(&devices(&[three()], &[]), &[claim]).unwrap().unwrap();
    let shown = json!(result[0]);
    assert_eq!(
        shown["devices"]["config"],
        json!([
            {"source": "FromClaim", "opaque": {"driver": "d", "parameters": {"of": "all"}}},
            {"source": "FromClaim", "requests": ["s"], "opaque": {"driver": "d", "parameters": {"of": "s"}}},
        ])
    );
    assert_eq!(
        shown["nodeSelector"],
        json!({"nodeSelectorTerms": [{"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n"]}]}]})
    );
}
