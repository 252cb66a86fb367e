//! Computes the contents of a pod's volumes from the objects that they refer to. Nothing here accesses a
//! disk.

use std::collections::{BTreeMap, BTreeSet};

use apiserver_meta::quantity::{self, Quantity};
use apiserver_meta::volumes::claims_of;
use k8s_openapi::api::core::v1::{
    ConfigMap, Container, DownwardAPIVolumeFile, KeyToPath, PersistentVolume, Pod, ProjectedVolumeSource,
    Secret, Volume,
};

use crate::{
    limits,
    pod::{
        all_containers,
        env::{EnvContext, EnvError, Sources, TokenKey, field_value, resource_value},
        ephemeral_as_container, ephemeral_containers, spec,
    },
};

/// Objects that a pod refers to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct References {
    pub config_maps: BTreeSet<String>,
    pub secrets: BTreeSet<String>,
    pub tokens: BTreeSet<TokenKey>,
    /// Names of PersistentVolumeClaims.
    pub claims: BTreeSet<String>,
}

/// One file of a volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct File {
    pub content: Vec<u8>,
    /// Permission bits.
    pub mode: u32,
}

/// Content of a volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Content {
    /// An empty directory, on disk or in memory with an optional size in bytes.
    Empty { memory: bool, size: Option<i64> },
    /// A path of the node; the kind is that of `hostPath.type`.
    Host { path: String, kind: String, read_only: bool },
    /// A directory of the node that stays when the pod is gone.
    Local { path: String, read_only: bool },
    /// Files by relative path, which are replaced atomically when one changes.
    Files { files: BTreeMap<String, File>, in_memory: bool },
}

impl Content {
    /// Returns `true` if containers can only read the volume, regardless of their mounts: because the kubelet
    /// updates it while they run, or because the pod asks for that.
    pub fn is_read_only(&self) -> bool {
        match self {
            Self::Files { .. } => true,
            Self::Host { read_only, .. } | Self::Local { read_only, .. } => *read_only,
            Self::Empty { .. } => false,
        }
    }
}

/// A volume that cannot be set up.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum VolumeError {
    #[error("MountVolume.SetUp failed for volume \"{volume}\" : {kind} \"{name}\" not found")]
    Missing { volume: String, kind: &'static str, name: String },
    #[error("MountVolume.SetUp failed for volume \"{volume}\" : references non-existent key: {key}")]
    Key { volume: String, key: String },
    #[error("MountVolume.SetUp failed for volume \"{volume}\" : path {path:?} leaves the volume")]
    Path { volume: String, path: String },
    #[error(
        "MountVolume.SetUp failed for volume \"{volume}\" : the files of the pod's volumes have more than {} bytes",
        limits::VOLUME_FILES
    )]
    Size { volume: String },
    #[error("MountVolume.SetUp failed for volume \"{volume}\" : no token yet")]
    Token { volume: String },
    #[error("MountVolume.SetUp failed for volume \"{volume}\"")]
    Field {
        volume: String,
        #[source]
        source: EnvError,
    },
    #[error("MountVolume.SetUp failed for volume \"{volume}\" : unknown storage medium \"{medium}\"")]
    Medium { volume: String, medium: String },
    #[error(
        "MountVolume.SetUp failed for volume \"{volume}\" : no volume plugin matched: \
         this kubelet does not support its kind"
    )]
    Unsupported { volume: String },
}

