//! `hawser proxy services`, `backends`, `connections`: the live tables.

use std::io::Write;

use anyhow::{Context, Result};
use serde::Serialize;
use userspace_dataplane::inspect::{BackendRow, ConnectionRow, FrontendRow, Inspector, ServiceRow};
use userspace_dataplane::tables::{FrontendKey, Protocol};

use crate::args::{Look, LookArgs};

/// Prints one of the tables.
pub fn run(look: Look) -> Result<()> {
    match look {
        Look::Services(args) => services(&args),
        Look::Backends(args) => {
            let rows = open(&args)?.backends().context("cannot read the backends")?;
            print(&args, &["SERVICE", "FRONTEND", "BACKEND", "LOCAL"], &rows, backend)
        }
        Look::Connections(args) => {
            let rows = open(&args)?.connections().context("cannot read the connections")?;
            print(
                &args,
                &["SERVICE", "PROTOCOL", "CLIENT", "FRONTEND", "BACKEND", "STATE"],
                &rows,
                connection,
            )
        }
    }
}

fn open(args: &LookArgs) -> Result<Inspector> {
    Inspector::open(&args.bpf_root).context("cannot look into the tables")
}

/// A line a frontend; counters are per service and stand with its first one.
fn services(args: &LookArgs) -> Result<()> {
    let inspector = open(args)?;
    let services = inspector.services().context("cannot read the services")?;
    let frontends = inspector.frontends().context("cannot read the frontends")?;
    if args.json {
        for service in &services {
            let of: Vec<&FrontendRow> = frontends.iter().filter(|row| row.service == service.name).collect();
            let row = serde_json::json!({"service": service, "frontends": of});
            print_line(&row.to_string())?;
        }
        return Ok(());
    }
    let header = ["SERVICE", "FRONTEND", "SCOPE", "BACKENDS", "CONNECTIONS", "REFUSED"].map(str::to_owned);
    let mut lines = vec![header.to_vec()];
    for service in &services {
        let of = frontends.iter().filter(|row| row.service == service.name);
        lines.extend(of.enumerate().map(|(i, row)| service_line(service, row, i == 0)));
    }
    print_aligned(&lines)
}

fn service_line(service: &ServiceRow, row: &FrontendRow, first: bool) -> Vec<String> {
    let counted = |number: u64| if first { number.to_string() } else { String::new() };
    vec![
        service.name.clone(),
        frontend(&row.key),
        format!("{:?}", row.key.scope),
        row.backends.to_string(),
        counted(service.connections),
        counted(service.refused),
    ]
}

fn protocol(protocol: Protocol) -> &'static str {
    match protocol {
        Protocol::Tcp => "TCP",
        Protocol::Udp => "UDP",
        Protocol::Sctp => "SCTP",
    }
}

/// `10.96.0.1:443/TCP`, `*:30080/TCP` for a node port.
fn frontend(key: &FrontendKey) -> String {
    let address = if key.address.is_unspecified() { "*".to_owned() } else { bracketed(key.address) };
    format!("{address}:{}/{}", key.port, protocol(key.protocol))
}

fn bracketed(address: std::net::IpAddr) -> String {
    if address.is_ipv6() { format!("[{address}]") } else { address.to_string() }
}

fn backend(row: &BackendRow) -> Vec<String> {
    vec![
        row.service.clone(),
        format!("{} {:?}", frontend(&row.frontend), row.frontend.scope),
        format!("{}:{}", bracketed(row.backend.address), row.backend.port),
        row.backend.local.to_string(),
    ]
}

fn connection(row: &ConnectionRow) -> Vec<String> {
    let place = |(address, port): (std::net::IpAddr, u16)| format!("{}:{port}", bracketed(address));
    let client = match (row.client, row.socket) {
        (Some(client), _) => place(client),
        (None, Some(cookie)) => format!("socket {cookie}"),
        (None, None) => String::new(),
    };
    vec![
        row.service.clone(),
        row.protocol.map(protocol).unwrap_or_default().to_owned(),
        client,
        place(row.frontend),
        place(row.backend),
        if row.closed { "closed" } else { "open" }.to_owned(),
    ]
}

fn print<T: Serialize>(
    args: &LookArgs,
    header: &[&str],
    rows: &[T],
    cells: fn(&T) -> Vec<String>,
) -> Result<()> {
    if args.json {
        for row in rows {
            print_line(&serde_json::to_string(row).context("cannot encode a row")?)?;
        }
        return Ok(());
    }
    let mut lines = vec![header.iter().map(ToString::to_string).collect::<Vec<_>>()];
    lines.extend(rows.iter().map(cells));
    print_aligned(&lines)
}

/// Columns as wide as their widest cell, three spaces between them, as kubectl prints tables.
fn print_aligned(lines: &[Vec<String>]) -> Result<()> {
    let columns = lines.first().map_or(0, Vec::len);
    let width = |column: usize| lines.iter().map(|line| line[column].len()).max().unwrap_or_default();
    let widths: Vec<usize> = (0..columns).map(width).collect();
    for line in lines {
        let cells: Vec<String> =
            line.iter().zip(&widths).map(|(cell, &width)| format!("{cell:<width$}")).collect();
        print_line(cells.join("   ").trim_end())?;
    }
    Ok(())
}

/// Prints a line. A reader that has seen enough (`head`) ends the program quietly.
fn print_line(text: &str) -> Result<()> {
    match writeln!(std::io::stdout(), "{text}") {
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => std::process::exit(0),
        other => other.context("cannot write to standard output"),
    }
}
