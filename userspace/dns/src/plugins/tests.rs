//! Tables of pure cases, a plugin each.

use super::*;
use crate::syntax;

/// Returns the plugins of a block for the zone of the root.
fn try_chain(text: &str) -> Result<Chain, LineError> {
    let find = |_: &str| Err(String::new());
    let directives = syntax::parse(text, &find, &mut Vec::new()).unwrap();
    let mut chain = Chain::default();
    for directive in &directives {
        assert!(chain.add(directive, &[Name::ROOT])?, "{directive:?}");
    }
    Ok(chain)
}

fn chain(text: &str) -> Chain {
    try_chain(text).unwrap()
}

fn name(text: &str) -> Name {
    Name::parse(text).unwrap()
}

fn asked(text: &str, kind: u16) -> Asked {
    Asked { name: name(text), kind, class: wire::INTERNET, client: IpAddr::from([10, 244, 0, 7]) }
}

/// Returns the code and the records of a response, each with its section.
fn shown(response: &Response) -> Vec<String> {
    let sections = [("", &response.answers), ("authority ", &response.authorities)];
    let sections = sections.into_iter().chain([("additional ", &response.additionals)]);
    let records = sections.flat_map(|(section, records)| {
        records.iter().map(move |record| {
            format!("{section}{} {} {} {}", record.name, record.ttl, record.record_type(), record.data)
        })
    });
    std::iter::once(wire::code_name(response.code).to_owned()).chain(records).collect()
}

fn planned(chain: &Chain, asked: &Asked) -> Vec<String> {
    match chain.plan(asked, |_| false) {
        Plan::Reply(response, _) => shown(&response),
        Plan::Pass => vec!["pass".to_owned()],
        Plan::Silence => vec!["silence".to_owned()],
        Plan::Steps => vec!["steps".to_owned()],
    }
}

/// Returns the question that is asked in another's place, or why there is none.
fn rewritten(chain: &Chain, text: &str, kind: u16) -> String {
    let before = asked(text, kind);
    if !matches!(chain.plan(&before, |_| false), Plan::Steps) {
        return "pass".to_owned();
    }
    match chain.rewrite(&before).asked {
        Some(asked) => format!("{} {}", asked.name, wire::kind_name(asked.kind)),
        None => "no name".to_owned(),
    }
}

#[test]
fn rewrite_replaces_what_matches_in_names() {
    let cases = [
        ("rewrite name a.example b.example", "a.example", "b.example. A"),
        ("rewrite name A.example b.example", "a.example", "b.example. A"),
        ("rewrite name a.example b.example", "x.a.example", "pass"),
        ("rewrite stop name exact a.example b.example", "a.example", "b.example. A"),
        ("rewrite name prefix ftp. files.", "ftp.a.example", "files.a.example. A"),
        ("rewrite name prefix ftp files", "ftp.a.example", "files.a.example. A"),
        ("rewrite name prefix ftp files", "ftps.a.example", "pass"),
        ("rewrite name suffix .schmoogle.com. .google.com.", "a.schmoogle.com", "a.google.com. A"),
        ("rewrite name suffix .schmoogle.com .google.com", "schmoogle.com", "pass"),
        ("rewrite name substring us-west-1.example us.consul", "ftp.us-west-1.example", "ftp.us.consul. A"),
        (
            "rewrite name regex (.*)-(us-west-1)\\.example\\.org {1}.service.{2}.consul",
            "ftp-us-west-1.example.org",
            "ftp.service.us-west-1.consul. A",
        ),
        // The dot of the name and that of what replaces it, as in CoreDNS.
        ("rewrite name regex ^(.*)$ {1}", "a.example", "no name"),
        ("rewrite name regex a {1}..b", "a.example", "no name"),
        ("rewrite type A AAAA", "a.example", "a.example. AAAA"),
        ("rewrite type MX AAAA", "a.example", "pass"),
        ("rewrite continue name a b\nrewrite name b c\nrewrite name c d", "a", "c. A"),
        ("rewrite name a b\nrewrite name b c", "a", "b. A"),
        // A loop of rules ends with the last line.
        ("rewrite continue name a b\nrewrite continue name b a", "a", "a. A"),
        ("rewrite continue {\n name a b\n}\nrewrite name b c", "a", "c. A"),
    ];
    for (text, name, expected) in cases {
        assert_eq!(rewritten(&chain(text), name, wire::A), expected, "{text}");
    }
}

