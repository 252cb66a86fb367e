//! Rules of placement: node selectors, node affinity, tolerations, pod affinity, topology spread.

use serde_json::{Map, Value, json};

use crate::dice::Dice;
use crate::nodes::{TAINT_VALUES, TAINTS};
use crate::selectors::{merge_keys, selector};
use crate::weights::Weights;
use crate::world::{HOSTNAME, NAMESPACES, REGION, ZONE, ZONES};

const TOPOLOGIES: [&str; 5] = [ZONE, HOSTNAME, REGION, "rack", "disk"];

/// Adds node selectors and node affinity.
pub fn add_node_affinity(dice: &mut Dice, spec: &mut Value, nodes: usize) {
    if dice.chance(0.25) {
        spec["nodeSelector"] = if dice.chance(0.5) {
            json!({"disk": dice.pick(&["ssd", "hdd"])})
        } else {
            json!({ZONE: dice.pick(&ZONES)})
        };
    }
    let mut affinity = json!({});
    if dice.chance(0.5) {
        let count = dice.few(1..=3);
        let terms: Vec<Value> = (0..count).map(|_| node_term(dice, nodes)).collect();
        affinity["requiredDuringSchedulingIgnoredDuringExecution"] = json!({"nodeSelectorTerms": terms});
    }
    if dice.chance(0.6) {
        let count = dice.few(1..=4);
        let terms: Vec<Value> = (0..count)
            .map(|_| json!({"weight": dice.number(1..=100), "preference": node_term(dice, nodes)}))
            .collect();
        affinity["preferredDuringSchedulingIgnoredDuringExecution"] = Value::Array(terms);
    }
    if affinity.as_object().is_some_and(|affinity| !affinity.is_empty()) {
        spec["affinity"]["nodeAffinity"] = affinity;
    }
}

/// Returns a term of a node selector.
pub fn node_term(dice: &mut Dice, nodes: usize) -> Value {
    let mut term = json!({});
    if dice.chance(0.85) {
        let count = dice.few(1..=2);
        term["matchExpressions"] = (0..count).map(|_| node_expression(dice)).collect();
    }
    if dice.chance(0.12) {
        let name = format!("n{}", dice.index(nodes + 1));
        let operator = if dice.chance(0.7) { "In" } else { "NotIn" };
        term["matchFields"] = json!([{"key": "metadata.name", "operator": operator, "values": [name]}]);
        if dice.chance(0.1) {
            let other = format!("n{}", dice.index(nodes + 1));
            term["matchFields"] = json!([
                {"key": "metadata.name", "operator": "In", "values": [name]},
                {"key": "metadata.name", "operator": "In", "values": [other]},
            ]);
        }
    }
    term
}

fn node_expression(dice: &mut Dice) -> Value {
    if dice.chance(0.2) {
        let operator = dice.pick(&["Gt", "Lt"]);
        return json!({"key": "gen", "operator": operator, "values": [dice.number(0..=11).to_string()]});
    }
    let choices: [(&str, &[&str]); 4] = [
        ("disk", &["ssd", "hdd", "nvme"]),
        (ZONE, &ZONES),
        (REGION, &["r0", "r1"]),
        ("rack", &["k0", "k1", "k2"]),
    ];
    let (key, values) = choices[dice.index(choices.len())];
    let operator = dice.pick(&["In", "In", "In", "NotIn", "Exists", "DoesNotExist"]);
    let mut expression = json!({"key": key, "operator": operator});
    if operator.ends_with("In") {
        let mut chosen = dice.some(values, 0.5);
        if chosen.is_empty() {
            chosen.push(dice.pick(values));
        }
        expression["values"] = json!(chosen);
    }
    expression
}

/// Adds tolerations.
pub fn add_tolerations(dice: &mut Dice, spec: &mut Value) {
    let mut tolerations = Vec::new();
    if dice.chance(0.05) {
        tolerations.push(json!({"operator": "Exists"}));
    }
    if dice.chance(0.2) {
        tolerations.push(
            json!({"key": "node.kubernetes.io/unschedulable", "operator": "Exists", "effect": "NoSchedule"}),
        );
    }
    for key in dice.some(&TAINTS, 0.5) {
        let mut toleration = json!({"key": key});
        if dice.chance(0.5) {
            toleration["operator"] = json!("Exists");
        } else {
            if dice.chance(0.5) {
                toleration["operator"] = json!("Equal");
            }
            let value = dice.pick(&TAINT_VALUES);
            if !value.is_empty() {
                toleration["value"] = json!(value);
            }
        }
        if dice.chance(0.7) {
            toleration["effect"] = json!(dice.pick(&["NoSchedule", "PreferNoSchedule", "NoExecute"]));
        }
        if toleration["effect"] == "NoExecute" && dice.chance(0.5) {
            toleration["tolerationSeconds"] = json!(300);
        }
        tolerations.push(toleration);
    }
    if !tolerations.is_empty() {
        spec["tolerations"] = Value::Array(tolerations);
    }
}

