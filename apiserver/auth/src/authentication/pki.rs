//! The cluster's own certificate authority and the certificates it issues.
//!
//! Everything lies in one folder: `ca.crt`, `ca.key`, `sa.key` (signs ServiceAccount tokens), `sa.pub` (its public half) and a
//! pair `NAME.crt`, `NAME.key` for each certificate that is kept. Keys are ECDSA P-256, files have
//! mode 0600 and are replaced as a whole.
//!
//! The authority lives ten years, a leaf one year. A kept leaf is issued anew when it is asked for
//! and expires within 30 days, was signed by another authority, or names other hosts or another
//! subject. A process that runs longer renews what it serves with by itself (`renewal`). An authority that has expired is not replaced silently, because every client trusts
//! it by its bytes: `open` refuses and says so.

use std::collections::BTreeSet;
use std::io;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use apiserver_kinds::certificate::CertificateUser;
use apiserver_meta::ambient::Ambient;
use apiserver_meta::identity::Identity;
use jiff::Timestamp;
use p256::pkcs8::DecodePrivateKey;
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, KeyPair,
    KeyUsagePurpose, PublicKeyData, SanType, SerialNumber,
};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use sha2::{Digest, Sha256};
use userspace_daemon::private_file;
use userspace_daemon::tls::CertificateAndKey;
use x509_parser::extensions::GeneralName;
use x509_parser::prelude::{FromDer, X509Certificate};

use super::files::{create_private_dir, read_optional};
use super::keys::{self, TokenSigner, VerifyingKey};

const DAY: u64 = 24 * 60 * 60;
const CA_LIFETIME: Duration = Duration::from_secs(3653 * DAY);
const LEAF_LIFETIME: Duration = Duration::from_secs(365 * DAY);
/// A leaf with less than this left is issued anew.
const RENEW_BEFORE: Duration = Duration::from_secs(30 * DAY);
/// Certificates begin a little in the past, for clients whose clock is behind.
const CLOCK_SKEW: Duration = Duration::from_secs(3600);

/// The user as which the API server calls kubelets. Kubelets accept the name, the API server does not.
pub const KUBELET_CLIENT: &str = "kube-apiserver-kubelet-client";

/// A failure of the certificate authority.
#[derive(Debug, thiserror::Error)]
pub enum PkiError {
    #[error("cannot use {}", path.display())]
    File {
        path: PathBuf,
        #[source]
        cause: io::Error,
    },
    #[error("{} does not hold {what}", path.display())]
    Content { path: PathBuf, what: &'static str },
    #[error("the private key in {} is not that of the certificate in {}", key.display(), certificate.display())]
    Mismatch { certificate: PathBuf, key: PathBuf },
    #[error("{} is there but its key {} is missing; restore it or remove both", certificate.display(), key.display())]
    KeyMissing { certificate: PathBuf, key: PathBuf },
    #[error("{} has expired; remove the folder to make a new authority, all kubeconfigs then change", path.display())]
    Expired { path: PathBuf },
    #[error("cannot issue a certificate for {subject}")]
    Issue {
        subject: String,
        #[source]
        cause: rcgen::Error,
    },
    #[error("a certificate for {subject} cannot name {count} organizations, two are the most")]
    TooManyOrganizations { subject: String, count: usize },
    #[error("cannot set up TLS")]
    Tls(#[source] rustls::Error),
    #[error("cannot verify client certificates")]
    Verifier(#[source] rustls::client::VerifierBuilderError),
}

/// The contents of a certificate to be issued.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Subject {
    /// The user's name in Kubernetes.
    pub common_name: String,
    /// The user's groups; at most two.
    pub organizations: Vec<String>,
    /// DNS names and IP addresses, as text. Empty for client certificates.
    pub hosts: BTreeSet<String>,
    /// The permitted usage.
    pub usage: Usage,
}

/// A component that talks to the API server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Component<'a> {
    Scheduler,
    ControllerManager,
    Proxy,
    Dns,
    /// The kubelet of the node of that name.
    Node(&'a str),
}

/// Extended key usage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Usage {
    Client,
    Server,
    /// For clients and servers: members of etcd are both.
    Peer,
}

impl Component<'_> {
    /// The program that is this component in Kubernetes.
    pub fn program(self) -> &'static str {
        match self {
            Self::Scheduler => "kube-scheduler",
            Self::ControllerManager => "kube-controller-manager",
            Self::Proxy => "kube-proxy",
            Self::Dns => "kube-dns",
            Self::Node(_) => "kubelet",
        }
    }
}

