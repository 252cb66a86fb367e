//! A definition as it is served: the kinds that it adds to the registry. Its schemas are the
//! largest part of it and are read when one is first needed.

use std::cmp::Ordering;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::{Arc, OnceLock};

use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};

use crate::behaviour::Written;
use apiserver_cel::rules::Rules;
use apiserver_schema::error::{FieldError, FieldReason};
use apiserver_schema::meta;
use apiserver_schema::numbers::normalize_numbers;
use apiserver_schema::validation::{metadata, names};
use apiserver_structural::{Structural, coerce};

/// The encoded definition, JSON; shared with the cache that holds it.
pub type Source = Arc<dyn AsRef<[u8]> + Send + Sync>;

/// The conversion of objects between versions.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum Conversion {
    /// Only `apiVersion` differs.
    #[default]
    None,
    /// A webhook converts; `spec.conversion.webhook`.
    Webhook(Value),
}

/// A definition whose names were accepted.
pub struct Definition {
    pub name: String,
    pub uid: String,
    pub group: String,
    pub namespaced: bool,
    /// `status.acceptedNames`
    pub names: Value,
    /// The version that objects are stored in.
    pub storage: String,
    pub conversion: Conversion,
    /// Objects may be created, read and changed.
    pub established: bool,
    /// All of its names are its own.
    pub accepted: bool,
    /// It waits for its objects to go; none may be created.
    pub terminating: bool,
    /// Changes whenever something does that objects are served by.
    pub hash: u64,
    /// Like `hash`, but the same while the definition is being deleted: watchers still receive the events of
    /// objects that are deleted with it.
    pub shape: u64,
    versions: Vec<Version>,
    source: Source,
}

struct Version {
    name: String,
    served: bool,
    /// The version without its schema.
    rest: Value,
    schema: OnceLock<Structural>,
    rules: OnceLock<Option<Rules>>,
}

#[derive(Deserialize)]
struct Raw<'a> {
    metadata: Value,
    #[serde(borrow)]
    spec: &'a RawValue,
    #[serde(default)]
    status: Value,
}

#[derive(Deserialize)]
struct RawSpec<'a> {
    group: String,
    scope: String,
    #[serde(borrow)]
    versions: Vec<&'a RawValue>,
    #[serde(default)]
    conversion: Value,
}

/// A version without its schema, which is the largest part of it.
#[derive(Deserialize, serde::Serialize)]
#[serde(rename_all = "camelCase")]
struct RawVersion {
    name: String,
    #[serde(default)]
    served: bool,
    #[serde(default)]
    storage: bool,
    #[serde(default)]
    deprecated: bool,
    #[serde(default)]
    deprecation_warning: Value,
    #[serde(default)]
    subresources: Value,
    #[serde(default)]
    additional_printer_columns: Value,
    #[serde(default)]
    selectable_fields: Value,
}

#[derive(Deserialize)]
struct RawSchema<'a> {
    name: String,
    #[serde(borrow, default)]
    schema: Option<&'a RawValue>,
}

impl Definition {
    /// Reads a CustomResourceDefinition; returns `None` if `source` is not one.
    pub fn read(source: Source) -> Option<Self> {
        let bytes: &[u8] = (*source).as_ref();
        let raw: Raw<'_> = serde_json::from_slice(bytes).ok()?;
        let spec: RawSpec<'_> = serde_json::from_str(raw.spec.get()).ok()?;
        let object = json!({"metadata": raw.metadata, "status": raw.status});
        let mut versions = Vec::new();
        let mut storage = String::new();
        for version in &spec.versions {
            let version: RawVersion = serde_json::from_str(version.get()).ok()?;
            if version.storage {
                storage.clone_from(&version.name);
            }
            versions.push(Version {
                name: version.name.clone(),
                served: version.served,
                rest: serde_json::to_value(&version).ok()?,
                schema: OnceLock::new(),
                rules: OnceLock::new(),
            });
        }
        let names = object["status"]["acceptedNames"].clone();
        let terminating = meta::deletion_timestamp(&object).is_some();
        let established = meta::condition_is_true(&object, "Established");
        let mut hasher = DefaultHasher::new();
        (raw.spec.get(), names.to_string(), established, meta::uid(&object)).hash(&mut hasher);
        let shape = hasher.finish();
        terminating.hash(&mut hasher);
        let webhook = spec.conversion["strategy"] == "Webhook";
        Some(Self {
            name: meta::name(&object).to_owned(),
            uid: meta::uid(&object).to_owned(),
            group: spec.group,
            namespaced: spec.scope == "Namespaced",
            names,
            storage,
            conversion: if webhook {
                Conversion::Webhook(spec.conversion["webhook"].clone())
            } else {
                Conversion::None
            },
            established,
            accepted: meta::condition_is_true(&object, "NamesAccepted"),
            terminating,
            hash: hasher.finish(),
            shape,
            versions,
            source,
        })
    }

