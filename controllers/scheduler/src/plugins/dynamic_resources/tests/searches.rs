//! Searches that fail or take long, and what is remembered of them.

use super::*;

#[test]
fn error_of_a_selector_makes_its_node_infeasible() {
    let mut cluster = two_nodes();
    add_slice(&mut cluster, "b", json!([{"name": "d0", "attributes": {"d/size": {"int": 2}}}]));
    let sized = json!([{"cel": {"expression": "device.attributes['d'].size == 2"}}]);
    let exactly = |class: &str| json!({"deviceClassName": class, "allocationMode": "ExactCount", "count": 1});
    let mut selecting = exactly("c");
    selecting["selectors"] = sized.clone();
    add_class(&mut cluster, json!({"metadata": {"name": "sized"}, "spec": {"selectors": sized}}));
    for (exactly, whose) in [(selecting, "claim default/x"), (exactly("sized"), "class sized")] {
        let requests = json!([{"name": "r", "exactly": exactly}]);
        add(&mut cluster, &claim("x", json!({"spec": {"devices": {"requests": requests}}})));
        let error = format!("{whose}: selector #0: CEL runtime error: no such key: size");
        assert_eq!(reason(&cluster, &user(&["x"]), "a"), error);
        assert_eq!(reason(&cluster, &user(&["x"]), "b"), "feasible", "another node is not concerned");
    }
}

#[test]
fn devices_that_were_promised_are_exhausted() {
    let mut cluster = two_nodes();
    ["x", "y", "z"].iter().for_each(|name| add(&mut cluster, &claim(name, json!({}))));
    let other = |name: &str, of: &str| {
        pod(name, json!({"spec": {"resourceClaims": [{"name": "r", "resourceClaimName": of}]}}))
    };
    reserve(&mut cluster, &other("q", "x"), 0).unwrap();
    assert_eq!(reason(&cluster, &user(&["z"]), "a"), "feasible", "one is left");
    reserve(&mut cluster, &other("s", "y"), 0).unwrap();
    assert_eq!(reason(&cluster, &user(&["z"]), "a"), "cannot allocate all claims");
    assert_eq!(reason(&cluster, &user(&["z"]), "b"), "feasible");
    plugin().unreserve(&other("s", "y"), &mut cluster);
    assert_eq!(reason(&cluster, &user(&["z"]), "a"), "feasible");
}

#[test]
fn searches_without_a_limit_go_on() {
    let mut cluster = two_nodes();
    let names: Vec<Value> = (0..1100).map(|index| json!({"name": format!("d{index}")})).collect();
    add_slice(&mut cluster, "a", json!(names));
    let none = json!([{"cel": {"expression": "device.driver == 'none'"}}]);
    let exactly =
        json!({"deviceClassName": "c", "allocationMode": "ExactCount", "count": 1, "selectors": none});
    add(
        &mut cluster,
        &claim("x", json!({"spec": {"devices": {"requests": [{"name": "r", "exactly": exactly}]}}})),
    );
    let said = |timeout: Duration| {
        let args = DynamicResourcesArgs { filter_timeout: timeout, ..Default::default() };
        cluster.devices.steps.reset();
        refusal(DynamicResources(args), &user(&["x"]), &cluster, "a").unwrap().message()
    };
    assert_eq!(said(Duration::from_millis(1)), "timed out trying to allocate devices");
    assert_eq!(said(Duration::ZERO), "cannot allocate all claims");
}

