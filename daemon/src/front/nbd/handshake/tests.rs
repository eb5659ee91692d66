//! The handshake, item by item of the protocol's document (H, T, S), fed as bytes.

use super::*;
use crate::front::nbd::allow::Who;
use crate::front::nbd::export::{Export, Exports};
use crate::front::nbd::protocol::transmission_flag as flag;
use proptest::prelude::*;

const NAME: &[u8] = b"disk";
const FLAGS_BOTH: u32 = 3;

fn export() -> Export {
    Export { name: "disk".into(), description: "a test".into(), bytes: 1 << 20, read_only: false, clients: Vec::new(), block_bytes: 4096 }
}

fn exports() -> Exports {
    Exports::one(export())
}

/// What a client wrote, and what happens when the server reads it.
#[derive(Clone, Debug, Default)]
struct Client {
    bytes: Vec<u8>,
}

/// Everything that came back.
#[derive(Debug, PartialEq)]
struct Told {
    /// Without the greeting.
    bytes: Vec<u8>,
    end: Option<Step>,
}

impl Client {
    /// Answers the greeting with these flags.
    fn new(flags: u32) -> Client {
        Client { bytes: flags.to_be_bytes().to_vec() }
    }

    fn option(mut self, option: u32, data: &[u8]) -> Client {
        self.bytes.extend(OPTION_MAGIC.to_be_bytes());
        self.bytes.extend(option.to_be_bytes());
        self.bytes.extend((data.len() as u32).to_be_bytes());
        self.bytes.extend(data);
        self
    }

    fn information(self, option: u32, name: &[u8], wanted: &[u16]) -> Client {
        let mut data = counted(name);
        data.extend((wanted.len() as u16).to_be_bytes());
        wanted.iter().for_each(|kind| data.extend(kind.to_be_bytes()));
        self.option(option, &data)
    }

    fn contexts(self, option: u32, name: &[u8], queries: &[&[u8]]) -> Client {
        let mut data = counted(name);
        data.extend((queries.len() as u32).to_be_bytes());
        queries.iter().for_each(|query| data.extend(counted(query)));
        self.option(option, &data)
    }

    /// The server's side, fed `step` bytes at a time; refilled whenever it rests.
    fn tell(&self, exports: &Exports, stopping: bool, step: usize) -> Told {
        self.tell_with(Tls::Off, exports, stopping, step)
    }

    fn tell_with(&self, tls: Tls, exports: &Exports, stopping: bool, step: usize) -> Told {
        let mut out = Vec::new();
        let mut handshake = Handshake::new(tls, &mut out);
        let greeting = out.len();
        let (mut buffer, mut end) = (Vec::new(), None);
        for piece in self.bytes.chunks(step) {
            buffer.extend_from_slice(piece);
            while end.is_none() {
                let (took, step) = handshake.step(exports.offered(Who::Anybody), stopping, &buffer, &mut out);
                buffer.drain(..took);
                match step {
                    Step::Wait => break,
                    Step::Next => {}
                    Step::Rest => handshake.refill(),
                    Step::StartTls => {
                        // What else came in plain text is forgotten; what the client sends from here on stands for what TLS carries.
                        handshake = handshake.secured();
                        buffer.clear();
                    }
                    Step::Transmit(_) | Step::Close => end = Some(step),
                }
            }
            assert!(buffer.len() <= INPUT_BYTES_MAX.saturating_add(step), "{} bytes wait", buffer.len());
        }
        Told { bytes: out.split_off(greeting), end }
    }

    /// One option after the other, each when the one before has been answered, where TLS is required.
    fn told_with_tls(&self) -> Told {
        // The flags are four bytes, and no option here has data.
        self.tell_with(Tls::Required, &exports(), false, 4)
    }

    fn told(&self) -> Told {
        self.tell(&exports(), false, usize::MAX)
    }
}

impl Told {
    /// The replies: option, kind, data.
    fn replies(&self) -> Vec<(u32, u32, Vec<u8>)> {
        let mut rest = Fields(&self.bytes);
        let mut replies = Vec::new();
        while !rest.0.is_empty() {
            assert_eq!(rest.u64(), Some(OPTION_REPLY_MAGIC));
            let (option, kind) = (rest.u32().expect("an option"), rest.u32().expect("a kind"));
            replies.push((option, kind, rest.counted().expect("the data").to_vec()));
        }
        replies
    }

