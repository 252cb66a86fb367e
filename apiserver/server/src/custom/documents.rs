//! Discovery and OpenAPI documents of the served kinds: made on request, and again after the custom kinds
//! have changed.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::Read as _;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use apiserver_registry::custom_resources::{Dialect, operations, schemas};
use apiserver_registry::{Registry, Resource};
use apiserver_schema::error::ApiError;
use apiserver_schema::openapi;
use apiserver_schema::openapi::{message, reduce};
use bytes::Bytes;
use flate2::read::GzDecoder;
use serde_json::{Map, Value, json};

use super::builtin::Builtin;
use crate::discovery::Discovery;
use crate::respond;

/// A document that is kept compressed.
#[derive(Clone)]
pub struct Packed {
    /// gzip
    pub packed: Bytes,
    /// An `ETag` without quotes.
    pub hash: String,
}

/// The documents of one state of the registry.
pub struct Documents {
    discovery: Discovery,
    builtin: Builtin,
    custom: Vec<Arc<Resource>>,
    /// The kinds of `custom` by group and version.
    versions: BTreeMap<(String, String), Vec<Arc<Resource>>>,
    v2: OnceLock<Packed>,
    v2_protobuf: OnceLock<Packed>,
    v3: Mutex<BTreeMap<String, Packed>>,
    /// Made from the JSON documents on request.
    v3_protobuf: Mutex<BTreeMap<String, Packed>>,
}

impl Documents {
    /// Returns the documents of the built-in kinds and of custom ones, of a server at an address.
    pub fn new(builtin: &Registry, custom: Vec<Arc<Resource>>, address: &str) -> Self {
        let kinds = builtin.iter().chain(&custom).map(|resource| &**resource);
        let discovery = Discovery::new(kinds, address);
        let mut versions: BTreeMap<(String, String), Vec<Arc<Resource>>> = BTreeMap::new();
        for kind in &custom {
            versions.entry((kind.group.clone(), kind.version.clone())).or_default().push(Arc::clone(kind));
        }
        Self {
            discovery,
            builtin: Builtin::of(builtin),
            custom,
            versions,
            v2: OnceLock::new(),
            v2_protobuf: OnceLock::new(),
            v3: Mutex::default(),
            v3_protobuf: Mutex::default(),
        }
    }

    /// Returns the discovery documents.
    pub fn discovery(&self) -> &Discovery {
        &self.discovery
    }

    /// Returns the index of the v3 documents.
    pub fn v3_index(&self) -> Value {
        let builtin =
            openapi::v3_names().filter_map(|name| Some((name.to_owned(), self.builtin.v3_hash(name)?)));
        let mut hashes: BTreeMap<String, String> = builtin.collect();
        for ((group, version), kinds) in &self.versions {
            let name = openapi::v3_name(group, version);
            let hash = v3_hash(hashes.remove(&name), kinds);
            hashes.insert(name, hash);
        }
        let place = |(name, hash): (String, String)| {
            let url = format!("/openapi/v3/{name}?hash={hash}");
            (name, json!({"serverRelativeURL": url}))
        };
        json!({"paths": hashes.into_iter().map(place).collect::<Map<String, Value>>()})
    }

    /// Returns the v3 document of this name, `apis/apps/v1`; `None` if there is none.
    pub fn v3(&self, name: &str) -> Result<Option<Packed>, ApiError> {
        let builtin = self.builtin.v3(name)?;
        let of_name =
            |((group, version), _): &(&(String, String), _)| openapi::v3_name(group, version) == name;
        let Some((_, kinds)) = self.versions.iter().find(of_name) else { return Ok(builtin) };
        let mut kept = self.v3.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(packed) = kept.get(name) {
            return Ok(Some(packed.clone()));
        }
        let mut document = v3(kinds)?;
        let hash = v3_hash(builtin.as_ref().map(|builtin| builtin.hash.clone()), kinds);
        if let Some(builtin) = builtin {
            document = merged(unpack(&builtin.packed)?, document);
        }
        let packed = Packed { packed: pack(&document)?, hash };
        kept.insert(name.to_owned(), packed.clone());
        Ok(Some(packed))
    }

