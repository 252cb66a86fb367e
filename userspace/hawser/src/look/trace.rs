//! `hawser proxy trace`: the steps of the programs of this node on the packets and calls of one flow.

use std::io::{ErrorKind, Write};
use std::time::Duration;

use anyhow::{Context, Result};
use serde::Serialize;
use tokio::time::Instant;
use userspace_dataplane::{Trace, TraceFlow};

use crate::args::TraceArgs;
use crate::limits;

/// A step in the JSON output.
#[derive(Serialize)]
struct Step<'a> {
    /// Since the trace began.
    seconds: f64,
    step: &'a str,
}

/// Prints each step until the time is up, the count is reached, or a signal arrives. Dropping the trace
/// restores the programs, so nothing here may exit the process.
pub async fn run(args: &TraceArgs) -> Result<()> {
    let flow = TraceFlow::parse(&args.flow).context("cannot parse the flow")?;
    let signal = userspace_daemon::shutdown::on_signal()?;
    tracing::info!("loading the tracing copy of the programs");
    let mut trace = Trace::begin(&args.look.bpf_root, &flow).context("cannot trace")?;
    let began = Instant::now();
    let until = began + Duration::from_secs(args.duration);
    tracing::info!("tracing for {} s, or until Ctrl-C", args.duration);
    let (mut attach, mut look) =
        (tokio::time::interval(limits::TRACE_ATTACH), tokio::time::interval(limits::TRACE_READ));
    let mut decisions = 0;
    loop {
        tokio::select! {
            () = signal.cancelled() => break,
            () = tokio::time::sleep_until(until) => break,
            _ = attach.tick() => trace.attach().context("cannot go on tracing")?,
            _ = look.tick() => {}
        }
        for line in trace.lines() {
            if !written(&line, began, args.look.json)? {
                return Ok(());
            }
            decisions += u64::from(line.contains(" decision: "));
            if args.count.is_some_and(|count| decisions >= count) {
                return Ok(());
            }
        }
    }
    Ok(())
}

/// Prints a step; returns `false` if the reader has gone.
fn written(line: &str, began: Instant, json: bool) -> Result<bool> {
    let text = text(line, began.elapsed().as_secs_f64(), json)?;
    match writeln!(std::io::stdout(), "{text}") {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(false),
        outcome => outcome.map(|()| true).context("cannot write to standard output"),
    }
}

fn text(line: &str, seconds: f64, json: bool) -> Result<String> {
    if json {
        let step = Step { seconds: (seconds * 1_000.0).round() / 1_000.0, step: line };
        return serde_json::to_string(&step).context("cannot encode a step");
    }
    Ok(format!("{seconds:8.3} {line}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_is_one_line_in_text_and_in_json() {
        let line = "cpu 0   decision: rewritten and sent out of interface eth0";
        assert_eq!(text(line, 1.234_5, false).unwrap(), format!("   1.234 {line}"));
        let value: serde_json::Value = serde_json::from_str(&text(line, 1.234_5, true).unwrap()).unwrap();
        assert_eq!(value, serde_json::json!({"seconds": 1.235, "step": line}));
    }
}
