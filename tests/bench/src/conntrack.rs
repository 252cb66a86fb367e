//! The kernel's connection tracking, which peers use for translation.

use std::os::fd::AsRawFd;

use anyhow::{Context, Result, ensure};
use nix::sys::socket::{AddressFamily, MsgFlags, SockFlag, SockProtocol, SockType, recv, send, socket};

/// `NFNL_SUBSYS_CTNETLINK` and `IPCTNL_MSG_CT_DELETE`.
const DELETE: u16 = 1 << 8 | 2;
const REQUEST_ACK: u16 = 1 | 4;

/// Removes all connections of this thread's network namespace.
pub fn flush() -> Result<()> {
    let netlink =
        socket(AddressFamily::Netlink, SockType::Raw, SockFlag::SOCK_CLOEXEC, SockProtocol::NetlinkNetFilter)
            .context("cannot open a netlink socket")?;
    let mut message = Vec::new();
    message.extend(20_u32.to_ne_bytes());
    message.extend(DELETE.to_ne_bytes());
    message.extend(REQUEST_ACK.to_ne_bytes());
    message.extend([0; 8]);
    // All address families; no attribute selects a connection.
    message.extend([0; 4]);
    send(netlink.as_raw_fd(), &message, MsgFlags::empty()).context("cannot ask for a flush")?;
    let mut answer = [0; 256];
    let length = recv(netlink.as_raw_fd(), &mut answer, MsgFlags::empty()).context("no answer to a flush")?;
    let code = answer.get(16..20).filter(|_| length >= 20).context("a short answer to a flush")?;
    let code = i32::from_ne_bytes([code[0], code[1], code[2], code[3]]);
    ensure!(code == 0, "the flush was refused: {}", std::io::Error::from_raw_os_error(-code));
    Ok(())
}
