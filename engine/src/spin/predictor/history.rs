//! History: which timeout would have cost least in the gaps of late, and that is used in the next one. The cost is that of the drive's
//! figures, with a price on the wait of whoever wakes it.
//!
//! ```text
//!   gaps ─┬─▶ all             half as much counts what is 200 gaps back      each view: weights of gaps by length → the best timeout
//!         ├─▶ recent          … 8 gaps
//!         ├─▶ after one       gaps that followed one of the same length      the view that was best of late decides;
//!         ├─▶ after two       … that followed two of the same lengths        with little seen: the break-even
//!         └─▶ the break-even
//! ```
//! For gaps that come independently of each other, to stop at the best fixed timeout is the best that can be done at all: the drive learns
//! nothing by waiting longer but that the gap is longer. What is beyond that is in what came before, which is why there are views.

use std::collections::BTreeMap;

use super::{Microjoules, Predictor, Price, SHORTEST, Terms};
use crate::time::{Duration, Instant};

/// After so many gaps a gap counts half.
const ALL: u32 = 200;
const RECENT: u32 = 8;
const AFTER: u32 = 60;
/// After so many gaps what a view would have cost counts half.
const ACCOUNT: u32 = 16;
/// Gaps that a view must have seen before it says anything: two.
const EVIDENCE: f64 = 1.5;
/// For a view that sees few, all gaps together count as so many of its own.
const BORROWED: f64 = 2.0;
/// The worth of a start is searched for in so many steps, each of which halves what is left: to a millionth of all that could be saved.
const HALVINGS: u32 = 20;
/// Classes of gaps in an octave, from [`SHORTEST`] on.
const CLASSES: u64 = 8;

pub struct History {
    price: Price,
    all: View,
    recent: View,
    after_one: BTreeMap<u8, View>,
    after_two: BTreeMap<(u8, u8), View>,
    /// The octaves of the last two gaps, the newest first.
    last: (u8, u8),
    accounts: [Account; VIEWS],
    /// What each view says of this gap.
    said: [Duration; VIEWS],
}

const VIEWS: usize = 5;

impl History {
    pub fn new(price: Price) -> Self {
        let break_even = price.drive.pays(price.of_stop());
        History {
            price,
            all: View::new(ALL),
            recent: View::new(RECENT),
            after_one: BTreeMap::new(),
            after_two: BTreeMap::new(),
            last: (0, 0),
            accounts: Default::default(),
            said: [break_even; VIEWS],
        }
    }

    /// What each view says.
    fn ask(&self, terms: &Terms) -> [Duration; VIEWS] {
        let (one, two) = (self.after_one.get(&self.last.0), self.after_two.get(&self.last));
        let break_even = self.price.drive.pays(self.price.of_stop() + terms.start).max(terms.not_before);
        let all = self.all.best(&self.price, terms, None).unwrap_or(break_even);
        let of = |view: Option<&View>, or| view.and_then(|view| view.best(&self.price, terms, Some(&self.all))).unwrap_or(or);
        let after_one = of(one, all);
        [all, of(Some(&self.recent), all), after_one, of(two, after_one), break_even].map(|said| said.max(SHORTEST))
    }

    /// The view that was best of late.
    fn best(&self) -> usize {
        // The others have to be better by more than chance.
        let handicap = |view: usize| if view == 0 { 0 } else { self.price.of_stop() };
        (0..VIEWS).min_by_key(|&view| self.accounts[view].0 + handicap(view)).expect("there are views")
    }
}

impl Predictor for History {
    fn timeout(&mut self, _began: Instant) -> Option<Duration> {
        self.said = self.ask(&Terms::default());
        Some(self.said[self.best()])
    }

    /// Which view knows the gaps best is not a matter of the terms: the accounts are kept of what is said without any.
    fn timeout_under(&mut self, _began: Instant, terms: &Terms) -> Option<Duration> {
        // No start is kept for gaps such as never come.
        let worth = self.all.worth(&self.price, terms.every).map_or(terms.start, |worth| worth.min(terms.start));
        Some(self.ask(&Terms { start: worth, ..*terms })[self.best()])
    }

    fn learn(&mut self, gap: Duration) {
        if gap < SHORTEST {
            return;
        }
        for (account, said) in self.accounts.iter_mut().zip(self.said) {
            account.add(self.price.extra(gap, Some(said)));
        }
        self.all.add(gap);
        self.recent.add(gap);
        self.after_one.entry(self.last.0).or_insert_with(|| View::new(AFTER)).add(gap);
        self.after_two.entry(self.last).or_insert_with(|| View::new(AFTER)).add(gap);
        self.last = ((class(gap) / CLASSES) as u8, self.last.0);
    }

