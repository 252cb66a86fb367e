//! Lines and columns.

use std::io::{BufWriter, Stdout, Write};
use std::net::IpAddr;

use anyhow::{Context, Result};
use serde::Serialize;
use userspace_dataplane::tables::{Forwarding, FrontendKey, Protocol, Scope};

/// The gap between two columns, as wide as kubectl's.
const GAP: &str = "   ";

/// Aligns columns to their widest cell, with three spaces between them, as kubectl prints tables.
pub fn aligned(lines: &[Vec<String>]) -> Vec<String> {
    let mut widths = Widths::default();
    lines.iter().for_each(|line| widths.grow(line));
    lines.iter().map(|line| widths.text(line)).collect()
}

/// The widths of columns.
#[derive(Debug, Default)]
struct Widths(Vec<usize>);

impl Widths {
    fn grow(&mut self, line: &[String]) {
        self.0.resize(self.0.len().max(line.len()), 0);
        for (width, cell) in self.0.iter_mut().zip(line) {
            *width = (*width).max(cell.chars().count());
        }
    }

    fn text(&self, line: &[String]) -> String {
        let cells: Vec<String> =
            line.iter().zip(&self.0).map(|(cell, &width)| format!("{cell:<width$}")).collect();
        cells.join(GAP).trim_end().to_owned()
    }
}

/// Prints a table.
pub fn table(lines: &[Vec<String>]) -> Result<()> {
    aligned(lines).iter().try_for_each(|text| line(text))
}

/// Prints rows as JSON, a line each.
pub fn json<T: Serialize>(rows: &[T]) -> Result<()> {
    rows.iter().try_for_each(|row| line(&encoded(row)?))
}

fn encoded<T: Serialize>(row: &T) -> Result<String> {
    serde_json::to_string(row).context("cannot encode a row")
}

/// Prints a line. A reader that closes the pipe early (`head`) ends the program quietly.
pub fn line(text: &str) -> Result<()> {
    written(writeln!(std::io::stdout(), "{text}"))
}

fn written(result: std::io::Result<()>) -> Result<()> {
    match result {
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => std::process::exit(0),
        other => other.context("cannot write to standard output"),
    }
}

/// Prints many rows as they come, without storing them.
pub struct Rows {
    json: bool,
    widths: Widths,
    out: BufWriter<Stdout>,
}

impl Rows {
    pub fn new(json: bool) -> Self {
        Self { json, widths: Widths::default(), out: BufWriter::new(std::io::stdout()) }
    }

    /// Prints the heading. Columns are as wide as it and the first lines need. JSON has no heading.
    pub fn heading(&mut self, heading: &[String], first: impl Iterator<Item = Vec<String>>) -> Result<()> {
        if self.json {
            return Ok(());
        }
        self.widths.grow(heading);
        first.for_each(|line| self.widths.grow(&line));
        self.write(self.widths.text(heading))
    }

    /// Prints a row. A cell that is wider than its column widens it from here on.
    pub fn row<T: Serialize>(&mut self, row: &T, cells: impl Fn(&T) -> Vec<String>) -> Result<()> {
        if self.json {
            return self.write(encoded(row)?);
        }
        let cells = cells(row);
        self.widths.grow(&cells);
        self.write(self.widths.text(&cells))
    }

    pub fn end(&mut self) -> Result<()> {
        written(self.out.flush())
    }

    fn write(&mut self, text: String) -> Result<()> {
        written(writeln!(self.out, "{text}"))
    }
}

/// Converts the cells of a line to strings.
pub fn words(all: &[&str]) -> Vec<String> {
    all.iter().map(|word| (*word).to_owned()).collect()
}

pub fn protocol(protocol: Protocol) -> &'static str {
    match protocol {
        Protocol::Any => "ANY",
        Protocol::Icmp => "ICMP",
        Protocol::Tcp => "TCP",
        Protocol::Udp => "UDP",
        Protocol::Sctp => "SCTP",
    }
}

pub fn scope(scope: Scope) -> &'static str {
    match scope {
        Scope::Internal => "internal",
        Scope::External => "external",
    }
}

pub fn forwarding(forwarding: Forwarding) -> &'static str {
    match forwarding {
        Forwarding::Nat => "nat",
        Forwarding::DsrOption => "dsr",
        Forwarding::DsrIpip => "dsr-ipip",
    }
}

/// Formats a frontend: `10.96.0.1:443/TCP`, or `*:30080/TCP` for a node port.
pub fn frontend(key: &FrontendKey) -> String {
    let address = match key.address {
        IpAddr::V4(address) if address.is_unspecified() => "*".to_owned(),
        IpAddr::V6(address) if address.is_unspecified() => "[*]".to_owned(),
        address => bracketed(address),
    };
    format!("{address}:{}/{}", key.port, protocol(key.protocol))
}

/// Formats an address and port: `10.0.0.1:80`, `[fd00::1]:80`.
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
    fn columns_grow_where_a_table_is_printed_as_it_comes() {
        let mut widths = Widths::default();
        widths.grow(&words(&["A", "B"]));
        assert_eq!(widths.text(&words(&["a", "b"])), "a   b");
        widths.grow(&words(&["aaa", "b"]));
        assert_eq!(widths.text(&words(&["a", "b"])), "a     b");
    }

    #[test]
    fn places_are_written_as_people_write_them() {
        assert_eq!(place(("fd00::1".parse().unwrap(), 80)), "[fd00::1]:80");
        let key = |address: &str| FrontendKey {
            address: address.parse().unwrap(),
            port: 30_080,
            protocol: Protocol::Udp,
            scope: Scope::External,
        };
        assert_eq!(frontend(&key("0.0.0.0")), "*:30080/UDP");
        assert_eq!(frontend(&key("::")), "[*]:30080/UDP");
    }
}
