//! The group `authorization.k8s.io`.

pub mod access_review;
