//! What a volume says of itself on its way to serve, and when it first writes.

use std::path::Path;

use tidegate_engine::block::Block;
use tidegate_engine::cache::format::Mark;
use tidegate_engine::spin::{self, Drive};

use super::*;
use crate::back::attach::superblock;
use crate::back::disk::{Access, Disk};
use crate::back::mail::{Mailbox, Sender, mailbox};
use crate::back::spin::Which;
use crate::back::update::rewrite;
use crate::create::{CreateOptions, create};
use crate::desk::{News, Word};

fn options(folder: &Path) -> Options {
    Options {
        name: String::new(),
        description: String::new(),
        read_only: false,
        clients: Vec::new(),
        reach: Default::default(),
        said: Said::default(),
        origin: folder.join("origin.img"),
        cache: folder.join("cache.img"),
        state: folder.join(state::FILE_NAME),
        accept_loss: false,
        knobs: Knobs::default(),
        spin: None,
        record: None,
        held: Default::default(),
    }
}

/// A new volume whose origin lies on a disk with a motor, and who is waited for at its desk.
struct Sleepy {
    folder: tempfile::TempDir,
    words: Sender<Word>,
    news: Mailbox<News>,
}

impl Sleepy {
    /// `origin_is_another`: what the last stop has noted is not what the origin holds.
    fn new(origin_is_another: bool) -> Sleepy {
        let folder = tempfile::tempdir().expect("a folder");
        let options = options(folder.path());
        let sizes = (Some(64 << 20), Some(64 << 20));
        let made = CreateOptions {
            origin_bytes: sizes.0,
            cache_bytes: sizes.1,
            ..CreateOptions::new(options.origin.clone(), options.cache.clone())
        };
        drop(create(&made).expect("created"));
        if origin_is_another {
            let cache = Disk::open(&options.cache, DeviceId::Cache, Access::Alone).expect("there");
            let superblock = superblock(&cache).expect("ours");
            let marks = vec![Mark { block: Block(0), crc: 1 }];
            rewrite(&cache, &Superblock { marks, ..superblock }).expect("written");
        }
        let mut opened = Opened::new(&options, &mut Taken::default()).expect("opened");
        let told = crate::sleeper::Options { which: Which::Origins, config: spin::Config::new(Drive::DESKTOP), tariff: None };
        opened.sleeper = Some(Sleeper::new(Motor::stand_in(), &told));
        let ((words, inbox), (lobby, news)) = (mailbox(8).expect("a bell"), mailbox(8).expect("a bell"));
        std::thread::spawn(move || {
            let ended = opened.serve(Carrier::Threads, Desk::new(0, inbox, lobby.clone(), false));
            lobby.send(News { volume: 0, tell: Tell::Ended(ended) });
        });
        Sleepy { folder, words, news }
    }

    fn hears(&mut self) -> Tell {
        self.news.wait().expect("it has a sender").tell
    }

    fn answers(&mut self, number: u64, verb: Verb) -> serde_json::Value {
        self.words.send(Word::Command(number, verb));
        match self.hears() {
            Tell::Answer(answered, answer) if answered == number => answer,
            _ => panic!("no answer"),
        }
    }
}

/// Its motor is asked before the first page of its cache has come.
#[test]
fn a_volume_with_a_motor_is_sound_when_it_was_looked_at_and_not_before() {
    let mut bad = Sleepy::new(true);
    assert!(matches!(bad.hears(), Tell::Opened));
    bad.words.send(Word::Start);
    let Tell::Ended(Err(failure)) = bad.hears() else { panic!("it was called sound") };
    assert!(failure.code == Failure::DAMAGED && failure.message.contains("origin"), "{failure}");

    let mut good = Sleepy::new(false);
    assert!(matches!(good.hears(), Tell::Opened));
    good.words.send(Word::Start);
    assert!(matches!(good.hears(), Tell::Sound));
    assert!(!good.folder.path().join(state::FILE_NAME).exists());
    good.words.send(Word::Write);
    assert!(matches!(good.hears(), Tell::Serving(_)));
    good.words.send(Word::Stop);
    assert!(matches!(good.hears(), Tell::Ended(Ok(_))));
}

/// What only recovery finds out.
const UNKNOWN: [&str; 13] = [
    "/gate",
    "/sets/free",
    "/sets/dirty",
    "/live_blocks",
    "/dirty_blocks",
    "/zero_ranges",
    "/lost_blocks",
    "/mode/wanted",
    "/mode/recorded",
    "/errors/refused_blocks",
    "/errors/unreadable_blocks",
    "/recovered/dirty_slots",
    "/wear/lifetime",
];

/// How much is dirty is not known then, and is called neither nothing nor anything else.
#[test]
fn a_volume_that_recovers_takes_no_drain_and_tells_no_figure_that_is_not_known_yet() {
    let mut volume = Sleepy::new(false);
    assert!(matches!(volume.hears(), Tell::Opened));
    volume.words.send(Word::Start);
    assert!(matches!(volume.hears(), Tell::Sound));
    let status = volume.answers(1, Verb::Status);
    assert_eq!((&status["phase"], &status["recovery"]["step"]), (&"recovering".into(), &"sound".into()));
    for figure in UNKNOWN {
        assert!(status.pointer(figure).is_none_or(serde_json::Value::is_null), "{figure}: {status}");
    }
    assert_eq!(volume.answers(2, Verb::Drain)["error"], "the volume does not serve now; try again when it does");
    volume.words.send(Word::Write);
    assert!(matches!(volume.hears(), Tell::Serving(_)));
    let answer = volume.answers(3, Verb::Drain);
    assert!(answer["phase"] == "serving" && answer["error"].is_null() && answer["recovery"].is_null(), "{answer}");
    for figure in UNKNOWN {
        assert!(answer.pointer(figure).is_some_and(|figure| !figure.is_null()), "{figure}: {answer}");
    }
    volume.words.send(Word::Stop);
    assert!(matches!(volume.hears(), Tell::Ended(Ok(_))));
}
