//! The books: the objects of all namespaces that quotas may count, and an account for each quota. Changes are recorded
//! as watches deliver them, so that no namespace has to be counted when one of its objects changes.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use apiserver_client::ObjectKey;
use apiserver_meta::quota;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::ResourceQuota;

use super::account::{Account, Effect, Plan, Taken, Verdict, Written};
use super::record::{MEASURED, Named, Record};

/// The books of all namespaces.
#[derive(Default)]
pub(super) struct Books {
    namespaces: BTreeMap<String, Namespace>,
    /// Kinds of which all objects have been seen, beside those that are measured.
    complete: BTreeSet<String>,
}

#[derive(Default)]
struct Namespace {
    /// Objects by kind and name.
    objects: BTreeMap<String, BTreeSet<Named>>,
    accounts: BTreeMap<String, Account>,
    /// Pods by the time from which they no longer count.
    ending: BTreeSet<(Timestamp, String)>,
}

/// A quota to look at.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Wake {
    pub key: ObjectKey,
    pub why: Why,
}

/// The reason to look at a quota, the most urgent first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Why {
    /// Its status is unknown.
    Urgent,
    /// Something is gone, or the quota is new.
    Changed,
    /// There is more than was charged, or something will end: other watches may be behind.
    Soon,
    /// An audit has begun.
    Audited,
}

/// The next step for a quota.
pub(super) enum Step {
    Nothing,
    /// A write is under way.
    Busy,
    Write(Box<Plan>),
    /// The objects of these kinds have to be compared with those of the API server: [`Books::is_current`].
    Confirm(BTreeSet<String>),
}

/// An object as the API server listed it.
pub(super) struct Listed {
    pub kind: String,
    pub name: String,
    pub uid: String,
    pub version: u64,
}

impl Books {
    /// Records an object as it is now; `None` if it is gone. `at`: namespace and name.
    pub fn apply(&mut self, kind: &str, at: &ObjectKey, record: Option<Record>, now: Timestamp) -> Vec<Wake> {
        let place = self.namespaces.entry(at.namespace.clone()).or_default();
        let wakes = place.apply(kind, at, record, now);
        if place.is_empty() {
            self.namespaces.remove(&at.namespace);
        }
        wakes
    }

    /// Records the complete list of a kind: all other objects of it are gone.
    pub fn complete(&mut self, kind: &str, listed: &BTreeSet<ObjectKey>, now: Timestamp) -> Vec<Wake> {
        let mut gone = Vec::new();
        for (namespace, place) in &self.namespaces {
            let records = place.objects.get(kind).into_iter().flatten();
            let keys = records.map(|Named(record)| ObjectKey::new(namespace, record.name()));
            gone.extend(keys.filter(|key| !listed.contains(key)));
        }
        let mut wakes: Vec<Wake> = gone.iter().flat_map(|key| self.apply(kind, key, None, now)).collect();
        self.complete.insert(kind.to_owned());
        for (namespace, place) in &self.namespaces {
            let counting = place.accounts.iter().filter(|(_, account)| account.counts(kind));
            wakes.extend(counting.map(|(name, _)| Wake::new(namespace, name, Why::Urgent)));
        }
        wakes
    }

    /// Records that the objects of a kind are not followed any more.
    pub fn forget(&mut self, kind: &str) {
        self.complete.remove(kind);
    }

    /// Records a quota as it is now; `None` if it is gone.
    pub fn quota(
        &mut self,
        key: &ObjectKey,
        quota: Option<Arc<ResourceQuota>>,
        now: Timestamp,
    ) -> Option<Wake> {
        let place = self.namespaces.entry(key.namespace.clone()).or_default();
        let wake = |why| Some(Wake { key: key.clone(), why });
        let Some(quota) = quota else {
            place.accounts.remove(&key.name);
            if place.is_empty() {
                self.namespaces.remove(&key.namespace);
            }
            return None;
        };
        let known = place.accounts.get_mut(&key.name).filter(|account| !account.is_of_another(&quota));
        let is_new = known.is_none();
        let taken = match known {
            Some(account) => account.take(quota),
            None => {
                place.accounts.insert(key.name.clone(), Account::open(quota));
                Taken { limits: true, recount: true }
            }
        };
        if taken.recount {
            place.recount(&key.name);
        }
        let account = place.accounts.get_mut(&key.name)?;
        let effect = account.effect(now);
        if taken.limits && account.is_urgent(known_by(&self.complete)) {
            return wake(Why::Urgent);
        }
        effect.why().or(is_new.then_some(Why::Changed)).and_then(wake)
    }

