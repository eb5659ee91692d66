//! How an experiment is told: a table, JSON, CSV for each series, pictures, and one page that holds them all and needs no network.

mod csv;
mod draw;
mod html;
mod pictures;
mod svg;
mod table;

use super::Experiment;
use serde_json::json;
use std::path::Path;

pub use table::table;

/// One line of JSON: plan, seed and rows.
pub fn json(experiment: &Experiment) -> String {
    // `json!` of the parts would sort their names; the order is part of the form.
    let rows = experiment.rows.iter().map(|row| serde_json::to_string(row).expect("a row is JSON")).collect::<Vec<_>>().join(",");
    let left_out = match &experiment.plan.left_out[..] {
        [] => String::new(),
        some => format!(",\"left_out\":{}", json!(some)),
    };
    format!("{{\"plan\":{},\"seed\":{},\"rows\":[{rows}]{left_out}}}\n", json!(experiment.plan.name), experiment.seed)
}

/// Every file of the report: name and contents.
pub fn files(experiment: &Experiment) -> Vec<(String, String)> {
    let pictures = pictures::all(experiment);
    let series = csv::all(experiment);
    let mut files = vec![
        ("index.html".to_string(), html::page(experiment, &pictures, &series)),
        ("table.txt".to_string(), table(experiment)),
        ("rows.json".to_string(), json(experiment)),
    ];
    files.extend(series);
    files.extend(pictures.into_iter().map(|picture| (picture.file, picture.svg)));
    files
}

/// Writes every file of the report into a folder, which is made if it is missing. The error is one line.
pub fn write(experiment: &Experiment, folder: &Path) -> Result<(), String> {
    let say = |path: &Path, why: std::io::Error| format!("{}: {why}", path.display());
    std::fs::create_dir_all(folder).map_err(|why| say(folder, why))?;
    for (name, contents) in files(experiment) {
        let path = folder.join(name);
        std::fs::write(&path, contents).map_err(|why| say(&path, why))?;
    }
    Ok(())
}
