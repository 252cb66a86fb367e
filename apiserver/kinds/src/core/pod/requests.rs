//! The requests of a pod as a whole, computed from the requests of its containers.

use std::collections::BTreeMap;

use apiserver_meta::quantity;
use apiserver_meta::quantity::Quantity;
use apiserver_meta::resources::is_pod_level;
use apiserver_schema::validation::{items, text};
use serde_json::Value;

/// The most that the containers of a pod request at one time, of the resources that a pod may request
/// as a whole (KEP-2837): the sum of those that run together, or the need of one init container before them.
pub(crate) fn container_requests(spec: &Value) -> BTreeMap<String, Quantity> {
    let mut sum = BTreeMap::new();
    let requests = |container: &Value| -> Vec<(String, Quantity)> {
        container["resources"]["requests"]
            .as_object()
            .into_iter()
            .flatten()
            .filter(|(name, _)| is_pod_level(name))
            .filter_map(|(name, amount)| Some((name.clone(), quantity::parse_value(amount).ok()?)))
            .collect()
    };
    let add = |sum: &mut BTreeMap<String, Quantity>, list: Vec<(String, Quantity)>| {
        for (name, amount) in list {
            let total = sum.get(&name).map_or(amount, |had: &Quantity| had.saturating_add(amount));
            sum.insert(name, total);
        }
    };
    for container in items(spec, "containers") {
        add(&mut sum, requests(container));
    }
    let (mut sidecars, mut before) = (BTreeMap::new(), BTreeMap::new());
    for container in items(spec, "initContainers") {
        if text(container, "restartPolicy") == "Always" {
            add(&mut sum, requests(container));
            add(&mut sidecars, requests(container));
            for (name, amount) in sidecars.clone() {
                raise(&mut before, name, amount);
            }
        } else {
            let mut together = sidecars.clone();
            add(&mut together, requests(container));
            for (name, amount) in together {
                raise(&mut before, name, amount);
            }
        }
    }
    for (name, amount) in before {
        raise(&mut sum, name, amount);
    }
    sum
}

fn raise(most: &mut BTreeMap<String, Quantity>, name: String, amount: Quantity) {
    let higher = most.get(&name).is_none_or(|had| *had < amount);
    if higher {
        most.insert(name, amount);
    }
}