#[test]
fn rewrite_takes_names_with_dots_in_labels_for_no_others() {
    let chain = chain("rewrite name a.example b.example\nrewrite name suffix .c .d");
    for wire in [b"\x09a.example\0".as_slice(), b"\x02x \x01c\0", b"\x01\xff\x01c\0"] {
        let (name, _) = Name::read(wire).unwrap();
        assert!(matches!(chain.plan(&Asked { name, ..asked("x", wire::A) }, |_| false), Plan::Pass));
    }
}

#[test]
fn rewrite_turns_answers_back() {
    let records = |lines: &[&str]| lines.iter().map(|line| records::parse(line).unwrap()).collect::<Vec<_>>();
    let cases = [
        (
            "rewrite name a.example b.example",
            "a.example",
            vec!["b.example 5 A 192.0.2.1", "x.b.example 5 CNAME b.example", "xb.example 5 A 192.0.2.1"],
            vec!["a.example. 5 A 192.0.2.1", "x.a.example. 5 CNAME a.example.", "xb.example. 5 A 192.0.2.1"],
        ),
        (
            "rewrite name suffix .a .b answer auto",
            "x.a",
            vec!["x.b 5 CNAME y.b", "y.b 5 A 192.0.2.1"],
            vec!["x.a. 5 CNAME y.a.", "y.a. 5 A 192.0.2.1"],
        ),
        ("rewrite name suffix .a .b", "x.a", vec!["x.b 5 A 192.0.2.1"], vec!["x.b. 5 A 192.0.2.1"]),
        (
            "rewrite name regex (.*)\\.a {1}.b answer name (.*)\\.b {1}.a value (.*)\\.c\\. {1}.d.",
            "x.a",
            vec!["X.b 5 CNAME y.c", "y.c 5 A 192.0.2.1"],
            vec!["x.a. 5 CNAME y.d.", "y.c. 5 A 192.0.2.1"],
        ),
        (
            "rewrite stop {\n name regex (.*)\\.a {1}.b\n answer auto\n}",
            "x.a",
            vec!["x.b 5 A 192.0.2.1"],
            vec!["x.a. 5 A 192.0.2.1"],
        ),
        (
            "rewrite continue name a b\nrewrite continue name b c\nrewrite ttl c 30-60",
            "a",
            vec!["c 5 A 192.0.2.1", "c 500 A 192.0.2.2", "c 31 A 192.0.2.3"],
            vec!["a. 30 A 192.0.2.1", "a. 60 A 192.0.2.2", "a. 31 A 192.0.2.3"],
        ),
        ("rewrite ttl suffix .a 15", "x.a", vec!["x.a 5 A 192.0.2.1"], vec!["x.a. 15 A 192.0.2.1"]),
        ("rewrite ttl x.a -4", "x.a", vec!["x.a 5 A 192.0.2.1"], vec!["x.a. 4 A 192.0.2.1"]),
        ("rewrite ttl x.a 30-", "x.a", vec!["x.a 5 A 192.0.2.1"], vec!["x.a. 30 A 192.0.2.1"]),
        (
            "rewrite name exact x.a y.a answer value .* {0}..",
            "x.a",
            vec!["y.a 5 NS n."],
            vec!["x.a. 5 NS n."],
        ),
    ];
    for (text, name, before, after) in cases {
        let chain = chain(text);
        let answers = records(&before);
        let response =
            chain.rewrite(&asked(name, wire::A)).undone(Response { answers, ..Response::default() });
        assert_eq!(shown(&response)[1..], after, "{text}");
    }
    let chain = chain("rewrite rcode regex .*\\.a SERVFAIL 0");
    let undone = |code| chain.rewrite(&asked("x.a", wire::A)).undone(Response::failure(code)).code;
    assert_eq!((undone(wire::SERVER_FAILURE), undone(wire::NAME_ERROR)), (0, wire::NAME_ERROR));
}