impl Subject {
    /// A user with groups.
    pub fn client(common_name: &str, organizations: &[&str]) -> Self {
        Self {
            common_name: common_name.to_owned(),
            organizations: organizations.iter().map(ToString::to_string).collect(),
            hosts: BTreeSet::new(),
            usage: Usage::Client,
        }
    }

    /// An administrator: may do everything.
    pub fn admin() -> Self {
        Self::client("kubernetes-admin", &["system:masters"])
    }

    /// A component under the user that the default roles are bound to.
    pub fn component(component: Component<'_>) -> Self {
        match component {
            Component::Scheduler => Self::client("system:kube-scheduler", &[]),
            Component::ControllerManager => Self::client("system:kube-controller-manager", &[]),
            Component::Proxy => Self::client("system:kube-proxy", &[]),
            Component::Dns => Self::client("system:kube-dns", &[]),
            Component::Node(name) => Self::client(&format!("system:node:{name}"), &["system:nodes"]),
        }
    }

    /// The API server when it calls kubelets: in no group, so that it means nothing to an API server.
    pub fn kubelet_client() -> Self {
        Self::client(KUBELET_CLIENT, &[])
    }

    /// Returns the identity of the user, for the transport within the process.
    pub fn identity(&self) -> Identity {
        let groups: Vec<&str> = self.organizations.iter().map(String::as_str).collect();
        Identity::authenticated(&self.common_name, &groups)
    }

    /// The API server as it is called within the cluster, on this machine, and by `addresses`
    /// (first addresses of the service ranges, the node's own, further names).
    pub fn apiserver(cluster_domain: &str, addresses: impl IntoIterator<Item = String>) -> Self {
        let mut hosts: BTreeSet<String> =
            ["kubernetes", "kubernetes.default", "kubernetes.default.svc", "localhost", "127.0.0.1", "::1"]
                .into_iter()
                .map(str::to_owned)
                .collect();
        hosts.insert(format!("kubernetes.default.svc.{cluster_domain}"));
        hosts.extend(addresses);
        Self {
            common_name: "kube-apiserver".to_owned(),
            organizations: Vec::new(),
            hosts,
            usage: Usage::Server,
        }
    }

    /// The node server of a kubelet.
    pub fn kubelet(node_name: &str, addresses: impl IntoIterator<Item = String>) -> Self {
        let mut hosts: BTreeSet<String> = addresses.into_iter().collect();
        hosts.insert(node_name.to_owned());
        Self {
            common_name: format!("system:node:{node_name}"),
            organizations: vec!["system:nodes".to_owned()],
            hosts,
            usage: Usage::Server,
        }
    }
}

/// The certificate authority in a folder. Cheap to clone.
#[derive(Clone)]
pub struct Pki {
    dir: PathBuf,
    pub(super) ambient: Ambient,
    ca_pem: String,
    pub(super) ca_der: CertificateDer<'static>,
    ca_key: Arc<KeyPair>,
}

impl Pki {
    /// Opens the authority in `dir`, or makes one.
    pub fn open(dir: &Path, ambient: &Ambient) -> Result<Self, PkiError> {
        Self::open_named(dir, "kubernetes-ca", ambient)
    }

