//! Keys of WireGuard, and what nodes tell each other of them.
//!
//! A node's address on the WireGuard device follows from its public key, so that no range has to be configured and
//! nobody can claim the address of another: a peer may send from the address of its key alone.

mod control;
mod key;

use std::fmt;
use std::net::Ipv6Addr;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use serde::Deserialize;
use sha2::{Digest, Sha256};

use crate::limits;
use crate::sysctl;

pub(crate) use control::{Control, PeerChange};
pub use key::KEY_FILE;
pub(crate) use key::{KeyError, PrivateKey};

/// The annotation of a Node with its public key and UDP port.
pub const ANNOTATION: &str = "hawser.dev/wireguard";
/// Length of a key in bytes.
const KEY_BYTES: usize = 32;

/// This machine cannot encrypt packets to other nodes.
#[derive(Debug, thiserror::Error)]
pub enum WireGuardError {
    #[error(
        "this kernel has no WireGuard: install or build its module `wireguard` (`modprobe wireguard` must succeed), or \
         leave out --pod-network-encryption"
    )]
    NoModule,
    #[error(
        "this kernel has no IPv6, by which nodes have addresses within WireGuard: start it without ipv6.disable=1, or \
         leave out --pod-network-encryption"
    )]
    NoIpv6,
    #[error("cannot ask the kernel for WireGuard")]
    Open(#[source] std::io::Error),
}

/// Fails if this machine cannot encrypt packets to other nodes. Loads the module.
///
/// # Errors
/// Fails if the kernel has no WireGuard or no IPv6.
pub fn check() -> Result<(), WireGuardError> {
    Control::open().map(drop)?;
    match sysctl::read("net/ipv6/conf/default/disable_ipv6") {
        Ok(Some(_)) => Ok(()),
        _ => Err(WireGuardError::NoIpv6),
    }
}

/// A public key.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PublicKey([u8; KEY_BYTES]);

impl fmt::Display for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&BASE64_STANDARD.encode(self.0))
    }
}

impl fmt::Debug for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl PublicKey {
    /// Returns the address that the owner of this key has on the WireGuard device: link-local, with the first 64 bits of
    /// the key's SHA-256.
    pub fn address(&self) -> Ipv6Addr {
        let digest = Sha256::digest(self.0);
        let mut octets = [0; 16];
        octets[..2].copy_from_slice(&[0xfe, 0x80]);
        octets[8..].copy_from_slice(&digest[..8]);
        octets.into()
    }
}

/// A Node's public key and UDP port, as it publishes them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Published {
    pub key: PublicKey,
    pub port: u16,
}

/// The text of the annotation.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Text {
    public_key: String,
    port: u16,
}

impl fmt::Display for Published {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, r#"{{"publicKey":"{}","port":{}}}"#, self.key, self.port)
    }
}

impl Published {
    /// Parses the annotation of a Node, which its kubelet may have written as it likes.
    ///
    /// # Errors
    /// Returns the reason why it is not a key and a port.
    pub fn parse(text: &str) -> Result<Self, String> {
        if text.len() > limits::ANNOTATION_BYTES {
            return Err(format!("it is longer than {} bytes", limits::ANNOTATION_BYTES));
        }
        let Text { public_key, port } = serde_json::from_str(text).map_err(|error| error.to_string())?;
        if port == 0 {
            return Err("its port is 0".to_owned());
        }
        Ok(Self { key: PublicKey(decode(&public_key)?), port })
    }
}

/// Decodes a key.
fn decode(text: &str) -> Result<[u8; KEY_BYTES], String> {
    let bytes = BASE64_STANDARD.decode(text).map_err(|error| format!("its key is not base64: {error}"))?;
    let key = <[u8; KEY_BYTES]>::try_from(bytes).map_err(|_| "its key has not 32 bytes".to_owned())?;
    if key == [0; KEY_BYTES] { Err("its key is zero".to_owned()) } else { Ok(key) }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: &str = "xTIBA5rboUvnH4htodjb6e697QjLERt1NAB4mZqp8Dg=";

    #[test]
    fn annotation_is_read_as_it_was_written() {
        let published = Published { key: PublicKey(decode(KEY).unwrap()), port: 14_790 };
        assert_eq!(published.to_string(), format!(r#"{{"publicKey":"{KEY}","port":14790}}"#));
        assert_eq!(Published::parse(&published.to_string()), Ok(published));
    }

    #[test]
    fn annotation_that_is_no_key_and_port_is_refused_with_the_reason() {
        let with = |key: &str, port: &str| {
            Published::parse(&format!(r#"{{"publicKey":{key:?},"port":{port}}}"#)).unwrap_err()
        };
        assert_eq!(with(KEY, "0"), "its port is 0");
        assert!(with(KEY, "65536").contains("invalid value"));
        assert!(with(KEY, "\"14790\"").contains("invalid type"));
        assert_eq!(with("AAAA", "1"), "its key has not 32 bytes");
        assert_eq!(with("AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=", "1"), "its key is zero");
        assert!(with("not a key", "1").contains("not base64"));
        assert!(Published::parse("").is_err());
        assert!(Published::parse(&"[".repeat(100_000)).unwrap_err().contains("longer than"));
    }

    #[test]
    fn address_is_link_local_and_another_for_another_key() {
        let key = PublicKey(decode(KEY).unwrap());
        let mut other = key;
        other.0[31] ^= 1;
        assert!(key.address().is_unicast_link_local());
        // sha256sum of the 32 bytes.
        assert_eq!(key.address(), "fe80::2dec:f5aa:df23:9b17".parse::<Ipv6Addr>().unwrap());
        assert_ne!(key.address(), other.address());
    }
}
