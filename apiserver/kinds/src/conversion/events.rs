//! Events: `v1` is kept, `events.k8s.io/v1` has other names for some fields.

use serde_json::Value;

/// Fields that differ: core, events.k8s.io.
const NAMES: [(&str, &str); 7] = [
    ("involvedObject", "regarding"),
    ("message", "note"),
    ("source", "deprecatedSource"),
    ("firstTimestamp", "deprecatedFirstTimestamp"),
    ("lastTimestamp", "deprecatedLastTimestamp"),
    ("count", "deprecatedCount"),
    ("reportingComponent", "reportingController"),
];

pub(super) fn from_core(object: &mut Value) {
    rename(object, NAMES.iter().copied());
}

pub(super) fn to_core(object: &mut Value) {
    rename(object, NAMES.iter().map(|(core, new)| (*new, *core)));
}

fn rename<'a>(object: &mut Value, names: impl Iterator<Item = (&'a str, &'a str)>) {
    let Some(map) = object.as_object_mut() else { return };
    for (from, to) in names {
        if let Some(value) = map.remove(from) {
            map.insert(to.to_owned(), value);
        }
    }
}
