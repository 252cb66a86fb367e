//! The managed fields of one request: names, times, annotations and history around the rules.

use std::sync::LazyLock;

use jiff::Timestamp;
use serde_json::{Value, json};

use super::conflict::{self, Conflict};
use super::limits::{ANNOTATIONS, MANAGER_NAME, SUBRESOURCE_NAME};
use super::managers::{ManagerId, Managers, Operation, Owned, is_reset};
use super::path::Path;
use super::set::FieldSet;
use super::updater::{Failure, NeedsConversion, Updater, Versions};
use super::validate::validate;
use super::value;
use super::walk::{compare, field_set};
use apiserver_meta::time;
use apiserver_schema::error::{ApiError, FieldError, FieldReason};
use apiserver_schema::meta;
use apiserver_schema::schema::shape::Shape;

/// The annotation in which `kubectl apply` stores the configuration that it applied last.
pub const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";
/// Owner of what an object without managers already has when it is first applied to.
pub const BEFORE_FIRST_APPLY: &str = "before-first-apply";
/// The manager whose applied configuration stands in for the annotation.
const KUBECTL: &str = "kubectl";

/// The fields that are never owned: they belong to the server, or identify the object.
static STRIPPED: LazyLock<FieldSet> = LazyLock::new(|| {
    FieldSet::of_fields(&[
        &["apiVersion"],
        &["kind"],
        &["metadata"],
        &["metadata", "name"],
        &["metadata", "namespace"],
        &["metadata", "creationTimestamp"],
        &["metadata", "selfLink"],
        &["metadata", "uid"],
        &["metadata", "clusterName"],
        &["metadata", "generation"],
        &["metadata", "managedFields"],
        &["metadata", "resourceVersion"],
    ])
});

/// Keeps `metadata.managedFields` for requests of one kind in one version.
#[derive(Clone, Copy)]
pub struct FieldManager<'a, S> {
    pub versions: &'a dyn Versions<S>,
    pub shape: S,
    /// `apps/v1`
    pub api_version: &'a str,
    /// `Deployment`
    pub kind: &'a str,
    /// Empty for the object itself.
    pub subresource: &'a str,
    /// Fields that the request cannot write: `status`, or for the subresource `status` the rest.
    pub reset: &'a FieldSet,
    pub now: Timestamp,
}