    /// Counts all objects of a quota again.
    pub fn recount(&mut self, key: &ObjectKey) {
        if let Some(place) = self.namespaces.get_mut(&key.namespace) {
            place.recount(&key.name);
        }
    }

    /// Returns all quotas.
    pub fn keys(&self) -> Vec<ObjectKey> {
        let of = |(namespace, place): (&String, &Namespace)| -> Vec<ObjectKey> {
            place.accounts.keys().map(|name| ObjectKey::new(namespace, name)).collect()
        };
        self.namespaces.iter().flat_map(of).collect()
    }

    /// Returns the kinds that quotas count by their number, and that have to be followed for it.
    pub fn kinds(&self) -> BTreeSet<String> {
        let accounts = self.namespaces.values().flat_map(|place| place.accounts.values());
        let kinds = accounts.flat_map(Account::resources).filter_map(quota::by_name);
        kinds.filter(|kind| !MEASURED.contains(kind)).map(str::to_owned).collect()
    }

    /// Stops counting pods that should have ended by now.
    pub fn expire(&mut self, namespace: &str, now: Timestamp) -> Vec<Wake> {
        self.namespaces.get_mut(namespace).map(|place| place.expire(namespace, now)).unwrap_or_default()
    }

    /// Decides what to do for a quota.
    pub fn step(&mut self, key: &ObjectKey, now: Timestamp) -> Step {
        let known = known_by(&self.complete);
        let account =
            self.namespaces.get_mut(&key.namespace).and_then(|place| place.accounts.get_mut(&key.name));
        let Some(account) = account else { return Step::Nothing };
        if account.is_writing() {
            return Step::Busy;
        }
        let lost = match account.verdict(known, now) {
            Verdict::None => quota::Usage::new(),
            Verdict::WriteOff(lost) => lost,
            Verdict::Unconfirmed => {
                let measured = MEASURED.iter().copied().filter(|kind| account.counts(kind));
                let named = account.resources().filter_map(quota::by_name);
                return Step::Confirm(measured.chain(named).map(str::to_owned).collect());
            }
        };
        match account.plan(&lost, known, now) {
            Some(plan) => Step::Write(Box::new(plan)),
            None => {
                account.effect(now);
                Step::Nothing
            }
        }
    }

    /// Ends the write of a plan.
    pub fn finish(&mut self, key: &ObjectKey, plan: &Plan, written: Written, now: Timestamp) {
        let Some(place) = self.namespaces.get_mut(&key.namespace) else { return };
        let Some(account) = place.accounts.get_mut(&key.name) else { return };
        // Another quota of that name has not been written to.
        if !account.is_of_another(&plan.old) && account.finish(plan, written) {
            place.recount(&key.name);
        }
        if let Some(account) = place.accounts.get_mut(&key.name) {
            account.effect(now);
        }
    }

    /// Returns `true` if the books have all of these objects, in these versions or newer ones.
    pub fn is_current(&self, namespace: &str, listed: &[Listed]) -> bool {
        let place = self.namespaces.get(namespace);
        listed.iter().all(|object| {
            let record = place.and_then(|place| place.objects.get(&object.kind)?.get(object.name.as_str()));
            record
                .is_some_and(|Named(record)| record.uid() == object.uid && record.version() >= object.version)
        })
    }

    /// Lets amounts be written off that the audit of a quota found to be lost. The books have all objects that the API
    /// server had at `version`.
    pub fn confirm(&mut self, key: &ObjectKey, version: u64) {
        let place = self.namespaces.get_mut(&key.namespace);
        if let Some(account) = place.and_then(|place| place.accounts.get_mut(&key.name)) {
            account.confirm(version);
        }
    }

    /// Returns when a quota has to be looked at without a change.
    pub fn due(&self, key: &ObjectKey, now: Timestamp) -> Option<Timestamp> {
        let place = self.namespaces.get(&key.namespace)?;
        let account = place.accounts.get(&key.name)?;
        let ending = place.ending.first().map(|(at, _)| *at);
        // What is over by now, and nothing was to be done about, waits for a change.
        let times = [account.audit_ends(), account.short_until(), ending].into_iter().flatten();
        times.filter(|at| *at >= now).min()
    }