    fn kinds(&self) -> Vec<(u32, u32)> {
        self.replies().into_iter().map(|(option, kind, _)| (option, kind)).collect()
    }

    /// The information of this kind in the replies to INFO or GO.
    fn information(&self, kind: u16) -> Option<Vec<u8>> {
        let infos = self.replies().into_iter().filter(|(_, reply, _)| *reply == answer::INFO);
        infos.map(|(_, _, data)| data).find(|data| data[..2] == kind.to_be_bytes()).map(|data| data[2..].to_vec())
    }
}

fn counted(bytes: &[u8]) -> Vec<u8> {
    [&(bytes.len() as u32).to_be_bytes(), bytes].concat()
}

#[test]
fn h1_the_greeting_offers_fixed_newstyle_and_no_unknown_flag() {
    let mut out = Vec::new();
    Handshake::new(Tls::Off, &mut out);
    assert_eq!(out, [b"NBDMAGICIHAVEOPT".as_slice(), &[0, 3]].concat());
}

#[test]
fn h2_an_unknown_client_flag_ends_the_connection() {
    for flags in [4, 1 << 31, u32::MAX] {
        assert_eq!(Client::new(flags).told(), Told { bytes: vec![], end: Some(Step::Close) });
    }
    for flags in 0..4 {
        assert_eq!(Client::new(flags).told().end, None);
    }
}

#[test]
fn h3_a_name_that_is_no_string_is_invalid() {
    for name in [b"a\0b".to_vec(), b"\xff\xfe".to_vec(), vec![b'x'; 4097]] {
        let told = Client::new(FLAGS_BOTH).information(option::GO, &name, &[]).told();
        assert_eq!(told.kinds(), [(option::GO, answer::ERR_INVALID)]);
        assert_eq!(told.end, None);
    }
    let told = Client::new(FLAGS_BOTH).information(option::GO, &[b'x'; 4096], &[]).told();
    assert_eq!(told.kinds(), [(option::GO, answer::ERR_UNKNOWN)], "4096 bytes are a string, of no export");
}

#[test]
fn h4_an_unknown_option_is_answered_and_skipped() {
    let told = Client::new(FLAGS_BOTH).option(4711, &[7; 1000]).option(option::LIST, &[]).told();
    assert_eq!(told.kinds(), [(4711, answer::ERR_UNSUP), (option::LIST, answer::SERVER), (option::LIST, answer::ACK)]);
}

#[test]
fn h4_data_beyond_the_cap_is_skipped_and_answered() {
    let big = vec![1; OPTION_BYTES_MAX + 1];
    let client = Client::new(FLAGS_BOTH).option(4711, &big).option(option::LIST, &big).option(option::LIST, &[]);
    let kinds = client.tell(&exports(), false, 1000).kinds();
    assert_eq!(kinds[..2], [(4711, answer::ERR_UNSUP), (option::LIST, answer::ERR_TOO_BIG)]);
    assert_eq!(kinds[2..], [(option::LIST, answer::SERVER), (option::LIST, answer::ACK)]);
}

#[test]
fn h5_zeroes_follow_export_name_only_if_the_client_did_not_decline_them() {
    for (flags, length) in [(1, 10 + EXPORT_NAME_ZEROES), (3, 10)] {
        let told = Client::new(flags).option(option::EXPORT_NAME, NAME).told();
        assert_eq!(told.bytes.len(), length);
        assert_eq!(told.bytes[..8], (1u64 << 20).to_be_bytes());
        assert!(told.bytes[10..].iter().all(|byte| *byte == 0));
        assert_eq!(told.end, Some(Step::Transmit(Session::default())));
        let go = Client::new(flags).information(option::GO, NAME, &[]).told();
        assert_eq!(go.replies().last(), Some(&(option::GO, answer::ACK, vec![])), "never after GO");
    }
}

#[test]
fn h6_export_name_of_an_unknown_export_ends_the_connection_without_a_word() {
    for name in [b"other".as_slice(), b"../disk", b"/etc/passwd", b"DISK", b"disk\0", &[b'x'; 4097], &[0xff; 70_000]] {
        let told = Client::new(FLAGS_BOTH).option(option::EXPORT_NAME, name).told();
        assert_eq!(told, Told { bytes: vec![], end: Some(Step::Close) });
    }
}

