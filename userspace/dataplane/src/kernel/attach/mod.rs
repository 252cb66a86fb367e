//! The attached programs. Everything stays attached without a process, and the next one finds it again: links
//! by the names of their pins, filters by their own names.

mod beside;
pub mod links;
mod probe;
mod state;
mod xdp;

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

pub use self::links::unpin as unpin_link;
pub use self::probe::lacks;
pub use self::state::Attached;
pub use self::xdp::XdpState;

use self::links::Links;
use super::{ClassifierHook, XdpMode, failed};
use crate::filters::{self, Direction, Filters};
use crate::netlink::Refused;
use crate::program::Program;
use crate::sys::{self, Target};
use crate::tables::{DataPlaneError, Interface, Role};

/// The program that handles the packets of an interface, by interface and direction.
type Classifiers = BTreeMap<(u32, Direction), Program>;

/// Programs, and where they are attached.
pub struct Attachments {
    programs: BTreeMap<Program, OwnedFd>,
    links: Links,
    filters: Filters,
    /// Classifiers are filters, because the kernel has no tcx.
    without_tcx: bool,
    xdp: BTreeMap<String, XdpState>,
}

impl Attachments {
    /// Takes over: everything that an earlier process attached runs these programs from now on. `links` is
    /// the directory of its links, `bpf_root` the name in its filters. With `beside` those filters are
    /// another layout's, and stay until [`Attachments::alone`].
    pub fn new(
        programs: BTreeMap<Program, OwnedFd>,
        links: PathBuf,
        bpf_root: &Path,
        hook: ClassifierHook,
        beside: bool,
    ) -> Result<Self, DataPlaneError> {
        let without_tcx = match hook {
            ClassifierHook::Auto => !sys::has_tcx(programs[&Program::Egress].as_fd()),
            ClassifierHook::Tcx => false,
            ClassifierHook::Filter => true,
        };
        let this = Self {
            programs,
            links: Links::new(links),
            filters: Filters::new(bpf_root),
            without_tcx,
            xdp: BTreeMap::new(),
        };
        for name in this.links.names()? {
            if let Some((program, _)) = links::of_interface(&name)
                && let Some(link) = this.links.live(&name)?
            {
                this.links.update(&name, &link, this.fd(program))?;
            }
        }
        if beside && without_tcx {
            return Ok(this);
        }
        for filter in this.filters.all().map_err(|error| failed("listing filters".to_owned(), error))? {
            match Program::named(&filter.program) {
                Some(program) if without_tcx => {
                    this.put_filter(filter.interface, filter.direction, program)?;
                }
                _ => this.remove_filter(&filter)?,
            }
        }
        Ok(this)
    }

    /// Returns a loaded program.
    pub fn program(&self, program: Program) -> &OwnedFd {
        &self.programs[&program]
    }

