//! What the kubelet makes of foreign bytes, without a kubelet: for the fuzz targets.

use std::path::Path;

use crate::{machine::normal, server::CloseFilter};

/// What the runtime is sent of a client's WebSocket frames, which come in pieces.
pub fn without_close_messages<'a>(pieces: impl IntoIterator<Item = &'a [u8]>) -> Vec<u8> {
    let (mut filter, mut output) = (CloseFilter::default(), Vec::new());
    for piece in pieces {
        filter.feed(piece, &mut output);
    }
    output
}

/// The components of a path beneath a volume as it is resolved; `None` where the path leaves the volume by its
/// spelling.
pub fn beneath(path: &str) -> Option<Vec<String>> {
    let parts = normal(Path::new(path)).ok()?;
    Some(parts.into_iter().map(|part| part.to_string_lossy().into_owned()).collect())
}
