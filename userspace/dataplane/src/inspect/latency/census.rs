//! Joins the kernel's connections with our sockets and flows, to rows by service. Pure.

use std::collections::{BTreeMap, HashMap};

use serde::Serialize;

use super::{Ends, Stream};

/// The kernel's measurements on the connections of one service.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct LatencyRow {
    /// Established TCP connections that this node translates and that have an end on it.
    pub connections: usize,
    /// Round-trip times of the connections, each smoothed by the kernel, in seconds: the median,
    pub rtt_p50_seconds: Option<f64>,
    /// the 99th percentile,
    pub rtt_p99_seconds: Option<f64>,
    /// and the longest. `None` if no connection was measured.
    pub rtt_max_seconds: Option<f64>,
    /// The shortest single round trip of the last minutes.
    pub rtt_min_seconds: Option<f64>,
    /// Retransmitted segments since the previous scan. Those of connections that have ended meanwhile are
    /// missing.
    pub retransmits: u64,
}

/// A translated connection of packets, as both ends know it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlowEnds {
    pub service: u32,
    /// From the client to the frontend.
    pub client: Ends,
    /// From the backend to the address that it takes for the client.
    pub server: Ends,
}

/// The part of a connection that enters the sums.
#[derive(Clone, Copy, Debug)]
struct Measured {
    cookie: u64,
    rtt: Option<u32>,
    least_rtt: Option<u32>,
    retransmits: u32,
}

#[derive(Debug, Default)]
struct Tally {
    connections: usize,
    rtts: Vec<u32>,
    least_rtt: Option<u32>,
    retransmits: u64,
}

/// Retransmitted segments by the cookie of the socket, of those connections of services that have any.
pub type Retransmits = BTreeMap<u64, u32>;

/// The sums of one scan.
#[derive(Debug)]
pub struct Census<'a> {
    /// The result of the previous scan; `None` at the first.
    before: Option<&'a Retransmits>,
    services: BTreeMap<u32, Tally>,
    retransmits: Retransmits,
    /// Connections that no hook translated when they were made. They may belong to flows.
    others: HashMap<Ends, Measured>,
    /// Connections that were added.
    pub sockets: usize,
}

impl<'a> Census<'a> {
    pub fn new(before: Option<&'a Retransmits>) -> Self {
        Self {
            before,
            services: BTreeMap::new(),
            retransmits: Retransmits::new(),
            others: HashMap::new(),
            sockets: 0,
        }
    }

    /// Adds a connection; `service` is the one to which a hook connected the socket.
    pub fn socket(&mut self, stream: &Stream, service: Option<u32>) {
        self.sockets += 1;
        let Stream { cookie, ends, rtt, least_rtt, retransmits } = *stream;
        let measured = Measured { cookie, rtt, least_rtt, retransmits };
        match service {
            Some(service) => self.count(service, measured),
            None => drop(self.others.insert(ends, measured)),
        }
    }

    /// Adds a flow; call it after all connections have been added. One whose ends are both on this node
    /// counts once, with the measurements of the client's end.
    pub fn flow(&mut self, flow: &FlowEnds) {
        let found = self.others.remove(&flow.client).or_else(|| self.others.remove(&flow.server));
        if let Some(measured) = found {
            self.count(flow.service, measured);
        }
    }

    /// Returns `true` if no connection is left that its flow could add to a service.
    pub fn is_complete(&self) -> bool {
        self.others.is_empty()
    }

    fn count(&mut self, service: u32, measured: Measured) {
        let tally = self.services.entry(service).or_default();
        tally.connections += 1;
        tally.rtts.extend(measured.rtt);
        tally.least_rtt = tally.least_rtt.into_iter().chain(measured.least_rtt).min();
        if measured.retransmits > 0 {
            self.retransmits.insert(measured.cookie, measured.retransmits);
            if let Some(before) = self.before {
                let before = before.get(&measured.cookie).copied().unwrap_or(0);
                tally.retransmits += u64::from(measured.retransmits.saturating_sub(before));
            }
        }
    }

    /// Returns rows by service, and the state for the next scan.
    pub fn rows(self) -> (BTreeMap<u32, LatencyRow>, Retransmits) {
        let row = |(service, tally): (u32, Tally)| (service, tally.row());
        (self.services.into_iter().map(row).collect(), self.retransmits)
    }
}

impl Tally {
    fn row(mut self) -> LatencyRow {
        LatencyRow {
            connections: self.connections,
            rtt_p50_seconds: percentile(&mut self.rtts, 50),
            rtt_p99_seconds: percentile(&mut self.rtts, 99),
            rtt_max_seconds: percentile(&mut self.rtts, 100),
            rtt_min_seconds: self.least_rtt.map(seconds),
            retransmits: self.retransmits,
        }
    }
}

fn seconds(microseconds: u32) -> f64 {
    f64::from(microseconds) / 1_000_000.0
}

