//! The log on standard error, configured by envoyproxy/ratelimit's `LOG_LEVEL` and `LOG_FORMAT`.

use std::{
    fmt::{self, Write as _},
    io::{self, IsTerminal as _, Write as _},
    panic, thread,
};

use serde_json::{Map, Value};
use tracing::{
    Event, Level, Subscriber,
    field::{Field, Visit},
};
use tracing_subscriber::{
    Layer,
    field::RecordFields,
    filter::Targets,
    fmt::{
        FmtContext, FormatEvent, FormatFields, MakeWriter,
        format::Writer,
        time::{FormatTime, SystemTime},
    },
    layer::SubscriberExt as _,
    registry::LookupSpan,
    util::{SubscriberInitExt as _, TryInitError},
};

use weir_observe::text::{Escaped, escaped_json, with_causes};

pub use tracing_subscriber::filter::LevelFilter;

pub const LEVELS: &str = "panic, fatal, error, warn, warning, info, debug or trace";

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LogFormat {
    #[default]
    Text,
    /// One JSON object per line, with the reference's keys.
    Json,
}

/// Starts to write messages of `level` and above to standard error. Fails if the process already has a log.
pub fn init(level: LevelFilter, format: LogFormat) -> Result<(), TryInitError> {
    tracing_subscriber::registry().with(layer(level, format, io::stderr)).try_init()
}

/// Returns the level that envoyproxy/ratelimit calls `name`, in any case.
pub fn parse_level(name: &str) -> Option<LevelFilter> {
    Some(match name.to_ascii_lowercase().as_str() {
        // tracing has no level above error
        "panic" | "fatal" | "error" => LevelFilter::ERROR,
        "warn" | "warning" => LevelFilter::WARN,
        "info" => LevelFilter::INFO,
        "debug" => LevelFilter::DEBUG,
        "trace" => LevelFilter::TRACE,
        _ => return None,
    })
}

/// Writes a line of the program itself to standard error, at every log level and also before [`init`].
pub fn print(format: LogFormat, level: Level, message: &str, fields: &[(&str, String)]) {
    let line = line(format, level, message, fields);
    // a failure to write to standard error cannot be reported
    let _ = io::stderr().lock().write_all(line.as_bytes());
}

/// With [`LogFormat::Json`], writes panics as JSON, too.
pub fn init_panics(format: LogFormat) {
    if format == LogFormat::Json {
        panic::set_hook(Box::new(move |info| {
            let thread = thread::current().name().unwrap_or("unnamed").to_owned();
            let place = info.location().map(ToString::to_string).unwrap_or_default();
            let message = info.payload_as_str().unwrap_or("panic");
            print(format, Level::ERROR, message, &[("thread", thread), ("panic", place)]);
        }));
    }
}

fn line(format: LogFormat, level: Level, message: &str, fields: &[(&str, String)]) -> String {
    match format {
        LogFormat::Text => {
            let error = if level == Level::ERROR { "error: " } else { "" };
            let mut line = format!("weir: {error}");
            // writing to a String cannot fail; an error with many parts has a line of each
            for (i, part) in message.split('\n').enumerate() {
                line.push_str(if i > 0 { "\n" } else { "" });
                let _ = Escaped(&mut line).write_str(part);
            }
            for (name, value) in fields {
                let _ = write!(Escaped(&mut line), " {name}={value}");
            }
            line + "\n"
        }
        LogFormat::Json => {
            let mut object: Map<String, Value> =
                fields.iter().map(|(name, value)| ((*name).to_owned(), value.as_str().into())).collect();
            object.insert("@message".to_owned(), message.into());
            complete(object, level).unwrap_or_default()
        }
    }
}

