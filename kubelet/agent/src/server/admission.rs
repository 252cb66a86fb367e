//! Limits on connections and streams to the node's server. All streams come from the API server, so they are
//! limited in total and by the pods that they lead to, not by client address, and room is left for short
//! requests.

use std::{sync::Arc, time::Duration};

use tokio::{
    io::{AsyncRead, AsyncWrite},
    sync::{OwnedSemaphorePermit, Semaphore},
};
use tokio_rustls::server::TlsStream;
use userspace_daemon::Place;

use super::{
    NodeTls,
    caller::Caller,
    pool::{PooledStream, Refusal, StreamPool},
};
use crate::{limits, machine::PodPlace};

/// The caller of a connection and the permit that it holds.
#[derive(Clone)]
pub(super) struct Session {
    pub caller: Caller,
    place: Arc<Place>,
    streams: Streams,
}

/// Streams of one server. Cheap to clone.
#[derive(Clone)]
pub(super) struct Streams {
    /// Permits for streams of any kind.
    all: StreamPool,
    /// Additional permits for logs that are not followed, used when the others are taken.
    logs: StreamPool,
    /// Permits for logs of the node itself.
    node_logs: Arc<Semaphore>,
}

/// Duration of a stream: open-ended, or bounded by existing data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StreamLength {
    Open,
    Bounded,
}

/// Permit of a stream, which also keeps the permit of its connection alive, since an upgrade would drop it.
pub(super) struct StreamPermit {
    _stream: PooledStream,
    _place: Arc<Place>,
}

/// Permit of a log of the node that is read.
pub(super) struct NodeLogPermit {
    _stream: OwnedSemaphorePermit,
    _place: Arc<Place>,
}

impl Streams {
    pub(super) fn new() -> Self {
        let node_logs = Arc::new(Semaphore::new(limits::NODE_LOG_STREAMS));
        Self { all: StreamPool::of_streams(), logs: StreamPool::of_bounded_logs(), node_logs }
    }

    fn take(&self, length: StreamLength, pod: &PodPlace) -> Result<PooledStream, Refusal> {
        let any = self.all.take(pod);
        match length {
            StreamLength::Open => any,
            StreamLength::Bounded => any.or_else(|refusal| self.logs.take(pod).map_err(|_| refusal)),
        }
    }
}

impl Session {
    /// Takes a permit for a stream to a pod on this connection.
    pub(super) fn stream(&self, length: StreamLength, pod: &PodPlace) -> Result<StreamPermit, Refusal> {
        Ok(StreamPermit { _stream: self.streams.take(length, pod)?, _place: Arc::clone(&self.place) })
    }

    /// Takes a permit for a log of the node; `None` if all are taken.
    pub(super) fn node_log(&self) -> Option<NodeLogPermit> {
        let stream = Arc::clone(&self.streams.node_logs).try_acquire_owned().ok()?;
        Some(NodeLogPermit { _stream: stream, _place: Arc::clone(&self.place) })
    }
}

/// Completes a client's TLS handshake; returns `None` if it fails or takes longer than `deadline`. The
/// connections of a permitted client, normally the API server, no longer count against the limit of its
/// address and are not closed in favour of others.
pub(super) async fn handshake<S>(
    tls: &NodeTls,
    stream: S,
    mut place: Place,
    streams: Streams,
    deadline: Duration,
) -> Option<(TlsStream<S>, Session)>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let stream = tokio::time::timeout(deadline, tls.acceptor.accept(stream)).await.ok()?.ok()?;
    let (_, session) = stream.get_ref();
    let caller = Caller::of(session.peer_certificates().and_then(|chain| chain.first()), tls.identify);
    if caller == Caller::Permitted {
        place.prove();
    }
    Some((stream, Session { caller, place: Arc::new(place), streams }))
}

