//! Client of a runtime behind a Unix socket.

use std::{collections::BTreeMap, future::Future, path::Path, sync::Arc, time::Duration};

use async_trait::async_trait;
use tokio::sync::watch;
use tonic::{
    Code, Request, Status,
    transport::{Channel, Endpoint},
};
use tracing::debug;

use crate::{
    ContainerConfig, ContainerStatus, ContainerSummary, Credentials, ErrorKind, ExecOutput, Image, Resources,
    Result, Runtime, RuntimeError, RuntimeStatus, SandboxConfig, SandboxStatus, SandboxSummary,
    StreamOptions, Version,
    generated::{
        events::{SubscribeRequest, events_client::EventsClient},
        runtime::{
            self as wire, image_service_client::ImageServiceClient,
            runtime_service_client::RuntimeServiceClient,
        },
    },
    labels, limits,
};

/// The runtime's socket cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// The path of the socket is not valid as an address.
    #[error("{socket} is not the path of a socket")]
    Address {
        /// Path of the socket.
        socket: String,
        /// Cause of the failure.
        #[source]
        source: tonic::transport::Error,
    },
    /// The runtime did not answer.
    #[error("the container runtime at {socket} does not answer")]
    Version {
        /// Path of the socket.
        socket: String,
        /// Error of the call.
        #[source]
        source: RuntimeError,
    },
}

/// Client of a CRI runtime.
#[derive(Clone)]
pub struct CriRuntime {
    runtime: RuntimeServiceClient<Channel>,
    images: ImageServiceClient<Channel>,
    hints: watch::Receiver<u64>,
    /// Ends the subscription when the last clone is dropped.
    _subscription: Arc<Subscription>,
}

struct Subscription(tokio::task::JoinHandle<()>);

impl Drop for Subscription {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl CriRuntime {
    /// Connects and queries the version once. Connections that are lost later are re-established
    /// automatically.
    pub async fn connect(socket: &Path) -> std::result::Result<Self, ConnectError> {
        let name = socket.display().to_string();
        let endpoint = Endpoint::try_from(format!("unix://{name}"))
            .map_err(|source| ConnectError::Address { socket: name.clone(), source })?;
        let channel = endpoint.connect_lazy();
        let (sender, hints) = watch::channel(0);
        let subscription = tokio::spawn(subscribe(channel.clone(), sender));
        let this = Self {
            runtime: RuntimeServiceClient::new(channel.clone()).max_decoding_message_size(limits::ANSWER),
            images: ImageServiceClient::new(channel).max_decoding_message_size(limits::ANSWER),
            hints,
            _subscription: Arc::new(Subscription(subscription)),
        };
        match this.version().await {
            Ok(_) => Ok(this),
            Err(source) => Err(ConnectError::Version { socket: name, source }),
        }
    }
}

/// Subscribes to events of containerd, which reports starts and ends of tasks independently of CRI. Other
/// runtimes refuse the subscription, which is harmless.
async fn subscribe(channel: Channel, hints: watch::Sender<u64>) {
    loop {
        let request = SubscribeRequest { filters: vec!["namespace==k8s.io,topic~=\"^/tasks/\"".to_owned()] };
        match EventsClient::new(channel.clone()).subscribe(request).await {
            Ok(response) => {
                let mut stream = response.into_inner();
                // Events before the subscription have been missed.
                hints.send_modify(|count| *count += 1);
                while let Ok(Some(event)) = stream.message().await {
                    if !event.topic.starts_with("/tasks/exec") {
                        hints.send_modify(|count| *count += 1);
                    }
                }
            }
            Err(status) if status.code() == Code::Unimplemented => return,
            Err(status) => debug!(%status, "cannot subscribe to the events of containerd"),
        }
        tokio::time::sleep(limits::RESUBSCRIBE).await;
    }
}

/// Awaits an answer for at most `deadline`.
async fn call<T>(
    name: &'static str,
    deadline: Duration,
    future: impl Future<Output = std::result::Result<tonic::Response<T>, Status>> + Send,
) -> Result<T> {
    match tokio::time::timeout(deadline, future).await {
        Ok(Ok(response)) => Ok(response.into_inner()),
        Ok(Err(status)) => Err(error(name, &status)),
        Err(_) => {
            Err(RuntimeError::new(name, ErrorKind::Timeout, format_args!("no answer within {deadline:?}")))
        }
    }
}

fn error(call: &'static str, status: &Status) -> RuntimeError {
    let kind = match status.code() {
        Code::NotFound => ErrorKind::NotFound,
        Code::DeadlineExceeded => ErrorKind::Timeout,
        Code::Unavailable => ErrorKind::Unavailable,
        Code::Unimplemented => ErrorKind::Unimplemented,
        _ => ErrorKind::Failed,
    };
    RuntimeError::new(call, kind, status.message())
}

/// Treats a missing object as success, for calls that stop or remove it.
fn gone_is_fine(result: Result<()>) -> Result<()> {
    match result {
        Err(error) if error.is_not_found() => Ok(()),
        other => other,
    }
}

fn missing(call: &'static str) -> RuntimeError {
    RuntimeError::new(call, ErrorKind::Failed, "the answer is empty")
}

fn selector(pod_uid: Option<&str>) -> BTreeMap<String, String> {
    pod_uid.map(|uid| (labels::POD_UID.to_owned(), uid.to_owned())).into_iter().collect()
}

#[async_trait]
impl Runtime for CriRuntime {
    async fn version(&self) -> Result<Version> {
        let request = Request::new(wire::VersionRequest { version: "v1".to_owned() });
        let answer = call("Version", limits::SHORT_CALL, self.runtime.clone().version(request)).await?;
        Ok(Version {
            name: answer.runtime_name,
            version: answer.runtime_version,
            api: answer.runtime_api_version,
        })
    }

