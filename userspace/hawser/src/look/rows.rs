//! Services, backends and connections.

use anyhow::{Context, Result};
use serde::Serialize;
use userspace_dataplane::inspect::{BackendRow, ConnectionRow, FrontendRow, ServiceRow, State};
use userspace_dataplane::tables::Algorithm;

use super::print::{self, frontend, place, words};
use crate::args::{ConnectionArgs, RowArgs};
use crate::limits;

/// A service with its frontends.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Service<'a> {
    service: &'a str,
    id: u32,
    backends: usize,
    connections: u64,
    refused: u64,
    frontends: &'a [FrontendRow],
}

/// Prints one line per frontend; counters are per service and are printed with its first one.
pub fn services(args: &RowArgs) -> Result<()> {
    let inspector = super::open(&args.look.bpf_root)?;
    super::known(&inspector, args)?;
    let mut services = inspector.services().context("cannot read the services")?;
    services.retain(|row| args.wants(&row.name));
    let frontends = inspector.frontends().context("cannot read the frontends")?;
    if args.look.json {
        return print::json(&services.iter().map(|row| service(row, &frontends)).collect::<Vec<_>>());
    }
    print::table(&service_lines(&services, &frontends))
}

/// Pairs a service with its frontends; `frontends` are those of all services, sorted by service name.
fn service<'a>(row: &'a ServiceRow, frontends: &'a [FrontendRow]) -> Service<'a> {
    let start = frontends.partition_point(|frontend| frontend.service < row.name);
    let length = frontends[start..].partition_point(|frontend| frontend.service == row.name);
    Service {
        service: &row.name,
        id: row.id,
        backends: row.backends,
        connections: row.connections,
        refused: row.refused,
        frontends: &frontends[start..start + length],
    }
}

fn service_lines(services: &[ServiceRow], frontends: &[FrontendRow]) -> Vec<Vec<String>> {
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
    for row in services {
        let service = service(row, frontends);
        for (place, frontend) in service.frontends.iter().enumerate() {
            lines.push(service_line(&service, frontend, place == 0));
        }
    }
    lines
}

fn service_line(service: &Service<'_>, row: &FrontendRow, first: bool) -> Vec<String> {
    let counted = |number: u64| if first { number.to_string() } else { String::new() };
    let algorithm = match row.algorithm {
        Algorithm::Random => "random",
        Algorithm::Consistent => "maglev",
    };
    vec![
        service.service.to_owned(),
        frontend(&row.key),
        print::scope(row.key.scope).to_owned(),
        row.backends.to_string(),
        algorithm.to_owned(),
        options(row),
        counted(service.connections),
        counted(service.refused),
    ]
}

/// Formats the settings that differ from those of most frontends.
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
    if row.lut_entries > 0 {
        options.push(format!("table={}", row.lut_entries));
    }
    options.join(",")
}

/// Prints one line per pair of frontend and backend.
pub fn backends(args: &RowArgs) -> Result<()> {
    let inspector = super::open(&args.look.bpf_root)?;
    super::known(&inspector, args)?;
    let mut rows = inspector.backends().context("cannot read the backends")?;
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
        print::scope(row.frontend.scope).to_owned(),
        place((row.address, row.port)),
        row.local.to_string(),
        format!("{:.1} %", row.share * 100.0),
    ]
}

/// Prints one line per connection as it is read: there may be hundreds of thousands.
pub fn connections(args: &ConnectionArgs) -> Result<()> {
    let inspector = super::open(&args.rows.look.bpf_root)?;
    super::known(&inspector, &args.rows)?;
    let mut out = Connections { kept: Vec::new(), rows: print::Rows::new(args.rows.look.json), begun: false };
    let mut outcome = Ok(());
    let read = inspector.visit_connections(|row| {
        if args.rows.wants(&row.service) && args.address.is_none_or(|address| row.touches(address)) {
            outcome = out.take(row);
        }
        outcome.is_ok()
    });
    // Shows the rows that were read before an error.
    let ended = out.end();
    outcome?;
    read.context("cannot read the connections")?;
    ended
}

/// Collects the first connections. If there are no more, they are sorted.
struct Connections {
    kept: Vec<ConnectionRow>,
    rows: print::Rows,
    begun: bool,
}

impl Connections {
    fn take(&mut self, row: ConnectionRow) -> Result<()> {
        if self.begun {
            return self.rows.row(&row, connection);
        }
        self.kept.push(row);
        if self.kept.len() > limits::ROWS_SORTED { self.begin() } else { Ok(()) }
    }

    fn begin(&mut self) -> Result<()> {
        let kept = std::mem::take(&mut self.kept);
        let heading = ["SERVICE", "PROTOCOL", "CLIENT", "FRONTEND", "BACKEND", "SOURCE", "STATE", "IDLE"];
        self.rows.heading(&words(&heading), kept.iter().map(connection))?;
        self.begun = true;
        kept.iter().try_for_each(|row| self.rows.row(row, connection))
    }