#[test]
fn template_writes_records_of_the_question() {
    let by_address = "template IN A example {\n \
        match (^|[.])ip-(?P<a>[0-9]*)-(?P<b>[0-9]*)-(?P<c>[0-9]*)-(?P<d>[0-9]*)[.]example[.]$\n \
        answer \"{{ .Name }} 60 IN A {{ .Group.a }}.{{ .Group.b }}.{{.Group.c}}.{{ index .Group \\\"d\\\" }}\"\n fallthrough\n}";
    let by_address = &by_address.replace("{{ index .Group \\\"d\\\" }}", "{{ .Group.d }}");
    let invalid = "template ANY ANY invalid {\n rcode NXDOMAIN\n \
        authority \"invalid. 60 {{ .Class }} SOA ns.invalid. hostmaster.invalid. (1 60 60 60 60)\"\n}";
    let strict =
        "template IN A strict {\n match ^a[.]\n answer \"{{ index .Match 0 }}strict A 192.0.2.1\"\n}";
    let mx = "template IN MX example {\n match ^ip[.]\n answer \"{{ .Name }} 60 IN MX 10 {{ .Name }}\"\n \
        additional \"{{ .Name }} 60 IN A 192.0.2.1\"\n}";
    let typed = "template IN ANY {\n answer \"{{ .Question.Name }} {{ .Type }} {{ .Remote }}\"\n}";
    let text = "template IN TXT z {\n answer \"{{ .Zone }} 9 TXT \\\"x\"\n}".replace("\\\"x", "x");
    let cases = [
        (
            by_address.as_str(),
            "x.ip-10-1-2-3.example",
            wire::A,
            vec!["NOERROR", "x.ip-10-1-2-3.example. 60 A 10.1.2.3"],
        ),
        (by_address, "other.example", wire::A, vec!["pass"]),
        (by_address, "ip-10-1-2-3.example", wire::AAAA, vec!["pass"]),
        (by_address, "ip-10-1-2-3.example", wire::ANY, vec!["NOERROR", "ip-10-1-2-3.example. 60 A 10.1.2.3"]),
        // A name that matches and is no address.
        (by_address, "ip-10-1-2-300.example", wire::A, vec!["SERVFAIL"]),
        (
            invalid,
            "x.invalid",
            wire::A,
            vec!["NXDOMAIN", "authority invalid. 60 SOA ns.invalid. hostmaster.invalid. 1 60 60 60 60"],
        ),
        (invalid, "x.valid", wire::A, vec!["pass"]),
        (strict, "a.strict", wire::A, vec!["NOERROR", "a.strict. 3600 A 192.0.2.1"]),
        (strict, "b.strict", wire::A, vec!["SERVFAIL"]),
        (
            mx,
            "ip.example",
            15,
            vec!["NOERROR", "ip.example. 60 MX 10 ip.example.", "additional ip.example. 60 A 192.0.2.1"],
        ),
        (typed, "x.y", wire::A, vec!["NOERROR", "x.y. 3600 A 10.244.0.7"]),
        (typed, "x.y", wire::AAAA, vec!["SERVFAIL"]),
        (&text, "a.z", wire::TXT, vec!["NOERROR", "z. 9 TXT x"]),
        ("template IN A {\n rcode SERVFAIL\n}", "x", wire::A, vec!["SERVFAIL"]),
        ("template IN A {\n}", "x", wire::A, vec!["NOERROR"]),
        // An alias is followed, which takes steps.
        ("template IN ANY a {\n answer \"a 60 IN CNAME b\"\n}", "a", wire::A, vec!["steps"]),
        (
            "template IN ANY a {\n answer \"a 60 IN CNAME b\"\n}",
            "a",
            wire::CNAME,
            vec!["NOERROR", "a. 60 CNAME b."],
        ),
        (
            "template IN A x y {\n answer \"{{ .Zone }} A 192.0.2.1\"\n}",
            "a.y",
            wire::A,
            vec!["NOERROR", "y. 3600 A 192.0.2.1"],
        ),
    ];
    for (text, name, kind, expected) in cases {
        assert_eq!(planned(&chain(text), &asked(name, kind)), expected, "{text}: {name}");
    }
    // The first line that matches answers, and later ones have their turn by falling through.
    let both = chain(&format!("{by_address}\ntemplate IN A example {{\n rcode REFUSED\n}}"));
    assert_eq!(planned(&both, &asked("other.example", wire::A)), ["REFUSED"]);
}

