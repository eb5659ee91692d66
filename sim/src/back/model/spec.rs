//! A device as data: the figures of one drive in a TOML file, checked, and the model built from them. Those in `sim/devices` are part of
//! the program; others are named by their path. A file that cannot be is refused in one line:
//!
//! ```text
//!   my-disk.toml:7: mechanics.rpm = 0: a platter turns; give its speed in rotations per minute, such as 7200
//! ```

use super::hdd::HddSpec;
use super::{Hdd, Model, Ssd};
use crate::chance::Chance;
use serde::Deserialize;
use tidegate_engine::time::Duration;

/// The device files that are part of the program, by name.
const SHIPPED: [(&str, &str); 10] = [
    ("hdd-7200-2010", include_str!("../../../devices/hdd-7200-2010.toml")),
    ("hdd-7200-2018", include_str!("../../../devices/hdd-7200-2018.toml")),
    ("ssd-100gb-2010", include_str!("../../../devices/ssd-100gb-2010.toml")),
    ("x25-m-80gb", include_str!("../../../devices/x25-m-80gb.toml")),
    ("mtron-3035", include_str!("../../../devices/mtron-3035.toml")),
    ("mtron-3035-fast", include_str!("../../../devices/mtron-3035-fast.toml")),
    ("mx100-256gb", include_str!("../../../devices/mx100-256gb.toml")),
    ("mx100-4-dies", include_str!("../../../devices/mx100-4-dies.toml")),
    ("nvme-tlc", include_str!("../../../devices/nvme-tlc.toml")),
    ("network-1ms", include_str!("../../../devices/network-1ms.toml")),
];

/// The figures of an SSD. Megabytes are 10⁶ bytes.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SsdSpec {
    #[serde(rename = "kind")]
    _kind: String,
    pub capacity_mb: u64,
    /// The write buffer; unused by a service model.
    #[serde(default)]
    pub buffer_kib: u64,
    pub link: Link,
    pub controller: Controller,
    pub ftl: FtlSpec,
    pub flash: Option<Flash>,
    pub power: SsdPower,
}

/// The host's link: one command's bytes after the other's.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Link {
    pub read_mb_s: u64,
    pub write_mb_s: u64,
    /// Of each command, on the link.
    pub read_command_ns: u64,
    pub write_command_ns: u64,
    pub depth: usize,
    /// A FLUSH waits like any command (NVMe), or goes alone (SATA).
    pub queued_flush: bool,
}

/// What the firmware takes for a command, beside others.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Controller {
    pub read_us: u64,
    pub write_us: u64,
    pub flush_us: u64,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum MapKind {
    /// No flash: a time for each command and each byte.
    Service,
    #[default]
    Page,
    Bast,
    Fast,
}

/// Over what a page-mapped SSD spreads what is written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Layout {
    /// Over all dies in turn, whatever the addresses.
    #[default]
    Striped,
    /// Over the dies of a channel: each channel has a stretch of the addresses, as paper 003 assumes.
    Contiguous,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FtlSpec {
    pub map: MapKind,
    /// Page.
    #[serde(default)]
    pub layout: Layout,
    /// Service: how long the bytes of a read take while a write of 64 KiB or more is in the drive.
    #[serde(default)]
    pub read_beside_write_percent: u64,
    /// Page: flash beyond the capacity.
    #[serde(default)]
    pub spare_percent: u64,
    /// Page: a die cleans while no more of its blocks are free.
    #[serde(default)]
    pub gc_low_percent: u64,
    /// Page: the age it begins with: so much is filled, and so many times as much was overwritten at random.
    #[serde(default)]
    pub used_percent: u64,
    #[serde(default)]
    pub overwritten_times: u64,
    /// Bast, fast: the unit of merging, and how many log blocks there are.
    #[serde(default)]
    pub merge_kib: u64,
    #[serde(default)]
    pub logs: usize,
}

/// The flash. A die programs one page on each of its planes at once.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Flash {
    pub channels: u64,
    /// Of each channel.
    pub dies: u64,
    pub planes: u64,
    pub page_kib: u64,
    pub block_pages: u64,
    pub read_us: u64,
    pub program_us: u64,
    pub erase_us: u64,
    pub channel_mb_s: u64,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SsdPower {
    pub idle_mw: u64,
    pub read_mw: u64,
    pub write_mw: u64,
}

