//! Access logs of Envoy, as JSON lines: what is replayed before weir is installed.

use std::{
    collections::BTreeMap,
    io::{self, BufRead, Read as _},
    str::FromStr,
};

use foldhash::fast::RandomState;
use hashbrown::HashMap;
use serde_json::Value;
use weir_limit::{Entry, NANOS_PER_SECOND, Request, Timestamp};
use weir_recording::{
    FirstSight, RecordedKind, RecordedRequest, RecordedStatus, Recording, RecordingError, RecordingHeader,
    RecordingWriter,
};

use super::log_time::parse_time;

/// The longest line.
const MAX_LINE: u64 = 1 << 20;

/// What stands for a field that a request has not.
const ABSENT: &str = "-";

/// The way to a field, such as `.request.path`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FieldPath(Vec<String>);

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("write the field as .name, or .outer.inner")]
pub struct FieldPathError;

/// Which fields of a line become which entries.
#[derive(Clone, Debug)]
pub struct AccessLogMap {
    pub domain: String,
    /// The entries of the descriptor, each with its field.
    pub entries: Vec<(String, FieldPath)>,
    /// The field with the time: RFC 3339, or seconds since the epoch.
    pub time: FieldPath,
}

/// A log as a recording.
#[derive(Debug)]
pub struct AccessLog {
    pub recording: Recording,
    pub lines: u64,
    /// The lines that lack a field, by the field.
    pub lacking: BTreeMap<String, u64>,
    /// The lines that are no JSON objects, or too long.
    pub unreadable: u64,
}

#[derive(Debug, thiserror::Error)]
pub enum AccessLogError {
    #[error("cannot read the log")]
    Read(#[from] io::Error),
    #[error("cannot keep the log")]
    Keep(#[from] RecordingError),
}

struct LogReading<'m> {
    map: &'m AccessLogMap,
    /// The values of the entries, once each, by their number.
    values: Vec<Box<[String]>>,
    numbers: HashMap<Box<[String]>, u32, RandomState>,
    requests: Vec<(Timestamp, u32)>,
    lacking: BTreeMap<String, u64>,
    unreadable: u64,
}

// === impl FieldPath ===

impl FromStr for FieldPath {
    type Err = FieldPathError;

    fn from_str(text: &str) -> Result<Self, FieldPathError> {
        let names = text.strip_prefix('.').ok_or(FieldPathError)?;
        let names: Vec<String> = names.split('.').map(str::to_owned).collect();
        if names.iter().any(String::is_empty) { Err(FieldPathError) } else { Ok(Self(names)) }
    }
}

impl FieldPath {
    fn find<'v>(&self, line: &'v Value) -> Option<&'v Value> {
        self.0.iter().try_fold(line, |value, name| value.get(name))
    }

    fn text(&self) -> String {
        format!(".{}", self.0.join("."))
    }
}

/// Reads a log, in the order of its times.
pub fn read_access_log(mut log: impl BufRead, map: &AccessLogMap) -> Result<AccessLog, AccessLogError> {
    let mut reading = LogReading {
        map,
        values: Vec::new(),
        numbers: HashMap::default(),
        requests: Vec::new(),
        lacking: BTreeMap::new(),
        unreadable: 0,
    };
    let (mut line, mut lines) = (Vec::new(), 0);
    while read_line(&mut log, &mut line)? {
        if !line.trim_ascii().is_empty() {
            lines += 1;
            reading.add(&line);
        }
    }
    let recording = Recording::read(reading.write())?;
    let LogReading { lacking, unreadable, .. } = reading;
    Ok(AccessLog { recording, lines, lacking, unreadable })
}

/// A line that is too long is cut. Returns whether there was one.
fn read_line(log: &mut impl BufRead, line: &mut Vec<u8>) -> io::Result<bool> {
    line.clear();
    let read = log.take(MAX_LINE).read_until(b'\n', line)?;
    if read as u64 == MAX_LINE && !line.ends_with(b"\n") {
        // nothing of the rest is kept
        log.skip_until(b'\n')?;
    }
    Ok(read > 0)
}

/// None for what is not there.
fn text_of(value: &Value) -> Option<String> {
    match value {
        Value::String(text) if text != ABSENT => Some(text.clone()),
        Value::Number(number) => Some(number.to_string()),
        Value::Bool(flag) => Some(flag.to_string()),
        _ => None,
    }
}

fn time_of(value: &Value) -> Option<Timestamp> {
    match value {
        Value::String(text) => parse_time(text),
        Value::Number(number) => {
            let parts = number.to_string();
            let (seconds, fraction) = parts.split_once('.').unwrap_or((&parts, ""));
            let fraction = format!("{fraction:0<9}");
            let nanos = seconds.parse::<u64>().ok()?.checked_mul(NANOS_PER_SECOND)?;
            Some(Timestamp::from_nanos(nanos.checked_add(fraction.get(..9)?.parse().ok()?)?))
        }
        _ => None,
    }
}

// === impl LogReading ===

