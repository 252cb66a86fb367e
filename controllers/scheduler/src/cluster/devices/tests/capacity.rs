//! Devices that several claims can have.

use serde_json::{Value, json};

use super::{allocate, claim, devices, found, request, slice, used, with};

fn shared(name: &str, capacity: Value) -> Value {
    json!({"name": name, "allowMultipleAllocations": true, "capacity": {"bw": capacity}})
}

fn wants(amount: Option<&str>) -> Value {
    let requests = amount.map_or(json!({}), |amount| json!({"bw": amount}));
    with(request("r", 1), json!({"exactly": {"capacity": {"requests": requests}}}))
}

/// Returns the capacity that a request takes of a device with a policy; `none` if it gets none.
fn taken(capacity: Value, amount: Option<&str>) -> String {
    let devices = devices(&[slice("s", "n", json!([shared("a", capacity)]))], &[]);
    match allocate(&devices, &[claim("x", json!([wants(amount)]))]) {
        Ok(Some(results)) => {
            let results = results[0].devices.as_ref().unwrap().results.as_ref().unwrap();
            results[0].consumed_capacity.as_ref().map_or("nothing".to_owned(), |all| all["bw"].0.clone())
        }
        Ok(None) => "none".to_owned(),
        Err(why) => why,
    }
}

#[test]
fn policies_round_what_is_taken() {
    let plain = json!({"value": "10"});
    let range = json!({"value": "10", "requestPolicy": {"default": "2", "validRange": {"min": "2", "max": "8", "step": "3"}}});
    let open = json!({"value": "10", "requestPolicy": {"default": "2", "validRange": {"min": "2"}}});
    let values = json!({"value": "10", "requestPolicy": {"default": "2", "validValues": ["2", "4", "8"]}});
    let zero =
        json!({"value": "10", "requestPolicy": {"default": "0", "validRange": {"min": "0", "max": "4"}}});
    for (capacity, amount, wanted) in [
        (&plain, None, "10"),
        (&plain, Some("3"), "3"),
        (&plain, Some("11"), "none"),
        (&range, None, "2"),
        (&range, Some("1"), "2"),
        (&range, Some("5"), "5"),
        (&range, Some("6"), "8"),
        (&range, Some("9"), "none"),
        (&open, Some("7"), "7"),
        (&values, None, "2"),
        (&values, Some("3"), "4"),
        (&values, Some("8"), "8"),
        (&values, Some("9"), "none"),
        (&zero, None, "0"),
        (&zero, Some("5"), "none"),
    ] {
        assert_eq!(taken(capacity.clone(), amount), wanted, "{capacity} {amount:?}");
    }
}

#[test]
fn shares_of_a_device_are_summed_up() {
    let slices =
        [slice("s", "n", json!([shared("a", json!({"value": "10"})), shared("b", json!({"value": "10"}))]))];
    let share = |amount: &str| json!([{"request": "r", "driver": "d", "pool": "n", "device": "a", "shareID": "i", "consumedCapacity": {"bw": amount}}]);
    let claims = |amounts: &[&str]| -> Vec<Value> {
        let of = |(index, amount): (usize, &&str)| claim(&format!("x{index}"), json!([wants(Some(amount))]));
        amounts.iter().enumerate().map(of).collect()
    };
    for (what, uses, amounts, wanted) in [
        ("nobody has any", vec![], vec!["4"], "r=a"),
        ("what is left is enough", vec![share("6")], vec!["4"], "r=a"),
        ("what is left is not", vec![share("6")], vec!["5"], "r=b"),
        ("two shares", vec![share("3"), share("3")], vec!["5"], "r=b"),
        ("two claims", vec![], vec!["4", "6"], "r=a | r=a"),
        ("two claims that need two", vec![], vec!["4", "7"], "r=a | r=b"),
        ("three claims", vec![], vec!["8", "8", "8"], "none"),
        ("somebody has it alone", vec![used("a")], vec!["4"], "r=b"),
    ] {
        assert_eq!(found(&slices, &uses, &claims(&amounts)), wanted, "{what}");
    }
    let unknown = with(request("r", 1), json!({"exactly": {"capacity": {"requests": {"other": "1"}}}}));
    assert_eq!(found(&slices, &[], &[claim("x", json!([unknown]))]), "none");
    let alone = [slice(
        "s",
        "n",
        json!([{"name": "a", "capacity": {"bw": {"value": "4"}}}, {"name": "b", "capacity": {"bw": {"value": "8"}}}]),
    )];
    assert_eq!(found(&alone, &[], &claims(&["5"])), "r=b", "devices for one must be large enough too");
}
