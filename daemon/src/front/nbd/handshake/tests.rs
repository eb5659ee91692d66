//! The handshake, item by item of the protocol's document (H, T, S), fed as bytes.

use super::*;
use crate::front::nbd::protocol::transmission_flag as flag;
use proptest::prelude::*;

const NAME: &[u8] = b"disk";
const FLAGS_BOTH: u32 = 3;

fn export() -> Export {
    Export { name: "disk".into(), description: "a test".into(), bytes: 1 << 20, read_only: false, block_bytes: 4096 }
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
    fn tell(&self, export: &Export, stopping: bool, step: usize) -> Told {
        let mut out = Vec::new();
        let mut handshake = Handshake::new(&mut out);
        let greeting = out.len();
        let (mut buffer, mut end) = (Vec::new(), None);
        for piece in self.bytes.chunks(step) {
            buffer.extend_from_slice(piece);
            while end.is_none() {
                let (took, step) = handshake.step(export, stopping, &buffer, &mut out);
                buffer.drain(..took);
                match step {
                    Step::Wait => break,
                    Step::Next => {}
                    Step::Rest => handshake.refill(),
                    Step::Transmit(_) | Step::Close => end = Some(step),
                }
            }
            assert!(buffer.len() <= INPUT_BYTES_MAX.saturating_add(step), "{} bytes wait", buffer.len());
        }
        Told { bytes: out.split_off(greeting), end }
    }

    fn told(&self) -> Told {
        self.tell(&export(), false, usize::MAX)
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
    Handshake::new(&mut out);
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
    let kinds = client.tell(&export(), false, 1000).kinds();
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
    let mut handshake = Handshake::new(&mut out);
    let mut at = 0;
    let mut go = |handshake: &mut Handshake| {
        loop {
            let (took, step) = handshake.step(&export(), false, &client.bytes[at..], &mut out);
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
            let told = Client::new(FLAGS_BOTH).option(option::ABORT, &data).tell(&export(), stopping, 4096);
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
fn h11_block_sizes_are_always_told_and_in_order() {
    for wanted in [&[][..], &[info::BLOCK_SIZE]] {
        let told = Client::new(FLAGS_BOTH).information(option::GO, NAME, wanted).told();
        let sizes = told.information(info::BLOCK_SIZE).expect("block sizes");
        let sizes: Vec<u32> = sizes.chunks(4).map(|word| u32::from_be_bytes(word.try_into().expect("four bytes"))).collect();
        assert_eq!(sizes, [512, 4096, 32 << 20]);
    }
}

#[test]
fn h12_a_stopping_server_refuses_every_option_but_abort() {
    let options = [option::LIST, option::STRUCTURED_REPLY, option::STARTTLS, option::SET_META_CONTEXT, 4711];
    for option in options {
        let told = Client::new(FLAGS_BOTH).option(option, &[]).tell(&export(), true, 7);
        assert_eq!(told.kinds(), [(option, answer::ERR_SHUTDOWN)]);
    }
    let told = Client::new(FLAGS_BOTH).option(option::EXPORT_NAME, NAME).tell(&export(), true, 7);
    assert_eq!(told, Told { bytes: vec![], end: Some(Step::Close) });
}

#[test]
fn h13_structured_replies_may_be_asked_for_again() {
    let client = Client::new(FLAGS_BOTH).option(option::STRUCTURED_REPLY, &[]).option(option::STRUCTURED_REPLY, &[]);
    assert_eq!(client.told().kinds(), [(option::STRUCTURED_REPLY, answer::ACK); 2]);
    let told = client.option(option::STRUCTURED_REPLY, b"x").information(option::GO, NAME, &[]).told();
    assert_eq!(told.kinds()[2], (option::STRUCTURED_REPLY, answer::ERR_INVALID));
    assert_eq!(told.end, Some(Step::Transmit(Session { structured: true, allocation: false })));
}

#[test]
fn t2_starttls_is_unsupported_and_never_required() {
    let told = Client::new(FLAGS_BOTH).option(option::STARTTLS, &[]).option(option::STARTTLS, b"x").option(option::LIST, &[]).told();
    assert_eq!(told.kinds()[..2], [(option::STARTTLS, answer::ERR_UNSUP), (option::STARTTLS, answer::ERR_INVALID)]);
    assert_eq!(told.kinds().len(), 4, "and haggling goes on");
}

#[test]
fn x1_the_transmission_flags_are_those_of_the_export_and_the_session() {
    let flags = |export: &Export, client: Client| {
        let told = client.information(option::GO, NAME, &[]).tell(export, false, usize::MAX);
        let info = told.information(info::EXPORT).expect("always told");
        u16::from_be_bytes([info[8], info[9]])
    };
    let always = flag::HAS_FLAGS | flag::SEND_FLUSH | flag::SEND_FUA | flag::CAN_MULTI_CONN;
    let changes = flag::SEND_TRIM | flag::SEND_WRITE_ZEROES;
    assert_eq!(flags(&export(), Client::new(FLAGS_BOTH)), always | changes);
    let structured = Client::new(FLAGS_BOTH).option(option::STRUCTURED_REPLY, &[]);
    assert_eq!(flags(&export(), structured.clone()) & flag::SEND_DF, 0x80);
    let read_only = Export { read_only: true, ..export() };
    assert_eq!(flags(&read_only, Client::new(FLAGS_BOTH)), always | flag::READ_ONLY);
}

fn structured() -> Client {
    Client::new(FLAGS_BOTH).option(option::STRUCTURED_REPLY, &[])
}

fn check_session(client: Client, allocation: bool) {
    let told = client.information(option::GO, NAME, &[]).told();
    assert_eq!(told.end, Some(Step::Transmit(Session { structured: true, allocation })));
}

#[test]
fn s9_base_allocation_is_selected_by_its_whole_name_only() {
    let select = |query: &[u8]| structured().contexts(option::SET_META_CONTEXT, NAME, &[query]);
    let data = [allocation::ID.to_be_bytes().to_vec(), b"base:allocation".to_vec()].concat();
    let expect = [(option::SET_META_CONTEXT, answer::META_CONTEXT, data), (option::SET_META_CONTEXT, answer::ACK, vec![])];
    assert_eq!(select(b"base:allocation").told().replies()[1..], expect);
    check_session(select(b"base:allocation"), true);
    for other in [b"base:".as_slice(), b"qemu:allocation-depth", b"base:allocation2", b"", b"base"] {
        assert_eq!(select(other).told().kinds()[1..], [(option::SET_META_CONTEXT, answer::ACK)]);
        check_session(select(other), false);
    }
}

#[test]
fn s9_a_selection_replaces_the_earlier_one_even_when_it_fails() {
    let chosen = || structured().contexts(option::SET_META_CONTEXT, NAME, &[b"base:allocation"]);
    check_session(chosen(), true);
    check_session(chosen().contexts(option::SET_META_CONTEXT, NAME, &[]), false);
    check_session(chosen().contexts(option::SET_META_CONTEXT, b"other", &[b"base:allocation"]), false);
    check_session(chosen().option(option::SET_META_CONTEXT, b"garbage"), false);
    check_session(chosen().contexts(option::LIST_META_CONTEXT, NAME, &[]), true);
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
fn s9_contexts_are_listed_by_name_by_namespace_and_all_together() {
    let list = |queries: &[&[u8]]| structured().contexts(option::LIST_META_CONTEXT, NAME, queries).told().kinds().split_off(1);
    let (found, end) = ((option::LIST_META_CONTEXT, answer::META_CONTEXT), (option::LIST_META_CONTEXT, answer::ACK));
    assert_eq!(list(&[]), [found, end]);
    assert_eq!(list(&[b"base:"]), [found, end]);
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
        let whole = client.tell(&export(), stopping, usize::MAX);
        prop_assert_eq!(&client.tell(&export(), stopping, 1), &whole);
        prop_assert_eq!(&client.tell(&export(), stopping, step), &whole);
    }

    #[test]
    fn random_bytes_never_panic_and_never_pile_up(bytes in prop::collection::vec(any::<u8>(), 0..4000), magic: bool) {
        let mut client = Client::new(FLAGS_BOTH);
        if magic {
            client.bytes.extend(OPTION_MAGIC.to_be_bytes());
        }
        client.bytes.extend(bytes);
        let told = client.tell(&export(), false, 100);
        prop_assert!(told.bytes.len() <= client.bytes.len() * 16 + 200);
    }
}
