//! Starts sandboxes and containers and pulls images.

use std::{sync::Arc, time::Duration};

use apiserver_meta::error_chain;
use k8s_openapi::api::core::v1::{Container, Pod, Secret};
use kubelet_cri::{Credentials, Image, SandboxConfig};
use tokio::sync::OnceCell;
use tracing::{debug, warn};

use super::Worker;
use crate::{
    limits,
    pod::{
        self, Role, env,
        plan::{Start, WHOLE_POD},
        resolv, resources, security, spec, unsupported,
    },
};

/// Maximum duration of a postStart hook.
const POST_START: Duration = Duration::from_secs(600);

impl Worker {
    pub(super) async fn create_sandbox(&mut self, attempt: u32) {
        if !self.prepare().await {
            return;
        }
        let pod = self.tracked.pod();
        let config = match self.sandbox(&pod, attempt).await {
            Ok(config) => config,
            Err(why) => return self.sandbox_failed(&pod, &why),
        };
        let result = {
            let Ok(_permit) = self.agent.starts.acquire().await else { return };
            self.agent.runtime.run_pod_sandbox(&config).await
        };
        match result {
            Ok(id) => {
                debug!(pod = %self.tracked.place.name, id, "sandbox started");
                self.last_failure = None;
                self.tracked.change(|state| state.failures.remove(WHOLE_POD));
            }
            Err(error) => self.sandbox_failed(&pod, &error.to_string()),
        }
    }

    fn sandbox_failed(&mut self, pod: &Pod, why: &str) {
        let message = format!("Failed to create pod sandbox: {why}");
        self.agent.event(pod, None, "FailedCreatePodSandBox", message.clone());
        self.fail_pod("FailedCreatePodSandBox", &message);
    }

    /// Returns the configuration of the pod's sandbox; the error is a message for the user.
    async fn sandbox(&self, pod: &Pod, attempt: u32) -> Result<SandboxConfig, String> {
        unsupported::check_sandbox(pod)?;
        let cluster = &self.agent.config.cluster_dns;
        let hostname =
            if pod::host_network(pod) { String::new() } else { resolv::kernel_hostname(pod, cluster)? };
        if let Some(warning) = resolv::missing_servers(pod, cluster) {
            self.agent.event(pod, None, "MissingClusterDNS", warning);
        }
        let node = resolv::parse(&self.agent.machine.info().resolv_conf);
        Ok(spec::sandbox_config(spec::SandboxInput {
            pod,
            attempt,
            hostname,
            dns: resolv::dns(pod, cluster, &node),
            cgroup_parent: self.tracked.place.cgroup.clone(),
            log_directory: self
                .agent
                .machine
                .log_directory(&self.tracked.place)
                .to_string_lossy()
                .into_owned(),
            runtime_handler: self.handler(pod).await.map_err(|error| error_chain(&error))?.name,
        }))
    }

    /// Starts a container, or records why it could not be started.
    pub(super) async fn start(&mut self, start: &Start) {
        let pod = self.tracked.pod();
        let Some(container) = find(&pod, start) else { return };
        if !self.prepare().await {
            return;
        }
        let result = self.try_start(&pod, &container, start).await;
        self.refresh().await;
        if let Some(finished) = start.finished {
            let mut state = self.tracked.state();
            // The back-off advances only when an attempt is made.
            if state.runtime.newest(&container.name).is_some_and(|newest| newest.attempt == start.attempt) {
                state.backoff.restarted(&container.name, finished);
            }
        }
        if let Err((reason, message, pause)) = result {
            let image = container.image.as_deref().unwrap_or_default();
            for event in events_of(reason, &message, image) {
                self.agent.event(&pod, Some(&container.name), event.0, event.1);
            }
            self.fail(&container.name, reason, &message, pause);
        }
    }

