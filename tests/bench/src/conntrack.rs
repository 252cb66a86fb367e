//! The kernel's connection tracking, which peers use for translation.

use anyhow::{Context, Result, ensure};
use netlink_packet_core::{ErrorBuffer, NLM_F_ACK, NLM_F_REQUEST, NLMSG_ERROR, NetlinkBuffer};
use netlink_sys::{Socket, protocols::NETLINK_NETFILTER};

/// `NFNL_SUBSYS_CTNETLINK` and `IPCTNL_MSG_CT_DELETE`.
const DELETE: u16 = 1 << 8 | 2;
/// Lengths of `struct nlmsghdr` and `struct nfgenmsg`.
const LENGTH: usize = 16 + 4;

/// Removes all connections of this thread's network namespace.
pub fn flush() -> Result<()> {
    let socket = Socket::new(NETLINK_NETFILTER).context("cannot open a netlink socket")?;
    // Without an attribute that names a connection, the kernel deletes those of every family.
    let mut bytes = [0; LENGTH];
    let mut message = NetlinkBuffer::new(&mut bytes);
    message.set_length(LENGTH as u32);
    message.set_message_type(DELETE);
    message.set_flags(NLM_F_REQUEST | NLM_F_ACK);
    socket.send(&bytes, 0).context("cannot ask for a flush")?;
    let (answer, _) = socket.recv_from_full().context("no answer to a flush")?;
    let answer = NetlinkBuffer::new_checked(&answer[..]).context("a short answer to a flush")?;
    ensure!(answer.message_type() == NLMSG_ERROR, "the answer to a flush is no acknowledgement");
    let code = ErrorBuffer::new_checked(answer.payload()).context("a short answer to a flush")?.code();
    let refused = code.map(|code| std::io::Error::from_raw_os_error(-code.get()));
    ensure!(
        refused.is_none(),
        "the flush was refused: {}",
        refused.map_or_else(String::new, |e| e.to_string())
    );
    Ok(())
}
