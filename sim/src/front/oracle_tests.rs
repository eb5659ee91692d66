//! The oracle itself is tested against stories whose end is known.

use super::*;
use tidegate_engine::payload::Payload;
use tidegate_engine::request::{Extent, Stretch, Tier};

/// One line of a story. Atoms 0..64 in blocks of 8; requests are told by number.
enum Step {
    Write(u64, u64, u64),
    WriteFua(u64, u64, u64),
    Trim(u64, u64, u64),
    Zero(u64, u64, u64),
    Flush(u64),
    Read(u64, u64),
    Done(u64),
    Failed(u64),
    /// A read is answered: each atom with this stamp's write, or zeros for 0.
    Sees(u64, u64),
    Crash,
}
use Step::*;

fn geometry() -> Geometry {
    Geometry { block_atoms: 8, set_slots: 8, sets: 16, journal_pages: 48, volume_atoms: 64, range_entries: 16 }
}

const ORIGIN: u64 = u64::MAX;

fn contents(write: u64, span: Span) -> Stamps {
    match write {
        0 => Stamps::zero(span.atoms),
        ORIGIN => Stamps::written(0, span.start, span.atoms),
        write => Stamps::written(write, span.start, span.atoms),
    }
}

/// Tells the story; write number `id` carries the stamps of `id`. Returns the first broken promise.
fn tell(story: &[Step]) -> (Oracle, Verdict) {
    tell_of(story, false)
}

/// The same where writes may go past the log.
fn tell_of(story: &[Step], waives_order: bool) -> (Oracle, Verdict) {
    let mut oracle = Oracle::new(&geometry(), |atom| crate::stamp::stamp(0, atom));
    (oracle.writes_may_fail, oracle.waives_order) = (true, waives_order);
    let verdict = go_on(&mut oracle, story);
    (oracle, verdict)
}

/// The story goes on with this.
fn go_on(oracle: &mut Oracle, story: &[Step]) -> Verdict {
    let mut spans = BTreeMap::new();
    for step in story {
        let verdict = match *step {
            Write(id, start, atoms) | WriteFua(id, start, atoms) => {
                let span = Span::new(start, atoms);
                let fua = matches!(step, WriteFua(..));
                oracle.submit(&Request { id: RequestId(id), span, command: Command::Write { data: contents(id, span), fua } });
                Ok(())
            }
            Trim(id, start, atoms) => {
                oracle.submit(&Request { id: RequestId(id), span: Span::new(start, atoms), command: Command::Trim { fua: false } });
                Ok(())
            }
            Zero(id, start, atoms) => {
                let command = Command::Zero { no_hole: false, fua: false, fast: false };
                oracle.submit(&Request { id: RequestId(id), span: Span::new(start, atoms), command });
                Ok(())
            }
            Flush(id) => {
                oracle.submit(&Request { id: RequestId(id), span: Span::default(), command: Command::Flush });
                Ok(())
            }
            Read(id, atom) => {
                let span = Span::new(atom, 1);
                spans.insert(id, span);
                oracle.submit(&Request { id: RequestId(id), span, command: Command::Read });
                Ok(())
            }
            Done(id) => oracle.reply(&Reply { id: RequestId(id), result: Ok(Outcome::Done) }),
            Failed(id) => oracle.reply(&Reply { id: RequestId(id), result: Err(RequestError::Io) }),
            Sees(id, write) => oracle.reply(&Reply { id: RequestId(id), result: Ok(Outcome::Data([contents(write, spans[&id])].into())) }),
            Crash => {
                oracle.crash();
                Ok(())
            }
        };
        verdict?;
    }
    Ok(())
}

#[track_caller]
fn kept(story: &[Step]) {
    assert_eq!(tell(story).1, Ok(()));
}

#[track_caller]
fn broken(story: &[Step]) {
    assert!(tell(story).1.is_err(), "nobody noticed");
}

/// What the volume may hold if the power went at the end of the story: `holds` says the write of atoms 0, 8 and 16; the rest is as ever.
#[track_caller]
fn judged(story: &[Step], holds: [u64; 3]) -> bool {
    let (oracle, verdict) = tell(story);
    assert_eq!(verdict, Ok(()));
    let write = |atom: u64| holds.get((atom / 8) as usize).filter(|_| atom.is_multiple_of(8)).copied().unwrap_or(ORIGIN);
    oracle.judge(|atom| Some(contents(write(atom), Span::new(atom, 1)).stamp(0))).is_ok()
}

#[test]
fn a_read_sees_the_newest_acknowledged_write() {
    kept(&[Write(1, 0, 1), Done(1), Read(2, 0), Sees(2, 1)]);
    broken(&[Write(1, 0, 1), Done(1), Read(2, 0), Sees(2, ORIGIN)]);
    broken(&[Read(2, 0), Sees(2, 0)]);
    broken(&[Write(1, 0, 1), Done(1), Write(2, 0, 1), Done(2), Read(3, 0), Sees(3, 1)]);
}