/// Adds affinity and anti-affinity to other pods; `weight` is the probability of each of the four lists.
pub fn add_pod_affinity(dice: &mut Dice, spec: &mut Value, own: &Map<String, Value>, weight: f64) {
    for kind in ["podAffinity", "podAntiAffinity"] {
        let mut affinity = json!({});
        if dice.chance(weight * if kind == "podAffinity" { 0.6 } else { 0.9 }) {
            let count = dice.few(1..=2);
            affinity["requiredDuringSchedulingIgnoredDuringExecution"] =
                (0..count).map(|_| affinity_term(dice, own)).collect();
        }
        if dice.chance(weight) {
            let count = dice.few(1..=3);
            affinity["preferredDuringSchedulingIgnoredDuringExecution"] = (0..count)
                .map(|_| json!({"weight": dice.number(1..=100), "podAffinityTerm": affinity_term(dice, own)}))
                .collect();
        }
        if affinity.as_object().is_some_and(|affinity| !affinity.is_empty()) {
            spec["affinity"][kind] = affinity;
        }
    }
}

fn affinity_term(dice: &mut Dice, own: &Map<String, Value>) -> Value {
    let mut term = json!({"topologyKey": dice.pick(&TOPOLOGIES)});
    if dice.chance(0.97) {
        term["labelSelector"] = selector(dice, own);
    }
    if dice.chance(0.3) {
        let namespaces = dice.some(&NAMESPACES, 0.4);
        if !namespaces.is_empty() {
            term["namespaces"] = json!(namespaces);
        }
    }
    if dice.chance(0.25) {
        term["namespaceSelector"] = match dice.number(0..=3) {
            0 => json!({}),
            1 => json!({"matchLabels": {"team": "x"}}),
            2 => json!({"matchLabels": {"kubernetes.io/metadata.name": dice.pick(&NAMESPACES)}}),
            _ => json!({"matchExpressions": [{"key": "team", "operator": "NotIn", "values": ["y"]}]}),
        };
    }
    if term["labelSelector"].is_object() && dice.chance(0.25) {
        let (field, operator) =
            if dice.chance(0.6) { ("matchLabelKeys", "In") } else { ("mismatchLabelKeys", "NotIn") };
        let keys = ["ver"];
        let used = term["labelSelector"].to_string().contains("\"ver\"");
        if !used {
            term[field] = json!(keys);
            merge_keys(&mut term["labelSelector"], own, &keys, operator);
        }
    }
    term
}

/// Adds topology spread constraints.
pub fn add_spread(dice: &mut Dice, spec: &mut Value, own: &Map<String, Value>, _weights: &Weights) {
    let count = dice.few(1..=3);
    let mut constraints: Vec<Value> = Vec::new();
    for _ in 0..count {
        let constraint = spread_constraint(dice, own);
        let key = |value: &Value| (value["topologyKey"].clone(), value["whenUnsatisfiable"].clone());
        if constraints.iter().all(|other| key(other) != key(&constraint)) {
            constraints.push(constraint);
        }
    }
    spec["topologySpreadConstraints"] = Value::Array(constraints);
}

fn spread_constraint(dice: &mut Dice, own: &Map<String, Value>) -> Value {
    let hard = dice.chance(0.55);
    let mut constraint = json!({
        "maxSkew": dice.few(1..=3),
        "topologyKey": dice.pick(&[ZONE, ZONE, HOSTNAME, HOSTNAME, "rack", "disk", REGION]),
        "whenUnsatisfiable": if hard { "DoNotSchedule" } else { "ScheduleAnyway" },
    });
    if dice.chance(0.97) {
        constraint["labelSelector"] = selector(dice, own);
    }
    if hard && dice.chance(0.4) {
        constraint["minDomains"] = json!(dice.number(2..=6));
    }
    for policy in ["nodeAffinityPolicy", "nodeTaintsPolicy"] {
        if dice.chance(0.35) {
            constraint[policy] = json!(dice.pick(&["Honor", "Ignore"]));
        }
    }
    let used = constraint["labelSelector"].to_string().contains("\"ver\"");
    if constraint["labelSelector"].is_object() && !used && dice.chance(0.25) {
        let keys = ["ver"];
        constraint["matchLabelKeys"] = json!(keys);
        if dice.chance(0.6) {
            merge_keys(&mut constraint["labelSelector"], own, &keys, "In");
        }
    }
    constraint
}
