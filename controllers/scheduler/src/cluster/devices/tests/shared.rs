//! Devices that several claims can have, with whole pools, alternatives and constraints.

use serde_json::{Value, json};

use super::combined::counted;
use super::{asking, drawn, found, used};

/// Returns a use of so much `bw` of a device by another claim.
fn share(device: &str, amount: &str) -> Value {
    json!([{"request": "r", "driver": "d", "pool": "n", "device": device, "shareID": "i", "consumedCapacity": {"bw": amount}}])
}

fn get(lines: &[&str], uses: &[Value], claims: &[&str]) -> String {
    found(&[drawn("n", lines)], uses, &asking(claims))
}

#[test]
fn claims_without_an_amount_take_all_of_a_device() {
    let (one, two) = (&["a bw=1 shared"], &["a bw=1 shared", "b bw=1 shared"]);
    assert_eq!(get(&["a shared"], &[], &["r:shared", "r:shared"]), "r=a | r=a", "it has no capacity");
    assert_eq!(get(two, &[], &["r:shared", "r:shared"]), "r=a | r=b", "all of it");
    assert_eq!(get(one, &[], &["r:shared", "r:shared"]), "none");
    assert_eq!(get(&["a bw=2 shared"], &[], &["r:shared bw=1", "r:shared bw=1"]), "r=a | r=a");
    assert_eq!(get(&["a bw=2 shared"], &[share("a", "2")], &["r:shared bw=2"]), "none", "nothing is left");
}

#[test]
fn all_devices_are_those_that_have_the_capacity() {
    let (equal, unequal) = (&["a bw=1 shared", "b bw=1 shared"], &["a bw=2 shared", "b bw=1 shared"]);
    assert_eq!(get(&["a other=1 shared"], &[], &["r*all:shared bw=1"]), "none", "no device has it");
    assert_eq!(get(&["a bw=2 shared", "b shared"], &[], &["r*all:shared bw=2"]), "r=a", "one has none");
    assert_eq!(get(unequal, &[], &["r*all:shared bw=2"]), "r=a", "one has too little");
    assert_eq!(get(unequal, &[], &["r bw=1; s*all bw=1"]), "r=a s=a s=b", "what the other request leaves");
    assert_eq!(get(unequal, &[share("a", "1")], &["r*all bw=1"]), "r=a r=b", "what others leave");
    assert_eq!(get(equal, &[], &["r bw=1; s*all bw=1"]), "none", "the other request leaves too little");
    assert_eq!(get(equal, &[share("a", "1")], &["r*all bw=1"]), "r=b", "others leave nothing of one");
}

#[test]
fn devices_for_one_claim_are_not_shared() {
    let single = &["a bw=2"];
    assert_eq!(get(single, &[], &["r:whole bw=1"]), "r=a");
    assert_eq!(get(single, &[], &["r:whole bw=1", "r:whole bw=1"]), "none");
    assert_eq!(get(&["a bw=1 shared"], &[], &["r:whole bw=1"]), "none", "the class wants no shared ones");
    assert_eq!(get(&["a bw=2 shared"], &[used("a")], &["r:shared bw=1"]), "none", "somebody has it alone");
    assert_eq!(get(single, &[share("a", "1")], &["r:shared bw=1"]), "none", "it was shared before");
}

#[test]
fn shares_give_way_to_other_requests() {
    let lines = &["b bw=2 shared colour:red", "a bw=4 shared colour:blue"];
    let mut claims = asking(&["r bw=2; s bw=2", "r bw=2"]);
    claims[0]["spec"]["devices"]["constraints"] = json!([{"matchAttribute": "d/colour"}]);
    assert_eq!(found(&[drawn("n", lines)], &[], &claims), "r=a s=a | r=b", "equal colours");
    let alternatives = "r / s:shared bw=4 / t:shared bw=2 / u:shared";
    assert_eq!(get(&["a bw=2 shared"], &[], &[alternatives]), "r/t=a");
    let distinct = |count: usize, claim: &str| {
        let lines = ["a bw=4 shared colour:red", "b bw=4 shared colour:blue"];
        let mut claims = asking(&[claim]);
        claims[0]["spec"]["devices"]["constraints"] = json!([{"distinctAttribute": "d/colour"}]);
        found(&[drawn("n", &lines[..count])], &[], &claims)
    };
    assert_eq!(distinct(1, "r bw=1; s bw=1"), "none", "a device is not distinct from itself");
    assert_eq!(distinct(2, "r bw=1; s bw=1"), "r=a s=b");
    assert_eq!(distinct(2, "r / t bw=9 / u bw=1; s bw=1"), "r/u=a s=b", "alternatives");
}

#[test]
fn shared_devices_take_of_the_counters_of_their_pool_once() {
    let get = |lines: &[&str], units: i64, uses: &[Value], claim: &str| {
        found(&counted("n", lines, &[("units", units)]), uses, &asking(&[claim]))
    };
    let parts = &["a mem=4 units-4 shared", "b mem=6 units-6 shared", "c mem=4 units-4 shared"];
    let alternatives = "r:shared; s / t:shared if mem>=6 / u:shared if mem>=4";
    assert_eq!(get(parts, 8, &[], alternatives), "r=a s/u=c");
    let modes = &["a bw=1 gen:x units-1 shared", "b bw=1 gen:y units-1 shared"];
    assert_eq!(get(modes, 1, &[share("a", "1")], "r:shared bw=1 if gen==y"), "none", "the other has them");
    assert_eq!(get(modes, 2, &[share("a", "1")], "r:shared bw=1 if gen==y"), "r=b");
    let amounts = &["a bw=2 units-2 shared", "b bw=4 units-4 shared", "c bw=2 units-2 shared"];
    let three = "r bw=1; q bw=2; s / t bw=1 if bw>=4 / u bw=1 if bw>=2";
    assert_eq!(get(amounts, 4, &[], three), "r=a q=c s/u=a");
}
