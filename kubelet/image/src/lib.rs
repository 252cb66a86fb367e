//! Writes OCI image archives without an image builder: the pause image for sandboxes and the workloads of the
//! tests. An archive is a tar file with an OCI layout. It is byte-for-byte reproducible and contains the
//! image's name for importers.
#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

use std::{
    fs::File,
    io::{self, Write},
    path::Path,
};

use serde_json::{Value, json};
use sha2::{Digest, Sha256};

/// Reference of the image that [`write_pause_archive`] writes.
pub const PAUSE_REFERENCE: &str = "hawser.local/pause:1";

/// The pause program: static, freestanding, for the architecture that this crate is built for.
pub const PAUSE_PROGRAM: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/pause"));

/// An archive could not be written.
#[derive(Debug, thiserror::Error)]
pub enum ImageError {
    /// The archive or its content could not be written.
    #[error("writing the image archive {path}")]
    Write {
        /// Path of the archive.
        path: String,
        /// Error of the operating system.
        #[source]
        source: io::Error,
    },
    /// The path of a file is absolute or leads out of the image.
    #[error("{0:?} is not a relative path inside the image")]
    Path(String),
}

/// A regular file in the only layer of an image.
#[derive(Clone, Debug)]
pub struct ImageFile<'a> {
    /// Path relative to the root, such as `bin/echo`.
    pub path: &'a str,
    /// Permission bits, such as `0o755`.
    pub mode: u32,
    /// Content of the file.
    pub content: &'a [u8],
}

/// Default configuration of the containers of an image.
#[derive(Clone, Debug, Default)]
pub struct ImageConfig {
    /// Program and first arguments.
    pub entrypoint: Vec<String>,
    /// Default arguments; `args` of a container replaces them.
    pub command: Vec<String>,
    /// Environment variables as `NAME=value`.
    pub environment: Vec<String>,
    /// User as `uid` or `uid:gid`; empty for root.
    pub user: String,
    /// Working directory; `/` if empty.
    pub working_directory: String,
    /// Directories to create, relative to the root, with permission bits, such as `("tmp", 0o1777)`.
    pub directories: Vec<(String, u32)>,
}

