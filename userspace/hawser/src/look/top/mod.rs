//! `hawser proxy top`: current activity, refreshed every interval. Rates are differences of counters of the
//! programs. Round-trip times are the kernel's own, read by [`watch`]; the programs measure no times.

mod frame;
mod watch;

use std::io::IsTerminal;
use std::time::Duration;

use anyhow::{Context, Result};
use tokio::time::Instant;
use userspace_dataplane::inspect::Pressure;

use self::frame::{Frame, Sample};
use self::watch::Watch;
use super::print;
use crate::args::TopArgs;
use crate::limits;

/// The escape sequence that clears a terminal.
const CLEAR: &str = "\x1b[H\x1b[2J";

/// Prints a frame per interval until it is interrupted. Only an error at the start ends it: a data plane that
/// is being replaced is back soon.
pub async fn run(args: &TopArgs) -> Result<()> {
    let interval = Duration::from_secs_f64(args.interval.max(limits::TOP_INTERVAL_MIN));
    let terminal = std::io::stdout().is_terminal() && !args.look.json && !args.once;
    let mut watch = Watch::default();
    let mut then = Instant::now();
    let (first, _) = read(args, &mut watch)?;
    let mut last = Some(first);
    loop {
        tokio::time::sleep_until(then + interval).await;
        let now = Instant::now();
        let (next, maps) = match read(args, &mut watch) {
            Ok(read) => read,
            Err(error) if args.once => return Err(error),
            Err(error) => {
                tracing::warn!("{:#}; looking again", super::advised(error));
                (last, then) = (None, now);
                continue;
            }
        };
        if let Some(last) = &last {
            let frame = Frame::between(last, &next, (now - then).as_secs_f64(), maps, &watch);
            if args.look.json {
                print::json(&[&frame])?;
            } else {
                let clear = if terminal { CLEAR } else { "" };
                print::line(&format!("{clear}{}", frame.lines(args.lines).join("\n")))?;
            }
            if args.once {
                return Ok(());
            }
        }
        (last, then) = (Some(next), now);
    }
}

/// Takes a sample. Opens the tables each time, since they may have been replaced.
fn read(args: &TopArgs, watch: &mut Watch) -> Result<(Sample, Vec<Pressure>)> {
    let inspector = super::open(&args.look.bpf_root)?;
    let services = inspector.counted().context("cannot read the counters of services")?;
    let services = services.into_iter().map(|row| (row.name, (row.connections, row.refused)));
    let counters = inspector.metrics().context("cannot read the counters")?;
    let sample = Sample { services: services.collect(), counters };
    let maps = inspector.pressure().context("cannot read the fill levels of the maps")?;
    // A single frame has both readings, whatever they cost.
    if args.once || watch.is_due(Instant::now()) {
        watch.refresh(&inspector);
    }
    Ok((sample, maps))
}
