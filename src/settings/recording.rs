use std::time::Duration;

use weir_limit::Period;
use weir_recording::RecordingSettings;

use super::{parse, reader::SettingReader};

/// The longest time for which requests are kept.
const LONGEST: Duration = Duration::from_hours(24);

pub(super) fn recording(read: &mut SettingReader<'_>) -> RecordingSettings {
    RecordingSettings {
        keep: read.parsed("WEIR_RECORD", keep),
        max_bytes: read.parsed("WEIR_RECORD_BYTES", max_bytes),
    }
}

fn keep(text: &str) -> Result<Option<Period>, &'static str> {
    let range = Duration::from_secs(1)..=LONGEST;
    let time = parse::duration_in(range, "off, or a time from 1s to 24h, such as 15m");
    if text.eq_ignore_ascii_case("off") { Ok(None) } else { time(text).map(|time| Some(time.into())) }
}

fn max_bytes(text: &str) -> Result<usize, String> {
    let bytes = parse::bytes_from(RecordingSettings::MIN_BYTES as u64, "32MiB")(text)?;
    if bytes > RecordingSettings::MAX_BYTES {
        return Err("a size of 16MiB to 64MiB, such as 32MiB".to_owned());
    }
    Ok(bytes)
}
