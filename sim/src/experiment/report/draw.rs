//! Charts: lines over an axis, lines over ranks on a logarithmic axis, strips of states, stacked bars. Legends stand beside, never over,
//! what they explain.

use super::svg::{Anchor, Svg};
use crate::experiment::units::show;

const WIDTH: f64 = 860.0;
const LEFT: f64 = 74.0;
const TOP: f64 = 40.0;
const PLOT: [f64; 2] = [560.0, 240.0];
const LEGEND: f64 = LEFT + PLOT[0] + 20.0;
const LEGEND_CHARS: usize = 26;
const AXIS: &str = "#57606a";
const GRID: &str = "#e3e6ea";
/// Told apart by people of any sight (Okabe and Ito).
const COLOURS: [&str; 8] = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#8a6d00", "#56b4e9", "#1b1f24", "#e69f00"];
const DASHES: [&str; 4] = ["", "7 3", "2 3", "9 3 2 3"];

/// A named line.
pub(super) struct Line {
    pub name: String,
    pub points: Vec<[f64; 2]>,
}

fn colour(index: usize) -> (&'static str, &'static str) {
    (COLOURS[index % COLOURS.len()], DASHES[index / COLOURS.len() % DASHES.len()])
}

/// Steps of 1, 2 or 5 times a power of ten: about `wanted` of them up to `largest`.
fn step(largest: f64, wanted: f64) -> f64 {
    let rough = (largest / wanted).max(1e-9);
    let mut power = 1.0;
    while power * 10.0 <= rough {
        power *= 10.0;
    }
    while power > rough {
        power /= 10.0;
    }
    [1.0, 2.0, 5.0, 10.0].into_iter().map(|factor| factor * power).find(|&step| step >= rough).unwrap_or(power * 10.0)
}

/// The logarithm to base 2 by squaring: no library's, so the same on every machine.
fn log2(value: f64) -> f64 {
    let (mut rest, mut whole) = (value.max(1e-9), 0.0);
    while rest >= 2.0 {
        rest /= 2.0;
        whole += 1.0;
    }
    while rest < 1.0 {
        rest *= 2.0;
        whole -= 1.0;
    }
    let mut bit = 0.5;
    for _ in 0..24 {
        rest *= rest;
        if rest >= 2.0 {
            rest /= 2.0;
            whole += bit;
        }
        bit /= 2.0;
    }
    whole
}

fn legend(svg: &mut Svg, row: usize, name: &str, mark: impl FnOnce(&mut Svg, f64, f64)) {
    let y = TOP + 10.0 + row as f64 * 19.0;
    mark(svg, LEGEND, y);
    let name: String =
        if name.chars().count() > LEGEND_CHARS { name.chars().take(LEGEND_CHARS - 1).chain(['…']).collect() } else { name.into() };
    svg.text([LEGEND + 30.0, y + 4.0], Anchor::Start, 12, &name);
}

fn height_for(rows: usize, plot: f64) -> f64 {
    (TOP + plot + 56.0).max(TOP + 30.0 + rows as f64 * 19.0)
}

/// Axis and grid of a scale from 0 to `largest`, along the bottom of a plot `height` high.
fn bottom_axis(svg: &mut Svg, largest: f64, height: f64, name: &str) {
    let step = step(largest, 8.0);
    let mut value = 0.0;
    while value <= largest * 1.000_001 {
        let x = LEFT + value / largest * PLOT[0];
        svg.line([x, TOP], [x, TOP + height], GRID);
        svg.text([x, TOP + height + 17.0], Anchor::Middle, 11, &show(value));
        value += step;
    }
    svg.line([LEFT, TOP + height], [LEFT + PLOT[0], TOP + height], AXIS);
    svg.text([LEFT + PLOT[0] / 2.0, TOP + height + 38.0], Anchor::Middle, 12, name);
}

