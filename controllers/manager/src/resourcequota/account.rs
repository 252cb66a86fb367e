//! The account of one quota: what was charged to it, what is there, and the difference.
//!
//! `status.used` is raised by API servers before they store an object, and lowered here. A recalculation from what
//! watches show would lose what was charged for objects that are not stored yet, or not seen yet, and quotas could
//! be exceeded. So it is lowered only by what is known to be gone:
//!
//! - Amounts of objects that were seen and are gone, or use less. They were charged before.
//! - Amounts of an audit: what was charged too much when it began, and of which no object has appeared for longer than
//!   any request lives. A request that failed after it had been charged leaves such amounts, if its API server died.

use std::sync::Arc;

use apiserver_client::version_of;
use apiserver_meta::quantity::Quantity;
use apiserver_meta::quota::{self, Selector, Usage};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{ResourceQuota, ResourceQuotaStatus};

use super::record::Record;
use crate::limits::{QUOTA_CLOCK_SKEW, QUOTA_EVENTS, QUOTA_LAG, QUOTA_WRITE_OFF};
use crate::meta::uid;

/// The account of one quota.
pub(super) struct Account {
    /// The newest version that is known.
    quota: Arc<ResourceQuota>,
    /// `spec.hard`
    wanted: Usage,
    selectors: Vec<Selector>,
    /// `status.hard`
    hard: Usage,
    /// `status.used`
    used: Usage,
    /// The amounts that the objects use that have been seen.
    counted: Usage,
    /// The amounts of what is gone, and still in `used`.
    released: Usage,
    /// Objects up to this version may have been written off although they were stored, and were deleted again before a
    /// watch that was behind showed either.
    late_until: u64,
    /// The amounts of such objects that have been shown since; it is no release when they go.
    unpaid: Usage,
    /// Since when more is there than was charged. The watch of the quota may be behind those of the objects.
    short_since: Option<Timestamp>,
    audit: Option<Audit>,
    /// `Some` while the status is being written: the versions that were seen meanwhile.
    writing: Option<Vec<Arc<ResourceQuota>>>,
}

/// An examination of what was charged too much.
struct Audit {
    since: Timestamp,
    /// The amounts that were charged too much when it began: for objects about to be stored, and for lost ones.
    excess: Usage,
    /// The amounts of objects that have appeared, or may have, and of charges that were given back.
    settled: Usage,
    /// The version of the API server's objects at which the books were found to have all of them, after the end of the
    /// audit.
    confirmed: Option<u64>,
}

/// The status to be written.
pub(super) struct Plan {
    /// The version that the plan was made of.
    pub old: Arc<ResourceQuota>,
    pub new: ResourceQuota,
    released: Usage,
    raised: Usage,
    ends_audit: bool,
}

/// The end of a write.
pub(super) enum Written {
    Done(Box<ResourceQuota>),
    /// It was not carried out.
    Refused,
    /// It may have been carried out.
    Unknown,
}

/// The result of an audit.
pub(super) enum Verdict {
    /// No audit has come to its end.
    None,
    /// The amounts are to be written off once the caches are known to be up to date.
    Unconfirmed,
    WriteOff(Usage),
}

/// The effect of a newer version of a quota on its account.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Taken {
    /// The quota limits something else.
    pub limits: bool,
    /// The objects have to be counted again.
    pub recount: bool,
}

/// The effect of a change on an account.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Effect {
    /// Less is used.
    pub released: bool,
    /// More is used than was charged.
    pub short: bool,
    /// An audit has begun.
    pub audited: bool,
}

impl Account {
    pub fn open(quota: Arc<ResourceQuota>) -> Self {
        let mut account = Self {
            quota: Arc::clone(&quota),
            wanted: Usage::new(),
            selectors: Vec::new(),
            hard: Usage::new(),
            used: Usage::new(),
            counted: Usage::new(),
            released: Usage::new(),
            late_until: 0,
            unpaid: Usage::new(),
            short_since: None,
            audit: None,
            writing: None,
        };
        account.read(quota);
        account
    }

