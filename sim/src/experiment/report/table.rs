//! The table: what was measured beside the paper's figures, with the deviation and the band.

use crate::experiment::Experiment;
use crate::experiment::rows::Judged;
use crate::experiment::units::show;

/// The columns of one row, as words.
pub(super) fn columns(row: &Judged) -> [String; 7] {
    let optional = |number: Option<f64>| number.map_or("-".to_string(), show);
    let value = match row.value {
        Some(value) if row.metric == "order" => if value == 1.0 { "holds" } else { "broken" }.to_string(),
        value => optional(value),
    };
    let band = match (row.low, row.high) {
        _ if row.metric == "order" => String::new(),
        (None, None) => String::new(),
        (Some(low), None) => format!(">= {}", show(low)),
        (None, Some(high)) => format!("<= {}", show(high)),
        (Some(low), Some(high)) => format!("{} to {}", show(low), show(high)),
    };
    let verdict = match row.within {
        None => "",
        Some(true) => "ok",
        Some(false) => "OUT",
    };
    [row.name.clone(), row.metric.clone(), value, optional(row.paper), deviation(row), band, verdict.to_string()]
}

/// Per cent of the paper's figure.
fn deviation(row: &Judged) -> String {
    match (row.value, row.paper) {
        (Some(value), Some(paper)) if paper != 0.0 => format!("{:+.1} %", (value - paper) * 100.0 / paper),
        _ => String::new(),
    }
}

pub(super) const HEAD: [&str; 7] = ["row", "metric", "value", "paper", "deviation", "band", ""];
/// Numbers stand to the right.
pub(super) const RIGHT: [bool; 7] = [false, false, true, true, true, false, false];

/// The whole table, with the notes of its rows and what is left out below.
pub fn table(experiment: &Experiment) -> String {
    let rows: Vec<[String; 7]> = std::iter::once(HEAD.map(str::to_string)).chain(experiment.rows.iter().map(columns)).collect();
    let widths: Vec<usize> = (0..7).map(|column| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0)).collect();
    let mut text = format!("{}: {}\nseed {}\n\n", experiment.plan.name, experiment.plan.shows, experiment.seed);
    for row in &rows {
        let cells = row.iter().enumerate().map(|(column, cell)| {
            let width = widths[column];
            if RIGHT[column] { format!("{cell:>width$}") } else { format!("{cell:<width$}") }
        });
        let line = cells.collect::<Vec<_>>().join("  ");
        text.push_str(line.trim_end());
        text.push('\n');
    }
    let out = experiment.rows.iter().filter(|row| row.within == Some(false)).count();
    let with_band = experiment.rows.iter().filter(|row| row.within.is_some()).count();
    text.push_str(&format!("\n{} of {with_band} rows with a band are inside it\n", with_band - out));
    for row in &experiment.rows {
        if let Some(note) = &row.note {
            text.push_str(&format!("{}: {note}\n", row.name));
        }
    }
    for left_out in &experiment.plan.left_out {
        text.push_str(&format!("{left_out}\n"));
    }
    text
}
