//! `GET /v1/headroom`: what is left of the limits of a token's owner.

use std::sync::Arc;

use axum::{
    extract::State,
    http::{
        HeaderMap, StatusCode, Uri,
        header::{AUTHORIZATION, CACHE_CONTROL},
    },
    response::{IntoResponse as _, Response},
};
use serde_json::{Value, json};
use weir_limit::{
    Entry, KeyHasher, Request, Timestamp,
    request_bucket::{BucketName, BucketReply, BucketRequest, Pace, PacedReply, PacedRequest},
};
use weir_store::{MemoryStore, Store};

use super::{TenantClaims, TenantTokens, token::TenantEntry};
use crate::http::{
    admin::{
        Problem,
        answer::{answer, entry},
        counters::{below, problem, tiers},
        query::Query,
        time,
    },
    context::ServiceContext,
};

/// The requests of a token in a second, and at once.
const RATE: i64 = 10;

/// The tokens whose requests are counted. The one that was used the longest ago is forgotten.
const MAX_COUNTED: usize = 10_000;

/// What the operation needs.
pub(super) struct Headroom<S> {
    context: ServiceContext<S>,
    tokens: Arc<TenantTokens>,
    used: MemoryStore,
    hasher: KeyHasher,
}

// === impl Headroom ===

impl<S: Store> Headroom<S> {
    pub(super) fn new(context: &ServiceContext<S>, tokens: Arc<TenantTokens>) -> Arc<Self> {
        let (context, used) = (context.clone(), MemoryStore::new(MAX_COUNTED));
        Arc::new(Self { context, tokens, used, hasher: KeyHasher::random() })
    }

    fn claims(&self, headers: &HeaderMap) -> Result<TenantClaims, Problem> {
        let header = headers.get(AUTHORIZATION).and_then(|value| value.to_str().ok());
        let token = header.and_then(|value| value.strip_prefix("Bearer ")).ok_or_else(|| {
            Problem::new(StatusCode::UNAUTHORIZED, "Send the token of weir token: Authorization: Bearer ….")
        })?;
        let claims = self.tokens.verify(token.trim());
        claims.map_err(|error| Problem::new(StatusCode::UNAUTHORIZED, format!("{error}.")))
    }

    /// Counts a request of the token.
    fn admit(&self, token: &str, now: Timestamp) -> Result<(), Problem> {
        let Some(pace) = Pace::new(RATE, 1) else { return Ok(()) };
        let request = BucketRequest::Paced(PacedRequest { capacity: RATE.unsigned_abs(), pace, quantity: 1 });
        let name = BucketName::new(self.hasher, token.as_bytes());
        match self.used.decide_bucket_now(&name, &request, now) {
            BucketReply::Paced(PacedReply { limited: true, .. }) => {
                Err(Problem::too_many(format!("A token has {RATE} requests a second."), 1))
            }
            _ => Ok(()),
        }
    }

    async fn counter(&self, domain: &str, entries: &[Entry<'_>]) -> Result<Option<Value>, Problem> {
        let request = Request::of_hits(domain, entries, 0);
        let looked = self.context.limiter.inspect(&request, self.context.clock.now(), |looked| {
            let (check, sight) = (looked.matched.enforced().first()?, looked.sights.first()?);
            Some(json!({
                "entries": entries.iter().map(entry).collect::<Vec<_>>(),
                "tiers": tiers(check, sight),
            }))
        });
        looked.await.map_err(|error| problem(&error))
    }
}

pub(super) async fn get<S: Store>(
    State(headroom): State<Arc<Headroom<S>>>,
    headers: HeaderMap,
    uri: Uri,
) -> Result<Response, Problem> {
    let claims = headroom.claims(&headers)?;
    let now = headroom.context.clock.now();
    headroom.admit(&claims.jti, now)?;
    let query = Query::parse(&uri, &["domain", "entry"])?;
    let (asked, part) = (query.entries()?, query.part()?);
    let of_token: Vec<Entry<'_>> = claims.entries.iter().map(TenantEntry::as_entry).collect();
    if query.get("domain").is_some_and(|domain| domain != claims.domain) {
        return Err(Problem::new(StatusCode::FORBIDDEN, "The token is for another domain."));
    }
    let is_within = asked.is_empty() || asked.starts_with(&of_token);
    if !is_within {
        return Err(Problem::new(StatusCode::FORBIDDEN, "The token is for other entries."));
    }
    let entries = if asked.is_empty() { of_token } else { asked };
    let limiter = &headroom.context.limiter;
    let mut names = vec![entries.clone()];
    let found = below(limiter, &claims.domain, &entries, now);
    for name in &found {
        let longer: Vec<Entry<'_>> = name.iter().map(|(key, value)| Entry { key, value }).collect();
        if longer != entries {
            names.push(longer);
        }
    }
    let (names, next) = part.of(names.into_iter());
    let mut items = Vec::new();
    for name in names {
        items.extend(headroom.counter(&claims.domain, &name).await?);
    }
    if items.is_empty() && next.is_null() {
        return Err(Problem::new(StatusCode::NOT_FOUND, "Nothing limits these entries."));
    }
    let until = time::text(Timestamp::from_secs(claims.exp));
    let answered = answer(&json!({ "domain": claims.domain, "items": items, "next": next, "until": until }));
    Ok(([(CACHE_CONTROL, "no-store")], answered).into_response())
}
