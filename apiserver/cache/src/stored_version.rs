//! Conversion of built-in kinds that are served in several versions and stored in one.

use std::sync::Arc;

use apiserver_kinds::conversion::Conversion;
use apiserver_registry::{Change, Resource};

use crate::encoding;

/// Returns the conversion from the stored version to the one that `resource` serves; `None` where they are the same.
pub fn from_stored(resource: &Resource) -> Option<Change> {
    if let Some(custom) = &resource.custom {
        let custom = Arc::clone(custom);
        return Some(Arc::new(move |object| custom.adopt(object)));
    }
    let conversion = of(resource)?;
    Some(Arc::new(|object| {
        conversion.from_stored(object);
        encoding::normalize(object);
        encoding::complete(object);
    }))
}

/// Returns the conversion from the version that `resource` serves to the stored one.
pub fn to_stored(resource: &Resource) -> Option<Change> {
    if let Some(custom) = &resource.custom {
        let custom = Arc::clone(custom);
        return Some(Arc::new(move |object| custom.to_stored(object)));
    }
    let conversion = of(resource)?;
    Some(Arc::new(|object| {
        conversion.to_stored(object);
        // A field that one version always has may be one that the other leaves out.
        encoding::normalize(object);
    }))
}

fn of(resource: &Resource) -> Option<&'static Conversion> {
    Conversion::of(&resource.group, &resource.version, &resource.plural)
}

/// Returns `true` if a built-in kind is stored in another version than this one.
pub fn is_converted(resource: &Resource) -> bool {
    of(resource).is_some()
}
