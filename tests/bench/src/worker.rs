//! Workers: this program, started again in another place. Servers answer, and clients work when they are told
//! to, in slices, so that subjects can take turns without restarts.
//!
//! All workers run on one CPU, so that no wake-up latency and no placement of threads affects a figure, and a
//! rate is the inverse of the cost on both sides.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::place::{Place, one_processor};
use crate::row::quantile;

/// Ports of a server, relative to its first one: closes each connection; answers byte by byte; discards.
/// Datagrams to the first are sent back.
pub const RESET: u16 = 0;
pub const ECHO: u16 = 1;
pub const SINK: u16 = 2;
/// Connections and round trips at the beginning of a slice that are not counted.
const WARM: usize = 20;
const CHUNK: usize = 1 << 16;

/// A process of this program in some place, which ends when the handle is dropped.
pub struct Worker {
    child: Child,
    stdin: ChildStdin,
    stdout: BufReader<ChildStdout>,
}

impl Worker {
    /// Starts a worker and waits until it reports that it is ready.
    pub fn start(place: &Place, args: &[&str]) -> Result<Self> {
        let program = std::env::current_exe().context("cannot find this program")?;
        let mut command: Command = place.command(program);
        command.arg("--worker").args(args).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().context("cannot start a worker")?;
        let stdin = child.stdin.take().context("standard input was not piped")?;
        let stdout = BufReader::new(child.stdout.take().context("standard output was not piped")?);
        let mut worker = Self { child, stdin, stdout };
        worker.answer().with_context(|| format!("the worker {args:?} did not start"))?;
        Ok(worker)
    }

    /// Sends a line of work; returns the numbers in its answer.
    pub fn ask(&mut self, line: &str) -> Result<Vec<f64>> {
        writeln!(self.stdin, "{line}").context("cannot write to a worker")?;
        self.answer().with_context(|| format!("the worker could not do {line:?}"))
    }

