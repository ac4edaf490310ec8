//! Who asks, and what they may do: the layer before every route of the debug port that is not open to all.

use std::{net::IpAddr, sync::Arc, time::Instant};

use axum::{
    Router,
    extract::{Request, State},
    http::{
        HeaderMap, HeaderValue, Method, StatusCode,
        header::{AUTHORIZATION, CACHE_CONTROL, CONTENT_TYPE, X_CONTENT_TYPE_OPTIONS},
    },
    middleware::{Next, from_fn_with_state},
    response::{IntoResponse as _, Response},
};
use weir_observe::throttle::Throttle;
use weir_store::clock::Clock;

use super::{
    AdminSettings, cookie,
    problem::Problem,
    sites::{check_host, check_origin, is_forwarded, is_loopback},
    tokens::{AdminToken, AdminTokens},
    wrong_tokens::WrongTokens,
};
use crate::http::access::{Encryption, HttpPeer};

/// `WEIR_ADMIN`: what a caller may do, in rising order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum AdminLevel {
    Off,
    /// Sees everything, and changes nothing.
    Read,
    Full,
}

/// What a route needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Needs {
    Read,
    Full,
    /// [`Needs::Read`] on this host, else [`Needs::Full`].
    FullFromElsewhere,
    /// Nothing, as it checks the caller by itself: only sites are checked.
    Nothing,
}

/// How a caller has shown who it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallerProof {
    /// It is on this host.
    Loopback,
    /// None: `WEIR_ADMIN` is set for everybody.
    Address,
    Token,
    Cookie,
    Certificate,
}

/// Who asks: an extension of each request that has passed.
#[derive(Clone, Debug)]
pub struct AdminCaller {
    pub level: AdminLevel,
    pub proof: CallerProof,
    /// Of its token, else its address.
    pub name: Arc<str>,
    /// Whether [`Needs::FullFromElsewhere`] is fulfilled.
    pub may_try: bool,
}

/// Decides who may use the debug port.
pub struct Permission {
    settings: AdminSettings,
    tokens: Option<Arc<AdminTokens>>,
    wrong: WrongTokens,
    clock: Arc<dyn Clock>,
    failures: Throttle,
}

/// The facts about a request that decide.
struct AskedRequest<'a> {
    headers: &'a HeaderMap,
    address: Option<IpAddr>,
    encryption: Encryption,
    /// Whether the connection is from this host.
    is_local: bool,
    /// Whether the caller is on this host, and no proxy that runs there.
    is_loopback: bool,
}

const OFF: &str = "WEIR_ADMIN=off: nobody may use the admin API.";

const ELSEWHERE: &str = "The admin API is for callers on this host: set WEIR_ADMIN_TOKEN_FILE, or WEIR_ADMIN=read for \
                         everybody who reaches this port. A host is this one at 127.0.0.1, ::1 or localhost, without a \
                         proxy between.";

const PLAIN: &str = "A token of another host is refused without TLS: set DEBUG_TLS=true, or WEIR_ADMIN_PLAIN=true if \
                     something else encrypts the way.";

const NEEDED: &str = "A token is needed, as `Authorization: Bearer TOKEN`: WEIR_ADMIN_TOKEN_FILE is set.";

const JSON: &str = "application/json";

// === impl AdminLevel ===

impl AdminLevel {
    pub const fn name(self) -> &'static str {
        match self {
            Self::Off => "off",
            Self::Read => "read",
            Self::Full => "full",
        }
    }
}

// === impl Permission ===

impl Permission {
    pub fn new(
        settings: AdminSettings,
        tokens: Option<Arc<AdminTokens>>,
        clock: Arc<dyn Clock>,
    ) -> Arc<Self> {
        Arc::new(Self {
            settings,
            tokens,
            wrong: WrongTokens::default(),
            clock,
            failures: Throttle::default(),
        })
    }

    /// Whether somebody has said who may, so that the pages of envoyproxy/ratelimit follow it, too.
    pub(in crate::http) const fn is_declared(&self) -> bool {
        self.settings.level.is_some() || self.tokens.is_some()
    }

