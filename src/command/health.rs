//! `weir health`: asks a running weir for its health, for the health check of a container without a shell.

use std::{io::Write, time::Duration};

use clap::Args;

use super::{
    error::{CommandResult, failed},
    lines::write_lines,
    local_page::{LocalPage, PagePlace, get_page, is_ok, parse_address},
};
use crate::settings::{self, Environment};

/// The arguments of `weir health`.
#[derive(Args, Clone, Debug)]
pub struct HealthCheck {
    /// Address of the HTTP server, HOST:PORT [default: this host and PORT, or 8080]
    #[arg(long, value_name = "ADDRESS", value_parser = parse_address)]
    pub address: Option<String>,
    /// How long to wait for the reply, in milliseconds
    #[arg(long, value_name = "MILLISECONDS", default_value_t = 2_000, value_parser = clap::value_parser!(u64).range(1..))]
    pub timeout: u64,
}

/// Asks the server for its health, prints its reply to `out`, and returns whether it is healthy.
pub fn health(
    check: &HealthCheck,
    environment: &dyn Environment,
    out: &mut impl Write,
) -> CommandResult<bool> {
    let listening = || settings::http_address(environment);
    let timeout = Duration::from_millis(check.timeout);
    let page = LocalPage::get("/healthcheck", "HTTP port, 8080 by default", "*/*");
    let place = PagePlace { address: check.address.as_deref(), tls: None, timeout };
    let (head, body) = get_page(page, place, listening)?;
    write_lines(out, &format!("{}\n", body.trim())).map_err(failed("cannot print the result"))?;
    Ok(is_ok(&head))
}
