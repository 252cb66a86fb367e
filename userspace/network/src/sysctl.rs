//! Kernel parameters of the network namespace of the calling thread.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// A parameter could not be read or written.
#[derive(Debug, thiserror::Error)]
#[error("cannot {attempted} the kernel parameter {name}")]
pub struct SysctlError {
    attempted: &'static str,
    name: String,
    #[source]
    cause: io::Error,
}

/// Returns the value of a parameter, named by its path below `/proc/sys`; `None` if it does not exist.
pub(crate) fn read(name: &str) -> Result<Option<String>, SysctlError> {
    match fs::read_to_string(path(name)) {
        Ok(value) => Ok(Some(value.trim_end().to_owned())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(cause) => Err(SysctlError { attempted: "read", name: name.to_owned(), cause }),
    }
}

/// Sets a parameter.
pub(crate) fn write(name: &str, value: &str) -> Result<(), SysctlError> {
    fs::write(path(name), value).map_err(|cause| SysctlError {
        attempted: "write",
        name: name.to_owned(),
        cause,
    })
}

/// Returns the interfaces that have parameters of a family (`ipv4`, `ipv6`), and `all` and `default`.
pub(crate) fn interfaces(family: &str) -> Result<Vec<String>, SysctlError> {
    let name = format!("net/{family}/conf");
    let entries = match fs::read_dir(path(&name)) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(cause) => return Err(SysctlError { attempted: "list", name, cause }),
    };
    let mut names: Vec<_> =
        entries.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    names.sort_unstable();
    Ok(names)
}

fn path(name: &str) -> PathBuf {
    Path::new("/proc/sys").join(name)
}
