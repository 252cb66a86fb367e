//! The previous state of the machine: written before each change, so that everything can be restored even if
//! the process is killed.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{self, Write};
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

/// The changes and the previous values.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Journal {
    /// Kernel parameters and their previous values, in the order in which to write them back.
    pub sysctls: Vec<(String, String)>,
    /// Addresses given to the loopback interface.
    pub addresses: BTreeSet<IpAddr>,
    /// The loopback interface was down.
    pub loopback_down: bool,
    /// Destinations of the routes of last resort, as CIDRs.
    pub unreachable: BTreeSet<String>,
    /// Files and links that were made.
    pub files: BTreeSet<PathBuf>,
    /// Directories that were made; removed when they are empty.
    pub directories: BTreeSet<PathBuf>,
}

/// The journal's file cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum JournalError {
    #[error("cannot {attempted} {}", path.display())]
    Io {
        attempted: &'static str,
        path: PathBuf,
        #[source]
        cause: io::Error,
    },
    #[error("{} is damaged", path.display())]
    Damaged {
        path: PathBuf,
        #[source]
        cause: serde_json::Error,
    },
}

impl Journal {
    /// Returns the path of the journal in a state directory.
    pub fn path(state_dir: &Path) -> PathBuf {
        state_dir.join("node.json")
    }

    /// Reads the journal; empty if there is none.
    pub fn load(state_dir: &Path) -> Result<Self, JournalError> {
        let path = Self::path(state_dir);
        match fs::read(&path) {
            Ok(bytes) => {
                serde_json::from_slice(&bytes).map_err(|cause| JournalError::Damaged { path, cause })
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Self::default()),
            Err(cause) => Err(JournalError::Io { attempted: "read", path, cause }),
        }
    }

    /// Writes the journal to disk.
    pub fn save(&self, state_dir: &Path) -> Result<(), JournalError> {
        let path = Self::path(state_dir);
        let write = || {
            fs::create_dir_all(state_dir)?;
            let new = path.with_extension("new");
            let mut file = File::create(&new)?;
            file.write_all(&serde_json::to_vec_pretty(self).map_err(io::Error::other)?)?;
            file.sync_data()?;
            fs::rename(new, &path)
        };
        write().map_err(|cause| JournalError::Io { attempted: "write", path: path.clone(), cause })
    }

    /// Records a parameter's value. Only the first value is recorded: a later one is our own.
    pub fn remember_sysctl(&mut self, name: &str, value: &str) {
        if !self.sysctls.iter().any(|(known, _)| known == name) {
            self.sysctls.push((name.to_owned(), value.to_owned()));
        }
    }
}
