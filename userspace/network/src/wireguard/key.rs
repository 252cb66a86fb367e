//! The private key of this machine, in a file of its owner alone.

use std::fmt;
use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use apiserver_meta::ambient::Ambient;
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use userspace_daemon::private_file;

use super::{KEY_BYTES, decode};
use crate::limits;

/// The name of the file in the state directory.
pub const KEY_FILE: &str = "wireguard.key";

/// The private key cannot be used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum KeyError {
    #[error("cannot {attempted} the WireGuard key {}", path.display())]
    Io {
        attempted: &'static str,
        path: PathBuf,
        #[source]
        cause: io::Error,
    },
    #[error("{} is not a WireGuard key ({reason}): delete it to have a new one made", path.display())]
    Damaged { path: PathBuf, reason: String },
}

/// A private key.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct PrivateKey([u8; KEY_BYTES]);

impl fmt::Debug for PrivateKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PrivateKey")
    }
}

impl PrivateKey {
    /// Returns the key with these bits, as the kernel stores it: Curve25519 (RFC 7748, section 5) fixes some of them.
    pub fn new(mut bytes: [u8; KEY_BYTES]) -> Self {
        bytes[0] &= 248;
        bytes[31] = (bytes[31] & 127) | 64;
        Self(bytes)
    }

    pub fn bytes(&self) -> [u8; KEY_BYTES] {
        self.0
    }

    /// Reads the key from its file, or makes both. To replace the key, delete the file.
    pub fn load_or_make(path: &Path, ambient: &Ambient) -> Result<Self, KeyError> {
        let fail = |attempted, cause| KeyError::Io { attempted, path: path.to_path_buf(), cause };
        match File::open(path) {
            Ok(file) => {
                let mut text = String::new();
                let limit = limits::KEY_FILE_BYTES;
                file.take(limit).read_to_string(&mut text).map_err(|cause| fail("read", cause))?;
                let damaged = |reason| KeyError::Damaged { path: path.to_path_buf(), reason };
                decode(text.trim_end()).map(Self::new).map_err(damaged)
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let key = Self::random(ambient);
                key.save(path).map_err(|cause| fail("write", cause))?;
                Ok(key)
            }
            Err(cause) => Err(fail("read", cause)),
        }
    }

    fn random(ambient: &Ambient) -> Self {
        let mut bytes = [0; KEY_BYTES];
        for chunk in bytes.chunks_exact_mut(8) {
            // Outside of the simulation, these are bits of a generator for cryptography.
            chunk.copy_from_slice(&ambient.random.next_u64().to_le_bytes());
        }
        Self::new(bytes)
    }

    fn save(&self, path: &Path) -> io::Result<()> {
        if let Some(parent) = path.parent() {
            fs::create_dir_all(parent)?;
        }
        private_file::write(path, format!("{}\n", BASE64_STANDARD.encode(self.0)).as_bytes())
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn key_is_made_once_for_its_owner_alone_and_anew_when_it_was_deleted() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("state").join(KEY_FILE);
        let load = || PrivateKey::load_or_make(&path, &Ambient::system());
        let first = load().unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(load().unwrap(), first);
        fs::remove_file(&path).unwrap();
        assert_ne!(load().unwrap(), first);
        assert_eq!(format!("{first:?}"), "PrivateKey");
    }

    #[test]
    fn file_that_is_no_key_is_named_and_stays() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join(KEY_FILE);
        for text in ["", "short", &"A".repeat(100_000)] {
            fs::write(&path, text).unwrap();
            let error = PrivateKey::load_or_make(&path, &Ambient::system()).unwrap_err().to_string();
            assert!(
                error.contains("wireguard.key is not a WireGuard key") && error.contains("delete it"),
                "{error}"
            );
            assert_eq!(fs::read_to_string(&path).unwrap(), text);
        }
    }

    #[test]
    fn bits_that_the_curve_fixes_are_fixed() {
        let key = PrivateKey::new([0xff; 32]);
        assert_eq!((key.bytes()[0], key.bytes()[31]), (0xf8, 0x7f));
        assert_eq!(PrivateKey::new([0; 32]).bytes()[31], 0x40);
    }
}
