//! Helpers for the cases.

use std::time::Duration;

use apiserver_store::{
    Event, KeyValue, Notice, Op, Page, Range, Revision, StoreError, Watch, Write, Written,
};
use bytes::Bytes;
use futures::StreamExt;

use crate::conformance::Subject;

impl Subject {
    pub fn key(&self, name: &str) -> String {
        format!("{}/{name}", self.prefix)
    }

    pub async fn try_put(&self, name: &str, value: &str, expected: Revision, ttl_seconds: u32) -> Written {
        let value = Bytes::copy_from_slice(value.as_bytes());
        let op = Op::Put { value, ttl_seconds };
        self.store.write(Write { key: self.key(name), expected, op }).await.unwrap()
    }

    pub async fn try_delete(&self, name: &str, expected: Revision) -> Written {
        self.store.write(Write { key: self.key(name), expected, op: Op::Delete }).await.unwrap()
    }

    /// Writes unconditionally and returns the revision.
    pub async fn put(&self, name: &str, value: &str) -> Revision {
        let expected = self.get(name).await.map_or(0, |kv| kv.mod_revision);
        done(self.try_put(name, value, expected, 0).await)
    }

    pub async fn delete(&self, name: &str) -> Revision {
        let expected = self.get(name).await.unwrap().mod_revision;
        done(self.try_delete(name, expected).await)
    }

    pub async fn get(&self, name: &str) -> Option<KeyValue> {
        self.store.get(&self.key(name)).await.unwrap().kv
    }

    pub async fn list_at(&self, revision: Revision) -> Result<Page, StoreError> {
        let prefix = format!("{}/", self.prefix);
        self.store.list(Range { prefix, revision, ..Range::default() }).await
    }

    pub async fn watch(&self, from: Revision) -> Result<Watch, StoreError> {
        self.store.watch(&format!("{}/", self.prefix), from).await
    }
}

pub fn done(written: Written) -> Revision {
    match written {
        Written::Done { revision } => revision,
        Written::Conflict { .. } => panic!("{written:?}"),
    }
}

/// Returns the names, without the case's prefix, and values of a page.
pub fn content(page: &Page) -> Vec<(String, String)> {
    page.kvs
        .iter()
        .map(|kv| {
            let name = kv.key.rsplit('/').next().unwrap().to_owned();
            (name, String::from_utf8(kv.value.to_vec()).unwrap())
        })
        .collect()
}

pub fn pairs(expected: &[(&str, &str)]) -> Vec<(String, String)> {
    expected.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
}

/// Returns the next notice, which must arrive soon.
pub async fn notice(watch: &mut Watch) -> Option<Result<Notice, StoreError>> {
    tokio::time::timeout(Duration::from_secs(20), watch.next()).await.expect("no notice in 20 s")
}

/// Returns the next `count` events; fails if there are more or fewer.
pub async fn events(watch: &mut Watch, count: usize) -> Vec<Event> {
    let mut events = Vec::new();
    while events.len() < count {
        match notice(watch).await.expect("the watch ended").unwrap() {
            Notice::Events(batch) => events.extend(batch),
            Notice::Progress(_) => {}
        }
    }
    assert_eq!(events.len(), count, "{events:?}");
    events
}

/// Checks that nothing but progress arrives for a moment.
pub async fn silence(watch: &mut Watch) {
    let moment = tokio::time::sleep(Duration::from_millis(200));
    tokio::pin!(moment);
    loop {
        tokio::select! {
            () = &mut moment => return,
            next = watch.next() => match next {
                Some(Ok(Notice::Progress(_))) => {}
                other => panic!("{other:?}"),
            },
        }
    }
}

/// Returns revisions and names of events.
pub fn marks(events: &[Event]) -> Vec<(Revision, String)> {
    events.iter().map(|event| (event.revision, event.key.rsplit('/').next().unwrap().to_owned())).collect()
}
