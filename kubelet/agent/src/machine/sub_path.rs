//! Mounts of `subPath` volumes. The part of the volume is found by descriptor and mounted where no container
//! can reach it, so that the runtime is given a path that nobody can change.

use std::{
    io,
    path::{Path, PathBuf},
};

use super::{
    SubPath,
    beneath::{Dir, Links},
    mounts,
};

/// Name of the directory of these mounts in a pod's directory.
const DIRECTORY: &str = "volume-subpaths";

/// Returns the directory of a container's mounts, relative to its pod's.
pub(super) fn directory(container: &str) -> PathBuf {
    Path::new(DIRECTORY).join(container)
}

/// Mounts a part of a volume below the pod's directory and returns the path relative to it. Missing
/// components are created as directories with the mode of the volume.
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

/// Creates the missing directories of a path. Each is looked up from the volume's root, so that it lies in
/// the volume whatever a container moves in the meantime.
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