fn complete(mut fields: Map<String, Value>, level: Level) -> Result<String, fmt::Error> {
    let mut time = String::new();
    SystemTime.format_time(&mut Writer::new(&mut time))?;
    let level = match level {
        Level::ERROR => "error",
        Level::WARN => "warning",
        Level::INFO => "info",
        Level::DEBUG => "debug",
        Level::TRACE => "trace",
    };
    fields.insert("@timestamp".to_owned(), time.into());
    fields.insert("level".to_owned(), level.into());
    Ok(escaped_json(&Value::Object(fields).to_string()).into_owned() + "\n")
}

fn layer<S, W>(level: LevelFilter, format: LogFormat, writer: W) -> impl Layer<S>
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    W: for<'a> MakeWriter<'a> + Send + Sync + 'static,
{
    // debugging rate limits must not log every HTTP/2 frame
    let others = level.min(LevelFilter::WARN);
    let filter = Targets::new()
        .with_default(others)
        // warns of each watch that has ended with its directory, as those of a ConfigMap's versions do
        .with_target("notify", others.min(LevelFilter::ERROR))
        // who has changed what is always told
        .with_target("weir_audit", LevelFilter::INFO)
        // all crates of weir have names that begin so
        .with_target("weir", level);
    let layer = tracing_subscriber::fmt::layer().with_writer(writer);
    match format {
        LogFormat::Text => {
            let layer = layer.with_ansi(io::stderr().is_terminal()).fmt_fields(PlainFields);
            layer.with_filter(filter).boxed()
        }
        LogFormat::Json => layer.event_format(JsonFormat).with_filter(filter).boxed(),
    }
}

/// Writes events like the reference's logger: `@timestamp`, `@message`, `level`, and the event's other fields.
struct JsonFormat;

impl<S, N> FormatEvent<S, N> for JsonFormat
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(
        &self,
        _: &FmtContext<'_, S, N>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        let mut fields = EventFields(Map::new());
        event.record(&mut fields);
        writer.write_str(&complete(fields.0, *event.metadata().level())?)
    }
}

struct EventFields(Map<String, Value>);

impl EventFields {
    fn add(&mut self, field: &Field, value: impl Into<Value>) {
        let name = match field.name() {
            "message" => "@message".to_owned(),
            // a field must not replace the event's own level
            "level" => "fields.level".to_owned(),
            name => name.to_owned(),
        };
        self.0.insert(name, value.into());
    }
}

impl Visit for EventFields {
    fn record_f64(&mut self, field: &Field, value: f64) {
        self.add(field, value);
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.add(field, value);
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.add(field, value);
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.add(field, value);
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.add(field, value);
    }

    fn record_error(&mut self, field: &Field, error: &(dyn std::error::Error + 'static)) {
        self.add(field, with_causes(error));
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.add(field, format!("{value:?}"));
    }
}

/// Formats `message name=value …`, with control characters [escaped](Escaped). On a terminal, names are in italics.
struct PlainFields;

impl<'w> FormatFields<'w> for PlainFields {
    fn format_fields<R: RecordFields>(&self, writer: Writer<'w>, fields: R) -> fmt::Result {
        let mut visitor = PlainVisitor { writer, is_first: true, result: Ok(()) };
        fields.record(&mut visitor);
        visitor.result
    }
}

struct PlainVisitor<'w> {
    writer: Writer<'w>,
    is_first: bool,
    result: fmt::Result,
}

impl PlainVisitor<'_> {
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

