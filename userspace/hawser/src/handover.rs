//! The keys that all control nodes share, handed to a machine that joins as one: sealed in a Secret that the token of
//! that machine alone may read, with a key that is nowhere but in the command line for it. Role, binding and Secret
//! belong to the token's Secret, and are deleted with it.

use std::collections::BTreeMap;
use std::fs;
use std::net::IpAddr;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Component, Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use apiserver_auth::authentication::sealed::SealingKey;
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use k8s_openapi::api::rbac::v1::{Role, RoleBinding};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use kube::api::PostParams;
use kube::{Api, Client};
use serde::{Deserialize, Serialize};
use serde_json::json;
use tokio::time::timeout;

use crate::control_plane::ControlPlane;
use crate::etcd::PKI as ETCD;
use crate::limits;

const NAMESPACE: &str = "kube-system";
/// Prefix of the names of Secret, Role and RoleBinding, before the identifier of the token.
const PREFIX: &str = "hawser-control-plane-";
const TYPE: &str = "hawser.dev/control-plane-keys";
const FIELD: &str = "sealed";
/// Directory of the keys below the data directory.
const PKI: &str = "pki";
/// Files that every cluster has.
const FILES: [&str; 3] = ["pki/ca.crt", "pki/ca.key", "pki/sa.key"];

/// The content of a sealed Secret.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Handover {
    pub record: ControlPlane,
    /// Contents by path below the data directory.
    files: BTreeMap<String, String>,
}

impl std::fmt::Debug for Handover {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Handover").field("record", &self.record).finish_non_exhaustive()
    }
}

/// The keys of this machine's cluster, about to be offered to another one.
pub struct Offer {
    handover: Handover,
    key: SealingKey,
}

impl Offer {
    /// Reads the keys in a data directory.
    pub fn new(data_dir: Option<&Path>, ttl: Duration) -> Result<Self> {
        let Some(data_dir) = data_dir else {
            bail!("--control-plane needs --data-dir: the keys of the cluster are read there")
        };
        if ttl.is_zero() {
            bail!("--ttl 0: a token for the keys of the cluster must end");
        }
        let Some(record) = ControlPlane::read(data_dir)? else {
            bail!(
                "the cluster in {} has its store on this machine alone: several control nodes need \
                 `hawser up --store etcd --etcd-start`, or another etcd",
                data_dir.display()
            )
        };
        if !record.etcd_started
            && let Some(url) = record.etcd_servers.iter().find(|url| is_loopback(url))
        {
            bail!(
                "other machines cannot reach etcd at {url}: start `hawser up` with --etcd-servers that have an address of \
                 the network"
            );
        }
        let key = SealingKey::generate().context("cannot make a key")?;
        Ok(Self { handover: Handover::of(data_dir, record)?, key })
    }

    /// Returns what the command line of `hawser join` has besides that of any node.
    pub fn join_flags(&self) -> String {
        let etcd = if self.handover.record.etcd_started { " --etcd-start" } else { "" };
        format!("--control-plane --certificate-key {}{etcd}", self.key.text())
    }

    /// Stores the sealed keys for a token, whose Secret is `owner`.
    pub async fn store(&self, client: &Client, token: &str, owner: &Secret) -> Result<()> {
        let plain = serde_json::to_vec(&self.handover).context("cannot encode the keys")?;
        let sealed = self.key.seal(token, &plain).context("cannot seal the keys")?;
        let (secret, role, binding) = objects(token, owner, sealed)?;
        let (name, post) = (name(token), PostParams::default());
        let cannot = |kind: &str| format!("cannot create the {kind} {NAMESPACE}/{name}");
        let api: Api<Secret> = Api::namespaced(client.clone(), NAMESPACE);
        api.create(&post, &secret).await.with_context(|| cannot("Secret"))?;
        let api: Api<Role> = Api::namespaced(client.clone(), NAMESPACE);
        api.create(&post, &role).await.with_context(|| cannot("Role"))?;
        let api: Api<RoleBinding> = Api::namespaced(client.clone(), NAMESPACE);
        api.create(&post, &binding).await.with_context(|| cannot("RoleBinding"))?;
        Ok(())
    }
}