#[test]
fn template_never_lets_a_name_write_records_of_its_own() {
    let chain = chain("template IN TXT {\n answer \"{{ .Name }} 60 IN TXT {{ .Name }}\"\n}");
    for wire in [b"\x0fx 60 IN A 1.2.3\0".as_slice(), b"\x03\"a\"\0", b"\x02a;\0", b"\x02a\n\0", b"\x02\\0\0"]
    {
        let (name, _) = Name::read(wire).unwrap();
        let asked = Asked { name, ..asked("x", wire::TXT) };
        assert_eq!(planned(&chain, &asked), ["SERVFAIL"], "{name}");
    }
}

#[test]
fn template_writes_no_more_than_a_record_may_have() {
    let many = "{{ .Name }}".repeat(300);
    let chain = chain(&format!("template IN TXT {{\n answer \"x 60 IN TXT {many}\"\n}}"));
    let long = format!("{}.a", "x".repeat(60));
    assert_eq!(planned(&chain, &asked(&long, wire::TXT)), ["SERVFAIL"]);
    let lines = " answer \"x A 192.0.2.1\"\n".repeat(limits::TEMPLATE_RECORDS);
    assert!(try_chain(&format!("template IN A {{\n{lines}}}")).is_ok());
    let error = try_chain(&format!("template IN A {{\n{lines} answer \"x A 192.0.2.1\"\n}}")).unwrap_err();
    assert_eq!(error.line.number, limits::TEMPLATE_RECORDS + 2);
}

#[test]
fn acl_decides_by_zone_type_and_client() {
    let text = "acl a {\n allow net 10.244.0.0/24\n block type A AAAA net 10.244.0.0/16 2001:db8::/32\n filter type TXT\n drop net 10.245.0.1\n}\nacl {\n block type * net *\n}";
    let cases = [
        ("x.a", wire::A, "10.244.0.7", "pass"),
        ("x.a", wire::A, "10.244.1.7", "REFUSED"),
        ("x.a", wire::A, "::ffff:10.244.1.7", "REFUSED"),
        ("x.a", wire::AAAA, "2001:db8::1", "REFUSED"),
        ("x.a", wire::TXT, "10.246.0.1", "NOERROR"),
        ("x.a", wire::A, "10.245.0.1", "silence"),
        ("x.a", wire::A, "10.245.0.2", "REFUSED"),
        ("x.b", wire::A, "10.244.0.7", "REFUSED"),
    ];
    let chain = chain(text);
    for (name, kind, client, expected) in cases {
        let asked = Asked { client: client.parse().unwrap(), ..asked(name, kind) };
        assert_eq!(planned(&chain, &asked), [expected], "{name} {client}");
        let chaos = Asked { class: 3, ..asked };
        assert_eq!(planned(&chain, &chaos), [expected], "of class CH as well");
    }
}

#[test]
fn plugins_have_their_turn_in_one_order_whatever_the_order_of_lines() {
    let chain =
        chain("template IN ANY {\n rcode NXDOMAIN\n}\nacl b {\n block\n}\nrewrite name a b\nany\nlocal");
    assert_eq!(planned(&chain, &asked("localhost", wire::A))[0], "NOERROR", "local is before acl");
    assert_eq!(planned(&chain, &asked("a", wire::ANY))[1], "a. 8482 HINFO ANY obsoleted See RFC 8482");
    assert_eq!(planned(&chain, &asked("b", wire::A)), ["REFUSED"], "acl is before template");
    assert_eq!(planned(&chain, &asked("b", wire::ANY)), ["REFUSED"], "acl is before any");
    assert_eq!(rewritten(&chain, "a", wire::A), "b. A");
    let behind = Asked { name: name("b"), ..asked("a", wire::A) };
    assert!(matches!(chain.late(&behind), Plan::Reply(_, Plugin::Acl)), "acl is behind rewrite as well");
    assert_eq!(planned(&chain, &asked("c", wire::A)), ["NXDOMAIN"]);
}

