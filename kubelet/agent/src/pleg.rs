//! The pod lifecycle event generator: lists the runtime periodically and refreshes the pods whose containers
//! have changed. Hints only trigger an early relist; decisions are based on the lists alone.

use std::{collections::BTreeMap, sync::Arc};

use kubelet_cri::{ContainerState, ContainerSummary, SandboxState, SandboxSummary, labels};
use tokio::{task::JoinSet, time::Instant};
use tokio_util::sync::CancellationToken;
use tracing::debug;

use crate::{agent::Agent, limits};

/// Relists the runtime until shutdown.
pub(crate) async fn run(agent: Arc<Agent>, shutdown: CancellationToken) {
    let mut hints = agent.runtime.hints();
    let mut hinting = true;
    // Refreshes end with this task.
    let mut refreshes = JoinSet::new();
    loop {
        hints.mark_unchanged();
        relist(&agent, &mut refreshes).await;
        while refreshes.try_join_next().is_some() {}
        tokio::select! {
            biased;
            () = shutdown.cancelled() => return,
            () = tokio::time::sleep(limits::RELIST) => {}
            () = agent.relist.notified() => {}
            changed = hints.changed(), if hinting => {
                hinting = changed.is_ok();
                tokio::time::sleep(limits::HINT_PAUSE).await;
            }
        }
    }
}

async fn relist(agent: &Arc<Agent>, refreshes: &mut JoinSet<()>) {
    let began = Instant::now();
    let lists = tokio::join!(agent.runtime.list_pod_sandboxes(None), agent.runtime.list_containers(None));
    let (sandboxes, containers) = match lists {
        (Ok(sandboxes), Ok(containers)) => (sandboxes, containers),
        (Err(error), _) | (_, Err(error)) => {
            agent.metrics.relisted(false);
            debug!(%error, "cannot list the runtime");
            return;
        }
    };
    agent.metrics.relisted(true);
    agent.metrics.relist.observe(began.elapsed().as_secs_f64());
    count(agent, &sandboxes, &containers);
    compare(agent, &sandboxes, &containers, refreshes);
}

fn count(agent: &Agent, sandboxes: &[SandboxSummary], containers: &[ContainerSummary]) {
    let number = |n: usize| i64::try_from(n).unwrap_or(i64::MAX);
    let ready = sandboxes.iter().filter(|sandbox| sandbox.state == SandboxState::Ready).count();
    let running = containers.iter().filter(|container| container.state == ContainerState::Running).count();
    agent.metrics.running_pods.set(number(ready));
    agent.metrics.running_containers.set(number(running));
}

type Listed<'a> = (Vec<&'a SandboxSummary>, Vec<&'a ContainerSummary>);

fn compare(
    agent: &Arc<Agent>,
    sandboxes: &[SandboxSummary],
    containers: &[ContainerSummary],
    refreshes: &mut JoinSet<()>,
) {
    let mut by_pod: BTreeMap<&str, Listed<'_>> = BTreeMap::new();
    for sandbox in sandboxes {
        by_pod.entry(&sandbox.uid).or_default().0.push(sandbox);
    }
    for container in containers {
        let uid = container.labels.get(labels::POD_UID).map_or("", String::as_str);
        by_pod.entry(uid).or_default().1.push(container);
    }
    let tracked_pods: Vec<_> = agent.tracked_pods().values().cloned().collect();
    for tracked in tracked_pods {
        let (sandboxes, containers) = by_pod.remove(tracked.place.uid.as_str()).unwrap_or_default();
        if tracked.differs(&sandboxes, &containers) {
            let agent = Arc::clone(agent);
            // In a task of its own, so that a pod whose containers hang does not delay others.
            refreshes.spawn(async move {
                if let Err(error) = tracked.refresh(&agent).await {
                    debug!(pod = tracked.place.name, %error, "cannot refresh a pod");
                }
            });
        }
    }
}