/// Returns all objects that must be read before a pod's volumes and environment can be set up.
pub fn references(pod: &Pod) -> References {
    let mut found = References::default();
    let ephemeral: Vec<Container> = ephemeral_containers(pod).map(ephemeral_as_container).collect();
    for container in all_containers(pod).map(|(_, container)| container).chain(&ephemeral) {
        for from in container.env_from.iter().flatten() {
            found.config_maps.extend(from.config_map_ref.iter().map(|r| r.name.clone()));
            found.secrets.extend(from.secret_ref.iter().map(|r| r.name.clone()));
        }
        for source in container.env.iter().flatten().filter_map(|variable| variable.value_from.as_ref()) {
            found.config_maps.extend(source.config_map_key_ref.iter().map(|r| r.name.clone()));
            found.secrets.extend(source.secret_key_ref.iter().map(|r| r.name.clone()));
        }
    }
    for volume in spec(pod).volumes.iter().flatten() {
        found.config_maps.extend(volume.config_map.iter().map(|source| source.name.clone()));
        found.secrets.extend(volume.secret.iter().filter_map(|source| source.secret_name.clone()));
        for source in volume.projected.iter().flat_map(|projected| projected.sources.iter().flatten()) {
            found.config_maps.extend(source.config_map.iter().map(|source| source.name.clone()));
            found.secrets.extend(source.secret.iter().map(|source| source.name.clone()));
            found.tokens.extend(source.service_account_token.iter().map(token_key));
        }
    }
    found.claims.extend(claims_of(pod).map(|(_, claim)| claim));
    found
        .secrets
        .extend(spec(pod).image_pull_secrets.iter().flatten().map(|reference| reference.name.clone()));
    found
}

/// Returns `true` if a change of the pod may change the contents of its volumes: the downward API shows
/// metadata and resources, and a new ephemeral container may refer to further objects.
pub fn may_differ(before: &Pod, after: &Pod) -> bool {
    before.metadata.labels != after.metadata.labels
        || before.metadata.annotations != after.metadata.annotations
        || before.spec != after.spec
}

fn token_key(source: &k8s_openapi::api::core::v1::ServiceAccountTokenProjection) -> TokenKey {
    TokenKey {
        audience: source.audience.clone().unwrap_or_default(),
        expiration: source.expiration_seconds.unwrap_or(3600).max(600),
    }
}

/// Returns the content of each volume that a container mounts, by name.
pub fn contents(
    pod: &Pod,
    sources: &Sources,
    context: &EnvContext<'_>,
) -> Result<BTreeMap<String, Content>, VolumeError> {
    let mut room = limits::VOLUME_FILES;
    let volumes = spec(pod).volumes.iter().flatten();
    let contents = volumes.map(|volume| {
        let content = content(pod, volume, sources, context, &mut room)?;
        Ok((volume.name.clone(), content))
    });
    contents.collect()
}

fn content(
    pod: &Pod,
    volume: &Volume,
    sources: &Sources,
    context: &EnvContext<'_>,
    room: &mut usize,
) -> Result<Content, VolumeError> {
    let files = |builder: Builder<'_>, in_memory| Content::Files { files: builder.files, in_memory };
    if let Some(source) = &volume.empty_dir {
        let size =
            source.size_limit.as_ref().and_then(quantity::read).map(Quantity::value).filter(|size| *size > 0);
        let memory = match source.medium.as_deref().unwrap_or_default() {
            "" => false,
            "Memory" => true,
            medium => {
                let (volume, medium) = (volume.name.clone(), medium.to_owned());
                return Err(VolumeError::Medium { volume, medium });
            }
        };
        return Ok(Content::Empty { memory, size });
    }
    if let Some(source) = &volume.host_path {
        return Ok(Content::Host {
            path: source.path.clone(),
            kind: source.type_.clone().unwrap_or_default(),
            read_only: false,
        });
    }
    if let Some(source) = &volume.config_map {
        let mut builder = Builder::new(volume, source.default_mode, room);
        builder.config_map(sources, &source.name, source.items.as_deref(), source.optional)?;
        return Ok(files(builder, false));
    }
    if let Some(source) = &volume.secret {
        let mut builder = Builder::new(volume, source.default_mode, room);
        let name = source.secret_name.as_deref().unwrap_or_default();
        builder.secret(sources, name, source.items.as_deref(), source.optional)?;
        return Ok(files(builder, true));
    }
    if let Some(source) = &volume.downward_api {
        let mut builder = Builder::new(volume, source.default_mode, room);
        builder.downward(pod, source.items.as_deref().unwrap_or_default(), context)?;
        return Ok(files(builder, false));
    }
    if let Some(source) = &volume.projected {
        let mut builder = Builder::new(volume, source.default_mode, room);
        let secret = builder.projected(pod, source, sources, context)?;
        return Ok(files(builder, secret));
    }
    if let Some((_, name)) = claims_of(pod).find(|(of, _)| *of == volume.name) {
        let read_only = volume.persistent_volume_claim.as_ref().and_then(|source| source.read_only);
        let found = sources.claims.get(&name);
        let found = found.ok_or_else(|| {
            let volume = volume.name.clone();
            VolumeError::Missing { volume, kind: "persistentvolumeclaim", name }
        })?;
        let content = behind_claim(found, read_only.unwrap_or_default());
        return content.ok_or_else(|| VolumeError::Unsupported { volume: volume.name.clone() });
    }
    let known_only_by_absence = serde_json::to_value(volume)
        .ok()
        .and_then(|value| value.as_object().map(serde_json::Map::len))
        .is_some_and(|fields| fields <= 1);
    if known_only_by_absence {
        return Ok(Content::Empty { memory: false, size: None });
    }
    Err(VolumeError::Unsupported { volume: volume.name.clone() })
}

