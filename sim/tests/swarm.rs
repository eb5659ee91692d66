//! The swarm in the budget of a commit, and whether it would notice anything. (`tidegate sim swarm` runs more seeds, and longer.)

use tidegate_engine::Canary;
use tidegate_sim::plan::Profile;
use tidegate_sim::replay::replay;
use tidegate_sim::swarm::{Options, Report, swarm};

fn quiet(options: &Options) -> Report {
    swarm(options, &mut |_| {})
}

#[test]
fn every_promise_is_kept() {
    let report = quiet(&Options { seeds: 100, ops: 1_500, ..Options::default() });
    assert_eq!(report.violations, [], "replay with `tidegate sim replay SEED --ops 1500`");
    assert_eq!((report.seeds, report.ops > 100_000), (100, true));
    assert!(report.recoveries > 5_000, "{} recoveries", report.recoveries);
}

#[test]
fn a_swarm_is_the_same_whatever_the_number_of_threads() {
    let options = Options { seeds: 12, ops: 300, first_seed: 7, ..Options::default() };
    let [one, two] = [1, 2].map(|threads| quiet(&Options { threads, ..options.clone() }));
    assert_eq!((one.trace, one.ops, one.recoveries), (two.trace, two.ops, two.recoveries));
    let other = quiet(&Options { first_seed: 8, ..options });
    assert_ne!(one.trace, other.trace);
}

#[test]
fn every_promise_is_kept_with_an_ssd_that_soon_fails() {
    let report = quiet(&Options { seeds: 120, profile: Profile::Failing, ..Options::default() });
    assert_eq!(report.violations, [], "replay with `tidegate sim replay SEED --ops 5000 --profile failing`");
    assert!(report.recoveries > 200, "{} recoveries", report.recoveries);
}

#[test]
fn every_promise_is_kept_before_an_origin_that_refuses_much() {
    let report = quiet(&Options { seeds: 60, profile: Profile::Refusing, ..Options::default() });
    assert_eq!(report.violations, [], "replay with `tidegate sim replay SEED --ops 5000 --profile refusing`");
}

#[test]
fn every_canary_is_found() {
    for canary in Canary::ALL {
        let report = quiet(&Options { canary: Some(canary), stop_at_first: true, ..Options::default() });
        assert!(!report.violations.is_empty(), "{canary:?} was not found in {} seeds", report.seeds);
    }
}

/// The first violation that the swarm finds of a canary says one of these.
fn expect_found(canary: Canary, seeds: u64, says: [&str; 2]) {
    let options = Options { canary: Some(canary), stop_at_first: true, seeds, ops: 1_500, ..Options::default() };
    let found = quiet(&options).violations;
    assert!(found.iter().any(|violation| says.iter().any(|words| violation.what.contains(words))), "{found:?}");
}

/// By what is read after a crash, not by an assertion of the engine.
#[test]
fn the_swarm_finds_a_write_that_survives_in_part() {
    expect_found(Canary::WriteInTwoGroups, 100, ["survived in part", "acknowledged before, is lost"]);
}

/// By who waits for it, not by everything coming to rest.
#[test]
fn the_swarm_finds_what_is_tried_again_too_late() {
    expect_found(Canary::RestsTooLong, 300, ["has waited for", "has taken"]);
}

/// Another block's contents, or an earlier life's, in a slot whose record survived a crash that its data did not.
#[test]
fn the_swarm_finds_contents_that_pass_for_others() {
    expect_found(Canary::CrcAlone, 100, ["was read as stamp", "holds stamp"]);
}

#[test]
fn a_replay_tells_the_same_violation_with_its_history() {
    let canary = Some(Canary::FlushDoesNotWait);
    let options = Options { canary, stop_at_first: true, seeds: 200, ops: 500, ..Options::default() };
    let found = quiet(&options).violations.remove(0);
    let mut story = Vec::new();
    assert!(replay(found.seed, &options, &mut story).expect("a vector takes everything"));
    let story = String::from_utf8(story).expect("words");
    let told = story.contains(found.what.split("; ").next().expect("a clause"));
    assert!(told && story.contains("VIOLATION"), "{}\n{}", found.what, story.lines().rev().take(8).collect::<Vec<_>>().join("\n"));
}

#[test]
fn a_report_is_json_for_programs() {
    let report = quiet(&Options { seeds: 1, ops: 50, ..Options::default() });
    let json = serde_json::to_value(&report).expect("a report");
    assert_eq!((json["seeds"].as_u64(), json["violations"].as_u64()), (Some(1), Some(report.violations.len() as u64)));
    assert_eq!(json["trace"].as_str().map(str::len), Some(16));
}
