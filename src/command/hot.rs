//! `weir hot`: shows the counters with the most hits and rejections of a running weir.

use std::io::Write;

use clap::{Args, ValueEnum};

use super::{
    admin::AdminTarget,
    error::{CommandResult, failed},
    lines::{write_json, write_lines},
};
use crate::settings::Environment;

/// The arguments of `weir hot`.
#[derive(Args, Clone, Debug)]
pub struct Hot {
    #[command(flatten)]
    pub target: AdminTarget,
    /// Print one list of counters as JSON, the answer of `GET /v1/hot`
    #[arg(long)]
    pub json: bool,
    /// With --json: what they have most of
    #[arg(long, value_enum, default_value_t, requires = "json")]
    pub by: HotBy,
    /// With --json: the time, 1m or 10m
    #[arg(long, value_name = "TIME", default_value = "1m", value_parser = ["1m", "10m"], requires = "json")]
    pub window: String,
}

/// What counters have most of.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum HotBy {
    #[default]
    Hits,
    Rejected,
}

/// Prints the page to `out`. Returns whether the server had it.
pub fn hot(hot: &Hot, environment: &dyn Environment, out: &mut impl Write) -> CommandResult<bool> {
    const UNPRINTED: &str = "cannot print the result";
    if hot.json {
        let by = if hot.by == HotBy::Hits { "hits" } else { "rejected" };
        let path = format!("/v1/hot?window={}&by={by}", hot.window);
        let answer = hot.target.get(&path, environment)?;
        write_json(out, &answer.to_string()).map_err(failed(UNPRINTED))?;
        return Ok(true);
    }
    let (is_right, text) = hot.target.page("/hot", "text/plain", None, environment)?;
    write_lines(out, &text).map_err(failed(UNPRINTED))?;
    Ok(is_right)
}
