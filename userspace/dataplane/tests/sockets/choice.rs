//! The choice of a backend.

use std::time::Instant;

use userspace_dataplane::DataPlane;
use userspace_dataplane::tables::Algorithm;

use crate::support::frontend;
use crate::*;

#[test]
#[ignore = "needs root and eBPF: cargo xtask test"]
fn connections_spread_over_the_backends() {
    both(|kernel, _, side| {
        let backends: Vec<(TcpListener, Backend)> = (0..4).map(|_| side.tcp()).collect();
        let list: Vec<Backend> = backends.iter().map(|(_, backend)| *backend).collect();
        kernel.apply_service("test/echo", Some(&side.service(Protocol::Tcp, &list))).unwrap();
        let mut hits = [0_u32; 4];
        for _ in 0..400 {
            drop(TcpStream::connect(side.at(80)).unwrap());
        }
        for ((listener, _), hits) in backends.iter().zip(&mut hits) {
            listener.set_nonblocking(true).unwrap();
            while listener.accept().is_ok() {
                *hits += 1;
            }
        }
        assert_eq!(hits.iter().sum::<u32>(), 400);
        // Binomial with n = 400, p = 1/4: mean 100, standard deviation 8.7; six of them.
        assert!(hits.iter().all(|count| (48..=152).contains(count)), "{hits:?}");
    });
}

/// Returns the number of connections that each backend gets out of this many.
fn shares(side: Side, backends: &[(TcpListener, Backend)], connections: u32) -> Vec<u32> {
    let mut shares = vec![0; backends.len()];
    for _ in 0..connections {
        shares[reach(side.at(80), backends)] += 1;
    }
    shares
}

#[test]
#[ignore = "needs root and eBPF: cargo xtask test"]
fn connections_spread_by_weight() {
    both(|kernel, _, side| {
        let backends: Vec<(TcpListener, Backend)> = (0..3).map(|_| side.tcp()).collect();
        for algorithm in [Algorithm::Random, Algorithm::Consistent] {
            let mut tables = side.service(Protocol::Tcp, &[]);
            tables.frontends[0].algorithm = algorithm;
            let weighted = backends.iter().zip([3, 1, 0]);
            tables.frontends[0].backends =
                weighted.map(|((_, backend), weight)| Backend { weight, ..*backend }).collect();
            kernel.apply_service("test/echo", Some(&tables)).unwrap();
            let shares = shares(side, &backends, 400);
            // Binomial with n = 400, p = 1/4: mean 100, standard deviation 8.7; six of them, and the
            // rounding of the table.
            assert!((40..=160).contains(&shares[1]), "{algorithm:?} {shares:?}");
            assert_eq!((shares[0] + shares[1], shares[2]), (400, 0), "{algorithm:?} {shares:?}");
        }
    });
}

#[test]
#[ignore = "needs root and eBPF: cargo xtask test"]
fn consistent_choice_spreads_sockets_too() {
    both(|kernel, _, side| {
        // Without a look-up table, and with one.
        for count in [4, 12] {
            let backends: Vec<(TcpListener, Backend)> = (0..count).map(|_| side.tcp()).collect();
            let mut tables = side.service(Protocol::Tcp, &[]);
            tables.frontends[0].backends = backends.iter().map(|(_, backend)| *backend).collect();
            tables.frontends[0].algorithm = Algorithm::Consistent;
            kernel.apply_service("test/echo", Some(&tables)).unwrap();
            let shares = shares(side, &backends, 100 * count);
            // Mean 100, standard deviation below 10; six of them.
            assert!(shares.iter().all(|share| (40..=160).contains(share)), "{shares:?}");
        }
    });
}

/// A service with two ports, whose backends have an address each and a port for each.
struct Sticky {
    side: Side,
    /// Listeners by service port, then by backend.
    listeners: [Vec<(TcpListener, Backend)>; 2],
    seconds: u32,
}