    fn answer(&mut self) -> Result<Vec<f64>> {
        let mut line = String::new();
        self.stdout.read_line(&mut line).context("cannot read from a worker")?;
        let Some(numbers) = line.trim().strip_prefix("ok") else {
            bail!("{}", if line.is_empty() { "it ended" } else { line.trim() });
        };
        let numbers: Result<Vec<f64>, _> = numbers.split_whitespace().map(str::parse).collect();
        numbers.with_context(|| format!("a worker answered {line:?}"))
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        // Fails if the process has already ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Serves on the ports starting from each of these addresses, until standard input ends.
pub fn serve(addresses: &[SocketAddr]) -> Result<()> {
    one_processor()?;
    for address in addresses {
        serve_tcp(*address, RESET, |stream| reset(&stream))?;
        serve_tcp(*address, ECHO, |stream| drop(std::thread::spawn(|| echo(stream))))?;
        serve_tcp(*address, SINK, |stream| drop(std::thread::spawn(|| swallow(stream))))?;
        serve_udp(*address)?;
    }
    println!("ok");
    io::copy(&mut io::stdin(), &mut io::sink()).context("cannot wait for the end").map(drop)
}

/// Passes each connection to `handle`, with one thread per listener.
fn serve_tcp(mut address: SocketAddr, work: u16, handle: fn(TcpStream)) -> Result<()> {
    address.set_port(address.port() + work);
    let listener = TcpListener::bind(address).with_context(|| format!("cannot listen on {address}"))?;
    std::thread::spawn(move || listener.incoming().flatten().for_each(handle));
    Ok(())
}

fn serve_udp(address: SocketAddr) -> Result<()> {
    let socket = UdpSocket::bind(address).with_context(|| format!("cannot listen on {address}"))?;
    std::thread::spawn(move || {
        let mut buffer = [0; 64];
        while let Ok((length, peer)) = socket.recv_from(&mut buffer) {
            // A client that has gone does not wait for the answer.
            let _ = socket.send_to(&buffer[..length], peer);
        }
    });
    Ok(())
}

/// Answers byte by byte until the client closes.
fn echo(mut stream: TcpStream) {
    let _ = stream.set_nodelay(true);
    let mut byte = [0];
    while stream.read_exact(&mut byte).and_then(|()| stream.write_all(&byte)).is_ok() {}
}

fn swallow(mut stream: TcpStream) {
    let mut buffer = vec![0; 4 * CHUNK];
    while stream.read(&mut buffer).is_ok_and(|length| length > 0) {}
}

/// Makes the connection end with a RST when it is closed, so that no port remains in TIME_WAIT.
fn reset(stream: &TcpStream) {
    let linger = nix::libc::linger { l_onoff: 1, l_linger: 0 };
    // If the option is refused, the socket closes normally.
    let _ = nix::sys::socket::setsockopt(stream, nix::sys::socket::sockopt::Linger, &linger);
}

/// Does the work of each line of standard input: `WORK TARGETS SECONDS`.
pub fn client() -> Result<()> {
    one_processor()?;
    println!("ok");
    let mut client = Client::default();
    for line in io::stdin().lines() {
        match client.work(&line.context("cannot read what to do")?) {
            Ok(numbers) => {
                let numbers: Vec<String> = numbers.iter().map(ToString::to_string).collect();
                println!("ok {}", numbers.join(" "));
            }
            Err(error) => println!("{}", format!("{error:#}").replace('\n', " ")),
        }
    }
    Ok(())
}

/// Connections that are kept between slices.
#[derive(Default)]
struct Client {
    tcp: BTreeMap<SocketAddr, TcpStream>,
    udp: BTreeMap<SocketAddr, UdpSocket>,
}

impl Client {
    fn work(&mut self, line: &str) -> Result<Vec<f64>> {
        let words: Vec<&str> = line.split(' ').collect();
        let [work, targets, seconds] = words.as_slice() else {
            bail!("{line:?} is not a piece of work");
        };
        let targets = sockets(targets)?;
        let length = Duration::from_secs_f64(seconds.parse().context("not a time")?);
        let first = *targets.first().context("there is no target")?;
        match *work {
            "connect_rate" => connect_rate(&targets, length).map(|rate| vec![rate]),
            "tcp_rr" => self.tcp_rr(first, length),
            "udp_rr" => self.udp_rr(first, length),
            "throughput" => self.throughput(first, length).map(|rate| vec![rate]),
            "upload" => self.upload(first, length).map(|rate| vec![rate]),
            other => bail!("there is no work called {other:?}"),
        }
    }

    fn stream(&mut self, target: SocketAddr) -> Result<&mut TcpStream> {
        match self.tcp.entry(target) {
            Entry::Occupied(entry) => Ok(entry.into_mut()),
            Entry::Vacant(entry) => {
                let stream =
                    TcpStream::connect(target).with_context(|| format!("cannot connect to {target}"))?;
                stream.set_nodelay(true).context("cannot set TCP_NODELAY")?;
                Ok(entry.insert(stream))
            }
        }
    }

    fn tcp_rr(&mut self, target: SocketAddr, length: Duration) -> Result<Vec<f64>> {
        let stream = self.stream(target)?;
        let mut byte = [0];
        round_trips(length, || {
            stream.write_all(&byte).and_then(|()| stream.read_exact(&mut byte)).context("a round trip")
        })
    }

    fn udp_rr(&mut self, target: SocketAddr, length: Duration) -> Result<Vec<f64>> {
        let socket = match self.udp.entry(target) {
            Entry::Occupied(entry) => entry.into_mut(),
            Entry::Vacant(entry) => {
                let socket = udp_socket()?;
                socket.connect(target).with_context(|| format!("cannot connect to {target}"))?;
                entry.insert(socket)
            }
        };
        let mut byte = [0];
        round_trips(length, || {
            socket.send(&byte).and_then(|_| socket.recv(&mut byte)).map(drop).context("a round trip")
        })
    }

    /// Measures bytes per second over a connection that is kept.
    fn throughput(&mut self, target: SocketAddr, length: Duration) -> Result<f64> {
        let stream = self.stream(target)?;
        let chunk = vec![0; CHUNK];
        for _ in 0..WARM {
            stream.write_all(&chunk).context("cannot send")?;
        }
        let (start, mut bytes) = (Instant::now(), 0_u64);
        while start.elapsed() < length {
            stream.write_all(&chunk).context("cannot send")?;
            bytes += CHUNK as u64;
        }
        Ok(bytes as f64 / start.elapsed().as_secs_f64())
    }

    /// Measures bytes per second over a new connection, until all have arrived.
    fn upload(&mut self, target: SocketAddr, length: Duration) -> Result<f64> {
        // A server handles one connection to a port at a time.
        drop(self.tcp.remove(&target));
        let start = Instant::now();
        let mut stream = TcpStream::connect(target).with_context(|| format!("cannot connect to {target}"))?;
        // Else megabytes would wait here in the end, which take half a minute at a low rate.
        nix::sys::socket::setsockopt(&stream, nix::sys::socket::sockopt::SndBuf, &(2 * CHUNK))
            .context("cannot set SO_SNDBUF")?;
        let (chunk, mut bytes) = (vec![0; CHUNK / 4], 0_u64);
        while start.elapsed() < length {
            stream.write_all(&chunk).context("cannot send")?;
            bytes += chunk.len() as u64;
        }
        stream.shutdown(std::net::Shutdown::Write).context("cannot end the connection")?;
        stream.read_to_end(&mut Vec::new()).context("the other side has not closed the connection")?;
        Ok(bytes as f64 / start.elapsed().as_secs_f64())
    }
}

/// Returns a UDP socket with a timeout.
pub fn udp_socket() -> Result<UdpSocket> {
    let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).context("cannot make a socket")?;
    socket.set_read_timeout(Some(Duration::from_secs(1))).context("cannot set a timeout")?;
    Ok(socket)
}

/// Measures sequential connections per second. A client that connects directly uses all targets in turn, as
/// balanced clients do.
fn connect_rate(targets: &[SocketAddr], length: Duration) -> Result<f64> {
    for target in targets.iter().cycle().take(WARM) {
        connect_once(*target).with_context(|| format!("cannot connect to {target}"))?;
    }
    let (start, mut count) = (Instant::now(), 0_u64);
    for target in targets.iter().cycle() {
        if start.elapsed() >= length {
            break;
        }
        connect_once(*target).with_context(|| format!("cannot connect to {target}"))?;
        count += 1;
    }
    Ok(count as f64 / start.elapsed().as_secs_f64())
}

/// Connects and waits until the server has closed.
fn connect_once(target: SocketAddr) -> io::Result<()> {
    match TcpStream::connect(target) {
        // The read returns an error or nothing, and either is the end.
        Ok(mut stream) => stream.read(&mut [0]).map(drop).or(Ok(())),
        // The connection was accepted and closed before this thread ran.
        Err(error) if error.kind() == io::ErrorKind::ConnectionReset => Ok(()),
        Err(error) => Err(error),
    }
}

/// Measures round trips per second, and the median and 99th percentile of their times.
fn round_trips(length: Duration, mut once: impl FnMut() -> Result<()>) -> Result<Vec<f64>> {
    for _ in 0..WARM {
        once()?;
    }
    let mut times = Vec::new();
    let start = Instant::now();
    let mut last = start;
    while last.duration_since(start) < length {
        once()?;
        let now = Instant::now();
        times.push(now.duration_since(last).as_secs_f64());
        last = now;
    }
    let rate = times.len() as f64 / last.duration_since(start).as_secs_f64();
    Ok(vec![rate, quantile(&times, 0.5), quantile(&times, 0.99)])
}

/// Parses addresses with ports, separated by commas.
pub fn sockets(text: &str) -> Result<Vec<SocketAddr>> {
    text.split(',').map(|one| one.parse().with_context(|| format!("{one:?} is not an address"))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Starts a server on three consecutive loopback ports.
    fn server() -> SocketAddr {
        for port in (20_000..30_000).step_by(7) {
            let address = SocketAddr::from(([127, 0, 0, 1], port));
            let ports = [(RESET, reset_one as fn(TcpStream)), (ECHO, echo), (SINK, swallow)];
            if serve_udp(address).is_ok()
                && ports.iter().all(|(work, handle)| serve_tcp(address, *work, *handle).is_ok())
            {
                return address;
            }
        }
        panic!("no three ports in a row are free");
    }

    fn reset_one(stream: TcpStream) {
        reset(&stream);
    }

    #[test]
    fn a_client_performs_every_kind_of_work() {
        let server = server();
        let at = |work: u16| SocketAddr::new(server.ip(), server.port() + work);
        let mut client = Client::default();
        for (work, port, figures) in [
            ("connect_rate", RESET, 1),
            ("tcp_rr", ECHO, 3),
            ("udp_rr", RESET, 3),
            ("throughput", SINK, 1),
            ("upload", SINK, 1),
        ] {
            let numbers = client.work(&format!("{work} {} 0.01", at(port))).unwrap();
            assert_eq!(numbers.len(), figures, "{work}");
            assert!(numbers.iter().all(|number| *number > 0.0), "{work}: {numbers:?}");
        }
        assert!(client.work("idle 127.0.0.1:1 0.1").is_err());
    }
}
