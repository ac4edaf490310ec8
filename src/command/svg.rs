//! Draws a chart as an SVG: a page, and areas, lines and texts on it.

use std::fmt::{Display, Write as _};

/// The width of a page, and the room beside its panels.
const WIDTH: f64 = 900.0;
pub(super) const LEFT: f64 = 72.0;
pub(super) const HEAD: f64 = 74.0;

/// The right end of the panels.
pub(super) const RIGHT: f64 = WIDTH - 20.0;

/// The colors are no CSS variables, since not every viewer supports them.
const LIGHT: &str = "\
svg { font: 12px system-ui, sans-serif } .title { font-size: 15px; font-weight: 600 } .name { font-weight: 600 }
.page { fill: #ffffff } text { fill: #1f2328 } .faint { fill: #656d76 } .grid { stroke: #d0d7de }
.admitted { fill: #2f6fba } .rejected { fill: #bc4c00 } .end { text-anchor: end }";
const DARK: &str = "\
.page { fill: #0d1117 } text { fill: #e6edf3 } .faint { fill: #8d96a0 } .grid { stroke: #3d444d }
.admitted { fill: #4c8ed9 } .rejected { fill: #f0883e }";

pub(super) struct Drawing(String);

// === impl Drawing ===

impl Drawing {
    pub(super) fn new(height: f64, title: &str) -> Self {
        let mut drawing = Self(format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" width=\"{WIDTH}\" \
             height=\"{height}\" role=\"img\">\n<title>{title}</title>\n<style>{LIGHT}\n\
             @media (prefers-color-scheme: dark) {{\n{DARK} }}</style>\n"
        ));
        drawing.rect("page", [0.0, 0.0, WIDTH, height]);
        drawing.text("title", [LEFT, 22.0], title);
        drawing
    }

    /// An entry of the legend at `x`: an area of this class, and its meaning.
    pub(super) fn legend(&mut self, class: &str, x: f64, meaning: &str) {
        self.rect(class, [LEFT + x, 33.0, 14.0, 10.0]);
        self.text("", [LEFT + x + 20.0, 42.0], meaning);
    }

    // writing to a string cannot fail
    pub(super) fn text(&mut self, class: &str, [x, y]: [f64; 2], text: impl Display) {
        let _ = writeln!(self.0, "<text class=\"{class}\" x=\"{x:.1}\" y=\"{y:.1}\">{text}</text>");
    }

    pub(super) fn line(&mut self, class: &str, [x1, y1]: [f64; 2], [x2, y2]: [f64; 2]) {
        let ends = format_args!("x1=\"{x1:.1}\" x2=\"{x2:.1}\" y1=\"{y1:.1}\" y2=\"{y2:.1}\"");
        let _ = writeln!(self.0, "<line class=\"{class}\" {ends}/>");
    }

    pub(super) fn rect(&mut self, class: &str, [x, y, width, height]: [f64; 4]) {
        let size = format_args!("width=\"{width:.1}\" height=\"{height:.1}\"");
        let _ = writeln!(self.0, "<rect class=\"{class}\" x=\"{x:.1}\" y=\"{y:.1}\" {size}/>");
    }

    pub(super) fn end(self) -> String {
        self.0 + "</svg>\n"
    }
}

pub(super) fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}
