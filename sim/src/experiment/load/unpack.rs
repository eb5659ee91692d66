//! A trace file as a stream of bytes, unpacked if it is packed: gzip, xz and zstd are told by their first bytes. What was packed in several parts,
//! one behind the other in one file, is unpacked to its end.

use std::cell::OnceCell;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Error, ErrorKind, Read};
use std::path::Path;
use std::rc::Rc;

use ruzstd::decoding::errors::{FrameDecoderError, ReadFrameHeaderError};
use ruzstd::decoding::{BlockDecodingStrategy, FrameDecoder};

/// What a file holds, and why the system has not given all of it, if it has not: whoever unpacks or understands it only sees that something is wrong.
pub struct Opened {
    pub bytes: Box<dyn BufRead>,
    failed: Rc<OnceCell<String>>,
}

impl Opened {
    /// Unpacks it while it is read.
    pub fn of(file: impl Read + 'static) -> Result<Opened, Error> {
        let failed = Rc::default();
        let watched = Watched { file, failed: Rc::clone(&failed) };
        Ok(Opened { bytes: unpack(BufReader::with_capacity(1 << 16, watched))?, failed })
    }

    /// The system's word.
    pub fn failure(&self) -> Option<&str> {
        self.failed.get().map(String::as_str)
    }
}

struct Watched<R> {
    file: R,
    failed: Rc<OnceCell<String>>,
}

impl<R: Read> Read for Watched<R> {
    fn read(&mut self, into: &mut [u8]) -> Result<usize, Error> {
        // What was interrupted is tried again.
        let read = self.file.read(into);
        read.inspect_err(|error| {
            if error.kind() != ErrorKind::Interrupted {
                self.failed.get_or_init(|| error.to_string());
            }
        })
    }
}

/// Opens a file and unpacks it while it is read.
pub fn open(path: &Path) -> Result<Opened, Error> {
    Opened::of(regular(path)?)
}

/// Opens a file to read it. A pipe is refused, not waited for.
pub fn regular(path: &Path) -> Result<File, Error> {
    if !path.metadata()?.is_file() {
        return Err(Error::new(ErrorKind::InvalidInput, "not a regular file"));
    }
    File::open(path)
}

fn unpack<R: BufRead + 'static>(mut packed: R) -> Result<Box<dyn BufRead>, Error> {
    let head = packed.fill_buf()?;
    let (by, plain): (_, Box<dyn Read>) = if head.starts_with(&[0x1f, 0x8b]) {
        ("gzip", Box::new(flate2::bufread::MultiGzDecoder::new(packed)))
    } else if head.starts_with(b"\xfd7zXZ\0") {
        ("xz", Box::new(lzma_rust2::XzReader::new(packed, true)))
    } else if head.starts_with(&[0x28, 0xb5, 0x2f, 0xfd]) || is_skippable(head) {
        ("zstd", Box::new(Frames { packed, decoder: FrameDecoder::new() }))
    } else {
        return Ok(Box::new(packed));
    };
    Ok(Box::new(BufReader::with_capacity(1 << 16, Unpacked { by, plain })))
}

/// Says of an error what it is of: not of what was packed.
struct Unpacked {
    by: &'static str,
    plain: Box<dyn Read>,
}

impl Read for Unpacked {
    fn read(&mut self, into: &mut [u8]) -> Result<usize, Error> {
        self.plain.read(into).map_err(|why| match why.kind() {
            ErrorKind::Interrupted => why,
            kind => Error::new(kind, format!("what {} has packed is cut off or damaged here: {why}", self.by)),
        })
    }
}

/// A frame of zstd that holds nothing (0x184D2A50 to 0x184D2A5F, RFC 8878, 3.1.2): files of pzstd begin with one.
fn is_skippable(head: &[u8]) -> bool {
    matches!(head, [0x50..=0x5f, 0x2a, 0x4d, 0x18, ..])
}

/// The frames of a zstd file, one behind the other.
struct Frames<R> {
    packed: R,
    decoder: FrameDecoder,
}

