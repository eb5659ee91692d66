//! `serve --record`: what clients ask of a volume goes into a file, in the form of [`tidegate_engine::trace`].
//!
//! ```text
//!   volume's thread: requests that arrive ─▶ a piece of 64 KiB, or what a second has brought ─▶ bounded channel ─▶ thread ─▶ file
//! ```
//! The volume never waits for the file. What does not fit into the channel is not recorded, and counted.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::JoinHandle;

use tidegate_engine::Event;
use tidegate_engine::time::{Duration, Instant};
use tidegate_engine::trace::{Header, RECORD_BYTES, Record};

use crate::Failure;
use crate::back::run::Run;

const PIECE_BYTES: usize = 64 << 10;
/// Pieces that wait for the file: 4 MiB.
const PIECES: usize = 64;
const SECOND: Duration = Duration::from_secs(1);

/// A recording under way; ends, complete, when it is dropped.
pub struct Recorder {
    path: PathBuf,
    pieces: Option<SyncSender<Vec<u8>>>,
    thread: Option<JoinHandle<(u64, io::Result<()>)>>,
    piece: Vec<u8>,
    piece_began: Instant,
    began: Instant,
    records: u64,
}

impl Recorder {
    /// # Errors
    /// One line: the file exists, or cannot be made.
    pub fn start(path: &Path, volume_atoms: u64, now: Instant) -> Result<Recorder, Failure> {
        let failed = |error: io::Error| {
            let what = match error.kind() {
                io::ErrorKind::AlreadyExists => "exists; name another file".to_owned(),
                _ => format!("{error}; see that its folder is there and can be written"),
            };
            Failure::new(Failure::NOT_CREATED, format!("--record: {} {what}", path.display()))
        };
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path).map_err(failed)?;
        file.write_all(&Header { volume_atoms }.encode()).map_err(failed)?;
        let (pieces, waiting) = sync_channel(PIECES);
        let thread = std::thread::Builder::new().name("recorder".to_owned()).spawn(move || keep(file, &waiting)).map_err(failed)?;
        let (pieces, thread) = (Some(pieces), Some(thread));
        Ok(Recorder { path: path.to_owned(), pieces, thread, piece: Vec::new(), piece_began: now, began: now, records: 0 })
    }

    /// Notes the requests among these events, which have arrived now.
    pub fn note(&mut self, now: Instant, events: &[Event<Run>]) {
        for event in events {
            let Event::Arrived(request) = event else { continue };
            let Some(record) = Record::of(now.since(self.began).0, &request.command, request.span) else { continue };
            if self.piece.is_empty() {
                self.piece_began = now;
            }
            self.piece.extend(record.encode());
            self.records += 1;
        }
        if self.piece.len() >= PIECE_BYTES || self.deadline().is_some_and(|deadline| deadline <= now) {
            self.hand_over();
        }
    }

    /// When [`Recorder::note`] is to be called although nothing arrives.
    pub fn deadline(&self) -> Option<Instant> {
        (!self.piece.is_empty()).then(|| self.piece_began + SECOND)
    }

    fn hand_over(&mut self) {
        let piece = std::mem::take(&mut self.piece);
        if let Some(pieces) = &self.pieces {
            // Where the channel is full, or the file takes no more, it is lost; what came into the file is counted there.
            let _ = pieces.try_send(piece);
        }
    }
}

impl Drop for Recorder {
    fn drop(&mut self) {
        // The last piece is waited for: nobody is kept from anything any more.
        if let Some(pieces) = self.pieces.take() {
            let _ = pieces.send(std::mem::take(&mut self.piece));
        }
        let (bytes, ended) = self.thread.take().and_then(|thread| thread.join().ok()).unwrap_or((0, Ok(())));
        let path = self.path.display();
        if let Err(error) = &ended {
            crate::tell!("tidegate: --record: {path}: {error}; what came before is recorded");
        }
        if self.records == 0 && fs::remove_file(&self.path).is_ok() {
            // The next start may have the name.
            return crate::tell!("tidegate: --record: nobody asked for anything, {path} is not kept");
        }
        crate::tell!("tidegate: --record: {}", account(&self.path, self.records, bytes, ended.is_ok()));
    }
}

/// What is in the file of so many requests, now that it has these bytes behind its header.
fn account(path: &Path, requests: u64, bytes: u64, is_well: bool) -> String {
    let recorded = bytes / RECORD_BYTES as u64;
    let why = if is_well { "was too slow for them" } else { "took no more" };
    let missing = match requests - recorded {
        0 => String::new(),
        missing => format!("; {missing} are missing, the file {why}"),
    };
    format!("{recorded} requests in {}{missing}", path.display())
}