    /// Returns `listKind`, `""` if it is not set.
    pub fn list_kind(&self) -> &str {
        self.text("listKind")
    }

    pub(crate) fn text(&self, field: &str) -> &str {
        self.names.get(field).and_then(Value::as_str).unwrap_or_default()
    }

    /// `Widget`
    pub fn kind(&self) -> &str {
        self.text("kind")
    }

    /// `widgets`
    pub fn plural(&self) -> &str {
        self.text("plural")
    }

    /// `/registry/example.com/widgets`
    pub fn storage_prefix(&self) -> String {
        format!("/registry/{}/{}", self.group, self.plural())
    }

    /// The versions that are served, the preferred one first; none before the definition is established.
    pub(crate) fn served(self: &Arc<Self>) -> Vec<Custom> {
        let served = |i: &usize| self.established && !self.plural().is_empty() && self.versions[*i].served;
        let mut places: Vec<usize> = (0..self.versions.len()).filter(served).collect();
        places.sort_by(|&a, &b| version_order(&self.versions[a].name, &self.versions[b].name));
        places.into_iter().map(|version| Custom { definition: Arc::clone(self), version }).collect()
    }

    /// The version that is stored, served or not.
    pub(crate) fn stored_version(self: &Arc<Self>) -> Option<Custom> {
        let version = self.versions.iter().position(|v| v.name == self.storage)?;
        Some(Custom { definition: Arc::clone(self), version })
    }

    /// `openAPIV3Schema` of a version as it was written; `Null` if it has none.
    pub fn raw_schema(&self, version: &str) -> Value {
        let read = || {
            let raw: Raw<'_> = serde_json::from_slice((*self.source).as_ref()).ok()?;
            let spec: RawSpec<'_> = serde_json::from_str(raw.spec.get()).ok()?;
            let versions =
                spec.versions.iter().filter_map(|v| serde_json::from_str::<RawSchema<'_>>(v.get()).ok());
            let found = versions.into_iter().find(|v| v.name == version)?;
            let mut schema: Value = serde_json::from_str(found.schema?.get()).ok()?;
            Some(schema["openAPIV3Schema"].take())
        };
        read().unwrap_or_default()
    }

    /// Every version that is served.
    pub(super) fn all_versions(self: &Arc<Self>) -> Vec<Custom> {
        let served = (0..self.versions.len()).filter(|&version| self.versions[version].served);
        served.map(|version| Custom { definition: Arc::clone(self), version }).collect()
    }

    fn schema(&self, version: usize) -> &Structural {
        let version = &self.versions[version];
        version.schema.get_or_init(|| Structural::compile(&self.raw_schema(&version.name)))
    }
}

/// One version of a definition.
pub struct Custom {
    pub definition: Arc<Definition>,
    version: usize,
}

impl Custom {
    /// Returns the schema of its objects.
    pub fn schema(&self) -> &Structural {
        self.definition.schema(self.version)
    }

    pub(crate) fn rest(&self) -> &Value {
        &self.definition.versions[self.version].rest
    }

    /// `v1`
    pub fn version(&self) -> &str {
        &self.definition.versions[self.version].name
    }

