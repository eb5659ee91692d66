//! A server that does nothing: it takes what is written into one buffer, and sends what is read from it. No server on this machine is
//! faster, whatever is behind it: the socket itself takes the rest.

use std::io::{self, IoSlice, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::thread;

use rustix::net::sockopt::set_socket_send_buffer_size;

use crate::client::{
    Client, HANDSHAKE_FLAGS, IHAVEOPT, NBDMAGIC, READ, REPLY_BYTES, REQUEST, REQUEST_BYTES, SEND_BUFFER_BYTES, SIMPLE_REPLY, WRITE,
};
use crate::load::MIB;

/// Of an export of the fixed newstyle handshake: it has flags, and can be flushed.
const TRANSMISSION_FLAGS: u16 = 1 | 1 << 2;
/// Magic, option and length of an option, and the name of the default export, which is empty.
const OPTION_BYTES: usize = 16;

/// The one client of such a server, which has a thread of its own until that hangs up.
pub fn served(socket: &Path, bytes: u64) -> io::Result<Client> {
    let listener = UnixListener::bind(socket)?;
    thread::spawn(move || {
        let (mut client, _) = listener.accept().expect("a client");
        shake_hands(&mut client, bytes).and_then(|()| answer(&mut client)).expect("a client that speaks NBD");
    });
    let mut client = Client::connect(socket)?;
    client.looks = false;
    Ok(client)
}

fn shake_hands(client: &mut UnixStream, bytes: u64) -> io::Result<()> {
    set_socket_send_buffer_size(&*client, SEND_BUFFER_BYTES)?;
    client.write_all(&[&NBDMAGIC.to_be_bytes()[..], &IHAVEOPT.to_be_bytes(), &HANDSHAKE_FLAGS.to_be_bytes()].concat())?;
    client.read_exact(&mut [0; 4 + OPTION_BYTES])?;
    client.write_all(&[&bytes.to_be_bytes()[..], &TRANSMISSION_FLAGS.to_be_bytes()].concat())
}

fn answer(client: &mut UnixStream) -> io::Result<()> {
    let mut contents = vec![1; MIB as usize];
    let mut request = [0; REQUEST_BYTES];
    loop {
        match client.read_exact(&mut request) {
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(()),
            other => other?,
        }
        assert_eq!(request[..4], REQUEST.to_be_bytes());
        let command = u16::from_be_bytes([request[6], request[7]]);
        let length = u32::from_be_bytes(request[24..].try_into().expect("four bytes")) as usize;
        let mut reply = [0; REPLY_BYTES];
        reply[..4].copy_from_slice(&SIMPLE_REPLY.to_be_bytes());
        reply[8..].copy_from_slice(&request[8..16]);
        match command {
            READ => send(client, &reply, &contents[..length])?,
            WRITE => {
                client.read_exact(&mut contents[..length])?;
                client.write_all(&reply)?;
            }
            _ => client.write_all(&reply)?,
        }
    }
}

/// Both in one system call, as far as it takes them.
fn send(client: &mut UnixStream, reply: &[u8], contents: &[u8]) -> io::Result<()> {
    let sent = client.write_vectored(&[IoSlice::new(reply), IoSlice::new(contents)])?;
    client.write_all(&reply[sent.min(reply.len())..])?;
    client.write_all(&contents[sent.saturating_sub(reply.len())..])
}
