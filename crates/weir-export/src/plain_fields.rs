//! The message and fields of a text log's line, on that line whatever they contain.

use std::{
    error::Error,
    fmt::{self, Debug, Write as _},
};

use tracing::field::{Field, Visit};
use tracing_subscriber::{
    field::RecordFields,
    fmt::{FormatFields, format::Writer},
};

use weir_observe::text::{Escaped, with_causes};

/// Formats `message name=value …`, with control characters [escaped](Escaped). On a terminal, names are in italics.
#[derive(Debug)]
pub(super) struct PlainFields;

impl<'w> FormatFields<'w> for PlainFields {
    fn format_fields<R: RecordFields>(&self, writer: Writer<'w>, fields: R) -> fmt::Result {
        let mut visitor = Visitor { writer, is_first: true, result: Ok(()) };
        fields.record(&mut visitor);
        visitor.result
    }
}

struct Visitor<'w> {
    writer: Writer<'w>,
    is_first: bool,
    result: fmt::Result,
}

impl Visitor<'_> {
    fn write(&mut self, field: &Field, value: fmt::Arguments<'_>) -> fmt::Result {
        if !self.is_first {
            self.writer.write_char(' ')?;
        }
        self.is_first = false;
        match field.name() {
            "message" => {}
            name if self.writer.has_ansi_escapes() => write!(self.writer, "\u{1b}[3m{name}\u{1b}[0m=")?,
            name => write!(self.writer, "{name}=")?,
        }
        Escaped(&mut self.writer).write_fmt(value)
    }
}

impl Visit for Visitor<'_> {
    /// Writes the text in quotation marks unless it is the message.
    fn record_str(&mut self, field: &Field, value: &str) {
        if field.name() == "message" {
            self.record_debug(field, &format_args!("{value}"));
        } else {
            self.record_debug(field, &value);
        }
    }

    fn record_error(&mut self, field: &Field, error: &(dyn Error + 'static)) {
        self.record_debug(field, &format_args!("{}", with_causes(error)));
    }

    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        if self.result.is_ok() {
            self.result = self.write(field, format_args!("{value:?}"));
        }
    }
}