impl Sticky {
    fn new(side: Side, seconds: u32) -> Self {
        let listen = || (1..=4).map(|number| tcp_backend_at(side.address(number), 0)).collect();
        Self { side, listeners: [listen(), listen()], seconds }
    }

    /// Returns tables with the backends that have a weight.
    fn tables(&self, weights: [Option<u16>; 4]) -> ServiceTables {
        let frontends = self.listeners.iter().zip([80, 443]).map(|(listeners, port)| {
            let present = listeners
                .iter()
                .zip(weights)
                .filter_map(|((_, backend), weight)| Some(Backend { weight: weight?, ..*backend }));
            let mut frontend = frontend(self.side.key(port, Protocol::Tcp), &present.collect::<Vec<_>>());
            frontend.affinity_seconds = self.seconds;
            frontend
        });
        ServiceTables { frontends: frontends.collect(), ..ServiceTables::default() }
    }

    fn apply(&self, kernel: &mut Kernel, weights: [Option<u16>; 4]) {
        kernel.apply_service("test/sticky", Some(&self.tables(weights))).unwrap();
    }

    /// Returns the backend that a connection to the first or second port reaches.
    fn reach(&self, port: usize) -> usize {
        reach(self.side.at([80, 443][port]), &self.listeners[port])
    }

    /// Returns the backend of another client, in a namespace of its own.
    fn reach_from_elsewhere(&self) -> usize {
        in_namespace(|| {
            let likenesses = self.listeners[0].iter().zip(1..).map(|((_, backend), number)| {
                self.side.address(number);
                tcp_backend_at(backend.address, backend.port)
            });
            reach(self.side.at(80), &likenesses.collect::<Vec<_>>())
        })
    }
}

#[test]
#[ignore = "needs root and eBPF: cargo xtask test"]
fn a_client_stays_with_its_backend_over_all_ports() {
    both(|kernel, _, side| {
        let sticky = Sticky::new(side, 10_800);
        sticky.apply(kernel, [Some(1); 4]);
        let mine = sticky.reach(0);
        for round in 0..30 {
            assert_eq!(sticky.reach(round % 2), mine, "round {round}");
        }
        // Another client, another backend: sixteen in a row with the same have a probability of one in 4^15.
        let others: Vec<usize> = (0..16).map(|_| sticky.reach_from_elsewhere()).collect();
        assert!(others.iter().any(|other| *other != others[0]), "{others:?}");
        // It drains, and still serves its clients; others join and leave.
        let mut weights = [Some(1); 4];
        weights[mine] = Some(0);
        sticky.apply(kernel, weights);
        assert_eq!(sticky.reach(1), mine);
        weights[(mine + 1) % 4] = None;
        sticky.apply(kernel, weights);
        assert_eq!(sticky.reach(0), mine);
        // It leaves: the client moves, and stays there when it comes back.
        weights[mine] = None;
        sticky.apply(kernel, weights);
        let next = sticky.reach(0);
        assert_ne!(next, mine);
        sticky.apply(kernel, [Some(1); 4]);
        for round in 0..16 {
            assert_eq!(sticky.reach(round % 2), next, "round {round}");
        }
    });
}

#[test]
#[ignore = "needs root and eBPF: cargo xtask test"]
fn affinity_ends_after_its_time_and_each_use_begins_it_anew() {
    both(|kernel, _, side| {
        let sticky = Sticky::new(side, 2);
        sticky.apply(kernel, [Some(1); 4]);
        let mine = sticky.reach(0);
        let mut weights = [Some(1); 4];
        weights[mine] = Some(0);
        sticky.apply(kernel, weights);
        // In use for longer than its time, but never unused for so long.
        let start = Instant::now();
        while start.elapsed() < Duration::from_secs(5) {
            assert_eq!(sticky.reach(1), mine, "after {:?}", start.elapsed());
            std::thread::sleep(Duration::from_millis(400));
        }
        // Two seconds are two ticks, and one more depending on the phase of the clock.
        std::thread::sleep(Duration::from_millis(3_300));
        assert_ne!(sticky.reach(0), mine);
    });
}