#[test]
fn acl_is_before_rewrite_and_autopath() {
    for (action, expected) in [("block", "REFUSED"), ("filter", "NOERROR"), ("drop", "silence")] {
        let chain = self::chain(&format!("rewrite name a b\nautopath @kubernetes\nacl a {{\n {action}\n}}"));
        assert_eq!(planned(&chain, &asked("a", wire::A)), [expected]);
        let plan = chain.plan(&asked("x.a", wire::A), |_| true);
        assert!(!matches!(plan, Plan::Steps), "{plan:?}");
        assert!(matches!(chain.plan(&asked("c", wire::A), |_| true), Plan::Steps));
    }
}

#[test]
fn local_answers_the_names_of_the_machine() {
    let soa = |zone: &str| format!("authority {zone} 604800 SOA localhost. root.localhost. 1 0 0 0 604800");
    let cases = [
        ("localhost", wire::A, vec!["NOERROR".to_owned(), "localhost. 604800 A 127.0.0.1".to_owned()]),
        ("x.localhost", wire::AAAA, vec!["NOERROR".to_owned(), "x.localhost. 604800 AAAA ::1".to_owned()]),
        (
            "localhost.a.b",
            wire::A,
            vec!["NOERROR".to_owned(), "localhost.a.b. 604800 A 127.0.0.1".to_owned()],
        ),
        ("localhost", wire::TXT, vec!["NOERROR".to_owned(), soa("localhost.")]),
        ("localhost", wire::NS, vec!["NOERROR".to_owned(), "localhost. 604800 NS localhost.".to_owned()]),
        (
            "1.0.0.127.in-addr.arpa",
            wire::PTR,
            vec!["NOERROR".to_owned(), "1.0.0.127.in-addr.arpa. 604800 PTR localhost.".to_owned()],
        ),
        ("1.0.0.127.in-addr.arpa", wire::A, vec!["NOERROR".to_owned(), soa("127.in-addr.arpa.")]),
        ("2.0.0.127.in-addr.arpa", wire::PTR, vec!["NXDOMAIN".to_owned(), soa("127.in-addr.arpa.")]),
        ("255.in-addr.arpa", wire::A, vec!["NOERROR".to_owned(), soa("255.in-addr.arpa.")]),
        ("xlocalhost", wire::A, vec!["pass".to_owned()]),
        ("a.localhost.b", wire::A, vec!["pass".to_owned()]),
    ];
    for (name, kind, expected) in cases {
        assert_eq!(planned(&chain("local"), &asked(name, kind)), expected, "{name}");
    }
    let off = chain("local {\n localhost_prefix off\n}");
    assert_eq!(planned(&off, &asked("localhost.a.b", wire::A)), ["pass"]);
}

#[test]
fn dns64_makes_addresses_of_ipv4_ones() {
    let records = |lines: &[&str]| lines.iter().map(|line| records::parse(line).unwrap()).collect::<Vec<_>>();
    let with = |answers: Vec<_>| Response { answers, ..Response::default() };
    let v6 = |chain: &Chain| chain.dns64.clone().unwrap();
    let cases = [
        ("dns64", "64:ff9b::c000:201"),
        ("dns64 64:1337::/96", "64:1337::c000:201"),
        ("dns64 {\n prefix 2001:db8::/32\n}", "2001:db8:c000:201::"),
        ("dns64 2001:db8:1::/40", "2001:db8:c0:2:1::"),
        ("dns64 2001:db8:1:2::/64", "2001:db8:1:2:c0:2:100:0"),
    ];
    for (text, expected) in cases {
        let answers = records(&["a 900 CNAME b", "b 900 A 192.0.2.1"]);
        let translated = v6(&chain(text)).translated(&Response::default(), with(answers));
        assert_eq!(
            shown(&translated)[1..],
            ["a. 900 CNAME b.".to_owned(), format!("b. 600 AAAA {expected}")],
            "{text}"
        );
    }
    let plain = v6(&chain("dns64"));
    let soa = Response { authorities: records(&["a 30 SOA n h 1 1 1 1 30"]), ..Response::default() };
    assert!(
        shown(&plain.translated(&soa, with(records(&["a 900 A 192.0.2.1"]))))[1].starts_with("a. 30 AAAA")
    );
    let found = with(records(&["a 900 AAAA 2001:db8::1"]));
    assert!(plain.needs(&Response::default()) && !plain.needs(&found));
    assert!(plain.needs(&Response::failure(wire::SERVER_FAILURE)), "as if there were no addresses");
    assert!(!plain.needs(&Response::failure(wire::NAME_ERROR)));
    assert!(v6(&chain("dns64 {\n translate_all\n}")).needs(&found));
    let client = |client: &str, kind| Asked { client: client.parse().unwrap(), ..asked("a", kind) };
    assert!(plain.concerns(&client("2001:db8::1", wire::AAAA)));
    assert!(
        !plain.concerns(&client("2001:db8::1", wire::A)) && !plain.concerns(&client("10.0.0.1", wire::AAAA))
    );
    assert!(v6(&chain("dns64 {\n allow_ipv4\n}")).concerns(&client("10.0.0.1", wire::AAAA)));
}