    fn read(&mut self, quota: Arc<ResourceQuota>) {
        let (spec, status) = (quota.spec.as_ref(), quota.status.as_ref());
        self.wanted = quota::parsed(spec.and_then(|spec| spec.hard.as_ref()));
        self.selectors = spec.map(quota::selectors).unwrap_or_default();
        self.hard = quota::parsed(status.and_then(|status| status.hard.as_ref()));
        self.used = quota::parsed(status.and_then(|status| status.used.as_ref()));
        self.quota = quota;
    }

    /// Returns `true` if `quota` is another object than this account's.
    pub fn is_of_another(&self, quota: &ResourceQuota) -> bool {
        uid(&self.quota.metadata) != uid(&quota.metadata)
    }

    /// Returns `true` if the quota limits objects of the kind.
    pub fn counts(&self, kind: &str) -> bool {
        self.wanted.keys().any(|name| quota::counts(kind, name))
    }

    /// Returns the resources that the quota limits.
    pub fn resources(&self) -> impl Iterator<Item = &str> {
        self.wanted.keys().map(String::as_str)
    }

    /// Takes a newer version.
    pub fn take(&mut self, quota: Arc<ResourceQuota>) -> Taken {
        if let Some(seen) = &mut self.writing {
            // Whether the change is this controller's own is known when the write has ended.
            if seen.len() < QUOTA_EVENTS {
                seen.push(quota);
            } else {
                self.audit = None;
                *seen = vec![quota];
            }
            return Taken::default();
        }
        self.take_version(quota, false)
    }

    /// Takes a newer version, which this controller has written if `is_own`.
    fn take_version(&mut self, quota: Arc<ResourceQuota>, is_own: bool) -> Taken {
        if version_of(&quota.metadata) <= version_of(&self.quota.metadata) {
            return Taken::default();
        }
        let (wanted, selectors, used) = (self.wanted.clone(), self.selectors.clone(), self.used.clone());
        self.read(quota);
        if let Some(audit) = self.audit.as_mut().filter(|_| !is_own) {
            // A charge that was given back is no longer in flight.
            quota::add(&mut audit.settled, &quota::subtract_to_zero(&used, &self.used));
        }
        let same_names = wanted.keys().eq(self.wanted.keys());
        Taken { limits: wanted != self.wanted, recount: !same_names || selectors != self.selectors }
    }

