//! `weir reset`: forgets the hits of a descriptor's counters, at all instances and in the store.

use std::io::{self, Write};

use clap::Args;
use serde_json::{Value, json};
use weir_limit::Period;
use weir_observe::text::escaped;

use super::{
    admin::AdminTarget,
    descriptors::parse_entry,
    error::{CommandResult, failed},
    lines::{write_json, write_line},
    simulate::parse_period,
};
use crate::settings::Environment;

/// The arguments of `weir reset`.
#[derive(Args, Clone, Debug)]
pub struct Reset {
    #[command(flatten)]
    pub target: AdminTarget,
    /// Domain of the descriptor
    #[arg(long)]
    pub domain: String,
    /// All entries of the descriptor, in order
    #[arg(value_name = "KEY=VALUE", value_parser = parse_entry, required = true, num_args = 1..)]
    pub entries: Vec<(String, String)>,
    /// Only end requests in flight of this age, such as 10m; hits stay
    #[arg(long, value_name = "TIME", value_parser = parse_period)]
    pub older_than: Option<Period>,
    /// Print the answer as JSON
    #[arg(long)]
    pub json: bool,
}

/// Resets the counters, and prints what was there to `out`.
///
/// # Errors
///
/// What the server says, or why it cannot be asked.
pub fn reset(reset: &Reset, environment: &dyn Environment, out: &mut impl Write) -> CommandResult<()> {
    let entries = reset.entries.iter().map(|(key, value)| json!({ "key": key, "value": value }));
    let mut body = json!({ "domain": reset.domain, "entries": entries.collect::<Vec<_>>() });
    if let Some(age) = reset.older_than {
        body["older_than"] = std::time::Duration::from(age).as_secs_f64().into();
    }
    let answer = reset.target.post("/v1/reset", &body, environment)?;
    let written = if reset.json { write_json(out, &answer.to_string()) } else { write(&answer, out) };
    written.map_err(failed("cannot print the result"))
}

fn write(answer: &Value, out: &mut impl Write) -> io::Result<()> {
    for counter in answer["was"].as_array().into_iter().flatten() {
        for tier in counter["tiers"].as_array().into_iter().flatten() {
            let words = tier["words"].as_str().unwrap_or_default();
            write_line!(
                out,
                "had used {} of {} ({})",
                number(&tier["used"]),
                number(&tier["limit"]),
                escaped(words)
            )?;
        }
    }
    let freed = number(&answer["places_freed"]);
    if freed != "0" {
        write_line!(out, "ended {freed} requests in flight")?;
    }
    let scope = if answer["scope"] == "fleet" { "at all instances" } else { "at this instance" };
    write_line!(out, "reset {scope}")?;
    answer["note"].as_str().map_or(Ok(()), |note| write_line!(out, "{}", escaped(note)))
}

/// Large ones are texts.
fn number(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}