#[test]
fn autopath_tries_the_search_list_of_the_pod_and_of_the_node() {
    let mut autopath = chain("autopath @kubernetes").autopath.unwrap();
    autopath.set_search(
        "nameserver 1.1.1.1\nsearch old\nsearch a.example b.example\noptions ndots:5\nsearchx y\n",
    );
    let names = |text: &str, namespace: Option<&str>| {
        let namespace = || namespace.map(|namespace| namespace.as_bytes().into());
        let names = autopath.names(&asked(text, wire::A), namespace, &name("cluster.local"));
        names.iter().map(ToString::to_string).collect::<Vec<_>>()
    };
    assert_eq!(
        names("www.x.shop.svc.cluster.local", Some("shop")),
        [
            "www.x.shop.svc.cluster.local.",
            "www.x.svc.cluster.local.",
            "www.x.cluster.local.",
            "www.x.a.example.",
            "www.x.b.example.",
            "www.x."
        ]
    );
    assert_eq!(names("www.other.svc.cluster.local", Some("shop")), [""; 0], "another namespace's");
    assert_eq!(names("shop.svc.cluster.local", Some("shop")), [""; 0], "the domain itself");
    assert_eq!(names("www.shop.svc.cluster.local", None), [""; 0], "no pod");
    assert_eq!(names("www.example", Some("shop")), [""; 0]);
    let mut of_file = chain("autopath example /search").autopath.unwrap();
    assert_eq!(of_file.file().to_str(), Some("/search"));
    of_file.set_search("search a.example b.example");
    let names = of_file.names(&asked("x.a.example", wire::A), || None, &name("cluster.local"));
    assert_eq!(
        names.iter().map(ToString::to_string).collect::<Vec<_>>(),
        ["x.a.example.", "x.b.example.", "x."]
    );
}