#[test]
fn a_read_beside_a_write_sees_either() {
    for seen in [ORIGIN, 1] {
        kept(&[Write(1, 0, 1), Read(2, 0), Sees(2, seen), Done(1)]);
        kept(&[Read(2, 0), Write(1, 0, 1), Done(1), Sees(2, seen)]);
    }
}

#[test]
fn of_two_writes_at_once_either_wins_but_a_read_decides() {
    let both = |first, second| [Write(1, 0, 1), Write(2, 0, 1), Done(1), Done(2), Read(3, 0), Sees(3, first), Read(4, 0), Sees(4, second)];
    kept(&both(1, 1));
    kept(&both(2, 2));
    broken(&both(1, 2));
    broken(&both(2, 1));
    broken(&both(ORIGIN, 1));
}

#[test]
fn what_a_read_has_decided_holds_after_a_crash() {
    let story = |seen, flushed: bool| {
        let mut story = vec![Write(1, 0, 1), Write(2, 0, 1), Done(1), Done(2), Read(3, 0), Sees(3, seen)];
        if flushed {
            story.extend([Flush(4), Done(4)]);
        }
        story
    };
    assert!(judged(&story(2, true), [2, ORIGIN, ORIGIN]));
    assert!(!judged(&story(2, true), [1, ORIGIN, ORIGIN]));
    assert!(judged(&story(2, false), [1, ORIGIN, ORIGIN]), "the later one was not flushed");
}

#[test]
fn a_flush_keeps_what_was_acknowledged_before_it_arrived() {
    let covered = [Write(1, 0, 1), Done(1), Flush(2), Done(2)];
    assert!(judged(&covered, [1, ORIGIN, ORIGIN]));
    assert!(!judged(&covered, [ORIGIN, ORIGIN, ORIGIN]));
    let overtaken = [Write(1, 0, 1), Flush(2), Done(1), Done(2)];
    assert!(judged(&overtaken, [ORIGIN, ORIGIN, ORIGIN]));
    assert!(judged(&overtaken, [1, ORIGIN, ORIGIN]));
    let failed = [Write(1, 0, 1), Done(1), Flush(2), Failed(2)];
    assert!(judged(&failed, [ORIGIN, ORIGIN, ORIGIN]));
    assert!(!judged(&[WriteFua(1, 0, 1), Done(1)], [ORIGIN, ORIGIN, ORIGIN]));
}

#[test]
fn what_survives_a_crash_is_a_prefix() {
    let story = [Write(1, 0, 1), Done(1), Write(2, 8, 1), Done(2), Write(3, 16, 1)];
    for holds in [[ORIGIN, ORIGIN, ORIGIN], [1, ORIGIN, ORIGIN], [1, 2, ORIGIN], [1, 2, 3]] {
        assert!(judged(&story, holds), "{holds:?}");
    }
    for holds in [[ORIGIN, 2, ORIGIN], [1, ORIGIN, 3], [ORIGIN, ORIGIN, 3]] {
        assert!(!judged(&story, holds), "{holds:?}");
    }
    // At once: in any order.
    let story = [Write(1, 0, 1), Write(2, 8, 1), Done(1), Done(2)];
    assert!(judged(&story, [ORIGIN, 2, ORIGIN]) && judged(&story, [1, ORIGIN, ORIGIN]));
    // FUA is a flush of everything before it.
    assert!(!judged(&[Write(1, 0, 1), Done(1), WriteFua(2, 8, 1), Done(2)], [ORIGIN, 2, ORIGIN]));
}

#[test]
fn what_went_past_the_log_says_nothing_and_the_others_keep_their_order() {
    let story = [Write(1, 0, 9), Done(1), Write(2, 8, 1), Done(2), Write(3, 16, 1), Done(3)];
    let survives = |bypassed: u64, holds: [u64; 3]| {
        let (mut oracle, _) = tell(&story);
        let span = Span::new((bypassed - 1) * 8, 1);
        oracle.bypass(span, contents(bypassed, span).stamps());
        let write = |atom: u64| {
            if atom < 8 { holds[0] } else { holds.get((atom / 8) as usize).filter(|_| atom.is_multiple_of(8)).copied().unwrap_or(ORIGIN) }
        };
        oracle.judge(|atom| Some(contents(write(atom), Span::new(atom, 1)).stamp(0))).is_ok()
    };
    // The first, in part or not at all, beside the others or without them.
    assert!(survives(1, [ORIGIN, 2, 3]) && survives(1, [1, ORIGIN, ORIGIN]) && survives(1, [ORIGIN, 1, ORIGIN]));
    assert!(!survives(1, [1, ORIGIN, 3]), "the second and the third were logged");
    assert!(survives(2, [1, 1, 3]) && survives(2, [ORIGIN, 2, ORIGIN]) && !survives(2, [ORIGIN, 2, 3]));
    assert!(survives(3, [ORIGIN, ORIGIN, 3]) && !survives(3, [ORIGIN, 2, 3]) && !survives(3, [1, ORIGIN, 3]));
    // What is durable already went home, not past the log.
    let (mut oracle, _) = tell(&[Write(1, 0, 1), Done(1), Flush(4), Done(4), Write(2, 8, 1), Done(2)]);
    let span = Span::new(0, 1);
    oracle.bypass(span, contents(1, span).stamps());
    assert!(oracle.judge(|atom| Some(contents(ORIGIN, Span::new(atom, 1)).stamp(0))).is_err());
}

