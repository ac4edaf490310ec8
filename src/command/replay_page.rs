//! The result of a replay as one HTML file with pictures, and without scripts.

use std::fmt::Write as _;

use weir_replay::{Comparison, KeyChange, OldNew, RuleChange};

use super::svg::{Drawing, HEAD, LEFT, RIGHT, escaped};

const PANEL: f64 = 120.0;
const GAP: f64 = 40.0;
const FOOT: f64 = 40.0;

/// The rules that are shown.
const RULES: usize = 200;

const STYLE: &str = "\
:root { color-scheme: light dark } body { font: 15px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; \
padding: 0 1rem } svg { max-width: 100%; height: auto } table { border-collapse: collapse; margin: 1rem 0 } \
th, td { padding: .2rem .8rem; text-align: right; border-bottom: 1px solid #8886 } \
th:first-child, td:first-child { text-align: left; overflow-wrap: anywhere } .lead { font-size: 1.3rem }";

pub(super) fn page(comparison: &Comparison) -> String {
    let mut page = format!(
        "<!doctype html>\n<html lang=\"en\">\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width\">\n<title>weir replay</title>\n\
         <style>{STYLE}</style>\n<h1>Replay</h1>\n<p class=\"lead\">{}</p>\n",
        escaped(&comparison.sentence())
    );
    if !comparison.unknown.is_empty() {
        page += "<h2>What it cannot know</h2>\n<ul>\n";
        for sentence in &comparison.unknown {
            // writing to a string cannot fail
            let _ = writeln!(page, "<li>{}</li>", escaped(sentence));
        }
        page += "</ul>\n";
    }
    page += "<h2>Requests over time</h2>\n";
    page += &chart(comparison);
    let rule = |RuleChange { rule, hits }: &RuleChange| (rule.clone(), *hits);
    table(&mut page, "Rules", comparison.rules.iter().take(RULES).map(rule));
    let key = |KeyChange { rule, text, hits }: &KeyChange| (format!("{text} ({rule})"), *hits);
    table(&mut page, "Keys that change most", comparison.keys.iter().map(key));
    page + "</html>\n"
}

fn table(page: &mut String, title: &str, rows: impl Iterator<Item = (String, OldNew)>) {
    let _ = write!(
        page,
        "<h2>{title}</h2>\n<p>Counts are hits.</p>\n<table>\n<tr><th>name<th>admitted, old<th>new\
         <th>rejected, old<th>new</tr>\n"
    );
    for (name, OldNew { admitted_old, rejected_old, admitted_new, rejected_new }) in rows {
        let name = escaped(&name);
        let _ = writeln!(
            page,
            "<tr><td>{name}<td>{admitted_old}<td>{admitted_new}<td>{rejected_old}<td>{rejected_new}</tr>"
        );
    }
    *page += "</table>\n";
}

#[expect(clippy::cast_precision_loss, reason = "a picture")]
fn chart(comparison: &Comparison) -> String {
    let points = &comparison.series.points;
    let old: Vec<[u64; 2]> = points.iter().map(|point| [point.admitted_old, point.rejected_old]).collect();
    let new: Vec<[u64; 2]> = points.iter().map(|point| [point.admitted_new, point.rejected_new]).collect();
    let most =
        old.iter().chain(&new).map(|[admitted, rejected]| admitted + rejected).max().unwrap_or(0).max(1);
    let height = HEAD + 2.0 * PANEL + GAP + FOOT;
    let mut svg = Drawing::new(height, "Admitted and rejected requests");
    svg.legend("admitted", 0.0, "admitted");
    svg.legend("rejected", 110.0, "rejected");
    let width = (RIGHT - LEFT) / points.len().max(1) as f64;
    for (panel, (name, series)) in [("old", old), ("new", new)].iter().enumerate() {
        let bottom = HEAD + PANEL + panel as f64 * (PANEL + GAP);
        svg.text("name", [LEFT, bottom - PANEL - 6.0], name);
        for (value, y) in [(0, bottom), (most, bottom - PANEL)] {
            svg.line("grid", [LEFT, y], [RIGHT, y]);
            svg.text("faint end", [LEFT - 8.0, y + 4.0], value);
        }
        for (i, [admitted, rejected]) in series.iter().enumerate() {
            let (x, scale) = (LEFT + i as f64 * width, PANEL / most as f64);
            let (low, high) = (*admitted as f64 * scale, *rejected as f64 * scale);
            if low > 0.0 {
                svg.rect("admitted", [x, bottom - low, width.max(0.5), low]);
            }
            if high > 0.0 {
                svg.rect("rejected", [x, bottom - low - high, width.max(0.5), high]);
            }
        }
    }
    let (from, step) = (comparison.series.from, comparison.series.step);
    let end = from.after(step * points.len() as u64);
    svg.text("faint", [LEFT, height - 14.0], weir_replay::format_time(from));
    svg.text("faint end", [RIGHT, height - 14.0], weir_replay::format_time(end));
    svg.end()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_others_stay_text() {
        let hits = OldNew { rejected_new: 3, ..OldNew::default() };
        let text = "<img src=x onerror=alert(1)>".to_owned();
        let comparison = Comparison {
            requests: 3,
            newly_rejected: 3,
            keys: vec![KeyChange { rule: "shop.a&b".into(), text, hits }],
            unknown: vec!["<script>".into()],
            ..Comparison::default()
        };
        let page = page(&comparison);
        assert!(!page.contains("<img") && !page.contains("<script"));
        assert!(
            page.contains("&lt;img src=x onerror=alert(1)&gt; (shop.a&amp;b)")
                && page.contains("100 % of requests")
        );
    }
}
