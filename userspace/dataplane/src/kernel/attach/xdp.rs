//! XDP on uplinks, and the reasons why one has none.

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

/// The place where an uplink's packets are handled before the stack sees them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum XdpState {
    /// In the driver.
    Native,
    /// In the stack, before everything else in it.
    Generic,
    /// Nowhere: tcx, or a filter, handles them all. Contains the reason.
    Off(String),
}

impl XdpState {
    /// Returns a word for logs and metrics: `native`, `generic` or `off`.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Native => "native",
            Self::Generic => "generic",
            Self::Off(_) => "off",
        }
    }
}

/// The mode to request from the kernel.
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

/// Returns the mode for an uplink, or the reason why it is to have none.
pub fn wanted(mode: XdpMode, interface: &str) -> Result<Wanted, String> {
    match mode {
        XdpMode::Off => Err("not asked for".to_owned()),
        XdpMode::Generic => Ok(Wanted::Generic),
        XdpMode::Native if is_veth(interface) => Ok(Wanted::Generic),
        XdpMode::Native | XdpMode::ForceNative => Ok(Wanted::Native),
        // An interface without a device is virtual: a veth drops what its program sends unless the other end
        // takes part, and elsewhere the generic mode costs more than it saves.
        XdpMode::Auto => {
            let device = Path::new("/sys/class/net").join(interface).join("device");
            device.exists().then_some(Wanted::Native).ok_or_else(|| "a virtual interface".to_owned())
        }
    }
}

/// Returns `true` if the kernel calls the interface one end of a veth pair.
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

/// Asks the kernel about an interface.
fn ask(wanted: &LinkMessage) -> Option<LinkMessage> {
    let link = Socket::open().ok()?.get(Message::of(RTM_GETLINK, 0, wanted)).ok()??;
    LinkMessage::parse(&link).ok()
}

fn link(index: u32) -> LinkMessage {
    let mut link = LinkMessage::default();
    link.header.index = index;
    link
}

/// Returns the mode in which an interface runs an XDP program now, foreign or ours.
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

/// Returns the reason why an interface refused a link with `error`, in the driver's words if it has any. A
/// link does not report them, netlink does: so the same is requested there again.
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
                // Unlike a moment ago, it was accepted. A program that no link holds would never be found
                // again.
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