    /// Opens the authority in `dir`, or makes one of this name.
    pub fn open_named(dir: &Path, name: &str, ambient: &Ambient) -> Result<Self, PkiError> {
        create_private_dir(dir).map_err(|cause| PkiError::File { path: dir.to_owned(), cause })?;
        let (certificate_path, key_path) = (dir.join("ca.crt"), dir.join("ca.key"));
        let key_pem = read(&key_path)?;
        let certificate_pem = read(&certificate_path)?;
        let ca_key = match key_pem {
            Some(pem) => KeyPair::from_pem(&pem)
                .map_err(|_| PkiError::Content { path: key_path, what: "a P-256 private key" })?,
            None if certificate_pem.is_some() => {
                return Err(PkiError::KeyMissing { certificate: certificate_path, key: key_path });
            }
            None => new_key_file(&key_path)?,
        };
        // A key without its certificate is what a crash during creation leaves behind.
        let ca_pem = match certificate_pem {
            Some(pem) => pem,
            None => {
                let pem = self_signed(&ca_key, name, ambient)?;
                write(&certificate_path, &pem)?;
                pem
            }
        };
        let ca_der = check_authority(&certificate_path, &ca_pem, &ca_key, ambient)?;
        Ok(Self { dir: dir.to_owned(), ambient: ambient.clone(), ca_pem, ca_der, ca_key: Arc::new(ca_key) })
    }

    /// The authority's certificate, PEM.
    pub fn ca_pem(&self) -> &str {
        &self.ca_pem
    }

    /// The authority's private key, PEM.
    pub fn ca_key_pem(&self) -> String {
        self.ca_key.serialize_pem()
    }

    /// A client certificate that is not kept: (certificate PEM, key PEM).
    pub fn issue_client(
        &self,
        common_name: &str,
        organizations: &[&str],
    ) -> Result<(String, String), PkiError> {
        let pair = self.issue(&Subject::client(common_name, organizations))?;
        Ok((pair.certificate, pair.key))
    }

    /// A certificate with a new key; it is not kept.
    pub fn issue(&self, subject: &Subject) -> Result<CertificateAndKey, PkiError> {
        let failed = |cause| PkiError::Issue { subject: subject.common_name.clone(), cause };
        let key = KeyPair::generate().map_err(failed)?;
        let params = self.leaf_params(subject)?;
        let authority = rcgen::Issuer::from_ca_cert_der(&self.ca_der, &*self.ca_key).map_err(failed)?;
        let certificate = params.signed_by(&key, &authority).map_err(failed)?;
        Ok(CertificateAndKey { certificate: certificate.pem(), key: key.serialize_pem() })
    }

    /// Returns the certificate in `NAME.crt` and `NAME.key`; issues another one if there is none that is good for
    /// another 30 days.
    pub fn load_or_issue(&self, name: &str, subject: &Subject) -> Result<CertificateAndKey, PkiError> {
        let certificate_path = self.dir.join(format!("{name}.crt"));
        let key_path = self.dir.join(format!("{name}.key"));
        if let (Some(certificate), Some(key)) = (read(&certificate_path)?, read(&key_path)?) {
            let pair = CertificateAndKey { certificate, key };
            if self.still_good(&pair, subject) {
                return Ok(pair);
            }
        }
        let pair = self.issue(subject)?;
        // A crash between the two leaves a key that does not match, which the next start notices.
        write(&key_path, &pair.key)?;
        write(&certificate_path, &pair.certificate)?;
        Ok(pair)
    }

    /// Writes a kubeconfig for `subject` to `path` (mode 0600), with a certificate kept as `name`.
    pub fn write_kubeconfig(
        &self,
        path: &Path,
        server_url: &str,
        name: &str,
        subject: &Subject,
    ) -> Result<(), PkiError> {
        self.write_kubeconfig_trusting(&self.ca_pem, path, server_url, name, subject)
    }

    /// Writes a kubeconfig for a server whose certificate may be of other authorities (PEM).
    pub fn write_kubeconfig_trusting(
        &self,
        authorities: &str,
        path: &Path,
        server_url: &str,
        name: &str,
        subject: &Subject,
    ) -> Result<(), PkiError> {
        let pair = self.load_or_issue(name, subject)?;
        write(path, &kubeconfig(server_url, authorities, &pair.certificate, &pair.key))
    }

