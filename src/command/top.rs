//! `weir top`: what a running weir does, redrawn each second.

use std::{
    fmt::Write as _,
    io::{self, IsTerminal as _, Read as _, Write},
    sync::mpsc::{self, RecvTimeoutError},
    thread,
    time::Duration,
};

use clap::Args;
use rustix::termios::{LocalModes, OptionalActions, Termios, tcgetattr, tcgetwinsize, tcsetattr};
use serde_json::{Value, json};
use weir_observe::text::{escaped, shortened};

use super::{
    admin::AdminTarget,
    error::{CommandResult, failed},
    lines::write_json,
    why::{list, shown, text},
};
use crate::settings::Environment;

const REDRAW: Duration = Duration::from_secs(1);

/// The rows of each table.
const ROWS: usize = 20;

/// The columns where the width of the terminal is unknown.
const WIDTH: usize = 100;

const LEAST_WIDTH: usize = 20;

/// Clears the screen, and what was above it.
const CLEAR: &str = "\x1b[H\x1b[2J";

/// What ends it: q, Q, and Ctrl-C.
const QUIT: [u8; 3] = [b'q', b'Q', 3];

/// The arguments of `weir top`.
#[derive(Args, Clone, Debug)]
pub struct Top {
    #[command(flatten)]
    pub target: AdminTarget,
    /// Print once, without clearing the screen
    #[arg(long)]
    pub once: bool,
    /// Print a line of JSON each second
    #[arg(long)]
    pub json: bool,
}

/// The terminal on standard input, which gives every key at once until this is dropped.
struct RawTerminal(Termios);

/// Prints to `out` until the user quits. Once, if `out` is no terminal.
pub fn top(top: &Top, environment: &dyn Environment, out: &mut impl Write) -> CommandResult<()> {
    const UNPRINTED: &str = "cannot print the result";
    let is_terminal = io::stdout().is_terminal();
    let draws = is_terminal && !top.once && !top.json;
    let once = top.once || !(is_terminal || top.json);
    let (keys, _raw) = if draws { keys() } else { (mpsc::channel().1, None) };
    loop {
        let seen = seen(&top.target, environment)?;
        let written = if top.json {
            write_json(out, &seen.to_string())
        } else {
            let page = page(&seen, width());
            out.write_all(if draws { format!("{CLEAR}{page}") } else { page }.as_bytes())
        };
        written.and_then(|()| out.flush()).map_err(failed(UNPRINTED))?;
        if once {
            return Ok(());
        }
        match keys.recv_timeout(REDRAW) {
            Ok(()) => return Ok(()),
            Err(RecvTimeoutError::Timeout) => {}
            // nobody types
            Err(RecvTimeoutError::Disconnected) => thread::sleep(REDRAW),
        }
    }
}

/// Receives something when the user wants to quit.
fn keys() -> (mpsc::Receiver<()>, Option<RawTerminal>) {
    let (sender, receiver) = mpsc::channel();
    let raw = RawTerminal::new();
    if raw.is_some() {
        thread::spawn(move || {
            let quits = |key: &Result<u8, io::Error>| key.as_ref().is_ok_and(|key| QUIT.contains(key));
            if io::stdin().lock().bytes().any(|key| quits(&key)) {
                // the command may have ended
                let _ = sender.send(());
            }
        });
    }
    (receiver, raw)
}

fn width() -> usize {
    let columns = tcgetwinsize(io::stdout()).map_or(0, |size| usize::from(size.ws_col));
    if columns == 0 { WIDTH } else { columns.max(LEAST_WIDTH) }
}

fn seen(target: &AdminTarget, environment: &dyn Environment) -> CommandResult<Value> {
    let get = |path: &str| target.get(path, environment);
    Ok(json!({
        "instance": get("/v1/instance")?,
        "attention": get("/v1/attention?limit=5")?,
        "hot": get(&format!("/v1/hot?limit={ROWS}"))?,
        "hot_rejected": get(&format!("/v1/hot?by=rejected&limit={ROWS}"))?,
    }))
}

