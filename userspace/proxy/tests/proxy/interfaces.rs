//! Interfaces from a real kernel, in a network namespace of the test's own.

use std::process::Command;
use std::thread;
use std::time::Duration;

use nix::sched::{CloneFlags, unshare};
use tokio::time::timeout;
use userspace_proxy::{KernelLinks, Link, Links};

const WAIT_TIMEOUT: Duration = Duration::from_secs(5);

fn ip(arguments: &str) {
    let status = Command::new("ip").args(arguments.split(' ')).status().unwrap();
    assert!(status.success(), "ip {arguments}");
}

/// Asks until the interfaces are as expected. Each answer but the first takes a change.
async fn until(links: &mut KernelLinks, expected: impl Fn(&[Link]) -> bool) -> Vec<Link> {
    let wait = async {
        loop {
            let found = links.next().await.unwrap();
            if expected(&found) {
                return found;
            }
        }
    };
    timeout(WAIT_TIMEOUT, wait).await.unwrap()
}

fn named<'a>(links: &'a [Link], name: &str) -> Option<&'a Link> {
    links.iter().find(|link| link.name == name)
}

async fn watch() {
    let mut links = KernelLinks::new();
    let first = until(&mut links, |_| true).await;
    assert!(named(&first, "lo").is_some_and(|lo| lo.loopback && !lo.up));
    // Dropping a wait loses nothing.
    assert!(timeout(Duration::from_millis(50), links.next()).await.is_err());
    ip("link add up0 type veth peer name hwp1");
    let made = until(&mut links, |links| named(links, "hwp1").is_some()).await;
    assert_eq!(named(&made, "up0").unwrap().kind, "veth");
    ip("link set up0 up");
    ip("addr add 192.0.2.1/24 dev up0");
    let addressed =
        until(&mut links, |links| named(links, "up0").is_some_and(|up| !up.addresses.is_empty())).await;
    let up = named(&addressed, "up0").unwrap();
    assert!(up.up && up.addresses[0].global);
    assert_eq!(up.addresses[0].address.to_string(), "192.0.2.1");
    ip("link del up0");
    until(&mut links, |links| named(links, "hwp1").is_none()).await;
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn changes_of_interfaces_arrive_as_they_happen() {
    // The namespace ends with the thread.
    let test = thread::spawn(|| {
        unshare(CloneFlags::CLONE_NEWNET).unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(watch());
    });
    test.join().unwrap();
}