    async fn status(&self) -> Result<RuntimeStatus> {
        let request = wire::StatusRequest { verbose: false };
        Ok(call("Status", limits::SHORT_CALL, self.runtime.clone().status(request)).await?.into())
    }

    async fn run_pod_sandbox(&self, config: &SandboxConfig) -> Result<String> {
        let runtime_handler = config.runtime_handler.clone();
        let request = wire::RunPodSandboxRequest { config: Some(config.into()), runtime_handler };
        Ok(call("RunPodSandbox", limits::LONG_CALL, self.runtime.clone().run_pod_sandbox(request))
            .await?
            .pod_sandbox_id)
    }

    async fn stop_pod_sandbox(&self, id: &str) -> Result<()> {
        let request = wire::StopPodSandboxRequest { pod_sandbox_id: id.to_owned() };
        gone_is_fine(
            call("StopPodSandbox", limits::LONG_CALL, self.runtime.clone().stop_pod_sandbox(request))
                .await
                .map(drop),
        )
    }

    async fn remove_pod_sandbox(&self, id: &str) -> Result<()> {
        let request = wire::RemovePodSandboxRequest { pod_sandbox_id: id.to_owned() };
        let answer =
            call("RemovePodSandbox", limits::LONG_CALL, self.runtime.clone().remove_pod_sandbox(request))
                .await;
        gone_is_fine(answer.map(drop))
    }

    async fn pod_sandbox_status(&self, id: &str) -> Result<SandboxStatus> {
        let request = wire::PodSandboxStatusRequest { pod_sandbox_id: id.to_owned(), verbose: false };
        let answer =
            call("PodSandboxStatus", limits::SHORT_CALL, self.runtime.clone().pod_sandbox_status(request))
                .await?;
        Ok(answer.status.ok_or_else(|| missing("PodSandboxStatus"))?.into())
    }

