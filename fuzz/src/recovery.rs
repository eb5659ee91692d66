//! A whole cache, changed anywhere: pages that rotted, that came from elsewhere, or that somebody sealed again. A start ends, in service
//! or in a refusal, whatever it finds; and what it serves it serves to the end.

use std::sync::OnceLock;

use tidegate_engine::Config;
use tidegate_engine::Control;
use tidegate_engine::block::{PAGE_ATOMS, Span};
use tidegate_engine::config::Placement;
use tidegate_engine::fault_point::FaultPoint;
use tidegate_engine::op::Zone;
use tidegate_engine::payload::Payload;
use tidegate_engine::probe::Health;
use tidegate_engine::request::Command;
use tidegate_engine::time::Duration;
use tidegate_sim::back::contents::Contents;
use tidegate_sim::back::volatile::Survive;
use tidegate_sim::chance::Chance;
use tidegate_sim::stamp::Stamps;

use crate::input::Input;
use crate::memory::Memory;
use crate::rig::{FORMAT, Rig, formatted, small};
use crate::seal::seal;

const PAGE: usize = 4096;
/// Changes of one image.
const CHANGES_MAX: usize = 16;

/// How the cache was left.
#[derive(Clone, Copy)]
enum Left {
    Stopped,
    PowerCut,
}

pub fn run(data: &[u8]) {
    let mut input = Input(data);
    let (config, mut memory) = image(input.below(4));
    let mut cache = memory.cache.visible().clone();
    for _ in 0..CHANGES_MAX {
        if input.is_empty() {
            break;
        }
        change(&config, &mut cache, &mut input);
    }
    memory = Memory::new(cache, memory.origin.visible().clone());
    let mut rig = Rig::new(config, memory);
    if rig.recover() {
        serve(&mut rig);
        // Where the journal that was found leaves no room for a checkpoint, the SSD is given up, and no host here can note that.
        let stops = rig.stop();
        let is_given_up = rig.engine.health() == Health::Unfenced && rig.engine.faults().has(FaultPoint::CheckpointCramped);
        assert!(stops || is_given_up, "a stop is refused: {:?}", rig.engine.damage());
        rig.restart();
        rig.recover();
    }
}

/// Everything is read, some is written, everything goes home.
fn serve(rig: &mut Rig) {
    let volume = Span::new(0, rig.config.geometry.volume_atoms);
    let _ = rig.ask(volume, Command::Read);
    let status = rig.ask(volume, Command::Status { tiers: true, one: false });
    assert!(status.is_ok(), "{status:?}");
    for block in [0, 9, 63] {
        let span = rig.config.geometry.block_span(tidegate_engine::block::Block(block));
        let written = rig.ask(span, Command::Write { data: Stamps::written(9, span.start, span.atoms), fua: true });
        let read = rig.ask(span, Command::Read);
        assert!(written.is_err() || read.is_ok(), "block {block} was written and cannot be read: {read:?}");
    }
    let _ = rig.ask(Span::new(8, 24), Command::Trim { fua: false });
    let _ = rig.ask(Span::default(), Command::Flush);
    rig.control(Control::Drain);
    rig.pass(Duration::from_secs(1));
    (0..2_000).all(|_| rig.memory.in_flight() > 0 && rig.step(0));
    rig.control(Control::CancelDrain);
}

// --- changes ---

/// Page by page: where the metadata lies that may be changed, and with which magic it is sealed.
fn change(config: &Config, cache: &mut Contents, input: &mut Input) {
    let (start, pages, magic) = place(config, input);
    let mut bytes: Vec<u8> = (0..pages).flat_map(|page| cache.page_bytes(start + page * PAGE_ATOMS)).collect();
    let how = input.byte();
    match how & 7 {
        0 => bytes.fill(0),
        // Another page of the same kind, as it is or taken for this one.
        1 => {
            let (other, ..) = place(config, input);
            bytes = (0..pages)
                .flat_map(|page| cache.page_bytes((other + page * PAGE_ATOMS).min(config.geometry.journal().end() - PAGE_ATOMS)))
                .collect();
        }
        2..5 => {
            let (at, value) = (usize::from(input.word()) % bytes.len(), input.byte());
            bytes[at] = bytes[at].wrapping_add(value);
        }
        // Fields near the heads, where the counts are.
        _ => {
            let at = 28 + usize::from(input.byte());
            let new = input.take(usize::from(how >> 4) + 1);
            bytes[at..at + new.len()].copy_from_slice(new);
        }
    }
    if how & 8 != 0 && (how & 7 != 0) {
        seal(&mut bytes, magic, FORMAT, start);
    }
    for (page, bytes) in (0..).zip(bytes.chunks_exact(PAGE)) {
        cache.write(start + page * PAGE_ATOMS, &Stamps::from_bytes(bytes));
    }
}