#[test]
fn a_long_range_of_zeros_may_survive_in_part_and_keeps_the_order() {
    let survives = |told: bool, story: &[Step], sees: [(u64, u64); 2]| {
        let (mut oracle, _) = tell(&[]);
        oracle.parts_beyond = 8;
        // The engine tells before it answers.
        let asked = story.iter().position(|step| matches!(step, Zero(..) | Trim(..))).expect("a range") + 1;
        go_on(&mut oracle, &story[..asked]).expect("what came before");
        if told {
            oracle.take_part(RequestId(1)).expect("it is long enough");
        }
        go_on(&mut oracle, &story[asked..]).expect("what came before the crash");
        oracle.judge_trims(0);
        let [(first, seen), (second, other)] = sees;
        go_on(&mut oracle, &[Crash, Read(8, first), Sees(8, seen), Read(9, second), Sees(9, other)]).is_ok()
    };
    for range in [Zero, Trim] {
        let story = [range(1, 0, 16), Done(1)];
        for story in [&story[..], &story[..1]] {
            let in_part = [(0, 0), (8, ORIGIN)];
            // (A hint that nobody has acknowledged says nothing.)
            let is_hint = matches!(story, [Trim(..)]);
            assert_eq!(survives(false, story, in_part), is_hint, "as a whole, if the engine did it at once");
            assert!(survives(true, story, in_part));
        }
        let before = [Write(2, 32, 1), Done(2), range(1, 0, 16), Done(1)];
        let behind = [range(1, 0, 16), Done(1), Write(2, 32, 1), Done(2)];
        assert!(
            survives(true, &before, [(0, 0), (32, 2)]) && !survives(true, &before, [(0, 0), (32, ORIGIN)]),
            "what came before is there"
        );
        assert!(!survives(true, &behind, [(8, ORIGIN), (32, 2)]), "what came behind is not");
        assert!(survives(true, &behind, [(8, ORIGIN), (32, ORIGIN)]));
    }
}

#[test]
fn what_could_be_zeroed_at_once_is_not_to_be_zeroed_in_parts() {
    for (step, is_long) in
        [(Zero(1, 0, 24), true), (Zero(1, 1, 24), false), (Trim(1, 1, 24), false), (Trim(1, 0, 24), true), (Write(1, 0, 24), false)]
    {
        let (mut oracle, _) = tell(&[step]);
        oracle.parts_beyond = 16;
        assert_eq!(oracle.take_part(RequestId(1)).is_ok(), is_long);
        assert!(oracle.take_part(RequestId(2)).is_err(), "nobody has asked for that");
    }
}

#[test]
fn of_a_log_that_is_lost_any_part_may_be_at_home() {
    let story = [Write(1, 0, 1), Done(1), Write(2, 8, 1), Done(2)];
    let after = |lost: bool| {
        let (mut oracle, _) = tell(&story);
        if lost {
            oracle.bypass_all();
        }
        go_on(&mut oracle, &[Crash, Read(3, 8), Sees(3, 2), Read(4, 0), Sees(4, ORIGIN)])
    };
    assert!(after(true).is_ok() && after(false).is_err());
}

#[test]
fn an_overwritten_write_need_not_be_seen() {
    let story = [Write(1, 0, 1), Done(1), Write(2, 0, 1), Done(2), Write(3, 8, 1), Done(3)];
    assert!(judged(&story, [2, 3, ORIGIN]));
    assert!(!judged(&story, [1, 3, ORIGIN]));
    assert!(judged(&story, [1, ORIGIN, ORIGIN]));
}

#[test]
fn a_write_survives_everywhere_or_nowhere() {
    let story = [Write(1, 0, 9)];
    let (oracle, _) = tell(&story);
    let holds = |torn: bool| {
        oracle.judge(|atom| Some(contents(if atom < 8 || atom == 8 && !torn { 1 } else { ORIGIN }, Span::new(atom, 1)).stamp(0)))
    };
    assert_eq!(holds(false), Ok(()));
    assert!(holds(true).is_err());
}