    /// Lets requests reach `routes` whose callers have what it `needs`. Handlers find an [`AdminCaller`].
    pub fn guard(self: &Arc<Self>, routes: Router, needs: Needs) -> Router {
        routes.layer(from_fn_with_state((Arc::clone(self), needs), pass))
    }

    fn check(&self, needs: Needs, request: &Request) -> Result<Option<AdminCaller>, Problem> {
        let (headers, peer) = (request.headers(), request.extensions().get::<HttpPeer>());
        let host = check_host(request.uri(), headers, &self.settings.hosts)?;
        let has_origin = check_origin(request.method(), headers, &host, &self.settings.hosts)?;
        let address = peer.and_then(|peer| peer.address);
        let is_local = address.is_some_and(is_loopback);
        let is_loopback = is_local && host.is_loopback() && !is_forwarded(headers);
        let encryption = peer.map(|peer| peer.encryption).unwrap_or_default();
        let asked = AskedRequest { headers, address, encryption, is_local, is_loopback };
        if ![Method::GET, Method::HEAD].contains(request.method()) {
            asked.check_change(request.method(), has_origin)?;
        }
        if self.settings.level == Some(AdminLevel::Off) {
            return Err(Problem::forbidden(OFF));
        }
        if needs == Needs::Nothing {
            return Ok(None);
        }
        let caller = self.caller(&asked)?;
        let is_enough = match needs {
            Needs::Nothing | Needs::Read => caller.level >= AdminLevel::Read,
            Needs::FullFromElsewhere => caller.may_try,
            Needs::Full => caller.level == AdminLevel::Full,
        };
        if is_enough { Ok(Some(caller)) } else { Err(self.refuse(&caller)) }
    }

    fn caller(&self, asked: &AskedRequest<'_>) -> Result<AdminCaller, Problem> {
        let of = |level: AdminLevel, proof, name: &str| AdminCaller {
            level,
            proof,
            name: name.into(),
            may_try: level == AdminLevel::Full || asked.is_loopback && level == AdminLevel::Read,
        };
        let most = self.settings.level.unwrap_or(AdminLevel::Full);
        let address = asked.address.map_or_else(|| "unknown".to_owned(), |address| address.to_string());
        if let Some(tokens) = &self.tokens {
            let (token, proof) = self.token(tokens, asked)?;
            return Ok(of(token.level.min(most), proof, &token.name));
        }
        if asked.encryption == Encryption::WithCertificate {
            let level = self.settings.level.unwrap_or(AdminLevel::Read);
            return Ok(of(level, CallerProof::Certificate, &address));
        }
        match (asked.is_loopback, self.settings.level) {
            (true, level) => Ok(of(level.unwrap_or(AdminLevel::Read), CallerProof::Loopback, &address)),
            (false, Some(level)) => Ok(of(level, CallerProof::Address, &address)),
            (false, None) => Err(Problem::forbidden(ELSEWHERE)),
        }
    }

    fn token(
        &self,
        tokens: &AdminTokens,
        asked: &AskedRequest<'_>,
    ) -> Result<(AdminToken, CallerProof), Problem> {
        if let Some(given) = asked.headers.get(AUTHORIZATION) {
            let given = bearer(given).unwrap_or_default();
            return Ok((self.verify(tokens, given, asked)?, CallerProof::Token));
        }
        let is_encrypted = asked.encryption.is_on();
        if let Some(token) = cookie::find(asked.headers, tokens, is_encrypted, self.clock.now()) {
            self.check_plain(asked)?;
            return Ok((token, CallerProof::Cookie));
        }
        Err(Problem::new(StatusCode::UNAUTHORIZED, NEEDED))
    }

    /// A right token always passes. Of wrong ones, an address has ten a minute.
    fn verify(
        &self,
        tokens: &AdminTokens,
        given: &[u8],
        asked: &AskedRequest<'_>,
    ) -> Result<AdminToken, Problem> {
        self.check_plain(asked)?;
        if let Some(token) = tokens.find(given) {
            return Ok(token);
        }
        let now = Instant::now();
        let wait = self.wrong.add(asked.address, now);
        if let Some(suppressed) = self.failures.admit(now) {
            let address = asked.address.map(tracing::field::display);
            tracing::warn!(address, suppressed, "a wrong token at the admin API");
        }
        Err(match wait {
            None => Problem::new(
                StatusCode::UNAUTHORIZED,
                "The token is wrong: WEIR_ADMIN_TOKEN_FILE has no such token.",
            ),
            Some(wait) => {
                Problem::too_many("Too many wrong tokens in a minute; a right one still passes.", wait)
            }
        })
    }