/// Returns whether a URL leads to the machine itself, wherever it is read.
fn is_loopback(url: &str) -> bool {
    let uri = url.parse::<http::Uri>().ok();
    let host = uri.as_ref().and_then(http::Uri::host).unwrap_or_default().trim_matches(['[', ']']);
    let host = host.trim_end_matches('.').to_ascii_lowercase();
    // Resolvers take `127.1` for an address.
    host == "localhost"
        || host.starts_with("127.")
        || host.parse::<IpAddr>().is_ok_and(|ip| ip.to_canonical().is_loopback() || ip.is_unspecified())
}

fn name(token: &str) -> String {
    format!("{PREFIX}{}", token)
}

/// Returns the Secret, and the Role and RoleBinding by which the token's user alone may read it.
fn objects(token: &str, owner: &Secret, sealed: Vec<u8>) -> Result<(Secret, Role, RoleBinding)> {
    let name = name(token);
    let metadata = ObjectMeta {
        name: Some(name.clone()),
        namespace: Some(NAMESPACE.to_owned()),
        owner_references: Some(vec![OwnerReference {
            api_version: "v1".to_owned(),
            kind: "Secret".to_owned(),
            name: owner.metadata.name.clone().unwrap_or_default(),
            uid: owner.metadata.uid.clone().unwrap_or_default(),
            ..OwnerReference::default()
        }]),
        ..ObjectMeta::default()
    };
    let secret = Secret {
        metadata: metadata.clone(),
        type_: Some(TYPE.to_owned()),
        data: Some([(FIELD.to_owned(), ByteString(sealed))].into()),
        immutable: Some(true),
        ..Secret::default()
    };
    let role = json!({
        "metadata": metadata,
        "rules": [{"apiGroups": [""], "resources": ["secrets"], "resourceNames": [name], "verbs": ["get"]}],
    });
    let group = "rbac.authorization.k8s.io";
    let binding = json!({
        "metadata": metadata,
        "roleRef": {"apiGroup": group, "kind": "Role", "name": name},
        "subjects": [{"apiGroup": group, "kind": "User", "name": format!("system:bootstrap:{}", token)}],
    });
    Ok((
        secret,
        serde_json::from_value(role).context("cannot make the Role")?,
        serde_json::from_value(binding).context("cannot make the RoleBinding")?,
    ))
}

impl Handover {
    /// Reads the keys of a control node, and what a further one has to know.
    fn of(data_dir: &Path, record: ControlPlane) -> Result<Self> {
        let read =
            |path: &Path| fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()));
        let mut files = BTreeMap::new();
        for name in FILES {
            files.insert(name.to_owned(), read(&data_dir.join(name))?);
        }
        if record.etcd_started {
            for name in ["ca.crt", "ca.key"] {
                files.insert(format!("{ETCD}/{name}"), read(&data_dir.join(ETCD).join(name))?);
            }
        } else {
            for (name, path) in ["ca.crt", "client.crt", "client.key"].into_iter().zip(&record.etcd_files) {
                if let Some(path) = path {
                    files.insert(format!("{ETCD}/{name}"), read(path)?);
                }
            }
        }
        let own = record.member.iter().map(|member| member.client_url.clone());
        let etcd_servers = own.chain(record.etcd_servers.iter().cloned()).collect();
        let record = ControlPlane {
            etcd_servers,
            etcd_files: [None, None, None],
            member: None,
            joined: None,
            ..record
        };
        Ok(Self { record, files })
    }

    /// Reads the keys that are stored for a token, with a client of the token.
    pub async fn fetch(client: &Client, token: &str, key: &SealingKey) -> Result<Self> {
        let api: Api<Secret> = Api::namespaced(client.clone(), NAMESPACE);
        let none = || {
            format!(
                "token {} is none for control nodes: make one with `hawser token create --control-plane`",
                token
            )
        };
        let asked = timeout(limits::KEYS_REQUEST, api.get(&name(token))).await;
        let secret =
            match asked.context("cannot read the keys of the cluster: the API server does not answer")? {
                Ok(secret) => secret,
                Err(kube::Error::Api(status)) if matches!(status.code, 403 | 404) => bail!(none()),
                Err(error) => return Err(error).context("cannot read the keys of the cluster"),
            };
        let sealed = secret.data.as_ref().and_then(|data| data.get(FIELD)).with_context(none)?;
        let plain = key.open(token, &sealed.0).context(
            "cannot open the keys of the cluster: --certificate-key is not that of the token's command line",
        )?;
        serde_json::from_slice(&plain)
            .context("the keys of the cluster cannot be read: is its hawser a newer one?")
    }

    /// Writes the keys to a data directory that has none, all of them or none.
    pub fn write(&self, data_dir: &Path) -> Result<()> {
        let (next, pki) = (data_dir.join("pki.next"), data_dir.join(PKI));
        let cannot = || format!("cannot write {}", next.display());
        match fs::remove_dir_all(&next) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                return Err(error).with_context(cannot);
            }
            _ => {}
        }
        for (name, content) in &self.files {
            let path = next.join(below(name)?);
            write_private(&path, content).with_context(|| format!("cannot write {}", path.display()))?;
        }
        // After a loss of power, the directory has all of its files or does not exist.
        let sync = |directory: &Path| match fs::File::open(directory) {
            Ok(open) => open.sync_all(),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(()),
            Err(error) => Err(error),
        };
        [next.join("etcd"), next.clone()]
            .iter()
            .try_for_each(|directory| sync(directory))
            .and_then(|()| fs::rename(&next, &pki))
            .and_then(|()| sync(data_dir))
            .with_context(|| format!("cannot make {}", pki.display()))
    }
}

