//! Ports of nodes, which only one pod of a node can have.

use k8s_openapi::api::core::v1::{Container, PodSpec};

/// A port of a node that a pod asks for.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct HostPort {
    /// Address of the node; `0.0.0.0` for all addresses.
    pub address: String,
    pub protocol: String,
    pub port: i32,
}

impl HostPort {
    /// Returns `true` if both cannot be used on one node.
    pub fn conflicts(&self, other: &Self) -> bool {
        self.port == other.port
            && self.protocol == other.protocol
            && (self.address == other.address || self.address == "0.0.0.0" || other.address == "0.0.0.0")
    }
}

/// Returns the host ports of a pod: those of its containers, and of init containers that run as long as the pod.
pub fn host_ports(spec: &PodSpec) -> impl Iterator<Item = HostPort> + '_ {
    let init = spec.init_containers.iter().flatten();
    let sidecars = init.filter(|container| container.restart_policy.as_deref() == Some("Always"));
    sidecars.chain(&spec.containers).flat_map(of_container)
}

fn of_container(container: &Container) -> impl Iterator<Item = HostPort> + '_ {
    container.ports.iter().flatten().filter_map(|port| {
        let number = port.host_port.filter(|&number| number > 0)?;
        let address =
            port.host_ip.clone().filter(|ip| !ip.is_empty()).unwrap_or_else(|| "0.0.0.0".to_owned());
        let protocol = port.protocol.clone().unwrap_or_else(|| "TCP".to_owned());
        Some(HostPort { address, protocol, port: number })
    })
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, from_value, json};

    use super::*;

    fn ports(ports: &Value) -> Vec<HostPort> {
        let init = json!([{"name": "once", "ports": [{"containerPort": 1, "hostPort": 1}]},
            {"name": "side", "restartPolicy": "Always", "ports": [{"containerPort": 1, "hostPort": 2}]}]);
        let spec = json!({"initContainers": init, "containers": [{"name": "c", "ports": ports}]});
        host_ports(&from_value(spec).unwrap()).collect()
    }

    #[test]
    fn host_ports_of_containers_that_run_with_the_pod_count() {
        let all = ports(&json!([{"containerPort": 80}, {"containerPort": 80, "hostPort": 8080}]));
        assert_eq!(all.iter().map(|port| port.port).collect::<Vec<_>>(), [2, 8080]);
    }

    #[test]
    fn same_port_conflicts_unless_protocols_or_addresses_differ() {
        let one = |more: Value| {
            let mut port = json!({"containerPort": 80, "hostPort": 80});
            port.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            ports(&json!([port])).pop().unwrap()
        };
        let (tcp, a) = (one(json!({})), one(json!({"hostIP": "192.0.2.1"})));
        assert!(tcp.conflicts(&one(json!({"protocol": "TCP"}))));
        assert!(!tcp.conflicts(&one(json!({"protocol": "UDP"}))));
        assert!(tcp.conflicts(&a) && a.conflicts(&tcp), "all addresses are one of them");
        assert!(!a.conflicts(&one(json!({"hostIP": "192.0.2.2"}))));
    }
}