    /// What the views would have cost at the former price is soon forgotten.
    fn reprice(&mut self, price: Price) {
        self.price = price;
    }
}

/// What a view would have cost, more than a drive that is left on.
#[derive(Clone, Copy, Debug, Default)]
struct Account(Microjoules);

impl Account {
    fn add(&mut self, cost: Microjoules) {
        // The ACCOUNT-th root of a half is 1 - ln 2 / ACCOUNT, nearly.
        self.0 = self.0 - self.0 * 693 / (1_000 * i64::from(ACCOUNT)) + cost;
    }
}

/// By powers of two, and eighths of them.
fn class(gap: Duration) -> u64 {
    let units = gap.0 * CLASSES / SHORTEST.0;
    let octave = u64::from((units / CLASSES).max(1).ilog2());
    octave * CLASSES + (units >> octave).saturating_sub(CLASSES).min(CLASSES - 1)
}

/// Weights of gaps by length.
struct View {
    /// The weight of the next gap: it grows, so that the others need not shrink.
    weight: f64,
    growth: f64,
    total: f64,
    gaps: BTreeMap<u64, Class>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Class {
    weight: f64,
    /// Of their lengths in seconds.
    sum: f64,
    longest: Duration,
}

impl View {
    fn new(half_life: u32) -> Self {
        View { weight: 1.0, growth: 1.0 + std::f64::consts::LN_2 / f64::from(half_life), total: 0.0, gaps: BTreeMap::new() }
    }

    fn add(&mut self, gap: Duration) {
        let class = self.gaps.entry(class(gap)).or_default();
        class.weight += self.weight;
        class.sum += self.weight * gap.as_secs_f64();
        class.longest = class.longest.max(gap);
        self.total += self.weight;
        self.weight *= self.growth;
        if self.weight > 1e6 {
            self.shrink();
        }
    }

    /// All weights by that of the next gap; what counts for nothing any more is forgotten.
    fn shrink(&mut self) {
        let by = 1.0 / self.weight;
        self.gaps.values_mut().for_each(|class| (class.weight, class.sum) = (class.weight * by, class.sum * by));
        self.gaps.retain(|_, class| class.weight > 1e-4);
        self.total = self.gaps.values().map(|class| class.weight).sum();
        self.weight = 1.0;
    }

    /// The timeout that would have cost least, among those that the terms allow. Nothing, if too little was seen. Where no timeout would have
    /// saved anything, the drive is stopped when it has been idle for half as long again as ever: that is another kind of gap than those seen.
    fn best(&self, price: &Price, terms: &Terms, all: Option<&View>) -> Option<Duration> {
        if self.total / self.weight < EVIDENCE {
            return None;
        }
        let (saving_w, stop_j) = (price.saving(Duration::from_secs(1)) as f64 / 1e6, (price.of_stop() + terms.start) as f64 / 1e6);
        let classes = self.with(all);
        let longest = classes.values().next_back().map_or(SHORTEST, |class| class.longest);
        let never_seen = Duration(longest.0 + longest.0 / 2).max(price.drive.break_even());
        let (mut best, mut most) = (never_seen.max(terms.not_before), 0.0);
        for choice in choices(&classes) {
            let choice = Choice { timeout: choice.timeout.max(terms.not_before), ..choice };
            let gain = choice.gain(saving_w, stop_j);
            if gain > most {
                (best, most) = (choice.timeout, gain);
            }
            if choice.timeout == terms.not_before {
                break;
            }
        }
        Some(best)
    }

    /// What a start is worth if one may be used every so long: at that price, gaps like these use a few more than that, and at any higher one
    /// fewer. Nothing is known, if too little was seen. The time between the gaps is left out; with it, a start would be worth less.
    fn worth(&self, price: &Price, every: Duration) -> Option<Microjoules> {
        if self.total / self.weight < EVIDENCE || every == Duration::ZERO {
            return None;
        }
        let (saving_w, stop_j) = (price.saving(Duration::from_secs(1)) as f64 / 1e6, price.of_stop() as f64 / 1e6);
        let choices = choices(&self.gaps);
        let last = choices.last().expect("a drive may always be stopped at once");
        let allowed = last.seconds / every.as_secs_f64();
        let is_too_many = |start_j: f64| {
            let better = |best: (f64, f64), choice: &Choice| {
                let gain = choice.gain(saving_w, stop_j + start_j);
                if gain > best.0 { (gain, choice.count) } else { best }
            };
            choices.iter().fold((0.0, 0.0), better).1 > allowed
        };
        // Nobody pays more than all that could be saved.
        let (mut low, mut high) = (0.0, saving_w * last.seconds);
        if !is_too_many(low) {
            return Some(0);
        }
        for _ in 0..HALVINGS {
            let middle = (low + high) / 2.0;
            *(if is_too_many(middle) { &mut low } else { &mut high }) = middle;
        }
        Some((low * 1e6) as Microjoules)
    }