/// Returns the content of a volume behind a claim; `None` if its kind is not supported.
fn behind_claim(volume: &PersistentVolume, read_only: bool) -> Option<Content> {
    let spec = volume.spec.as_ref()?;
    if let Some(source) = &spec.host_path {
        let kind = source.type_.clone().unwrap_or_default();
        return Some(Content::Host { path: source.path.clone(), kind, read_only });
    }
    let source = spec.local.as_ref()?;
    Some(Content::Local { path: source.path.clone(), read_only })
}

/// Collects the files of one volume.
struct Builder<'a> {
    volume: &'a str,
    default_mode: u32,
    files: BTreeMap<String, File>,
    /// Bytes that are left for further files of the pod.
    room: &'a mut usize,
}

impl<'a> Builder<'a> {
    fn new(volume: &'a Volume, default_mode: Option<i32>, room: &'a mut usize) -> Self {
        let default_mode = default_mode.and_then(|mode| u32::try_from(mode).ok()).unwrap_or(0o644);
        Self { volume: &volume.name, default_mode, files: BTreeMap::new(), room }
    }

    fn add(&mut self, path: &str, content: Vec<u8>, mode: Option<i32>) -> Result<(), VolumeError> {
        let leaves = path.is_empty()
            || path.starts_with('/')
            || path.split('/').any(|part| part.is_empty() || part.starts_with("..") || part == ".");
        if leaves {
            return Err(VolumeError::Path { volume: self.volume.to_owned(), path: path.to_owned() });
        }
        // A file that replaces another one counts too, so that the total amount of copying is limited.
        let left = self.room.checked_sub(path.len() + content.len());
        *self.room = left.ok_or_else(|| VolumeError::Size { volume: self.volume.to_owned() })?;
        let mode = mode.and_then(|mode| u32::try_from(mode).ok()).unwrap_or(self.default_mode);
        self.files.insert(path.to_owned(), File { content, mode });
        Ok(())
    }

    fn missing(&self, kind: &'static str, name: &str) -> VolumeError {
        VolumeError::Missing { volume: self.volume.to_owned(), kind, name: name.to_owned() }
    }

    /// Adds all entries of `data`, or the requested items.
    fn pick(
        &mut self,
        data: &BTreeMap<String, Vec<u8>>,
        items: Option<&[KeyToPath]>,
        optional: bool,
    ) -> Result<(), VolumeError> {
        let Some(items) = items.filter(|items| !items.is_empty()) else {
            return data.iter().try_for_each(|(key, content)| self.add(key, content.clone(), None));
        };
        for item in items {
            match data.get(&item.key) {
                Some(content) => self.add(&item.path, content.clone(), item.mode)?,
                None if optional => {}
                None => {
                    return Err(VolumeError::Key { volume: self.volume.to_owned(), key: item.key.clone() });
                }
            }
        }
        Ok(())
    }

