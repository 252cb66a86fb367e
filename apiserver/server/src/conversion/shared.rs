//! Conversions for watchers. All watchers of an object need the same conversion of each of its states: it is made once,
//! by the call of the first that has its turn, and kept for those that come later.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use apiserver_registry::definition::{Custom, Definition};
use apiserver_schema::error::ApiError;
use apiserver_schema::ordered;
use bytes::Bytes;
use serde_json::Value;
use tokio::sync::watch;

use super::turns::Turn;
use super::{Calls, Host, webhook};
use crate::clients::accounts::Account;
use crate::limits;

/// A state of an object.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct State {
    pub namespace: String,
    pub name: String,
    pub uid: String,
    /// `metadata.resourceVersion`; that of its deletion for an object that was deleted.
    pub revision: String,
}

/// An object that a watcher needs in another version.
#[derive(Clone)]
pub struct Wanted {
    pub state: State,
    /// The object in the version in which it is stored, as JSON.
    pub text: Bytes,
}

/// The conversions that watchers share.
#[derive(Default)]
pub struct Shared(Mutex<Conversions>);

#[derive(Default)]
struct Conversions {
    under_way: HashMap<Key, watch::Receiver<Option<Outcome>>>,
    kept: Kept,
}

/// A conversion of a state to a version of a definition.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Key {
    /// The address of the definition, which has defaults and the webhook. `Claim` and `KeptKind` keep the definition alive,
    /// so that no other one gets its address while a key exists.
    definition: usize,
    version: Box<str>,
    state: State,
}

impl Key {
    fn new(custom: &Custom, state: &State) -> Self {
        let definition = Arc::as_ptr(&custom.definition) as usize;
        Self { definition, version: custom.version().into(), state: state.clone() }
    }
}

/// The converted object as JSON. A failure is that of this object alone.
type Outcome = Result<Bytes, ApiError>;

/// The progress of a watcher with one of the objects that it needs.
enum Progress {
    Done(Bytes),
    /// The call of another watcher has it.
    UnderWay(watch::Receiver<Option<Outcome>>),
    Missing,
}

/// Converts objects for a watcher of `account`, in their order. Waits for the turns of calls as long as it takes.
pub async fn convert(
    host: Arc<dyn Host>,
    custom: Arc<Custom>,
    account: Option<Arc<Account>>,
    wanted: Vec<Wanted>,
) -> Result<Vec<Bytes>, ApiError> {
    let Calls { turns, shared, .. } = host.webhook_caller().calls;
    let keys: Vec<Key> = wanted.iter().map(|wanted| Key::new(&custom, &wanted.state)).collect();
    let mut done: Vec<Option<Bytes>> = vec![None; wanted.len()];
    let mut open: Vec<usize> = (0..keys.len()).collect();
    let mut under_way = Vec::new();
    // A call of another watcher has failed, which may be because of an object that only that one needs.
    let mut alone = false;
    loop {
        let mut missing = Vec::new();
        for index in std::mem::take(&mut open) {
            match shared.look(&keys[index]) {
                Progress::Done(text) => done[index] = Some(text),
                Progress::UnderWay(outcome) if !alone => under_way.push((index, outcome)),
                Progress::UnderWay(_) | Progress::Missing => missing.push(index),
            }
        }
        if missing.is_empty() && under_way.is_empty() {
            return Ok(done.into_iter().flatten().collect());
        }
        if missing.is_empty() {
            for (index, mut outcome) in under_way.drain(..) {
                let ended = outcome.wait_for(Option::is_some).await.ok();
                match ended.and_then(|outcome| Option::clone(&outcome)) {
                    Some(outcome) => done[index] = Some(outcome?),
                    None => {
                        alone = true;
                        open.push(index);
                    }
                }
            }
            continue;
        }
        let bytes = missing.iter().map(|index| wanted[*index].text.len()).sum();
        let turn = turns.take(&custom.definition.name, account.as_deref(), bytes).await;
        let claim = Claim::new(&host, &custom, missing.iter().map(|index| (*index, &keys[*index])), alone);
        let texts = claim.texts(&wanted);
        if texts.is_empty() {
            open = missing;
            continue;
        }
        let indexes: Vec<usize> = claim.entries.iter().map(|entry| entry.index).collect();
        // It goes on if this watcher is gone: others may wait for it.
        let call = tokio::spawn(claim.call(texts, turn));
        let converted =
            call.await.unwrap_or_else(|_| Err(ApiError::internal("the conversion has failed")))?;
        for (index, text) in indexes.into_iter().zip(converted) {
            done[index] = Some(text);
        }
        open = missing.into_iter().filter(|index| done[*index].is_none()).collect();
    }
}

