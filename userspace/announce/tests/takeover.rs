//! A client finds an address by ARP and by NDP, and finds it again when the announcer dies.

use std::net::IpAddr;
use std::time::{Duration, Instant};

use crate::bed::Bed;

const V4: &str = "192.0.2.240";
const V6: &str = "2001:db8:2::240";

#[test]
#[ignore = "needs root: cargo xtask test"]
fn an_address_is_resolved_connected_to_and_taken_over_when_its_node_dies() {
    let addresses: [IpAddr; 2] = [V4, V6].map(|address| address.parse().unwrap());
    let mut bed = Bed::new(3, &addresses);
    for address in addresses {
        let owner = bed.wait(address, "the first announcement", |_| true);
        for _ in 0..5 {
            bed.forget();
            assert_eq!(bed.ask(address), Some(owner), "one node answers, whenever it is asked");
        }
        let neighbours = bed.client.ip(&format!("neigh show {address}"));
        assert!(neighbours.contains("lladdr"), "{neighbours}");

        // The announcer dies; its node goes on to serve those who know its MAC address.
        bed.kill(owner);
        let dead = Instant::now();
        let next = bed.wait(address, "the takeover", |number| number != owner);
        println!("{address}: node {next} took over {:?} after node {owner} died", dead.elapsed());
        bed.forget();
        assert_eq!(bed.ask(address), Some(next));

        bed.start(owner);
        bed.wait(address, "the return", |number| number == owner);
        bed.forget();
        assert_eq!(bed.ask(address), Some(owner));
    }
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn an_address_of_a_local_service_moves_with_its_endpoints() {
    let addresses: [IpAddr; 2] = [V4, V6].map(|address| address.parse().unwrap());
    let mut bed = Bed::new(3, &addresses);
    for address in addresses {
        for nodes in [&[3][..], &[1], &[2], &[1, 2]] {
            bed.restrict(address, nodes);
            bed.wait(address, "the move", |number| nodes.contains(&number));
            bed.forget();
            assert!(bed.ask(address).is_some_and(|number| nodes.contains(&number)));
        }
    }
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn an_address_that_another_machine_has_is_announced_once_that_machine_gives_it_up() {
    for (address, length) in [(V4, "24"), (V6, "64 nodad")] {
        let parsed: IpAddr = address.parse().unwrap();
        let mut bed = Bed::new(2, &[parsed]);
        (1..=2).for_each(|number| bed.kill(number));
        bed.restrict(parsed, &[1]);
        // The kernel of the second machine answers now: the address is its interface's.
        bed.ip(2, &format!("addr add {address}/{length} dev eth0"));
        bed.forget();
        bed.wait(parsed, "the other machine", |number| number == 2);
        bed.start(1);
        for _ in 0..30 {
            bed.forget();
            assert_eq!(bed.ask(parsed), Some(2), "the node has taken an address in use");
            std::thread::sleep(Duration::from_millis(50));
        }
        let length = length.trim_end_matches(" nodad");
        bed.ip(2, &format!("addr del {address}/{length} dev eth0"));
        bed.wait(parsed, "the address to be taken", |number| number == 1);
    }
}
