//! Tests of the headers that every answer has, of compression, and of JSON for people.

use std::io::Read as _;

use bytes::Bytes;
use flate2::read::GzDecoder;
use http::Request;
use http_body_util::BodyExt as _;
use serde_json::json;

use crate::api::harness::{Api, Reply};

const MAPS: &str = "/api/v1/namespaces/default/configmaps";

#[tokio::test(start_paused = true)]
async fn people_get_indented_json() {
    let api = Api::start().await;
    api.config_map("a", json!({})).await;
    let one = format!("{MAPS}/a");
    for path in [MAPS, one.as_str(), "/apis", "/api/v1", "/api/v1/namespaces/none/pods/none"] {
        let plain = api.get(path).await;
        // One line, whose end people do without.
        assert_eq!(plain.text.find('\n'), Some(plain.text.len() - 1), "{path}");
        // The length does not depend on the order of the keys.
        let length = serde_json::to_string_pretty(&plain.body).unwrap().len();
        let check = |reply: &Reply| {
            assert_eq!((reply.text.len(), &reply.body), (length, &plain.body), "{path}");
        };
        let asked = if path.contains('?') { "&" } else { "?" };
        for value in ["true", "1", "T"] {
            let reply = api.get(&format!("{path}{asked}pretty={value}")).await.expect(plain.code);
            check(&reply);
        }
        check(&api.get_as(path, "application/json;pretty=1").await);
        for agent in ["curl/8.5.0", "Wget/1.21", "Mozilla/5.0 (X11)"] {
            check(&api.call("GET", path, &[("user-agent", agent)], "").await);
        }
        for agent in ["kubectl/v1.36.0", "Go-http-client/2.0"] {
            assert_eq!(api.call("GET", path, &[("user-agent", agent)], "").await.text, plain.text);
        }
        let reply = api.call("GET", &format!("{path}?pretty=false"), &[("user-agent", "curl/8")], "").await;
        assert_eq!(reply.text, plain.text, "{path}");
    }
    // Some are the same for all.
    for path in ["/", "/version", "/openapi/v3"] {
        let plain = api.get(path).await;
        assert_eq!(plain.text.starts_with("{\n  \""), path != "/openapi/v3");
        assert_eq!(api.call("GET", path, &[("user-agent", "curl/8")], "").await.text, plain.text, "{path}");
    }
    let mut watch = api.watch(&format!("{MAPS}?watch=1&pretty=true")).await;
    assert_eq!(watch.brief().await, "ADDED a");
}