#[test]
fn h6_the_empty_name_is_the_default_export() {
    let told = Client::new(FLAGS_BOTH).option(option::EXPORT_NAME, b"").told();
    assert_eq!(told.end, Some(Step::Transmit(Session::default())));
}

#[test]
fn h7_haggling_ends_only_at_a_wrong_magic() {
    let mut client = Client::new(FLAGS_BOTH).option(99, b"?").option(option::INFO, b"?").option(option::LIST, b"?");
    assert_eq!(client.told().end, None);
    client.bytes.extend([0; 16]);
    assert_eq!(client.told().end, Some(Step::Close));
}

#[test]
fn h7_more_than_64_options_wait_for_the_next_second() {
    let mut client = Client::new(FLAGS_BOTH);
    for _ in 0..65 {
        client = client.option(4711, &[]);
    }
    let mut out = Vec::new();
    let mut handshake = Handshake::new(Tls::Off, &mut out);
    let mut at = 0;
    let exports = exports();
    let mut go = |handshake: &mut Handshake| {
        loop {
            let (took, step) = handshake.step(exports.offered(Who::Anybody), false, &client.bytes[at..], &mut out);
            at += took;
            if step != Step::Next {
                return (step, client.bytes.len() - at);
            }
        }
    };
    assert_eq!(go(&mut handshake), (Step::Rest, 16));
    assert_eq!(go(&mut handshake), (Step::Rest, 16));
    handshake.refill();
    assert_eq!(go(&mut handshake), (Step::Wait, 0));
}

#[test]
fn h8_abort_is_acknowledged_whatever_data_it_has() {
    for data in [vec![], vec![1; 100], vec![1; OPTION_BYTES_MAX + 5]] {
        for stopping in [false, true] {
            let told = Client::new(FLAGS_BOTH).option(option::ABORT, &data).tell(&exports(), stopping, 4096);
            assert_eq!(told.kinds(), [(option::ABORT, answer::ACK)]);
            assert_eq!(told.end, Some(Step::Close));
        }
    }
}

#[test]
fn h9_list_with_data_is_invalid_and_without_data_names_the_export() {
    assert_eq!(Client::new(FLAGS_BOTH).option(option::LIST, b"x").told().kinds(), [(option::LIST, answer::ERR_INVALID)]);
    let told = Client::new(FLAGS_BOTH).option(option::LIST, b"").told();
    let data = [counted(NAME), b"a test".to_vec()].concat();
    assert_eq!(told.replies(), [(option::LIST, answer::SERVER, data), (option::LIST, answer::ACK, vec![])]);
}

#[test]
fn h10_info_and_go_tell_the_same_and_only_go_ends_the_handshake() {
    let wanted = [info::NAME, 4711, info::DESCRIPTION, info::NAME];
    let about = Client::new(FLAGS_BOTH).information(option::INFO, NAME, &wanted).told();
    let go = Client::new(FLAGS_BOTH).information(option::GO, NAME, &wanted).told();
    let data = |told: &Told| told.replies().into_iter().map(|(_, kind, data)| (kind, data)).collect::<Vec<_>>();
    assert_eq!(data(&about), data(&go));
    assert_eq!((about.end, go.end), (None, Some(Step::Transmit(Session::default()))));
    assert_eq!(go.information(info::EXPORT).map(|info| info.len() + 2), Some(12));
    assert_eq!(go.information(info::NAME).as_deref(), Some(NAME));
    assert_eq!(go.information(info::DESCRIPTION).as_deref(), Some(b"a test".as_slice()));
    let first = go.replies().remove(0);
    assert_eq!((first.1, &first.2[..2]), (answer::INFO, &info::EXPORT.to_be_bytes()[..]));
}

/// Two volumes, of which only the case of their names differs; who names none gets `default`.
fn two(default: Option<usize>) -> Exports {
    let twin = Export { name: "Disk".into(), description: String::new(), bytes: 2 << 20, ..export() };
    Exports::new(vec![export(), twin], default).expect("their names are different bytes")
}

/// The size that GO tells, or the error.
fn go(exports: &Exports, name: &[u8]) -> Result<u64, u32> {
    let told = Client::new(FLAGS_BOTH).information(option::GO, name, &[]).tell(exports, false, usize::MAX);
    let place = [1 << 20, 2 << 20].iter().position(|bytes: &u64| told.bytes.windows(8).any(|word| word == bytes.to_be_bytes()));
    match told.end {
        Some(Step::Transmit(session)) => assert_eq!(Some(session.export), place),
        end => assert_eq!((end, place), (None, None)),
    }
    place.map(|place| (place as u64 + 1) << 20).ok_or_else(|| told.kinds()[0].1)
}