impl Visit for PlainVisitor<'_> {
    /// Writes the text in quotation marks unless it is the message.
    fn record_str(&mut self, field: &Field, value: &str) {
        if field.name() == "message" {
            self.record_debug(field, &format_args!("{value}"));
        } else {
            self.record_debug(field, &value);
        }
    }

    fn record_error(&mut self, field: &Field, error: &(dyn std::error::Error + 'static)) {
        self.record_debug(field, &format_args!("{}", with_causes(error)));
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        if self.result.is_ok() {
            self.result = self.write(field, format_args!("{value:?}"));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{
        io::Write,
        sync::{Arc, Mutex},
    };

    use super::*;

    #[derive(Clone, Default)]
    struct Captured(Arc<Mutex<Vec<u8>>>);

    impl Write for Captured {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().write(bytes)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn written(level: &str, format: LogFormat, act: impl FnOnce()) -> String {
        let captured = Captured::default();
        let writer = captured.clone();
        let layer = layer(parse_level(level).unwrap(), format, move || writer.clone());
        tracing::subscriber::with_default(tracing_subscriber::registry().with(layer), act);
        let bytes = captured.0.lock().unwrap().clone();
        String::from_utf8(bytes).unwrap()
    }

    #[test]
    fn json_has_the_references_keys() {
        let text = written("WARN", LogFormat::Json, || {
            let error = io::Error::other("gone");
            tracing::warn!(
                file = "a.yaml",
                line = 3_u64,
                error = &error as &dyn std::error::Error,
                "bad \"rules\""
            );
            tracing::info!("not to be seen");
        });
        let line: Value = serde_json::from_str(&text).unwrap();
        assert_eq!(line["@message"], "bad \"rules\"");
        assert_eq!((&line["level"], &line["file"]), (&"warning".into(), &"a.yaml".into()));
        assert_eq!((&line["line"], &line["error"]), (&3.into(), &"gone".into()));
        assert!(line["@timestamp"].as_str().unwrap().starts_with("20"), "{line}");
    }

    #[test]
    fn a_message_stays_on_its_line() {
        let forged = "gone\n2026-01-01T00:00:00Z ERROR weir: forged\r\u{1b}[2K\u{9b}31m";
        let text = written("WARN", LogFormat::Text, || {
            let error = io::Error::other(forged);
            let error = &error as &dyn std::error::Error;
            tracing::warn!(count = 3, name = forged, shown = %forged, printed = ?forged, error, "{forged}");
        });
        assert_eq!(text.lines().count(), 1, "{text}");
        let is_control = |c: char| c.is_control() && c != '\n';
        assert!(!text.contains(is_control) && text.ends_with('\n'), "{text:?}");
        let escaped = r"gone\n2026-01-01T00:00:00Z ERROR weir: forged\r\u{1b}[2K\u{9b}31m";
        assert_eq!(text.matches(escaped).count(), 5, "{text}");
        let expected = format!("{escaped} count=3 name=\"{escaped}\" shown={escaped} printed=");
        assert!(text.contains(&expected), "{text}");
        let line = line(LogFormat::Text, Level::INFO, "a\rb", &[("name", "c\nd".to_owned())]);
        assert_eq!(line, "weir: a\\rb name=c\\nd\n");
    }

    #[test]
    fn lines_of_the_program_have_the_format_of_the_log() {
        let line = |format| line(format, Level::ERROR, "cannot\nstart", &[("code", "1".to_owned())]);
        assert_eq!(line(LogFormat::Text), "weir: error: cannot\nstart code=1\n");
        let json = line(LogFormat::Json);
        assert_eq!(json.lines().count(), 1);
        let json: Value = serde_json::from_str(&json).unwrap();
        assert_eq!((&json["@message"], &json["level"]), (&"cannot\nstart".into(), &"error".into()));
        assert_eq!(json["code"], "1");
        assert!(json["@timestamp"].as_str().unwrap().starts_with("20"), "{json}");
    }

    #[test]
    fn the_level_applies_to_weirs_own_messages() {
        let text = written("debug", LogFormat::Text, || {
            tracing::debug!("ours");
            tracing::debug!(target: "h2::frame", "theirs");
            tracing::warn!(target: "h2::frame", "urgent");
        });
        assert!(text.contains("ours") && text.contains("urgent") && !text.contains("theirs"), "{text}");
    }

    #[test]
    fn levels_have_the_references_names() {
        for name in ["panic", "Fatal", "ERROR", "warn", "warning", "info", "debug", "trace"] {
            assert!(parse_level(name).is_some(), "{name}");
        }
        assert!(parse_level("loud").is_none());
    }
}
