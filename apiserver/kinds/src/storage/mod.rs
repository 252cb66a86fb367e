//! The group `storage.k8s.io`.

pub(crate) mod csi_driver;
pub(crate) mod csi_node;
pub(crate) mod csi_storage_capacity;
pub(crate) mod storage_class;
#[cfg(test)]
mod tests;
pub(crate) mod volume_attachment;
pub(crate) mod volume_attributes_class;

use crate::kind::Kind;

/// The kinds of the group.
pub(crate) static KINDS: &[&Kind] = &[
    &csi_driver::KIND,
    &csi_node::KIND,
    &csi_storage_capacity::KIND,
    &storage_class::KIND,
    &volume_attachment::KIND,
    &volume_attributes_class::KIND,
];