#[test]
fn searches_of_one_attempt_share_their_steps() {
    let mut cluster = two_nodes();
    let names: Vec<Value> = (0..100).map(|index| json!({"name": format!("d{index}")})).collect();
    add_slice(&mut cluster, "a", json!(names));
    let none = json!([{"cel": {"expression": "device.driver == 'none'"}}]);
    let exactly =
        json!({"deviceClassName": "c", "allocationMode": "ExactCount", "count": 1, "selectors": none});
    let requests = json!([{"name": "r", "exactly": exactly}]);
    add(&mut cluster, &claim("x", json!({"spec": {"devices": {"requests": requests}}})));
    add(&mut cluster, &claim("y", json!({})));
    let args = DynamicResourcesArgs { filter_timeout: Duration::from_millis(2), ..Default::default() };
    let ask = |cluster: &Cluster| refusal(DynamicResources(args), &user(&["x"]), cluster, "a").unwrap();
    // No verdict is remembered of a node that has changed.
    let ask_anew = |cluster: &mut Cluster| {
        cluster.set_node(labeled("a", json!({})));
        ask(cluster)
    };
    let now = || "2026-01-01T00:00:00Z".parse().unwrap();
    for _ in 0..2 {
        cluster.devices.begin(now());
        assert_eq!(ask_anew(&mut cluster).message(), "cannot allocate all claims");
        let taken = cluster.devices.steps.taken();
        // An attempt to evict pods asks again for each of them.
        assert_eq!(ask(&cluster).message(), "cannot allocate all claims");
        assert_eq!(cluster.devices.steps.taken(), taken, "what is known takes no step");
        let is_late = |why: Refusal| why.message() == "timed out trying to allocate devices";
        let asked = (0..40).find(|_| is_late(ask_anew(&mut cluster)));
        assert!(asked.is_some(), "40 searches fit into {args:?}");
        assert_eq!(ask(&cluster).code, Code::Unresolvable, "only a change helps");
    }
    // A node that was found with the last step can be reserved, but takes no more than a tenth of the steps.
    let reserved = |cluster: &mut Cluster| {
        DynamicResources(args).reserve(&user(&["y"]), NodeId::new(1), cluster).map(|plan| plan.is_some())
    };
    assert_eq!(reserved(&mut cluster), Ok(true));
    cluster.devices.unreserve(&user(&["y"]));
    cluster.devices.steps.take(1000);
    assert_eq!(reserved(&mut cluster).unwrap_err().message(), "timed out trying to allocate devices");
}

/// Compares verdicts that are remembered with those of claims that nobody has searched for before, over random changes of
/// claims, slices, classes and nodes.
#[test]
fn verdicts_that_are_remembered_are_those_of_a_new_search() {
    let names = ["a", "b", "c", "d"];
    let nodes: Vec<_> = names.iter().map(|name| labeled(name, json!({}))).collect();
    let mut cluster = cluster(&nodes, &[]);
    let devices = json!([{"name": "d0"}, {"name": "d1"}]);
    names.iter().for_each(|node| add_slice(&mut cluster, node, devices.clone()));
    add_class(&mut cluster, json!({"metadata": {"name": "c"}, "spec": {}}));
    let shared = |selector: Value| {
        let fields = json!([{"key": "pool", "operator": "In", "values": [selector]}]);
        let slice = json!({"metadata": {"name": "shared"}, "spec": {"driver": "d", "devices": [{"name": "d0"}],
            "nodeSelector": {"nodeSelectorTerms": [{"matchExpressions": fields}]},
            "pool": {"name": "shared", "generation": 1, "resourceSliceCount": 1}}});
        Arc::new(from_value::<ResourceSlice>(slice).unwrap())
    };
    let (mut random, mut seen) = (0x9E37_79B9_u64, [0; 2]);
    let mut below = |bound: usize| {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        usize::try_from(random % bound as u64).unwrap()
    };
    add(&mut cluster, &claim("known", json!({})));
    for step in 0..2000 {
        let (node, device) = (names[below(names.len())], ["d0", "d1"][below(2)]);
        let key = format!("{node}-{device}");
        match below(12) {
            0..=4 => add(&mut cluster, &claim(&key, json!({"status": allocated(node, device)}))),
            5..=7 => drop(cluster.devices.set_claim(&ObjectKey::new("default", &key), None)),
            8 => add_slice(&mut cluster, node, if below(2) == 0 { json!([]) } else { devices.clone() }),
            9 => drop(cluster.devices.set_slice("shared", Some(shared(["x", "y"][below(2)].into())))),
            10 => {
                let pool = ["x", "y"][below(2)];
                cluster.set_node(labeled(node, json!({"pool": pool})));
            }
            _ => {
                let expression =
                    ["device.driver == 'd'", "device.driver == 'other'"][usize::from(below(4) == 0)];
                let selector = json!({"cel": {"expression": expression}});
                add_class(
                    &mut cluster,
                    json!({"metadata": {"name": "c"}, "spec": {"selectors": [selector]}}),
                );
            }
        }
        let request = json!([{"name": format!("r{step}"), "exactly":
            {"deviceClassName": "c", "allocationMode": "ExactCount", "count": 1}}]);
        add(&mut cluster, &claim("new", json!({"spec": {"devices": {"requests": request}}})));
        for node in names {
            let known = reason(&cluster, &user(&["known"]), node);
            assert_eq!(known, reason(&cluster, &user(&["new"]), node), "step {step}, node {node}");
            seen[usize::from(known == "feasible")] += 1;
        }
    }
    assert!(seen.iter().all(|count| *count > 500), "{seen:?}");
}
