//! Pages and what becomes of them. The expected texts of the first table are those of Kubernetes.

use super::*;

const PREFIX: &str = "/api/v1/namespaces/ns/services/s/proxy";

fn rewriter() -> Rewriter {
    Rewriter::new(Links {
        prefix: PREFIX.to_owned(),
        backend: "10.0.0.1:80".to_owned(),
        asked: "localhost:8001".to_owned(),
    })
}

/// Rewrites a page that arrives in pieces of this many bytes, with the proxy's prefix as `@`.
fn rewritten(page: &[u8], piece: usize) -> Vec<u8> {
    let (mut rewriter, mut whole) = (rewriter(), Vec::new());
    for piece in page.chunks(piece) {
        let mut out = Vec::new();
        rewriter.feed(piece, &mut out);
        whole.append(&mut out);
    }
    rewriter.finish(&mut whole);
    whole
}

fn check(page: &str, expected: &str) {
    let expected = expected.replace('@', PREFIX);
    for piece in [1, 2, 3, 7, 4096] {
        let new = rewritten(page.as_bytes(), piece);
        assert_eq!(String::from_utf8(new).unwrap(), expected, "in pieces of {piece}");
    }
}

#[test]
fn absolute_links_lead_through_the_proxy() {
    for (page, expected) in [
        (r#"<a href="/rewriteme">test</a>"#, r#"<a href="@/rewriteme">test</a>"#),
        (
            r#"<html><header></header><body><pre><a href="kubelet.log">kubelet.log</a><a href="/google.log">google.log</a></pre></body></html>"#,
            r#"<html><header></header><body><pre><a href="kubelet.log">kubelet.log</a><a href="@/google.log">google.log</a></pre></body></html>"#,
        ),
        (
            r#"<pre><img src="kubernetes.jpg"/><img src="/kubernetes_abs.jpg"/></pre>"#,
            r#"<pre><img src="kubernetes.jpg"/><img src="@/kubernetes_abs.jpg"/></pre>"#,
        ),
        (
            r#"<script src="http://google.com/kubernetes.js"/>"#,
            r#"<script src="http://google.com/kubernetes.js"/>"#,
        ),
        (r#"<script src="http://10.0.0.1:80/kubernetes.js"/>"#, r#"<script src="@/kubernetes.js"/>"#),
        (
            r#"<a href="http://localhost:8001/google.log">google.log</a>"#,
            r#"<a href="http://localhost:8001@/google.log">google.log</a>"#,
        ),
        ("<html></html>", "<html></html>"),
    ] {
        check(page, expected);
    }
}

#[test]
fn every_spelling_of_an_attribute_is_known() {
    for (page, expected) in [
        ("<A HREF=/x>", "<A HREF=\"@/x\">"),
        ("<a\nclass=b\thref = '/x'>", "<a\nclass=b\thref = '@/x'>"),
        ("<a title='>' href=/x/>", "<a title='>' href=\"@/x/\">"),
        ("<a/href=/x>", "<a/href=\"@/x\">"),
        ("<a hidden href=/x checked>", "<a hidden href=\"@/x\" checked>"),
        ("<a href=\"/x?a=1&amp;b=<>\">", "<a href=\"@/x?a=1&amp;b=<>\">"),
        (
            "<form action=/f><input formaction='/g'></form>",
            "<form action=\"@/f\"><input formaction='@/g'></form>",
        ),
        ("<video src=/v poster=/p>", "<video src=\"@/v\" poster=\"@/p\">"),
        ("<base href=/>", "<base href=\"@/\">"),
    ] {
        check(page, expected);
    }
}

#[test]
fn text_outside_of_links_in_start_tags_stays() {
    for page in [
        "<p href=/x>",
        "<a data-href=/x hrefs=/x>",
        "<a href>",
        "<a href=>",
        "<a href= >",
        "<a href=\"\">",
        "</a href=/x>",
        "<!-- <a href=/x> -->",
        "<!-- --!><!--><!---> a > b",
        "<!doctype html><?xml href=/x?>",
        "<script>if (a<b) write('<a href=/x>')</script >",
        "<title><a href=/x></titles></title>",
        "<textarea></text<a href=/x></textarea>",
        "<plaintext></plaintext><a href=/x>",
        "1 < 2 <<3 <",
        "<a href=\"/x",
        "<a href=/x",
        "</",
    ] {
        check(page, page);
    }
    check("<!-- --><a href=/x>", "<!-- --><a href=\"@/x\">");
    check("<!--><a href=/x>", "<!--><a href=\"@/x\">");
    check("<!-- --!><a href=/x>", "<!-- --!><a href=\"@/x\">");
    check("<script></script><a href=/x>", "<script></script><a href=\"@/x\">");
    check("<STYLE>a</Style\n x><a href=/x>", "<STYLE>a</Style\n x><a href=\"@/x\">");
    check("<<a href=/x>", "<<a href=\"@/x\">");
    check("</><a href=/x>", "</><a href=\"@/x\">");
}

#[test]
fn a_tag_that_is_too_long_goes_on_as_it_is_and_is_not_kept() {
    let long = "x".repeat(limits::HTML_TAG);
    let page = format!("<a href=/x title='{long}' href=/y><a href=/z>");
    check(&page, &page.replace("/z", &format!("\"{PREFIX}/z\"")));
    let mut rewriter = rewriter();
    let mut out = Vec::new();
    rewriter.feed(format!("<a title='{long}{long}").as_bytes(), &mut out);
    assert!(rewriter.tag.text.capacity() <= 2 * limits::HTML_TAG);
    assert!(out.len() >= limits::HTML_TAG);
}

#[test]
fn bytes_of_any_encoding_pass() {
    let page = b"\xff\xfe<a href=/\xe9>\x80</a>";
    let expected = [b"\xff\xfe<a href=\"".as_slice(), PREFIX.as_bytes(), b"/\xe9\">\x80</a>"].concat();
    assert_eq!(rewritten(page, 1), expected);
}

proptest::proptest! {
    #[test]
    fn any_bytes_give_the_same_in_any_pieces(
        page in proptest::collection::vec(
            proptest::prop_oneof![proptest::prelude::any::<u8>(), proptest::sample::select(b"<>/!?-='\" ahref".to_vec())],
            0..200,
        ),
        piece in 1..9_usize,
    ) {
        proptest::prop_assert_eq!(rewritten(&page, piece), rewritten(&page, 4096));
    }

    #[test]
    fn pages_without_absolute_links_are_not_changed(page in "[<>!?a='\" hrefscipt-]{0,80}", piece in 1..9_usize) {
        proptest::prop_assert_eq!(rewritten(page.as_bytes(), piece), page.as_bytes());
    }
}
