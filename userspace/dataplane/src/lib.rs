//! Loads, pins and attaches the programs; keeps their maps equal to the desired tables. The only
//! crate that names aya. Nothing here knows Kubernetes.

pub mod tables;
