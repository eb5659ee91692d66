//! A thousand strangers before the fence: no stale block is served more often than docs/durability.md says.

use tidegate_sim::strangers::{Case, Met, Stranger, epochs_of_an_older_copy, meet};

const CASES: u64 = 1_000;

/// How many of these escaped, how many should by chance, and how far that may be off: four standard deviations.
fn escapes<'a>(cases: impl Iterator<Item = &'a Case>) -> (f64, f64, f64) {
    let (mut escaped, mut expected, mut variance) = (0.0, 0.0, 0.0);
    for case in cases {
        let probability = case.escape_probability();
        assert!(probability <= case.stated_probability() + 1e-9, "{case:?}");
        escaped += f64::from(u32::from(case.met == Met::Stale));
        expected += probability;
        variance += probability * (1.0 - probability);
    }
    (escaped, expected, 4.0 * variance.sqrt())
}

#[test]
fn a_thousand_strangers_are_refused_or_escape_as_seldom_as_is_stated() {
    let cases: Vec<Case> = (0..CASES).map(meet).collect();
    for case in &cases {
        match case.met {
            // What nobody changed is not refused, but for a mark of a block that is not in the cache.
            Met::Refused => assert!(case.changed > 0 || case.is_stopped, "{case:?}"),
            Met::Right => assert_eq!(case.changed, 0, "{case:?}"),
            Met::Stale => assert!(case.changed > 0, "{case:?}"),
        }
        // Never by chance: marks and samples both see these.
        let is_certain = match case.stranger {
            Stranger::Checked => case.is_stopped,
            Stranger::Swapped => case.is_stopped || case.clean > 0,
            Stranger::Written | Stranger::Cloned | Stranger::Older => case.changed > 0 && case.samples >= case.clean,
        };
        assert!(!is_certain || case.met == Met::Refused, "{case:?}");
    }
    let with_changes = || cases.iter().filter(|case| case.changed > 0);
    let killed = with_changes().filter(|case| !case.is_stopped);
    let (escaped, expected, margin) = escapes(killed);
    assert!((escaped - expected).abs() <= margin, "after a kill {escaped} escaped, {expected:.1} ± {margin:.1} are due");
    assert!(escaped > 20.0, "enough escaped that a sample too few would show: {escaped}");
    let (escaped, expected, margin) = escapes(with_changes().filter(|case| case.is_stopped));
    assert!(escaped <= expected + margin, "after a stop {escaped} escaped, {expected:.1} ± {margin:.1} are due without marks");
    for stranger in Stranger::ALL {
        let of_kind = cases.iter().filter(|case| case.stranger == stranger);
        let [refused, right, stale] =
            [Met::Refused, Met::Right, Met::Stale].map(|met| of_kind.clone().filter(|case| case.met == met).count());
        println!("{stranger:?}: {refused} refused, {right} right, {stale} stale");
        assert!(refused > 30, "{stranger:?}: {refused}");
    }
}

#[test]
fn an_older_copy_of_a_cache_is_always_told_by_its_epoch() {
    for seed in 0..200 {
        let (cache, copy) = epochs_of_an_older_copy(seed);
        assert!(copy < cache, "seed {seed}: a copy of epoch {copy} beside a cache of epoch {cache}");
    }
}
