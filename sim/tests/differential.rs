//! The volume against what a flat array of sectors would hold: reads, writes, TRIM, zeroes, FLUSH and FUA of 1 to 2,048 sectors at any
//! alignment (in a fifth of the runs of up to 65,536, as many as NBD takes), with power cuts, kills and faults. The array is the oracle
//! (`sim/src/front/oracle.rs`): one version of each sector while nothing is in flight, and after a crash those that a prefix of what was
//! logged explains.
//! (`tidegate sim swarm --profile wide` is the same for as long as you like; `make soak` makes 10^7 operations of it.)

use std::collections::BTreeSet;

use tidegate_engine::request::Command;
use tidegate_engine::time::Instant;
use tidegate_sim::chance::Chance;
use tidegate_sim::front::load::Load;
use tidegate_sim::plan::{Plan, Profile};
use tidegate_sim::swarm::{Options, swarm};
use tidegate_sim::world::superblock;

const OPS: u64 = 12_500;

#[test]
fn a_volume_reads_as_a_flat_array_would_whatever_the_requests_and_the_crashes() {
    let report = swarm(&Options { seeds: 18, ops: OPS, profile: Profile::Wide, ..Options::default() }, &mut |_| {});
    println!("{} operations, {} recoveries", report.ops, report.recoveries);
    assert_eq!(report.violations, [], "replay with `tidegate sim replay SEED --ops {OPS} --profile wide`");
    assert!(report.ops >= 200_000 && report.recoveries > 100, "{} operations, {} recoveries", report.ops, report.recoveries);
}

/// What would make the test above an empty one.
#[test]
fn requests_have_nearly_every_length_and_any_alignment_on_volumes_larger_and_smaller_than_their_caches() {
    let (mut lengths, mut places, mut kinds, mut caches) = (BTreeSet::new(), BTreeSet::new(), BTreeSet::new(), BTreeSet::new());
    for seed in 0..18 {
        let plan = Plan::draw_wide(seed, OPS, None);
        let geometry = plan.config.geometry;
        let slots = u64::from(geometry.sets) * u64::from(geometry.set_slots);
        caches.insert(slots < geometry.blocks());
        assert!(geometry.volume_atoms * 512 >= 7 << 20 && plan.crashes >= 2, "seed {seed}");
        let (checksum, chance) = (superblock(&plan).checksum, Chance::new(seed, "load"));
        let mut load = Load::new(plan.mix, checksum, geometry.block_atoms, geometry.volume_atoms, OPS, chance);
        while let Some(request) = load.next(0) {
            load.wake(Instant(0));
            load.replied(request.id);
            kinds.insert(match request.command {
                Command::Read => "read",
                Command::Write { fua, .. } => ["write", "write with FUA"][usize::from(fua)],
                Command::Trim { fua } => ["trim", "trim with FUA"][usize::from(fua)],
                Command::Zero { fua, .. } => ["zeroes", "zeroes with FUA"][usize::from(fua)],
                Command::Flush => "flush",
                Command::Cache | Command::Status { .. } => continue,
            });
            if !request.span.is_empty() {
                lengths.insert(request.span.atoms);
                places.insert((request.span.start % 8, request.span.end() % 8));
            }
        }
    }
    let (short, longest) = (lengths.range(..=2_048).count(), lengths.last().copied().unwrap_or_default());
    assert!(short > 1_800 && lengths.first() == Some(&1) && longest > 10_000, "{short} lengths of up to 2,048 sectors, {longest}");
    assert_eq!((places.len(), kinds.len(), caches.len()), (64, 8, 2));
}
