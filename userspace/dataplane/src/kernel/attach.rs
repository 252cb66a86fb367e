//! Links, pinned by name: what is attached stays so without a process, and is found again by the
//! next one.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use super::object::Program;
use super::{XdpMode, failed};
use crate::sys::{self, Target};
use crate::tables::{DataPlaneError, Interface, Role};

const XDP_FLAGS_SKB_MODE: u32 = 2;
const XDP_FLAGS_DRV_MODE: u32 = 4;

/// Programs, and the directory in which their links are pinned.
pub struct Attachments {
    programs: BTreeMap<Program, OwnedFd>,
    directory: PathBuf,
}

impl Attachments {
    /// Takes over: every link that an earlier process pinned runs these programs from now on.
    pub fn new(programs: BTreeMap<Program, OwnedFd>, directory: PathBuf) -> Result<Self, DataPlaneError> {
        let this = Self { programs, directory };
        for name in this.pinned()? {
            if let Some((program, _)) = interface_link(&name)
                && let Some(link) = this.live(&name)?
            {
                this.update(&name, &link, program)?;
            }
        }
        Ok(this)
    }

    /// A loaded program.
    pub fn program(&self, program: Program) -> &OwnedFd {
        &self.programs[&program]
    }

    /// Attaches the socket programs to a cgroup, which is made if need be. A link to another cgroup is replaced.
    pub fn cgroup(&self, path: &Path) -> Result<(), DataPlaneError> {
        let attempted = || format!("attaching to cgroup {}", path.display());
        // Made if need be, where the hierarchy is: elsewhere the kernel refuses to attach.
        fs::create_dir_all(path).map_err(|error| failed(attempted(), error))?;
        let directory = File::open(path).map_err(|error| failed(attempted(), error))?;
        let id = directory.metadata().map_err(|error| failed(attempted(), error))?.ino();
        for program in Program::ALL.into_iter().filter(|program| program.on_cgroup()) {
            let name = format!("cgroup-{}", program.name());
            match self.open(&name)? {
                Some((link, info)) if info.cgroup == id => self.update(&name, &link, program)?,
                other => {
                    if other.is_some() {
                        self.unpin(&name)?;
                    }
                    self.create(&name, Target::Cgroup(directory.as_fd()), program, 0)?;
                }
            }
        }
        Ok(())
    }

    /// Attaches to these interfaces and to no others. Gives the uplinks that have XDP.
    pub fn interfaces(
        &self,
        interfaces: &[Interface],
        xdp: XdpMode,
    ) -> Result<BTreeSet<u32>, DataPlaneError> {
        let mut wanted: BTreeMap<String, (Program, u32, u32)> = BTreeMap::new();
        for interface in interfaces {
            let index = interface.index;
            let ingress = match interface.role {
                Role::Uplink => Program::UplinkIngress,
                Role::Pod => Program::PodIngress,
            };
            wanted.insert(link_name(ingress, index), (ingress, index, 0));
            wanted.insert(link_name(Program::Egress, index), (Program::Egress, index, 0));
            if interface.role == Role::Uplink
                && let Some(flags) = xdp_flags(xdp, &interface.name)
            {
                wanted.insert(link_name(Program::UplinkXdp, index), (Program::UplinkXdp, index, flags));
            }
        }
        for name in self.pinned()? {
            if interface_link(&name).is_some() && !wanted.contains_key(&name) {
                self.unpin(&name)?;
            }
        }
        let mut with_xdp = BTreeSet::new();
        for (name, (program, index, flags)) in wanted {
            let attached = match self.live(&name)? {
                Some(_) => true,
                None => self.attach(&name, program, index, flags)?,
            };
            if attached && program == Program::UplinkXdp {
                with_xdp.insert(index);
            }
        }
        Ok(with_xdp)
    }

