//! The results as a Markdown table.

use std::{fmt::Write as _, fs, io, path::Path, time::Duration};

use super::{everyday, rounds::RunSummary};

const HEAD: &str = "\
| case | server | requests/s | CPU, µs | x | instructions | x | p50, µs | p99, µs | p99.9, µs |
| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |
";

/// The marks around the results in the file.
const BEGIN: &str = "<!-- wire: begin -->\n";
const END: &str = "<!-- wire: end -->\n";

/// The same for the results of everyday loads.
const EVERYDAY_BEGIN: &str = "<!-- everyday: begin -->\n";
const EVERYDAY_END: &str = "<!-- everyday: end -->\n";

/// One server in one case.
pub(crate) struct Row {
    pub(crate) summary: RunSummary,
    /// Instructions per request, and their ratio to the first server's.
    pub(crate) instructions: Option<(u64, f64)>,
}

#[derive(Default)]
pub(crate) struct Table {
    text: String,
    everyday: String,
    notes: String,
}

impl Table {
    /// Adds the results of a case, and prints them.
    pub(crate) fn add(&mut self, case: &str, rows: &[Row]) {
        let mut text = String::new();
        for (number, row) in rows.iter().enumerate() {
            let (summary, latency) = (&row.summary, |per_mille| micros(row.summary.latencies.at(per_mille)));
            let (instructions, ratio) = row.instructions.map_or_else(
                || (String::new(), String::new()),
                |(count, ratio)| (thousands(count), format!("{ratio:.2}")),
            );
            // writing to a String cannot fail
            let _ = writeln!(
                text,
                "| {} | {} | {:.0} | {:.2} | {:.2} | {instructions} | {ratio} | {} | {} | {} |",
                if number == 0 { case } else { "" },
                summary.name,
                summary.rate,
                summary.cpu,
                summary.cpu_ratio,
                latency(500),
                latency(990),
                latency(999),
            );
        }
        if self.text.is_empty() {
            print!("{HEAD}");
        }
        print!("{text}");
        self.text.push_str(&text);
    }

    /// Adds rows of the table of everyday loads, and prints them.
    pub(crate) fn add_everyday(&mut self, rows: &str) {
        if self.everyday.is_empty() {
            print!("{}", everyday::HEAD);
        }
        print!("{rows}");
        self.everyday.push_str(rows);
    }

    /// Adds a note below the table.
    pub(crate) fn note(&mut self, note: &str) {
        println!("- {note}");
        let _ = writeln!(self.notes, "- {note}");
    }

    /// Replaces the text between the marks in `file`.
    pub(crate) fn write(&self, file: &Path) -> io::Result<()> {
        let Self { text, everyday, notes } = self;
        let old = fs::read_to_string(file)?;
        let new = replace(&old, BEGIN, END, &format!("{HEAD}{text}\n{notes}"))?;
        let new = replace(&new, EVERYDAY_BEGIN, EVERYDAY_END, &format!("{}{everyday}", everyday::HEAD))?;
        fs::write(file, new)
    }
}

/// Replaces the text between the marks `begin` and `end`.
fn replace(old: &str, begin: &str, end: &str, text: &str) -> io::Result<String> {
    let marks = old.split_once(begin).and_then(|(before, rest)| Some((before, rest.split_once(end)?.1)));
    let (before, after) = marks.ok_or_else(|| io::Error::other("the marks for the results are missing"))?;
    Ok(format!("{before}{begin}\n{text}\n{end}{after}"))
}

/// Formats microseconds with three significant digits.
pub(crate) fn micros(time: Duration) -> String {
    let micros = time.as_secs_f64() * 1e6;
    if micros < 100.0 { format!("{micros:.1}") } else { format!("{micros:.0}") }
}

pub(crate) fn thousands(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}
