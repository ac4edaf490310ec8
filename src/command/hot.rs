//! `weir hot`: shows the counters with the most hits and rejections of a running weir.

use std::{io::Write, time::Duration};

use clap::Args;

use super::{
    error::{CommandResult, failed},
    lines::{write_json, write_lines},
    local_page::{LocalPage, get_page, is_ok, parse_address},
};
use crate::settings::{self, Environment};

/// The arguments of `weir hot`.
#[derive(Args, Clone, Debug)]
#[expect(clippy::doc_markdown, reason = "clap prints these comments verbatim")]
pub struct Hot {
    /// Address of the debug port, HOST:PORT [default: this host and DEBUG_PORT, or 6070]
    #[arg(long, value_name = "ADDRESS", value_parser = parse_address)]
    pub address: Option<String>,
    /// Print the counters as JSON
    #[arg(long)]
    pub json: bool,
    /// How long to wait for the reply, in milliseconds
    #[arg(long, value_name = "MILLISECONDS", default_value_t = 2_000, value_parser = clap::value_parser!(u64).range(1..))]
    pub timeout: u64,
}

/// Prints the page to `out`. Returns whether the server had it.
pub fn hot(hot: &Hot, environment: &dyn Environment, out: &mut impl Write) -> CommandResult<bool> {
    let timeout = Duration::from_millis(hot.timeout);
    let accept = if hot.json { "application/json" } else { "text/plain" };
    let page = LocalPage { path: "/hot", port: "debug port, 6070 by default", accept };
    let listening = || settings::debug_address(environment);
    let (head, body) = get_page(page, hot.address.as_deref(), listening, timeout)?;
    let written = if hot.json { write_json(out, body.trim_end()) } else { write_lines(out, &body) };
    written.map_err(failed("cannot print the result"))?;
    Ok(is_ok(&head))
}