/// JSON ends with a newline, as Kubernetes' encoder writes it, so that answers can be read line by line.
#[tokio::test(start_paused = true)]
async fn json_ends_its_line() {
    let api = Api::start().await;
    let table = "application/json;as=Table;v=v1;g=meta.k8s.io";
    let metadata = "application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io";
    let created = api.post(MAPS, json!({"metadata": {"name": "a"}})).await.expect(201);
    let one = format!("{MAPS}/a");
    let merge = [("content-type", "application/merge-patch+json")];
    let mut replies = vec![created, api.call("PATCH", &one, &merge, r#"{"data":{"a":"b"}}"#).await];
    for path in [MAPS, one.as_str(), "/api", "/apis", "/apis/apps/v1", "/apis/none", "/api/v1/pods"] {
        replies.push(api.get(path).await);
    }
    replies.push(api.get_as(&one, table).await);
    replies.push(api.get_as(MAPS, table).await);
    replies.push(api.get_as(&one, metadata).await);
    replies.push(api.delete(&one, json!({})).await.expect(200));
    for reply in replies {
        let name = format!("{}: {}", reply.code, reply.text);
        if reply.headers["content-type"] == "application/json" {
            assert_eq!(reply.text.find('\n'), Some(reply.text.len() - 1), "{name}");
            assert!(reply.body.is_object(), "{name}");
        }
    }
    // These are written without the encoder.
    for path in ["/version", "/openapi/v3"] {
        assert!(!api.get(path).await.text.ends_with('\n'), "{path}");
    }
}

#[tokio::test(start_paused = true)]
async fn every_answer_can_be_found_again_and_is_kept_by_nobody() {
    let api = Api::start().await;
    for (path, code) in [(MAPS, 200), ("/livez", 200), ("/api/v1/pods/none/none/none/none", 404)] {
        let reply = api.call("GET", path, &[("audit-id", "my-own")], "").await;
        assert_eq!(reply.headers["audit-id"], "my-own", "{path}");
        let (one, two) = (api.get(path).await, api.get(path).await);
        assert_eq!((one.code, one.headers["audit-id"].len()), (code, 36));
        assert_ne!(one.headers["audit-id"], two.headers["audit-id"]);
        assert_eq!(one.headers["cache-control"], "no-cache, private");
    }
    let long = "x".repeat(65);
    assert_ne!(api.call("GET", MAPS, &[("audit-id", &long)], "").await.headers["audit-id"], long.as_str());
}

/// From 128 KiB on, in every encoding, for lists and single objects.
#[tokio::test(start_paused = true)]
async fn large_answers_are_compressed_for_those_who_take_it() {
    let api = Api::start().await;
    let map =
        |size: usize| json!({"metadata": {"name": format!("m{size}")}, "data": {"x": "x".repeat(size)}});
    for size in [1000, 120_000, 140_000] {
        api.post(MAPS, map(size)).await.expect(201);
    }
    let list = format!("{MAPS}?fieldSelector=metadata.name%3Dm1000");
    for (path, large) in [
        (format!("{MAPS}/m1000"), false),
        (format!("{MAPS}/m120000"), false),
        (format!("{MAPS}/m140000"), true),
        (list, false),
        (MAPS.to_owned(), true),
    ] {
        for accept in ["application/json", "application/yaml", "application/vnd.kubernetes.protobuf"] {
            let send = async |coding: &str| {
                let request = Request::builder().uri(&path).header("accept", accept);
                let request = request.header("accept-encoding", coding).body(Bytes::new()).unwrap();
                let (parts, body) = api.send(request).await.into_parts();
                assert_eq!(parts.headers["content-type"], accept);
                (parts.headers, body.collect().await.unwrap().to_bytes())
            };
            let (headers, plain) = send("identity").await;
            assert!(!headers.contains_key("content-encoding") && !headers.contains_key("vary"));
            let (headers, packed) = send("deflate, gzip;q=0.5").await;
            assert_eq!(headers.contains_key("content-encoding"), large, "{path} {accept}");
            if !large {
                assert_eq!(packed, plain);
                continue;
            }
            assert_eq!(
                (&headers["content-encoding"], &headers["vary"]),
                (&"gzip".parse().unwrap(), &"Accept-Encoding".parse().unwrap())
            );
            let mut text = Vec::new();
            GzDecoder::new(&packed[..]).read_to_end(&mut text).unwrap();
            assert_eq!(text, plain, "{path} {accept}");
            // People's is compressed too.
            let request = Request::builder().uri(&path).header("accept", accept);
            let request = request.header("user-agent", "curl/8").header("accept-encoding", "gzip");
            let (parts, body) = api.send(request.body(Bytes::new()).unwrap()).await.into_parts();
            assert_eq!(parts.headers["content-encoding"], "gzip", "{path} {accept}");
            let packed = body.collect().await.unwrap().to_bytes();
            let mut text = Vec::new();
            GzDecoder::new(&packed[..]).read_to_end(&mut text).unwrap();
            if accept == "application/json" {
                let value = |bytes: &[u8]| serde_json::from_slice::<serde_json::Value>(bytes).unwrap();
                assert_eq!(value(&text), value(&plain));
                assert!(text.starts_with(b"{\n  \""));
            } else {
                assert_eq!(text, plain);
            }
            let (headers, refused) = send("gzip;q=0").await;
            assert!(!headers.contains_key("content-encoding"));
            assert_eq!(refused, plain);
        }
    }
}
