//! Keys of ServiceAccount tokens: ECDSA P-256 (ES256) and RSA (RS256), from PEM files as openssl
//! and kubeadm write them.
//!
//! A key is known by the SHA-256 of its public half as SubjectPublicKeyInfo (RFC 5280), as
//! Kubernetes names it in `kid`.

use std::path::Path;

use apiserver_meta::pem;
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD as BASE64;
use p256::ecdsa::SigningKey;
use p256::ecdsa::signature::Signer as _;
use p256::pkcs8::DecodePrivateKey;
use ring::signature::{self, KeyPair as _, RsaKeyPair, UnparsedPublicKey};
use rustls::pki_types::pem::{PemObject, SectionKind};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use x509_parser::prelude::{FromDer, X509Certificate};
use x509_parser::public_key::{PublicKey, RSAPublicKey};
use x509_parser::x509::SubjectPublicKeyInfo;

use super::listener::read_given;
use super::pki::PkiError;

/// id-ecPublicKey, in DER.
const EC_PUBLIC_KEY: &[u8] = &[0x06, 0x07, 0x2a, 0x86, 0x48, 0xce, 0x3d, 0x02, 0x01];
const PRIME256V1: &[u8] = &[0x06, 0x08, 0x2a, 0x86, 0x48, 0xce, 0x3d, 0x03, 0x01, 0x07];

/// The algorithm of a token's signature; the key decides it, never the token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Algorithm {
    Es256,
    Rs256,
}

impl Algorithm {
    /// Returns the algorithm's name in `alg`.
    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::Es256 => "ES256",
            Self::Rs256 => "RS256",
        }
    }
}

/// Verifies tokens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct VerifyingKey {
    pub(super) algorithm: Algorithm,
    /// `kid`
    pub(super) id: String,
    /// The uncompressed point, or an RSAPublicKey (RFC 8017).
    bytes: Vec<u8>,
}

impl VerifyingKey {
    fn new(algorithm: Algorithm, bytes: Vec<u8>) -> Self {
        let id = BASE64.encode(Sha256::digest(public_key_info(algorithm, &bytes)));
        Self { algorithm, id, bytes }
    }

    /// The PEM block `PUBLIC KEY`, which Kubernetes' components take for `--service-account-key-file`.
    pub(super) fn to_pem(&self) -> String {
        pem::encode("PUBLIC KEY", &public_key_info(self.algorithm, &self.bytes))
    }

    fn from_info(info: &SubjectPublicKeyInfo<'_>) -> Option<Self> {
        let bytes = info.subject_public_key.data.as_ref();
        match info.parsed().ok()? {
            PublicKey::RSA(_) => Some(Self::new(Algorithm::Rs256, bytes.to_vec())),
            PublicKey::EC(_) => {
                let key = p256::PublicKey::from_sec1_bytes(bytes).ok()?;
                Some(Self::of_point(&key.into()))
            }
            _ => None,
        }
    }

    fn of_point(key: &p256::ecdsa::VerifyingKey) -> Self {
        Self::new(Algorithm::Es256, key.to_encoded_point(false).as_bytes().to_vec())
    }

    /// Returns `true` if `signature` is this key's for `message`.
    pub(super) fn verifies(&self, message: &[u8], signature: &[u8]) -> bool {
        let algorithm: &'static dyn signature::VerificationAlgorithm = match self.algorithm {
            Algorithm::Es256 => &signature::ECDSA_P256_SHA256_FIXED,
            Algorithm::Rs256 => &signature::RSA_PKCS1_2048_8192_SHA256,
        };
        UnparsedPublicKey::new(algorithm, &self.bytes).verify(message, signature).is_ok()
    }

    /// Returns the key as in a key set (RFC 7517).
    pub(super) fn jwk(&self) -> Value {
        let mut key = json!({"use": "sig", "kid": self.id, "alg": self.algorithm.as_str()});
        match self.algorithm {
            Algorithm::Es256 => {
                let (x, y) = self.bytes[1..].split_at(32);
                key["kty"] = json!("EC");
                key["crv"] = json!("P-256");
                key["x"] = json!(BASE64.encode(x));
                key["y"] = json!(BASE64.encode(y));
            }
            Algorithm::Rs256 => {
                key["kty"] = json!("RSA");
                if let Ok((_, parts)) = RSAPublicKey::from_der(&self.bytes) {
                    key["n"] = json!(BASE64.encode(without_zeroes(parts.modulus)));
                    key["e"] = json!(BASE64.encode(without_zeroes(parts.exponent)));
                }
            }
        }
        key
    }

    /// The keys of a file: public ones, those of certificates, and the public halves of private
    /// ones. An error names the file.
    pub(super) fn read_all(path: &Path) -> Result<Vec<Self>, PkiError> {
        let keys = Self::all(&read_given(path)?);
        if keys.is_empty() {
            return Err(PkiError::Content { path: path.to_owned(), what: "an RSA or P-256 key" });
        }
        Ok(keys)
    }

    /// The keys of a PEM text, likewise.
    pub(super) fn all(text: &str) -> Vec<Self> {
        sections(text)
            .filter_map(|(kind, bytes)| match kind {
                SectionKind::PublicKey => Self::from_info(&SubjectPublicKeyInfo::from_der(&bytes).ok()?.1),
                SectionKind::Certificate => {
                    Self::from_info(X509Certificate::from_der(&bytes).ok()?.1.public_key())
                }
                _ => TokenSigner::from_section(kind, &bytes).map(|signer| signer.public()),
            })
            .collect()
    }
}

