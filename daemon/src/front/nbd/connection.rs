//! One client: its socket, what was received and not yet understood, what waits in the engine, what is still to be sent.
//!
//! ```text
//! Handshake ─┬───────────────────────────────▶ Arrived ──▶ Transmission → Ending (nothing is read any more, replies
//!   ▲        └─ STARTTLS ▶ Upgrading             │                          still go out) → Dead
//!   └────────────── (its answer leaves)          └ leaves the lobby's front, enters that of its volume: another thread
//! ```
//!
//! Back-pressure, never an error: a connection that has 128 requests or 64 MiB under way, or finds no room in the engine, is
//! *waiting*: it leaves its socket unread. What it takes counts until its reply is sent, so a client that reads no replies stops
//! nobody but itself; and what all clients together keep in memory without moving it is bounded by the purse of [`Loans`].

use std::io::{self, IoSlice, IoSliceMut};
use std::sync::{Arc, Weak};

use rustls::ServerConfig;
use tidegate_engine::Event;
use tidegate_engine::block::Span;
use tidegate_engine::request::{Kind, Outcome, Request, RequestError, RequestId, Room};

use super::ahead::Ahead;
use super::departures::Departures;
use super::export::{Exports, Session};
use super::handshake::{self, Handshake, Tls};
use super::job::Jobs;
use super::kept::Kept;
use super::loan::{Account, Loans, Purpose};
use super::output::Output;
use super::requests::{REQUESTS_MAX, Requests};
use super::seats::Seat;
use super::socket::Stream;
use super::tls::Channel;
use super::transmission::{self, Allowance, HEADER_BYTES_MAX, Pending, Transmission};
use crate::back::run::Run;

/// Payload bytes of one connection, likewise.
pub const BYTES_MAX: u64 = 64 << 20;
/// Taken from the socket at once while a client has moved no more than its share: what it sends ahead is kept here when it has to wait.
const RECEIVE_BYTES_FIRST: usize = 96 << 10;
/// Taken behind a large payload with the rest of it: the head of the next request. If that is large too, what is taken here of its payload has
/// to be copied once more.
const RECEIVE_BYTES_BEHIND: usize = 4 << 10;
/// Bytes of one send: all replies of a turn if they are small, a quarter of one of 1 MiB.
const SEND_BYTES: usize = 256 << 10;
/// Ticks (seconds) that a handshake may take.
const HANDSHAKE_TICKS: u32 = 10;
/// Ticks without a byte moving, in the middle of a request or of a reply, after which a client is given up.
const STALL_TICKS: u32 = 60;
/// Answers to a client that still shakes hands and does not read them: further options wait.
const HANDSHAKE_UNSENT_MAX: u64 = 64 << 10;

const _: () = assert!(handshake::INPUT_BYTES_MAX <= super::SCRATCH_BYTES);
const _: () = assert!(transmission::DIRECT_BYTES + HEADER_BYTES_MAX <= RECEIVE_BYTES_FIRST && RECEIVE_BYTES_FIRST <= super::SCRATCH_BYTES);
const _: () = assert!(HEADER_BYTES_MAX < RECEIVE_BYTES_BEHIND && RECEIVE_BYTES_BEHIND <= super::SCRATCH_BYTES);

/// What all connections of a front share.
#[derive(Clone, Copy)]
pub struct Service<'a> {
    pub exports: &'a Exports,
    /// The daemon, or the volume, is stopping: nothing new is admitted.
    pub stopping: bool,
}

/// Where admitted requests go.
pub struct Intake<'a> {
    pub room: &'a mut Room,
    pub events: &'a mut Vec<Event<Run>>,
    /// Commands that take several requests.
    pub jobs: &'a mut Jobs,
    pub loans: &'a mut Loans,
    /// Changes that wait.
    pub ahead: &'a Ahead,
    /// The connections of the volume, if it is one's.
    pub departures: Option<&'a Departures>,
}

