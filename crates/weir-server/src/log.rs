//! Log messages about requests. Text from callers is bounded; the log escapes what would not stay on its line.

use std::{
    borrow::Cow,
    fmt::{self, Write as _},
};

use weir_limit::{Code, Request, Verdict};
use weir_observe::text::shortened;

/// The longest text from a caller in a message, in characters. A value may have megabytes.
const MAX_TEXT: usize = 1_000;

/// At debug level: each descriptor with its rule, code and remaining requests. Costs one comparison if that is off.
#[inline]
pub(super) fn decision(request: &Request<'_>, verdict: &Verdict<'_>) {
    if tracing::enabled!(tracing::Level::DEBUG) {
        log_decision(request, verdict);
    }
}

#[cold]
fn log_decision(request: &Request<'_>, verdict: &Verdict<'_>) {
    let domain = bounded(request.domain);
    let mut descriptors = BoundedText::default();
    // an error means that the bound is reached
    let _ = write_descriptors(&mut descriptors, request, verdict);
    let descriptors = bounded(&descriptors.text);
    tracing::debug!(%domain, code = name(verdict.code), %descriptors, "decision");
}

/// Writes `key=value,key=value: CODE, rule, remaining` for each descriptor.
fn write_descriptors(out: &mut BoundedText, request: &Request<'_>, verdict: &Verdict<'_>) -> fmt::Result {
    for (i, (descriptor, status)) in request.descriptors.iter().zip(&verdict.statuses).enumerate() {
        if i > 0 {
            out.write_str("; ")?;
        }
        for (i, entry) in descriptor.entries.iter().enumerate() {
            let separator = if i > 0 { "," } else { "" };
            write!(out, "{separator}{}={}", entry.key, entry.value)?;
        }
        write!(out, ": {}", name(status.code))?;
        match status.limit.as_ref().map(|limit| limit.rule.compiled()) {
            Some(Some(rule)) => write!(out, ", rule {}", rule.path)?,
            Some(None) => out.write_str(", limit override")?,
            None => {
                out.write_str(", no limit")?;
                continue;
            }
        }
        write!(out, ", {} remaining", status.remaining)?;
    }
    Ok(())
}

const fn name(code: Code) -> &'static str {
    match code {
        Code::Ok => "OK",
        Code::OverLimit => "OVER_LIMIT",
    }
}

pub(super) fn bounded(text: &str) -> Cow<'_, str> {
    shortened(text, MAX_TEXT)
}

/// Text of at most [`MAX_TEXT`] bytes and the last part that was written.
#[derive(Default)]
struct BoundedText {
    text: String,
}

impl fmt::Write for BoundedText {
    fn write_str(&mut self, part: &str) -> fmt::Result {
        if self.text.len() > MAX_TEXT {
            return Err(fmt::Error);
        }
        self.text.extend(part.chars().take(MAX_TEXT));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_of_callers_is_bounded() {
        assert_eq!(bounded(&"x".repeat(1 << 20)), "x".repeat(MAX_TEXT) + "…");
        let mut out = BoundedText::default();
        while out.write_str(&"x".repeat(1 << 20)).is_ok() {}
        assert!(out.text.len() <= 2 * MAX_TEXT + 1);
    }
}