#[test]
fn h9_list_names_every_export_in_its_order_and_none_that_has_stopped() {
    let list = |exports: &Exports| Client::new(FLAGS_BOTH).option(option::LIST, b"").tell(exports, false, usize::MAX).replies();
    let mut exports = two(None);
    let entry = |name: &[u8], text: &[u8]| (option::LIST, answer::SERVER, [counted(name), text.to_vec()].concat());
    let end = (option::LIST, answer::ACK, vec![]);
    assert_eq!(list(&exports), [entry(b"disk", b"a test"), entry(b"Disk", b""), end.clone()]);
    exports.close(0);
    assert_eq!(list(&exports), [entry(b"Disk", b""), end]);
}

#[test]
fn h10_of_several_exports_everyone_gets_the_one_of_exactly_this_name() {
    for (default, nameless) in [(None, Err(answer::ERR_UNKNOWN)), (Some(0), Ok(1 << 20)), (Some(1), Ok(2 << 20))] {
        let exports = two(default);
        assert_eq!((go(&exports, b"disk"), go(&exports, b"Disk")), (Ok(1 << 20), Ok(2 << 20)), "names are bytes");
        assert_eq!((go(&exports, b""), go(&exports, b"DISK")), (nameless, Err(answer::ERR_UNKNOWN)));
    }
    assert!(Exports::new(vec![export(), export()], None).unwrap_err().contains("two of them are named \"disk\""));
}

#[test]
fn h12_an_export_that_has_stopped_is_shutting_down_and_the_others_are_not() {
    let mut exports = two(Some(0));
    exports.close(0);
    assert_eq!((go(&exports, b"disk"), go(&exports, b"")), (Err(answer::ERR_SHUTDOWN), Err(answer::ERR_SHUTDOWN)));
    assert_eq!(go(&exports, b"Disk"), Ok(2 << 20));
    let told = Client::new(FLAGS_BOTH).option(option::EXPORT_NAME, b"disk").tell(&exports, false, usize::MAX);
    assert_eq!(told, Told { bytes: vec![], end: Some(Step::Close) });
}

#[test]
fn s9_contexts_count_for_the_export_that_they_were_selected_for() {
    let exports = two(None);
    for (selected, gone, kept) in [(b"disk", b"disk", true), (b"Disk", b"Disk", true), (b"disk", b"Disk", false), (b"Disk", b"disk", false)]
    {
        let client = structured().contexts(option::SET_META_CONTEXT, selected, &[b"base:allocation"]);
        let end = client.information(option::GO, gone, &[]).tell(&exports, false, usize::MAX).end;
        assert!(matches!(end, Some(Step::Transmit(session)) if session.contexts.allocation == kept), "{end:?}");
    }
}

#[test]
fn h10_an_unknown_export_and_lengths_that_lie_get_their_errors() {
    let told = |data: &[u8]| Client::new(FLAGS_BOTH).option(option::GO, data).told().kinds();
    let unknown = [counted(b"other"), vec![0, 0]].concat();
    assert_eq!(told(&unknown), [(option::GO, answer::ERR_UNKNOWN)]);
    let (long_name, missing, extra) =
        ([&[0, 0, 0, 5], NAME, &[0, 0]].concat(), counted(NAME), [counted(NAME), vec![0, 1, 0, 0, 9]].concat());
    for data in [long_name, missing, extra, vec![], vec![0xff; 6], [counted(NAME), vec![0, 2, 0, 0]].concat()] {
        assert_eq!(told(&data), [(option::GO, answer::ERR_INVALID)], "{data:?}");
    }
}

