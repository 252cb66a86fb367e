//! The effect of a write on ownership: the rules, on sets, without names, times and annotations.

use std::borrow::Cow;
use std::collections::BTreeMap;

use serde_json::Value;

use super::conflict::Conflict;
use super::error::ShapeErrors;
use super::managers::{ManagerId, Managers, Owned};
use super::merge::{merge, remove};
use super::set::{FieldSet, reconcile};
use super::value::equal;
use super::walk::{Comparison, compare, field_set};
use apiserver_schema::meta;
use apiserver_schema::schema::shape::Shape;

/// A kind in the versions that its managers speak.
pub trait Versions<S: Shape> {
    /// The kind's shape in a version; `None` if the version is not served.
    fn shape(&self, api_version: &str) -> Option<S>;

    /// Returns the object in another version; `None` if that is not served. The object names its own version.
    /// An error asks the caller for a conversion that cannot be done here.
    fn convert(&self, object: &Value, api_version: &str) -> Result<Option<Value>, NeedsConversion>;
}

/// A conversion that a step lacks: its caller converts the object, for example by a webhook, makes the result
/// known to [`Versions::convert`], and takes the step again.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("a {} is needed in version {api_version}", meta::text(object, "/kind"))]
pub struct NeedsConversion {
    pub object: Value,
    /// The version to convert to.
    pub api_version: String,
}

/// The reason why a configuration was not applied.
#[derive(Clone, Debug, PartialEq)]
pub enum Failure {
    /// The fields that it sets have other owners.
    Conflicts(Vec<Conflict>),
    /// An object does not have the shape of its schema.
    Shape(&'static str, ShapeErrors),
    /// Nothing has been decided yet.
    NeedsConversion(NeedsConversion),
}

impl From<NeedsConversion> for Failure {
    fn from(needed: NeedsConversion) -> Self {
        Self::NeedsConversion(needed)
    }
}

/// The rules for one kind in one version.
#[derive(Clone, Copy)]
pub struct Updater<'a, S> {
    pub versions: &'a dyn Versions<S>,
    pub shape: S,
    pub api_version: &'a str,
    /// The fields that the request cannot write, so that it does not make their sender an owner.
    pub reset: &'a FieldSet,
}

type Map = BTreeMap<ManagerId, Owned>;

