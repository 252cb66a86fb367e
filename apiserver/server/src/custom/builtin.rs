//! The OpenAPI documents of the built-in kinds that are served. Those of the usual cases were made at build
//! time: everything, and the default set; others are cut out of them on request.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::{Mutex, OnceLock, PoisonError};

use apiserver_kinds::builtin;
use apiserver_kinds::enablement::{Stability, stability};
use apiserver_registry::Registry;
use apiserver_schema::error::ApiError;
use apiserver_schema::openapi;
use apiserver_schema::openapi::{message, reduce};
use bytes::Bytes;

use super::documents::{Packed, pack, unfit, unpack, zip};

/// The variant of the v2 document to serve.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Extent {
    All,
    Default,
    Other,
}

/// The documents of the built-in kinds.
pub(super) struct Builtin {
    /// Group, version and plural of kinds that are not served.
    gone: BTreeSet<(String, String, String)>,
    extent: Extent,
    v2: OnceLock<Packed>,
    v2_protobuf: OnceLock<Packed>,
    /// The documents of versions of which only some kinds are served.
    v3: Mutex<BTreeMap<String, Packed>>,
}

impl Builtin {
    pub(super) fn of(served: &Registry) -> Self {
        let all = builtin::paths();
        let is_served = |path: &(String, String, String)| served.lookup(&path.0, &path.1, &path.2).is_some();
        let gone: BTreeSet<_> = all.iter().filter(|path| !is_served(path)).cloned().collect();
        let early = |version: &str| stability(version) != Some(Stability::Ga);
        let extent = if gone.is_empty() {
            Extent::All
        } else if all.iter().all(|path| gone.contains(path) == early(&path.1)) {
            Extent::Default
        } else {
            Extent::Other
        };
        let (v2, v2_protobuf, v3) = Default::default();
        Self { gone, extent, v2, v2_protobuf, v3 }
    }

    fn is_gone(&self, group: &str, version: &str, plural: &str) -> bool {
        self.gone.contains(&(group.to_owned(), version.to_owned(), plural.to_owned()))
    }

    /// Returns how many kinds of a version are served, and how many are not.
    fn count(&self, group: &str, version: &str) -> (usize, usize) {
        let of_version = builtin::paths().iter().filter(|path| path.0 == group && path.1 == version);
        let (gone, served): (Vec<_>, Vec<_>) = of_version.partition(|path| self.gone.contains(*path));
        (served.len(), gone.len())
    }

    /// Returns the version that a document is of; `None` for those of groups and single paths.
    fn version_of(name: &str) -> Option<(&str, &str)> {
        let mut parts = name.split('/');
        match (parts.next()?, parts.next()?, parts.next(), parts.next()) {
            ("api", version, None, None) => Some(("", version)),
            ("apis", group, Some(version), None) => Some((group, version)),
            _ => None,
        }
    }

    /// Returns the hash of a document; `None` if nothing that it describes is served.
    pub(super) fn v3_hash(&self, name: &str) -> Option<String> {
        let whole = openapi::v3_hash(name)?;
        let Some((group, version)) = Self::version_of(name) else {
            let is_served = name.strip_prefix("apis/").is_none_or(|group| {
                builtin::paths().iter().any(|path| path.0 == group && !self.gone.contains(path))
            });
            return is_served.then(|| whole.to_owned());
        };
        match self.count(group, version) {
            (0, _) => None,
            (_, 0) => Some(whole.to_owned()),
            _ => Some(self.part_hash(whole, group, version)),
        }
    }

    /// Returns the hash of a version that is served in part.
    fn part_hash(&self, whole: &str, group: &str, version: &str) -> String {
        let mut hasher = DefaultHasher::new();
        let of_version = |path: &&(String, String, String)| path.0 == group && path.1 == version;
        self.gone.iter().filter(of_version).for_each(|path| path.hash(&mut hasher));
        format!("{whole}{:016X}", hasher.finish())
    }

    /// Returns the v3 document of this name; `None` if nothing that it describes is served.
    pub(super) fn v3(&self, name: &str) -> Result<Option<Packed>, ApiError> {
        let (Some(hash), Some(bytes)) = (self.v3_hash(name), openapi::v3_gz(name)) else { return Ok(None) };
        if openapi::v3_hash(name) == Some(hash.as_str()) {
            return Ok(Some(Packed { packed: Bytes::from_static(bytes), hash }));
        }
        let mut kept = self.v3.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(packed) = kept.get(name) {
            return Ok(Some(packed.clone()));
        }
        let mut document = unpack(bytes)?;
        reduce::without(&mut document, &|group, version, plural| self.is_gone(group, version, plural));
        let packed = Packed { packed: pack(&document)?, hash };
        kept.insert(name.to_owned(), packed.clone());
        Ok(Some(packed))
    }

    /// Returns the v2 document.
    pub(super) fn v2(&self) -> Result<Packed, ApiError> {
        let packed = |bytes, hash: &str| Packed { packed: Bytes::from_static(bytes), hash: hash.to_owned() };
        match self.extent {
            Extent::All => return Ok(packed(openapi::v2_gz(), openapi::v2_hash())),
            Extent::Default => return Ok(packed(openapi::v2_default_gz(), openapi::v2_default_hash())),
            Extent::Other => {}
        }
        if let Some(packed) = self.v2.get() {
            return Ok(packed.clone());
        }
        let mut document = unpack(openapi::v2_gz())?;
        reduce::without(&mut document, &|group, version, plural| self.is_gone(group, version, plural));
        let mut hasher = DefaultHasher::new();
        self.gone.hash(&mut hasher);
        let hash = format!("{}{:016X}", openapi::v2_hash(), hasher.finish());
        let packed = Packed { packed: pack(&document)?, hash };
        Ok(self.v2.get_or_init(|| packed).clone())
    }

    /// Returns the v2 document as a protobuf message.
    pub(super) fn v2_protobuf(&self) -> Result<Packed, ApiError> {
        if self.extent == Extent::Default {
            let packed = Bytes::from_static(openapi::v2_default_protobuf_gz());
            return Ok(Packed { packed, hash: openapi::v2_default_protobuf_hash().to_owned() });
        }
        if let Some(packed) = self.v2_protobuf.get() {
            return Ok(packed.clone());
        }
        let json = self.v2()?;
        let bytes = message::v2(&unpack(&json.packed)?).map_err(unfit)?;
        let packed = Packed { packed: zip(&bytes)?, hash: format!("{}PB", json.hash) };
        Ok(self.v2_protobuf.get_or_init(|| packed).clone())
    }
}
