//! The files of the console, which are open to all: they contain nothing of this process.

use std::{
    io::Write as _,
    sync::{Arc, LazyLock},
};

use axum::{
    Router,
    body::Bytes,
    http::{
        HeaderMap, HeaderName, StatusCode,
        header::{
            CACHE_CONTROL, CONTENT_ENCODING, CONTENT_SECURITY_POLICY, CONTENT_TYPE, ETAG, IF_NONE_MATCH,
            REFERRER_POLICY, VARY, X_CONTENT_TYPE_OPTIONS,
        },
    },
    response::{IntoResponse as _, Response},
    routing::get,
};
use flate2::{Compression, write::GzEncoder};
use ring::digest::{SHA256, digest};

use super::answer::hex;
use crate::http::metrics::accepts_gzip;

/// Each file in `console/`. `index.html` is `/`, the others are below `/console/`.
const FILES: &[(&str, &[u8])] = &[
    ("index.html", include_bytes!("../console/index.html")),
    ("console.css", include_bytes!("../console/console.css")),
    ("icon.svg", include_bytes!("../console/icon.svg")),
    ("app.js", include_bytes!("../console/app.js")),
    ("api.js", include_bytes!("../console/api.js")),
    ("live.js", include_bytes!("../console/live.js")),
    ("dom.js", include_bytes!("../console/dom.js")),
    ("words.js", include_bytes!("../console/words.js")),
    ("charts.js", include_bytes!("../console/charts.js")),
    ("overview.js", include_bytes!("../console/overview.js")),
    ("rules.js", include_bytes!("../console/rules.js")),
    ("keys.js", include_bytes!("../console/keys.js")),
    ("search.js", include_bytes!("../console/search.js")),
    ("why.js", include_bytes!("../console/why.js")),
    ("what_if.js", include_bytes!("../console/what_if.js")),
];

const POLICY: &str = "default-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'; \
                      require-trusted-types-for 'script'";

const HEADERS: [(HeaderName, &str); 5] = [
    (CONTENT_SECURITY_POLICY, POLICY),
    (REFERRER_POLICY, "no-referrer"),
    (X_CONTENT_TYPE_OPTIONS, "nosniff"),
    // browsers ask whether it has changed
    (CACHE_CONTROL, "no-cache"),
    (VARY, "accept-encoding"),
];

struct ConsoleFile {
    name: &'static str,
    plain: Bytes,
    compressed: Bytes,
    /// In quotes.
    tag: String,
}

static CONSOLE: LazyLock<Vec<Arc<ConsoleFile>>> =
    LazyLock::new(|| FILES.iter().map(|(name, bytes)| Arc::new(ConsoleFile::new(name, bytes))).collect());

pub(super) fn router() -> Router {
    CONSOLE.iter().fold(Router::new(), |router, file| {
        let path = if file.name == "index.html" { "/".to_owned() } else { format!("/console/{}", file.name) };
        let file = Arc::clone(file);
        router.route(&path, get(async move |headers: HeaderMap| file.get(&headers)))
    })
}

// === impl ConsoleFile ===

impl ConsoleFile {
    fn new(name: &'static str, bytes: &'static [u8]) -> Self {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
        // memory takes all bytes
        let compressed = encoder.write_all(bytes).and_then(|()| encoder.finish()).unwrap_or_default();
        let hash = digest(&SHA256, bytes);
        let tag = hex(&hash.as_ref()[..8]);
        Self {
            name,
            plain: Bytes::from_static(bytes),
            compressed: compressed.into(),
            tag: format!("\"{tag}\""),
        }
    }

    fn kind(&self) -> &'static str {
        match self.name.rsplit_once('.') {
            Some((_, "html")) => "text/html; charset=utf-8",
            Some((_, "js")) => "text/javascript; charset=utf-8",
            Some((_, "css")) => "text/css; charset=utf-8",
            Some((_, "svg")) => "image/svg+xml",
            _ => "application/octet-stream",
        }
    }

    fn get(&self, headers: &HeaderMap) -> Response {
        let known = headers.get_all(IF_NONE_MATCH).iter().filter_map(|tags| tags.to_str().ok());
        let mut known = known.flat_map(|tags| tags.split(','));
        let tag = [(ETAG, self.tag.clone())];
        if known.any(|known| known.trim().trim_start_matches("W/") == self.tag) {
            return (StatusCode::NOT_MODIFIED, HEADERS, tag).into_response();
        }
        let kind = [(CONTENT_TYPE, self.kind())];
        if accepts_gzip(headers) && !self.compressed.is_empty() {
            return (HEADERS, tag, kind, [(CONTENT_ENCODING, "gzip")], self.compressed.clone())
                .into_response();
        }
        (HEADERS, tag, kind, self.plain.clone()).into_response()
    }
}
