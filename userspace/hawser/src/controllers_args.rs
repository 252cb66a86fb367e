//! Flags of `hawser controllers` with the names that they have in kube-controller-manager.

use std::collections::BTreeMap;
use std::num::NonZeroUsize;

use anyhow::{Context, Result};
use clap::Args;
use controllers_manager::Selected;

use crate::proxy_args::go_bool;

/// The choice of controllers, their users and their workers.
#[derive(Args)]
pub struct Running {
    /// Controllers to run: * for those that Kubernetes runs by default, a name, or -name for all but that one; with an
    /// unknown name the error lists all
    #[arg(
        long,
        value_name = "LIST",
        value_delimiter = ',',
        allow_hyphen_values = true,
        default_value = "*,bootstrap-signer-controller,token-cleaner-controller"
    )]
    controllers: Vec<String>,
    /// Let each controller write as a ServiceAccount of its own in kube-system, with the role of that controller alone
    #[arg(long, num_args = 0..=1, require_equals = true, value_name = "BOOL", default_missing_value = "true", value_parser = go_bool, default_value = "false")]
    pub use_service_account_credentials: bool,
    #[command(flatten)]
    workers: Workers,
}

impl Running {
    /// Returns the controllers that run.
    pub fn selected(&self) -> Result<Selected> {
        let list = self.controllers.iter().map(String::as_str);
        controllers_manager::select(list).context("cannot use --controllers")
    }

    /// Returns the number of workers of the controllers for which one is given, by their names.
    pub fn workers(&self) -> BTreeMap<&'static str, usize> {
        let given = self.workers.given();
        given.into_iter().filter_map(|(name, count)| Some((name, count?.get()))).collect()
    }
}

/// Numbers of objects that are reconciled at the same time; 16 unless given.
#[derive(Args)]
#[command(next_help_heading = "Concurrency")]
struct Workers {
    #[arg(long, value_name = "N")]
    concurrent_cron_job_syncs: Option<NonZeroUsize>,
    #[arg(long, value_name = "N")]
    concurrent_daemonset_syncs: Option<NonZeroUsize>,
    #[arg(long, value_name = "N")]
    concurrent_deployment_syncs: Option<NonZeroUsize>,
    #[arg(long, value_name = "N")]
    concurrent_device_taint_eviction_syncs: Option<NonZeroUsize>,
    #[arg(long, value_name = "N")]
    concurrent_endpoint_syncs: Option<NonZeroUsize>,
    #[arg(long, value_name = "N")]
    concurrent_gc_syncs: Option<NonZeroUsize>,
    #[arg(long, value_name = "N")]
    concurrent_job_syncs: Option<NonZeroUsize>,
    #[arg(long, value_name = "N")]
    concurrent_namespace_syncs: Option<NonZeroUsize>,
    #[arg(long, value_name = "N")]
    concurrent_rc_syncs: Option<NonZeroUsize>,
    #[arg(long, value_name = "N")]
    concurrent_replicaset_syncs: Option<NonZeroUsize>,
    #[arg(long, value_name = "N")]
    concurrent_resourceclaim_syncs: Option<NonZeroUsize>,
    #[arg(long, value_name = "N")]
    concurrent_service_endpoint_syncs: Option<NonZeroUsize>,
    #[arg(long, value_name = "N")]
    concurrent_statefulset_syncs: Option<NonZeroUsize>,
    #[arg(long, value_name = "N")]
    concurrent_ttl_after_finished_syncs: Option<NonZeroUsize>,
    #[arg(long, value_name = "N")]
    mirroring_concurrent_service_endpoint_syncs: Option<NonZeroUsize>,
}

impl Workers {
    fn given(&self) -> [(&'static str, Option<NonZeroUsize>); 15] {
        [
            ("cronjob-controller", self.concurrent_cron_job_syncs),
            ("daemonset-controller", self.concurrent_daemonset_syncs),
            ("deployment-controller", self.concurrent_deployment_syncs),
            ("device-taint-eviction-controller", self.concurrent_device_taint_eviction_syncs),
            ("endpoints-controller", self.concurrent_endpoint_syncs),
            ("garbage-collector-controller", self.concurrent_gc_syncs),
            ("job-controller", self.concurrent_job_syncs),
            ("namespace-controller", self.concurrent_namespace_syncs),
            ("replicationcontroller-controller", self.concurrent_rc_syncs),
            ("replicaset-controller", self.concurrent_replicaset_syncs),
            ("resourceclaim-controller", self.concurrent_resourceclaim_syncs),
            ("endpointslice-controller", self.concurrent_service_endpoint_syncs),
            ("statefulset-controller", self.concurrent_statefulset_syncs),
            ("ttl-after-finished-controller", self.concurrent_ttl_after_finished_syncs),
            ("endpointslice-mirroring-controller", self.mirroring_concurrent_service_endpoint_syncs),
        ]
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Command {
        #[command(flatten)]
        running: Running,
    }

    fn read(flags: &[&str]) -> Running {
        Command::try_parse_from([&["test"], flags].concat()).unwrap().running
    }

    #[test]
    fn flags_of_kube_controller_manager_are_understood() {
        let running = read(&["--controllers=-cronjob,*", "--use-service-account-credentials=true"]);
        assert!(running.use_service_account_credentials && running.selected().is_ok());
        assert!(!read(&["--use-service-account-credentials=false"]).use_service_account_credentials);
        let workers = read(&["--concurrent-job-syncs=3"]).workers();
        assert_eq!(workers, BTreeMap::from([("job-controller", 3)]));
        assert!(Command::try_parse_from(["test", "--concurrent-job-syncs=0"]).is_err());
        let error = format!("{:#}", read(&["--controllers=jobs"]).selected().unwrap_err());
        assert!(error.starts_with("cannot use --controllers: no controller is named \"jobs\""), "{error}");
    }

    #[test]
    fn workers_are_those_of_controllers_that_exist() {
        for (name, _) in read(&[]).workers.given() {
            assert!(controllers_manager::select([name]).is_ok(), "{name}");
        }
    }
}
