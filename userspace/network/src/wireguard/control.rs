//! The kernel's interface to WireGuard devices, by generic netlink.

use std::fmt::Debug;
use std::io;
use std::net::{IpAddr, SocketAddr};

use netlink_packet_generic::ctrl::nlas::GenlCtrlAttrs;
use netlink_packet_generic::ctrl::{GenlCtrl, GenlCtrlCmd};
use netlink_packet_generic::{GenlFamily, GenlHeader, GenlMessage};
use netlink_packet_wireguard::{
    WireguardAddressFamily, WireguardAllowedIp, WireguardAllowedIpAttr, WireguardAttribute, WireguardCmd,
    WireguardMessage, WireguardPeer, WireguardPeerAttribute, WireguardPeerFlags,
};
use rtnetlink::packet_core::{
    Emitable, NLM_F_ACK, NLM_F_DUMP, NLM_F_REQUEST, NetlinkBuffer, NetlinkHeader, NetlinkMessage,
    NetlinkPayload, ParseableParametrized,
};
use rtnetlink::sys::protocols::NETLINK_GENERIC;
use rtnetlink::sys::{Socket, SocketAddr as NetlinkAddress};

use super::{PrivateKey, PublicKey, WireGuardError};

/// Peers of one request. Together they are an attribute, whose length has 16 bits; one has some 140 bytes.
const PEERS: usize = 128;
/// Size of the buffer for answers; the kernel fills at most 32 KiB at a time.
const ANSWER_BYTES: usize = 64 * 1024;

/// A WireGuard device as the kernel has it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct State {
    /// Its keys, once it has some.
    pub keys: Option<(PrivateKey, PublicKey)>,
    pub port: u16,
    pub peers: Vec<PeerState>,
}

/// A peer of a WireGuard device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PeerState {
    pub key: PublicKey,
    pub endpoint: Option<SocketAddr>,
    /// Ranges that its packets come from and that lead to it.
    pub allowed: Vec<(IpAddr, u8)>,
}

impl PeerState {
    /// Returns the endpoint, or `None` if the peer has not exactly the address of its key.
    pub fn plain_endpoint(&self) -> Option<SocketAddr> {
        let own = (IpAddr::V6(self.key.address()), 128);
        let endpoint = self.endpoint.filter(|_| self.allowed == [own]);
        // The kernel adds a scope and a label of the flow to those that it has heard from.
        endpoint.map(|endpoint| SocketAddr::new(endpoint.ip(), endpoint.port()))
    }
}

/// A peer to add or change, or to remove if it has no endpoint.
pub(crate) type PeerChange = (PublicKey, Option<SocketAddr>);

/// A socket in the network namespace of the thread that opened it.
pub(crate) struct Control {
    socket: Socket,
    family: u16,
    answer: Vec<u8>,
}

impl Control {
    /// Opens the socket. The kernel loads WireGuard's module.
    pub fn open() -> Result<Self, WireGuardError> {
        let open = || {
            let mut socket = Socket::new(NETLINK_GENERIC)?;
            socket.bind_auto()?;
            socket.connect(&NetlinkAddress::new(0, 0))?;
            // Errors do not repeat the request, which has a private key in it.
            socket.set_cap_ack(true)?;
            Ok(socket)
        };
        let socket = open().map_err(WireGuardError::Open)?;
        let mut control = Self { socket, family: 0, answer: Vec::with_capacity(ANSWER_BYTES) };
        control.family = match control.resolve() {
            Ok(family) => family,
            Err(error) if error.raw_os_error() == Some(libc::ENOENT) => return Err(WireGuardError::NoModule),
            Err(error) => return Err(WireGuardError::Open(error)),
        };
        Ok(control)
    }

    /// Returns the number that the kernel has given to WireGuard's family of messages.
    fn resolve(&mut self) -> io::Result<u16> {
        let name = WireguardMessage::family_name().to_owned();
        let request = GenlCtrl { cmd: GenlCtrlCmd::GetFamily, nlas: vec![GenlCtrlAttrs::FamilyName(name)] };
        let mut family = None;
        self.request(GenlMessage::from_payload(request), NLM_F_ACK, |answer: GenlCtrl| {
            family = answer.nlas.iter().find_map(|attribute| match attribute {
                GenlCtrlAttrs::FamilyId(id) => Some(*id),
                _ => None,
            });
        })?;
        family.ok_or_else(|| io::ErrorKind::InvalidData.into())
    }