/// A device's figures, checked.
#[derive(Clone, Debug)]
pub enum Spec {
    Hdd(Box<HddSpec>),
    Ssd(Box<SsdSpec>),
}

impl Spec {
    /// The names of the devices that are part of the program.
    pub fn names() -> impl Iterator<Item = &'static str> {
        SHIPPED.iter().map(|(name, _)| *name)
    }

    /// The device of that name, or of the file at that path. The error is one line.
    pub fn load(name_or_path: &str) -> Result<Spec, String> {
        if let Some((name, text)) = SHIPPED.iter().find(|(name, _)| *name == name_or_path) {
            return Spec::parse(&format!("{name}.toml"), text);
        }
        let names = Spec::names().collect::<Vec<_>>().join(", ");
        let text = std::fs::read_to_string(name_or_path)
            .map_err(|error| format!("{name_or_path}: no device: {error}; name a TOML file or one of {names}"))?;
        Spec::parse(name_or_path, &text)
    }

    /// The device that `text` describes; `file` is what errors call it.
    pub fn parse(file: &str, text: &str) -> Result<Spec, String> {
        let fail = |error: toml::de::Error| {
            let line = error.span().map_or(1, |span| text[..span.start.min(text.len())].matches('\n').count() + 1);
            format!("{file}:{line}: {}", error.message().lines().collect::<Vec<_>>().join(" "))
        };
        let table: toml::Table = text.parse().map_err(fail)?;
        let kind = table.get("kind").and_then(toml::Value::as_str).unwrap_or_default();
        let (spec, rules) = match kind {
            "hdd" => {
                let spec: HddSpec = toml::from_str(text).map_err(fail)?;
                let rules = hdd_rules(&spec);
                (Spec::Hdd(Box::new(spec)), rules)
            }
            "ssd" => {
                let spec: SsdSpec = toml::from_str(text).map_err(fail)?;
                let rules = ssd_rules(&spec);
                (Spec::Ssd(Box::new(spec)), rules)
            }
            _ => {
                let line = line_of(text, "kind");
                return Err(format!("{file}:{line}: kind = {kind:?}: say kind = \"hdd\" or kind = \"ssd\" at the top"));
            }
        };
        match rules.into_iter().find(|rule| !rule.holds) {
            None => Ok(spec),
            Some(Rule { key, value, why, .. }) => Err(format!("{file}:{}: {key} = {value}: {why}", line_of(text, key))),
        }
    }

    /// The model of this device. Only the age of a page-mapped SSD is drawn from the seed.
    pub fn build(&self, seed: u64) -> Model {
        match self {
            Spec::Hdd(spec) => Model::Hdd(Box::new(Hdd::new((**spec).clone()))),
            Spec::Ssd(spec) => {
                let mut ssd = Ssd::new((**spec).clone());
                if spec.ftl.used_percent > 0 {
                    ssd.precondition(spec.ftl.used_percent, spec.ftl.overwritten_times, &mut Chance::new(seed, "age"));
                }
                Model::Ssd(Box::new(ssd))
            }
        }
    }

    /// The same device with another capacity: as many dies and as fast, with fewer blocks; an arm that crosses all of it in the same time.
    pub fn with_capacity_mb(mut self, megabytes: u64) -> Spec {
        match &mut self {
            Spec::Hdd(spec) => spec.capacity_mb = megabytes,
            Spec::Ssd(spec) => spec.capacity_mb = megabytes,
        }
        self
    }

    /// The same device, filled to so many percent, and as much overwritten so many times. An HDD does not age.
    pub fn aged(mut self, used_percent: u64, overwritten_times: u64) -> Spec {
        if let Spec::Ssd(spec) = &mut self {
            (spec.ftl.used_percent, spec.ftl.overwritten_times) = (used_percent, overwritten_times);
        }
        self
    }

    /// The same SSD with another layout. Of a device that is not page-mapped: none.
    pub fn laid_out(mut self, layout: Layout) -> Option<Spec> {
        let Spec::Ssd(spec) = &mut self else { return None };
        spec.ftl.layout = layout;
        (spec.ftl.map == MapKind::Page).then_some(self)
    }

    /// The same SSD behind a host that takes so much longer for each command, and hands out at most so many at once. Of an HDD: none.
    pub fn behind(mut self, overhead: Duration, depth: Option<usize>) -> Option<Spec> {
        let Spec::Ssd(spec) = &mut self else { return None };
        spec.link.read_command_ns += overhead.0;
        spec.link.write_command_ns += overhead.0;
        spec.link.depth = spec.link.depth.min(depth.unwrap_or(usize::MAX));
        Some(self)
    }

    /// Bytes that it holds.
    pub fn capacity(&self) -> u64 {
        1_000_000
            * match self {
                Spec::Hdd(spec) => spec.capacity_mb,
                Spec::Ssd(spec) => spec.capacity_mb,
            }
    }

    /// Commands that it takes at once.
    pub fn depth(&self) -> usize {
        match self {
            Spec::Hdd(spec) => spec.queue.depth,
            Spec::Ssd(spec) => spec.link.depth,
        }
    }

    /// Equal stretches of addresses that work side by side; 1 where what is written goes anywhere.
    pub fn lanes(&self) -> usize {
        match self {
            Spec::Ssd(spec) if spec.ftl.layout == Layout::Contiguous => spec.flash.as_ref().map_or(1, |flash| flash.channels as usize),
            Spec::Ssd(_) | Spec::Hdd(_) => 1,
        }
    }

    /// Small writes that a FLUSH may have to wait for, each for its [`Spec::patience`].
    pub fn flush_writes(&self) -> u64 {
        match self {
            Spec::Hdd(spec) => spec.buffer.entries as u64,
            Spec::Ssd(spec) => spec.buffer_kib / 4,
        }
    }

    /// A generous time for one small command among others.
    pub fn patience(&self) -> Duration {
        match self {
            Spec::Hdd(spec) => Duration::from_micros(2 * spec.mechanics.seek_full_us + 2 * 60_000_000 / spec.mechanics.rpm),
            Spec::Ssd(spec) => Duration::from_micros(
                2_000 + spec.flash.as_ref().map_or(0, |flash| 2 * flash.erase_us + 4 * (flash.read_us + flash.program_us)),
            ),
        }
    }
}

