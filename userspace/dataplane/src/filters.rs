//! Classifiers as filters of traffic control, for kernels without tcx (before 6.6). A filter is stored in its
//! interface, not in a file: it is recognised by its name, which contains the directory of our pins, and is
//! replaced without a gap because every process puts it in the same place.

use std::os::fd::{AsRawFd, BorrowedFd};
use std::path::Path;

use netlink_packet_core::{NLM_F_CREATE, NLM_F_EXCL, NLM_F_REPLACE, Parseable as _};
use netlink_packet_route::tc::{
    TcAttribute, TcBpfFlags, TcFilterBpf, TcFilterBpfOption, TcHandle, TcHeader, TcMessage, TcOption,
};

use crate::netlink::{Message, Refused, Socket};
use crate::program::Program;

const RTM_NEWQDISC: u16 = 36;
const RTM_DELQDISC: u16 = 37;
const RTM_GETQDISC: u16 = 38;
const RTM_NEWTFILTER: u16 = 44;
const RTM_DELTFILTER: u16 = 45;
const RTM_GETTFILTER: u16 = 46;

/// The parent of filters below `clsact`, and its handle.
const CLSACT: u32 = 0xffff_fff1;
const CLSACT_HANDLE: u32 = 0xffff_0000;
const CLSACT_KIND: &str = "clsact";
/// The priority of our filters: after those that a network plugin puts first, before those whose priority the
/// kernel chose.
const PRIORITY: u32 = 0x4857;
/// The priority of programs that wait behind ours to replace them, see [`Filters::put_behind`].
const BEHIND: u32 = PRIORITY + 1;
const HANDLE: u32 = 1;

/// The direction of packets on an interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Direction {
    Ingress,
    Egress,
}

impl Direction {
    const ALL: [Self; 2] = [Self::Ingress, Self::Egress];

    fn parent(self) -> u32 {
        match self {
            Self::Ingress => 0xffff_fff2,
            Self::Egress => 0xffff_fff3,
        }
    }
}

/// A filter of ours.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Filter {
    pub interface: u32,
    pub direction: Direction,
    /// Name of the program.
    pub program: String,
    /// The kernel's id of the program.
    pub id: u32,
}

/// The filters of one data plane, in the network namespace of the calling thread.
pub struct Filters {
    prefix: String,
}

impl Filters {
    /// Returns the filters of the data plane whose pins are in a directory.
    pub fn new(bpf_root: &Path) -> Self {
        Self { prefix: format!("hawser {} ", bpf_root.display()) }
    }

    /// Returns all filters that exist.
    pub fn all(&self) -> Result<Vec<Filter>, Refused> {
        let mut socket = Socket::open()?;
        let mut found = Vec::new();
        for interface in clsacts(&mut socket)? {
            for direction in Direction::ALL {
                found.extend(self.read(&mut socket, interface, direction)?);
            }
        }
        Ok(found)
    }

    fn read(
        &self,
        socket: &mut Socket,
        interface: u32,
        direction: Direction,
    ) -> Result<Option<Filter>, Refused> {
        let filters = dump(socket, interface, direction)?;
        Ok(filters.iter().find_map(|filter| {
            // A filter of an unknown kind is not ours.
            let filter = TcMessage::parse(filter).ok()?;
            let options: Vec<&TcFilterBpfOption> = options(&filter).collect();
            let program = options.iter().find_map(|option| match option {
                TcFilterBpfOption::ProgName(name) => name.strip_prefix(&self.prefix),
                _ => None,
            })?;
            let id = options.iter().find_map(|option| match option {
                TcFilterBpfOption::ProgId(id) => Some(*id),
                _ => None,
            });
            Some(Filter { interface, direction, program: program.to_owned(), id: id.unwrap_or(0) })
        }))
    }

    /// Attaches a program in the place of our filters; an existing one is replaced without a gap.
    ///
    /// # Errors
    /// Fails if the interface is gone (ENODEV), or has a queueing discipline that excludes `clsact`.
    pub fn put(
        &self,
        interface: u32,
        direction: Direction,
        name: &str,
        program: BorrowedFd<'_>,
    ) -> Result<(), Refused> {
        self.put_at(PRIORITY, interface, direction, name, program)
    }

    /// Attaches a program behind ours: it gets the packets that ours passes on.
    pub fn put_behind(&self, filter: &Filter, name: &str, program: BorrowedFd<'_>) -> Result<(), Refused> {
        self.put_at(BEHIND, filter.interface, filter.direction, name, program)
    }

    /// Removes the filter of [`Filters::put_behind`], if there is one.
    pub fn remove_behind(&self, filter: &Filter) -> Result<(), Refused> {
        let mut socket = Socket::open()?;
        absent(socket.change(removal(filter, BEHIND)))?;
        Ok(())
    }

    fn put_at(
        &self,
        priority: u32,
        interface: u32,
        direction: Direction,
        name: &str,
        program: BorrowedFd<'_>,
    ) -> Result<(), Refused> {
        let mut socket = Socket::open()?;
        add_clsact(&mut socket, interface)?;
        let options = vec![
            TcOption::Bpf(TcFilterBpfOption::ProgFd(program.as_raw_fd() as u32)),
            TcOption::Bpf(TcFilterBpfOption::ProgName(format!("{}{name}", self.prefix))),
            // The program's return value is the verdict.
            TcOption::Bpf(TcFilterBpfOption::Flags(TcBpfFlags::DirectAction)),
        ];
        let attributes = vec![TcAttribute::Kind(TcFilterBpf::KIND.to_owned()), TcAttribute::Options(options)];
        let header = header(interface, HANDLE, direction.parent(), place(priority));
        let filter = TcMessage::from_parts(header, attributes);
        socket.change(Message::of(RTM_NEWTFILTER, NLM_F_CREATE | NLM_F_REPLACE, &filter))
    }

