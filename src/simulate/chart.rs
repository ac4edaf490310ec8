//! Draws the admitted requests against the limit over time, as an SVG: a panel per coordination mode, on equal axes.

use std::fmt::Write as _;

use weir_limit::Algorithm;

use super::{
    AdmittedSeries, Scenario,
    svg::{self, HEAD, LEFT, RIGHT, WIDTH},
};

const PANEL: f64 = 110.0;
const GAP: f64 = 38.0;
const FOOT: f64 = 52.0;

/// More would hide what is behind them.
const MAX_MARKS: u32 = 150;

/// The styles of what other charts do not have.
const LIGHT: &str = ".window { stroke: #8250df; stroke-dasharray: 2 3 }
.limit { stroke: #1f2328; stroke-width: 1.5; stroke-dasharray: 6 4 } .over { fill: #cf222e }";
const DARK: &str = ".window { stroke: #a475f9 } .limit { stroke: #e6edf3 } .over { fill: #f85149 }";

/// What is drawn of one mode.
#[derive(Clone, Debug, PartialEq)]
pub struct Panel {
    /// The mode.
    pub name: String,
    /// Its metrics in a line.
    pub summary: String,
    /// The admitted requests.
    pub series: AdmittedSeries,
}

struct Axes {
    seconds: f64,
    most: u64,
}

/// Draws the admitted requests of each mode, below `title`.
#[must_use]
pub fn chart(scenario: &Scenario, title: &str, modes: &[Panel]) -> String {
    let bound = modes.first().map_or(0, |mode| mode.series.bound);
    let admitted = modes.iter().flat_map(|mode| &mode.series.points).map(|(_, admitted)| *admitted);
    let axes = Axes {
        seconds: scenario.tier.period.as_nanos() as f64 / 1e9 * f64::from(scenario.windows),
        most: round_up(admitted.max().unwrap_or(0).max(bound + bound / 4).max(1)),
    };
    let panels = modes.len() as f64;
    let height = HEAD + panels * PANEL + (panels - 1.0).max(0.0) * GAP + FOOT;
    let mut svg = svg::begin(height, title, LIGHT, DARK);
    head(&mut svg, title);
    for (i, mode) in modes.iter().enumerate() {
        panel(&mut svg, &axes, i, mode);
        mark_periods(&mut svg, &axes, i, scenario.windows);
    }
    time(&mut svg, &axes, height - FOOT);
    let (middle, what) = (f64::midpoint(HEAD, height - FOOT), counted(scenario));
    let place = format_args!("transform=\"translate(16 {middle:.1}) rotate(-90)\" text-anchor=\"middle\"");
    put(&mut svg, format_args!("<text class=\"faint\" {place}>{what}</text>"));
    svg += "</svg>\n";
    svg
}

/// The label of the vertical axis.
fn counted(scenario: &Scenario) -> &'static str {
    match scenario.tier.algorithm {
        Algorithm::FixedWindow => "requests admitted in the window so far",
        Algorithm::SlidingWindow | Algorithm::TokenBucket(_) => "requests admitted in the last period",
    }
}

fn head(svg: &mut String, title: &str) {
    text(svg, LEFT, 22.0, "title", title);
    let legend = [
        ("<rect class=\"admitted\" width=\"14\" height=\"10\" y=\"-9\"/>", "admitted", 0.0),
        ("<rect class=\"over\" width=\"14\" height=\"10\" y=\"-9\"/>", "admitted above the limit", 110.0),
        ("<line class=\"limit\" x2=\"22\" y1=\"-4\" y2=\"-4\"/>", "limit", 300.0),
        ("<line class=\"window\" x1=\"14\" x2=\"14\" y1=\"-10\" y2=\"1\"/>", "end of a period", 380.0),
    ];
    for (mark, what, x) in legend {
        let x = LEFT + x;
        put(svg, format_args!("<g transform=\"translate({x} 42)\">{mark}<text x=\"26\">{what}</text></g>"));
    }
}

fn panel(svg: &mut String, axes: &Axes, i: usize, Panel { name, summary, series }: &Panel) {
    let top = HEAD + i as f64 * (PANEL + GAP);
    let bottom = top + PANEL;
    text(svg, LEFT, top - 6.0, "name", name);
    let right = WIDTH - RIGHT;
    put(
        svg,
        format_args!(
            "<text class=\"faint\" x=\"{right}\" y=\"{}\" text-anchor=\"end\">{summary}</text>",
            top - 6.0
        ),
    );

    let limit = axes.y(bottom, series.bound);
    for (value, y) in [(0, bottom), (series.bound, limit), (axes.most, top)] {
        put(
            svg,
            format_args!("<line class=\"grid\" x1=\"{LEFT}\" x2=\"{right}\" y1=\"{y:.1}\" y2=\"{y:.1}\"/>"),
        );
        let (x, y) = (LEFT - 8.0, y + 4.0);
        // omits a label that would overlap the limit's
        if value == series.bound || (y - limit).abs() > 14.0 {
            let value = thousands(value);
            put(
                svg,
                format_args!(
                    "<text class=\"faint\" x=\"{x}\" y=\"{y:.1}\" text-anchor=\"end\">{value}</text>"
                ),
            );
        }
    }
    let under = series.points.iter().map(|&(at, admitted)| (at, admitted.min(series.bound)));
    area(svg, axes, "admitted", bottom, bottom, under);
    if series.points.iter().any(|(_, admitted)| *admitted > series.bound) {
        let over = series.points.iter().map(|&(at, admitted)| (at, admitted.max(series.bound)));
        area(svg, axes, "over", bottom, limit, over);
    }
    put(
        svg,
        format_args!(
            "<line class=\"limit\" x1=\"{LEFT}\" x2=\"{right}\" y1=\"{limit:.1}\" y2=\"{limit:.1}\"/>"
        ),
    );
}

