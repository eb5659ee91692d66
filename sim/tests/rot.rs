//! A hundred thousand corruptions: each is noticed or makes no difference, none is returned as data. (`tidegate sim rot` injects more.)

use tidegate_sim::rot::{Options, campaign};

#[test]
fn every_corruption_is_noticed_or_harmless_and_none_is_returned_as_data() {
    let report = campaign(&Options { corruptions: 100_000, first_seed: 0, threads: 2 }, &|_| {});
    let first: Vec<_> = report.violations.iter().take(10).collect();
    assert!(first.is_empty(), "{} violations: {first:#?}", report.violations.len());
    assert!(report.corruptions >= 100_000);
    // Every kind has been everywhere: five in five kinds of metadata, five in data in service and at rest.
    assert_eq!(report.injected.len(), 35, "{:?}", report.injected.keys());
    let [noticed, harmless] = [&report.noticed, &report.harmless].map(|counts| counts.values().sum::<u64>());
    assert_eq!(noticed + harmless, report.corruptions, "each is accounted for: {report:?}");
    assert!(noticed > 25_000 && report.noticed.values().all(|&count| count > 100), "{report:?}");
    println!("{}", serde_json::to_string_pretty(&report).expect("a report"));
}