    fn check_plain(&self, asked: &AskedRequest<'_>) -> Result<(), Problem> {
        let is_private = asked.is_local || asked.encryption.is_on() || self.settings.allows_plain;
        if is_private { Ok(()) } else { Err(Problem::forbidden(PLAIN)) }
    }

    fn refuse(&self, caller: &AdminCaller) -> Problem {
        Problem::forbidden(match (&self.tokens, caller.proof) {
            (Some(_), _) if self.settings.level == Some(AdminLevel::Read) => {
                "WEIR_ADMIN=read: nobody may change anything.".to_owned()
            }
            (Some(_), _) => format!(
                "The token {} has the level read, and this needs full: see WEIR_ADMIN_TOKEN_FILE.",
                caller.name
            ),
            (None, _) => {
                "This needs the level full: set WEIR_ADMIN=full, or WEIR_ADMIN_TOKEN_FILE.".to_owned()
            }
        })
    }

    /// Takes a token that came in a body, for a cookie. None if there are no tokens.
    pub(super) fn log_in(&self, request: &RequestFacts, given: &str) -> Option<Result<AdminToken, Problem>> {
        let tokens = self.tokens.as_ref()?;
        let RequestFacts { headers, address, encryption } = request;
        let is_local = address.is_some_and(is_loopback);
        let asked = AskedRequest {
            headers,
            address: *address,
            encryption: *encryption,
            is_local,
            is_loopback: is_local && !is_forwarded(headers),
        };
        Some(self.verify(tokens, given.as_bytes(), &asked))
    }

    pub(super) fn clock(&self) -> &dyn Clock {
        &*self.clock
    }
}

/// What [`Permission::log_in`] has to know of a request whose body was read.
pub(super) struct RequestFacts {
    headers: HeaderMap,
    address: Option<IpAddr>,
    pub(super) encryption: Encryption,
}

// === impl RequestFacts ===

impl RequestFacts {
    pub(super) fn of(request: &Request) -> Self {
        let peer = request.extensions().get::<HttpPeer>();
        Self {
            headers: request.headers().clone(),
            address: peer.and_then(|peer| peer.address),
            encryption: peer.map(|peer| peer.encryption).unwrap_or_default(),
        }
    }
}

// === impl AskedRequest ===

impl AskedRequest<'_> {
    /// Forms of other sites have neither an origin of this one nor this media type.
    fn check_change(&self, method: &Method, has_origin: bool) -> Result<(), Problem> {
        let media_type = self.headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok());
        let media_type = media_type.map(|value| value.split(';').next().unwrap_or_default().trim());
        let is_json = media_type.is_some_and(|media_type| media_type.eq_ignore_ascii_case(JSON));
        if !(is_json || has_origin && *method == Method::DELETE) {
            let detail = format!("Send the header `Content-Type: {JSON}`.");
            return Err(Problem::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, detail));
        }
        let is_known = self.is_loopback
            || self.headers.contains_key(AUTHORIZATION)
            || self.encryption == Encryption::WithCertificate;
        if has_origin || is_known {
            return Ok(());
        }
        Err(Problem::forbidden(
            "A request that may change something needs an Origin of this host, a bearer token or a client certificate, \
             unless it is from this host.",
        ))
    }
}

async fn pass(
    State((permission, needs)): State<(Arc<Permission>, Needs)>,
    mut request: Request,
    next: Next,
) -> Response {
    let mut response = match permission.check(needs, &request) {
        Ok(caller) => {
            if let Some(caller) = caller {
                request.extensions_mut().insert(caller);
            }
            next.run(request).await
        }
        Err(problem) => problem.into_response(),
    };
    let headers = response.headers_mut();
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    response
}

fn bearer(value: &HeaderValue) -> Option<&[u8]> {
    let (scheme, token) = value.as_bytes().split_at_checked("Bearer ".len())?;
    scheme.eq_ignore_ascii_case(b"bearer ").then(|| token.trim_ascii())
}