/// Some page of metadata (of a header all of them): first atom, pages, magic.
fn place(config: &Config, input: &mut Input) -> (u64, u64, &'static [u8; 4]) {
    let geometry = &config.geometry;
    let one = |start: u64, magic| (start, 1, magic);
    match input.below(8) {
        0 => one(geometry.superblock(input.below(2) as u32).start, b"TIDS"),
        1 => one(geometry.map_page(0, input.below(u64::from(geometry.map_pages())) as u32).start, b"TIDM"),
        2 => one(geometry.map_page(1, input.below(u64::from(geometry.map_pages())) as u32).start, b"TIDM"),
        3 => one(geometry.map_page(input.below(2) as u32, geometry.map_pages()).start, b"TIDR"),
        4 => {
            let (set, copy) = (input.below(16) as u32, input.below(2) == 1);
            let span = if copy { geometry.header_copy(set) } else { geometry.header(set) };
            (span.start, span.atoms / PAGE_ATOMS, b"TIDH")
        }
        _ => one(geometry.journal_page(input.below(u64::from(geometry.journal_pages)) as u32).start, b"TIDJ"),
    }
}

// --- images ---

/// One of four caches with something of everything in them: stopped or cut off, under log or set placement.
fn image(number: u64) -> (Config, Memory) {
    thread_local! {
        static IMAGES: [OnceLock<(Config, Memory)>; 4] = const { [const { OnceLock::new() }; 4] };
    }
    let made = |images: &[OnceLock<(Config, Memory)>; 4]| {
        let placement = if number & 2 == 0 { Placement::Log } else { Placement::Set };
        let left = if number & 1 == 0 { Left::PowerCut } else { Left::Stopped };
        images[number as usize].get_or_init(|| make(placement, left)).clone()
    };
    IMAGES.with(made)
}

fn make(placement: Placement, left: Left) -> (Config, Memory) {
    let mut config = small(8, 48);
    config.placement = placement;
    config.geometry.journal_pages = config.geometry.journal_pages.max(config.journal_pages_needed() as u32);
    let memory = formatted(&config);
    let mut rig = Rig::new(config, memory);
    assert!(rig.recover());
    let mut number = 0;
    let mut write = |rig: &mut Rig, start: u64, atoms: u64, fua: bool| {
        number += 1;
        let span = Span::new(start, atoms);
        rig.ask(span, Command::Write { data: Stamps::written(number, start, atoms), fua }).expect("a write");
    };
    rig.ask(Span::new(0, 128), Command::Read).expect("a read that fills");
    for round in 0..24 {
        write(&mut rig, round * 16, 16, round % 3 == 0);
        write(&mut rig, round * 8 + 3, 4, true);
        if round == 12 {
            rig.control(Control::Drain);
            rig.until("rest", |rig| rig.memory.in_flight() == 0);
        }
    }
    rig.ask(Span::new(200, 64), Command::Trim { fua: true }).expect("a trim");
    rig.ask(Span::new(64, 32), Command::Zero { no_hole: true, fua: true, fast: false }).expect("zeroes");
    write(&mut rig, 400, 40, false);
    match left {
        Left::Stopped => assert!(rig.stop(), "a stop is refused: {:?}", rig.engine.damage()),
        Left::PowerCut => rig.memory.power_cut(&Survive::All, &mut Chance::new(1, "image")),
    }
    assert!(rig.config.geometry.zone(Zone::Journal).atoms > 0);
    (rig.config, rig.memory)
}
