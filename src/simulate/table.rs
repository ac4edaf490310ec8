//! Renders metrics as text: a line per coordination mode, in columns.

use std::fmt::Write as _;

use weir_limit::Period;

use super::SimulationMetrics;

/// The columns after the name of the mode, and what they are.
const COLUMNS: [(&str, &str); 7] = [
    (
        "worst overshoot",
        "admitted above the limit in the worst window; of a bucket, above the burst and the inflow",
    ),
    ("used", "admitted of what one counter for all instances would have admitted; the least of any window"),
    ("rejected early", "rejected although such a counter would have admitted them"),
    ("store calls a decision", "calls to the store in all, a decision; several decisions can share a call"),
    ("waited", "decisions that waited for the store"),
    ("median and longest wait", "of those that waited"),
    ("fallback", "decisions that were made without the store, because it did not reply in time"),
];

pub fn legend() -> String {
    legend_of(&COLUMNS)
}

pub(super) fn legend_of(columns: &[(&str, &str)]) -> String {
    columns.iter().fold(String::new(), |mut text, (column, what)| {
        // writing to a string cannot fail
        let _ = writeln!(text, "{column:<23}  {what}");
        text
    })
}

pub fn table(modes: &[(&str, SimulationMetrics)]) -> String {
    let mut text = columns(&COLUMNS, modes.iter().map(|(name, metrics)| row(name, metrics)));
    for (name, metrics) in modes {
        if metrics.undecided > 0.0 {
            let undecided = percent(metrics.undecided);
            let _ = writeln!(text, "{name}: {undecided} of the requests were not decided");
        }
    }
    text
}

pub(super) fn columns(columns: &[(&str, &str)], rows: impl Iterator<Item = Vec<String>>) -> String {
    let head = std::iter::once("coordination").chain(columns.iter().map(|(column, _)| *column));
    let rows: Vec<Vec<String>> = std::iter::once(head.map(str::to_owned).collect()).chain(rows).collect();
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..=columns.len()).map(width).collect();
    let mut text = String::new();
    for row in &rows {
        for (column, (field, width)) in row.iter().zip(&widths).enumerate() {
            // names are left-aligned, numbers right-aligned; writing to a string cannot fail
            let _ = match column {
                0 => write!(text, "{field:<width$}"),
                _ => write!(text, "  {field:>width$}"),
            };
        }
        text.push('\n');
    }
    text
}

fn row(name: &str, metrics: &SimulationMetrics) -> Vec<String> {
    let waits = if metrics.waited > 0.0 {
        format!("{}, {}", millis(metrics.typical_wait), millis(metrics.longest_wait))
    } else {
        "-".to_owned()
    };
    vec![
        name.to_owned(),
        overshoot(metrics.overshoot),
        percent(metrics.used),
        percent(metrics.rejected_early),
        calls(metrics.calls),
        percent(metrics.waited),
        waits,
        percent(metrics.fallback),
    ]
}

pub(super) fn overshoot(share: f64) -> String {
    if share > 0.0 { format!("+{}", percent(share)) } else { "0".to_owned() }
}

/// With significant digits; only exact 0 and 1 print as 0 and 100.
pub(super) fn percent(share: f64) -> String {
    let percentage = share * 100.0;
    if percentage <= 0.0 {
        return "0 %".to_owned();
    }
    let digits = match percentage {
        _ if percentage >= 100.0 => 0,
        _ if percentage > 99.9 => 2,
        _ if percentage >= 10.0 => 1,
        _ if percentage >= 0.1 => 2,
        _ => 3,
    };
    let text = format!("{percentage:.digits$}");
    let text = if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.') } else { &text };
    match text {
        "0" => "< 0.001 %".to_owned(),
        "100" if percentage < 100.0 => "> 99.99 %".to_owned(),
        text => format!("{text} %"),
    }
}

pub(super) fn calls(calls: f64) -> String {
    match calls {
        _ if calls == 0.0 => "0".to_owned(),
        _ if calls < 0.1 => format!("{calls:.4}"),
        _ => format!("{calls:.2}"),
    }
}

pub(super) fn millis(period: Period) -> String {
    format!("{} ms", period.as_nanos().div_ceil(1_000_000))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentages_have_significant_digits() {
        for (share, text) in [
            (0.0, "0 %"),
            (0.17, "17 %"),
            (0.028, "2.8 %"),
            (0.994, "99.4 %"),
            (0.9999, "99.99 %"),
            (0.999_999, "> 99.99 %"),
            (1.0, "100 %"),
            (4.6, "460 %"),
            (0.000_001, "< 0.001 %"),
        ] {
            assert_eq!(percent(share), text);
        }
    }

    #[test]
    fn columns_fit_their_contents() {
        let metrics = SimulationMetrics {
            overshoot: 0.097,
            used: 1.0,
            rejected_early: 0.0,
            calls: 0.0113,
            waited: 0.0,
            typical_wait: Period::default(),
            longest_wait: Period::default(),
            fallback: 0.0,
            undecided: 0.0,
        };
        let waited = SimulationMetrics {
            overshoot: -0.01,
            waited: 0.013,
            rejected_early: 0.002,
            typical_wait: Period::from_millis(2),
            longest_wait: Period::from_millis(14),
            fallback: 0.002,
            undecided: 0.5,
            ..metrics.clone()
        };
        let text = table(&[("interval", metrics), ("lease", waited)]);
        let expected = "\
coordination  worst overshoot   used  rejected early  store calls a decision  waited  median and longest wait  fallback
interval               +9.7 %  100 %             0 %                  0.0113     0 %                        -       0 %
lease                       0  100 %           0.2 %                  0.0113   1.3 %              2 ms, 14 ms     0.2 %
lease: 50 % of the requests were not decided
";
        assert_eq!(text, expected);
    }
}
