//! A configuration file: read whole, or refused in one line that names its place.

use std::path::Path;

use tidegate::config::{Config, File, parse};

pub fn run(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    match parse(Path::new("t"), text) {
        Ok(file) => {
            let Config { volumes, default, control, .. } = File::in_folder(file, Path::new("/volume"));
            assert!(!volumes.is_empty() && default.is_none_or(|default| default < volumes.len()));
            assert!(control.is_absolute() && volumes.iter().all(|volume| volume.origin.is_absolute() && volume.cache.is_absolute()));
        }
        Err(why) => {
            assert!(!why.contains('\n'), "more than a line: {why:?}");
            let mut parts = why.splitn(4, ':');
            let lines = text.matches('\n').count() + 1;
            let number = |part: Option<&str>| part.and_then(|part| part.parse::<usize>().ok());
            assert_eq!(parts.next(), Some("t"), "{why}");
            assert!(number(parts.next()).is_some_and(|line| (1..=lines).contains(&line)), "{why}: not one of {lines} lines");
            assert!(number(parts.next()).is_some_and(|column| column >= 1), "{why}");
        }
    }
}
