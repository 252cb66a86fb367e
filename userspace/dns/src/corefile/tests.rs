//! Lines of CoreDNS' that mean the same, and those that are refused.

use super::*;

fn error(text: &str) -> String {
    Corefile::parse(text).unwrap_err().to_string()
}

#[test]
fn the_default_is_as_kubeadm_configures_coredns() {
    let corefile = Corefile::parse(DEFAULT).unwrap();
    let cluster = corefile.cluster.unwrap();
    assert_eq!((cluster.pods, cluster.ttl, cluster.reverse.len()), (PodMode::Insecure, 30, 2));
    assert_eq!(cluster.fallthrough.len(), 2);
    let rule = &corefile.rules[0];
    assert_eq!((rule.zone, rule.pool.max_concurrent), (Name::ROOT, 1000));
    assert_eq!(rule.to, [Target::File("/etc/resolv.conf".into())]);
    let cache = rule.cache.clone().unwrap();
    assert_eq!((cache.success.max, cache.denial.max), (30, 30));
    assert!(corefile.find_loops);
}

#[test]
fn lines_of_coredns_mean_the_same() {
    let text = "example.org:53 a.example {\n  forward . 192.0.2.1 192.0.2.2:5353 [2001:db8::1]:53 {\n    except x.example.org\n    \
        policy round_robin\n    max_fails 0\n    force_tcp\n    expire 10s\n  }\n  cache 60 {\n    success 100 50 2\n    \
        denial 200\n    prefetch 3 2m 20%\n    serve_stale 1h30m verify\n    servfail 0s\n    disable denial cluster.local\n  }\n}\n";
    let corefile = Corefile::parse(text).unwrap();
    assert_eq!(
        corefile.rules.iter().map(|rule| rule.zone.to_string()).collect::<Vec<_>>(),
        ["example.org.", "a.example."]
    );
    let rule = &corefile.rules[0];
    assert_eq!(rule.to[1], Target::Address("192.0.2.2:5353".parse().unwrap()));
    assert_eq!((rule.pool.policy, rule.pool.max_fails, rule.pool.force_tcp), (Policy::RoundRobin, 0, true));
    assert_eq!(rule.except, [Name::parse("x.example.org").unwrap()]);
    let cache = rule.cache.clone().unwrap();
    assert_eq!((cache.success.capacity, cache.success.max, cache.success.min), (100, 50, 2));
    assert_eq!((cache.denial.capacity, cache.denial.max, cache.failure_ttl), (200, 60, 0));
    let prefetch = cache.prefetch.unwrap();
    assert_eq!((prefetch.amount, prefetch.duration.as_secs(), prefetch.percentage), (3, 120, 20));
    assert_eq!(cache.stale, Some(Stale { duration: Duration::from_secs(5400), verify: true }));
    let narrow = Corefile::parse(". {\n forward example.org 192.0.2.1\n}\n").unwrap();
    assert_eq!(narrow.rules[0].zone.to_string(), "example.org.");
    let plain = Corefile::parse(".:53 {\n kubernetes\n}\n").unwrap().cluster.unwrap();
    assert_eq!((plain.domain, plain.pods, plain.ttl), (None, PodMode::Disabled, 5));
}

#[test]
fn hosts_have_a_file_and_zones_of_their_own_or_those_of_the_machine_and_the_block() {
    let text = "a.example b.example {\n hosts {\n  192.0.2.1 x.a.example y.b.example\n  no_reverse\n  reload 0\n  \
        fallthrough\n }\n}\n. {\n hosts /etc/other example.org {\n  ttl 5\n  fallthrough a.example.org\n }\n}\n";
    let [first, second] = Corefile::parse(text).unwrap().hosts.try_into().unwrap();
    let names = |all: &[Name]| all.iter().map(ToString::to_string).collect::<Vec<_>>();
    assert_eq!(names(&first.zones), ["a.example.", "b.example."]);
    assert_eq!((first.file.to_str(), first.ttl, first.reverse), (Some("/etc/hosts"), 3600, false));
    assert_eq!(first.inline, "192.0.2.1 x.a.example y.b.example\n");
    assert_eq!(names(&first.fallthrough), ["."]);
    assert_eq!(
        (names(&second.block), names(&second.zones)),
        (vec![".".to_owned()], vec!["example.org.".to_owned()])
    );
    assert_eq!((second.file.to_str(), second.ttl, second.reverse), (Some("/etc/other"), 5, true));
    assert_eq!(names(&second.fallthrough), ["a.example.org."]);
}

