//! `GET /v1/unmatched`: names that callers ask for and no rule has. They are counted by the stats, within their bounds.

use std::{cmp::Reverse, sync::Arc};

use axum::{extract::State, http::Uri, response::Response};
use serde_json::{Value, json};
use weir_observe::Stats;
use weir_store::Store;

use super::{answer::count, api::AdminApi, problem::Problem, query::Query};

/// A domain, a key of it if some rule has the domain, and the descriptors that had them.
pub(super) type UnmatchedName = (String, Option<String>, u64);

pub(super) async fn list<S: Store>(
    State(api): State<Arc<AdminApi<S>>>,
    uri: Uri,
) -> Result<Response, Problem> {
    let part = Query::parse(&uri, &[])?.part()?;
    api.aside(move |api| {
        let (names, next) = part.of(unmatched(&api.context.stats).into_iter());
        let items = names.into_iter().map(|(domain, key, descriptors)| -> Value {
            json!({ "domain": domain, "key": key, "descriptors": count(descriptors) })
        });
        json!({ "items": items.collect::<Vec<_>>(), "next": next })
    })
    .await
}

/// The most frequent first.
pub(super) fn unmatched(stats: &Stats) -> Vec<UnmatchedName> {
    let domains =
        stats.unknown_domains().into_iter().map(|(domain, descriptors)| (domain, None, descriptors));
    let keys = stats.unknown_keys().into_iter();
    let keys = keys.map(|((domain, key), descriptors)| (domain, Some(key), descriptors));
    let mut names: Vec<UnmatchedName> = domains.chain(keys).collect();
    names.sort_by(|a, b| (Reverse(a.2), &a.0, &a.1).cmp(&(Reverse(b.2), &b.0, &b.1)));
    names
}
