//! The certificate authority of the cluster's signers, and requests (PKCS #10) as it reads them.

mod der;
pub(crate) mod request;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use apiserver_meta::ambient::Ambient;
use apiserver_meta::pem;
use jiff::Timestamp;
use ring::rand::SystemRandom;
use ring::signature::{
    ECDSA_P256_SHA256_ASN1_SIGNING, ECDSA_P384_SHA384_ASN1_SIGNING, EcdsaKeyPair, Ed25519KeyPair, KeyPair,
    RSA_PKCS1_SHA256, RsaKeyPair,
};
use x509_parser::extensions::ParsedExtension;
use x509_parser::pem::Pem;
use x509_parser::prelude::{FromDer, X509Certificate};

pub(crate) use request::Request;

/// Signer of client certificates of users.
pub(crate) const CLIENT: &str = "kubernetes.io/kube-apiserver-client";
/// Signer of client certificates of kubelets.
pub(crate) const KUBELET_CLIENT: &str = "kubernetes.io/kube-apiserver-client-kubelet";
/// Signer of serving certificates of kubelets.
pub(crate) const KUBELET_SERVING: &str = "kubernetes.io/kubelet-serving";
/// Signer of certificates that nothing is known about.
pub(crate) const LEGACY: &str = "kubernetes.io/legacy-unknown";
/// The signers of Kubernetes.
const SIGNERS: [&str; 4] = [CLIENT, KUBELET_CLIENT, KUBELET_SERVING, LEGACY];

/// Certificates begin this long in the past, for clients whose clock is behind.
const BACKDATE: Duration = Duration::from_secs(5 * 60);
/// Certificates that live shorter than this are not shortened by the time before their issue.
const SHORT: Duration = Duration::from_secs(8 * 60 * 60);
/// Shortest life that a request can ask for.
const SHORTEST: Duration = Duration::from_secs(10 * 60);

const ECDSA_SHA256: &[u64] = &[1, 2, 840, 10_045, 4, 3, 2];
const ECDSA_SHA384: &[u64] = &[1, 2, 840, 10_045, 4, 3, 3];
const RSA_SHA256: &[u64] = &[1, 2, 840, 113_549, 1, 1, 11];
const ED25519: &[u64] = &[1, 3, 101, 112];

const COMMON_NAME: &[u64] = &[2, 5, 4, 3];
const ORGANIZATION: &[u64] = &[2, 5, 4, 10];

const KEY_USAGE: &[u64] = &[2, 5, 29, 15];
const SUBJECT_ALT_NAME: &[u64] = &[2, 5, 29, 17];
const BASIC_CONSTRAINTS: &[u64] = &[2, 5, 29, 19];
const AUTHORITY_KEY_ID: &[u64] = &[2, 5, 29, 35];
const EXTENDED_KEY_USAGE: &[u64] = &[2, 5, 29, 37];

/// The authorities of the signers of Kubernetes, and the longest life of what they sign.
#[derive(Clone, Debug)]
pub struct Signing {
    /// By name of the signer; one without an authority signs nothing.
    pub authorities: BTreeMap<&'static str, Arc<Authority>>,
    /// Life of a certificate that does not ask for a shorter one.
    pub duration: Duration,
}

impl Signing {
    /// Returns the signing of all signers by one authority.
    pub fn by_one(authority: Authority, duration: Duration) -> Self {
        let authority = Arc::new(authority);
        let of = |signer: &&'static str| (*signer, Arc::clone(&authority));
        Self { authorities: SIGNERS.iter().map(of).collect(), duration }
    }
}

/// Reason for which an authority cannot sign.
#[derive(Debug, thiserror::Error)]
pub enum AuthorityError {
    #[error("the signing certificate is not the PEM of a certificate authority")]
    Certificate,
    #[error("the signing key is not the PEM of a private key that can be used: RSA, P-256, P-384 or Ed25519")]
    Key,
    #[error("the signing key is not that of the signing certificate")]
    Mismatch,
    #[error("the signing certificate expired at {0}")]
    Expired(Timestamp),
    #[error("unrecognized usage values: {0:?}")]
    Usages(Vec<String>),
    #[error("the signing key failed")]
    Sign,
}

