//! Draws the shares of a pool's members over its cycles, as an SVG: one panel for each member, with what it asked for,
//! its share, and what was admitted.

use super::{
    shares::{Demands, SharedCycle},
    svg::{Drawing, HEAD, LEFT, RIGHT, escaped},
};

const PANEL: f64 = 90.0;
const GAP: f64 = 36.0;
const FOOT: f64 = 44.0;

const MAX_PANELS: usize = 12;

/// The styles of what other charts do not have.
const LIGHT: &str = ".asked { fill: #d0d7de } .share { stroke: #1f2328; stroke-width: 2 }";
const DARK: &str = ".asked { fill: #3d444d } .share { stroke: #e6edf3 }";

/// Draws `cycles` under this `title`: of up to 12 members, those that ask for the most.
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
    let mut svg = Drawing::new(height, title, LIGHT, DARK);
    svg.legend("asked", 0.0, "asked");
    svg.legend("admitted", 90.0, "admitted");
    svg.line("share", [LEFT + 200.0, 38.0], [LEFT + 216.0, 38.0]);
    svg.text("", [LEFT + 222.0, 42.0], "share");
    let step = (RIGHT - LEFT) / cycles.len().max(1) as f64;
    for (row, i) in drawn.iter().enumerate() {
        let top = HEAD + row as f64 * (PANEL + GAP);
        let bottom = top + PANEL;
        let y = |hits: u32| bottom - (f64::from(hits) / most).min(1.0) * PANEL;
        svg.text("name", [LEFT, top - 6.0], escaped(&demands.members[*i]));
        svg.line("grid", [LEFT, bottom], [RIGHT, bottom]);
        svg.text("faint end", [LEFT - 6.0, top + 8.0], most);
        for (number, cycle) in cycles.iter().enumerate() {
            let x = |part: f64| LEFT + (number as f64 + part) * step;
            for (class, hits, inset) in
                [("asked", cycle.demands[*i], 0.15), ("admitted", cycle.admitted[*i], 0.3)]
            {
                svg.rect(class, [x(inset), y(hits), (1.0 - 2.0 * inset) * step, bottom - y(hits)]);
            }
            let share = y(cycle.shares[*i]);
            svg.line("share", [x(0.08), share], [x(0.92), share]);
        }
    }
    for number in (0..cycles.len()).step_by(cycles.len().div_ceil(20).max(1)) {
        let x = LEFT + (number as f64 + 0.5) * step;
        svg.text("faint middle", [x, height - FOOT + 18.0], number + 1);
    }
    svg.text("faint", [LEFT, height - 8.0], "cycle");
    svg.end()
}