fn page(seen: &Value, width: usize) -> String {
    let mut page = Page { text: String::new(), width };
    let instance = &seen["instance"];
    let (rates, store) = (&instance["rates"], &instance["store"]);
    page.line(&format!("weir {}  {}", text(&instance["version"]), text(&instance["name"])));
    page.line(&format!(
        "hits a second   admitted {}   rejected {}   decisions {}",
        rates["admitted_1m"], rates["rejected_1m"], instance["requests_per_second"]
    ));
    page.line(&format!(
        "store {} {}   counters {} of {}   rules {}   memory {} MB",
        text(&store["kind"]),
        text(&store["state"]),
        shown(&instance["counters"]["held"]),
        shown(&instance["counters"]["most"]),
        instance["rules"]["count"],
        instance["memory_bytes"].as_u64().unwrap_or_default() / 1_000_000
    ));
    page.line("");
    let mut findings = list(&seen["attention"]["items"]).peekable();
    if findings.peek().is_none() {
        page.line("Nothing needs you.");
    }
    for finding in findings {
        page.line(&format!("{:<8} {}", text(&finding["severity"]), text(&finding["what"])));
    }
    for (title, table) in [("hits", &seen["hot"]), ("rejected hits", &seen["hot_rejected"])] {
        page.line(&format!("\n{title} of the last minute"));
        page.line(&format!("{:>12} {:>10} {:>6}  rule and descriptor", "hits", "+/-", "used"));
        for counter in list(&table["items"]) {
            let of = |name: &str| counter[name].as_u64().unwrap_or_default();
            let used = format!("{:.0} %", counter["used"].as_f64().unwrap_or_default() * 100.0);
            let (rule, key) = (text(&counter["rule"]), text(&counter["text"]));
            page.line(&format!(
                "{:>12} {:>10} {used:>6}  {rule} {key}",
                shown(&counter["hits"]),
                of("at_most").saturating_sub(of("hits"))
            ));
        }
        if list(&table["items"]).next().is_none() {
            page.line("  none");
        }
    }
    page.text
}

struct Page {
    text: String,
    width: usize,
}

// === impl Page ===

impl Page {
    /// Adds lines of at most the width.
    fn line(&mut self, text: &str) {
        for line in text.split('\n') {
            let line = escaped(line);
            let line = shortened(&line, self.width - 1);
            // writing to a string cannot fail
            let _ = writeln!(self.text, "{line}");
        }
    }
}

// === impl RawTerminal ===

impl RawTerminal {
    /// None if standard input is no terminal.
    fn new() -> Option<Self> {
        let before = tcgetattr(io::stdin()).ok()?;
        let mut raw = before.clone();
        raw.local_modes.remove(LocalModes::ICANON | LocalModes::ECHO | LocalModes::ISIG);
        tcsetattr(io::stdin(), OptionalActions::Now, &raw).ok()?;
        Some(Self(before))
    }
}

impl Drop for RawTerminal {
    fn drop(&mut self) {
        // the process ends, and cannot do more
        let _ = tcsetattr(io::stdin(), OptionalActions::Now, &self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_has_no_active_characters_and_fits_the_terminal() {
        let counter = json!({
            "rule": "shop.tenant", "text": format!("tenant=\u{1b}[2J\u{202e}{}", "x".repeat(300)),
            "hits": "9007199254740993", "at_most": 12, "used": 0.5,
        });
        let seen = json!({
            "instance": {"version": "1", "name": "a", "rates": {"admitted_1m": 1.5, "rejected_1m": 0}},
            "attention": {"items": []}, "hot": {"items": [counter]}, "hot_rejected": {"items": []},
        });
        let page = page(&seen, 80);
        assert!(page.contains("Nothing needs you.") && page.contains("9007199254740993"), "{page}");
        assert!(page.lines().all(|line| line.chars().count() <= 80), "{page}");
        assert!(!page.contains(['\u{1b}', '\u{202e}']), "{page}");
    }
}
