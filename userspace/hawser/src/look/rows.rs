//! Services, backends and connections.

use anyhow::{Context, Result};
use userspace_dataplane::inspect::{BackendRow, ConnectionRow, FrontendRow, ServiceRow, State};
use userspace_dataplane::tables::Algorithm;

use super::print::{self, frontend, place, words};
use crate::args::{ConnectionArgs, RowArgs};

/// A line a frontend; counters are per service and stand with its first one.
pub fn services(args: &RowArgs) -> Result<()> {
    let inspector = super::open(&args.look.bpf_root)?;
    let mut services = inspector.services().context("cannot read the services")?;
    services.retain(|row| args.wants(&row.name));
    let frontends = inspector.frontends().context("cannot read the frontends")?;
    let of = |name: &str| frontends.iter().filter(|row| row.service == name).collect::<Vec<_>>();
    if args.look.json {
        let row =
            |service: &ServiceRow| serde_json::json!({"service": service, "frontends": of(&service.name)});
        return print::json(&services.iter().map(row).collect::<Vec<_>>());
    }
    let mut lines = vec![words(&[
        "SERVICE",
        "FRONTEND",
        "SCOPE",
        "BACKENDS",
        "ALGORITHM",
        "OPTIONS",
        "CONNECTIONS",
        "REFUSED",
    ])];
    for service in &services {
        lines.extend(
            of(&service.name).into_iter().enumerate().map(|(i, row)| service_line(service, row, i == 0)),
        );
    }
    print::table(&lines)
}

fn service_line(service: &ServiceRow, row: &FrontendRow, first: bool) -> Vec<String> {
    let counted = |number: u64| if first { number.to_string() } else { String::new() };
    vec![
        service.name.clone(),
        frontend(&row.key),
        format!("{:?}", row.key.scope).to_lowercase(),
        row.backends.to_string(),
        algorithm(row),
        options(row),
        counted(service.connections),
        counted(service.refused),
    ]
}

fn algorithm(row: &FrontendRow) -> String {
    match (row.algorithm, row.lut_entries) {
        (Algorithm::Random, 0) => "random".to_owned(),
        (Algorithm::Random, _) => "random, weighted".to_owned(),
        (Algorithm::Consistent, 0) => "rendezvous".to_owned(),
        (Algorithm::Consistent, entries) => format!("maglev/{entries}"),
    }
}

/// What is not as most frontends have it.
fn options(row: &FrontendRow) -> String {
    let mut options = Vec::new();
    if row.affinity_seconds > 0 {
        options.push(format!("affinity={}s", row.affinity_seconds));
    }
    if row.forwarding != Default::default() {
        options.push(print::forwarding(row.forwarding).to_owned());
    }
    if row.masquerade {
        options.push("masquerade".to_owned());
    }
    if row.limited {
        options.push("source-ranges".to_owned());
    }
    if row.drop_when_empty {
        options.push("drop-when-empty".to_owned());
    }
    options.join(",")
}

/// A line a backend and frontend.
pub fn backends(args: &RowArgs) -> Result<()> {
    let mut rows = super::open(&args.look.bpf_root)?.backends().context("cannot read the backends")?;
    rows.retain(|row| args.wants(&row.service));
    if args.look.json {
        return print::json(&rows);
    }
    let mut lines = vec![words(&["SERVICE", "FRONTEND", "SCOPE", "BACKEND", "LOCAL", "SHARE"])];
    lines.extend(rows.iter().map(backend));
    print::table(&lines)
}

fn backend(row: &BackendRow) -> Vec<String> {
    vec![
        row.service.clone(),
        frontend(&row.frontend),
        format!("{:?}", row.frontend.scope).to_lowercase(),
        place((row.address, row.port)),
        row.local.to_string(),
        format!("{:.1} %", row.share * 100.0),
    ]
}

/// A line a connection.
pub fn connections(args: &ConnectionArgs) -> Result<()> {
    let inspector = super::open(&args.rows.look.bpf_root)?;
    let mut rows = inspector.connections().context("cannot read the connections")?;
    rows.retain(|row| {
        args.rows.wants(&row.service) && args.address.is_none_or(|address| row.touches(address))
    });
    if args.rows.look.json {
        return print::json(&rows);
    }
    let mut lines =
        vec![words(&["SERVICE", "PROTOCOL", "CLIENT", "FRONTEND", "BACKEND", "SOURCE", "STATE", "IDLE"])];
    lines.extend(rows.iter().map(connection));
    print::table(&lines)
}

fn connection(row: &ConnectionRow) -> Vec<String> {
    let client = match (row.client, row.socket) {
        (Some(client), _) => place(client),
        (None, Some(cookie)) => format!("socket {cookie}"),
        (None, None) => String::new(),
    };
    let state = match row.state {
        State::Open => "open",
        State::Closing => "closing",
        State::Closed => "closed",
    };
    vec![
        row.service.clone(),
        row.protocol.map(print::protocol).unwrap_or_default().to_owned(),
        client,
        place(row.frontend),
        place(row.backend),
        row.source.map(place).unwrap_or_default(),
        state.to_owned(),
        row.idle_seconds.map(|seconds| format!("{seconds}s")).unwrap_or_default(),
    ]
}
