//! Memory that only a client can give back: a payload that is still arriving, replies that it has not taken.
//!
//! Each client holds a small share whatever others do, and on *credit* as much as it has moved within the last seconds: that comes back as fast
//! as it went. All beyond that are *loans*, from one purse for all clients. So a thousand clients that send headers without payloads, or read no
//! replies, hold that purse and their shares, and no more; and those who work are not held up by them. What has come of a payload that is not
//! whole earns nothing yet: it is still here, and all but the last byte of it would stay. Nor does what the socket has, and the client has not taken.
//!
//! Answers that are still in the engine may wait for the origin. So they have that purse, as everything has, and beside it there is a smaller one for
//! payloads that arrive alone: who writes does not wait with those who read.
//!
//! Who has worked and then stands still has a loan of what it held on credit, beyond what the purse has. What all hold on credit, and had, is
//! bounded as well: there is no credit beyond that.
//!
//! Who has no loan, and waits for one, stands in a queue; while anybody does, the first of them alone gets what is free, every other second.
//! Otherwise a large request would wait for as long as others come with small ones; and if it were so all the time, others would wait as long as it
//! does, which may be for a disk that does not answer somebody else. Who has a loan goes on with that, and does not stand there: it may never move.

use std::collections::VecDeque;

use super::export::PAYLOAD_BYTES_MAX;

/// What a client holds in any case: 32 requests of 4 KiB.
pub const SHARE_BYTES: u64 = 128 << 10;
/// All loans together, in bytes: one request of the largest size always fits.
pub const PURSE_BYTES: u64 = PAYLOAD_BYTES_MAX as u64 + (1 << 20);
/// Beside it, for payloads that arrive, in bytes: eight of the largest that a kernel sends.
pub const PAYLOADS_BYTES: u64 = 8 << 20;
/// All that is held on credit, and what is lent beyond the purse because it was, in bytes.
pub const CREDIT_BYTES: u64 = 8 * PURSE_BYTES;
/// So much counts as not taken until it is looked at, which is a system call.
const LOOK_BYTES: u64 = 2 * SHARE_BYTES;
/// While others wait for the purse, a loan has to move once in so many ticks (seconds).
const TURNOVER_TICKS: u64 = 60;
/// After so many ticks below that pace a client is given up.
const SLOW_TICKS: u32 = 3;

/// What a loan is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    Answer,
    /// A payload that arrives.
    Payload,
}

/// The purse.
#[derive(Debug, Default)]
pub struct Loans {
    lent: u64,
    /// Of that, for payloads that arrive.
    payloads: u64,
    /// Bytes that clients hold on credit.
    credited: u64,
    /// Clients that wait for a loan, in the order of their coming.
    queue: VecDeque<u64>,
    /// Of those, clients whose payload waits for one.
    payload_queue: VecDeque<u64>,
    /// Others than the first of them may have what is free, until the next tick.
    is_open: bool,
    /// Something came back since the last look, or somebody has left the queue.
    returned: bool,
}

impl Loans {
    /// Bytes that may still be lent.
    pub fn free(&self) -> u64 {
        PURSE_BYTES.saturating_sub(self.lent_of_purse())
    }

    /// Bytes that are lent, but for those of payloads that the smaller purse had.
    fn lent_of_purse(&self) -> u64 {
        self.lent - self.payloads.min(PAYLOADS_BYTES)
    }

    /// What may still be lent to this client. Of the smaller purse the first who waits with a payload gets it, whoever waits with something else.
    fn free_for(&self, client: u64, purpose: Purpose) -> u64 {
        let is_first = |queue: &VecDeque<u64>| self.is_open || queue.front().is_none_or(|first| *first == client);
        let of_purse = if is_first(&self.queue) { self.free() } else { 0 };
        let is_next = purpose == Purpose::Payload && is_first(&self.payload_queue);
        of_purse + if is_next { PAYLOADS_BYTES.saturating_sub(self.payloads) } else { 0 }
    }

    /// Bytes that may still be held on credit.
    fn credit_room(&self) -> u64 {
        CREDIT_BYTES.saturating_sub(self.credited + self.overdraft())
    }

    /// Bytes that are lent beyond the purse.
    fn overdraft(&self) -> u64 {
        self.lent_of_purse().saturating_sub(PURSE_BYTES)
    }

