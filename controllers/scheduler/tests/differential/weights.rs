//! The probabilities of the features in a case, by family.

/// The families of cases.
pub const FAMILIES: [&str; 7] = ["plain", "affinity", "spread", "volumes", "devices", "preemption", "mixed"];

/// The probability of each feature, and the sizes of a case.
#[derive(Clone, Debug)]
pub struct Weights {
    /// The most nodes of a case.
    pub nodes: i64,
    /// The most pods placed on a node.
    pub pods: i64,
    /// The part of the nodes' resources that pods ask for at most, in percent.
    pub load: i64,
    /// Taints, unschedulable nodes and tolerations.
    pub taints: f64,
    /// Node selectors and node affinity.
    pub node_affinity: f64,
    /// Host ports.
    pub ports: f64,
    /// Init containers, sidecars, overhead, pod-level resources, statuses of resizes.
    pub shapes: f64,
    /// Extended resources, huge pages, ephemeral storage.
    pub scalars: f64,
    /// Images on nodes.
    pub images: f64,
    /// Pod affinity and anti-affinity.
    pub affinity: f64,
    /// Topology spread constraints.
    pub spread: f64,
    /// Services and controllers of pods.
    pub owners: f64,
    /// Volumes.
    pub volumes: f64,
    /// Claims for devices.
    pub devices: f64,
    /// Device features that are beta: taints, consumable capacity, extended resources backed by devices, binding conditions.
    pub beta_devices: f64,
    /// Nodes so full that something must be evicted.
    pub preemption: f64,
    /// Terminating pods.
    pub terminating: f64,
    /// Nominated pods.
    pub nominated: f64,
    /// A configuration of the scheduler.
    pub config: f64,
}

impl Weights {
    /// Returns the weights of `family`, or nothing if there is no such family.
    pub fn of(family: &str) -> Option<Self> {
        let plain = Self {
            nodes: 24,
            pods: 4,
            load: 60,
            taints: 0.35,
            node_affinity: 0.35,
            ports: 0.2,
            shapes: 0.3,
            scalars: 0.3,
            images: 0.4,
            affinity: 0.0,
            spread: 0.0,
            owners: 0.2,
            volumes: 0.0,
            devices: 0.0,
            beta_devices: 0.0,
            preemption: 0.05,
            terminating: 0.1,
            nominated: 0.15,
            config: 0.2,
        };
        let quiet = Self {
            taints: 0.15,
            node_affinity: 0.15,
            ports: 0.05,
            shapes: 0.1,
            scalars: 0.1,
            images: 0.1,
            config: 0.1,
            ..plain.clone()
        };
        Some(match family {
            "plain" => plain,
            "affinity" => Self { affinity: 0.9, ..quiet },
            "spread" => Self {
                spread: 0.7,
                pods: 6,
                owners: 0.8,
                node_affinity: 0.5,
                taints: 0.3,
                terminating: 0.2,
                ..quiet
            },
            "volumes" => Self { volumes: 0.95, pods: 3, ..quiet },
            "devices" => Self { devices: 0.95, beta_devices: 0.4, pods: 2, ..quiet },
            "preemption" => Self {
                preemption: 1.0,
                terminating: 0.25,
                nominated: 0.35,
                affinity: 0.4,
                spread: 0.3,
                volumes: 0.15,
                ports: 0.4,
                ..quiet
            },
            "mixed" => Self {
                nodes: 40,
                affinity: 0.4,
                spread: 0.4,
                owners: 0.4,
                volumes: 0.3,
                devices: 0.2,
                beta_devices: 0.2,
                preemption: 0.2,
                ..plain
            },
            _ => return None,
        })
    }

    /// Returns the same weights for cases of at most `nodes` nodes.
    pub fn at_most(self, nodes: i64) -> Self {
        Self { nodes: self.nodes.min(nodes), ..self }
    }
}