enum Key {
    /// With the algorithm of its signatures.
    Ecdsa(EcdsaKeyPair, &'static [u64]),
    Rsa(RsaKeyPair),
    Ed25519(Ed25519KeyPair),
}

/// Certificate and key of an authority, read once.
pub struct Authority {
    /// The issuer's name, DER.
    subject: Vec<u8>,
    key_id: Option<Vec<u8>>,
    not_after: Timestamp,
    key: Key,
}

impl std::fmt::Debug for Authority {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Authority").field("not_after", &self.not_after).finish_non_exhaustive()
    }
}

impl Authority {
    /// Reads the certificate and the private key of an authority (PEM).
    pub fn new(certificate: &str, key: &str) -> Result<Self, AuthorityError> {
        let block = block(certificate).ok_or(AuthorityError::Certificate)?;
        let (_, certificate) =
            X509Certificate::from_der(&block.contents).map_err(|_| AuthorityError::Certificate)?;
        if !certificate.is_ca() {
            return Err(AuthorityError::Certificate);
        }
        let public = certificate.public_key().subject_public_key.data.as_ref();
        let key = Key::read(key, public)?;
        if key.public() != public {
            return Err(AuthorityError::Mismatch);
        }
        let key_id =
            certificate.extensions().iter().find_map(|extension| match extension.parsed_extension() {
                ParsedExtension::SubjectKeyIdentifier(id) => Some(id.0.to_vec()),
                _ => None,
            });
        let not_after = Timestamp::from_second(certificate.validity().not_after.timestamp())
            .map_err(|_| AuthorityError::Certificate)?;
        Ok(Self { subject: certificate.subject().as_raw().to_vec(), key_id, not_after, key })
    }

    /// Returns a certificate (PEM) for a request that has been checked, valid for `lifetime` from now.
    pub(crate) fn sign(
        &self,
        request: &Request,
        usages: &[String],
        lifetime: Duration,
        ambient: &Ambient,
    ) -> Result<String, AuthorityError> {
        let (not_before, not_after) = self.validity(ambient.now(), lifetime)?;
        let algorithm = self.key.algorithm();
        let certificate = der::sequence(&[
            &der::explicit(0, &der::value(der::INTEGER, &[2])),
            &der::value(der::INTEGER, &serial(ambient)),
            &algorithm,
            &self.subject,
            &der::sequence(&[&der::time(not_before), &der::time(not_after)]),
            &subject(request),
            &request.key,
            &der::explicit(3, &self.extensions(request, usages)?),
        ]);
        let signature = self.key.sign(&certificate)?;
        let signed = der::sequence(&[&certificate, &algorithm, &der::bits(&signature)]);
        Ok(pem::encode("CERTIFICATE", &signed))
    }

    /// Returns begin and end of a certificate, which ends with the authority at the latest.
    fn validity(&self, now: Timestamp, lifetime: Duration) -> Result<(Timestamp, Timestamp), AuthorityError> {
        if now >= self.not_after {
            return Err(AuthorityError::Expired(self.not_after));
        }
        let not_before = now.checked_sub(BACKDATE).unwrap_or(now);
        let from = if lifetime < SHORT { now } else { not_before };
        let not_after = from.checked_add(lifetime).unwrap_or(self.not_after).min(self.not_after);
        Ok((not_before, not_after))
    }

    fn extensions(&self, request: &Request, usages: &[String]) -> Result<Vec<u8>, AuthorityError> {
        let (flags, purposes) = usage_values(usages)?;
        let mut list = Vec::new();
        if !flags.is_empty() {
            list.extend(extension(KEY_USAGE, true, &der::flags(flags)));
        }
        if !purposes.is_empty() {
            let purposes: Vec<u8> = purposes.into_iter().flat_map(der::oid).collect();
            list.extend(extension(EXTENDED_KEY_USAGE, false, &der::value(der::SEQUENCE, &purposes)));
        }
        // An empty sequence: not an authority.
        list.extend(extension(BASIC_CONSTRAINTS, true, &der::sequence(&[])));
        if let Some(id) = &self.key_id {
            list.extend(extension(AUTHORITY_KEY_ID, false, &der::sequence(&[&der::implicit(0, id)])));
        }
        if request.has_alternative_names() {
            list.extend(extension(SUBJECT_ALT_NAME, false, &alternative_names(request)));
        }
        Ok(der::value(der::SEQUENCE, &list))
    }
}