/// Found by seed 3400105: the write before it brought its part of the block they share, and nothing had put the rest of it into the log.
#[test]
fn the_end_of_a_write_may_survive_with_an_earlier_one_of_the_same_block() {
    let survives = |first: u64, atoms: u64, survivors: std::ops::Range<u64>| {
        let (oracle, _) = tell(&[Write(1, first, atoms)]);
        oracle.judge(|atom| Some(contents(if survivors.contains(&atom) { 1 } else { ORIGIN }, Span::new(atom, 1)).stamp(0))).is_ok()
    };
    assert!(survives(5, 5, 5..8), "the part of the first block");
    assert!(!survives(5, 13, 8..16), "a whole block");
    assert!(!survives(1, 6, 1..4), "a part of one block");
}

#[test]
fn what_was_read_after_a_crash_is_read_after_the_next() {
    let story = |first, second| [Write(1, 0, 1), Done(1), Crash, Read(2, 0), Sees(2, first), Crash, Read(3, 0), Sees(3, second)];
    kept(&story(1, 1));
    kept(&story(ORIGIN, ORIGIN));
    broken(&story(1, ORIGIN));
    broken(&story(ORIGIN, 1));
}

#[test]
fn reads_after_a_crash_agree_on_one_prefix() {
    let story =
        |early, late| [Write(1, 0, 1), Done(1), Write(2, 8, 1), Done(2), Crash, Read(3, 0), Sees(3, early), Read(4, 8), Sees(4, late)];
    kept(&story(1, 2));
    kept(&story(1, ORIGIN));
    broken(&story(ORIGIN, 2));
}

#[test]
fn an_unread_loss_does_not_come_back_over_a_later_flush() {
    kept(&[Write(1, 0, 1), Done(1), Crash, Write(2, 0, 1), Done(2), Flush(3), Done(3), Crash, Read(4, 0), Sees(4, 2)]);
    broken(&[Write(1, 0, 1), Done(1), Crash, Write(2, 0, 1), Done(2), Flush(3), Done(3), Crash, Read(4, 0), Sees(4, 1)]);
    kept(&[Write(1, 0, 1), Done(1), Crash, Write(2, 0, 1), Done(2), Crash, Read(4, 0), Sees(4, 1)]);
}

#[test]
fn the_same_bytes_again_accuse_nobody() {
    // A retry of a lost write: what is seen may be either.
    let bytes = contents(1, Span::new(8, 1));
    let (mut oracle, _) = tell(&[Write(9, 0, 1), Done(9), Write(1, 8, 1), Done(1), Crash]);
    oracle.submit(&Request { id: RequestId(5), span: Span::new(8, 1), command: Command::Write { data: bytes.clone(), fua: false } });
    oracle.reply(&Reply { id: RequestId(5), result: Ok(Outcome::Done) }).expect("a write");
    for (id, atom, holds) in [(6, 8, bytes), (7, 0, contents(ORIGIN, Span::new(0, 1)))] {
        oracle.submit(&Request { id: RequestId(id), span: Span::new(atom, 1), command: Command::Read });
        oracle
            .reply(&Reply { id: RequestId(id), result: Ok(Outcome::Data([holds].into())) })
            .expect("the retry, and the loss of what came before");
    }
}

/// Found by seed 2510079, a false alarm: of two zeroings at once one was seen before a write, and the other one came after it.
#[test]
fn what_may_have_come_after_a_write_does_not_accuse_it() {
    let before = [Write(1, 0, 16), Zero(2, 0, 8), Zero(3, 0, 8), Done(3), Read(4, 0), Sees(4, 0), Read(5, 0), Sees(5, 1), Done(1)];
    let after = [Done(2), Read(6, 0), Sees(6, 0), Crash, Read(7, 0), Sees(7, 0), Read(8, 8), Sees(8, 1)];
    kept(&before.into_iter().chain(after).collect::<Vec<_>>());
    let alone = [Write(1, 0, 16), Zero(3, 0, 8), Done(3), Read(4, 0), Sees(4, 0), Read(5, 0), Sees(5, 1), Done(1), Crash];
    broken(&alone.into_iter().chain([Read(7, 0), Sees(7, 0), Read(8, 8), Sees(8, 1)]).collect::<Vec<_>>());
}

#[test]
fn a_trim_takes_whole_blocks_or_leaves_them() {
    for seen in [ORIGIN, 0] {
        kept(&[Trim(1, 0, 8), Done(1), Read(2, 0), Sees(2, seen), Read(3, 0), Sees(3, seen)]);
        broken(&[Trim(1, 0, 8), Done(1), Read(2, 0), Sees(2, seen), Read(3, 0), Sees(3, if seen == 0 { ORIGIN } else { 0 })]);
    }
    broken(&[Trim(1, 0, 7), Done(1), Read(2, 0), Sees(2, 0)]);
    // Never the deeper past.
    broken(&[Write(1, 0, 1), Done(1), Trim(2, 0, 8), Done(2), Read(3, 0), Sees(3, ORIGIN)]);
    broken(&[Write(1, 0, 1), Done(1), Flush(2), Done(2), Trim(3, 0, 8), Done(3), Crash, Read(4, 0), Sees(4, ORIGIN)]);
    // Seen and flushed, it stays.
    broken(&[Trim(1, 0, 8), Done(1), Read(2, 0), Sees(2, 0), Flush(3), Done(3), Crash, Read(4, 0), Sees(4, ORIGIN)]);
}