#[test]
fn h11_block_sizes_are_told_in_order_to_who_asks_and_bind_who_asked_when_it_went() {
    let ask = |option: u32, wanted: &[u16]| Client::new(FLAGS_BOTH).information(option, NAME, wanted);
    for (client, told, sized) in [
        (ask(option::GO, &[]), false, false),
        (ask(option::GO, &[info::NAME, info::BLOCK_SIZE]), true, true),
        (ask(option::INFO, &[info::BLOCK_SIZE]).option(option::EXPORT_NAME, NAME), true, false),
    ] {
        let all = client.told();
        assert_eq!(all.end, Some(Step::Transmit(Session { sized, ..Session::default() })));
        if client.bytes.ends_with(NAME) {
            continue; // the answer to EXPORT_NAME is no option reply
        }
        assert_eq!(all.information(info::BLOCK_SIZE).is_some(), told);
    }
    for option in [option::INFO, option::GO] {
        let told = ask(option, &[info::BLOCK_SIZE]).told();
        let sizes = told.information(info::BLOCK_SIZE).expect("block sizes");
        let sizes: Vec<u32> = sizes.chunks(4).map(|word| u32::from_be_bytes(word.try_into().expect("four bytes"))).collect();
        assert_eq!(sizes, [512, 4096, 32 << 20]);
    }
}

#[test]
fn h12_a_stopping_server_refuses_every_option_but_abort() {
    let options = [option::LIST, option::STRUCTURED_REPLY, option::STARTTLS, option::SET_META_CONTEXT, 4711];
    for option in options {
        let told = Client::new(FLAGS_BOTH).option(option, &[]).tell(&exports(), true, 7);
        assert_eq!(told.kinds(), [(option, answer::ERR_SHUTDOWN)]);
    }
    let told = Client::new(FLAGS_BOTH).option(option::EXPORT_NAME, NAME).tell(&exports(), true, 7);
    assert_eq!(told, Told { bytes: vec![], end: Some(Step::Close) });
}

#[test]
fn h13_structured_replies_may_be_asked_for_again() {
    let client = Client::new(FLAGS_BOTH).option(option::STRUCTURED_REPLY, &[]).option(option::STRUCTURED_REPLY, &[]);
    assert_eq!(client.told().kinds(), [(option::STRUCTURED_REPLY, answer::ACK); 2]);
    let told = client.option(option::STRUCTURED_REPLY, b"x").information(option::GO, NAME, &[]).told();
    assert_eq!(told.kinds()[2], (option::STRUCTURED_REPLY, answer::ERR_INVALID));
    assert_eq!(told.end, Some(Step::Transmit(Session { headers: Headers::Structured, ..Session::default() })));
}

#[test]
fn h13_starttls_and_extended_headers_are_granted_once() {
    let twice = Client::new(FLAGS_BOTH).option(option::EXTENDED_HEADERS, &[]).option(option::EXTENDED_HEADERS, &[]).told();
    assert_eq!(twice.kinds(), [(option::EXTENDED_HEADERS, answer::ACK), (option::EXTENDED_HEADERS, answer::ERR_INVALID)]);
    let twice = Client::new(FLAGS_BOTH).option(option::STARTTLS, &[]).option(option::STARTTLS, &[]).told_with_tls();
    assert_eq!(twice.kinds(), [(option::STARTTLS, answer::ACK), (option::STARTTLS, answer::ERR_INVALID)]);
}

#[test]
fn e_extended_headers_stand_above_structured_replies_and_need_go() {
    let extended = |client: Client| client.option(option::EXTENDED_HEADERS, &[]);
    let session = Session { headers: Headers::Extended, ..Session::default() };
    for client in [extended(Client::new(FLAGS_BOTH)), extended(structured())] {
        assert_eq!(client.clone().information(option::GO, NAME, &[]).told().end, Some(Step::Transmit(session)));
        let back = client.clone().option(option::STRUCTURED_REPLY, &[]).information(option::GO, NAME, &[]).told();
        assert!(back.kinds().contains(&(option::STRUCTURED_REPLY, answer::ERR_EXT_HEADER_REQD)));
        assert_eq!(back.end, Some(Step::Transmit(session)), "there is no way down");
        assert_eq!(client.option(option::EXPORT_NAME, NAME).told().end, Some(Step::Close));
    }
    let with_data = Client::new(FLAGS_BOTH).option(option::EXTENDED_HEADERS, b"x").information(option::GO, NAME, &[]).told();
    assert_eq!(with_data.kinds()[0], (option::EXTENDED_HEADERS, answer::ERR_INVALID));
    assert_eq!(with_data.end, Some(Step::Transmit(Session::default())));
    let contexts = extended(Client::new(FLAGS_BOTH)).contexts(option::SET_META_CONTEXT, NAME, &[b"base:allocation"]).told();
    assert_eq!(contexts.kinds().last(), Some(&(option::SET_META_CONTEXT, answer::ACK)), "they count as structured");
}