    fn config_map(
        &mut self,
        sources: &Sources,
        name: &str,
        items: Option<&[KeyToPath]>,
        optional: Option<bool>,
    ) -> Result<(), VolumeError> {
        match sources.config_maps.get(name) {
            Some(object) => self.pick(&config_map_data(object), items, optional == Some(true)),
            None if optional == Some(true) => Ok(()),
            None => Err(self.missing("configmap", name)),
        }
    }

    fn secret(
        &mut self,
        sources: &Sources,
        name: &str,
        items: Option<&[KeyToPath]>,
        optional: Option<bool>,
    ) -> Result<(), VolumeError> {
        match sources.secrets.get(name) {
            Some(object) => self.pick(&secret_data(object), items, optional == Some(true)),
            None if optional == Some(true) => Ok(()),
            None => Err(self.missing("secret", name)),
        }
    }

    fn downward(
        &mut self,
        pod: &Pod,
        items: &[DownwardAPIVolumeFile],
        context: &EnvContext<'_>,
    ) -> Result<(), VolumeError> {
        for item in items {
            let none = Container::default();
            let value = match (&item.field_ref, &item.resource_field_ref) {
                (Some(field), _) => field_value(pod, field, context),
                (None, Some(resource)) => resource_value(pod, &none, resource, context),
                (None, None) => Ok(String::new()),
            };
            let value =
                value.map_err(|source| VolumeError::Field { volume: self.volume.to_owned(), source })?;
            self.add(&item.path, value.into_bytes(), item.mode)?;
        }
        Ok(())
    }

    /// Adds all sources of a projected volume; returns whether one of them is a Secret.
    fn projected(
        &mut self,
        pod: &Pod,
        projected: &ProjectedVolumeSource,
        sources: &Sources,
        context: &EnvContext<'_>,
    ) -> Result<bool, VolumeError> {
        let mut confidential = false;
        for source in projected.sources.iter().flatten() {
            if let Some(from) = &source.config_map {
                self.config_map(sources, &from.name, from.items.as_deref(), from.optional)?;
            } else if let Some(from) = &source.secret {
                confidential = true;
                self.secret(sources, &from.name, from.items.as_deref(), from.optional)?;
            } else if let Some(from) = &source.downward_api {
                self.downward(pod, from.items.as_deref().unwrap_or_default(), context)?;
            } else if let Some(from) = &source.service_account_token {
                confidential = true;
                let token = sources.tokens.get(&token_key(from));
                let token = token.ok_or_else(|| VolumeError::Token { volume: self.volume.to_owned() })?;
                // Containers that do not run as root must be able to read their token.
                let mode = if runs_as_root(pod) { 0o600 } else { 0o644 };
                self.add(&from.path, token.clone().into_bytes(), Some(mode))?;
            } else {
                return Err(VolumeError::Unsupported { volume: self.volume.to_owned() });
            }
        }
        Ok(confidential)
    }
}

/// Returns `true` if all containers run as root, so that the token can be unreadable for others.
fn runs_as_root(pod: &Pod) -> bool {
    let of_pod = spec(pod).security_context.as_ref().and_then(|context| context.run_as_user);
    all_containers(pod).all(|(_, container)| {
        let own = container.security_context.as_ref().and_then(|context| context.run_as_user);
        own.or(of_pod) == Some(0)
    })
}

fn config_map_data(object: &ConfigMap) -> BTreeMap<String, Vec<u8>> {
    let text = object.data.iter().flatten().map(|(key, value)| (key.clone(), value.clone().into_bytes()));
    let binary = object.binary_data.iter().flatten().map(|(key, value)| (key.clone(), value.0.clone()));
    text.chain(binary).collect()
}