    /// Returns the device with a name.
    pub fn state(&mut self, device: &str) -> io::Result<State> {
        let name = WireguardAttribute::IfName(device.to_owned());
        let request = self.message(WireguardCmd::GetDevice, vec![name]);
        let mut state = State::default();
        self.request(request, NLM_F_DUMP, |answer: WireguardMessage| state.add(answer.attributes))?;
        Ok(state)
    }

    /// Gives a device its key and port.
    pub fn set_device(&mut self, device: &str, key: &PrivateKey, port: u16) -> io::Result<()> {
        let attributes = vec![
            WireguardAttribute::IfName(device.to_owned()),
            WireguardAttribute::PrivateKey(key.bytes()),
            WireguardAttribute::ListenPort(port),
        ];
        let request = self.message(WireguardCmd::SetDevice, attributes);
        self.request(request, NLM_F_ACK, |_: WireguardMessage| {})
    }

    /// Carries out all changes, in order. Returns those that failed, by index.
    pub fn change_peers(&mut self, device: &str, changes: &[PeerChange]) -> Vec<(usize, io::Error)> {
        let mut failed = Vec::new();
        for (number, some) in changes.chunks(PEERS).enumerate() {
            if self.change_some(device, some).is_ok() {
                continue;
            }
            // The kernel stops at the first that it refuses, and does not say which it was.
            for (index, one) in some.iter().enumerate() {
                if let Err(error) = self.change_some(device, std::slice::from_ref(one)) {
                    failed.push((number * PEERS + index, error));
                }
            }
        }
        failed
    }

    fn change_some(&mut self, device: &str, changes: &[PeerChange]) -> io::Result<()> {
        let peers = changes.iter().map(|(key, endpoint)| peer(*key, *endpoint)).collect();
        let attributes =
            vec![WireguardAttribute::IfName(device.to_owned()), WireguardAttribute::Peers(peers)];
        let request = self.message(WireguardCmd::SetDevice, attributes);
        self.request(request, NLM_F_ACK, |_: WireguardMessage| {})
    }

    fn message(
        &self,
        cmd: WireguardCmd,
        attributes: Vec<WireguardAttribute>,
    ) -> GenlMessage<WireguardMessage> {
        let mut message = GenlMessage::from_payload(WireguardMessage { cmd, attributes });
        message.set_resolved_family_id(self.family);
        message
    }

    /// Makes a request. `read` gets each message of the answer.
    fn request<M>(&mut self, message: GenlMessage<M>, flags: u16, mut read: impl FnMut(M)) -> io::Result<()>
    where
        M: GenlFamily + Emitable + ParseableParametrized<[u8], GenlHeader> + Debug,
    {
        let mut header = NetlinkHeader::default();
        header.flags = NLM_F_REQUEST | flags;
        let mut message = NetlinkMessage::new(header, NetlinkPayload::InnerMessage(message));
        message.finalize();
        let mut bytes = vec![0; message.buffer_len()];
        message.serialize(&mut bytes);
        if self.socket.send(&bytes, 0)? != bytes.len() {
            return Err(io::ErrorKind::WriteZero.into());
        }
        loop {
            self.answer.clear();
            self.socket.recv(&mut self.answer, 0)?;
            let mut rest = self.answer.as_slice();
            while !rest.is_empty() {
                let length = NetlinkBuffer::new_checked(rest).map_err(io::Error::other)?.length() as usize;
                let message =
                    NetlinkMessage::<GenlMessage<M>>::deserialize(rest).map_err(io::Error::other)?;
                match message.payload {
                    NetlinkPayload::InnerMessage(message) => read(message.payload),
                    NetlinkPayload::Done(_) => return Ok(()),
                    NetlinkPayload::Error(answer) if answer.code.is_none() => return Ok(()),
                    NetlinkPayload::Error(answer) => return Err(answer.to_io()),
                    _ => {}
                }
                rest = rest.get(length.next_multiple_of(4)..).unwrap_or_default();
            }
        }
    }
}

impl State {
    /// Adds what one message of the answer says.
    fn add(&mut self, attributes: Vec<WireguardAttribute>) {
        let (mut private, mut public) = (None, None);
        for attribute in attributes {
            match attribute {
                WireguardAttribute::PrivateKey(key) => private = Some(PrivateKey::new(key)),
                WireguardAttribute::PublicKey(key) => public = Some(PublicKey(key)),
                WireguardAttribute::ListenPort(port) => self.port = port,
                WireguardAttribute::Peers(peers) => peers.iter().for_each(|peer| self.add_peer(peer)),
                _ => {}
            }
        }
        if let (Some(private), Some(public)) = (private, public) {
            self.keys = Some((private, public));
        }
    }

