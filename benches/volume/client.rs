//! An NBD client that measures: as many requests as the depth allows in one send, as many replies as there are in one receive.
//! Every block begins with its own place in bytes, so a reply with another block's contents is noticed; nothing else is looked at.

use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use crate::load::{BLOCK_BYTES, Load, MIB, Way};

pub const NBDMAGIC: u64 = 0x4e42_444d_4147_4943;
pub const IHAVEOPT: u64 = 0x4948_4156_454f_5054;
const OPTION_EXPORT_NAME: u32 = 1;
pub const REQUEST: u32 = 0x2560_9513;
pub const SIMPLE_REPLY: u32 = 0x6744_6698;
/// FIXED_NEWSTYLE | NO_ZEROES, as handshake flags and as client flags.
pub const HANDSHAKE_FLAGS: u16 = 3;
pub const READ: u16 = 0;
pub const WRITE: u16 = 1;
const FLUSH: u16 = 3;

pub const REQUEST_BYTES: usize = 28;
pub const REPLY_BYTES: usize = 16;
/// Head of a reply with data, and the place that its first block begins with.
const MARKED_BYTES: usize = REPLY_BYTES + 8;
/// What the kernel keeps of requests that the server has not read yet. Its default is a fifth of a request of 1 MiB: client and server
/// would take turns instead of working at the same time. The kernel caps it by its own limit (net.core.wmem_max).
pub const SEND_BUFFER_BYTES: usize = 4 << 20;
/// Longer than any request takes, so that a stuck server ends the run.
const PATIENCE: Duration = Duration::from_secs(120);

/// One connection.
pub struct Client {
    stream: UnixStream,
    /// What writes carry, but for the places of the blocks.
    pattern: Vec<u8>,
    /// As many requests as a run has in flight, one behind the other. Laid out once: a request changes only its head and the places
    /// of its blocks, so that the client costs little more than its system calls.
    outgoing: Vec<u8>,
    /// Payload bytes of each of these requests.
    payload: usize,
    /// Bytes of them that go out with the next send.
    queued: usize,
    received: Vec<u8>,
    /// Bytes in `received` that are not understood yet: less than a head.
    kept: usize,
    /// Bytes of a payload still to come.
    skip: usize,
    /// At the places in what is read.
    pub looks: bool,
}

impl Client {
    /// Connects and takes the default export, with simple replies.
    pub fn connect(socket: &Path) -> io::Result<Client> {
        let mut stream = UnixStream::connect(socket)?;
        rustix::net::sockopt::set_socket_send_buffer_size(&stream, SEND_BUFFER_BYTES)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        let mut greeting = [0; 18];
        stream.read_exact(&mut greeting)?;
        let flags = u16::from_be_bytes([greeting[16], greeting[17]]);
        let expected = [NBDMAGIC.to_be_bytes(), IHAVEOPT.to_be_bytes()].concat();
        if greeting[..16] != expected || flags & HANDSHAKE_FLAGS != HANDSHAKE_FLAGS {
            return Err(io::Error::other(format!("this is no greeting of an NBD server: {greeting:02x?}")));
        }
        let mut hello = u32::from(HANDSHAKE_FLAGS).to_be_bytes().to_vec();
        hello.extend(IHAVEOPT.to_be_bytes());
        hello.extend(OPTION_EXPORT_NAME.to_be_bytes());
        hello.extend(0u32.to_be_bytes()); // the default export has no name
        stream.write_all(&hello)?;
        stream.read_exact(&mut [0; 10])?; // its size and flags
        let (pattern, received) = (noise(MIB as usize), vec![0; 2 << 20]);
        Ok(Client { stream, pattern, outgoing: Vec::new(), payload: 0, queued: 0, received, kept: 0, skip: 0, looks: true })
    }

    /// Does a request at each of the places (in units of the load's length), ending in a FLUSH if they write.
    pub fn run(&mut self, load: &Load, places: &[u64]) -> io::Result<()> {
        self.lay_out(load);
        let (mut sent, mut answered) = (0, 0);
        while answered < places.len() {
            while sent < places.len() && sent - answered < load.depth as usize {
                self.queue(load, places[sent]);
                sent += 1;
            }
            self.push()?;
            answered += self.receive(if load.way == Way::Read { load.bytes } else { 0 })?;
        }
        if load.way == Way::Write { self.flush() } else { Ok(()) }
    }

