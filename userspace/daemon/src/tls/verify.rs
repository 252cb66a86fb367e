//! Verifiers of certificates. Those that add a rule leave everything else, signatures above all, to the
//! verifier of a certificate authority.

use std::fmt::Debug;
use std::sync::Arc;

use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{self, CryptoProvider};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{DigitallySignedStruct, DistinguishedName, Error, SignatureScheme};

/// Accepts any server that has the key of its certificate, whoever issued that. For clients that only test
/// for an answer, and send nothing secret.
#[derive(Debug)]
pub struct TrustAnyone(Arc<CryptoProvider>);

impl TrustAnyone {
    pub fn new() -> Self {
        Self(super::provider())
    }
}

impl Default for TrustAnyone {
    fn default() -> Self {
        Self::new()
    }
}

impl ServerCertVerifier for TrustAnyone {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let algorithms = &self.0.signature_verification_algorithms;
        crypto::verify_tls12_signature(message, certificate, signature, algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let algorithms = &self.0.signature_verification_algorithms;
        crypto::verify_tls13_signature(message, certificate, signature, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}

/// A rule for a server's certificate besides a valid chain.
pub trait ServerRule: Debug + Send + Sync {
    /// Checks a certificate whose chain has been verified.
    fn check(&self, certificate: &CertificateDer<'_>) -> Result<(), Error>;
}

/// Accepts the servers that an authority has certified and a rule allows.
#[derive(Debug)]
pub struct RuledServers<R> {
    pub chain: Arc<WebPkiServerVerifier>,
    pub rule: R,
}

impl<R: ServerRule> ServerCertVerifier for RuledServers<R> {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let verified =
            self.chain.verify_server_cert(end_entity, intermediates, server_name, ocsp_response, now)?;
        self.rule.check(end_entity)?;
        Ok(verified)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.chain.verify_tls12_signature(message, certificate, signature)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.chain.verify_tls13_signature(message, certificate, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.chain.supported_verify_schemes()
    }
}

/// A rule for the certificates of clients.
pub trait ClientRule: Debug + Send + Sync {
    /// `true` if clients without a certificate are refused.
    const MANDATORY: bool;

    /// Judges a client's certificates, its own first; `chain` is the verifier of the authority.
    fn verify(
        &self,
        chain: &dyn ClientCertVerifier,
        own: &CertificateDer<'_>,
        rest: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error>;
}

/// Asks clients for certificates of an authority and judges them by a rule. The client must have the key of
/// its certificate in any case.
#[derive(Debug)]
pub struct RuledClients<R> {
    pub chain: Arc<dyn ClientCertVerifier>,
    pub rule: R,
}

impl<R: ClientRule> ClientCertVerifier for RuledClients<R> {
    fn client_auth_mandatory(&self) -> bool {
        R::MANDATORY
    }

    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        self.chain.root_hint_subjects()
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        self.rule.verify(self.chain.as_ref(), end_entity, intermediates, now)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.chain.verify_tls12_signature(message, certificate, signature)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.chain.verify_tls13_signature(message, certificate, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.chain.supported_verify_schemes()
    }
}
