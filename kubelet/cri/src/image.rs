//! Images.

/// An image on the node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Image {
    pub id: String,
    /// Tags, such as `docker.io/library/busybox:latest`.
    pub tags: Vec<String>,
    /// Digests, such as `docker.io/library/busybox@sha256:…`.
    pub digests: Vec<String>,
    /// Size in bytes.
    pub size: u64,
    /// Numeric user of the image, if it has one.
    pub uid: Option<i64>,
    /// User name of the image; empty if it has none.
    pub username: String,
}

/// Credentials for a registry.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Credentials {
    pub username: String,
    pub password: String,
    /// User name and password in base64, in place of the other fields.
    pub auth: String,
}