    async fn try_start(&mut self, pod: &Pod, container: &Container, start: &Start) -> Result<(), Refusal> {
        let Some((sandbox_id, sandbox_attempt)) = self.ready_sandbox() else { return Ok(()) };
        let image = self.image(pod, container).await?;
        let config_error = |message| ("CreateContainerConfigError", message, limits::RETRY * 5);
        security::verify_non_root(pod, container, &image).map_err(config_error)?;
        self.check_added(pod, container, start).map_err(config_error)?;
        let sources = self.sources.clone().unwrap_or_default();
        let ips = self.pod_ips();
        let environment = env::environment(pod, container, &sources, &self.context(&ips))
            .map_err(|error| config_error(error.to_string()))?;
        let mounts = self
            .mounts(pod, container, start.attempt, &environment)
            .await
            .map_err(|error| config_error(error_chain(&error)))?;
        let info = self.agent.machine.info();
        let config = spec::container_config(spec::ContainerInput {
            pod,
            role: start.role,
            container,
            attempt: start.attempt,
            image: &image.id,
            environment,
            mounts,
            resources: resources::container_resources(pod, container, info.memory),
            target: self.target(pod, start),
            seccomp_profiles: &self.agent.config.seccomp_profiles,
        })
        .map_err(|error| config_error(error.to_string()))?;
        let sandbox = self.sandbox(pod, sandbox_attempt).await.map_err(config_error)?;
        // After a resize that needs a restart the cgroup may still be too small.
        self.widen_pod(pod).await.map_err(config_error)?;
        let id = {
            let _permit = self.agent.starts.acquire().await;
            let created = self.agent.runtime.create_container(&sandbox_id, &config, &sandbox).await;
            let id =
                created.map_err(|error| ("CreateContainerError", error.to_string(), limits::BACKOFF_MIN))?;
            self.agent.event(
                pod,
                Some(&container.name),
                "Created",
                format!("Created container: {}", container.name),
            );
            let granted = container.resources.clone().unwrap_or_default();
            self.tracked.state().resize.actuated.insert(id.clone(), granted);
            let post_start = container.lifecycle.as_ref().and_then(|lifecycle| lifecycle.post_start.as_ref());
            if post_start.is_some() {
                self.tracked.state().probes.update(&id, |probed| probed.hooked = Some(false));
            }
            // A failed start leaves a dead container behind; its back-off is that of a restart.
            let started = self.agent.runtime.start_container(&id).await;
            started.map_err(|error| ("RunContainerError", error.message, limits::RETRY))?;
            id
        };
        self.agent.event(
            pod,
            Some(&container.name),
            "Started",
            format!("Started container {}", container.name),
        );
        self.tracked.change(|state| state.failures.remove(&container.name));
        self.run_post_start(pod, container, &id).await;
        Ok(())
    }

    /// Checks a container that was added to the pod after admission, and refuses it if it cannot be run as
    /// requested. Other containers of the pod are not affected.
    fn check_added(&self, pod: &Pod, container: &Container, start: &Start) -> Result<(), String> {
        let added = pod::ephemeral_containers(pod).find(|ephemeral| ephemeral.name == start.name);
        if let Some(field) = added.and_then(unsupported::unsupported_in_ephemeral) {
            return Err(format!("{field} is not supported by this kubelet"));
        }
        security::check_apparmor_of(pod, container, self.agent.machine.info().apparmor)
    }

    async fn run_post_start(&self, pod: &Pod, container: &Container, id: &str) {
        let Some(handler) = container.lifecycle.as_ref().and_then(|lifecycle| lifecycle.post_start.as_ref())
        else {
            return;
        };
        // The API should show the container as running while its hook runs.
        self.refresh().await;
        self.tracked.state().probes.update(id, |probed| probed.hooked = Some(false));
        match self.hook(handler, container, id, POST_START).await {
            Ok(()) => self.tracked.probed(id, |probed| probed.hooked = Some(true)),
            Err(why) => {
                let message = format!("PostStartHook failed: {why}");
                self.agent.event(pod, Some(&container.name), "FailedPostStartHook", message);
                if let Err(error) = self.agent.runtime.stop_container(id, limits::MIN_GRACE).await {
                    warn!(%error, "cannot stop a container whose hook failed");
                }
            }
        }
    }

    fn ready_sandbox(&self) -> Option<(String, u32)> {
        let state = self.tracked.state();
        let sandbox = state.runtime.ready_sandbox()?;
        Some((sandbox.summary.id.clone(), sandbox.summary.attempt))
    }

    /// Returns the id of the container whose processes an ephemeral container can see.
    fn target(&self, pod: &Pod, start: &Start) -> Option<String> {
        let ephemeral = pod::ephemeral_containers(pod).find(|ephemeral| ephemeral.name == start.name)?;
        let target = ephemeral.target_container_name.as_deref()?;
        Some(self.tracked.state().runtime.newest(target)?.id.clone())
    }