#[test]
fn imported_files_are_part_of_the_configuration_and_errors_name_them() {
    let directory = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| std::fs::write(directory.path().join(name), text).unwrap();
    let read = |path: &Path| std::fs::read_to_string(path);
    let load = |text: &str| Corefile::load(text, directory.path(), &read);
    write("a.server", "a.example {\n forward . 192.0.2.1\n}\n");
    write("common.conf", "rewrite name a b\n");
    let text = "import *.server\n.:53 {\n import common.conf\n}\n";
    let (corefile, before) = load(text).unwrap();
    assert_eq!((corefile.rules.len(), corefile.chains.len()), (1, 1));
    write("b.server", "b.example {\n forward . 192.0.2.1\n}\n");
    let (corefile, after) = load(text).unwrap();
    assert!(corefile.rules.len() == 2 && before != after, "a new file is a change");
    write("b.server", "b.example {\n\n rewrite edns0 nsid set\n}\n");
    let error = load(text).unwrap_err().to_string();
    assert!(error.contains("b.server: line 3: rewrite: \"edns0\""), "{error}");
    write("common.conf", "import common.conf\n");
    let error = load(".:53 {\n import common.conf\n}\n").unwrap_err().to_string();
    assert!(error.contains("common.conf: line 1: import: ") && error.contains("imports itself"), "{error}");
    assert!(load("\nimport none.conf\n").unwrap_err().to_string().starts_with("line 2: import: cannot read"));
}

#[test]
fn unsupported_lines_are_refused_with_their_number() {
    for (text, expected) in [
        (".:53 {\n file db\n}\n", "line 2: the plugin \"file\""),
        (". {\n hosts {\n  192.0.2.1\n }\n}\n", "line 3: hosts: \"192.0.2.1\""),
        (". {\n hosts {\n  ttl 0\n }\n}\n", "line 3: \"0\" is not a number from 1"),
        (". {\n hosts\n hosts\n}\n", "line 3: `hosts` stands twice"),
        (".:54 {\n}\n", "line 1: port \"54\""),
        ("tls://. {\n}\n", "line 1: tls://"),
        (". {\n forward . https://192.0.2.1\n}\n", "line 2: forward: https://"),
        (". {\n forward . tls:///etc/resolv.conf\n}\n", "line 2: forward: \"/etc/resolv.conf\""),
        (". {\n forward . dns.example\n}\n", "line 2: forward: \"dns.example\" is neither"),
        (". {\n forward .\n}\n", "line 2: forward: name between"),
        ("a.example {\n forward b.example 192.0.2.1\n}\n", "line 2: forward: b.example. is not below"),
        (". {\n forward . 192.0.2.1 {\n  tls a b\n }\n}\n", "line 3: forward: \"tls\""),
        (". {\n cache {\n  success x\n }\n}\n", "line 3: \"x\" is not a number"),
        (". {\n cache {\n  serve_stale soon\n }\n}\n", "line 3: \"soon\" is not a duration"),
        (". {\n cache {\n  serve_stale -1h\n }\n}\n", "line 3: \"-1h\" is not a duration"),
        (". {\n kubernetes a.example b.example\n}\n", "line 2: one domain"),
        (". {\n kubernetes {\n  endpoint http://x\n }\n}\n", "line 3: kubernetes: \"endpoint\""),
        (". {\n forward . 192.0.2.1\n}\n. {\n forward . 192.0.2.2\n}\n", "the zone . is forwarded twice"),
    ] {
        assert!(error(text).contains(expected), "{text}: {}", error(text));
    }
}
