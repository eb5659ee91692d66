//! SVG, as little of it as pictures of measurements need. Coordinates are written with one decimal: the same bytes on every machine.

use std::fmt::Write;

/// A picture that is being drawn.
pub(super) struct Svg {
    width: f64,
    height: f64,
    body: String,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Anchor {
    Start,
    Middle,
    End,
}

impl Svg {
    pub fn new(width: f64, height: f64) -> Self {
        Svg { width, height, body: String::new() }
    }

    pub fn rect(&mut self, [x, y, width, height]: [f64; 4], fill: &str) {
        let _ = writeln!(
            self.body,
            r#"<rect x="{x:.1}" y="{y:.1}" width="{width:.1}" height="{height:.1}" fill="{fill}" shape-rendering="crispEdges"/>"#
        );
    }

    /// The edge of a rectangle.
    pub fn frame(&mut self, [x, y, width, height]: [f64; 4], stroke: &str) {
        let _ =
            writeln!(self.body, r#"<rect x="{x:.1}" y="{y:.1}" width="{width:.1}" height="{height:.1}" fill="none" stroke="{stroke}"/>"#);
    }

    pub fn line(&mut self, [x1, y1]: [f64; 2], [x2, y2]: [f64; 2], stroke: &str) {
        let _ = writeln!(self.body, r#"<line x1="{x1:.1}" y1="{y1:.1}" x2="{x2:.1}" y2="{y2:.1}" stroke="{stroke}"/>"#);
    }

    /// A line through points; `dash` as SVG has it, empty for none.
    pub fn path(&mut self, points: &[[f64; 2]], stroke: &str, dash: &str) {
        let points = points.iter().map(|[x, y]| format!("{x:.1},{y:.1}")).collect::<Vec<_>>().join(" ");
        let dash = if dash.is_empty() { String::new() } else { format!(r#" stroke-dasharray="{dash}""#) };
        let _ = writeln!(self.body, r#"<polyline points="{points}" fill="none" stroke="{stroke}" stroke-width="1.6"{dash}/>"#);
    }

    pub fn dot(&mut self, [x, y]: [f64; 2], fill: &str) {
        let _ = writeln!(self.body, r#"<circle cx="{x:.1}" cy="{y:.1}" r="3" fill="{fill}"/>"#);
    }

    pub fn text(&mut self, [x, y]: [f64; 2], anchor: Anchor, size: u32, text: &str) {
        let anchor = match anchor {
            Anchor::Start => "start",
            Anchor::Middle => "middle",
            Anchor::End => "end",
        };
        let text = escape(text);
        let _ = writeln!(self.body, r#"<text x="{x:.1}" y="{y:.1}" text-anchor="{anchor}" font-size="{size}">{text}</text>"#);
    }

    /// A text that is read from below.
    pub fn text_upwards(&mut self, [x, y]: [f64; 2], size: u32, text: &str) {
        let text = escape(text);
        let _ = writeln!(
            self.body,
            r#"<text x="{x:.1}" y="{y:.1}" text-anchor="middle" font-size="{size}" transform="rotate(-90 {x:.1} {y:.1})">{text}</text>"#
        );
    }

    pub fn finish(self) -> String {
        let Svg { width, height, body } = self;
        format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width:.0}\" height=\"{height:.0}\" viewBox=\"0 0 {width:.0} {height:.0}\" \
             font-family=\"sans-serif\" fill=\"#1b1f24\">\n<rect width=\"{width:.0}\" height=\"{height:.0}\" fill=\"#ffffff\"/>\n{body}</svg>\n"
        )
    }
}

pub(super) fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}