impl LogReading<'_> {
    fn add(&mut self, line: &[u8]) {
        match serde_json::from_slice::<Value>(line) {
            Ok(line @ Value::Object(_)) => {
                if let Err(field) = self.add_request(&line) {
                    *self.lacking.entry(field).or_default() += 1;
                }
            }
            _ => self.unreadable += 1,
        }
    }

    /// An error is the field that is missing.
    fn add_request(&mut self, line: &Value) -> Result<(), String> {
        let map = self.map;
        let at = map.time.find(line).and_then(time_of).ok_or_else(|| map.time.text())?;
        let value =
            |(_, path): &(String, FieldPath)| path.find(line).and_then(text_of).ok_or_else(|| path.text());
        let values = map.entries.iter().map(value).collect::<Result<Box<[String]>, String>>()?;
        let next = u32::try_from(self.values.len()).unwrap_or(u32::MAX);
        let number = *self.numbers.entry_ref(&values).or_insert_with(|| {
            self.values.push(values.clone());
            next
        });
        self.requests.push((at, number));
        Ok(())
    }

    fn write(&mut self) -> Vec<u8> {
        self.requests.sort_by_key(|(at, _)| *at);
        let mut writer = RecordingWriter::new(RecordingHeader::default());
        for (at, number) in &self.requests {
            let Some(values) = self.values.get(*number as usize) else { continue };
            let entries: Vec<Entry<'_>> =
                self.map.entries.iter().zip(values).map(|((key, _), value)| Entry { key, value }).collect();
            let request = Request::of(&self.map.domain, &entries);
            let recorded = RecordedRequest::new(RecordedKind::Decision, *at, &request);
            let key = super::hashes::key_of_number(*number);
            let status_of = |_| RecordedStatus { key: Some(key), is_free: true, ..RecordedStatus::default() };
            writer.append(&recorded, status_of, |_| FirstSight::default());
        }
        writer.finish()
    }
}

// === impl AccessLog ===

impl AccessLog {
    /// What a replay cannot know of it.
    pub fn unknown(&self) -> Vec<String> {
        let mut unknown = vec![
            "The log has no decisions of weir: without --old, all of its requests count as admitted before."
                .to_owned(),
        ];
        for (field, lines) in &self.lacking {
            unknown
                .push(format!("{lines} of {} lines lack the field {field}, and are left out.", self.lines));
        }
        if self.unreadable > 0 {
            unknown.push(format!("{} of {} lines are no JSON objects.", self.unreadable, self.lines));
        }
        unknown
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_recording::Merged;

    fn path(text: &str) -> FieldPath {
        text.parse().expect("a field")
    }

    #[test]
    fn lines_become_requests_in_the_order_of_their_times() {
        let map = AccessLogMap {
            domain: "shop".into(),
            entries: vec![("tenant".into(), path(".x_tenant")), ("path".into(), path(".http.path"))],
            time: path(".start_time"),
        };
        let log = concat!(
            r#"{"start_time":"2026-11-30T09:00:01.5Z","x_tenant":"acme","http":{"path":"/b"}}"#,
            "\n",
            r#"{"start_time":"2026-11-30T09:00:01Z","x_tenant":7,"http":{"path":"/a"}}"#,
            "\n",
            "\n",
            r#"{"start_time":1796029200.25,"x_tenant":"acme","http":{"path":"/b"}}"#,
            "\n",
            r#"{"start_time":"2026-11-30T09:00:01Z","x_tenant":"-","http":{"path":"/a"}}"#,
            "\n",
            r#"{"start_time":"2026-11-30T09:00:01Z","x_tenant":null,"http":{"path":"/a"}}"#,
            "\n",
            r#"{"start_time":"yesterday","x_tenant":"acme","http":{"path":"/a"}}"#,
            "\n",
            "[1]\n",
            "{\"start_time\"",
        );
        let read = read_access_log(log.as_bytes(), &map).expect("a log");
        assert_eq!((read.lines, read.unreadable), (8, 2));
        let lacking: Vec<(&str, u64)> =
            read.lacking.iter().map(|(field, lines)| (&**field, *lines)).collect();
        assert_eq!(lacking, [(".start_time", 1), (".x_tenant", 2)]);
        assert_eq!(read.unknown().len(), 4);
        let recordings = [read.recording];
        let mut merged = Merged::of(&recordings, []);
        let mut told = Vec::new();
        while let Some(event) = merged.next() {
            let entries: Vec<String> =
                event.descriptors[0].definition.entries.iter().map(ToString::to_string).collect();
            told.push(entries.join(" "));
        }
        assert_eq!(told, ["tenant=acme path=/b", "tenant=7 path=/a", "tenant=acme path=/b"]);
    }

    #[test]
    fn a_line_without_an_end_takes_bounded_memory() {
        let map = AccessLogMap { domain: "d".into(), entries: Vec::new(), time: path(".t") };
        let long = [b"{\"a\":\"".to_vec(), vec![b'x'; 3 << 20], b"\"}\n{\"t\":1}\n".to_vec()].concat();
        let read = read_access_log(&*long, &map).expect("a log");
        assert_eq!((read.lines, read.unreadable), (2, 1));
        assert!("path".parse::<FieldPath>().is_err() && ".a..b".parse::<FieldPath>().is_err());
    }
}
