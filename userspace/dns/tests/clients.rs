//! Real clients, in a network namespace and a mount namespace of their own: `dig`, and the C library through
//! `getent` and Python's socket.

use std::fs;
use std::process::{Command, Output};

use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};

use crate::support::Server;

const COREFILE: &str = ".:53 {\n kubernetes cluster.local in-addr.arpa\n}\n";

/// Runs a test on a thread that has its own network and its own `/etc/resolv.conf`, with a server on port
/// 53. Both end with the thread.
fn with_server(test: impl FnOnce() + Send + 'static) {
    let body = move || {
        unshare(CloneFlags::CLONE_NEWNET | CloneFlags::CLONE_NEWNS).unwrap();
        mount(None::<&str>, "/", None::<&str>, MsFlags::MS_REC | MsFlags::MS_PRIVATE, None::<&str>).unwrap();
        // The C library looks for addresses of a family if the machine has one that is not of loopback.
        for line in ["link set lo up", "addr add 192.0.2.1/32 dev lo"] {
            assert!(Command::new("ip").args(line.split(' ')).status().unwrap().success());
        }
        let dir = tempfile::tempdir().unwrap();
        let conf = dir.path().join("resolv.conf");
        let search = "search shop.svc.cluster.local svc.cluster.local cluster.local";
        fs::write(&conf, format!("{search}\nnameserver 127.0.0.1\noptions ndots:5\n")).unwrap();
        mount(Some(&conf), "/etc/resolv.conf", None::<&str>, MsFlags::MS_BIND, None::<&str>).unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let (done, ended) = tokio::sync::oneshot::channel::<()>();
        runtime.block_on(async move {
            let _server = Server::at("127.0.0.1".parse().unwrap(), 53, COREFILE, 300);
            // The client's processes must be started by this thread, whose namespaces they take over.
            let (clients, ready) = std::sync::mpsc::channel::<Box<dyn FnOnce() + Send>>();
            clients.send(Box::new(test)).unwrap();
            let netns = fs::File::open("/proc/thread-self/ns/net").unwrap();
            let mntns = fs::File::open("/proc/thread-self/ns/mnt").unwrap();
            let thread = std::thread::spawn(move || {
                unshare(CloneFlags::CLONE_FS).unwrap();
                nix::sched::setns(netns, CloneFlags::CLONE_NEWNET).unwrap();
                nix::sched::setns(mntns, CloneFlags::CLONE_NEWNS).unwrap();
                let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(ready.recv().unwrap()));
                drop(done);
                outcome
            });
            let _ = ended.await;
            if let Err(panic) = thread.join().unwrap() {
                std::panic::resume_unwind(panic);
            }
        });
    };
    if let Err(panic) = std::thread::spawn(body).join() {
        std::panic::resume_unwind(panic);
    }
}

fn run(program: &str, arguments: &[&str]) -> Output {
    Command::new(program).args(arguments).output().unwrap_or_else(|error| panic!("{program}: {error}"))
}

fn text(program: &str, arguments: &[&str]) -> String {
    String::from_utf8_lossy(&run(program, arguments).stdout).into_owned()
}

#[test]
#[ignore = "enters namespaces: needs root"]
fn the_c_library_resolves_names_through_search_lists() {
    with_server(|| {
        for name in ["web", "web.shop", "web.shop.svc", "web.shop.svc.cluster.local"] {
            let found = text("getent", &["ahostsv4", name]);
            assert!(found.starts_with("10.96.0.1 "), "{name}: {found}");
        }
        let found = text("getent", &["hosts", "10.96.0.1"]);
        assert!(found.contains("web.shop.svc.cluster.local"), "{found}");
        assert_eq!(
            run("getent", &["ahostsv4", "none"]).status.code(),
            Some(2),
            "not found, and not an error"
        );
        // More addresses than fit into a datagram: the library asks again by TCP.
        let script =
            "import socket; print(len({a[4][0] for a in socket.getaddrinfo('many', 80, socket.AF_INET)}))";
        assert_eq!(text("python3", &["-c", script]).trim(), "300");
    });
}

#[test]
#[ignore = "enters namespaces, and needs dig: cargo xtask test"]
fn dig_understands_every_answer() {
    with_server(|| {
        let dig = |arguments: &[&str]| text("dig", &[&["@127.0.0.1", "+tries=1"], arguments].concat());
        let short = |name: &str, kind: &str| dig(&["+short", name, kind]).trim().to_owned();
        assert_eq!(short("web.shop.svc.cluster.local", "A"), "10.96.0.1");
        assert_eq!(
            short("_http._tcp.web.shop.svc.cluster.local", "SRV"),
            "0 100 80 web.shop.svc.cluster.local."
        );
        assert_eq!(short("h7.many.shop.svc.cluster.local", "A"), "10.244.0.7");
        assert_eq!(short("dns-version.cluster.local", "TXT"), "\"1.1.0\"");
        assert_eq!(short("cluster.local", "NS"), "ns.dns.cluster.local.");
        assert_eq!(short("10-1-2-3.shop.pod.cluster.local", "A"), "10.1.2.3");
        assert_eq!(dig(&["+short", "-x", "10.96.0.1"]).trim(), "web.shop.svc.cluster.local.");
        let all = dig(&["many.shop.svc.cluster.local", "A"]);
        assert!(all.contains("Truncated, retrying in TCP mode") && all.contains("ANSWER: 300"), "{all}");
        let missing = dig(&["none.shop.svc.cluster.local", "A"]);
        assert!(missing.contains("status: NXDOMAIN") && missing.contains("SOA"), "{missing}");
        let empty = dig(&["web.shop.svc.cluster.local", "AAAA"]);
        assert!(empty.contains("status: NOERROR") && empty.contains("ANSWER: 0"), "{empty}");
        assert!(!(missing + &all + &empty).contains("malformed"));
        let version = dig(&["+edns=1", "+noednsneg", "web.shop.svc.cluster.local", "A"]);
        assert!(version.contains("BADVERS"), "{version}");
        assert!(dig(&["+opcode=UPDATE", "cluster.local", "SOA"]).contains("NOTIMP"));
        assert!(dig(&["+tcp", "cluster.local", "AXFR"]).contains("failed"), "no transfers");
    });
}