/// The engine has said that it has ignored none, or one.
#[test]
fn a_trim_that_was_not_ignored_is_zeroes() {
    let then = |ignored: u64, story: &[Step]| {
        let (mut oracle, verdict) = tell(&[Write(1, 0, 8), Done(1), Trim(2, 0, 8), Done(2)]);
        assert_eq!(verdict, Ok(()));
        oracle.judge_trims(ignored);
        go_on(&mut oracle, story).is_ok()
    };
    let cases: [(&[Step], [bool; 2]); 5] = [
        (&[Read(3, 0), Sees(3, 1)], [false, true]),
        (&[Read(3, 0), Sees(3, 0)], [true, true]),
        (&[Flush(3), Done(3), Crash, Read(4, 0), Sees(4, 1)], [false, true]),
        (&[Crash, Read(4, 0), Sees(4, 1)], [true, true]),
        // What was acknowledged behind it does not survive alone.
        (&[Write(3, 16, 8), Done(3), Crash, Read(4, 16), Sees(4, 3), Read(5, 0), Sees(5, 1)], [false, true]),
    ];
    for (number, (story, kept)) in cases.into_iter().enumerate() {
        assert_eq!([0, 1].map(|ignored| then(ignored, story)), kept, "{number}");
    }
}

/// Found by seed 28539: a read that saw the zeros of a trim before the write was taken for one of those behind it.
#[test]
fn zeros_of_one_trim_say_nothing_of_another() {
    for seen in [1, 0] {
        let before = [Trim(5, 0, 8), Done(5), Read(6, 0), Sees(6, 0)];
        let around = [Read(2, 0), Write(1, 0, 1), Done(1), Trim(3, 0, 8), Sees(2, 0), Done(3)];
        let after = [Flush(4), Done(4), Crash, Read(7, 0), Sees(7, seen)];
        kept(&before.into_iter().chain(around).chain(after).collect::<Vec<_>>());
    }
}

#[test]
fn zeroes_are_a_write_of_zeros() {
    kept(&[Zero(1, 0, 3), Done(1), Read(2, 2), Sees(2, 0)]);
    broken(&[Zero(1, 0, 3), Done(1), Read(2, 2), Sees(2, ORIGIN)]);
    kept(&[Zero(1, 0, 3), Done(1), Read(2, 3), Sees(2, ORIGIN)]);
}

#[test]
fn a_failed_write_may_or_may_not_be_there() {
    for seen in [ORIGIN, 1] {
        kept(&[Write(1, 0, 1), Failed(1), Read(2, 0), Sees(2, seen)]);
    }
    broken(&[Write(1, 0, 1), Failed(1), Read(2, 0), Sees(2, ORIGIN), Read(3, 0), Sees(3, 1)]);
}

/// A page was shown, and what a failed write had left below it was on the origin when the power went.
#[test]
fn what_a_failed_write_has_left_past_the_log_may_come_back_with_a_crash() {
    let story = |seen| {
        let shown = [Write(1, 0, 1), Write(2, 0, 1), Done(1), Failed(2), Read(3, 0), Sees(3, 1), Flush(4), Done(4)];
        shown.into_iter().chain([Crash, Read(5, 0), Sees(5, seen)]).collect::<Vec<_>>()
    };
    for seen in [1, 2] {
        assert_eq!(tell_of(&story(seen), true).1, Ok(()));
    }
    assert!(tell_of(&story(ORIGIN), true).1.is_err());
    broken(&story(2));
    let overwritten = [Write(6, 0, 1), Done(6), Flush(7), Done(7), Crash, Read(8, 0), Sees(8, 2)];
    let after = story(1).into_iter().take(8).chain(overwritten).collect::<Vec<_>>();
    assert!(tell_of(&after, true).1.is_err(), "until a later write succeeds");
}

/// Seed 1810 of the refusing profile.
#[test]
fn what_a_failed_write_has_left_says_of_what_is_durable_not_that_it_is_lost() {
    let story = |is_durable: bool| {
        let (mut oracle, verdict) = tell(&[Write(1, 0, 1), Done(1), Write(2, 16, 1), Done(2)]);
        assert_eq!(verdict, Ok(()));
        let survived = [Crash, Read(3, 16), Sees(3, 2), Read(4, 0), Sees(4, 1)];
        assert_eq!(go_on(&mut oracle, if is_durable { &survived } else { &[] }), Ok(()));
        let failed = Span::new(0, 1);
        assert_eq!(go_on(&mut oracle, &[Write(5, 0, 1)]), Ok(()));
        oracle.bypass(failed, contents(5, failed).stamps());
        assert_eq!(go_on(&mut oracle, &[Failed(5), Read(6, 0), Sees(6, 1), Crash, Read(7, 16), Sees(7, 2)]), Ok(()));
        oracle
    };
    let sees = |is_durable, write| go_on(&mut story(is_durable), &[Read(8, 0), Sees(8, write)]);
    assert_eq!(sees(true, 5), Ok(()));
    assert!(sees(true, ORIGIN).is_err());
    assert!(sees(false, 5).is_err(), "what survived was sent behind it");
    assert_eq!(sees(false, 1), Ok(()));
}

