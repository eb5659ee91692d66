//! What values of the file have to do with each other, and with paths.

use tidegate_daemon::front::nbd::{self, Address};
use tidegate_engine::request::REQUEST_BYTES_MAX;
use tidegate_engine::time::Duration;

use super::values::Size;
use super::{Allocation, Convert, File};
use crate::units;

/// The smallest and largest sizes that make sense; beyond them is a typing error, or a machine that would not start.
const WINDOW_BYTES: (u64, u64) = (1 << 20, 1 << 30);
/// Of a large cache; of a small one it is less (`tidegate_engine::Config::new`).
const WINDOW_DEFAULT: u64 = 128 << 20;
const POLL_MOST: Duration = Duration::from_millis(1);
/// An origin that has not answered for less is only slow.
const STALL_TIMEOUT_LEAST: Duration = Duration::from_secs(1);
const DIRTY_RAM_BYTES: (u64, u64) = (0, 1 << 30);
const READ_AHEAD_BYTES: (u64, u64) = (0, 1 << 30);
const BATCH_BYTES: (u64, u64) = (64 << 10, 1 << 30);
/// At least the largest request that NBD clients send without asking (32 MiB), and the sectors at its edges.
const REQUEST_BYTES: (u64, u64) = (REQUEST_BYTES_MAX, 64 << 30);

impl File {
    /// Relations between values, and paths. The error names the key whose line is to blame.
    pub(super) fn validate(&self) -> Result<(), (&'static str, String)> {
        let relative = self.nbd.iter().filter_map(Address::path).find(|path| !path.is_absolute());
        for (key, path) in [
            ("origin", self.origin.as_deref()),
            ("cache", self.cache.as_deref()),
            ("nbd", relative),
            ("control", self.control.as_deref()),
            ("state", self.state.as_deref()),
            ("certificate", self.tls.certificate.as_deref()),
            ("key", self.tls.key.as_deref()),
            ("client_ca", self.tls.client_ca.as_deref()),
        ] {
            if path.is_some_and(|path| !path.is_absolute()) {
                return Err((key, format!("`{key}` is a relative path; write it from / on")));
            }
        }
        if self.state.as_ref().and_then(|state| state.extension()).is_some_and(|extension| extension == "dirty") {
            let what = "`state` ends in .dirty, as the list of dirty blocks beside it is called; name it otherwise, such as NAME.state";
            return Err(("state", what.to_owned()));
        }
        if self.origin.is_some() && self.origin == self.cache {
            return Err(("cache", "`cache` and `origin` are the same; the cache must be a device or file of its own".to_owned()));
        }
        match (&self.tls.certificate, &self.tls.key, &self.tls.client_ca) {
            (Some(_), Some(_), _) | (None, None, None) => {}
            (None, Some(_), _) => return Err(("key", "`key` without `certificate`; name both".to_owned())),
            (Some(_), None, _) => return Err(("certificate", "`certificate` without `key`; name both".to_owned())),
            (None, None, Some(_)) => return Err(("client_ca", "`client_ca` without `certificate` and `key`; name all three".to_owned())),
        }
        if let Some(address) = self.nbd.iter().find(|address| self.tls.certificate.is_none() && address.needs_tls()) {
            return Err(("nbd", address.refusal()));
        }
        for (key, text) in [("name", &self.export.name), ("description", &self.export.description)] {
            if !nbd::is_string(text.as_bytes()) {
                return Err((key, format!("`{key}` must have at most 4096 bytes and no NUL")));
            }
        }
        if !self.export.clients.is_empty() && self.tls.client_ca.is_none() {
            let what = "`clients` without `client_ca` below [tls]: name the authority that signs their certificates";
            return Err(("clients", what.to_owned()));
        }
        let within = |key: &'static str, size: Option<Size>, (least, most): (u64, u64)| match size {
            Some(Size(bytes)) if bytes < least || bytes > most => {
                Err((key, format!("`{key}` must be from {} to {}", units::show_size(least), units::show_size(most))))
            }
            _ => Ok(()),
        };
        within("destage_batch", self.gate.destage_batch, BATCH_BYTES)?;
        within("window", self.log.window, WINDOW_BYTES)?;
        within("dirty_ram", self.log.dirty_ram, DIRTY_RAM_BYTES)?;
        within("read_ahead", self.log.read_ahead, READ_AHEAD_BYTES)?;
        within("dirty_ram_least", self.log.dirty_ram_least, DIRTY_RAM_BYTES)?;
        within("bytes", self.limits.bytes, REQUEST_BYTES)?;
        if self.limits.poll.is_some_and(|span| span.0 > POLL_MOST) {
            return Err(("poll", "`poll` must be at most 1 ms: the processor does nothing else meanwhile".to_owned()));
        }
        if self.limits.stall_timeout.is_some_and(|span| span.0 < STALL_TIMEOUT_LEAST) {
            let what = "`stall_timeout` must be at least 1 s: in less, a disk that is well may show no sign of life";
            return Err(("stall_timeout", what.to_owned()));
        }
        if self.wear.rated_tbw == Some(Size(0)) {
            return Err((
                "rated_tbw",
                "`rated_tbw` is zero; write what the maker of the SSD states, such as \"150TB\", or leave it out".to_owned(),
            ));
        }
        if self.wear.daily_write_budget == Some(Size(0)) {
            let what =
                "`daily_write_budget` is zero; leave it out for no limit, or set `fill = false` below [log] to keep nothing that is read";
            return Err(("daily_write_budget", what.to_owned()));
        }
        let window = self.log.window.map_or(WINDOW_DEFAULT, |size| size.0);
        if self.log.dirty_ram.is_some_and(|size| size.0 > window) {
            return Err((
                "dirty_ram",
                format!("`dirty_ram` must not exceed `window` ({}), of which it is a part", units::show_size(window)),
            ));
        }
        if let (Some(least), Some(all)) = (&self.log.dirty_ram_least, &self.log.dirty_ram)
            && least.0 > all.0
        {
            let what = format!("`dirty_ram_least` must not exceed `dirty_ram` ({}), of which it is a part", units::show_size(all.0));
            return Err(("dirty_ram_least", what));
        }
        if self.log.convert == Some(Convert::Randomness) && self.log.allocation != Some(Allocation::SmallWrites) {
            return Err((
                "convert",
                "`convert` says which writes are small, and nobody asks; set allocation = \"small-writes\", too".to_owned(),
            ));
        }
        self.spin.validate()?;
        let floor = self.gate.free_floor.map_or(10, |share| share.0);
        let reserve = self.gate.reserve.map_or(2, |share| share.0);
        if reserve > floor {
            return Err(("reserve", format!("`reserve` ({reserve}%) must not exceed `free_floor` ({floor}%)")));
        }
        if floor > 90 {
            return Err(("free_floor", "`free_floor` must be at most 90%, or nothing would stay in the cache".to_owned()));
        }
        if floor + reserve >= 100 {
            let what = format!("`free_floor` ({floor}%) and `reserve` ({reserve}%) must leave something of the cache");
            return Err(("free_floor", what));
        }
        Ok(())
    }
}
