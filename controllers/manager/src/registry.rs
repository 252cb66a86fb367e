//! The table of controllers, and how they are selected.

use tracing::warn;

use crate::context::{Context, Tasks};
use crate::metrics::Metrics;
use crate::selected::{Entry, Selected};
use crate::{
    attachdetach, bootstrap, certificates, clusterroles, cronjob, daemonset, deployment, devicetainteviction,
    disruption, endpoints, endpointslice, endpointslicemirroring, ephemeral, expand, garbage, job,
    legacy_tokens, loadbalancer, localpath, namespaces, nodes, persistentvolume, podautoscaler, podgc,
    protection, replicaset, resourceclaim, resourcepoolstatusrequest, resourcequota, serviceaccount,
    statefulset, tokens, ttl, ttlafterfinished, validatingadmissionpolicystatus,
};

/// A controller of the manager.
struct Controller {
    /// Its name in `--controllers`, as in Kubernetes.
    name: &'static str,
    /// The name that it had in Kubernetes before 1.28, which selects it too.
    alias: Option<&'static str>,
    /// ServiceAccount in `kube-system` to which its role is bound; empty for one that writes as the manager itself.
    account: &'static str,
    /// True if `*` selects it.
    default: bool,
    start: fn(&Context, &mut Tasks),
}

