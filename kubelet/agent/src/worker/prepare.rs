//! Sets up the directories and volumes of a pod and reads the objects that they are made of.

use std::{collections::BTreeMap, path::PathBuf, sync::Arc, time::Duration};

use apiserver_client::ObjectKey;
use apiserver_meta::error_chain;
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::{
    api::{
        authentication::v1::{BoundObjectReference, TokenRequest, TokenRequestSpec},
        core::v1::{Container, PersistentVolume, Pod, ServiceAccount},
    },
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};
use kube::{Api, api::PostParams};
use kubelet_cri::Mount;
use tracing::warn;

use super::{Worker, handler::HandlerError};
use crate::{
    claims::{self, ClaimError},
    limits,
    machine::{MachineError, SubPath},
    pod::{
        self,
        env::{EnvContext, Sources, TokenKey},
        resolv, spec,
    },
    probe::within,
    volumes::{self, References},
};

/// The directories, volumes or mounts of a pod could not be set up.
#[derive(Debug, thiserror::Error)]
pub(super) enum PrepareError {
    #[error("timed out waiting for the ConfigMaps and Secrets of the pod")]
    Objects,
    #[error("cannot get a token for service account {account}")]
    Token {
        account: String,
        #[source]
        source: Box<kube::Error>,
    },
    #[error(transparent)]
    Claim(#[from] ClaimError),
    #[error(transparent)]
    Volume(#[from] volumes::VolumeError),
    #[error(transparent)]
    Machine(#[from] MachineError),
    /// A mount cannot be made as requested.
    #[error("{0}")]
    Mount(String),
    #[error("failed to prepare subPath for volumeMount \"{mount}\" of container \"{container}\"")]
    SubPath { mount: String, container: String },
    #[error(transparent)]
    Handler(#[from] HandlerError),
}

impl Worker {
    /// Sets up, once, everything that must exist before the pod can start. Returns `false` on failure, which
    /// is recorded, reported and retried later.
    pub(super) async fn prepare(&mut self) -> bool {
        if self.sources.is_some() {
            return true;
        }
        match self.prepare_all().await {
            Ok(sources) => {
                self.sources = Some(sources);
                true
            }
            Err(error) => {
                let message = error_chain(&error);
                self.agent.event(&self.tracked.pod(), None, "FailedMount", message.clone());
                self.fail_pod("FailedMount", &message);
                false
            }
        }
    }

    async fn prepare_all(&self) -> Result<Sources, PrepareError> {
        let pod = self.tracked.pod_to_mount();
        let sources = self.collect_sources(&pod).await?;
        // An adopted pod may be in the middle of a resize.
        let cgroup = self.tracked.cgroup_to_hold();
        self.agent.machine.set_up_pod(&self.tracked.place, &cgroup).await?;
        self.tracked.state().cgroup = Some(cgroup);
        self.set_up_volumes(&pod, &sources).await?;
        Ok(sources)
    }

    /// Reads everything that the pod refers to, and watches it from now on.
    async fn collect_sources(&self, pod: &Pod) -> Result<Sources, PrepareError> {
        let references = volumes::references(pod);
        let namespace = &self.tracked.place.namespace;
        self.agent.objects.watch(&self.tracked.place.uid, namespace, &references, &self.wake_callback());
        let found = self.agent.objects.get(namespace, &references).await.ok_or(PrepareError::Objects)?;
        within(limits::API_DEADLINE, self.agent.services.synced()).await.ok_or(PrepareError::Objects)?;
        let mut services = self.agent.services.list_namespace(namespace);
        if namespace != "default" {
            services.extend(self.agent.services.get(&ObjectKey::new("default", "kubernetes")));
        }
        Ok(Sources {
            config_maps: found.config_maps,
            secrets: found.secrets,
            services,
            tokens: self.tokens(pod, &references).await?,
            claims: self.claims(pod, &references).await?,
        })
    }

    /// Returns the volumes that are bound to the claims of a pod. Those that are known stay what they are: neither
    /// claim nor volume is ever bound to another one.
    async fn claims(
        &self,
        pod: &Pod,
        references: &References,
    ) -> Result<BTreeMap<String, Arc<PersistentVolume>>, PrepareError> {
        let labels = self.agent.node_labels().unwrap_or_default();
        let is_running = self.tracked.state().runtime.ready_sandbox().is_some();
        let local_volumes = self.agent.machine.local_volumes();
        let place = claims::Place {
            node: &self.agent.config.node_name,
            labels: &labels,
            local_volumes: local_volumes.as_deref(),
            is_running,
        };
        let mut found = BTreeMap::new();
        for name in &references.claims {
            if let Some(known) = self.sources.as_ref().and_then(|sources| sources.claims.get(name)) {
                found.insert(name.clone(), Arc::clone(known));
                continue;
            }
            let read = within(limits::API_DEADLINE, claims::read(&self.agent.client, pod, name, place)).await;
            let claim = || format!("{}/{name}", self.tracked.place.namespace);
            let volume = read.ok_or_else(|| ClaimError::Timeout { claim: claim() })??;
            found.insert(name.clone(), Arc::new(volume));
        }
        let names = found.values().filter_map(|volume| volume.metadata.name.clone());
        self.tracked.state().claimed = names.collect();
        Ok(found)
    }

    /// Returns the service account tokens of a pod, requesting new ones in place of those that are about to
    /// expire.
    async fn tokens(
        &self,
        pod: &Pod,
        references: &References,
    ) -> Result<BTreeMap<TokenKey, String>, PrepareError> {
        let now = self.agent.ambient.now();
        let mut tokens = BTreeMap::new();
        for key in &references.tokens {
            let known = self.tracked.state().tokens.get(key).cloned();
            let token = match known.filter(|(_, refresh)| *refresh > now) {
                Some((token, _)) => token,
                None => self.request_token(pod, key).await?,
            };
            tokens.insert(key.clone(), token);
        }
        Ok(tokens)
    }

    async fn request_token(&self, pod: &Pod, key: &TokenKey) -> Result<String, PrepareError> {
        let account = pod::spec(pod).service_account_name.clone().filter(|name| !name.is_empty());
        let account = account.unwrap_or_else(|| "default".to_owned());
        let request = TokenRequest {
            metadata: ObjectMeta::default(),
            spec: Some(TokenRequestSpec {
                audiences: (!key.audience.is_empty()).then(|| vec![key.audience.clone()]),
                bound_object_ref: Some(BoundObjectReference {
                    api_version: Some("v1".to_owned()),
                    kind: Some("Pod".to_owned()),
                    name: Some(self.tracked.place.name.clone()),
                    uid: Some(self.tracked.place.uid.clone()),
                }),
                expiration_seconds: Some(key.expiration),
            }),
            status: None,
        };
        let api: Api<ServiceAccount> =
            Api::namespaced(self.agent.client.clone(), &self.tracked.place.namespace);
        let answer = api.create_token_request(&account, &PostParams::default(), &request).await;
        let answer = answer.map_err(|source| PrepareError::Token { account, source: Box::new(source) })?;
        let status = answer.status.unwrap_or_default();
        let now = self.agent.ambient.now();
        let life = match status.expiration_timestamp {
            Some(end) => Duration::try_from(end.0.duration_since(now)).unwrap_or_default(),
            None => Duration::from_secs(key.expiration.unsigned_abs()),
        };
        let refresh =
            SignedDuration::try_from(life * limits::TOKEN_REFRESH_PERCENT / 100).unwrap_or_default();
        let refresh_at = now.saturating_add(refresh).unwrap_or(Timestamp::MAX);
        let token = status.token.unwrap_or_default();
        self.tracked.state().tokens.insert(key.clone(), (token.clone(), refresh_at));
        Ok(token)
    }

    async fn set_up_volumes(&self, pod: &Pod, sources: &Sources) -> Result<(), PrepareError> {
        let ips = self.pod_ips();
        let contents = volumes::contents(pod, sources, &self.context(&ips))?;
        let group = pod::spec(pod).security_context.as_ref().and_then(|context| context.fs_group);
        for (name, content) in &contents {
            self.agent.machine.set_up_volume(&self.tracked.place, name, content, group).await?;
        }
        Ok(())
    }

    pub(super) fn pod_ips(&self) -> Vec<String> {
        let state = self.tracked.state();
        if pod::host_network(&state.pod) {
            return self.agent.host_ips.clone();
        }
        state.runtime.ready_sandbox().map(|sandbox| sandbox.ips.clone()).unwrap_or_default()
    }

    pub(super) fn context<'a>(&'a self, pod_ips: &'a [String]) -> EnvContext<'a> {
        EnvContext { pod_ips, host_ips: &self.agent.host_ips, allocatable: Some(&self.agent.allocatable) }
    }

    /// Updates the volumes of a running pod if the pod or an object that they contain has changed; returns
    /// when to do so again to renew tokens, or after a failure.
    pub(super) async fn keep_volumes_fresh(&mut self, now: Timestamp) -> Option<Timestamp> {
        let running = self.tracked.state().runtime.ready_sandbox().is_some();
        if !running {
            return None;
        }
        if self.sources.is_none() {
            // After a restart of the kubelet the volumes of the pod are adopted.
            self.prepare().await;
        }
        let is_due = |at: &Timestamp| *at <= now;
        let due = {
            let state = self.tracked.state();
            state.volumes_outdated || state.tokens.values().any(|(_, refresh)| is_due(refresh))
        };
        if due || self.volumes_retry.as_ref().is_some_and(is_due) {
            let pod = self.tracked.pod_to_mount();
            let updated = async {
                let sources = self.collect_sources(&pod).await?;
                self.set_up_volumes(&pod, &sources).await?;
                Ok::<_, PrepareError>(sources)
            };
            match updated.await {
                Ok(sources) => {
                    self.sources = Some(sources);
                    self.volumes_retry = None;
                }
                Err(error) => {
                    // The old content stays: a deleted object does not vanish under a running pod.
                    warn!(pod = %self.tracked.place.name, error = %error_chain(&error), "cannot update volumes");
                    self.volumes_retry = now.saturating_add(limits::RETRY * 5).ok();
                    return self.volumes_retry;
                }
            }
        }
        let refresh = self.tracked.state().tokens.values().map(|(_, refresh)| *refresh).min();
        [refresh, self.volumes_retry].into_iter().flatten().min()
    }

    /// Returns the mounts of a container: its volumes, its `/etc` files, and its termination message file.
    pub(super) async fn mounts(
        &self,
        pod: &Pod,
        container: &Container,
        attempt: u32,
        environment: &[(String, String)],
    ) -> Result<Vec<Mount>, PrepareError> {
        let machine = &self.agent.machine;
        let place = &self.tracked.place;
        let mut mounts = self.volume_mounts(pod, container, environment).await?;
        let directory = machine.write_etc(place, &self.etc(pod)).await?;
        let taken = |path: &str, mounts: &[Mount]| mounts.iter().any(|mount| mount.container_path == path);
        let read_only_root =
            container.security_context.as_ref().and_then(|context| context.read_only_root_filesystem);
        for name in [resolv::HOSTS, resolv::HOSTNAME, resolv::RESOLV_CONF] {
            let path = format!("/etc/{name}");
            if !taken(&path, &mounts) {
                let mut mount = plain_mount(&path, directory.join(name));
                mount.read_only = name != resolv::HOSTS && read_only_root == Some(true);
                mounts.push(mount);
            }
        }
        let last_words = container.termination_message_path.as_deref().filter(|path| !path.is_empty());
        let last_words = last_words.unwrap_or("/dev/termination-log");
        if !taken(last_words, &mounts) {
            let path = machine.termination_file(place, &container.name, attempt).await?;
            mounts.push(plain_mount(last_words, path));
        }
        Ok(mounts)
    }

    /// Returns the files that the kubelet provides in `/etc`.
    fn etc(&self, pod: &Pod) -> BTreeMap<&'static str, String> {
        let info = self.agent.machine.info();
        let (ips, dns) = (self.pod_ips(), &self.agent.config.cluster_dns);
        let own = if pod::host_network(pod) { None } else { resolv::kernel_hostname(pod, dns).ok() };
        let hostname = own.unwrap_or_else(|| info.hostname.clone());
        BTreeMap::from([
            (resolv::HOSTS, resolv::hosts_file(pod, dns, &ips, &info.hosts)),
            (resolv::HOSTNAME, format!("{hostname}\n")),
            (resolv::RESOLV_CONF, resolv::render(&resolv::dns(pod, dns, &resolv::parse(&info.resolv_conf)))),
        ])
    }

    async fn volume_mounts(
        &self,
        pod: &Pod,
        container: &Container,
        environment: &[(String, String)],
    ) -> Result<Vec<Mount>, PrepareError> {
        let (machine, place) = (&self.agent.machine, &self.tracked.place);
        let variables: BTreeMap<String, String> = environment.iter().cloned().collect();
        let sources = self.sources.as_ref().ok_or(PrepareError::Objects)?;
        let ips = self.pod_ips();
        let contents = volumes::contents(pod, sources, &self.context(&ips))?;
        let group = pod::spec(pod).security_context.as_ref().and_then(|context| context.fs_group);
        machine.forget_sub_paths(place, &container.name).await?;
        let wanted = container.volume_mounts.as_deref().unwrap_or_default();
        let recursive = wanted.iter().any(|mount| mount.recursive_read_only.is_some())
            && self.handler(pod).await?.recursive_read_only_mounts;
        let mut mounts = Vec::new();
        for (index, wanted) in wanted.iter().enumerate() {
            let content = contents.get(&wanted.name).ok_or_else(|| {
                let (volume, container) = (&wanted.name, &container.name);
                PrepareError::Mount(format!(
                    "cannot find volume \"{volume}\" to mount into container \"{container}\""
                ))
            })?;
            let mut path = machine.set_up_volume(place, &wanted.name, content, group).await?;
            if let Some(part) = spec::sub_path(wanted, &variables).map_err(PrepareError::Mount)? {
                path = self.sub_path(container, &wanted.name, path, part, index).await?;
            }
            let recursive = spec::recursive_read_only(wanted, recursive).map_err(|why| {
                PrepareError::Mount(format!("failed to resolve recursive read-only mode: {why}"))
            })?;
            mounts.push(spec::volume_mount(wanted, text(path), content.is_read_only(), recursive));
        }
        Ok(mounts)
    }

    /// Mounts a part of a volume. The cause of a failure is only logged, because it could reveal files of the
    /// node.
    async fn sub_path(
        &self,
        container: &Container,
        name: &str,
        volume: PathBuf,
        path: String,
        index: usize,
    ) -> Result<PathBuf, PrepareError> {
        let wanted = SubPath { volume, path, container: container.name.clone(), index };
        self.agent.machine.sub_path(&self.tracked.place, &wanted).await.map_err(|error| {
            warn!(pod = %self.tracked.place.name, container = container.name, volume = name,
                error = &error as &dyn std::error::Error, "cannot prepare a subPath");
            PrepareError::SubPath { mount: name.to_owned(), container: container.name.clone() }
        })
    }
}

fn plain_mount(container_path: &str, host_path: PathBuf) -> Mount {
    Mount { container_path: container_path.to_owned(), host_path: text(host_path), ..Mount::default() }
}

fn text(path: PathBuf) -> String {
    path.to_string_lossy().into_owned()
}