#[test]
fn a_failed_retry_may_be_forgotten_by_the_origin_like_what_it_retried() {
    let (mut oracle, verdict) = tell_of(&[Write(1, 0, 1), Done(1), Flush(2), Done(2), Write(3, 0, 1), Failed(3)], true);
    assert_eq!(verdict, Ok(()));
    let mut ask = |id, command, result| {
        oracle.submit(&Request { id: RequestId(id), span: Span::new(0, 1), command });
        oracle.reply(&Reply { id: RequestId(id), result })
    };
    let seen = |write| Ok(Outcome::Data([contents(write, Span::new(0, 1))].into()));
    let again = Command::Write { data: contents(3, Span::new(0, 1)), fua: false };
    assert_eq!(ask(4, again, Err(RequestError::Io)), Ok(()));
    assert_eq!(ask(5, Command::Read, seen(3)), Ok(()));
    oracle.origin_forgot();
    oracle.submit(&Request { id: RequestId(6), span: Span::new(0, 1), command: Command::Read });
    assert_eq!(oracle.reply(&Reply { id: RequestId(6), result: seen(1) }), Ok(()));
}

#[test]
fn what_a_write_that_is_not_answered_has_shown_goes_with_an_origin_that_forgets_it() {
    let (mut oracle, verdict) = tell_of(&[Write(1, 0, 1), Done(1), Write(2, 0, 1), Read(3, 0), Sees(3, 2)], true);
    assert_eq!(verdict, Ok(()));
    assert!(go_on(&mut oracle.clone(), &[Read(4, 0), Sees(4, 1)]).is_err());
    oracle.origin_forgot();
    assert_eq!(go_on(&mut oracle, &[Read(4, 0), Sees(4, 1)]), Ok(()));
    assert!(go_on(&mut oracle, &[Done(2), Read(5, 0), Sees(5, 1)]).is_err(), "it is answered");
}

#[test]
fn what_a_read_has_shown_comes_before_what_is_written_behind_it_though_it_is_answered_later() {
    let shown = [Write(1, 0, 1), Read(2, 0), Sees(2, 1), Write(3, 0, 1), Done(3)];
    let story = |end: &[Step]| go_on(&mut tell(&shown).0, end);
    assert_eq!(story(&[Done(1), Read(4, 0), Sees(4, 3)]), Ok(()));
    assert!(story(&[Read(4, 0), Sees(4, 1)]).is_err() && story(&[Done(1), Read(4, 0), Sees(4, 1)]).is_err());
    assert_eq!(story(&[Crash, Read(4, 0), Sees(4, 1)]), Ok(()), "nothing was flushed");
    assert!(story(&[Flush(4), Done(4), Crash, Read(5, 0), Sees(5, 1)]).is_err());
    kept(&[Write(1, 0, 1), Write(3, 0, 1), Done(3), Read(4, 0), Sees(4, 1)]);
}

/// Seed 2840029 of the refusing profile.
#[test]
fn what_a_read_has_seen_before_the_origin_forgot_it_is_nothing_that_later_ones_must_see() {
    let (mut oracle, verdict) = tell_of(&[Write(1, 0, 1), Done(1), Write(2, 0, 1), Failed(2)], true);
    assert_eq!(verdict, Ok(()));
    oracle.submit(&Request { id: RequestId(3), span: Span::new(0, 1), command: Command::Read });
    let seen = Reply { id: RequestId(3), result: Ok(Outcome::Data([contents(2, Span::new(0, 1))].into())) };
    let mut other = oracle.clone();
    assert_eq!(other.reply(&seen), Ok(()));
    assert!(go_on(&mut other, &[Read(4, 0), Sees(4, 1)]).is_err(), "it forgot nothing");
    oracle.origin_forgot();
    assert_eq!(oracle.reply(&seen), Ok(()));
    assert_eq!(go_on(&mut oracle, &[Read(4, 0), Sees(4, 1)]), Ok(()));
}

#[test]
fn reads_fail_only_where_something_was_hit() {
    broken(&[Read(1, 0), Failed(1)]);
    let (mut oracle, _) = tell(&[Write(1, 0, 1), Done(1)]);
    oracle.hurt(&[crate::stamp::stamp(1, 0)]);
    let mut failed_read = |id, atom| {
        oracle.submit(&Request { id: RequestId(id), span: Span::new(atom, 1), command: Command::Read });
        oracle.reply(&Reply { id: RequestId(id), result: Err(RequestError::Io) })
    };
    assert_eq!(failed_read(2, 0), Ok(()));
    assert_eq!(failed_read(3, 7), Ok(()), "its block shares the slot");
    assert!(failed_read(4, 8).is_err());
}

