//! Constant load with counted results, used by the end-to-end test while a Service changes.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Delay between requests; the load is constant, not as high as possible.
const PAUSE: Duration = Duration::from_millis(4);
/// Number of failures whose text is recorded; all are counted.
const KEPT: usize = 10;

#[derive(Default)]
struct Counts {
    answers: BTreeMap<String, u64>,
    failures: Vec<String>,
    failed: u64,
}

impl Counts {
    fn failure(&mut self, text: String) {
        self.failed += 1;
        if self.failures.len() < KEPT {
            self.failures.push(text);
        }
    }

    fn print(&self) {
        let total: u64 = self.answers.values().sum();
        let answers: Vec<String> = self.answers.iter().map(|(name, n)| format!("{name:?}:{n}")).collect();
        println!(
            "{{\"ok\":{total},\"failed\":{},\"answers\":{{{}}},\"failures\":{:?}}}",
            self.failed,
            answers.join(","),
            self.failures
        );
    }
}

/// Returns a flag that is set when standard input ends, which is the caller's signal to stop.
fn until_end_of_input() -> Arc<AtomicBool> {
    let done = Arc::new(AtomicBool::new(false));
    let flag = Arc::clone(&done);
    std::thread::spawn(move || {
        // An error ends the input as well.
        let _ = std::io::stdin().read_to_end(&mut Vec::new());
        flag.store(true, Ordering::Relaxed);
    });
    done
}

/// Makes one connection per request, sequentially.
pub fn connections(target: &str) -> std::io::Result<()> {
    let done = until_end_of_input();
    let mut counts = Counts::default();
    while !done.load(Ordering::Relaxed) {
        match crate::fetch_ok(target) {
            Ok(body) => *counts.answers.entry(body.trim().to_owned()).or_default() += 1,
            Err(error) => counts.failure(error.to_string()),
        }
        std::thread::sleep(PAUSE);
    }
    counts.print();
    Ok(())
}

/// Uses one connection for repeated round trips of a line. A broken connection is not replaced.
pub fn one_connection(target: &str) -> std::io::Result<()> {
    let done = until_end_of_input();
    let mut counts = Counts::default();
    let mut stream = TcpStream::connect(target)?;
    stream.set_read_timeout(Some(Duration::from_secs(5)))?;
    write!(stream, "GET /stream HTTP/1.1\r\nHost: {target}\r\n\r\n")?;
    let mut reader = BufReader::new(stream.try_clone()?);
    println!("connected");
    while !done.load(Ordering::Relaxed) {
        let mut line = String::new();
        let answer = stream.write_all(b"ping\n").and_then(|()| reader.read_line(&mut line));
        match answer {
            Ok(length) if length > 0 => {
                let name = line.split_whitespace().next().unwrap_or_default().to_owned();
                *counts.answers.entry(name).or_default() += 1;
            }
            Ok(_) => {
                counts.failure("the connection was closed".to_owned());
                break;
            }
            Err(error) => {
                counts.failure(error.to_string());
                break;
            }
        }
        std::thread::sleep(PAUSE * 5);
    }
    counts.print();
    Ok(())
}