/// The line of a key, which may be preceded by its table: `mechanics.rpm`. Of a missing key: the line of its table, or the first one.
fn line_of(text: &str, key: &str) -> usize {
    let (table, name) = key.rsplit_once('.').unwrap_or(("", key));
    let (mut current, mut line) = ("", 1);
    for (index, content) in text.lines().map(str::trim).enumerate() {
        if let Some(header) = content.strip_prefix('[') {
            current = header.split(']').next().unwrap_or_default();
            line = if current == table { index + 1 } else { line };
        }
        if current == table && content.strip_prefix(name).is_some_and(|rest| rest.trim_start().starts_with('=')) {
            return index + 1;
        }
    }
    line
}

/// What must hold of a value.
struct Rule {
    holds: bool,
    key: &'static str,
    value: String,
    why: &'static str,
}

fn rule(holds: bool, key: &'static str, value: impl ToString, why: &'static str) -> Rule {
    Rule { holds, key, value: value.to_string(), why }
}

fn hdd_rules(spec: &HddSpec) -> Vec<Rule> {
    let HddSpec { capacity_mb, mechanics: m, buffer, queue, power, .. } = spec;
    let rate = "a link carries something; give megabytes of 10^6 bytes a second, such as 250";
    vec![
        rule((1..1 << 24).contains(capacity_mb), "capacity_mb", capacity_mb, "give megabytes of 10^6 bytes, 1 to 16000000"),
        rule(
            (60..1_000_000).contains(&m.rpm),
            "mechanics.rpm",
            m.rpm,
            "a platter turns; give its speed in rotations per minute, such as 7200",
        ),
        rule((4..1 << 20).contains(&m.track_kib), "mechanics.track_kib", m.track_kib, "give the outermost track's KiB, such as 960"),
        rule(
            (4..=m.track_kib).contains(&m.inner_track_kib),
            "mechanics.inner_track_kib",
            m.inner_track_kib,
            "the innermost track is at most as long as track_kib; make them equal for a disk without zones",
        ),
        rule((1..=256).contains(&m.zones), "mechanics.zones", m.zones, "give 1 to 256 zones"),
        rule(
            (m.seek_min_us..10_000_000).contains(&m.seek_full_us),
            "mechanics.seek_full_us",
            m.seek_full_us,
            "the longest seek takes at least seek_min_us; give microseconds",
        ),
        rule(m.link_mb_s > 0, "mechanics.link_mb_s", m.link_mb_s, rate),
        rule(
            m.write_overhead_us > 0,
            "mechanics.write_overhead_us",
            m.write_overhead_us,
            "no command is free; give microseconds, at least 1",
        ),
        rule(buffer.kib > 0, "buffer.kib", buffer.kib, "writes pass through the buffer; give KiB, such as 24576"),
        rule(buffer.entries > 0, "buffer.entries", buffer.entries, "writes pass through the buffer; give at least 1"),
        rule(buffer.window > 0, "buffer.window", buffer.window, "one entry at least is looked at; 1 means oldest first"),
        rule(queue.depth > 0, "queue.depth", queue.depth, "give the commands in flight at once, such as 31; 1 means no queue"),
        rule(power.idle_mw > power.standby_mw, "power.idle_mw", power.idle_mw, "idling needs more than standby_mw; give milliwatts"),
        rule(
            power.spin_up_mw >= power.idle_mw,
            "power.spin_up_mw",
            power.spin_up_mw,
            "spinning up needs at least idle_mw; give milliwatts",
        ),
        rule(power.spin_down_mw >= power.standby_mw, "power.spin_down_mw", power.spin_down_mw, "give at least standby_mw, in milliwatts"),
    ]
}

