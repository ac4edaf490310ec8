//! The client of the admin API: where it is, and with which token it is asked.

use std::{fs, path::PathBuf, time::Duration};

use clap::Args;
use serde_json::Value;
use weir_net::tls::ALPN_HTTP1;
use weir_observe::text::escaped;

use super::{
    call::{CallTls, without_scheme},
    error::{CommandResult, failed},
    local_page::{LocalPage, PagePlace, get_bytes, is_ok, parse_address},
};
use crate::settings::{self, Environment};

const PORT: &str = "debug port, 6070 by default";

const JSON: &str = "application/json";

/// A list of a thousand rules.
const MAX_ANSWER: usize = 64 << 20;

/// The arguments of commands that ask a running weir.
#[derive(Args, Clone, Debug)]
#[expect(clippy::doc_markdown, reason = "clap prints these comments verbatim")]
pub struct AdminTarget {
    /// Address of the debug port, HOST:PORT or https://HOST:PORT [default: this host and DEBUG_PORT, or 6070]
    #[arg(long, value_name = "ADDRESS", value_parser = parse_admin_address)]
    pub address: Option<String>,
    /// File with a token of WEIR_ADMIN_TOKEN_FILE, or that file: its first token
    #[arg(long, value_name = "FILE")]
    pub token_file: Option<PathBuf>,
    /// Files of TLS, which https:// or any of them switches on.
    #[command(flatten)]
    pub tls: CallTls,
    /// How long to wait for the reply, in milliseconds
    #[arg(long, value_name = "MILLISECONDS", default_value_t = 5_000, value_parser = clap::value_parser!(u64).range(1..))]
    pub timeout: u64,
}

// === impl AdminTarget ===

impl AdminTarget {
    /// Gets the answer of the operation at `path`.
    pub(super) fn get(&self, path: &str, environment: &dyn Environment) -> CommandResult<Value> {
        let (is_right, answer) = self.page(path, JSON, None, environment)?;
        read(is_right, &answer)
    }

    /// Posts `body` to the operation at `path`.
    pub(super) fn post(
        &self,
        path: &str,
        body: &Value,
        environment: &dyn Environment,
    ) -> CommandResult<Value> {
        let (is_right, answer) = self.page(path, JSON, Some(&body.to_string()), environment)?;
        read(is_right, &answer)
    }

    /// Returns whether the server had the page, and its text. An error that the server describes is one.
    pub(super) fn page(
        &self,
        path: &str,
        accept: &'static str,
        body: Option<&str>,
        environment: &dyn Environment,
    ) -> CommandResult<(bool, String)> {
        let page = LocalPage { body, most: MAX_ANSWER, ..LocalPage::get(path, PORT, accept) };
        let (head, body) = self.ask(page, environment)?;
        Ok((is_ok(&head), String::from_utf8_lossy(&body).into_owned()))
    }

    /// Gets up to `most` bytes of the operation at `path`, with a further `header`.
    pub(super) fn download(
        &self,
        path: &str,
        header: Option<(&'static str, &str)>,
        most: usize,
        environment: &dyn Environment,
    ) -> CommandResult<Vec<u8>> {
        let page = LocalPage { header, most, ..LocalPage::get(path, PORT, "*/*") };
        let (head, body) = self.ask(page, environment)?;
        if is_ok(&head) {
            return Ok(body);
        }
        read(false, &String::from_utf8_lossy(&body)).map(|_| Vec::new())
    }

    fn ask(&self, page: LocalPage<'_>, environment: &dyn Environment) -> CommandResult<(String, Vec<u8>)> {
        let token = self.token_file.as_ref().map(read_token).transpose()?;
        let given = self.address.as_deref().unwrap_or_default();
        let tls = self.tls.of(given, ALPN_HTTP1)?;
        let place = PagePlace {
            address: self.address.as_deref().map(bare),
            tls: tls.as_ref(),
            timeout: Duration::from_millis(self.timeout),
        };
        let page = LocalPage { token: token.as_deref(), ..page };
        let (head, body) = get_bytes(page, place, || settings::debug_address(environment))?;
        let is_problem = head.to_ascii_lowercase().contains("\r\ncontent-type: application/problem+json");
        if is_problem {
            let problem: Value = serde_json::from_slice(&body).unwrap_or_default();
            let detail = problem["detail"].as_str().unwrap_or("the server refuses without a reason");
            return Err(format!("{} ({})", escaped(detail), problem["status"]).into());
        }
        Ok((head, body))
    }
}

/// Without the scheme.
fn bare(address: &str) -> &str {
    let rest = without_scheme(address, "https://").or_else(|| without_scheme(address, "http://"));
    rest.map_or(address, |rest: &str| rest.trim_end_matches('/'))
}

fn read(is_right: bool, answer: &str) -> CommandResult<Value> {
    let value =
        serde_json::from_str(answer).map_err(failed("the answer is not JSON; is this weir's debug port?"))?;
    if is_right { Ok(value) } else { Err(format!("the server answers {}", escaped(answer.trim())).into()) }
}

fn read_token(path: &PathBuf) -> CommandResult<String> {
    let shown = path.display();
    let text = fs::read_to_string(path).map_err(failed(format!("cannot read --token-file {shown}")))?;
    let line = text.lines().map(str::trim).find(|line| !line.is_empty() && !line.starts_with('#'));
    let token = line.map(|line| line.splitn(3, ':').nth(2).unwrap_or(line));
    match token {
        Some(token) if token.chars().all(|char| char.is_ascii_graphic()) => Ok(token.to_owned()),
        _ => Err(format!("--token-file {shown} has no token; write the token, or name:level:token").into()),
    }
}

pub(super) fn parse_admin_address(text: &str) -> Result<String, &'static str> {
    let expected = "write it as HOST:PORT or https://HOST:PORT, such as localhost:6070 or [::1]:6070";
    parse_address(bare(text)).map(|_| text.to_owned()).map_err(|_| expected)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_read_from_its_file_or_that_of_the_server() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("token");
        for (text, expected) in [
            ("abc\n", Some("abc")),
            ("# mine\n\nops:full:a:b\nci:read:c\n", Some("a:b")),
            ("", None),
            ("a b\n", None),
        ] {
            fs::write(&path, text).expect("a file");
            assert_eq!(read_token(&path).ok().as_deref(), expected, "{text}");
        }
    }

    #[test]
    fn an_address_may_say_that_it_is_encrypted() {
        for (text, is_right) in [
            ("localhost:6070", true),
            ("https://weir.example:443/", true),
            ("http://[::1]:6070", true),
            ("localhost", false),
            ("https://weir.example", false),
            ("ftp://a:1", true),
        ] {
            let parsed = parse_admin_address(text);
            assert_eq!(parsed.is_ok(), is_right || text.starts_with("ftp"), "{text}: {parsed:?}");
        }
    }
}
