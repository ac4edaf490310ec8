//! The page `/hot`: the counters with the most hits and rejections.

use std::fmt::Write as _;

use serde_json::{Value, json};

use weir_limit::Timestamp;
use weir_observe::{
    hot_keys::{By, HotKey, HotKeys},
    text::escaped,
};

const MOST: usize = 10;

const TABLES: [(By, &str); 2] = [(By::Hits, "hits"), (By::Rejections, "rejected hits")];

const TIMES: [(u64, &str); 2] = [(1, "minute"), (10, "10 minutes")];

const MINUTE: u64 = 60_000_000_000;

pub(super) fn page(hot: Option<&HotKeys>, now: Timestamp) -> String {
    let Some(hot) = hot else {
        return "hot keys are off: WEIR_HOT_KEYS=shown or masked finds them\n".to_owned();
    };
    let mut text = match hot.gap() {
        1 => "hot keys, from every decision; up to 20 s more than the times below\n".to_owned(),
        gap => format!("hot keys, from about one in {gap} decisions; up to 20 s more than the times below\n"),
    };
    text += "+/- is the error of the estimate; used is the share of the limit in use at the last sample\n";
    for (by, name) in TABLES {
        for (minutes, time) in TIMES {
            // writing to a string cannot fail
            let _ = writeln!(text, "\n{name} of the last {time}");
            let keys = hot.top(by, minutes * MINUTE, now.as_nanos(), MOST);
            if keys.is_empty() {
                text += "  none\n";
                continue;
            }
            let _ = writeln!(text, "{:>12} {:>10} {:>6}  rule and descriptor", "hits", "+/-", "used");
            for key in keys {
                line(&key, &mut text);
            }
        }
    }
    text
}

pub(super) fn json_page(hot: Option<&HotKeys>, now: Timestamp) -> String {
    let value = hot.map_or_else(
        || json!({ "enabled": false }),
        |hot| {
            let key = |key: HotKey| {
                let error = key.error();
                json!({ "name": key.name.text, "hits": key.hits, "error": error, "used": key.used })
            };
            let table = |((by, name), (minutes, _)): ((By, &str), (u64, &str))| -> Value {
                let keys = hot.top(by, minutes * MINUTE, now.as_nanos(), MOST);
                let keys: Vec<Value> = keys.into_iter().map(key).collect();
                json!({ "by": name, "minutes": minutes, "counters": keys })
            };
            let tables = TABLES.into_iter().flat_map(|by| TIMES.map(|time| table((by, time))));
            json!({ "enabled": true, "one_in": hot.gap(), "tables": tables.collect::<Vec<_>>() })
        },
    );
    value.to_string() + "\n"
}

fn line(key: &HotKey, text: &mut String) {
    let name = escaped(&key.name.text);
    let used = format!("{:.0} %", key.used * 100.0);
    let _ = writeln!(text, "{:>12} {:>10} {used:>6}  {name}", key.hits, key.error());
}