/// The conversions that one call makes.
struct Claim {
    host: Arc<dyn Host>,
    /// Keeps the definition of the keys alive.
    custom: Arc<Custom>,
    entries: Vec<Entry>,
}

struct Entry {
    /// The position among the objects that the watcher needs.
    index: usize,
    key: Key,
    /// Tells others the result; `None` if they do not wait for this call.
    outcome: Option<watch::Sender<Option<Outcome>>>,
}

impl Claim {
    /// Claims those of the conversions that no call has by now; all of them if the call is to be for one watcher alone.
    fn new<'a>(
        host: &Arc<dyn Host>,
        custom: &Arc<Custom>,
        missing: impl Iterator<Item = (usize, &'a Key)>,
        alone: bool,
    ) -> Self {
        let mut all = host.webhook_caller().calls.shared.lock();
        let mut entries = Vec::new();
        for (index, key) in missing {
            if all.kept.get(key).is_some() {
                continue;
            }
            let outcome = if all.under_way.contains_key(key) {
                if !alone {
                    continue;
                }
                None
            } else {
                let (sender, receiver) = watch::channel(None);
                all.under_way.insert(Key::clone(key), receiver);
                Some(sender)
            };
            entries.push(Entry { index, key: Key::clone(key), outcome });
        }
        drop(all);
        Self { host: Arc::clone(host), custom: Arc::clone(custom), entries }
    }

    /// Returns the objects that it is about.
    fn texts(&self, wanted: &[Wanted]) -> Vec<Bytes> {
        self.entries.iter().map(|entry| Bytes::clone(&wanted[entry.index].text)).collect()
    }

    /// Has the webhook convert the objects, and gives the results to those that wait.
    async fn call(mut self, texts: Vec<Bytes>, turn: Turn) -> Result<Vec<Bytes>, ApiError> {
        let converted = self.converted(texts).await;
        let entries = std::mem::take(&mut self.entries);
        let mut all = self.host.webhook_caller().calls.shared.lock();
        for entry in entries.iter().filter(|entry| entry.outcome.is_some()) {
            all.under_way.remove(&entry.key);
        }
        if let Ok(texts) = &converted {
            for (entry, text) in entries.iter().zip(texts) {
                all.kept.insert(&self.custom.definition, &entry.key, text);
            }
        }
        drop(all);
        let single = entries.len() == 1;
        for (position, entry) in entries.into_iter().enumerate() {
            let outcome = match &converted {
                Ok(texts) => texts.get(position).cloned().map(Ok),
                Err(error) => single.then(|| Err(error.clone())),
            };
            if let (Some(sender), Some(outcome)) = (entry.outcome, outcome) {
                sender.send_replace(Some(outcome));
            }
        }
        drop(turn);
        converted
    }