/// Lines over two axes that start at zero.
pub(super) fn lines(title: &str, [x_name, y_name]: [&str; 2], lines: &[Line]) -> String {
    let largest = |axis: usize| lines.iter().flat_map(|line| &line.points).map(|point| point[axis]).fold(0.0, f64::max);
    let x_end = Some(largest(0)).filter(|&end| end > 0.0).unwrap_or(1.0);
    let y_step = step(Some(largest(1)).filter(|&end| end > 0.0).unwrap_or(1.0), 5.0);
    let mut y_end = y_step;
    while y_end < largest(1) {
        y_end += y_step;
    }
    let mut svg = Svg::new(WIDTH, height_for(lines.len(), PLOT[1]));
    svg.text([LEFT, 24.0], Anchor::Start, 15, title);
    bottom_axis(&mut svg, x_end, PLOT[1], x_name);
    let mut value = 0.0;
    while value <= y_end * 1.000_001 {
        let y = TOP + PLOT[1] - value / y_end * PLOT[1];
        svg.line([LEFT, y], [LEFT + PLOT[0], y], GRID);
        svg.text([LEFT - 7.0, y + 4.0], Anchor::End, 11, &show(value));
        value += y_step;
    }
    svg.line([LEFT, TOP], [LEFT, TOP + PLOT[1]], AXIS);
    svg.text_upwards([18.0, TOP + PLOT[1] / 2.0], 12, y_name);
    for (index, line) in lines.iter().enumerate() {
        let (stroke, dash) = colour(index);
        let place = |[x, y]: [f64; 2]| [LEFT + x / x_end * PLOT[0], TOP + PLOT[1] - y / y_end * PLOT[1]];
        let points: Vec<[f64; 2]> = line.points.iter().map(|&point| place(point)).collect();
        svg.path(&points, stroke, dash);
        legend(&mut svg, index, &line.name, |svg, x, y| svg.path(&[[x, y], [x + 24.0, y]], stroke, dash));
    }
    svg.finish()
}

/// One line for each name, over ranks side by side; the axis upwards is logarithmic, in microseconds.
pub(super) fn ranks(title: &str, ranks: &[&str], lines: &[(String, Vec<f64>)]) -> String {
    let all = || lines.iter().flat_map(|(_, values)| values).copied().filter(|&value| value > 0.0);
    let (mut low, mut high) = (1e12, 0.0);
    all().for_each(|value| (low, high) = (f64::min(low, value), f64::max(high, value)));
    // Whole decades around everything.
    let (mut start, mut end) = (0.001, 0.01);
    while start * 10.0 <= low {
        start *= 10.0;
    }
    while end <= high || end <= start {
        end *= 10.0;
    }
    let (bottom, top) = (log2(start), log2(end));
    let place = |value: f64| TOP + PLOT[1] - (log2(value.max(start)) - bottom) / (top - bottom) * PLOT[1];
    let x_of = |rank: usize| LEFT + (rank as f64 + 0.5) * PLOT[0] / ranks.len() as f64;
    let mut svg = Svg::new(WIDTH, height_for(lines.len(), PLOT[1]));
    svg.text([LEFT, 24.0], Anchor::Start, 15, title);
    let mut value = start;
    while value <= end * 1.000_001 {
        let y = place(value);
        svg.line([LEFT, y], [LEFT + PLOT[0], y], GRID);
        svg.text([LEFT - 7.0, y + 4.0], Anchor::End, 11, &micros(value));
        value *= 10.0;
    }
    for (index, name) in ranks.iter().enumerate() {
        svg.text([x_of(index), TOP + PLOT[1] + 17.0], Anchor::Middle, 11, name);
    }
    svg.line([LEFT, TOP + PLOT[1]], [LEFT + PLOT[0], TOP + PLOT[1]], AXIS);
    svg.line([LEFT, TOP], [LEFT, TOP + PLOT[1]], AXIS);
    svg.text([LEFT + PLOT[0] / 2.0, TOP + PLOT[1] + 38.0], Anchor::Middle, 12, "requests that are not slower");
    svg.text_upwards([18.0, TOP + PLOT[1] / 2.0], 12, "latency");
    for (index, (name, values)) in lines.iter().enumerate() {
        let (stroke, dash) = colour(index);
        let points: Vec<[f64; 2]> = values.iter().enumerate().map(|(rank, &value)| [x_of(rank), place(value)]).collect();
        svg.path(&points, stroke, dash);
        points.iter().for_each(|&point| svg.dot(point, stroke));
        legend(&mut svg, index, name, |svg, x, y| svg.path(&[[x, y], [x + 24.0, y]], stroke, dash));
    }
    svg.finish()
}

fn micros(value: f64) -> String {
    match value {
        value if value < 0.999 => format!("{} ns", show(value * 1e3)),
        value if value < 999.0 => format!("{} us", show(value)),
        value if value < 999_000.0 => format!("{} ms", show(value / 1e3)),
        value => format!("{} s", show(value / 1e6)),
    }
}

/// What was in which state: for each stretch of time, the share of each state.
pub(super) struct Strip {
    pub name: String,
    /// Colour and legend of each column.
    pub states: Vec<(&'static str, &'static str)>,
    /// Start and end in seconds, and the share of each column in it.
    pub cells: Vec<(f64, f64, Vec<f64>)>,
}

const STRIP: f64 = 44.0;
const STRIP_GAP: f64 = 14.0;

