//! The JSON of requests and answers (`k8s.io/kube-scheduler/extender/v1`).
//!
//! Extenders are written against Go's `encoding/json`, which takes names of fields in any case and `null` for what is not
//! there. So does this.

use std::collections::BTreeMap;
use std::fmt;
use std::marker::PhantomData;

use serde::de::{IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::json;

use crate::preemption::Answered;

/// Declares an object that is read as Go reads it. The names of the fields are in lower case.
macro_rules! object {
    ($(#[$doc:meta])* $name:ident { $($field:ident: $type:ty = $key:literal),+ $(,)? }) => {
        $(#[$doc])*
        #[derive(Debug, Default)]
        pub(super) struct $name { $(pub $field: $type),+ }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                struct Fields;

                impl<'de> Visitor<'de> for Fields {
                    type Value = $name;

                    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                        f.write_str("an object")
                    }

                    fn visit_unit<E>(self) -> Result<$name, E> {
                        Ok($name::default())
                    }

                    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<$name, A::Error> {
                        let mut object = $name::default();
                        while let Some(name) = map.next_key::<String>()? {
                            match name.to_ascii_lowercase().as_str() {
                                $($key => {
                                    if let Some(value) = map.next_value::<Option<$type>>()? {
                                        object.$field = value;
                                    }
                                })+
                                _ => drop(map.next_value::<IgnoredAny>()?),
                            }
                        }
                        Ok(object)
                    }
                }

                deserializer.deserialize_any(Fields)
            }
        }
    };
}

/// A list that may be `null`.
#[derive(Debug)]
pub(super) struct List<T>(pub Vec<T>);

impl<T> Default for List<T> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for List<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Items<T>(PhantomData<T>);

        impl<'de, T: Deserialize<'de>> Visitor<'de> for Items<T> {
            type Value = List<T>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a list")
            }

            fn visit_unit<E>(self) -> Result<List<T>, E> {
                Ok(List::default())
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<List<T>, A::Error> {
                let mut list = Vec::new();
                while let Some(item) = items.next_element()? {
                    list.push(item);
                }
                Ok(List(list))
            }
        }

        deserializer.deserialize_any(Items(PhantomData))
    }
}

object! {
    /// The answer to a filter request (`ExtenderFilterResult`).
    Filtered {
        nodes: Option<Nodes> = "nodes",
        node_names: Option<Vec<String>> = "nodenames",
        failed: BTreeMap<String, String> = "failednodes",
        unresolvable: BTreeMap<String, String> = "failedandunresolvablenodes",
        error: String = "error",
    }
}

object! {
    Nodes { items: List<NodeObject> = "items" }
}

object! {
    /// A node, of which the name alone is read.
    NodeObject { metadata: Metadata = "metadata" }
}

object! {
    Metadata { name: String = "name" }
}

object! {
    /// The score of a node (`HostPriority`).
    Score { host: String = "host", score: i64 = "score" }
}

object! {
    /// The answer to a binding (`ExtenderBindingResult`).
    Bound { error: String = "error" }
}

object! {
    /// The answer to a preemption (`ExtenderPreemptionResult`).
    Preempted { nodes: BTreeMap<String, Victims> = "nodenametometavictims" }
}

object! {
    /// The victims on a node (`MetaVictims`).
    Victims { pods: List<Victim> = "pods", violations: i64 = "numpdbviolations" }
}

object! {
    Victim { uid: String = "uid" }
}

impl Preempted {
    /// Returns the answer, ordered by node.
    pub fn into_answer(self) -> Vec<Answered> {
        let answered = |(node, victims): (String, Victims)| Answered {
            node,
            victims: victims.pods.0.into_iter().map(|victim| victim.uid).collect(),
            violations: victims.violations,
        };
        self.nodes.into_iter().map(answered).collect()
    }
}

/// Reads the first value of a text, as Go's decoder does; what follows it is ignored.
pub(super) fn read<'a, T: Deserialize<'a>>(text: &'a [u8]) -> Result<T, serde_json::Error> {
    T::deserialize(&mut serde_json::Deserializer::from_slice(text))
}

/// The nodes of a request.
#[derive(Clone, Copy, Debug)]
pub(super) enum Sent<'a> {
    /// To an extender that knows the nodes.
    Names(&'a [String]),
    /// To one that does not: the JSON of each.
    Objects(&'a [String]),
}

/// Returns a request to filter or to score nodes (`ExtenderArgs`). `pod` is JSON.
pub(super) fn nodes_request(pod: &str, nodes: Sent<'_>) -> String {
    match nodes {
        Sent::Names(names) => format!(r#"{{"Pod":{pod},"Nodes":null,"NodeNames":{}}}"#, json!(names)),
        Sent::Objects(objects) => {
            let items = objects.join(",");
            format!(r#"{{"Pod":{pod},"Nodes":{{"metadata":{{}},"items":[{items}]}},"NodeNames":null}}"#)
        }
    }
}

/// Returns a request to choose among candidates (`ExtenderPreemptionArgs`). `pod` is JSON; `objects` has the JSON of victims
/// by UID for an extender that does not know them, and `None` for one that does.
pub(super) fn preemption_request(
    pod: &str,
    candidates: &[Answered],
    objects: Option<&BTreeMap<String, String>>,
) -> String {
    let victim = |uid: &String| match objects {
        Some(objects) => objects.get(uid).cloned(),
        None => Some(json!({"UID": uid}).to_string()),
    };
    let entry = |one: &Answered| {
        let victims: Vec<String> = one.victims.iter().filter_map(victim).collect();
        let violations = one.violations;
        let pods = victims.join(",");
        format!(r#"{}:{{"Pods":[{pods}],"NumPDBViolations":{violations}}}"#, json!(one.node))
    };
    let nodes = candidates.iter().map(entry).collect::<Vec<_>>().join(",");
    let nodes = format!("{{{nodes}}}");
    let (whole, meta) = if objects.is_some() { (nodes.as_str(), "null") } else { ("null", nodes.as_str()) };
    format!(r#"{{"Pod":{pod},"NodeNameToVictims":{whole},"NodeNameToMetaVictims":{meta}}}"#)
}