    /// Removes a filter, and `clsact` if nobody else has a filter there. Succeeds if it is gone already.
    pub fn remove(&self, filter: &Filter) -> Result<(), Refused> {
        let mut socket = Socket::open()?;
        self.remove_behind(filter)?;
        absent(socket.change(removal(filter, PRIORITY)))?;
        for direction in Direction::ALL {
            if absent(dump(&mut socket, filter.interface, direction))?.is_some_and(|found| !found.is_empty())
            {
                return Ok(());
            }
        }
        absent(socket.change(clsact(RTM_DELQDISC, 0, filter.interface)))?;
        Ok(())
    }
}

/// Removes all filters of the data plane whose pins are, or were, in a directory.
pub fn remove_all(bpf_root: &Path) -> Result<(), Refused> {
    let filters = Filters::new(bpf_root);
    for filter in filters.all()? {
        filters.remove(&filter)?;
    }
    Ok(())
}

/// Returns the number of filters of one data plane that treat their interface as an uplink, in the network
/// namespace of this thread; `None` if they cannot be listed.
pub fn uplinks(bpf_root: &Path) -> Option<usize> {
    let all = Filters::new(bpf_root).all().ok()?;
    Some(all.iter().filter(|filter| filter.program == Program::UplinkIngress.name()).count())
}

/// Returns priority and protocol (all) as the kernel packs them.
fn place(priority: u32) -> u32 {
    priority << 16 | u32::from((libc::ETH_P_ALL as u16).to_be())
}

fn header(interface: u32, handle: u32, parent: u32, info: u32) -> TcHeader {
    let (handle, parent) = (TcHandle::from(handle), TcHandle::from(parent));
    TcHeader { index: interface as i32, handle, parent, info, ..TcHeader::default() }
}

/// Returns the options of a filter that is a program.
fn options(filter: &TcMessage) -> impl Iterator<Item = &TcFilterBpfOption> {
    let all = filter.attributes.iter().filter_map(|attribute| match attribute {
        TcAttribute::Options(options) => Some(options),
        _ => None,
    });
    all.flatten().filter_map(|option| match option {
        TcOption::Bpf(option) => Some(option),
        _ => None,
    })
}

fn removal(filter: &Filter, priority: u32) -> Message {
    let header = header(filter.interface, HANDLE, filter.direction.parent(), place(priority));
    let kind = TcAttribute::Kind(TcFilterBpf::KIND.to_owned());
    Message::of(RTM_DELTFILTER, 0, &TcMessage::from_parts(header, vec![kind]))
}

fn clsact(kind: u16, flags: u16, interface: u32) -> Message {
    let header = header(interface, CLSACT_HANDLE, CLSACT, 0);
    let attributes = vec![TcAttribute::Kind(CLSACT_KIND.to_owned())];
    Message::of(kind, flags, &TcMessage::from_parts(header, attributes))
}

/// Adds `clsact` unless it exists. Its place may be taken by `ingress`, which has no egress and would take
/// our filter for one of its own: that is an error.
fn add_clsact(socket: &mut Socket, interface: u32) -> Result<(), Refused> {
    match socket.change(clsact(RTM_NEWQDISC, NLM_F_CREATE | NLM_F_EXCL, interface)) {
        Err(refused) if refused.cause.raw_os_error() == Some(libc::EEXIST) => {
            if clsacts(socket)?.contains(&interface) {
                return Ok(());
            }
            let words = "the interface has a queueing discipline for ingress alone; remove it with \
                         `tc qdisc del dev … ingress`";
            Err(Refused { words: Some(words.to_owned()), ..refused })
        }
        outcome => outcome,
    }
}

/// Returns the interfaces with `clsact`.
fn clsacts(socket: &mut Socket) -> Result<Vec<u32>, Refused> {
    let found = socket.dump(Message::of(RTM_GETQDISC, 0, &TcMessage::default()))?;
    let kind = TcAttribute::Kind(CLSACT_KIND.to_owned());
    let qdiscs = found.iter().filter_map(|qdisc| TcMessage::parse(qdisc).ok());
    let ours = qdiscs.filter(|qdisc| qdisc.attributes.contains(&kind));
    Ok(ours.map(|qdisc| qdisc.header.index as u32).collect())
}

/// Returns all filters of an interface, including foreign ones.
fn dump(socket: &mut Socket, interface: u32, direction: Direction) -> Result<Vec<Vec<u8>>, Refused> {
    let header = header(interface, 0, direction.parent(), 0);
    socket.dump(Message::of(RTM_GETTFILTER, 0, &TcMessage::from_parts(header, Vec::new())))
}

/// Returns `None` if the object of a request, or its interface, does not exist.
fn absent<T>(outcome: Result<T, Refused>) -> Result<Option<T>, Refused> {
    match outcome {
        Ok(value) => Ok(Some(value)),
        Err(refused) => match refused.cause.raw_os_error() {
            Some(libc::ENOENT | libc::ENODEV | libc::EINVAL) => Ok(None),
            _ => Err(refused),
        },
    }
}
