//! Reads CSV (RFC 4180) as a stream, with the place of each field.

use std::io::{self, BufRead};

use super::super::yaml::{YamlFault, YamlPosition};

/// The most bytes of a record, so that a file of one line ends early.
pub(super) const MAX_RECORD: usize = 64 << 10;

/// The most lines of a file.
pub(super) const MAX_LINES: u32 = 5_000_000;

const BOM: &[u8] = b"\xef\xbb\xbf";

/// A record, whose memory the next one uses again.
#[derive(Debug, Default)]
pub(super) struct CsvRecord {
    text: Vec<u8>,
    fields: Vec<CsvField>,
}

#[derive(Clone, Copy, Debug)]
struct CsvField {
    /// In the text, where it begins with the end of the one before.
    end: usize,
    at: YamlPosition,
}

#[derive(Debug)]
pub(super) struct CsvReader<R> {
    input: R,
    /// The place of the next byte.
    at: YamlPosition,
    is_begun: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum CsvState {
    FieldStart,
    Plain,
    Quoted,
    /// After a quote in a quoted field: it ends the field, or is the first of two.
    Quote,
    /// After a carriage return behind a quoted field.
    Return,
}

#[derive(Debug)]
pub(super) enum CsvError {
    Io(io::Error),
    /// What follows cannot be read.
    Fault(YamlFault),
}

impl From<io::Error> for CsvError {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

// === impl CsvRecord ===

impl CsvRecord {
    pub(super) fn len(&self) -> usize {
        self.fields.len()
    }

    /// Returns the place of the record.
    pub(super) fn at(&self) -> YamlPosition {
        self.fields.first().map_or_else(YamlPosition::default, |field| field.at)
    }

    /// Returns a field and its place; an error if it is not UTF-8.
    pub(super) fn field(&self, i: usize) -> Result<(&str, YamlPosition), YamlFault> {
        let CsvField { end, at } = self.fields[i];
        let start = i.checked_sub(1).map_or(0, |before| self.fields[before].end);
        let text = str::from_utf8(&self.text[start..end]);
        text.map(|text| (text, at)).map_err(|_| YamlFault::new(at, "this is not UTF-8"))
    }

    /// Cuts the first half of the end of a line from the last field.
    fn cut_return(&mut self) {
        if self.text.len() > self.fields.last().map_or(0, |field| field.end) {
            self.text.pop_if(|last| *last == b'\r');
        }
    }

    fn end_field(&mut self, at: YamlPosition) {
        self.fields.push(CsvField { end: self.text.len(), at });
    }
}

// === impl CsvReader ===

impl<R: BufRead> CsvReader<R> {
    pub(super) fn new(input: R) -> Self {
        Self { input, at: YamlPosition { line: 1, column: 1 }, is_begun: false }
    }

    /// Reads the next record that is not empty. Returns whether there is one.
    pub(super) fn next(&mut self, record: &mut CsvRecord) -> Result<bool, CsvError> {
        if !std::mem::replace(&mut self.is_begun, true) {
            skip_bom(&mut self.input)?;
        }
        record.text.clear();
        record.fields.clear();
        let (mut state, mut field_at) = (CsvState::FieldStart, self.at);
        loop {
            let chunk = self.input.fill_buf()?;
            if chunk.is_empty() {
                return self.end(record, state, field_at);
            }
            let (mut used, mut is_done) = (0, false);
            for byte in chunk {
                used += 1;
                let at = self.at;
                advance(&mut self.at, *byte);
                match (state, *byte) {
                    (CsvState::FieldStart | CsvState::Plain | CsvState::Quote | CsvState::Return, b'\n') => {
                        let is_empty = record.fields.is_empty() && state == CsvState::FieldStart;
                        if state == CsvState::Plain {
                            record.cut_return();
                        }
                        let is_blank = is_empty
                            || state == CsvState::Plain && record.fields.is_empty() && record.text.is_empty();
                        if self.at.line > MAX_LINES + 1 {
                            return Err(too_many_lines(at));
                        }
                        if is_blank {
                            (state, field_at) = (CsvState::FieldStart, self.at);
                            continue;
                        }
                        record.end_field(field_at);
                        is_done = true;
                        break;
                    }
                    (CsvState::FieldStart | CsvState::Plain | CsvState::Quote, b',') => {
                        record.end_field(field_at);
                        (state, field_at) = (CsvState::FieldStart, self.at);
                    }
                    (CsvState::FieldStart, b'"') => state = CsvState::Quoted,
                    (CsvState::Plain, b'"') => {
                        let message = "a quote within a field without quotes; write the field in quotes, and this quote twice";
                        return Err(CsvError::Fault(YamlFault::new(at, message)));
                    }
                    (CsvState::Quoted, b'"') => state = CsvState::Quote,
                    (CsvState::Quote, b'"') => {
                        record.text.push(b'"');
                        state = CsvState::Quoted;
                    }
                    (CsvState::Quote, b'\r') => state = CsvState::Return,
                    (CsvState::Quote | CsvState::Return, _) => {
                        let message = "text after the quote that ends a field; write a comma, or a quote within the field twice";
                        return Err(CsvError::Fault(YamlFault::new(at, message)));
                    }
                    (CsvState::FieldStart | CsvState::Plain, byte) => {
                        record.text.push(byte);
                        state = CsvState::Plain;
                    }
                    (CsvState::Quoted, byte) => record.text.push(byte),
                }
                if record.text.len() + record.fields.len() > MAX_RECORD {
                    return Err(too_long(YamlPosition { column: 1, ..at }));
                }
            }
            self.input.consume(used);
            if is_done {
                return Ok(true);
            }
        }
    }