    async fn converted(&self, texts: Vec<Bytes>) -> Result<Vec<Bytes>, ApiError> {
        let unread = |error: &dyn std::fmt::Display| {
            ApiError::internal(format!("an object of a watch cannot be read: {error}"))
        };
        let (mut values, mut array) = (Vec::with_capacity(texts.len()), "[".to_owned());
        for text in &texts {
            let text = str::from_utf8(text).map_err(|error| unread(&error))?;
            values.push(serde_json::from_str::<Value>(text).map_err(|error| unread(&error))?);
            if array.len() > 1 {
                array.push(',');
            }
            array.push_str(text);
        }
        array.push(']');
        drop(texts);
        webhook::convert_in_turn(self.host.webhook_caller(), &self.custom, &mut values, array).await?;
        Ok(values.into_iter().map(|value| Bytes::from(ordered::json_text(&value))).collect())
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        // It did not come to its end. Those that wait see that when the entries are dropped.
        if self.entries.is_empty() {
            return;
        }
        let mut all = self.host.webhook_caller().calls.shared.lock();
        for entry in self.entries.iter().filter(|entry| entry.outcome.is_some()) {
            all.under_way.remove(&entry.key);
        }
    }
}

impl Shared {
    fn look(&self, key: &Key) -> Progress {
        let all = self.lock();
        if let Some(text) = all.kept.get(key) {
            return Progress::Done(text);
        }
        all.under_way.get(key).map_or(Progress::Missing, |outcome| Progress::UnderWay(outcome.clone()))
    }

    fn lock(&self) -> MutexGuard<'_, Conversions> {
        // Nothing panics while it holds the lock, and each change is complete.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Converted objects, of which the oldest of a kind go first.
#[derive(Default)]
struct Kept {
    texts: HashMap<Key, Bytes>,
    /// By the address of the definition.
    kinds: HashMap<usize, KeptKind>,
    bytes: usize,
}

struct KeptKind {
    /// Keeps the address from being that of another one.
    definition: Arc<Definition>,
    /// The oldest first.
    order: VecDeque<Key>,
    bytes: usize,
}

impl Kept {
    fn get(&self, key: &Key) -> Option<Bytes> {
        self.texts.get(key).cloned()
    }

    /// Keeps an object. Others of its kind go if they are too many together, and then some of the kind that has most.
    fn insert(&mut self, definition: &Arc<Definition>, key: &Key, text: &Bytes) {
        let (cost, most) = (cost(key, text), limits::CONVERTED_KEPT / limits::SHARE_OF_CONVERTED_KEPT);
        if cost > most || self.texts.contains_key(key) {
            return;
        }
        self.forget_replaced(definition, key.definition);
        let new = || KeptKind { definition: Arc::clone(definition), order: VecDeque::new(), bytes: 0 };
        let kind = self.kinds.entry(key.definition).or_insert_with(new);
        kind.order.push_back(Key::clone(key));
        kind.bytes += cost;
        self.texts.insert(Key::clone(key), Bytes::clone(text));
        self.bytes += cost;
        while self.kinds.get(&key.definition).is_some_and(|kind| kind.bytes > most) {
            self.drop_oldest(key.definition);
        }
        while self.bytes > limits::CONVERTED_KEPT {
            let largest = self.kinds.iter().max_by_key(|(definition, kind)| (kind.bytes, **definition));
            let Some(largest) = largest.map(|(definition, _)| *definition) else { return };
            self.drop_oldest(largest);
        }
    }

    /// Drops what was converted by earlier states of a definition.
    fn forget_replaced(&mut self, definition: &Definition, address: usize) {
        let replaced = self
            .kinds
            .iter()
            .filter(|(other, kind)| **other != address && kind.definition.name == definition.name);
        let replaced: Vec<usize> = replaced.map(|(other, _)| *other).collect();
        for other in replaced {
            while self.kinds.contains_key(&other) {
                self.drop_oldest(other);
            }
        }
    }

