//! Parsers of untrusted bytes without the rest of the kubelet, for fuzz targets.

use std::path::Path;

use crate::{machine::normal, server::CloseFilter};

/// Returns the bytes that the runtime receives of a client's WebSocket frames, which arrive in pieces.
pub fn without_close_messages<'a>(pieces: impl IntoIterator<Item = &'a [u8]>) -> Vec<u8> {
    let (mut filter, mut output) = (CloseFilter::default(), Vec::new());
    for piece in pieces {
        filter.feed(piece, &mut output);
    }
    output
}

/// Returns the components of a path below a volume as they are resolved; `None` if the path leaves the volume
/// textually.
pub fn beneath(path: &str) -> Option<Vec<String>> {
    let parts = normal(Path::new(path)).ok()?;
    Some(parts.into_iter().map(|part| part.to_string_lossy().into_owned()).collect())
}
