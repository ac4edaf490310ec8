//! The admin API: everything that this process knows, for the console, commands and scripts, on `DEBUG_PORT`.
//!
//! - `openapi.json`: the contract. Each operation is there, and `tests/admin` compares them.
//! - `permission.rs`: who may; every route of this port but the open ones is behind it. `sites.rs` has the checks of
//!   `Host` and `Origin`, `tokens.rs` the file of tokens, `cookie.rs` and `login.rs` browsers, `wrong_tokens.rs` the bound
//!   on guesses.
//! - `problem.rs`: errors.

mod cookie;
mod login;
mod permission;
mod problem;
mod sites;
mod time;
mod tokens;
mod wrong_tokens;

use std::{path::PathBuf, sync::Arc};

use axum::{
    Router,
    body::Bytes,
    extract::Request,
    http::{StatusCode, Uri},
    routing::any,
};

pub use self::{
    permission::{AdminCaller, AdminLevel, CallerProof, Needs, Permission},
    problem::Problem,
    tokens::AdminTokens,
};

/// Who may use the admin API, as the settings say.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AdminSettings {
    /// `WEIR_ADMIN`: what may be done without a token, and the most that is allowed; none for `read` on loopback.
    pub level: Option<AdminLevel>,
    /// `WEIR_ADMIN_TOKEN_FILE`.
    pub token_file: Option<PathBuf>,
    /// `WEIR_ADMIN_HOSTS`: names of this port, each with a port or for any.
    pub hosts: Vec<Box<str>>,
    /// `WEIR_ADMIN_PLAIN`: tokens of other hosts are taken without TLS, too.
    pub allows_plain: bool,
}

use super::client::{BodyError, HttpClient};
use crate::connections::AccountHold;

/// All routes of the API.
pub(super) fn router(permission: &Arc<Permission>) -> Router {
    let unknown = Router::new().route("/v1/{*operation}", any(unknown));
    login::router(permission).merge(permission.guard(unknown, Needs::Read)).merge(planned(permission))
}

/// Operations of the contract that are not there yet. Each goes with the router that has it.
fn planned(permission: &Arc<Permission>) -> Router {
    let planned = |paths: &[&str], needs| {
        let routes = paths.iter().fold(Router::new(), |routes, path| routes.route(path, any(not_yet)));
        permission.guard(routes, needs)
    };
    planned(&["/v1/reset", "/v1/recording"], Needs::Full)
        .merge(planned(&["/v1/try"], Needs::FullFromElsewhere))
}

async fn not_yet() -> Problem {
    Problem::new(StatusCode::NOT_IMPLEMENTED, "This version of weir does not have this operation.")
}

async fn unknown(uri: Uri) -> Problem {
    let detail = format!("There is no operation {}; GET /v1/openapi.json lists them.", uri.path());
    Problem::new(StatusCode::NOT_FOUND, detail)
}

/// Reads a body of at most `most` bytes.
async fn read_body(
    client: &HttpClient,
    request: Request,
    most: usize,
) -> Result<(Bytes, AccountHold), Problem> {
    let too_large = || {
        let detail = format!("The body exceeds {most} bytes.");
        Problem::new(StatusCode::PAYLOAD_TOO_LARGE, detail)
    };
    let read = client.read(request.into_body()).await;
    let (body, hold) = read.map_err(|error| match error {
        BodyError::TooLarge => too_large(),
        error => Problem::new(error.status(), format!("{error}.")),
    })?;
    if body.len() > most { Err(too_large()) } else { Ok((body, hold)) }
}
