//! Applies the granted resources of a pod to its running containers.

use apiserver_meta::error_chain;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Container, Pod};
use kubelet_cri::Resources;
use tracing::debug;

use super::Worker;
use crate::{
    limits,
    pod::{
        self,
        plan::Resized,
        resize::{Change, EventText},
        resources,
    },
};

impl Worker {
    /// Changes the limits of running containers, decreases first, so that the pod's own limit holds.
    pub(super) async fn resize(&self, wanted: &[Resized]) {
        let pod = self.tracked.pod();
        if let Err(message) = self.try_resize(&pod, wanted).await {
            self.resize_failed(&pod, message);
        }
    }

    async fn try_resize(&self, pod: &Pod, wanted: &[Resized]) -> Result<(), String> {
        let memory = self.agent.machine.info().memory;
        let mut changes: Vec<(&Resized, &Container, Resources)> = wanted
            .iter()
            .filter_map(|wanted| {
                let (_, container) = pod::container(pod, &wanted.name)?;
                Some((wanted, container, resources::container_resources(pod, container, memory)))
            })
            .collect();
        self.check_memory(pod, &changes).await?;
        self.widen_pod(pod).await?;
        changes.sort_by_key(|(wanted, container, _)| self.grows(&wanted.id, container));
        for (wanted, container, resources) in changes {
            let updated = self.agent.runtime.update_container_resources(&wanted.id, &resources).await;
            updated.map_err(|error| error.to_string())?;
            debug!(pod = %self.tracked.place.name, container = wanted.name, "container is resized");
            let granted = container.resources.clone().unwrap_or_default();
            self.tracked.change(|state| state.resize.actuated.insert(wanted.id.clone(), granted));
        }
        Ok(())
    }

    /// Returns `true` if any limit of a container is increased.
    fn grows(&self, id: &str, container: &Container) -> bool {
        let state = self.tracked.state();
        let before = Container { resources: state.resize.actuated.get(id).cloned(), ..Container::default() };
        ["cpu", "memory"].into_iter().any(|name| {
            let limit = |container| resources::limit(container, name).unwrap_or(i64::MAX);
            limit(container) > limit(&before)
                || resources::request(container, name) > resources::request(&before, name)
        })
    }

    /// Refuses memory limits below the current usage, since the kernel would kill processes.
    async fn check_memory(
        &self,
        pod: &Pod,
        changes: &[(&Resized, &Container, Resources)],
    ) -> Result<(), String> {
        let mut problems = Vec::new();
        let limit = resources::pod_resources(pod).memory_limit;
        let before = self.tracked.state().cgroup.map_or(0, |cgroup| cgroup.memory_limit);
        let pod_cgroup = &self.tracked.place.cgroup;
        if is_lower(limit, before)
            && let Some(used) = self.used(pod_cgroup).await.filter(|used| *used >= limit)
        {
            problems
                .push(format!("attempting to set pod memory limit ({limit}) below current usage ({used})"));
        }
        for (wanted, container, resources) in changes {
            let before = {
                let state = self.tracked.state();
                let resources = state.resize.actuated.get(&wanted.id).cloned();
                resources::limit(&Container { resources, ..Container::default() }, "memory")
                    .unwrap_or_default()
            };
            let limit = resources.memory_limit;
            if is_lower(limit, before)
                && let Some(used) = self.used(&format!("{pod_cgroup}/{}", wanted.id)).await
                && used >= limit
            {
                problems.push(format!(
                    "attempting to set container {:?} memory limit ({limit}) below current usage ({used})",
                    container.name
                ));
            }
        }
        match problems.as_slice() {
            [] => Ok(()),
            [one] => Err(format!("cannot decrease memory limits: {one}")),
            all => Err(format!("cannot decrease memory limits: [{}]", all.join(", "))),
        }
    }

    async fn used(&self, cgroup: &str) -> Option<i64> {
        let usage = self.agent.machine.usage(cgroup).await?;
        i64::try_from(usage.memory).ok()
    }

    /// Raises the limits of the pod's cgroup to what its containers need, without lowering any.
    pub(super) async fn widen_pod(&self, pod: &Pod) -> Result<(), String> {
        let wanted = resources::pod_resources(pod);
        let before = self.tracked.state().cgroup.unwrap_or(wanted);
        self.set_cgroup(pod, resources::wider(before, wanted)).await
    }

    async fn set_cgroup(&self, pod: &Pod, wanted: Resources) -> Result<(), String> {
        if self.tracked.state().cgroup == Some(wanted) {
            return Ok(());
        }
        debug!(pod = pod::name(pod), ?wanted, "resizing a pod's cgroup");
        let set = self.agent.machine.set_up_pod(&self.tracked.place, &wanted).await;
        set.map_err(|error| error_chain(&error))?;
        self.tracked.state().cgroup = Some(wanted);
        Ok(())
    }

    /// Completes a resize once no running container waits for it; returns when to retry after a failure.
    pub(super) async fn finish_resize(&self, now: Timestamp) -> Option<Timestamp> {
        let pod = {
            let state = self.tracked.state();
            state.resize.in_progress.as_ref()?;
            if let Some(at) = state.resize.retry_at.filter(|at| *at > now) {
                return Some(at);
            }
            let waits = pod::all_containers(&state.pod).any(|(_, container)| {
                let newest = state.runtime.newest(&container.name);
                let running = newest.filter(|c| c.state == kubelet_cri::ContainerState::Running);
                running.is_some_and(|c| state.resize.change(&c.id, container) != Change::None)
            });
            if waits {
                return None;
            }
            std::sync::Arc::clone(&state.pod)
        };
        // The pod's limit is lowered last, because the kernel may refuse one below those of its containers.
        if let Err(message) = self.set_cgroup(&pod, resources::pod_resources(&pod)).await {
            return Some(self.resize_failed(&pod, message));
        }
        let event = self.tracked.change(|state| {
            // Resources granted in the meantime are a new resize.
            let same = std::sync::Arc::ptr_eq(&state.pod, &pod) || state.pod.spec == pod.spec;
            if same { state.resize.complete(&pod) } else { None }
        });
        self.record_resize_event(&pod, event);
        None
    }

    fn resize_failed(&self, pod: &Pod, message: String) -> Timestamp {
        let now = self.agent.ambient.now();
        let retry_at = now.saturating_add(limits::RETRY * 5).unwrap_or(Timestamp::MAX);
        let event = self.tracked.change(|state| state.resize.fail(pod, message, now, retry_at));
        self.record_resize_event(pod, event);
        retry_at
    }

    fn record_resize_event(&self, pod: &Pod, event: Option<EventText>) {
        if let Some((reason, message)) = event {
            self.agent.event(pod, None, reason, message);
        }
    }
}

/// Returns `true` if a limit is lower than the previous one; zero means unlimited.
fn is_lower(limit: i64, before: i64) -> bool {
    limit > 0 && (before <= 0 || limit < before)
}
