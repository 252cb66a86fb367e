//! The etcd implementation. Keys are stored as given, so with Kubernetes' `/registry/…` keys the data stays
//! readable for its tools; another prefix can replace `/registry`. The client reconnects automatically. Reads
//! are retried, but writes only if no server was reached, because otherwise it is unknown whether the first
//! attempt succeeded.

mod coalesce;
mod lease;
pub mod members;
mod prefix;
mod watch;

use std::error::Error as _;
use std::fmt;
use std::io::{self, ErrorKind};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use etcd_client::{
    Certificate, Client, Compare, CompareOp, ConnectOptions, Error, GetOptions, Identity, KvClient,
    MaintenanceClient, SortOrder, SortTarget, TlsOptions, Txn, TxnOp, TxnOpResponse, WatchClient,
};

use self::coalesce::Coalescer;
use self::lease::Leases;
use self::prefix::Prefix;
use self::watch::ProgressRequests;
use crate::embedded::check_size;
use crate::limits::{ETCD_ANSWER_BYTES, VALUE_BYTES};
use crate::{Got, KeyValue, Op, Page, Range, Revision, Store, StoreError, Watch, Write, Written};

/// Timeout of a request including its retries.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Timeout of the first connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Number of attempts of a request, with a delay after the first that doubles. With one of three servers
/// gone, one in 700 requests hits it in every attempt; all delays together are half a second until a client
/// gets an error if no server is available.
const TRIES: u32 = 6;
const PAUSE: Duration = Duration::from_millis(15);
/// Operation name of the coalesced read, for errors.
const READ_REVISION: &str = "read the revision";

/// TLS configuration for etcd, in PEM.
#[derive(Clone, Default)]
pub struct EtcdTls {
    /// Certificates of the authority that signed the servers' certificates.
    pub ca: Option<Vec<u8>>,
    /// Client certificate and key, if the servers require them.
    pub identity: Option<(Vec<u8>, Vec<u8>)>,
    /// Name in the servers' certificates, if it differs from the URL.
    pub server_name: Option<String>,
}

impl std::fmt::Debug for EtcdTls {
    /// Formats without the contents, because one of them is a private key.
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter
            .debug_struct("EtcdTls")
            .field("ca", &self.ca.is_some())
            .field("identity", &self.identity.is_some())
            .field("server_name", &self.server_name)
            .finish()
    }
}

impl EtcdTls {
    fn options(self) -> TlsOptions {
        let mut options = TlsOptions::new();
        if let Some(ca) = self.ca {
            options = options.ca_certificate(Certificate::from_pem(ca));
        }
        if let Some((certificate, key)) = self.identity {
            options = options.identity(Identity::from_pem(certificate, key));
        }
        if let Some(name) = self.server_name {
            options = options.domain_name(name);
        }
        options
    }
}

/// The store on an etcd cluster. Clones share the connections.
#[derive(Clone)]
pub struct Etcd {
    kv: KvClient,
    maintenance: MaintenanceClient,
    watch: WatchClient,
    leases: Leases,
    progress: ProgressRequests,
    /// Coalesced reads of the revision.
    revisions: Arc<Coalescer<Result<Revision, Arc<StoreError>>>>,
    /// True if the server's progress notices on request are reliable.
    progress_is_sound: bool,
    prefix: Prefix,
}

impl Etcd {
    /// Connects to servers given as URLs, `https://…` with `tls`. Fails with `Unavailable` if none answers
    /// within five seconds.
    pub async fn connect(endpoints: &[String], tls: Option<EtcdTls>) -> Result<Self, StoreError> {
        let attempted = || format!("connect to etcd at {}", endpoints.join(","));
        let options = options(tls);
        let connect = async |options| {
            Client::connect(endpoints, Some(options)).await.map_err(|error| unavailable(attempted(), error))
        };
        let client = connect(options.clone()).await?;
        // A server that has lost its cluster would leave a watch open and silent forever; with this option it
        // ends the watch. Requests may well wait for an election.
        let watching = connect(options.with_require_leader(true)).await?;
        let ask = || {
            let mut maintenance = client.maintenance_client();
            async move { maintenance.status().await }
        };
        // One of several servers may be down.
        let status = request(&attempted(), |_| true, ask).await?;
        let progress_is_sound = watch::progress_is_sound(status.version());
        Ok(Self {
            kv: client
                .kv_client()
                .max_decoding_message_size(ETCD_ANSWER_BYTES)
                .max_encoding_message_size(ETCD_ANSWER_BYTES),
            maintenance: client.maintenance_client(),
            watch: watching.watch_client().max_decoding_message_size(ETCD_ANSWER_BYTES),
            leases: Leases::new(client.lease_client()),
            progress: ProgressRequests::default(),
            revisions: Arc::default(),
            progress_is_sound,
            prefix: Prefix::default(),
        })
    }