    /// `example.com/v1`
    pub fn api_version(&self) -> String {
        format!("{}/{}", self.definition.group, self.version())
    }

    /// Returns `true` if objects are stored in this version.
    pub fn is_stored(&self) -> bool {
        self.version() == self.definition.storage
    }

    /// Returns the warning for clients that use a deprecated version.
    pub fn deprecation(&self) -> Option<String> {
        if self.rest()["deprecated"] != true {
            return None;
        }
        if let Some(text) = self.rest()["deprecationWarning"].as_str() {
            return Some(text.to_owned());
        }
        let definition = &self.definition;
        let mut text = format!("{} {} is deprecated", self.api_version(), definition.kind());
        let newer = definition.versions.iter().filter(|v| v.served && v.rest["deprecated"] != true);
        let newer = newer.filter(|v| version_order(&v.name, self.version()) == Ordering::Less);
        if let Some(best) = newer.min_by(|a, b| version_order(&a.name, &b.name)) {
            text.push_str(&format!("; use {}/{} {}", definition.group, best.name, definition.kind()));
        }
        Some(text)
    }

    /// Returns the webhook (`spec.conversion.webhook`) that converts an object of `api_version` to this
    /// version, or `None` if only the apiVersion differs.
    pub fn webhook(&self, api_version: &str) -> Option<&Value> {
        match &self.definition.conversion {
            Conversion::Webhook(webhook) if api_version != self.api_version() => Some(webhook),
            _ => None,
        }
    }

    /// Returns the kind in any version of the definition, served or not, by `GROUP/VERSION`.
    pub fn in_version(&self, api_version: &str) -> Option<Self> {
        let version = api_version.strip_prefix(self.definition.group.as_str())?.strip_prefix('/')?;
        let version = self.definition.versions.iter().position(|v| v.name == version)?;
        Some(Self { definition: Arc::clone(&self.definition), version })
    }

    /// The kind in the version that is stored.
    pub fn stored(&self) -> Option<Self> {
        self.in_version(&format!("{}/{}", self.definition.group, self.definition.storage))
    }

    /// Makes an object of another version, or one from storage, one of this version: unknown fields are
    /// pruned, and defaults are filled in. If a webhook converts, an object of another version stays one, for
    /// the webhook to convert.
    pub fn adopt(&self, object: &mut Value) {
        if self.webhook(meta::text(object, "/apiVersion")).is_some() {
            if let Some(own) = self.in_version(meta::text(object, "/apiVersion")) {
                own.adopt(object);
            }
            return;
        }
        let Some(map) = object.as_object_mut() else { return };
        map.insert("apiVersion".to_owned(), self.api_version().into());
        let schema = self.schema();
        // An object stored under weaker checks is served as far as it can be read.
        let _ = coerce(schema, object, true, true);
        schema.prune(object);
        schema.prune_nulls(object);
        schema.apply_defaults(object);
        normalize_numbers(object);
        if meta::generation(object) == 0 {
            meta::set(object, "generation", 1);
        }
    }

    /// The place of a served version, by `GROUP/VERSION`.
    fn sibling(&self, api_version: &str) -> Option<usize> {
        let version = api_version.strip_prefix(self.definition.group.as_str())?.strip_prefix('/')?;
        self.definition.versions.iter().position(|v| v.served && v.name == version)
    }

    /// The schema of another version of the same kind.
    pub(super) fn schema_of(&self, api_version: &str) -> Option<&Structural> {
        Some(self.definition.schema(self.sibling(api_version)?))
    }

    /// An object in another version; `None` where that takes a webhook.
    pub(super) fn converted(&self, object: &Value, api_version: &str) -> Option<Value> {
        let version = self.sibling(api_version)?;
        let mut object = object.clone();
        if object["apiVersion"] != api_version {
            let target = Custom { definition: Arc::clone(&self.definition), version };
            if target.webhook(meta::text(&object, "/apiVersion")).is_some() {
                return None;
            }
            target.adopt(&mut object);
        }
        Some(object)
    }