    fn enqueue(&mut self, client: u64, purpose: Purpose) {
        self.queue.push_back(client);
        if purpose == Purpose::Payload {
            self.payload_queue.push_back(client);
        }
    }

    fn dequeue(&mut self, client: u64) {
        self.queue.retain(|queued| *queued != client);
        self.payload_queue.retain(|queued| *queued != client);
        self.returned = true;
    }

    /// What a client has of both was `before` and is `now`.
    fn change(&mut self, before: Held, now: Held) {
        let had_room = self.credit_room();
        self.lent = self.lent + now.loan - before.loan;
        self.payloads = self.payloads + now.payload - before.payload;
        self.credited = self.credited + now.credit - before.credit;
        // Of credit there is enough, mostly: nobody waits for that.
        self.returned |= now.loan < before.loan || now.payload < before.payload || had_room < PURSE_BYTES && had_room < self.credit_room();
    }

    /// A second has passed.
    pub fn tick(&mut self) {
        self.is_open = !self.is_open && !self.queue.is_empty();
        self.returned |= self.is_open;
    }

    /// May somebody get a loan who did not when this was asked last?
    pub fn take_returned(&mut self) -> bool {
        std::mem::take(&mut self.returned)
    }
}

/// What one client holds beyond its share, in bytes.
#[derive(Clone, Copy, Debug, Default)]
struct Held {
    credit: u64,
    loan: u64,
    /// Of the loan, for a payload that arrives.
    payload: u64,
}

/// What one client has moved, in either direction, and what is lent to it.
#[derive(Debug, Default)]
pub struct Account {
    /// Bytes in this tick and in the one before: its pace.
    moved: [u64; 2],
    /// The same of those that are not here any more.
    gone: [u64; 2],
    /// Received, and still here when it was looked at last.
    arrived: u64,
    /// Sent, and not taken when that was looked at last; or sent since.
    untaken: u64,
    held: Held,
    /// It stands in the queue for one.
    queued: Option<Purpose>,
    slow_ticks: u32,
}

impl Account {
    /// So much has been sent.
    pub fn sent(&mut self, bytes: usize) {
        self.moved[0] += bytes as u64;
        self.gone[0] += bytes as u64;
        self.untaken += bytes as u64;
    }

    /// So much of what was sent has not been taken yet.
    pub fn look(&mut self, untaken: u64) {
        self.untaken = untaken;
    }

    /// May it have taken so much since the last look that it is worth another one?
    pub fn is_worth_a_look(&self) -> bool {
        self.untaken >= LOOK_BYTES
    }

    /// May more of what was sent have been taken since the last look?
    pub fn is_taking(&self) -> bool {
        self.untaken > 0
    }

    /// So much has come from the client.
    pub fn received(&mut self, bytes: usize) {
        self.moved[0] += bytes as u64;
        self.arrived += bytes as u64;
    }

    /// Did a byte move in this tick?
    pub fn is_moving(&self) -> bool {
        self.moved[0] > 0
    }

    /// Bytes beyond its share that it has earned: a payload that took a minute to come is no more than what came of it last.
    fn earned(&self) -> u64 {
        let recent = |bytes: [u64; 2]| bytes[0] + bytes[1];
        recent(self.gone).saturating_sub(self.untaken).min(recent(self.moved)).saturating_sub(SHARE_BYTES)
    }

    /// Has it credit that it would not have had it stood still?
    pub fn has_earned(&self) -> bool {
        self.earned() > 0
    }

    /// Bytes beyond its share that need no loan.
    fn credit(&self, loans: &Loans) -> u64 {
        self.earned().min(self.held.credit + loans.credit_room())
    }

    /// Bytes of what it holds that are lent.
    pub fn loan(&self) -> u64 {
        self.held.loan
    }

    /// What this client may hold in all.
    pub fn limit(&self, client: u64, purpose: Purpose, loans: &Loans) -> u64 {
        SHARE_BYTES + self.credit(loans) + self.held.loan + loans.free_for(client, purpose)
    }

    /// For what does this client wait for a loan?
    pub fn wants(&mut self, client: u64, wants: Option<Purpose>, loans: &mut Loans) {
        if self.queued != wants {
            if self.queued.is_some() {
                loans.dequeue(client);
            }
            self.queued = wants;
            if let Some(purpose) = wants {
                loans.enqueue(client, purpose);
            }
        }
    }

