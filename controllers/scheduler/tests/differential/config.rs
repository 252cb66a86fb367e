//! Configurations of the scheduler.

use serde_json::{Value, json};

use crate::constraints::node_term;
use crate::dice::Dice;
use crate::world::{HOSTNAME, ZONE};

/// Returns a configuration with arguments of some plugins, other weights, or plugins turned off.
pub fn config(dice: &mut Dice, nodes: usize) -> Value {
    let mut arguments = Vec::new();
    let mut add = |name: &str, mut args: Value| {
        args["apiVersion"] = json!("kubescheduler.config.k8s.io/v1");
        args["kind"] = json!(format!("{name}Args"));
        arguments.push(json!({"name": name, "args": args}));
    };
    if dice.chance(0.4) {
        add("NodeResourcesFit", fit(dice));
    }
    if dice.chance(0.2) {
        add("NodeResourcesBalancedAllocation", json!({"resources": resources(dice, true)}));
    }
    if dice.chance(0.3) {
        let weight = dice.number(0..=100);
        add(
            "InterPodAffinity",
            json!({"hardPodAffinityWeight": weight, "ignorePreferredTermsOfExistingPods": dice.chance(0.5)}),
        );
    }
    if dice.chance(0.3) {
        add("PodTopologySpread", spread(dice));
    }
    if dice.chance(0.2) {
        add("NodeAffinity", json!({"addedAffinity": added(dice, nodes)}));
    }
    let mut profile = json!({"schedulerName": "default-scheduler"});
    if !arguments.is_empty() {
        profile["pluginConfig"] = Value::Array(arguments);
    }
    if dice.chance(0.35) {
        profile["plugins"] = plugins(dice);
    }
    json!({"apiVersion": "kubescheduler.config.k8s.io/v1", "kind": "KubeSchedulerConfiguration", "profiles": [profile]})
}

fn resources(dice: &mut Dice, only_one: bool) -> Value {
    let names = ["cpu", "memory", "ephemeral-storage", "example.com/gpu", "hugepages-2Mi"];
    let mut chosen = dice.some(&names, 0.5);
    if chosen.is_empty() {
        chosen.push("memory");
    }
    chosen
        .into_iter()
        .map(|name| json!({"name": name, "weight": if only_one { 1 } else { dice.number(1..=10) }}))
        .collect()
}

fn fit(dice: &mut Dice) -> Value {
    let mut args = json!({});
    let kind = dice.pick(&["LeastAllocated", "MostAllocated", "RequestedToCapacityRatio"]);
    args["scoringStrategy"] = json!({"type": kind, "resources": resources(dice, false)});
    if kind == "RequestedToCapacityRatio" {
        let middle = dice.number(10..=90);
        let mut shape = vec![json!({"utilization": 0, "score": dice.number(0..=10)})];
        if dice.chance(0.6) {
            shape.push(json!({"utilization": middle, "score": dice.number(0..=10)}));
        }
        shape.push(json!({"utilization": 100, "score": dice.number(0..=10)}));
        args["scoringStrategy"]["requestedToCapacityRatio"] = json!({"shape": shape});
    }
    if dice.chance(0.2) {
        args["ignoredResources"] = json!(["example.com/nic"]);
    }
    if dice.chance(0.1) {
        args["ignoredResourceGroups"] = json!(["example.com"]);
    }
    args
}

fn spread(dice: &mut Dice) -> Value {
    if dice.chance(0.2) {
        return json!({"defaultingType": "System"});
    }
    let mut constraints = Vec::new();
    for key in dice.some(&[ZONE, HOSTNAME, "rack"], 0.6) {
        let action = dice.pick(&["DoNotSchedule", "ScheduleAnyway"]);
        constraints
            .push(json!({"maxSkew": dice.number(1..=4), "topologyKey": key, "whenUnsatisfiable": action}));
    }
    json!({"defaultingType": "List", "defaultConstraints": constraints})
}

fn added(dice: &mut Dice, nodes: usize) -> Value {
    let mut term = node_term(dice, nodes);
    if term.as_object().is_some_and(serde_json::Map::is_empty) {
        term = json!({"matchExpressions": [{"key": "disk", "operator": "Exists"}]});
    }
    if dice.chance(0.5) {
        json!({"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}})
    } else {
        json!({"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": dice.number(1..=100), "preference": term}]})
    }
}

fn plugins(dice: &mut Dice) -> Value {
    match dice.number(0..=3) {
        0 => {
            let weighted = json!([
                {"name": "NodeResourcesFit", "weight": dice.number(1..=9)},
                {"name": "ImageLocality", "weight": dice.number(1..=9)},
            ]);
            json!({"score": {"disabled": [{"name": "NodeResourcesFit"}, {"name": "ImageLocality"}], "enabled": weighted}})
        }
        1 => {
            json!({"score": {"disabled": [{"name": dice.pick(&["TaintToleration", "NodeAffinity", "PodTopologySpread"])}]}})
        }
        2 => {
            json!({"multiPoint": {"disabled": [{"name": dice.pick(&["InterPodAffinity", "NodePorts", "ImageLocality", "DefaultPreemption"])}]}})
        }
        _ => json!({"multiPoint": {
            "disabled": [{"name": "*"}],
            "enabled": [
                {"name": "PrioritySort"}, {"name": "DefaultBinder"}, {"name": "NodeResourcesFit", "weight": 5},
                {"name": "TaintToleration"}, {"name": "DefaultPreemption"}, {"name": "NodeUnschedulable"},
            ],
        }}),
    }
}