    fn drop_oldest(&mut self, definition: usize) {
        let Some(kind) = self.kinds.get_mut(&definition) else { return };
        if let Some(key) = kind.order.pop_front()
            && let Some(text) = self.texts.remove(&key)
        {
            let cost = cost(&key, &text);
            kind.bytes -= cost;
            self.bytes -= cost;
        }
        if kind.order.is_empty() {
            self.kinds.remove(&definition);
        }
    }
}

fn cost(key: &Key, text: &Bytes) -> usize {
    let State { namespace, name, uid, revision } = &key.state;
    limits::CONVERTED_KEPT_OBJECT
        + 2 * (namespace.len() + name.len() + uid.len() + revision.len())
        + text.len()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const OF_KIND: usize = limits::CONVERTED_KEPT / limits::SHARE_OF_CONVERTED_KEPT;
    /// The objects of a kind that are kept, each of which costs this part of its share.
    const OBJECTS: usize = 4;

    fn definition(name: &str) -> Arc<Definition> {
        let definition = json!({
            "metadata": {"name": name},
            "spec": {"group": "example.com", "scope": "Namespaced", "versions": [{"name": "v1", "storage": true}]},
        });
        Arc::new(Definition::read(Arc::new(definition.to_string())).unwrap())
    }

    fn key(definition: &Arc<Definition>, number: usize) -> Key {
        let name = number.to_string();
        let state = State { namespace: String::new(), name, uid: String::new(), revision: String::new() };
        Key { definition: Arc::as_ptr(definition) as usize, version: "v1".into(), state }
    }

    /// Keeps an object of the size of which [`OBJECTS`] are kept.
    fn insert(kept: &mut Kept, definition: &Arc<Definition>, number: usize) {
        let key = key(definition, number);
        let text = vec![b' '; OF_KIND / OBJECTS - cost(&key, &Bytes::new())];
        kept.insert(definition, &key, &Bytes::from(text));
    }

    /// Returns the numbers of the objects of a kind that are kept.
    fn numbers(kept: &Kept, definition: &Arc<Definition>) -> Vec<usize> {
        (0..100).filter(|number| kept.get(&key(definition, *number)).is_some()).collect()
    }

    #[test]
    fn kept_objects_are_bounded_for_each_kind_and_in_all_and_the_oldest_go_first() {
        let mut kept = Kept::default();
        let kinds: Vec<_> =
            (0..=limits::SHARE_OF_CONVERTED_KEPT).map(|kind| definition(&kind.to_string())).collect();
        let (last, others) = kinds.split_last().unwrap();
        for kind in others {
            (0..OBJECTS + 2).for_each(|number| insert(&mut kept, kind, number));
            assert_eq!(numbers(&kept, kind), [2, 3, 4, 5], "the oldest have gone");
        }
        assert_eq!(kept.bytes, limits::CONVERTED_KEPT);
        // Another kind gets room from those that have most, one object from each.
        for number in 0..OBJECTS - 1 {
            insert(&mut kept, last, number);
            assert_eq!(kept.bytes, limits::CONVERTED_KEPT);
        }
        assert_eq!(numbers(&kept, last), [0, 1, 2]);
        let left: Vec<_> = others.iter().map(|kind| numbers(&kept, kind)).collect();
        assert!(left.iter().all(|left| *left == [2, 3, 4, 5] || *left == [3, 4, 5]), "{left:?}");
        assert_eq!(left.concat().len(), others.len() * OBJECTS - (OBJECTS - 1));
        // One that is larger than the share of its kind is not kept.
        let huge = Bytes::from(vec![b' '; OF_KIND]);
        kept.insert(last, &key(last, 50), &huge);
        assert_eq!((numbers(&kept, last), kept.bytes), (vec![0, 1, 2], limits::CONVERTED_KEPT));
    }

    #[test]
    fn objects_of_a_replaced_definition_are_forgotten() {
        let mut kept = Kept::default();
        let (old, new, other) = (definition("a"), definition("a"), definition("b"));
        for definition in [&old, &other] {
            (0..2).for_each(|number| insert(&mut kept, definition, number));
        }
        insert(&mut kept, &new, 1);
        let numbers = [&old, &new, &other].map(|definition| numbers(&kept, definition));
        assert_eq!(numbers, [vec![], vec![1], vec![0, 1]]);
        assert_eq!((kept.texts.len(), kept.kinds.len(), kept.bytes), (3, 2, 3 * OF_KIND / OBJECTS));
        assert_eq!(Arc::strong_count(&old), 1, "nothing keeps it alive");
    }
}
