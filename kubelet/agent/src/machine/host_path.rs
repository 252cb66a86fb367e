//! Paths of the node that pods mount as `hostPath` volumes.

use std::{fs, io, os::unix::fs::FileTypeExt, path::Path};

use super::{MachineError, Result, make_dir};

/// Checks a path of the node against `hostPath.type`, and creates it if the type allows that.
pub(super) fn check(path: &Path, kind: &str) -> Result<()> {
    let failed = |what: &str| {
        let why = format!("hostPath type check failed: {} {what}", path.display());
        MachineError::new("use as a hostPath", path, io::Error::other(why))
    };
    let meta = fs::metadata(path).ok();
    let is =
        |check: &dyn Fn(&fs::FileType) -> bool| meta.as_ref().is_some_and(|meta| check(&meta.file_type()));
    match kind {
        "DirectoryOrCreate" if meta.is_none() => make_dir(path, 0o755),
        "FileOrCreate" if meta.is_none() => make_file(path),
        "" if meta.is_none() => make_dir(path, 0o755),
        "" => Ok(()),
        "Directory" | "DirectoryOrCreate" if is(&fs::FileType::is_dir) => Ok(()),
        "File" | "FileOrCreate" if is(&fs::FileType::is_file) => Ok(()),
        "Socket" if is(&|t| t.is_socket()) => Ok(()),
        "CharDevice" if is(&|t| t.is_char_device()) => Ok(()),
        "BlockDevice" if is(&|t| t.is_block_device()) => Ok(()),
        "Directory" | "DirectoryOrCreate" => Err(failed("is not a directory")),
        "File" | "FileOrCreate" => Err(failed("is not a file")),
        "Socket" => Err(failed("is not a socket file")),
        "CharDevice" => Err(failed("is not a character device")),
        "BlockDevice" => Err(failed("is not a block device")),
        _ => Err(failed("is an invalid volume type")),
    }
}

fn make_file(path: &Path) -> Result<()> {
    use std::os::unix::fs::OpenOptionsExt;
    // An entry created in the meantime, such as a symbolic link, is left alone.
    let made = fs::OpenOptions::new().write(true).create_new(true).mode(0o644).open(path);
    made.map(drop).map_err(|source| MachineError::new("create the file", path, source))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn host_paths_are_checked() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("x");
        assert!(check(&path, "Directory").is_err() && !path.exists());
        check(&path, "DirectoryOrCreate").unwrap();
        check(&path, "Directory").unwrap();
        for (kind, why) in [
            ("File", "is not a file"),
            ("Socket", "is not a socket file"),
            ("CharDevice", "is not a character device"),
            ("BlockDevice", "is not a block device"),
            ("Nonsense", "is an invalid volume type"),
        ] {
            let error = check(&path, kind).unwrap_err();
            assert!(error.source.to_string().ends_with(why), "{kind}: {}", error.source);
        }
        let file = directory.path().join("f");
        check(&file, "FileOrCreate").unwrap();
        check(&file, "File").unwrap();
        assert!(check(&file, "Directory").is_err());
        check(Path::new("/dev/null"), "CharDevice").unwrap();
    }
}