/// Returns the smallest value that this many of a hundred do not exceed, in seconds.
fn percentile(microseconds: &mut [u32], hundredths: usize) -> Option<f64> {
    let rank = (microseconds.len() * hundredths).div_ceil(100).checked_sub(1)?;
    let (_, value, _) = microseconds.select_nth_unstable(rank);
    Some(seconds(*value))
}

#[cfg(test)]
mod tests {
    use super::*;

    const NEAR: [u8; 4] = [10, 1, 0, 5];
    const FAR: [u8; 4] = [10, 2, 0, 7];
    const NODE: [u8; 4] = [192, 0, 2, 1];
    const VIP: [u8; 4] = [10, 96, 0, 10];

    fn ends(from: ([u8; 4], u16), to: ([u8; 4], u16)) -> Ends {
        Ends { source: (from.0.into(), from.1), destination: (to.0.into(), to.1) }
    }

    fn stream(cookie: u64, ends: Ends, rtt: u32) -> Stream {
        Stream { cookie, ends, rtt: Some(rtt), least_rtt: Some(rtt / 2), retransmits: 0 }
    }

    fn somewhere(port: u16) -> Ends {
        ends((NEAR, port), (FAR, 8_080))
    }

    #[test]
    fn sockets_that_a_hook_connected_count_for_their_service() {
        let mut census = Census::new(None);
        for (cookie, rtt) in (1..=200).zip(1_000..) {
            census.socket(&stream(cookie, somewhere(cookie as u16), rtt), Some(7));
        }
        let silent = Stream { rtt: None, least_rtt: None, ..stream(500, somewhere(500), 0) };
        census.socket(&silent, Some(8));
        census.socket(&stream(900, somewhere(900), 5), None);
        assert_eq!(census.sockets, 202);
        let (rows, _) = census.rows();
        assert_eq!(rows.keys().copied().collect::<Vec<_>>(), [7, 8]);
        let row = &rows[&7];
        assert_eq!(row.connections, 200);
        // The round-trip times are 1,000 to 1,199 microseconds.
        assert_eq!(row.rtt_p50_seconds, Some(0.001_099));
        assert_eq!(row.rtt_p99_seconds, Some(0.001_197));
        assert_eq!(row.rtt_max_seconds, Some(0.001_199));
        assert_eq!(row.rtt_min_seconds, Some(0.000_5));
        let unknown = LatencyRow { connections: 1, ..LatencyRow::default() };
        assert_eq!(rows[&8], unknown);
    }

    #[test]
    fn a_flow_counts_with_the_end_that_is_here_and_once() {
        let flow = |port| FlowEnds {
            service: 3,
            client: ends((NEAR, port), (VIP, 80)),
            server: ends((FAR, 8_080), (NODE, port)),
        };
        let mut census = Census::new(None);
        // Both ends of the first are here, of the second the server, of the third the client; of the last
        // neither, and there is a connection that no flow knows.
        census.socket(&stream(1, flow(1).client, 100), None);
        census.socket(&stream(2, flow(1).server, 900), None);
        census.socket(&stream(3, flow(2).server, 200), None);
        census.socket(&stream(4, flow(3).client, 300), None);
        census.socket(&stream(5, somewhere(22), 900), None);
        for port in 1..=4 {
            census.flow(&flow(port));
            // Seen twice, because it was changed meanwhile.
            census.flow(&FlowEnds { server: flow(port).client, ..flow(port) });
        }
        assert!(!census.is_complete());
        let (rows, _) = census.rows();
        assert_eq!(rows.len(), 1);
        assert_eq!((rows[&3].connections, rows[&3].rtt_max_seconds), (3, Some(0.000_3)));
    }

    #[test]
    fn retransmits_are_those_since_the_look_before() {
        let look = |before: Option<&Retransmits>, counts: &[(u64, u32)]| {
            let mut census = Census::new(before);
            for &(cookie, retransmits) in counts {
                let stream = Stream { retransmits, ..stream(cookie, somewhere(cookie as u16), 10) };
                census.socket(&stream, Some(1));
            }
            let (rows, kept) = census.rows();
            (rows[&1].retransmits, kept)
        };
        let (sent, first) = look(None, &[(1, 5), (2, 0), (3, 2)]);
        // Retransmissions before the first scan do not count.
        assert_eq!((sent, &first), (0, &Retransmits::from([(1, 5), (3, 2)])));
        // One goes on, one begins, one has ended, one is new.
        let (sent, second) = look(Some(&first), &[(1, 6), (2, 4), (9, 1)]);
        assert_eq!((sent, second.len()), (1 + 4 + 1, 3));
        // A second connection with the cookie of an old one does not count backwards.
        assert_eq!(look(Some(&second), &[(2, 1)]).0, 0);
    }

    #[test]
    fn percentiles_are_values_that_were_measured() {
        assert_eq!(percentile(&mut [], 50), None);
        assert_eq!(percentile(&mut [7], 50), Some(0.000_007));
        assert_eq!(percentile(&mut [3, 1, 2], 50), Some(0.000_002));
        assert_eq!(percentile(&mut [3, 1, 2, 4], 99), Some(0.000_004));
    }
}
