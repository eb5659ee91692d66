//! One page with everything: the table, the pictures inside it, and links to the series. It needs no network and no script.

use super::pictures::Picture;
use super::svg::escape;
use super::table::{HEAD, RIGHT, columns};
use crate::experiment::Experiment;
use std::fmt::Write;

const STYLE: &str = "\
body{font-family:sans-serif;color:#1b1f24;background:#fff;max-width:900px;margin:2em auto;padding:0 1em;line-height:1.45}\
table{border-collapse:collapse;font-size:14px}th,td{padding:3px 10px;border-bottom:1px solid #e3e6ea;text-align:left}\
th.n,td.n{text-align:right;font-variant-numeric:tabular-nums}td.ok{color:#116329}td.out{color:#b42318;font-weight:bold}\
figure{margin:1.2em 0}svg{max-width:100%;height:auto}.note{color:#57606a;font-size:14px}li{font-size:14px}";

pub(super) fn page(experiment: &Experiment, pictures: &[Picture], series: &[(String, String)]) -> String {
    let name = escape(&experiment.plan.name);
    let mut page = format!(
        "<!doctype html>\n<html lang=\"en\">\n<head><meta charset=\"utf-8\"><title>{name}</title><style>{STYLE}</style></head>\n<body>\n\
         <h1>{name}</h1>\n<p>{}</p>\n<p class=\"note\">Simulated in virtual time, seed {}. The same plan and seed give the same page.</p>\n",
        escape(&experiment.plan.shows),
        experiment.seed
    );
    page.push_str(&table(experiment));
    for row in &experiment.rows {
        if let Some(note) = &row.note {
            let _ = writeln!(page, "<p class=\"note\"><b>{}</b>: {}</p>", escape(&row.name), escape(note));
        }
    }
    for left_out in &experiment.plan.left_out {
        let _ = writeln!(page, "<p class=\"note\">{}</p>", escape(&left_out.to_string()));
    }
    let mut load = "";
    for picture in pictures {
        if picture.load != load {
            load = &picture.load;
            let _ = writeln!(page, "<h2>{}</h2>", escape(load));
        }
        let _ = writeln!(page, "<figure>\n{}</figure>", picture.svg);
    }
    page.push_str("<h2>Series</h2>\n<ul>\n");
    for (file, _) in series {
        let _ = writeln!(page, "<li><a href=\"{0}\">{0}</a></li>", escape(file));
    }
    page.push_str("</ul>\n</body>\n</html>\n");
    page
}

fn table(experiment: &Experiment) -> String {
    let class = |column: usize, cell: &str| match cell {
        _ if RIGHT[column] => " class=\"n\"",
        "ok" => " class=\"ok\"",
        "OUT" => " class=\"out\"",
        _ => "",
    };
    let mut text = "<table>\n<tr>".to_string();
    for (column, head) in HEAD.iter().enumerate() {
        let _ = write!(text, "<th{}>{head}</th>", class(column, head));
    }
    text.push_str("</tr>\n");
    for row in &experiment.rows {
        text.push_str("<tr>");
        for (column, cell) in columns(row).iter().enumerate() {
            let _ = write!(text, "<td{}>{}</td>", class(column, cell), escape(cell));
        }
        text.push_str("</tr>\n");
    }
    text.push_str("</table>\n");
    text
}
