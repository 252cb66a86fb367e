//! Files that their owner alone may read, such as private keys.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// Replaces a file by one of mode 0600: whenever the machine stops, it has either the old or the new content.
///
/// # Errors
/// Fails if the file cannot be written; the old one stays.
pub fn write(path: &Path, content: &[u8]) -> io::Result<()> {
    let mut new = path.as_os_str().to_owned();
    new.push(".new");
    let new = Path::new(&new);
    // One that a crash has left may have another mode; the mode below holds for a file that is made.
    match fs::remove_file(new) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(new)?;
    file.write_all(content)?;
    file.sync_all()?;
    fs::rename(new, path)?;
    // The rename itself is durable once the directory is.
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => File::open(parent)?.sync_all(),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn file_is_replaced_as_a_whole_and_is_its_owners_alone() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.key");
        // Left by a crash, and readable by everybody.
        fs::write(dir.path().join("a.key.new"), "half").unwrap();
        fs::write(&path, "of everybody").unwrap();
        for content in ["one", "two"] {
            write(&path, content.as_bytes()).unwrap();
            assert_eq!(fs::read_to_string(&path).unwrap(), content);
            assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        }
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
    }

    #[test]
    fn file_stays_if_it_cannot_be_replaced() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.key");
        fs::write(&path, "old").unwrap();
        fs::create_dir(dir.path().join("a.key.new")).unwrap();
        assert!(write(&path, b"new").is_err());
        assert_eq!(fs::read_to_string(&path).unwrap(), "old");
        assert!(write(&dir.path().join("missing/a.key"), b"new").is_err());
    }
}
