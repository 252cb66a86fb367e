//! What local sockets do with a Service: connections and round trips. The worker is this program
//! again, in the subject's namespace and cgroup.

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};

use crate::row::{middle_mean, quantile};

const CLIENTS: usize = 2;
/// Connections and round trips that warm the caches and are not counted.
const WARM: usize = 200;

/// Does one kind of work for `seconds` against servers on `backends` and prints its figures.
pub fn worker(work: &str, targets: &[SocketAddr], backends: &[SocketAddr], seconds: f64) -> Result<()> {
    let length = Duration::from_secs_f64(seconds);
    let first = *targets.first().context("there is no target")?;
    match work {
        "connect_rate" => println!("{}", connect_rate(targets, backends, length)?),
        "tcp_rr" => {
            for backend in backends {
                serve_tcp(*backend, echo)?;
            }
            let mut stream = connect(first)?;
            stream.set_nodelay(true).context("cannot set TCP_NODELAY")?;
            let mut byte = [0];
            round_trips(length, || {
                stream.write_all(&byte).and_then(|()| stream.read_exact(&mut byte)).context("a round trip")
            })?;
        }
        "udp_rr" => {
            serve_udp(backends)?;
            let socket = udp_client()?;
            socket.connect(first).with_context(|| format!("cannot connect to {first}"))?;
            let mut byte = [0];
            round_trips(length, || {
                socket.send(&byte).and_then(|_| socket.recv(&mut byte)).map(drop).context("a round trip")
            })?;
        }
        "udp_connect" => println!("{}", udp_connect(first, length)?),
        other => bail!("there is no work called {other:?}"),
    }
    Ok(())
}

fn connect(target: SocketAddr) -> Result<TcpStream> {
    TcpStream::connect(target).with_context(|| format!("cannot connect to {target}"))
}

/// Hands each connection to `handle`, one thread a listener.
fn serve_tcp(backend: SocketAddr, handle: fn(TcpStream)) -> Result<()> {
    let listener = TcpListener::bind(backend).with_context(|| format!("cannot listen on {backend}"))?;
    std::thread::spawn(move || listener.incoming().flatten().for_each(handle));
    Ok(())
}

fn serve_udp(backends: &[SocketAddr]) -> Result<()> {
    for backend in backends {
        let socket = UdpSocket::bind(backend).with_context(|| format!("cannot listen on {backend}"))?;
        std::thread::spawn(move || {
            let mut buffer = [0; 64];
            while let Ok((length, peer)) = socket.recv_from(&mut buffer) {
                // A client that has gone does not wait for this.
                let _ = socket.send_to(&buffer[..length], peer);
            }
        });
    }
    Ok(())
}

fn udp_client() -> Result<UdpSocket> {
    let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).context("cannot make a socket")?;
    socket.set_read_timeout(Some(Duration::from_secs(1))).context("cannot set a timeout")?;
    Ok(socket)
}

/// Answers byte by byte until the client goes.
fn echo(mut stream: TcpStream) {
    let _ = stream.set_nodelay(true);
    let mut byte = [0];
    while stream.read_exact(&mut byte).and_then(|()| stream.write_all(&byte)).is_ok() {}
}

/// Connections per second. The server ends each by RST, so that no port waits in TIME_WAIT, and the
/// client waits for it, so that no more connections wait to be accepted than there are clients.
fn connect_rate(targets: &[SocketAddr], backends: &[SocketAddr], length: Duration) -> Result<f64> {
    for backend in backends {
        serve_tcp(*backend, |stream| reset(&stream))?;
    }
    for i in 0..WARM {
        let target = targets[i % targets.len()];
        connect_once(target).with_context(|| format!("cannot connect to {target}"))?;
    }
    let (done, count) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let start = Instant::now();
    let clients: Vec<_> = (0..CLIENTS)
        .map(|_| {
            let (done, count, targets) = (Arc::clone(&done), Arc::clone(&count), targets.to_vec());
            std::thread::spawn(move || {
                // Who connects directly uses all backends too, as balanced clients do.
                for target in targets.iter().cycle() {
                    if done.load(Ordering::Relaxed) {
                        break;
                    }
                    if connect_once(*target).is_ok() {
                        count.fetch_add(1, Ordering::Relaxed);
                    }
                }
            })
        })
        .collect();
    std::thread::sleep(length);
    done.store(true, Ordering::Relaxed);
    for client in clients {
        client.join().map_err(|_| anyhow!("a client thread panicked"))?;
    }
    Ok(count.load(Ordering::Relaxed) as f64 / start.elapsed().as_secs_f64())
}

fn reset(stream: &TcpStream) {
    let linger = nix::libc::linger { l_onoff: 1, l_linger: 0 };
    // A socket that refuses the option closes in the ordinary way.
    let _ = nix::sys::socket::setsockopt(stream, nix::sys::socket::sockopt::Linger, &linger);
}

/// Connects and waits until the server has closed.
fn connect_once(target: SocketAddr) -> io::Result<()> {
    match TcpStream::connect(target) {
        // What it reads is an error, or nothing: both are the end.
        Ok(mut stream) => stream.read(&mut [0]).map(drop).or(Ok(())),
        // The end came before this thread had its turn: accepted, and closed.
        Err(error) if error.kind() == io::ErrorKind::ConnectionReset => Ok(()),
        Err(error) => Err(error),
    }
}

/// Prints round trips per second, and the median and the 99th percentile of their time.
fn round_trips(length: Duration, mut once: impl FnMut() -> Result<()>) -> Result<()> {
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
    println!("{rate} {} {}", quantile(&times, 0.5), quantile(&times, 0.99));
    Ok(())
}

/// Seconds of one connect(2) of a UDP socket: no packet, a route, and the hook if there is one.
/// The socket stays the same, so that making and closing it is not in the figure.
fn udp_connect(target: SocketAddr, length: Duration) -> Result<f64> {
    const CHUNK: u32 = 500;
    let socket = udp_client()?;
    let mut chunks = Vec::new();
    let start = Instant::now();
    while start.elapsed() < length {
        let chunk = Instant::now();
        for _ in 0..CHUNK {
            socket.connect(target).with_context(|| format!("cannot connect to {target}"))?;
        }
        chunks.push(chunk.elapsed().as_secs_f64() / f64::from(CHUNK));
    }
    Ok(middle_mean(&chunks))
}
