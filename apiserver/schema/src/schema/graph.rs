//! The type graph. The statics are arrays of integers in read-only memory: nothing is parsed,
//! relocated or allocated at start.

use serde_json::Value;

/// The type of a field, an item of a list or a value of a map.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Type {
    String,
    /// Base64 text.
    Bytes,
    Int32,
    Int64,
    Number,
    Bool,
    IntOrString,
    /// `resource.Quantity`.
    Quantity,
    /// RFC 3339, whole seconds.
    Time,
    /// RFC 3339 with microseconds.
    MicroTime,
    /// Any JSON value; its contents are not checked.
    Any,
    /// A definition; see [`Type::object`].
    Object(u16),
    /// A list; see [`Type::element`].
    List(u16),
    /// A map from strings; see [`Type::element`].
    Map(u16),
}

impl Type {
    /// The definition behind an object type.
    pub fn object(self) -> Option<Definition> {
        match self {
            Self::Object(index) => Some(Definition(&DEFINITIONS[usize::from(index)])),
            _ => None,
        }
    }

    /// The type of a list's items or a map's values.
    pub fn element(self) -> Option<Type> {
        match self {
            Self::List(index) | Self::Map(index) => Some(TYPES[usize::from(index)]),
            _ => None,
        }
    }
}

/// `x-kubernetes-list-type`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ListType {
    #[default]
    Unspecified,
    Atomic,
    Set,
    Map,
}

struct RawDefinition {
    at: u32,
    len: u16,
    start: usize,
    count: usize,
    atomic: bool,
}

struct RawField {
    at: u32,
    len: u16,
    ty: u16,
    merge: u16,
    required: bool,
    default: u8,
}

struct RawMerge {
    key_at: u32,
    key_len: u16,
    merge: bool,
    replace: bool,
    retain_keys: bool,
    list: ListType,
    atomic: bool,
    granular: bool,
    keys_start: usize,
    keys_count: usize,
}

include!(concat!(env!("OUT_DIR"), "/graph.rs"));

fn name(at: u32, len: u16) -> &'static str {
    let start = at as usize;
    &NAMES[start..start + usize::from(len)]
}

/// The definition of this name, if it is an object with fields.
pub fn definition(name: &str) -> Option<Definition> {
    let found = DEFINITIONS.binary_search_by(|raw| Definition(raw).name().cmp(name)).ok()?;
    Some(Definition(&DEFINITIONS[found]))
}

/// All definitions, by name.
pub fn definitions() -> impl Iterator<Item = Definition> {
    DEFINITIONS.iter().map(Definition)
}

/// An object type with named fields.
#[derive(Clone, Copy)]
pub struct Definition(&'static RawDefinition);

impl Definition {
    /// `io.k8s.api.core.v1.PodSpec`
    pub fn name(self) -> &'static str {
        name(self.0.at, self.0.len)
    }

    /// `PodSpec`
    pub fn short_name(self) -> &'static str {
        self.name().rsplit('.').next().unwrap_or_default()
    }

    /// `v1.PodSpec`, as Go spells the type in its errors.
    pub fn go_name(self) -> &'static str {
        let name = self.name();
        let short = self.short_name().len();
        let package = name[..name.len() - short].trim_end_matches('.').rfind('.').map_or(0, |dot| dot + 1);
        &name[package..]
    }

    /// Its place among [`definitions`].
    pub fn index(self) -> usize {
        let bytes = std::ptr::from_ref(self.0) as usize - DEFINITIONS.as_ptr() as usize;
        bytes / size_of::<RawDefinition>()
    }

    /// Server-side apply treats the whole object as one value.
    pub fn atomic(self) -> bool {
        self.0.atomic
    }

    /// The field of this name in JSON.
    pub fn field(self, field: &str) -> Option<Field> {
        let raws = self.raws();
        let found = raws.binary_search_by(|raw| name(raw.at, raw.len).cmp(field)).ok()?;
        Some(Field(&raws[found]))
    }

    /// All fields, by name.
    pub fn fields(self) -> impl Iterator<Item = Field> {
        self.raws().iter().map(Field)
    }

    fn raws(self) -> &'static [RawField] {
        &FIELDS[self.0.start..self.0.start + self.0.count]
    }
}

/// A field of a definition.
#[derive(Clone, Copy)]
pub struct Field(&'static RawField);

impl Field {
    /// Its name in JSON.
    pub fn name(self) -> &'static str {
        name(self.0.at, self.0.len)
    }

    /// Its type.
    pub fn ty(self) -> Type {
        TYPES[usize::from(self.0.ty)]
    }

    /// Listed among the required fields in OpenAPI.
    pub fn required(self) -> bool {
        self.0.required
    }

    /// Returns the default that OpenAPI publishes, if it is a scalar.
    pub fn default(self) -> Option<Value> {
        serde_json::from_str(DEFAULTS[usize::from(self.0.default)]).ok()
    }

    /// Returns how patches and apply merge the field.
    pub fn merge(self) -> Merge {
        Merge(&MERGES[usize::from(self.0.merge)])
    }
}

/// Merge semantics of a field.
#[derive(Clone, Copy)]
pub struct Merge(&'static RawMerge);

impl Merge {
    /// A strategic merge patch merges the list; otherwise it replaces it.
    pub fn patch_merge(self) -> bool {
        self.0.merge
    }

    /// A strategic merge patch replaces the object instead of merging it.
    pub fn patch_replace(self) -> bool {
        self.0.replace
    }

    /// `patchStrategy` names `retainKeys`.
    pub fn retain_keys(self) -> bool {
        self.0.retain_keys
    }

    /// The field that identifies an item in a strategic merge patch; `None` for scalars.
    pub fn patch_key(self) -> Option<&'static str> {
        (self.0.key_len > 0).then(|| name(self.0.key_at, self.0.key_len))
    }

    /// `x-kubernetes-list-type`.
    pub fn list_type(self) -> ListType {
        self.0.list
    }

    /// `x-kubernetes-map-type: atomic` on the field.
    pub fn atomic(self) -> bool {
        self.0.atomic
    }

    /// Returns `true` for `x-kubernetes-map-type: granular` on the field, regardless of its type.
    pub fn granular(self) -> bool {
        self.0.granular
    }

    /// `x-kubernetes-list-map-keys`.
    pub fn list_map_keys(self) -> impl Iterator<Item = &'static str> {
        let keys = &MAP_KEYS[self.0.keys_start..self.0.keys_start + self.0.keys_count];
        keys.iter().map(|&(at, len)| name(at, len))
    }
}
