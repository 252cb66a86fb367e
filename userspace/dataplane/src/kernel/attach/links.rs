//! Links, pinned by name: attached programs stay without a process, and the next one finds them again.

use std::fs;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use crate::kernel::failed;
use crate::program::Program;
use crate::sys::{self, Target};
use crate::tables::DataPlaneError;

/// A directory of pinned links.
pub struct Links {
    directory: PathBuf,
}

impl Links {
    pub fn new(directory: PathBuf) -> Self {
        Self { directory }
    }

    /// Attaches a program and pins the link.
    pub fn create(
        &self,
        name: &str,
        target: Target<'_>,
        program: Program,
        fd: BorrowedFd<'_>,
        flags: u32,
    ) -> Result<(), DataPlaneError> {
        let link = sys::link_create(fd, target, program.attach_type(), flags)
            .map_err(|error| failed(format!("attaching {} as {name}", program.name()), error))?;
        sys::object_pin(link.as_fd(), &self.directory.join(name))
            .map_err(|error| failed(format!("pinning link {name}"), error))
    }

    /// Replaces the link's program, unless it runs already.
    pub fn update(&self, name: &str, link: &OwnedFd, program: BorrowedFd<'_>) -> Result<(), DataPlaneError> {
        sys::link_update(link.as_fd(), program)
            .map_err(|error| failed(format!("replacing the program of link {name}"), error))
    }

    pub fn open(&self, name: &str) -> Result<Option<(OwnedFd, sys::LinkInfo)>, DataPlaneError> {
        let attempted = |error| failed(format!("opening link {name}"), error);
        match sys::object_get(&self.directory.join(name)) {
            Ok(link) => {
                let info = sys::link_info(link.as_fd()).map_err(attempted)?;
                Ok(Some((link, info)))
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(attempted(error)),
        }
    }

    /// Returns the link of that name; if its interface is gone, unpins it and returns `None`.
    pub fn live(&self, name: &str) -> Result<Option<OwnedFd>, DataPlaneError> {
        match self.open(name)? {
            Some((_, info)) if info.ifindex == 0 => {
                self.unpin(name)?;
                Ok(None)
            }
            Some((link, _)) => Ok(Some(link)),
            None => Ok(None),
        }
    }

    /// Detaches a link but leaves its pin.
    pub fn detach(&self, name: &str) -> Result<(), DataPlaneError> {
        if let Some((link, _)) = self.open(name)? {
            // A link whose interface or cgroup is gone is detached already.
            let _ = sys::link_detach(link.as_fd());
        }
        Ok(())
    }

    pub fn unpin(&self, name: &str) -> Result<(), DataPlaneError> {
        unpin(&self.directory.join(name)).map_err(|error| failed(format!("removing link {name}"), error))
    }

    /// Moves the pin of a link to another directory.
    pub fn hand(&self, name: &str, to: &Links) -> Result<(), DataPlaneError> {
        fs::rename(self.directory.join(name), to.directory.join(name))
            .map_err(|error| failed(format!("taking over link {name}"), error))
    }

    /// Returns all names, sorted.
    pub fn names(&self) -> Result<Vec<String>, DataPlaneError> {
        let attempted = |error| failed(format!("listing {}", self.directory.display()), error);
        let mut names = Vec::new();
        for entry in fs::read_dir(&self.directory).map_err(attempted)? {
            names.push(entry.map_err(attempted)?.file_name().to_string_lossy().into_owned());
        }
        names.sort();
        Ok(names)
    }
}

/// Detaches a pinned link at once and removes its pin.
pub fn unpin(path: &Path) -> io::Result<()> {
    if let Ok(link) = sys::object_get(path) {
        // A link whose interface or cgroup is gone is detached already.
        let _ = sys::link_detach(link.as_fd());
    }
    fs::remove_file(path)
}

/// Returns the name of the link of a program to an interface.
pub fn name(program: Program, index: u32) -> String {
    format!("if{index}-{}", program.name())
}

/// Returns program and interface of a link, from its name.
pub fn of_interface(name: &str) -> Option<(Program, u32)> {
    let (index, program) = name.strip_prefix("if")?.split_once('-')?;
    Some((Program::named(program)?, index.parse().ok()?))
}

/// Returns the program of a link, from its name.
pub fn program_of(name: &str) -> Option<Program> {
    match name.strip_prefix("cgroup-") {
        Some(program) => Program::named(program),
        None => of_interface(name).map(|(program, _)| program),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_are_found_by_name() {
        for program in [Program::UplinkIngress, Program::PodIngress, Program::Egress, Program::UplinkXdp] {
            assert_eq!(of_interface(&name(program, 7)), Some((program, 7)));
        }
        assert_eq!(of_interface("cgroup-connect4"), None);
        assert_eq!(program_of("cgroup-connect4"), Some(Program::Connect4));
        assert_eq!(program_of("if7-egress"), Some(Program::Egress));
        assert_eq!(of_interface("ifx-egress"), None);
    }
}
