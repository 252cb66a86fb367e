//! Two pods of a node that NetworkPolicies select. `limit` is the same pair of pods with Hawser's programs and no
//! policy; with many policies, all but one name addresses that send nothing.

use std::net::IpAddr;
use std::sync::Arc;

use anyhow::{Context, Result};
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::networking::v1::NetworkPolicy;
use serde_json::{Value, json};
use userspace_dataplane::policy::PolicyTables;
use userspace_dataplane::{DataPlane, XdpMode};
use userspace_proxy::policy::{Inputs, LocalPod, NamespaceLabels, Policy, PolicyPod, compile};

use super::pair::{Pair, Path};
use crate::node;
use crate::place::{self, in_namespace};
use crate::row::Report;
use crate::sockets::rows;
use crate::stage::{CONNECT_RATE, TCP_RR, UDP_RR, Work};
use crate::subject::{Plan, Subject, in_turn};

/// Measures connections and round trips under some numbers of policies.
pub fn run(report: &Report, plan: &Plan) {
    for policies in plan.sizes(&[1, 10_000], &[1, 10_000]) {
        let case = |work: &Work| format!("policy_{}/policies={policies}", work.name);
        let works: Vec<Work> =
            [CONNECT_RATE, TCP_RR, UDP_RR].into_iter().filter(|work| plan.has(&case(work))).collect();
        if works.is_empty() || !plan.subjects.contains(&Subject::Hawser) {
            continue;
        }
        report.attempt(&format!("policies={policies}"), || {
            let pairs = [Pair::new(Subject::Hawser, Path::Node)?, Pair::new(Subject::Hawser, Path::Node)?];
            enforce(&pairs[1], policies)?;
            works.iter().try_for_each(|work| {
                let (rounds, seconds) = plan.choose((21, 0.05), (61, 0.1));
                let turns = in_turn(&pairs, rounds, |pair| pair.work(*work, seconds * plan.stretch))?;
                rows(report, ("network", &case(work)), *work, &[Subject::Limit, Subject::Hawser], &turns)
            })
        });
    }
}

/// Puts both pods under a number of policies.
fn enforce(pair: &Pair, policies: usize) -> Result<()> {
    let (lab, addresses) = (pair.lab(), pair.addresses());
    in_namespace(&place::node_namespace(lab), || {
        let mut kernel = node::open(lab, node::limits(1), XdpMode::Off)?;
        kernel.set_policies(&tables(addresses, policies)?).context("cannot enforce the policies")
    })
}

/// Returns the tables of policies that each allow one address to reach both pods: the first one the client's.
fn tables(addresses: [&str; 2], policies: usize) -> Result<PolicyTables> {
    let policy = |number: usize| {
        let peer = match u32::try_from(number).context("too many policies")? {
            0 => addresses[0].to_owned(),
            number => IpAddr::from((0x0a80_0000 + number).to_be_bytes()).to_string(),
        };
        let spec =
            json!({"podSelector": {}, "ingress": [{"from": [{"ipBlock": {"cidr": format!("{peer}/32")}}]}]});
        let object: NetworkPolicy = object(&format!("policy-{number}"), ("spec", spec))?;
        Ok(Arc::new(Policy::of(&object)))
    };
    let policies: Vec<Arc<Policy>> = (0..policies).map(policy).collect::<Result<_>>()?;
    let (mut pods, mut local) = (Vec::new(), Vec::new());
    for (number, address) in addresses.into_iter().enumerate() {
        let name = format!("pod{number}");
        let pod: Pod = object(&name, ("status", json!({"podIP": address})))?;
        pods.push(Arc::new(PolicyPod::of(pod)));
        let addresses = vec![address.parse().context("not an address")?];
        local.push(LocalPod { interface: place::interface(&name)?, name, uid: None, addresses });
    }
    let namespaces = NamespaceLabels::default();
    let (policies, pods, local) = (&policies, &pods, &local);
    Ok(compile(&Inputs { policies, pods, namespaces: &namespaces, local, node: &[], always: None }))
}

/// Returns an object of the namespace `default`.
fn object<T: serde::de::DeserializeOwned>(name: &str, (key, value): (&str, Value)) -> Result<T> {
    let metadata = json!({"namespace": "default", "name": name, "uid": name});
    serde_json::from_value(json!({"metadata": metadata, key: value})).context("cannot build an object")
}