/// The reason why [`FieldManager::apply`] returned no object.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum Incomplete {
    #[error(transparent)]
    Refused(#[from] ApiError),
    #[error(transparent)]
    NeedsConversion(#[from] NeedsConversion),
}

impl<S: Shape> FieldManager<'_, S> {
    /// Fills in the managed fields of `new`, which takes the place of `live` (`None`: it is
    /// created) by a request of `manager` that does not apply. If the objects cannot be compared,
    /// it has none. An error leaves `new` as it was.
    pub fn update(
        &self,
        live: Option<&Value>,
        new: &mut Value,
        manager: &str,
    ) -> Result<(), NeedsConversion> {
        let managers = self.decode(live, new);
        let sent = new.pointer_mut("/metadata/managedFields").map(Value::take);
        meta::unset(new, "managedFields");
        // An object that was never tracked stays so until a client applies.
        let untracked = managers.0.is_empty() && live.is_some_and(|live| !meta::uid(live).is_empty());
        let updated = if untracked {
            Ok(managers)
        } else {
            let empty = json!({});
            self.track(live.unwrap_or(&empty), new, managers, manager)
        };
        match updated {
            Ok(managers) => managers.write(new),
            Err(Failure::NeedsConversion(needed)) => {
                if let Some(sent) = sent {
                    meta::set(new, "managedFields", sent);
                }
                return Err(needed);
            }
            // The managed fields are gone already, because they would be wrong.
            Err(Failure::Conflicts(_) | Failure::Shape(..)) => {}
        }
        Ok(())
    }

    /// The managers before the change. Clients may set them, clumsily or on purpose.
    fn decode(&self, live: Option<&Value>, new: &Value) -> Managers {
        let of_live = || live.and_then(|live| Managers::of(live).ok()).unwrap_or_default();
        if !self.subresource.is_empty() {
            return of_live();
        }
        if is_reset(new) {
            return Managers::default();
        }
        match Managers::of(new) {
            Ok(managers) if !managers.0.is_empty() => managers,
            _ => of_live(),
        }
    }

    /// The managers after `manager` has changed `live` into `new`.
    fn track(
        &self,
        live: &Value,
        new: &Value,
        mut managers: Managers,
        manager: &str,
    ) -> Result<Managers, Failure> {
        // The change is recorded under another manager first, to see whether there is one.
        let current = ManagerId::new("\0current", Operation::Update, self.api_version, self.subresource);
        self.updater().update(live, new, &mut managers, &current)?;
        self.strip(&mut managers, &current);
        if let Some(changed) = managers.0.remove(&current) {
            let id = ManagerId::new(manager, Operation::Update, self.api_version, self.subresource);
            let mut fields = changed.fields;
            fields.absorb(managers.0.remove(&id).map(|previous| previous.fields).unwrap_or_default());
            let time = Some(time::rfc3339(self.now));
            managers.0.insert(id, Owned { fields, api_version: self.api_version.to_owned(), time });
        }
        managers.cap();
        Ok(managers)
    }

    /// Applies `config` to `live` (`None`: the object does not exist yet). Returns the object with its
    /// managed fields. Errors: 400 for a configuration of another kind, 409 for conflicts, 500 for one that
    /// does not fit the schema, as in Kubernetes.
    pub fn apply(
        &self,
        live: Option<&Value>,
        config: &Value,
        manager: &str,
        force: bool,
    ) -> Result<Value, Incomplete> {
        self.check(config)?;
        let empty = json!({"apiVersion": self.api_version, "kind": self.kind});
        let live = live.unwrap_or(&empty);
        let mut managers = Managers::of(live)
            .map_err(|error| internal(format!("failed to decode managed fields: {error}")))?;
        if managers.0.is_empty() {
            managers = self
                .track(&json!({}), live, managers, BEFORE_FIRST_APPLY)
                .map_err(|failure| refused(failure, "failed to create manager for existing fields"))?;
        }
        let applied = match self.attempt(live, config, &managers, manager, force) {
            Err(Failure::Conflicts(conflicts)) if manager == KUBECTL => match self.allowed(live) {
                Some(allowed) => {
                    let others = |conflict: &Conflict| !allowed.contains(&conflict.field);
                    let left: Vec<Conflict> = conflicts.into_iter().filter(others).collect();
                    if left.is_empty() {
                        self.attempt(live, config, &managers, manager, true)
                    } else {
                        Err(Failure::Conflicts(left))
                    }
                }
                None => Err(Failure::Conflicts(conflicts)),
            },
            other => other,
        };
        let (mut object, managers) = applied.map_err(|failure| refused(failure, "failed to apply"))?;
        managers.write(&mut object);
        if manager == KUBECTL && !meta::annotation(&object, LAST_APPLIED).unwrap_or_default().is_empty() {
            set_last_applied(&mut object, config);
        }
        Ok(object)
    }

    fn attempt(
        &self,
        live: &Value,
        config: &Value,
        managers: &Managers,
        manager: &str,
        force: bool,
    ) -> Result<(Value, Managers), Failure> {
        let id = ManagerId::new(manager, Operation::Apply, self.api_version, self.subresource);
        let mut managers = managers.clone();
        let object = self.updater().apply(live, config, &mut managers, &id, force)?;
        self.strip(&mut managers, &id);
        if object.is_some()
            && let Some(owned) = managers.0.get_mut(&id)
        {
            owned.time = Some(time::rfc3339(self.now));
        }
        Ok((object.unwrap_or_else(|| live.clone()), managers))
    }

    /// Checks that the configuration is of this kind and has its shape.
    fn check(&self, config: &Value) -> Result<(), ApiError> {
        let (version, kind) = (meta::text(config, "/apiVersion"), meta::text(config, "/kind"));
        if version != self.api_version || kind != self.kind {
            return Err(ApiError::bad_request(format!("invalid object type: {}", kind_text(version, kind))));
        }
        if meta::at(config, "/metadata/managedFields").is_some_and(|fields| !fields.is_null()) {
            return Err(ApiError::bad_request("metadata.managedFields must be nil"));
        }
        validate(self.shape, config).map_err(|errors| {
            internal(format!(
                "failed to create typed patch object ({}/{}; {}): {errors}",
                meta::namespace(config),
                meta::name(config),
                kind_text(version, kind)
            ))
        })
    }

    /// Returns the fields that `kubectl apply` applied last on the client's side and that nobody has changed
    /// since: server-side apply by kubectl may take them over without force.
    fn allowed(&self, live: &Value) -> Option<FieldSet> {
        let last: Value = serde_json::from_str(meta::annotation(live, LAST_APPLIED)?).ok()?;
        if meta::text(&last, "/apiVersion") != self.api_version {
            return None;
        }
        validate(self.shape, live).ok()?;
        validate(self.shape, &last).ok()?;
        let changes = compare(self.shape, &last, live).ok()?;
        let set = field_set(self.shape, &last);
        Some(set.difference(&changes.modified).difference(&changes.added).difference(&changes.removed))
    }

    fn updater(&self) -> Updater<'_, S> {
        Updater {
            versions: self.versions,
            shape: self.shape,
            api_version: self.api_version,
            reset: self.reset,
        }
    }

    fn strip(&self, managers: &mut Managers, id: &ManagerId) {
        let Some(owned) = managers.0.get_mut(id) else { return };
        owned.fields.subtract(&STRIPPED);
        if owned.fields.is_empty() {
            managers.0.remove(id);
        }
    }
}