    async fn list_pod_sandboxes(&self, pod_uid: Option<&str>) -> Result<Vec<SandboxSummary>> {
        let filter = wire::PodSandboxFilter { id: String::new(), label_selector: selector(pod_uid) };
        let request = wire::ListPodSandboxRequest { filter: Some(filter) };
        let answer =
            call("ListPodSandbox", limits::SHORT_CALL, self.runtime.clone().list_pod_sandbox(request))
                .await?;
        Ok(answer.items.into_iter().map(Into::into).collect())
    }

    async fn create_container(
        &self,
        sandbox_id: &str,
        config: &ContainerConfig,
        sandbox: &SandboxConfig,
    ) -> Result<String> {
        let request = wire::CreateContainerRequest {
            pod_sandbox_id: sandbox_id.to_owned(),
            config: Some(config.into()),
            sandbox_config: Some(sandbox.into()),
        };
        Ok(call("CreateContainer", limits::LONG_CALL, self.runtime.clone().create_container(request))
            .await?
            .container_id)
    }

    async fn start_container(&self, id: &str) -> Result<()> {
        let request = wire::StartContainerRequest { container_id: id.to_owned() };
        call("StartContainer", limits::LONG_CALL, self.runtime.clone().start_container(request))
            .await
            .map(drop)
    }

    async fn stop_container(&self, id: &str, grace: Duration) -> Result<()> {
        let timeout = grace.as_millis().div_ceil(1000).try_into().unwrap_or(i64::MAX);
        let request = wire::StopContainerRequest { container_id: id.to_owned(), timeout };
        let deadline = grace.saturating_add(limits::LONG_CALL);
        gone_is_fine(
            call("StopContainer", deadline, self.runtime.clone().stop_container(request)).await.map(drop),
        )
    }

    async fn remove_container(&self, id: &str) -> Result<()> {
        let request = wire::RemoveContainerRequest { container_id: id.to_owned() };
        gone_is_fine(
            call("RemoveContainer", limits::LONG_CALL, self.runtime.clone().remove_container(request))
                .await
                .map(drop),
        )
    }

    async fn container_status(&self, id: &str) -> Result<ContainerStatus> {
        let request = wire::ContainerStatusRequest { container_id: id.to_owned(), verbose: false };
        let answer =
            call("ContainerStatus", limits::SHORT_CALL, self.runtime.clone().container_status(request))
                .await?;
        Ok(answer.status.ok_or_else(|| missing("ContainerStatus"))?.into())
    }

    async fn list_containers(&self, pod_uid: Option<&str>) -> Result<Vec<ContainerSummary>> {
        let filter = wire::ContainerFilter { label_selector: selector(pod_uid), ..Default::default() };
        let request = wire::ListContainersRequest { filter: Some(filter) };
        let answer =
            call("ListContainers", limits::SHORT_CALL, self.runtime.clone().list_containers(request)).await?;
        Ok(answer.containers.into_iter().map(Into::into).collect())
    }

    async fn writable_layers(&self, pod_uid: Option<&str>) -> Result<BTreeMap<String, u64>> {
        let filter = wire::ContainerStatsFilter { label_selector: selector(pod_uid), ..Default::default() };
        let request = wire::ListContainerStatsRequest { filter: Some(filter) };
        let mut client = self.runtime.clone();
        let answer =
            call("ListContainerStats", limits::SHORT_CALL, client.list_container_stats(request)).await?;
        let layers = answer
            .stats
            .into_iter()
            .filter_map(|stats| Some((stats.attributes?.id, stats.writable_layer?.used_bytes?.value)));
        Ok(layers.collect())
    }

    async fn update_container_resources(&self, id: &str, resources: &Resources) -> Result<()> {
        let request = wire::UpdateContainerResourcesRequest {
            container_id: id.to_owned(),
            linux: Some(resources.into()),
        };
        let mut client = self.runtime.clone();
        call("UpdateContainerResources", limits::SHORT_CALL, client.update_container_resources(request))
            .await
            .map(drop)
    }