/// Returns the path of a file below the directory of keys; refuses paths that lead elsewhere.
fn below(name: &str) -> Result<PathBuf> {
    let path = Path::new(name).strip_prefix(PKI).ok();
    match path.filter(|path| path.components().all(|part| matches!(part, Component::Normal(_)))) {
        Some(path) if path.file_name().is_some() => Ok(path.to_owned()),
        _ => bail!("{name} is not one of the files with the cluster's keys"),
    }
}

fn write_private(path: &Path, content: &str) -> std::io::Result<()> {
    use std::io::Write;
    if let Some(parent) = path.parent() {
        fs::DirBuilder::new().recursive(true).mode(0o700).create(parent)?;
    }
    let mut file = fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
    file.write_all(content.as_bytes())?;
    file.sync_all()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;
    use crate::control_plane::LocalMember;

    fn record() -> ControlPlane {
        ControlPlane {
            flags: vec!["--store=etcd".to_owned()],
            etcd_servers: vec!["https://192.0.2.2:2379".to_owned()],
            etcd_started: true,
            etcd_files: [None, None, None],
            member: Some(LocalMember {
                peer_url: "https://192.0.2.1:2380".to_owned(),
                client_url: "https://192.0.2.1:2379".to_owned(),
                client_port: 2379,
                peer_port: 2380,
            }),
            joined: None,
        }
    }

    fn control_node(dir: &Path) {
        fs::create_dir_all(dir.join(ETCD)).unwrap();
        for name in FILES.into_iter().chain(["pki/etcd/ca.crt", "pki/etcd/ca.key", "pki/admin.key"]) {
            fs::write(dir.join(name), format!("content of {name}")).unwrap();
        }
    }

    #[test]
    fn another_control_node_gets_the_shared_keys_and_no_others() {
        let (from, to) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        control_node(from.path());
        let handover = Handover::of(from.path(), record()).unwrap();
        assert_eq!(handover.record.etcd_servers, ["https://192.0.2.1:2379", "https://192.0.2.2:2379"]);
        assert!(handover.record.member.is_none());
        // Leftovers of an earlier attempt do not matter.
        fs::create_dir(to.path().join("pki.next")).unwrap();
        fs::write(to.path().join("pki.next/ca.key"), "half").unwrap();
        handover.write(to.path()).unwrap();
        for name in ["pki/ca.crt", "pki/ca.key", "pki/sa.key", "pki/etcd/ca.crt", "pki/etcd/ca.key"] {
            let path = to.path().join(name);
            assert_eq!(fs::read_to_string(&path).unwrap(), format!("content of {name}"));
            assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600, "{name}");
        }
        assert!(!to.path().join("pki/admin.key").exists());
        assert_eq!(fs::metadata(to.path().join(PKI)).unwrap().permissions().mode() & 0o777, 0o700);
    }

    #[test]
    fn etcd_that_is_not_hawsers_is_handed_over_with_the_certificate_of_its_clients_unless_it_is_on_loopback()
    {
        let (from, to) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        control_node(from.path());
        let files = ["authority.pem", "client.pem", "client-key.pem"].map(|name| from.path().join(name));
        for file in &files {
            fs::write(file, file.file_name().unwrap().as_encoded_bytes()).unwrap();
        }
        let record = |url: &str| ControlPlane {
            etcd_servers: vec![url.to_owned()],
            etcd_started: false,
            etcd_files: files.clone().map(Some),
            member: None,
            ..record()
        };
        let handover = Handover::of(from.path(), record("https://192.0.2.9:2379")).unwrap();
        handover.write(to.path()).unwrap();
        for (name, content) in
            [("ca.crt", "authority.pem"), ("client.crt", "client.pem"), ("client.key", "client-key.pem")]
        {
            let path = to.path().join(ETCD).join(name);
            assert_eq!(fs::read_to_string(&path).unwrap(), content);
            assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600, "{name}");
        }
        assert!(!to.path().join("pki/etcd/ca.key").exists(), "the authority signs for nobody here");
        let flags = crate::etcd::flags_of(&handover.record, to.path());
        assert_eq!(flags.etcd_servers, ["https://192.0.2.9:2379"]);
        assert_eq!(flags.etcd_certfile, Some(to.path().join("pki/etcd/client.crt")));

        let offer = |url: &str| {
            record(url).write(from.path()).unwrap();
            Offer::new(Some(from.path()), Duration::from_secs(3600)).map(|offer| offer.join_flags())
        };
        let flags = offer("https://192.0.2.9:2379").unwrap();
        assert!(!flags.contains("--etcd-start"), "{flags}");
        for url in ["http://127.0.0.1:2379", "https://localhost:2379", "https://[::1]:2379"] {
            let error = offer(url).unwrap_err().to_string();
            assert!(error.contains("other machines cannot reach etcd") && error.contains(url), "{error}");
        }
    }

    #[test]
    fn names_of_the_machine_itself_are_known_in_every_spelling() {
        for host in [
            "127.0.0.1",
            "127.1",
            "localhost",
            "LocalHost.",
            "[::1]",
            "[::ffff:127.0.0.1]",
            "0.0.0.0",
            "[::]",
        ] {
            assert!(is_loopback(&format!("https://{host}:2379")), "{host}");
        }
        for host in ["192.0.2.1", "[2001:db8::1]", "etcd.example", "localhost.example"] {
            assert!(!is_loopback(&format!("https://{host}:2379")), "{host}");
        }
    }

    #[test]
    fn files_elsewhere_are_refused() {
        for name in ["/etc/passwd", "pki/../x", "pki", "x", "pki/./../../x", ""] {
            assert!(below(name).is_err(), "{name}");
        }
        assert_eq!(below("pki/etcd/ca.key").unwrap(), Path::new("etcd/ca.key"));
    }

    #[test]
    fn role_of_a_token_names_its_secret_alone() {
        let (secret, role, binding) = objects("abcdef", &Secret::default(), vec![1]).unwrap();
        let rule = &role.rules.unwrap()[0];
        assert_eq!(rule.resource_names.as_deref(), Some(&["hawser-control-plane-abcdef".to_owned()][..]));
        assert_eq!(
            (rule.resources.as_deref(), &rule.verbs[..]),
            (Some(&["secrets".to_owned()][..]), &["get".to_owned()][..])
        );
        let subject = &binding.subjects.unwrap()[0];
        assert_eq!((subject.kind.as_str(), subject.name.as_str()), ("User", "system:bootstrap:abcdef"));
        assert!(secret.metadata.owner_references.is_some());
    }

    #[test]
    fn offer_needs_keys_a_shared_store_and_an_end() {
        let hour = Duration::from_secs(3600);
        let error = |dir: Option<&Path>, ttl| Offer::new(dir, ttl).err().unwrap().to_string();
        assert!(error(None, hour).contains("--data-dir"));
        let dir = tempfile::tempdir().unwrap();
        control_node(dir.path());
        assert!(error(Some(dir.path()), Duration::ZERO).contains("must end"));
        assert!(error(Some(dir.path()), hour).contains("--etcd-start"));
        record().write(dir.path()).unwrap();
        let offer = Offer::new(Some(dir.path()), hour).unwrap();
        assert!(offer.join_flags().ends_with(" --etcd-start"), "{}", offer.join_flags());
    }
}