/// Returns the subject of a certificate: groups and user, which were checked. Whatever else is in the subject of the
/// request was not, and other programs might read it in another way.
fn subject(request: &Request) -> Vec<u8> {
    let mut attributes: Vec<u8> =
        request.organizations.iter().flat_map(|group| der::attribute(ORGANIZATION, group)).collect();
    if !request.common_name.is_empty() {
        attributes.extend(der::attribute(COMMON_NAME, &request.common_name));
    }
    der::value(der::SEQUENCE, &attributes)
}

/// Returns the life of a certificate: what the request asks for, within the bounds.
pub(crate) fn lifetime(longest: Duration, asked: Option<i32>) -> Duration {
    let Some(seconds) = asked else { return longest };
    let asked = Duration::from_secs(u64::try_from(seconds).unwrap_or_default());
    if asked > longest { longest } else { asked.max(SHORTEST) }
}

#[expect(clippy::disallowed_methods, reason = "signatures are made with the system's entropy, as keys are")]
fn entropy() -> SystemRandom {
    SystemRandom::new()
}

fn block(text: &str) -> Option<Pem> {
    Pem::iter_from_buffer(text.as_bytes()).find_map(Result::ok)
}

fn extension(id: &[u64], critical: bool, content: &[u8]) -> Vec<u8> {
    let critical = if critical { der::value(der::BOOLEAN, &[0xff]) } else { Vec::new() };
    der::sequence(&[&der::oid(id), &critical, &der::value(der::OCTET_STRING, content)])
}

fn alternative_names(request: &Request) -> Vec<u8> {
    let mut names = Vec::new();
    for name in &request.dns_names {
        names.extend(der::implicit(2, name.as_bytes()));
    }
    for name in &request.emails {
        names.extend(der::implicit(1, name.as_bytes()));
    }
    for address in &request.addresses {
        names.extend(match address {
            std::net::IpAddr::V4(address) => der::implicit(7, &address.octets()),
            std::net::IpAddr::V6(address) => der::implicit(7, &address.octets()),
        });
    }
    for name in &request.uris {
        names.extend(der::implicit(6, name.as_bytes()));
    }
    der::value(der::SEQUENCE, &names)
}

/// Returns a positive number of 16 bytes that nobody can guess.
fn serial(ambient: &Ambient) -> Vec<u8> {
    let mut serial = ambient.random.next_u64().to_be_bytes().to_vec();
    serial.extend(ambient.random.next_u64().to_be_bytes());
    // Positive and without leading zeroes, so that it has one spelling.
    serial[0] = (serial[0] & 0x7f) | 0x40;
    serial
}

/// Flags of `keyUsage`, and the purposes of `extendedKeyUsage`.
type UsageValues = (Vec<u8>, Vec<&'static [u64]>);

fn usage_values(usages: &[String]) -> Result<UsageValues, AuthorityError> {
    let (mut flags, mut purposes, mut unknown) = (Vec::new(), Vec::new(), Vec::new());
    for usage in usages {
        if let Some(flag) = flag(usage) {
            flags.push(flag);
        } else if let Some(purpose) = purpose(usage) {
            purposes.push(purpose);
        } else {
            unknown.push(usage.clone());
        }
    }
    if !unknown.is_empty() {
        return Err(AuthorityError::Usages(unknown));
    }
    purposes.sort_unstable();
    purposes.dedup();
    Ok((flags, purposes))
}

fn flag(usage: &str) -> Option<u8> {
    Some(match usage {
        "signing" | "digital signature" => 0,
        "content commitment" => 1,
        "key encipherment" => 2,
        "data encipherment" => 3,
        "key agreement" => 4,
        "cert sign" => 5,
        "crl sign" => 6,
        "encipher only" => 7,
        "decipher only" => 8,
        _ => return None,
    })
}

fn purpose(usage: &str) -> Option<&'static [u64]> {
    Some(match usage {
        "any" => &[2, 5, 29, 37, 0],
        "server auth" => &[1, 3, 6, 1, 5, 5, 7, 3, 1],
        "client auth" => &[1, 3, 6, 1, 5, 5, 7, 3, 2],
        "code signing" => &[1, 3, 6, 1, 5, 5, 7, 3, 3],
        "email protection" | "s/mime" => &[1, 3, 6, 1, 5, 5, 7, 3, 4],
        "ipsec end system" => &[1, 3, 6, 1, 5, 5, 7, 3, 5],
        "ipsec tunnel" => &[1, 3, 6, 1, 5, 5, 7, 3, 6],
        "ipsec user" => &[1, 3, 6, 1, 5, 5, 7, 3, 7],
        "timestamping" => &[1, 3, 6, 1, 5, 5, 7, 3, 8],
        "ocsp signing" => &[1, 3, 6, 1, 5, 5, 7, 3, 9],
        "microsoft sgc" => &[1, 3, 6, 1, 4, 1, 311, 10, 3, 3],
        "netscape sgc" => &[2, 16, 840, 1, 113_730, 4, 1],
        _ => return None,
    })
}