#[test]
fn t2_starttls_is_unsupported_and_never_required() {
    let told = Client::new(FLAGS_BOTH).option(option::STARTTLS, &[]).option(option::STARTTLS, b"x").option(option::LIST, &[]).told();
    assert_eq!(told.kinds()[..2], [(option::STARTTLS, answer::ERR_UNSUP), (option::STARTTLS, answer::ERR_INVALID)]);
    assert_eq!(told.kinds().len(), 4, "and haggling goes on");
    assert!(told.kinds().iter().all(|(_, kind)| *kind != answer::ERR_TLS_REQD));
}

#[test]
fn t1_t3_where_tls_is_required_nothing_is_told_before_it() {
    let options =
        [option::LIST, option::INFO, option::GO, option::STRUCTURED_REPLY, option::EXTENDED_HEADERS, option::SET_META_CONTEXT, 4711];
    for option in options {
        let big = vec![1; OPTION_BYTES_MAX + 1];
        for data in [&[][..], &big] {
            let told = Client::new(FLAGS_BOTH).option(option, data).tell_with(Tls::Required, &exports(), false, 4096);
            assert_eq!((told.kinds(), told.end), (vec![(option, answer::ERR_TLS_REQD)], None));
        }
    }
    let name = Client::new(FLAGS_BOTH).option(option::EXPORT_NAME, NAME).told_with_tls();
    assert_eq!(name, Told { bytes: vec![], end: Some(Step::Close) });
    let abort = Client::new(FLAGS_BOTH).option(option::ABORT, &[]).told_with_tls();
    assert_eq!((abort.kinds(), abort.end), (vec![(option::ABORT, answer::ACK)], Some(Step::Close)));
    // Who does not speak the fixed newstyle has no STARTTLS.
    for flags in [0, 2] {
        assert_eq!(Client::new(flags).told_with_tls(), Told { bytes: vec![], end: Some(Step::Close) });
    }
    let secured = Client::new(FLAGS_BOTH).option(option::STARTTLS, &[]).option(option::LIST, &[]).option(4711, &[]).told_with_tls();
    assert!(secured.kinds().iter().all(|(_, kind)| *kind != answer::ERR_TLS_REQD), "never after it");
    assert_eq!(secured.kinds()[1..], [(option::LIST, answer::SERVER), (option::LIST, answer::ACK), (4711, answer::ERR_UNSUP)]);
}

#[test]
fn t4_starttls_with_data_is_invalid() {
    for data in [&b"x"[..], &vec![1; OPTION_BYTES_MAX + 1]] {
        let told = Client::new(FLAGS_BOTH).option(option::STARTTLS, data).tell_with(Tls::Required, &exports(), false, usize::MAX);
        assert_eq!((told.kinds(), told.end), (vec![(option::STARTTLS, answer::ERR_INVALID)], None));
    }
}

#[test]
fn t6_starttls_forgets_what_was_negotiated_and_what_came_behind_it() {
    let pipelined = Client::new(FLAGS_BOTH).option(option::STARTTLS, &[]).option(option::STRUCTURED_REPLY, &[]).option(option::LIST, &[]);
    let told = pipelined.tell_with(Tls::Required, &exports(), false, usize::MAX);
    assert_eq!(told.kinds(), [(option::STARTTLS, answer::ACK)], "no answer to what came in plain text");

    let mut out = Vec::new();
    let handshake = Handshake {
        session: Session { headers: Headers::Extended, contexts: Contexts { allocation: true, tier: true }, sized: true, export: 0 },
        no_zeroes: true,
        ..Handshake::new(Tls::Required, &mut out)
    };
    let secured = handshake.secured();
    assert_eq!((secured.session, secured.tls, secured.no_zeroes), (Session::default(), Tls::Secured, true));
}