    /// Sets the prefix in etcd, such as `/other` or `other`, that replaces `/registry`. Fails with `Broken`
    /// if it is empty.
    pub fn with_prefix(mut self, prefix: &str) -> Result<Self, StoreError> {
        self.prefix = Prefix::new(prefix)?;
        Ok(self)
    }

    async fn read(
        &self,
        attempted: &str,
        key: &[u8],
        options: &GetOptions,
    ) -> Result<etcd_client::GetResponse, StoreError> {
        let ask = || {
            let (mut kv, options) = (self.kv.clone(), options.clone());
            async move { kv.get(key, Some(options)).await }
        };
        request(attempted, |_| true, ask).await
    }

    async fn try_write(&self, write: &Write, lease: i64) -> Result<Written, StoreError> {
        let attempted = format!("write {}", write.key);
        let key = self.prefix.outward(&write.key);
        let key = key.as_bytes();
        let success = match &write.op {
            Op::Put { value, .. } => {
                let options = (lease != 0).then(|| etcd_client::PutOptions::new().with_lease(lease));
                TxnOp::put(key, value.as_ref(), options)
            }
            Op::Delete => TxnOp::delete(key, None),
        };
        let txn = Txn::new()
            .when([Compare::mod_revision(key, CompareOp::Equal, write.expected)])
            .and_then([success])
            .or_else([TxnOp::get(key, None)]);
        let ask = || {
            let (mut kv, txn) = (self.kv.clone(), txn.clone());
            async move { kv.txn(txn).await }
        };
        let response = request(&attempted, never_arrived, ask).await;
        let response = response.map_err(|error| too_large(error, write))?;
        let revision = response.header().map_or(0, |header| header.revision());
        if response.succeeded() {
            return Ok(Written::Done { revision });
        }
        let mut current = None;
        for response in response.op_responses() {
            if let TxnOpResponse::Get(got) = response {
                current = got.kvs().first().map(|kv| self.key_value(kv)).transpose()?;
            }
        }
        Ok(Written::Conflict { current, revision })
    }

    fn key_value(&self, kv: &etcd_client::KeyValue) -> Result<KeyValue, StoreError> {
        Ok(KeyValue {
            key: self.prefix.inward(key_of(kv)?),
            value: Bytes::copy_from_slice(kv.value()),
            create_revision: kv.create_revision(),
            mod_revision: kv.mod_revision(),
        })
    }
}

#[async_trait]
impl Store for Etcd {
    fn shared(&self) -> bool {
        true
    }

    async fn get(&self, key: &str) -> Result<Got, StoreError> {
        let outward = self.prefix.outward(key);
        let response = self.read(&format!("get {key}"), outward.as_bytes(), &GetOptions::new()).await?;
        let revision = response.header().map_or(0, |header| header.revision());
        let kv = response.kvs().first().map(|kv| self.key_value(kv)).transpose()?;
        Ok(Got { kv, revision })
    }

    async fn list(&self, range: Range) -> Result<Page, StoreError> {
        let attempted = format!("list {}", range.prefix);
        let prefix = self.prefix.outward(&range.prefix);
        let start = start_of(&prefix, &self.prefix.outward(&range.after));
        let limit = i64::try_from(range.limit).unwrap_or(i64::MAX);
        let options = GetOptions::new()
            .with_range(end_of(&prefix))
            .with_revision(range.revision)
            .with_limit(limit)
            .with_sort(SortTarget::Key, SortOrder::None);
        let response = self
            .read(&attempted, &start, &options)
            .await
            .map_err(|error| at_revision(error, range.revision))?;
        let revision = response.header().map_or(0, |header| header.revision());
        if range.revision > revision {
            return Err(StoreError::Future { asked: range.revision, current: revision });
        }
        let kvs = response.kvs().iter().map(|kv| self.key_value(kv)).collect::<Result<Vec<_>, _>>()?;
        let revision = if range.revision == 0 { revision } else { range.revision };
        Ok(Page { more: response.more(), kvs, revision })
    }

    async fn write(&self, write: Write) -> Result<Written, StoreError> {
        check_size(&write)?;
        let Op::Put { ttl_seconds: ttl @ 1.., .. } = write.op else { return self.try_write(&write, 0).await };
        let lease = self.leases.lease(ttl).await?;
        match self.try_write(&write, lease).await {
            // The lease expired in the meantime, so nothing was written.
            Err(error) if lease::is_gone(&error) => {
                self.leases.forget(ttl, lease).await;
                let lease = self.leases.lease(ttl).await?;
                self.try_write(&write, lease).await
            }
            result => result,
        }
    }