fn secret_data(object: &Secret) -> BTreeMap<String, Vec<u8>> {
    object.data.iter().flatten().map(|(key, value)| (key.clone(), value.0.clone())).collect()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use serde_json::{Value, json};

    use super::*;
    use crate::pod::testing::pod;

    fn sources() -> Sources {
        let config = json!({"data": {"a": "1", "b": "2"}, "binaryData": {"c": "/w=="}});
        let config: ConfigMap = serde_json::from_value(config).unwrap();
        let secret: Secret = serde_json::from_value(json!({"data": {"key": "c2VjcmV0"}})).unwrap();
        Sources {
            config_maps: BTreeMap::from([("config".to_owned(), Arc::new(config))]),
            secrets: BTreeMap::from([("secret".to_owned(), Arc::new(secret))]),
            tokens: BTreeMap::from([(
                TokenKey { audience: String::new(), expiration: 3607 },
                "jwt".to_owned(),
            )]),
            ..Sources::default()
        }
    }

    fn volume(source: Value) -> Result<Content, VolumeError> {
        let mut volume = source;
        volume["name"] = json!("v");
        let pod = pod(json!({"containers": [{"name": "a"}], "volumes": [volume]}));
        contents(&pod, &sources(), &EnvContext::default()).map(|mut all| all.remove("v").unwrap())
    }

    fn listing(content: Content) -> Vec<String> {
        let Content::Files { files, .. } = content else { panic!("{content:?}") };
        let line = |(path, file): (&String, &File)| {
            format!("{path} {:o} {}", file.mode, String::from_utf8_lossy(&file.content))
        };
        files.iter().map(line).collect()
    }

    #[test]
    fn config_maps_are_mounted_whole_or_by_item() {
        let whole = volume(json!({"configMap": {"name": "config"}})).unwrap();
        assert_eq!(listing(whole), ["a 644 1", "b 644 2", "c 644 \u{fffd}"]);
        let items = json!([{"key": "b", "path": "x/y", "mode": 0o400}]);
        let some = volume(json!({"configMap": {"name": "config", "items": items}})).unwrap();
        assert_eq!(listing(some), ["x/y 400 2"]);
    }

    #[test]
    fn a_service_account_volume_has_token_certificate_and_namespace() {
        let projected = volume(json!({"projected": {"sources": [
            {"serviceAccountToken": {"path": "token", "expirationSeconds": 3607}},
            {"configMap": {"name": "config", "items": [{"key": "a", "path": "ca.crt"}]}},
            {"downwardAPI": {"items": [{"path": "namespace", "fieldRef": {"fieldPath": "metadata.namespace"}}]}},
        ]}}))
        .unwrap();
        assert!(matches!(projected, Content::Files { in_memory: true, .. }));
        assert_eq!(listing(projected), ["ca.crt 644 1", "namespace 644 shop", "token 644 jwt"]);
    }

    #[test]
    fn missing_references_are_errors_unless_optional() {
        let error = volume(json!({"secret": {"secretName": "none"}})).unwrap_err();
        assert!(error.to_string().ends_with("secret \"none\" not found"), "{error}");
        let empty = volume(json!({"secret": {"secretName": "none", "optional": true}})).unwrap();
        assert_eq!(listing(empty), [""; 0]);
        let items = json!([{"key": "z", "path": "z"}]);
        let error = volume(json!({"configMap": {"name": "config", "items": items}})).unwrap_err();
        assert_eq!(error, VolumeError::Key { volume: "v".into(), key: "z".into() });
        let token = json!({"projected": {"sources": [{"serviceAccountToken": {"path": "t"}}]}});
        assert_eq!(volume(token).unwrap_err(), VolumeError::Token { volume: "v".into() });
    }

    #[test]
    fn paths_stay_inside_the_volume() {
        for path in ["../x", "/x", "a//b", "..data", ""] {
            let items = json!([{"key": "a", "path": path}]);
            let error = volume(json!({"configMap": {"name": "config", "items": items}})).unwrap_err();
            assert!(matches!(error, VolumeError::Path { .. }), "{path}");
        }
    }

    #[test]
    fn items_that_repeat_a_large_object_are_bounded_over_all_volumes() {
        let large: ConfigMap = serde_json::from_value(json!({"data": {"a": "x".repeat(1 << 20)}})).unwrap();
        let sources = Sources {
            config_maps: BTreeMap::from([("large".to_owned(), Arc::new(large))]),
            ..Sources::default()
        };
        let made = |volumes: usize, items: usize| {
            let items: Vec<Value> = (0..items).map(|n| json!({"key": "a", "path": format!("{n}")})).collect();
            let volumes: Vec<Value> = (0..volumes)
                .map(|n| json!({"name": format!("v{n}"), "configMap": {"name": "large", "items": items}}))
                .collect();
            let pod = pod(json!({"containers": [{"name": "a"}], "volumes": volumes}));
            contents(&pod, &sources, &EnvContext::default()).map(|made| made.len())
        };
        assert_eq!(made(3, 20), Ok(3));
        assert_eq!(made(1, 64), Err(VolumeError::Size { volume: "v0".into() }));
        assert_eq!(made(4, 20), Err(VolumeError::Size { volume: "v3".into() }));
    }

    #[test]
    fn empty_directories_are_supported_and_unknown_volumes_refused() {
        let memory = volume(json!({"emptyDir": {"medium": "Memory", "sizeLimit": "1Mi"}})).unwrap();
        assert_eq!(memory, Content::Empty { memory: true, size: Some(1 << 20) });
        let huge = volume(json!({"emptyDir": {"medium": "HugePages"}})).unwrap_err();
        assert_eq!(huge, VolumeError::Medium { volume: "v".into(), medium: "HugePages".into() });
        let unknown = volume(json!({"nfs": {"server": "s", "path": "/"}})).unwrap_err();
        assert_eq!(unknown, VolumeError::Unsupported { volume: "v".into() });
    }

    #[test]
    fn claims_lead_to_directories_and_other_kinds_are_refused() {
        let of = |source: Value, volume: Value| {
            let mut sources = sources();
            let found = serde_json::from_value(json!({"metadata": {"name": "pv"}, "spec": volume})).unwrap();
            sources.claims.insert("c".to_owned(), Arc::new(found));
            let mut volume = source;
            volume["name"] = json!("v");
            let pod = pod(json!({"containers": [{"name": "a"}], "volumes": [volume]}));
            assert_eq!(references(&pod).claims.len(), 1);
            contents(&pod, &sources, &EnvContext::default()).map(|mut all| all.remove("v").unwrap())
        };
        let claim = |name: &str, read_only: bool| json!({"persistentVolumeClaim": {"claimName": name, "readOnly": read_only}});
        let local = of(claim("c", true), json!({"local": {"path": "/a"}})).unwrap();
        assert_eq!(local, Content::Local { path: "/a".into(), read_only: true });
        assert!(local.is_read_only());
        let host = of(claim("c", false), json!({"hostPath": {"path": "/a", "type": "Directory"}})).unwrap();
        let kind = "Directory".to_owned();
        assert_eq!(host, Content::Host { path: "/a".into(), kind, read_only: false });
        assert!(!host.is_read_only());
        let unknown = of(claim("c", false), json!({"nfs": {"server": "s", "path": "/"}})).unwrap_err();
        assert_eq!(unknown, VolumeError::Unsupported { volume: "v".into() });
        let missing = of(claim("d", false), json!({})).unwrap_err();
        assert!(matches!(missing, VolumeError::Missing { kind: "persistentvolumeclaim", .. }), "{missing}");
    }

    #[test]
    fn references_are_found_in_environment_volumes_and_pull_secrets() {
        let pod = pod(json!({
            "containers": [{"name": "a", "envFrom": [{"configMapRef": {"name": "c1"}}],
                "env": [{"name": "x", "valueFrom": {"secretKeyRef": {"name": "s1", "key": "k"}}}]}],
            "volumes": [{"name": "v", "configMap": {"name": "c2"}},
                {"name": "p", "projected": {"sources": [{"secret": {"name": "s2"}},
                    {"serviceAccountToken": {"path": "t", "audience": "x"}}]}}],
            "imagePullSecrets": [{"name": "s3"}],
        }));
        let found = references(&pod);
        assert_eq!(found.config_maps.into_iter().collect::<Vec<_>>(), ["c1", "c2"]);
        assert_eq!(found.secrets.into_iter().collect::<Vec<_>>(), ["s1", "s2", "s3"]);
        assert_eq!(found.tokens.first().unwrap(), &TokenKey { audience: "x".into(), expiration: 3600 });
    }
}