    /// Returns the key that signs ServiceAccount tokens: `sa.key`, made if missing. Its public half is stored
    /// with it as `sa.pub`, for components of Kubernetes, which cannot find it in a PKCS #8 key of P-256.
    pub(super) fn service_account_signer(&self) -> Result<TokenSigner, PkiError> {
        let (path, public_path) = (self.dir.join("sa.key"), self.dir.join("sa.pub"));
        let pem = match read(&path)? {
            Some(pem) => pem,
            None => {
                let failed = |cause| PkiError::Issue { subject: path.display().to_string(), cause };
                let key = KeyPair::generate().map_err(failed)?;
                let key = p256::SecretKey::from_pkcs8_der(key.serialized_der())
                    .map_err(|_| failed(rcgen::Error::CouldNotParseKeyPair))?;
                let pem = keys::ec_private_key(&key);
                write(&path, &pem)?;
                pem
            }
        };
        let signer = TokenSigner::from_pem(&pem, &path)?;
        let public = signer.public();
        if !read(&public_path)?.is_some_and(|text| VerifyingKey::all(&text).contains(&public)) {
            write(&public_path, &public.to_pem())?;
        }
        Ok(signer)
    }

    /// Seconds since 1970.
    pub(super) fn now(&self) -> i64 {
        unix_seconds(self.ambient.now())
    }

    fn leaf_params(&self, subject: &Subject) -> Result<CertificateParams, PkiError> {
        let failed = |cause| PkiError::Issue { subject: subject.common_name.clone(), cause };
        let mut params = CertificateParams::default();
        params.distinguished_name = distinguished_name(subject)?;
        for host in &subject.hosts {
            let name = match host.parse::<IpAddr>() {
                Ok(address) => SanType::IpAddress(address),
                Err(_) => SanType::DnsName(host.as_str().try_into().map_err(failed)?),
            };
            params.subject_alt_names.push(name);
        }
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = match subject.usage {
            Usage::Client => vec![ExtendedKeyUsagePurpose::ClientAuth],
            Usage::Server => vec![ExtendedKeyUsagePurpose::ServerAuth],
            Usage::Peer => vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth],
        };
        params.use_authority_key_identifier_extension = true;
        set_validity(&mut params, &self.ambient, LEAF_LIFETIME);
        Ok(params)
    }

    fn still_good(&self, pair: &CertificateAndKey, subject: &Subject) -> bool {
        let Some(der) = first_certificate(&pair.certificate) else { return false };
        let Ok((_, certificate)) = X509Certificate::from_der(&der) else { return false };
        let Ok(key) = KeyPair::from_pem(&pair.key) else { return false };
        let until = certificate.validity().not_after.timestamp();
        let needed = unix_seconds(self.ambient.now()) + RENEW_BEFORE.as_secs() as i64;
        until >= needed
            && certificate.public_key().subject_public_key.data.as_ref() == key.der_bytes()
            && signed_by(&certificate, self.ca_key.der_bytes())
            && subject_of(&certificate).as_ref() == Some(subject)
    }
}

/// A kubeconfig with one cluster, one user and everything inside. Write it with mode 0600.
pub fn kubeconfig(server_url: &str, ca_pem: &str, certificate_pem: &str, key_pem: &str) -> String {
    use base64::Engine as _;
    let encode = |text: &str| base64::engine::general_purpose::STANDARD.encode(text);
    format!(
        "apiVersion: v1\n\
         kind: Config\n\
         clusters:\n\
         - name: hawser\n  \
           cluster:\n    \
             server: {server_url}\n    \
             certificate-authority-data: {ca}\n\
         users:\n\
         - name: hawser\n  \
           user:\n    \
             client-certificate-data: {certificate}\n    \
             client-key-data: {key}\n\
         contexts:\n\
         - name: hawser\n  \
           context:\n    \
             cluster: hawser\n    \
             user: hawser\n\
         current-context: hawser\n",
        ca = encode(ca_pem),
        certificate = encode(certificate_pem),
        key = encode(key_pem),
    )
}