/// All controllers, first those without which no pod can start.
#[rustfmt::skip]
const CONTROLLERS: &[Controller] = &[
    Controller { name: "serviceaccount-controller", alias: Some("serviceaccount"), account: "service-account-controller", default: true, start: serviceaccount::start_accounts },
    Controller { name: "root-ca-certificate-publisher-controller", alias: Some("root-ca-cert-publisher"), account: "root-ca-cert-publisher", default: true, start: serviceaccount::start_root_ca },
    Controller { name: "serviceaccount-token-controller", alias: Some("serviceaccount-token"), account: "", default: true, start: tokens::start },
    Controller { name: "node-lifecycle-controller", alias: Some("nodelifecycle"), account: "node-controller", default: true, start: nodes::lifecycle::start },
    Controller { name: "taint-eviction-controller", alias: None, account: "node-controller", default: true, start: nodes::eviction::start },
    Controller { name: "device-taint-eviction-controller", alias: None, account: "device-taint-eviction-controller", default: true, start: devicetainteviction::start },
    Controller { name: "node-ipam-controller", alias: Some("nodeipam"), account: "node-controller", default: true, start: nodes::ipam::start },
    Controller { name: "certificatesigningrequest-approving-controller", alias: Some("csrapproving"), account: "certificate-controller", default: true, start: certificates::approve::start },
    Controller { name: "certificatesigningrequest-signing-controller", alias: Some("csrsigning"), account: "certificate-controller", default: true, start: certificates::sign::start },
    Controller { name: "certificatesigningrequest-cleaner-controller", alias: Some("csrcleaner"), account: "certificate-controller", default: true, start: certificates::clean::start },
    Controller { name: "bootstrap-signer-controller", alias: Some("bootstrapsigner"), account: "bootstrap-signer", default: false, start: bootstrap::signer::start },
    Controller { name: "token-cleaner-controller", alias: Some("tokencleaner"), account: "token-cleaner", default: false, start: bootstrap::cleaner::start },
    Controller { name: "deployment-controller", alias: Some("deployment"), account: "deployment-controller", default: true, start: deployment::start },
    Controller { name: "replicaset-controller", alias: Some("replicaset"), account: "replicaset-controller", default: true, start: replicaset::start_replica_sets },
    Controller { name: "replicationcontroller-controller", alias: Some("replicationcontroller"), account: "replication-controller", default: true, start: replicaset::start_replication_controllers },
    Controller { name: "daemonset-controller", alias: Some("daemonset"), account: "daemon-set-controller", default: true, start: daemonset::start },
    Controller { name: "statefulset-controller", alias: Some("statefulset"), account: "statefulset-controller", default: true, start: statefulset::start },
    Controller { name: "job-controller", alias: Some("job"), account: "job-controller", default: true, start: job::start },
    Controller { name: "ttl-after-finished-controller", alias: Some("ttl-after-finished"), account: "ttl-after-finished-controller", default: true, start: ttlafterfinished::start },
    Controller { name: "cronjob-controller", alias: Some("cronjob"), account: "cronjob-controller", default: true, start: cronjob::start },
    Controller { name: "endpointslice-controller", alias: Some("endpointslice"), account: "endpointslice-controller", default: true, start: endpointslice::start },
    Controller { name: "endpoints-controller", alias: Some("endpoint"), account: "endpoint-controller", default: true, start: endpoints::start },
    Controller { name: "endpointslice-mirroring-controller", alias: Some("endpointslicemirroring"), account: "endpointslicemirroring-controller", default: true, start: endpointslicemirroring::start },
    Controller { name: "namespace-controller", alias: Some("namespace"), account: "namespace-controller", default: true, start: namespaces::start },
    Controller { name: "garbage-collector-controller", alias: Some("garbagecollector"), account: "generic-garbage-collector", default: true, start: garbage::start },
    Controller { name: "pod-garbage-collector-controller", alias: Some("podgc"), account: "pod-garbage-collector", default: true, start: podgc::start },
    Controller { name: "persistentvolume-binder-controller", alias: Some("persistentvolume-binder"), account: "persistent-volume-binder", default: true, start: persistentvolume::start },
    Controller { name: "local-path-provisioner-controller", alias: None, account: "local-path-provisioner", default: true, start: localpath::start },
    Controller { name: "persistentvolume-attach-detach-controller", alias: Some("attachdetach"), account: "attachdetach-controller", default: true, start: attachdetach::start },
    Controller { name: "persistentvolume-expander-controller", alias: Some("persistentvolume-expander"), account: "expand-controller", default: true, start: expand::start },
    Controller { name: "persistentvolumeclaim-protection-controller", alias: Some("pvc-protection"), account: "pvc-protection-controller", default: true, start: protection::claims::start },
    Controller { name: "persistentvolume-protection-controller", alias: Some("pv-protection"), account: "pv-protection-controller", default: true, start: protection::volumes::start },
    Controller { name: "volumeattributesclass-protection-controller", alias: None, account: "volumeattributesclass-protection-controller", default: true, start: protection::attributes::start },
    Controller { name: "resourceclaim-controller", alias: Some("resource-claim-controller"), account: "resource-claim-controller", default: true, start: resourceclaim::start },
    Controller { name: "resourcepoolstatusrequest-controller", alias: None, account: "resourcepoolstatusrequest-controller", default: true, start: resourcepoolstatusrequest::start },
    Controller { name: "ephemeral-volume-controller", alias: Some("ephemeral-volume"), account: "ephemeral-volume-controller", default: true, start: ephemeral::start },
    Controller { name: "clusterrole-aggregation-controller", alias: Some("clusterrole-aggregation"), account: "clusterrole-aggregation-controller", default: true, start: clusterroles::start },
    Controller { name: "ttl-controller", alias: Some("ttl"), account: "ttl-controller", default: true, start: ttl::start },
    Controller { name: "legacy-serviceaccount-token-cleaner-controller", alias: Some("legacy-service-account-token-cleaner"), account: "legacy-service-account-token-cleaner", default: true, start: legacy_tokens::start },
    Controller { name: "service-load-balancer-controller", alias: None, account: "service-load-balancer-controller", default: true, start: loadbalancer::start },
    Controller { name: "disruption-controller", alias: Some("disruption"), account: "disruption-controller", default: true, start: disruption::start },
    Controller { name: "resourcequota-controller", alias: Some("resourcequota"), account: "resourcequota-controller", default: true, start: resourcequota::start },
    Controller { name: "validatingadmissionpolicy-status-controller", alias: None, account: "validatingadmissionpolicy-status-controller", default: true, start: validatingadmissionpolicystatus::start },
    Controller { name: "horizontal-pod-autoscaler-controller", alias: Some("horizontalpodautoscaling"), account: "horizontal-pod-autoscaler", default: true, start: podautoscaler::start },
];

/// A name in a list of controllers that no controller has.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("no controller is named {name:?}; there are {}", names().collect::<Vec<_>>().join(", "))]
pub struct UnknownController {
    name: String,
}

/// Returns the names of all controllers.
fn names() -> impl Iterator<Item = &'static str> {
    CONTROLLERS.iter().map(|controller| controller.name)
}

/// Reads a list of controllers: names, names with `-` before them, and `*`.
///
/// # Errors
///
/// Fails if an entry names no controller.
pub fn select<'a>(list: impl IntoIterator<Item = &'a str>) -> Result<Selected, UnknownController> {
    let read = |entry: &str| match (entry, entry.strip_prefix('-')) {
        ("*", _) => Ok(Entry::Default),
        (_, Some(name)) => find(name).map(|found| Entry::Leave(found.name)),
        (name, None) => find(name).map(|found| Entry::Run(found.name)),
    };
    list.into_iter().map(|entry| read(entry.trim())).collect::<Result<_, _>>().map(Selected::new)
}