    /// Returns the v3 document as a protobuf message, under the same hash.
    pub fn v3_protobuf(&self, name: &str) -> Result<Option<Packed>, ApiError> {
        let Some(json) = self.v3(name)? else { return Ok(None) };
        let mut kept = self.v3_protobuf.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(packed) = kept.get(name) {
            return Ok(Some(packed.clone()));
        }
        let bytes = message::v3(&unpack(&json.packed)?).map_err(unfit)?;
        let packed = Packed { packed: zip(&bytes)?, hash: json.hash };
        kept.insert(name.to_owned(), packed.clone());
        Ok(Some(packed))
    }

    /// Returns the v2 document.
    pub fn v2(&self) -> Result<Packed, ApiError> {
        let builtin = self.builtin.v2()?;
        if self.custom.is_empty() {
            return Ok(builtin);
        }
        if let Some(packed) = self.v2.get() {
            return Ok(packed.clone());
        }
        let mut document = unpack(&builtin.packed)?;
        for (part, added) in self.custom_v2() {
            if let Some(part) = document[part].as_object_mut() {
                part.extend(added);
            }
        }
        let hash = format!("{}{}", builtin.hash, hash(self.custom.iter()));
        let packed = Packed { packed: pack(&document)?, hash };
        Ok(self.v2.get_or_init(|| packed).clone())
    }

    /// Returns the v2 document as a protobuf message.
    pub fn v2_protobuf(&self) -> Result<Packed, ApiError> {
        let Packed { packed, hash: own } = self.builtin.v2_protobuf()?;
        if self.custom.is_empty() {
            return Ok(Packed { packed, hash: own });
        }
        if let Some(packed) = self.v2_protobuf.get() {
            return Ok(packed.clone());
        }
        let mut bytes = inflate(&packed)?;
        // A parser merges a message that occurs twice in a field.
        let added: Map<String, Value> =
            self.custom_v2().into_iter().map(|(part, added)| (part.to_owned(), added.into())).collect();
        bytes.extend(message::v2(&Value::Object(added)).map_err(unfit)?);
        let packed = Packed { packed: zip(&bytes)?, hash: format!("{own}{}", hash(self.custom.iter())) };
        Ok(self.v2_protobuf.get_or_init(|| packed).clone())
    }

    /// Returns the additions of custom kinds to the parts of the v2 document.
    fn custom_v2(&self) -> [(&'static str, Map<String, Value>); 2] {
        let (mut definitions, mut paths) = (Map::new(), Map::new());
        for resource in &self.custom {
            let Some(custom) = &resource.custom else { continue };
            definitions.extend(schemas(custom, resource, Dialect::V2));
            paths.extend(operations(resource, Dialect::V2));
        }
        [("definitions", definitions), ("paths", paths)]
    }
}

pub(super) fn unfit(error: message::Unfit) -> ApiError {
    ApiError::internal(format!("the document cannot be written as protobuf: {error}"))
}

/// Changes when a definition does.
fn hash<'a>(kinds: impl Iterator<Item = &'a Arc<Resource>>) -> String {
    let mut hasher = DefaultHasher::new();
    for resource in kinds {
        let of_definition = resource.custom.as_ref().map(|custom| custom.definition.hash);
        (&resource.schema, of_definition).hash(&mut hasher);
    }
    format!("{:016X}", hasher.finish())
}

/// Changes when the v3 document of a group and version with custom kinds does.
fn v3_hash(builtin: Option<String>, kinds: &[Arc<Resource>]) -> String {
    format!("{}{}", builtin.unwrap_or_default(), hash(kinds.iter()))
}