#[test]
fn x1_the_transmission_flags_are_those_of_the_export_and_the_session() {
    let flags = |exports: &Exports, client: Client| {
        let told = client.information(option::GO, NAME, &[]).tell(exports, false, usize::MAX);
        let info = told.information(info::EXPORT).expect("always told");
        u16::from_be_bytes([info[8], info[9]])
    };
    let always = flag::HAS_FLAGS | flag::SEND_FLUSH | flag::SEND_FUA | flag::CAN_MULTI_CONN | flag::SEND_CACHE;
    let changes = flag::SEND_TRIM | flag::SEND_WRITE_ZEROES | flag::SEND_FAST_ZERO;
    assert_eq!(flags(&exports(), Client::new(FLAGS_BOTH)), always | changes);
    let structured = Client::new(FLAGS_BOTH).option(option::STRUCTURED_REPLY, &[]);
    assert_eq!(flags(&exports(), structured.clone()) & flag::SEND_DF, 0x80);
    let read_only = Export { read_only: true, ..export() };
    assert_eq!(flags(&Exports::one(read_only), Client::new(FLAGS_BOTH)), always | flag::READ_ONLY);
}

fn structured() -> Client {
    Client::new(FLAGS_BOTH).option(option::STRUCTURED_REPLY, &[])
}

fn check_session(client: Client, allocation: bool, tier: bool) {
    let told = client.information(option::GO, NAME, &[]).told();
    let contexts = Contexts { allocation, tier };
    assert_eq!(told.end, Some(Step::Transmit(Session { headers: Headers::Structured, contexts, sized: false, export: 0 })));
}

#[test]
fn s9_a_context_is_selected_by_its_whole_name_only() {
    let select = |query: &[u8]| structured().contexts(option::SET_META_CONTEXT, NAME, &[query]);
    let data = [allocation::ID.to_be_bytes().to_vec(), b"base:allocation".to_vec()].concat();
    let expect = [(option::SET_META_CONTEXT, answer::META_CONTEXT, data), (option::SET_META_CONTEXT, answer::ACK, vec![])];
    assert_eq!(select(b"base:allocation").told().replies()[1..], expect);
    check_session(select(b"base:allocation"), true, false);
    check_session(select(b"tidegate:tier"), false, true);
    let both = structured().contexts(option::SET_META_CONTEXT, NAME, &[b"tidegate:tier", b"other:x", b"base:allocation"]);
    let ids: Vec<u8> = both.told().replies()[1..3].iter().map(|(_, _, data)| data[3]).collect();
    assert_eq!(ids, [1, 2]);
    check_session(both, true, true);
    for other in [b"base:".as_slice(), b"tidegate:", b"qemu:allocation-depth", b"base:allocation2", b"", b"base"] {
        assert_eq!(select(other).told().kinds()[1..], [(option::SET_META_CONTEXT, answer::ACK)]);
        check_session(select(other), false, false);
    }
}

#[test]
fn s9_a_selection_replaces_the_earlier_one_even_when_it_fails() {
    let chosen = || structured().contexts(option::SET_META_CONTEXT, NAME, &[b"base:allocation"]);
    check_session(chosen(), true, false);
    check_session(chosen().contexts(option::SET_META_CONTEXT, NAME, &[]), false, false);
    check_session(chosen().contexts(option::SET_META_CONTEXT, NAME, &[b"tidegate:tier"]), false, true);
    check_session(chosen().contexts(option::SET_META_CONTEXT, b"other", &[b"base:allocation"]), false, false);
    check_session(chosen().option(option::SET_META_CONTEXT, b"garbage"), false, false);
    check_session(chosen().contexts(option::LIST_META_CONTEXT, NAME, &[]), true, false);
}

#[test]
fn s9_lengths_that_lie_are_invalid_and_structured_replies_come_first() {
    for option in [option::LIST_META_CONTEXT, option::SET_META_CONTEXT] {
        let before = Client::new(FLAGS_BOTH).contexts(option, NAME, &[b"base:allocation"]).told();
        assert_eq!(before.kinds(), [(option, answer::ERR_INVALID)]);
        let unknown = structured().contexts(option, b"other", &[b"base:allocation"]).told();
        assert_eq!(unknown.kinds()[1..], [(option, answer::ERR_UNKNOWN)]);
        let many = [counted(NAME), u32::MAX.to_be_bytes().to_vec(), counted(b"base:allocation")].concat();
        let extra = [counted(NAME), 0u32.to_be_bytes().to_vec(), vec![0]].concat();
        for data in [many, extra, counted(NAME), vec![]] {
            assert_eq!(structured().option(option, &data).told().kinds()[1..], [(option, answer::ERR_INVALID)]);
        }
    }
}

