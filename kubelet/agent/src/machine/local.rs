//! Directories of the node that stay when the pods that use them are gone: those that the node makes for volumes, each
//! directly below one directory, and others that an administrator has made.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use super::{MachineError, Result, beneath::Dir, make_dir, volume};

/// Creates the directory of the volumes unless it exists; returns its absolute path. Only root may enter it, since the
/// volumes in it are open to whatever user their pods have.
pub(super) fn open_root(directory: &Path) -> Result<PathBuf> {
    make_dir(directory, 0o750)?;
    fs::canonicalize(directory).map_err(|source| MachineError::new("resolve", directory, source))
}

/// Returns the path of a volume. One directly below `root` is made if it is missing; any other has to be there.
pub(super) fn set_up(root: Option<&Path>, path: &Path, group: Option<u32>) -> Result<PathBuf> {
    let error = |source| MachineError::new("set up the volume", path, source);
    let own =
        root.filter(|root| path.parent() == Some(root)).zip(path.file_name().and_then(|name| name.to_str()));
    let dir = match own {
        Some((root, name)) => Dir::open_trusted(root).and_then(|root| {
            volume::empty(&root, name, false, None, None)?;
            root.dir(name)
        }),
        None => Dir::open_trusted(path),
    };
    let dir = dir.map_err(error)?;
    if let Some(group) = group {
        dir.give_to_group(group).map_err(error)?;
    }
    Ok(path.to_owned())
}

/// Removes the directory of a volume and everything below it; succeeds if there is none. Follows no link and crosses
/// no mount.
pub(super) fn remove(root: &Path, name: &str) -> Result<()> {
    let removed = Dir::open_trusted(root).and_then(|dir| {
        // A kubelet that died may have left it unfinished.
        dir.remove_tree(format!(".{name}"))?;
        dir.remove_tree(name)
    });
    match removed {
        Err(source) if source.kind() != io::ErrorKind::NotFound => {
            Err(MachineError::new("remove the volume", &root.join(name), source))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    #[test]
    fn volume_is_made_once_and_keeps_its_files_and_mode() {
        let place = tempfile::tempdir().unwrap();
        let root = open_root(&place.path().join("volumes")).unwrap();
        let path = root.join("pvc-1");
        assert_eq!(set_up(Some(&root), &path, None).unwrap(), path);
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o7777;
        assert_eq!((mode(&root), mode(&path)), (0o750, 0o777));
        fs::write(path.join("file"), "kept").unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o700)).unwrap();
        set_up(Some(&root), &path, None).unwrap();
        assert_eq!(fs::read_to_string(path.join("file")).unwrap(), "kept");
        assert_eq!(mode(&path), 0o700);
        remove(&root, "pvc-1").unwrap();
        remove(&root, "pvc-1").unwrap();
        assert_eq!(fs::read_dir(&root).unwrap().count(), 0);
    }

    #[test]
    fn directories_elsewhere_are_not_made() {
        let place = tempfile::tempdir().unwrap();
        let root = open_root(&place.path().join("volumes")).unwrap();
        for path in ["other", "volumes/a/b", "volumes/../other"] {
            let path = place.path().join(path);
            assert!(set_up(Some(&root), &path, None).is_err(), "{}", path.display());
            assert!(set_up(None, &path, None).is_err(), "{}", path.display());
        }
        assert_eq!(fs::read_dir(place.path()).unwrap().count(), 1);
        fs::create_dir(place.path().join("other")).unwrap();
        set_up(Some(&root), &place.path().join("other"), None).unwrap();
    }

    /// A container plants links in its volume, and somebody else replaces the volume itself by one.
    #[test]
    fn removal_leaves_what_links_lead_to() {
        let place = tempfile::tempdir().unwrap();
        let host = place.path().join("host");
        fs::create_dir(&host).unwrap();
        fs::write(host.join("kept"), "host").unwrap();
        let root = open_root(&place.path().join("volumes")).unwrap();
        let path = set_up(Some(&root), &root.join("pvc-1"), None).unwrap();
        fs::create_dir(path.join("deep")).unwrap();
        for link in ["link", "deep/link", "..data"] {
            symlink(&host, path.join(link)).unwrap();
        }
        symlink(host.join("kept"), path.join("deep/file")).unwrap();
        symlink(&host, root.join("pvc-2")).unwrap();
        assert!(set_up(Some(&root), &root.join("pvc-2"), None).is_err());
        fs::create_dir(root.join("pvc-3")).unwrap();
        for name in ["pvc-1", "pvc-2"] {
            remove(&root, name).unwrap();
        }
        for name in ["", ".", "..", "../host", "pvc-3/..", "/"] {
            assert!(remove(&root, name).is_err() || root.join("pvc-3").exists(), "{name:?}");
        }
        let left: Vec<_> = fs::read_dir(&root).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(left, ["pvc-3"]);
        assert_eq!(fs::read_to_string(host.join("kept")).unwrap(), "host");
    }

    #[test]
    fn parts_of_a_volume_that_lead_out_of_it_are_not_found() {
        use super::super::beneath::Links;
        let place = tempfile::tempdir().unwrap();
        let root = open_root(&place.path().join("volumes")).unwrap();
        let path = set_up(Some(&root), &root.join("pvc-1"), None).unwrap();
        set_up(Some(&root), &root.join("pvc-2"), None).unwrap();
        symlink("../pvc-2", path.join("neighbour")).unwrap();
        symlink("/etc", path.join("absolute")).unwrap();
        let volume = Dir::open_trusted(&path).unwrap();
        for part in ["neighbour", "absolute", "absolute/passwd", "../pvc-2", "/etc"] {
            assert!(volume.node(part, Links::Inside).is_err(), "{part}");
        }
    }
}