fn ssd_rules(spec: &SsdSpec) -> Vec<Rule> {
    let SsdSpec { capacity_mb, link, ftl, flash, .. } = spec;
    let rate = "a link carries something; give megabytes of 10^6 bytes a second, such as 530";
    let mut rules = vec![
        rule((1..1 << 24).contains(capacity_mb), "capacity_mb", capacity_mb, "give megabytes of 10^6 bytes, 1 to 16000000"),
        rule(link.read_mb_s > 0, "link.read_mb_s", link.read_mb_s, rate),
        rule(link.write_mb_s > 0, "link.write_mb_s", link.write_mb_s, rate),
        rule(link.read_command_ns > 0, "link.read_command_ns", link.read_command_ns, "no command is free; give nanoseconds, at least 1"),
        rule(link.write_command_ns > 0, "link.write_command_ns", link.write_command_ns, "no command is free; give nanoseconds, at least 1"),
        rule(link.depth > 0, "link.depth", link.depth, "give the commands in flight at once, such as 32"),
    ];
    match ftl.map {
        MapKind::Service => rules.push(rule(
            ftl.read_beside_write_percent >= 100,
            "ftl.read_beside_write_percent",
            ftl.read_beside_write_percent,
            "give at least 100, for no slowing",
        )),
        MapKind::Page => rules.push(rule(
            (1..100).contains(&ftl.spare_percent) && ftl.used_percent <= 100,
            "ftl.spare_percent",
            ftl.spare_percent,
            "cleaning needs spare flash (1 to 99 percent), and used_percent is at most 100",
        )),
        MapKind::Bast | MapKind::Fast => {
            rules.push(rule(ftl.merge_kib >= 8, "ftl.merge_kib", ftl.merge_kib, "give the block that is merged, in KiB, such as 512"));
            rules.push(rule(ftl.logs >= 2, "ftl.logs", ftl.logs, "give at least 2 log blocks"));
        }
    }
    let Some(flash) = flash else {
        rules.push(rule(ftl.map == MapKind::Service, "flash", "nothing", "a map other than \"service\" needs a table [flash]"));
        return rules;
    };
    let counts = [
        ("flash.channels", flash.channels),
        ("flash.dies", flash.dies),
        ("flash.planes", flash.planes),
        ("flash.block_pages", flash.block_pages),
        ("flash.channel_mb_s", flash.channel_mb_s),
        ("flash.program_us", flash.program_us),
    ];
    rules.extend(counts.map(|(key, value)| rule((1..1 << 20).contains(&value), key, value, "give from 1 to 1048575")));
    let page_fits = flash.page_kib >= 4 && flash.page_kib.is_multiple_of(4);
    rules.push(rule(page_fits, "flash.page_kib", flash.page_kib, "give a multiple of 4, the page of the map"));
    // Each channel of a contiguous layout may hold part of a unit.
    let open = if ftl.layout == Layout::Contiguous { flash.channels } else { 0 };
    let least = (4 + open) * flash.planes * flash.page_kib;
    let buffer = (spec.buffer_kib >= least.max(64), "buffer_kib", spec.buffer_kib);
    rules.push(rule(
        buffer.0,
        buffer.1,
        buffer.2,
        "the buffer holds at least 64 KiB, and 4 x planes x page_kib (of a contiguous layout: and one more for each channel)",
    ));
    rules
}