/// Strips of states below each other, over one axis of seconds.
pub(super) fn strips(title: &str, end: f64, strips: &[Strip]) -> String {
    let plot = strips.len() as f64 * (STRIP + STRIP_GAP);
    let mut known: Vec<(&str, &str)> = Vec::new();
    for strip in strips {
        for (column, state) in strip.states.iter().enumerate() {
            if !known.contains(state) && strip.cells.iter().any(|(_, _, shares)| shares[column] > 0.0) {
                known.push(*state);
            }
        }
    }
    let end = if end > 0.0 { end } else { 1.0 };
    let mut svg = Svg::new(WIDTH, height_for(known.len(), plot));
    svg.text([LEFT, 24.0], Anchor::Start, 15, title);
    bottom_axis(&mut svg, end, plot, "seconds");
    for (row, strip) in strips.iter().enumerate() {
        let top = TOP + row as f64 * (STRIP + STRIP_GAP);
        svg.rect([LEFT, top, PLOT[0], STRIP], "#ffffff");
        svg.text([LEFT - 7.0, top + STRIP / 2.0 + 4.0], Anchor::End, 11, &strip.name);
        draw_cells(&mut svg, strip, top, end);
        svg.frame([LEFT, top, PLOT[0], STRIP], AXIS);
    }
    for (row, (fill, name)) in known.iter().enumerate() {
        legend(&mut svg, row, name, |svg, x, y| {
            svg.rect([x, y - 7.0, 24.0, 13.0], fill);
            svg.frame([x, y - 7.0, 24.0, 13.0], AXIS);
        });
    }
    svg.finish()
}

/// Equal neighbours become one rectangle.
fn draw_cells(svg: &mut Svg, strip: &Strip, top: f64, end: f64) {
    let mut cells = strip.cells.iter().peekable();
    while let Some((from, to, shares)) = cells.next() {
        let mut to = to;
        while let Some((_, later, _)) = cells.next_if(|(_, _, next)| next == shares) {
            to = later;
        }
        let (left, right) = (LEFT + from / end * PLOT[0], LEFT + (to / end).min(1.0) * PLOT[0]);
        let mut bottom = top + STRIP;
        for ((fill, _), share) in strip.states.iter().zip(shares).filter(|(_, share)| **share > 0.0) {
            let height = share * STRIP;
            bottom -= height;
            svg.rect([left, bottom, right - left, height], fill);
        }
    }
}

/// Bars of stacked amounts below each other.
pub(super) fn bars(title: &str, unit: &str, parts: &[&str], bars: &[(String, Vec<f64>)]) -> String {
    const BAR: f64 = 26.0;
    let plot = bars.len() as f64 * (BAR + STRIP_GAP) + STRIP_GAP;
    let totals: Vec<f64> = bars.iter().map(|(_, amounts)| amounts.iter().sum()).collect();
    let end = totals.iter().copied().fold(0.0, f64::max);
    let end = if end > 0.0 { end * 1.18 } else { 1.0 };
    let used: Vec<usize> = (0..parts.len()).filter(|&part| bars.iter().any(|(_, amounts)| amounts[part] > 0.0)).collect();
    let mut svg = Svg::new(WIDTH, height_for(used.len(), plot));
    svg.text([LEFT, 24.0], Anchor::Start, 15, title);
    bottom_axis(&mut svg, end, plot, unit);
    for (row, (name, amounts)) in bars.iter().enumerate() {
        let top = TOP + STRIP_GAP + row as f64 * (BAR + STRIP_GAP);
        let mut left = LEFT;
        for (part, amount) in amounts.iter().enumerate().filter(|(_, amount)| **amount > 0.0) {
            let width = amount / end * PLOT[0];
            svg.rect([left, top, width, BAR], COLOURS[part % COLOURS.len()]);
            left += width;
        }
        let short: String = name.chars().take(10).collect();
        svg.text([LEFT - 7.0, top + BAR / 2.0 + 4.0], Anchor::End, 11, &short);
        svg.text([left + 6.0, top + BAR / 2.0 + 4.0], Anchor::Start, 11, &show(totals[row]));
    }
    for (row, &part) in used.iter().enumerate() {
        legend(&mut svg, row, parts[part], |svg, x, y| svg.rect([x, y - 7.0, 24.0, 13.0], COLOURS[part % COLOURS.len()]));
    }
    svg.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_logarithm_is_one() {
        for (value, log) in [(1.0, 0.0), (2.0, 1.0), (1024.0, 10.0), (0.25, -2.0), (12.0, 3.584_963), (1e6, 19.931_568)] {
            assert!((log2(value) - log).abs() < 1e-6, "{value}: {}", log2(value));
        }
    }

    #[test]
    fn steps_are_round() {
        for (largest, expected) in [(8.0, 1.0), (27.3, 5.0), (0.13, 0.02), (3072.0, 500.0), (1.0, 0.2)] {
            assert!((step(largest, 8.0) - expected).abs() < expected * 1e-9, "{largest}: {}", step(largest, 8.0));
        }
    }
}
