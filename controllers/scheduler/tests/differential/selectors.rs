//! Labels of pods, and selectors over them.

use serde_json::{Map, Value, json};

use crate::dice::Dice;

/// The values of each label that pods have.
pub const LABELS: [(&str, &[&str]); 3] =
    [("app", &["a", "b", "c"]), ("tier", &["front", "back"]), ("ver", &["1", "2", "3"])];

/// Returns the labels of a pod.
pub fn labels(dice: &mut Dice) -> Map<String, Value> {
    let mut labels = Map::new();
    for (key, values) in LABELS {
        if dice.chance(0.75) {
            labels.insert(key.to_owned(), json!(dice.pick(values)));
        }
    }
    labels
}

/// Returns a label selector over the labels of pods; often one that matches `own`.
pub fn selector(dice: &mut Dice, own: &Map<String, Value>) -> Value {
    if dice.chance(0.04) {
        return json!({});
    }
    let mut selector = json!({});
    if dice.chance(0.75) {
        selector["matchLabels"] = Value::Object(match_labels(dice, own));
    }
    if dice.chance(0.35) || selector.get("matchLabels").is_none() {
        let count = dice.few(1..=2);
        selector["matchExpressions"] = (0..count).map(|_| expression(dice, &LABELS)).collect();
    }
    selector
}

fn match_labels(dice: &mut Dice, own: &Map<String, Value>) -> Map<String, Value> {
    let mut labels = Map::new();
    let keys: Vec<&String> = own.keys().collect();
    if dice.chance(0.6) && !keys.is_empty() {
        let key = keys[dice.index(keys.len())];
        labels.insert(key.clone(), own[key].clone());
    } else {
        let (key, values) = LABELS[dice.index(LABELS.len())];
        labels.insert(key.to_owned(), json!(dice.pick(values)));
    }
    labels
}

/// Returns a requirement of a label selector over `labels`.
pub fn expression(dice: &mut Dice, labels: &[(&str, &[&str])]) -> Value {
    let (key, values) = labels[dice.index(labels.len())];
    let operator = dice.pick(&["In", "In", "NotIn", "Exists", "DoesNotExist"]);
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

/// Adds the values that `own` has for `keys` to a selector, as the API server does when a pod is created.
pub fn merge_keys(selector: &mut Value, own: &Map<String, Value>, keys: &[&str], operator: &str) {
    for key in keys {
        let Some(value) = own.get(*key) else { continue };
        let requirement = json!({"key": key, "operator": operator, "values": [value]});
        match selector["matchExpressions"].as_array_mut() {
            Some(expressions) => expressions.push(requirement),
            None => selector["matchExpressions"] = json!([requirement]),
        }
    }
}