    fn end(&mut self) -> Result<()> {
        if !self.begun {
            self.kept.sort_by(ConnectionRow::order);
            self.begin()?;
        }
        self.rows.end()
    }
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
    let suffix = if row.masqueraded { " (masqueraded)" } else { "" };
    vec![
        if row.service.is_empty() { "-".to_owned() } else { row.service.clone() },
        row.protocol.map(print::protocol).unwrap_or_default().to_owned(),
        client,
        place(row.frontend),
        place(row.backend),
        row.source.map(|source| place(source) + suffix).unwrap_or_default(),
        state.to_owned(),
        row.idle_seconds.map(|seconds| format!("{seconds}s")).unwrap_or_default(),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;
    use userspace_dataplane::tables::{Forwarding, FrontendKey, Protocol, Scope};

    fn key(address: &str, scope: Scope) -> FrontendKey {
        FrontendKey { address: address.parse().unwrap(), port: 443, protocol: Protocol::Tcp, scope }
    }

    fn of(service: &str, key: FrontendKey) -> FrontendRow {
        FrontendRow {
            service: service.to_owned(),
            key,
            backends: 2,
            affinity_seconds: 10_800,
            drop_when_empty: true,
            algorithm: Algorithm::Consistent,
            forwarding: Forwarding::DsrIpip,
            masquerade: false,
            limited: true,
            lut_entries: 256,
        }
    }

    fn row(name: &str) -> ServiceRow {
        ServiceRow { id: 7, name: name.to_owned(), frontends: 1, backends: 2, connections: 5, refused: 1 }
    }

    #[test]
    fn a_service_in_json() {
        let frontends = [
            of("default/a", key("10.96.0.9", Scope::Internal)),
            of("default/web", key("10.96.0.1", Scope::External)),
            of("default/web2", key("10.96.0.2", Scope::Internal)),
        ];
        let frontend = json!({
            "address": "10.96.0.1", "port": 443, "protocol": "TCP", "scope": "external",
            "backends": 2, "affinitySeconds": 10_800, "dropWhenEmpty": true,
            "algorithm": "maglev", "forwarding": "dsr-ipip", "masquerade": false, "limited": true,
            "lutEntries": 256,
        });
        let expected = json!({
            "service": "default/web", "id": 7, "backends": 2, "connections": 5, "refused": 1,
            "frontends": [frontend],
        });
        let row = row("default/web");
        assert_eq!(serde_json::to_value(service(&row, &frontends)).unwrap(), expected);
        // A service whose frontends were removed during the read.
        let gone = super::tests::row("default/gone");
        assert!(service(&gone, &frontends).frontends.is_empty());
    }

    #[test]
    fn services_as_text() {
        let frontends = [
            of("default/web", key("10.96.0.1", Scope::External)),
            of("default/web", key("::", Scope::Internal)),
        ];
        let lines = service_lines(&[row("default/web")], &frontends);
        let heading = "SERVICE FRONTEND SCOPE BACKENDS ALGORITHM OPTIONS CONNECTIONS REFUSED";
        assert_eq!(lines[0].join(" "), heading);
        let options = "affinity=10800s,dsr-ipip,source-ranges,drop-when-empty,table=256";
        let first = ["default/web", "10.96.0.1:443/TCP", "external", "2", "maglev", options, "5", "1"];
        assert_eq!(lines[1], words(&first));
        // The counters of a service are printed once.
        let second = ["default/web", "[*]:443/TCP", "internal", "2", "maglev", options, "", ""];
        assert_eq!((&lines[2], lines.len()), (&words(&second), 3));
    }

    #[test]
    fn a_backend_in_json() {
        let row = BackendRow {
            service: "default/web".to_owned(),
            frontend: key("fd00::1", Scope::Internal),
            address: "fd00:1::5".parse().unwrap(),
            port: 8_080,
            local: true,
            share: 0.5,
        };
        let frontend = json!({"address": "fd00::1", "port": 443, "protocol": "TCP", "scope": "internal"});
        let expected = json!({
            "service": "default/web", "frontend": frontend,
            "address": "fd00:1::5", "port": 8_080, "local": true, "share": 0.5,
        });
        assert_eq!(serde_json::to_value(row).unwrap(), expected);
    }

    #[test]
    fn connections_in_json_and_as_text() {
        let place = |address: &str, port: u16| (address.parse().unwrap(), port);
        let flow = ConnectionRow {
            service: "default/web".to_owned(),
            protocol: Some(Protocol::Sctp),
            client: Some(place("192.0.2.9", 40_000)),
            socket: None,
            frontend: place("192.0.2.1", 30_080),
            backend: place("10.244.1.5", 8_080),
            source: Some(place("192.0.2.1", 1_024)),
            state: State::Closing,
            external: Some(true),
            masqueraded: false,
            forwarding: Forwarding::Nat,
            idle_seconds: Some(3),
        };
        let expected = json!({
            "service": "default/web", "protocol": "SCTP",
            "client": {"address": "192.0.2.9", "port": 40_000}, "socket": null,
            "frontend": {"address": "192.0.2.1", "port": 30_080},
            "backend": {"address": "10.244.1.5", "port": 8_080},
            "source": {"address": "192.0.2.1", "port": 1_024},
            "state": "closing", "external": true, "masqueraded": false, "forwarding": "nat",
            "idleSeconds": 3,
        });
        assert_eq!(serde_json::to_value(&flow).unwrap(), expected);
        let cells = connection(&flow);
        assert_eq!(cells[1..4], ["SCTP", "192.0.2.9:40000", "192.0.2.1:30080"]);
        let leaving = ConnectionRow {
            service: String::new(),
            protocol: Some(Protocol::Icmp),
            masqueraded: true,
            ..flow.clone()
        };
        let cells = connection(&leaving);
        assert_eq!((cells[0].as_str(), cells[1].as_str()), ("-", "ICMP"));
        assert_eq!(cells[5], "192.0.2.1:1024 (masqueraded)");
        let socket = ConnectionRow {
            client: None,
            socket: Some(77),
            source: None,
            external: None,
            forwarding: Forwarding::DsrOption,
            idle_seconds: None,
            ..flow
        };
        let value = serde_json::to_value(&socket).unwrap();
        let part = |name: &str| value[name].clone();
        assert_eq!(
            [part("client"), part("socket"), part("source"), part("external"), part("idleSeconds")],
            [json!(null), json!(77), json!(null), json!(null), json!(null)]
        );
        assert_eq!(part("forwarding"), "dsr");
        assert_eq!(connection(&socket)[2], "socket 77");
    }
}