    fn lay_out(&mut self, load: &Load) {
        let payload = if load.way == Way::Write { load.bytes as usize } else { 0 };
        let bytes = (REQUEST_BYTES + payload) * load.depth as usize;
        if (self.payload, self.outgoing.len()) != (payload, bytes) {
            self.payload = payload;
            self.outgoing = [&[0; REQUEST_BYTES], &self.pattern[..payload]].concat().repeat(load.depth as usize);
        }
    }

    pub fn flush(&mut self) -> io::Result<()> {
        self.stream.write_all(&head(FLUSH, 0, 0))?;
        while self.receive(0)? == 0 {}
        Ok(())
    }

    fn queue(&mut self, load: &Load, place: u64) {
        let offset = place * load.bytes;
        let command = if load.way == Way::Write { WRITE } else { READ };
        let request = &mut self.outgoing[self.queued..][..REQUEST_BYTES + self.payload];
        let (there, payload) = request.split_at_mut(REQUEST_BYTES);
        there.copy_from_slice(&head(command, offset, load.bytes));
        for (block, contents) in (offset..).step_by(BLOCK_BYTES as usize).zip(payload.chunks_exact_mut(BLOCK_BYTES as usize)) {
            contents[..8].copy_from_slice(&block.to_be_bytes());
        }
        self.queued += REQUEST_BYTES + self.payload;
    }

    fn push(&mut self) -> io::Result<()> {
        self.stream.write_all(&self.outgoing[..self.queued])?;
        self.queued = 0;
        Ok(())
    }

    /// One receive: how many replies it ended. Each carries `payload` bytes.
    fn receive(&mut self, payload: u64) -> io::Result<usize> {
        let got = self.stream.read(&mut self.received[self.kept..])?;
        if got == 0 {
            return Err(io::Error::other("the server hung up"));
        }
        let head_bytes = if payload > 0 && self.looks { MARKED_BYTES } else { REPLY_BYTES };
        let (mut at, end, mut ended) = (0, self.kept + got, 0);
        loop {
            let skipped = self.skip.min(end - at);
            at += skipped;
            self.skip -= skipped;
            ended += usize::from(skipped > 0 && self.skip == 0);
            if end - at < head_bytes {
                break;
            }
            check(&self.received[at..at + head_bytes])?;
            at += head_bytes;
            self.skip = (payload as usize + REPLY_BYTES) - head_bytes;
            ended += usize::from(self.skip == 0);
        }
        self.received.copy_within(at..end, 0);
        self.kept = end - at;
        Ok(ended)
    }
}

/// The cookie is the place of the first block.
fn head(command: u16, offset: u64, bytes: u64) -> [u8; REQUEST_BYTES] {
    let mut head = [0; REQUEST_BYTES];
    head[..4].copy_from_slice(&REQUEST.to_be_bytes());
    head[6..8].copy_from_slice(&command.to_be_bytes());
    head[8..16].copy_from_slice(&offset.to_be_bytes());
    head[16..24].copy_from_slice(&offset.to_be_bytes());
    head[24..].copy_from_slice(&(bytes as u32).to_be_bytes());
    head
}

/// A good reply, with the contents that were asked for: the first block begins with its cookie.
fn check(head: &[u8]) -> io::Result<()> {
    let (magic, rest) = head.split_at(4);
    let (error, rest) = rest.split_at(4);
    let (cookie, place) = rest.split_at(8);
    if magic != SIMPLE_REPLY.to_be_bytes() || error != [0; 4] {
        return Err(io::Error::other(format!("this is no reply, or an error: {head:02x?}")));
    }
    if !place.is_empty() && place != cookie {
        return Err(io::Error::other("a read was answered with another block's contents"));
    }
    Ok(())
}

/// Bytes that nothing can compress.
fn noise(bytes: usize) -> Vec<u8> {
    crate::common::chance::Chance::new(1).bytes(bytes)
}
