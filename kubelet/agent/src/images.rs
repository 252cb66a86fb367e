//! Imports image archives into containerd without a registry.

use std::{
    fs, io,
    path::{Path, PathBuf},
    process::Stdio,
};

use sha2::{Digest, Sha256};
use tokio::process::Command;
use tracing::info;

/// containerd namespace in which CRI keeps its images.
const NAMESPACE: &str = "k8s.io";

/// An archive could not be imported.
#[derive(Debug, thiserror::Error)]
pub enum ImportError {
    #[error("cannot read the image archive {path}")]
    Read {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("cannot run {program}")]
    Spawn {
        program: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("importing {path} failed: {output}")]
    Failed { path: PathBuf, output: String },
    #[error("cannot write the pause image")]
    Pause(#[from] kubelet_image::ImageError),
}

/// Imports archives with `ctr`, each only once: imported archives are recorded under `state`, which must not
/// outlive containerd's root directory.
#[derive(Clone, Debug)]
pub struct Importer {
    /// The `ctr` program.
    pub ctr: PathBuf,
    /// containerd's socket.
    pub socket: PathBuf,
    /// Directory with a record of each imported archive.
    pub state: PathBuf,
}

impl Importer {
    /// Imports an OCI or Docker archive, unless it has been imported before.
    pub async fn import(&self, archive: &Path) -> Result<(), ImportError> {
        let read = |source| ImportError::Read { path: archive.to_owned(), source };
        let note = self.state.join(fingerprint(archive).map_err(read)?);
        if note.exists() {
            return Ok(());
        }
        let output = Command::new(&self.ctr)
            .arg("--address")
            .arg(&self.socket)
            .args(["--namespace", NAMESPACE, "images", "import", "--no-unpack"])
            .arg(archive)
            .stdin(Stdio::null())
            .kill_on_drop(true)
            .output()
            .await
            .map_err(|source| ImportError::Spawn { program: self.ctr.clone(), source })?;
        if !output.status.success() {
            let text = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).trim().to_owned();
            return Err(ImportError::Failed { path: archive.to_owned(), output: text });
        }
        info!(archive = %archive.display(), "image imported");
        // The record is an optimisation; without it the import is repeated next time.
        let _ = fs::create_dir_all(&self.state).and_then(|()| fs::write(note, archive.display().to_string()));
        Ok(())
    }

    /// Writes the pause image into `directory` and imports it, as [`kubelet_image::PAUSE_REFERENCE`].
    pub async fn import_pause(&self, directory: &Path) -> Result<(), ImportError> {
        let path = directory.join("pause.tar");
        kubelet_image::write_pause_archive(&path)?;
        self.import(&path).await
    }
}

/// Returns the file name of the record of an archive, derived from its content.
fn fingerprint(archive: &Path) -> io::Result<String> {
    let mut file = fs::File::open(archive)?;
    let mut hash = Sha256::new();
    io::copy(&mut file, &mut hash)?;
    Ok(hash.finalize().iter().take(16).map(|byte| format!("{byte:02x}")).collect())
}