#[cfg(test)]
mod tests {
    use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};
    use rustls::pki_types::{PrivateKeyDer, ServerName};
    use tokio::io::DuplexStream;
    use tokio_rustls::TlsConnector;
    use userspace_daemon::{Bounds, Places, tls::TrustAnyone};

    use super::*;
    use crate::{
        config::{ClientAuthority, Config},
        server::caller::identify,
    };

    /// A cluster's certificate authority.
    struct Authority {
        issuer: Issuer<'static, KeyPair>,
        pem: String,
    }

    impl Authority {
        fn new() -> Self {
            let mut params = CertificateParams::default();
            params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
            let key = KeyPair::generate().unwrap();
            let pem = params.self_signed(&key).unwrap().pem();
            Self { issuer: Issuer::new(params, key), pem }
        }

        fn server(&self) -> NodeTls {
            let authority = ClientAuthority { pem: self.pem.clone(), identify };
            let config = Config { client_authority: Some(authority), ..Config::new("n1") };
            super::super::tls(&config, &["127.0.0.1".to_owned()]).unwrap()
        }

        /// Returns a TLS client with a certificate for `user`, or without a certificate.
        fn client(&self, user: Option<&str>) -> TlsConnector {
            let provider = Arc::new(rustls::crypto::ring::default_provider());
            let builder = rustls::ClientConfig::builder_with_provider(provider)
                .with_safe_default_protocol_versions()
                .unwrap()
                .dangerous()
                .with_custom_certificate_verifier(Arc::new(TrustAnyone::new()));
            let Some(user) = user else {
                return TlsConnector::from(Arc::new(builder.with_no_client_auth()));
            };
            let mut params = CertificateParams::default();
            params.distinguished_name.push(DnType::CommonName, user);
            let key = KeyPair::generate().unwrap();
            let certificate = params.signed_by(&key, &self.issuer).unwrap();
            let key = PrivateKeyDer::try_from(key.serialize_der()).unwrap();
            let config = builder.with_client_auth_cert(vec![certificate.der().clone()], key).unwrap();
            TlsConnector::from(Arc::new(config))
        }
    }

    /// Both ends of an established connection.
    type Made = (TlsStream<DuplexStream>, Session, tokio_rustls::client::TlsStream<DuplexStream>);

    async fn connect(server: &NodeTls, client: &TlsConnector, place: Place) -> Option<Made> {
        let (here, there) = tokio::io::duplex(64 << 10);
        let name = ServerName::try_from("n1").unwrap();
        let (served, connected) = tokio::join!(
            handshake(server, here, place, Streams::new(), Duration::from_secs(10)),
            client.connect(name, there)
        );
        let (stream, session) = served?;
        Some((stream, session, connected.ok()?))
    }

    #[tokio::test]
    async fn the_api_servers_connections_are_not_bounded_by_its_address_and_those_of_others_are() {
        let authority = Authority::new();
        let server = authority.server();
        for (user, made) in
            [(Some("kube-apiserver-kubelet-client"), 14), (Some("system:node:n2"), 4), (None, 4)]
        {
            let places = Places::new(Bounds::new(16));
            let client = authority.client(user);
            let mut open = Vec::new();
            for _ in 0..20 {
                let place = places.take("198.51.100.1".parse().unwrap(), "192.0.2.1".parse().unwrap());
                let Some(place) = place else { break };
                let evicted = place.evicted();
                open.push((evicted, connect(&server, &client, place).await.unwrap()));
            }
            let live = open.iter().filter(|(evicted, _)| !evicted.is_cancelled());
            assert_eq!(live.count(), made, "{user:?}");
        }
    }

    #[tokio::test]
    async fn a_failed_handshake_releases_its_permit() {
        let (server, places) = (Authority::new().server(), Places::new(Bounds::new(1)));
        let take = || places.take("127.0.0.1".parse().unwrap(), "127.0.0.1".parse().unwrap());
        let (here, _there) = tokio::io::duplex(1024);
        let place = take().unwrap();
        assert!(take().is_none());
        let late = handshake(&server, here, place, Streams::new(), Duration::from_millis(1)).await;
        assert!(late.is_none() && take().is_some());
    }

    #[test]
    fn open_streams_leave_room_for_logs_and_for_requests_that_are_answered_at_once() {
        let streams = Streams::new();
        let pod = |index: usize| PodPlace { namespace: index.to_string(), ..PodPlace::default() };
        let fill = |length| -> Vec<_> {
            (0..limits::CONNECTIONS).filter_map(|index| streams.take(length, &pod(index)).ok()).collect()
        };
        let open = fill(StreamLength::Open);
        assert_eq!(open.len(), limits::STREAMS - limits::SYSTEM_STREAMS);
        assert!(!fill(StreamLength::Bounded).is_empty());
        let bounds = Bounds::new(limits::CONNECTIONS);
        let most = limits::STREAMS + limits::RESERVED_LOGS;
        assert!(most + 32 <= bounds.connections - bounds.reserved);
        drop(open);
        assert!(streams.take(StreamLength::Open, &pod(0)).is_ok());
    }
}