    /// It holds `held` bytes now, `payload` of them for one that is not passed on, and `arriving` bytes of that have come.
    pub fn settle(&mut self, held: u64, payload: u64, arriving: u64, loans: &mut Loans) {
        self.gone[0] += self.arrived.saturating_sub(arriving);
        self.arrived = arriving;
        let beyond = held.saturating_sub(SHARE_BYTES);
        // What of its own loan the purse had not, costs no room as credit either.
        let overdrawn = self.held.loan.min(loans.overdraft());
        let credit = beyond.min(self.earned()).min(self.held.credit + loans.credit_room() + overdrawn);
        let loan = beyond - credit;
        let now = Held { credit, loan, payload: payload.min(loan) };
        loans.change(self.held, now);
        self.held = now;
    }

    /// A tick has passed; `waits`: only the client can go on. True: it moves too little of its loan, which others wait for (`wanted`).
    pub fn tick(&mut self, waits: bool, wanted: bool) -> bool {
        let is_slow = waits && wanted && self.moved[0] < self.held.loan.div_ceil(TURNOVER_TICKS);
        self.slow_ticks = if is_slow { self.slow_ticks + 1 } else { 0 };
        self.moved = [0, self.moved[0]];
        self.gone = [0, self.gone[0]];
        self.slow_ticks >= SLOW_TICKS
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// It is sent so much, and takes it.
    fn takes(client: &mut Account, bytes: u64) {
        client.sent(bytes as usize);
        client.look(0);
    }

    #[test]
    fn who_moves_nothing_holds_its_share_and_what_the_purse_has() {
        let (mut loans, mut one, mut other) = (Loans::default(), Account::default(), Account::default());
        assert_eq!(one.limit(1, Purpose::Answer, &loans), SHARE_BYTES + PURSE_BYTES);
        one.settle(SHARE_BYTES + PURSE_BYTES, 0, 0, &mut loans);
        assert_eq!((loans.free(), other.limit(2, Purpose::Answer, &loans)), (0, SHARE_BYTES));
        other.settle(SHARE_BYTES, 0, 0, &mut loans);
        one.settle(SHARE_BYTES, 0, 0, &mut loans);
        assert!(loans.take_returned() && !loans.take_returned());
        assert_eq!(other.limit(2, Purpose::Answer, &loans), SHARE_BYTES + PURSE_BYTES);
    }

    #[test]
    fn what_comes_back_is_for_the_first_who_waits() {
        let (mut loans, mut busy, mut first, mut second) = (Loans::default(), Account::default(), Account::default(), Account::default());
        busy.settle(SHARE_BYTES + (4 << 20), 0, 0, &mut loans);
        first.wants(2, Some(Purpose::Answer), &mut loans);
        second.wants(3, Some(Purpose::Answer), &mut loans);
        let limits = |loans: &Loans, busy: &Account, first: &Account, second: &Account| {
            [busy.limit(1, Purpose::Answer, loans), first.limit(2, Purpose::Answer, loans), second.limit(3, Purpose::Answer, loans)]
                .map(|limit| limit - SHARE_BYTES)
        };
        assert_eq!(limits(&loans, &busy, &first, &second), [4 << 20, PURSE_BYTES - (4 << 20), 0], "who has a loan may keep that");
        busy.settle(SHARE_BYTES + (1 << 20), 0, 0, &mut loans);
        assert_eq!(limits(&loans, &busy, &first, &second), [1 << 20, PURSE_BYTES - (1 << 20), 0]);
        loans.take_returned();
        first.wants(2, None, &mut loans);
        assert!(loans.take_returned(), "the next one is to be looked at");
        assert_eq!(limits(&loans, &busy, &first, &second), [1 << 20, 0, PURSE_BYTES - (1 << 20)]);
        // Every other second those behind it pass, if what is free is enough for them.
        first.wants(2, Some(Purpose::Answer), &mut loans);
        for is_open in [true, false, true, false] {
            loans.tick();
            let behind = if is_open { PURSE_BYTES - (1 << 20) } else { 0 };
            assert_eq!((first.limit(2, Purpose::Answer, &loans) - SHARE_BYTES, loans.take_returned()), (behind, is_open));
        }
        first.wants(2, None, &mut loans);
        second.wants(3, None, &mut loans);
        assert_eq!(first.limit(2, Purpose::Answer, &loans), SHARE_BYTES + PURSE_BYTES - (1 << 20), "nobody waits");
    }

    #[test]
    fn answers_leave_a_purse_to_payloads_that_arrive_also_what_was_on_credit_and_is_lent_now() {
        let (mut loans, mut reader, mut next, mut writer) = (Loans::default(), Account::default(), Account::default(), Account::default());
        let beside = |account: &Account, client, purpose, loans: &Loans| account.limit(client, purpose, loans) - SHARE_BYTES;
        reader.settle(SHARE_BYTES + 2 * PURSE_BYTES, 0, 0, &mut loans);
        next.wants(2, Some(Purpose::Answer), &mut loans);
        assert_eq!(beside(&next, 2, Purpose::Answer, &loans), 0);
        assert_eq!(beside(&writer, 3, Purpose::Payload, &loans), PAYLOADS_BYTES, "who waits for something else stops nobody");
        writer.settle(SHARE_BYTES + PAYLOADS_BYTES, SHARE_BYTES + PAYLOADS_BYTES, 0, &mut loans);
        let (mut third, mut fourth) = (Account::default(), Account::default());
        third.wants(4, Some(Purpose::Payload), &mut loans);
        fourth.wants(5, Some(Purpose::Payload), &mut loans);
        assert_eq!(beside(&third, 4, Purpose::Payload, &loans), 0);
        loans.take_returned();
        // What it was for has become an answer: that is of the purse.
        writer.settle(SHARE_BYTES + PAYLOADS_BYTES, 0, 0, &mut loans);
        assert!(loans.take_returned());
        assert_eq!(beside(&third, 4, Purpose::Payload, &loans), PAYLOADS_BYTES);
        assert_eq!(beside(&fourth, 5, Purpose::Payload, &loans), 0, "the first who waits");
        reader.settle(0, 0, 0, &mut loans);
        writer.settle(SHARE_BYTES + 2 * PAYLOADS_BYTES, SHARE_BYTES + 2 * PAYLOADS_BYTES, 0, &mut loans);
        assert_eq!(loans.free(), PURSE_BYTES - PAYLOADS_BYTES, "the smaller one is emptied first");
        writer.settle(0, 0, 0, &mut loans);
        assert_eq!((loans.free(), loans.lent, loans.payloads), (PURSE_BYTES, 0, 0));
    }

    #[test]
    fn who_moves_much_needs_no_loan_until_it_stands_still() {
        let (mut loans, mut busy) = (Loans::default(), Account::default());
        takes(&mut busy, 10 << 20);
        busy.settle(10 << 20, 0, 0, &mut loans);
        assert_eq!(loans.free(), PURSE_BYTES);
        assert!(!busy.tick(true, true));
        busy.settle(10 << 20, 0, 0, &mut loans);
        assert_eq!(loans.free(), PURSE_BYTES, "the tick before counts too");
        assert!(!busy.tick(true, true));
        busy.settle(10 << 20, 0, 0, &mut loans);
        assert_eq!(loans.free(), PURSE_BYTES - (10 << 20) + SHARE_BYTES);
    }

    #[test]
    fn what_the_socket_has_earns_nothing() {
        let mut client = Account::default();
        client.sent(LOOK_BYTES as usize - 1);
        assert!(client.is_taking() && !client.is_worth_a_look());
        client.sent((10 << 20) - LOOK_BYTES as usize + 1);
        assert!(!client.has_earned() && client.is_worth_a_look(), "it counts as not taken");
        client.look(10 << 20);
        assert!(!client.has_earned() && client.is_moving() && client.is_taking());
        client.look((10 << 20) - SHARE_BYTES);
        assert!(!client.has_earned());
        client.look(0);
        assert!(client.has_earned() && !client.is_taking());
    }

    #[test]
    fn what_has_come_of_a_payload_earns_nothing_before_all_of_it_has_gone_on() {
        let (mut loans, mut client) = (Loans::default(), Account::default());
        let whole = PURSE_BYTES - (1 << 20);
        for part in 1..=4 {
            client.received(whole as usize / 4);
            client.settle(whole, 0, part * whole / 4, &mut loans);
            assert_eq!((client.has_earned(), client.loan()), (false, whole - SHARE_BYTES));
        }
        assert!(client.is_moving());
        client.settle(0, 0, 0, &mut loans);
        assert_eq!((client.earned(), client.loan(), loans.free()), (whole - SHARE_BYTES, 0, PURSE_BYTES), "it is with the engine");
        client.settle(whole, 0, 0, &mut loans);
        assert_eq!((client.loan(), loans.free()), (0, PURSE_BYTES), "the next one");
    }

    #[test]
    fn a_payload_that_came_slowly_earns_no_more_than_what_came_of_it_last() {
        let (mut loans, mut client) = (Loans::default(), Account::default());
        let part = 3 << 20;
        for parts in 1..=10 {
            client.tick(true, true);
            client.received(part as usize);
            client.settle(32 << 20, 0, parts * part, &mut loans);
        }
        client.settle(0, 0, 0, &mut loans);
        assert_eq!(client.earned(), 2 * part - SHARE_BYTES, "of {} that have gone on", 10 * part);
    }

    #[test]
    fn what_all_hold_on_credit_and_had_is_bounded_and_comes_back_with_what_they_give_back() {
        const ASKED: u64 = PURSE_BYTES - (1 << 20);
        let (mut loans, mut clients) = (Loans::default(), [(); 64].map(|()| Account::default()));
        let mut all = 0;
        // One after the other earns much with what is done at once, asks for a large payload, and stands still with it.
        for (number, client) in (1..).zip(&mut clients) {
            takes(client, 2 * ASKED);
            client.settle(0, 0, 0, &mut loans);
            if ASKED <= client.limit(number, Purpose::Answer, &loans) {
                client.settle(ASKED, 0, 0, &mut loans);
                all += ASKED - SHARE_BYTES;
            }
            for _ in 0..2 {
                client.tick(true, false);
                client.settle(client.held.credit + client.held.loan + SHARE_BYTES, 0, 0, &mut loans);
            }
            assert!(client.loan() == 0 || !client.has_earned());
        }
        assert!((CREDIT_BYTES..=CREDIT_BYTES + PURSE_BYTES).contains(&all), "{all}");
        // All of it is lent by now, and who works gets what comes back of what is beyond the purse.
        let mut busy = Account::default();
        takes(&mut busy, 2 * ASKED);
        let before = busy.limit(99, Purpose::Answer, &loans);
        assert!(before < ASKED, "{before}");
        loans.take_returned();
        clients[0].settle(0, 0, 0, &mut loans);
        assert!(loans.take_returned());
        assert_eq!(busy.limit(99, Purpose::Answer, &loans), before + ASKED - SHARE_BYTES);
    }

    #[test]
    fn who_works_again_pays_its_loan_from_what_it_earns_though_there_is_no_more_credit() {
        let (mut loans, mut clients) = (Loans::default(), [(); 9].map(|()| Account::default()));
        let all = PURSE_BYTES + CREDIT_BYTES;
        let each = all / 9;
        for client in &mut clients {
            takes(client, all);
            client.settle(SHARE_BYTES + each, 0, 0, &mut loans);
            (0..2).for_each(|_| _ = client.tick(true, false));
            client.settle(SHARE_BYTES + each, 0, 0, &mut loans);
            assert_eq!(client.loan(), each);
        }
        assert_eq!((loans.credit_room(), loans.free()), (all % 9, 0));
        takes(&mut clients[4], all);
        clients[4].settle(SHARE_BYTES + each, 0, 0, &mut loans);
        assert_eq!((clients[4].loan(), clients[4].held.credit), (0, each));
        assert_eq!(loans.credit_room(), all % 9);
    }

    #[test]
    fn a_loan_that_does_not_move_is_called_in_only_while_others_wait_for_it() {
        let (mut loans, mut idle) = (Loans::default(), Account::default());
        idle.settle(32 << 20, 0, 0, &mut loans);
        assert!((0..100).all(|_| !idle.tick(true, false)), "nobody wants it");
        assert!((0..100).all(|_| !idle.tick(false, true)), "it waits for us");
        takes(&mut idle, 1 << 20);
        assert_eq!([0; 4].map(|_| idle.tick(true, true)), [false, false, false, true], "one tick at a good pace, then three without");
    }
}
