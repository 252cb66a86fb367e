//! CustomResourceDefinitions, which `apiserver-registry` defines.

use crate::kind::{Kind, METADATA_OF_STATUS};

pub(crate) static KIND: Kind = Kind {
    group: "apiextensions.k8s.io",
    plural: "customresourcedefinitions",
    short_names: &["crd", "crds"],
    category: Some("api-extensions"),
    prefix: "apiextensions.k8s.io/customresourcedefinitions",
    generation: true,
    needs_version: true,
    default: apiserver_registry::definition::default,
    prepare_create: apiserver_registry::definition::prepare_create,
    prepare_update: apiserver_registry::definition::prepare_update,
    prepare_delete: Some(apiserver_registry::definition::prepare_delete),
    validate: apiserver_registry::definition::validate,
    validate_change: Some(apiserver_registry::definition::validate_change),
    warnings: Some(apiserver_registry::definition::warnings),
    unowned: METADATA_OF_STATUS,
    ..Kind::DEFAULT
};