    #[cfg(test)]
    pub fn counted(&self, key: &ObjectKey) -> &quota::Usage {
        self.namespaces[&key.namespace].accounts[&key.name].counted()
    }
}

/// Returns a function that tells whether the usage of a resource is known.
fn known_by(complete: &BTreeSet<String>) -> impl Fn(&str) -> bool + Copy {
    move |name| {
        MEASURED.iter().any(|kind| quota::counts(kind, name))
            || quota::by_name(name).is_some_and(|kind| complete.contains(kind))
    }
}

impl Wake {
    fn new(namespace: &str, name: &str, why: Why) -> Self {
        Self { key: ObjectKey::new(namespace, name), why }
    }
}

impl Effect {
    fn why(self) -> Option<Why> {
        let reasons = [(self.released, Why::Changed), (self.short, Why::Soon), (self.audited, Why::Audited)];
        reasons.into_iter().find_map(|(holds, why)| holds.then_some(why))
    }
}

impl Namespace {
    fn is_empty(&self) -> bool {
        self.objects.is_empty() && self.accounts.is_empty()
    }

    fn apply(&mut self, kind: &str, at: &ObjectKey, record: Option<Record>, now: Timestamp) -> Vec<Wake> {
        let known = self.objects.get(kind).and_then(|objects| objects.get(at.name.as_str()));
        if let (Some(Named(known)), Some(record)) = (known, &record)
            && known.uid() == record.uid()
            && record.version() < known.version()
        {
            return Vec::new();
        }
        let ends = record.as_ref().and_then(Record::ends);
        let objects = self.objects.entry(kind.to_owned()).or_default();
        let old = match &record {
            Some(record) => objects.replace(Named(record.clone())),
            None => objects.take(at.name.as_str()),
        };
        let old = old.map(|Named(record)| record);
        if objects.is_empty() {
            self.objects.remove(kind);
        }
        if let Some(old) = old.as_ref().and_then(Record::ends) {
            self.ending.remove(&(old, at.name.clone()));
        }
        self.ending.extend(ends.map(|end| (end, at.name.clone())));
        self.record(kind, &at.namespace, (old.as_ref(), record.as_ref()), now)
    }

    /// Records a change in all accounts. `change`: the object before and after.
    fn record(
        &mut self,
        kind: &str,
        namespace: &str,
        change: (Option<&Record>, Option<&Record>),
        now: Timestamp,
    ) -> Vec<Wake> {
        let mut wakes = Vec::new();
        let ends = change.1.is_some_and(|new| new.ends().is_some());
        for (name, account) in &mut self.accounts {
            let effect = account.change(kind, change.0, change.1, now);
            let later = (ends && account.counts(kind)).then_some(Why::Soon);
            wakes.extend(effect.why().or(later).map(|why| Wake::new(namespace, name, why)));
        }
        wakes
    }

    fn recount(&mut self, quota: &str) {
        let Self { objects, accounts, .. } = self;
        if let Some(account) = accounts.get_mut(quota) {
            let counted: BTreeSet<&str> =
                objects.keys().map(String::as_str).filter(|kind| account.counts(kind)).collect();
            let all = objects.iter().filter(|(kind, _)| counted.contains(kind.as_str()));
            account.recount(
                all.flat_map(|(kind, list)| list.iter().map(|Named(record)| (kind.as_str(), record))),
            );
        }
    }

    fn expire(&mut self, namespace: &str, now: Timestamp) -> Vec<Wake> {
        let mut wakes = Vec::new();
        while let Some((end, name)) = self.ending.first().cloned() {
            if end >= now {
                break;
            }
            self.ending.pop_first();
            let Some(pods) = self.objects.get_mut("pods") else { continue };
            let Some(Named(old)) = pods.take(name.as_str()) else { continue };
            let mut new = old.clone();
            let is_over = new.review(now);
            pods.insert(Named(new.clone()));
            if is_over {
                wakes.extend(self.record("pods", namespace, (Some(&old), Some(&new)), now));
            }
        }
        wakes
    }
}
