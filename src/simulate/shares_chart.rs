//! Draws the shares of a pool's members over its cycles, as an SVG: one panel for each member, with what it asked for,
//! its share, and what was admitted.

use std::fmt::Write as _;

use super::{
    shares::{Demands, SharedCycle},
    svg::{self, HEAD, LEFT, RIGHT, WIDTH},
};

const PANEL: f64 = 90.0;
const GAP: f64 = 36.0;
const FOOT: f64 = 44.0;

const MAX_PANELS: usize = 12;

/// The styles of what other charts do not have.
const LIGHT: &str = ".asked { fill: #d0d7de } .share { stroke: #1f2328; stroke-width: 2 }";
const DARK: &str = ".asked { fill: #3d444d } .share { stroke: #e6edf3 }";

/// Draws `cycles` under this `title`: of up to 12 members, those that ask for the most.
#[must_use]
pub fn shares_chart(title: &str, capacity: u32, demands: &Demands, cycles: &[SharedCycle]) -> String {
    let total = |i: &usize| cycles.iter().map(|cycle| u64::from(cycle.demands[*i])).sum::<u64>();
    let mut drawn: Vec<usize> = (0..demands.members.len()).collect();
    drawn.sort_by_key(|i| std::cmp::Reverse(total(i)));
    drawn.truncate(MAX_PANELS);
    drawn.sort_unstable();
    // demands far above the capacity are cut, so that shares can be seen
    let highest =
        cycles.iter().flat_map(|cycle| drawn.iter().map(|i| cycle.demands[*i].max(cycle.shares[*i]))).max();
    let most = f64::from(highest.unwrap_or(1).min(capacity.saturating_mul(2)).max(1));
    let height = HEAD + drawn.len() as f64 * (PANEL + GAP) - GAP + FOOT;
    let mut svg = svg::begin(height, title, LIGHT, DARK);
    let _ = writeln!(svg, "<text class=\"title\" x=\"{LEFT}\" y=\"22\">{title}</text>");
    for (x, class, what) in [(0.0, "asked", "asked"), (90.0, "admitted", "admitted")] {
        let x = LEFT + x;
        let _ = writeln!(
            svg,
            "<rect class=\"{class}\" x=\"{x}\" y=\"33\" width=\"14\" height=\"10\"/><text x=\"{}\" y=\"42\">{what}</text>",
            x + 20.0
        );
    }
    let x = LEFT + 200.0;
    let _ = writeln!(
        svg,
        "<line class=\"share\" x1=\"{x}\" x2=\"{}\" y1=\"38\" y2=\"38\"/><text x=\"{}\" y=\"42\">share</text>",
        x + 16.0,
        x + 22.0
    );
    let step = (WIDTH - LEFT - RIGHT) / cycles.len().max(1) as f64;
    for (row, i) in drawn.iter().enumerate() {
        let top = HEAD + row as f64 * (PANEL + GAP);
        let bottom = top + PANEL;
        let y = |hits: u32| bottom - (f64::from(hits) / most).min(1.0) * PANEL;
        let name = escaped(&demands.members[*i]);
        let _ = writeln!(
            svg,
            "<text class=\"name\" x=\"{LEFT}\" y=\"{}\">{name}</text>\n\
             <line class=\"grid\" x1=\"{LEFT}\" x2=\"{}\" y1=\"{bottom}\" y2=\"{bottom}\"/>\n\
             <text class=\"faint\" x=\"{}\" y=\"{}\" text-anchor=\"end\">{most}</text>",
            top - 6.0,
            WIDTH - RIGHT,
            LEFT - 6.0,
            top + 8.0,
        );
        for (number, cycle) in cycles.iter().enumerate() {
            let x = LEFT + number as f64 * step;
            for (class, hits, inset) in
                [("asked", cycle.demands[*i], 0.15), ("admitted", cycle.admitted[*i], 0.3)]
            {
                let (x, width) = (x + inset * step, (1.0 - 2.0 * inset) * step);
                let top = y(hits);
                let _ = writeln!(
                    svg,
                    "<rect class=\"{class}\" x=\"{x:.1}\" y=\"{top:.1}\" width=\"{width:.1}\" height=\"{:.1}\"/>",
                    bottom - top
                );
            }
            let at = y(cycle.shares[*i]);
            let _ = writeln!(
                svg,
                "<line class=\"share\" x1=\"{:.1}\" x2=\"{:.1}\" y1=\"{at:.1}\" y2=\"{at:.1}\"/>",
                x + 0.08 * step,
                x + 0.92 * step
            );
        }
    }
    let every = cycles.len().div_ceil(20).max(1);
    for number in (0..cycles.len()).step_by(every) {
        let x = LEFT + (number as f64 + 0.5) * step;
        let y = height - FOOT + 18.0;
        let _ = writeln!(
            svg,
            "<text class=\"faint\" x=\"{x:.1}\" y=\"{y}\" text-anchor=\"middle\">{}</text>",
            number + 1
        );
    }
    let _ = writeln!(svg, "<text class=\"faint\" x=\"{LEFT}\" y=\"{}\">cycle</text>\n</svg>", height - 8.0);
    svg
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}