/// `apps/v1, Kind=Deployment`; core kinds begin with a slash.
fn kind_text(api_version: &str, kind: &str) -> String {
    let slash = if api_version.contains('/') { "" } else { "/" };
    format!("{slash}{api_version}, Kind={kind}")
}

fn refused(failure: Failure, attempt: &str) -> Incomplete {
    let error = match failure {
        Failure::NeedsConversion(needed) => return needed.into(),
        Failure::Conflicts(conflicts) => conflict::refusal(&conflicts),
        Failure::Shape(what, errors) if attempt.ends_with("apply") => internal(format!("{what}: {errors}")),
        Failure::Shape(what, errors) => internal(format!("{attempt}: {what}: {errors}")),
    };
    error.into()
}

/// 500 without a reason: what Kubernetes answers where it had no other error in mind.
fn internal(message: String) -> ApiError {
    ApiError::new(500, "", message)
}

/// Keeps the annotation in step, for clients that still go by it.
fn set_last_applied(object: &mut Value, config: &Value) {
    let mut config = config.clone();
    if let Some(Value::Object(annotations)) = config.pointer_mut("/metadata/annotations") {
        annotations.remove(LAST_APPLIED);
    }
    let text = format!("{}\n", value::encode(&config));
    let Some(Value::Object(annotations)) = object.pointer_mut("/metadata/annotations") else { return };
    annotations.insert(LAST_APPLIED.to_owned(), text.into());
    let size: usize =
        annotations.iter().map(|(key, value)| key.len() + value.as_str().map_or(0, str::len)).sum();
    if size > ANNOTATIONS {
        annotations.remove(LAST_APPLIED);
    }
}

/// The name under which a client that gives none is known: what its user agent begins with.
pub fn manager_of_user_agent(user_agent: &str) -> String {
    let mut name = String::new();
    for character in user_agent.split('/').next().unwrap_or_default().chars() {
        if is_unprintable(character) {
            continue;
        }
        if name.len() + character.len_utf8() > MANAGER_NAME {
            break;
        }
        name.push(character);
    }
    name
}

/// Returns `true` for a character that Go's `unicode.IsPrint` refuses, except for unassigned ones.
fn is_unprintable(character: char) -> bool {
    character != ' ' && (character.is_control() || character.is_whitespace() || is_format(character))
}

/// Characters without a shape: soft hyphens, joiners, marks of direction, private use.
fn is_format(character: char) -> bool {
    matches!(u32::from(character),
        0xad | 0x600..=0x605 | 0x61c | 0x6dd | 0x70f | 0x180e | 0x200b..=0x200f | 0x202a..=0x202e
        | 0x2060..=0x206f | 0xe000..=0xf8ff | 0xfeff | 0xfff9..=0xfffb | 0xe0000..=0xe007f
        | 0xf0000..=0x10ffff)
}

/// Returns the faults of a manager's name: too long, or with unprintable characters. `field` is the path of
/// the name.
pub fn check_manager_name(field: &str, name: &str) -> Vec<FieldError> {
    let mut errors = Vec::new();
    if name.len() > MANAGER_NAME {
        errors.push(too_long(field, MANAGER_NAME));
    }
    for (at, character) in name.char_indices().filter(|(_, character)| is_unprintable(*character)) {
        let detail = format!("invalid character U+{:04X} (at position {at})", u32::from(character));
        errors.push(FieldError::invalid(field, &name.into(), &detail));
    }
    errors
}

/// Returns the faults of the names in an object's entries. Entries that cannot be read at all were replaced
/// before.
pub fn check_entries(object: &Value) -> Vec<FieldError> {
    let mut errors = Vec::new();
    for (at, entry) in meta::list(object, "/metadata/managedFields").iter().enumerate() {
        let text = |field: &str| entry.get(field).and_then(Value::as_str).unwrap_or_default();
        let field = format!("metadata.managedFields[{at}]");
        errors.extend(check_manager_name(&format!("{field}.manager"), text("manager")));
        if text("subresource").len() > SUBRESOURCE_NAME {
            errors.push(too_long(&format!("{field}.subresource"), SUBRESOURCE_NAME));
        }
    }
    errors
}

fn too_long(field: &str, limit: usize) -> FieldError {
    let message = format!("Too long: may not be more than {limit} bytes");
    FieldError { field: field.to_owned(), reason: FieldReason::TooLong, message }
}

/// The path to a field behind names.
pub fn field_path(names: &[&str]) -> Path {
    names.iter().map(|name| super::path::PathElement::field(name)).collect()
}