/// Returns the subject of the first certificate of a PEM text, or `None` if it is not one of ours.
pub(super) fn subject(pem: &str) -> Option<Subject> {
    let der = first_certificate(pem)?;
    subject_of(&X509Certificate::from_der(&der).ok()?.1)
}

/// Returns the time at which the first certificate of a PEM text is to be renewed, in seconds since 1970.
pub(super) fn renew_at(pem: &str) -> Option<i64> {
    let der = first_certificate(pem)?;
    let (_, certificate) = X509Certificate::from_der(&der).ok()?;
    Some(certificate.validity().not_after.timestamp() - RENEW_BEFORE.as_secs() as i64)
}

/// Returns the times from and until which the first certificate of a PEM text is valid.
pub fn validity(pem: &str) -> Option<(Timestamp, Timestamp)> {
    let der = first_certificate(pem)?;
    let (_, certificate) = X509Certificate::from_der(&der).ok()?;
    let validity = certificate.validity();
    let time = |seconds: i64| Timestamp::from_second(seconds).ok();
    Some((time(validity.not_before.timestamp())?, time(validity.not_after.timestamp())?))
}

/// Returns the hash of the public key of each certificate of a PEM text, as kubeadm writes it: `sha256:` and the
/// hexadecimal SHA-256 of the SubjectPublicKeyInfo (RFC 7469).
pub fn public_key_hashes(pem: &str) -> Vec<String> {
    certificates(pem).iter().filter_map(public_key_hash).collect()
}

/// Returns the hash of the public key of a certificate; `None` if it cannot be read.
pub fn public_key_hash(certificate: &CertificateDer<'_>) -> Option<String> {
    let (_, certificate) = X509Certificate::from_der(certificate).ok()?;
    let digest = Sha256::digest(certificate.public_key().raw);
    Some(digest.iter().fold("sha256:".to_owned(), |text, byte| text + &format!("{byte:02x}")))
}

/// The certificates of a PEM text.
pub fn certificates(pem: &str) -> Vec<CertificateDer<'static>> {
    CertificateDer::pem_slice_iter(pem.as_bytes()).filter_map(Result::ok).collect()
}

/// The first private key of a PEM text.
pub(super) fn private_key(pem: &str) -> Option<PrivateKeyDer<'static>> {
    PrivateKeyDer::from_pem_slice(pem.as_bytes()).ok()
}

fn first_certificate(pem: &str) -> Option<CertificateDer<'static>> {
    certificates(pem).into_iter().next()
}

fn read(path: &Path) -> Result<Option<String>, PkiError> {
    read_optional(path).map_err(|cause| PkiError::File { path: path.to_owned(), cause })
}

fn write(path: &Path, content: &str) -> Result<(), PkiError> {
    private_file::write(path, content.as_bytes())
        .map_err(|cause| PkiError::File { path: path.to_owned(), cause })
}

fn new_key_file(path: &Path) -> Result<KeyPair, PkiError> {
    let key = KeyPair::generate()
        .map_err(|cause| PkiError::Issue { subject: path.display().to_string(), cause })?;
    write(path, &key.serialize_pem())?;
    Ok(key)
}

fn self_signed(key: &KeyPair, name: &str, ambient: &Ambient) -> Result<String, PkiError> {
    let failed = |cause| PkiError::Issue { subject: "the authority itself".to_owned(), cause };
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, name);
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.key_usages =
        vec![KeyUsagePurpose::DigitalSignature, KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    set_validity(&mut params, ambient, CA_LIFETIME);
    Ok(params.self_signed(key).map_err(failed)?.pem())
}