    fn add_peer(&mut self, peer: &WireguardPeer) {
        let (mut key, mut endpoint, mut allowed) = (None, None, Vec::new());
        for attribute in &peer.0 {
            match attribute {
                WireguardPeerAttribute::PublicKey(bytes) => key = Some(PublicKey(*bytes)),
                WireguardPeerAttribute::Endpoint(address) => endpoint = Some(*address),
                WireguardPeerAttribute::AllowedIps(ranges) => allowed.extend(ranges.iter().filter_map(range)),
                _ => {}
            }
        }
        let Some(key) = key else { return };
        match self.peers.last_mut().filter(|last| last.key == key) {
            // The ranges of one peer may take several messages.
            Some(last) => last.allowed.extend(allowed),
            None => self.peers.push(PeerState { key, endpoint, allowed }),
        }
    }
}

fn range(range: &WireguardAllowedIp) -> Option<(IpAddr, u8)> {
    let (mut address, mut prefix) = (None, None);
    for attribute in &range.0 {
        match attribute {
            WireguardAllowedIpAttr::IpAddr(ip) => address = Some(*ip),
            WireguardAllowedIpAttr::Cidr(bits) => prefix = Some(*bits),
            _ => {}
        }
    }
    Some((address?, prefix?))
}

/// Returns a peer that has the address of its key and no other, or, without endpoint, its removal.
fn peer(key: PublicKey, endpoint: Option<SocketAddr>) -> WireguardPeer {
    let PublicKey(bytes) = key;
    let mut attributes = vec![WireguardPeerAttribute::PublicKey(bytes)];
    let Some(endpoint) = endpoint else {
        attributes.push(WireguardPeerAttribute::Flags(WireguardPeerFlags::RemoveMe));
        return WireguardPeer(attributes);
    };
    attributes.push(WireguardPeerAttribute::Flags(WireguardPeerFlags::ReplaceAllowedIps));
    attributes.push(WireguardPeerAttribute::Endpoint(endpoint));
    attributes.push(WireguardPeerAttribute::AllowedIps(vec![WireguardAllowedIp(vec![
        WireguardAllowedIpAttr::Family(WireguardAddressFamily::Ipv6),
        WireguardAllowedIpAttr::IpAddr(IpAddr::V6(key.address())),
        WireguardAllowedIpAttr::Cidr(128),
    ])]));
    WireguardPeer(attributes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(first: u8) -> PublicKey {
        PublicKey([first; 32])
    }

    #[test]
    fn peer_that_was_written_is_read_as_one_with_its_own_address_alone() {
        let endpoint = "192.0.2.2:14790".parse().unwrap();
        let mut state = State::default();
        state.add(vec![WireguardAttribute::Peers(vec![peer(key(1), Some(endpoint)), peer(key(2), None)])]);
        let ends: Vec<_> = state.peers.iter().map(|peer| (peer.key, peer.plain_endpoint())).collect();
        assert_eq!(ends, [(key(1), Some(endpoint)), (key(2), None)]);
    }

    #[test]
    fn peer_with_a_range_of_another_is_not_as_it_should_be() {
        let endpoint = Some("192.0.2.2:14790".parse().unwrap());
        let mut state = State::default();
        state.add(vec![WireguardAttribute::Peers(vec![peer(key(1), endpoint)])]);
        // More ranges of the same peer come with the next message.
        let mut more = peer(key(1), endpoint);
        more.0.retain(|attribute| !matches!(attribute, WireguardPeerAttribute::AllowedIps(_)));
        let all = [WireguardAllowedIpAttr::IpAddr([0; 16].into()), WireguardAllowedIpAttr::Cidr(0)];
        more.0.push(WireguardPeerAttribute::AllowedIps(vec![WireguardAllowedIp(all.to_vec())]));
        state.add(vec![WireguardAttribute::Peers(vec![more])]);
        assert_eq!((state.peers.len(), state.peers[0].allowed.len()), (1, 2));
        assert_eq!(state.peers[0].plain_endpoint(), None);
    }

    #[test]
    fn most_peers_of_a_request_fit_into_an_attribute() {
        let endpoint = Some("[2001:db8::2]:14790".parse().unwrap());
        let peers: Vec<_> = (0..PEERS).map(|_| peer(key(1), endpoint)).collect();
        assert!(peers.as_slice().buffer_len() < usize::from(u16::MAX));
    }
}
