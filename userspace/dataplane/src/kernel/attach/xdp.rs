//! How uplinks get XDP, and what to say where they do not.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::path::Path;

use netlink_packet_core::Parseable as _;
use netlink_packet_route::link::{InfoKind, LinkAttribute, LinkInfo, LinkMessage, LinkXdp, XdpAttached};

use crate::kernel::XdpMode;
use crate::netlink::{Message, Socket};

const FLAG_UPDATE_IF_NOEXIST: u32 = 1;
const FLAG_SKB_MODE: u32 = 2;
const FLAG_DRV_MODE: u32 = 4;

const RTM_GETLINK: u16 = 18;
const RTM_SETLINK: u16 = 19;

/// Whether an uplink's packets are handled before the stack sees them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum XdpState {
    /// By the driver.
    Native,
    /// By the stack, before anything else of it.
    Generic,
    /// They are not: tcx, or a filter, handles them all. Says why.
    Off(String),
}

impl XdpState {
    /// A word for logs and metrics: `native`, `generic` or `off`.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Native => "native",
            Self::Generic => "generic",
            Self::Off(_) => "off",
        }
    }
}

/// What to ask the kernel for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wanted {
    Native,
    Generic,
}

impl Wanted {
    pub fn flags(self) -> u32 {
        match self {
            Self::Native => FLAG_DRV_MODE,
            Self::Generic => FLAG_SKB_MODE,
        }
    }

    pub fn state(self) -> XdpState {
        match self {
            Self::Native => XdpState::Native,
            Self::Generic => XdpState::Generic,
        }
    }
}

/// What an uplink shall have, or why it shall have nothing.
pub fn wanted(mode: XdpMode, interface: &str) -> Result<Wanted, String> {
    match mode {
        XdpMode::Off => Err("not asked for".to_owned()),
        XdpMode::Generic => Ok(Wanted::Generic),
        XdpMode::Native if is_veth(interface) => Ok(Wanted::Generic),
        XdpMode::Native | XdpMode::ForceNative => Ok(Wanted::Native),
        // What has no device behind it is virtual: a veth drops what its program sends unless the
        // other end takes part, and elsewhere the generic mode costs more than it saves.
        XdpMode::Auto => {
            let device = Path::new("/sys/class/net").join(interface).join("device");
            device.exists().then_some(Wanted::Native).ok_or_else(|| "a virtual interface".to_owned())
        }
    }
}

/// One end of a pair of interfaces, as the kernel calls it.
pub fn is_veth(interface: &str) -> bool {
    let mut wanted = LinkMessage::default();
    wanted.attributes.push(LinkAttribute::IfName(interface.to_owned()));
    ask(&wanted).is_some_and(|link| {
        link.attributes.iter().any(|attribute| match attribute {
            LinkAttribute::LinkInfo(all) => all.contains(&LinkInfo::Kind(InfoKind::Veth)),
            _ => false,
        })
    })
}

/// What the kernel says of an interface.
fn ask(wanted: &LinkMessage) -> Option<LinkMessage> {
    let link = Socket::open().ok()?.get(Message::of(RTM_GETLINK, 0, wanted)).ok()??;
    LinkMessage::parse(&link).ok()
}

fn link(index: u32) -> LinkMessage {
    let mut link = LinkMessage::default();
    link.header.index = index;
    link
}

/// How an interface runs an XDP program now, whoever's.
pub fn attached(index: u32) -> Option<Wanted> {
    let found = ask(&link(index))?;
    let xdp = found.attributes.iter().find_map(|attribute| match attribute {
        LinkAttribute::Xdp(xdp) => Some(xdp),
        _ => None,
    })?;
    if xdp.contains(&LinkXdp::Attached(XdpAttached::Driver)) {
        Some(Wanted::Native)
    } else if xdp.contains(&LinkXdp::Attached(XdpAttached::SocketBuffer)) {
        Some(Wanted::Generic)
    } else {
        None
    }
}

/// Why an interface refused a link with `error`, in the driver's words if it has any. A link does
/// not give them, netlink does: so the same is asked for once more there.
pub fn reason(index: u32, program: BorrowedFd<'_>, wanted: Wanted, error: &io::Error) -> String {
    let ask = |fd: i32, flags: u32| {
        let mut link = link(index);
        link.attributes.push(LinkAttribute::Xdp(vec![LinkXdp::Fd(fd), LinkXdp::Flags(flags)]));
        Message::of(RTM_SETLINK, 0, &link)
    };
    let words = Socket::open().ok().and_then(|mut socket| {
        match socket.change(ask(program.as_raw_fd(), wanted.flags() | FLAG_UPDATE_IF_NOEXIST)) {
            Err(refused) => refused.words,
            Ok(()) => {
                // Other than a moment ago it would have it. What no link holds, nobody would find again.
                let _ = socket.change(ask(-1, wanted.flags()));
                None
            }
        }
    });
    match (words, error.raw_os_error()) {
        (Some(words), _) => format!("{words} ({error})"),
        (None, Some(libc::EOPNOTSUPP)) => format!("the driver has no XDP ({error})"),
        (None, Some(libc::EBUSY | libc::EEXIST)) => {
            format!("another XDP program is on the interface ({error})")
        }
        (None, _) => error.to_string(),
    }
}
