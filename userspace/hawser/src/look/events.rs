//! `hawser proxy events`: the events that programs report about single packets. The agent reads them from the
//! kernel and retains the last ones, so this command asks the agent; while no agent runs, it reads them
//! itself.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};

use anyhow::{Context, Result, bail};
use serde_json::Value;
use userspace_dataplane::inspect::EventRow;

use super::print::{self, place};
use crate::args::EventArgs;
use crate::limits;

/// Prints events.
pub async fn run(args: &EventArgs) -> Result<()> {
    let mut after = 0;
    let mut answer = ask(args.metrics_address, after);
    if let Err(error) = &answer
        && error.downcast_ref::<std::io::Error>().is_some()
    {
        tracing::warn!(at = %args.metrics_address, %error, "no agent answers; reading from the kernel");
        return read(args).await;
    }
    loop {
        for line in answer?.lines() {
            let event: Value = serde_json::from_str(line).context("the agent's answer is not JSON")?;
            after = event["number"].as_u64().unwrap_or(after);
            let row: EventRow =
                serde_json::from_value(event.clone()).context("the agent runs another version")?;
            if !args.wants(&row) {
                continue;
            }
            if args.look.json {
                print::line(line)?;
            } else {
                print::line(&format!("{} {}", event["at"].as_str().unwrap_or_default(), text(&row)))?;
            }
        }
        if !args.follow {
            return Ok(());
        }
        tokio::time::sleep(limits::EVENTS_PAUSE).await;
        answer = ask(args.metrics_address, after);
    }
}

/// Reads the ring buffer, which withdraws the events from other readers.
async fn read(args: &EventArgs) -> Result<()> {
    let inspector = super::open(&args.look.bpf_root)?;
    let mut events = inspector.events().context("cannot read the events")?;
    loop {
        while let Some(row) = events.read() {
            if !args.wants(&row) {
                continue;
            }
            if args.look.json {
                print::json(&[&row])?;
            } else {
                let (seconds, nanoseconds) = (row.time / 1_000_000_000, row.time % 1_000_000_000);
                print::line(&format!("[{seconds}.{:06}] {}", nanoseconds / 1_000, text(&row)))?;
            }
        }
        if !args.follow {
            return Ok(());
        }
        tokio::time::sleep(limits::EVENTS_PAUSE).await;
        events.forget_names();
    }
}

/// Asks the agent for the events after a sequence number.
fn ask(address: SocketAddr, after: u64) -> Result<String> {
    let mut stream = TcpStream::connect_timeout(&address, limits::EVENTS_TIMEOUT)?;
    stream.set_read_timeout(Some(limits::EVENTS_TIMEOUT))?;
    let request =
        format!("GET /debug/events?after={after} HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\n\r\n");
    stream.write_all(request.as_bytes())?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer)?;
    body(&String::from_utf8_lossy(&answer)).map(str::to_owned)
}

/// Returns the body of an answer, which ends after its content length or with the connection.
fn body(answer: &str) -> Result<&str> {
    let Some((head, body)) = answer.split_once("\r\n\r\n") else {
        bail!("the agent does not answer in HTTP")
    };
    match head.split(' ').nth(1) {
        Some("200") => Ok(body),
        Some(code) => bail!("the agent answers {code}: is that its metrics address?"),
        None => bail!("the agent does not answer in HTTP"),
    }
}

fn text(row: &EventRow) -> String {
    let protocol = match row.protocol {
        1 => "ICMP".to_owned(),
        6 => "TCP".to_owned(),
        17 => "UDP".to_owned(),
        58 => "ICMPv6".to_owned(),
        132 => "SCTP".to_owned(),
        other => format!("protocol {other}"),
    };
    let mut text = format!("{} {} {protocol} ", row.kind, row.hook);
    if row.hook != "socket" {
        text += &format!("{} -> ", place(row.source));
    }
    text += &place(row.destination);
    if let Some(service) = &row.service {
        text += &format!(" service {service}");
    }
    if let Some(policy) = &row.policy {
        text += &format!(" policy {policy}");
    }
    if let Some(interface) = row.interface {
        text += &format!(" interface {interface}");
    }
    if row.suppressed > 0 {
        text += &format!(" ({} more left out before)", row.suppressed);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_taken_apart() {
        assert_eq!(body("HTTP/1.1 200 OK\r\na: b\r\n\r\n{}\n").unwrap(), "{}\n");
        assert!(body("HTTP/1.1 404 Not Found\r\n\r\n").unwrap_err().to_string().contains("404"));
        assert!(body("SSH-2.0").is_err());
    }

    #[test]
    fn an_event_in_json_and_back() {
        let row = event();
        let value = serde_json::to_value(&row).unwrap();
        let expected = serde_json::json!({
            "uptimeNanoseconds": 1, "kind": "refused", "hook": "pod", "protocol": "TCP",
            "source": {"address": "10.244.0.5", "port": 40_000},
            "destination": {"address": "10.96.0.1", "port": 443},
            "service": "default/web", "interface": 7, "suppressed": 2,
        });
        assert_eq!(value, expected);
        assert_eq!(serde_json::from_value::<EventRow>(value).unwrap(), row);
        // A protocol without a name here.
        let row = EventRow { protocol: 47, ..row };
        let value = serde_json::to_value(&row).unwrap();
        assert_eq!(value["protocol"], "47");
        assert_eq!(serde_json::from_value::<EventRow>(value).unwrap(), row);
    }

    fn event() -> EventRow {
        EventRow {
            time: 1,
            kind: "refused".to_owned(),
            hook: "pod".to_owned(),
            protocol: 6,
            source: ("10.244.0.5".parse().unwrap(), 40_000),
            destination: ("10.96.0.1".parse().unwrap(), 443),
            service: Some("default/web".to_owned()),
            policy: None,
            interface: Some(7),
            suppressed: 2,
        }
    }

    #[test]
    fn an_event_is_one_line() {
        assert_eq!(
            text(&event()),
            "refused pod TCP 10.244.0.5:40000 -> 10.96.0.1:443 service default/web interface 7 (2 more left out before)"
        );
    }
}