impl<R: BufRead> Frames<R> {
    /// Begins with the next frame that holds something. False: there is none.
    fn next_frame(&mut self) -> Result<bool, Error> {
        while !self.packed.fill_buf()?.is_empty() {
            match self.decoder.init(&mut self.packed) {
                Ok(()) => return Ok(true),
                Err(FrameDecoderError::ReadFrameHeaderError(ReadFrameHeaderError::SkipFrame { length, .. })) => {
                    let skipped = io::copy(&mut (&mut self.packed).take(u64::from(length)), &mut io::sink())?;
                    if skipped < u64::from(length) {
                        return Err(ErrorKind::UnexpectedEof.into());
                    }
                }
                Err(why) => return Err(damaged(&why)),
            }
        }
        Ok(false)
    }
}

impl<R: BufRead> Read for Frames<R> {
    fn read(&mut self, into: &mut [u8]) -> Result<usize, Error> {
        while self.decoder.can_collect() == 0 {
            if !self.decoder.is_finished() {
                self.decoder.decode_blocks(&mut self.packed, BlockDecodingStrategy::UptoBlocks(1)).map_err(|why| damaged(&why))?;
            } else if !self.next_frame()? {
                return Ok(0);
            }
        }
        self.decoder.read(into)
    }
}

fn damaged(why: &FrameDecoderError) -> Error {
    Error::new(ErrorKind::InvalidData, why.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// "1\n2\n3\n", packed by the three tools.
    const GZIP: &[u8] = include_bytes!("samples/keys.gz");
    const XZ: &[u8] = include_bytes!("samples/keys.xz");
    const ZSTD: &[u8] = include_bytes!("samples/keys.zst");

    #[test]
    fn packed_files_are_told_by_their_first_bytes() {
        for packed in [GZIP, XZ, ZSTD, b"1\n2\n3\n"] {
            let mut text = String::new();
            unpack(packed).unwrap().read_to_string(&mut text).unwrap();
            assert_eq!(text, "1\n2\n3\n");
        }
    }

    fn unpacked(packed: Vec<u8>) -> Result<String, Error> {
        let mut text = String::new();
        unpack(io::Cursor::new(packed)).and_then(|mut plain| plain.read_to_string(&mut text)).map(|_| text)
    }

    #[test]
    fn files_of_several_parts_are_unpacked_to_the_end() {
        for packed in [GZIP, XZ, ZSTD] {
            for parts in [2, 3, 100] {
                assert_eq!(unpacked(packed.repeat(parts)).unwrap(), "1\n2\n3\n".repeat(parts), "{parts} of {:x?}", &packed[..4]);
            }
            let cut = [packed, &packed[..packed.len() - 6]].concat();
            assert!(unpacked(cut).is_err(), "{:x?}", &packed[..4]);
        }
    }

    #[test]
    fn frames_of_zstd_that_hold_nothing_are_skipped() {
        let skipped = |kind: u8, length: u8| [&[0x50 + kind, 0x2a, 0x4d, 0x18, length, 0, 0, 0][..], &vec![b'9'; length.into()]].concat();
        let parts = [skipped(0, 4), ZSTD.to_vec(), skipped(15, 0), skipped(7, 200), ZSTD.to_vec(), skipped(1, 3)].concat();
        assert_eq!(unpacked(parts.clone()).unwrap(), "1\n2\n3\n1\n2\n3\n");
        assert!(unpacked(parts[..parts.len() - 1].to_vec()).is_err(), "the last one is cut off");
        assert!(unpacked([ZSTD, b"1\n2\n"].concat()).is_err(), "what is behind it is no frame");
    }

    #[test]
    fn a_file_that_was_cut_off_is_an_error() {
        for packed in [GZIP, XZ, ZSTD] {
            let cut = &packed[..packed.len() - 6];
            let ended = unpack(cut).and_then(|mut plain| plain.read_to_end(&mut Vec::new()));
            assert!(ended.is_err(), "{:x?}", &cut[..4]);
        }
    }
}
