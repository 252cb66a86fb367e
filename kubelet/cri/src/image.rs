//! Images.

/// An image that is present on the node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Image {
    pub id: String,
    /// `docker.io/library/busybox:latest`
    pub tags: Vec<String>,
    /// `docker.io/library/busybox@sha256:…`
    pub digests: Vec<String>,
    /// Bytes.
    pub size: u64,
    /// User that the image asks for, by number.
    pub uid: Option<i64>,
    /// User that the image asks for, by name; empty if there is none.
    pub username: String,
}

/// Who asks a registry.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Credentials {
    pub username: String,
    pub password: String,
    /// Both of them, base64, instead.
    pub auth: String,
}