    /// Its own gaps, the newest of weight 1, and some of all.
    fn with(&self, all: Option<&View>) -> BTreeMap<u64, Class> {
        let scaled = |class: &Class, by: f64| Class { weight: class.weight * by, sum: class.sum * by, longest: class.longest };
        let mut classes: BTreeMap<u64, Class> =
            self.gaps.iter().map(|(&number, class)| (number, scaled(class, 1.0 / self.weight))).collect();
        for (all, (&number, class)) in all.iter().flat_map(|all| all.gaps.iter().map(move |class| (all, class))) {
            let borrowed = scaled(class, BORROWED / all.total);
            let own = classes.entry(number).or_default();
            (own.weight, own.sum, own.longest) = (own.weight + borrowed.weight, own.sum + borrowed.sum, own.longest.max(borrowed.longest));
        }
        classes
    }
}

/// A timeout, and of the gaps that are longer: how many, and how long all together.
struct Choice {
    timeout: Duration,
    count: f64,
    seconds: f64,
}

impl Choice {
    /// What it saves in all gaps, in joules.
    fn gain(&self, saving_w: f64, stop_j: f64) -> f64 {
        saving_w * (self.seconds - self.count * self.timeout.as_secs_f64()) - self.count * stop_j
    }
}

/// A little longer than the gaps of each class, the longest first; and at once.
fn choices(classes: &BTreeMap<u64, Class>) -> Vec<Choice> {
    let (mut count, mut seconds) = (0.0, 0.0);
    let mut choices = Vec::with_capacity(classes.len() + 1);
    for class in classes.values().rev() {
        choices.push(Choice { timeout: Duration(class.longest.0 + class.longest.0 / 64), count, seconds });
        (count, seconds) = (count + class.weight, seconds + class.sum);
    }
    choices.push(Choice { timeout: SHORTEST, count, seconds });
    choices
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spin::Drive;

    /// What it says after these gaps, in seconds.
    fn after(gaps: &[u64]) -> f64 {
        let mut history = History::new(Price { drive: Drive::DESKTOP, wait_mw: 6_100 });
        for &gap in gaps {
            history.timeout(Instant::ZERO);
            history.learn(Duration::from_secs(gap));
        }
        history.timeout(Instant::ZERO).expect("it always says").as_secs_f64()
    }

    #[test]
    fn classes_are_eighths_of_octaves() {
        let times = |count: u64| class(Duration(SHORTEST.0 * count));
        assert_eq!([1, 2, 3, 4, 8].map(times), [0, 8, 12, 16, 24]);
        assert_eq!(class(Duration(SHORTEST.0 + SHORTEST.0 / 8)), 1);
        assert!((1..10_000u64).map(|ms| class(Duration(ms * 1_000_000))).is_sorted());
    }

    #[test]
    fn before_anything_was_seen_it_waits_for_the_break_even() {
        let break_even = Drive::DESKTOP.break_even().as_secs_f64() + 6.1 * 7.0 / 5.4;
        assert!((after(&[]) - break_even).abs() < 1e-3);
    }

    #[test]
    fn a_metronome_that_never_pays_is_left_alone() {
        assert_eq!(after(&[20; 6]), 30.0);
        assert_eq!(after(&[25; 50]), 37.5);
    }

    #[test]
    fn gaps_that_always_pay_are_used_from_the_beginning() {
        assert_eq!(after(&[300; 10]), SHORTEST.as_secs_f64());
    }

    #[test]
    fn short_gaps_among_long_ones_are_waited_for() {
        let gaps: Vec<u64> = (0..300).map(|number| if number * 7 % 10 < 7 { 12 } else { 400 }).collect();
        let timeout = after(&gaps);
        assert!(timeout < 0.3 || (12.0..12.5).contains(&timeout), "{timeout}");
    }

    /// After so many rounds of a cycle, and so much of the next one.
    fn in_cycle(cycle: &[u64], gaps: usize) -> f64 {
        after(&cycle.iter().copied().cycle().take(40 * cycle.len() + gaps).collect::<Vec<_>>())
    }

    #[test]
    fn what_follows_on_what_is_learned() {
        assert_eq!(in_cycle(&[3, 10, 500], 2), SHORTEST.as_secs_f64(), "a long one follows on ten seconds");
        assert!(in_cycle(&[3, 10, 500], 1) > 10.0);
        assert_eq!(in_cycle(&[12, 12, 500], 2), SHORTEST.as_secs_f64(), "and on two of twelve");
        assert!(in_cycle(&[12, 12, 500], 1) > 12.0);
    }

    /// The same under terms: idle already for so many seconds, a start worth so many of standby at most, and one to be had every so many.
    fn after_under(gaps: &[u64], idle: u64, start: u64, every: u64) -> f64 {
        let price = Price { drive: Drive::DESKTOP, wait_mw: 6_100 };
        let mut history = History::new(price);
        for &gap in gaps {
            history.timeout(Instant::ZERO);
            history.learn(Duration::from_secs(gap));
        }
        let free = history.timeout(Instant::ZERO);
        let start = price.saving(Duration::from_secs(start));
        let terms = Terms { not_before: Duration::from_secs(idle), start, every: Duration::from_secs(every) };
        let said = history.timeout_under(Instant::ZERO, &terms).expect("it always says").as_secs_f64();
        assert_eq!(history.timeout(Instant::ZERO), free, "terms teach nothing");
        said
    }

    #[test]
    fn a_gap_that_is_nearly_over_is_let_go() {
        assert_eq!(after_under(&[60; 20], 0, 0, 0), SHORTEST.as_secs_f64());
        assert_eq!(after_under(&[60; 20], 20, 0, 0), 20.0, "40 s are left");
        assert_eq!(after_under(&[60; 20], 50, 0, 0), 90.0, "10 s would be left; it is another kind of gap after 90");
        assert_eq!(after_under(&[60; 20], 100, 0, 0), 100.0);
        assert_eq!(after_under(&[], 70, 0, 0), 70.0);
    }

    #[test]
    fn where_starts_are_dear_short_rests_are_left_out_and_long_ones_begin_as_soon_as_they_are_known() {
        let mixed = [60, 60, 60, 60, 600].repeat(20);
        assert_eq!(after_under(&mixed, 0, 0, 900), SHORTEST.as_secs_f64());
        let waits = after_under(&mixed, 0, 60, 900);
        assert!((60.0..61.5).contains(&waits), "until it is longer than the short ones: {waits}");
        assert_eq!(after_under(&[600; 20], 0, 60, 900), SHORTEST.as_secs_f64(), "who knows that it will be long does not wait");
    }

    #[test]
    fn no_start_is_kept_for_gaps_that_never_come() {
        let mixed = [60, 60, 60, 60, 600].repeat(20);
        // Five gaps in 840 s: one start every 160 s is for all of them.
        assert_eq!(after_under(&mixed, 0, 60, 160), SHORTEST.as_secs_f64(), "there are starts enough");
        assert_eq!(after_under(&[60; 20], 0, 1_000, 300), SHORTEST.as_secs_f64(), "no gap is better than this one");
        assert!(after_under(&[60; 20], 0, 1_000, 0) > 60.0, "if nothing is said of how long the starts must last, they are kept");
    }

    #[test]
    fn a_start_is_worth_what_the_last_gap_that_gets_none_would_have_saved() {
        let price = Price { drive: Drive::DESKTOP, wait_mw: 6_100 };
        let mut view = View::new(1_000_000);
        (0..100).for_each(|number| view.add(Duration::from_secs(if number % 2 == 0 { 100 } else { 400 })));
        let worth = |every| view.worth(&price, Duration::from_secs(every)).expect("enough was seen");
        // Gaps of 250 s on the average.
        assert_eq!(worth(200), 0);
        // All of them at once, or the long ones only, which show by having lasted 101.6 s: one start more, for 100 s of a short gap and 101.6 s
        // of a long one.
        let by_hand = 5.4 * (99.75 + 101.5625 - 0.25) - price.of_stop() as f64 / 1e6;
        assert!((worth(300) as f64 / 1e6 / by_hand - 1.0).abs() < 0.01, "{} {by_hand}", worth(300));
        assert!(worth(600) > worth(300), "not even for all of the long ones");
        assert_eq!(View::new(8).worth(&price, Duration::from_secs(300)), None);
    }

    #[test]
    fn gaps_within_a_task_do_not_count() {
        let mut history = History::new(Price { drive: Drive::DESKTOP, wait_mw: 0 });
        (0..5).for_each(|_| history.learn(Duration::from_secs(300)));
        (0..1_000).for_each(|_| history.learn(Duration::from_millis(20)));
        assert_eq!(history.timeout(Instant::ZERO), Some(SHORTEST));
    }
}
