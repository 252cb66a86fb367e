//! The forms of answers: encodings, and what they contain.

use apiserver_registry::Resource;
use apiserver_schema::error::ApiError;
use apiserver_schema::protobuf;

/// The encoding of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    Json,
    Yaml,
    /// For built-in kinds, and for metadata alone.
    Protobuf,
}

impl Format {
    /// Its media type.
    pub fn media(self) -> &'static str {
        match self {
            Self::Json => "application/json",
            Self::Yaml => "application/yaml",
            Self::Protobuf => protobuf::MEDIA_TYPE,
        }
    }
}

/// The contents of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    /// The object or list itself.
    Object,
    /// `meta.k8s.io/v1 Table`
    Table,
    /// `meta.k8s.io/v1 PartialObjectMetadata`
    Metadata,
    /// `meta.k8s.io/v1 PartialObjectMetadataList`
    MetadataList,
}

/// The answer that was agreed on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wanted {
    pub format: Format,
    pub shape: Shape,
    /// apiVersion of tables and metadata: `meta.k8s.io/v1`, or the older `meta.k8s.io/v1beta1`.
    pub meta: &'static str,
}

impl Wanted {
    /// 406 if a list is asked for where there is one object.
    pub fn of_one(self, resource: &Resource) -> Result<Self, ApiError> {
        if self.shape != Shape::MetadataList {
            return Ok(self);
        }
        Err(unfit(format!(
            "you requested PartialObjectMetadataList, but the requested object is not a list ({})",
            go_type(resource, "")
        )))
    }

    /// 406 if one object is asked for where there is a list.
    pub fn of_list(self, resource: &Resource) -> Result<Self, ApiError> {
        if self.shape != Shape::Metadata {
            return Ok(self);
        }
        Err(unfit(format!(
            "you requested PartialObjectMetadata, but the requested object is a list ({})",
            go_type(resource, "List")
        )))
    }
}

/// Returns the type as Go prints it, since clients see it in the text.
fn go_type(resource: &Resource, suffix: &str) -> String {
    if resource.custom.is_some() {
        return format!("*unstructured.Unstructured{suffix}");
    }
    let package = resource.group.split('.').next().filter(|group| !group.is_empty()).unwrap_or("core");
    format!("*{package}.{}{suffix}", resource.kind)
}

/// 406 for an answer that cannot have the form that the client accepts.
pub fn unfit(message: String) -> ApiError {
    ApiError::new(406, "NotAcceptable", message)
}

/// The part of the object that a row contains besides its cells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Include {
    None,
    Metadata,
    Object,
}
