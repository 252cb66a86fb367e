//! How uplinks get XDP, and what to say where they do not.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::path::Path;

use crate::kernel::XdpMode;
use crate::netlink::{Message, Socket, attribute, text};

const FLAG_UPDATE_IF_NOEXIST: u32 = 1;
const FLAG_SKB_MODE: u32 = 2;
const FLAG_DRV_MODE: u32 = 4;

const RTM_GETLINK: u16 = 18;
const RTM_SETLINK: u16 = 19;
const IFLA_IFNAME: u16 = 3;
const IFLA_LINKINFO: u16 = 18;
const IFLA_INFO_KIND: u16 = 1;
const IFLA_XDP: u16 = 43;
const IFLA_XDP_FD: u16 = 1;
const IFLA_XDP_ATTACHED: u16 = 2;
const IFLA_XDP_FLAGS: u16 = 3;
/// Length of `struct ifinfomsg`.
const FIXED: usize = 16;

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
    let ask = || {
        let name = format!("{interface}\0");
        let message = Message::new(RTM_GETLINK, 0, &fixed(0)).attribute(IFLA_IFNAME, name.as_bytes());
        let link = Socket::open().ok()?.get(message).ok()??;
        let kind = attribute(attribute(link.get(FIXED..)?, IFLA_LINKINFO)?, IFLA_INFO_KIND)?;
        Some(text(kind) == "veth")
    };
    ask().unwrap_or(false)
}

/// How an interface runs an XDP program now, whoever's.
pub fn attached(index: u32) -> Option<Wanted> {
    let link = Socket::open().ok()?.get(Message::new(RTM_GETLINK, 0, &fixed(index))).ok()??;
    let xdp = attribute(link.get(FIXED..)?, IFLA_XDP)?;
    match attribute(xdp, IFLA_XDP_ATTACHED)?.first()? {
        1 => Some(Wanted::Native),
        2 => Some(Wanted::Generic),
        _ => None,
    }
}

/// Why an interface refused a link with `error`, in the driver's words if it has any. A link does
/// not give them, netlink does: so the same is asked for once more there.
pub fn reason(index: u32, program: BorrowedFd<'_>, wanted: Wanted, error: &io::Error) -> String {
    let ask = |fd: i32, flags: u32| {
        Message::new(RTM_SETLINK, 0, &fixed(index)).nested(IFLA_XDP, |xdp| {
            xdp.attribute(IFLA_XDP_FD, &fd.to_ne_bytes()).attribute(IFLA_XDP_FLAGS, &flags.to_ne_bytes())
        })
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

/// `struct ifinfomsg`.
fn fixed(index: u32) -> Vec<u8> {
    [0, index, 0, 0].iter().flat_map(|word| word.to_ne_bytes()).collect()
}
