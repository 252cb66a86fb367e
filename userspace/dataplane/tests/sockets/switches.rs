//! Connections while backends are switched.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use userspace_dataplane::tables::DataPlane;

use crate::*;

#[test]
#[ignore = "needs root and eBPF: cargo xtask test"]
fn no_connection_fails_and_none_reaches_a_removed_backend_while_backends_are_switched() {
    both(|kernel, _, side| {
        let backends: Vec<(TcpListener, Backend)> = (0..6).map(|_| side.tcp()).collect();
        let list: Vec<Backend> = backends.iter().map(|(_, backend)| *backend).collect();
        kernel.apply_service("test/echo", Some(&side.service(Protocol::Tcp, &list[..3]))).unwrap();
        let stop = AtomicBool::new(false);
        let made = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    while !stop.load(Ordering::Relaxed) {
                        if let Err(error) = TcpStream::connect(side.at(80)) {
                            stop.store(true, Ordering::Relaxed);
                            panic!("after {made:?} connections: {error}");
                        }
                        made.fetch_add(1, Ordering::Relaxed);
                    }
                });
            }
            for (listener, _) in &backends {
                let stop = &stop;
                listener.set_nonblocking(true).unwrap();
                scope.spawn(move || {
                    while !stop.load(Ordering::Relaxed) {
                        match listener.accept() {
                            // A reset leaves nothing behind that would use up ports.
                            Ok((stream, _)) => linger_none(&stream),
                            Err(_) => std::thread::sleep(Duration::from_micros(200)),
                        }
                    }
                });
            }
            for round in 0..2_000 {
                if stop.load(Ordering::Relaxed) {
                    break;
                }
                let start = round % 4;
                kernel
                    .apply_service("test/echo", Some(&side.service(Protocol::Tcp, &list[start..start + 3])))
                    .unwrap();
            }
            stop.store(true, Ordering::Relaxed);
        });
        assert!(made.load(Ordering::Relaxed) > 100, "{made:?} connections during the churn");
        // After a switch has returned, no new connection goes to what was removed.
        kernel.apply_service("test/echo", Some(&side.service(Protocol::Tcp, &list[..1]))).unwrap();
        for (listener, _) in &backends {
            while listener.accept().is_ok() {}
        }
        for _ in 0..50 {
            TcpStream::connect(side.at(80)).unwrap();
        }
        assert!(backends[1..].iter().all(|(listener, _)| listener.accept().is_err()));
    });
}