    async fn watch(&self, prefix: &str, from: Revision) -> Result<Watch, StoreError> {
        let client = self.watch.clone();
        watch::open(client, &self.progress, self.progress_is_sound, &self.prefix, prefix, from).await
    }

    async fn revision(&self) -> Result<Revision, StoreError> {
        let read = || async {
            // Any linearizable read returns the revision; this key has no value to send.
            let options = GetOptions::new().with_limit(1).with_keys_only();
            let response = self.read(READ_REVISION, b"\0", &options).await.map_err(Arc::new)?;
            Ok(response.header().map_or(0, |header| header.revision()))
        };
        // Every consistent read needs it, so concurrent ones share a request.
        self.revisions.run(read).await.map_err(|error: Arc<StoreError>| {
            let attempted = READ_REVISION.to_owned();
            match &*error {
                StoreError::Refused { why, .. } => StoreError::Refused { attempted, why: why.clone() },
                _ => StoreError::Unavailable { attempted, cause: Some(Box::new(error)) },
            }
        })
    }

    async fn compact(&self, revision: Revision) -> Result<(), StoreError> {
        let result = within(TIMEOUT, "compact", self.kv.clone().compact(revision, None)).await;
        result.map(|_| ()).map_err(|error| at_revision(error, revision))
    }

    async fn request_progress(&self) -> Result<(), StoreError> {
        self.progress.send();
        Ok(())
    }

    async fn size_bytes(&self) -> Result<Option<u64>, StoreError> {
        let status = within(TIMEOUT, "ask for the size", self.maintenance.clone().status()).await?;
        Ok(u64::try_from(status.db_size()).ok())
    }
}

/// Returns the settings of connections.
fn options(tls: Option<EtcdTls>) -> ConnectOptions {
    let options = ConnectOptions::new()
        .with_connect_timeout(CONNECT_TIMEOUT)
        .with_keep_alive(Duration::from_secs(30), Duration::from_secs(10))
        .with_keep_alive_while_idle(true);
    match tls {
        Some(tls) => options.with_tls(tls.options()),
        None => options,
    }
}

/// Returns the first key under `prefix` after `after`.
fn start_of(prefix: &str, after: &str) -> Vec<u8> {
    if after.is_empty() || after < prefix {
        // etcd represents "from the first key" by a zero byte.
        return if prefix.is_empty() { vec![0] } else { prefix.as_bytes().to_vec() };
    }
    let mut start = after.as_bytes().to_vec();
    start.push(0);
    start
}

/// Returns the key after all that begin with a prefix. UTF-8 never contains 0xff, so the last byte can be
/// incremented.
fn end_of(prefix: &str) -> Vec<u8> {
    let mut end = prefix.as_bytes().to_vec();
    match end.last_mut() {
        Some(last) => *last += 1,
        // etcd represents "to the last key" by a zero byte.
        None => end.push(0),
    }
    end
}

fn key_of(kv: &etcd_client::KeyValue) -> Result<String, StoreError> {
    kv.key_str().map(str::to_owned).map_err(|_| StoreError::Broken {
        attempted: "read from etcd".to_owned(),
        why: format!("the key {:?} is not UTF-8", String::from_utf8_lossy(kv.key())),
        cause: None,
    })
}

/// Retries a request until it succeeds or fails with an error for which `again` is false, within limits on
/// the attempts and the total time.
async fn request<T, F: Future<Output = Result<T, Error>>>(
    attempted: &str,
    again: impl Fn(&Error) -> bool,
    ask: impl Fn() -> F,
) -> Result<T, StoreError> {
    let tries = async {
        let mut pause = PAUSE;
        for _ in 1..TRIES {
            match ask().await {
                // Retried only if there is no server at all, or none that leads.
                Err(error) if is_temporary(&error) && again(&error) => tokio::time::sleep(pause).await,
                result => return result,
            }
            pause *= 2;
        }
        ask().await
    };
    within(TIMEOUT, attempted, tries).await
}

/// Returns `true` if an error may go away, or not occur on another server.
fn is_temporary(error: &Error) -> bool {
    match error {
        Error::GRpcStatus(status) => {
            // Cancelled, unknown, aborted, internal, unavailable: caused by connections and elections.
            matches!(status.code() as i32, 1 | 2 | 10 | 13 | 14)
        }
        Error::TransportError(_) | Error::IoError(_) => true,
        _ => false,
    }
}

