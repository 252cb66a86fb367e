//! The store, with the time of each call counted by operation and kind.

use std::collections::BTreeMap;
use std::sync::Arc;

use apiserver_meta::error_chain;
use apiserver_registry::Registry;
use apiserver_store::log_throttle::LogThrottle;
use apiserver_store::{Got, Op, Page, Range, Revision, Store, StoreError, Usage, Watch, Write, Written};
use async_trait::async_trait;
use tokio::time::Instant;
use userspace_daemon::metrics::Family;

use crate::metrics::{Metrics, StoreCalls, StoredLists};

/// A store that is watched at its work.
pub struct Measured {
    inner: Arc<dyn Store>,
    calls: Arc<Family<3, StoreCalls>>,
    lists: Arc<Family<2, StoredLists>>,
    /// Group and plural by storage prefix.
    kinds: BTreeMap<String, (String, String)>,
    failures: LogThrottle,
}

impl Measured {
    /// Counts in `metrics` what happens to `inner`.
    pub fn new(inner: Arc<dyn Store>, registry: &Registry, metrics: &Metrics) -> Self {
        let stored = registry.iter().filter(|resource| resource.stored);
        let kinds =
            stored.map(|r| (format!("{}/", r.storage_prefix), (r.group.clone(), r.plural.clone()))).collect();
        let failures = LogThrottle::default();
        Self { inner, calls: metrics.store(), lists: metrics.stored_lists(), kinds, failures }
    }

    /// Returns group and plural of the kind that a key belongs to. Keys of custom kinds contain both.
    fn kind<'a>(&'a self, key: &'a str) -> (&'a str, &'a str) {
        let ends = key.match_indices('/').rev().map(|(index, _)| index);
        for end in ends {
            if let Some((group, plural)) = self.kinds.get(&key[..=end]) {
                return (group, plural);
            }
        }
        let mut parts = key.strip_prefix("/registry/").unwrap_or_default().split('/');
        match (parts.next(), parts.next(), parts.next()) {
            (Some(group), Some(plural), Some(_)) if group.contains('.') => (group, plural),
            _ => ("", ""),
        }
    }

    fn count<T>(&self, operation: &str, key: &str, began: Instant, result: &Result<T, StoreError>) {
        let (group, resource) = self.kind(key);
        let member = self.calls.get(&[group, operation, resource]);
        member.value.seconds.observe(began.elapsed().as_secs_f64());
        if let Err(error) = result {
            member.value.failed.add(1);
            self.log_failure(error);
        }
    }

    /// Logs an error with its cause; answers only name the failed operation.
    fn log_failure(&self, error: &StoreError) {
        let own = matches!(
            error,
            StoreError::Unavailable { .. } | StoreError::Refused { .. } | StoreError::Broken { .. }
        );
        if own && let Some(untold) = self.failures.count() {
            tracing::error!(error = error_chain(error), untold, "a request to the store failed");
        }
    }
}

#[async_trait]
impl Store for Measured {
    async fn get(&self, key: &str) -> Result<Got, StoreError> {
        let began = Instant::now();
        let result = self.inner.get(key).await;
        self.count("get", key, began, &result);
        result
    }

    async fn list(&self, range: Range) -> Result<Page, StoreError> {
        let (began, prefix) = (Instant::now(), range.prefix.clone());
        let result = self.inner.list(range).await;
        self.count("list", &prefix, began, &result);
        if let Ok(page) = &result {
            let (group, resource) = self.kind(&prefix);
            self.lists.get(&[group, resource]).value.read(page.kvs.len());
        }
        result
    }

    async fn write(&self, write: Write) -> Result<Written, StoreError> {
        let operation = match (&write.op, write.expected) {
            (Op::Put { .. }, 0) => "create",
            (Op::Put { .. }, _) => "update",
            (Op::Delete, _) => "delete",
        };
        let (began, key) = (Instant::now(), write.key.clone());
        let result = self.inner.write(write).await;
        self.count(operation, &key, began, &result);
        result
    }

    async fn watch(&self, prefix: &str, from: Revision) -> Result<Watch, StoreError> {
        self.inner.watch(prefix, from).await
    }

    async fn revision(&self) -> Result<Revision, StoreError> {
        self.inner.revision().await.inspect_err(|error| self.log_failure(error))
    }

    async fn compact(&self, revision: Revision) -> Result<(), StoreError> {
        self.inner.compact(revision).await
    }

    async fn request_progress(&self) -> Result<(), StoreError> {
        self.inner.request_progress().await
    }

    async fn size_bytes(&self) -> Result<Option<u64>, StoreError> {
        self.inner.size_bytes().await
    }

    fn usage(&self) -> Option<Usage> {
        self.inner.usage()
    }

    fn shared(&self) -> bool {
        self.inner.shared()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_cause_is_told_once() {
        let inner = StoreError::Unavailable {
            attempted: "read the revision".to_owned(),
            cause: Some(Box::new(std::io::Error::other("connection refused"))),
        };
        let outer = StoreError::Unavailable { attempted: "list /a".to_owned(), cause: Some(Box::new(inner)) };
        assert_eq!(
            error_chain(&outer),
            "list /a: the store is unavailable: read the revision: the store is unavailable: connection refused"
        );
    }
}
