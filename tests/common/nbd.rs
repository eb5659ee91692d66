//! A small NBD client of our own: fixed newstyle with GO, simple replies, as many requests in flight as the caller likes.
//! It knows nothing about tidegate: what it sends and receives is the protocol's text.

use std::collections::HashMap;
use std::io::{self, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

const NBDMAGIC: u64 = 0x4e42_444d_4147_4943;
const IHAVEOPT: u64 = 0x4948_4156_454f_5054;
const OPTION_REPLY: u64 = 0x0003_e889_0455_65a9;
const REQUEST: u32 = 0x2560_9513;
const SIMPLE_REPLY: u32 = 0x6744_6698;
const OPTION_GO: u32 = 7;
const REPLY_ACK: u32 = 1;
const REPLY_INFO: u32 = 3;
const INFO_EXPORT: u16 = 0;
/// FIXED_NEWSTYLE | NO_ZEROES, as handshake flags and as client flags.
const HANDSHAKE_FLAGS: u16 = 3;
const COMMAND_FLAG_FUA: u16 = 1;

/// Transmission flags.
pub const CAN_MULTI_CONN: u16 = 1 << 8;

/// How long a reply may take before a test calls the daemon stuck.
const PATIENCE: Duration = Duration::from_secs(120);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Command {
    Read,
    Write,
    WriteFua,
    Flush,
    Zero,
}

impl Command {
    fn wire(self) -> (u16, u16) {
        match self {
            Command::Read => (0, 0),
            Command::Write => (0, 1),
            Command::WriteFua => (COMMAND_FLAG_FUA, 1),
            Command::Flush => (0, 3),
            Command::Zero => (0, 6),
        }
    }
}

/// The end of one request.
#[derive(Debug)]
pub struct Reply {
    pub cookie: u64,
    /// The protocol's error number; zero is success.
    pub error: u32,
    /// Of a read that succeeded.
    pub data: Vec<u8>,
}

/// One connection in the transmission phase.
pub struct Client {
    stream: UnixStream,
    replies: BufReader<UnixStream>,
    /// Queued and not sent yet.
    outgoing: Vec<u8>,
    /// Size of the export in bytes.
    pub size: u64,
    pub flags: u16,
    cookies: u64,
    /// Requests in flight: cookie and the bytes that a successful reply carries.
    in_flight: HashMap<u64, usize>,
}

impl Client {
    /// Connects and negotiates the default export.
    pub fn connect(socket: &Path) -> io::Result<Client> {
        Client::connect_to(socket, "")
    }

    /// Connects and negotiates the export of this name.
    pub fn connect_to(socket: &Path, name: &str) -> io::Result<Client> {
        let mut stream = UnixStream::connect(socket)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        expect("greeting", u64_from(&mut stream)?, NBDMAGIC)?;
        expect("option magic", u64_from(&mut stream)?, IHAVEOPT)?;
        expect("handshake flags", u64::from(u16_from(&mut stream)? & HANDSHAKE_FLAGS), u64::from(HANDSHAKE_FLAGS))?;

        let mut hello = Vec::new();
        hello.extend_from_slice(&u32::from(HANDSHAKE_FLAGS).to_be_bytes());
        hello.extend_from_slice(&IHAVEOPT.to_be_bytes());
        hello.extend_from_slice(&OPTION_GO.to_be_bytes());
        hello.extend_from_slice(&(name.len() as u32 + 6).to_be_bytes()); // the name with its length, no information requests
        hello.extend_from_slice(&(name.len() as u32).to_be_bytes());
        hello.extend_from_slice(name.as_bytes());
        hello.extend_from_slice(&[0; 2]);
        stream.write_all(&hello)?;

        let (mut size, mut flags) = (None, 0);
        loop {
            expect("option reply", u64_from(&mut stream)?, OPTION_REPLY)?;
            expect("option", u64::from(u32_from(&mut stream)?), u64::from(OPTION_GO))?;
            let kind = u32_from(&mut stream)?;
            let mut data = vec![0; u32_from(&mut stream)? as usize];
            stream.read_exact(&mut data)?;
            match kind {
                REPLY_ACK => break,
                REPLY_INFO if data.len() == 12 && data[..2] == INFO_EXPORT.to_be_bytes() => {
                    size = Some(u64::from_be_bytes(data[2..10].try_into().unwrap()));
                    flags = u16::from_be_bytes(data[10..12].try_into().unwrap());
                }
                REPLY_INFO => {}
                other => return Err(io::Error::other(format!("GO was answered with {other:#x}"))),
            }
        }
        let size = size.ok_or_else(|| io::Error::other("GO was acknowledged without NBD_INFO_EXPORT"))?;
        // Nothing has been read beyond the handshake: replies start here.
        let replies = BufReader::with_capacity(256 << 10, stream.try_clone()?);
        Ok(Client { stream, replies, outgoing: Vec::new(), size, flags, cookies: 0, in_flight: HashMap::new() })
    }

    /// Sends one request and does not wait. `data` is empty but for writes, where it has `length` bytes.
    pub fn send(&mut self, command: Command, offset: u64, length: u32, data: &[u8]) -> io::Result<u64> {
        let cookie = self.queue(command, offset, length, data);
        self.push()?;
        Ok(cookie)
    }

    /// As [`Client::send`], but only [`Client::push`] sends: many requests in one system call.
    pub fn queue(&mut self, command: Command, offset: u64, length: u32, data: &[u8]) -> u64 {
        let (flags, number) = command.wire();
        let cookie = self.cookies;
        self.cookies += 1;
        self.outgoing.extend_from_slice(&REQUEST.to_be_bytes());
        self.outgoing.extend_from_slice(&flags.to_be_bytes());
        self.outgoing.extend_from_slice(&number.to_be_bytes());
        self.outgoing.extend_from_slice(&cookie.to_be_bytes());
        self.outgoing.extend_from_slice(&offset.to_be_bytes());
        self.outgoing.extend_from_slice(&length.to_be_bytes());
        self.outgoing.extend_from_slice(data);
        self.in_flight.insert(cookie, if command == Command::Read { length as usize } else { 0 });
        cookie
    }

    /// Sends what was queued.
    pub fn push(&mut self) -> io::Result<()> {
        self.stream.write_all(&self.outgoing)?;
        self.outgoing.clear();
        Ok(())
    }

    /// Is there a reply (or a part of one) that [`Client::receive`] has already?
    pub fn has_received(&self) -> bool {
        !self.replies.buffer().is_empty()
    }

    /// The next reply, whichever request it belongs to.
    pub fn receive(&mut self) -> io::Result<Reply> {
        let mut head = [0; 16];
        self.replies.read_exact(&mut head)?;
        expect("reply magic", u64::from(u32::from_be_bytes(head[..4].try_into().unwrap())), u64::from(SIMPLE_REPLY))?;
        let error = u32::from_be_bytes(head[4..8].try_into().unwrap());
        let cookie = u64::from_be_bytes(head[8..].try_into().unwrap());
        let bytes = self.in_flight.remove(&cookie).ok_or_else(|| io::Error::other(format!("a reply to nothing: cookie {cookie}")))?;
        let mut data = vec![0; if error == 0 { bytes } else { 0 }];
        self.replies.read_exact(&mut data)?;
        Ok(Reply { cookie, error, data })
    }

    pub fn in_flight(&self) -> usize {
        self.in_flight.len()
    }

    /// One request, and its reply; an error number becomes an `io::Error`.
    fn call(&mut self, command: Command, offset: u64, length: u32, data: &[u8]) -> io::Result<Vec<u8>> {
        assert_eq!(self.in_flight(), 0, "call() among pipelined requests");
        self.send(command, offset, length, data)?;
        let reply = self.receive()?;
        if reply.error != 0 {
            return Err(io::Error::other(format!("{command:?} at {offset}+{length}: error {}", reply.error)));
        }
        Ok(reply.data)
    }

    pub fn read(&mut self, offset: u64, length: u32) -> io::Result<Vec<u8>> {
        self.call(Command::Read, offset, length, &[])
    }

    /// Reads as much as `expected` has, and panics where it is something else.
    pub fn expect(&mut self, offset: u64, expected: &[u8]) {
        let read = self.read(offset, u32::try_from(expected.len()).unwrap()).expect("a read");
        if let Some(place) = read.iter().zip(expected).position(|(one, other)| one != other) {
            let (at, end) = (offset + place as u64, expected.len().min(place + 16));
            panic!("at byte {at} ({offset} + {place}): {:02x?}, expected {:02x?}", &read[place..end], &expected[place..end]);
        }
    }

    pub fn write(&mut self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.call(Command::Write, offset, u32::try_from(data.len()).unwrap(), data).map(drop)
    }

    pub fn flush(&mut self) -> io::Result<()> {
        self.call(Command::Flush, 0, 0, &[]).map(drop)
    }
}

fn expect(what: &str, got: u64, wanted: u64) -> io::Result<()> {
    if got == wanted { Ok(()) } else { Err(io::Error::other(format!("{what}: {got:#x}, expected {wanted:#x}"))) }
}

fn u64_from(stream: &mut UnixStream) -> io::Result<u64> {
    let mut bytes = [0; 8];
    stream.read_exact(&mut bytes)?;
    Ok(u64::from_be_bytes(bytes))
}

fn u32_from(stream: &mut UnixStream) -> io::Result<u32> {
    let mut bytes = [0; 4];
    stream.read_exact(&mut bytes)?;
    Ok(u32::from_be_bytes(bytes))
}

fn u16_from(stream: &mut UnixStream) -> io::Result<u16> {
    let mut bytes = [0; 2];
    stream.read_exact(&mut bytes)?;
    Ok(u16::from_be_bytes(bytes))
}
