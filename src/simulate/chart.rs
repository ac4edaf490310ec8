//! Draws the admitted requests against the limit over time, as an SVG: a panel per coordination mode, on equal axes.

use std::fmt::Write as _;

use super::{
    AdmittedSeries, Scenario,
    svg::{Drawing, HEAD, LEFT, RIGHT},
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

#[derive(Clone, Debug, PartialEq)]
pub struct Panel {
    pub name: String,
    pub summary: String,
    pub series: AdmittedSeries,
}

struct Axes {
    seconds: f64,
    most: u64,
    bottom: f64,
}

pub fn chart(scenario: &Scenario, title: &str, modes: &[Panel]) -> String {
    let bound = modes.first().map_or(0, |mode| mode.series.bound);
    let admitted = modes.iter().flat_map(|mode| &mode.series.points).map(|(_, admitted)| *admitted);
    let seconds = scenario.tier.period.as_nanos() as f64 / 1e9 * f64::from(scenario.windows);
    let most = round_up(admitted.max().unwrap_or(0).max(bound + bound / 4).max(1));
    let panels = modes.len() as f64;
    let bottom = HEAD + panels * PANEL + (panels - 1.0).max(0.0) * GAP;
    let mut svg = Drawing::new(bottom + FOOT, title, LIGHT, DARK);
    svg.legend("admitted", 0.0, "admitted");
    svg.legend("over", 110.0, "admitted above the limit");
    svg.line("limit", [LEFT + 294.0, 38.0], [LEFT + 316.0, 38.0]);
    svg.text("", [LEFT + 320.0, 42.0], "limit");
    svg.line("window", [LEFT + 392.0, 32.0], [LEFT + 392.0, 43.0]);
    svg.text("", [LEFT + 400.0, 42.0], "end of a period");
    for (i, mode) in modes.iter().enumerate() {
        let axes = Axes { seconds, most, bottom: HEAD + PANEL + i as f64 * (PANEL + GAP) };
        panel(&mut svg, &axes, mode);
        // where fixed windows end, as a scale for other limits, too
        let ends = if scenario.windows <= MAX_MARKS { 1..scenario.windows } else { 1..1 };
        for end in ends {
            let x = axes.x(seconds * f64::from(end) / f64::from(scenario.windows));
            svg.line("window", [x, axes.bottom - PANEL], [x, axes.bottom]);
        }
    }
    time(&mut svg, &Axes { seconds, most, bottom });
    let counted = if scenario.tier.has_windows() { "in the window so far" } else { "in the last period" };
    let place = format_args!("translate(16 {:.1}) rotate(-90)", f64::midpoint(HEAD, bottom));
    svg.put(format_args!(
        "<text class=\"faint middle\" transform=\"{place}\">requests admitted {counted}</text>"
    ));
    svg.end()
}

fn panel(svg: &mut Drawing, axes: &Axes, Panel { name, summary, series }: &Panel) {
    let (top, bottom, limit) = (axes.bottom - PANEL, axes.bottom, axes.y(series.bound));
    svg.text("name", [LEFT, top - 6.0], name);
    svg.text("faint end", [RIGHT, top - 6.0], summary);
    for (value, y) in [(0, bottom), (series.bound, limit), (axes.most, top)] {
        svg.line("grid", [LEFT, y], [RIGHT, y]);
        // omits a label that would overlap the limit's
        if value == series.bound || (y + 4.0 - limit).abs() > 14.0 {
            svg.text("faint end", [LEFT - 8.0, y + 4.0], thousands(value));
        }
    }
    let under = series.points.iter().map(|&(at, admitted)| (at, admitted.min(series.bound)));
    area(svg, axes, "admitted", bottom, under);
    if series.points.iter().any(|(_, admitted)| *admitted > series.bound) {
        let over = series.points.iter().map(|&(at, admitted)| (at, admitted.max(series.bound)));
        area(svg, axes, "over", limit, over);
    }
    svg.line("limit", [LEFT, limit], [RIGHT, limit]);
}

/// Draws steps: each value holds until the next one.
fn area(svg: &mut Drawing, axes: &Axes, class: &str, floor: f64, points: impl Iterator<Item = (f64, u64)>) {
    let mut path = format!("M{LEFT:.1} {floor:.1}");
    for (at, value) in points {
        // writing to a string cannot fail
        let _ = write!(path, "H{:.1}V{:.1}", axes.x(at), axes.y(value));
    }
    svg.put(format_args!("<path class=\"{class}\" d=\"{path}H{RIGHT:.1}V{floor:.1}Z\"/>"));
}

fn time(svg: &mut Drawing, axes: &Axes) {
    let step = tick(axes.seconds / 10.0);
    let mut at = 0.0;
    while at <= axes.seconds * 1.000_1 {
        let x = axes.x(at);
        svg.line("grid", [x, axes.bottom], [x, axes.bottom + 5.0]);
        svg.text("faint middle", [x, axes.bottom + 19.0], (at * 1e6).round() / 1e6);
        at += step;
    }
    svg.text("faint middle", [f64::midpoint(LEFT, RIGHT), axes.bottom + 40.0], "seconds");
}

/// Rounds up to two significant digits.
fn round_up(value: u64) -> u64 {
    let unit = 10_u64.pow(value.max(1).ilog10().saturating_sub(1));
    value.div_ceil(unit).saturating_mul(unit)
}

/// The smallest of 1, 2 and 5 times a power of ten that is at least `least`.
fn tick(least: f64) -> f64 {
    let power = 10_f64.powf(least.log10().floor());
    let steps = [1.0, 2.0, 5.0].map(|digit| digit * power);
    steps.into_iter().find(|step| *step >= least * 0.999).unwrap_or(10.0 * power)
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
        LEFT + (RIGHT - LEFT) * seconds / self.seconds
    }

    fn y(&self, value: u64) -> f64 {
        self.bottom - PANEL * value as f64 / self.most as f64
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
