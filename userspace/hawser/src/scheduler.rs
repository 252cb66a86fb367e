//! `hawser scheduler`: the scheduler as a process of its own, against any Kubernetes.

use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, Result, bail};
use apiserver_client::requests::Requests;
use apiserver_client::{Informers, connect_counted};
use apiserver_meta::ambient::Ambient;
use controllers_runtime::{Lane, LeaderElection};
use controllers_scheduler::Config;
use controllers_scheduler::config::{API_VERSION, Configuration, ElectionSettings, KIND, with_defaults};
use controllers_scheduler::extenders::Extenders;
use serde_json::{Value, json};
use tracing::warn;
use userspace_daemon::shutdown;

use crate::args::Scheduler;
use crate::components::{identity, read, server};
use crate::controllers_metrics::Election;
use crate::node;
use crate::scheduler_args::SchedulerFlags;
use crate::scheduler_metrics;

/// Name under which the scheduler reads and elects.
const SCHEDULER: &str = "kube-scheduler";

/// Runs until a signal, or until the lease is lost.
pub async fn scheduler(args: Scheduler) -> Result<()> {
    let Scheduler { config, scheduler_name, flags, secure_port, probes } = args;
    let ambient = Ambient::system();
    let document = document(config.as_deref(), &scheduler_name, &flags)?;
    let (gates, others) = flags.gates()?;
    if !others.is_empty() {
        warn!(gates = others.join(", "), "feature gates have no effect");
    }
    let mut configuration = Configuration::with_gates(document.clone(), gates)?;
    let extenders = std::mem::take(&mut configuration.extenders);
    let kubeconfig = configuration.kubeconfig.clone();
    let (mut config, ignored) = of_configuration(configuration, &flags, &identity(&ambient))?;
    config.host = node::host_name();
    config.extenders = Extenders::connect(extenders).await.context("couldn't build extenders")?;
    if !ignored.is_empty() {
        warn!(fields = ignored.join(", "), "fields of the configuration have no effect");
    }
    if kubeconfig.is_empty() {
        bail!("--kubeconfig is missing, and the file of --config has none");
    }
    let kubeconfig = Path::new(&kubeconfig);
    let stop = shutdown::on_signal()?;
    let requests = Requests::new(&server(kubeconfig).unwrap_or_default());
    let client = connect_counted(kubeconfig, SCHEDULER, &requests).await?;
    let shown = config.leader_election.as_ref().map(|election| Election {
        lease: election.name.clone(),
        duration: election.lease_duration,
        status: election.status.clone(),
    });
    let document = with_defaults(document, gates);
    let pages = scheduler_metrics::pages(&document, &config.metrics, &requests, shown);
    probes.answer(secure_port, pages.for_users_of(client.clone()), &stop).await?;
    if let Some(election) = &mut config.leader_election {
        // Connections of its own: nothing that the scheduler sends delays a renewal.
        election.lane = Lane(Some(connect_counted(kubeconfig, SCHEDULER, &requests).await?));
    }
    let informers = Informers::new(client, ambient.clone(), stop.clone());
    // On a thread of the runtime: the loop and the tasks that read and write for it wake each other for each pod, and the
    // thread that waits for this future would have to be woken by the kernel.
    let work = tokio::spawn(controllers_scheduler::run(config, informers, ambient, stop));
    work.await.context("the scheduler failed")?.context("the scheduler ended")
}

/// Returns the document that the file and the flags ask for.
fn document(file: Option<&Path>, name: &str, flags: &SchedulerFlags) -> Result<Value> {
    let mut document = match file {
        None => json!({"apiVersion": API_VERSION, "kind": KIND, "profiles": [{"schedulerName": name}]}),
        Some(file) => Configuration::read(&read(file)?)
            .with_context(|| format!("cannot use --config {}", file.display()))?,
    };
    flags.apply_to(&mut document)?;
    let idle = flags.without_effect();
    if !idle.is_empty() {
        warn!(flags = idle.join(", "), "flags have no effect");
    }
    Ok(document)
}

/// Returns the configuration of the loop without its extenders, and the fields without effect.
fn of_configuration(
    configuration: Configuration,
    flags: &SchedulerFlags,
    identity: &str,
) -> Result<(Config, Vec<&'static str>)> {
    let Configuration { profiles, mut queue, gates, extenders: _, kubeconfig: _, leader_election, ignored } =
        configuration;
    if let Some(time) = flags.max_parked()? {
        queue.max_parked = time;
    }
    let leader_election = election(leader_election, identity)?;
    let profiles = Arc::from(profiles);
    Ok((Config { profiles, queue, gates, leader_election, ..Config::default() }, ignored))
}

/// Returns the election; `None` if this is the only instance.
fn election(settings: ElectionSettings, identity: &str) -> Result<Option<LeaderElection>> {
    let default = LeaderElection::new(SCHEDULER, identity);
    if settings.leader_elect == Some(false) {
        return Ok(None);
    }
    let filled =
        |given: Option<String>, default: String| given.filter(|name| !name.is_empty()).unwrap_or(default);
    let election = LeaderElection {
        namespace: filled(settings.resource_namespace, default.namespace),
        name: filled(settings.resource_name, default.name),
        lease_duration: settings.lease_duration.unwrap_or(default.lease_duration),
        renew_deadline: settings.renew_deadline.unwrap_or(default.renew_deadline),
        retry_period: settings.retry_period.unwrap_or(default.retry_period),
        ..LeaderElection::new(SCHEDULER, identity)
    };
    if election.lease_duration <= election.renew_deadline {
        bail!("leaderElection.leaseDuration: LeaseDuration must be greater than RenewDeadline");
    }
    if election.renew_deadline <= election.retry_period {
        bail!("leaderElection.renewDeadline: RenewDeadline must be greater than RetryPeriod");
    }
    Ok(Some(election))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn config(fields: Value) -> Result<Config> {
        let mut document = json!({"apiVersion": API_VERSION, "kind": KIND});
        document.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        let configuration = Configuration::from_value(document)?;
        Ok(of_configuration(configuration, &SchedulerFlags::default(), "us")?.0)
    }

    #[test]
    fn election_has_the_times_of_the_document() {
        let found =
            config(json!({"leaderElection": {"leaseDuration": "30s", "resourceName": "mine"}})).unwrap();
        let found = found.leader_election.unwrap();
        assert_eq!((found.name.as_str(), found.namespace.as_str()), ("mine", "kube-system"));
        assert_eq!(
            (found.lease_duration, found.renew_deadline),
            (Duration::from_secs(30), Duration::from_secs(10))
        );
        assert!(config(json!({"leaderElection": {"leaderElect": false}})).unwrap().leader_election.is_none());
    }

    #[test]
    fn times_of_the_election_that_overlap_are_refused() {
        for (field, value) in [("leaseDuration", "10s"), ("renewDeadline", "2s")] {
            let error = config(json!({"leaderElection": {field: value}})).unwrap_err().to_string();
            assert!(error.starts_with(&format!("leaderElection.{field}: ")), "{error}");
        }
    }

    #[test]
    fn extenders_make_the_queue_remember_all_events() {
        let found = config(json!({"extenders": [{"urlPrefix": "http://a", "filterVerb": "f"}]})).unwrap();
        assert!(found.queue.has_extenders);
    }

    #[test]
    fn name_of_the_scheduler_is_that_of_the_only_profile() {
        let document = document(None, "mine", &SchedulerFlags::default()).unwrap();
        let profiles = Configuration::from_value(document).unwrap().profiles;
        assert_eq!(profiles.iter().map(|profile| profile.name.as_str()).collect::<Vec<_>>(), ["mine"]);
    }
}