    fn fd(&self, program: Program) -> BorrowedFd<'_> {
        self.programs[&program].as_fd()
    }

    /// Attaches the socket programs to a cgroup, which is created if necessary. A link to another cgroup is
    /// replaced.
    pub fn cgroup(&self, path: &Path) -> Result<(), DataPlaneError> {
        let attempted = || format!("attaching to cgroup {}", path.display());
        // Created where the hierarchy is: elsewhere the kernel refuses to attach.
        fs::create_dir_all(path).map_err(|error| failed(attempted(), error))?;
        let directory = File::open(path).map_err(|error| failed(attempted(), error))?;
        let id = directory.metadata().map_err(|error| failed(attempted(), error))?.ino();
        for program in Program::ALL.into_iter().filter(|program| program.on_cgroup()) {
            let name = format!("cgroup-{}", program.name());
            match self.links.open(&name)? {
                Some((link, info)) if info.cgroup == id => {
                    self.links.update(&name, &link, self.fd(program))?;
                }
                other => {
                    if other.is_some() {
                        self.links.unpin(&name)?;
                    }
                    self.links.create(
                        &name,
                        Target::Cgroup(directory.as_fd()),
                        program,
                        self.fd(program),
                        0,
                    )?;
                }
            }
        }
        Ok(())
    }

    /// Attaches to these interfaces and to no others. Returns the uplinks that have XDP.
    pub fn interfaces(
        &mut self,
        interfaces: &[Interface],
        mode: XdpMode,
    ) -> Result<BTreeSet<u32>, DataPlaneError> {
        let mut classifiers = Classifiers::new();
        for interface in interfaces {
            let ingress = match interface.role {
                Role::Uplink => Program::UplinkIngress,
                Role::Pod => Program::PodIngress,
            };
            classifiers.insert((interface.index, Direction::Ingress), ingress);
            classifiers.insert((interface.index, Direction::Egress), Program::Egress);
        }
        let uplinks: Vec<&Interface> =
            interfaces.iter().filter(|interface| interface.role == Role::Uplink).collect();
        let mut kept: BTreeSet<String> = uplinks
            .iter()
            .filter(|uplink| xdp::wanted(mode, &uplink.name).is_ok())
            .map(|uplink| links::name(Program::UplinkXdp, uplink.index))
            .collect();
        if !self.without_tcx {
            kept.extend(classifiers.iter().map(|((index, _), program)| links::name(*program, *index)));
        }
        for name in self.links.names()? {
            if links::of_interface(&name).is_some() && !kept.contains(&name) {
                self.links.unpin(&name)?;
            }
        }
        if self.without_tcx {
            self.classify_by_filters(&classifiers)?;
        } else {
            self.classify_by_links(&classifiers)?;
        }
        self.uplinks(&uplinks, mode)
    }

    /// Returns the XDP state of each uplink of the last [`Attachments::interfaces`], by interface name.
    pub fn xdp_states(&self) -> &BTreeMap<String, XdpState> {
        &self.xdp
    }

    /// Returns the programs on interfaces, as the kernel has them.
    pub fn attached(&self) -> Result<BTreeSet<(u32, Program)>, DataPlaneError> {
        let mut found = BTreeSet::new();
        for name in self.links.names()? {
            if let Some((program, index)) = links::of_interface(&name)
                && self.links.open(&name)?.is_some_and(|(_, info)| info.ifindex == index)
            {
                found.insert((index, program));
            }
        }
        let filters = self.filters.all().map_err(|error| failed("listing filters".to_owned(), error))?;
        found.extend(
            filters.iter().filter_map(|filter| Some((filter.interface, Program::named(&filter.program)?))),
        );
        Ok(found)
    }

    /// Returns `true` if the kernel has tcx, whether or not it is used.
    pub fn has_tcx(&self) -> bool {
        sys::has_tcx(self.fd(Program::Egress))
    }

    fn classify_by_links(&self, wanted: &Classifiers) -> Result<(), DataPlaneError> {
        for ((index, _), program) in wanted {
            let name = links::name(*program, *index);
            if self.links.live(&name)?.is_none() {
                let target = Target::Interface(*index);
                unless_gone(*index, self.links.create(&name, target, *program, self.fd(*program), 0))?;
            }
        }
        Ok(())
    }

    fn classify_by_filters(&self, wanted: &Classifiers) -> Result<(), DataPlaneError> {
        let found = self.filters.all().map_err(|error| failed("listing filters".to_owned(), error))?;
        let mut there = BTreeSet::new();
        for filter in found {
            let place = (filter.interface, filter.direction);
            match wanted.get(&place) {
                Some(program) => {
                    let id = sys::program_id(self.fd(*program))
                        .map_err(|error| failed(format!("asking about {}", program.name()), error))?;
                    if filter.id == id {
                        there.insert(place);
                    }
                }
                None => self.remove_filter(&filter)?,
            }
        }
        for ((index, direction), program) in wanted {
            if !there.contains(&(*index, *direction)) {
                unless_gone(*index, self.put_filter(*index, *direction, *program))?;
            }
        }
        Ok(())
    }

    fn put_filter(&self, index: u32, direction: Direction, program: Program) -> Result<(), DataPlaneError> {
        self.filters
            .put(index, direction, program.name(), self.fd(program))
            .map_err(|error| failed(format!("attaching {} to interface {index}", program.name()), error))
    }

    fn remove_filter(&self, filter: &filters::Filter) -> Result<(), DataPlaneError> {
        self.filters.remove(filter).map_err(|error| {
            failed(format!("removing {} from interface {}", filter.program, filter.interface), error)
        })
    }

    /// Attaches XDP to these uplinks; those that refuse it go without, which is logged once.
    fn uplinks(&mut self, uplinks: &[&Interface], mode: XdpMode) -> Result<BTreeSet<u32>, DataPlaneError> {
        let mut states = BTreeMap::new();
        let mut with_xdp = BTreeSet::new();
        for uplink in uplinks {
            let state = match xdp::wanted(mode, &uplink.name) {
                Ok(wanted) => {
                    if mode == XdpMode::Native
                        && wanted != xdp::Wanted::Native
                        && !self.xdp.contains_key(&uplink.name)
                    {
                        tracing::warn!(
                            interface = uplink.name,
                            "XDP by the stack, not by the driver: a veth drops what its program sends unless the \
                             other end takes part"
                        );
                    }
                    self.uplink(uplink, wanted)?
                }
                Err(reason) => Some(self.without(&uplink.name, reason)),
            };
            let Some(state) = state else {
                continue;
            };
            if !matches!(state, XdpState::Off(_)) {
                with_xdp.insert(uplink.index);
            }
            states.insert(uplink.name.clone(), state);
        }
        self.xdp = states;
        Ok(with_xdp)
    }

    /// Returns the state of an uplink that is to have no XDP. That is not a fault, and is logged once.
    fn without(&self, uplink: &str, reason: String) -> XdpState {
        let said = matches!(self.xdp.get(uplink), Some(XdpState::Off(before)) if *before == reason);
        if !said {
            tracing::info!(interface = uplink, reason, "no XDP here; the stack's hooks carry all packets");
        }
        XdpState::Off(reason)
    }

    /// Attaches XDP to one uplink; `None` if the interface is gone.
    fn uplink(&self, uplink: &Interface, wanted: xdp::Wanted) -> Result<Option<XdpState>, DataPlaneError> {
        let index = uplink.index;
        let name = links::name(Program::UplinkXdp, index);
        if self.links.live(&name)?.is_some() {
            if xdp::attached(index) == Some(wanted) {
                return Ok(Some(wanted.state()));
            }
            // An earlier process was configured to attach it otherwise.
            self.links.unpin(&name)?;
        }
        let program = self.fd(Program::UplinkXdp);
        let target = Target::Interface(index);
        match self.links.create(&name, target, Program::UplinkXdp, program, wanted.flags()) {
            Ok(()) => Ok(Some(wanted.state())),
            Err(error) if gone(&error) => Ok(None),
            Err(error) => {
                let Some(cause) = system_error(&error) else {
                    return Err(error);
                };
                let state = XdpState::Off(xdp::reason(index, program, wanted, cause));
                if let XdpState::Off(reason) = &state
                    && self.xdp.get(&uplink.name) != Some(&state)
                {
                    tracing::warn!(
                        interface = uplink.name,
                        reason,
                        "no XDP here; the stack's hooks carry all packets"
                    );
                }
                Ok(Some(state))
            }
        }
    }
}

/// Ignores an error if the interface is gone: it may vanish at any time, and is then missing from the next
/// list.
fn unless_gone(index: u32, outcome: Result<(), DataPlaneError>) -> Result<(), DataPlaneError> {
    match outcome {
        Err(error) if gone(&error) => {
            tracing::debug!(interface = index, %error, "the interface vanished meanwhile");
            Ok(())
        }
        outcome => outcome,
    }
}

fn gone(error: &DataPlaneError) -> bool {
    system_error(error).and_then(io::Error::raw_os_error) == Some(libc::ENODEV)
}

/// Returns the kernel's answer.
fn system_error(error: &DataPlaneError) -> Option<&io::Error> {
    let DataPlaneError::Kernel { cause, .. } = error else {
        return None;
    };
    let refused = cause.downcast_ref::<Refused>().map(|refused| &refused.cause);
    cause.downcast_ref::<io::Error>().or(refused)
}