#[test]
fn a_hundred_thousand_queries_are_too_big_and_as_many_as_fit_are_answered() {
    let queries = |count: u32, bytes: &[u8]| {
        let data = [&counted(NAME)[..], &count.to_be_bytes(), bytes].concat();
        structured().option(option::SET_META_CONTEXT, &data).told().kinds().split_off(1)
    };
    let refused = [(option::SET_META_CONTEXT, answer::ERR_TOO_BIG)];
    assert_eq!(queries(100_000, &[0; 400_000]), refused, "100,000 empty ones");
    // What they fill is known, how many they claim to be is not believed.
    assert_eq!(queries(u32::MAX, &[0; 60_000]), [(option::SET_META_CONTEXT, answer::ERR_INVALID)]);
    assert_eq!(queries(15_000, &[0; 60_000]), [(option::SET_META_CONTEXT, answer::ACK)]);
}

#[test]
fn s9_contexts_are_listed_by_name_by_namespace_and_all_together() {
    let list = |queries: &[&[u8]]| structured().contexts(option::LIST_META_CONTEXT, NAME, queries).told().kinds().split_off(1);
    let (found, end) = ((option::LIST_META_CONTEXT, answer::META_CONTEXT), (option::LIST_META_CONTEXT, answer::ACK));
    assert_eq!(list(&[]), [found, found, end]);
    assert_eq!(list(&[b"base:"]), [found, end]);
    assert_eq!(list(&[b"tidegate:"]), [found, end]);
    assert_eq!(list(&[b"base:allocation", b"base:", b"base:allocation"]), [found, end], "once, however often it is asked for");
    assert_eq!(list(&[b"other:"]), [end]);
}

/// Anything a client may send: mostly options that make sense, sometimes noise.
fn any_client() -> impl Strategy<Value = Client> {
    let name = prop_oneof![4 => Just(NAME.to_vec()), 1 => Just(vec![]), 1 => prop::collection::vec(any::<u8>(), 0..20)];
    let query = prop_oneof![Just(b"base:allocation".to_vec()), Just(b"base:".to_vec()), prop::collection::vec(any::<u8>(), 0..9)];
    let data = (name, prop::collection::vec(query, 0..4), 0..3, 0usize..4).prop_map(|(name, queries, kind, cut)| {
        let mut client = Client::default();
        client = match kind {
            0 => client.contexts(0, &name, &queries.iter().map(Vec::as_slice).collect::<Vec<_>>()),
            1 => client.information(0, &name, &[0, 1, 2, 3][cut..]),
            _ => client.option(0, &name),
        };
        client.bytes.split_off(OPTION_HEADER_BYTES)
    });
    let noise = prop::collection::vec(any::<u8>(), 0..64);
    let option = (prop_oneof![9 => 1u32..12, 1 => any::<u32>()], prop_oneof![5 => data, 1 => Just(vec![]), 1 => noise.clone()]);
    (prop_oneof![9 => 0u32..4, 1 => any::<u32>()], prop::collection::vec(option, 0..80), noise).prop_map(|(flags, options, noise)| {
        let mut client = options.iter().fold(Client::new(flags), |client, (option, data)| client.option(*option, data));
        client.bytes.extend(noise);
        client
    })
}

proptest! {
    #[test]
    fn one_byte_at_a_time_and_all_at_once_are_answered_alike(client in any_client(), step in 1usize..50, stopping: bool) {
        for tls in [Tls::Required, Tls::Secured] {
            // Where it starts, what came with it is dropped; so only whole options are compared.
            prop_assert!(client.tell_with(tls, &exports(), stopping, step).bytes.len() < 1 << 20);
        }
        let whole = client.tell(&exports(), stopping, usize::MAX);
        prop_assert_eq!(&client.tell(&exports(), stopping, 1), &whole);
        prop_assert_eq!(&client.tell(&exports(), stopping, step), &whole);
    }

    #[test]
    fn random_bytes_never_panic_and_never_pile_up(bytes in prop::collection::vec(any::<u8>(), 0..4000), magic: bool) {
        let mut client = Client::new(FLAGS_BOTH);
        if magic {
            client.bytes.extend(OPTION_MAGIC.to_be_bytes());
        }
        client.bytes.extend(bytes);
        let told = client.tell(&exports(), false, 100);
        prop_assert!(told.bytes.len() <= client.bytes.len() * 16 + 200);
    }
}