impl<S: Shape> Updater<'_, S> {
    /// Updates the owners after `new` replaced `live`: added and changed fields belong to `manager`; others
    /// lose the changed and removed ones.
    pub fn update(
        &self,
        live: &Value,
        new: &Value,
        managers: &mut Managers,
        manager: &ManagerId,
    ) -> Result<(), Failure> {
        self.reconcile(managers);
        let changes = self.spread(live, new, managers, None, true)?;
        let had = managers.0.remove(manager);
        let (mut fields, time) = had.map_or((FieldSet::new(), None), |owned| (owned.fields, owned.time));
        fields.subtract(&changes.removed);
        fields.absorb(changes.modified);
        fields.absorb(changes.added);
        fields.subtract_recursively(self.reset);
        if !fields.is_empty() {
            let owned = Owned { fields, api_version: self.api_version.to_owned(), time };
            managers.0.insert(manager.clone(), owned);
        }
        Ok(())
    }

    /// Merges `config` into `live` and takes out what `manager` applied before and does not apply
    /// any more. `None` if that changes nothing.
    pub fn apply(
        &self,
        live: &Value,
        config: &Value,
        managers: &mut Managers,
        manager: &ManagerId,
        force: bool,
    ) -> Result<Option<Value>, Failure> {
        self.reconcile(managers);
        let with_config =
            |object: &Value| merge(self.shape, object, config).map_err(failed("failed to merge config"));
        let merged = with_config(live)?;
        let last = managers.0.remove(manager);
        let mut fields = field_set(self.shape, config);
        fields.subtract_recursively(self.reset);
        let time = last.as_ref().and_then(|owned| owned.time.clone());
        let owned = Owned { fields, api_version: self.api_version.to_owned(), time };
        managers.0.insert(manager.clone(), owned);
        let pruned = match &last {
            Some(last) => self.prune(&merged, &managers.0, manager, last)?,
            None => None,
        };
        let new = match pruned {
            // An emptied object is null now; if the configuration wants it empty, it has to become empty at
            // once and not only when it is applied the next time.
            Some(pruned) => with_config(&pruned)?,
            None => merged,
        };
        self.spread(live, &new, managers, Some(manager), force)?;
        Ok((!equal(live, &new)).then_some(new))
    }

    /// Types may have become atomic since the sets were written.
    fn reconcile(&self, managers: &mut Managers) {
        managers.0.retain(|_, owned| {
            // A version that is gone takes its managers along.
            let Some(shape) = self.shape_in(&owned.api_version) else { return false };
            if let Some(adapted) = reconcile(&owned.fields, shape) {
                owned.fields = adapted;
            }
            true
        });
    }

    /// Updates the managers other than `own` for the change from `live` to `new`.
    fn spread(
        &self,
        live: &Value,
        new: &Value,
        managers: &mut Managers,
        own: Option<&ManagerId>,
        force: bool,
    ) -> Result<Comparison, Failure> {
        let compared = |shape: S, live: &Value, new: &Value| {
            compare(shape, live, new)
                .map(|changes| changes.without(self.reset))
                .map_err(failed("failed to compare objects"))
        };
        let changes = compared(self.shape, live, new)?;
        // The comparisons by version; `None` for versions that are no longer served.
        let mut others: BTreeMap<String, Option<Comparison>> = BTreeMap::new();
        for (id, owned) in &managers.0 {
            let version = &owned.api_version;
            if Some(id) == own || version == self.api_version || others.contains_key(version) {
                continue;
            }
            let objects = (self.versions.convert(live, version)?, self.versions.convert(new, version)?);
            let changes = match (self.versions.shape(version), objects) {
                (Some(shape), (Some(live), Some(new))) => Some(compared(shape, &live, &new)?),
                _ => None,
            };
            others.insert(version.clone(), changes);
        }
        managers
            .0
            .retain(|id, owned| Some(id) == own || !matches!(others.get(&owned.api_version), Some(None)));
        let of = |owned: &Owned| others.get(&owned.api_version).and_then(Option::as_ref).unwrap_or(&changes);
        if !force {
            let conflicts = conflicts(managers, own, &of);
            if !conflicts.is_empty() {
                return Err(Failure::Conflicts(conflicts));
            }
        }
        managers.0.retain(|id, owned| {
            if Some(id) != own {
                let there = others.get(&owned.api_version).and_then(Option::as_ref).unwrap_or(&changes);
                for lost in [&there.modified, &there.added, &there.removed] {
                    owned.fields.subtract(lost);
                }
            }
            !owned.fields.is_empty()
        });
        Ok(changes)
    }

    fn shape_in(&self, api_version: &str) -> Option<S> {
        if api_version == self.api_version { Some(self.shape) } else { self.versions.shape(api_version) }
    }

    fn convert<'v>(
        &self,
        object: &'v Value,
        api_version: &str,
    ) -> Result<Option<Cow<'v, Value>>, NeedsConversion> {
        if meta::text(object, "/apiVersion") == api_version {
            return Ok(Some(Cow::Borrowed(object)));
        }
        Ok(self.versions.convert(object, api_version)?.map(Cow::Owned))
    }

    /// Returns `merged` without the fields that `manager` had applied last, unless it or another manager
    /// still owns them, or they were never its own. `None` if all stay.
    fn prune(
        &self,
        merged: &Value,
        managers: &Map,
        manager: &ManagerId,
        last: &Owned,
    ) -> Result<Option<Value>, NeedsConversion> {
        let unchanged = last.api_version == self.api_version
            && managers.get(manager).is_some_and(|now| last.fields.difference(&now.fields).is_empty());
        if last.fields.is_empty() || unchanged {
            return Ok(None);
        }
        let version = last.api_version.as_str();
        let Some(shape) = self.shape_in(version) else { return Ok(None) };
        let Some(whole) = self.convert(merged, version)? else { return Ok(None) };
        let named = last.fields.with_named_parents(Some(shape));
        let mut pruned = remove(shape, &whole, &named);
        pruned = self.add_back_owned(&whole, pruned, version, managers)?;
        let Some(pruned) = self.convert(&pruned, version)? else { return Ok(None) };
        let all = field_set(shape, &whole).with_named_parents(Some(shape));
        let kept = field_set(shape, &pruned).with_named_parents(Some(shape));
        // Fields without an owner, or of managers that update, were not applied and stay.
        let gone = all.difference(&kept).intersection(&named);
        let pruned = remove(shape, &whole, &gone);
        Ok(self.convert(&pruned, self.api_version)?.map(Cow::into_owned))
    }

    /// Restores removed fields that have owners, those of the removal's version first, as objects without
    /// required fields may not convert.
    fn add_back_owned(
        &self,
        whole: &Value,
        pruned: Value,
        first: &str,
        managers: &Map,
    ) -> Result<Value, NeedsConversion> {
        let mut owned: BTreeMap<&str, FieldSet> = BTreeMap::new();
        for manager in managers.values() {
            owned.entry(&manager.api_version).or_default().absorb(manager.fields.clone());
        }
        let mut order: Vec<&str> = owned.keys().copied().collect();
        order.sort_by_key(|version| *version != first);
        let mut pruned = pruned;
        for version in order {
            let Some(shape) = self.shape_in(version) else { continue };
            let Some(whole) = self.convert(whole, version)? else { continue };
            let Some(less) = self.convert(&pruned, version)? else { continue };
            let all = field_set(shape, &whole).with_named_parents(Some(shape));
            let kept = field_set(shape, &less).with_named_parents(Some(shape));
            let held = owned[version].with_named_parents(Some(shape));
            pruned = remove(shape, &whole, &all.difference(&kept.union(&held)));
        }
        Ok(pruned)
    }
}

fn conflicts<'c>(
    managers: &Managers,
    own: Option<&ManagerId>,
    of: &impl Fn(&Owned) -> &'c Comparison,
) -> Vec<Conflict> {
    let mut found = Vec::new();
    for (id, owned) in managers.0.iter().filter(|(id, _)| Some(*id) != own) {
        let changes = of(owned);
        let mut wanted = owned.fields.intersection(&changes.modified);
        wanted.absorb(owned.fields.intersection(&changes.added));
        let conflict = |field| Conflict { manager: id.clone(), field };
        found.extend(wanted.paths().into_iter().map(conflict));
    }
    found
}

fn failed(what: &'static str) -> impl Fn(ShapeErrors) -> Failure {
    move |errors| Failure::Shape(what, errors)
}
