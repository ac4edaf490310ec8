//! Reads a list of values as a stream: one a line.

use std::io::{BufRead, Read as _};

use super::{
    super::yaml::{YamlFault, YamlPosition},
    csv::{CsvError, MAX_LINES, MAX_RECORD, skip_bom, too_long, too_many_lines},
};

/// Calls `add` with each value and its place. Blank lines and those that begin with `#` are none.
pub(super) fn read(
    mut input: impl BufRead,
    mut add: impl FnMut(Result<&str, YamlFault>, YamlPosition) -> Result<(), CsvError>,
) -> Result<(), CsvError> {
    skip_bom(&mut input)?;
    let mut line = Vec::new();
    for number in 1.. {
        line.clear();
        // reads no more of a line than it may have
        input.by_ref().take(MAX_RECORD as u64 + 1).read_until(b'\n', &mut line)?;
        let at = YamlPosition { line: number, column: 1 };
        if line.is_empty() {
            break;
        }
        if line.len() > MAX_RECORD {
            return Err(too_long(at));
        }
        if number > MAX_LINES {
            return Err(too_many_lines(at));
        }
        let Ok(text) = str::from_utf8(&line) else {
            add(Err(YamlFault::new(at, "this is not UTF-8")), at)?;
            continue;
        };
        let start = text.len() - text.trim_start().len();
        let column = u32::try_from(text[..start].chars().count() + 1).unwrap_or(u32::MAX);
        let text = text.trim();
        if !text.is_empty() && !text.starts_with('#') {
            add(Ok(text), YamlPosition { column, ..at })?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_line_is_a_value_unless_it_is_blank_or_a_comment() {
        let text = "\u{feff}acme\r\n\n# none\n  # none\n \tö b*, \"c\" \r\n#\nlast";
        let mut values = Vec::new();
        let add = |value: Result<&str, _>, at: YamlPosition| {
            values.push((value.expect("UTF-8").to_owned(), at.line, at.column));
            Ok(())
        };
        read(text.as_bytes(), add).expect("valid");
        let expected = [("acme", 1, 1), ("ö b*, \"c\"", 5, 3), ("last", 7, 1)];
        assert_eq!(values, expected.map(|(value, line, column)| (value.to_owned(), line, column)));
    }
}