fn check_authority(
    path: &Path,
    pem: &str,
    key: &KeyPair,
    ambient: &Ambient,
) -> Result<CertificateDer<'static>, PkiError> {
    let broken =
        || PkiError::Content { path: path.to_owned(), what: "the certificate of this authority's key" };
    let der = first_certificate(pem).ok_or_else(broken)?;
    let (_, certificate) = X509Certificate::from_der(&der).map_err(|_| broken())?;
    if !certificate.is_ca() || certificate.public_key().subject_public_key.data.as_ref() != key.der_bytes() {
        return Err(broken());
    }
    let (now, until) = (unix_seconds(ambient.now()), certificate.validity().not_after.timestamp());
    if until <= now {
        return Err(PkiError::Expired { path: path.to_owned() });
    }
    if until - now < LEAF_LIFETIME.as_secs() as i64 {
        let days = (until - now) / DAY as i64;
        tracing::warn!(days, path = %path.display(), "the certificate authority expires soon");
    }
    Ok(der)
}

fn set_validity(params: &mut CertificateParams, ambient: &Ambient, lifetime: Duration) {
    let now = Duration::from_secs(unix_seconds(ambient.now()).max(0) as u64);
    let epoch = rcgen::date_time_ymd(1970, 1, 1);
    params.not_before = epoch + now.saturating_sub(CLOCK_SKEW);
    params.not_after = epoch + now + lifetime;
    let mut serial = ambient.random.next_u64().to_be_bytes().to_vec();
    serial.extend(ambient.random.next_u64().to_be_bytes());
    // Positive and without leading zeroes, so that it has one spelling.
    serial[0] = (serial[0] & 0x7f) | 0x40;
    params.serial_number = Some(SerialNumber::from_slice(&serial));
}

fn distinguished_name(subject: &Subject) -> Result<DistinguishedName, PkiError> {
    let mut name = DistinguishedName::new();
    match subject.organizations.as_slice() {
        [] => {}
        [one] => name.push(DnType::OrganizationName, one.as_str()),
        [one, two] => {
            name.push(DnType::OrganizationName, one.as_str());
            // The certificate library keeps one value an attribute type; the same type given by
            // its number counts as another one there and is the same in the certificate.
            name.push(DnType::CustomDnType(vec![2, 5, 4, 10]), two.as_str());
        }
        more => {
            return Err(PkiError::TooManyOrganizations {
                subject: subject.common_name.clone(),
                count: more.len(),
            });
        }
    }
    name.push(DnType::CommonName, subject.common_name.as_str());
    Ok(name)
}

fn unix_seconds(time: Timestamp) -> i64 {
    time.as_second()
}

/// Returns `true` if the P-256 key `authority` (an uncompressed point) signed `certificate`.
fn signed_by(certificate: &X509Certificate<'_>, authority: &[u8]) -> bool {
    ring::signature::UnparsedPublicKey::new(&ring::signature::ECDSA_P256_SHA256_ASN1, authority)
        .verify(certificate.tbs_certificate.as_ref(), certificate.signature_value.data.as_ref())
        .is_ok()
}

/// The subject that a certificate was issued for, `None` if it is not one of ours.
fn subject_of(certificate: &X509Certificate<'_>) -> Option<Subject> {
    let CertificateUser { name: common_name, groups: organizations } =
        CertificateUser::of(certificate).ok()?;
    let mut hosts = BTreeSet::new();
    if let Some(names) = certificate.subject_alternative_name().ok()? {
        for name in &names.value.general_names {
            hosts.insert(match name {
                GeneralName::DNSName(name) => (*name).to_owned(),
                GeneralName::IPAddress(bytes) => address_from_octets(bytes)?.to_string(),
                _ => return None,
            });
        }
    }
    let usage = certificate.extended_key_usage().ok()??;
    let usage = match (usage.value.client_auth, usage.value.server_auth) {
        (true, false) => Usage::Client,
        (false, true) => Usage::Server,
        (true, true) => Usage::Peer,
        (false, false) => return None,
    };
    Some(Subject { common_name, organizations, hosts, usage })
}

pub(super) fn address_from_octets(bytes: &[u8]) -> Option<IpAddr> {
    if let Ok(octets) = <[u8; 4]>::try_from(bytes) {
        return Some(IpAddr::from(octets));
    }
    <[u8; 16]>::try_from(bytes).ok().map(IpAddr::from)
}

#[cfg(test)]
#[path = "pki_tests.rs"]
mod tests;