/// An oracle that excuses nothing by itself.
fn strict() -> Oracle {
    let mut oracle = Oracle::new(&geometry(), |atom| crate::stamp::stamp(0, atom));
    oracle.patience = Duration::from_secs(60);
    oracle
}

#[test]
fn a_write_fails_only_where_a_device_fails_something_in_its_life() {
    let mut oracle = strict();
    oracle.device_failed();
    assert!(go_on(&mut oracle, &[Write(1, 0, 1), Failed(1)]).is_err(), "it had failed before");
    go_on(&mut oracle, &[Write(2, 0, 1)]).expect("a write");
    oracle.device_failed();
    assert_eq!(go_on(&mut oracle, &[Failed(2)]), Ok(()));
    assert!(go_on(&mut oracle, &[Write(3, 0, 1), Failed(3)]).is_err(), "once is not for ever");
}

#[test]
fn a_promise_of_the_origin_is_told_once_what_failed_before_it() {
    let mut oracle = strict();
    let mut flush = |id: u64, promises_origin: bool| {
        oracle.clock = Instant(id);
        oracle.promises_origin = promises_origin;
        if id == 1 {
            oracle.device_failed();
        }
        go_on(&mut oracle, &[Flush(id), Failed(id)]).is_ok()
    };
    assert_eq!([flush(1, false), flush(2, true), flush(3, true)], [false, true, false]);
}

/// Found by seed 86: of one lost block a FUA was told that waited for it, and the next FLUSH.
#[test]
fn what_is_told_to_a_fua_is_told_to_the_next_flush_as_well() {
    let mut oracle = strict();
    oracle.hurt(&[crate::stamp::stamp(0, 3)]);
    assert_eq!(go_on(&mut oracle, &[WriteFua(1, 0, 1), Failed(1)]), Ok(()));
    assert!(!oracle.take_told_of_loss());
    assert_eq!(go_on(&mut oracle, &[Flush(2), Failed(2)]), Ok(()));
    assert_eq!((oracle.take_told_of_loss(), oracle.take_told_of_loss()), (true, false));
}

#[test]
fn a_write_with_fua_fails_for_its_own_blocks_alone() {
    let fails = |change: &dyn Fn(&mut Oracle)| {
        let mut oracle = strict();
        oracle.promises_origin = true;
        go_on(&mut oracle, &[WriteFua(1, 33, 2), WriteFua(2, 0, 8), Flush(3)]).expect("requests");
        change(&mut oracle);
        [1, 2, 3].map(|id| go_on(&mut oracle, &[Failed(id)]).is_ok())
    };
    assert_eq!(fails(&|oracle| oracle.refused(Span::new(38, 4))), [true, false, true], "of the same block");
    assert_eq!(fails(&|oracle| oracle.failed_for_flush()), [false, false, true]);
    assert_eq!(fails(&|oracle| oracle.hurt(&[crate::stamp::stamp(0, 3)])), [false, true, true]);
    assert_eq!(fails(&|oracle| oracle.device_failed()), [true, true, true]);
    let mut oracle = strict();
    oracle.promises_origin = true;
    oracle.refused(Span::new(0, 8));
    assert!(go_on(&mut oracle, &[WriteFua(1, 0, 8), Failed(1)]).is_err(), "it was not tried since");
}

#[test]
fn a_flush_that_succeeds_without_a_cache_leaves_nothing_to_be_told() {
    let is_told = |alone: bool, between: &[Step]| {
        let mut oracle = strict();
        (oracle.promises_origin, oracle.alone) = (true, alone);
        oracle.device_failed();
        go_on(&mut oracle, between).expect("a flush");
        go_on(&mut oracle, &[Flush(2), Failed(2)]).is_ok()
    };
    let flush = [Flush(1), Done(1)];
    assert!(is_told(true, &[]) && !is_told(true, &flush) && is_told(false, &flush));
}

#[test]
fn a_request_is_given_up_only_after_it_has_waited_itself() {
    let after = |waits: u64, alive: u64| {
        let mut oracle = strict();
        let second = |number: u64| Instant(number * 1_000_000_000);
        oracle.clock = second(1_000);
        go_on(&mut oracle, &[Write(1, 0, 1)]).expect("a write");
        (oracle.clock, oracle.alive) = (second(1_000 + waits), second(alive));
        go_on(&mut oracle, &[Failed(1)]).is_ok()
    };
    assert!(after(60, 0) && after(60, 1_000));
    assert!(!after(59, 0), "an origin that was idle for long");
    assert!(!after(90, 1_050), "an origin that is slow");
}

