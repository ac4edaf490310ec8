//! `weir token`: signs a token with which a tenant looks at its own limits.

use std::{io::Write, path::PathBuf};

use clap::Args;
use weir_limit::Period;
use weir_server::http::tenant::{TenantEntry, read_keys};
use weir_store::clock::{Clock as _, SystemClock};

use super::{
    descriptors::parse_entry,
    error::{CommandResult, failed},
    lines::write_line,
    simulate::parse_period,
};
use crate::settings::Environment;

/// The arguments of `weir token`.
#[derive(Args, Clone, Debug)]
#[expect(clippy::doc_markdown, reason = "clap prints these comments verbatim")]
pub struct Token {
    /// Domain whose counters the owner may see
    #[arg(long)]
    pub domain: String,
    /// The entries with which the owner's descriptors begin
    #[arg(value_name = "KEY=VALUE", value_parser = parse_entry, required = true, num_args = 1..=16)]
    pub entries: Vec<(String, String)>,
    /// How long it is valid, such as 12h or 30d, at most 366d
    #[arg(long = "for", value_name = "TIME", value_parser = parse_validity, default_value = "30d")]
    pub validity: Period,
    /// File of keys, of which the first one signs [env: WEIR_TOKEN_KEY_FILE]
    #[arg(long, value_name = "FILE")]
    pub key_file: Option<PathBuf>,
}

/// Signs the token, and prints it to `out`.
///
/// # Errors
///
/// What is wrong with the file of keys.
pub fn token(token: &Token, environment: &dyn Environment, out: &mut impl Write) -> CommandResult<()> {
    let of_environment = || environment.get("WEIR_TOKEN_KEY_FILE").filter(|path| !path.is_empty());
    let key_file = token.key_file.clone().or_else(|| of_environment().map(PathBuf::from));
    let key_file = key_file.ok_or("write --key-file FILE, or set WEIR_TOKEN_KEY_FILE")?;
    let keys = read_keys(&key_file).map_err(failed("cannot sign a token"))?;
    let entry = |(key, value): &(String, String)| TenantEntry { key: key.clone(), value: value.clone() };
    let (now, seconds) = (seconds(Period::from_nanos(SystemClock.now().as_nanos())), seconds(token.validity));
    let entries = token.entries.iter().map(entry).collect();
    let signed = keys.sign(&token.domain, entries, now, seconds)?;
    write_line!(out, "{signed}").map_err(failed("cannot print the token"))
}

const fn seconds(period: Period) -> u64 {
    period.as_nanos() / 1_000_000_000
}

fn parse_validity(text: &str) -> Result<Period, &'static str> {
    let longest = Period::from_secs(366 * 86_400);
    let is_right = |period: &Period| *period >= Period::from_secs(1) && *period <= longest;
    parse_period(text).ok().filter(is_right).ok_or("write a time from 1s to 366d, such as 12h or 30d")
}