/// The thread: how many bytes have come into the file, and how it ended.
fn keep(mut file: File, pieces: &Receiver<Vec<u8>>) -> (u64, io::Result<()>) {
    let (bytes, written) = write(&mut file, pieces);
    (bytes, written.and_then(|()| file.sync_all()))
}

fn write(file: &mut impl Write, pieces: &Receiver<Vec<u8>>) -> (u64, io::Result<()>) {
    let mut bytes = 0;
    while let Ok(piece) = pieces.recv() {
        let mut rest = &piece[..];
        while !rest.is_empty() {
            match file.write(rest) {
                Ok(0) => return (bytes, Err(io::ErrorKind::WriteZero.into())),
                Ok(taken) => (bytes, rest) = (bytes + taken as u64, &rest[taken..]),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return (bytes, Err(error)),
            }
        }
    }
    (bytes, Ok(()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_engine::block::Span;
    use tidegate_engine::request::{Command, Request, RequestId};
    use tidegate_engine::trace::{HEADER_BYTES, Kind};

    fn arrived(command: Command<Run>, span: Span) -> Event<Run> {
        Event::Arrived(Request { id: RequestId(1), command, span })
    }

    #[test]
    fn what_arrives_is_in_the_file_when_it_ends() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.tgtrace");
        let mut recorder = Recorder::start(&path, 4096, Instant(1_000)).unwrap();
        let status = arrived(Command::Status { tiers: false, one: false }, Span::new(0, 8));
        recorder.note(Instant(3_000), &[arrived(Command::Read, Span::new(8, 8)), status, Event::Tick]);
        recorder.note(Instant(9_000), &[arrived(Command::Flush, Span::default())]);
        drop(recorder);
        let bytes = std::fs::read(&path).unwrap();
        let header = Header::decode(bytes[..HEADER_BYTES].try_into().unwrap()).unwrap();
        assert_eq!(header.volume_atoms, 4096);
        let records: Vec<_> =
            bytes[HEADER_BYTES..].chunks(RECORD_BYTES).map(|bytes| Record::decode(bytes.try_into().unwrap()).unwrap()).collect();
        let expected = [(2_000, Kind::Read, Span::new(8, 8)), (8_000, Kind::Flush, Span::default())];
        assert_eq!(records, expected.map(|(at_ns, kind, span)| Record { at_ns, kind, fua: false, span }));
    }

    /// Has room for so many bytes.
    struct Full(usize);

    impl Write for Full {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let taken = bytes.len().min(self.0);
            self.0 -= taken;
            if taken > 0 { Ok(taken) } else { Err(io::ErrorKind::StorageFull.into()) }
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn what_is_told_to_be_recorded_is_in_the_file() {
        let (pieces, waiting) = sync_channel(PIECES);
        // Five of two requests each; the second ends in the middle of one, and the others are never taken out.
        (0..5).for_each(|_| pieces.send(vec![0; 2 * RECORD_BYTES]).unwrap());
        drop(pieces);
        let (bytes, ended) = write(&mut Full(3 * RECORD_BYTES + 10), &waiting);
        assert_eq!(ended.unwrap_err().kind(), io::ErrorKind::StorageFull);
        let line = account(Path::new("/a"), 10, bytes, false);
        assert_eq!(line, "3 requests in /a; 7 are missing, the file took no more");
        assert_eq!(account(Path::new("/a"), 4, 4 * RECORD_BYTES as u64, true), "4 requests in /a");
    }

    #[test]
    fn a_file_that_exists_stays_what_it_is() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), "a letter").unwrap();
        let refused = Recorder::start(file.path(), 8, Instant::ZERO).err().expect("it exists");
        assert!(refused.message.ends_with("exists; name another file"), "{}", refused.message);
        assert_eq!(std::fs::read(file.path()).unwrap(), b"a letter");
    }

    #[test]
    fn what_a_second_has_brought_is_handed_over() {
        let folder = tempfile::tempdir().unwrap();
        let mut recorder = Recorder::start(&folder.path().join("a"), 8, Instant::ZERO).unwrap();
        assert_eq!(recorder.deadline(), None);
        recorder.note(Instant(5), &[arrived(Command::Read, Span::new(0, 8))]);
        assert_eq!(recorder.deadline(), Some(Instant(5) + SECOND));
        recorder.note(Instant(5) + SECOND, &[]);
        assert_eq!(recorder.deadline(), None);
    }
}
