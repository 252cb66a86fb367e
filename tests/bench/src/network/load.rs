//! A generator of DNS queries: several sockets, each with a few queries under way.

use std::io::{self, ErrorKind, Write as _};
use std::net::{SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use crate::row::quantile;

/// Sockets, as of as many pods, and queries under way on each.
const SOCKETS: usize = 16;
const WINDOW: usize = 4;
/// Time after which a query counts as lost.
const LOST: Duration = Duration::from_secs(1);

/// Sends queries for the A records of services `service-0` and so on, for the time in each line of standard
/// input; answers with answers a second, the median and the 99th percentile of their times, and the queries
/// that were lost.
pub fn work(server: &str, services: usize) -> Result<()> {
    let server: SocketAddr = server.parse().with_context(|| format!("{server:?} is not an address"))?;
    let queries: Vec<Vec<u8>> = (0..services).map(|i| query(&format!("service-{i}"))).collect();
    let mut sockets = (0..SOCKETS).map(|_| Asking::new(server)).collect::<Result<Vec<_>>>()?;
    println!("ok");
    for line in io::stdin().lines() {
        let line = line.context("cannot read what to do")?;
        let length = Duration::from_secs_f64(line.trim().parse().context("not a time")?);
        match load(&mut sockets, &queries, length) {
            Ok([rate, p50, p99, lost]) => println!("ok {rate} {p50} {p99} {lost}"),
            Err(error) => println!("{}", format!("{error:#}").replace('\n', " ")),
        }
        io::stdout().flush().context("cannot answer")?;
    }
    Ok(())
}

/// Returns a query for the A record of a Service in the namespace `default`, with an identifier of zero.
pub fn query(service: &str) -> Vec<u8> {
    let mut message = vec![0, 0, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0];
    for label in [service, "default", "svc", "cluster", "local"] {
        message.push(label.len() as u8);
        message.extend(label.bytes());
    }
    message.extend([0, 0, 1, 0, 1]);
    message
}

/// A socket with its queries under way.
struct Asking {
    socket: UdpSocket,
    /// The identifier and the beginning of each query under way.
    under_way: [Option<(u16, Instant)>; WINDOW],
    next: u16,
}

impl Asking {
    fn new(server: SocketAddr) -> Result<Self> {
        let any: SocketAddr = if server.is_ipv4() { ([0; 4], 0).into() } else { ([0_u16; 8], 0).into() };
        let socket = UdpSocket::bind(any).context("cannot make a socket")?;
        socket.connect(server).with_context(|| format!("cannot connect to {server}"))?;
        socket.set_nonblocking(true).context("cannot set up a socket")?;
        Ok(Self { socket, under_way: [None; WINDOW], next: 0 })
    }

    /// Takes the answers that are there; adds their times.
    fn take(&mut self, times: &mut Vec<f64>) -> Result<()> {
        let mut answer = [0; 1500];
        loop {
            let length = match self.socket.recv(&mut answer) {
                Ok(length) => length,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(error) => return Err(error).context("cannot receive an answer"),
            };
            ensure!(length > 12, "an answer has only {length} bytes");
            let (code, records) = (answer[3] & 15, u16::from_be_bytes([answer[6], answer[7]]));
            ensure!(code == 0 && records == 1, "an answer has code {code} and {records} records");
            let id = u16::from_be_bytes([answer[0], answer[1]]);
            if let Some(place) = self.under_way.iter_mut().find(|one| one.is_some_and(|(own, _)| own == id))
                && let Some((_, began)) = place.take()
            {
                times.push(began.elapsed().as_secs_f64());
            }
        }
    }

    /// Sends queries until the window is full; returns the number of those that were lost.
    fn fill(&mut self, queries: &[Vec<u8>], random: &mut u64) -> Result<u64> {
        let mut lost = 0;
        for place in &mut self.under_way {
            if let Some((_, began)) = place {
                if began.elapsed() < LOST {
                    continue;
                }
                lost += 1;
            }
            *random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let mut message = queries[(*random >> 33) as usize % queries.len()].clone();
            self.next = self.next.wrapping_add(1);
            message[..2].copy_from_slice(&self.next.to_be_bytes());
            *place = Some((self.next, Instant::now()));
            self.socket.send(&message).context("cannot send a query")?;
        }
        Ok(lost)
    }
}

fn load(sockets: &mut [Asking], queries: &[Vec<u8>], length: Duration) -> Result<[f64; 4]> {
    let (mut times, mut lost, mut random) = (Vec::new(), 0, 1);
    let began = Instant::now();
    while began.elapsed() < length {
        for asking in sockets.iter_mut() {
            asking.take(&mut times)?;
            lost += asking.fill(queries, &mut random)?;
        }
    }
    let rate = times.len() as f64 / began.elapsed().as_secs_f64();
    Ok([rate, quantile(&times, 0.5), quantile(&times, 0.99), lost as f64])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queries_are_counted_when_they_are_answered() {
        let server = UdpSocket::bind("127.0.0.1:0").unwrap();
        let address = server.local_addr().unwrap();
        std::thread::spawn(move || {
            let mut message = [0; 512];
            while let Ok((length, from)) = server.recv_from(&mut message) {
                assert_eq!(&message[12..22], b"\x09service-0");
                (message[2], message[7]) = (0x80, 1);
                server.send_to(&message[..length], from).unwrap();
            }
        });
        let mut sockets = [Asking::new(address).unwrap(), Asking::new(address).unwrap()];
        let [rate, p50, p99, lost] =
            load(&mut sockets, &[query("service-0")], Duration::from_millis(50)).unwrap();
        assert!(rate > 0.0 && p50 > 0.0 && p50 <= p99 && lost == 0.0, "{rate} {p50} {p99} {lost}");
    }
}