    /// Returns the image on the node, pulling it if the pull policy requires that.
    async fn image(&self, pod: &Pod, container: &Container) -> Result<Image, Refusal> {
        let name = container.image.clone().unwrap_or_default();
        let inspect = async || {
            let status = self.agent.runtime.image_status(&name).await;
            status.map_err(|error| ("ImageInspectError", error.to_string(), limits::RETRY))
        };
        let policy = container.image_pull_policy.as_deref().unwrap_or_else(|| default_pull_policy(&name));
        let present = inspect().await?;
        match (policy, present) {
            ("Never" | "IfNotPresent", Some(image)) => {
                let message = format!("Container image \"{name}\" already present on machine");
                self.agent.event(pod, Some(&container.name), "Pulled", message);
                return Ok(image);
            }
            ("Never", None) => {
                let message = format!("Container image \"{name}\" is not present with pull policy of Never");
                return Err(("ErrImageNeverPull", message, limits::BACKOFF_MIN));
            }
            _ => {}
        }
        self.agent.event(pod, Some(&container.name), "Pulling", format!("Pulling image \"{name}\""));
        if let Err(why) = self.pull(pod, &name).await {
            return Err(self.pull_refusal(container, &name, why));
        }
        self.agent.event(
            pod,
            Some(&container.name),
            "Pulled",
            format!("Successfully pulled image \"{name}\""),
        );
        let vanished =
            || (ERR_IMAGE_PULL, format!("image {name} vanished after it was pulled"), limits::RETRY);
        inspect().await?.ok_or_else(vanished)
    }

    /// Returns the reason of a failed pull: the cause on the first failure, the back-off on later ones.
    fn pull_refusal(&self, container: &Container, image: &str, why: String) -> Refusal {
        let now = self.agent.ambient.now();
        let key = format!("image/{}", container.name);
        let mut state = self.tracked.state();
        let first = !state.failures.contains_key(&container.name);
        state.backoff.restarted(&key, now);
        let pause = state.backoff.pause(&key);
        if first {
            (ERR_IMAGE_PULL, why, pause)
        } else {
            (
                IMAGE_PULL_BACK_OFF,
                format!("Back-off pulling image \"{image}\": {ERR_IMAGE_PULL}: {why}"),
                pause,
            )
        }
    }

    /// Pulls an image; concurrent requests for the same image share one pull.
    async fn pull(&self, pod: &Pod, image: &str) -> Result<(), String> {
        let pull = {
            let mut pulls = self.agent.pulls.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
            Arc::clone(pulls.entry(image.to_owned()).or_insert_with(|| Arc::new(OnceCell::new())))
        };
        let credentials = self.credentials(pod, image);
        let result = pull
            .get_or_init(|| async {
                let pulled = self.agent.runtime.pull_image(image, credentials.as_ref()).await;
                pulled.map_err(|error| error.message)
            })
            .await
            .clone();
        self.agent.pulls.lock().unwrap_or_else(std::sync::PoisonError::into_inner).remove(image);
        result.map(drop)
    }

    /// Returns the credentials for the image's registry from the pod's pull secrets.
    fn credentials(&self, pod: &Pod, image: &str) -> Option<Credentials> {
        let secrets = &self.sources.as_ref()?.secrets;
        let registry = registry_of(image);
        let named = pod::spec(pod).image_pull_secrets.iter().flatten();
        named
            .filter_map(|reference| secrets.get(&reference.name))
            .find_map(|secret| credentials(secret, &registry))
    }
}

/// Reason, message, and delay before the next attempt.
type Refusal = (&'static str, String, Duration);

const ERR_IMAGE_PULL: &str = "ErrImagePull";
const IMAGE_PULL_BACK_OFF: &str = "ImagePullBackOff";

/// Returns reasons and messages of the events for a refusal, split as in the Kubernetes kubelet: the failure
/// itself once per attempt, and the back-off with a constant message.
fn events_of(reason: &'static str, message: &str, image: &str) -> Vec<(&'static str, String)> {
    let pulling = format!("Back-off pulling image \"{image}\"");
    let error = ("Failed", format!("Error: {reason}"));
    let failed = |why: &str| ("Failed", format!("Failed to pull image \"{image}\": {why}"));
    match reason {
        ERR_IMAGE_PULL => vec![failed(message), error],
        IMAGE_PULL_BACK_OFF => {
            let why = message.strip_prefix(&format!("{pulling}: {ERR_IMAGE_PULL}: ")).unwrap_or(message);
            vec![failed(why), ("BackOff", pulling), error]
        }
        "ErrImageNeverPull" => vec![(reason, message.to_owned()), error],
        "ImageInspectError" => {
            vec![("InspectFailed", format!("Failed to inspect image \"{image}\": {message}")), error]
        }
        _ => vec![("Failed", format!("Error: {message}"))],
    }
}

fn find(pod: &Pod, start: &Start) -> Option<Container> {
    if start.role == Role::Ephemeral {
        let ephemeral = pod::ephemeral_containers(pod).find(|ephemeral| ephemeral.name == start.name)?;
        return Some(pod::ephemeral_as_container(ephemeral));
    }
    pod::container(pod, &start.name).map(|(_, container)| container.clone())
}

/// Returns the pull policy that the API sets by default; `latest` may change at any time.
fn default_pull_policy(image: &str) -> &'static str {
    let name = image.rsplit('/').next().unwrap_or_default();
    let tagged = name.contains('@') || name.split_once(':').is_some_and(|(_, tag)| tag != "latest");
    if tagged { "IfNotPresent" } else { "Always" }
}