    async fn reopen_container_log(&self, id: &str) -> Result<()> {
        let request = wire::ReopenContainerLogRequest { container_id: id.to_owned() };
        call("ReopenContainerLog", limits::SHORT_CALL, self.runtime.clone().reopen_container_log(request))
            .await
            .map(drop)
    }

    async fn exec_sync(&self, id: &str, command: &[String], timeout: Duration) -> Result<ExecOutput> {
        let seconds = timeout.as_millis().div_ceil(1000).try_into().unwrap_or(i64::MAX);
        let request =
            wire::ExecSyncRequest { container_id: id.to_owned(), cmd: command.to_vec(), timeout: seconds };
        // A command without a timeout may run as long as the longest call.
        let deadline =
            if timeout.is_zero() { limits::EXEC } else { timeout.saturating_add(limits::SHORT_CALL) };
        let answer = call("ExecSync", deadline, self.runtime.clone().exec_sync(request)).await?;
        Ok(ExecOutput { exit_code: answer.exit_code, stdout: answer.stdout, stderr: answer.stderr })
    }

    async fn exec(&self, id: &str, command: &[String], options: StreamOptions) -> Result<String> {
        let request = wire::ExecRequest {
            container_id: id.to_owned(),
            cmd: command.to_vec(),
            tty: options.tty,
            stdin: options.stdin,
            stdout: options.stdout,
            stderr: options.stderr && !options.tty,
        };
        Ok(call("Exec", limits::SHORT_CALL, self.runtime.clone().exec(request)).await?.url)
    }

    async fn attach(&self, id: &str, options: StreamOptions) -> Result<String> {
        let request = wire::AttachRequest {
            container_id: id.to_owned(),
            tty: options.tty,
            stdin: options.stdin,
            stdout: options.stdout,
            stderr: options.stderr && !options.tty,
        };
        Ok(call("Attach", limits::SHORT_CALL, self.runtime.clone().attach(request)).await?.url)
    }

    async fn port_forward(&self, sandbox_id: &str, ports: &[i32]) -> Result<String> {
        let request =
            wire::PortForwardRequest { pod_sandbox_id: sandbox_id.to_owned(), port: ports.to_vec() };
        Ok(call("PortForward", limits::SHORT_CALL, self.runtime.clone().port_forward(request)).await?.url)
    }

    async fn list_images(&self) -> Result<Vec<Image>> {
        let answer = call(
            "ListImages",
            limits::SHORT_CALL,
            self.images.clone().list_images(wire::ListImagesRequest {}),
        )
        .await?;
        Ok(answer.images.into_iter().map(Into::into).collect())
    }

    async fn image_status(&self, image: &str) -> Result<Option<Image>> {
        let spec = wire::ImageSpec { image: image.to_owned() };
        let request = wire::ImageStatusRequest { image: Some(spec), verbose: false };
        let answer =
            call("ImageStatus", limits::SHORT_CALL, self.images.clone().image_status(request)).await?;
        Ok(answer.image.map(Into::into))
    }

    async fn pull_image(&self, image: &str, credentials: Option<&Credentials>) -> Result<String> {
        let request = wire::PullImageRequest {
            image: Some(wire::ImageSpec { image: image.to_owned() }),
            auth: credentials.map(Into::into),
            sandbox_config: None,
        };
        Ok(call("PullImage", limits::PULL, self.images.clone().pull_image(request)).await?.image_ref)
    }

    async fn remove_image(&self, image: &str) -> Result<()> {
        let spec = wire::ImageSpec { image: image.to_owned() };
        let request = wire::RemoveImageRequest { image: Some(spec) };
        gone_is_fine(
            call("RemoveImage", limits::LONG_CALL, self.images.clone().remove_image(request)).await.map(drop),
        )
    }

    fn hints(&self) -> watch::Receiver<u64> {
        self.hints.clone()
    }
}
