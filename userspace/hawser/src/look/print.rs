//! Lines and columns.

use std::io::Write;
use std::net::IpAddr;

use anyhow::{Context, Result};
use serde::Serialize;
use userspace_dataplane::tables::{Forwarding, FrontendKey, Protocol};

/// Columns as wide as their widest cell, three spaces between them, as kubectl prints tables.
pub fn aligned(lines: &[Vec<String>]) -> Vec<String> {
    let columns = lines.iter().map(Vec::len).max().unwrap_or_default();
    let width = |column: usize| {
        lines
            .iter()
            .filter_map(|line| line.get(column))
            .map(|cell| cell.chars().count())
            .max()
            .unwrap_or_default()
    };
    let widths: Vec<usize> = (0..columns).map(width).collect();
    let text = |line: &Vec<String>| {
        let cells: Vec<String> =
            line.iter().zip(&widths).map(|(cell, &width)| format!("{cell:<width$}")).collect();
        cells.join("   ").trim_end().to_owned()
    };
    lines.iter().map(text).collect()
}

/// Prints a table.
pub fn table(lines: &[Vec<String>]) -> Result<()> {
    aligned(lines).iter().try_for_each(|text| line(text))
}

/// Prints rows as JSON, a line each.
pub fn json<T: Serialize>(rows: &[T]) -> Result<()> {
    rows.iter().try_for_each(|row| line(&serde_json::to_string(row).context("cannot encode a row")?))
}

/// Prints a line. A reader that has seen enough (`head`) ends the program quietly.
pub fn line(text: &str) -> Result<()> {
    match writeln!(std::io::stdout(), "{text}") {
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => std::process::exit(0),
        other => other.context("cannot write to standard output"),
    }
}

/// The words of a line.
pub fn words(all: &[&str]) -> Vec<String> {
    all.iter().map(|word| (*word).to_owned()).collect()
}

pub fn protocol(protocol: Protocol) -> &'static str {
    match protocol {
        Protocol::Any => "any",
        Protocol::Tcp => "TCP",
        Protocol::Udp => "UDP",
        Protocol::Sctp => "SCTP",
    }
}

pub fn forwarding(forwarding: Forwarding) -> &'static str {
    match forwarding {
        Forwarding::Nat => "nat",
        Forwarding::DsrOption => "dsr",
        Forwarding::DsrIpip => "dsr-ipip",
    }
}

/// `10.96.0.1:443/TCP`, `*:30080/TCP` for a node port.
pub fn frontend(key: &FrontendKey) -> String {
    let address = if key.address.is_unspecified() { "*".to_owned() } else { bracketed(key.address) };
    format!("{address}:{}/{}", key.port, protocol(key.protocol))
}

/// `10.0.0.1:80`, `[fd00::1]:80`.
pub fn place((address, port): (IpAddr, u16)) -> String {
    format!("{}:{port}", bracketed(address))
}

fn bracketed(address: IpAddr) -> String {
    if address.is_ipv6() { format!("[{address}]") } else { address.to_string() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_as_wide_as_they_have_to_be() {
        let lines = [words(&["A", "LONG", "C"]), words(&["aaaa", "b", ""])];
        assert_eq!(aligned(&lines), ["A      LONG   C", "aaaa   b"]);
    }

    #[test]
    fn places_are_written_as_people_write_them() {
        assert_eq!(place(("fd00::1".parse().unwrap(), 80)), "[fd00::1]:80");
        let key = FrontendKey {
            address: "0.0.0.0".parse().unwrap(),
            port: 30_080,
            protocol: Protocol::Udp,
            scope: userspace_dataplane::tables::Scope::External,
        };
        assert_eq!(frontend(&key), "*:30080/UDP");
    }
}