    /// Attaches to an interface; false if that went without, because the interface is gone or its
    /// driver has no XDP.
    fn attach(&self, name: &str, program: Program, index: u32, flags: u32) -> Result<bool, DataPlaneError> {
        match self.create(name, Target::Interface(index), program, flags) {
            Ok(()) => Ok(true),
            Err(error) if gone(&error) => {
                tracing::debug!(interface = index, "interface vanished before {name} was attached");
                Ok(false)
            }
            Err(error) if program == Program::UplinkXdp => {
                tracing::warn!(interface = index, error = %chain(&error), "no XDP here; tcx carries all packets");
                Ok(false)
            }
            Err(error) => Err(error),
        }
    }

    fn create(
        &self,
        name: &str,
        target: Target<'_>,
        program: Program,
        flags: u32,
    ) -> Result<(), DataPlaneError> {
        let link = sys::link_create(self.program(program).as_fd(), target, program.attach_type(), flags)
            .map_err(|error| failed(format!("attaching {} as {name}", program.name()), error))?;
        sys::object_pin(link.as_fd(), &self.directory.join(name))
            .map_err(|error| failed(format!("pinning link {name}"), error))
    }

    /// Replaces the link's program, unless it runs already.
    fn update(&self, name: &str, link: &OwnedFd, program: Program) -> Result<(), DataPlaneError> {
        sys::link_update(link.as_fd(), self.program(program).as_fd())
            .map_err(|error| failed(format!("replacing the program of link {name}"), error))
    }

    fn open(&self, name: &str) -> Result<Option<(OwnedFd, sys::LinkInfo)>, DataPlaneError> {
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

    /// The link of that name; unpinned, and none, if its interface is gone.
    fn live(&self, name: &str) -> Result<Option<OwnedFd>, DataPlaneError> {
        match self.open(name)? {
            Some((_, info)) if info.ifindex == 0 => {
                self.unpin(name)?;
                Ok(None)
            }
            Some((link, _)) => Ok(Some(link)),
            None => Ok(None),
        }
    }

    fn unpin(&self, name: &str) -> Result<(), DataPlaneError> {
        unpin_link(&self.directory.join(name)).map_err(|error| failed(format!("removing link {name}"), error))
    }

    fn pinned(&self) -> Result<Vec<String>, DataPlaneError> {
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
pub fn unpin_link(path: &Path) -> io::Result<()> {
    if let Ok(link) = sys::object_get(path) {
        // A link whose interface or cgroup is gone is detached already.
        let _ = sys::link_detach(link.as_fd());
    }
    fs::remove_file(path)
}

fn link_name(program: Program, index: u32) -> String {
    format!("if{index}-{}", program.name())
}

/// Program and interface of a link, from its name.
fn interface_link(name: &str) -> Option<(Program, u32)> {
    let (index, program) = name.strip_prefix("if")?.split_once('-')?;
    let program = Program::ALL.into_iter().find(|known| known.name() == program)?;
    Some((program, index.parse().ok()?))
}

/// Flags for an uplink; none to leave it without XDP.
fn xdp_flags(mode: XdpMode, interface: &str) -> Option<u32> {
    match mode {
        XdpMode::Off => None,
        XdpMode::Generic => Some(XDP_FLAGS_SKB_MODE),
        XdpMode::Native => Some(XDP_FLAGS_DRV_MODE),
        // What has no device behind it is virtual: a veth drops what its program sends unless the
        // other end takes part, and elsewhere the generic mode costs more than it saves.
        XdpMode::Auto => {
            let device = Path::new("/sys/class/net").join(interface).join("device");
            device.exists().then_some(XDP_FLAGS_DRV_MODE)
        }
    }
}

fn gone(error: &DataPlaneError) -> bool {
    let DataPlaneError::Kernel { cause, .. } = error else {
        return false;
    };
    let code = cause.downcast_ref::<io::Error>().and_then(io::Error::raw_os_error);
    code == Some(libc::ENODEV)
}

/// The error with its causes, for a line of log.
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text = format!("{text}: {cause}");
        source = cause.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_are_found_by_name() {
        for program in [Program::UplinkIngress, Program::PodIngress, Program::Egress, Program::UplinkXdp] {
            assert_eq!(interface_link(&link_name(program, 7)), Some((program, 7)));
        }
        assert_eq!(interface_link("cgroup-connect4"), None);
        assert_eq!(interface_link("ifx-egress"), None);
    }
}
