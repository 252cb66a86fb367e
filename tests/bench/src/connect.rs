//! Connections per second to a Service from a local socket. The worker is this program again, in
//! the subject's namespace and cgroup.

use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

const CLIENTS: usize = 2;

/// Listens on `backends`, connects to `target` for `seconds`, prints connections per second.
/// Connections end by RST, so that no port waits in TIME_WAIT.
pub fn worker(target: SocketAddr, backends: &[SocketAddr], seconds: f64) -> Result<()> {
    for backend in backends {
        let listener = TcpListener::bind(backend).with_context(|| format!("cannot listen on {backend}"))?;
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                reset(&stream);
            }
        });
    }
    let (done, count) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    // The first ones warm the caches and are not counted.
    for _ in 0..200 {
        TcpStream::connect(target).with_context(|| format!("cannot connect to {target}"))?;
    }
    let start = Instant::now();
    let clients: Vec<_> = (0..CLIENTS)
        .map(|_| {
            let (done, count) = (Arc::clone(&done), Arc::clone(&count));
            std::thread::spawn(move || {
                while !done.load(Ordering::Relaxed) {
                    if let Ok(stream) = TcpStream::connect(target) {
                        reset(&stream);
                        count.fetch_add(1, Ordering::Relaxed);
                    }
                }
            })
        })
        .collect();
    std::thread::sleep(Duration::from_secs_f64(seconds));
    done.store(true, Ordering::Relaxed);
    for client in clients {
        client.join().map_err(|_| anyhow::anyhow!("a client thread panicked"))?;
    }
    println!("{}", count.load(Ordering::Relaxed) as f64 / start.elapsed().as_secs_f64());
    Ok(())
}

fn reset(stream: &TcpStream) {
    let linger = nix::libc::linger { l_onoff: 1, l_linger: 0 };
    // A socket that refuses the option closes in the ordinary way.
    let _ = nix::sys::socket::setsockopt(stream, nix::sys::socket::sockopt::Linger, &linger);
}