/// Returns `true` if the request reached no server: none could be connected to, or the server had no leader to
/// forward it to.
fn never_arrived(error: &Error) -> bool {
    let mut next: Option<&(dyn std::error::Error + 'static)> = match error {
        Error::GRpcStatus(status) if status.message().contains("no leader") => return true,
        Error::GRpcStatus(status) => Some(status),
        Error::TransportError(error) => Some(error),
        Error::IoError(error) => Some(error),
        _ => None,
    };
    while let Some(cause) = next {
        let connecting = cause.downcast_ref::<io::Error>().is_some_and(|error| {
            let kinds =
                [ErrorKind::ConnectionRefused, ErrorKind::HostUnreachable, ErrorKind::NetworkUnreachable];
            kinds.contains(&error.kind())
        });
        if connecting {
            return true;
        }
        next = cause.source();
    }
    false
}

/// Waits for an answer up to the timeout.
async fn within<T>(
    limit: Duration,
    attempted: &str,
    call: impl Future<Output = Result<T, Error>>,
) -> Result<T, StoreError> {
    match tokio::time::timeout(limit, call).await {
        Ok(Ok(answer)) => Ok(answer),
        Ok(Err(error)) => Err(unavailable(attempted.to_owned(), error)),
        Err(elapsed) => {
            Err(StoreError::Unavailable { attempted: attempted.to_owned(), cause: Some(Box::new(elapsed)) })
        }
    }
}

/// Returns the error of a request without an answer, or that etcd itself refused.
fn unavailable(attempted: String, error: Error) -> StoreError {
    // Messages of etcd itself, unlike those of the connection, begin with its name.
    if let Error::GRpcStatus(status) = &error
        && !is_temporary(&error)
        && status.message().starts_with("etcdserver: ")
    {
        return StoreError::Refused { attempted, why: status.message().to_owned() };
    }
    StoreError::Unavailable { attempted, cause: Some(Box::new(Failure(error))) }
}

/// An error of the client as text. Its own messages contain their causes in debug format, of which the first
/// is the most useful.
#[derive(Debug)]
struct Failure(Error);

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut cause: Option<&(dyn std::error::Error + 'static)> = match &self.0 {
            Error::GRpcStatus(status) => status.source(),
            Error::TransportError(error) => Some(error),
            _ => None,
        };
        while let Some(deeper) = cause.and_then(std::error::Error::source) {
            cause = Some(deeper);
        }
        match (cause, &self.0) {
            (Some(cause), _) => write!(f, "{cause}"),
            (None, Error::GRpcStatus(status)) if status.message().is_empty() => {
                write!(f, "{}", status.code())
            }
            (None, Error::GRpcStatus(status)) => write!(f, "{}: {}", status.code(), status.message()),
            (None, other) => write!(f, "{other}"),
        }
    }
}

impl std::error::Error for Failure {}

/// Returns the server's message, if that is why a request failed.
fn server_message(error: &StoreError) -> Option<&str> {
    match error {
        StoreError::Refused { why, .. } => Some(why),
        StoreError::Unavailable { cause: Some(cause), .. } => match cause.downcast_ref::<Failure>() {
            Some(Failure(Error::GRpcStatus(status))) => Some(status.message()),
            _ => None,
        },
        _ => None,
    }
}

/// Maps the error of a value that exceeds the server's limit: it covers the whole request, so a value just
/// below our limit can exceed it.
fn too_large(error: StoreError, write: &Write) -> StoreError {
    match (server_message(&error), &write.op) {
        (Some(message), Op::Put { value, .. }) if message.contains("request is too large") => {
            StoreError::TooLarge { key: write.key.clone(), bytes: value.len(), limit: VALUE_BYTES }
        }
        _ => error,
    }
}

/// Maps the errors about revisions, which etcd distinguishes only by their text.
fn at_revision(error: StoreError, asked: Revision) -> StoreError {
    match server_message(&error) {
        // The answer does not contain the compaction point, only that the revision is older.
        Some(message) if message.contains("has been compacted") => {
            StoreError::Compacted { asked, oldest: asked + 1 }
        }
        Some(message) if message.contains("is a future revision") => StoreError::Future { asked, current: 0 },
        _ => error,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn range_bounds_match_etcds_encoding() {
        assert_eq!(start_of("/a/", ""), b"/a/");
        assert_eq!(start_of("/a/", "/a/b"), b"/a/b\0");
        assert_eq!(start_of("/b/", "/a/b"), b"/b/");
        assert_eq!(start_of("", ""), b"\0");
        assert_eq!(end_of("/a/"), b"/a0");
        assert_eq!(end_of(""), b"\0");
    }
}
