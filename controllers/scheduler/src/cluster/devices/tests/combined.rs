//! Alternatives, whole pools, taints, conditions and counters, together.

use serde_json::{Value, json};

use super::{allocate, asking, devices, drawn, found, slice, used, with};

/// Purpose, the devices of the pool `n`, those that are in use, the claims, and the devices that they get.
type Row<'a> = (&'a str, &'a [&'a str], &'a [&'a str], &'a [&'a str], &'a str);

fn check(rows: &[Row<'_>]) {
    for (what, lines, uses, claims, wanted) in rows {
        let uses: Vec<Value> = uses.iter().map(|device| used(device)).collect();
        assert_eq!(found(&[drawn("n", lines)], &uses, &asking(claims)), *wanted, "{what}");
    }
}

#[test]
fn all_devices_and_single_ones_exclude_each_other() {
    let two = &["a", "b"];
    check(&[
        ("all after one", &["a"], &[], &["r", "r*all"], "none"),
        ("one after all", &["a"], &[], &["r*all", "r"], "none"),
        ("watched by an administrator", two, &["a"], &["r*all admin"], "r=a r=b"),
        ("two, one in use, for an administrator", two, &["a"], &["r*2 admin"], "r=a r=b"),
        ("twice for an administrator", two, &[], &["r admin; s*all admin"], "none"),
        ("what another claim has just got", two, &[], &["r", "r admin"], "r=a | r=a"),
        ("one of the devices is tainted", &["a", "b tainted"], &[], &["r*all"], "none"),
        (
            "the selector fails",
            two,
            &[],
            &["r*all:broken"],
            "class broken: selector #0: CEL runtime error: no such key: none",
        ),
        (
            "that of one device fails",
            two,
            &[],
            &["r:broken"],
            "class broken: selector #0: CEL runtime error: no such key: none",
        ),
    ]);
}

#[test]
fn alternatives_give_way_to_later_ones() {
    let sizes = &["a mem=2", "b mem=2", "c mem=1"];
    let other = "r / s*all if device.driver == 'e' / t";
    check(&[
        ("all of nothing", &["a"], &[], &[other], "r/t=a"),
        ("all, but one is in use", &["a", "b"], &["b"], &["r / s*all / t"], "r/t=a"),
        ("all, but another request has one", &["a", "b"], &[], &["q; r / s*all / t"], "q=a r/t=b"),
        ("conditions", sizes, &[], &["q if mem>=1; r / s if mem>=4 / t*2 if mem>=2"], "q=c r/t=a r/t=b"),
        (
            "what another request needs",
            &["a mem=8", "b mem=4"],
            &[],
            &["q if mem>=8; r / s if mem>=8 / t if mem>=4"],
            "q=a r/t=b",
        ),
        ("all of one generation", &["a gen:v5"], &[], &["r / s*all if gen==v6 / t*all if gen==v5"], "r/t=a"),
        (
            "of a class",
            &["a gen:v6", "b gen:v5", "c gen:v5 shared"],
            &[],
            &["r / s*all:shared if gen==v6 / t*all:shared if gen==v5"],
            "r/t=c",
        ),
        ("none is left", &["a tainted"], &[], &["r / s if device.driver == 'e' / t"], "none"),
        ("one that tolerates", &["a tainted", "b doomed"], &[], &["r / s / t tolerates"], "r/t=b"),
    ]);
    let generations = "r / s*all if gen==v6 / t*all if gen==v5";
    let (one, two) = (drawn("n", &["a gen:v5"]), drawn("m", &["b gen:v5"]));
    assert_eq!(
        found(&[one.clone(), two.clone()], &[], &asking(&[generations])),
        "r/t=b r/t=a",
        "of all pools"
    );
    let elsewhere = with(drawn("m", &["b gen:v5", "c gen:v6"]), json!({"spec": {"nodeName": "other"}}));
    assert_eq!(found(&[one, elsewhere], &[], &asking(&[generations])), "r/t=a", "of this node");
}

#[test]
fn taints_keep_from_all_devices_that_are_not_tolerated() {
    let two = &["a tainted", "b doomed"];
    check(&[
        ("both are tainted", two, &[], &["r"], "none"),
        ("one is tolerated", two, &[], &["r tolerates"], "r=b"),
        ("administrators tolerate nothing", &["a tainted"], &["a"], &["r admin"], "none"),
    ]);
}

#[test]
fn claims_get_up_to_32_devices() {
    let names: Vec<String> = (10..74).map(|index| format!("d{index}")).collect();
    let lines: Vec<&str> = names.iter().map(String::as_str).collect();
    let got = |lines: &[&str], claim: &str| found(&[drawn("n", lines)], &[], &asking(&[claim]));
    let all = |request: &str, names: &[String]| -> String {
        names.iter().map(|name| format!("{request}={name}")).collect::<Vec<_>>().join(" ")
    };
    assert_eq!(found(&[], &[], &asking(&["r*32"])), "none", "as many may be asked for");
    assert_eq!(got(&lines[..32], "r*32"), all("r", &names[..32]));
    let limit = "claim ns/x0: number of requested devices 33 exceeds the claim limit of 32";
    assert_eq!(got(&lines, "r*32; s"), limit, "two requests");
    let both = got(&lines, "r / a*32 / b*16; s / a*32 / b*16");
    assert_eq!(both, format!("{} {}", all("r/b", &names[..16]), all("s/b", &names[16..32])));
    let others = with(drawn("o", &["x", "y"]), json!({"spec": {"driver": "e"}}));
    let claims = asking(&[
        "r / a*all if device.driver == 'd' / b*2 if device.driver == 'd'; s*2 if device.driver == 'e'",
    ]);
    let slices = [drawn("n", &lines[..31]), others];
    assert_eq!(
        found(&slices, &[], &claims),
        format!("{} s=x s=y", all("r/b", &names[..2])),
        "all are too many"
    );
}

#[test]
fn first_choices_are_taken_back_until_all_constraints_are_met() {
    let lines = ["a v:1 colour:red", "b v:2 colour:blue", "c v:3 colour:blue"];
    let constraints = json!([{"requests": ["r"], "matchAttribute": "d/v"}, {"matchAttribute": "d/colour"}]);
    let mut claims = asking(&["r; s"]);
    claims[0]["spec"]["devices"]["constraints"] = constraints;
    assert_eq!(found(&[drawn("n", &lines)], &[], &claims), "r=b s=c");
}

#[test]
fn allocations_say_where_all_their_devices_can_be_used() {
    let placed = |name: &str, place: Value| {
        with(with(drawn(name, &["a"]), json!({"spec": {"nodeName": null}})), json!({"spec": place}))
    };
    let expression = json!({"key": "zone", "operator": "In", "values": ["a"]});
    let field = json!({"key": "metadata.name", "operator": "In", "values": ["n"]});
    let zone =
        placed("p", json!({"nodeSelector": {"nodeSelectorTerms": [{"matchExpressions": [expression]}]}}));
    let named = placed("q", json!({"nodeSelector": {"nodeSelectorTerms": [{"matchFields": [field]}]}}));
    let everywhere = placed("o", json!({"allNodes": true}));
    let selector = |slices: &[Value], count: usize| {
        let request = format!("r*{count}");
        let result = allocate(&devices(slices, &[]), &asking(&[&request])).unwrap().unwrap();
        json!(result[0].node_selector)["nodeSelectorTerms"].clone()
    };
    let network = [zone.clone(), named, everywhere];
    assert_eq!(selector(&network, 3), json!([{"matchExpressions": [expression], "matchFields": [field]}]));
    let local = [zone, drawn("n", &["b"])];
    assert_eq!(selector(&local, 2), json!([{"matchFields": [field]}]), "a device of the node itself");
}

#[test]
fn configurations_are_those_of_the_requests_that_got_devices() {
    let config = |lines: &[&str], claim: &str, of_claim: Value| {
        let mut claims = asking(&[claim]);
        claims[0]["spec"]["devices"]["config"] = of_claim;
        let result = allocate(&devices(&[drawn("n", lines)], &[]), &claims).unwrap().unwrap();
        json!(result[0])["devices"]["config"].clone()
    };
    let of_class = |requests: &[&str]| json!([{"source": "FromClass", "requests": requests, "opaque": {"driver": "d", "parameters": {"of": "class"}}}]);
    let three = &["a", "b", "c"];
    assert_eq!(config(three, "r:configured", json!([])), of_class(&["r"]));
    let several = config(three, "r:configured; s:configured; t", json!([]));
    let requests: Vec<&Value> =
        several.as_array().unwrap().iter().flat_map(|one| one["requests"].as_array().unwrap()).collect();
    assert_eq!(requests, ["r", "s"], "the class of the third has none");
    assert_eq!(config(three, "r / s*9:configured / t*2:configured", json!([])), of_class(&["r/t"]));
    let opaque = |which: &str| json!({"requests": [format!("r/{which}")], "opaque": {"driver": "d", "parameters": {"of": which}}});
    let chosen = config(three, "r / s*9 / t*2", json!([opaque("s"), opaque("t")]));
    let expected = with(json!({"source": "FromClaim"}), opaque("t"));
    assert_eq!(chosen, json!([expected]));
}

/// Returns the slices of a pool with these devices, and with so many units of each counter of `set`.
pub(super) fn counted(name: &str, lines: &[&str], counters: &[(&str, i64)]) -> [Value; 2] {
    let pool = json!({"spec": {"pool": {"resourceSliceCount": 2}}});
    let value = |(name, amount): &(&str, i64)| ((*name).to_owned(), json!({"value": amount.to_string()}));
    let counters = Value::Object(counters.iter().map(value).collect());
    let set =
        json!({"spec": {"sharedCounters": [{"name": "set", "counters": counters}], "pool": {"name": name}}});
    [
        with(drawn(name, lines), pool.clone()),
        with(with(slice(&format!("{name}-counters"), "n", Value::Null), set), pool),
    ]
}

#[test]
fn counters_bound_what_alternatives_and_pools_get() {
    let get = |slices: &[Value], uses: &[Value], claim: &str| found(slices, uses, &asking(&[claim]));
    let parts = ["a mem=4 units-4", "b mem=6 units-6", "c mem=4 units-4"];
    let alternatives = "r; s / t if mem>=6 / u if mem>=4";
    assert_eq!(get(&counted("n", &parts, &[("units", 8)]), &[], alternatives), "r=a s/u=c");
    assert_eq!(get(&counted("n", &parts, &[("units", 18)]), &[], alternatives), "r=a s/t=b");
    assert_eq!(get(&counted("n", &["a units-4"], &[("units", 8)]), &[], "r*all"), "r=a", "all of them");
    let two = ["a cpus-6 units-4", "b cpus-4 units-6", "c cpus-4 units-4"];
    let both = [("cpus", 8), ("units", 18)];
    assert_eq!(get(&counted("n", &two, &both), &[], "r; s"), "r=b s=c", "each counter has to suffice");
    let (n, m) = (counted("n", &two, &both), counted("m", &["d cpus-6", "e cpus-1", "f cpus-1"], &both));
    let slices = [n, m].concat();
    let in_m = json!([{"request": "r", "driver": "d", "pool": "m", "device": "d"}]);
    let uses = [used("b"), used("c"), in_m];
    assert_eq!(get(&slices, &uses, "r; s"), "r=e s=f", "each pool has its own");
    let special = ["a gen:x one-1", "b gen:y two-1", "c gen:z three-1"];
    let each = counted("n", &special, &[("one", 1), ("two", 1), ("three", 1)]);
    assert_eq!(get(&each, &[], "r*2; s if gen==x"), "r=b r=c s=a", "a later request needs the first");
    let [devices, _] = counted("n", &["a units-4"], &[("units", 8)]);
    let [_, foreign] = counted("m", &[], &[("units", 8)]);
    let whole = |slice: Value| with(slice, json!({"spec": {"pool": {"resourceSliceCount": 1}}}));
    let said = get(&[whole(devices), whole(foreign)], &[], "r");
    assert_eq!(said, "invalid resource pools were encountered", "counters of another pool");
}

#[test]
fn devices_of_a_pool_that_another_node_uses_take_of_its_counters() {
    let three = |slice: Value| with(slice, json!({"spec": {"pool": {"resourceSliceCount": 3}}}));
    let [devices, counters] = counted("n", &["a mem=6 units-6", "b mem=2 units-2"], &[("units", 8)]);
    let away = json!({"metadata": {"name": "away"}, "spec": {"nodeName": "other", "pool": {"name": "n"}}});
    let other = with(drawn("away", &["c units-6"]), away);
    let slices = [devices, counters, other].map(three);
    let claims = asking(&["r / s if mem>=6 / t if mem>=2"]);
    assert_eq!(found(&slices, &[], &claims), "r/s=a");
    assert_eq!(found(&slices, &[used("c")], &claims), "r/t=b");
}

#[test]
fn devices_to_prepare_come_with_their_conditions_and_in_the_order_of_slices() {
    let conditions = |slices: &[Value], request: &str| -> Vec<(String, bool)> {
        let result = allocate(&devices(slices, &[]), &asking(&[request])).unwrap().unwrap();
        let results = result[0].devices.as_ref().unwrap().results.as_ref().unwrap();
        results.iter().map(|one| (one.device.clone(), one.binding_conditions.is_some())).collect()
    };
    let shown = |list: &[(&str, bool)]| -> Vec<(String, bool)> {
        list.iter().map(|(name, slow)| ((*name).to_owned(), *slow)).collect()
    };
    let of = |lines: &[&str]| counted("n", lines, &[("units", 8)]);
    assert_eq!(conditions(&[drawn("n", &["a slow"])], "r"), shown(&[("a", true)]));
    let three = [drawn("n", &["a slow", "b slow", "c slow"])];
    assert_eq!(conditions(&three, "r*2; s"), shown(&[("a", true), ("b", true), ("c", true)]));
    assert_eq!(conditions(&[drawn("n", &["a", "b slow"])], "r; s"), shown(&[("a", false), ("b", true)]));
    assert_eq!(conditions(&of(&["a units-4 slow"]), "r"), shown(&[("a", true)]), "with counters");
    assert_eq!(
        conditions(&of(&["a units-4 slow", "b units-4 slow"]), "r*2"),
        shown(&[("a", true), ("b", true)])
    );
    let mixed = of(&["a units-2 slow", "b units-2", "c units-4 slow"]);
    assert_eq!(conditions(&mixed, "r*3"), shown(&[("a", true), ("b", false), ("c", true)]), "in one slice");
    let count = |slice: Value| with(slice, json!({"spec": {"pool": {"resourceSliceCount": 3}}}));
    let [slow, counters] = of(&["a units-4 slow"]);
    let fast = with(drawn("first", &["b units-4"]), json!({"spec": {"pool": {"name": "n"}}}));
    let slices = [slow, counters, fast].map(count);
    assert_eq!(conditions(&slices, "r*2"), shown(&[("b", false), ("a", true)]), "by the names of the slices");
    let tainted = of(&["a units-4 slow doomed", "b units-4"]);
    assert_eq!(found(&tainted, &[], &asking(&["r*2"])), "none");
    assert_eq!(conditions(&tainted, "r*2 tolerates"), shown(&[("a", true), ("b", false)]));
}

/// Returns the slice of a node with devices of the pool `n`, which has two slices of this generation.
fn part(node: &str, generation: i64, lines: &[&str]) -> Value {
    let name = format!("{node}-{generation}-{}", lines[0]);
    let pool = json!({"name": "n", "generation": generation, "resourceSliceCount": 2});
    with(drawn("n", lines), json!({"metadata": {"name": name}, "spec": {"nodeName": node, "pool": pool}}))
}

#[test]
fn pools_of_several_nodes_are_used_while_they_move() {
    let rows: &[(&str, &[Value], &str, &str)] = &[
        ("all of this node", &[part("n", 1, &["a"]), part("other", 1, &["b"])], "r*all", "r=a"),
        ("one of this node", &[part("n", 1, &["b"]), part("other", 1, &["a"])], "r", "r=b"),
        ("an old slice", &[part("n", 1, &["a"]), part("other", 2, &["b"])], "r", "none"),
        (
            "moved away",
            &[part("n", 1, &["a"]), part("n", 1, &["b"]), part("other", 2, &["a"]), part("other", 2, &["b"])],
            "r",
            "r=a",
        ),
        (
            "moved here",
            &[part("other", 1, &["a"]), part("other", 1, &["b"]), part("n", 2, &["a"]), part("n", 2, &["b"])],
            "r",
            "r=a",
        ),
        (
            "half moved away",
            &[part("n", 1, &["a"]), part("n", 1, &["b"]), part("other", 2, &["a"])],
            "r",
            "r=a",
        ),
        (
            "half moved here",
            &[part("other", 1, &["a"]), part("other", 1, &["b"]), part("n", 2, &["a"])],
            "r",
            "none",
        ),
        ("of one name", &[part("n", 1, &["a"]), part("n", 1, &["b", "a"]), drawn("m", &["c"])], "r", "r=c"),
    ];
    for (what, slices, request, wanted) in rows {
        assert_eq!(found(slices, &[], &asking(&[request])), *wanted, "{what}");
    }
    let in_use = json!([{"request": "r", "driver": "d", "pool": "m", "device": "c"}]);
    assert_eq!(
        found(rows.last().unwrap().1, &[in_use], &asking(&["r"])),
        "invalid resource pools were encountered"
    );
}

#[test]
fn all_choices_across_slices_and_pools_are_tried() {
    let whole = [drawn("n", &["a", "b", "c", "d"])];
    let slices = [part("n", 1, &["a", "b"]), part("n", 1, &["c", "d"])];
    let pools = [part("n", 1, &["a"]), part("n", 1, &["b"]), drawn("m", &["c", "d"])];
    let many = ["k", "l", "m", "n"].map(|name| drawn(name, &["a"]));
    for cluster in [&whole[..], &slices, &pools, &many] {
        assert_eq!(found(cluster, &[], &asking(&["r*5"])), "none");
        assert_ne!(found(cluster, &[], &asking(&["r*4"])), "none");
    }
    let two_and_x = asking(&["r*2; s if gen==x"]);
    assert_eq!(found(&[drawn("n", &["a gen:x", "b gen:y", "c gen:y"])], &[], &two_and_x), "r=b r=c s=a");
    let apart = [part("n", 1, &["a gen:x"]), part("n", 1, &["b gen:y"]), drawn("m", &["c gen:y slow"])];
    assert_eq!(found(&apart, &[], &two_and_x), "r=b r=c s=a", "what has to be prepared comes last");
    let alternatives = asking(&["r / s*3 if gen==y / t*2; u / v*2 / w if gen==x"]);
    let three = [drawn("n", &["a gen:x", "b gen:y", "c gen:y"])];
    assert_eq!(found(&three, &[], &alternatives), "r/t=b r/t=c u/w=a");
}
