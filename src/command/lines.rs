//! Writes lines whose parts others may have written: rules, paths and requests.

use std::{
    fmt::{self, Write as _},
    io::{self, Write},
};

use crate::observe::text::Escaped;

/// Writes `text` as one line. What would end the line or move the cursor is spelled out.
pub(super) fn write_line(out: &mut impl Write, text: fmt::Arguments<'_>) -> io::Result<()> {
    let mut line = Escaped(String::new());
    line.write_fmt(text).map_err(io::Error::other)?;
    writeln!(out, "{}", line.0)
}
