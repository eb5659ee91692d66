//! A trace file as a stream of bytes, unpacked if it is packed: gzip, xz and zstd are told by their first bytes.

use std::fs::File;
use std::io::{BufRead, BufReader, Error, ErrorKind, Read};
use std::path::Path;

/// Opens a file and unpacks it while it is read.
pub fn open(path: &Path) -> Result<Box<dyn BufRead>, Error> {
    let file = File::open(path)?;
    if !file.metadata()?.is_file() {
        return Err(Error::new(ErrorKind::InvalidInput, "not a regular file"));
    }
    unpack(BufReader::with_capacity(1 << 16, file))
}

fn unpack<R: BufRead + 'static>(mut packed: R) -> Result<Box<dyn BufRead>, Error> {
    let head = packed.fill_buf()?;
    let plain: Box<dyn Read> = if head.starts_with(&[0x1f, 0x8b]) {
        Box::new(flate2::bufread::MultiGzDecoder::new(packed))
    } else if head.starts_with(b"\xfd7zXZ\0") {
        Box::new(lzma_rust2::XzReader::new(packed, true))
    } else if head.starts_with(&[0x28, 0xb5, 0x2f, 0xfd]) {
        Box::new(ruzstd::decoding::StreamingDecoder::new(packed).map_err(|why| Error::new(ErrorKind::InvalidData, why.to_string()))?)
    } else {
        return Ok(Box::new(packed));
    };
    Ok(Box::new(BufReader::with_capacity(1 << 16, plain)))
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

    #[test]
    fn a_file_that_was_cut_off_is_an_error() {
        for packed in [GZIP, XZ, ZSTD] {
            let cut = &packed[..packed.len() - 6];
            let ended = unpack(cut).and_then(|mut plain| plain.read_to_end(&mut Vec::new()));
            assert!(ended.is_err(), "{:x?}", &cut[..4]);
        }
    }
}
