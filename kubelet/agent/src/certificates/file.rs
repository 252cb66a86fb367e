//! A certificate and its key in one file, so that both are replaced at once.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use jiff::Timestamp;
use userspace_daemon::private_file;
use userspace_daemon::tls::CertificateAndKey;

/// A file with a [`CertificateAndKey`], readable by its owner alone.
#[derive(Clone, Debug)]
pub struct PairFile {
    path: PathBuf,
}

const KEY: &str = "-----BEGIN PRIVATE KEY-----";

impl PairFile {
    pub fn new(path: PathBuf) -> Self {
        Self { path }
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the contents; `None` if the file is missing.
    ///
    /// # Errors
    /// Fails if the file cannot be read or has no certificate and key.
    pub fn read(&self) -> io::Result<Option<CertificateAndKey>> {
        let text = match fs::read_to_string(&self.path) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error),
        };
        let at =
            text.find(KEY).ok_or_else(|| io::Error::other("the file holds no certificate with its key"))?;
        let (certificate, key) = text.split_at(at);
        Ok(Some(CertificateAndKey { certificate: certificate.to_owned(), key: key.to_owned() }))
    }

    /// Returns the time of the last [`PairFile::write`]; `None` if the file is missing.
    pub fn written(&self) -> Option<Timestamp> {
        fs::metadata(&self.path).ok()?.modified().ok()?.try_into().ok()
    }

    /// Replaces the contents: whenever the machine stops, the file has either the old or the new ones.
    pub fn write(&self, pair: &CertificateAndKey) -> io::Result<()> {
        private_file::write(&self.path, format!("{}{}", pair.certificate, pair.key).as_bytes())
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn a_pair_is_replaced_as_a_whole_and_private() {
        let dir = tempfile::tempdir().unwrap();
        let file = PairFile::new(dir.path().join("client.pem"));
        assert!(file.read().unwrap().is_none() && file.written().is_none());
        // Left behind by a crash, readable by everybody.
        fs::write(dir.path().join("client.pem.new"), "rubbish").unwrap();
        for name in ["one", "two"] {
            let pair =
                CertificateAndKey { certificate: format!("{name}\n"), key: format!("{KEY}\n{name}\n") };
            file.write(&pair).unwrap();
            assert_eq!(file.read().unwrap().unwrap(), pair);
        }
        let mode = fs::metadata(file.path()).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
        fs::write(file.path(), "half a certifi").unwrap();
        assert!(file.read().is_err());
    }
}