pub struct Connection {
    channel: Channel,
    /// What STARTTLS begins; `None`: there is no TLS on this connection.
    tls: Option<Arc<ServerConfig>>,
    phase: Phase,
    session: Session,
    kept: Kept,
    output: Output,
    requests: Requests,
    /// Payload bytes of the requests in the engine.
    bytes: u64,
    /// Those of reads among them: what becomes of them is up to the client.
    answers: u64,
    /// The high bits of this connection's request ids.
    tag: u64,
    /// The socket takes no more for now, or has had enough for one turn.
    blocked: bool,
    /// It takes no more, unless something else is heard of it.
    is_full: bool,
    waiting: bool,
    /// What it waits for is what lies on connections that were closed, the last of them at this time.
    behind: Option<usize>,
    /// It was closed, and nobody waits for what lies there.
    is_passed_over: bool,
    /// That was said, or that nothing more is read of it.
    has_departed: bool,
    /// It does, or has since it last went on with all it had: its client may have gone meanwhile, and be back.
    has_waited: bool,
    /// Its socket was left alone when it had something, for want of room.
    unread: bool,
    /// What it waits for is up to us alone: what has come is to be done before what others ask for later.
    held_up: bool,
    /// Something has come since that was last said, and what was said: bytes kept, and whether a payload is here.
    is_fresh: bool,
    lined_up: Option<(usize, bool)>,
    /// Among those whose changes wait.
    place: Option<u64>,
    /// What it waits for is a loan, for this.
    unlent: Option<Purpose>,
    /// What it waits for is so much of the engine's room, for a payload; or 0.
    cramped: u64,
    /// The same of what there is for what only reads.
    cramped_reads: u64,
    account: Account,
    ticks: u32,
    /// Its place among all clients: free again when it is gone.
    _seat: Seat,
    /// For what is waited for elsewhere: gone when it is gone.
    presence: Arc<()>,
    /// The same for changes, but that they are done if the client has said that it goes.
    will: Arc<()>,
    has_said_goodbye: bool,
}

#[derive(Debug)]
enum Phase {
    Handshake(Handshake),
    Upgrading(Handshake),
    /// The handshake is over. What has come behind it is kept.
    Arrived,
    Transmission(Transmission),
    Ending,
    Dead,
}

impl Connection {
    /// Greets the client. With `tls`, nothing is told without it.
    pub fn new(stream: Stream, tls: Option<Arc<ServerConfig>>, seat: Seat) -> Connection {
        let mut output = Output::default();
        let mode = if tls.is_some() { Tls::Required } else { Tls::Off };
        let handshake = output.write(|out| Handshake::new(mode, out));
        Connection {
            channel: Channel::new(stream),
            tls,
            phase: Phase::Handshake(handshake),
            session: Session::default(),
            kept: Kept::default(),
            output,
            requests: Requests::default(),
            bytes: 0,
            answers: 0,
            tag: 0,
            blocked: false,
            is_full: false,
            waiting: false,
            behind: None,
            is_passed_over: false,
            has_departed: false,
            has_waited: false,
            unread: false,
            held_up: false,
            is_fresh: false,
            lined_up: None,
            place: None,
            unlent: None,
            cramped: 0,
            cramped_reads: 0,
            account: Account::default(),
            ticks: 0,
            _seat: seat,
            presence: Arc::default(),
            will: Arc::default(),
            has_said_goodbye: false,
        }
    }

    /// The export that it came for, once it has arrived.
    pub fn has_arrived(&self) -> Option<usize> {
        matches!(self.phase, Phase::Arrived).then_some(self.session.export)
    }

    /// Begins transmission, in a front whose only export is the one that it came for. `tag`: high bits of its request ids, the low eight
    /// are free. It is waiting then: what was kept or lies decrypted already, no socket tells of.
    pub fn enter(&mut self, tag: u64) {
        assert!(self.has_arrived().is_some() && self.requests.count() == 0, "nothing was asked of a volume before");
        self.session.export = 0;
        self.phase = Phase::Transmission(Transmission::new(self.session));
        (self.tag, self.blocked, self.waiting, self.ticks) = (tag, false, true, 0);
    }

    pub fn stream(&self) -> &Stream {
        self.channel.stream()
    }

    /// Ends the channel in order.
    pub fn into_stream(mut self) -> Stream {
        self.channel.say_goodbye();
        self.channel.into_stream()
    }

    /// It is given up, and what it holds comes back.
    pub fn kill(&mut self, loans: &mut Loans) {
        self.phase = Phase::Dead;
        self.settle(loans);
    }

    /// Has it said that it goes? What it has asked to be changed is done all the same.
    pub fn has_said_goodbye(&self) -> bool {
        self.has_said_goodbye
    }

    /// For its changes: it, as long as they are to be done.
    pub fn will(&self) -> Weak<()> {
        Arc::downgrade(&self.will)
    }

