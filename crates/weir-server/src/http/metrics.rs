//! `/metrics`: the stats in Prometheus' format.

use std::{io::Write as _, sync::Arc};

use axum::{
    Router,
    http::{
        HeaderMap, StatusCode, Uri,
        header::{ACCEPT_ENCODING, CONTENT_ENCODING, CONTENT_TYPE, VARY},
    },
    response::{IntoResponse, Response},
    routing::{MethodRouter, get},
};
use flate2::{Compression, write::GzEncoder};

use super::pages::{PageSource, Pages};
use weir_export::prometheus::{self, MetricNames};
use weir_observe::Stats;

#[derive(Clone)]
struct MetricsPage {
    plain: Arc<PageSource>,
    compressed: Arc<PageSource>,
}

/// The page of `PROMETHEUS_ADDR`: the stats at `path`, which may have characters that a router's pattern cannot.
pub fn metrics_router(stats: &Arc<Stats>, path: String, names: MetricNames, pages: &Pages) -> Router {
    let page = MetricsPage::new(stats, names, pages);
    Router::new().fallback(get(move |uri: Uri, headers: HeaderMap| async move {
        if uri.path().trim_start_matches('/') == path.trim_start_matches('/') {
            page.get(&headers).await
        } else {
            StatusCode::NOT_FOUND.into_response()
        }
    }))
}

pub(super) fn route(stats: &Arc<Stats>, names: MetricNames, pages: &Pages) -> MethodRouter {
    let page = MetricsPage::new(stats, names, pages);
    get(async move |headers: HeaderMap| page.get(&headers).await)
}

// === impl MetricsPage ===

impl MetricsPage {
    fn new(stats: &Arc<Stats>, names: MetricNames, pages: &Pages) -> Self {
        let stats = Arc::clone(stats);
        let render = Arc::new(move || prometheus::render(&stats, &names));
        let plain = Arc::clone(&render);
        Self {
            plain: pages.source(move || plain().into_bytes()),
            compressed: pages.source(move || compressed(&render())),
        }
    }

    async fn get(&self, headers: &HeaderMap) -> Response {
        let common = [(CONTENT_TYPE, prometheus::CONTENT_TYPE), (VARY, ACCEPT_ENCODING.as_str())];
        if accepts_gzip(headers) {
            let page = self.compressed.get().await;
            page.map(|page| (common, [(CONTENT_ENCODING, "gzip")], page).into_response())
        } else {
            let page = self.plain.get().await;
            page.map(|page| (common, page).into_response())
        }
        .unwrap_or_else(|| StatusCode::INTERNAL_SERVER_ERROR.into_response())
    }
}

/// Fast: the text repeats itself, so more effort gains little.
fn compressed(text: &str) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    encoder.write_all(text.as_bytes()).and_then(|()| encoder.finish()).expect("memory takes all bytes")
}

/// Gzip must be named with a weight above 0 (RFC 9110, section 12.5.3): `*` also accepts the uncompressed page.
pub(super) fn accepts_gzip(headers: &HeaderMap) -> bool {
    let values = headers.get_all(ACCEPT_ENCODING).into_iter().filter_map(|value| value.to_str().ok());
    values.flat_map(|value| value.split(',')).any(|coding| {
        let mut parts = coding.split(';').map(str::trim);
        let is_gzip = parts.next().is_some_and(|name| name.eq_ignore_ascii_case("gzip"));
        let weight = parts.find_map(|part| part.strip_prefix("q=").or_else(|| part.strip_prefix("Q=")));
        is_gzip && weight.is_none_or(|weight| weight.trim().parse().is_ok_and(|weight: f32| weight > 0.0))
    })
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderValue;

    use super::*;

    #[test]
    fn gzip_is_used_if_the_client_names_it() {
        for (value, expected) in [
            ("gzip", true),
            ("deflate, GZIP;q=0.5", true),
            ("identity;q=1, gzip; q=1.0", true),
            ("gzip;q=0", false),
            ("gzip; q=0.000", false),
            ("*", false),
            ("x-gzip", false),
            ("", false),
        ] {
            let headers = HeaderMap::from_iter([(ACCEPT_ENCODING, HeaderValue::from_static(value))]);
            assert_eq!(accepts_gzip(&headers), expected, "{value}");
        }
        assert!(!accepts_gzip(&HeaderMap::new()));
    }
}
