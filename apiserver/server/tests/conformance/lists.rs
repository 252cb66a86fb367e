//! Chunks, tables, the version.

use std::time::Duration;

use serde_json::{Value, json};

use crate::api::harness::{Api, Reply};
use crate::conformance::operations::template;

const TEMPLATES: &str = "/api/v1/namespaces/default/podtemplates";
const COUNT: usize = 400;

async fn with_templates() -> Api {
    let api = Api::start().await;
    for number in 0..COUNT {
        let object =
            json!({"metadata": {"name": format!("template-{number:04}")}, "template": template("e2e")});
        api.post(TEMPLATES, object).await.expect(201);
    }
    api
}

fn token(page: &Reply) -> &str {
    page.body["metadata"]["continue"].as_str().unwrap_or_default()
}

#[tokio::test]
async fn lists_come_in_chunks_of_one_state() {
    let api = with_templates().await;
    let (mut found, mut version, mut next) = (0, None, String::new());
    for limit in [1, 10, 33, 100].into_iter().cycle() {
        let page = api.get(&format!("{TEMPLATES}?limit={limit}&continue={next}")).await.expect(200);
        assert_eq!(version.get_or_insert_with(|| page.version()), &page.version());
        assert!(page.names().len() <= limit);
        for name in page.names() {
            assert_eq!(name, format!("template-{found:04}"));
            found += 1;
        }
        next = token(&page).to_owned();
        if next.is_empty() {
            assert_eq!(page.body["metadata"].get("remainingItemCount"), None);
            break;
        }
        assert_eq!(page.body["metadata"]["remainingItemCount"], COUNT - found);
        // Objects written meanwhile belong to another state.
        api.post(
            TEMPLATES,
            json!({"metadata": {"name": format!("zz-{found}")}, "template": template("e2e")}),
        )
        .await
        .expect(201);
    }
    assert_eq!(found, COUNT);
    assert!(api.get(TEMPLATES).await.names().len() > COUNT);
}

#[tokio::test]
async fn a_list_goes_on_inconsistently_after_a_compaction() {
    let store = with_templates().await.store.clone();
    let compaction_interval = Duration::from_millis(20);
    let config =
        apiserver_server::ServerConfig { compaction_interval, ..apiserver_server::ServerConfig::default() };
    let api = Api::over(config, store).await;
    let first = api.get(&format!("{TEMPLATES}?limit=40")).await.expect(200);
    assert_eq!(first.body["metadata"]["remainingItemCount"], COUNT - 40);
    api.delete(&format!("{TEMPLATES}/template-0041"), Value::Null).await.expect(200);
    let expired = loop {
        // The store's revision moves on, so that the next compaction takes the list's with it.
        api.config_map("later", json!({})).await;
        api.delete("/api/v1/namespaces/default/configmaps/later", Value::Null).await.expect(200);
        let next = api.get(&format!("{TEMPLATES}?limit=40&continue={}", token(&first))).await;
        if next.code != 200 {
            break next.expect(410);
        }
    };
    assert_eq!((expired.reason(), &expired.body["status"]), ("Expired", &json!("Failure")));
    let inconsistent = token(&expired).to_owned();
    assert!(!inconsistent.is_empty());
    let second = api.get(&format!("{TEMPLATES}?limit=40&continue={inconsistent}")).await.expect(200);
    assert_eq!(
        (second.names().len(), second.names()[0], second.names()[1]),
        (40, "template-0040", "template-0042")
    );
    assert_ne!(second.version(), first.version());
    assert_eq!(second.body["metadata"]["remainingItemCount"], COUNT - 1 - 80);
    let rest = api.get(&format!("{TEMPLATES}?limit={COUNT}&continue={}", token(&second))).await.expect(200);
    assert_eq!((rest.version(), rest.names().len(), token(&rest)), (second.version(), COUNT - 1 - 80, ""));
}

#[tokio::test]
async fn objects_without_metadata_have_no_table() {
    let api = Api::start().await;
    let review = json!({"spec": {"resourceAttributes": {"verb": "get", "resource": "pods"}}});
    let headers =
        [("content-type", "application/json"), ("accept", "application/json;as=Table;v=v1;g=meta.k8s.io")];
    let path = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews";
    let refused = api.call("POST", path, &headers, review.to_string()).await.expect(406);
    assert_eq!(refused.reason(), "NotAcceptable");
}

#[tokio::test]
async fn the_version_is_made_of_numbers() {
    let api = Api::start().await;
    let version = api.get("/version").await.expect(200).body;
    for part in ["major", "minor"] {
        assert!(version[part].as_str().unwrap().parse::<u32>().is_ok(), "{version}");
    }
}