impl Key {
    /// Reads a private key in any of the usual PEM forms. `public` is the certificate's key: PEM forms of
    /// elliptic-curve keys may lack it.
    fn read(text: &str, public: &[u8]) -> Result<Self, AuthorityError> {
        // A file of OpenSSL may have the parameters of the curve before the key.
        let blocks = Pem::iter_from_buffer(text.as_bytes()).filter_map(Result::ok);
        let block = blocks.into_iter().find(|block| block.label.ends_with("PRIVATE KEY"));
        let block = block.ok_or(AuthorityError::Key)?;
        let bytes = block.contents.as_slice();
        let curves = [
            (&ECDSA_P256_SHA256_ASN1_SIGNING, ECDSA_SHA256),
            (&ECDSA_P384_SHA384_ASN1_SIGNING, ECDSA_SHA384),
        ];
        let random = entropy();
        let found = match block.label.as_str() {
            "RSA PRIVATE KEY" => RsaKeyPair::from_der(bytes).ok().map(Self::Rsa),
            "EC PRIVATE KEY" => sec1_scalar(bytes).and_then(|scalar| {
                curves.into_iter().find_map(|(curve, algorithm)| {
                    let key = EcdsaKeyPair::from_private_key_and_public_key(curve, scalar, public, &random);
                    Some(Self::Ecdsa(key.ok()?, algorithm))
                })
            }),
            "PRIVATE KEY" => curves
                .into_iter()
                .find_map(|(curve, algorithm)| {
                    Some(Self::Ecdsa(EcdsaKeyPair::from_pkcs8(curve, bytes, &random).ok()?, algorithm))
                })
                .or_else(|| RsaKeyPair::from_pkcs8(bytes).ok().map(Self::Rsa))
                .or_else(|| Ed25519KeyPair::from_pkcs8_maybe_unchecked(bytes).ok().map(Self::Ed25519)),
            _ => None,
        };
        found.ok_or(AuthorityError::Key)
    }

    fn public(&self) -> &[u8] {
        match self {
            Self::Ecdsa(key, _) => key.public_key().as_ref(),
            Self::Rsa(key) => key.public_key().as_ref(),
            Self::Ed25519(key) => key.public_key().as_ref(),
        }
    }

    /// Returns the AlgorithmIdentifier of signatures.
    fn algorithm(&self) -> Vec<u8> {
        match self {
            Self::Ecdsa(_, id) => der::sequence(&[&der::oid(id)]),
            Self::Rsa(_) => der::sequence(&[&der::oid(RSA_SHA256), &der::value(der::NULL, &[])]),
            Self::Ed25519(_) => der::sequence(&[&der::oid(ED25519)]),
        }
    }

    fn sign(&self, message: &[u8]) -> Result<Vec<u8>, AuthorityError> {
        let random = entropy();
        match self {
            Self::Ecdsa(key, _) => {
                let signature = key.sign(&random, message).map_err(|_| AuthorityError::Sign)?;
                Ok(signature.as_ref().to_vec())
            }
            Self::Rsa(key) => {
                let mut signature = vec![0; key.public().modulus_len()];
                key.sign(&RSA_PKCS1_SHA256, &random, message, &mut signature)
                    .map_err(|_| AuthorityError::Sign)?;
                Ok(signature)
            }
            Self::Ed25519(key) => Ok(key.sign(message).as_ref().to_vec()),
        }
    }
}

/// Returns the scalar of an ECPrivateKey (RFC 5915): a sequence that begins with the number 1 and the scalar.
fn sec1_scalar(bytes: &[u8]) -> Option<&[u8]> {
    let content = match bytes {
        [der::SEQUENCE, length, content @ ..] if *length < 0x80 => content,
        [der::SEQUENCE, 0x81, _, content @ ..] => content,
        _ => return None,
    };
    let [der::INTEGER, 1, 1, der::OCTET_STRING, length, rest @ ..] = content else { return None };
    rest.get(..usize::from(*length))
}

#[cfg(test)]
pub(crate) mod tests;