fn registry_of(image: &str) -> String {
    match image.split_once('/') {
        Some((host, _)) if host.contains(['.', ':']) || host == "localhost" => host.to_owned(),
        _ => "docker.io".to_owned(),
    }
}

/// Returns the entry for a registry in a `kubernetes.io/dockerconfigjson` Secret.
fn credentials(secret: &Secret, registry: &str) -> Option<Credentials> {
    let data = secret.data.as_ref()?.get(".dockerconfigjson")?;
    let config: serde_json::Value = serde_json::from_slice(&data.0).ok()?;
    let host_of = |key: &str| {
        let bare = key.trim_start_matches("https://").trim_start_matches("http://");
        match bare.split('/').next().unwrap_or_default() {
            "index.docker.io" => "docker.io".to_owned(),
            host => host.to_owned(),
        }
    };
    let (_, entry) = config["auths"].as_object()?.iter().find(|(key, _)| host_of(key) == registry)?;
    let text = |field: &str| entry[field].as_str().unwrap_or_default().to_owned();
    Some(Credentials { username: text("username"), password: text("password"), auth: text("auth") })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_default_pull_policy_follows_the_tag() {
        for (image, policy) in [
            ("busybox", "Always"),
            ("busybox:latest", "Always"),
            ("localhost:5000/busybox", "Always"),
            ("busybox:1", "IfNotPresent"),
            ("busybox@sha256:1", "IfNotPresent"),
        ] {
            assert_eq!(default_pull_policy(image), policy, "{image}");
        }
    }

    #[test]
    fn the_back_off_event_of_pulls_has_a_constant_message() {
        let row = |reason, message: &str| {
            let events = events_of(reason, message, "a:1").into_iter();
            events.map(|(reason, message)| format!("{reason}: {message}")).collect::<Vec<_>>()
        };
        let failed = "Failed: Failed to pull image \"a:1\": no such host";
        assert_eq!(row(ERR_IMAGE_PULL, "no such host"), [failed, "Failed: Error: ErrImagePull"]);
        let pause = "Back-off pulling image \"a:1\": ErrImagePull: no such host";
        let expected = [failed, "BackOff: Back-off pulling image \"a:1\"", "Failed: Error: ImagePullBackOff"];
        assert_eq!(row(IMAGE_PULL_BACK_OFF, pause), expected);
        let never = "Container image \"a:1\" is not present with pull policy of Never";
        let expected = [&format!("ErrImageNeverPull: {never}"), "Failed: Error: ErrImageNeverPull"];
        assert_eq!(row("ErrImageNeverPull", never), expected);
        assert_eq!(row("CreateContainerConfigError", "no key"), ["Failed: Error: no key"]);
    }

    #[test]
    fn pull_secrets_are_chosen_by_registry() {
        let config = json!({"auths": {"https://index.docker.io/v1/": {"auth": "a"}, "example.com": {"username": "u", "password": "p"}}});
        let mut secret = Secret::default();
        let data = k8s_openapi::ByteString(config.to_string().into_bytes());
        secret.data = Some(std::collections::BTreeMap::from([(".dockerconfigjson".to_owned(), data)]));
        let find = |image: &str| credentials(&secret, &registry_of(image));
        assert_eq!(find("busybox").unwrap().auth, "a");
        assert_eq!(find("example.com/x:1").unwrap().username, "u");
        assert!(find("other.com/x").is_none());
    }
}
