//! What all charts have in common: their page, and the colors of its parts.

/// The width of a page, and the room beside its panels.
pub(super) const WIDTH: f64 = 900.0;
pub(super) const LEFT: f64 = 72.0;
pub(super) const RIGHT: f64 = 20.0;
pub(super) const HEAD: f64 = 74.0;

/// The colors are no CSS variables, since not every viewer supports them.
const LIGHT: &str = "\
svg { font: 12px system-ui, sans-serif } .title { font-size: 15px; font-weight: 600 } .name { font-weight: 600 }
.page { fill: #ffffff } text { fill: #1f2328 } .faint { fill: #656d76 } .grid { stroke: #d0d7de }
.admitted { fill: #2f6fba }";
const DARK: &str = "\
.page { fill: #0d1117 } text { fill: #e6edf3 } .faint { fill: #8d96a0 } .grid { stroke: #3d444d }
.admitted { fill: #4c8ed9 }";

/// `light` and `dark` are the styles of what only this chart has.
pub(super) fn begin(height: f64, title: &str, light: &str, dark: &str) -> String {
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" width=\"{WIDTH}\" height=\"{height}\" \
         role=\"img\">\n<title>{title}</title>\n<style>{LIGHT}\n{light}\n@media (prefers-color-scheme: dark) {{\n{DARK}\n\
         {dark} }}</style>\n<rect class=\"page\" width=\"100%\" height=\"100%\"/>\n"
    )
}
