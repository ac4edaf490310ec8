//! Writes lines whose parts others may have written: rules, paths and requests.

use std::{
    fmt::{self, Write as _},
    io::{self, Write},
};

use weir_observe::text::{Escaped, escaped_json, escaped_lines};

/// `writeln!`, where what would end the line or move the cursor is spelled out.
macro_rules! write_line {
    ($out:expr, $($text:tt)+) => {
        $crate::command::lines::write_escaped($out, format_args!($($text)+))
    };
}
pub(super) use write_line;

pub(super) fn write_escaped(out: &mut impl Write, text: fmt::Arguments<'_>) -> io::Result<()> {
    let mut line = Escaped(String::new());
    line.write_fmt(text).map_err(io::Error::other)?;
    writeln!(out, "{}", line.0)
}

pub(super) fn write_lines(out: &mut impl Write, text: &str) -> io::Result<()> {
    write!(out, "{}", escaped_lines(text))
}

pub(super) fn write_json(out: &mut impl Write, json: &str) -> io::Result<()> {
    writeln!(out, "{}", escaped_json(json))
}
