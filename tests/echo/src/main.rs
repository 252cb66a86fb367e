//! The workload of the tests: HTTP and UDP echo, by IPv4 and IPv6, that answers with its pod's name.
//!
//! Environment: `PORT` (TCP and UDP, 8080), `START_DELAY_MS` (listens only after so long),
//! `DRAIN_MS` (keeps serving so long after SIGTERM, 0). HTTP paths: `/` answers the pod's name;
//! `/ready` and `/healthz` answer 200, or 503 once `/fail` was asked (until `/recover`);
//! `/exit?N` ends the process with code N; `/client` answers the caller's address;
//! `/calls` asks each `HOST:PORT[/PATH]` of the list `CALLS` and answers the pod's name, or 502 if one fails;
//! `/stream` holds the connection and sends a line whenever it receives one; `/mirror` sends back every byte.
//!
//! As the image has no other program, it is also its own client: `echo get HOST:PORT[/PATH]` and
//! `echo udp HOST:PORT` print the answer, `echo resolve HOST:PORT` the address; `echo load HOST:PORT` makes a connection a request and
//! `echo hold HOST:PORT` one connection for all, until standard input ends, and print what they
//! counted as JSON (module `load`); `echo mirror HOST:PORT COUNT` sends bytes and checks those that come back.
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "its logs are what tests read")]

mod load;
mod mirror;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream, ToSocketAddrs, UdpSocket};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

static TERMINATED: AtomicBool = AtomicBool::new(false);

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let result = match arguments.iter().map(String::as_str).collect::<Vec<_>>().as_slice() {
        [] | ["serve"] => serve(),
        ["get", target] => get(target),
        ["resolve", target] => resolve(target).map(|address| println!("{address}")),
        ["udp", target] => udp(target),
        ["load", target] => load::connections(target),
        ["hold", target] => load::one_connection(target),
        ["mirror", target, count] => count
            .parse()
            .map_err(|_| std::io::Error::other(format!("{count} is no number of bytes")))
            .and_then(|count| mirror::run(target, count)),
        ["exit", code] => return ExitCode::from(code.parse::<u8>().unwrap_or(1)),
        ["print", text @ ..] => {
            println!("{}", text.join(" "));
            Ok(())
        }
        ["sleep", seconds] => {
            std::thread::sleep(Duration::from_secs(seconds.parse().unwrap_or(1)));
            Ok(())
        }
        ["cat", file] => std::fs::read_to_string(file).map(|text| print!("{text}")),
        ["write", file, text] => std::fs::write(file, text),
        ["env"] => {
            for (name, value) in std::env::vars() {
                println!("{name}={value}");
            }
            Ok(())
        }
        other => {
            eprintln!("echo: unknown arguments {other:?}");
            return ExitCode::from(2);
        }
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("echo: {error}");
            ExitCode::FAILURE
        }
    }
}

fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

fn serve() -> std::io::Result<()> {
    on_terminate();
    std::thread::sleep(Duration::from_millis(number("START_DELAY_MS", 0)));
    let port = u16::try_from(number("PORT", 8080)).unwrap_or(8080);
    let name: Arc<str> = std::env::var("HOSTNAME").unwrap_or_else(|_| "unnamed".to_owned()).into();
    let healthy = Arc::new(AtomicBool::new(true));
    // A socket on :: takes IPv4, too; a kernel without IPv6 has none.
    let any: [IpAddr; 2] = [Ipv6Addr::UNSPECIFIED.into(), Ipv4Addr::UNSPECIFIED.into()];
    let any = any.map(|ip| SocketAddr::new(ip, port));
    let tcp = TcpListener::bind(&any[..])?;
    let udp = UdpSocket::bind(&any[..])?;
    println!("{name} listens on port {port}");
    let answer = Arc::clone(&name);
    std::thread::spawn(move || echo_datagrams(&udp, &answer));
    std::thread::spawn(move || {
        for stream in tcp.incoming().flatten() {
            let (name, healthy) = (Arc::clone(&name), Arc::clone(&healthy));
            std::thread::spawn(move || serve_connection(stream, &name, &healthy));
        }
    });
    while !TERMINATED.load(Ordering::Relaxed) {
        std::thread::sleep(Duration::from_millis(20));
    }
    std::thread::sleep(Duration::from_millis(number("DRAIN_MS", 0)));
    println!("terminated");
    Ok(())
}

/// Handles SIGTERM by setting a flag; as process 1 of its namespace a program without a handler would ignore
/// it.
#[allow(unsafe_code, reason = "the standard library cannot set a signal handler")]
fn on_terminate() {
    extern "C" fn handler(_: libc::c_int) {
        TERMINATED.store(true, Ordering::Relaxed);
    }
    let handler: extern "C" fn(libc::c_int) = handler;
    // SAFETY: the handler only stores to an atomic, which is async-signal-safe.
    unsafe { libc::signal(libc::SIGTERM, handler as libc::sighandler_t) };
}

fn echo_datagrams(socket: &UdpSocket, name: &str) {
    let mut buffer = [0; 2048];
    while let Ok((length, from)) = socket.recv_from(&mut buffer) {
        let text = String::from_utf8_lossy(&buffer[..length]);
        // With UDP, detecting a lost answer is up to the client.
        let _ = socket.send_to(format!("{name} {text}").as_bytes(), from);
    }
}