/// Marks where fixed windows end, as a scale for other limits, too.
fn mark_periods(svg: &mut String, axes: &Axes, i: usize, periods: u32) {
    let top = HEAD + i as f64 * (PANEL + GAP);
    let bottom = top + PANEL;
    let ends = if periods <= MAX_MARKS { 1..periods } else { 1..1 };
    for end in ends {
        let x = axes.x(axes.seconds * f64::from(end) / f64::from(periods));
        put(
            svg,
            format_args!("<line class=\"window\" x1=\"{x:.1}\" x2=\"{x:.1}\" y1=\"{top}\" y2=\"{bottom}\"/>"),
        );
    }
}

/// Draws steps: each value holds until the next one.
fn area(
    svg: &mut String,
    axes: &Axes,
    class: &str,
    bottom: f64,
    floor: f64,
    points: impl Iterator<Item = (f64, u64)>,
) {
    let mut path = format!("M{LEFT:.1} {floor:.1}");
    for (at, value) in points {
        // writing to a string cannot fail
        let _ = write!(path, "H{:.1}V{:.1}", axes.x(at), axes.y(bottom, value));
    }
    put(svg, format_args!("<path class=\"{class}\" d=\"{path}H{:.1}V{floor:.1}Z\"/>", axes.x(axes.seconds)));
}

fn time(svg: &mut String, axes: &Axes, bottom: f64) {
    let step = tick(axes.seconds / 10.0);
    let mut at = 0.0;
    while at <= axes.seconds * 1.000_1 {
        let x = axes.x(at);
        put(
            svg,
            format_args!(
                "<line class=\"grid\" x1=\"{x:.1}\" x2=\"{x:.1}\" y1=\"{bottom}\" y2=\"{}\"/>",
                bottom + 5.0
            ),
        );
        let label = (at * 1e6).round() / 1e6;
        put(
            svg,
            format_args!(
                "<text class=\"faint\" x=\"{x:.1}\" y=\"{}\" text-anchor=\"middle\">{label}</text>",
                bottom + 19.0
            ),
        );
        at += step;
    }
    let middle = f64::midpoint(LEFT, WIDTH - RIGHT);
    put(
        svg,
        format_args!(
            "<text class=\"faint\" x=\"{middle}\" y=\"{}\" text-anchor=\"middle\">seconds</text>",
            bottom + 40.0
        ),
    );
}

/// Rounds up to two significant digits.
fn round_up(value: u64) -> u64 {
    let unit = 10_u64.pow(value.max(1).ilog10().saturating_sub(1));
    value.div_ceil(unit).saturating_mul(unit)
}

/// The smallest of 1, 2 and 5 times a power of ten that is at least `least`.
fn tick(least: f64) -> f64 {
    let power = 10_f64.powf(least.log10().floor());
    [1.0, 2.0, 5.0]
        .into_iter()
        .map(|digit| digit * power)
        .find(|step| *step >= least * 0.999)
        .unwrap_or(10.0 * power)
}

fn text(svg: &mut String, x: f64, y: f64, class: &str, text: &str) {
    put(svg, format_args!("<text class=\"{class}\" x=\"{x}\" y=\"{y}\">{text}</text>"));
}

fn put(svg: &mut String, element: std::fmt::Arguments<'_>) {
    let _ = writeln!(svg, "{element}");
}

/// Formats `value` as `1 000 000`, with narrow no-break spaces.
fn thousands(value: u64) -> String {
    let digits = value.to_string();
    let mut text = String::new();
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            text.push('\u{202f}');
        }
        text.push(digit);
    }
    text
}

// === impl Axes ===

impl Axes {
    fn x(&self, seconds: f64) -> f64 {
        LEFT + (WIDTH - LEFT - RIGHT) * seconds / self.seconds
    }

    fn y(&self, bottom: f64, value: u64) -> f64 {
        bottom - PANEL * value as f64 / self.most as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_round() {
        for (least, step) in [(0.1, 0.1), (0.11, 0.2), (0.3, 0.5), (0.6, 1.0), (12.0, 20.0), (360.0, 500.0)] {
            assert!((tick(least) - step).abs() < 1e-9, "{least}: {}", tick(least));
        }
    }

    #[test]
    fn the_highest_label_is_round() {
        for (value, round) in [(1, 1), (99, 99), (101, 110), (2_079, 2_100), (9_999, 10_000)] {
            assert_eq!(round_up(value), round);
        }
    }

    #[test]
    fn thousands_are_separated() {
        for (value, text) in
            [(0, "0"), (999, "999"), (1_000, "1\u{202f}000"), (12_345_678, "12\u{202f}345\u{202f}678")]
        {
            assert_eq!(thousands(value), text);
        }
    }
}
