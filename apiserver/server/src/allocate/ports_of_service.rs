//! The ports of one Service, indexed: clients send as many as a body holds.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

/// Node ports that ports of a Service have, by the number and the protocol of the port.
#[derive(Default)]
pub struct NodePorts {
    /// The place of the first port with this node port, and that of the first one with another protocol, by
    /// number.
    first: BTreeMap<String, [Option<Place>; 2]>,
    /// Node ports with their protocols.
    taken: BTreeSet<(i64, String)>,
}

/// A port that has a node port.
#[derive(Clone)]
struct Place {
    index: usize,
    protocol: String,
    node_port: i64,
}

impl NodePorts {
    /// Records the node port of the port at `index` in the list.
    pub fn add(&mut self, index: usize, port: &Value, node_port: i64) {
        let place = Place { index, protocol: protocol(port), node_port };
        self.taken.insert((node_port, place.protocol.clone()));
        let [first, second] = self.first.entry(number(port)).or_default();
        match first {
            Some(known) if known.protocol == place.protocol => {
                if index < known.index {
                    *first = Some(place);
                }
            }
            Some(known) if index < known.index => {
                *second = first.replace(place);
            }
            None => *first = Some(place),
            Some(_) => {
                if second.as_ref().is_none_or(|known| index < known.index) {
                    *second = Some(place);
                }
            }
        }
    }

    /// Returns the node port of the first port of the same number and another protocol (DNS over TCP and
    /// UDP), unless a port of the same protocol has that one already.
    pub fn shared_with(&self, port: &Value) -> Option<i64> {
        let mine = protocol(port);
        let places = self.first.get(&number(port))?;
        let other = places.iter().flatten().find(|place| place.protocol != mine)?;
        (!self.taken.contains(&(other.node_port, mine))).then_some(other.node_port)
    }
}

fn protocol(port: &Value) -> String {
    port["protocol"].as_str().unwrap_or("TCP").to_owned()
}

fn number(port: &Value) -> String {
    port["port"].to_string()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn port(number: u16, protocol: &str) -> Value {
        json!({"port": number, "protocol": protocol})
    }

    #[test]
    fn a_port_shares_the_first_node_port_of_another_protocol() {
        let mut ports = NodePorts::default();
        assert_eq!(ports.shared_with(&port(53, "UDP")), None);
        ports.add(3, &port(53, "SCTP"), 30_003);
        assert_eq!(ports.shared_with(&port(53, "UDP")), Some(30_003));
        // Added later, but before the other in the list.
        ports.add(1, &port(53, "TCP"), 30_001);
        assert_eq!(ports.shared_with(&port(53, "UDP")), Some(30_001));
        assert_eq!(ports.shared_with(&port(53, "TCP")), Some(30_003));
        ports.add(0, &port(53, "TCP"), 30_000);
        assert_eq!(ports.shared_with(&json!({"port": 53, "protocol": "SCTP"})), Some(30_000));
        assert_eq!(ports.shared_with(&port(53, "TCP")), Some(30_003));
        assert_eq!(ports.shared_with(&port(54, "UDP")), None);
    }

    #[test]
    fn a_node_port_that_the_protocol_has_is_not_shared() {
        let mut ports = NodePorts::default();
        ports.add(0, &port(53, "TCP"), 30_000);
        ports.add(1, &port(80, "UDP"), 30_000);
        assert_eq!(ports.shared_with(&port(53, "UDP")), None);
    }
}
