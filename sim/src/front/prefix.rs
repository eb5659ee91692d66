//! Rules 2 and 3 of the oracle, as what a crash left behind is read bit by bit: what survived is a prefix of what was logged, and a
//! write survived everywhere or nowhere, but for ranges of zeros that were done part by part.
//!
//! Of the prefix two numbers are enough: the latest *submission* among the writes that survived, and the earliest *acknowledgement*
//! among those that were lost. The promise is broken when a lost write was acknowledged before a surviving one was submitted.
//! Writes that went past the log say nothing of either.

use tidegate_engine::block::Span;

/// A moment: every submission and every reply has its own.
pub type Moment = u32;
pub const NEVER: Moment = Moment::MAX;
/// Number of the pseudo-write that put the first contents there.
pub const FIRST: u32 = 0;

/// One write, zeroing or trim. Its number is its place in the list of all.
#[derive(Clone, Debug)]
pub struct Write {
    pub span: Span,
    pub what: &'static str,
    pub submitted: Moment,
    pub acknowledged: Moment,
    /// It was answered with an error.
    pub failed: bool,
    pub durable: bool,
    /// Something of it went past the log, or in place: of it any part survives, whatever becomes of others.
    pub bypassed: bool,
    /// A range so long that it was zeroed part by part, and may survive so.
    pub in_parts: bool,
    /// How many crashes there were before it.
    pub life: u32,
}

impl Write {
    /// One that is not answered yet.
    pub fn new(span: Span, what: &'static str, submitted: Moment) -> Self {
        Write { span, what, submitted, acknowledged: NEVER, failed: false, durable: false, bypassed: false, in_parts: false, life: 0 }
    }
}

/// What is known of the state that the crash at the end of one life left.
#[derive(Clone, Copy, Debug)]
struct Frontier {
    /// The latest submission of a write that survived, and its number.
    survived: (Moment, u32),
    /// The earliest acknowledgement of a write that was lost, and its number.
    lost: (Moment, u32),
}

impl Frontier {
    const OPEN: Frontier = Frontier { survived: (0, FIRST), lost: (NEVER, FIRST) };
}

/// An atom of the write has survived; has been lost.
const SURVIVED: u8 = 1;
const LOST: u8 = 2;

/// The frontiers of all lives, and what was seen of each write.
#[derive(Clone, Debug, Default)]
pub struct Tally {
    frontiers: Vec<Frontier>,
    seen: Vec<u8>,
}

impl Tally {
    /// Of the first life, with the pseudo-write.
    pub fn new() -> Self {
        Tally { frontiers: vec![Frontier::OPEN], seen: vec![0] }
    }

    pub fn add_life(&mut self) {
        self.frontiers.push(Frontier::OPEN);
    }

    pub fn add_write(&mut self) {
        self.seen.push(0);
    }

    /// From what was seen so far nothing follows any more.
    pub fn forget_order(&mut self) {
        self.frontiers.fill(Frontier::OPEN);
    }

    /// The write became durable: it will survive whatever comes.
    pub fn will_survive(&mut self, number: u32, write: &Write) {
        if write.bypassed {
            return;
        }
        let survived = &mut self.frontiers[write.life as usize].survived;
        *survived = (*survived).max((write.submitted, number));
    }

    /// What write `number` put somewhere was seen after the crash. `surely`: it cannot be of another write.
    pub fn survived(&mut self, number: u32, surely: bool, writes: &[Write]) -> Result<(), String> {
        let write = &writes[number as usize];
        if write.bypassed {
            return Ok(());
        }
        self.will_survive(number, write);
        if surely && !write.failed && !write.in_parts {
            self.see(number, SURVIVED)?;
        }
        self.check(write.life, writes)
    }

    /// What write `number` had overwritten was seen after the crash.
    pub fn lost(&mut self, number: u32, writes: &[Write]) -> Result<(), String> {
        let write = &writes[number as usize];
        if write.bypassed {
            return Ok(());
        }
        let lost = &mut self.frontiers[write.life as usize].lost;
        *lost = (*lost).min((write.acknowledged, number));
        if !write.in_parts {
            self.see(number, LOST)?;
        }
        self.check(write.life, writes)
    }

    fn see(&mut self, number: u32, what: u8) -> Result<(), String> {
        let seen = &mut self.seen[number as usize];
        *seen |= what;
        if *seen == SURVIVED | LOST { Err(format!("write {number} survived in part")) } else { Ok(()) }
    }

    fn check(&self, life: u32, writes: &[Write]) -> Result<(), String> {
        let Frontier { survived: (submitted, survivor), lost: (acknowledged, victim) } = self.frontiers[life as usize];
        if submitted <= acknowledged {
            return Ok(());
        }
        let span = |number: u32| writes[number as usize].span;
        Err(format!(
            "write {survivor} of {:?} survived, and write {victim} of {:?}, acknowledged before, is lost",
            span(survivor),
            span(victim)
        ))
    }
}