#[test]
fn nobody_is_refused_as_at_a_stop_unless_somebody_stops() {
    let refused = |closing: bool, command: Command<Stamps>| {
        let mut oracle = strict();
        oracle.closing = closing;
        oracle.submit(&Request { id: RequestId(1), span: Span::new(0, 8), command });
        oracle.reply(&Reply { id: RequestId(1), result: Err(RequestError::Shutdown) }).is_ok()
    };
    for command in [Command::Read, Command::Flush, Command::Trim { fua: false }] {
        assert!(refused(true, command.clone()) && !refused(false, command));
    }
}

#[test]
fn a_flush_is_late_only_where_it_is_bounded_and_nothing_failed() {
    let is_kept = |bound: Option<u64>, fails: bool, took: u64| {
        let mut oracle = strict();
        (oracle.flush_bound, oracle.serving_since) = (bound.map(Duration), Some(Instant(100)));
        oracle.clock = Instant(50);
        go_on(&mut oracle, &[Flush(1)]).expect("a flush");
        if fails {
            oracle.device_failed();
        }
        oracle.clock = Instant(100 + took);
        go_on(&mut oracle, &[Done(1)]).is_ok()
    };
    assert!(is_kept(Some(10), false, 10) && is_kept(None, false, 11) && is_kept(Some(10), true, 11));
    assert!(!is_kept(Some(10), false, 11));
}

fn answered(oracle: &mut Oracle, id: u64, span: Span, command: Command<Stamps>, result: Result<Outcome<Stamps>, RequestError>) -> Verdict {
    oracle.submit(&Request { id: RequestId(id), span, command });
    oracle.reply(&Reply { id: RequestId(id), result })
}

#[test]
fn zeroes_that_were_not_fast_are_never_seen() {
    let sees = |error: RequestError| {
        let (mut oracle, told) = tell(&[Write(1, 0, 8), Done(1)]);
        told.expect("a write");
        let fast = Command::Zero { no_hole: false, fua: false, fast: true };
        answered(&mut oracle, 2, Span::new(0, 8), fast, Err(error)).expect("a refusal");
        go_on(&mut oracle, &[Read(3, 4), Sees(3, 0)]).is_ok()
    };
    assert!(sees(RequestError::Io) && !sees(RequestError::NotFast));
}

#[test]
fn tiers_are_those_that_were_asked_for_and_say_what_the_origin_holds() {
    let is_true = |asked: bool, tiers: &[(u64, Tier)], written: u64| {
        let (mut oracle, told) = tell(&[Write(1, 0, 8), Done(1)]);
        told.expect("a write");
        oracle.submit(&Request { id: RequestId(2), span: Span::new(0, 16), command: Command::Status { tiers: asked, one: false } });
        let tiers: Vec<Stretch> = tiers.iter().map(|&(atoms, tier)| Stretch { atoms, tier }).collect();
        let home = |atom| crate::stamp::stamp(if atom < written { 1 } else { 0 }, atom);
        oracle.check_tiers(RequestId(2), &tiers, home).is_ok()
    };
    assert!(is_true(false, &[], 0) && !is_true(true, &[], 0) && !is_true(false, &[(16, Tier::Dirty)], 0));
    assert!(is_true(true, &[(8, Tier::Dirty), (8, Tier::Origin)], 0) && is_true(true, &[(8, Tier::Memory), (8, Tier::Clean)], 0));
    assert!(!is_true(true, &[(16, Tier::Clean)], 0) && !is_true(true, &[(16, Tier::Origin)], 7) && is_true(true, &[(16, Tier::Clean)], 8));
}

#[test]
fn holes_are_zeros() {
    let is_kept = |hole, zero| {
        let (mut oracle, told) = tell(&[Zero(1, 0, 8), Done(1)]);
        told.expect("zeroes");
        let status = Outcome::Status { allocation: vec![Extent { atoms: 8, hole, zero }], tiers: Vec::new() };
        answered(&mut oracle, 2, Span::new(0, 8), Command::Status { tiers: false, one: false }, Ok(status)).is_ok()
    };
    assert!(is_kept(true, true) && is_kept(false, true) && is_kept(false, false) && !is_kept(true, false));
}

#[test]
fn what_comes_behind_the_end_is_held_against_what_the_origin_holds_there() {
    let (mut oracle, told) = tell(&[Write(1, 56, 8), Done(1), Flush(2), Done(2), Crash]);
    told.expect("a write");
    oracle.grow([0, 7].into_iter());
    let holds = |last: u64| {
        move |atom: u64| {
            Some(if atom < 56 {
                crate::stamp::stamp(0, atom)
            } else {
                [crate::stamp::stamp(1, atom), 0, last][atom.saturating_sub(63) as usize]
            })
        }
    };
    assert!(oracle.judge(holds(7)).is_ok() && oracle.judge(holds(0)).is_err());
}