    /// Makes an object one to be stored, by the stored version's schema.
    pub fn to_stored(&self, object: &mut Value) {
        let definition = &self.definition;
        if self.is_stored() || !object.is_object() {
            return;
        }
        object["apiVersion"] = format!("{}/{}", definition.group, definition.storage).into();
        if let Some(stored) = definition.versions.iter().position(|v| v.name == definition.storage) {
            let schema = definition.schema(stored);
            schema.prune(object);
            schema.prune_nulls(object);
        }
    }

    /// Errors of a new object.
    pub fn validate(&self, object: &Value) -> Vec<FieldError> {
        let schema = self.schema();
        let mut errors = metadata::validate(object, names::dns_subdomain);
        errors.extend(schema.validate(object));
        errors.extend(self.scale_errors(object, Written::Main));
        errors.extend(schema.embedded_errors(object, false));
        errors.extend(schema.list_errors(object));
        self.run_rules(object, None, &mut errors);
        errors
    }

    /// Errors of the schema's rules, which are made for objects that are otherwise sound.
    fn run_rules(&self, object: &Value, old: Option<&Value>, errors: &mut Vec<FieldError>) {
        let rules =
            self.definition.versions[self.version].rules.get_or_init(|| Rules::compile(self.schema()));
        let Some(rules) = rules else { return };
        let blocking = |error: &FieldError| {
            matches!(
                error.reason,
                FieldReason::NotSupported
                    | FieldReason::Required
                    | FieldReason::TooLong
                    | FieldReason::TooMany
                    | FieldReason::TypeInvalid
            )
        };
        if errors.iter().any(blocking) {
            let detail = "some validation rules were not checked because the object was invalid; correct the existing errors to complete validation";
            errors.push(FieldError::invalid("<nil>", &Value::Null, detail));
            return;
        }
        errors.extend(rules.errors(self.schema(), object, old));
    }

    /// Returns the errors of a changed object; unchanged faults are tolerated.
    pub fn validate_change(&self, new: &Value, old: &Value, written: Written) -> Vec<FieldError> {
        let schema = self.schema();
        let mut errors = metadata::validate(new, names::dns_subdomain);
        if written == Written::Status {
            if let (Some(schema), Some(status)) = (schema.properties.get("status"), new.get("status")) {
                errors.extend(schema.validate_change(status, &old["status"]).into_iter().map(below_status));
            }
        } else {
            errors.extend(schema.validate_change(new, old));
            errors.extend(schema.embedded_errors(new, false));
        }
        errors.extend(self.scale_errors(new, written));
        let lists = schema.list_errors(new);
        if !lists.is_empty() && schema.list_errors(old).is_empty() {
            errors.extend(lists);
        }
        self.run_rules(new, Some(old), &mut errors);
        errors
    }
}

/// Errors of the status carry its name.
fn below_status(mut error: FieldError) -> FieldError {
    if error.field != "<nil>" {
        error.field =
            if error.field.is_empty() { "status".to_owned() } else { format!("status.{}", error.field) };
    }
    error
}

/// The order of preference: stable versions before betas before alphas, the newest first, and then
/// what has no such name.
pub fn version_order(a: &str, b: &str) -> Ordering {
    match (parse_version(a), parse_version(b)) {
        (Some(x), Some(y)) => y.cmp(&x),
        (Some(_), None) => Ordering::Less,
        (None, Some(_)) => Ordering::Greater,
        (None, None) => a.cmp(b),
    }
}

/// Stability, major and minor number.
fn parse_version(text: &str) -> Option<(u8, u64, u64)> {
    let rest = text.strip_prefix('v')?;
    let digits = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
    let major = rest[..digits].parse().ok()?;
    let (stability, minor) = match &rest[digits..] {
        "" => (2, "0"),
        rest => rest
            .strip_prefix("beta")
            .map(|m| (1, m))
            .or_else(|| rest.strip_prefix("alpha").map(|m| (0, m)))?,
    };
    Some((stability, major, minor.parse().ok()?))
}