/// Serves requests on one connection until the client closes it.
fn serve_connection(stream: TcpStream, name: &str, healthy: &AtomicBool) {
    let peer = stream.peer_addr().map(|peer| SocketAddr::new(peer.ip().to_canonical(), peer.port()));
    let peer = peer.map(|peer| peer.to_string()).unwrap_or_default();
    let Ok(reader) = stream.try_clone() else { return };
    let (mut reader, mut stream) = (BufReader::new(reader), stream);
    while let Some(path) = request_path(&mut reader) {
        let (status, body) = match path.as_str() {
            "/ready" | "/healthz" if !healthy.load(Ordering::Relaxed) => (503, "failing".to_owned()),
            "/fail" | "/recover" => {
                healthy.store(path == "/recover", Ordering::Relaxed);
                (200, name.to_owned())
            }
            "/client" => (200, peer.clone()),
            "/calls" => match call_all() {
                Ok(()) => (200, name.to_owned()),
                Err(failures) => (502, format!("{name}: {failures}")),
            },
            "/stream" => return hold(&mut reader, &mut stream, name),
            "/mirror" => return mirror::serve(&mut reader, &mut stream),
            exit if exit.starts_with("/exit?") => std::process::exit(exit[6..].parse().unwrap_or(1)),
            _ => (200, name.to_owned()),
        };
        let reason = match status {
            200 => "OK",
            502 => "Bad Gateway",
            _ => "Service Unavailable",
        };
        let answer = format!(
            "HTTP/1.1 {status} {reason}\r\nContent-Type: text/plain\r\nContent-Length: {}\r\n\r\n{body}\n",
            body.len() + 1
        );
        if stream.write_all(answer.as_bytes()).is_err() {
            return;
        }
    }
}

/// Reads the next request and returns its path; `None` at the end.
fn request_path(reader: &mut impl BufRead) -> Option<String> {
    let mut first = String::new();
    if reader.read_line(&mut first).ok()? == 0 {
        return None;
    }
    loop {
        let mut header = String::new();
        if reader.read_line(&mut header).ok()? <= 2 {
            break;
        }
    }
    first.split_whitespace().nth(1).map(str::to_owned)
}

fn hold(reader: &mut impl BufRead, stream: &mut TcpStream, name: &str) {
    let mut line = String::new();
    while reader.read_line(&mut line).is_ok_and(|n| n > 0) {
        if stream.write_all(format!("{name} {line}").as_bytes()).is_err() {
            return;
        }
        line.clear();
    }
}

/// Asks everybody in the comma-separated list `CALLS`, one after the other. The error names who failed, and how.
fn call_all() -> Result<(), String> {
    let calls = std::env::var("CALLS").unwrap_or_default();
    for target in calls.split(',').filter(|target| !target.is_empty()) {
        fetch_ok(target).map_err(|error| format!("{target}: {error}"))?;
    }
    Ok(())
}

fn get(target: &str) -> std::io::Result<()> {
    fetch(target).map(|(_, body)| print!("{body}"))
}

/// Fetches as [`fetch`] does; a status other than 200 is an error.
fn fetch_ok(target: &str) -> std::io::Result<String> {
    let (status, body) = fetch(target)?;
    if status == 200 { Ok(body) } else { Err(std::io::Error::other(format!("{status} {}", body.trim()))) }
}

/// Resolves `HOST:PORT` as every program does, by the `resolv.conf` of the machine or pod.
fn resolve(target: &str) -> std::io::Result<SocketAddr> {
    let mut found = target.to_socket_addrs()?;
    found.next().ok_or_else(|| std::io::Error::other(format!("{target} has no address")))
}

/// Sends a request over a new connection, and returns status and body; every wait ends after five seconds.
fn fetch(target: &str) -> std::io::Result<(u16, String)> {
    let (host, path) = target.split_once('/').unwrap_or((target, ""));
    let address = resolve(host)?;
    let mut stream = TcpStream::connect_timeout(&address, Duration::from_secs(5))?;
    stream.set_read_timeout(Some(Duration::from_secs(5)))?;
    write!(stream, "GET /{path} HTTP/1.1\r\nHost: {host}\r\n\r\n")?;
    let mut reader = BufReader::new(stream);
    let mut first = String::new();
    reader.read_line(&mut first)?;
    let status = first.split(' ').nth(1).and_then(|word| word.parse().ok()).unwrap_or(0);
    let mut length = 0;
    loop {
        let mut header = String::new();
        if reader.read_line(&mut header)? <= 2 {
            break;
        }
        if let Some(value) = header.to_ascii_lowercase().strip_prefix("content-length:") {
            length = value.trim().parse().unwrap_or(0);
        }
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body)?;
    if length == 0 {
        return Err(std::io::Error::other("the answer is empty"));
    }
    Ok((status, String::from_utf8_lossy(&body).into_owned()))
}

fn udp(target: &str) -> std::io::Result<()> {
    let target = resolve(target)?;
    let any: IpAddr =
        if target.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
    let socket = UdpSocket::bind((any, 0))?;
    socket.set_read_timeout(Some(Duration::from_secs(2)))?;
    socket.connect(target)?;
    socket.send(b"ping")?;
    let mut buffer = [0; 2048];
    let length = socket.recv(&mut buffer)?;
    println!("{}", String::from_utf8_lossy(&buffer[..length]));
    Ok(())
}