/// SubjectPublicKeyInfo in DER.
fn public_key_info(algorithm: Algorithm, bytes: &[u8]) -> Vec<u8> {
    let identifier = match algorithm {
        Algorithm::Es256 => der(0x30, &[EC_PUBLIC_KEY, PRIME256V1].concat()),
        // rsaEncryption, NULL
        Algorithm::Rs256 => {
            vec![0x30, 0x0d, 0x06, 0x09, 0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 0x01, 0x01, 0x01, 0x05, 0x00]
        }
    };
    der(0x30, &[identifier, bit_string(bytes)].concat())
}

/// A key of P-256 as `EC PRIVATE KEY`, PEM: of the forms that Go's tools write, the one in which
/// Kubernetes' components find both halves of the key.
pub(super) fn ec_private_key(key: &p256::SecretKey) -> String {
    let point = p256::ecdsa::VerifyingKey::from(key.public_key()).to_encoded_point(false);
    let version = der(0x02, &[1]);
    let secret = der(0x04, &key.to_bytes());
    let curve = der(0xa0, PRIME256V1);
    let public = der(0xa1, &bit_string(point.as_bytes()));
    pem::encode("EC PRIVATE KEY", &der(0x30, &[version, secret, curve, public].concat()))
}

/// Signs tokens.
pub(super) enum TokenSigner {
    Es256(SigningKey),
    Rs256(Box<RsaKeyPair>),
}

impl TokenSigner {
    /// The first private key of a PEM text; `path` is for the error.
    pub(super) fn from_pem(text: &str, path: &Path) -> Result<Self, PkiError> {
        sections(text)
            .find_map(|(kind, bytes)| Self::from_section(kind, &bytes))
            .ok_or_else(|| PkiError::Content { path: path.to_owned(), what: "an RSA or P-256 private key" })
    }

    /// The private key of a file that was given.
    pub(super) fn read(path: &Path) -> Result<Self, PkiError> {
        Self::from_pem(&read_given(path)?, path)
    }

    fn from_section(kind: SectionKind, bytes: &[u8]) -> Option<Self> {
        let rsa = |key: Result<RsaKeyPair, _>| key.ok().map(|key| Self::Rs256(Box::new(key)));
        match kind {
            SectionKind::EcPrivateKey => {
                p256::SecretKey::from_sec1_der(bytes).ok().map(|key| Self::Es256(key.into()))
            }
            SectionKind::RsaPrivateKey => rsa(RsaKeyPair::from_der(bytes)),
            SectionKind::PrivateKey => match SigningKey::from_pkcs8_der(bytes) {
                Ok(key) => Some(Self::Es256(key)),
                Err(_) => rsa(RsaKeyPair::from_pkcs8(bytes)),
            },
            _ => None,
        }
    }

    /// The half that verifies.
    pub(super) fn public(&self) -> VerifyingKey {
        match self {
            Self::Es256(key) => VerifyingKey::of_point(key.verifying_key()),
            Self::Rs256(key) => VerifyingKey::new(Algorithm::Rs256, key.public_key().as_ref().to_vec()),
        }
    }

    /// Signs deterministically (RFC 6979, and PKCS #1 1.5 by nature): the same message gives the same
    /// signature, in simulation too. Empty, and so never valid, if RSA fails.
    pub(super) fn sign(&self, message: &[u8]) -> Vec<u8> {
        match self {
            Self::Es256(key) => {
                let signature: p256::ecdsa::Signature = key.sign(message);
                signature.to_bytes().to_vec()
            }
            Self::Rs256(key) => {
                let mut signature = vec![0; key.public().modulus_len()];
                // Randomness blinds the computation; the outcome is the same with any.
                #[expect(
                    clippy::disallowed_methods,
                    reason = "it blinds the computation, and the outcome is the same with any"
                )]
                let random = ring::rand::SystemRandom::new();
                if let Err(error) = key.sign(&signature::RSA_PKCS1_SHA256, &random, message, &mut signature) {
                    tracing::error!(%error, "cannot sign a token");
                    signature.clear();
                }
                signature
            }
        }
    }
}

fn sections(text: &str) -> impl Iterator<Item = (SectionKind, Vec<u8>)> {
    <(SectionKind, Vec<u8>)>::pem_slice_iter(text.as_bytes()).filter_map(Result::ok)
}

fn without_zeroes(number: &[u8]) -> &[u8] {
    let zeroes = number.iter().take_while(|byte| **byte == 0).count();
    &number[zeroes..]
}

/// Whole bytes as a bit string in DER.
fn bit_string(bytes: &[u8]) -> Vec<u8> {
    // No bits are unused.
    der(0x03, &[&[0], bytes].concat())
}

/// A value in DER: tag, length, content.
fn der(tag: u8, content: &[u8]) -> Vec<u8> {
    let length = content.len();
    let mut out = vec![tag];
    if length < 128 {
        out.push(length as u8);
    } else {
        let bytes = length.to_be_bytes();
        let bytes = without_zeroes(&bytes);
        out.push(0x80 | bytes.len() as u8);
        out.extend(bytes);
    }
    out.extend(content);
    out
}

#[cfg(test)]
#[path = "keys_tests.rs"]
mod tests;
