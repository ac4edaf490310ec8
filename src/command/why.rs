//! `weir why`: what a request would get now, and why. Nothing is counted.

use std::io::{self, Write};

use clap::Args;
use serde_json::{Value, json};

use super::{
    admin::AdminTarget,
    descriptors::Descriptors,
    error::{CommandResult, failed},
    lines::{write_json, write_line},
};
use crate::settings::Environment;

/// The arguments of `weir why`.
#[derive(Args, Clone, Debug)]
#[command(mut_arg("entries", |entries| entries.required(false).required_unless_present("line")))]
pub struct Why {
    #[command(flatten)]
    pub target: AdminTarget,
    /// Domain of the request
    #[arg(long, value_name = "DOMAIN", required_unless_present = "line")]
    pub domain: Option<String>,
    /// A line of the log of rejections, instead of domain and descriptors; - reads it from standard input
    #[arg(long, value_name = "LINE", conflicts_with_all = ["domain", "entries", "and", "hits"])]
    pub line: Option<String>,
    /// Hits of each descriptor
    #[arg(long, value_name = "N")]
    pub hits: Option<u64>,
    /// Print the answer as JSON
    #[arg(long)]
    pub json: bool,
    /// The descriptors of the request.
    #[command(flatten)]
    pub descriptors: Descriptors,
}

/// Prints the answer to `out`. Returns whether the request would be admitted.
pub fn why(
    why: &Why,
    environment: &dyn Environment,
    input: impl io::BufRead,
    out: &mut impl Write,
) -> CommandResult<bool> {
    let answer = why.target.post("/v1/why", &why.body(input)?, environment)?;
    let written = if why.json { write_json(out, &answer.to_string()) } else { write(&answer, out) };
    written.map_err(failed("cannot print the result"))?;
    Ok(answer["verdict"] == "admitted")
}

fn write(answer: &Value, out: &mut impl Write) -> io::Result<()> {
    write_line!(out, "{}", text(&answer["sentence"]))?;
    for descriptor in list(&answer["descriptors"]) {
        let entries: Vec<String> = list(&descriptor["entries"])
            .map(|entry| format!("{}={}", text(&entry["key"]), text(&entry["value"])))
            .collect();
        writeln!(out)?;
        write_line!(out, "{}", entries.join(" "))?;
        write_line!(out, "  {}", text(&descriptor["sentence"]))?;
        for step in list(&descriptor["steps"]) {
            for tried in list(&step["tried"]) {
                let place = tried["file"].as_str().map(|file| format!(", {file}:{}", tried["line"]));
                let mark = if tried["is_match"] == true { ">" } else { " " };
                write_line!(out, "  {mark} {}{}", text(&tried["words"]), place.unwrap_or_default())?;
            }
        }
        if let Some(sentence) = descriptor["passed_over"]["sentence"].as_str() {
            write_line!(out, "  {sentence}")?;
        }
        if let Some(name) = descriptor["did_you_mean"].as_str() {
            write_line!(out, "  did you mean `{name}`?")?;
        }
        for line in list(&descriptor["description"]) {
            write_line!(out, "  {}", text(line))?;
        }
        for tier in list(&descriptor["counter"]["tiers"]) {
            let (used, limit) = (shown(&tier["used"]), shown(&tier["limit"]));
            write_line!(
                out,
                "  used {used} of {limit} ({}), reset in {} s",
                text(&tier["words"]),
                tier["reset"]
            )?;
        }
        if let Some(note) = descriptor["counter"]["note"].as_str() {
            write_line!(out, "  {note}")?;
        }
    }
    Ok(())
}

pub(super) fn list(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

pub(super) fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

/// A number, which is text if it is large.
pub(super) fn shown(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

// === impl Why ===

impl Why {
    fn body(&self, mut input: impl io::BufRead) -> CommandResult<Value> {
        match self.line.as_deref() {
            Some("-") => {
                let mut line = String::new();
                input.read_line(&mut line).map_err(failed("cannot read the line"))?;
                return Ok(json!({ "line": line }));
            }
            Some(line) => return Ok(json!({ "line": line })),
            None => {}
        }
        let descriptor = |entries: &Vec<(String, String)>| {
            let entry = |(key, value): &(String, String)| json!({ "key": key, "value": value });
            let mut descriptor = json!({ "entries": entries.iter().map(entry).collect::<Vec<_>>() });
            if let Some(hits) = self.hits {
                descriptor["hitsAddend"] = hits.to_string().into();
            }
            descriptor
        };
        let descriptors: Vec<Value> = self.descriptors.0.iter().map(descriptor).collect();
        Ok(json!({ "domain": self.domain, "descriptors": descriptors }))
    }
}