    /// Counts all objects again.
    pub fn recount<'a>(&mut self, objects: impl Iterator<Item = (&'a str, &'a Record)>) {
        self.counted = Usage::new();
        for (kind, record) in objects {
            let usage = record.usage(kind, &self.wanted, &self.selectors);
            quota::add(&mut self.counted, &usage);
        }
        self.released = quota::masked(&self.released, |name| self.wanted.contains_key(name));
    }

    /// Records a change of an object of a kind.
    pub fn change(
        &mut self,
        kind: &str,
        old: Option<&Record>,
        new: Option<&Record>,
        now: Timestamp,
    ) -> Effect {
        if !self.counts(kind) {
            return Effect::default();
        }
        match (old, new) {
            // Both were charged.
            (Some(old), Some(new)) if old.uid() != new.uid() => {
                self.step(kind, Some(old), None);
                self.step(kind, None, Some(new));
            }
            _ => self.step(kind, old, new),
        }
        self.effect(now)
    }

    fn step(&mut self, kind: &str, old: Option<&Record>, new: Option<&Record>) {
        let of = |record: Option<&Record>| {
            record.map(|record| record.usage(kind, &self.wanted, &self.selectors)).unwrap_or_default()
        };
        let (before, after) = (of(old), of(new));
        let (less, more) =
            (quota::subtract_to_zero(&before, &after), quota::subtract_to_zero(&after, &before));
        subtract(&mut self.counted, &less);
        quota::add(&mut self.counted, &more);
        quota::add(&mut self.released, &quota::subtract_to_zero(&less, &self.unpaid));
        self.unpaid = quota::subtract_to_zero(&self.unpaid, &less);
        if new.is_some_and(|new| new.version() <= self.late_until) {
            quota::add(&mut self.unpaid, &more);
        }
        let Some(audit) = &mut self.audit else { return };
        let since = audit.since.saturating_add(QUOTA_CLOCK_SKEW).unwrap_or(Timestamp::MAX);
        // What has certainly been charged since is none of the excess at the beginning.
        let is_newer = old.is_none() && new.is_some_and(|new| new.created() > since);
        if !is_newer {
            quota::add(&mut audit.settled, &more);
        }
    }

    /// Returns the effect of what has changed; begins an audit if more was charged than is there.
    pub fn effect(&mut self, now: Timestamp) -> Effect {
        let excess = self.excess();
        let audited = self.audit.is_none() && !excess.is_empty();
        if audited {
            let settled = Usage::new();
            self.audit = Some(Audit { since: now, excess, settled, confirmed: None });
        }
        let short = self.counted.keys().any(|name| self.is_short(name));
        self.short_since = short.then(|| self.short_since.unwrap_or(now));
        Effect { released: !self.released.is_empty(), short, audited }
    }

    /// Returns `true` if more of a resource is there than was charged.
    fn is_short(&self, name: &str) -> bool {
        let charged = self.used.get(name).map(|used| used.minus(amount_of(&self.released, name)));
        charged.is_some_and(|charged| charged < amount_of(&self.counted, name))
    }

    /// Returns when what was not charged is added.
    pub fn short_until(&self) -> Option<Timestamp> {
        self.short_since.map(|since| since.saturating_add(QUOTA_LAG).unwrap_or(Timestamp::MAX))
    }

    /// Returns what was charged for objects that are not there.
    fn excess(&self) -> Usage {
        let charged = quota::masked(&self.used, |name| self.wanted.contains_key(name));
        let left = quota::subtract_to_zero(&charged, &self.released);
        quota::subtract_to_zero(&left, &self.counted)
    }

    /// Returns `true` if the status has to be written for the first time, or because the quota itself has changed.
    pub fn is_urgent(&self, is_known: impl Fn(&str) -> bool) -> bool {
        self.wanted != self.hard
            || self.hard.keys().any(|name| !self.used.contains_key(name) && is_known(name))
    }

    /// Returns when an audit ends.
    pub fn audit_ends(&self) -> Option<Timestamp> {
        let audit = self.audit.as_ref()?;
        Some(audit.since.saturating_add(QUOTA_WRITE_OFF).unwrap_or(Timestamp::MAX))
    }

    /// Ends an audit whose time is over, if nothing is to be written off. Otherwise returns what is.
    pub fn verdict(&mut self, is_known: impl Fn(&str) -> bool, now: Timestamp) -> Verdict {
        if self.audit_ends().is_none_or(|end| now < end) {
            return Verdict::None;
        }
        let Some(audit) = &self.audit else { return Verdict::None };
        let lost = quota::subtract_to_zero(&audit.excess, &audit.settled);
        let excess = self.excess();
        let lost: Usage = lost
            .into_iter()
            .filter(|(name, _)| is_known(name))
            .filter_map(|(name, amount)| Some((name.clone(), amount.min(*excess.get(&name)?))))
            .collect();
        if lost.is_empty() {
            self.audit = None;
            return Verdict::None;
        }
        if audit.confirmed.is_some() { Verdict::WriteOff(lost) } else { Verdict::Unconfirmed }
    }

    /// Records that the books have all objects that the API server had at this version.
    pub fn confirm(&mut self, version: u64) {
        if let Some(audit) = &mut self.audit {
            audit.confirmed = Some(version);
        }
    }

    pub fn is_writing(&self) -> bool {
        self.writing.is_some()
    }

    /// Returns the status to write, if it is another one. Until [`Account::finish`] the account is locked.
    pub fn plan(&mut self, lost: &Usage, is_known: impl Fn(&str) -> bool, now: Timestamp) -> Option<Plan> {
        let is_lagging = self.short_until().is_some_and(|end| now < end);
        // The charge of what has been seen may be on its way, and is not written a second time.
        let is_held = |name: &str| !is_known(name) || is_lagging && self.is_short(name);
        let mut used = Usage::new();
        for name in self.wanted.keys() {
            let counted = amount_of(&self.counted, name);
            let amount = match self.used.get(name) {
                None if !is_known(name) => continue,
                None => counted,
                Some(charged) if is_held(name) => *charged,
                Some(charged) => {
                    let gone = amount_of(&self.released, name).plus(amount_of(lost, name));
                    charged.minus(gone).max(counted)
                }
            };
            // Larger ones cannot be read again.
            used.insert(name.clone(), amount.saturating_add(Quantity::from_value(0)));
        }
        let released = quota::masked(&self.released, |name| !is_held(name));
        let status = self.quota.status.as_ref();
        let is_complete = status.is_some_and(|status| status.hard.is_some() && status.used.is_some());
        if is_complete && used == self.used && self.wanted == self.hard {
            self.released = quota::subtract_to_zero(&self.released, &released);
            return None;
        }
        let hard = self.quota.spec.as_ref().and_then(|spec| spec.hard.clone()).unwrap_or_default();
        let status = ResourceQuotaStatus { hard: Some(hard), used: Some(quota::to_api(&used)) };
        let new = ResourceQuota { status: Some(status), ..ResourceQuota::clone(&self.quota) };
        self.writing = Some(Vec::new());
        let raised = quota::subtract_to_zero(&used, &self.used);
        Some(Plan { old: Arc::clone(&self.quota), new, released, raised, ends_audit: !lost.is_empty() })
    }

    /// Ends the write of a plan; returns `true` if the objects have to be counted again.
    pub fn finish(&mut self, plan: &Plan, written: Written) -> bool {
        let seen = self.writing.take().unwrap_or_default();
        let mut versions: Vec<(Arc<ResourceQuota>, bool)> = Vec::new();
        match written {
            Written::Refused => {}
            // The amounts of a write that was not carried out after all are found by an audit.
            Written::Unknown => self.settle(plan),
            Written::Done(quota) => {
                self.settle(plan);
                self.unpaid = quota::subtract_to_zero(&self.unpaid, &plan.raised);
                versions.push((Arc::from(quota), true));
            }
        }
        versions.extend(seen.into_iter().map(|quota| (quota, false)));
        // A version that has been taken already is left out: this controller's own comes first.
        versions
            .into_iter()
            .fold(false, |recount, (quota, is_own)| self.take_version(quota, is_own).recount || recount)
    }

    fn settle(&mut self, plan: &Plan) {
        self.released = quota::subtract_to_zero(&self.released, &plan.released);
        if plan.ends_audit {
            let confirmed = self.audit.take().and_then(|audit| audit.confirmed);
            self.late_until = self.late_until.max(confirmed.unwrap_or(0));
        }
    }

    #[cfg(test)]
    pub fn counted(&self) -> &Usage {
        &self.counted
    }
}

/// Returns the amount of a resource; zero if there is none.
fn amount_of(usage: &Usage, name: &str) -> Quantity {
    usage.get(name).copied().unwrap_or(Quantity::from_value(0))
}

/// Takes `less` from `total`. Amounts of zero are left out.
fn subtract(total: &mut Usage, less: &Usage) {
    for (name, amount) in less {
        let rest = amount_of(total, name).minus(*amount);
        total.insert(name.clone(), rest);
    }
    total.retain(|_, amount| amount.nano() != 0);
}
