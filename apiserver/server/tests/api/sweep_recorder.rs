//! A store and a way to kubelets and pods that record what requests ask them for.

use std::io;
use std::sync::{Arc, Mutex};

use apiserver_server::streams::{Dial, NodeStream, Peer};
use apiserver_store::{Got, Op, Page, Range, Revision, Store, StoreError, Watch, Write, Written};
use async_trait::async_trait;
use serde_json::Value;

use super::CUSTOM_PREFIX;

/// Something that a request touched.
#[derive(Clone, Debug, PartialEq)]
pub enum Access {
    Read(String),
    /// Everything below a prefix.
    Range(String),
    /// A key and its new value; `None` removes it.
    Write(String, Option<Value>),
    /// A request to a kubelet or a pod at this address.
    Dial(String),
}

type Touched = Arc<Mutex<Vec<Access>>>;

tokio::task_local! {
    /// The accesses of this task's request; the server's own maintenance runs in other tasks.
    static TOUCHED: Touched;
}

/// The accesses of the request under way. New custom objects are written by tasks of their own.
static CURRENT: Mutex<Option<Touched>> = Mutex::new(None);

/// Runs a request; also returns its accesses.
pub async fn recorded<T>(request: impl Future<Output = T>) -> (T, Vec<Access>) {
    let touched = Touched::default();
    *CURRENT.lock().unwrap() = Some(Arc::clone(&touched));
    let done = TOUCHED.scope(Arc::clone(&touched), request).await;
    *CURRENT.lock().unwrap() = None;
    let touched = touched.lock().unwrap().clone();
    (done, touched)
}

fn touch(access: Access) {
    let _ = TOUCHED.try_with(|touched| touched.lock().unwrap().push(access));
}

/// Returns the record for a write to a key; `None` for the server's own writes.
fn recording(key: &str) -> Option<Touched> {
    let own = TOUCHED.try_with(Arc::clone).ok();
    own.or_else(|| CURRENT.lock().unwrap().clone().filter(|_| key.starts_with(CUSTOM_PREFIX)))
}

/// A store that records which keys requests ask for, and keeps their writes to itself.
pub struct Recorder(pub Arc<dyn Store>);

#[async_trait]
impl Store for Recorder {
    async fn get(&self, key: &str) -> Result<Got, StoreError> {
        touch(Access::Read(key.to_owned()));
        self.0.get(key).await
    }

    async fn list(&self, range: Range) -> Result<Page, StoreError> {
        touch(Access::Range(range.prefix.clone()));
        self.0.list(range).await
    }

    async fn write(&self, write: Write) -> Result<Written, StoreError> {
        let Some(touched) = recording(&write.key) else { return self.0.write(write).await };
        let value = match &write.op {
            Op::Put { value, .. } => Some(serde_json::from_slice(value).unwrap_or_default()),
            Op::Delete => None,
        };
        let revision = self.0.revision().await?;
        let current = self.0.get(&write.key).await?.kv;
        touched.lock().unwrap().push(Access::Write(write.key, value));
        if current.as_ref().map_or(0, |kv| kv.mod_revision) != write.expected {
            return Ok(Written::Conflict { current, revision });
        }
        Ok(Written::Done { revision })
    }

    async fn watch(&self, prefix: &str, from: Revision) -> Result<Watch, StoreError> {
        touch(Access::Range(prefix.to_owned()));
        self.0.watch(prefix, from).await
    }

    async fn revision(&self) -> Result<Revision, StoreError> {
        self.0.revision().await
    }

    async fn compact(&self, revision: Revision) -> Result<(), StoreError> {
        self.0.compact(revision).await
    }

    async fn request_progress(&self) -> Result<(), StoreError> {
        self.0.request_progress().await
    }
}

/// A way to kubelets and pods that leads nowhere and records that it was taken.
pub struct NoRoad;

#[async_trait]
impl Dial for NoRoad {
    async fn dial(&self, _: &Peer, address: std::net::SocketAddr) -> io::Result<Box<dyn NodeStream>> {
        touch(Access::Dial(address.ip().to_string()));
        Err(io::Error::other("no road"))
    }
}