/// Writes an archive that contains one image with one layer of `files`, named `reference` (`host/name:tag`).
/// An existing archive at `path` is replaced atomically. Returns the digest of the manifest, `sha256:…`.
pub fn write_image_archive(
    path: &Path,
    reference: &str,
    files: &[ImageFile<'_>],
    config: &ImageConfig,
) -> Result<String, ImageError> {
    for name in files.iter().map(|file| file.path).chain(config.directories.iter().map(|d| d.0.as_str())) {
        if name.is_empty() || name.starts_with('/') || name.split('/').any(|part| part == "..") {
            return Err(ImageError::Path(name.to_owned()));
        }
    }
    write(path, reference, files, config)
        .map_err(|source| ImageError::Write { path: path.display().to_string(), source })
}

/// Writes the pause image as an archive; see [`PAUSE_REFERENCE`].
pub fn write_pause_archive(path: &Path) -> Result<String, ImageError> {
    let config = ImageConfig { entrypoint: vec!["/pause".to_owned()], ..ImageConfig::default() };
    let file = ImageFile { path: "pause", mode: 0o755, content: PAUSE_PROGRAM };
    write_image_archive(path, PAUSE_REFERENCE, &[file], &config)
}

fn write(path: &Path, reference: &str, files: &[ImageFile<'_>], config: &ImageConfig) -> io::Result<String> {
    let layer = layer(files, config)?;
    let config_blob = serde_json::to_vec(&config_document(config, &digest(&layer)))?;
    let manifest = serde_json::to_vec(&json!({
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.manifest.v1+json",
        "config": descriptor("application/vnd.oci.image.config.v1+json", &config_blob),
        "layers": [descriptor("application/vnd.oci.image.layer.v1.tar", &layer)],
    }))?;
    let mut entry = descriptor("application/vnd.oci.image.manifest.v1+json", &manifest);
    let tag = reference.rsplit_once(':').map_or("latest", |(_, tag)| tag);
    entry["annotations"] =
        json!({"io.containerd.image.name": reference, "org.opencontainers.image.ref.name": tag});
    let index = serde_json::to_vec(&json!({
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.index.v1+json",
        "manifests": [entry],
    }))?;

    let mut temporary = path.as_os_str().to_owned();
    temporary.push(".partial");
    let temporary = Path::new(&temporary);
    let mut archive = tar::Builder::new(File::create(temporary)?);
    append(&mut archive, "oci-layout", 0o644, br#"{"imageLayoutVersion":"1.0.0"}"#)?;
    append(&mut archive, "index.json", 0o644, &index)?;
    for blob in [&layer, &config_blob, &manifest] {
        append(&mut archive, &format!("blobs/sha256/{}", hexadecimal(blob)), 0o644, blob)?;
    }
    archive.into_inner()?.flush()?;
    std::fs::rename(temporary, path)?;
    Ok(digest(&manifest))
}

fn layer(files: &[ImageFile<'_>], config: &ImageConfig) -> io::Result<Vec<u8>> {
    let mut layer = tar::Builder::new(Vec::new());
    for (name, mode) in &config.directories {
        let mut header = header(*mode, 0);
        header.set_entry_type(tar::EntryType::Directory);
        layer.append_data(&mut header, format!("{}/", name.trim_end_matches('/')), io::empty())?;
    }
    for file in files {
        append(&mut layer, file.path, file.mode, file.content)?;
    }
    layer.into_inner()
}

fn config_document(config: &ImageConfig, layer_digest: &str) -> Value {
    let mut run = json!({"Entrypoint": config.entrypoint, "Env": config.environment});
    if !config.command.is_empty() {
        run["Cmd"] = json!(config.command);
    }
    if !config.user.is_empty() {
        run["User"] = json!(config.user);
    }
    if !config.working_directory.is_empty() {
        run["WorkingDir"] = json!(config.working_directory);
    }
    let architecture = match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    };
    json!({
        "architecture": architecture, "os": "linux", "config": run,
        "rootfs": {"type": "layers", "diff_ids": [layer_digest]},
    })
}

fn append<W: Write>(archive: &mut tar::Builder<W>, path: &str, mode: u32, content: &[u8]) -> io::Result<()> {
    let mut header = header(mode, content.len() as u64);
    header.set_entry_type(tar::EntryType::Regular);
    archive.append_data(&mut header, path, content)
}

/// Returns a header without time and owned by root, so that the same content gives the same bytes.
fn header(mode: u32, size: u64) -> tar::Header {
    let mut header = tar::Header::new_gnu();
    header.set_mode(mode);
    header.set_size(size);
    header.set_uid(0);
    header.set_gid(0);
    header.set_mtime(0);
    header
}

fn descriptor(media_type: &str, content: &[u8]) -> Value {
    json!({"mediaType": media_type, "digest": digest(content), "size": content.len()})
}

fn digest(content: &[u8]) -> String {
    format!("sha256:{}", hexadecimal(content))
}

fn hexadecimal(content: &[u8]) -> String {
    Sha256::digest(content).iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use std::{collections::BTreeMap, io::Read};

    use super::*;

    fn blobs(path: &Path) -> BTreeMap<String, Vec<u8>> {
        let mut archive = tar::Archive::new(File::open(path).unwrap());
        let mut blobs = BTreeMap::new();
        for entry in archive.entries().unwrap() {
            let mut entry = entry.unwrap();
            let mut content = Vec::new();
            entry.read_to_end(&mut content).unwrap();
            blobs.insert(entry.path().unwrap().display().to_string(), content);
        }
        blobs
    }

    #[test]
    fn every_digest_in_the_archive_is_that_of_a_blob() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("image.tar");
        let config = ImageConfig {
            entrypoint: vec!["/bin/x".into()],
            directories: vec![("tmp".into(), 0o1777)],
            ..ImageConfig::default()
        };
        let file = ImageFile { path: "bin/x", mode: 0o755, content: b"#!" };
        let manifest = write_image_archive(&path, "example.com/x:7", &[file], &config).unwrap();
        let blobs = blobs(&path);
        let index: Value = serde_json::from_slice(&blobs["index.json"]).unwrap();
        assert_eq!(index["manifests"][0]["digest"], manifest);
        assert_eq!(index["manifests"][0]["annotations"]["io.containerd.image.name"], "example.com/x:7");
        let blob = |digest: &Value| {
            let content = &blobs[&format!("blobs/{}", digest.as_str().unwrap().replace(':', "/"))];
            assert_eq!(digest, &super::digest(content));
            content
        };
        let manifest: Value = serde_json::from_slice(blob(&index["manifests"][0]["digest"])).unwrap();
        let config: Value = serde_json::from_slice(blob(&manifest["config"]["digest"])).unwrap();
        let layer = blob(&manifest["layers"][0]["digest"]);
        assert_eq!(config["rootfs"]["diff_ids"][0], super::digest(layer));
        assert_eq!(config["config"]["Entrypoint"][0], "/bin/x");
        let names: Vec<String> = tar::Archive::new(layer.as_slice())
            .entries()
            .unwrap()
            .map(|entry| entry.unwrap().path().unwrap().display().to_string())
            .collect();
        assert_eq!(names, ["tmp/", "bin/x"]);
    }

    #[test]
    fn the_same_content_gives_the_same_bytes() {
        let directory = tempfile::tempdir().unwrap();
        let paths = [directory.path().join("a.tar"), directory.path().join("b.tar")];
        for path in &paths {
            write_pause_archive(path).unwrap();
        }
        assert_eq!(std::fs::read(&paths[0]).unwrap(), std::fs::read(&paths[1]).unwrap());
    }

    #[test]
    fn paths_that_leave_the_image_are_refused() {
        let file = ImageFile { path: "../etc/passwd", mode: 0o644, content: b"" };
        let result =
            write_image_archive(Path::new("/nonexistent/x"), "x:1", &[file], &ImageConfig::default());
        assert!(matches!(result, Err(ImageError::Path(path)) if path == "../etc/passwd"));
    }

    #[test]
    fn pause_is_small_and_ends_on_sigterm() {
        use std::os::unix::fs::PermissionsExt;
        assert!(PAUSE_PROGRAM.len() < 16 * 1024, "{} bytes", PAUSE_PROGRAM.len());
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("pause");
        std::fs::write(&path, PAUSE_PROGRAM).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
        let mut child = std::process::Command::new(&path).spawn().unwrap();
        std::thread::sleep(std::time::Duration::from_millis(100));
        assert!(child.try_wait().unwrap().is_none(), "it waits");
        let kill = std::process::Command::new("kill").arg(child.id().to_string()).status().unwrap();
        assert!(kill.success());
        assert_eq!(child.wait().unwrap().code(), Some(0));
    }
}
