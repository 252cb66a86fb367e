//! The attached programs, read from the pinned links.

use std::ffi::CString;
use std::fs;
use std::io;
use std::os::fd::AsFd;

use serde::Serialize;

use super::{InspectError, Inspector};
use crate::sys;

/// One pinned link.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct LinkRow {
    /// Name of the pin: `cgroup-connect4`, `if7-egress`.
    pub name: String,
    /// Name of the program that the pin is for.
    pub program: String,
    /// The kernel's id of the program that runs.
    pub program_id: u32,
    /// The interface of the pin; `None` for a cgroup.
    pub interface: Option<Attached>,
    /// The id of the cgroup.
    pub cgroup: Option<u64>,
    /// False if somebody has detached it, or if its interface or cgroup is gone.
    pub live: bool,
}

/// An interface.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Attached {
    pub index: u32,
    /// The name; `None` if the interface is gone.
    pub name: Option<String>,
}

impl Inspector {
    /// Returns the pinned links by name.
    ///
    /// # Errors
    /// Fails if the directory or a link cannot be read.
    pub fn links(&self) -> Result<Vec<LinkRow>, InspectError> {
        let directory = self.directory.join("links");
        let to = |cause| InspectError::Links { directory: directory.clone(), cause };
        let mut rows = Vec::new();
        for entry in fs::read_dir(&directory).map_err(to)? {
            let path = entry.map_err(to)?.path();
            let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
            let link = match sys::object_get(&path) {
                Ok(link) => link,
                // Removed since the directory was read.
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                Err(error) => return Err(to(error)),
            };
            let info = sys::link_info(link.as_fd()).map_err(to)?;
            rows.push(row(name, &info));
        }
        rows.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(rows)
    }
}

fn row(name: String, info: &sys::LinkInfo) -> LinkRow {
    let of_interface = name.strip_prefix("if").and_then(|rest| rest.split_once('-'));
    match of_interface.and_then(|(index, program)| Some((index.parse::<u32>().ok()?, program.to_owned()))) {
        Some((index, program)) => LinkRow {
            program,
            program_id: info.program_id,
            interface: Some(Attached { index, name: interface_name(index) }),
            cgroup: None,
            live: info.ifindex != 0,
            name,
        },
        None => LinkRow {
            program: name.strip_prefix("cgroup-").unwrap_or(&name).to_owned(),
            program_id: info.program_id,
            interface: None,
            cgroup: Some(info.cgroup),
            live: info.cgroup != 0,
            name,
        },
    }
}

/// Returns the name of an interface of this network namespace; `None` if there is none with this index.
pub(crate) fn interface_name(index: u32) -> Option<String> {
    let mut buffer = [0_u8; libc::IF_NAMESIZE];
    // SAFETY: the buffer is as long as the call asks for.
    let name = unsafe { libc::if_indextoname(index, buffer.as_mut_ptr().cast()) };
    if name.is_null() {
        return None;
    }
    let length = buffer.iter().position(|byte| *byte == 0)?;
    CString::new(&buffer[..length]).ok()?.into_string().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pins_are_told_apart_by_name() {
        let info = sys::LinkInfo { program_id: 9, cgroup: 1, ..sys::LinkInfo::default() };
        let link = row("cgroup-connect4".to_owned(), &info);
        assert_eq!((link.program.as_str(), link.cgroup, link.live), ("connect4", Some(1), true));
        let link = row("if4294967295-egress".to_owned(), &info);
        assert_eq!((link.program.as_str(), link.live), ("egress", false));
        assert_eq!(link.interface, Some(Attached { index: u32::MAX, name: None }));
    }

    #[test]
    fn interfaces_have_names_while_they_are_there() {
        assert_eq!(interface_name(1).as_deref(), Some("lo"));
        assert_eq!(interface_name(u32::MAX >> 1), None);
    }
}