    /// What is to be kept of it until its changes are done, now that it goes.
    pub fn legacy(&self) -> Option<Arc<()>> {
        (self.has_said_goodbye && Arc::weak_count(&self.will) > 0).then(|| self.will.clone())
    }

    /// What its requests in the engine change, jobs excepted.
    pub fn changes(&self) -> impl Iterator<Item = (RequestId, Span)> + '_ {
        let changes = self.requests.iter().filter(|(_, pending)| !pending.change.is_empty());
        changes.map(|(number, pending)| (RequestId(self.tag | u64::from(number)), pending.change))
    }

    /// May its socket be read that was left alone? Waiting until that is said to be readable once more would let all those go first of whom
    /// something is here.
    pub fn is_unread(&self) -> bool {
        self.unread && self.interest().0
    }

    /// Does it wait for what lies on connections that were closed?
    pub fn is_behind(&self) -> bool {
        self.behind.is_some()
    }

    /// For once: is nothing more read of it that others are behind?
    pub fn departs(&mut self) -> bool {
        let is_over = self.is_passed_over || matches!(self.phase, Phase::Ending | Phase::Dead);
        is_over && !std::mem::replace(&mut self.has_departed, true)
    }

    /// Its client has closed the socket while it waits: nobody waits for the rest. `ends`: that is not done any more.
    pub fn pass_over_if_closed(&mut self, ends: bool) {
        if self.is_waiting() && !self.is_behind() && self.stream().is_closed() {
            self.is_passed_over = true;
            if ends {
                self.end();
            }
        }
    }

    /// It has just come, and something of what it has to say with it: that may wait for what lies on closed ones.
    pub fn look_behind(&mut self, departures: &Departures) {
        self.behind = departures.before(self.channel.stream()).filter(|_| !self.kept.is_empty());
    }

    /// Is anything of it to be changed, and not answered?
    pub fn owes(&self) -> bool {
        self.requests.iter().any(|(_, pending)| !pending.change.is_empty()) || Arc::weak_count(&self.will) > 0
    }

    /// Is there anything to hear from the socket: readable, writable?
    pub fn interest(&self) -> (bool, bool) {
        let reads = matches!(self.phase, Phase::Handshake(_) | Phase::Transmission(_)) && !self.waiting;
        (reads, self.blocked && !self.is_dead())
    }

    /// To be closed: it failed, or it has ended and said everything.
    pub fn is_dead(&self) -> bool {
        matches!(self.phase, Phase::Dead) || (matches!(self.phase, Phase::Ending) && self.is_idle())
    }

    /// Did it leave input alone because there was no room for it?
    pub fn is_waiting(&self) -> bool {
        self.waiting && !self.is_dead()
    }

    /// It leaves for another front, with another purse.
    pub fn leave(&mut self, loans: &mut Loans) {
        self.account.settle(0, 0, 0, loans);
        self.account.wants(self.tag, None, loans);
    }

    /// Does it wait for a loan, and would need none if it had taken what was sent? Nothing is heard of that.
    pub fn may_be_taking(&self) -> bool {
        self.is_waiting() && self.unlent.is_some() && self.account.is_taking()
    }

    /// For what does it wait for memory that others hold? Who holds some itself may go on with that.
    pub fn wants_loan(&self) -> Option<Purpose> {
        self.unlent.filter(|_| self.is_waiting() && self.account.loan() == 0)
    }

    /// How much of the engine's room it waits for, for its payload.
    pub fn wants_bytes(&self) -> u64 {
        if self.is_waiting() { self.cramped } else { 0 }
    }

    /// The same of what there is for what only reads.
    pub fn wants_reads(&self) -> u64 {
        if self.is_waiting() { self.cramped_reads } else { 0 }
    }

    /// Says which of its changes wait here that others come behind. True: some have got on.
    pub fn line_up(&mut self, exports: &Exports, ahead: &mut Ahead) -> bool {
        let transmission =
            if let Phase::Transmission(transmission) = &self.phase { Some(transmission).filter(|_| self.held_up) } else { None };
        let now = transmission.map(|transmission| (self.kept.bytes().len(), transmission.is_filled()));
        let is_fresh = std::mem::take(&mut self.is_fresh) && now.is_some();
        if std::mem::replace(&mut self.lined_up, now) == now && !is_fresh {
            return false;
        }
        let changes = transmission.map(|transmission| transmission.changes(exports.get(self.session.export), self.kept.bytes()));
        ahead.set(&mut self.place, is_fresh, changes.into_iter().flatten())
    }

    /// Nothing is under way: no request in the engine, no byte to send.
    pub fn is_idle(&self) -> bool {
        self.requests.count() == 0 && self.output.is_empty() && self.channel.is_flushed()
    }

    /// Was something received that can be gone on with although the socket says nothing?
    pub fn has_more(&self) -> bool {
        self.channel.has_more() && self.interest().0
    }

    /// Does time matter to it: is it in the middle of something that only the client can go on with?
    pub fn is_timed(&self) -> bool {
        let inside = match &self.phase {
            Phase::Handshake(_) | Phase::Upgrading(_) => true,
            Phase::Transmission(transmission) => !self.waiting && (transmission.is_inside() || !self.kept.is_empty()),
            Phase::Arrived | Phase::Ending | Phase::Dead => false,
        };
        inside || self.blocked
    }

    /// Does it hold credit that is lost with time, whatever else it does?
    pub fn has_earned(&self) -> bool {
        self.account.has_earned()
    }

    /// Is it still shaking hands?
    pub fn is_half_open(&self) -> bool {
        matches!(self.phase, Phase::Handshake(_) | Phase::Upgrading(_))
    }

    /// Bytes of memory that the client gives back by going on, or will.
    fn held(&self) -> u64 {
        self.answers + self.receiving() + self.output.memory() + self.channel.unsent()
    }

    /// Those of a payload that arrives.
    fn receiving(&self) -> u64 {
        if let Phase::Transmission(transmission) = &self.phase { transmission.receiving() } else { 0 }
    }

    /// Bytes that have come of a payload which is still here.
    fn arriving(&self) -> u64 {
        if let Phase::Transmission(transmission) = &self.phase { transmission.arrived() } else { 0 }
    }

    /// Says to the purse what it holds now, and whether it waits for more.
    pub fn settle(&mut self, loans: &mut Loans) {
        self.account.settle(if self.is_dead() { 0 } else { self.held() }, self.receiving(), self.arriving(), loans);
        self.account.wants(self.tag, self.wants_loan(), loans);
    }

    /// The socket has something to read: one system call (`fresh`; else none), then everything that is whole.
    pub fn receive(&mut self, fresh: bool, scratch: &mut [u8], service: Service<'_>, intake: &mut Intake<'_>) {
        if self.waiting {
            self.resume(service, intake);
        }
        if self.finds_no_room(intake.room) {
            self.wait(true);
            // What lies decrypted is not its socket: who has read that has had its turn.
            self.unread |= fresh;
        }
        if !self.interest().0 {
            return;
        }
        self.unread = false;
        let behind = self.kept.bytes().len();
        scratch[..behind].copy_from_slice(self.kept.bytes());
        self.kept.clear();
        let (hole, limit) = match &mut self.phase {
            Phase::Transmission(transmission) => {
                let most = if self.account.has_earned() { scratch.len() } else { RECEIVE_BYTES_FIRST };
                match transmission.hole() {
                    Some(hole) => (hole, RECEIVE_BYTES_BEHIND),
                    None => (Default::default(), most),
                }
            }
            Phase::Handshake(_) | Phase::Upgrading(_) | Phase::Arrived | Phase::Ending | Phase::Dead => {
                (Default::default(), handshake::INPUT_BYTES_MAX)
            }
        };
        assert!(hole.is_empty() || behind == 0, "what was kept belongs in front of the hole");
        assert!(behind < limit, "what is kept of a client that does not wait is less than a request");
        let hole_bytes = hole.len();
        let received = self.channel.receive(&mut [IoSliceMut::new(hole), IoSliceMut::new(&mut scratch[behind..limit])], fresh);
        match received {
            Err(error) if is_temporary(&error) => self.kept.set(&scratch[..behind]),
            Ok(0) => self.end(),
            Err(_) => self.phase = Phase::Dead,
            Ok(got) => {
                self.is_fresh = true;
                self.account.received(got);
                self.look_if_worth();
                let direct = got.min(hole_bytes);
                if let Phase::Transmission(transmission) = &mut self.phase {
                    transmission.fill(direct);
                }
                let input = &scratch[..behind + got - direct];
                self.behind = intake.departures.and_then(|departures| departures.before(self.channel.stream()));
                self.waiting |= self.is_behind();
                let took = if self.is_behind() { 0 } else { self.advance(input, service, intake) };
                self.kept.set(&input[took..]);
            }
        }
    }

    /// Goes on with what was received for as long as that is possible without waiting for the client or the engine: replies count
    /// until they are sent, so they are sent first, and again when their number is what stopped it.
    pub fn catch_up(&mut self, service: Service<'_>, intake: &mut Intake<'_>) {
        loop {
            self.send();
            self.resume(service, intake);
            if !self.is_waiting() || self.blocked || self.output.is_empty() {
                return;
            }
        }
    }

    /// There may be room again: goes on with what was received.
    fn resume(&mut self, service: Service<'_>, intake: &mut Intake<'_>) {
        // Who has closed it hears no answer, so what comes here need not come behind others'; but those who look for what comes here wait for it.
        let is_closed = self.is_behind() && self.stream().is_closed();
        let is_past = |time: &mut usize| is_closed || intake.departures.is_none_or(|departures| departures.is_past(*time));
        self.behind.take_if(is_past);
        if !self.waiting || self.is_behind() {
            return;
        }
        if self.is_passed_over && !self.held_up && self.stream().has_hung_up() {
            // Others have gone before it, and what they have changed may be the same, and newer.
            return self.end();
        }
        if self.finds_no_room(intake.room) {
            // Whatever it waited for, for the moment it waits for us.
            self.has_waited = true;
            self.held_up |= self.unlent.is_none() && self.requests.count() + self.output.replies() < REQUESTS_MAX;
            return;
        }
        self.waiting = false;
        self.held_up = false;
        self.unlent = None;
        (self.cramped, self.cramped_reads) = (0, 0);
        // What was sent may have been taken since.
        if self.account.is_taking() {
            self.look();
        }
        let mut kept = std::mem::take(&mut self.kept);
        let took = self.advance(kept.bytes(), service, intake);
        kept.take(took);
        self.kept = kept;
        // It may be there again, and have written the same since: what nobody has seen until now is not done any more.
        if !self.waiting && std::mem::take(&mut self.has_waited) && self.stream().has_hung_up() {
            self.end();
        }
    }

    fn look_if_worth(&mut self) {
        if self.account.is_worth_a_look() {
            self.look();
        }
    }

    /// How much of what was sent has the client not taken?
    fn look(&mut self) {
        self.account.look(self.channel.stream().untaken() + self.channel.unsent());
    }

    /// It goes on when there is room, or what others hold comes back; `held_up`: neither is up to it.
    fn wait(&mut self, held_up: bool) {
        (self.waiting, self.has_waited, self.held_up) = (true, true, held_up);
    }

    /// Would it only read what it cannot pass on?
    fn finds_no_room(&self, room: &Room) -> bool {
        room.requests == 0 && matches!(self.phase, Phase::Transmission(_))
    }

    /// Understands `input` as far as it goes; returns how much that was.
    fn advance(&mut self, input: &[u8], service: Service<'_>, intake: &mut Intake<'_>) -> usize {
        let mut at = 0;
        loop {
            let (took, go_on) = match &mut self.phase {
                Phase::Handshake(_) => self.shake_hands(&input[at..], service),
                Phase::Transmission(_) => self.transmit(&input[at..], service, intake),
                Phase::Arrived => return at,
                // What follows the end is dropped; and what came in plain text behind STARTTLS (T6).
                Phase::Upgrading(_) | Phase::Ending | Phase::Dead => return input.len(),
            };
            at += took;
            if !go_on {
                return if matches!(self.phase, Phase::Upgrading(_) | Phase::Ending | Phase::Dead) { input.len() } else { at };
            }
        }
    }

    /// One step of the handshake: how much it took, and whether to go on.
    fn shake_hands(&mut self, input: &[u8], service: Service<'_>) -> (usize, bool) {
        let Phase::Handshake(handshake) = &mut self.phase else { return (0, false) };
        if self.output.unsent() > HANDSHAKE_UNSENT_MAX {
            self.waiting = true;
            return (0, false);
        }
        let offered = service.exports.offered(self.channel.who());
        let (took, step) = self.output.write(|out| handshake.step(offered, service.stopping, input, out));
        match step {
            handshake::Step::Wait => return (took, false),
            handshake::Step::Next => {}
            handshake::Step::Rest => self.waiting = true,
            handshake::Step::StartTls => {
                let Phase::Handshake(handshake) = std::mem::replace(&mut self.phase, Phase::Dead) else {
                    unreachable!("it is shaking hands")
                };
                self.phase = Phase::Upgrading(handshake);
            }
            handshake::Step::Transmit(session) => {
                self.session = session;
                self.phase = Phase::Arrived;
            }
            handshake::Step::Close => self.end(),
        }
        (took, !self.waiting)
    }

    /// One request: how much it took, and whether to go on.
    fn transmit(&mut self, input: &[u8], service: Service<'_>, intake: &mut Intake<'_>) -> (usize, bool) {
        let Phase::Transmission(transmission) = &self.phase else { return (0, false) };
        if input.is_empty() && !transmission.is_filled() {
            return (0, false);
        }
        let under_way = self.requests.count() + self.output.replies();
        if under_way >= REQUESTS_MAX || (intake.room.requests == 0 && !service.stopping) {
            self.wait(under_way < REQUESTS_MAX);
            return (0, false);
        }
        let connection = BYTES_MAX.saturating_sub(self.bytes + self.output.unsent());
        let held = self.held();
        let lent = |purpose| self.account.limit(self.tag, purpose, intake.loans).saturating_sub(held);
        let (loan, payload) = (lent(Purpose::Answer), lent(Purpose::Payload));
        let Phase::Transmission(transmission) = &mut self.phase else { return (0, false) };
        let allowance = Allowance {
            connection,
            loan,
            payload,
            room: intake.room.bytes,
            place: intake.room.has_place(Kind::Change),
            reads: (intake.room.read_requests > 0).then_some(intake.room.read_bytes),
            busy: intake.jobs.spans(),
            ahead: Some(intake.ahead.before(self.place)),
            job: intake.jobs.has_place() && intake.room.bytes > 0,
            caching_job: intake.jobs.has_place_to_cache() && intake.room.for_reads().is_some_and(|bytes| bytes > 0),
        };
        let export = service.exports.get(self.session.export);
        let (took, step) = transmission.step(export, service.stopping, allowance, input, &mut self.output);
        match step {
            transmission::Step::Next => {}
            transmission::Step::Wait => return (took, false),
            transmission::Step::Full => {
                self.wait(false);
                return (took, false);
            }
            transmission::Step::Busy => {
                self.wait(true);
                return (took, false);
            }
            transmission::Step::Cramped(bytes) => {
                self.wait(true);
                self.cramped = bytes;
                return (took, false);
            }
            transmission::Step::CrampedReads(bytes) => {
                self.wait(true);
                self.cramped_reads = bytes;
                return (took, false);
            }
            transmission::Step::Unlent(purpose) => {
                self.wait(false);
                self.unlent = Some(purpose);
                return (took, false);
            }
            transmission::Step::Request(pending, span, command) => {
                let held = pending.held;
                let request = Request { id: self.admit(pending), span, command };
                intake.room.take(request.kind(), held);
                intake.events.push(Event::Arrived(request));
            }
            transmission::Step::Job(pending, job) => {
                // One that is run elsewhere is asked for at once.
                if intake.jobs.are_elsewhere() {
                    let bytes = job.bytes().min(intake.room.bytes);
                    intake.room.take(job.kind(), bytes);
                }
                let id = self.admit(pending);
                let owner = if job.is_caching() { &self.presence } else { &self.will };
                intake.jobs.push(id, job.of(Arc::downgrade(owner)));
            }
            transmission::Step::Finish => {
                self.has_said_goodbye = true;
                self.end();
            }
            transmission::Step::Close => self.phase = Phase::Dead,
        }
        self.settle(intake.loans);
        (took, true)
    }

    fn admit(&mut self, pending: Pending) -> RequestId {
        self.bytes += pending.held;
        self.answers += pending.answer();
        RequestId(self.tag | u64::from(self.requests.insert(pending)))
    }

    /// The engine's answer to the request with these low bits.
    pub fn reply(&mut self, request: u8, result: Result<Outcome<Run>, RequestError>) {
        let pending = self.requests.remove(request);
        self.bytes -= pending.held;
        self.answers -= pending.answer();
        transmission::reply(&pending, self.session, result, &mut self.output);
    }

    /// The socket takes bytes again.
    pub fn unblock(&mut self) {
        (self.blocked, self.is_full) = (false, false);
    }

    /// The loop looks at its socket: if nothing is heard of that, it takes no more.
    pub fn looked_at(&mut self) {
        self.is_full |= self.blocked;
    }

    /// What has come since its socket was full stays here as well; and what is leased becomes a copy.
    fn keep_little(&mut self) {
        if self.blocked && (self.is_full || self.output.has_leased()) {
            self.output.keep_little();
        }
    }

    /// Sends what is queued, mostly in one system call. What is too much for one waits until the loop comes by again: the disks get their
    /// next operations in between, and the client has something to do while we go on.
    pub fn send(&mut self) {
        if (self.output.is_empty() && self.channel.is_flushed()) || self.blocked || self.is_dead() {
            return self.keep_little();
        }
        self.send_some();
        // What is leased leaves now, or becomes a copy.
        while self.output.has_leased() && !self.is_full && !self.is_dead() {
            self.send_some();
        }
        self.blocked = !self.output.is_empty() || !self.channel.is_flushed();
        self.keep_little();
        if !self.blocked && matches!(self.phase, Phase::Upgrading(_)) {
            self.upgrade();
        }
    }

    /// The answer to STARTTLS has left: from now on everything goes through TLS.
    fn upgrade(&mut self) {
        let Phase::Upgrading(handshake) = std::mem::replace(&mut self.phase, Phase::Dead) else { panic!("STARTTLS was answered") };
        let config = self.tls.clone().expect("STARTTLS is only granted where TLS is offered");
        if self.channel.secure(&config).is_ok() {
            self.phase = Phase::Handshake(handshake.secured());
        }
    }

    fn send_some(&mut self) {
        // Most turns have a few replies for a client: a short list is faster to prepare.
        let result = match self.output.pieces() {
            0 => self.channel.flush().map(|()| 1),
            1..=16 => self.send_slices::<16>(),
            17..=64 => self.send_slices::<64>(),
            _ => self.send_slices::<512>(),
        };
        match result {
            Ok(sent) => {
                self.account.sent(sent);
                self.look_if_worth();
            }
            Err(error) if is_temporary(&error) => self.is_full = true,
            Err(_) => self.phase = Phase::Dead,
        }
    }

    fn send_slices<const N: usize>(&mut self) -> io::Result<usize> {
        let mut slices = [IoSlice::new(&[]); N];
        let (count, bytes) = self.output.gather(&mut slices, SEND_BYTES);
        let sent = self.channel.send(&slices[..count])?;
        self.is_full = sent < bytes;
        self.output.advance(sent);
        Ok(sent)
    }

    /// Nothing more is read; what is under way is finished.
    fn end(&mut self) {
        self.kept.clear();
        (self.waiting, self.behind) = (false, None);
        self.held_up = false;
        if !self.is_dead() {
            self.phase = Phase::Ending;
        }
    }

    /// The daemon stops: what was received and not admitted is refused, what was admitted is answered, then the connection ends.
    /// A client that is still shaking hands is told when it asks next.
    pub fn stop(&mut self, service: Service<'_>, loans: &mut Loans) {
        if !matches!(self.phase, Phase::Transmission(_)) {
            return;
        }
        let (mut room, mut events, mut jobs) = (Room::none(), Vec::new(), Jobs::default());
        let ahead = Ahead::default();
        let mut nothing = Intake { room: &mut room, events: &mut events, jobs: &mut jobs, loans, ahead: &ahead, departures: None };
        let kept = std::mem::take(&mut self.kept);
        self.advance(kept.bytes(), service, &mut nothing);
        self.end();
    }

    /// A second has passed. A client that keeps us waiting for too long is given up, sooner when others wait for memory (`wanted`).
    pub fn tick(&mut self, wanted: bool) {
        let limit = match &mut self.phase {
            Phase::Handshake(handshake) => {
                handshake.refill();
                HANDSHAKE_TICKS
            }
            Phase::Upgrading(_) => HANDSHAKE_TICKS,
            Phase::Arrived | Phase::Transmission(_) | Phase::Ending | Phase::Dead => {
                if self.account.is_moving() {
                    self.ticks = 0;
                }
                STALL_TICKS
            }
        };
        if self.is_idle() && self.kept.is_empty() {
            self.kept = Kept::default();
        }
        self.keep_little();
        self.ticks = if self.is_timed() { self.ticks + 1 } else { 0 };
        if self.account.tick(self.is_timed(), wanted) || self.ticks > limit {
            self.phase = Phase::Dead;
        }
    }
}

fn is_temporary(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted)
}