fn find(name: &str) -> Result<&'static Controller, UnknownController> {
    let found = CONTROLLERS.iter().find(|one| one.name == name || one.alias == Some(name));
    found.ok_or_else(|| UnknownController { name: name.to_owned() })
}

/// Starts the controllers that are selected.
pub(crate) fn start(context: &Context, tasks: &mut Tasks) {
    let runs = |one: &&Controller| context.config.controllers.runs(one.name, one.default);
    for controller in CONTROLLERS.iter().filter(runs) {
        context.config.metrics.add_controller(controller.name);
        let mut own = Tasks::new();
        (controller.start)(&context.of(controller.name, controller.account), &mut own);
        tasks.spawn(attend(controller.name, own, context.config.metrics.clone()));
    }
}

/// Waits for the tasks of a controller, and notes that one has failed.
async fn attend(name: &'static str, mut tasks: Tasks, metrics: Metrics) {
    while let Some(ended) = tasks.join_next().await {
        if let Err(error) = ended {
            metrics.fail(name);
            warn!(controller = name, %error, "controller failed");
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn running(list: &str) -> Vec<&'static str> {
        let selected = select(list.split(',')).unwrap();
        let running = CONTROLLERS.iter().filter(|one| selected.runs(one.name, one.default));
        running.map(|controller| controller.name).collect()
    }

    #[test]
    fn list_of_controllers_decides_by_the_first_entry_that_names_one() {
        assert_eq!(running("job-controller,deployment"), ["deployment-controller", "job-controller"]);
        assert!(running("-job").is_empty(), "nothing runs that no entry selects");
        assert!(!running("*,-job").contains(&"job-controller"));
        assert!(running("*, -cronjob").contains(&"job-controller"));
        assert!(running("job,-job").contains(&"job-controller"));
        assert!(!running("-job,job,*").contains(&"job-controller"));
    }

    #[test]
    fn star_leaves_out_what_has_to_be_asked_for() {
        let cleaner = "token-cleaner-controller";
        assert!(!running("*").contains(&cleaner) && running("*,tokencleaner").contains(&cleaner));
        let all = Selected::default();
        assert!(CONTROLLERS.iter().all(|one| all.runs(one.name, one.default)));
    }

    #[test]
    fn unknown_names_are_refused_with_the_list_of_known_ones() {
        let error = select(["*", "-route"]).unwrap_err().to_string();
        assert!(error.starts_with("no controller is named \"route\""), "{error}");
        assert!(error.contains("endpoints-controller"), "{error}");
    }

    #[test]
    fn controllers_are_on_the_page_about_them() {
        let page = include_str!("../../../docs/controllers.md");
        let code = |text: &str| if text.is_empty() { "–".to_owned() } else { format!("`{text}`") };
        for one in CONTROLLERS {
            let Controller { name, alias, account, default, .. } = one;
            let default = if *default { "yes" } else { "no" };
            let begin =
                format!("| `{name}` | {} | {default} | {} |", code(alias.unwrap_or("")), code(account));
            let rows: Vec<_> =
                page.lines().filter(|line| line.starts_with(&format!("| `{name}` |"))).collect();
            assert!(rows.first().is_some_and(|row| row.starts_with(&begin)), "{begin}: {rows:?}");
            assert_eq!(rows.len(), 2, "{name} has a row, and one about its tests: {rows:?}");
        }
        for measure in crate::metrics::ALL {
            assert!(page.contains(&format!("- `{}` (", measure.name)), "{}", measure.name);
        }
    }

    #[tokio::test]
    async fn controller_of_which_a_task_fails_is_not_healthy() {
        let metrics = Metrics::default();
        for name in ["job-controller", "ttl-controller"] {
            metrics.add_controller(name);
            let mut tasks = Tasks::new();
            tasks.spawn(async {});
            tasks.spawn(async move { assert_eq!(name, "job-controller", "this task fails on purpose") });
            attend(name, tasks, metrics.clone()).await;
        }
        assert_eq!(metrics.health(), [("job-controller", true), ("ttl-controller", false)]);
    }

    #[test]
    fn names_and_aliases_are_unique() {
        let all = CONTROLLERS.iter().flat_map(|one| [Some(one.name), one.alias].into_iter().flatten());
        let all: Vec<_> = all.collect();
        assert_eq!(all.iter().collect::<BTreeSet<_>>().len(), all.len());
    }
}