#[test]
fn malformed_lines_are_refused_with_their_number_and_what_is_wrong() {
    let long = format!("\nrewrite name regex {} b", "a".repeat(limits::PATTERN + 1));
    let many = "rewrite name regex a b\n".repeat(limits::PATTERNS + 1);
    let rules = "rewrite name a b\n".repeat(limits::RULES + 1);
    let cases = [
        ("\nrewrite", 2, "write [continue|stop]"),
        ("\nrewrite name a", 2, "write name"),
        ("\nrewrite name fuzzy a b", 2, "\"fuzzy\" is not"),
        ("\nrewrite name regex ( b", 2, "not a regular expression"),
        ("\nrewrite name regex (?=a) b", 2, "not a regular expression"),
        // Regular expressions that would be large or slow.
        ("\nrewrite name regex ((a{0,255}){255}){255} b", 2, "too much memory"),
        ("\nrewrite ttl regex (x+x+)+y{1,999}{1,999} 5", 2, "too much memory"),
        ("\ntemplate IN A {\n match (a|b|ab){1,99}{1,99}\n}", 3, "too much memory"),
        (&long, 2, "longer than"),
        (&many, limits::PATTERNS + 1, "more than"),
        (&rules, limits::RULES + 1, "more than"),
        ("\nrewrite name exact a b auto", 2, "is not `answer`"),
        ("\nrewrite name suffix a b answer", 2, "behind `answer`"),
        ("\nrewrite name suffix a b answer name x", 2, "behind `answer`"),
        ("\nrewrite name suffix a b answer auto name x y", 2, "exclude each other"),
        ("\nrewrite edns0 nsid set", 2, "\"edns0\" with these arguments"),
        ("\nrewrite cname exact a b", 2, "\"cname\" with these arguments"),
        ("\nrewrite class CH IN", 2, "\"class\" with these arguments"),
        ("\nrewrite type A NONE", 2, "not the type"),
        ("\nrewrite ttl a 5-4", 2, "neither SECONDS"),
        ("\nrewrite ttl a -", 2, "neither SECONDS"),
        ("\nrewrite rcode a SERVFAIL NONE", 2, "not the code"),
        ("\ntemplate IN", 2, "write CLASS TYPE"),
        ("\ntemplate CH A", 2, "class \"CH\""),
        ("\ntemplate IN A a..b", 2, "not a domain name"),
        ("\ntemplate IN A {\n var x 1\n}", 3, "\"var\" with these"),
        ("\ntemplate IN A {\n answer \"x A {{ if .Name }}1{{ end }}\"\n}", 3, "{{ if .Name }}"),
        ("\ntemplate IN A {\n answer \"x A {{ .Message }}\"\n}", 3, "{{ .Message }}"),
        ("\ntemplate IN A {\n answer \"x A {{ .Name\"\n}", 3, "not closed"),
        ("\ntemplate IN A {\n answer \"x A {{ .Group.a }}\"\n}", 3, "no expression has the group"),
        (
            "\ntemplate IN A {\n match a\n answer \"x A {{ index .Match 1 }}\"\n}",
            4,
            "no expression has the group",
        ),
        ("\ntemplate IN A {\n answer \"x 60 IN NAPTR 1\"\n}", 3, "one of the types"),
        ("\ntemplate IN A {\n answer x\n}", 3, "one of the types"),
        ("\ntemplate IN A {\n rcode BAD\n}", 3, "not the code"),
        ("\nacl {\n forbid\n}", 3, "\"forbid\" is not"),
        ("\nacl {\n block type\n}", 3, "nothing stands behind"),
        ("\nacl {\n block type net 10.0.0.1\n}", 3, "nothing stands behind"),
        ("\nacl {\n block net 10.0.0.300\n}", 3, "not an address"),
        ("\nacl {\n block 10.0.0.1\n}", 3, "write ACTION"),
        ("\nautopath", 2, "write [ZONES...]"),
        ("\nautopath @erratic", 2, "no plugin"),
        ("autopath @kubernetes\nautopath f", 2, "stands twice"),
        ("\ndns64 10.0.0.0/8", 2, "not a range of IPv6"),
        ("\ndns64 2001:db8::/33", 2, "not a range of IPv6"),
        ("\ndns64 {\n other\n}", 3, "there are prefix"),
        ("\nlocal x", 2, "nothing stands"),
        ("\nlocal {\n x\n}", 3, "localhost_prefix"),
        ("\nany x", 2, "nothing stands"),
        ("\nminimal {\n x\n}", 2, "nothing stands"),
    ];
    for (text, line, what) in cases {
        let error = try_chain(text).unwrap_err();
        assert_eq!(error.line.number, line, "{error}");
        assert!(error.what.contains(what), "{error}");
    }
}

#[test]
fn records_are_read_as_in_zone_files() {
    let cases = [
        ("a.b 60 IN A 192.0.2.1", Some("a.b. 60 A 192.0.2.1")),
        ("a.b. IN 60 A 192.0.2.1", Some("a.b. 60 A 192.0.2.1")),
        ("a a 192.0.2.1 ; comment", Some("a. 3600 A 192.0.2.1")),
        ("_http._tcp.a 5 SRV 0 1 80 b", Some("_http._tcp.a. 5 SRV 0 1 80 b.")),
        ("a TXT \"b c\" d", Some("a. 3600 TXT b cd")),
        ("a PTR b", Some("a. 3600 PTR b.")),
        ("a A", None),
        ("a A 192.0.2.1 x", None),
        ("a A 192.0.2", None),
        ("a 99999999999 A 192.0.2.1", None),
        ("a CNAME b..c", None),
        ("a MX 70000 b", None),
        ("a TXT \"b", None),
        ("a", None),
        ("", None),
    ];
    for (text, expected) in cases {
        let found =
            records::parse(text).map(|record| Response { answers: vec![record], ..Response::default() });
        let found = found.map(|response| shown(&response)[1].clone());
        assert_eq!(found.as_deref(), expected, "{text}");
    }
    assert!(records::parse(&format!("a TXT {}", "x".repeat(256))).is_none());
}