    fn end(&self, record: &mut CsvRecord, state: CsvState, field_at: YamlPosition) -> Result<bool, CsvError> {
        match state {
            CsvState::FieldStart if record.fields.is_empty() => return Ok(false),
            CsvState::Quoted => {
                let message = "this quote has no end; write another one at the end of the field";
                return Err(CsvError::Fault(YamlFault::new(field_at, message)));
            }
            _ if self.at.line > MAX_LINES => return Err(too_many_lines(self.at)),
            CsvState::Plain => record.cut_return(),
            _ => {}
        }
        record.end_field(field_at);
        Ok(true)
    }
}

/// Columns are counted in characters.
fn advance(at: &mut YamlPosition, byte: u8) {
    if byte == b'\n' {
        *at = YamlPosition { line: at.line.saturating_add(1), column: 1 };
    } else if byte & 0xc0 != 0x80 {
        at.column = at.column.saturating_add(1);
    }
}

pub(super) fn skip_bom(input: &mut impl BufRead) -> io::Result<()> {
    if input.fill_buf()?.starts_with(BOM) {
        input.consume(BOM.len());
    }
    Ok(())
}

pub(super) fn too_many_lines(at: YamlPosition) -> CsvError {
    let message = format!("a table has at most {MAX_LINES} lines");
    CsvError::Fault(YamlFault::new(YamlPosition { column: 1, ..at }, message))
}

pub(super) fn too_long(at: YamlPosition) -> CsvError {
    CsvError::Fault(YamlFault::new(
        at,
        format!("a line has at most {MAX_RECORD} bytes, and this one has more"),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    type CsvFields = Vec<(String, u32, u32)>;

    fn read(text: &[u8]) -> Result<Vec<CsvFields>, String> {
        // of one byte each, so that each state is met at the end of what is there
        let mut reader = CsvReader::new(io::BufReader::with_capacity(3, text));
        let (mut records, mut record) = (Vec::new(), CsvRecord::default());
        loop {
            match reader.next(&mut record) {
                Ok(true) => {
                    let field = |i| record.field(i).map(|(text, at)| (text.to_owned(), at.line, at.column));
                    let fields: Result<Vec<_>, _> = (0..record.len()).map(field).collect();
                    records.push(fields.map_err(|fault| format!("{}:{}", fault.at.line, fault.at.column))?);
                }
                Ok(false) => return Ok(records),
                Err(CsvError::Fault(YamlFault { at, message })) => {
                    return Err(format!("{}:{}: {message}", at.line, at.column));
                }
                Err(CsvError::Io(error)) => return Err(error.to_string()),
            }
        }
    }

    fn texts(text: &str) -> Vec<Vec<String>> {
        let records = read(text.as_bytes()).unwrap_or_else(|error| panic!("{text:?}: {error}"));
        records.into_iter().map(|record| record.into_iter().map(|(text, ..)| text).collect()).collect()
    }

    #[test]
    fn fields_are_as_in_rfc_4180() {
        for text in ["a,b\nc,d\n", "a,b\r\nc,d\r\n", "\u{feff}a,b\nc,d", "a,\"b\"\r\n\n\r\n\"c\",d\n\n"] {
            assert_eq!(texts(text), [["a", "b"], ["c", "d"]], "{text:?}");
        }
        assert_eq!(
            texts("\"a,\r\n\"\"b\"\"\",\n,\n\"\"\n"),
            [vec!["a,\r\n\"b\"", ""], vec!["", ""], vec![""]]
        );
        assert_eq!(texts(" a , b\n"), [[" a ", " b"]]);
        assert!(texts("").is_empty() && texts("\n\r\n").is_empty());
    }

    #[test]
    fn each_field_has_its_line_and_its_column_in_characters() {
        let records = read("größe,\"x\ny\",b\n\né,c".as_bytes()).expect("valid");
        let places: Vec<Vec<(u32, u32)>> = records
            .iter()
            .map(|record| record.iter().map(|(_, line, column)| (*line, *column)).collect())
            .collect();
        assert_eq!(places, [vec![(1, 1), (1, 7), (2, 4)], vec![(4, 1), (4, 3)]]);
    }

    #[test]
    fn wrong_quotes_and_bytes_have_their_place() {
        for (text, place) in [
            ("a\nb\"c\n", "2:2: a quote within"),
            ("a,\"b\"c", "1:6: text after the quote"),
            ("a,\"b\"\rc", "1:7: text after the quote"),
            ("a\nb,\"c\n\n", "2:3: this quote has no end"),
        ] {
            let error = read(text.as_bytes()).expect_err(text);
            assert!(error.starts_with(place), "{text:?}: {error}");
        }
        assert_eq!(read(b"a\nb,\xff\n"), Err("2:3".to_owned()));
    }

    #[test]
    fn a_line_without_an_end_fails_early() {
        struct Endless;
        impl io::Read for Endless {
            fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
                buffer.fill(b'x');
                Ok(buffer.len())
            }
        }
        for start in ["a\n", "a\n\""] {
            let input = io::Read::chain(start.as_bytes(), Endless);
            let mut reader = CsvReader::new(io::BufReader::new(input));
            let mut record = CsvRecord::default();
            assert!(reader.next(&mut record).expect("a record"));
            match reader.next(&mut record) {
                Err(CsvError::Fault(fault)) => assert_eq!((fault.at.line, fault.at.column), (2, 1)),
                other => panic!("{other:?}"),
            }
        }
    }
}
