//! subPath: a part of a volume, found by descriptor and mounted where no container can reach it, so
//! that the runtime is handed a path that nobody can change.

use std::{
    io,
    path::{Path, PathBuf},
};

use super::{
    SubPath,
    beneath::{Dir, Links},
    mounts,
};

/// Directory of these mounts below a pod's.
const DIRECTORY: &str = "volume-subpaths";

/// Directory of a container's mounts, relative to its pod's.
pub(super) fn directory(container: &str) -> PathBuf {
    Path::new(DIRECTORY).join(container)
}

/// Mounts a part of a volume below the pod's directory; its path relative to that. What is missing of
/// the part is made as directories with the volume's own mode.
pub(super) fn mount(pod: &Dir, volume: &Dir, wanted: &SubPath) -> io::Result<PathBuf> {
    let node = match volume.node(&wanted.path, Links::Inside) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            make_dirs(volume, Path::new(&wanted.path))?;
            volume.node(&wanted.path, Links::Inside)?
        }
        found => found?,
    };
    let place = directory(&wanted.container);
    let name = wanted.index.to_string();
    mounts::bind(&node, &pod.make_dirs(&place, 0o750)?, &name)?;
    Ok(place.join(name))
}

/// Makes the directories of a path where they are missing. Each is found from the volume's root anew,
/// so that it is below the volume whatever a container moves meanwhile.
fn make_dirs(volume: &Dir, path: &Path) -> io::Result<()> {
    let mode = volume.mode()?;
    let mut found = PathBuf::new();
    let mut dir = volume.try_clone()?;
    for part in path.components() {
        found.push(part);
        dir = match volume.dir_through_links(&found) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => dir.make_dir(part, mode)?,
            next => next?,
        };
    }
    Ok(())
}
