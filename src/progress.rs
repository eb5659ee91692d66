//! A progress bar on standard error, when that is a terminal and the work takes longer than a second. Otherwise it says nothing:
//! logs and pipes get results only.

use std::io::{IsTerminal, Write};
use std::time::{Duration, Instant};

use crate::units::show_seconds;

const WIDTH: usize = 30;
/// Work shorter than this shows no bar.
const PATIENCE: Duration = Duration::from_secs(1);
/// The bar is drawn at most this often.
const FRAME: Duration = Duration::from_millis(100);

pub struct Progress {
    what: &'static str,
    terminal: bool,
    started: Instant,
    drawn: Option<Instant>,
}

impl Progress {
    pub fn new(what: &'static str) -> Self {
        Progress { what, terminal: std::io::stderr().is_terminal(), started: Instant::now(), drawn: None }
    }

    /// `done` of `total`, and a few words more. What is left takes as long for its size as what is done.
    pub fn show(&mut self, done: u64, total: u64, more: &str) {
        self.show_left(done, total, None, more);
    }

    /// The same, where somebody may know how many seconds are left.
    pub fn show_left(&mut self, done: u64, total: u64, left: Option<f64>, more: &str) {
        let now = Instant::now();
        let early = now - self.started < PATIENCE;
        if !self.terminal || early || self.drawn.is_some_and(|drawn| now - drawn < FRAME) {
            return;
        }
        self.drawn = Some(now);
        let share = share(done, total);
        let seconds = (now - self.started).as_secs_f64();
        let left = left.or((share > 0.0).then(|| seconds / share - seconds));
        let line = draw(self.what, share, left, more);
        let _ = write!(std::io::stderr(), "\r\x1b[K{line}"); // a terminal that has gone is no reason to stop the work
    }

    /// Removes the bar; what is printed next has a line of its own.
    pub fn clear(&mut self) {
        if self.drawn.take().is_some() {
            let _ = write!(std::io::stderr(), "\r\x1b[K");
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.clear();
    }
}

fn share(done: u64, total: u64) -> f64 {
    if total == 0 { 1.0 } else { (done as f64 / total as f64).min(1.0) }
}

fn draw(what: &str, share: f64, left: Option<f64>, more: &str) -> String {
    let full = (share * WIDTH as f64) as usize;
    let left = left.map_or(String::new(), |seconds| format!(", {} left", show_seconds(seconds)));
    let gap = if more.is_empty() { "" } else { ", " };
    format!("{what} [{}{}] {:3.0}%{left}{gap}{more}", "#".repeat(full), ".".repeat(WIDTH - full), share * 100.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bar_shows_share_and_time_left() {
        assert_eq!(draw("drain", share(50, 100), Some(20.0), "x"), "drain [###############...............]  50%, 20 s left, x");
        assert_eq!(draw("drain", share(0, 100), None, ""), format!("drain [{}]   0%", ".".repeat(30)));
        assert_eq!(draw("drain", share(7, 0), Some(0.0), ""), format!("drain [{}] 100%, 0.0 s left", "#".repeat(30)));
    }
}