/// Returns the v3 document of a group of built-in kinds and what custom kinds add to it.
fn merged(mut document: Value, mut added: Value) -> Value {
    for part in ["/paths", "/components/schemas"] {
        let new = added.pointer_mut(part).map(Value::take);
        if let (Some(Value::Object(all)), Some(Value::Object(new))) = (document.pointer_mut(part), new) {
            for (name, value) in new {
                all.entry(name).or_insert(value);
            }
        }
    }
    document
}

/// A document of built-in kinds, from which the definitions that all kinds share are taken.
const SHARED_FROM: &str = "apis/coordination.k8s.io/v1";
const SHARED_GROUP: &str = "coordination.k8s.io";
const META: &str = "io.k8s.apimachinery.pkg.apis.meta.v1.";
const SCALE: &str = "io.k8s.api.autoscaling.v1.Scale";

fn v3(kinds: &[Arc<Resource>]) -> Result<Value, ApiError> {
    let shared = openapi::v3_gz(SHARED_FROM).map(unpack).transpose()?.unwrap_or_default();
    let (mut all, mut paths) = (Map::new(), Map::new());
    for (name, schema) in shared["components"]["schemas"].as_object().into_iter().flatten() {
        if name.starts_with(META) {
            all.insert(name.clone(), schema.clone());
        }
    }
    if kinds.iter().any(|r| r.subresources.iter().any(|s| s.name == "scale")) {
        let apps = openapi::v3_gz("apis/apps/v1").map(unpack).transpose()?.unwrap_or_default();
        for (name, schema) in apps["components"]["schemas"].as_object().into_iter().flatten() {
            if name.starts_with(SCALE) {
                all.insert(name.clone(), schema.clone());
            }
        }
    }
    for resource in kinds {
        let Some(custom) = &resource.custom else { continue };
        all.extend(schemas(custom, resource, Dialect::V3));
        paths.extend(operations(resource, Dialect::V3));
    }
    // They belong to every version, and here to the legacy one.
    for schema in all.values_mut() {
        if let Some(Value::Array(kinds)) = schema.get_mut("x-kubernetes-group-version-kind") {
            kinds.retain(|kind| kind["group"] != SHARED_GROUP);
        }
    }
    let mut document = json!({
        "openapi": "3.0.0",
        "info": {"title": "Kubernetes CRD Swagger", "version": "v0.1.0"},
        "paths": paths,
        "components": {"schemas": all},
    });
    without_unused(&mut document);
    Ok(document)
}

pub(super) fn pack(document: &Value) -> Result<Bytes, ApiError> {
    zip(document.to_string().as_bytes())
}

pub(super) fn zip(content: &[u8]) -> Result<Bytes, ApiError> {
    respond::gzip(content)
        .map(Bytes::from)
        .map_err(|error| ApiError::internal(format!("the document cannot be packed: {error}")))
}

/// Unpacks a document.
fn inflate(packed: &[u8]) -> Result<Vec<u8>, ApiError> {
    let mut content = Vec::new();
    GzDecoder::new(packed)
        .read_to_end(&mut content)
        .map_err(|error| ApiError::internal(format!("the document cannot be unpacked: {error}")))?;
    Ok(content)
}

pub(super) fn unpack(packed: &[u8]) -> Result<Value, ApiError> {
    serde_json::from_slice(&inflate(packed)?)
        .map_err(|error| ApiError::internal(format!("the document cannot be decoded: {error}")))
}

/// Takes the schemas out of a document of v3 that none of its paths leads to.
fn without_unused(document: &mut Value) {
    const SCHEMAS: &str = "/components/schemas";
    let paths = [document["paths"].clone()];
    let used =
        document.pointer(SCHEMAS).map(|schemas| reduce::reached(&paths, schemas, "#/components/schemas/"));
    if let (Some(used), Some(Value::Object(schemas))) = (used, document.pointer_mut(SCHEMAS)) {
        schemas.retain(|name, _| used.contains(name));
    }
}
