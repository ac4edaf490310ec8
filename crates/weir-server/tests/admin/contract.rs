//! Each operation of the document answers as the document says.

use std::collections::BTreeSet;

use serde_json::Value;
use weir_server::http::admin::{AdminLevel, AdminSettings};

use crate::{
    client::{Admin, Ask, Operation, document, operations},
    schema::faults,
    support::descriptor,
};

/// A stream has no end.
const STREAM: &str = "/v1/stream";

/// Requests that answers have something to tell of.
async fn with_traffic() -> Admin {
    let settings = AdminSettings { level: Some(AdminLevel::Full), ..AdminSettings::default() };
    let admin = Admin::start(settings).await;
    for _ in 0..120 {
        admin.service.decide(&[("tenant", "acme")], 1).await;
    }
    admin.service.decide(&[("tennant", "acme")], 1).await;
    admin.service.decide_all("stop", vec![descriptor(&[("a", "b")], 1)]).await;
    admin
}

fn queries(path: &str) -> Vec<&'static str> {
    match path {
        "/v1/counters" => vec!["?domain=shop&entry=tenant=acme", "?domain=shop&below=true"],
        "/v1/hot" => vec!["", "?by=rejected", "?window=10m", "?scope=fleet"],
        "/v1/rules" => vec!["", "?domain=shop", "?domain=none", "?limit=1"],
        "/v1/audit" => vec!["", "?kind=rules"],
        _ => vec![""],
    }
}

fn answers(document: &Value, operation: &Operation, status: u16) -> Value {
    let method = operation.method.to_lowercase();
    let answers = &document["paths"][&operation.path][&method]["responses"];
    let answer = &answers[status.to_string()];
    match answer["$ref"].as_str() {
        Some(path) => document.pointer(&path[1..]).expect("a response").clone(),
        None => answer.clone(),
    }
}

#[tokio::test]
async fn each_operation_answers_by_its_schema() {
    let (admin, document) = (with_traffic().await, document());
    let mut compared = BTreeSet::new();
    for operation in operations() {
        if operation.path == STREAM {
            continue;
        }
        for query in queries(&operation.path) {
            let asked = Operation { path: format!("{}{query}", operation.path), ..operation.clone() };
            let answer = admin.ask(&Ask::of(&asked)).await;
            let described = answers(&document, &operation, answer.status);
            let content = described["content"].as_object();
            let Some((media, content)) = content.and_then(|content| content.iter().next()) else {
                assert!(answer.status == 204 && answer.body.is_empty(), "{operation:?}: {answer:?}");
                continue;
            };
            assert!(answer.head.contains(&format!("content-type: {media}")), "{operation:?}: {answer:?}");
            let found = faults(&document, &content["schema"], &answer.json(), &asked.path);
            assert!(found.is_empty(), "{found:#?}\n{}", answer.body);
            compared.insert((operation.path.clone(), answer.status));
        }
    }
    let succeeded: Vec<&str> =
        compared.iter().filter(|(_, status)| *status == 200).map(|(path, _)| path.as_str()).collect();
    assert_eq!(
        succeeded,
        [
            "/v1/attention",
            "/v1/audit",
            "/v1/counters",
            "/v1/hot",
            "/v1/instance",
            "/v1/instances",
            "/v1/openapi.json",
            "/v1/recording",
            "/v1/reset",
            "/v1/rules",
            "/v1/try",
            "/v1/unmatched",
            "/v1/why",
        ]
    );
}

#[tokio::test]
async fn errors_are_problems_that_the_document_has() {
    let (admin, document) = (with_traffic().await, document());
    for (method, path, body, status, expected) in [
        ("GET", "/v1/rules?domian=x", "", 400, "no parameter 'domian'"),
        ("GET", "/v1/rules?limit=0", "", 400, "from 1 to 1000"),
        ("GET", "/v1/hot?by=x", "", 400, "hits or rejected"),
        ("GET", "/v1/hot?window=10m&scope=fleet", "", 400, "scope=instance has both"),
        ("GET", "/v1/counters?entry=a=b", "", 400, "domain is missing"),
        ("GET", "/v1/counters?domain=shop", "", 400, "entry is missing"),
        ("GET", "/v1/counters?domain=shop&entry=a", "", 400, "write it as key=value"),
        ("GET", "/v1/counters?domain=shop&entry=a=b", "", 404, "nothing matches entry 1"),
        ("GET", "/v1/counters?domain=none&entry=a=b", "", 404, "unknown domain"),
        ("GET", "/v1/audit?kind=x", "", 400, "rules, reset, recording or login"),
        ("GET", "/v1/stream?topics=x", "", 400, "instance, instances"),
        ("GET", "/v1/stream", "", 400, "topics has ''"),
        ("GET", "/v1/files", "", 404, "control plane"),
        ("GET", "/v1/recording", "", 404, "There is no recording"),
        ("GET", "/v1/recording?values=1", "", 400, "false or true"),
        ("POST", "/v1/recording", "{\"seconds\": 0}", 400, "above 0"),
        ("POST", "/v1/try", "{}", 400, "missing field `files`"),
        ("POST", "/v1/why", "{", 400, "not a envoy.service"),
        ("POST", "/v1/why", "{\"domain\": \"shop\"}", 400, "descriptor list must not be empty"),
        ("POST", "/v1/why", "{\"line\": \"hello\"}", 400, "none of the log of rejections"),
    ] {
        let asked =
            Operation { method: method.into(), path: path.into(), level: String::new(), body: body.into() };
        let answer = admin.ask(&Ask::of(&asked)).await;
        assert_eq!(answer.status, status, "{path}: {answer:?}");
        assert!(answer.detail().contains(expected), "{path}: {answer:?}");
        let asked = Operation { path: path.split('?').next().expect("a path").to_owned(), ..asked };
        let described = answers(&document, &asked, status);
        let schema = &described["content"]["application/problem+json"]["schema"];
        assert!(faults(&document, schema, &answer.json(), path).is_empty(), "{path}: {described}");
    }
}

#[test]
fn examples_are_as_their_schemas_say() {
    let document = document();
    let mut examples = 0;
    let mut check = |of: &Value, at: &str| {
        for content in of["content"].as_object().into_iter().flat_map(|content| content.values()) {
            if !content["example"].is_null() {
                examples += 1;
                let found = faults(&document, &content["schema"], &content["example"], at);
                assert!(found.is_empty(), "{found:#?}");
            }
        }
    };
    for (path, item) in document["paths"].as_object().expect("paths") {
        for (_, operation) in
            item.as_object().expect("operations").iter().filter(|(name, _)| *name != "servers")
        {
            check(&operation["requestBody"], path);
            for answer in operation["responses"].as_object().expect("answers").values() {
                check(answer, path);
            }
        }
    }
    assert!(examples > 20, "{examples}");
}
